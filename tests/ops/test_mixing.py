"""From agents to their team, by hand."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np

from covey.ops.mixing import returns_learned, team_of
from covey.types import Transition

REWARD = jnp.array([[[1.0, 3.0]], [[2.0, 100.0]], [[5.0, 5.0]]])
TERMINATED = jnp.array([[[False, True]], [[True, False]], [[False, False]]])
ALIVE = jnp.array([[[True, True]], [[True, False]], [[False, False]]])
LAST = jnp.array([[False], [False], [True]])


def steps() -> Transition:
    """Three steps of one environment: the second agent dies with the first, the first with the second."""
    given = {"reward": REWARD, "terminated": TERMINATED, "alive": ALIVE, "last": LAST}
    nothing: dict[str, Any] = {field.name: None for field in dataclasses.fields(Transition)}
    return Transition(**nothing | given)


def test_a_team_by_hand() -> None:
    reward, terminated, counts = team_of(REWARD, TERMINATED, ALIVE)
    np.testing.assert_allclose(reward, [[2.0], [1.0], [0.0]])  # of two agents, what the living earn
    np.testing.assert_array_equal(terminated, [[False], [True], [True]])
    np.testing.assert_array_equal(counts, [[True], [True], [False]])


def test_whose_return_is_learned() -> None:
    reward, terminated, last, counts = returns_learned(steps(), team=True)
    assert reward.shape == terminated.shape == last.shape == counts.shape == (3, 1)
    np.testing.assert_allclose(reward, [[2.0], [1.0], [0.0]])
    reward, terminated, last, counts = returns_learned(steps(), team=False)
    np.testing.assert_array_equal(reward, REWARD)
    np.testing.assert_array_equal(terminated, TERMINATED)
    np.testing.assert_array_equal(counts, ALIVE)
    np.testing.assert_array_equal(last, [[[False, False]], [[False, False]], [[True, True]]])
