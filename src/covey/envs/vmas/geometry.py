"""Nearest points of shapes to each other, as VMAS finds them, and small things about arrays of points `[…, 2]`.

Among candidates at the same distance the first counts, as there. A `Segment` is a line, or a side of a box.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from covey.envs.vmas.vectors import Vector, choose, stack_vectors
from covey.types import Array, pytree


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


# ------------------------------------------------------------------------------------------------- nearest points


@pytree
class Segment:
    centre: Vector
    direction: Vector  # of length 1
    half_length: Array


@pytree
class Rectangle:
    centre: Vector
    angle: Array
    length: Array
    width: Array


def nearest_on_segment(segment: Segment, point: Vector) -> Vector:
    along = (point - segment.centre).dot(segment.direction)
    limited = jnp.clip(along, -segment.half_length, segment.half_length)
    return segment.centre + segment.direction * limited


def nearest_on_box(box: Rectangle, point: Vector) -> Vector:
    """The nearest point of the box's outline, from outside or from within."""
    local = (point - box.centre).turned(-box.angle)
    half = Vector(x=box.length / 2, y=box.width / 2)
    clamped = Vector(x=jnp.clip(local.x, -half.x, half.x), y=jnp.clip(local.y, -half.y, half.y))
    gap = Vector(x=half.x - jnp.abs(local.x), y=half.y - jnp.abs(local.y))
    to_x = gap.x <= gap.y  # from within, to the nearer pair of sides
    on_side = Vector(
        x=jnp.where(to_x, jnp.where(local.x < 0, -half.x, half.x), local.x),
        y=jnp.where(to_x, local.y, jnp.where(local.y < 0, -half.y, half.y)),
    )
    inside = (gap.x > 0) & (gap.y > 0)
    return box.centre + choose(inside, on_side, clamped).turned(box.angle)


def nearest_of_segments(a: Segment, b: Segment) -> tuple[Vector, Vector]:
    """The points of two segments that are nearest to each other; the same point twice where they cross."""
    a_half, b_half = (s.direction * s.half_length for s in (a, b))
    a1, a2, b1, b2 = a.centre + a_half, a.centre - a_half, b.centre + b_half, b.centre - b_half
    point_a, point_b = _nearest_pair(
        [
            (a1, nearest_on_segment(b, a1)),
            (a2, nearest_on_segment(b, a2)),
            (nearest_on_segment(a, b1), b1),
            (nearest_on_segment(a, b2), b2),
        ]
    )
    r, s = a2 - a1, b2 - b1
    denominator = r.cross(s)
    safe = jnp.where(denominator == 0, 1.0, denominator)
    t, u = (b1 - a1).cross(s) / safe, (b1 - a1).cross(r) / safe
    crossing = (denominator != 0) & (t >= 0) & (t <= 1) & (u >= 0) & (u <= 1)
    meeting = a1 + r * t
    return choose(crossing, meeting, point_a), choose(crossing, meeting, point_b)


def nearest_of_box_and_segment(box: Rectangle, segment: Segment) -> tuple[Vector, Vector]:
    """On the box and on the segment."""
    on_box, on_segment = nearest_of_segments(box_sides(box), segment)
    return _nearest_pair([(on_box[i], on_segment[i]) for i in range(4)])


def nearest_of_boxes(box: Rectangle, other: Rectangle) -> tuple[Vector, Vector]:
    """On the box and on the `other`: of each side of the one with each side of the other, and then vice versa."""
    sides, other_sides = box_sides(box), box_sides(other)
    on_other, on_box = nearest_of_segments(_inserted(other_sides, 0), _inserted(sides, 1))
    on_box_2, on_other_2 = nearest_of_segments(_inserted(sides, 0), _inserted(other_sides, 1))
    return _nearest_of_many(_side_by_side(on_box, on_box_2), _side_by_side(on_other, on_other_2))


def _inserted(segments: Segment, axis: int) -> Segment:
    """`segments` with a new axis of size 1."""
    inserted: Segment = jax.tree.map(lambda x: jnp.expand_dims(x, axis), segments)
    return inserted


def _side_by_side(first: Vector, second: Vector) -> Vector:
    """Two grids of points `[4, 4, …]` as one list `[32, …]`."""
    joined: Vector = jax.tree.map(
        lambda *grids: jnp.concatenate([grid.reshape(-1, *grid.shape[2:]) for grid in grids]), first, second
    )
    return joined


def box_sides(box: Rectangle) -> Segment:
    """The four sides along a new first axis: right, left, upper, lower."""
    x, y = Vector.heading(box.angle), Vector.heading(box.angle + jnp.pi / 2)
    half_x, half_y = x * (box.length / 2), y * (box.width / 2)
    centre = box.centre
    half_length = jnp.stack(jnp.broadcast_arrays(box.width, box.width, box.length, box.length)) / 2
    return Segment(
        centre=stack_vectors([centre + half_x, centre - half_x, centre + half_y, centre - half_y]),
        direction=stack_vectors([y, y, x, x]),
        half_length=half_length,
    )


def inner_point(outside: Vector, surface: Vector, centre: Vector) -> tuple[Vector, Array]:
    """Where the line from `outside` through `surface` comes nearest to a box's centre, and how far inside that is.

    Solid boxes push from there, so that what is deep inside is pushed out on the side where it came in. Where both
    points coincide, VMAS returns twice the surface point, at depth 0, so the push then depends on the origin.
    """
    way = surface - outside
    length = way.norm()
    touching = length == 0
    direction = way / jnp.where(touching, 1.0, length)
    depth = jnp.where(touching, 0.0, direction.dot(centre - surface))
    offset = choose(touching, surface, direction * depth)
    return surface + offset, jnp.abs(depth)


def _nearest_pair(candidates: list[tuple[Vector, Vector]]) -> tuple[Vector, Vector]:
    """Of several pairs of points, the one at the smallest distance."""
    (best_a, best_b), *others = candidates
    shortest = (best_a - best_b).norm()
    for a, b in others:
        distance = (a - b).norm()
        nearer = distance < shortest
        best_a, best_b = choose(nearer, a, best_a), choose(nearer, b, best_b)
        shortest = jnp.minimum(distance, shortest)
    return best_a, best_b


def _nearest_of_many(on_a: Vector, on_b: Vector) -> tuple[Vector, Vector]:
    """Of pairs of points along the first axis, the one at the smallest distance, in one reduction.

    The compiler would repeat a chain of many choices, and all that leads to them, for every coordinate of the result.
    """
    distance = (on_a - on_b).norm()
    number = jax.lax.broadcasted_iota(jnp.int32, distance.shape, 0)

    def nearer(one: tuple[Array, ...], other: tuple[Array, ...]) -> tuple[Array, ...]:
        keep = (one[0] < other[0]) | ((one[0] == other[0]) & (one[1] <= other[1]))
        return tuple(jnp.where(keep, a, b) for a, b in zip(one, other, strict=True))

    worst = (np.float32(np.inf), np.int32(len(distance)), *[np.float32(0.0)] * 4)
    _, _, a_x, a_y, b_x, b_y = jax.lax.reduce((distance, number, on_a.x, on_a.y, on_b.x, on_b.y), worst, nearer, (0,))
    return Vector(x=a_x, y=a_y), Vector(x=b_x, y=b_y)
