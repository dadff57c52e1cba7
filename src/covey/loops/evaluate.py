"""Evaluation: every environment of a batch plays one episode; only sums are kept, never trajectories."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from covey.algorithms.seats import played_by_team
from covey.envs.base import Env
from covey.envs.batch import Episodes, add_step, init_episodes, score_played
from covey.ops.seeds import any_seed
from covey.types import Algorithm, Array, Key, PyTree, TimeStep

# For all environments: states, time steps, carries, statistics of the episodes, which have ended. And the steps so far.
Playing = tuple[PyTree, TimeStep, PyTree, Episodes, Array, Array]


def play_episodes(
    env: Env, algorithm: Algorithm, acting: PyTree, key: Key, *, num_episodes: int, deterministic: bool
) -> Episodes:
    """Plays `num_episodes` side by side until the longest ends; returns each one's statistics `[num_episodes]`.

    `acting` is what the algorithm acts with, `algorithm.acting(state)`.
    """
    spec = env.spec
    key_reset, key_play = jax.random.split(key)
    env_state, timestep = jax.vmap(env.reset)(jax.random.split(key_reset, num_episodes))
    start = (
        env_state,
        timestep,
        algorithm.initial_carry(num_episodes),
        init_episodes(spec, num_episodes),
        jnp.zeros(num_episodes, bool),
        jnp.zeros((), jnp.int32),
    )

    def running(loop: Playing) -> Array:
        _, _, _, _, done, elapsed = loop
        more: Array = (elapsed < spec.time_limit) & any_seed(~done.all())
        return more

    def step(loop: Playing) -> Playing:
        env_state, timestep, carry, episodes, done, elapsed = loop
        key_act, key_env = jax.random.split(jax.random.fold_in(key_play, elapsed))
        actions, extras, carry = algorithm.act(acting, timestep, carry, key_act, not deterministic)
        env_state, timestep = jax.vmap(env.step)(env_state, actions, jax.random.split(key_env, num_episodes))
        longer = add_step(episodes, score_played(timestep, played_by_team(extras)), spec)
        episodes = jax.tree.map(lambda new, old: jnp.where(done, old, new), longer, episodes)
        return env_state, timestep, carry, episodes, done | timestep.last, elapsed + 1

    *_, episodes, _, _ = jax.lax.while_loop(running, step, start)
    return episodes
