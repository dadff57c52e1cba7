"""V-trace against hand-worked numbers, a plain loop, GAE and rlax."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from covey.ops.returns import gae
from covey.ops.targets import n_step_targets
from covey.ops.vtrace import vtrace


def plain_vtrace(
    reward: np.ndarray,
    value: np.ndarray,
    next_value: np.ndarray,
    ratio: np.ndarray,
    terminated: np.ndarray,
    last: np.ndarray,
    gamma: float,
    vtrace_lambda: float,
    rho_bar: float,
    c_bar: float,
) -> tuple[np.ndarray, np.ndarray]:
    """Equation 1, as the sum that it is: for each step, over all that follow in its episode."""
    advantage, target = np.zeros_like(reward), np.zeros_like(reward)
    num_steps = reward.shape[0]
    for index in np.ndindex(reward.shape[1:]):
        at = [(t, *index) for t in range(num_steps)]

        def delta(t: int, at: list[tuple[int, ...]] = at) -> float:
            bootstrap = 0.0 if terminated[at[t]] else gamma * next_value[at[t]]
            return float(min(rho_bar, ratio[at[t]]) * (reward[at[t]] + bootstrap - value[at[t]]))

        for t in reversed(range(num_steps)):
            total, factor = value[at[t]], 1.0
            for k in range(t, num_steps):
                total += factor * delta(k)
                if terminated[at[k]] or last[at[k]]:
                    break
                factor *= gamma * vtrace_lambda * min(c_bar, ratio[at[k]])
            target[at[t]] = total
            ahead = 0.0 if terminated[at[t]] else next_value[at[t]]
            if t + 1 < num_steps and not terminated[at[t]] and not last[at[t]]:
                ahead += vtrace_lambda * (target[at[t + 1]] - value[at[t + 1]])
            advantage[at[t]] = reward[at[t]] + gamma * ahead - value[at[t]]
    return advantage, target


# γ = 0.5, r = (1, 2, 4), v = (1, 1, 1), v' = (1, 1, 8), ratios (2, 0.5, 1), worked on paper. After one step the
# advantages are (0.5, 1.5, 7), and δ = (0.5, 0.75, 7) where ρ̄ = 1.
@pytest.mark.parametrize(
    ("fields", "terminated", "last", "advantages", "errors"),
    [
        ({}, (0, 0, 0), (0, 0, 0), (1.75, 5.0, 7.0), (1.75, 2.5, 7.0)),
        ({"rho_bar": 2.0}, (0, 0, 0), (0, 0, 0), (1.75, 5.0, 7.0), (2.25, 2.5, 7.0)),  # δ_0 = 1
        ({"rho_bar": 2.0, "c_bar": 2.0}, (0, 0, 0), (0, 0, 0), (1.75, 5.0, 7.0), (3.5, 2.5, 7.0)),
        ({"vtrace_lambda": 0.5}, (0, 0, 0), (0, 0, 0), (0.90625, 3.25, 7.0), (0.90625, 1.625, 7.0)),
        ({"vtrace_lambda": 0.0}, (0, 0, 0), (0, 0, 0), (0.5, 1.5, 7.0), (0.5, 0.75, 7.0)),
        ({}, (0, 1, 0), (0, 1, 0), (0.75, 1.0, 7.0), (0.75, 0.5, 7.0)),  # terminated in the middle: 2 − 1
        ({}, (0, 1, 0), (0, 0, 0), (0.75, 1.0, 7.0), (0.75, 0.5, 7.0)),  # one agent dies while the episode goes on
        ({}, (0, 0, 0), (0, 1, 0), (0.875, 1.5, 7.0), (0.875, 0.75, 7.0)),  # truncated there: it bootstraps
        ({}, (0, 0, 1), (0, 0, 1), (1.25, 3.0, 3.0), (1.25, 1.5, 3.0)),  # terminated at the end: 4 − 1
    ],
)
def test_vtrace_by_hand(
    fields: dict[str, float],
    terminated: tuple[int, int, int],
    last: tuple[int, int, int],
    advantages: tuple[float, float, float],
    errors: tuple[float, float, float],
) -> None:
    def column(values: Any) -> jax.Array:
        return jnp.array(values, jnp.float32)[:, None]

    advantage, target = vtrace(
        column([1, 2, 4]),
        column([1, 1, 1]),
        column([1, 1, 8]),
        column([2, 0.5, 1]),
        column(terminated).astype(bool),
        column(last).astype(bool),
        gamma=0.5,
        **fields,
    )
    np.testing.assert_array_equal(advantage[:, 0], np.array(advantages, np.float32))
    np.testing.assert_array_equal(target[:, 0], np.array(errors, np.float32) + 1)


Arrays = tuple[Any, Any, Any, Any, Any, Any]  # NumPy arrays, which these functions take as they do JAX's


def made_up(shape: tuple[int, int, int], seed: int, ends: str = "random") -> Arrays:
    """Rewards, values, next values, ratios, terminations and ends."""
    rng = np.random.default_rng(seed)
    reward, value, next_value = rng.normal(size=(3, *shape)).astype(np.float32)
    ratio = np.exp(rng.normal(size=shape)).astype(np.float32)
    always, never = np.ones(shape, bool), np.zeros(shape, bool)
    terminated = {"random": rng.random(shape) < 0.3, "all terminated": always}.get(ends, never)
    one = (shape[0], shape[1], 1)
    last = {"random": rng.random(one) < 0.3, "none": np.zeros(one, bool)}.get(ends, np.ones(one, bool))
    return reward, value, next_value, ratio, terminated, np.broadcast_to(last, shape)


@settings(max_examples=40, deadline=None)
@given(
    shape=st.sampled_from([(1, 1, 1), (1, 3, 2), (6, 1, 1), (5, 2, 3)]),  # few: each is compiled
    ends=st.sampled_from(["random", "all terminated", "all truncated", "none"]),
    gamma=st.sampled_from([0.0, 0.9, 1.0]),
    vtrace_lambda=st.sampled_from([0.0, 0.5, 1.0]),
    clips=st.sampled_from([(1.0, 1.0), (2.0, 0.5), (100.0, 100.0)]),
    seed=st.integers(0, 2**16),
)
def test_vtrace_equals_a_plain_sum(
    shape: tuple[int, int, int], ends: str, gamma: float, vtrace_lambda: float, clips: tuple[float, float], seed: int
) -> None:
    arrays = made_up(shape, seed, ends)
    rho_bar, c_bar = clips
    got = vtrace(*arrays, gamma=gamma, vtrace_lambda=vtrace_lambda, rho_bar=rho_bar, c_bar=c_bar)
    wanted = plain_vtrace(*arrays, gamma, vtrace_lambda, rho_bar, c_bar)
    for ours, plain in zip(got, wanted, strict=True):
        assert ours.shape == shape and ours.dtype == jnp.float32
        np.testing.assert_allclose(ours, plain, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("vtrace_lambda", [1.0, 0.7])
@pytest.mark.parametrize("rho_bar", [1.0, 2.5])
def test_vtrace_equals_rlax_episode_by_episode(vtrace_lambda: float, rho_bar: float) -> None:
    """rlax knows terminations as a discount of zero. It knows no truncations, so it is given each episode alone."""
    import rlax

    reward, value, next_value, ratio, terminated, last = (x[:, :, 0] for x in made_up((24, 3, 1), 5))
    # Within an episode the next value is that of the next step.
    going_on = ~last[:-1]
    next_value = next_value.copy()
    next_value[:-1] = np.where(going_on, value[1:], next_value[:-1])
    assert terminated.any() and last.any() and (last & ~terminated).any() and (terminated & ~last).any()
    advantage, target = vtrace(
        reward,
        value,
        next_value,
        ratio,
        terminated,
        last,
        gamma=0.9,
        vtrace_lambda=vtrace_lambda,
        rho_bar=rho_bar,
    )
    for env in range(3):
        borders = [0, *(np.flatnonzero(last[:-1, env]) + 1), 24]
        for start, stop in itertools.pairwise(borders):
            part = (slice(start, stop), env)
            theirs = rlax.vtrace_td_error_and_advantage(
                jnp.array(value[part]),
                jnp.array(next_value[part]),
                jnp.array(reward[part]),
                jnp.array(0.9 * (1.0 - terminated[part])),
                jnp.array(ratio[part]),
                vtrace_lambda,
                rho_bar,
                rho_bar,
            )
            np.testing.assert_allclose(target[part] - value[part], theirs.errors, rtol=1e-4, atol=1e-5)
            weighted = np.minimum(rho_bar, ratio[part]) * advantage[part]
            np.testing.assert_allclose(weighted, theirs.pg_advantage, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("vtrace_lambda", [0.0, 0.5, 1.0])
def test_on_policy_it_is_gae(vtrace_lambda: float) -> None:
    reward, value, next_value, _, terminated, last = made_up((9, 4, 2), 1)
    # GAE's and V-trace's next step have the same value where an episode goes on.
    ones: Any = np.ones_like(reward)
    ours = vtrace(reward, value, next_value, ones, terminated, last, gamma=0.9, vtrace_lambda=vtrace_lambda)
    theirs = gae(reward, value, next_value, terminated, last, gamma=0.9, gae_lambda=vtrace_lambda)
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_on_policy_with_lambda_one_targets_are_n_step_returns() -> None:
    """Big clips clip nothing; the rollout's end is where all of its returns bootstrap."""
    reward, value, next_value, _, terminated, last = made_up((5, 4, 2), 2)
    next_value[:-1] = np.where(last[:-1], next_value[:-1], value[1:])
    ones: Any = np.ones_like(reward)
    _, target = vtrace(reward, value, next_value, ones, terminated, last, gamma=0.9, rho_bar=1e3, c_bar=1e3)
    for t in range(5):
        tail = [x[t:] for x in (reward, next_value, terminated, last)]
        n_step = n_step_targets(*map(jnp.asarray, tail), gamma=0.9, num_steps=5 - t)[0]
        np.testing.assert_allclose(target[t], n_step, rtol=1e-4, atol=1e-5)


