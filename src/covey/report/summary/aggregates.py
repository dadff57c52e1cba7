"""Scores over all tasks: IQM, median, mean and optimality gap, the ranks that follow, and performance profiles."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from covey.report import statistics
from covey.report.runs import Problem
from covey.report.statistics import Band
from covey.report.summary.options import Normalisation, SummaryOptions, make_generator
from covey.report.summary.series import Cells
from covey.report.summary.types import Aggregate, Profile, Ranking

NUM_THRESHOLDS = 101  # of a performance profile


def aggregate(
    cells: Cells, tasks: Sequence[str], algorithms: Sequence[str], options: SummaryOptions
) -> tuple[tuple[Aggregate, ...], Ranking | None]:
    """Each algorithm's aggregates over `tasks`, and the ranks by IQM. Every algorithm must have runs on every task."""
    if not tasks:
        return (), None
    aggregates, samples = [], []
    sizes: list[int] = []
    for algorithm in algorithms:
        scores = cells.final_scores(tasks, algorithm)
        sizes += map(len, scores)
        generator = make_generator(options, "aggregate", algorithm)
        band, iqms = statistics.aggregate(scores, options.repetitions, generator)
        estimates = {name: band[i] for i, name in enumerate(statistics.AGGREGATES)}
        aggregates.append(Aggregate(algorithm=algorithm, num_runs=sum(map(len, scores)), **estimates))
        samples.append(iqms)
    return tuple(aggregates), make_ranking(algorithms, np.stack(samples), resampled=min(sizes) > 1)


def find_single_runs(cells: Cells, tasks: Sequence[str], algorithms: Sequence[str]) -> list[Problem]:
    """A problem if some cells have one run and others more: aggregates then have no intervals."""
    sizes = {(task, name): len(cells.series(task, name)) for task in tasks for name in algorithms}
    alone = [f"{name} on {task}" for (task, name), size in sizes.items() if size == 1]
    if not alone or len(alone) == len(sizes):
        return []
    shown = ", ".join(alone[:3]) + (f" and {len(alone) - 3} more" if len(alone) > 3 else "")
    why = "no intervals over tasks and no probabilities of ranks: resampling cannot vary a single run"
    return [Problem(what=f"only one run of {shown}", where="aggregates", why=why)]


def make_ranking(algorithms: Sequence[str], samples: np.ndarray, *, resampled: bool) -> Ranking:
    """Ranks A algorithms by bootstrap samples [A, R] of their IQM.

    If the samples do not vary (`resampled` is False), they say nothing about how certain the ranks are.
    """
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
    cells: Cells, tasks: Sequence[str], algorithms: Sequence[str], options: SummaryOptions
) -> tuple[Profile, ...]:
    """Each algorithm's performance profile over `tasks`.

    Thresholds span from 0 or the lowest score, whichever is lower, to 1 or the highest score, whichever is higher.
    """
    if not tasks:
        return ()
    scores = {algorithm: cells.final_scores(tasks, algorithm) for algorithm in algorithms}
    everything = np.concatenate([task for by_task in scores.values() for task in by_task])
    if options.normalisation is Normalisation.none:
        low, high = everything.min(), everything.max()
    else:
        low, high = min(0.0, everything.min()), max(1.0, everything.max())
    thresholds = np.linspace(low, high, NUM_THRESHOLDS)
    return tuple(
        Profile(
            algorithm=algorithm,
            thresholds=thresholds,
            share=statistics.performance_profile(
                by_task, thresholds, options.improvement_repetitions, make_generator(options, "profile", algorithm)
            ),
        )
        for algorithm, by_task in scores.items()
    )
