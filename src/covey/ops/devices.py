"""Sums and means over devices, of whole trees at once.

A collective operation synchronises all devices, whatever its size. So the leaves of a tree travel as one vector: a
network's gradient needs one synchronisation, not one per array. Without an axis there is one device, and trees are
returned unchanged.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import jax
import jax.numpy as jnp

from covey.types import Array, PyTree


def sum_over_devices(tree: PyTree, axis_name: str | None) -> PyTree:
    """The sum of the trees of all devices; `tree` itself without an axis."""
    if axis_name is None:
        return tree
    vector, unpack = pack(tree)
    return unpack(jax.lax.psum(vector, axis_name))


def mean_over_devices(tree: PyTree, axis_name: str | None) -> PyTree:
    """The mean of the trees of all devices; `tree` itself without an axis."""
    if axis_name is None:
        return tree
    vector, unpack = pack(tree)
    return unpack(jax.lax.pmean(vector, axis_name))


def gather_over_devices(tree: PyTree, axis_name: str) -> PyTree:
    """The trees of all devices, on each of them, along a new leading axis."""
    vector, unpack = pack(tree)
    return jax.vmap(unpack)(jax.lax.all_gather(vector, axis_name))


def pack(tree: PyTree) -> tuple[Array, Callable[[Array], PyTree]]:
    """A tree's leaves in one vector, and the function that restores the tree.

    Each leaf is copied into its place, the largest first. Do not concatenate them (`jnp.concatenate`, `ravel_pytree`),
    and do not start with a small leaf: on a CPU, XLA then fuses the computation of the leaves into the copy and repeats
    it for every element of the vector, which took half of the time of a small network's update.
    """
    leaves, structure = jax.tree.flatten(tree)
    starts = list(itertools.accumulate((leaf.size for leaf in leaves), initial=0))
    vector = jnp.zeros(starts[-1], jnp.result_type(jnp.float32, *leaves))
    for start, leaf in sorted(zip(starts, leaves, strict=False), key=lambda item: -item[1].size):
        vector = jax.lax.dynamic_update_slice(vector, leaf.reshape(-1).astype(vector.dtype), (start,))

    def unpack(vector: Array) -> PyTree:
        parts = [
            jax.lax.dynamic_slice(vector, (start,), (leaf.size,)).reshape(leaf.shape).astype(leaf.dtype)
            for start, leaf in zip(starts, leaves, strict=False)
        ]
        return jax.tree.unflatten(structure, parts)

    return vector, unpack
