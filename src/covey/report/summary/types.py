"""The parts of a summary. Everything is plain data: the page, the figures and the tables show it unchanged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from covey.report.anchors import Reference
from covey.report.runs import Problem, Run
from covey.report.statistics import Band, Estimate
from covey.report.summary.options import SummaryOptions


@dataclass(frozen=True, kw_only=True)
class Scale:
    """A task's scale: a value x has the score (x − zero) / (one − zero)."""

    task: str
    zero: float
    one: float
    text: str  # "0 is a random team (0.02637); 1 is sable, 21.17 (Sable (Mahjoub et al., …), table 5)"
    zero_is: str  # "a random team": the kind of value, the same words on every task
    one_is: str  # "the best published result"
    random: float | None  # return of a random team, drawn as a line
    references: tuple[Reference, ...]  # drawn as lines, each with its source
    returns: str  # what a return means in this task; "" if unknown


@dataclass(frozen=True, kw_only=True)
class Final:
    """The final values of one algorithm on one task, over n seeds."""

    task: str
    algorithm: str
    seeds: tuple[str, ...]
    values: np.ndarray  # [n], each seed's mean over episodes
    scores: np.ndarray  # [n], normalised
    mean: Estimate  # over seeds, 95% interval by Student's t; NaN limits for one seed
    of: str  # what the values are: "absolute" or "last", see ReportSummary.final_text
    failed: tuple[str, ...]  # the seeds in `seeds` that failed, see ReportSummary.final_text
    episodes: int  # episodes in each seed's value; the smallest number if seeds differ


@dataclass(frozen=True, kw_only=True)
class GroupFinal:
    """The final return of one group, on a task whose groups oppose each other. The rules are those of `Final`."""

    task: str
    algorithm: str
    group: str
    mean: Estimate


@dataclass(frozen=True, kw_only=True)
class Aggregate:
    """An algorithm's scores over `ReportSummary.aggregate_tasks`."""

    algorithm: str
    num_runs: int
    iqm: Estimate
    median: Estimate
    mean: Estimate
    optimality_gap: Estimate


@dataclass(frozen=True, kw_only=True)
class Profile:
    """The share of runs whose score is above each of K thresholds."""

    algorithm: str
    thresholds: np.ndarray  # [K]
    share: Band  # [K]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The probability that a run of `first` beats one of `second`: P(x > y) + P(x = y) / 2, mean over `tasks`."""

    first: str
    second: str
    tasks: tuple[str, ...]
    probability: Estimate  # NaN limits if each task has one seed
    p_value: float
    p_corrected: float  # by Holm's method, over all comparisons in the same list
    smallest_p: float  # the smallest p that these numbers of seeds allow


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A learning curve of P points. It ends where the algorithm's shortest run ends, so each curve has its own x."""

    algorithm: str
    x: np.ndarray  # [P], frames or seconds
    y: Band  # [P]
    seeds: tuple[str, ...]  # those that `y` is made from, the first rows of `runs`; () for curves over several tasks
    unfinished: tuple[str, ...]  # seeds that `y` leaves out, the last rows of `runs`
    failed: tuple[str, ...]  # the seeds in `seeds` that failed: their last value is carried forward
    runs: np.ndarray  # [n, P], one row per seed, NaN beyond the end of an unfinished run; [0, P] over several tasks


@dataclass(frozen=True, kw_only=True)
class TaskCurves:
    """Values over training on one task: the mean over seeds, with a 95% interval by Student's t."""

    task: str
    by_frames: tuple[Curve, ...]
    by_seconds: tuple[Curve, ...]  # without algorithms whose files have no times
    # If evaluations are few: values of the episodes collected for learning, which include exploration.
    collected_by_frames: tuple[Curve, ...]
    collected_by_seconds: tuple[Curve, ...]


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """Ranks of A algorithms by IQM, best mean rank first. Rank 1 is best; ties share the better rank.

    The limits of `mean_rank` are the ranks in 95% of the repetitions. These are whole numbers, and the mean need not
    lie between them. They are therefore shown as ranks, not as the interval of the mean.
    """

    algorithms: tuple[str, ...]
    mean_rank: Band  # [A]
    probabilities: np.ndarray | None  # [A, A], of algorithm a to have rank k + 1; None if a task has only one run


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Seconds per run, mean over seeds; None if the run directories do not say. Devices are from environment.json."""

    task: str
    algorithm: str
    num_runs: int  # with a run directory
    frames: float
    compiling: float | None
    collecting: float | None
    updating: float | None
    training: float | None  # collecting and updating, which are one program
    evaluating: float | None
    frames_per_second: float | None  # frames divided by seconds of training
    devices: tuple[str, ...]  # "1 × cpu (Linux-…)"


@dataclass(frozen=True, kw_only=True)
class ReportSummary:
    """Everything a report shows. Sequences by algorithm follow `algorithms`; sequences by task follow `tasks`.

    The `…_text` fields are sentences to print beside the numbers. They state how the numbers were computed.
    """

    options: SummaryOptions
    metric: str
    higher_is_better: bool
    unit: str  # of the metric, as the task declares it; "" if unknown
    algorithms: tuple[str, ...]
    tasks: tuple[str, ...]
    runs: tuple[Run, ...]
    problems: tuple[Problem, ...]

    scales: tuple[Scale, ...]  # one per task
    finals: tuple[Final, ...]  # task by task; pairs of task and algorithm without runs are absent
    teams: Mapping[str, tuple[tuple[str, ...], ...]]  # by task, only tasks whose groups oppose each other
    group_finals: tuple[GroupFinal, ...]  # on the tasks in `teams`
    aggregate_tasks: tuple[str, ...]  # tasks on which every algorithm has runs; the next five fields are over these
    aggregates: tuple[Aggregate, ...]  # empty if there is no such task
    profiles: tuple[Profile, ...]
    curves_by_frames: tuple[Curve, ...]  # IQM of scores over tasks and seeds
    curves_by_seconds: tuple[Curve, ...]
    ranking: Ranking | None
    improvements: tuple[Comparison, ...]  # the chosen pairs, each over the tasks that both have
    task_comparisons: tuple[Comparison, ...]  # the chosen pairs, each on one task; `probability` has no limits
    task_curves: tuple[TaskCurves, ...]
    costs: tuple[Cost, ...]

    normalisation_text: str
    scale_text: str  # what 0 and 1 are on the scales of `aggregate_tasks`, to print under a figure
    final_text: str
    curve_text: str
    interval_text: str
    test_text: str
    seeds_text: str  # a warning about few seeds, to print beside intervals and probabilities; "" if seeds suffice

    def final(self, task: str, algorithm: str) -> Final | None:
        """The final values of an algorithm on a task; None if it has no runs there."""
        return next((f for f in self.finals if f.task == task and f.algorithm == algorithm), None)

    def scale(self, task: str) -> Scale:
        """The scale of a task in `tasks`."""
        return next(s for s in self.scales if s.task == task)
