"""Runs as series of one metric: which of them count, what their final values are, and what a failed run counts as.

A cell is one algorithm on one task. `Cells` holds the series of each cell, one per seed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from covey.report import statistics
from covey.report.runs import Problem, Run, split_unfinished
from covey.report.summary.types import Final, Scale

LAST_SHARE = 0.1  # without an absolute metric, evaluations in this last share of a run's frames make its final value
ABSOLUTE, LAST = "absolute", "last"  # kinds of final value: the absolute metric, or the last evaluations


@dataclass(frozen=True, kw_only=True)
class Series:
    """One metric of one run: means over episodes at its E evaluations with finite values, and the absolute metric."""

    run: Run
    frames: np.ndarray  # [E]
    seconds: np.ndarray | None  # [E]
    values: np.ndarray  # [E]
    episodes: np.ndarray  # [E], how many are in each value
    absolute: float  # NaN if there is none
    absolute_episodes: int
    failed_final: tuple[float, int] | None = None  # final value and episodes of a failed run: `with_failed_finals`

    def x(self, axis: str) -> np.ndarray | None:
        """[E], `frames` or `seconds`."""
        return self.frames if axis == "frames" else self.seconds

    def is_last(self) -> np.ndarray:
        """[E], which evaluations make the final value if there is no absolute metric."""
        return self.frames >= (1 - LAST_SHARE) * self.frames[-1] if self.frames.size else np.zeros(0, bool)

    def final(self, kind: str) -> tuple[float, int]:
        """The final value and its number of episodes. `kind` is ABSOLUTE or LAST; failed runs have their own."""
        if self.failed_final is not None:
            return self.failed_final
        if kind == ABSOLUTE:
            return self.absolute, self.absolute_episodes
        last = self.is_last()
        return float(self.values[last].mean()), int(self.episodes[last].sum())


def make_series(run: Run, metric: str, problems: list[Problem]) -> Series | None:
    """The run's series of a metric; None, and a problem, if it has no finite value. A failed run always has one."""
    evaluations = run.episodes.get(metric, [np.empty(0)] * run.frames.size)
    absolute = run.absolute.get(metric, np.empty(0))
    values = np.concatenate([*evaluations, absolute])
    finite = np.isfinite(values)
    if not finite.any():
        if run.failure:
            return _empty_series(run)
        what = f"no finite {metric}" if values.size else f"no {metric}"
        problems.append(Problem(what=what, where=run.title, why="left out"))
        return None
    if not finite.all():
        what = f"{(~finite).sum()} of {finite.size} values of {metric} are null, not finite or too large"
        why = "left out of means; an evaluation without any finite value is left out of curves"
        problems.append(Problem(what=what, where=run.title, why=why))
    sizes = [part.size for part in [*evaluations, absolute]]
    part = np.repeat(np.arange(len(sizes)), sizes)[finite]  # each value's evaluation; the last part is the absolute
    counts = np.bincount(part, minlength=len(sizes))
    sums = np.bincount(part, weights=values[finite], minlength=len(sizes))
    means = np.divide(sums, counts, out=np.full(len(sizes), np.nan), where=counts > 0)
    usable = counts[:-1] > 0
    return Series(
        run=run,
        frames=run.frames[usable],
        seconds=None if run.seconds is None else run.seconds[usable],
        values=means[:-1][usable],
        episodes=counts[:-1][usable],
        absolute=float(means[-1]),
        absolute_episodes=int(counts[-1]),
    )


def _empty_series(run: Run) -> Series:
    nothing = np.empty(0)
    return Series(
        run=run,
        frames=nothing,
        seconds=None,
        values=nothing,
        episodes=nothing,
        absolute=np.nan,
        absolute_episodes=0,
    )


def split_unfinished_series(series: Sequence[Series]) -> tuple[list[Series], list[Series]]:
    """The series that count, and those that are only drawn as single seeds (`runs.split_unfinished`)."""
    cells: dict[tuple[str, str], list[Run]] = {}
    for s in series:
        cells.setdefault((s.run.task, s.run.algorithm), []).append(s.run)
    aside = {id(run) for cell in cells.values() for run in split_unfinished(cell)[1]}
    return [s for s in series if id(s.run) not in aside], [s for s in series if id(s.run) in aside]


def choose_final_kind(task: str, series: Sequence[Series]) -> str:
    """One kind of final value for all runs of a task, so that all are judged alike.

    ABSOLUTE if every run has an absolute metric, or if some run was never evaluated during training; otherwise LAST.
    """
    here = [s for s in series if s.run.task == task and not s.run.failure]
    if not here:
        return LAST
    if all(np.isfinite(s.absolute) for s in here) or any(not s.frames.size for s in here):
        return ABSOLUTE
    return LAST


