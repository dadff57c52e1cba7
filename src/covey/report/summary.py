"""Every number that the page and the tables show, computed from runs: `summarise(runs, problems, options) -> Summary`.

Plain frozen dataclasses of strings, floats and NumPy arrays; nothing here draws or formats. What can be undefined is
NaN: intervals of a single seed, for example. Which choices were made stands beside the numbers, as sentences to print:
`Scale.text` per task, and `Summary.normalisation_text`, `scale_text`, `final_text`, `curve_text`, `interval_text` and
`test_text`.

Scores are normalised values: 0 is the zero point of a task's scale, 1 its one. Values are in the metric's own unit.
"""

from __future__ import annotations

import enum
import itertools
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from covey import metrics as names
from covey.errors import CoveyError, UsageError, unknown_name
from covey.experiment.run_directory import read_metrics
from covey.report import statistics
from covey.report.anchors import Anchor, Reference, read_anchors, read_opposed_tasks
from covey.report.defaults import changed_fields, read_defaults
from covey.report.runs import METRIC_NAMES, Problem, Run, as_number, split_unfinished
from covey.report.statistics import Band, Estimate

LAST = 0.1  # without an absolute metric, evaluations in this last share of a run's frames make its final value
MOST_POINTS = 200  # of a curve whose runs were evaluated at different frames or seconds
THRESHOLDS = 101  # of performance profiles
ENOUGH_EVALUATIONS = 10  # with fewer, the page offers curves of what was collected
ENOUGH_SEEDS = 5  # with fewer, a report warns beside its intervals and chances


class Normalisation(enum.Enum):
    """What 0 and 1 mean on a task's scale."""

    anchors = "fixed: a random team and the best published result"
    minmax = "the smallest and the largest value in these runs"
    none = "values as they are"


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a user may choose. Names of algorithms in `pairs` and `order` are those shown (`Run.algorithm`)."""

    metric: str = "mean_return"
    normalisation: Normalisation = Normalisation.anchors
    pairs: tuple[tuple[str, str], ...] | None = None  # None: every pair
    order: tuple[str, ...] = ()  # algorithms to come first; the others follow by name
    repetitions: int = 50_000  # of the bootstrap: aggregates, ranks
    curve_repetitions: int = 5_000
    improvement_repetitions: int = 2_000  # profiles too
    seed: int = 0  # of the bootstrap: the same runs and options give the same summary

    def __post_init__(self) -> None:
        for name in ("repetitions", "curve_repetitions", "improvement_repetitions"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.seed < 0:
            raise ValueError(f"seed must be at least 0, not {self.seed}")


@dataclass(frozen=True, kw_only=True)
class Scale:
    """A task's scale: a value x has the score (x − zero) / (one − zero)."""

    task: str
    zero: float
    one: float
    text: str  # "0 is a random team (0.02637); 1 is sable, 21.17 (Sable (Mahjoub et al., …), table 5)"
    zero_is: str  # "a random team": in general words, to count scales by
    one_is: str  # "the best published result"
    random: float | None  # to draw as a line
    references: tuple[Reference, ...]  # to draw as lines, each with its source
    returns: str  # what a return means in this task; "" where unknown


@dataclass(frozen=True, kw_only=True)
class Final:
    """What an algorithm reached on a task. n seeds."""

    task: str
    algorithm: str
    seeds: tuple[str, ...]
    values: np.ndarray  # [n], each seed's mean over episodes
    scores: np.ndarray  # [n], normalised
    mean: Estimate  # over seeds, 95% by Student's t; NaN limits for one seed
    of: str  # "absolute" or "last": see Summary.final_text
    failed: tuple[str, ...]  # of `seeds`, those that failed: see Summary.final_text
    episodes: int  # in each seed's value, where all have the same number; the smallest otherwise


@dataclass(frozen=True, kw_only=True)
class GroupFinal:
    """What a group reached on a task whose groups oppose each other: its return, by the same rules as `Final`."""

    task: str
    algorithm: str
    group: str
    mean: Estimate


@dataclass(frozen=True, kw_only=True)
class Aggregate:
    """An algorithm's scores over `Summary.aggregate_tasks`."""

    algorithm: str
    num_runs: int
    iqm: Estimate
    median: Estimate
    mean: Estimate
    optimality_gap: Estimate


@dataclass(frozen=True, kw_only=True)
class Profile:
    """Share of runs whose score is above each threshold."""

    algorithm: str
    thresholds: np.ndarray  # [K]
    share: Band  # [K]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """How likely a run of `first` beats one of `second`: P(x > y) + P(x = y) / 2, mean over `tasks`."""

    first: str
    second: str
    tasks: tuple[str, ...]
    probability: Estimate  # NaN limits where each task has one seed
    p_value: float
    p_corrected: float  # by Holm, over all comparisons of the same list
    smallest_p: float  # what p cannot go below with so many seeds


@dataclass(frozen=True, kw_only=True)
class Curve:
    """P points. Each curve has its own x: it ends where the algorithm's shortest run ends."""

    algorithm: str
    x: np.ndarray  # [P], frames or seconds
    y: Band  # [P]
    seeds: tuple[str, ...]  # in `y`, and the first of `runs`; () in curves over several tasks
    unfinished: tuple[str, ...]  # seeds that are not in `y`; the last of `runs`
    failed: tuple[str, ...]  # of `seeds`, those that failed: their last value is carried forward
    runs: np.ndarray  # [n, P], each seed alone, NaN where an unfinished one is not yet; [0, P] over several tasks


