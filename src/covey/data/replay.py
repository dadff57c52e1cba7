"""Replay: transitions kept for learning from them again and again, over Flashbax's trajectory buffers.

Every environment writes its steps one after another into a row of its own. A sample is a number of contiguous sequences
out of these rows, `[L, N, …]` like any batch, each starting anywhere. A sequence may cross from one episode into the
next: `reset` marks where, and what learns from it must look. The true successor of each step is stored beside it, so
the last step of an episode that was cut has its own, and not the first observation of the next episode.

What belongs to an environment as a whole (global state, `last`, `reset`, …) is stored once, not once per group.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import flashbax
import jax
import jax.numpy as jnp

from covey.data.buffer import BufferConfig
from covey.types import Array, Batch, Key, PyTree, Transition, pytree

SHARED = ("state", "next_state", "reset", "truncated", "last")  # of the environment, the same for all groups
LEAST_PRIORITY = 1e-6  # what was learned perfectly must still come up now and then
Transitions = dict[str, Transition]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Replay:
    """A buffer as pure functions.

    init(transitions) -> state                           `transitions` of one step [B], for their shapes
    add(state, transitions [T, B]) -> state
    can_sample(state) -> []
    sample(state, key) -> Sample
    set_priorities(state, sample, priorities [N]) -> state
    """

    init: Callable[[Transitions], PyTree]
    add: Callable[[PyTree, Transitions], PyTree]
    can_sample: Callable[[PyTree], Array]
    sample: Callable[[PyTree, Key], Sample]
    set_priorities: Callable[[PyTree, Sample, Array], PyTree]


@pytree
class Sample:
    """A batch of N sequences, and where they are in the buffer."""

    batch: Batch
    indices: Array | None


def make_replay(config: BufferConfig, *, num_envs: int, sequence_length: int, num_devices: int = 1) -> Replay:
    """The part of a buffer that one of `num_devices` holds: the steps of its `num_envs` environments."""
    length = rows_length(config, num_envs * num_devices, sequence_length)
    batch_size = config.batch_size // num_devices
    arguments: dict[str, Any] = {
        "add_batch_size": num_envs,
        "sample_batch_size": batch_size,
        "sample_sequence_length": sequence_length,
        "period": 1,
        "min_length_time_axis": min(length, max(sequence_length, math.ceil(batch_size / num_envs))),
        "max_length_time_axis": length,
    }
    if config.prioritised:
        buffer = flashbax.make_prioritised_trajectory_buffer(**arguments, priority_exponent=config.priority_exponent)
    else:
        buffer = flashbax.make_trajectory_buffer(**arguments)

    def init(transitions: Transitions) -> PyTree:
        return buffer.init(jax.tree.map(lambda x: x[0], pack(transitions)))

    def add(state: PyTree, transitions: Transitions) -> PyTree:
        return buffer.add(state, jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), pack(transitions)))

    def sample(state: PyTree, key: Key) -> Sample:
        sampled = buffer.sample(state, key)
        transitions = unpack(jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), sampled.experience))
        if not config.prioritised:
            return Sample(batch=Batch(transitions=transitions), indices=None)
        weight = importance(sampled.probabilities, config.importance_exponent)
        return Sample(batch=Batch(transitions=transitions, weight=weight), indices=sampled.indices)

    def set_priorities(state: PyTree, sample: Sample, priorities: Array) -> PyTree:
        if not config.prioritised:
            return state
        return buffer.set_priorities(state, sample.indices, priorities + LEAST_PRIORITY)

    return Replay(init=init, add=add, can_sample=buffer.can_sample, sample=sample, set_priorities=set_priorities)


def rows_length(config: BufferConfig, num_envs: int, sequence_length: int) -> int:
    """How many steps each environment's row holds."""
    length = config.size // num_envs
    if length < sequence_length:
        raise ValueError(
            f"buffer.size={config.size} over num_envs={num_envs} leaves {length} steps for each environment, "
            f"fewer than a sequence of {sequence_length}"
        )
    return length


def importance(probabilities: Array, exponent: float) -> Array:
    """w_i = (min p / p_i)^β, at most 1 (Schaul et al., 2016, section 3.4, with the largest weight of the sample)."""
    return (jnp.min(probabilities) / probabilities) ** exponent


def pack(transitions: Transitions) -> dict[str, Any]:
    """What is stored: each group's own, and once what they share."""
    first = next(iter(transitions.values()))
    own = {
        group: {field.name: getattr(part, field.name) for field in dataclasses.fields(part) if field.name not in SHARED}
        for group, part in transitions.items()
    }
    return {"shared": {name: getattr(first, name) for name in SHARED}, "groups": own}


def unpack(packed: dict[str, Any]) -> Transitions:
    return {group: Transition(**own, **packed["shared"]) for group, own in packed["groups"].items()}
