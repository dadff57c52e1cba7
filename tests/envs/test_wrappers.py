"""Wrappers: time limits truncate, rewards are shared, ids are appended; each leaves the rest alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from covey.envs.base import Env, Reward, make_env
from covey.envs.batch import BatchedEnv
from covey.envs.probes import GROUP, CopyAction, Death, ImageAndVector, ProbeConfig, Rows, TruncationOnly
from covey.envs.wrappers import (
    AgentIds,
    Lifetimes,
    ShareReward,
    TimeLimit,
    append_agent_ids,
    map_groups,
    unbatch,
    without_agent_ids,
)
from covey.types import TimeStep

KEY = jax.random.key(0)
NOTHING = {GROUP: jnp.zeros(2, jnp.int32)}


def play(env: Env, steps: int) -> list[TimeStep]:
    """The time steps of one episode of doing nothing."""
    state, timestep = jax.jit(env.reset)(KEY)
    step, seen = jax.jit(env.step), [timestep]
    for _ in range(steps):
        state, timestep = step(state, NOTHING, KEY)
        seen.append(timestep)
    return seen


def test_a_time_limit_truncates_and_terminates_nobody() -> None:
    env = TimeLimit(TruncationOnly(ProbeConfig(time_limit=99)), 3)
    assert env.spec.time_limit == 3
    steps = play(env, 3)
    assert [bool(step.last) for step in steps] == [False, False, False, True]
    assert [bool(step.truncated) for step in steps] == [False, False, False, True]
    assert not any(step.groups[GROUP].terminated.any() for step in steps)
    assert steps[-1].groups[GROUP].alive.all()


def test_an_episode_that_ends_with_the_limit_is_not_truncated() -> None:
    env = TimeLimit(Death(ProbeConfig()), 4)
    steps = play(env, 4)
    assert bool(steps[-1].last) and not bool(steps[-1].truncated)
    early = play(TimeLimit(Death(ProbeConfig()), 3), 3)[-1]
    assert bool(early.last) and bool(early.truncated)


@pytest.mark.parametrize(
    ("reward", "wanted"), [(Reward.team_sum, [2.0, 1.0]), (Reward.team_mean, [1.0, 0.5])], ids=["sum", "mean"]
)
def test_shared_rewards(reward: Reward, wanted: list[float]) -> None:
    """Agent 0 dies with its second step, for which it is paid. Of the 100 that it is offered later, nobody sees any."""
    _, _, dying, dead = play(ShareReward(Death(ProbeConfig()), reward), 3)
    for step, value in zip((dying, dead), wanted, strict=True):
        np.testing.assert_array_equal(step.groups[GROUP].reward, [value, value])


class Shaped(Death):
    """Shaping is ten times the reward."""

    def step(self, state: Any, action: dict[str, jax.Array], key: jax.Array) -> tuple[Any, TimeStep]:
        state, timestep = super().step(state, action, key)
        return state, map_groups(timestep, lambda group: dataclasses.replace(group, shaping=10.0 * group.reward))


@pytest.mark.parametrize(
    ("reward", "wanted"), [(Reward.team_sum, [20.0, 10.0]), (Reward.team_mean, [10.0, 5.0])], ids=["sum", "mean"]
)
def test_shaping_is_shared_as_the_reward_is(reward: Reward, wanted: list[float]) -> None:
    _, _, dying, dead = play(ShareReward(Shaped(ProbeConfig()), reward), 3)
    for step, value in zip((dying, dead), wanted, strict=True):
        np.testing.assert_array_equal(step.groups[GROUP].shaping, [value, value])


class Repeating(Death):
    """Says `terminated` of the dead again and again."""

    def step(self, state: Any, action: dict[str, jax.Array], key: jax.Array) -> tuple[Any, TimeStep]:
        state, timestep = super().step(state, action, key)
        return state, map_groups(timestep, lambda group: dataclasses.replace(group, terminated=~group.alive))


class Unsaid(Death):
    """Says only that the dead are not alive, and nothing at the end."""

    def step(self, state: Any, action: dict[str, jax.Array], key: jax.Array) -> tuple[Any, TimeStep]:
        state, timestep = super().step(state, action, key)
        return state, map_groups(timestep, lambda group: dataclasses.replace(group, terminated=jnp.zeros(2, bool)))


@pytest.mark.parametrize("env", [Death, Repeating, Unsaid])
def test_an_agent_terminates_once_and_is_dead_from_then_on(env: Callable[[ProbeConfig], Env]) -> None:
    steps = play(Lifetimes(env(ProbeConfig())), 4)
    ends = env is not Unsaid  # an ending that nobody says is a termination cuts off those who are left
    assert [step.groups[GROUP].terminated.tolist() for step in steps] == [
        [False, False],
        [False, False],
        [True, False],
        [False, False],
        [False, ends],
    ]
    assert [step.groups[GROUP].alive.tolist() for step in steps] == [
        [True, True],
        [True, True],
        [False, True],
        [False, True],
        [False, not ends],
    ]


@pytest.mark.parametrize("limit", [3, 4, 10])
@pytest.mark.parametrize("env", [Death, Repeating, Unsaid])
@pytest.mark.parametrize("terminates", [False, True])
def test_what_the_dead_are_offered_counts_in_no_return(
    limit: int, env: Callable[[ProbeConfig], Env], terminates: bool
) -> None:
    batched = BatchedEnv(env=TimeLimit(Lifetimes(env(ProbeConfig())), limit, terminates=terminates), num_envs=1)
    state, _ = batched.reset(KEY)
    length = min(limit, 4)
    for _ in range(length):
        state, timestep, episodes = jax.jit(batched.step)(state, {GROUP: jnp.zeros((1, 2), jnp.int32)}, KEY)
    assert timestep.last.all() and episodes.returns[GROUP] == (2 + length) / 2  # agent 0 earns 2, agent 1 one a step


def test_agent_ids() -> None:
    env = AgentIds(CopyAction(ProbeConfig(num_agents=2)))
    assert env.spec.groups[GROUP].observation_shape == (3,)
    plain, marked = play(env.env, 1), play(env, 1)
    for before, after in zip(plain, marked, strict=True):
        for name in ("observation", "next_observation"):
            values = getattr(after.groups[GROUP], name)
            assert values.shape == (2, 3)
            np.testing.assert_array_equal(values[:, :1], getattr(before.groups[GROUP], name))
            np.testing.assert_array_equal(values[:, 1:], np.eye(2))


def test_agent_ids_of_rows_and_integers() -> None:
    env = AgentIds(Rows(ProbeConfig(num_agents=2)))
    assert env.spec.groups[GROUP].observation_shape == (4, 4)
    observation = play(env, 0)[0].groups[GROUP].observation
    np.testing.assert_array_equal(observation[:, :, 2:], np.tile(np.eye(2)[:, None], (1, 4, 1)))
    assert append_agent_ids(jnp.zeros((3, 2), jnp.int32)).dtype == jnp.int32


def test_agent_ids_of_a_dictionary_are_an_entry() -> None:
    env = AgentIds(ImageAndVector(ProbeConfig(num_agents=2)))
    spec = env.spec.groups[GROUP]
    assert spec.observation_shape == {"image": (4, 4, 1), "vector": (2,), "agent_id": (2,)}
    assert spec.observation_dtype == {"image": np.uint8, "vector": np.float32, "agent_id": np.float32}
    assert without_agent_ids(spec).observation_shape == env.env.spec.groups[GROUP].observation_shape
    plain, marked = play(env.env, 1), play(env, 1)
    for before, after in zip(plain, marked, strict=True):
        for name in ("observation", "next_observation"):
            values, own = getattr(after.groups[GROUP], name), getattr(before.groups[GROUP], name)
            np.testing.assert_array_equal(values["agent_id"], np.eye(2))
            for entry in ("image", "vector"):
                np.testing.assert_array_equal(values[entry], own[entry])


def test_make_env_puts_the_wrappers_on() -> None:
    env = make_env("probe/death", time_limit=3, reward="team_sum")
    steps = play(env, 3)
    assert env.spec.time_limit == 3 and bool(steps[-1].truncated)
    np.testing.assert_array_equal(steps[-1].groups[GROUP].reward, [1.0, 1.0])
    state, _ = env.reset(KEY)
    pictures = env.render([state, state])
    assert [picture.shape for picture in pictures] == [(64, 64, 3)] * 2 and pictures[0].dtype == np.uint8


def test_unbatch() -> None:
    tree = {"a": jnp.arange(3), "b": (jnp.arange(6).reshape(3, 2),)}
    assert int(unbatch(tree, 1)["a"]) == 1
    np.testing.assert_array_equal(unbatch(tree, 1)["b"][0], [2, 3])
