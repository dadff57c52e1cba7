"""Distributions: densities by formula, samples by counting, masks without exception."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from covey.ops.distributions import MIN_SCALE, location_and_scale, make_distribution, sample_categorical
from covey.types import Continuous, Discrete, MultiDiscrete

NUM_SAMPLES = 100_000
LOGITS: Any = np.array([0.5, -1.0, 2.0, 0.0], np.float32)
MASK: Any = np.array([True, True, False, True])


def softmax(logits: np.ndarray, mask: np.ndarray | None = None) -> np.ndarray:
    weights = np.exp(logits.astype(np.float64)) * (1.0 if mask is None else mask)
    return np.asarray(weights / weights.sum())


def frequencies(samples: jax.Array | np.ndarray, num: int) -> np.ndarray:
    return np.bincount(np.asarray(samples), minlength=num) / len(samples)


# ---------------------------------------------------------------------------------------------------- categorical


@pytest.mark.parametrize("mask", [None, MASK], ids=["all legal", "masked"])
def test_categorical_samples_follow_the_probabilities(mask: Any) -> None:
    distribution = make_distribution(Discrete(4))
    logits = jnp.broadcast_to(LOGITS, (NUM_SAMPLES, 4))
    samples = distribution.sample(logits, mask, jax.random.key(0))
    assert samples.shape == (NUM_SAMPLES,) and samples.dtype == jnp.int32
    wanted = softmax(LOGITS, mask)
    error = np.abs(frequencies(samples, 4) - wanted)
    assert np.all(error < 5 * np.sqrt(wanted * (1 - wanted) / NUM_SAMPLES) + 1e-12)


@pytest.mark.parametrize(
    ("logits", "mask"),
    [
        ([0.0, 0.0, 0.0], [True, False, True]),
        ([0.0, 0.0, 30.0], [True, True, False]),  # by far the likeliest is the illegal one, and it is the last
        ([30.0, 0.0, 0.0], [False, True, True]),  # … the first
        ([-40.0, 0.0, 0.0], [True, False, False]),  # one legal action, unlikely
        ([1e4, -1e4, 1e4], [False, True, False]),
        ([0.0, -20.0, 0.0], [True, True, False]),  # the last legal action is nearly impossible
    ],
)
def test_a_masked_action_is_never_sampled(logits: list[float], mask: list[bool]) -> None:
    distribution = make_distribution(Discrete(3))
    samples = distribution.sample(jnp.tile(jnp.array(logits), (NUM_SAMPLES, 1)), jnp.array(mask), jax.random.key(1))
    assert np.all(np.asarray(mask)[np.asarray(samples)])
    assert mask[int(distribution.mode(jnp.array(logits), jnp.array(mask)))]


def test_sampling_at_both_ends_of_the_random_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The smallest and the largest number that `uniform` can give select legal actions."""
    logits = jnp.array([-1e9, 0.3, -1e9, 0.1, -1e9])
    for number, wanted in ((0.0, 1), (1.0 - 2.0**-24, 3)):
        monkeypatch.setattr(jax.random, "uniform", lambda key, shape, number=number: jnp.full(shape, number))
        assert int(sample_categorical(logits, jax.random.key(0))) == wanted


@pytest.mark.parametrize("mask", [None, MASK], ids=["all legal", "masked"])
def test_categorical_log_prob_and_entropy_by_formula(mask: Any) -> None:
    distribution = make_distribution(Discrete(4))
    probabilities = softmax(LOGITS, mask)
    legal = np.flatnonzero(probabilities)
    log_prob = distribution.log_prob(jnp.tile(LOGITS, (len(legal), 1)), mask, jnp.array(legal))
    np.testing.assert_allclose(log_prob, np.log(probabilities[legal]), rtol=1e-5)
    entropy = -np.sum(probabilities[legal] * np.log(probabilities[legal]))
    np.testing.assert_allclose(distribution.entropy(LOGITS, mask, None), entropy, rtol=1e-5)


def test_masked_gradients_are_finite_and_zero_for_illegal_actions() -> None:
    distribution = make_distribution(Discrete(4))

    def objective(logits: jax.Array) -> jax.Array:
        log_prob = distribution.log_prob(logits, jnp.array(MASK), jnp.int32(1))
        return log_prob + distribution.entropy(logits, jnp.array(MASK), None)

    gradient = jax.grad(objective)(jnp.array(LOGITS))
    assert np.all(np.isfinite(gradient))
    assert gradient[2] == 0 and np.all(gradient[np.array([0, 1, 3])] != 0)


