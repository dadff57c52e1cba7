"""Means over a batch block by block: a CPU computes gradients faster where all that a block's layers write stays in a
core's cache. Each pass over the activations of a whole minibatch goes to main memory and back, which for small networks
is a good part of the time. On accelerators a batch is one block, as they are fast with large ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp

from covey.types import Array

_T = TypeVar("_T")
CPU_ROWS = 640  # in a block, at most: of 384 to 1,536, about the best for layers of 64, 128 and 256


def mean_over_blocks(function: Callable[[Array], _T], indices: Array, rows_per_index: int = 1) -> _T:
    """The mean of `function(block)` over equal blocks of `indices [N]`: up to rounding the same as `function(indices)`,
    if that is a tree of means over its argument. An index stands for so many rows: its agents. The steps of a
    sequence do not count, though layers around a memory compute them at once: the memory itself takes them one after
    another, and blocks by steps too would be tiny for it."""
    num_blocks = _num_blocks(len(indices), rows_per_index) if jax.default_backend() == "cpu" else 1
    if num_blocks == 1:
        return function(indices)
    blocks = indices.reshape(num_blocks, -1)
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(function, blocks[0]))

    def add(total: _T, block: Array) -> tuple[_T, None]:
        return jax.tree.map(jnp.add, total, function(block)), None

    total, _ = jax.lax.scan(add, zeros, blocks)
    mean: _T = jax.tree.map(lambda x: x / num_blocks, total)
    return mean


def _num_blocks(num_indices: int, rows_per_index: int) -> int:
    """The smallest number that divides the indices and keeps blocks within `CPU_ROWS`, or leaves one index in each; one
    where such blocks would be less than an eighth full, as of a prime number of indices."""
    divisors = (n for n in range(1, num_indices + 1) if num_indices % n == 0)
    number = next((n for n in divisors if num_indices // n * rows_per_index <= CPU_ROWS), num_indices)
    return number if num_indices // number * rows_per_index >= CPU_ROWS / 8 else 1
