"""Executes the documentation's notebooks and stores their outputs in them.

    python tools/run_notebooks.py                  all, unchanged
    python tools/run_notebooks.py first_steps      one

The documentation shows the stored outputs; building it executes nothing. Run this after a change of a notebook, or of
what it prints. tests/test_notebooks.py executes them with small budgets.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parents[1] / "docs" / "notebooks"
SECONDS = 1_200  # for each cell


def main() -> None:
    for path in sorted(FOLDER.glob("*.ipynb")):
        if sys.argv[1:] and path.stem not in sys.argv[1:]:
            continue
        notebook = nbformat.read(path, as_version=4)
        with tempfile.TemporaryDirectory() as folder:
            execute(notebook, folder)
        clean(notebook, folder)
        nbformat.write(notebook, path)
        print(f"executed {path.name}: {path.stat().st_size / 1000:.0f} kB")


def execute(notebook: Any, folder: str, changes: dict[str, Any] | None = None) -> None:
    """Runs all cells in `folder`; `changes` replace values of the cell that is tagged `parameters`."""
    if changes:
        [cell] = [cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", ())]
        unknown = [name for name in changes if name not in cell.source]
        assert not unknown, f"the notebook has no parameter {unknown}"
        cell.source += "".join(f"\n{name} = {value!r}" for name, value in changes.items())
    os.environ.setdefault("PYDEVD_DISABLE_FILE_VALIDATION", "1")
    NotebookClient(notebook, timeout=SECONDS, resources={"metadata": {"path": folder}}).execute()


def clean(notebook: Any, folder: str) -> None:
    """Joins texts, and drops what differs from machine to machine: times of execution, warnings, folders."""
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type != "code":
            continue
        cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
        for output in cell.outputs:
            if "text" in output:
                output.text = output.text.replace(f"{folder}/", "")
    notebook.metadata = {"kernelspec": notebook.metadata.kernelspec, "language_info": {"name": "python"}}


if __name__ == "__main__":
    main()
