"""Finds the result files below a path."""

from __future__ import annotations

import os
from pathlib import Path

from covey.errors import UsageError, nearest
from covey.report.runs.directories import find_failure, has_evaluations, is_run_directory
from covey.report.runs.types import Problem


def find_files(path: Path, problems: list[Problem]) -> list[Path]:
    """The result files that a path stands for, sorted. All JSON files are included, whether or not they hold results.

    UsageError if the path does not exist.
    """
    if not path.exists():
        siblings = [str(other) for other in path.parent.glob("*")] if path.parent.is_dir() else []
        near = f"; nearest: {', '.join(nearest(str(path), siblings))}" if siblings else ""
        raise UsageError(f"no file or folder '{path}'{near}")
    return _walk(path, problems, set()) if path.is_dir() else [path]


def _walk(folder: Path, problems: list[Problem], seen: set[str]) -> list[Path]:
    place = os.path.realpath(folder)
    if place in seen:  # a link to a parent folder
        return []
    seen.add(place)
    try:
        if is_run_directory(folder):
            if (folder / "results.json").is_file() or has_evaluations(folder) or find_failure(folder):
                return [folder / "results.json"]
            problems.append(Problem(what="no evaluation yet", where=str(folder), why="left out"))
            return []
        children = sorted(child for child in folder.iterdir() if not child.name.startswith("."))
    except OSError as error:
        problems.append(Problem(what="cannot be read", where=str(folder), why=error.strerror or str(error)))
        return []
    files = []
    for child in children:
        if child.is_dir():
            files += _walk(child, problems, seen)
        elif child.suffix == ".json":
            files.append(child)
    return files
