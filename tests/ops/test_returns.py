"""GAE against hand-worked numbers, a plain loop and rlax."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from covey.ops.returns import gae, lambda_returns


def plain_gae(
    reward: np.ndarray,
    value: np.ndarray,
    next_value: np.ndarray,
    terminated: np.ndarray,
    last: np.ndarray,
    gamma: float,
    gae_lambda: float,
) -> tuple[np.ndarray, np.ndarray]:
    """Equation 16 as a loop over single numbers."""
    advantage = np.zeros_like(reward)
    for index in np.ndindex(reward.shape[1:]):
        following = 0.0
        for t in reversed(range(reward.shape[0])):
            at = (t, *index)
            bootstrap = 0.0 if terminated[at] else gamma * next_value[at]
            delta = reward[at] + bootstrap - value[at]
            goes_on = not terminated[at] and not last[at]
            following = delta + (gamma * gae_lambda * following if goes_on else 0.0)
            advantage[at] = following
    return advantage, advantage + value


# γ = 0.5, λ = 0.5: r = (1, 2, 4), v = (1, 1, 1), v' = (1, 1, 8), worked on paper.
@pytest.mark.parametrize(
    ("terminated", "last", "advantages"),
    [
        ((0, 0, 0), (0, 0, 0), (1.3125, 3.25, 7.0)),  # δ = (0.5, 1.5, 7): nothing ends, the tail bootstraps
        ((0, 0, 1), (0, 0, 1), (1.0625, 2.25, 3.0)),  # terminated at the end: δ_2 = 4 − 1
        ((0, 0, 0), (0, 0, 1), (1.3125, 3.25, 7.0)),  # truncated at the end: bootstraps all the same
        ((0, 1, 0), (0, 1, 0), (0.75, 1.0, 7.0)),  # terminated in the middle: δ_1 = 2 − 1, nothing from step 2
        ((0, 0, 0), (0, 1, 0), (0.875, 1.5, 7.0)),  # truncated in the middle: δ_1 = 2 + 0.5 − 1, nothing from step 2
        ((0, 1, 0), (0, 0, 0), (0.75, 1.0, 7.0)),  # one agent dies while the episode goes on
        ((1, 1, 1), (1, 1, 1), (0.0, 1.0, 3.0)),  # all terminated: r − v
        ((0, 0, 0), (1, 1, 1), (0.5, 1.5, 7.0)),  # all truncated: δ
    ],
)
def test_gae_by_hand(
    terminated: tuple[int, int, int], last: tuple[int, int, int], advantages: tuple[float, float, float]
) -> None:
    def column(values: Any) -> jax.Array:
        return jnp.array(values, jnp.float32)[:, None]

    got, targets = gae(
        column([1, 2, 4]),
        column([1, 1, 1]),
        column([1, 1, 8]),
        column(terminated).astype(bool),
        column(last).astype(bool),
        gamma=0.5,
        gae_lambda=0.5,
    )
    np.testing.assert_array_equal(got[:, 0], np.array(advantages, np.float32))
    np.testing.assert_array_equal(targets, got + 1)


@settings(max_examples=40, deadline=None)
@given(
    shape=st.sampled_from([(1, 1, 1), (1, 3, 2), (6, 1, 1), (5, 2, 3)]),  # few: each is compiled
    ends=st.sampled_from(["random", "all terminated", "all truncated", "none"]),
    gamma=st.sampled_from([0.0, 0.9, 1.0]),
    gae_lambda=st.sampled_from([0.0, 0.5, 1.0]),
    seed=st.integers(0, 2**16),
)
def test_gae_equals_a_plain_loop(
    shape: tuple[int, int, int], ends: str, gamma: float, gae_lambda: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    reward, value, next_value = rng.normal(size=(3, *shape)).astype(np.float32)
    last: Any = {"random": rng.random(shape[:2]) < 0.4, "none": np.zeros(shape[:2], bool)}.get(
        ends, np.ones(shape[:2], bool)
    )
    terminated: Any = {"random": rng.random(shape) < 0.4, "all terminated": np.ones(shape, bool)}.get(
        ends, np.zeros(shape, bool)
    )
    last = last[..., None]
    got = gae(reward, value, next_value, terminated, last, gamma=gamma, gae_lambda=gae_lambda)
    wanted = plain_gae(reward, value, next_value, terminated, np.broadcast_to(last, shape), gamma, gae_lambda)
    for ours, plain in zip(got, wanted, strict=True):
        assert ours.shape == shape and ours.dtype == jnp.float32
        np.testing.assert_allclose(ours, plain, rtol=1e-5, atol=1e-5)


def test_gae_equals_rlax_where_no_episode_ends() -> None:
    import rlax

    key_reward, key_value = jax.random.split(jax.random.key(0))
    reward = jax.random.normal(key_reward, (9, 4))
    values = jax.random.normal(key_value, (10, 4))
    never = jnp.zeros((9, 4), bool)
    ours, _ = gae(reward, values[:-1], values[1:], never, never, gamma=0.9, gae_lambda=0.8)
    oracle = jax.vmap(rlax.truncated_generalized_advantage_estimation, in_axes=(1, None, None, 1), out_axes=1)
    theirs = oracle(reward, jnp.full(9, 0.9), 0.8, values)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_gae_equals_rlax_where_episodes_terminate() -> None:
    """rlax knows terminations as a discount of zero (truncations it does not know)."""
    import rlax

    keys = jax.random.split(jax.random.key(1), 3)
    reward = jax.random.normal(keys[0], (12,))
    values = jax.random.normal(keys[1], (13,))
    terminated = jax.random.bernoulli(keys[2], 0.3, (12,))
    assert terminated.any() and not terminated.all()
    ours, _ = gae(reward, values[:-1], values[1:], terminated, terminated, gamma=0.9, gae_lambda=0.8)
    theirs = rlax.truncated_generalized_advantage_estimation(reward, 0.9 * (1.0 - terminated), 0.8, values)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_gae_compiled_equals_uncompiled() -> None:
    reward, value, next_value = jax.random.normal(jax.random.key(2), (3, 7, 2, 3))
    terminated, last = jax.random.bernoulli(jax.random.key(3), 0.3, (2, 7, 2, 3))
    run = functools.partial(gae, gamma=0.99, gae_lambda=0.95)
    compiled = jax.jit(run)(reward, value, next_value, terminated, last)
    with jax.disable_jit():
        plain = run(reward, value, next_value, terminated, last)
    for one, other in zip(compiled, plain, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)


def test_gae_does_not_look_into_the_next_episode() -> None:
    """What follows a border, of either kind, changes nothing before it."""
    reward, value, next_value = jax.random.normal(jax.random.key(4), (3, 6, 1))
    for terminated in (True, False):
        last = jnp.arange(6)[:, None] == 2
        run = functools.partial(gae, terminated=last & terminated, last=last, gamma=0.9, gae_lambda=0.9)
        before, _ = run(reward, value, next_value)
        after, _ = run(reward.at[3:].add(100.0), value.at[3:].add(100.0), next_value.at[3:].add(100.0))
        np.testing.assert_array_equal(before[:3], after[:3])
        assert not np.allclose(before[3:], after[3:])


def test_lambda_returns_equal_a_loop() -> None:
    rng = np.random.default_rng(0)
    reward, value = rng.normal(size=(2, 6, 3)).astype(np.float32)
    terminated, last = rng.random((6, 3)) < 0.2, rng.random((6, 3)) < 0.4
    expected = np.zeros((6, 3))
    for env in range(3):
        following = value[-1, env]  # after the batch, the value alone
        for t in reversed(range(6)):
            ahead = value[t, env] if last[t, env] or t == 5 else 0.3 * value[t, env] + 0.7 * following
            following = expected[t, env] = reward[t, env] + (0.0 if terminated[t, env] else 0.9 * ahead)
    result = lambda_returns(*(jnp.array(x) for x in (reward, value, terminated, last)), gamma=0.9, lambda_=0.7)
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)
