"""Every number that a report shows, computed from runs: `summarise(runs, problems, options) -> ReportSummary`.

    assemble.py      summarise: the order in which everything below is computed
    types.py         ReportSummary and its parts: frozen dataclasses of strings, floats and NumPy arrays
    options.py       what the user can choose
    series.py        one metric of one run as a series, its final value, and what a failed run counts as
    teams.py         tasks whose groups oppose each other
    scales.py        what scores of 0 and 1 mean on each task
    aggregates.py    scores over all tasks, ranks, performance profiles
    comparisons.py   pairs of algorithms
    curves.py        learning curves, per task and over all tasks
    records.py       what metrics.jsonl says about a run: time, and returns while collecting
    costs.py         how long runs took
    texts.py         the sentences that explain the numbers

Nothing here draws or formats. Undefined values are NaN, for example the interval of a single seed. A score is a
normalised value: 0 and 1 are the two ends of the task's scale. A value is in the metric's own unit.
"""

from covey.report.summary.assemble import summarise
from covey.report.summary.options import Normalisation, SummaryOptions
from covey.report.summary.types import (
    Aggregate,
    Comparison,
    Cost,
    Curve,
    Final,
    GroupFinal,
    Profile,
    Ranking,
    ReportSummary,
    Scale,
    TaskCurves,
)

__all__ = [
    "Aggregate",
    "Comparison",
    "Cost",
    "Curve",
    "Final",
    "GroupFinal",
    "Normalisation",
    "Profile",
    "Ranking",
    "ReportSummary",
    "Scale",
    "SummaryOptions",
    "TaskCurves",
    "summarise",
]
