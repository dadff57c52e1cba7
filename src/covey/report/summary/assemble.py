"""`summarise`: the order in which the parts of a summary are computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from covey.errors import UsageError, unknown_name
from covey.metrics import MEAN_RETURN
from covey.report.runs import METRIC_NAMES, Problem, Run
from covey.report.summary.aggregates import aggregate, find_single_runs, make_profiles
from covey.report.summary.comparisons import check_algorithm, choose_pairs, compare_by_task, compare_overall
from covey.report.summary.costs import make_costs
from covey.report.summary.curves import make_aggregate_curves, make_collected_series, make_task_curves
from covey.report.summary.options import SummaryOptions
from covey.report.summary.records import read_records
from covey.report.summary.scales import describe_scales, make_scales
from covey.report.summary.series import (
    Cells,
    choose_final_kind,
    drop_without_final,
    make_series,
    split_unfinished_series,
    with_failed_finals,
)
from covey.report.summary.teams import find_opposed_teams, make_group_finals, with_first_teams_return
from covey.report.summary.texts import (
    CURVE_TEXT,
    FINAL_TEXT,
    INTERVAL_TEXT,
    NORMALISATION_TEXT,
    TEST_TEXT,
    describe_seeds,
)
from covey.report.summary.types import ReportSummary


def summarise(
    runs: Sequence[Run], problems: Sequence[Problem] = (), options: SummaryOptions | None = None
) -> ReportSummary:
    """Computes every number of a report. The summary's problems are `problems` and those found here.

    UsageError if no run has the metric, or if `pairs` or `order` name an algorithm without runs.
    """
    options = options or SummaryOptions()
    noted = list(problems)
    data = prepare(runs, options, noted)
    cells, tasks, algorithms, shared = data.cells, data.tasks, data.algorithms, data.shared_tasks
    pairs = choose_pairs(options.pairs, algorithms)
    noted += find_unshared(tasks, shared) + find_single_runs(cells, shared, algorithms)
    aggregates, ranking = aggregate(cells, shared, algorithms, options)
    records = {
        id(s.run): read_records(s.run, data.metric, noted) for s in cells.all_series() if s.run.folder is not None
    }
    collected = Cells(make_collected_series(cells.all_series(), records), cells.scales, cells.final_kinds)
    return ReportSummary(
        options=options,
        metric=data.metric,
        higher_is_better=data.higher_is_better,
        unit=data.unit,
        algorithms=algorithms,
        tasks=tasks,
        runs=data.runs,
        scales=tuple(cells.scales.values()),
        finals=tuple(cells.final(task, name) for task in tasks for name in algorithms if cells.has(task, name)),
        teams={task: teams for task in tasks if (teams := find_opposed_teams(task, cells.all_series()))},
        group_finals=tuple(make_group_finals(cells, tasks, algorithms)),
        aggregate_tasks=shared,
        aggregates=aggregates,
        profiles=make_profiles(cells, shared, algorithms, options),
        curves_by_frames=tuple(make_aggregate_curves(cells, shared, algorithms, options, "frames", noted)),
        curves_by_seconds=tuple(make_aggregate_curves(cells, shared, algorithms, options, "seconds", noted)),
        ranking=ranking,
        improvements=compare_overall(cells, tasks, pairs, options),
        task_comparisons=compare_by_task(cells, tasks, pairs),
        task_curves=tuple(make_task_curves(cells, data.unfinished, collected, task, algorithms) for task in tasks),
        costs=tuple(make_costs(cells, tasks, algorithms, records)),
        problems=tuple(dict.fromkeys(noted)),
        normalisation_text=NORMALISATION_TEXT[options.normalisation],
        scale_text=describe_scales(
            [cells.scales[task] for task in shared], options.normalisation, data.higher_is_better
        ),
        final_text=FINAL_TEXT,
        curve_text=CURVE_TEXT,
        interval_text=INTERVAL_TEXT.format(options=options),
        test_text=TEST_TEXT,
        seeds_text=describe_seeds(cells, tasks, algorithms),
    )


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """The runs as series of the chosen metric, sorted into cells."""

    metric: str
    higher_is_better: bool
    unit: str
    algorithms: tuple[str, ...]
    tasks: tuple[str, ...]
    shared_tasks: tuple[str, ...]  # those on which every algorithm has runs
    cells: Cells  # series that count
    unfinished: Cells  # series that are only drawn as single seeds
    runs: tuple[Run, ...]  # of both, in the order given


def prepare(runs: Sequence[Run], options: SummaryOptions, problems: list[Problem]) -> Prepared:
    """Decides which runs count and by which values; appends to `problems` what it leaves out."""
    metric = find_metric(options.metric, runs)
    higher_is_better, unit = describe_metric(metric, runs)
    if metric == MEAN_RETURN:
        runs = [with_first_teams_return(run, problems) for run in runs]
    found = [s for run in runs if (s := make_series(run, metric, problems)) is not None]
    series, unfinished = split_unfinished_series(found)
    kinds = {task: choose_final_kind(task, series) for task in sorted({s.run.task for s in series})}
    series = drop_without_final(with_failed_finals(series, kinds, higher_is_better), kinds, problems)
    if not series:
        raise UsageError(f"no run has a finite value of {metric}")
    algorithms = order_algorithms({s.run.algorithm for s in series}, options.order)
    tasks = tuple(sorted({s.run.task for s in series}))
    scales = make_scales(tasks, series, kinds, options.normalisation, metric, higher_is_better, problems)
    cells = Cells(series, scales, kinds)
    unfinished = [s for s in unfinished if cells.has(s.run.task, s.run.algorithm)]
    shown = {id(s.run) for s in (*series, *unfinished)}
    return Prepared(
        metric=metric,
        higher_is_better=higher_is_better,
        unit=unit,
        algorithms=algorithms,
        tasks=tasks,
        shared_tasks=tuple(task for task in tasks if all(cells.has(task, name) for name in algorithms)),
        cells=cells,
        unfinished=Cells(unfinished, scales, kinds),
        runs=tuple(s.run for s in found if id(s.run) in shown),
    )


def find_metric(name: str, runs: Sequence[Run]) -> str:
    """covey's name of a metric, given any of its names in any case."""
    known = {metric for run in runs for metric in (*run.episodes, *run.absolute)}
    wanted = METRIC_NAMES.get(name.lower(), name.lower())
    if wanted not in known:
        raise unknown_name("metric", name, known, see=f"the runs have {', '.join(sorted(known))}")
    return wanted


def describe_metric(metric: str, runs: Sequence[Run]) -> tuple[bool, str]:
    """Whether higher is better, and the unit. The first run whose task declares the metric decides."""
    for run in runs:
        metrics = run.environment.get("metrics")
        declared = metrics.get(metric) if isinstance(metrics, Mapping) else None
        if isinstance(declared, Mapping):
            return bool(declared.get("higher_is_better", True)), str(declared.get("unit") or "")
    return True, ""


def order_algorithms(known: set[str], first: Sequence[str]) -> tuple[str, ...]:
    """Algorithms in the order of the report: those in `first`, then the others by name."""
    for name in first:
        check_algorithm(name, known)
    return tuple(dict.fromkeys([*first, *sorted(known)]))


def find_unshared(tasks: Sequence[str], shared: Sequence[str]) -> list[Problem]:
    """A problem if some tasks are left out of aggregates because an algorithm has no runs there."""
    left_out = [task for task in tasks if task not in shared]
    if not left_out:
        return []
    what = f"aggregates leave out {', '.join(left_out)}" if shared else "there are no aggregates over tasks"
    return [Problem(what=what, where="aggregates", why="not every algorithm has runs there")]
