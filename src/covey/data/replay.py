"""Replay: transitions stored to learn from them many times, in Flashbax's trajectory buffers.

Every environment writes its steps one after another into a row of its own. A sample is a number of contiguous sequences
from these rows, `[L, N, …]` like any batch, each starting anywhere. A sequence may cross from one episode into the
next: `reset` marks where, and algorithms must respect it. The true successor of each step is stored beside it, so the
last step of a truncated episode has its own successor, not the first observation of the next episode.

What belongs to an environment as a whole (global state, `last`, `reset`, …) is stored once, not once per group.

With `place=host` the steps are in the host's memory, and Flashbax keeps only where each one is. It samples places,
and the host gathers the steps that are there.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import flashbax
import jax
import jax.numpy as jnp
from jax.experimental.compute_on import compute_on

from covey.data import sum_tree
from covey.data.buffer import BufferConfig, Place
from covey.data.source import Sample, Source, Transitions, pack, unpack
from covey.types import Array, Batch, Key, PyTree

HOST_PART = "steps"  # of a state whose steps are in the host's memory
LEAST_PRIORITY = 1e-6  # steps without any error must still be sampled sometimes


@dataclasses.dataclass(frozen=True, kw_only=True)
class Replay(Source):
    """A source that grows.

    init(transitions) -> state                           `transitions` of one step [B], for their shapes
    add(state, transitions [T, B]) -> state
    can_sample(state) -> []
    held(state) -> []                                    steps of each environment that are stored, up to `length`
    """

    init: Callable[[Transitions], PyTree]
    add: Callable[[PyTree, Transitions], PyTree]
    can_sample: Callable[[PyTree], Array]
    held: Callable[[PyTree], Array]
    length: int  # steps of each environment that fit
    in_host: bool = False  # the state's `HOST_PART` is in the host's memory


@dataclasses.dataclass(frozen=True, kw_only=True)
class Store:
    """Keeps steps, dicts of arrays `[B, T, …]`; a state's `buffer` is Flashbax's.

    init(steps [B]) -> state
    add(state, steps) -> state
    sample(state, key) -> (Flashbax's sample, steps [N, L, …])
    """

    init: Callable[[PyTree], PyTree]
    add: Callable[[PyTree, PyTree], PyTree]
    sample: Callable[[PyTree, Key], tuple[Any, PyTree]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rows:
    """What the functions below share: Flashbax's buffer, the store of the steps, and how environments' rows are read.

    length  steps of each environment that fit
    """

    config: BufferConfig
    buffer: Any
    store: Store
    num_envs: int
    sequence_length: int
    length: int
    device_axis: str | None = None


def init(rows: Rows, transitions: Transitions) -> PyTree:
    """An empty state for transitions of the shapes of these, which are of one step `[B, …]`."""
    return rows.store.init(pack(transitions))


def add(rows: Rows, state: PyTree, transitions: Transitions) -> PyTree:
    """The state with `transitions [T, B, …]` behind what is there. The oldest make room."""
    added = rows.store.add(state, jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), pack(transitions)))
    if not rows.config.prioritised:
        return added
    num_steps = next(iter(transitions.values())).last.shape[0]
    starts = (state["buffer"].current_index - rows.sequence_length + 1 + jnp.arange(num_steps)) % rows.length
    new = (jnp.arange(rows.num_envs)[:, None] * rows.length + starts).reshape(-1)
    tree = sum_tree.with_new(added["buffer"].sum_tree_state, new)
    return added | {"buffer": added["buffer"].replace(sum_tree_state=tree)}


def sample(rows: Rows, state: PyTree, key: Key) -> Sample:
    """N sequences `[L, N, …]`, with priorities also their weights `[N]`."""
    sampled, steps = rows.store.sample(state, key)
    transitions = unpack(jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), steps))
    if not rows.config.prioritised:
        return Sample(batch=Batch(transitions=transitions), indices=None)
    weight = importance(sampled.probabilities, rows.config.importance_exponent, rows.device_axis)
    return Sample(batch=Batch(transitions=transitions, weight=weight), indices=sampled.indices)


def can_sample(rows: Rows, state: PyTree) -> Array:
    """Whether there is enough for a sample."""
    enough: Array = rows.buffer.can_sample(state["buffer"])
    return enough


def held(rows: Rows, state: PyTree) -> Array:
    """How many steps of each environment are stored."""
    return jnp.where(state["buffer"].is_full, rows.length, state["buffer"].current_index)


def set_priorities(rows: Rows, state: PyTree, sample: Sample, priorities: Array) -> PyTree:
    """The state with new priorities `[N]` for the sequences of a sample."""
    if not rows.config.prioritised:
        return state
    assert sample.indices is not None and sample.batch.weight is not None
    values = (priorities + LEAST_PRIORITY) ** rows.config.priority_exponent
    tree = sum_tree.with_values(state["buffer"].sum_tree_state, sample.indices, values, where=sample.batch.weight > 0)
    return state | {"buffer": state["buffer"].replace(sum_tree_state=tree)}


def make_replay(
    config: BufferConfig, *, num_envs: int, sequence_length: int, num_devices: int = 1, device_axis: str | None = None
) -> Replay:
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
    in_host = config.place is Place.host
    rows = Rows(
        config=config,
        buffer=buffer,
        store=_in_host_memory(buffer, num_envs, length) if in_host else _in_device_memory(buffer),
        num_envs=num_envs,
        sequence_length=sequence_length,
        length=length,
        device_axis=device_axis,
    )
    return Replay(
        init=partial(init, rows),
        add=partial(add, rows),
        can_sample=partial(can_sample, rows),
        held=partial(held, rows),
        sample=partial(sample, rows),
        set_priorities=partial(set_priorities, rows),
        length=length,
        in_host=in_host,
    )


# --------------------------------------------------------------------------------------------------- where steps are


def _in_device_memory(buffer: Any) -> Store:
    def sample(state: PyTree, key: Key) -> tuple[Any, PyTree]:
        sampled = buffer.sample(state["buffer"], key)
        return sampled, sampled.experience

    return Store(
        init=lambda steps: {"buffer": buffer.init(jax.tree.map(lambda x: x[0], steps))},
        add=lambda state, steps: {"buffer": buffer.add(state["buffer"], steps)},
        sample=sample,
    )


def _in_host_memory(buffer: Any, num_rows: int, length: int) -> Store:
    """Flashbax holds each step's row and time; the state's `HOST_PART` holds the steps themselves."""

    def init(steps: PyTree) -> PyTree:
        held = jax.tree.map(lambda x: jnp.zeros((num_rows, length, *x.shape[1:]), x.dtype), steps)
        return {"buffer": buffer.init(jnp.zeros(2, jnp.int32)), HOST_PART: jax.device_put(held, jax.memory.Space.Host)}

    def add(state: PyTree, steps: PyTree) -> PyTree:
        num_steps = jax.tree.leaves(steps)[0].shape[1]
        times = (state["buffer"].current_index + jnp.arange(num_steps)) % length
        places = jnp.stack(jnp.meshgrid(jnp.arange(num_rows), times, indexing="ij"), axis=-1).astype(jnp.int32)
        held = jax.tree.map(lambda old, new: _write_on_host(old, new, times), state[HOST_PART], steps)
        return {"buffer": buffer.add(state["buffer"], places), HOST_PART: held}

    def sample(state: PyTree, key: Key) -> tuple[Any, PyTree]:
        sampled = buffer.sample(state["buffer"], key)
        return sampled, jax.tree.map(lambda held: _read_on_host(held, sampled.experience), state[HOST_PART])

    return Store(init=init, add=add, sample=sample)


def _write_on_host(held: Array, new: Array, times: Array) -> Array:
    """`held [B, T, …]` with `new [B, t, …]` at `times [t]`."""
    new, times = jax.device_put((new, times[:, None]), jax.memory.Space.Host)
    window = jax.lax.ScatterDimensionNumbers(
        update_window_dims=(0, *range(2, held.ndim)), inserted_window_dims=(1,), scatter_dims_to_operand_dims=(1,)
    )
    with compute_on("device_host"):
        return jax.lax.scatter(held, times, new, window, mode="promise_in_bounds")


def _read_on_host(held: Array, places: Array) -> Array:
    """What `held [B, T, …]` has at `places [N, L, 2]`, on the device: `[N, L, …]`."""
    places = jax.device_put(places, jax.memory.Space.Host)
    window = jax.lax.GatherDimensionNumbers(
        offset_dims=tuple(range(2, held.ndim)), collapsed_slice_dims=(0, 1), start_index_map=(0, 1)
    )
    with compute_on("device_host"):
        read = jax.lax.gather(held, places, window, slice_sizes=(1, 1, *held.shape[2:]), mode="promise_in_bounds")
    on_device: Array = jax.device_put(read, jax.memory.Space.Device)
    return on_device


# --------------------------------------------------------------------------------------------------------- helpers


def rows_length(config: BufferConfig, num_envs: int, sequence_length: int) -> int:
    """How many steps each environment's row holds."""
    length = config.size // num_envs
    if length < sequence_length:
        raise ValueError(
            f"buffer.size={config.size} over num_envs={num_envs} leaves {length} steps for each environment, "
            f"fewer than a sequence of {sequence_length}"
        )
    return length


def importance(probabilities: Array, exponent: float, device_axis: str | None = None) -> Array:
    """w_i = (min p / p_i)^β, at most 1 (Schaul et al., 2016, section 3.4). min p is the smallest probability in the
    sample, over all devices.

    0 where p_i is 0: rounding in the sums of priorities can make a draw end where nothing is stored.
    """
    possible = probabilities > 0
    least = jnp.min(jnp.where(possible, probabilities, jnp.inf))
    if device_axis is not None:
        least = jax.lax.pmin(least, device_axis)
    return jnp.where(possible, (least / jnp.where(possible, probabilities, 1.0)) ** exponent, 0.0)
