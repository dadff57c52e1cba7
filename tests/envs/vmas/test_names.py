"""Names that VMAS has for fields are understood, and so are those that only concern its viewer."""

from __future__ import annotations

from pathlib import Path

import pytest

from covey import registry
from covey.envs.base import make_env
from covey.errors import UsageError
from covey.experiment.configuration.compose import compose
from covey.experiment.configuration.config import to_dict

TASKS = [entry.name for entry in registry.tasks if entry.name.startswith("vmas/")]
VIEWER = {"viewer_size": [700, 700], "viewer_zoom": 1.2, "plot_grid": True, "visualize_semidims": False}


@pytest.mark.parametrize("task", TASKS)
def test_every_scenario_takes_them(task: str) -> None:
    defaults = registry.tasks[task].defaults()
    assert registry.build_config(defaults, {"max_steps": 7, **VIEWER}, "task").time_limit == 7
    assert registry.build_config(defaults, VIEWER, "task") == defaults


def test_from_python() -> None:
    assert make_env("vmas/navigation", max_steps=7, comms_range=1.0).spec.time_limit == 7
    with pytest.raises(UsageError, match="max_steps is another name"):
        make_env("vmas/navigation", max_steps=7, time_limit=8)


def test_on_the_command_line() -> None:
    words = ["task=vmas/navigation", "task.max_steps=7", "task.comms_range=2", "task.viewer_size=[1,2]"]
    config = compose(words)
    assert to_dict(config) == to_dict(compose(["task=vmas/navigation", "task.time_limit=7"]))
    with pytest.raises(UsageError, match="max_steps is another name"):
        compose([*words, "task.time_limit=7"])
    with pytest.raises(UsageError, match="unknown field"):
        compose(["task=vmas/sampling", "task.comms_rang=1"])
    with pytest.raises(UsageError, match="unknown field"):
        compose(["task=lbf/8x8-2p-2f-coop", "task.max_steps=7"])


def test_in_a_file(tmp_path: Path) -> None:
    folder = tmp_path / "task" / "my"
    folder.mkdir(parents=True)
    (folder / "short.yaml").write_text("base: vmas/navigation\nmax_steps: 7\nviewer_zoom: 2\n")
    words = ["task=my/short", f"config_dir={tmp_path}"]
    assert compose(words).task.config.time_limit == 7
    assert compose([*words, "task.max_steps=9"]).task.config.time_limit == 9  # the later word is the stronger