@dataclass(frozen=True, kw_only=True)
class TaskCurves:
    """Values over training on one task: mean over seeds, 95% by Student's t over that many seeds."""

    task: str
    by_frames: tuple[Curve, ...]
    by_seconds: tuple[Curve, ...]  # without algorithms whose files have no times
    # Where evaluations are few: values of the episodes that were collected for learning, by explorative actions.
    collected_by_frames: tuple[Curve, ...]
    collected_by_seconds: tuple[Curve, ...]


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """Ranks by IQM, 1 is best; equal ones share the better rank. A algorithms, best mean rank first.

    The limits of `mean_rank` are the ranks in 95% of the repetitions: whole numbers, between which the mean need not
    be. So they are shown as ranks of their own, not as the mean's interval.
    """

    algorithms: tuple[str, ...]
    mean_rank: Band  # [A]
    probabilities: np.ndarray | None  # [A, A]: of algorithm a to have rank k + 1; None where a task has one run


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Mean over seeds, in seconds; None where run directories do not tell. Machines are those of environment.json."""

    task: str
    algorithm: str
    num_runs: int  # with a run directory
    frames: float
    compiling: float | None
    collecting: float | None
    updating: float | None
    training: float | None  # collecting and updating, which are one program
    evaluating: float | None
    frames_per_second: float | None  # frames by seconds of training
    devices: tuple[str, ...]  # "1 × cpu (Linux-…)"


@dataclass(frozen=True, kw_only=True)
class Summary:
    """All of it. Sequences by algorithm are in the order of `algorithms`; those by task in that of `tasks`."""

    options: Options
    metric: str
    higher_is_better: bool
    unit: str  # of the metric, as the task declares it; "" where unknown
    algorithms: tuple[str, ...]
    tasks: tuple[str, ...]
    runs: tuple[Run, ...]
    problems: tuple[Problem, ...]

    scales: tuple[Scale, ...]  # one per task
    finals: tuple[Final, ...]  # task by task; cells without runs are not there
    teams: Mapping[str, tuple[tuple[str, ...], ...]]  # by task, where groups oppose each other: see EnvSpec.teams
    group_finals: tuple[GroupFinal, ...]  # of the tasks in `teams`
    aggregate_tasks: tuple[str, ...]  # those on which every algorithm has runs; what follows is over these
    aggregates: tuple[Aggregate, ...]  # empty where there is no such task
    profiles: tuple[Profile, ...]
    curves_by_frames: tuple[Curve, ...]  # IQM of scores over tasks and seeds
    curves_by_seconds: tuple[Curve, ...]
    ranking: Ranking | None
    improvements: tuple[Comparison, ...]  # the chosen pairs, each over the tasks that both have
    task_comparisons: tuple[Comparison, ...]  # the chosen pairs, each on one task; `probability` without limits
    task_curves: tuple[TaskCurves, ...]
    costs: tuple[Cost, ...]

    normalisation_text: str
    scale_text: str  # what 0 and 1 are on the scales of `aggregate_tasks`, for under a figure
    final_text: str
    curve_text: str
    interval_text: str
    test_text: str
    seeds_text: str  # a warning where seeds are few, to print beside intervals and chances; else ""

    def final(self, task: str, algorithm: str) -> Final | None:
        return next((f for f in self.finals if f.task == task and f.algorithm == algorithm), None)

    def scale(self, task: str) -> Scale:
        return next(s for s in self.scales if s.task == task)


def summarise(runs: Sequence[Run], problems: Sequence[Problem] = (), options: Options | None = None) -> Summary:
    """UsageError where no run has the metric, or `pairs` or `order` name an algorithm that is not there."""
    options = options or Options()
    metric = find_metric(options.metric, runs)
    noted = list(problems)
    higher_is_better, unit = describe_metric(metric, runs)
    if metric == names.MEAN_RETURN:
        runs = [with_first_teams_return(run, noted) for run in runs]
    found = [s for run in runs if (s := make_series(run, metric, noted)) is not None]
    series, unfinished = set_aside_unfinished(found)
    finals_of = {task: final_kind(task, series) for task in sorted({s.run.task for s in series})}
    series = with_finals(with_failed(series, finals_of, higher_is_better), finals_of, noted)
    if not series:
        raise UsageError(f"no run has a finite value of {metric}")
    algorithms = order_algorithms({s.run.algorithm for s in series}, options.order)
    tasks = tuple(sorted({s.run.task for s in series}))
    pairs = choose_pairs(options.pairs, algorithms)

    scales = make_scales(tasks, series, finals_of, options.normalisation, metric, higher_is_better, noted)
    cells = Cells(series, scales, finals_of)
    unfinished = [s for s in unfinished if cells.has(s.run.task, s.run.algorithm)]
    on_their_way = Cells(unfinished, scales, finals_of)
    shown = {id(s.run) for s in (*series, *unfinished)}
    shared = tuple(task for task in tasks if all(cells.has(task, algorithm) for algorithm in algorithms))
    if len(shared) < len(tasks):
        noted.append(_not_shared(tasks, shared))
    if (alone := single_runs(cells, shared, algorithms)) is not None:
        noted.append(alone)
    aggregates, ranking = aggregate(cells, shared, algorithms, options)
    records = {id(s.run): read_records(s.run, metric, noted) for s in series if s.run.folder is not None}
    collected = Cells(collected_series(series, records), scales, finals_of)
    return Summary(
        options=options,
        metric=metric,
        higher_is_better=higher_is_better,
        unit=unit,
        algorithms=algorithms,
        tasks=tasks,
        runs=tuple(s.run for s in found if id(s.run) in shown),
        scales=tuple(scales.values()),
        finals=tuple(cells.final(task, name) for task in tasks for name in algorithms if cells.has(task, name)),
        teams={task: teams for task in tasks if (teams := opposed_teams(task, series))},
        group_finals=tuple(make_group_finals(cells, tasks, algorithms, finals_of)),
        aggregate_tasks=shared,
        aggregates=aggregates,
        profiles=make_profiles(cells, shared, algorithms, options),
        curves_by_frames=tuple(aggregate_curves(cells, shared, algorithms, options, "frames", noted)),
        curves_by_seconds=tuple(aggregate_curves(cells, shared, algorithms, options, "seconds", noted)),
        ranking=ranking,
        improvements=compare_overall(cells, tasks, pairs, options),
        task_comparisons=compare_by_task(cells, tasks, pairs),
        task_curves=tuple(task_curves(cells, on_their_way, collected, task, algorithms) for task in tasks),
        costs=tuple(make_costs(cells, tasks, algorithms, records)),
        problems=tuple(dict.fromkeys(noted)),
        normalisation_text=NORMALISATION_TEXT[options.normalisation],
        scale_text=describe_scales([scales[task] for task in shared], options.normalisation, higher_is_better),
        final_text=FINAL_TEXT,
        curve_text=CURVE_TEXT,
        interval_text=INTERVAL_TEXT.format(options=options),
        test_text=TEST_TEXT,
        seeds_text=describe_seeds(cells, tasks, algorithms),
    )


# --------------------------------------------------------------------------------------------------- what was chosen

NORMALISATION_TEXT = {
    Normalisation.anchors: "Scores are on fixed scales: 0 is a random team, 1 the best published result that is "
    "comparable, or a ceiling or a hand-written heuristic above it, all of the task's default configuration. Where "
    "there is none, 1 is the best run here; where a random team's value is not known, or no run is above it, 0 is the "
    "worst value here. Scores above 1 and below 0 are possible.",
    Normalisation.minmax: "Scores are relative to these runs: 0 is the smallest and 1 the largest value of any "
    "evaluation of any algorithm on the task. They change when algorithms are added or left out.",
    Normalisation.none: "Values are not normalised. Aggregates over tasks mean something only where the tasks' values "
    "have one scale, and the optimality gap only where 1 is the best.",
}
FINAL_TEXT = (
    "A run's final value is its absolute metric: the best parameters of all evaluations, played again over many fresh "
    "episodes. On tasks where a run has none, it is for all runs the mean of the evaluations in the last tenth of the "
    "frames. The best evaluation itself is not used: the best of many noisy numbers is too high. A run that failed "
    "(diverged or crashed) counts too, marked †: by the mean of its last evaluations before it failed, or by the worst "
    "value of any run on the task where it has none. In curves that value is carried forward. A run that is still "
    "running does not count."
)
CURVE_TEXT = (
    "Curves have a point at each evaluation where all runs were evaluated at the same frames. Otherwise, and by "
    "seconds, runs are interpolated linearly to common points. A curve ends where the shortest of its runs ends. "
    "Seconds are those in the files; covey's are of training and evaluating, without compiling."
)
INTERVAL_TEXT = (
    "All intervals are 95%. Over tasks: percentiles of a stratified bootstrap over runs ({options.repetitions:,} "
    "repetitions for aggregates and ranks, {options.curve_repetitions:,} for curves, "
    "{options.improvement_repetitions:,} for profiles and comparisons). On one task: Student's t over the seeds. One "
    "seed has no interval, and where a task has one run there is none over tasks: resampling cannot vary that run."
)
TEST_TEXT = (
    "P-values are of Mann and Whitney's rank test, stratified by task, two-sided, with its exact null distribution for "
    "up to 40 runs of a pair on a task: it assumes nothing about how returns are distributed, which few seeds cannot "
    "show. They are corrected by Holm's method for all comparisons of the same table. With few seeds on one task it "
    "cannot reach significance, whatever the difference (3 against 3: p is at least 0.1); over several tasks it can."
)


def find_metric(name: str, runs: Sequence[Run]) -> str:
    """The metric by any of its names, whatever the case."""
    known = {metric for run in runs for metric in (*run.episodes, *run.absolute)}
    wanted = METRIC_NAMES.get(name.lower(), name.lower())
    if wanted not in known:
        raise unknown_name("metric", name, known, see=f"the runs have {', '.join(sorted(known))}")
    return wanted


def describe_metric(metric: str, runs: Sequence[Run]) -> tuple[bool, str]:
    """Whether higher is better, and the unit, as the first task that declares the metric says."""
    for run in runs:
        metrics = run.environment.get("metrics")
        declared = metrics.get(metric) if isinstance(metrics, Mapping) else None
        if isinstance(declared, Mapping):
            return bool(declared.get("higher_is_better", True)), str(declared.get("unit") or "")
    return True, ""


def order_algorithms(known: set[str], first: Sequence[str]) -> tuple[str, ...]:
    for name in first:
        _check_algorithm(name, known)
    return tuple(dict.fromkeys([*first, *sorted(known)]))


def choose_pairs(pairs: Sequence[tuple[str, str]] | None, algorithms: Sequence[str]) -> tuple[tuple[str, str], ...]:
    if pairs is None:
        return tuple(itertools.combinations(algorithms, 2))
    for pair in pairs:
        if len(pair) != 2 or pair[0] == pair[1]:
            raise UsageError(f"a pair is two algorithms, not {list(pair)}")
        for name in pair:
            _check_algorithm(name, algorithms)
    return tuple((first, second) for first, second in pairs)


def _check_algorithm(name: str, known: Sequence[str] | set[str]) -> None:
    if name not in known:
        raise unknown_name("algorithm", name, known, see=f"the runs have {', '.join(sorted(known))}")


def _not_shared(tasks: Sequence[str], shared: Sequence[str]) -> Problem:
    left_out = [task for task in tasks if task not in shared]
    what = f"aggregates leave out {', '.join(left_out)}" if shared else "there are no aggregates over tasks"
    return Problem(what=what, where="aggregates", why="not every algorithm has runs there")


# ------------------------------------------------------------------------------------------------------ opposed groups


def read_teams(run: Run) -> tuple[tuple[str, ...], ...]:
    """Which groups of the run's task cooperate, where some oppose each other; () where none do, or nothing says so."""
    declared = run.environment.get("teams")
    if isinstance(declared, list) and all(isinstance(team, list) for team in declared):
        teams = tuple(tuple(str(group) for group in team) for team in declared)
        return teams if len(teams) > 1 else ()
    return _known_teams(run)


