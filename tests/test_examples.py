"""Every example runs, and what the examples register can be named on the command line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "examples"
EXAMPLES = sorted(FOLDER.glob("*.py"))
# Arguments that make an example short enough for a test.
SHORTER = {"mappo_navigation": ["1"], "pettingzoo_loop": ["20_000"]}


def run(arguments: list[str], folder: Path) -> str:
    done = subprocess.run([sys.executable, *arguments], cwd=folder, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 7


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example(path: Path, tmp_path: Path) -> None:
    assert run([str(path), *SHORTER.get(path.stem, [])], tmp_path)


def test_what_examples_register_are_choices() -> None:
    """In the examples' folder, as their first lines say; all at once here."""
    choices = ["task=mine/meet", "task.num_agents=3", "model=residual", "model.num_blocks=5"]
    choices += ["algorithm=reinforce", "algorithm.baseline_decay=0.5"]
    choices += ["experiment.loop=evolution", "experiment.sigma=0.3"]
    modules = "imports=[custom_task,custom_model,custom_algorithm,custom_loop]"
    shown = run(["-m", "covey.cli", "show", modules, *choices], FOLDER)
    assert all(field in shown for field in ("num_agents: 3", "num_blocks: 5", "baseline_decay: 0.5", "sigma: 0.3"))


@pytest.mark.slow
def test_a_registered_task_trains_from_the_command_line(tmp_path: Path) -> None:
    arguments = ["task=mine/meet", "imports=[custom_task]", "experiment=debug", f"run_dir={tmp_path / 'run'}"]
    run(["-m", "covey.cli", "train", *arguments], FOLDER)
    assert (tmp_path / "run" / "results.json").is_file()
