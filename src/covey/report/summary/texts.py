"""The sentences that explain a report's numbers. They are printed on the page, under figures and in tables."""

from __future__ import annotations

from collections.abc import Sequence

from covey.report.summary.options import Normalisation
from covey.report.summary.series import Cells

ENOUGH_SEEDS = 5  # with fewer, a report warns beside its intervals and chances
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


def describe_seeds(cells: Cells, tasks: Sequence[str], algorithms: Sequence[str]) -> str:
    """A warning if some cell has few seeds; "" if all have enough."""
    fewest = min(len(cells.series(task, name)) for task in tasks for name in algorithms if cells.has(task, name))
    if fewest >= ENOUGH_SEEDS:
        return ""
    return (
        f"Few seeds: {fewest} for some algorithm on some task, where {ENOUGH_SEEDS} or more are usual. With so few, "
        "intervals are too narrow and chances too close to 0% or 100%: take them as a first impression."
    )