def _known_teams(run: Run) -> tuple[tuple[str, ...], ...]:
    name = _task_fields(run).get("name", run.task)
    return read_opposed_tasks().get(name, ()) if isinstance(name, str) else ()


def with_first_teams_return(run: Run, problems: list[Problem]) -> Run:
    """Older files and other systems' have the mean over all groups as the return, which is near 0 where groups oppose
    each other. Where the task is known, it is taken over the first team instead, as covey does."""
    teams = () if "teams" in run.environment else _known_teams(run)
    scored = [names.group_return(group).lower() for group in names.scored_groups(teams)]
    if not scored or not all(name in run.episodes for name in scored):
        return run
    evaluations = list(zip(*(run.episodes[name] for name in scored), strict=True))
    if any(len({part.size for part in parts}) > 1 for parts in evaluations):
        return run
    groups = " and ".join(teams[0])
    problems.append(
        Problem(
            what="its mean_return is over groups that oppose each other",
            where=f"{run.algorithm} on {run.task}, seed {run.seed}",
            why=f"taken over {groups} instead",
        )
    )
    absolute = [run.absolute[name] for name in scored if name in run.absolute]
    whole = len(absolute) == len(scored) and len({part.size for part in absolute}) == 1
    mean = {names.MEAN_RETURN: np.mean(absolute, axis=0)} if whole else {}
    kept = {name: values for name, values in run.absolute.items() if name != names.MEAN_RETURN}
    return replace(
        run,
        episodes={**run.episodes, names.MEAN_RETURN: [np.mean(parts, axis=0) for parts in evaluations]},
        absolute=kept | mean,
    )


