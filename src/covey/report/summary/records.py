"""Reads metrics.jsonl of a run directory: where its time went, and the returns of the episodes it collected."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from covey import metrics as names
from covey.errors import CoveyError
from covey.experiment.recording.run_directory import read_metrics
from covey.report.runs import Problem, Run, as_number

PARTS = {
    "compiling": names.COMPILING_SECONDS,
    "collecting": names.COLLECTING_SECONDS,
    "updating": names.UPDATING_SECONDS,
    "evaluating": names.EVALUATING_SECONDS,
}


@dataclass(frozen=True, kw_only=True)
class Records:
    """What metrics.jsonl says about a run. n is the number of iterations in which an episode ended."""

    seconds: Mapping[str, float]  # by part of the time; parts that the file does not tell are absent
    frames: np.ndarray  # [n], ascending
    elapsed: np.ndarray  # [n], seconds
    values: np.ndarray  # [n], the metric's mean over the episodes that ended in the iteration


def read_records(run: Run, metric: str, problems: list[Problem]) -> Records:
    """The records of a run with a run directory; empty, and a problem, if metrics.jsonl cannot be read."""
    assert run.folder is not None

    def note(what: str, why: str) -> None:
        problems.append(Problem(what=what, where=str(run.folder), why=why))

    try:
        lines = read_metrics(run.folder)
    except (CoveyError, OSError, RecursionError) as error:
        note("its metrics cannot be read", str(error))
        lines = []
    records = [line for line in lines if isinstance(line, dict)]
    if len(records) < len(lines):
        note("some lines of its metrics are not records", "left out of its cost")
    frames, elapsed, values = _read_collected(records, metric)
    return Records(seconds=_seconds_by_part(records), frames=frames, elapsed=elapsed, values=values)


def _read_collected(records: Sequence[Mapping[str, Any]], metric: str) -> np.ndarray:
    """[3, n]: frames, seconds and the metric's value for the n iterations in which an episode ended."""
    keys = (names.FRAMES, names.ELAPSED_SECONDS, f"collection/{metric}")
    rows = [[as_number(record.get(key)) for key in keys] for record in records if record.get(names.KIND) == names.TRAIN]
    found = np.array([row for row in rows if None not in row], np.float64).reshape(-1, 3).T
    is_ascending = (np.diff(found[:2], axis=1, prepend=-np.inf) >= 0).all(axis=0)
    return found[:, is_ascending]


def _seconds_by_part(records: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Seconds of training and evaluating, from the time that passed before each record.

    A record may state a part itself; then the last statement counts.
    """
    seconds: dict[str, float] = {}
    before = 0.0
    for record in records:
        stated = {part: number for part, key in PARTS.items() if (number := as_number(record.get(key))) is not None}
        seconds |= stated
        now = as_number(record.get(names.ELAPSED_SECONDS))
        if now is None:
            continue
        part = "training" if record.get(names.KIND) == names.TRAIN else "evaluating"
        if part not in stated:
            seconds[part] = seconds.get(part, 0.0) + max(0.0, now - before)
        before = now
    return seconds
