"""Sums and means over devices, of whole trees at once.

A collective costs a meeting of all devices, whatever its size, so the leaves of a tree travel as one vector: the
gradient of a network is one meeting, not one for each of its arrays. Without an axis there is one device, and trees
stay as they are.
"""

from __future__ import annotations

import jax
from jax.flatten_util import ravel_pytree

from covey.types import PyTree


def sum_over_devices(tree: PyTree, axis_name: str | None) -> PyTree:
    if axis_name is None:
        return tree
    vector, unravel = ravel_pytree(tree)
    return unravel(jax.lax.psum(vector, axis_name))


def mean_over_devices(tree: PyTree, axis_name: str | None) -> PyTree:
    if axis_name is None:
        return tree
    vector, unravel = ravel_pytree(tree)
    return unravel(jax.lax.pmean(vector, axis_name))


def gather_over_devices(tree: PyTree, axis_name: str) -> PyTree:
    """The trees of all devices, on each of them, along a new leading axis."""
    vector, unravel = ravel_pytree(tree)
    return jax.vmap(unravel)(jax.lax.all_gather(vector, axis_name))
