"""Cutting batches into contiguous sequences, and taking some of them."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from covey.types import Array

_T = TypeVar("_T")


def cut(x: Array, length: int) -> Array:
    """`[T, B, …]` to contiguous sequences `[(T / length) * B, length, …]`."""
    sequences = x.reshape(-1, length, *x.shape[1:])
    return jnp.moveaxis(sequences, 2, 1).reshape(-1, length, *x.shape[2:])


def take_environments(samples: _T, indices: Array) -> _T:
    """Selects `indices` of a dataclass of steps `[T, B, …]` with a `carry [B, …]`; returns them as `[T, n, …]`."""
    steps: Any = samples
    chosen = jax.tree.map(lambda x: x[:, indices], dataclasses.replace(steps, carry=None))
    carry = jax.tree.map(lambda x: x[indices], steps.carry)
    taken: _T = dataclasses.replace(chosen, carry=carry)
    return taken


def take(samples: _T, indices: Array) -> _T:
    """Selects `indices` of a dataclass of sequences `[N, L, …]` with a `carry [N, …]`; returns them as `[L, n, …]`."""
    chosen: Any = jax.tree.map(lambda x: x[indices], samples)
    steps = jax.tree.map(lambda x: jnp.moveaxis(x, 1, 0), dataclasses.replace(chosen, carry=None))
    taken: _T = dataclasses.replace(steps, carry=chosen.carry)
    return taken
