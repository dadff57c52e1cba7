"""The offline loop: an iteration updates from samples of a fixed set of transitions, and never acts.

loop = make_offline_loop(algorithm, transitions, batch_size=128, updates=32, num_iterations=1_000)
state, metrics = loop.advance(loop.init(key), 32)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from covey.data.fixed import fixed_data, make_fixed_source
from covey.data.source import Source, Transitions
from covey.loops.base import DEVICE_AXIS, Loop, Sizes, StatePart, num_bytes, repeat
from covey.loops.learning import learn_from
from covey.types import Algorithm, Array, Key, PyTree, pytree


@pytree
class OfflineState:
    """Everything that learning needs to continue, including the data."""

    learner: PyTree
    key: Key
    iteration: Array
    data: PyTree


@dataclasses.dataclass(frozen=True, kw_only=True)
class OfflineTraining:
    """What an iteration is made of: `updates` from samples of `source`. `progress` reaches 1 after `num_iterations`."""

    algorithm: Algorithm
    source: Source
    updates: int
    num_iterations: int
    max_iterations: int


def make_offline_loop(
    algorithm: Algorithm,
    transitions: Transitions,
    *,
    batch_size: int,
    updates: int,
    num_iterations: int,
    max_iterations: int = 32,
) -> Loop:
    """Learns from `transitions [T, B, …]`, by group; an update counts as a frame. One device, one seed."""
    training = OfflineTraining(
        algorithm=algorithm,
        source=make_fixed_source(batch_size=batch_size, sequence_length=algorithm.sequence_length or 1),
        updates=updates,
        num_iterations=num_iterations,
        max_iterations=max_iterations,
    )
    everywhere = NamedSharding(Mesh(jax.devices()[:1], (DEVICE_AXIS,)), P())
    places: Any = OfflineState(learner=everywhere, key=everywhere, iteration=everywhere, data=everywhere)  # type: ignore[arg-type]
    return Loop(
        init=jax.jit(partial(init_state, training, transitions), out_shardings=places),
        advance=jax.jit(partial(advance, training), donate_argnums=0),
        learner=lambda state: state.learner,
        with_learner=lambda state, learner: dataclasses.replace(state, learner=learner),
        saved=saved_parts,
        restored=restored_state,
        parts={
            "learner": StatePart(label="learner"),
            "clock": StatePart(label="clock", seed_axis={"key": 0, "iteration": None}),
        },
        shardings=places,
        max_iterations=max_iterations,
        frames_per_iteration=updates,
        sizes=lambda state: Sizes(stored=num_bytes(state.data), stored_by="the transitions"),
    )


def init_state(training: OfflineTraining, transitions: Transitions, key: Key) -> OfflineState:
    """The state before the first iteration."""
    key_learner, key_train = jax.random.split(key)
    learner = training.algorithm.init(key_learner)
    iteration = jnp.zeros((), jnp.int32)
    return OfflineState(learner=learner, key=key_train, iteration=iteration, data=fixed_data(transitions))


def iterate(training: OfflineTraining, state: OfflineState) -> tuple[OfflineState, dict[str, Array]]:
    """One iteration: samples and updates, and their mean metrics."""
    key = jax.random.fold_in(state.key, state.iteration)
    progress = state.iteration / training.num_iterations
    rounds = jnp.int32(training.updates)
    learner, data, metrics = learn_from(
        training.source, training.algorithm, state.learner, state.data, key, progress, rounds
    )
    return dataclasses.replace(state, learner=learner, iteration=state.iteration + 1, data=data), metrics


def advance(
    training: OfflineTraining, state: OfflineState, num_iterations: Array
) -> tuple[OfflineState, dict[str, Array]]:
    """`num_iterations` in one compiled program."""
    return repeat(partial(iterate, training), state, num_iterations, training.max_iterations)


def saved_parts(state: OfflineState) -> dict[str, PyTree]:
    """What checkpoints hold. The data does not change, and the loop is given it again."""
    return {"learner": state.learner, "clock": {"key": state.key, "iteration": state.iteration}}


def restored_state(state: OfflineState, trees: Mapping[str, PyTree]) -> OfflineState:
    """`state` with the saved parts in `trees`."""
    changes = {name: tree for name, tree in trees.items() if name != "clock"}
    return dataclasses.replace(state, **changes, **trees.get("clock", {}))