def test_categorical_equals_distrax() -> None:
    distrax = pytest.importorskip("distrax")
    logits = jax.random.normal(jax.random.key(5), (7, 4))
    actions = jnp.arange(7) % 4
    ours, theirs = make_distribution(Discrete(4)), distrax.Categorical(logits=logits)
    np.testing.assert_allclose(ours.log_prob(logits, None, actions), theirs.log_prob(actions), rtol=1e-5)
    np.testing.assert_allclose(ours.entropy(logits, None, None), theirs.entropy(), rtol=1e-5)
    np.testing.assert_array_equal(ours.mode(logits, None), theirs.mode())


# ------------------------------------------------------------------------------------------------- multi-discrete


def test_multi_discrete_is_independent_categoricals() -> None:
    distribution = make_distribution(MultiDiscrete((2, 4)))
    assert distribution.num_parameters == 6
    logits: Any = np.concatenate([np.array([0.3, -0.3], np.float32), LOGITS])
    mask: Any = np.concatenate([[True, True], MASK])
    samples = np.asarray(distribution.sample(jnp.tile(logits, (NUM_SAMPLES, 1)), mask, jax.random.key(2)))
    assert samples.shape == (NUM_SAMPLES, 2) and samples.dtype == np.int32
    first, second = softmax(logits[:2]), softmax(LOGITS, MASK)
    np.testing.assert_allclose(frequencies(samples[:, 0], 2), first, atol=0.01)
    np.testing.assert_allclose(frequencies(samples[:, 1], 4), second, atol=0.01)
    assert not np.any(samples[:, 1] == 2)
    assert abs(np.corrcoef(samples.T)[0, 1]) < 0.02  # a key of its own for each choice

    raw = jnp.array([1, 3])
    np.testing.assert_allclose(distribution.log_prob(logits, mask, raw), np.log(first[1] * second[3]), rtol=1e-5)
    entropy = scipy.stats.entropy(first) + scipy.stats.entropy(second)
    np.testing.assert_allclose(distribution.entropy(logits, mask, None), entropy, rtol=1e-5)
    np.testing.assert_array_equal(distribution.mode(logits, mask), [0, 0])


# ---------------------------------------------------------------------------------------------------- tanh-normal

BOUNDS = Continuous(low=(-2.0, 0.0), high=(2.0, 10.0))


def test_location_and_scale() -> None:
    location, scale = location_and_scale(jnp.array([0.7, -0.2, 0.0, -1000.0]))
    np.testing.assert_allclose(location, [0.7, -0.2])
    np.testing.assert_allclose(scale, [1.0, MIN_SCALE], rtol=1e-5)


@pytest.mark.parametrize("initial_scale", [0.05, 0.5, 2.0])
def test_initial_scale(initial_scale: float) -> None:
    """A head that gives zeros samples with it, and says so in log-probabilities and entropy."""
    distribution = make_distribution(Continuous(low=(-1.0,), high=(1.0,)), initial_scale)
    zeros = jnp.zeros((NUM_SAMPLES, 2))
    raw = distribution.sample(zeros, None, jax.random.key(5))
    assert float(raw.std()) == pytest.approx(initial_scale, rel=0.02)
    # At the mean, tanh has the derivative 1.
    density = 1.0 / (initial_scale * math.sqrt(2.0 * math.pi))
    assert float(distribution.log_prob(zeros[0], None, jnp.zeros(1))) == pytest.approx(math.log(density), abs=1e-4)
    estimate = distribution.entropy(zeros[0], None, jnp.zeros(1))
    assert float(estimate) == pytest.approx(-math.log(density), abs=1e-4)


