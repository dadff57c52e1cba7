"""The documentation's notebooks run, with small budgets, and are committed with their outputs."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import nbformat
import pytest

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
SHORTER = {
    "first_steps": {"FRAMES": 8_192, "EPISODES": 4},
    "mappo_tutorial": {"NUM_ITERATIONS": 1, "NUM_ENVS": 8, "EPOCHS": 1},
}


@pytest.fixture(scope="module")
def tool() -> Any:
    spec = importlib.util.spec_from_file_location("run_notebooks", ROOT / "tools" / "run_notebooks.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_there_are_notebooks() -> None:
    assert {path.stem for path in NOTEBOOKS} == set(SHORTER)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(path: Path, tool: Any, tmp_path: Path) -> None:
    tool.execute(nbformat.read(path, as_version=4), str(tmp_path), SHORTER[path.stem])


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_has_outputs(path: Path) -> None:
    """`python tools/run_notebooks.py` stores them; the documentation shows them."""
    cells = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    assert sum(bool(cell.outputs) for cell in cells) >= len(cells) / 2
    assert not any(output.output_type == "error" for cell in cells for output in cell.outputs)
