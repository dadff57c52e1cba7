"""metrics.jsonl and results.json mirror each other: each evaluation is in both, so that each can be checked, and in
part rebuilt, by the other.

results.json has what every episode gave, and no room for a checksum in its schema. metrics.jsonl has a line for each
evaluation with the means, and the checksum of what results.json says of it (`results_crc32`). Checkpoints hold a copy
of results.json too. What each iteration of training gave is in metrics.jsonl alone. No JAX here: reports read this too.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from covey import metrics as names
from covey.experiment.recording.run_directory import metrics_lines, parse_record
from covey.files import read_bytes, to_json
from covey.results import (
    ABSOLUTE_METRICS,
    ELAPSED_TIME,
    STEP_COUNT,
    Results,
    add_step,
    only_run,
    set_absolute_metrics,
    steps,
)

Record = Mapping[str, Any]


def step_checksum(results: Results, name: str) -> int:
    """The checksum of what `results` says of one evaluation: with the names above it, without its time."""
    [(suite, tasks)] = results.items()
    [(task, algorithms)] = tasks.items()
    [(algorithm, runs)] = algorithms.items()
    [(seed, run)] = runs.items()
    step = {key: value for key, value in run[name].items() if key != ELAPSED_TIME}
    return zlib.crc32(to_json([suite, task, algorithm, seed, step]).encode())


def find_step(results: Results, kind: str, frames: int) -> str | None:
    """The name under which `results` has the evaluation of a record of metrics.jsonl; None where it has none."""
    if kind == names.ABSOLUTE:
        return ABSOLUTE_METRICS if ABSOLUTE_METRICS in only_run(results) else None
    return next((name for name, step in steps(results).items() if step.get(STEP_COUNT) == frames), None)


def disagreements(results: Results, records: Iterable[Record]) -> list[str]:
    """Where metrics.jsonl and results.json disagree about an evaluation, in words."""
    found = []
    for record in records:
        if record.get(names.KIND) not in (names.EVALUATION, names.ABSOLUTE) or names.RESULTS_CHECKSUM not in record:
            continue
        absolute = record[names.KIND] == names.ABSOLUTE
        what = "the absolute metric" if absolute else f"the evaluation at {record[names.FRAMES]:,} frames"
        name = find_step(results, record[names.KIND], record[names.FRAMES])
        if name is None:
            found.append(f"{what} is missing")
        elif step_checksum(results, name) != record[names.RESULTS_CHECKSUM]:
            found.append(f"{what} has changed since it was recorded")
        elif not absolute and only_run(results)[name].get(ELAPSED_TIME) != record.get(names.ELAPSED_SECONDS):
            found.append(f"the time of {what} has changed since it was recorded")
    return found


def read_intact(path: Path) -> tuple[list[dict[str, Any]], list[int]]:
    """The records of a metrics.jsonl that are intact, and the numbers of the lines that are not."""
    records, damaged = [], []
    for number, line in enumerate(metrics_lines(read_bytes(path)) if path.exists() else [], start=1):
        try:
            record = parse_record(line)
            if not isinstance(record.get(names.FRAMES), int) or names.KIND not in record:
                raise ValueError("no record")
            records.append(record)
        except (ValueError, AttributeError, RecursionError):
            damaged.append(number)
    return records, damaged


def results_from_records(empty: Results, records: Iterable[Record]) -> Results:
    """`empty` with the evaluations in metrics.jsonl: the means of each, as if it had played one episode."""
    about = {names.KIND, names.FRAMES, names.RESULTS_CHECKSUM, *names.WALL_CLOCK}
    results = empty
    for record in records:
        means = {name: [value] for name, value in record.items() if name not in about and value is not None}
        if record[names.KIND] == names.EVALUATION:
            seconds = record.get(names.ELAPSED_SECONDS) or 0.0
            results = add_step(results, frames=record[names.FRAMES], elapsed_seconds=seconds, metrics=means)
        elif record[names.KIND] == names.ABSOLUTE:
            results = set_absolute_metrics(results, means)
    return results


def records_with_evaluations(records: Sequence[Record], results: Results) -> list[Record]:
    """`records` in order, with those of evaluations that only `results` has."""
    known = {record[names.FRAMES] for record in records if record[names.KIND] == names.EVALUATION}
    missing = [
        _evaluation_record(results, name) for name, step in steps(results).items() if step[STEP_COUNT] not in known
    ]
    return sorted([*records, *missing], key=lambda record: (record[names.FRAMES], record[names.KIND] != names.TRAIN))


def _evaluation_record(results: Results, name: str) -> Record:
    step = only_run(results)[name]
    head = {
        names.KIND: names.EVALUATION,
        names.FRAMES: step[STEP_COUNT],
        names.ELAPSED_SECONDS: step[ELAPSED_TIME],
    }
    values = {key: np.array(value, np.float32) for key, value in step.items() if key not in (STEP_COUNT, ELAPSED_TIME)}
    means = {key: float(value.mean()) for key, value in values.items()}
    return {**head, **means, names.RESULTS_CHECKSUM: step_checksum(results, name)}
