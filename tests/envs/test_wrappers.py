"""Wrappers: time limits truncate, rewards are shared, ids are appended; each leaves the rest alone."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from covey.envs.base import Reward, make_env
from covey.envs.probes import GROUP, CopyAction, Death, ProbeConfig, Rows, TruncationOnly
from covey.envs.wrappers import AgentIds, ShareReward, TimeLimit, append_agent_ids, unbatch

KEY = jax.random.key(0)
NOTHING = {GROUP: jnp.zeros(2, jnp.int32)}


def play(env, steps):
    """The time steps of one episode of doing nothing."""
    state, timestep = jax.jit(env.reset)(KEY)
    step, seen = jax.jit(env.step), [timestep]
    for _ in range(steps):
        state, timestep = step(state, NOTHING, KEY)
        seen.append(timestep)
    return seen


def test_a_time_limit_truncates_and_terminates_nobody():
    env = TimeLimit(TruncationOnly(ProbeConfig(time_limit=99)), 3)
    assert env.spec.time_limit == 3
    steps = play(env, 3)
    assert [bool(step.last) for step in steps] == [False, False, False, True]
    assert [bool(step.truncated) for step in steps] == [False, False, False, True]
    assert not any(step.groups[GROUP].terminated.any() for step in steps)
    assert steps[-1].groups[GROUP].alive.all()


def test_an_episode_that_ends_with_the_limit_is_not_truncated():
    env = TimeLimit(Death(ProbeConfig()), 4)
    steps = play(env, 4)
    assert bool(steps[-1].last) and not bool(steps[-1].truncated)
    early = play(TimeLimit(Death(ProbeConfig()), 3), 3)[-1]
    assert bool(early.last) and bool(early.truncated)


@pytest.mark.parametrize(
    ("reward", "wanted"), [(Reward.team_sum, [101.0, 101.0]), (Reward.team_mean, [50.5, 50.5])], ids=["sum", "mean"]
)
def test_shared_rewards(reward, wanted):
    step = play(ShareReward(Death(ProbeConfig()), reward), 3)[-1]  # agent 0 is offered 100 by now, agent 1 earns 1
    np.testing.assert_array_equal(step.groups[GROUP].reward, wanted)


def test_agent_ids():
    env = AgentIds(CopyAction(ProbeConfig(num_agents=2)))
    assert env.spec.groups[GROUP].observation_shape == (3,)
    plain, marked = play(env.env, 1), play(env, 1)
    for before, after in zip(plain, marked, strict=True):
        for name in ("observation", "next_observation"):
            values = getattr(after.groups[GROUP], name)
            assert values.shape == (2, 3)
            np.testing.assert_array_equal(values[:, :1], getattr(before.groups[GROUP], name))
            np.testing.assert_array_equal(values[:, 1:], np.eye(2))


def test_agent_ids_of_rows_and_integers():
    env = AgentIds(Rows(ProbeConfig(num_agents=2)))
    assert env.spec.groups[GROUP].observation_shape == (4, 4)
    observation = play(env, 0)[0].groups[GROUP].observation
    np.testing.assert_array_equal(observation[:, :, 2:], np.tile(np.eye(2)[:, None], (1, 4, 1)))
    assert append_agent_ids(jnp.zeros((3, 2), jnp.int32)).dtype == jnp.int32


def test_make_env_puts_the_wrappers_on():
    env = make_env("probe/death", time_limit=3, reward="team_sum")
    steps = play(env, 3)
    assert env.spec.time_limit == 3 and bool(steps[-1].truncated)
    np.testing.assert_array_equal(steps[-1].groups[GROUP].reward, [101.0, 101.0])
    state, _ = env.reset(KEY)
    pictures = env.render([state, state])
    assert [picture.shape for picture in pictures] == [(64, 64, 3)] * 2 and pictures[0].dtype == np.uint8


def test_unbatch():
    tree = {"a": jnp.arange(3), "b": (jnp.arange(6).reshape(3, 2),)}
    assert int(unbatch(tree, 1)["a"]) == 1
    np.testing.assert_array_equal(unbatch(tree, 1)["b"][0], [2, 3])
