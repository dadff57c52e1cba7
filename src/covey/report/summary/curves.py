"""Learning curves: values on each task, and IQM of scores over all tasks, by frames and by seconds.

Runs that were evaluated at different frames are interpolated to common points. An axis is "frames" or "seconds".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from covey.report import statistics
from covey.report.runs import Problem
from covey.report.summary.options import SummaryOptions, make_generator
from covey.report.summary.records import Records
from covey.report.summary.series import Cells, Series, carry_forward
from covey.report.summary.types import Curve, TaskCurves

MOST_POINTS = 200  # of a curve whose runs were evaluated at different frames or seconds
ENOUGH_EVALUATIONS = 10  # with fewer, the page offers curves of the collected episodes


def find_common_points(xs: Sequence[np.ndarray]) -> np.ndarray | None:
    """Points [P] within the range that all of several ascending arrays cover; None if they have no common range."""
    first = xs[0]
    if all(np.array_equal(x, first) for x in xs):
        return first if first.size else None
    if not all(x.size for x in xs):
        return None
    start, end = max(x[0] for x in xs), min(x[-1] for x in xs)
    if end < start:
        return None
    return np.linspace(start, end, min(MOST_POINTS, max(x.size for x in xs)) if end > start else 1)


def find_points(series: Sequence[Series], axis: str) -> np.ndarray | None:
    """Points [P] of an axis that all series cover; None if there are none, or if a series lacks the axis."""
    xs = [x for s in series if (x := s.x(axis)) is not None]
    return find_common_points(xs) if xs and len(xs) == len(series) else None


def interpolate(series: Sequence[Series], axis: str, points: np.ndarray) -> np.ndarray:
    """Values [n, P] of n series at P points of an axis; NaN outside the range of a series."""
    rows = np.empty((len(series), points.size))
    for row, s in zip(rows, series, strict=True):
        x = s.x(axis)
        assert x is not None
        row[:] = s.values if np.array_equal(x, points) else np.interp(points, x, s.values, left=np.nan, right=np.nan)
    return rows


def make_aggregate_curves(
    cells: Cells,
    tasks: Sequence[str],
    algorithms: Sequence[str],
    options: SummaryOptions,
    axis: str,
    problems: list[Problem],
) -> Iterator[Curve]:
    """Each algorithm's IQM of scores over `tasks` and seeds; a problem for an algorithm without common points."""
    for algorithm in algorithms if tasks else ():
        by_task = [cells.series(task, algorithm) for task in tasks]
        points = find_points([s for series in by_task for s in series], axis)
        if points is None:
            why = "some runs have no evaluations, no times, or no range in common with the others"
            problems.append(Problem(what=f"no curve over tasks by {axis}", where=algorithm, why=why))
            continue
        scores = [
            cells.scores(task, interpolate(series, axis, points)) for task, series in zip(tasks, by_task, strict=True)
        ]
        # Both axes use the same generator, and so the same draws of runs.
        generator = make_generator(options, "curve", algorithm)
        yield Curve(
            algorithm=algorithm,
            x=points,
            y=statistics.iqm_curve(scores, options.curve_repetitions, generator),
            seeds=(),
            unfinished=(),
            failed=(),
            runs=np.empty((0, points.size)),
        )


def make_task_curves(
    cells: Cells, unfinished: Cells, collected: Cells, task: str, algorithms: Sequence[str]
) -> TaskCurves:
    """The curves of one task, from the series that count, those of unfinished runs, and those of collected episodes."""
    no_cells = Cells([], {}, {})
    return TaskCurves(
        task=task,
        by_frames=tuple(_make_curves(cells, unfinished, task, algorithms, "frames")),
        by_seconds=tuple(_make_curves(cells, unfinished, task, algorithms, "seconds")),
        collected_by_frames=tuple(_make_curves(collected, no_cells, task, algorithms, "frames")),
        collected_by_seconds=tuple(_make_curves(collected, no_cells, task, algorithms, "seconds")),
    )


def _make_curves(cells: Cells, unfinished: Cells, task: str, algorithms: Sequence[str], axis: str) -> Iterator[Curve]:
    for algorithm in algorithms:
        series = [s for s in cells.series(task, algorithm) if s.frames.size]
        points = find_points(series, axis)
        if points is None:
            continue
        values = interpolate(series, axis, points)
        not_done = [s for s in unfinished.series(task, algorithm) if s.frames.size and s.x(axis) is not None]
        yield Curve(
            algorithm=algorithm,
            x=points,
            y=statistics.mean_band(values),
            seeds=tuple(s.run.seed for s in series),
            unfinished=tuple(s.run.seed for s in not_done),
            failed=tuple(s.run.seed for s in series if s.run.failure),
            runs=np.concatenate([values, interpolate(not_done, axis, points)]),
        )


def make_collected_series(series: Sequence[Series], records: Mapping[int, Records]) -> list[Series]:
    """Series of the episodes that runs collected, on tasks whose runs have few evaluations.

    `records` are by `id(run)`; runs without records are left out.
    """
    few = {
        task
        for task in {s.run.task for s in series}
        if max(s.run.frames.size for s in series if s.run.task == task) < ENOUGH_EVALUATIONS
    }
    found = []
    for s in series:
        record = records.get(id(s.run))
        if record is None or not record.frames.size or s.run.task not in few:
            continue
        frames, seconds, values = thin(record.frames), thin(record.elapsed), thin(record.values)
        own = replace(s, frames=frames, seconds=seconds, values=values, episodes=np.ones(frames.size))
        found.append(replace(own, failed_final=(float(values[-1]), 0)) if s.run.failure else own)
    return [
        carry_forward(s, [other for other in found if other.run.task == s.run.task]) if s.run.failure else s
        for s in found
    ]


def thin(values: np.ndarray) -> np.ndarray:
    """[n] → at most MOST_POINTS means of neighbours, which also smooths the noise of single iterations."""
    width = -(-values.size // MOST_POINTS)
    return np.array([values[start : start + width].mean() for start in range(0, values.size, width)])
