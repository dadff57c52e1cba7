"""Means over a batch, computed block by block.

A CPU computes gradients faster if everything that a block's layers write stays in a core's cache. With a whole
minibatch, each pass over the activations goes to main memory and back, which takes a large share of the time of small
networks. Accelerators are fast with large batches, so there a batch is one block.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp

from covey.types import Array

_T = TypeVar("_T")
MAX_ROWS_PER_BLOCK = 640  # on a CPU; of sizes from 384 to 1,536, about the best for layers of 64, 128 and 256


def mean_over_blocks(function: Callable[[Array], _T], indices: Array, rows_per_index: int = 1) -> _T:
    """The mean of `function(block)` over equal blocks of `indices [N]`.

    Up to rounding this equals `function(indices)`, if `function` returns a tree of means over its argument. An index
    selects `rows_per_index` rows, one per agent. The steps of a sequence are not counted as rows, although layers
    around a memory compute them at once: the memory itself takes them one after another, and blocks that counted steps
    would be too small for it.
    """
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
    """The smallest number of equal blocks of at most `MAX_ROWS_PER_BLOCK` rows, or of one index each.

    1 if such blocks would be less than an eighth full, as with a prime number of indices.
    """
    divisors = (n for n in range(1, num_indices + 1) if num_indices % n == 0)
    number = next((n for n in divisors if num_indices // n * rows_per_index <= MAX_ROWS_PER_BLOCK), num_indices)
    return number if num_indices // number * rows_per_index >= MAX_ROWS_PER_BLOCK / 8 else 1
