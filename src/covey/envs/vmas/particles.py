"""What the particle worlds, the `simple_*` scenarios, share: entities start anywhere and are seen by their offsets."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from covey.envs.vmas.geometry import norm
from covey.envs.vmas.world import World, WorldState
from covey.types import Array, Key


def scatter(world: World, key: Key, reach: float | np.ndarray = 1.0) -> WorldState:
    """All entities at rest, each uniformly within ±`reach`, which may be `[E, 1]`."""
    state = world.start()
    return dataclasses.replace(
        state, position=jnp.asarray(reach) * jax.random.uniform(key, state.position.shape, minval=-1.0)
    )


def offsets(viewers: Array, seen: Array) -> Array:
    """From each of `viewers [N, 2]` to all of `seen [M, 2]`: `[N, 2M]`."""
    return (seen - viewers[:, None]).reshape(len(viewers), -1)


def distances(a: Array, b: Array) -> Array:
    """Between all of `a [N, 2]` and all of `b [M, 2]`: `[N, M]`."""
    return norm(a[:, None] - b)


def others(count: int) -> np.ndarray:
    """Row i holds the numbers of all but i, in order: `[count, count - 1]`."""
    return np.array([[j for j in range(count) if j != i] for i in range(count)], int).reshape(count, count - 1)


def read_offsets(observation: Array, start: int, count: int) -> Array:
    """The `count` offsets that begin at number `start` of observations `[N, F]`: `[N, count, 2]`."""
    return observation[:, start : start + 2 * count].reshape(len(observation), count, 2)


def nearest_of(vectors: Array, distance: Array) -> Array:
    """Of `vectors [N, M, 2]`, the one at the smallest of `distance [N, M]`: `[N, 2]`."""
    return jnp.take_along_axis(vectors, jnp.argmin(distance, -1)[:, None, None], 1)[:, 0]


def full_speed(vector: Array) -> Array:
    """The largest action, in −1…1, along `vector [N, 2]`."""
    return vector / jnp.maximum(jnp.max(jnp.abs(vector), -1, keepdims=True), 1e-6)


def offsets_to_others(position: Array) -> Array:
    """From each of `position [N, 2]` to all the rest: `[N, 2(N - 1)]`."""
    count = len(position)
    return (position[others(count)] - position[:, None]).reshape(count, -1)
