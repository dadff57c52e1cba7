"""The tables of a report: `write_tables(summary, folder)` writes each as LaTeX, CSV and Markdown.

A `Table` is made once from the summary, and `table_formats.py` turns it into text. LaTeX and Markdown are for readers:
rounded, intervals in brackets, the best in bold. CSV is for programs: all digits, limits of intervals in their own
columns.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from covey.files import write_atomically
from covey.metrics import scored_groups
from covey.report import text
from covey.report.statistics import Estimate
from covey.report.summary import Final, ReportSummary
from covey.report.table_formats import FORMS, Row, Table

RANKS = "Ranks, 95%"
FAILED = "†"  # marks results that include failed runs
AGGREGATES = (("IQM", "iqm"), ("Median", "median"), ("Mean", "mean"), ("Optimality gap", "optimality_gap"))


def write_tables(summary: ReportSummary, folder: Path) -> list[Path]:
    """Writes every table that has rows, in every format; returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for table in filter(lambda table: table.rows, make_tables(summary)):
        for suffix, render in FORMS.items():
            path = folder / f"{table.name}.{suffix}"
            write_atomically(path, render(table))
            written.append(path)
    return written


def make_tables(summary: ReportSummary) -> list[Table]:
    """All tables; one that the runs do not suffice for has no rows."""
    return [
        aggregates_table(summary),
        finals_table(summary),
        groups_table(summary),
        improvements_table(summary),
        task_comparisons_table(summary),
        costs_table(summary),
    ]


def aggregates_table(summary: ReportSummary) -> Table:
    """Scores and ranks over all tasks."""
    aggregates = summary.aggregates
    best = {name: _best([getattr(a, field).value for a in aggregates], name) for name, field in AGGREGATES}
    rows = tuple(
        Row(
            cells=(
                a.algorithm,
                a.num_runs,
                *(getattr(a, field) for _, field in AGGREGATES),
                likely_ranks(summary, a.algorithm),
                mean_rank(summary, a.algorithm),
            ),
            best=frozenset(column for column, (name, _) in enumerate(AGGREGATES, start=2) if row in best[name]),
        )
        for row, a in enumerate(aggregates)
    )
    caption = _sentences(
        f"Scores over {text.count(len(summary.aggregate_tasks), 'task')} ({text.name_list(summary.aggregate_tasks)})",
        summary.normalisation_text,
        summary.final_text,
        summary.interval_text,
        summary.seeds_text,
    )
    columns = ("Algorithm", "Runs", *(name for name, _ in AGGREGATES), RANKS, "Mean rank")
    return Table(name="aggregates", caption=caption, columns=columns, rows=rows)


def finals_table(summary: ReportSummary) -> Table:
    """Final values: a row per task, a column per algorithm."""
    rows = []
    for task in summary.tasks:
        finals = [summary.final(task, algorithm) for algorithm in summary.algorithms]
        means = [math.nan if final is None else final.mean.value for final in finals]
        signed = [value if summary.higher_is_better else -value for value in means]
        rows.append(
            Row(
                cells=(marked_task(task, finals), *(None if final is None else final.mean for final in finals)),
                places=text.places(means),
                best=frozenset(1 + column for column in _largest(signed)),
            )
        )
    seeds = text.span([len(final.seeds) for final in summary.finals])
    caption = _sentences(
        f"{summary.metric}{f' ({summary.unit})' if summary.unit else ''} per task, averaged over {seeds} seeds",
        summary.final_text,
        "95% intervals by Student's t are in brackets",
        *failures(summary),
    )
    return Table(name="finals", caption=caption, columns=("Task", *summary.algorithms), rows=tuple(rows))


def marked_task(task: str, finals: Sequence[Final | None]) -> str:
    """The task's name, marked if a run on it failed. The numbers stay bare so that programs can read them."""
    return f"{task} {FAILED}" if any(final is not None and final.failed for final in finals) else task


def failures(summary: ReportSummary) -> list[str]:
    """The failed runs of each cell in words: `† mappo on vmas/balance: 3 of 5 seeds failed (0, 2, 3)`."""
    return [
        f"{FAILED} {final.algorithm} on {final.task}: {len(final.failed)} of {len(final.seeds)} seeds failed "
        f"({', '.join(final.failed)})"
        for final in summary.finals
        if final.failed
    ]


