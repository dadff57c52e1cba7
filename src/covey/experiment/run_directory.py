"""The run directory: all that an experiment leaves behind, readable and resumable whenever the process is killed.

    config.yaml       the resolved configuration; its presence is what makes a folder a run directory
    environment.json  versions, device, git commit, command, and the run's id
    metrics.jsonl     append-only, one JSON object a line; NaN and infinities are null
    results.json      every evaluation, episode by episode (covey.results)
    checkpoints/      covey.experiment.checkpoint

Several seeds of one experiment share a parent that holds nothing but `seed_N/`, each a whole run directory.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from covey.errors import CoveyError, UsageError
from covey.files import sync_folder, to_json, write_atomically
from covey.results import Results, read_results, write_results


class RunDirectory:
    """An existing run directory; make one with `create`, find one with `open`."""

    def __init__(self, path: Path, config: dict[str, Any], environment: dict[str, Any]):
        self.path = path
        self.config = config
        self.environment = environment
        self.metrics = MetricsFile(path / "metrics.jsonl")

    @classmethod
    def create(
        cls, path: str | os.PathLike[str], config: Mapping[str, Any], environment: Mapping[str, Any]
    ) -> RunDirectory:
        """Makes the directory in one step, by renaming a sibling that already holds its first files."""
        target = Path(path)
        if target.exists() or target.is_symlink():
            raise UsageError(f"run directory {target} exists already; `covey resume {target}` continues it")
        # The id names the run for services that keep runs by name, so that a resumed run is the same run there.
        environment = {"run_id": uuid.uuid4().hex[:12], **environment}
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}.tmp")
            temporary.mkdir()
            try:
                write_atomically(temporary / "config.yaml", yaml.safe_dump(dict(config), sort_keys=False))
                write_atomically(temporary / "environment.json", to_json(environment, indent=2) + "\n")
                os.rename(temporary, target)
            except BaseException:
                shutil.rmtree(temporary, ignore_errors=True)
                raise
            sync_folder(target.parent)
        except OSError as error:
            raise UsageError(f"cannot make run directory {target}: {error.strerror or error}") from error
        return cls.open(target)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> RunDirectory:
        target = Path(path)
        if not (target / "config.yaml").is_file():
            raise UsageError(f"{target} is not a run directory: it has no config.yaml")
        try:
            config = yaml.safe_load((target / "config.yaml").read_text(encoding="utf-8"))
        except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
            raise UsageError(f"cannot read {target / 'config.yaml'}: {_one_line(error)}") from error
        if not isinstance(config, dict):
            raise UsageError(f"cannot read {target / 'config.yaml'}: it holds no mapping")
        return cls(target, config, _read_environment(target / "environment.json"))

    def rewrite_config(self, config: Mapping[str, Any]) -> None:
        """For a run that goes on with more frames or other loggers."""
        write_atomically(self.path / "config.yaml", yaml.safe_dump(dict(config), sort_keys=False))
        self.config = dict(config)

    @property
    def run_id(self) -> str:
        return self.environment["run_id"]

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    def read_results(self) -> Results | None:
        """None before the first evaluation."""
        path = self.path / "results.json"
        return read_results(path) if path.exists() else None

    def write_results(self, results: Results) -> None:
        write_results(self.path / "results.json", results)


class MetricsFile:
    """metrics.jsonl: grows by whole lines, and is cut back to a checkpoint's length when a run resumes."""

    def __init__(self, path: Path):
        self.path = path

    def append(self, record: Mapping[str, Any]) -> None:
        # One write of one line: a kill before or after it, or at worst a torn last line, which readers leave out.
        line = to_json(dict(record)) + "\n"
        with open(self.path, "ab", buffering=0) as file:
            file.write(line.encode())

    def sync(self) -> int:
        """Forces what was appended to the disk and returns the length in bytes, for a checkpoint to store."""
        if not self.path.exists():
            return 0
        with open(self.path, "ab") as file:
            os.fsync(file.fileno())
            return file.tell()

    def cut(self, offset: int) -> None:
        """Forgets everything after the first `offset` bytes; a line torn by them goes too."""
        if not self.path.exists():
            return
        with open(self.path, "r+b") as file:
            # Shorter than the checkpoint says where a machine lost its last writes; growing would fill with zeros.
            kept = file.read(offset)
            file.truncate(kept.rfind(b"\n") + 1)
            os.fsync(file.fileno())

    def read(self) -> list[dict[str, Any]]:
        return read_metrics(self.path.parent)


def read_metrics(run_directory: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The records of metrics.jsonl in order; a torn last line is left out, a bad one before it is an error."""
    path = Path(run_directory) / "metrics.jsonl"
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")
    records = []
    for number, line in enumerate(lines[:-1], start=1):  # what follows the last newline is empty or torn
        try:
            records.append(json.loads(line))
        except ValueError as error:
            raise CoveyError(f"{path}, line {number}: not JSON ({error})") from error
    return records


def run_directories(path: str | os.PathLike[str]) -> list[Path]:
    """The run directories that `path` stands for: itself, or those of its seeds in order."""
    parent = Path(path)
    if (parent / "config.yaml").is_file():
        return [parent]
    seeds = {
        int(match[1]): child
        for child in (parent.iterdir() if parent.is_dir() else ())
        if (match := re.fullmatch(r"seed_(\d+)", child.name)) and (child / "config.yaml").is_file()
    }
    if not seeds:
        raise UsageError(f"{parent} is not a run directory: it has no config.yaml and no seed_N/ that has one")
    return [seeds[seed] for seed in sorted(seeds)]


def _read_environment(path: Path) -> dict[str, Any]:
    """Empty but for an id where the file is missing or unreadable: nothing depends on it."""
    try:
        environment = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        environment = {}
    return {"run_id": path.parent.name, **environment}


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
