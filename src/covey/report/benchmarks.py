"""Reads what `covey benchmark` left beside its run directories: planned experiments, their states, and commands.

covey/launch/benchmark_files.py describes the files. If they are missing or damaged, the report says less.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from covey.files import read_text
from covey.report.runs import read_status
from covey.report.text import clean

STATES = ("done", "failed", "interrupted", "running", "waiting")


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One planned experiment and its state."""

    experiment: str
    seed: str
    task: str
    algorithm: str
    state: str  # one of STATES
    error: str  # one line, or ""
    log: str  # the file with its output, or ""


@dataclass(frozen=True, kw_only=True)
class BenchmarkRecord:
    """What a benchmark's folder says about the benchmark."""

    folder: Path
    commands: tuple[str, ...]  # that ran it
    train_commands: Mapping[str, str]  # by experiment, the command that trains it alone
    attempts: tuple[Attempt, ...]


def find_benchmarks(paths: Iterable[Path], run_folders: Iterable[Path]) -> list[BenchmarkRecord]:
    """The benchmarks that a path names or holds, and those that a run belongs to."""
    folders = {folder.parent.parent for folder in run_folders}
    for path in paths:
        if path.is_dir():
            folders |= {path, *(child for child in path.iterdir() if child.is_dir())}
    unique = {folder.resolve(): folder for folder in sorted(folders) if (folder / "benchmark.yaml").is_file()}
    return [benchmark for folder in unique.values() if (benchmark := read_benchmark(folder)) is not None]


def read_benchmark(folder: Path) -> BenchmarkRecord | None:
    """The benchmark in a folder; None if its benchmark.yaml is missing or damaged."""
    try:
        content = yaml.safe_load(read_text(folder / "benchmark.yaml"))
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        return None
    if not isinstance(content, dict):
        return None
    experiments = [entry for entry in _list(content.get("experiments")) if isinstance(entry, dict)]
    return BenchmarkRecord(
        folder=folder,
        commands=tuple(clean(str(command)) for command in _list(content.get("commands"))),
        train_commands={str(entry.get("name")): clean(str(entry.get("command", ""))) for entry in experiments},
        attempts=tuple(
            _attempt(folder, entry, str(seed)) for entry in experiments for seed in _list(entry.get("seeds"))
        ),
    )


def _attempt(folder: Path, entry: Mapping[str, Any], seed: str) -> Attempt:
    name = str(entry.get("name"))
    status = read_status(folder / "status" / f"{Path(name).name}-seed_{Path(seed).name}.json")
    state = str(status.get("state", "waiting"))
    return Attempt(
        experiment=clean(name),
        seed=clean(seed),
        task=clean(str(entry.get("task", ""))),
        algorithm=clean(str(entry.get("algorithm", ""))),
        state=state if state in STATES else "waiting",
        error=clean(str(status["error"])) if status.get("error") else "",
        log=str(folder / str(status["log"])) if status.get("log") else "",
    )


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
