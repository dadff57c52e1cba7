"""Decisions that seeds which train at once share.

Several seeds in one program are one seed's program under `vmap`, and there a `cond` runs both of its branches and a
loop goes on for all until the last is done, copying what it carries. So they decide together, and a branch stays a
branch. Inside it, a seed that only came along keeps what it had (`envs.batch` when it refills pools of fresh states),
computes what it will not use, or decides as all do anyway, since they count updates in step. So no seed's numbers
depend on which others train beside it, except for rounding: XLA may order operations differently in a larger program.
"""

from __future__ import annotations

from typing import Any

import jax

from covey.types import Array


@jax.custom_batching.custom_vmap
def any_seed(flag: Array) -> Array:
    """Whether `flag []` holds for any of the seeds that train at once; of one seed, as it is."""
    return flag


@jax.custom_batching.custom_vmap
def least_of_seeds(number: Array) -> Array:
    """The smallest `number []` of the seeds that train at once; of one seed, as it is."""
    return number


@least_of_seeds.def_vmap
def _least_of_batch(axis_size: int, in_batched: list[bool], number: Array) -> tuple[Any, bool]:
    return number.min(axis=0) if in_batched[0] else number, False


@any_seed.def_vmap
def _any_of_batch(axis_size: int, in_batched: list[bool], flag: Array) -> tuple[Any, bool]:
    return flag.any(axis=0) if in_batched[0] else flag, False