def test_vtrace_compiled_equals_uncompiled() -> None:
    arrays = [jnp.asarray(x) for x in made_up((7, 2, 3), 3)]
    run = functools.partial(vtrace, gamma=0.99, vtrace_lambda=0.95)
    compiled = jax.jit(run)(*arrays)
    with jax.disable_jit():
        plain = run(*arrays)
    for one, other in zip(compiled, plain, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_vtrace_does_not_look_into_the_next_episode() -> None:
    """What follows a border, of either kind, changes nothing before it."""
    reward, value, next_value, ratio, _, _ = (jnp.asarray(x[:, :, 0]) for x in made_up((6, 1, 1), 4))
    for terminated in (True, False):
        last = jnp.arange(6)[:, None] == 2
        run = functools.partial(vtrace, terminated=last & terminated, last=last, gamma=0.9)
        before = run(reward, value, next_value, ratio)
        later = jnp.arange(6)[:, None] >= 3
        after = run(reward + 100.0 * later, value + 100.0 * later, next_value, jnp.where(later, 5.0, ratio))
        for one, other in zip(before, after, strict=True):
            np.testing.assert_array_equal(one[:3], other[:3])
            assert not np.allclose(one[3:], other[3:])


def test_actions_that_the_policy_would_not_take_teach_the_critic_nothing() -> None:
    """A ratio of 0 leaves the value as it is, and nothing that follows reaches the steps before."""
    ones, no = jnp.ones((3, 1)), jnp.zeros((3, 1), bool)
    ratio = jnp.array([1.0, 0.0, 1.0])[:, None]
    _, target = vtrace(ones, 0 * ones, 0 * ones, ratio, no, no, gamma=1.0)
    np.testing.assert_array_equal(target[:, 0], [1.0, 0.0, 1.0])