def opposed_teams(task: str, series: Sequence[Series]) -> tuple[tuple[str, ...], ...]:
    return next((teams for s in series if s.run.task == task and (teams := read_teams(s.run))), ())


def make_group_finals(
    cells: Cells, tasks: Sequence[str], algorithms: Sequence[str], finals_of: Mapping[str, str]
) -> Iterator[GroupFinal]:
    """Each group's return, of tasks whose groups oppose each other."""
    for task in tasks:
        for algorithm in algorithms:
            runs = [s.run for s in cells.series(task, algorithm)]
            for group in (group for team in opposed_teams(task, cells.series(task, algorithm)) for group in team):
                found = [make_series(run, names.group_return(group).lower(), []) for run in runs]
                finals = [
                    s.final("last" if s.run.failure else finals_of[task])[0] for s in found if s and s.frames.size
                ]
                values = np.array([value for value in finals if np.isfinite(value)])
                if values.size:
                    mean = statistics.mean_band(values[:, None])[0]
                    yield GroupFinal(task=task, algorithm=algorithm, group=group, mean=mean)


# ------------------------------------------------------------------------------------------------------ runs as series


@dataclass(frozen=True, kw_only=True)
class Series:
    """One metric of one run: means over episodes at its E finite evaluations, and of the absolute metric."""

    run: Run
    frames: np.ndarray  # [E]
    seconds: np.ndarray | None  # [E]
    values: np.ndarray  # [E]
    episodes: np.ndarray  # [E], how many are in each value
    absolute: float  # NaN where there is none
    absolute_episodes: int
    failed_final: tuple[float, int] | None = (
        None  # of a run that failed, what stands for its final value: `with_failed`
    )

    def x(self, axis: str) -> np.ndarray | None:
        return self.frames if axis == "frames" else self.seconds

    def last(self) -> np.ndarray:
        """Which evaluations make the final value where there is no absolute metric."""
        return self.frames >= (1 - LAST) * self.frames[-1] if self.frames.size else np.zeros(0, bool)

    def final(self, of: str) -> tuple[float, int]:
        """The final value and its number of episodes."""
        if self.failed_final is not None:
            return self.failed_final
        if of == "absolute":
            return self.absolute, self.absolute_episodes
        last = self.last()
        return float(self.values[last].mean()), int(self.episodes[last].sum())


def make_series(run: Run, metric: str, problems: list[Problem]) -> Series | None:
    """None, and a problem, where the run has no finite value of the metric."""
    where = f"{run.algorithm} on {run.task}, seed {run.seed}"
    evaluations = run.episodes.get(metric, [np.empty(0)] * run.frames.size)
    absolute = run.absolute.get(metric, np.empty(0))
    values = np.concatenate([*evaluations, absolute])
    if run.failure and not np.isfinite(values).any():
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
    if not values.size:
        problems.append(Problem(what=f"no {metric}", where=where, why="left out"))
        return None
    finite = np.isfinite(values)
    if not finite.any():
        problems.append(Problem(what=f"no finite {metric}", where=where, why="left out"))
        return None
    if not finite.all():
        what = f"{(~finite).sum()} of {finite.size} values of {metric} are null, not finite or too large"
        why = "left out of means; an evaluation without any finite value is left out of curves"
        problems.append(Problem(what=what, where=where, why=why))
    sizes = [part.size for part in [*evaluations, absolute]]
    part = np.repeat(np.arange(len(sizes)), sizes)[finite]  # which evaluation a value is of; the last is the absolute
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


def set_aside_unfinished(series: Sequence[Series]) -> tuple[list[Series], list[Series]]:
    """Those that count, and those that are only drawn as single seeds: see `runs.split_unfinished`."""
    cells: dict[tuple[str, str], list[Run]] = {}
    for s in series:
        cells.setdefault((s.run.task, s.run.algorithm), []).append(s.run)
    aside = {id(run) for cell in cells.values() for run in split_unfinished(cell)[1]}
    return [s for s in series if id(s.run) not in aside], [s for s in series if id(s.run) in aside]


def final_kind(task: str, series: Sequence[Series]) -> str:
    """One kind for all runs of a task, so that all are judged alike; absolute where some were never evaluated."""
    here = [s for s in series if s.run.task == task and not s.run.failure]
    if not here:
        return "last"
    if all(np.isfinite(s.absolute) for s in here) or any(not s.frames.size for s in here):
        return "absolute"
    return "last"


def with_failed(series: Sequence[Series], finals_of: Mapping[str, str], higher_is_better: bool) -> list[Series]:
    """What stands for the final values of runs that failed, and their curves carried forward to where others end.

    Without any value of any run on the task there is nothing to stand for one: such a run stays as it is.
    """
    worst = np.min if higher_is_better else np.max
    counted = []
    for s in series:
        if not s.run.failure:
            counted.append(s)
            continue
        others = [other for other in series if other.run.task == s.run.task]
        finals = [other.final(finals_of[s.run.task])[0] for other in others if not other.run.failure]
        known = np.concatenate([*(other.values for other in others), finals])
        known = known[np.isfinite(known)]
        if s.frames.size:
            counted.append(carry_forward(replace(s, failed_final=s.final("last")), others))
        elif known.size:
            counted.append(carry_forward(replace(s, failed_final=(float(worst(known)), 0)), others))
        else:
            counted.append(s)
    return counted


