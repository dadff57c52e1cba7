"""Statistics of scores: stratified bootstrap, aggregates, profiles, improvement, ranks, tests. NumPy in, NumPy out.

The `scores` of an algorithm are a list with one array per task: `[n]`, one score per run, or `[n, P]` for P points of a
curve. Tasks may differ in n; each has the same weight. N is the number of runs of all tasks, R that of repetitions.

The definitions are those of Agarwal et al. 2021 (arXiv 2108.13264). For each task, the bootstrap draws n of its n runs
with replacement. It does not draw runs but counts `[N, R]`: how often each run is taken. Every statistic is a function
of counts, and counts of one give its value. No scores are copied, and they are sorted once: see `trimmed_mean`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

Scores = Sequence[np.ndarray]
Statistic = Callable[[np.ndarray], np.ndarray]  # counts [N, R] → [..., R]

LIMITS = (2.5, 97.5)  # percentiles: a 95% interval
TRIMMED = 0.25  # share of runs that the IQM leaves out at each end
BLOCK = 1 << 18  # numbers in a working array: small enough to stay in a processor's cache
EXACT_RUNS, EXACT_TASKS = 40, 40  # up to here, the null distribution of the rank test is exact


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A number and its 95% interval; NaN limits if there is none."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Band:
    """Estimates as arrays of one shape."""

    value: np.ndarray
    low: np.ndarray
    high: np.ndarray

    def __getitem__(self, index: int) -> Estimate:
        return Estimate(value=float(self.value[index]), low=float(self.low[index]), high=float(self.high[index]))


# ------------------------------------------------------------------------------------------------------- the bootstrap


def draw_counts(sizes: Sequence[int], repetitions: int, generator: np.random.Generator) -> np.ndarray:
    """How often each run is taken, [N, R]. `sizes` are the numbers n of runs per task; n are drawn with replacement."""
    columns = np.arange(repetitions)
    strata = []
    for size in sizes:
        drawn = generator.integers(size, size=(size, repetitions)) * repetitions + columns
        strata.append(np.bincount(drawn.ravel(), minlength=size * repetitions).reshape(size, repetitions))
    return np.concatenate(strata).astype(np.float64)


def bootstrap(
    statistic: Statistic, sizes: Sequence[int], repetitions: int, generator: np.random.Generator, width: int = 1
) -> tuple[np.ndarray, np.ndarray]:
    """A statistic's value [...] and its bootstrap sample [..., R].

    The sample is drawn in blocks, so that memory does not grow with repetitions × runs. `width` is how many numbers the
    statistic works on for each repetition.
    """
    value = statistic(np.ones((sum(sizes), 1)))[..., 0]
    block = max(1, BLOCK // max(width, sum(sizes)))
    starts = range(0, repetitions, block)
    blocks = [statistic(draw_counts(sizes, min(block, repetitions - start), generator)) for start in starts]
    return value, np.concatenate(blocks, axis=-1)


def percentile_band(value: np.ndarray, sample: np.ndarray, sizes: Sequence[int]) -> Band:
    """A value [...] with percentiles of its bootstrap sample [..., R] as limits.

    The limits are NaN if a task has one run: resampling cannot vary that run, so the interval would be too narrow.
    """
    if min(sizes) < 2:
        low = high = np.full_like(value, np.nan)
    else:
        low, high = np.percentile(sample, LIMITS, axis=-1)
        # Rounding must not put a value outside its own interval.
        low = np.where(np.isclose(low, value, rtol=1e-9, atol=1e-12), np.minimum(low, value), low)
        high = np.where(np.isclose(high, value, rtol=1e-9, atol=1e-12), np.maximum(high, value), high)
    return Band(value=value, low=low, high=high)


def run_weights(sizes: Sequence[int]) -> np.ndarray:
    """Each run's weight [N], so that all tasks weigh the same; 1 if all have the same number of runs."""
    return np.repeat(max(sizes) / np.asarray(sizes, np.float64), sizes)


