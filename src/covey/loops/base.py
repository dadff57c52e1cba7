"""A loop as the host sees it: how experience reaches a learner, behind functions that are the same for every loop.

`Training` (experiment/running/training.py) drives, saves and restores a loop through these functions, and reads no
field of its state. So a loop may do anything inside: step compiled environments, sample a buffer, or read a dataset.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.stages import Wrapped

from covey.algorithms.base import Hooks
from covey.envs.base import Env
from covey.types import Algorithm, Array, Key, PyTree

DEVICE_AXIS = "devices"  # the name of the axis over devices, for collectives


@dataclasses.dataclass(frozen=True, kw_only=True)
class Elsewhere:
    """How another process, possibly on another machine, makes the same object as this one.

    make      the function that makes it, which can be pickled
    modules   files and folders of the user's own modules that it needs
    """

    make: Callable[[], Any]
    modules: Sequence[str] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoopInputs:
    """What a registered loop is made from: `make(inputs) -> Loop`.

    config          the loop's own dataclass: the fields of `experiment`
    env             one environment, as the algorithm sees it
    algorithm       the team's; its gradients are averaged over `DEVICE_AXIS` where there are several devices
    hooks           the user's own functions; a loop calls `hooks.metrics`
    devices         where to compute
    num_seeds       seeds that train in one program; with 1, nothing has an axis of seeds
    compile_steps   compile the environments' steps even under `jax.disable_jit`
    elsewhere       how another process makes these inputs, for one device of its CPU
    """

    config: Any
    env: Env
    algorithm: Algorithm
    hooks: Hooks = Hooks()
    devices: list[Any]
    num_seeds: int = 1
    compile_steps: bool = False
    elsewhere: Elsewhere | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sizes:
    """What a loop keeps in memory, in bytes over all devices and seeds."""

    held: Mapping[str, float] = dataclasses.field(default_factory=dict)  # by name, besides learner and `stored`
    held_by: tuple[str, ...] = ()  # the fields of the experiment that set these
    environment: float = 0  # one environment with what it shows, for evaluations
    stored: int = 0  # experience that is kept for learning
    stored_by: str = ""  # the field that sets how much is stored
    stored_in_host: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class StatePart:
    """A part of a loop's state that can be saved and restored alone.

    label       its name in messages
    seed_axis   if several seeds train at once, the axis of the seeds in its leaves; None if all share one value; a dict
                for a part that is a dict
    by_device   its leaves are split over the devices, so it fits only the number of devices that it was saved with
    may_differ  a run may continue without it, if the saved one has another structure or is missing
    left_out    None if checkpoints hold it; otherwise what to tell a user whose run resumes without it
    """

    label: str
    seed_axis: Any = 0
    by_device: bool = False
    may_differ: bool = False
    left_out: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Loop:
    """A loop as functions.

    init(key) -> state
    advance(state, num_iterations) -> (state, metrics)   dispatches and does not wait; metrics are [max_iterations], and
                                                         the first num_iterations of them count
    learner(state) -> learner
    with_learner(state, learner) -> state
    saved(state) -> tree by the name of each part that checkpoints hold
    restored(state, trees) -> state                      with these in place of its own; other parts do not change
    sizes(shapes of a state) -> Sizes                    what is in memory
    collect(state) -> (state, checksum)                  collection alone, to time it; None: it cannot be timed alone
    check(shapes of a state)                             traces an iteration, so that shapes that do not fit are found
                                                         before anything is compiled; None: `advance` is traced
    close()                                              ends threads and processes that the loop started

    `advance` is usually a compiled function, which can be lowered. In loops that act outside of compiled programs it is
    an ordinary function, which returns when it is done, with metrics [num_iterations].

    Several seeds at once: init(keys [S]), metrics [max_iterations, S], and an axis of seeds in each part of the state.
    """

    init: Wrapped
    advance: Callable[..., tuple[PyTree, dict[str, Any]]]
    learner: Callable[[PyTree], PyTree]
    with_learner: Callable[[PyTree, PyTree], PyTree]
    saved: Callable[[PyTree], dict[str, PyTree]]
    restored: Callable[[PyTree, Mapping[str, PyTree]], PyTree]
    parts: Mapping[str, StatePart]
    shardings: PyTree  # where each part of a state lives
    max_iterations: int
    frames_per_iteration: int  # how many frames an iteration counts as
    sizes: Callable[[PyTree], Sizes] = lambda state: Sizes()
    collect: Wrapped | None = None
    check: Callable[[PyTree], None] | None = None
    close: Callable[[], None] = lambda: None

    @property
    def jitted(self) -> Wrapped | None:
        """`advance`, if it is jitted and so can be lowered."""
        return self.advance if isinstance(self.advance, Wrapped) else None


def state_shapes(loop: Loop, key: Key) -> PyTree:
    """The shape, type and place of each leaf of a state; with these, a program is traced only once."""
    return jax.tree.map(
        lambda sharding, part: jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), part
        ),
        loop.shardings,
        jax.eval_shape(loop.init, key),
        is_leaf=lambda x: isinstance(x, jax.sharding.Sharding),
    )


def repeat(
    iterate: Callable[[PyTree], tuple[PyTree, dict[str, Array]]],
    state: PyTree,
    num_iterations: Array,
    max_iterations: int,
) -> tuple[PyTree, dict[str, Array]]:
    """Calls `iterate(state) -> (state, metrics)` `num_iterations` times; metrics are `[max_iterations, …]`, NaN after
    the last iteration.

    The number is traced, so one program serves any number of iterations.
    """
    # Jitted, so that it is traced once for its shapes and its body; `inline` leaves the program as it is.
    iterate = jax.jit(iterate, inline=True)
    with jax.disable_jit(False):  # with `jit=false`, loops would be traced round by round for their shapes alone
        shapes = jax.eval_shape(iterate, state)[1]
    empty = jax.tree.map(lambda x: jnp.full((max_iterations, *x.shape), jnp.nan, x.dtype), shapes)

    def body(i: Array, loop: tuple[PyTree, dict[str, Array]]) -> tuple[PyTree, dict[str, Array]]:
        state, history = loop
        state, metrics = iterate(state)
        # By slices: a scatter takes ten times as long to compile.
        written = jax.tree.map(lambda h, x: jax.lax.dynamic_update_index_in_dim(h, x, i, 0), history, metrics)
        return state, written

    state, history = jax.lax.fori_loop(0, num_iterations, body, (state, empty))
    return state, history


def num_bytes(tree: PyTree) -> int:
    """The size in bytes of a tree of arrays, or of their shapes alone."""
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


# ------------------------------------------------------------------------------------------ seeds that train at once


def of_seed(axes: Mapping[str, Any], trees: Mapping[str, PyTree], index: int | Array) -> dict[str, PyTree]:
    """One seed's share of `trees`, whose seeds are along `axes` (`StatePart.seed_axis`)."""

    def take(axis: int | None, leaf: Array) -> Array:
        return leaf if axis is None else jax.lax.dynamic_index_in_dim(leaf, index, axis, keepdims=False)

    return _by_axis(take, axes, trees)


def join_seeds(axes: Mapping[str, Any], seeds: list[dict[str, PyTree]]) -> dict[str, PyTree]:
    """The inverse of `of_seed`. Leaves that are on the host are joined there."""

    def join(axis: int | None, *leaves: Any) -> Any:
        if axis is None:
            return leaves[0]
        return (np if isinstance(leaves[0], np.ndarray) else jnp).stack(leaves, axis)

    return _by_axis(join, axes, *seeds)


def _by_axis(function: Callable[..., Any], axes: Mapping[str, Any], *trees: Mapping[str, PyTree]) -> dict[str, PyTree]:
    """`function(axis of the seeds, leaf, …)` over the leaves of all trees."""

    def over(axis: Any, *parts: PyTree) -> PyTree:
        if isinstance(axis, Mapping):
            return {name: over(axis[name], *(part[name] for part in parts)) for name in parts[0]}
        return jax.tree.map(lambda *leaves: function(axis, *leaves), *parts)

    mapped: dict[str, PyTree] = over(axes, *trees)
    return mapped
