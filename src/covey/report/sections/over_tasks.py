"""Results over all tasks: leaderboard, learning curves, profiles, probability of improvement."""

from __future__ import annotations

import math
from collections.abc import Mapping

from covey.report import text
from covey.report.markup import Html, join, tag
from covey.report.pieces import (
    algorithm_cell,
    chart,
    describe_ends,
    estimate_cell,
    estimate_text,
    interval_picture,
    note,
    shaded_cell,
    swatch,
    table,
)
from covey.report.statistics import Estimate
from covey.report.summary import Profile, ReportSummary
from covey.report.tables import AGGREGATES, failures, likely_ranks, mean_rank
from covey.report.text import SCORE_PLACES


def show_leaderboard(summary: ReportSummary) -> Html:
    """Scores over all tasks, best rank first."""
    if not summary.aggregates:
        return note("No task has runs of every algorithm, so there are no scores over tasks. See each task.")
    scale = [x for a in summary.aggregates for x in (a.iqm.value, a.iqm.low, a.iqm.high) if math.isfinite(x)]
    order = summary.ranking.algorithms if summary.ranking else summary.algorithms
    by_name = {aggregate.algorithm: aggregate for aggregate in summary.aggregates}
    rows = [
        [
            algorithm_cell(summary, name),
            *(estimate_cell(getattr(by_name[name], field), SCORE_PLACES, data_field=field) for _, field in AGGREGATES),
            interval_picture(summary, name, by_name[name].iqm, scale),
            _rank_cell(summary, name),
            by_name[name].num_runs,
        ]
        for name in order
        if name in by_name
    ]
    columns = ("Algorithm", *(name for name, _ in AGGREGATES), "IQM and interval", "Rank", "Runs")
    tasks = text.count(len(summary.aggregate_tasks), "task")
    return join(
        note(f"Over {tasks}: {text.name_list(summary.aggregate_tasks)}. {summary.normalisation_text}"),
        table(columns, rows, numbers=(1, 2, 3, 4, 6, 7), id_="scores"),
        note(
            "IQM is the mean of the middle half of all runs; the optimality gap is how far runs are below a score of "
            "1 on average (smaller is better). 95% intervals are in brackets. Ranks are those in 95% of the "
            "bootstrap's repetitions, with the mean over all of them."
        ),
        _warn_of_few_seeds(summary),
        _warn_of_failed_runs(summary),
        _rank_matrix(summary),
    )


def _rank_cell(summary: ReportSummary, name: str) -> Html:
    """`1 to 2`, and the mean, which need not lie between them."""
    ranks, mean = likely_ranks(summary, name), mean_rank(summary, name)
    if mean is None:
        return tag("td")
    value = text.number(mean.value, 2)
    shown = join(ranks, " ", tag("span", f"mean {value}", class_="range")) if ranks else join(value)
    return tag("td", shown, class_="number")


def _rank_matrix(summary: ReportSummary) -> Html | None:
    ranking = summary.ranking
    if ranking is None or ranking.probabilities is None or len(ranking.algorithms) < 2:
        return None
    rows = [
        [
            algorithm_cell(summary, name),
            *(shaded_cell(float(p), f"{p:.0%}", half=False) for p in ranking.probabilities[row]),
        ]
        for row, name in enumerate(ranking.algorithms)
    ]
    columns = ("Probability of rank", *(str(1 + rank) for rank in range(len(ranking.algorithms))))
    return tag(
        "details",
        tag("summary", "How certain the ranks are"),
        _warn_of_few_seeds(summary),
        table(columns, rows, class_="matrix"),
    )


def _warn_of_few_seeds(summary: ReportSummary) -> Html | None:
    return tag("p", summary.seeds_text, class_="note warning") if summary.seeds_text else None


def _warn_of_failed_runs(summary: ReportSummary) -> Html | None:
    """A warning that names the runs that failed, and says how they count."""
    failed = failures(summary)
    if not failed:
        return None
    rule = "A run that failed counts by its last evaluations, or by the worst value on its task if it has none."
    return tag("p", f"{'. '.join(failed)}. {rule}", class_="note warning")


