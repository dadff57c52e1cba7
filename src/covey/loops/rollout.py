"""Acting in a batch of environments: `unroll` lets an algorithm act in a `BatchedEnv` and records the transitions."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from covey.algorithms.seats import learned_carry, played_by_team
from covey.envs.batch import BatchedEnv, BatchState, Episodes, episode_values
from covey.types import Algorithm, Array, Batch, Key, PyTree, TimeStep, Transition, pytree


@pytree
class Actor:
    """The state of acting: the environments, what they showed last, and the networks' carry at that point."""

    env: BatchState
    timestep: TimeStep
    carry: PyTree


@pytree
class EpisodeSums:
    """Sums over the episodes that ended, and how many did."""

    total: Episodes
    count: Array


def init_actor(env: BatchedEnv, algorithm: Algorithm, key: Key) -> Actor:
    """Environments at the start of their first episodes, and empty memory."""
    env_state, timestep = env.reset(key)
    return Actor(env=env_state, timestep=timestep, carry=algorithm.initial_carry(env.num_envs))


def unroll(
    env: BatchedEnv, algorithm: Algorithm, acting: PyTree, actor: Actor, key: Key, num_steps: int
) -> tuple[Actor, dict[str, Transition], EpisodeSums]:
    """Acts for `num_steps`; returns the actor after them, transitions `[T, B, …]` by group, and finished episodes.

    `acting` is what the algorithm acts with, `algorithm.acting(state)`.
    """

    def step(actor: Actor, key_step: Key) -> tuple[Actor, tuple[dict[str, Transition], EpisodeSums]]:
        key_act, key_env = jax.random.split(key_step)
        actions, extras, carry = algorithm.act(acting, actor.timestep, actor.carry, key_act, True)
        env_state, timestep, episodes = env.step(actor.env, actions, key_env, played_by_team(extras))
        transitions = {
            group: make_transition(group, actor.timestep, actions[group], extras[group], timestep) for group in actions
        }
        return Actor(env=env_state, timestep=timestep, carry=carry), (transitions, sum_ended(episodes, timestep.last))

    actor, (transitions, sums) = jax.lax.scan(step, actor, jax.random.split(key, num_steps))
    return actor, transitions, jax.tree.map(lambda x: x.sum(axis=0), sums)


def collect(
    env: BatchedEnv, algorithm: Algorithm, acting: PyTree, actor: Actor, key: Key, num_steps: int
) -> tuple[Actor, Batch, EpisodeSums]:
    """Collects a batch for on-policy learning: `num_steps` of each environment, in sequences.

    Networks with memory learn from sequences, each from the carry that it began with. So this unrolls one sequence of
    `algorithm.sequence_length` steps after another, and keeps the carry before each. Without memory there is one
    unroll. Returns the actor afterwards, the batch, and the sums of the episodes that ended. Raises ValueError if
    `sequence_length` does not divide `num_steps`.
    """
    lengths = {part.sequence_length for part in algorithm.groups.values()} - {1}
    if len(lengths) > 1:  # what is collected has one carry for all groups at the beginning of each sequence
        raise ValueError(f"groups with memory must agree on one sequence_length, not {sorted(lengths)}")
    length = algorithm.sequence_length or num_steps
    if num_steps % length:
        raise ValueError(f"sequence_length {length} does not divide the rollout of {num_steps} steps")
    carry = learned_carry(actor.carry)
    if length == 1 and not jax.tree.leaves(carry):  # no memory: nothing to keep between steps
        next_actor, transitions, sums = unroll(env, algorithm, acting, actor, key, num_steps)
        final_carry = learned_carry(next_actor.carry)
        batch = Batch(transitions=transitions, carries=carry, final=next_actor.timestep, final_carry=final_carry)
        return next_actor, batch, sums

    def sequence(actor: Actor, key_sequence: Key) -> tuple[Actor, tuple[dict[str, Transition], PyTree, EpisodeSums]]:
        next_actor, transitions, sums = unroll(env, algorithm, acting, actor, key_sequence, length)
        return next_actor, (transitions, learned_carry(actor.carry), sums)

    next_actor, (transitions, carries, sums) = jax.lax.scan(sequence, actor, jax.random.split(key, num_steps // length))
    transitions = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), transitions)
    final_carry = learned_carry(next_actor.carry)
    batch = Batch(transitions=transitions, carries=carries, final=next_actor.timestep, final_carry=final_carry)
    return next_actor, batch, jax.tree.map(lambda x: x.sum(axis=0), sums)


def make_transition(
    group: str, before: TimeStep, action: Array, extras: dict[str, Array], after: TimeStep
) -> Transition:
    """One step `[B, …]` of a group, from the time steps before and after the action.

    What was seen, and whether an agent was alive when it acted, is in `before`. Rewards, endings and true successors
    are in `after`. `extras` are what the algorithm's `act` left for its `update`.
    """
    seen, got = before.groups[group], after.groups[group]
    return Transition(
        observation=seen.observation,
        state=before.state,
        action_mask=seen.action_mask,
        alive=seen.alive,
        reset=before.last,
        action=action,
        extras=extras,
        reward=got.reward,
        terminated=got.terminated,
        truncated=after.truncated,
        last=after.last,
        next_observation=got.next_observation,
        next_state=after.next_state,
        next_action_mask=got.next_action_mask,
        shaping=got.shaping,
    )


def sum_ended(episodes: Episodes, ended: Array) -> EpisodeSums:
    """Sums over the environments whose episode `ended [B]`, and how many those are."""
    total = jax.tree.map(lambda x: jnp.sum(jnp.where(ended, x, 0).astype(jnp.float32)), episodes)
    return EpisodeSums(total=total, count=ended.sum(dtype=jnp.float32))


def episode_means(sums: EpisodeSums, scored: Sequence[str] | None = None) -> dict[str, Array]:
    """Means over finished episodes by metric name; NaN where none finished. `scored` as in `episode_values`."""
    mean = jax.tree.map(lambda total: total / sums.count, sums.total)
    return {**episode_values(mean, scored), "episodes": sums.count}
