"""Lidar: how far an agent sees along rays before an entity stops them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np

from covey.envs.vmas.geometry import cross, dot, norm, rotate, unit
from covey.envs.vmas.shapes import Box, Line, Sphere
from covey.envs.vmas.world import World, WorldState
from covey.types import Array


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Lidar:
    """Called with a state, it returns the distances `[N, num_rays]` of N `seers` to the nearest of `targets`.

    Rays turn with the agent; anything farther away than `max_range` counts as being at `max_range`. No agent sees
    itself. The fields are for the renderer, which finds lidars among a scenario's attributes.
    """

    world: World
    seers: np.ndarray  # rows of the world's arrays
    targets: np.ndarray
    angles: np.ndarray  # [num_rays], from the agent's heading
    max_range: float

    def __call__(self, state: WorldState) -> Array:
        origin = state.position[self.seers][:, None, None]  # [N, rays, targets, 2]
        direction = (state.rotation[self.seers][:, None] + self.angles)[..., None]
        nearest = jnp.full((len(self.seers), len(self.angles)), self.max_range)
        for shape, cast in ((Sphere, _cast_to_spheres), (Box, _cast_to_boxes), (Line, _cast_to_lines)):
            rows = self.targets[[isinstance(self.world.entities[i].shape, shape) for i in self.targets]]
            if len(rows):
                seen = cast(self.world, state, rows, origin, direction, self.max_range)
                seen = jnp.where((self.seers[:, None] == rows)[:, None], self.max_range, seen)
                nearest = jnp.minimum(nearest, seen.min(-1))
        return nearest


def make_lidar(
    world: World,
    seers: Sequence[int] | np.ndarray,
    targets: Sequence[int] | np.ndarray,
    *,
    num_rays: int,
    max_range: float,
    angle_start: float = 0.0,
    angle_end: float = 2 * np.pi,
) -> Lidar:
    """A lidar with evenly spread rays; `seers` and `targets` are rows of the world's arrays."""
    full_circle = (angle_start - angle_end) % (2 * np.pi) < 1e-5
    return Lidar(
        world=world,
        seers=np.asarray(seers, int),
        targets=np.asarray(targets, int),
        angles=np.linspace(angle_start, angle_end, num_rays, endpoint=not full_circle, dtype=np.float32),
        max_range=max_range,
    )


def _numbers(world: World, rows: np.ndarray, name: str) -> np.ndarray:
    return np.array([getattr(world.entities[i].shape, name) for i in rows], np.float32)


def _cast_to_spheres(
    world: World, state: WorldState, rows: np.ndarray, origin: Array, angle: Array, max_range: float
) -> Array:
    radius = _numbers(world, rows, "radius")
    way = unit(angle)
    to_centre = state.position[rows] - origin
    along = dot(to_centre, way)
    aside = norm(to_centre - along[..., None] * way)
    half_chord = jnp.sqrt(jnp.maximum(radius**2 - aside**2, 1e-8))
    return jnp.where((aside < radius) & (along > 0), jnp.abs(along) - half_chord, max_range)


def _cast_to_boxes(
    world: World, state: WorldState, rows: np.ndarray, origin: Array, angle: Array, max_range: float
) -> Array:
    half = np.stack([_numbers(world, rows, "length"), _numbers(world, rows, "width")], -1) / 2
    local = rotate(origin - state.position[rows], -state.rotation[rows])
    way = unit(angle - state.rotation[rows])
    low, high = (-half - local) / way, (half - local) / way
    enter = jnp.max(jnp.minimum(low, high), -1)
    leave = jnp.min(jnp.maximum(low, high), -1)
    return jnp.where((leave >= enter) & (enter > 0), enter, max_range)


def _cast_to_lines(
    world: World, state: WorldState, rows: np.ndarray, origin: Array, angle: Array, max_range: float
) -> Array:
    line = unit(state.rotation[rows]) * _numbers(world, rows, "length")[:, None]
    way = unit(angle)
    to_origin = origin - state.position[rows]
    denominator = cross(line, way)
    safe = jnp.where(denominator == 0, 1.0, denominator)
    along_line, along_ray = cross(to_origin, way) / safe, cross(to_origin, line) / safe
    hit = (denominator != 0) & (jnp.abs(along_line) <= 0.5) & (along_ray >= 0)
    return jnp.where(hit, along_ray, max_range)