def carry_forward(failed: Series, others: Sequence[Series]) -> Series:
    """`failed` with its final value at those evaluations that another run of its algorithm, or else of its task, still
    had: the one that came the farthest."""
    assert failed.failed_final is not None
    evaluated = [s for s in others if s.frames.size and s is not failed]
    own = [s for s in evaluated if s.run.algorithm == failed.run.algorithm]
    farthest = max(own or evaluated, key=lambda s: s.frames[-1], default=None)
    if farthest is None:
        return failed
    start = failed.frames[-1] if failed.frames.size else -np.inf
    later = farthest.frames > start
    seconds = None
    if farthest.seconds is not None and (failed.seconds is not None or not failed.frames.size):
        so_far = np.empty(0) if failed.seconds is None else failed.seconds
        # Another run may have been faster: seconds must not descend.
        seconds = np.concatenate([so_far, np.maximum(farthest.seconds[later], so_far[-1] if so_far.size else 0.0)])
    value, _ = failed.failed_final
    return replace(
        failed,
        frames=np.concatenate([failed.frames, farthest.frames[later]]),
        seconds=seconds,
        values=np.concatenate([failed.values, np.full(later.sum(), value)]),
        episodes=np.concatenate([failed.episodes, np.zeros(later.sum())]),
    )


def with_finals(series: Sequence[Series], finals_of: Mapping[str, str], problems: list[Problem]) -> list[Series]:
    """Without runs that have no final value of their task's kind."""
    kept = []
    for s in series:
        where = f"{s.run.algorithm} on {s.run.task}, seed {s.run.seed}"
        if s.run.failure and s.failed_final is None:
            problems.append(
                Problem(
                    what="failed before its first evaluation",
                    where=where,
                    why="left out: there is no value on this task",
                )
            )
        elif np.isfinite(s.final(finals_of[s.run.task])[0]):
            kept.append(s)
        else:
            why = "left out: others on this task have nothing else"
            problems.append(Problem(what="no absolute metric", where=where, why=why))
    return kept


class Cells:
    """Series by task and algorithm, in order of seeds, with their final values and scores."""

    def __init__(self, series: Sequence[Series], scales: Mapping[str, Scale], finals_of: Mapping[str, str]):
        self._scales, self._finals_of = scales, finals_of
        self._series: dict[tuple[str, str], list[Series]] = {}
        for s in series:
            self._series.setdefault((s.run.task, s.run.algorithm), []).append(s)

    def has(self, task: str, algorithm: str) -> bool:
        return (task, algorithm) in self._series

    def series(self, task: str, algorithm: str) -> list[Series]:
        return self._series.get((task, algorithm), [])

    def scores(self, task: str, values: np.ndarray) -> np.ndarray:
        scale = self._scales[task]
        width = scale.one - scale.zero
        return (values - scale.zero) / width if width else np.zeros_like(values)

    def final(self, task: str, algorithm: str) -> Final:
        series = self.series(task, algorithm)
        of = self._finals_of[task]
        values, episodes = (np.array(column) for column in zip(*(s.final(of) for s in series), strict=True))
        return Final(
            task=task,
            algorithm=algorithm,
            seeds=tuple(s.run.seed for s in series),
            values=values,
            scores=self.scores(task, values),
            mean=statistics.mean_band(values[:, None])[0],
            of=of,
            failed=tuple(s.run.seed for s in series if s.run.failure),
            episodes=int(min((n for s, n in zip(series, episodes, strict=True) if not s.run.failure), default=0)),
        )

    def final_scores(self, tasks: Sequence[str], algorithm: str) -> list[np.ndarray]:
        return [self.final(task, algorithm).scores for task in tasks]


# -------------------------------------------------------------------------------------------------------------- scales


def make_scales(
    tasks: Sequence[str],
    series: Sequence[Series],
    finals_of: Mapping[str, str],
    normalisation: Normalisation,
    metric: str,
    higher_is_better: bool,
    problems: list[Problem],
) -> dict[str, Scale]:
    anchors = read_anchors(metric)
    scales = {}
    for task in tasks:
        here = [s for s in series if s.run.task == task]
        anchor = _usable_anchor(task, here, anchors, problems)
        finals = np.array([s.final(finals_of[task])[0] for s in here])
        everything = np.concatenate([finals, *(s.values for s in here)])
        zero, one = _zero_and_one(normalisation, anchor, finals, everything, higher_is_better)
        if zero.value == one.value:
            problems.append(Problem(what="all values are the same", where=task, why="its scores are 0"))
        scales[task] = Scale(
            task=task,
            zero=zero.value,
            one=one.value,
            text=f"0 is {zero.text}; 1 is {one.text}",
            zero_is=zero.kind,
            one_is=one.kind,
            random=anchor.random,
            references=anchor.references,
            returns=anchor.returns or next((str(s.run.environment.get("returns") or "") for s in here), ""),
        )
    return scales


def _usable_anchor(
    task: str, series: Sequence[Series], anchors: Mapping[str, Anchor], problems: list[Problem]
) -> Anchor:
    """An empty one where none is known, or where the runs' task or returns are other than those of the anchors."""
    unknown = Anchor(random=None, random_interval=None, references=(), returns="")
    name = next((name for s in series if (name := _task_fields(s.run).get("name"))), task)
    anchor = anchors.get(name, unknown) if isinstance(name, str) else unknown
    if anchor is unknown:
        return unknown
    for what in dict.fromkeys(what for s in series if (what := _what_differs(s.run, name, anchor))):
        problems.append(Problem(what=what, where=task, why="the anchors are not used"))
        anchor = unknown
    return anchor


