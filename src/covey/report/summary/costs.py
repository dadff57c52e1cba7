"""How long runs took, for covey's run directories."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from covey.report.runs import Run
from covey.report.summary.records import Records
from covey.report.summary.series import Cells
from covey.report.summary.types import Cost


def make_costs(
    cells: Cells, tasks: Sequence[str], algorithms: Sequence[str], records: Mapping[int, Records]
) -> Iterator[Cost]:
    """The cost of each cell that has runs with records, which are by `id(run)`."""
    for task in tasks:
        for algorithm in algorithms:
            runs = [s.run for s in cells.series(task, algorithm) if id(s.run) in records]
            if runs:
                yield make_cost(task, algorithm, runs, [records[id(run)].seconds for run in runs])


def make_cost(task: str, algorithm: str, runs: Sequence[Run], seconds: Sequence[Mapping[str, float]]) -> Cost:
    """Means over runs. `seconds` has, for each run, the seconds of each part of the time that is known."""
    frames = [float(run.frames[-1]) if run.frames.size else np.nan for run in runs]
    known = [number for number in frames if np.isfinite(number)]
    training = _mean([part.get("training") for part in seconds])
    rates = [f / s["training"] for f, s in zip(frames, seconds, strict=True) if s.get("training") and np.isfinite(f)]
    return Cost(
        task=task,
        algorithm=algorithm,
        num_runs=len(runs),
        frames=float(np.mean(known)) if known else np.nan,
        compiling=_mean([part.get("compiling") for part in seconds]),
        collecting=_mean([part.get("collecting") for part in seconds]),
        updating=_mean([part.get("updating") for part in seconds]),
        training=training,
        evaluating=_mean([part.get("evaluating") for part in seconds]),
        frames_per_second=float(np.mean(rates)) if rates else None,
        devices=tuple(sorted({describe_device(run.environment) for run in runs})),
    )


def describe_device(environment: Mapping[str, object]) -> str:
    """`1 × cpu (Linux-…)`, from environment.json."""
    device = environment.get("device")
    if not isinstance(device, Mapping):
        return "unknown"
    return f"{device.get('number')} × {device.get('kind')} ({environment.get('platform')})"


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None
