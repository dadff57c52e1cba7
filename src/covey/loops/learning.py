"""Learning from a source of stored experience: a replay buffer, or a fixed set of transitions.

`update` does not know which it is. `learn_from` samples and updates several times; loops decide how often, and whether
anything is added in between.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from covey.data.replay import Replay, make_replay
from covey.data.source import Source
from covey.errors import UsageError
from covey.loops.base import DEVICE_AXIS
from covey.loops.config import ReplayConfig
from covey.ops.random import unrolled
from covey.types import Algorithm, Array, Key, PyTree


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReplayLearning:
    """Learning from replay: how often in an iteration, and for how many frames agents act at random before that."""

    replay: Replay
    num_updates: int
    random_frames: int
    in_checkpoints: bool = True  # whether checkpoints hold the buffer


def make_learning(config: ReplayConfig, algorithm: Algorithm, num_devices: int) -> ReplayLearning:
    """Learning from replay, as set by an experiment's fields."""
    rows = config.buffer.size // config.num_envs
    if rows < config.rollout_length:
        raise UsageError(
            f"buffer.size={config.buffer.size} over num_envs={config.num_envs} leaves {rows} steps for each "
            f"environment, fewer than rollout_length={config.rollout_length}"
        )
    replay = make_replay(
        config.buffer,
        num_envs=config.num_envs // num_devices,
        sequence_length=algorithm.sequence_length,
        num_devices=num_devices,
        device_axis=DEVICE_AXIS if num_devices > 1 else None,
    )
    return ReplayLearning(
        replay=replay,
        num_updates=config.updates,
        random_frames=config.random_frames,
        in_checkpoints=config.buffer.in_checkpoints,
    )


def updates_due(learning: ReplayLearning, held: Array, collected: Array, done: Array | int = 0) -> Array:
    """How many updates iteration number `done`, counted from 1, makes.

    By now each environment has taken `collected` steps, and the buffer holds the last `held` of them. Usually these are
    all that fit, and the iteration makes all of its `num_updates`. After a resume without the buffer, fewer are held,
    and the updates are scaled down to match: half of what should be there, half of the updates. So each stored step is
    sampled as often as in a full buffer. At the full rate, a trained network would fit the first few steps hundreds of
    times over.

    Where this rounds to no update, one is made every few iterations: for an eighth of an update, in the iterations 7,
    15, 23 and so on. Otherwise there would be none for a long time.
    """
    # Timing starts at negative iterations, with nothing `collected` yet: never more than all updates.
    share = jnp.minimum(1.0, held / jnp.clip(collected, 1, learning.replay.length))
    due = learning.num_updates * share
    interval = jnp.ceil(1.0 / due).astype(jnp.int32)
    whole = jnp.round(due).astype(jnp.int32)
    return jnp.where(whole > 0, whole, ((done + 1) % interval == 0).astype(jnp.int32))


def learn_from(
    source: Source, algorithm: Algorithm, learner: PyTree, data: PyTree, key: Key, progress: Array, rounds: Array
) -> tuple[PyTree, PyTree, dict[str, Array]]:
    """Draws `rounds` samples of `data`, the source's state, and updates from each: learner, data, mean metrics.

    With no rounds, metrics are NaN: a loop in which that happens says how many there were (`metrics.UPDATES`). There is
    no branch for that case: a branch would copy the data, which may take most of the memory.
    """

    def update(learner: PyTree, data: PyTree, key: Key) -> tuple[PyTree, PyTree, dict[str, Array]]:
        key_sample, key_update = jax.random.split(key)
        sample = source.sample(data, unrolled(key_sample))
        learner, metrics, by_group = algorithm.update(learner, sample.batch, key_update, progress)
        priorities = sum(by_group.values()) / len(by_group)
        return learner, source.set_priorities(data, sample, priorities), metrics

    def body(i: Array, state: tuple[PyTree, PyTree, dict[str, Array]]) -> tuple[PyTree, PyTree, dict[str, Array]]:
        learner, data, sums = state
        learner, data, metrics = update(learner, data, jax.random.fold_in(key, i))
        return learner, data, jax.tree.map(jnp.add, sums, metrics)

    shapes = jax.eval_shape(update, learner, data, key)[2]
    sums = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    learner, data, sums = jax.lax.fori_loop(0, rounds, body, (learner, data, sums))
    return learner, data, jax.tree.map(lambda x: x / rounds, sums)
