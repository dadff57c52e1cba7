"""Statistics against numbers worked out by hand, explicit resampling, SciPy, and rliable on the same matrices."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from rliable import library as rly
from rliable import metrics as rly_metrics

from covey.report import statistics
from covey.report.statistics import (
    Band,
    aggregate,
    bootstrap,
    draw_counts,
    holm,
    improvement,
    iqm_curve,
    mean_band,
    performance_profile,
    rank_probabilities,
    rank_test,
    ranks,
    run_weights,
    smallest_p,
    trimmed_mean,
)


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def matrix(num_runs: int = 6, num_tasks: int = 5, *points: int, seed: int = 1) -> np.ndarray:
    """Scores [runs, tasks, …] as rliable takes them: tasks differ, some values are equal, some above 1."""
    rng = generator(seed)
    scores = rng.normal(0.6, 0.25, (num_runs, num_tasks, *points)) + np.linspace(0, 0.4, num_tasks).reshape(
        1, num_tasks, *(1 for _ in points)
    )
    return np.round(scores, 2)


def by_task(scores: np.ndarray) -> list[np.ndarray]:
    return list(np.moveaxis(scores, 1, 0))


def repeat(values: np.ndarray, counts: np.ndarray) -> np.ndarray:
    return np.repeat(values, counts.astype(int))


# ------------------------------------------------------------------------------------------------------ the bootstrap


def test_counts_are_draws_with_replacement_within_tasks() -> None:
    counts = draw_counts([3, 1, 5], 20_000, generator())
    assert counts.shape == (9, 20_000)
    for rows, size in ((slice(0, 3), 3), (slice(3, 4), 1), (slice(4, 9), 5)):
        assert (counts[rows].sum(axis=0) == size).all()
    # Three draws of three: all 27 sequences are equally likely, so (3, 0, 0) has 1/27 and (1, 1, 1) has 6/27.
    triples, seen = np.unique(counts[:3].T, axis=0, return_counts=True)
    shares = {tuple(triple): number / 20_000 for triple, number in zip(triples, seen, strict=True)}
    assert len(shares) == 10
    assert shares[3, 0, 0] == pytest.approx(1 / 27, abs=0.006)
    assert shares[1, 1, 1] == pytest.approx(6 / 27, abs=0.012)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_trimmed_mean_is_that_of_the_resampled_runs(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 13))
    points = data.draw(st.integers(1, 3))
    elements = st.sampled_from([-587.25, -3.0, 0.0, 0.5, 0.5, 1.0, 2.33, 40.0])
    values = np.array(
        data.draw(st.lists(st.lists(elements, min_size=points, max_size=points), min_size=size, max_size=size))
    )
    counts = draw_counts([size], 7, generator(data.draw(st.integers(0, 99))))
    result = trimmed_mean(values, counts)
    for point, repetition in itertools.product(range(points), range(7)):
        resampled = repeat(values[:, point], counts[:, repetition])
        assert result[point, repetition] == pytest.approx(scipy.stats.trim_mean(resampled, 0.25), rel=1e-9, abs=1e-9)


def test_interquartile_mean_by_hand() -> None:
    # Eight runs: two are left out at each end, whatever their scores.
    scores = [np.array([100.0, 1.0, 2.0, -50.0]), np.array([3.0, 4.0, -60.0, 200.0])]
    band, _ = aggregate(scores, 10, generator())
    assert band.value[0] == pytest.approx((1 + 2 + 3 + 4) / 4)


@pytest.mark.parametrize("outlier", [-1e9, -1e30, 1e30])
@pytest.mark.parametrize("sizes", [(10,) * 6, (10, 9, 10, 10, 8, 10)])
def test_a_diverged_run_does_not_change_the_interquartile_mean_and_its_interval(
    outlier: float, sizes: tuple[int, ...]
) -> None:
    scores = [generator(task).normal(0.5, 0.2, size) for task, size in enumerate(sizes)]
    scores[0][3] = np.sign(outlier) * 10  # already the largest or smallest: trimmed in every repetition
    diverged = [scores[0].copy(), *scores[1:]]
    diverged[0][3] = outlier
    before, after = (aggregate(each, 2000, generator())[0] for each in (scores, diverged))
    for name in ("value", "low", "high"):
        assert getattr(after, name)[0] == pytest.approx(getattr(before, name)[0], rel=1e-12)
    curves = [iqm_curve([task[:, None] for task in each], 2000, generator()) for each in (scores, diverged)]
    assert curves[1].low == pytest.approx(curves[0].low, rel=1e-12)


def test_all_aggregates_by_hand() -> None:
    scores = [np.array([0.0, 1.0]), np.array([0.5, 1.5]), np.array([0.1, 0.1])]
    band, _ = aggregate(scores, 10, generator())
    iqm, median, mean, gap = band.value
    assert iqm == pytest.approx((0.1 + 0.1 + 0.5 + 1.0) / 4)  # of six, one at each end
    assert median == pytest.approx(0.5)  # the tasks' means are 0.5, 1.0, 0.1
    assert mean == pytest.approx(1.6 / 3)
    assert gap == pytest.approx(1 - (0 + 1 + 0.5 + 1 + 0.1 + 0.1) / 6)


def test_tasks_weigh_the_same_with_unequal_numbers_of_runs() -> None:
    scores = [np.array([1.0, 1.0, 1.0, 1.0, 1.0, 1.0]), np.array([0.0, 0.0])]
    band, _ = aggregate(scores, 50, generator())
    assert band.value == pytest.approx([0.5, 0.5, 0.5, 0.5])
    share = performance_profile(scores, np.array([0.5]), 50, generator())
    assert share.value == pytest.approx([0.5])
    assert run_weights([6, 2]) == pytest.approx([1] * 6 + [3] * 2)
    # As if the second task's runs had been repeated three times each.
    values = np.concatenate(scores)[:, None] + np.arange(8)[:, None] / 10
    thrice = np.concatenate([values[:6], np.repeat(values[6:], 3, axis=0)])
    assert trimmed_mean(values, run_weights([6, 2])[:, None]) == pytest.approx(trimmed_mean(thrice, np.ones((12, 1))))


def test_the_interval_of_a_mean_has_its_theoretical_width() -> None:
    values = generator(3).normal(size=40)
    band, _ = aggregate([values], 20_000, generator())
    half_width = 1.96 * values.std() / math.sqrt(40)
    assert band.high[2] - band.low[2] == pytest.approx(2 * half_width, rel=0.04)


def test_one_run_per_task_has_no_interval() -> None:
    band, _ = aggregate([np.array([0.2]), np.array([0.9])], 100, generator())
    assert np.isfinite(band.value).all() and np.isnan(band.low).all() and np.isnan(band.high).all()
    estimate = improvement([np.array([1.0])], [np.array([0.0])], 100, generator())
    assert estimate.value == 1 and math.isnan(estimate.low)


def test_one_run_on_one_of_the_tasks_leaves_no_interval() -> None:
    """Resampling varies only the other tasks, and their interval would be too narrow."""
    many, one = np.array([0.2, 0.4, 0.9]), np.array([0.9])
    band, _ = aggregate([many, one], 100, generator())
    assert np.isfinite(band.value).all() and np.isnan(band.low).all() and np.isnan(band.high).all()
    assert math.isnan(improvement([many, one], [many, many], 100, generator()).low)
    assert np.isnan(performance_profile([many, one], np.array([0.5]), 100, generator()).low).all()
    assert np.isnan(iqm_curve([many[:, None], one[:, None]], 100, generator()).low).all()


def test_blocks_cover_all_repetitions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "BLOCK", 3000)
    _, sample = bootstrap(lambda counts: counts.sum(axis=0), [3, 4], 1000, generator())
    assert sample.shape == (1000,) and (sample == 7).all()
    band, iqms = aggregate(by_task(matrix()), 1000, generator())
    assert iqms.shape == (1000,) and (band.low <= band.high).all()


def test_rounding_puts_no_value_outside_its_interval() -> None:
    band, _ = aggregate([np.full(7, 0.3), np.full(3, 0.1)], 200, generator())
    curve = iqm_curve([np.full((7, 2), 0.3), np.full((3, 2), 0.1)], 200, generator())
    profile = performance_profile([np.ones(7), np.ones(3)], np.array([0.5]), 200, generator())
    for each in (band, curve, profile):
        assert (each.low <= each.value).all() and (each.value <= each.high).all()
        assert each.low == pytest.approx(each.high, abs=1e-6)


def test_the_same_seed_gives_the_same_numbers() -> None:
    scores = by_task(matrix())
    first, again = (aggregate(scores, 500, generator(4))[0] for _ in range(2))
    assert np.array_equal(first.low, again.low) and np.array_equal(first.high, again.high)
    assert not np.array_equal(first.low, aggregate(scores, 500, generator(5))[0].low)


# ------------------------------------------------------------------------------------------- against rliable

REPETITIONS = 1_000
OURS = 20_000


def check(band: Any, points: Any, intervals: Any, repetitions: int = REPETITIONS, jump: float = 0.0) -> None:
    """Values equal, and limits within the noise of rliable's bootstrap, which has fewer repetitions.

    A 2.5% percentile of R normal draws has a standard error of √(0.025 · 0.975 / R) / 0.058 standard deviations; a 95%
    interval is 3.92 of these wide. Statistics that move in jumps may be one off.
    """
    low, high = intervals["a"].reshape(2, -1)
    assert band.value == pytest.approx(np.reshape(points["a"], -1), abs=1e-9)
    allowed = 4 * math.sqrt(0.025 * 0.975 / repetitions) / 0.058 * (high - low) / 3.92 + jump + 1e-6
    assert (np.abs(band.low - low) < allowed).all() and (np.abs(band.high - high) < allowed).all()
    assert (band.high - band.low > 0.5 * (high - low)).all()  # the interval is not empty


@pytest.fixture
def rliable_seed() -> None:
    np.random.seed(0)  # rliable draws from NumPy's global state, whatever generator it is given


def test_aggregates_equal_rliable(rliable_seed: None) -> None:
    scores = matrix(7, 6)

    def all_four(scores: np.ndarray) -> np.ndarray:
        functions = (
            rly_metrics.aggregate_iqm,
            rly_metrics.aggregate_median,
            rly_metrics.aggregate_mean,
            rly_metrics.aggregate_optimality_gap,
        )
        return np.array([function(scores) for function in functions])

    points, intervals = rly.get_interval_estimates({"a": scores}, all_four, reps=REPETITIONS)
    band, _ = aggregate(by_task(scores), OURS, generator())
    check(band, points, intervals)


def test_curves_equal_rliable(rliable_seed: None) -> None:
    scores = matrix(5, 4, 6)

    def iqm(scores: np.ndarray) -> np.ndarray:
        return np.array([rly_metrics.aggregate_iqm(scores[..., i]) for i in range(scores.shape[-1])])

    points, intervals = rly.get_interval_estimates({"a": scores}, iqm, reps=REPETITIONS)
    band = iqm_curve(by_task(scores), OURS, generator())
    check(band, points, intervals)


def test_profiles_equal_rliable(rliable_seed: None) -> None:
    scores, thresholds = matrix(8, 5), np.linspace(0.25, 1.15, 10)
    points, intervals = rly.create_performance_profile({"a": scores}, thresholds, reps=REPETITIONS)
    band = performance_profile(by_task(scores), thresholds, OURS, generator())
    check(band, points, intervals, jump=1 / 40)


@pytest.mark.parametrize("num_runs", [(6, 6), (4, 7)])
def test_improvement_equals_rliable(num_runs: tuple[int, int], rliable_seed: None) -> None:
    x, y = matrix(num_runs[0], 3, seed=1), matrix(num_runs[1], 3, seed=2) - 0.1
    points, intervals = rly.get_interval_estimates({"a": (x, y)}, rly_metrics.probability_of_improvement, reps=300)
    estimate = improvement(by_task(x), by_task(y), OURS, generator())
    band = Band(value=np.array([estimate.value]), low=np.array([estimate.low]), high=np.array([estimate.high]))
    check(band, points, intervals, repetitions=300, jump=1 / (x.size * num_runs[1]))


# -------------------------------------------------------------------------------------------------- per-task curves


@pytest.mark.parametrize("num_runs", [2, 3, 10])
def test_a_tasks_interval_uses_the_real_number_of_seeds(num_runs: int) -> None:
    values = generator().normal(size=(num_runs, 4))
    band = mean_band(values)
    for point in range(4):
        sample = values[:, point]
        low, high = scipy.stats.t.interval(0.95, num_runs - 1, sample.mean(), scipy.stats.sem(sample))
        assert (band.low[point], band.high[point]) == pytest.approx((low, high))


def test_one_seed_has_a_curve_without_an_interval() -> None:
    band = mean_band(np.array([[1.0, 2.0]]))
    assert band.value == pytest.approx([1, 2]) and np.isnan(band.low).all()


# ------------------------------------------------------------------------------------------------------- comparisons


def test_improvement_by_hand() -> None:
    # 3 beats 1 and 2, 2 beats 1 and ties with 2: 3 1/2 of 4. The other task is even.
    even = np.array([0.0, 0.0])
    estimate = improvement([np.array([3.0, 2.0]), even], [np.array([1.0, 2.0]), even], 4000, generator())
    assert estimate.value == pytest.approx((3.5 / 4 + 0.5) / 2)
    assert estimate.high == pytest.approx((1 + 0.5) / 2) and estimate.low == pytest.approx((0.5 + 0.5) / 2)


def test_improvement_over_itself_is_even() -> None:
    scores = by_task(matrix())
    assert improvement(scores, scores, 200, generator()).value == pytest.approx(0.5)


def test_ranks_share_the_better_place() -> None:
    samples = np.array([[1.0, 5.0, 2.0], [1.0, 4.0, 3.0], [0.0, 6.0, 1.0]])
    ranked = ranks(samples)
    assert ranked.tolist() == [[1, 2, 2], [1, 3, 1], [3, 1, 3]]
    probabilities = rank_probabilities(ranked)
    assert probabilities == pytest.approx(np.array([[1, 2, 0], [2, 0, 1], [1, 0, 2]]) / 3)


# ------------------------------------------------------------------------------------------------------------- tests


@pytest.mark.parametrize("sizes", [(3, 3), (5, 4), (10, 10), (1, 6)])
def test_rank_test_equals_scipys_exact_one(sizes: tuple[int, int]) -> None:
    rng = generator(sum(sizes))
    x, y = rng.normal(0.5, 1, sizes[0]), rng.normal(0, 1, sizes[1])
    expected = scipy.stats.mannwhitneyu(x, y, alternative="two-sided", method="exact").pvalue
    assert rank_test([x], [y]) == pytest.approx(expected)


def test_rank_test_with_ties_counts_every_permutation() -> None:
    x, y = np.array([2.0, 2.0, 3.0]), np.array([1.0, 2.0, 1.0, 3.0])
    pooled = scipy.stats.rankdata(np.concatenate([x, y]))
    sums = [sum(pooled[list(chosen)]) for chosen in itertools.combinations(range(7), 3)]
    expected = np.mean(np.abs(np.array(sums) - np.mean(sums)) >= abs(pooled[:3].sum() - np.mean(sums)) - 1e-9)
    assert rank_test([x], [y]) == pytest.approx(expected)


def test_rank_test_over_tasks_counts_every_permutation() -> None:
    first = [np.array([1.0, 4.0]), np.array([3.0, 5.0, 6.0])]
    second = [np.array([2.0, 0.5]), np.array([1.0, 5.0])]

    def sums(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        pooled = scipy.stats.rankdata(np.concatenate([x, y]))
        return np.array([sum(pooled[list(c)]) for c in itertools.combinations(range(pooled.size), x.size)])

    every = np.add.outer(*(sums(x, y) for x, y in zip(first, second, strict=True))).ravel()
    observed = sum(sums(x, y)[0] for x, y in zip(first, second, strict=True))  # the first subset is the real one
    expected = np.mean(np.abs(every - every.mean()) >= abs(observed - every.mean()) - 1e-9)
    assert rank_test(first, second) == pytest.approx(expected)


def test_three_seeds_on_one_task_cannot_be_significant_but_over_tasks_they_can() -> None:
    better, worse = np.array([7.0, 8.0, 9.0]), np.array([1.0, 2.0, 3.0])
    assert rank_test([better], [worse]) == pytest.approx(0.1)  # 2 of 20 ways
    assert smallest_p([better], [worse]) == pytest.approx(0.1)
    assert rank_test([better] * 3, [worse] * 3) == pytest.approx(2 / 8000) == smallest_p([better] * 3, [worse] * 3)


def test_equal_scores_do_not_differ() -> None:
    same = np.ones(4)
    assert rank_test([same], [same]) == 1
    assert rank_test([np.ones(60)], [np.ones(60)]) == 1


def test_many_runs_take_the_normal_approximation() -> None:
    rng = generator(8)
    x, y = np.round(rng.normal(0.3, 1, 45), 1), np.round(rng.normal(0, 1, 50), 1)
    expected = scipy.stats.mannwhitneyu(x, y, method="asymptotic", use_continuity=False).pvalue
    assert rank_test([x], [y]) == pytest.approx(expected)


def test_false_alarms_are_as_rare_as_promised() -> None:
    rng = generator(9)
    p = [rank_test([rng.normal(size=4)], [rng.normal(size=4)]) for _ in range(600)]
    assert np.mean(np.array(p) <= 0.06) < 0.09  # exact levels at 4 against 4: 2/70, 4/70 = 0.057


def test_holm_by_hand() -> None:
    # Sorted: 0.01 · 4, 0.02 · 3, 0.03 · 2, 0.9 · 1; the third must not fall below the second.
    assert holm([0.02, 0.9, 0.01, 0.03]) == pytest.approx([0.06, 0.9, 0.04, 0.06])
    assert holm([0.6, 0.6]) == pytest.approx([1, 1])
    assert holm([]).size == 0
