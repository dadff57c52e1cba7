"""Exploration and teams, by hand-worked numbers."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from covey.ops.exploration import anneal, epsilon_greedy
from covey.ops.mixing import team_of


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
