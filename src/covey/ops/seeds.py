"""Decisions that seeds which train at once share.

Several seeds in one program are one seed's program under `vmap`, and there a `cond` runs both of its branches and a
loop goes on for all until the last is done, copying what it carries. So they decide together, and a branch stays a
branch: where it is harmless that a seed does what only another one needs, such as filling its pool of fresh states; and
where all must decide alike anyway, as they count updates in step.
"""

from __future__ import annotations

from typing import Any

import jax

from covey.types import Array


@jax.custom_batching.custom_vmap
def any_seed(flag: Array) -> Array:
    """Whether `flag []` holds for any of the seeds that train at once; of one seed, as it is."""
    return flag


@any_seed.def_vmap
def _any_of_batch(axis_size: int, in_batched: list[bool], flag: Array) -> tuple[Any, bool]:
    return flag.any(axis=0) if in_batched[0] else flag, False