def groups_table(summary: ReportSummary) -> Table:
    """Returns of each group, on tasks whose groups oppose each other."""
    rows = tuple(
        Row(cells=(final.task, final.algorithm, final.group, final.mean), places=text.places([final.mean.value]))
        for final in summary.group_finals
    )
    caption = _sentences(
        "Returns of groups that oppose each other, averaged over seeds",
        *(f"{task}: {describe_teams(teams)}" for task, teams in summary.teams.items()),
        "95% intervals by Student's t are in brackets",
    )
    return Table(name="groups", caption=caption, columns=("Task", "Algorithm", "Group", "Return"), rows=rows)


def describe_teams(teams: Sequence[Sequence[str]]) -> str:
    """`adversary against agent; mean_return is that of adversary`."""
    against = " against ".join(" and ".join(team) for team in teams)
    return f"{against}; mean_return is that of {' and '.join(scored_groups(teams))}"


def improvements_table(summary: ReportSummary) -> Table:
    """Pairs of algorithms over all tasks."""
    rows = tuple(
        Row(cells=(c.first, c.second, len(c.tasks), c.probability, c.p_value, c.p_corrected))
        for c in summary.improvements
    )
    caption = _sentences(
        "Probability that a run of the first algorithm beats one of the second, averaged over tasks",
        summary.interval_text,
        summary.seeds_text,
        summary.test_text,
    )
    columns = ("First", "Second", "Tasks", "Probability", "p", "p, corrected")
    return Table(name="improvements", caption=caption, columns=columns, rows=rows)


def task_comparisons_table(summary: ReportSummary) -> Table:
    """Pairs of algorithms on each task."""
    rows = tuple(
        Row(
            cells=(
                text.name_list(c.tasks),
                c.first,
                c.second,
                c.probability.value,
                c.p_value,
                c.p_corrected,
                c.smallest_p,
            )
        )
        for c in summary.task_comparisons
    )
    caption = _sentences("Pairs of algorithms, task by task", summary.test_text)
    columns = ("Task", "First", "Second", "Probability", "p", "p, corrected", "Smallest possible p")
    return Table(name="task_comparisons", caption=caption, columns=columns, rows=rows)


def costs_table(summary: ReportSummary) -> Table:
    """How long runs took."""
    rows = tuple(
        Row(
            cells=(
                cost.task,
                cost.algorithm,
                cost.num_runs,
                _whole(cost.frames),
                cost.compiling,
                cost.collecting,
                cost.updating,
                cost.training,
                cost.evaluating,
                _whole(cost.frames_per_second),
                "; ".join(cost.devices),
            ),
            places=1,
        )
        for cost in summary.costs
    )
    columns = (
        "Task",
        "Algorithm",
        "Runs",
        "Frames",
        "Compile, s",
        "Collect, s",
        "Update, s",
        "Train, s",
        "Evaluate, s",
        "Frames per second",
        "Device",
    )
    caption = "Cost per run, averaged over seeds. Training is collecting and updating."
    return Table(name="costs", caption=caption, columns=columns, rows=rows)


def mean_rank(summary: ReportSummary, algorithm: str) -> Estimate | None:
    """An algorithm's mean rank. It has no limits: `likely_ranks` has the range of its ranks."""
    if summary.ranking is None or algorithm not in summary.ranking.algorithms:
        return None
    value = float(summary.ranking.mean_rank.value[summary.ranking.algorithms.index(algorithm)])
    return Estimate(value=value, low=math.nan, high=math.nan)


def likely_ranks(summary: ReportSummary, algorithm: str) -> str:
    """The ranks of an algorithm in 95% of the bootstrap's repetitions: `1`, or `1 to 3`; "" if unknown."""
    if summary.ranking is None or algorithm not in summary.ranking.algorithms:
        return ""
    band = summary.ranking.mean_rank[summary.ranking.algorithms.index(algorithm)]
    if not math.isfinite(band.low):
        return ""
    return f"{band.low:.0f}" if band.low == band.high else f"{band.low:.0f} to {band.high:.0f}"


def _whole(value: float | None) -> int | None:
    return None if value is None or not math.isfinite(value) else round(value)


def _best(values: Sequence[float], aggregate: str) -> frozenset[int]:
    """Where the best values are. Larger scores are better for every metric, but smaller optimality gaps."""
    return _largest([-value for value in values] if aggregate == "Optimality gap" else values)


def _largest(values: Sequence[float]) -> frozenset[int]:
    """Where the largest values are; nowhere if there are fewer than two to compare."""
    finite = [value for value in values if math.isfinite(value)]
    if len(finite) < 2:
        return frozenset()
    return frozenset(index for index, value in enumerate(values) if value == max(finite))


def _sentences(*parts: str) -> str:
    return " ".join(f"{part.rstrip('.')}." for part in parts if part)
