"""Priorities in Flashbax's sum tree, kept exact.

The tree is an array of its levels, from the root to the leaves, in which each node is the sum of its two children.
Flashbax adds a leaf's change to every node above it. The rounding errors of all changes add up, until draws end in
leaves without priority. Here, each node above a leaf is computed again as the sum of its children.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from covey.types import Array


def with_values(tree: Any, leaves: Array, values: Array, where: Array) -> Any:
    """The tree with `values [N]` in `leaves [N]`, only where `where [N]` is true."""
    nodes = tree.nodes
    places = _first(tree.tree_depth) + leaves
    nodes = nodes.at[places].set(jnp.where(where, values, nodes[places]))
    for level in reversed(range(tree.tree_depth)):
        leaves = leaves // 2
        children = _first(level + 1) + 2 * leaves
        nodes = nodes.at[_first(level) + leaves].set(nodes[children] + nodes[children + 1])
    largest = jnp.maximum(tree.max_recorded_priority, jnp.max(jnp.where(where, values, 0.0)))
    return tree.replace(nodes=nodes, max_recorded_priority=largest)


def with_new(tree: Any, leaves: Array) -> Any:
    """The tree after Flashbax added `leaves`; those that can be drawn receive the largest priority ever recorded.

    Flashbax gives them that priority too, but rounded down to a whole number.
    """
    nodes = tree.nodes
    places = _first(tree.tree_depth) + leaves
    nodes = nodes.at[places].set(jnp.where(nodes[places] > 0, tree.max_recorded_priority, 0.0))
    levels = [nodes[_first(tree.tree_depth) :]]
    while len(levels[0]) > 1:
        levels.insert(0, levels[0][0::2] + levels[0][1::2])
    return tree.replace(nodes=jnp.concatenate(levels))


def _first(level: int) -> int:
    """Where a level begins in the array of nodes."""
    return (1 << level) - 1
