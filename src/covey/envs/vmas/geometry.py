"""Nearest points of shapes to each other, as VMAS finds them. Any leading axes; points are `[…, 2]`, angles `[…]`.

Among candidates at the same distance the first counts, as there. A `Segment` is a line, or a side of a box.
"""

from __future__ import annotations

import jax.numpy as jnp

from covey.types import Array, pytree


@pytree
class Segment:
    centre: Array
    direction: Array  # of length 1
    half_length: Array


def unit(angle: Array) -> Array:
    return jnp.stack([jnp.cos(angle), jnp.sin(angle)], -1)


def rotate(vector: Array, angle: Array) -> Array:
    """`vector` turned by `angle`."""
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    x, y = vector[..., 0], vector[..., 1]
    return jnp.stack([x * cos - y * sin, x * sin + y * cos], -1)


def cross(a: Array, b: Array) -> Array:
    return a[..., 0] * b[..., 1] - a[..., 1] * b[..., 0]


def dot(a: Array, b: Array) -> Array:
    return a[..., 0] * b[..., 0] + a[..., 1] * b[..., 1]


def norm(vector: Array) -> Array:
    return jnp.sqrt(dot(vector, vector))


def nearest_on_segment(segment: Segment, point: Array) -> Array:
    along = dot(point - segment.centre, segment.direction)
    limited = jnp.clip(along, -segment.half_length, segment.half_length)
    return segment.centre + limited[..., None] * segment.direction


def nearest_on_box(centre: Array, angle: Array, length: Array, width: Array, point: Array) -> Array:
    """The nearest point of the box's outline, from outside or from within."""
    local = rotate(point - centre, -angle)
    half = jnp.stack([length, width], -1) / 2
    clamped = jnp.clip(local, -half, half)
    gap = half - jnp.abs(local)
    side = jnp.where(local < 0, -half, half)
    to_x = gap[..., 0] <= gap[..., 1]  # from within, to the nearer pair of sides
    on_side = jnp.stack(
        [jnp.where(to_x, side[..., 0], local[..., 0]), jnp.where(to_x, local[..., 1], side[..., 1])], -1
    )
    inside = jnp.all(gap > 0, axis=-1, keepdims=True)
    return centre + rotate(jnp.where(inside, on_side, clamped), angle)


def nearest_of_segments(a: Segment, b: Segment) -> tuple[Array, Array]:
    """The points of two segments that are nearest to each other; twice the same where they cross."""
    a_half, b_half = (s.half_length[..., None] * s.direction for s in (a, b))
    a1, a2, b1, b2 = a.centre + a_half, a.centre - a_half, b.centre + b_half, b.centre - b_half
    on_a = jnp.stack([a1, a2, nearest_on_segment(a, b1), nearest_on_segment(a, b2)])
    on_b = jnp.stack([nearest_on_segment(b, a1), nearest_on_segment(b, a2), b1, b2])
    point_a, point_b = _nearest_pair(on_a, on_b)

    r, s = a2 - a1, b2 - b1
    denominator = cross(r, s)
    safe = jnp.where(denominator == 0, 1.0, denominator)
    t, u = cross(b1 - a1, s) / safe, cross(b1 - a1, r) / safe
    crossing = ((denominator != 0) & (t >= 0) & (t <= 1) & (u >= 0) & (u <= 1))[..., None]
    meeting = a1 + t[..., None] * r
    return jnp.where(crossing, meeting, point_a), jnp.where(crossing, meeting, point_b)


def nearest_of_box_and_segment(
    centre: Array, angle: Array, length: Array, width: Array, segment: Segment
) -> tuple[Array, Array]:
    """On the box and on the segment."""
    sides = box_sides(centre, angle, length, width)
    on_box, on_segment = nearest_of_segments(sides, _repeat(segment, 4))
    return _nearest_pair(on_box, on_segment)


def nearest_of_boxes(
    centre: Array, angle: Array, length: Array, width: Array, other: tuple[Array, Array, Array, Array]
) -> tuple[Array, Array]:
    """On the box and on the `other`, which is given by the same four."""
    sides, other_sides = box_sides(centre, angle, length, width), box_sides(*other)
    on_other, on_box = nearest_of_box_and_segment(*_four(*other), sides)
    on_box_2, on_other_2 = nearest_of_box_and_segment(*_four(centre, angle, length, width), other_sides)
    return _nearest_pair(jnp.concatenate([on_box, on_box_2]), jnp.concatenate([on_other, on_other_2]))


def box_sides(centre: Array, angle: Array, length: Array, width: Array) -> Segment:
    """The four sides along a new leading axis: right, left, upper, lower."""
    x, y = unit(angle), unit(angle + jnp.pi / 2)
    half_x, half_y = x * length[..., None] / 2, y * width[..., None] / 2
    return Segment(
        centre=jnp.stack([centre + half_x, centre - half_x, centre + half_y, centre - half_y]),
        direction=jnp.stack([y, y, x, x]),
        half_length=jnp.stack([width, width, length, length]) / 2,
    )


def inner_point(outside: Array, surface: Array, centre: Array) -> tuple[Array, Array]:
    """Where the way from `outside` through `surface` comes nearest to a box's centre, and how far in that is.

    Solid boxes push from there, so that what is deep inside is pushed out on the side where it came in. Where both
    points are one, VMAS returns twice the surface point at depth 0; what pushes then depends on the origin.
    """
    way = surface - outside
    length = norm(way)
    touching = length == 0
    direction = way / jnp.where(touching, 1.0, length)[..., None]
    depth = jnp.where(touching, 0.0, dot(direction, centre - surface))
    offset = jnp.where(touching[..., None], surface, direction * depth[..., None])
    return surface + offset, jnp.abs(depth)


def _nearest_pair(a: Array, b: Array) -> tuple[Array, Array]:
    """Of candidates along the first axis, the pair at the smallest distance."""
    best = jnp.argmin(norm(a - b), axis=0)[None, ..., None]
    return jnp.take_along_axis(a, best, 0)[0], jnp.take_along_axis(b, best, 0)[0]


def _four(centre: Array, angle: Array, length: Array, width: Array) -> tuple[Array, Array, Array, Array]:
    """A box for each side of another, along a new leading axis."""
    return jnp.stack([centre] * 4), jnp.stack([angle] * 4), jnp.stack([length] * 4), jnp.stack([width] * 4)


def _repeat(segment: Segment, times: int) -> Segment:
    def expand(x: Array) -> Array:
        return jnp.broadcast_to(x[None], (times, *x.shape))

    return Segment(
        centre=expand(segment.centre), direction=expand(segment.direction), half_length=expand(segment.half_length)
    )
