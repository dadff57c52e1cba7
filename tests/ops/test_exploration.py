"""Exploration and teams, by hand-worked numbers."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from covey.ops.exploration import anneal, epsilon_greedy, sample_uniform
from covey.ops.mixing import team_of
from covey.types import Continuous, Discrete, MultiDiscrete


@pytest.mark.parametrize(("progress", "expected"), [(0.0, 1.0), (0.25, 0.6), (0.5, 0.2), (1.0, 0.2)])
def test_annealing_falls_and_stays(progress: float, expected: float) -> None:
    assert anneal(1.0, 0.2, 0.5, jnp.float32(progress)) == pytest.approx(expected)


def test_epsilon_greedy_explores_legal_actions_alone() -> None:
    mask = jnp.array([[[True, True, False]]] * 4000)
    greedy = jnp.ones((4000, 1), int)
    actions = epsilon_greedy(greedy, mask, 3, jnp.float32(0.5), jax.random.key(0))
    counts = np.bincount(np.asarray(actions)[:, 0], minlength=3) / 4000
    np.testing.assert_allclose(counts, [0.25, 0.75, 0.0], atol=0.03)


def test_a_team_earns_the_mean_of_what_its_living_do() -> None:
    reward = jnp.array([[1.0, 3.0], [1.0, 100.0], [5.0, 5.0]])
    alive = jnp.array([[True, True], [True, False], [False, False]])
    terminated = jnp.array([[False, True], [True, False], [False, False]])
    mean, ended, counts = team_of(reward, terminated, alive)
    np.testing.assert_allclose(mean, [2.0, 0.5, 0.0])
    np.testing.assert_array_equal(ended, [False, True, True])
    np.testing.assert_array_equal(counts, [True, True, False])


def test_uniform_actions_fill_their_range() -> None:
    """Quarters of each range are drawn alike."""
    action = Continuous(low=(-1.0, 10.0), high=(1.0, 14.0))
    drawn = np.asarray(sample_uniform(action, (2000, 2), None, jax.random.key(0)))
    assert drawn.shape == (2000, 2, 2)
    for number, (low, high) in enumerate(zip(action.low, action.high, strict=True)):
        counts, _ = np.histogram(drawn[..., number], bins=4, range=(low, high))
        np.testing.assert_allclose(counts / 4000, 0.25, atol=0.03)


def test_uniform_actions_are_legal() -> None:
    mask = jnp.tile(jnp.array([True, False, True]), (2000, 2, 1))
    drawn = np.asarray(sample_uniform(Discrete(3), (2000, 2), mask, jax.random.key(0)))
    assert drawn.shape == (2000, 2)
    np.testing.assert_allclose(np.bincount(drawn.ravel(), minlength=3) / 4000, [0.5, 0.0, 0.5], atol=0.03)
    several = np.asarray(sample_uniform(MultiDiscrete((2, 3)), (2000, 1), None, jax.random.key(0)))
    assert several.shape == (2000, 1, 2)
    for number, choices in enumerate((2, 3)):
        shares = np.bincount(several[:, 0, number], minlength=choices) / 2000
        np.testing.assert_allclose(shares, 1 / choices, atol=0.04)
