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


def offsets_to_others(position: Array) -> Array:
    """From each of `position [N, 2]` to all the rest: `[N, 2(N - 1)]`."""
    count = len(position)
    return (position[others(count)] - position[:, None]).reshape(count, -1)
