"""The sentences that explain a report's numbers. They are printed on the page, under figures and in tables."""

from __future__ import annotations

from collections.abc import Sequence

from covey.report.summary.options import Normalisation
from covey.report.summary.series import Cells

ENOUGH_SEEDS = 5  # with fewer, a report warns beside its intervals and probabilities

NORMALISATION_TEXT = {
    Normalisation.anchors: "Scores are on fixed scales. 0 is a random team. 1 is the best comparable published "
    "result, or a ceiling or a hand-written heuristic above it. All of these are for the task's default "
    "configuration. If there is no such result, 1 is the best run here. If the value of a random team is not known, "
    "or no run is above it, 0 is the worst value here. Scores can be above 1 and below 0.",
    Normalisation.minmax: "Scores are relative to these runs: 0 is the worst and 1 the best value of any evaluation of "
    "any algorithm on the task. They change when algorithms are added or left out.",
    Normalisation.none: "Values are not normalised. Aggregates over tasks are meaningful only if all tasks have the "
    "same scale, and the optimality gap only if 1 is the best value.",
}
FINAL_TEXT = (
    "The final value of a run is its absolute metric: the best parameters of all evaluations, played again over many "
    "new episodes. On tasks where a run has no absolute metric, the final value of every run is the mean of its "
    "evaluations in the last tenth of the frames. The best evaluation itself is not used, because the best of many "
    "noisy numbers is too high. A run that failed (diverged or crashed) also counts, marked †: by the mean of its "
    "last evaluations before it failed, or by the worst value of any run on the task if it has none. Curves carry "
    "that value forward. A run that has not finished counts only if its algorithm has no finished run on the task."
)
CURVE_TEXT = (
    "Curves have a point at each evaluation if all runs were evaluated at the same frames. Otherwise, and by seconds, "
    "runs are interpolated linearly to common points. A curve ends where its shortest run ends. Seconds are those in "
    "the files; covey's include training and evaluation, but not compilation."
)
INTERVAL_TEXT = (
    "All intervals are 95%. Over tasks they are percentiles of a stratified bootstrap over runs "
    "({options.repetitions:,} repetitions for aggregates and ranks, {options.curve_repetitions:,} for curves, "
    "{options.improvement_repetitions:,} for profiles and comparisons). On one task they are from Student's t over "
    "the seeds. A single seed has no interval. If a task has only one run, there are no intervals over tasks, because "
    "resampling cannot vary that run."
)
TEST_TEXT = (
    "P-values are from the two-sided Mann–Whitney rank test, stratified by task, with the exact null distribution for "
    "up to 40 runs of a pair on a task. The test assumes nothing about the distribution of returns, which few seeds "
    "cannot show. P-values are corrected by Holm's method for all comparisons in the same table. With few seeds on "
    "one task the test cannot reach significance, whatever the difference (3 against 3: p is at least 0.1); over "
    "several tasks it can."
)


def describe_seeds(cells: Cells, tasks: Sequence[str], algorithms: Sequence[str]) -> str:
    """A warning if some cell has few seeds; "" if all have enough."""
    fewest = min(len(cells.series(task, name)) for task in tasks for name in algorithms if cells.has(task, name))
    if fewest >= ENOUGH_SEEDS:
        return ""
    return (
        f"Few seeds: {fewest} for some algorithm on some task; {ENOUGH_SEEDS} or more are usual. With this few, "
        "intervals are too narrow and probabilities too close to 0% or 100%. Read them as a first impression."
    )