def trimmed_mean(values: np.ndarray, weights: np.ndarray, trimmed: float = TRIMMED) -> np.ndarray:
    """Weighted mean [P, R] of `values` [N, P] by `weights` [N, R], without the share `trimmed` of weight at each end.

    As in rliable, whole runs are trimmed: the integer part of N · trimmed. For sorted values v_1 ≤ … ≤ v_N it equals

        v_m + Σ_{i ≥ m} (v_{i+1} − v_i) · (share of the kept weight above v_i)
            − Σ_{i < m} (v_{i+1} − v_i) · (share of the kept weight not above v_i)

    for any m, which takes N additions over all repetitions and points at once. With v_m from the middle, trimmed runs
    contribute products with 0 instead of large numbers that cancel, so a diverged run does not cost digits.
    """
    num_runs, middle = len(values), len(values) // 2
    total = weights[:, 0].sum()  # the same in every repetition
    cut = math.floor(num_runs * trimmed) / num_runs * total
    kept = total - 2 * cut
    order = np.argsort(values, axis=0)
    ascending = np.take_along_axis(values, order, axis=0)
    mean = np.zeros((values.shape[1], weights.shape[1]))
    above = np.full_like(mean, cut)  # the kept weight above a value; below the middle, minus all of it
    term = np.empty_like(mean)
    for rank, gap in enumerate(np.diff(ascending, axis=0)):
        if rank == middle:
            above += kept
        above -= weights[order[rank]]
        np.clip(above, *((0, kept) if rank >= middle else (-kept, 0)), out=term)
        term *= gap[:, None]
        mean += term
    result: np.ndarray = mean / kept + ascending[middle][:, None]
    return result


# -------------------------------------------------------------------------------------------------------- aggregates

AGGREGATES = ("iqm", "median", "mean", "optimality_gap")


def aggregate(scores: Scores, repetitions: int, generator: np.random.Generator) -> tuple[Band, np.ndarray]:
    """The four aggregates in `AGGREGATES` over tasks and runs, [4], and the bootstrap sample of the IQM, [R].

    The interquartile mean is over all runs. Median and mean are over the tasks' means. The optimality gap is how much
    runs fall short of 1 on average; runs above 1 count as 1.
    """
    sizes = [len(task) for task in scores]
    values = np.concatenate(scores)
    weights = run_weights(sizes)
    ends = np.cumsum(sizes)[:-1]

    def statistic(counts: np.ndarray) -> np.ndarray:
        each = zip(np.split(values, ends), np.split(counts, ends), sizes, strict=True)
        task_means = np.stack([task @ taken / size for task, taken, size in each])
        iqm = trimmed_mean(values[:, None], counts * weights[:, None])[0]
        below_one = (np.minimum(values, 1) * weights) @ counts / weights.sum()
        return np.stack([iqm, np.median(task_means, axis=0), task_means.mean(axis=0), 1 - below_one])

    value, sample = bootstrap(statistic, sizes, repetitions, generator)
    return percentile_band(value, sample, sizes), sample[0]


def iqm_curve(scores: Scores, repetitions: int, generator: np.random.Generator) -> Band:
    """The IQM over tasks and runs at each of P points, [P]. All points use the same draws of runs."""
    sizes = [len(task) for task in scores]
    values = np.concatenate(scores)
    weights = run_weights(sizes)

    def statistic(counts: np.ndarray) -> np.ndarray:
        return trimmed_mean(values, counts * weights[:, None])

    value, sample = bootstrap(statistic, sizes, repetitions, generator, width=values.shape[1])
    return percentile_band(value, sample, sizes)


def performance_profile(
    scores: Scores, thresholds: np.ndarray, repetitions: int, generator: np.random.Generator
) -> Band:
    """The share of runs with a score above each of K thresholds, [K]."""
    sizes = [len(task) for task in scores]
    weights = run_weights(sizes)
    above = (np.concatenate(scores) > thresholds[:, None]) * weights

    def statistic(counts: np.ndarray) -> np.ndarray:
        share: np.ndarray = above @ counts / weights.sum()
        return share

    value, sample = bootstrap(statistic, sizes, repetitions, generator, width=len(thresholds))
    return percentile_band(value, sample, sizes)


def mean_band(values: np.ndarray) -> Band:
    """The mean [P] over n runs `[n, P]` with its 95% interval by Student's t; NaN limits for one run."""
    from scipy.special import stdtrit

    num_runs = len(values)
    mean = values.mean(axis=0)
    if num_runs < 2:
        half = np.full_like(mean, np.nan)
    else:
        half = stdtrit(num_runs - 1, LIMITS[1] / 100) * values.std(axis=0, ddof=1) / math.sqrt(num_runs)
    return Band(value=mean, low=mean - half, high=mean + half)


# -------------------------------------------------------------------------------------------------------- comparisons


