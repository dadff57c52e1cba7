"""Many environments at once: auto-reset from a pool of fresh states, and the statistics of finished episodes.

Resetting every environment at every step and keeping the few that are needed would cost up to ten times the step
itself. Here, fresh states wait in a pool as large as the batch; each is used once. When an episode ends and the pool
is used up, one full batch of resets fills it again, under `lax.cond`: about one reset per finished episode, whether
episodes end one by one or in lockstep. (Under `vmap` a `cond` runs both branches, so this layer sits above it.)
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from covey.envs.base import Actions, Env
from covey.envs.wrappers import Wrapper, earned
from covey.metrics import EPISODE_LENGTH, MEAN_RETURN, group_return
from covey.ops.operations import one_operation
from covey.ops.seeds import any_seed
from covey.types import Array, EnvSpec, Key, PyTree, TimeStep, pytree


@pytree
class Episodes:
    """Statistics of the running episodes: return of each group, length, and the task's own metrics."""

    returns: dict[str, Array]
    length: Array
    metrics: dict[str, Array]


@pytree
class BatchState:
    """env  [B, …]; pool, pool_first [B, …] fresh states and their time steps, of which `used` are spent."""

    env: PyTree
    pool: PyTree
    pool_first: TimeStep
    used: Array
    episodes: Episodes


@dataclasses.dataclass(frozen=True, kw_only=True)
class BatchedEnv:
    """`num_envs` environments that reset themselves.

    reset(key) -> (state, timestep [B])
    step(state, actions [B], key, played) -> (state, timestep [B], episodes [B])

    `episodes` holds, where `timestep.last`, the statistics of the episode that just ended. `played` says by group whose
    rewards count in them (`score_played`); without it, all agents' do.

    Episodes that all last until their time limit would stay in lockstep for ever, and every batch would hold only one
    phase of them. With `stagger`, the first episodes are cut at times that are spread over the limit.
    """

    env: Env
    num_envs: int
    stagger: bool = False
    compile_steps: bool = False  # even under `jax.disable_jit`

    def __post_init__(self) -> None:
        if self.compile_steps:
            object.__setattr__(self, "step", one_operation(self.step))

    @property
    def spec(self) -> EnvSpec:
        return self.env.spec

    def reset(self, key: Key) -> tuple[BatchState, TimeStep]:
        # The first episodes and the pool in one go: a reset, often long to compile, is compiled once.
        both = jax.vmap(self.env.reset)(jax.random.split(key, 2 * self.num_envs))
        env_state, timestep = jax.tree.map(lambda x: x[: self.num_envs], both)
        pool, pool_first = jax.tree.map(lambda x: x[self.num_envs :], both)
        if self.stagger and isinstance(self.env, Wrapper):
            elapsed = jnp.arange(self.num_envs) * self.spec.time_limit // self.num_envs
            env_state = jax.vmap(self.env.with_elapsed)(env_state, elapsed.astype(jnp.int32))
        state = BatchState(
            env=env_state,
            pool=pool,
            pool_first=pool_first,
            used=jnp.zeros((), jnp.int32),
            episodes=init_episodes(self.spec, self.num_envs),
        )
        return state, timestep

    def step(
        self, state: BatchState, actions: Actions, key: Key, played: Mapping[str, Array] | None = None
    ) -> tuple[BatchState, TimeStep, Episodes]:
        key_step, key_pool = jax.random.split(key)
        env_state, timestep = jax.vmap(self.env.step)(state.env, actions, jax.random.split(key_step, self.num_envs))
        timestep = settle_endings(timestep)
        episodes = add_step(state.episodes, score_played(timestep, played or {}), self.spec)
        state = dataclasses.replace(state, env=env_state, episodes=restart_episodes(episodes, timestep.last, self.spec))

        def reset_ended(state: BatchState, timestep: TimeStep) -> tuple[BatchState, TimeStep]:
            return self._reset_ended(state, timestep, key_pool)

        state, timestep = jax.lax.cond(
            any_seed(timestep.last.any()), reset_ended, lambda state, timestep: (state, timestep), state, timestep
        )
        return state, timestep, episodes

    def _reset_all(self, key: Key) -> tuple[PyTree, TimeStep]:
        return jax.vmap(self.env.reset)(jax.random.split(key, self.num_envs))

    def _reset_ended(self, state: BatchState, timestep: TimeStep, key: Key) -> tuple[BatchState, TimeStep]:
        ended = timestep.last
        num_ended = ended.sum(dtype=jnp.int32)
        used_up = state.used + num_ended > self.num_envs

        def refilled(pool: PyTree, pool_first: TimeStep) -> tuple[PyTree, TimeStep, Array]:
            # Seeds that train at once come here together. One whose pool is not used up keeps it, as if it were alone.
            new = (pool, pool_first, jnp.zeros((), jnp.int32))
            old = (state.pool, state.pool_first, state.used)
            pool, pool_first, used = jax.tree.map(lambda new, old: jnp.where(used_up, new, old), new, old)
            return pool, pool_first, used

        pool, pool_first, used = jax.lax.cond(
            any_seed(used_up),
            lambda: refilled(*self._reset_all(key)),
            lambda: (state.pool, state.pool_first, state.used),
        )
        fresh = used + jnp.cumsum(ended) - 1  # the pool's index for each environment that ended

        def take(new: Array, old: Array) -> Array:
            return jnp.where(ended.reshape(-1, *[1] * (old.ndim - 1)), new[fresh], old)

        env_state = jax.tree.map(take, pool, state.env)
        state = dataclasses.replace(state, env=env_state, pool=pool, pool_first=pool_first, used=used + num_ended)
        return state, begin_episodes(timestep, pool_first, take)


