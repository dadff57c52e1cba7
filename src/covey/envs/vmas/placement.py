"""Random places for entities, none too close to another."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from covey.envs.vmas.geometry import norm
from covey.types import Array, Key

TRIES = 8  # places proposed at once


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

    `occupied [M, 2]` counts as before all. The bounds must leave room, or this never ends.
    """
    low, high = jnp.array([x_bounds[0], y_bounds[0]]), jnp.array([x_bounds[1], y_bounds[1]])
    taken = jnp.zeros((0, 2)) if occupied is None else occupied
    for key_entity in jax.random.split(key, num):
        taken = jnp.concatenate([taken, _place_one(key_entity, taken, min_distance, low, high)[None]])
    return taken[-num:]


def _place_one(key: Key, taken: Array, min_distance: float, low: Array, high: Array) -> Array:
    def propose(key: Key) -> tuple[Array, Array]:
        """The first of several places that is free, and whether there was one."""
        places = jax.random.uniform(key, (TRIES, 2), minval=low, maxval=high)
        free = jnp.all(norm(places[:, None] - taken) >= min_distance, -1)
        return places[jnp.argmax(free)], free.any()

    if not len(taken):
        return jax.random.uniform(key, (2,), minval=low, maxval=high)

    def retry(loop: tuple[Key, Array, Array]) -> tuple[Key, Array, Array]:
        key, _, _ = loop
        key, key_propose = jax.random.split(key)
        return key, *propose(key_propose)

    start = retry((key, jnp.zeros(2), jnp.zeros((), bool)))
    return jax.lax.while_loop(lambda loop: ~loop[2], retry, start)[1]