def win_matrix(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """[n, m]: 1 where the run of `first` has the higher score, 1/2 where both have the same, else 0."""
    wins: np.ndarray = (np.sign(first[:, None] - second[None, :]) + 1) / 2
    return wins


def improvement(first: Scores, second: Scores, repetitions: int, generator: np.random.Generator) -> Estimate:
    """The probability that a run of `first` beats one of `second` on a task, mean over tasks; ties count half."""
    sizes = [len(task) for task in [*first, *second]]
    ends = np.cumsum(sizes)[:-1]
    wins = [win_matrix(x, y) / (x.size * y.size) for x, y in zip(first, second, strict=True)]

    def statistic(counts: np.ndarray) -> np.ndarray:
        parts = np.split(counts, ends)
        taken = zip(wins, parts[: len(first)], parts[len(first) :], strict=True)
        each = [(x * (won @ y)).sum(axis=0) for won, x, y in taken]
        mean: np.ndarray = np.mean(each, axis=0)
        return mean

    value, sample = bootstrap(statistic, sizes, repetitions, generator)
    return percentile_band(value[None], sample[None], sizes)[0]


def ranks(samples: np.ndarray) -> np.ndarray:
    """[A, R] → ranks [A, R], 1 for the highest; equal ones share the better rank."""
    return 1 + np.stack([(samples > own).sum(axis=0) for own in samples])


def rank_probabilities(ranked: np.ndarray) -> np.ndarray:
    """[A, A]: how often algorithm a has rank k + 1."""
    places = np.arange(1, len(ranked) + 1)
    shares: np.ndarray = (ranked[:, None, :] == places[:, None]).mean(axis=-1)
    return shares


# -------------------------------------------------------------------------------------------------------------- tests


def rank_test(first: Scores, second: Scores) -> float:
    """Two-sided p-value of the hypothesis that on every task, runs of both come from one distribution.

    This is the Mann–Whitney test, stratified by task: labels are permuted within each task, and the statistic is the
    sum over tasks of the ranks of `first`. Ties have mean ranks. With few runs the null distribution is exact: it is
    enumerated for each task, and the tasks' distributions are convolved. The test is therefore valid for three runs as
    for ten, and for bimodal returns; a t-test over three runs is not.
    """
    doubled = [
        _doubled_ranks(x, y) for x, y in zip(first, second, strict=True)
    ]  # twice the ranks, because mean ranks may end in ½
    statistic = sum(int(task[: x.size].sum()) for task, x in zip(doubled, first, strict=True))
    expected = sum(x.size * task.mean() for task, x in zip(doubled, first, strict=True))
    distance = abs(statistic - expected)
    if len(doubled) > EXACT_TASKS or max(map(len, doubled)) > EXACT_RUNS:
        return _normal_p(distance, doubled, [x.size for x in first])
    null = np.ones(1)
    for task, x in zip(doubled, first, strict=True):
        null = np.convolve(null, _rank_sum_distribution(task, x.size))
    return min(1.0, float(null[np.abs(np.arange(null.size) - expected) >= distance - 1e-6].sum()))


def smallest_p(first: Scores, second: Scores) -> float:
    """The smallest p-value that `rank_test` can give: all of `first` beat all of `second`, without ties."""
    ways = math.prod(math.comb(x.size + y.size, x.size) for x, y in zip(first, second, strict=True))
    return min(1.0, 2 / ways)


def holm(p_values: Sequence[float]) -> np.ndarray:
    """p-values [m] corrected for m comparisons (Holm 1979): the k-th smallest times m − k + 1, never descending."""
    p = np.asarray(p_values, np.float64)
    order = np.argsort(p)
    corrected = np.empty_like(p)
    corrected[order] = np.minimum(1, np.maximum.accumulate(p[order] * np.arange(p.size, 0, -1)))
    return corrected


def _doubled_ranks(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    pooled = np.concatenate([first, second])
    below, equal = pooled[None] < pooled[:, None], pooled[None] == pooled[:, None]
    doubled: np.ndarray = 2 * below.sum(axis=1) + equal.sum(axis=1) + 1
    return doubled


def _rank_sum_distribution(ranks: np.ndarray, number: int) -> np.ndarray:
    """The probability of each sum of `number` of the ranks, drawn without replacement."""
    subsets = np.zeros((number + 1, int(ranks.sum()) + 1))  # [k, s]: how many subsets of k ranks have the sum s
    subsets[0, 0] = 1
    for rank in ranks:
        subsets[1:, rank:] += subsets[:-1, : subsets.shape[1] - rank]
    probabilities: np.ndarray = subsets[number] / subsets[number].sum()
    return probabilities


def _normal_p(distance: float, doubled: Sequence[np.ndarray], numbers: Sequence[int]) -> float:
    """The normal approximation for many runs, with the variance of a sum of ranks drawn without replacement."""
    each = zip(doubled, numbers, strict=True)
    variance = sum(number * (task.size - number) / (task.size - 1) * task.var() for task, number in each)
    return math.erfc(distance / math.sqrt(2 * variance)) if variance > 0 else 1.0
