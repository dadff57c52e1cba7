"""Lidar: how far an agent sees along rays before an entity stops them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax.numpy as jnp
import numpy as np

from covey.envs.vmas.geometry import cross, dot, norm, rotate, unit
from covey.envs.vmas.shapes import Box, Line, Sphere
from covey.envs.vmas.world import World, WorldState
from covey.types import Array


def make_lidar(
    world: World,
    seers: Sequence[int] | np.ndarray,
    targets: Sequence[int] | np.ndarray,
    *,
    num_rays: int,
    max_range: float,
    angle_start: float = 0.0,
    angle_end: float = 2 * np.pi,
) -> Callable[[WorldState], Array]:
    """`measure(state) -> [N, num_rays]`, distances of the N `seers` to the nearest of `targets`, at most `max_range`.

    Rays turn with the agent. Both are rows of the world's arrays; no agent sees itself.
    """
    full_circle = (angle_start - angle_end) % (2 * np.pi) < 1e-5
    angles = np.linspace(angle_start, angle_end, num_rays, endpoint=not full_circle, dtype=np.float32)
    seers, targets = np.asarray(seers, int), np.asarray(targets, int)
    by_shape = {
        shape: rows
        for shape in (Sphere, Box, Line)
        if len(rows := targets[[isinstance(world.entities[i].shape, shape) for i in targets]])
    }
    casts = {Sphere: _cast_to_spheres, Box: _cast_to_boxes, Line: _cast_to_lines}

    def measure(state: WorldState) -> Array:
        origin = state.position[seers][:, None, None]  # [N, rays, targets, 2]
        direction = (state.rotation[seers][:, None] + angles)[..., None]
        nearest = jnp.full((len(seers), num_rays), max_range)
        for shape, rows in by_shape.items():
            seen = casts[shape](world, state, rows, origin, direction, max_range)
            seen = jnp.where((seers[:, None] == rows)[:, None], max_range, seen)
            nearest = jnp.minimum(nearest, seen.min(-1))
        return nearest

    return measure


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