def with_failed_finals(
    series: Sequence[Series], final_kinds: Mapping[str, str], higher_is_better: bool
) -> list[Series]:
    """`series`, with final values for the runs that failed and their curves carried forward to where others end.

    A failed run counts by its last evaluations, or by the worst value on its task if it has none. If no run on the
    task has any value, the failed run stays without one.
    """
    worst = np.min if higher_is_better else np.max
    counted = []
    for s in series:
        if not s.run.failure:
            counted.append(s)
            continue
        others = [other for other in series if other.run.task == s.run.task]
        finals = [other.final(final_kinds[s.run.task])[0] for other in others if not other.run.failure]
        known = np.concatenate([*(other.values for other in others), finals])
        known = known[np.isfinite(known)]
        if s.frames.size:
            counted.append(carry_forward(replace(s, failed_final=s.final(LAST)), others))
        elif known.size:
            counted.append(carry_forward(replace(s, failed_final=(float(worst(known)), 0)), others))
        else:
            counted.append(s)
    return counted


def carry_forward(failed: Series, others: Sequence[Series]) -> Series:
    """`failed`, extended by its final value at the later evaluations of the longest other run.

    That run has the same algorithm if possible, and otherwise the same task.
    """
    assert failed.failed_final is not None
    evaluated = [s for s in others if s.frames.size and s is not failed]
    own = [s for s in evaluated if s.run.algorithm == failed.run.algorithm]
    longest = max(own or evaluated, key=lambda s: float(s.frames[-1]), default=None)
    if longest is None:
        return failed
    start = failed.frames[-1] if failed.frames.size else -np.inf
    later = longest.frames > start
    seconds = None
    if longest.seconds is not None and (failed.seconds is not None or not failed.frames.size):
        so_far = np.empty(0) if failed.seconds is None else failed.seconds
        # The other run may have been faster, and seconds must not descend.
        seconds = np.concatenate([so_far, np.maximum(longest.seconds[later], so_far[-1] if so_far.size else 0.0)])
    value, _ = failed.failed_final
    return replace(
        failed,
        frames=np.concatenate([failed.frames, longest.frames[later]]),
        seconds=seconds,
        values=np.concatenate([failed.values, np.full(later.sum(), value)]),
        episodes=np.concatenate([failed.episodes, np.zeros(later.sum())]),
    )


def drop_without_final(
    series: Sequence[Series], final_kinds: Mapping[str, str], problems: list[Problem]
) -> list[Series]:
    """`series` without those that lack a final value of their task's kind; each of these is a problem."""
    kept = []
    for s in series:
        if s.run.failure and s.failed_final is None:
            why = "left out: no run on this task has a value"
            problems.append(Problem(what="failed before its first evaluation", where=s.run.title, why=why))
        elif np.isfinite(s.final(final_kinds[s.run.task])[0]):
            kept.append(s)
        else:
            why = "left out: other runs on this task have nothing else to compare"
            problems.append(Problem(what="no absolute metric", where=s.run.title, why=why))
    return kept


class Cells:
    """Series by task and algorithm, in order of seeds, with their final values and scores."""

    def __init__(self, series: Sequence[Series], scales: Mapping[str, Scale], final_kinds: Mapping[str, str]):
        """`scales` and `final_kinds` are by task."""
        self.scales, self.final_kinds = scales, final_kinds
        self._all = list(series)
        self._series: dict[tuple[str, str], list[Series]] = {}
        for s in series:
            self._series.setdefault((s.run.task, s.run.algorithm), []).append(s)

    def all_series(self) -> list[Series]:
        """The series of all cells, in the order given."""
        return self._all

    def has(self, task: str, algorithm: str) -> bool:
        """Whether the cell has a series."""
        return (task, algorithm) in self._series

    def series(self, task: str, algorithm: str) -> list[Series]:
        """The cell's series, one per seed."""
        return self._series.get((task, algorithm), [])

    def scores(self, task: str, values: np.ndarray) -> np.ndarray:
        """Values of any shape, normalised by the task's scale."""
        scale = self.scales[task]
        width = scale.one - scale.zero
        return (values - scale.zero) / width if width else np.zeros_like(values)

    def final(self, task: str, algorithm: str) -> Final:
        """The cell's final values. The cell must have a series."""
        series = self.series(task, algorithm)
        kind = self.final_kinds[task]
        values, episodes = (np.array(column) for column in zip(*(s.final(kind) for s in series), strict=True))
        return Final(
            task=task,
            algorithm=algorithm,
            seeds=tuple(s.run.seed for s in series),
            values=values,
            scores=self.scores(task, values),
            mean=statistics.mean_band(values[:, None])[0],
            of=kind,
            failed=tuple(s.run.seed for s in series if s.run.failure),
            episodes=int(min((n for s, n in zip(series, episodes, strict=True) if not s.run.failure), default=0)),
        )

    def final_scores(self, tasks: Sequence[str], algorithm: str) -> list[np.ndarray]:
        """For each task, the scores [n] of the algorithm's n seeds."""
        return [self.final(task, algorithm).scores for task in tasks]