def settle_endings(timestep: TimeStep) -> TimeStep:
    """`timestep [B]`, with `truncated` also set where the last step cuts off an agent that has not terminated."""
    cut_off = [jnp.any(group.alive & ~group.terminated, axis=-1) for group in timestep.groups.values()]
    truncated = functools.reduce(jnp.logical_or, cut_off, timestep.truncated)
    return dataclasses.replace(timestep, truncated=timestep.last & truncated)


def begin_episodes(timestep: TimeStep, first: TimeStep, take: Any) -> TimeStep:
    """What to act on comes from the new episode; the results of the last action stay."""
    groups = {
        name: dataclasses.replace(
            group,
            observation=jax.tree.map(take, first.groups[name].observation, group.observation),
            action_mask=jax.tree.map(take, first.groups[name].action_mask, group.action_mask),
            alive=take(first.groups[name].alive, group.alive),
        )
        for name, group in timestep.groups.items()
    }
    return dataclasses.replace(timestep, groups=groups, state=jax.tree.map(take, first.state, timestep.state))


def init_episodes(spec: EnvSpec, num_envs: int) -> Episodes:
    """Statistics of `num_envs` episodes before their first step."""
    zeros = jnp.zeros(num_envs)
    start = {"sum": 0.0, "last": 0.0, "max": -jnp.inf}
    return Episodes(
        returns={name: zeros for name in spec.groups},
        length=jnp.zeros(num_envs, jnp.int32),
        metrics={name: jnp.full(num_envs, start[metric.reduction]) for name, metric in spec.metrics.items()},
    )


def score_played(timestep: TimeStep, played: Mapping[str, Array]) -> TimeStep:
    """`timestep` with rewards scaled so that a group's mean over all agents is the mean over those in `played [B, A]`.

    Groups that are not in `played`, or without any agent there, keep their rewards.
    """
    groups = dict(timestep.groups)
    for group, own in played.items():
        reward = timestep.groups[group].reward
        count = own.sum(-1, keepdims=True)
        share = jnp.where(own, own.shape[-1] / jnp.maximum(count, 1), 0.0)
        groups[group] = dataclasses.replace(groups[group], reward=jnp.where(count > 0, reward * share, reward))
    return dataclasses.replace(timestep, groups=groups)


def add_step(episodes: Episodes, timestep: TimeStep, spec: EnvSpec) -> Episodes:
    """Adds one step `[B]`: a group's return is the mean over its agents of the rewards that each earned while alive."""
    reduce: dict[str, Callable[[Array, Array], Array]] = {
        "sum": jnp.add,
        "last": lambda _, new: new,
        "max": jnp.maximum,
    }
    groups = timestep.groups
    return Episodes(
        returns={
            name: total + earned(groups[name], groups[name].reward).mean(axis=-1)
            for name, total in episodes.returns.items()
        },
        length=episodes.length + 1,
        metrics={
            name: reduce[spec.metrics[name].reduction](value, timestep.metrics[name].astype(jnp.float32))
            for name, value in episodes.metrics.items()
        },
    )


def restart_episodes(episodes: Episodes, ended: Array, spec: EnvSpec) -> Episodes:
    """Statistics in which the environments whose episode `ended [B]` start from nothing."""
    fresh = init_episodes(spec, ended.shape[0])
    restarted: Episodes = jax.tree.map(lambda new, old: jnp.where(ended, new, old), fresh, episodes)
    return restarted


def episode_values(episodes: Episodes, scored: Sequence[str] | None = None) -> dict[str, Array]:
    """By metric name: `mean_return`, the mean over the groups `scored` (None: all, which is right where no groups
    oppose each other); each group's return, the length and the task's own."""
    mean = jnp.stack([episodes.returns[group] for group in scored or episodes.returns]).mean(axis=0)
    returns = {group_return(group): value for group, value in episodes.returns.items()}
    return {MEAN_RETURN: mean, **returns, EPISODE_LENGTH: episodes.length, **episodes.metrics}