def _what_differs(run: Run, name: str, anchor: Anchor) -> str:
    """Between the task that a run was on and the one that the anchors are of; "" where nothing does, or none knows."""
    changed = changed_fields(_task_fields(run), read_defaults().get(name, {}))
    if changed:
        fields = ", ".join(f"{field}={value}" for field, value in changed.items())
        return f"not the task as registered: {fields}"
    returns = run.environment.get("returns")
    if returns and anchor.returns and returns not in (anchor.returns, *anchor.earlier_returns):
        return f"its return is “{returns}”, that of the anchors is “{anchor.returns}”"
    return ""


def _task_fields(run: Run) -> Mapping[str, Any]:
    fields = run.config.get("task")
    return fields if isinstance(fields, Mapping) else {}


@dataclass(frozen=True, kw_only=True)
class End:
    """What 0 or 1 is on a task's scale: its value, what it is in general words, and in words of its own."""

    value: float
    kind: str
    text: str


RANDOM_TEAM = "a random team"
PUBLISHED = "the best published result"
NOT_PUBLISHED = {"ceiling": "a ceiling", "heuristic": "a hand-written heuristic"}  # by a reference's algorithm
BEST_HERE, WORST_HERE = "the best of these runs", "the worst value of these runs"


def _zero_and_one(
    normalisation: Normalisation, anchor: Anchor, finals: np.ndarray, everything: np.ndarray, higher_is_better: bool
) -> tuple[End, End]:
    """A scale's ends. That of 1 is below that of 0 where lower is better."""
    best, worst = (np.max, np.min) if higher_is_better else (np.min, np.max)
    sign = 1.0 if higher_is_better else -1.0
    if normalisation is Normalisation.none:
        zero, one = (End(value=value, kind=f"{value:g}", text=f"a value of {value:g}") for value in (0.0, sign))
        return zero, one
    if normalisation is Normalisation.minmax:
        low, high = (float(end(everything)) for end in (worst, best))
        return (
            End(value=low, kind=WORST_HERE, text=f"the worst value in these runs ({low:.4g})"),
            End(value=high, kind=BEST_HERE, text=f"the best ({high:.4g})"),
        )
    top = _top(anchor, float(best(finals)), sign)
    if anchor.random is not None and sign * anchor.random < sign * top.value:
        return End(value=anchor.random, kind=RANDOM_TEAM, text=f"{RANDOM_TEAM} ({anchor.random:.4g})"), top
    low = float(worst(everything))
    why = "what a random team earns is not known" if anchor.random is None else "no run is above a random team"
    return End(value=low, kind=WORST_HERE, text=f"the worst value here ({low:.4g}): {why}"), top


def _top(anchor: Anchor, best: float, sign: float) -> End:
    """What 1 is on a fixed scale."""
    reference = max(anchor.references, key=lambda r: sign * r.value, default=None)
    if reference is not None and (anchor.random is None or sign * reference.value > sign * anchor.random):
        name = NOT_PUBLISHED.get(reference.algorithm, reference.algorithm)
        return End(
            value=reference.value,
            kind=NOT_PUBLISHED.get(reference.algorithm, PUBLISHED),
            text=f"{name}, {reference.value:.4g} ({reference.source})",
        )
    text = f"the best run here ({best:.4g}), for want of a comparable published result above random"
    return End(value=best, kind=BEST_HERE, text=text)


def describe_scales(scales: Sequence[Scale], normalisation: Normalisation, higher_is_better: bool) -> str:
    """What 0 and 1 are, with the number of tasks where that differs."""
    if not scales:
        return ""
    if normalisation is Normalisation.none:
        return f"Values {'as they are' if higher_is_better else 'with their sign changed'}, not normalised."
    if normalisation is Normalisation.minmax:
        return "Scores by minimum and maximum of these runs: 0 is their worst value, 1 their best."
    zero, one = (_counted([getattr(scale, name) for scale in scales]) for name in ("zero_is", "one_is"))
    fixed = any(scale.zero_is == RANDOM_TEAM or scale.one_is != BEST_HERE for scale in scales)
    return f"Scores {'on fixed scales' if fixed else 'relative to these runs'}: 0 is {zero}; 1 is {one}."


def _counted(kinds: Sequence[str]) -> str:
    """`a ceiling`, or `a ceiling (2 tasks), the best of these runs (1 task)`, the most frequent first."""
    counts = Counter(kinds).most_common()
    if len(counts) == 1:
        return counts[0][0]
    return ", ".join(f"{kind} ({number} task{'' if number == 1 else 's'})" for kind, number in counts)


# ---------------------------------------------------------------------------------------------------------- aggregates


def _generator(options: Options, *names: str) -> np.random.Generator:
    """One per number: what it is does not depend on which other algorithms or pairs are in the report."""
    return np.random.default_rng([options.seed, *(zlib.crc32(name.encode()) for name in names)])


def aggregate(
    cells: Cells, tasks: Sequence[str], algorithms: Sequence[str], options: Options
) -> tuple[tuple[Aggregate, ...], Ranking | None]:
    if not tasks:
        return (), None
    aggregates, samples = [], []
    sizes: list[int] = []
    for algorithm in algorithms:
        scores = cells.final_scores(tasks, algorithm)
        sizes += map(len, scores)
        generator = _generator(options, "aggregate", algorithm)
        band, iqms = statistics.aggregate(scores, options.repetitions, generator)
        estimates = {name: band[i] for i, name in enumerate(statistics.AGGREGATES)}
        aggregates.append(Aggregate(algorithm=algorithm, num_runs=sum(map(len, scores)), **estimates))
        samples.append(iqms)
    return tuple(aggregates), make_ranking(algorithms, np.stack(samples), resampled=min(sizes) > 1)


def single_runs(cells: Cells, tasks: Sequence[str], algorithms: Sequence[str]) -> Problem | None:
    """Where some tasks have one run beside others with more, which leaves aggregates without intervals."""
    sizes = {(task, name): len(cells.series(task, name)) for task in tasks for name in algorithms}
    alone = [f"{name} on {task}" for (task, name), size in sizes.items() if size == 1]
    if not alone or len(alone) == len(sizes):
        return None
    shown = ", ".join(alone[:3]) + (f" and {len(alone) - 3} more" if len(alone) > 3 else "")
    why = "no intervals over tasks and no chances of ranks: resampling cannot vary one run"
    return Problem(what=f"one run only of {shown}", where="aggregates", why=why)


