"""Decisions that several seeds in one program make together.

Several seeds are one seed's program under `vmap`. There, a `cond` on one seed's value runs both of its branches, and a
loop runs for all seeds until the last is done, copying its carry. So seeds decide together, and a branch stays one. A
seed that did not need the branch keeps its old values (`envs.batch`, when it refills pools of fresh states), computes
something that it does not use, or would have decided the same anyway, because seeds count updates in step. So no seed's
numbers depend on the others, except for rounding: XLA may order operations differently in a larger program.
"""

from __future__ import annotations

from typing import Any

import jax

from covey.types import Array


@jax.custom_batching.custom_vmap
def any_seed(flag: Array) -> Array:
    """Whether `flag []` holds for any seed of the program; with one seed, `flag` itself."""
    return flag


@jax.custom_batching.custom_vmap
def least_of_seeds(number: Array) -> Array:
    """The smallest `number []` of all seeds of the program; with one seed, `number` itself."""
    return number


@least_of_seeds.def_vmap
def _least_of_batch(axis_size: int, in_batched: list[bool], number: Array) -> tuple[Any, bool]:
    return number.min(axis=0) if in_batched[0] else number, False


@any_seed.def_vmap
def _any_of_batch(axis_size: int, in_batched: list[bool], flag: Array) -> tuple[Any, bool]:
    return flag.any(axis=0) if in_batched[0] else flag, False