@pytest.mark.parametrize("parameters", [(0.0, 0.0), (1.0, -1.0), (-1.5, 0.5)])
def test_tanh_normal_density_integrates_to_one_over_the_bounds(parameters: tuple[float, float]) -> None:
    distribution = make_distribution(Continuous(low=(-1.0,), high=(3.0,)))
    # Equal steps of the action itself, so a forgotten Jacobian or half range would show.
    edges = np.linspace(-1.0, 3.0, 400_001)
    actions = (edges[:-1] + edges[1:]) / 2
    raw = jnp.arctanh((jnp.array(actions) - 1.0) / 2.0)[:, None]
    log_prob = distribution.log_prob(jnp.broadcast_to(jnp.array(parameters), (len(raw), 2)), None, raw)
    total = np.sum(np.exp(np.asarray(log_prob, np.float64))) * (edges[1] - edges[0])
    assert total == pytest.approx(1.0, abs=2e-3)


def test_tanh_normal_log_prob_by_formula() -> None:
    distribution = make_distribution(BOUNDS)
    assert distribution.num_parameters == 4
    parameters: Any = np.array([0.3, -0.5, 0.2, 1.0], np.float32)
    raw = np.array([0.9, -0.4])
    location, scale = (np.asarray(x, np.float64) for x in location_and_scale(jnp.array(parameters)))
    half_range = np.array([2.0, 5.0])
    wanted = scipy.stats.norm(location, scale).logpdf(raw) - np.log(half_range * (1 - np.tanh(raw) ** 2))
    np.testing.assert_allclose(distribution.log_prob(parameters, None, jnp.array(raw)), wanted.sum(), rtol=1e-5)


def test_tanh_normal_samples_modes_and_bounds() -> None:
    distribution = make_distribution(BOUNDS)
    parameters = jnp.array([0.3, -0.5, -0.5, 0.2])
    raw = distribution.sample(jnp.tile(parameters, (NUM_SAMPLES, 1)), None, jax.random.key(3))
    location, scale = location_and_scale(parameters)
    np.testing.assert_allclose(raw.mean(0), location, atol=5 * float(scale.max()) / math.sqrt(NUM_SAMPLES))
    np.testing.assert_allclose(raw.std(0), scale, rtol=0.02)
    actions = distribution.to_action(raw)
    assert np.all(actions >= np.array(BOUNDS.low)) and np.all(actions <= np.array(BOUNDS.high))
    np.testing.assert_allclose(
        distribution.to_action(distribution.mode(parameters, None)),
        np.array([0.0, 5.0]) + np.tanh(location) * np.array([2.0, 5.0]),
        rtol=1e-5,
    )
    np.testing.assert_allclose(distribution.to_action(jnp.array([-50.0, 50.0])), [-2.0, 10.0])
    # The mean of many one-sample estimates is the entropy: minus the mean log density.
    entropy = distribution.entropy(
        jnp.tile(parameters, (NUM_SAMPLES, 1)), None, jax.random.normal(jax.random.key(4), (NUM_SAMPLES, 2))
    ).mean()
    assert float(entropy) == pytest.approx(-float(distribution.log_prob(parameters, None, raw).mean()), abs=0.02)


def test_tanh_normal_is_finite_far_out() -> None:
    distribution = make_distribution(BOUNDS)
    for raw in (-60.0, 60.0):
        gradient = jax.grad(lambda p, raw=raw: distribution.log_prob(p, None, jnp.full(2, raw)))(jnp.zeros(4))
        assert np.all(np.isfinite(gradient))
        assert np.isfinite(distribution.log_prob(jnp.zeros(4), None, jnp.full(2, raw)))


def test_tanh_normal_equals_distrax() -> None:
    distrax = pytest.importorskip("distrax")
    parameters = jax.random.normal(jax.random.key(6), (5, 2))
    location, scale = location_and_scale(parameters)
    base = distrax.Normal(location[:, 0], scale[:, 0])
    theirs = distrax.Transformed(base, distrax.Chain([distrax.ScalarAffine(1.0, 2.0), distrax.Tanh()]))
    raw = jax.random.normal(jax.random.key(7), (5, 1))
    distribution = make_distribution(Continuous(low=(-1.0,), high=(3.0,)))
    np.testing.assert_allclose(distribution.to_action(raw)[:, 0], 1.0 + 2.0 * jnp.tanh(raw[:, 0]), rtol=1e-5)
    np.testing.assert_allclose(
        distribution.log_prob(parameters, None, raw), theirs.log_prob(distribution.to_action(raw)[:, 0]), rtol=1e-3
    )
