"""Random places for entities, none too close to another."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from covey.envs.vmas.geometry import norm
from covey.errors import UsageError
from covey.types import Array, Key

TRIES = 8  # places proposed at once
JAMMED = 0.547  # share of the area that discs cover when placed at random until no more fit (Feder, 1980)


def place_apart(
    key: Key,
    num: int,
    *,
    min_distance: float,
    x_bounds: tuple[float, float],
    y_bounds: tuple[float, float],
    occupied: Array | None = None,
) -> Array:
    """`[num, 2]`, uniform within the bounds, one after another, each at least `min_distance` from those before it.

    `occupied [M, 2]` are earlier places. Without room for all, the search would never end, so that is a UsageError.
    """
    check_room(num + (occupied is not None), min_distance, x_bounds, y_bounds)
    low, high = jnp.array([x_bounds[0], y_bounds[0]]), jnp.array([x_bounds[1], y_bounds[1]])
    before = jnp.zeros((0, 2)) if occupied is None else occupied
    nowhere = jnp.full((num, 2), jnp.inf)

    def place(i: Array, places: Array) -> Array:
        def propose(attempt: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            """The first of several places that is free, and whether there was one."""
            number, _, _ = attempt
            key_attempt = jax.random.fold_in(jax.random.fold_in(key, i), number)
            proposed = jax.random.uniform(key_attempt, (TRIES, 2), minval=low, maxval=high)
            free = jnp.all(norm(proposed[:, None] - places) >= min_distance, -1)
            return number + 1, proposed[jnp.argmax(free)], free.any()

        start = (jnp.zeros((), jnp.int32), jnp.zeros(2), jnp.zeros((), bool))
        found = jax.lax.while_loop(lambda attempt: ~attempt[2], propose, start)[1]
        return places.at[len(before) + i].set(found)

    placed: Array = jax.lax.fori_loop(0, num, place, jnp.concatenate([before, nowhere]))
    return placed[len(before) :]


def check_room(num: int, min_distance: float, x_bounds: tuple[float, float], y_bounds: tuple[float, float]) -> None:
    """Raises UsageError where `num` places at random cannot be `min_distance` apart.

    Discs of that diameter around the places lie within the bounds widened by it, and cannot overlap.
    """
    width, height = x_bounds[1] - x_bounds[0], y_bounds[1] - y_bounds[0]
    covered = num * math.pi / 4 * min_distance**2
    if num > 1 and not covered <= JAMMED * (width + min_distance) * (height + min_distance):
        raise UsageError(
            f"task: {num} places at least {min_distance:.4g} apart do not fit into {width:.4g} x {height:.4g}; "
            "take fewer or smaller bodies, or a larger world"
        )