def describe_seeds(cells: Cells, tasks: Sequence[str], algorithms: Sequence[str]) -> str:
    """A warning where seeds are few; "" where there are enough of them everywhere."""
    fewest = min(len(cells.series(task, name)) for task in tasks for name in algorithms if cells.has(task, name))
    if fewest >= ENOUGH_SEEDS:
        return ""
    return (
        f"Few seeds: {fewest} for some algorithm on some task, where {ENOUGH_SEEDS} or more are usual. With so few, "
        "intervals are too narrow and chances too close to 0% or 100%: take them as a first impression."
    )


def make_ranking(algorithms: Sequence[str], samples: np.ndarray, *, resampled: bool) -> Ranking:
    """From bootstrap samples [A, R] of what is ranked by; not `resampled`, they say nothing of how sure ranks are."""
    ranked = statistics.ranks(samples)
    order = np.argsort(ranked.mean(axis=1), kind="stable")
    ranked = ranked[order]
    value = ranked.mean(axis=1)
    low = high = np.full_like(value, np.nan)
    if resampled:
        low, high = np.percentile(ranked, statistics.LIMITS, axis=1, method="inverted_cdf").astype(float)
    return Ranking(
        algorithms=tuple(algorithms[i] for i in order),
        mean_rank=Band(value=value, low=low, high=high),
        probabilities=statistics.rank_probabilities(ranked) if resampled else None,
    )


def make_profiles(
    cells: Cells, tasks: Sequence[str], algorithms: Sequence[str], options: Options
) -> tuple[Profile, ...]:
    """Thresholds from 0, or the lowest score where that is below, to 1, or the highest where that is above."""
    if not tasks:
        return ()
    scores = {algorithm: cells.final_scores(tasks, algorithm) for algorithm in algorithms}
    everything = np.concatenate([task for by_task in scores.values() for task in by_task])
    if options.normalisation is Normalisation.none:
        low, high = everything.min(), everything.max()
    else:
        low, high = min(0.0, everything.min()), max(1.0, everything.max())
    thresholds = np.linspace(low, high, THRESHOLDS)
    return tuple(
        Profile(
            algorithm=algorithm,
            thresholds=thresholds,
            share=statistics.performance_profile(
                by_task, thresholds, options.improvement_repetitions, _generator(options, "profile", algorithm)
            ),
        )
        for algorithm, by_task in scores.items()
    )


# --------------------------------------------------------------------------------------------------------------- curves


def common_points(xs: Sequence[np.ndarray]) -> np.ndarray | None:
    """Points [P] that all of several ascending series cover; None where there is no stretch that all cover."""
    first = xs[0]
    if all(np.array_equal(x, first) for x in xs):
        return first if first.size else None
    if not all(x.size for x in xs):
        return None
    start, end = max(x[0] for x in xs), min(x[-1] for x in xs)
    if end < start:
        return None
    return np.linspace(start, end, min(MOST_POINTS, max(x.size for x in xs)) if end > start else 1)


def interpolate(series: Sequence[Series], axis: str, points: np.ndarray) -> np.ndarray:
    """Values [n, P] at common points of `axis`; NaN outside of what a series covers."""
    rows = np.empty((len(series), points.size))
    for row, s in zip(rows, series, strict=True):
        x = s.x(axis)
        assert x is not None
        row[:] = s.values if np.array_equal(x, points) else np.interp(points, x, s.values, left=np.nan, right=np.nan)
    return rows


def points_for(series: Sequence[Series], axis: str) -> np.ndarray | None:
    xs = [x for s in series if (x := s.x(axis)) is not None]
    return common_points(xs) if xs and len(xs) == len(series) else None


def aggregate_curves(
    cells: Cells, tasks: Sequence[str], algorithms: Sequence[str], options: Options, axis: str, problems: list[Problem]
) -> Iterator[Curve]:
    for algorithm in algorithms if tasks else ():
        by_task = [cells.series(task, algorithm) for task in tasks]
        points = points_for([s for series in by_task for s in series], axis)
        if points is None:
            why = "runs without evaluations, without times, or that have no common stretch"
            problems.append(Problem(what=f"no curve over tasks by {axis}", where=algorithm, why=why))
            continue
        scores = [
            cells.scores(task, interpolate(series, axis, points)) for task, series in zip(tasks, by_task, strict=True)
        ]
        # The same generator for both axes: the same draws of runs.
        band = statistics.iqm_curve(scores, options.curve_repetitions, _generator(options, "curve", algorithm))
        yield Curve(
            algorithm=algorithm,
            x=points,
            y=band,
            seeds=(),
            unfinished=(),
            failed=(),
            runs=np.empty((0, points.size)),
        )


def task_curves(
    cells: Cells, on_their_way: Cells, collected: Cells, task: str, algorithms: Sequence[str]
) -> TaskCurves:
    nobody = Cells([], {}, {})
    return TaskCurves(
        task=task,
        by_frames=tuple(_task_curves(cells, on_their_way, task, algorithms, "frames")),
        by_seconds=tuple(_task_curves(cells, on_their_way, task, algorithms, "seconds")),
        collected_by_frames=tuple(_task_curves(collected, nobody, task, algorithms, "frames")),
        collected_by_seconds=tuple(_task_curves(collected, nobody, task, algorithms, "seconds")),
    )


def collected_series(series: Sequence[Series], records: Mapping[int, Records]) -> list[Series]:
    """What runs collected while they learned, of tasks on which runs have few evaluations."""
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
        frames, seconds, values = thinned(record.frames), thinned(record.elapsed), thinned(record.values)
        own = replace(s, frames=frames, seconds=seconds, values=values, episodes=np.ones(frames.size))
        found.append(replace(own, failed_final=(float(values[-1]), 0)) if s.run.failure else own)
    return [carry_forward(s, _of_task(s, found)) if s.run.failure else s for s in found]


