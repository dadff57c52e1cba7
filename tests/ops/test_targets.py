"""Targets of Q-learning by hand-worked numbers: n steps, episodes' ends, deaths, masks; and target networks."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from covey.ops.targets import (
    first_and_last,
    mask_out,
    masked_argmax,
    masked_max,
    move_towards,
    n_step_targets,
    take_action,
)
from covey.types import pytree

GAMMA = 0.5


@pytree
class Numbered:
    """Of transitions, what ending them needs."""

    number: jax.Array
    last: jax.Array


def targets(reward: Any, value: Any, terminated: Any, last: Any, num_steps: int) -> np.ndarray:
    arrays = (jnp.array(x) for x in (reward, value, terminated, last))
    return np.asarray(n_step_targets(*arrays, gamma=GAMMA, num_steps=num_steps))


def test_one_step() -> None:
    result = targets([1.0, 2.0, 3.0], [10.0, 20.0, 30.0], [False, True, False], [False, True, True], 1)
    np.testing.assert_allclose(result, [6.0, 2.0, 18.0])  # on; terminated; cut, which bootstraps


def test_two_steps_end_with_the_episode() -> None:
    # Step 1 is cut: its own value bootstraps, and step 0 sums up to there and no further.
    result = targets([1.0, 2.0, 4.0, 8.0], [10.0, 20.0, 40.0, 80.0], [False] * 4, [False, True, False, False], 2)
    np.testing.assert_allclose(result, [1 + 0.5 * (2 + 0.5 * 20), 2 + 0.5 * 20, 4 + 0.5 * (8 + 0.5 * 80)])


def test_three_steps_after_a_death() -> None:
    # The agent dies at step 1 while the episode goes on: nothing after it counts.
    result = targets([1.0, 2.0, 100.0], [10.0, 20.0, 1000.0], [False, True, False], [False, False, False], 3)
    np.testing.assert_allclose(result, [1 + 0.5 * 2])


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 4), st.integers(0, 2**31 - 1))
def test_equals_a_loop(num_steps: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    length = 6
    reward, value = rng.normal(size=(2, length)).astype(np.float32)
    last = rng.random(length) < 0.4
    terminated = rng.random(length) < 0.3
    expected = []
    for t in range(length - num_steps + 1):
        total, discount = 0.0, 1.0
        for k in range(t, t + num_steps):
            total += discount * reward[k]
            discount *= GAMMA
            if terminated[k]:
                break
            if last[k] or k == t + num_steps - 1:
                total += discount * value[k]
                break
        expected.append(total)
    np.testing.assert_allclose(targets(reward, value, terminated, last, num_steps), expected, rtol=1e-4, atol=1e-5)


def test_masks_hide_the_largest() -> None:
    values, mask = jnp.array([[1.0, 5.0, 3.0]]), jnp.array([[True, False, True]])
    assert masked_max(values, mask) == 3.0 and masked_argmax(values, mask) == 2
    assert masked_max(values, None) == 5.0 and masked_argmax(values, None) == 1
    assert take_action(values, jnp.array([2])) == 3.0


def test_what_is_masked_out_is_worth_nothing() -> None:
    values, mask = jnp.array([[1.0, 5.0], [-2.0, 0.0]]), jnp.array([[True, False], [True, True]])
    np.testing.assert_array_equal(mask_out(values, mask), [[1.0, -np.inf], [-2.0, 0.0]])
    assert mask_out(values, None) is values


@pytest.mark.parametrize(("step", "expected"), [(0.0, 1.0), (0.25, 1.5), (1.0, 3.0)])
def test_target_networks_follow(step: float, expected: float) -> None:
    moved = jax.jit(move_towards)({"w": jnp.ones(2)}, {"w": jnp.full(2, 3.0)}, step)
    np.testing.assert_allclose(moved["w"], expected)


def test_what_n_steps_end_with() -> None:
    """Three sequences of three steps: one whole, one whose episode ends with its second step, one with its first."""
    number = jnp.arange(9).reshape(3, 3)
    last = jnp.array([[False, False, True], [False, True, False], [False, True, False]])
    steps: Any = Numbered(number=number, last=last)  # all that it reads
    found: Any = first_and_last(steps, remembers=False)
    first, ends = found
    assert first.number.tolist() == [[0, 1, 2]] and ends.number.tolist() == [[6, 4, 2]]
    assert all(each is steps for each in first_and_last(steps, remembers=True))