def show_curves(summary: ReportSummary) -> Html:
    """The chart of scores over training, over all tasks."""
    task_curves = [curve for task in summary.task_curves for curve in (*task.by_frames, *task.by_seconds)]
    if not task_curves and not summary.curves_by_frames:
        return note("No run was evaluated during training: there are no curves.")
    if not summary.curves_by_frames:
        return note("No curve over all tasks can be drawn; each task has its own below.")
    label = (
        f"IQM of normalised scores over training. At the end: {describe_ends(summary.curves_by_frames, SCORE_PLACES)}."
    )
    return join(
        chart("efficiency", label),
        note(
            f"IQM of scores over {text.count(len(summary.aggregate_tasks), 'task')} and all seeds, with 95% "
            f"intervals of a stratified bootstrap. {summary.scale_text} Point at the chart, or "
            "select it and use the arrow keys, for values."
        ),
    )


def show_toolbar(summary: ReportSummary) -> Html:
    """Buttons that choose what all charts show; the script makes them work."""
    chips = [
        tag("button", swatch(index), name, type="button", class_="chip", data_algorithm=index, aria_pressed="true")
        for index, name in enumerate(summary.algorithms)
    ]
    axes = tag("fieldset", tag("legend", "over"), [_switch("x", unit, unit) for unit in ("frames", "seconds")])
    switches = [("logX", "log x"), ("logY", "log y"), ("seeds", "seeds"), ("references", "references")]
    if any(task.collected_by_frames for task in summary.task_curves):
        switches.append(("collected", "collected"))
    return tag(
        "div",
        tag("div", chips, class_="chips"),
        tag("div", axes, [_switch(name, label) for name, label in switches], class_="switches"),
        class_="toolbar",
        role="group",
        aria_label="What the charts show",
    )


def _switch(name: str, label: str, value: str | None = None) -> Html:
    kind = {"type": "radio", "name": name, "value": value} if value else {"type": "checkbox"}
    return tag("label", tag("input", **kind, data_switch=name), label)


def show_profiles(summary: ReportSummary) -> Html | None:
    """The chart of performance profiles."""
    if not summary.profiles:
        return None
    halves = "; ".join(f"{profile.algorithm} {_half_above(profile)}" for profile in summary.profiles)
    label = f"Share of runs above each score. Half of the runs reach at least: {halves}."
    return join(
        chart("profiles", label),
        note(
            "The share of runs with a score above τ. Curves further up and to the right are better. "
            f"{summary.scale_text}"
        ),
        _warn_of_few_seeds(summary),
    )


def _half_above(profile: Profile) -> str:
    """The highest score that half of the runs are above."""
    reached = profile.thresholds[profile.share.value >= 0.5]
    return text.number(float(reached.max()), 2) if reached.size else text.UNDEFINED


def show_improvement(summary: ReportSummary) -> Html:
    """A matrix of how likely one algorithm beats another, and the tests of every pair."""
    if not summary.improvements:
        return note("There is no pair of algorithms to compare.")
    known = {(c.first, c.second): c.probability for c in summary.improvements}
    known |= {(c.second, c.first): _mirrored(c.probability) for c in summary.improvements}
    names = [name for name in summary.algorithms if any(name in pair for pair in known)]
    rows = [
        [algorithm_cell(summary, row), *(_improvement_cell(row, column, known) for column in names)] for row in names
    ]
    tests = [
        [
            c.first,
            c.second,
            len(c.tasks),
            estimate_cell(c.probability, 2),
            text.probability(c.p_value),
            text.probability(c.p_corrected),
        ]
        for c in summary.improvements
    ]
    columns = ("First", "Second", "Tasks", "P(first beats second)", "p", "p, corrected")
    return join(
        note(
            "The probability that a run of the row's algorithm beats one of the column's on the same task, averaged "
            "over the tasks that both have; 0.5 is a tie. 95% intervals are in brackets."
        ),
        table(("beats →", *names), rows, class_="matrix", id_="improvement-matrix"),
        _warn_of_few_seeds(summary),
        tag(
            "details",
            tag("summary", "Tests of every pair"),
            note(summary.test_text),
            table(columns, tests, numbers=(2, 3, 4, 5)),
        ),
    )


def _improvement_cell(row: str, column: str, known: Mapping[tuple[str, str], Estimate]) -> Html:
    if (row, column) not in known:
        return tag("td", "–" if row == column else "not compared", class_="empty")
    estimate = known[row, column]
    return shaded_cell(estimate.value, estimate_text(estimate, 2), half=True)


def _mirrored(estimate: Estimate) -> Estimate:
    return Estimate(value=1 - estimate.value, low=1 - estimate.high, high=1 - estimate.low)
