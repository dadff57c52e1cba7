"""What an agent observes: one array, or a dictionary of arrays (an image and a vector, an inventory and flags).

A spec gives one shape or a shape for each entry, and a value has the same structure: `[…, *shape]`, or a dictionary of
such arrays. A global state is described in the same way. `jax.tree.map` does what works on values entry by entry; the
functions here do the rest. Entries are in the order of their names, as JAX keeps dictionaries too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from covey.types import Array, GroupSpec, Observation, ObservationShape, Shape

_T = TypeVar("_T")

AGENT_ID = "agent_id"  # the entry that tells an agent who it is (`envs.wrappers.AgentIds`)


def map_entries(function: Callable[..., _T], shape: ObservationShape, *others: Any) -> _T | dict[str, _T]:
    """`function(shape, …)` of the array, or a dictionary of the results for each entry.

    `others` have the same structure, and are passed along. (`jax.tree.map` would split a shape into its numbers.)
    """
    if isinstance(shape, Mapping):
        return {name: function(shape[name], *(other[name] for other in others)) for name in sorted(shape)}
    return function(shape, *others)


def flat_size(shape: ObservationShape) -> int:
    """How many numbers `flatten` makes of one agent's observation."""
    if isinstance(shape, Mapping):
        return sum(math.prod(shape[name]) for name in sorted(shape))
    return math.prod(shape)


def flatten(observation: Observation, num_leading: int) -> Array:
    """All numbers after the first `num_leading` axes in one row, `[…, F]`: entry after entry, by name."""
    leaves = [leaf.reshape(*leaf.shape[:num_leading], -1) for leaf in jax.tree.leaves(observation)]
    return leaves[0] if len(leaves) == 1 else jnp.concatenate(leaves, axis=-1)


def leading_shape(observation: Observation, num_leading: int) -> Shape:
    """The sizes of the first axes, which all entries share."""
    return tuple(jax.tree.leaves(observation)[0].shape[:num_leading])


def num_axes(shape: ObservationShape) -> int:
    """Axes of the array, or of the first entry. A value's other axes come first, and all entries share them."""
    return len(shape[min(shape)] if isinstance(shape, Mapping) else shape)


def flatten_last(observation: Observation, num_axes: int) -> Array:
    """`flatten`, given the `num_axes` of the shape instead of the number of leading axes."""
    return flatten(observation, jax.tree.leaves(observation)[0].ndim - num_axes)


def dtypes(spec: GroupSpec) -> Any:
    """The type of the array, or of each entry; a spec may give one for all entries."""

    def of_entry(name: str) -> Any:
        given = spec.observation_dtype
        return given[name] if isinstance(given, Mapping) else given

    if isinstance(spec.observation_shape, Mapping):
        return {name: of_entry(name) for name in sorted(spec.observation_shape)}
    return spec.observation_dtype


def describe_shape(shape: ObservationShape) -> str:
    """`[5, 5, 3]`, or `{image: [5, 5, 3], vector: [2]}`."""
    if isinstance(shape, Mapping):
        return "{" + ", ".join(f"{name}: {list(shape[name])}" for name in sorted(shape)) + "}"
    return str(list(shape))


def describe(spec: GroupSpec) -> str:
    """Shapes and types of what an agent sees: `[4] float32`, or `image [5, 5, 3] uint8, vector [2] float32`."""
    types = dtypes(spec)
    if isinstance(spec.observation_shape, Mapping):
        shapes = spec.observation_shape
        return ", ".join(f"{name} {list(shapes[name])} {np.dtype(types[name])}" for name in sorted(shapes))
    return f"{list(spec.observation_shape)} {np.dtype(types)}"