def _of_task(own: Series, series: Sequence[Series]) -> list[Series]:
    return [s for s in series if s.run.task == own.run.task]


def thinned(values: np.ndarray) -> np.ndarray:
    """At most MOST_POINTS means of neighbours, which also smooths what single iterations gave."""
    width = -(-values.size // MOST_POINTS)
    return np.array([values[start : start + width].mean() for start in range(0, values.size, width)])


def _task_curves(cells: Cells, on_their_way: Cells, task: str, algorithms: Sequence[str], axis: str) -> Iterator[Curve]:
    for algorithm in algorithms:
        series = [s for s in cells.series(task, algorithm) if s.frames.size]
        points = points_for(series, axis)
        if points is None:
            continue
        values = interpolate(series, axis, points)
        unfinished = [s for s in on_their_way.series(task, algorithm) if s.frames.size and s.x(axis) is not None]
        yield Curve(
            algorithm=algorithm,
            x=points,
            y=statistics.mean_band(values),
            seeds=tuple(s.run.seed for s in series),
            unfinished=tuple(s.run.seed for s in unfinished),
            failed=tuple(s.run.seed for s in series if s.run.failure),
            runs=np.concatenate([values, interpolate(unfinished, axis, points)]),
        )


# --------------------------------------------------------------------------------------------------------- comparisons


def compare_overall(
    cells: Cells, tasks: Sequence[str], pairs: Sequence[tuple[str, str]], options: Options
) -> tuple[Comparison, ...]:
    """Each pair over the tasks that both have."""

    def estimate(pair: tuple[str, str], first: list[np.ndarray], second: list[np.ndarray]) -> Estimate:
        generator = _generator(options, "improvement", *pair)
        return statistics.improvement(first, second, options.improvement_repetitions, generator)

    both = [(pair, [task for task in tasks if all(cells.has(task, name) for name in pair)]) for pair in pairs]
    return _compare(cells, [(pair, shared) for pair, shared in both if shared], estimate)


def compare_by_task(cells: Cells, tasks: Sequence[str], pairs: Sequence[tuple[str, str]]) -> tuple[Comparison, ...]:
    """Each pair on each task that both have."""

    def estimate(pair: tuple[str, str], first: list[np.ndarray], second: list[np.ndarray]) -> Estimate:
        return Estimate(value=float(statistics.win_matrix(first[0], second[0]).mean()), low=np.nan, high=np.nan)

    each = [(pair, [task]) for task in tasks for pair in pairs if all(cells.has(task, name) for name in pair)]
    return _compare(cells, each, estimate)


def _compare(
    cells: Cells,
    comparisons: Sequence[tuple[tuple[str, str], list[str]]],
    estimate: Callable[[tuple[str, str], list[np.ndarray], list[np.ndarray]], Estimate],
) -> tuple[Comparison, ...]:
    scores = [[cells.final_scores(tasks, name) for name in pair] for pair, tasks in comparisons]
    p_values = [statistics.rank_test(first, second) for first, second in scores]
    corrected = statistics.holm(p_values)
    return tuple(
        Comparison(
            first=pair[0],
            second=pair[1],
            tasks=tuple(tasks),
            probability=estimate(pair, first, second),
            p_value=p_values[i],
            p_corrected=float(corrected[i]),
            smallest_p=statistics.smallest_p(first, second),
        )
        for i, ((pair, tasks), (first, second)) in enumerate(zip(comparisons, scores, strict=True))
    )


# ----------------------------------------------------------------------------------------------------------------- cost


@dataclass(frozen=True, kw_only=True)
class Records:
    """What metrics.jsonl tells of a run. Seconds by part (parts that it does not tell are not there), and of the n
    iterations in which episodes ended, the mean of these by the metric."""

    seconds: Mapping[str, float]
    frames: np.ndarray  # [n], ascending
    elapsed: np.ndarray  # [n], seconds
    values: np.ndarray  # [n]


def make_costs(
    cells: Cells, tasks: Sequence[str], algorithms: Sequence[str], records: Mapping[int, Records]
) -> Iterator[Cost]:
    for task in tasks:
        for algorithm in algorithms:
            runs = [s.run for s in cells.series(task, algorithm) if id(s.run) in records]
            if runs:
                yield make_cost(task, algorithm, runs, [records[id(run)].seconds for run in runs])


def make_cost(task: str, algorithm: str, runs: Sequence[Run], seconds: Sequence[Mapping[str, float]]) -> Cost:
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


PARTS = {
    "compiling": names.COMPILING_SECONDS,
    "collecting": names.COLLECTING_SECONDS,
    "updating": names.UPDATING_SECONDS,
    "evaluating": names.EVALUATING_SECONDS,
}


def read_records(run: Run, metric: str, problems: list[Problem]) -> Records:
    """Empty where metrics.jsonl cannot be read."""
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
        note("lines of its metrics are no records", "left out of its cost")
    frames, elapsed, values = _collected(records, metric)
    return Records(seconds=_seconds_by_part(records), frames=frames, elapsed=elapsed, values=values)


def _collected(records: Sequence[Mapping[str, Any]], metric: str) -> np.ndarray:
    """[3, n]: frames, seconds and the metric's value of the iterations in which episodes ended."""
    keys = (names.FRAMES, names.ELAPSED_SECONDS, f"collection/{metric}")
    rows = [[as_number(record.get(key)) for key in keys] for record in records if record.get(names.KIND) == names.TRAIN]
    found = np.array([row for row in rows if None not in row], np.float64).reshape(-1, 3).T
    ascending = (np.diff(found[:2], axis=1, prepend=-np.inf) >= 0).all(axis=0)
    return found[:, ascending]


def _seconds_by_part(records: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Training and evaluating follow from the time that passed before each record. The other parts are there where a
    record states them; the last one counts."""
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


def describe_device(environment: Mapping[str, object]) -> str:
    device = environment.get("device")
    if not isinstance(device, Mapping):
        return "unknown"
    return f"{device.get('number')} × {device.get('kind')} ({environment.get('platform')})"


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None
