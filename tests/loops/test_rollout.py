"""Unrolling: transitions line up step by step, flags follow one another, carries belong to their sequences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from covey.envs.base import make_env
from covey.envs.batch import BatchedEnv
from covey.loops.rollout import collect, episode_means, init_actor, unroll
from covey.types import Algorithm, TimeStep

ENVS, STEPS, GROUP = 4, 12, "agents"


def act(acting: Any, timestep: TimeStep, carry: Any, key: jax.Array, explore: Any) -> tuple[Any, Any, Any]:
    """Random actions; the carry counts steps of the episode, starting afresh where the last one ended."""
    steps = jnp.where(timestep.last, 0, carry[GROUP]) + 1
    step = timestep.groups[GROUP]
    actions = {GROUP: jax.random.randint(key, step.alive.shape, 0, 2)}
    return actions, {GROUP: {"steps": steps}}, {GROUP: steps}


def make_algorithm(sequence_length: int = 1) -> Algorithm:
    return Algorithm(
        init=lambda key: (),
        initial_carry=lambda num_envs: {GROUP: jnp.zeros(num_envs, jnp.int32)},
        act=act,
        update=lambda *arguments: ((), {}, None),
        sequence_length=sequence_length,
    )


def play(function: Callable[..., Any], task: str, sequence_length: int = 1, rollouts: int = 1) -> Any:
    batched, algorithm = BatchedEnv(env=make_env(task), num_envs=ENVS), make_algorithm(sequence_length)

    @jax.jit
    def run(key: jax.Array) -> list[Any]:
        actor = init_actor(batched, algorithm, key)
        results = []
        for number in range(rollouts):
            before = actor
            actor, *rest = function(batched, algorithm, (), actor, jax.random.fold_in(key, number), STEPS)
            results.append((before, actor, *rest))
        return results

    return jax.device_get(run(jax.random.key(0)))


@pytest.mark.parametrize("task", ["probe/memory", "probe/death", "probe/delayed", "probe/copy", "probe/truncation"])
def test_transitions_line_up(task: str) -> None:
    (before, middle, first, _), (_, after, second, _) = play(unroll, task, rollouts=2)
    joined = jax.tree.map(lambda a, b: np.concatenate([a, b]), first, second)
    steps = joined[GROUP]
    assert steps.observation.shape[:3] == (2 * STEPS, ENVS, 2)
    last = steps.last
    assert last.any()
    goes_on = ~last[:-1]
    np.testing.assert_array_equal(steps.observation[1:][goes_on], steps.next_observation[:-1][goes_on])
    np.testing.assert_array_equal(steps.reset[1:], last[:-1])
    np.testing.assert_array_equal(steps.reset[0], before.timestep.last)
    assert not steps.reset[0].any()
    np.testing.assert_array_equal(steps.observation[0], before.timestep.groups[GROUP].observation)
    np.testing.assert_array_equal(steps.observation[STEPS], middle.timestep.groups[GROUP].observation)
    np.testing.assert_array_equal(after.timestep.last, last[-1])
    np.testing.assert_array_equal(steps.alive[0], before.timestep.groups[GROUP].alive)
    assert steps.alive[steps.reset].all()
    assert not np.any(steps.truncated & ~last)
    # The carry went on within episodes and across the two calls, and began at one after each end.
    counted = np.ones(ENVS, int)
    for t in range(2 * STEPS):
        np.testing.assert_array_equal(steps.extras["steps"][t], counted)
        counted = np.where(last[t], 1, counted + 1)


def test_last_is_the_true_successor_not_the_next_episodes_first() -> None:
    ((_, _, transitions, _),) = play(unroll, "probe/death")
    steps = transitions[GROUP]
    np.testing.assert_array_equal(steps.next_observation[steps.last][:, 1, 0], -5.0)  # dead
    np.testing.assert_array_equal(steps.observation[1:][steps.last[:-1]][:, 1, 0], 4.0)  # the new episode's first


def test_rewards_belong_to_the_action_just_taken() -> None:
    ((_, _, transitions, _),) = play(unroll, "probe/copy")
    steps = transitions[GROUP]
    np.testing.assert_array_equal(steps.reward, (steps.action == steps.observation[..., 0]).astype(float))


@pytest.mark.parametrize("length", [1, 3, 4, 12])
def test_collect_keeps_the_carry_before_each_sequence(length: int) -> None:
    results = play(collect, "probe/memory", sequence_length=length, rollouts=2)
    for before, after, batch, _ in results:
        counted = batch.transitions[GROUP].extras["steps"]
        ended = np.concatenate([before.timestep.last[None], batch.transitions[GROUP].last])
        assert counted.shape == (STEPS, ENVS)
        np.testing.assert_array_equal(batch.final_carry[GROUP], after.carry[GROUP])
        np.testing.assert_array_equal(batch.final.last, ended[-1])
        carries = batch.carries[GROUP]
        assert carries.shape == (STEPS // length, ENVS)
        np.testing.assert_array_equal(carries[0], before.carry[GROUP])
        for s in range(STEPS // length):
            start = s * length
            np.testing.assert_array_equal(counted[start], np.where(ended[start], 0, carries[s]) + 1)


def test_zero_stands_for_the_whole_rollout() -> None:
    ((_, _, batch, _),) = play(collect, "probe/memory", sequence_length=0)
    assert batch.carries[GROUP].shape == (1, ENVS)


def test_episode_sums_count_what_ended() -> None:
    ((_, _, transitions, sums),) = play(unroll, "probe/delayed")
    means = episode_means(sums)
    assert means["episodes"] == ENVS * STEPS / 2 == transitions[GROUP].last.sum()
    assert means["mean_return"] == means[f"{GROUP}_return"] == 1.0
    assert means["episode_length"] == 2.0


def test_means_of_no_episode_are_nan() -> None:
    batched, algorithm = BatchedEnv(env=make_env("probe/truncation"), num_envs=ENVS), make_algorithm()
    actor = init_actor(batched, algorithm, jax.random.key(0))
    _, _, sums = jax.jit(lambda actor, key: unroll(batched, algorithm, (), actor, key, 3))(actor, jax.random.key(1))
    means = episode_means(sums)
    assert np.isnan(means["mean_return"]) and means["episodes"] == 0
