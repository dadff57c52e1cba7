"""Settings that learn, by task and algorithm: `settings=tuned`.

Each is an entry in a file `settings/SUITE.yaml`, under its task:

    rware/tiny-4ag:
      - algorithms: [mappo]
        result: rware-tiny-4ag                  the file of results/ that shows what they reach, without `.json`;
                                                of a benchmark's report, `vmas_nine/summary`
        tuning: two trials of 4M frames         what was tried to find them
        seeds: 3                                the seeds of that result
        algorithm: {lr: 5e-4}                   sections, as in a preset of `experiment`
        experiment: {frames: 20_000_000}

`compose` reads the files and puts what is found beneath the preset of `experiment=` and the command line.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from covey.errors import UsageError, unknown_name

NONE, TUNED = "none", "tuned"  # what `settings=` takes
SECTIONS = ("task", "algorithm", "model", "critic_model", "experiment")
FIELDS = ("algorithms", "result", "tuning", "seeds", *SECTIONS)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """What made a task and an algorithm learn, and the budget that found it."""

    task: str
    algorithm: str
    result: str
    tuning: str
    seeds: int
    sections: Mapping[str, Any]
    path: Path

    @property
    def budget(self) -> str:
        """`tuning: two trials; result: 1,000,000 frames, 3 seeds, results/NAME.json`"""
        frames = self.sections.get("experiment", {}).get("frames")
        length = f"{int(frames):,} frames, " if isinstance(frames, int | float) else ""
        return f"tuning: {self.tuning}; result: {length}{self.seeds} seeds, results/{self.result}.json"

    @property
    def line(self) -> str:
        """The line at the start of a run."""
        task = ", ".join(f"task.{name}={_text(value)}" for name, value in self.sections.get("task", {}).items())
        changes = f"; they set {task}" if task else ""
        return f"tuned settings for {self.task}, {self.algorithm} ({self.budget}){changes}"


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def settings_in(path: Path, fields: Mapping[str, Any]) -> list[Settings]:
    """The settings of a file, one for each task and algorithm."""
    found = []
    for task, entries in fields.items():
        for entry in entries if isinstance(entries, list) else [entries]:
            _check(path, task, entry)
            sections = {name: entry[name] for name in SECTIONS if name in entry}
            for algorithm in entry["algorithms"]:
                result = str(entry.get("result", "")).format(task=task.rpartition("/")[2], algorithm=algorithm)
                found.append(
                    Settings(
                        task=task,
                        algorithm=algorithm,
                        result=result,
                        tuning=str(entry.get("tuning", "none")),
                        seeds=entry.get("seeds", 1),
                        sections=sections,
                        path=path,
                    )
                )
    return found


def _check(path: Path, task: str, entry: Any) -> None:
    where = f"{path}: {task}"
    if not isinstance(entry, Mapping) or not isinstance(entry.get("algorithms"), list):
        raise UsageError(f"{where} takes a list of settings, each with algorithms: [NAME, …]")
    for name in entry:
        if name not in FIELDS:
            known = f"it takes {', '.join(FIELDS)}"
            raise UsageError(f"{where}: {unknown_name('field of settings', name, FIELDS, see=known)}")
    for name in SECTIONS:
        if not isinstance(entry.get(name, {}), Mapping):
            raise UsageError(f"{where}: {name} takes a mapping, not {entry[name]!r}")


def find_settings(known: Iterable[Settings], tasks: Sequence[str], algorithms: Sequence[str]) -> Settings:
    """The settings for a task and an algorithm. Each comes with the names that it derives from, its own name last."""
    known = list(known)
    for task in reversed(tasks):
        for algorithm in reversed(algorithms):
            for settings in known:
                if (settings.task, settings.algorithm) == (task, algorithm):
                    return settings
    for_task = sorted({settings.algorithm for settings in known if settings.task in tasks})
    for_algorithm = sorted({settings.task for settings in known if settings.algorithm in algorithms})
    raise UsageError(
        f"no tuned settings for {tasks[-1]} with {algorithms[-1]}; for {tasks[-1]}: {', '.join(for_task) or 'none'}; "
        f"for {algorithms[-1]}: {', '.join(for_algorithm) or 'none'} (`covey list settings`)"
    )
