"""One step of a world: forces, collisions, joints, and semi-implicit Euler over substeps.

Bodies that overlap push each other apart with a force that grows softly with the depth, F = k·m·softplus(depth / m),
where k is the world's `collision_force` and m its `contact_margin`; joints pull their anchors together in the same way.
Which pairs can ever touch is known from the world's description; all pairs of a kind of shapes are computed at once, as
a grid of the bodies that can touch any.

Everything that moves is in `Motion`: arrays `[E]`, or `[E, B]` for a batch of environments, which `environments_last`
puts there once per step, so that all of the engine's arithmetic runs along them.

Differences from VMAS:
- VMAS skips a pair in all environments of a batch, unless in some of them the circles around the shapes meet. Here each
  environment decides for itself, as VMAS does with one environment.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from covey.envs.vmas import geometry
from covey.envs.vmas.dynamics import Bodies
from covey.envs.vmas.geometry import Rectangle, Segment
from covey.envs.vmas.shapes import Box, Line, Sphere
from covey.envs.vmas.vectors import Vector, choose, column, environments_last
from covey.envs.vmas.world import Entity, World, WorldState
from covey.types import Array, pytree

LINE_MARGIN = 4 / 600  # the thickness of lines and of the sides of boxes
TOO_CLOSE = 1e-6  # no direction to push in
MOST_UNROLLED = (
    15  # substeps; more run in a loop, whose body is compiled once (boxes collide in thousands of operations)
)

Step = Callable[[WorldState, Array, Array, Array], WorldState]


@pytree
class Motion:
    """E entities; any further axes are environments."""

    position: Vector
    velocity: Vector
    rotation: Array
    spin: Array


def make_step(world: World) -> Step:
    """`step(state, u [A, U], communication [A, C], external [E, 2])`, where `external` are further forces."""
    act, move = _make_act(world), _make_move(world)

    def step(state: WorldState, u: Array, communication: Array, external: Array) -> WorldState:
        force, torque, memory = act(state, u)
        motion = (state.position, state.velocity, state.rotation, state.angular_velocity)
        position, velocity, rotation, spin = move(*motion, force + external, torque, state.joint_rotation)
        return dataclasses.replace(
            state,
            position=position,
            velocity=velocity,
            rotation=rotation,
            angular_velocity=spin,
            u=u,
            communication=communication,
            dynamics=memory,
        )

    return step


def _make_act(world: World) -> Callable[[WorldState, Array], tuple[Array, Array, tuple[Array, ...]]]:
    """From actions to forces `[E, 2]`, torques `[E]` and what the dynamics remember."""
    groups = world.dynamics_groups()
    agents = world.agents
    first = len(world.landmarks)
    mass = np.array([agent.mass for agent in agents], np.float32)
    inertia = np.array([agent.moment_of_inertia for agent in agents], np.float32)
    order = np.argsort(np.concatenate([indices for _, indices in groups]))
    max_f, f_range = _limits(agents, "max_f"), _limits(agents, "f_range")
    max_t = np.minimum(_limits(agents, "max_t"), _limits(agents, "t_range"))
    movable = np.array([agent.movable for agent in agents])
    rotatable = np.array([agent.rotatable for agent in agents])

    def act(state: WorldState, u: Array) -> tuple[Array, Array, tuple[Array, ...]]:
        forces, torques, kept = [], [], []
        remembered = iter(state.dynamics)
        for kind, indices in groups:
            rows = first + indices
            bodies = Bodies(
                position=state.position[rows],
                velocity=state.velocity[rows],
                rotation=state.rotation[rows],
                angular_velocity=state.angular_velocity[rows],
                mass=jnp.asarray(mass[indices]),
                moment_of_inertia=jnp.asarray(inertia[indices]),
            )
            memory = next(remembered) if kind.memory_size else jnp.zeros((len(indices), 0))
            force, torque, memory = kind.forces(u[indices], bodies, memory, world.dt)
            forces.append(force)
            torques.append(torque)
            if kind.memory_size:
                kept.append(memory)
        force, torque = jnp.concatenate(forces)[order], jnp.concatenate(torques)[order]
        force = limit_length(Vector.of(force), max_f).stack()
        force = jnp.clip(force, -f_range[:, None], f_range[:, None])
        torque = jnp.clip(torque, -max_t, max_t)
        force, torque = jnp.where(movable[:, None], force, 0.0), jnp.where(rotatable, torque, 0.0)
        return jnp.pad(force, ((first, 0), (0, 0))), jnp.pad(torque, (first, 0)), tuple(kept)

    return act


def _limits(entities: tuple[Entity, ...], name: str) -> np.ndarray:
    values = [getattr(entity, name) for entity in entities]
    return np.array([np.inf if value is None else value for value in values], np.float32)


def limit_length(vector: Vector, limit: np.ndarray) -> Vector:
    """`vector [N, …]` shortened to `limit [N]` where it is longer."""
    if np.isinf(limit).all():
        return vector
    length = vector.norm()
    limit = column(limit, length)
    return vector * jnp.where(length > limit, limit / jnp.where(length > 0, length, 1.0), 1.0)


# ---------------------------------------------------------------------------------------------------- integration


def _make_move(world: World) -> Callable[..., tuple[Array, Array, Array, Array]]:
    """Positions, velocities `[E, 2]`, rotations and angular velocities `[E]` after all substeps."""
    substep = _make_substep(world)

    def run(motion: Motion, force: Vector, torque: Array, joint_rotation: Array) -> Motion:
        def body(number: Array | int, motion: Motion) -> Motion:
            return substep(motion, force, torque, joint_rotation, number == 0)

        if world.substeps > MOST_UNROLLED:
            after: Motion = jax.lax.fori_loop(0, world.substeps, body, motion)
            return after
        for number in range(world.substeps):
            motion = body(number, motion)
        return motion

    @environments_last
    def move(
        position: Array, velocity: Array, rotation: Array, spin: Array, force: Array, torque: Array, joints: Array
    ) -> tuple[Array, ...]:
        before = Motion(position=Vector.of(position, 1), velocity=Vector.of(velocity, 1), rotation=rotation, spin=spin)
        after = run(before, Vector.of(force, 1), torque, joints)
        return after.position.stack(1), after.velocity.stack(1), after.rotation, after.spin

    return move  # type: ignore[return-value]


def _make_substep(world: World) -> Callable[[Motion, Vector, Array, Array, Array | bool], Motion]:
    entities = world.entities
    dt = world.dt / world.substeps
    gravity = np.array([np.add(world.gravity, entity.gravity or (0.0, 0.0)) for entity in entities], np.float32)
    interact = _make_interactions(world)

    def numbers(name: str, like: Array) -> np.ndarray:
        return column(np.array([getattr(entity, name) for entity in entities]), like)

    def with_default(name: str) -> np.ndarray:
        values = [getattr(entity, name) for entity in entities]
        return np.array([getattr(world, name) if value is None else value for value in values], np.float32)

    drag, friction = with_default("drag"), with_default("linear_friction")
    angular_friction = with_default("angular_friction")
    max_speed, v_range = _limits(entities, "max_speed"), _limits(entities, "v_range")
    bound_x, bound_y = (np.inf if bound is None else bound for bound in (world.x_semidim, world.y_semidim))

    def substep(motion: Motion, force: Vector, torque: Array, joint_rotation: Array, first: Array | bool) -> Motion:
        velocity, spin, like = motion.velocity, motion.spin, motion.spin
        mass, inertia = (numbers(name, like).astype(np.float32) for name in ("mass", "moment_of_inertia"))
        movable, rotatable = numbers("movable", like), numbers("rotatable", like)
        if friction.any():
            most = column(friction, like) * mass
            speed = velocity.norm()
            x, y = (_friction(part, speed, most, mass, dt) for part in (velocity.x, velocity.y))
            force = force + Vector(x=x, y=y)
        if angular_friction.any():
            torque = torque + _friction(spin, jnp.abs(spin), column(angular_friction, like) * inertia, inertia, dt)
        if gravity.any():
            weight_x, weight_y = (jnp.asarray(column(gravity[:, i], like) * mass) for i in range(2))
            force = force + Vector(x=weight_x, y=weight_y)
        pushed, turned = interact(motion, joint_rotation)
        force, torque = force + pushed, torque + turned

        if first is not False:
            kept = jnp.where(first, 1 - column(drag, like), 1.0)
            velocity, spin = velocity * kept, spin * kept
        velocity = limit_length(velocity + force / mass * dt, max_speed)
        if np.isfinite(v_range).any():
            most_speed = column(v_range, like)
            x, y = (jnp.clip(part, -most_speed, most_speed) for part in (velocity.x, velocity.y))
            velocity = Vector(x=x, y=y)
        velocity = choose(movable, velocity, motion.velocity)
        moved = motion.position + velocity * dt
        moved = Vector(x=jnp.clip(moved.x, -bound_x, bound_x), y=jnp.clip(moved.y, -bound_y, bound_y))
        spin = jnp.where(rotatable, spin + torque / inertia * dt, motion.spin)
        return Motion(
            position=choose(movable, moved, motion.position),
            velocity=velocity,
            rotation=jnp.where(rotatable, motion.rotation + spin * dt, motion.rotation),
            spin=spin,
        )

    return substep


def _friction(velocity: Array, speed: Array, most: np.ndarray, mass: np.ndarray, dt: float) -> Array:
    """One coordinate of the force against the motion, never more than would stop it within `dt`."""
    still = speed == 0
    limited = jnp.minimum(most, jnp.abs(velocity) / dt * mass)
    return jnp.where(still, 0.0, -velocity / jnp.where(still, 1.0, speed) * limited)


# -------------------------------------------------------------------------------------------------- interactions


@dataclasses.dataclass(frozen=True, kw_only=True)
class Push:
    """Forces of pairs of bodies `a` and `b`, `[P, …]` or a grid `[N, M, …]`: they act on `a`, and their
    opposites on `b`. Arms start at the centres."""

    force: Vector
    arm_a: Vector | None  # None: no torque
    arm_b: Vector | None


def _make_interactions(world: World) -> Callable[[Motion, Array], tuple[Vector, Array]]:
    """Forces and torques `[E, …]` of all collisions and joints."""
    kinds = collision_pairs(world)
    entities = world.entities
    constraints = world.constraints()
    lists: list[tuple[np.ndarray, np.ndarray, Callable[[Motion], Push]]] = []
    for pairs in kinds.values():
        a, b = (Side(world=world, rows=np.unique(rows), axis=axis) for axis, rows in enumerate(np.array(pairs).T))
        known = set(pairs)
        grid = np.array([(i, j) if (i, j) in known else (-1, -1) for i in a.rows for j in b.rows])
        lists.append((grid[:, 0], grid[:, 1], _make_collision(world, a, b)))
    if constraints:
        first, second = np.array([(constraint.a, constraint.b) for constraint in constraints]).T
        lists.append((first, second, _make_joint_pull(world)))
    movable = np.array([entity.movable for entity in entities])
    rotatable = np.array([entity.rotatable for entity in entities])

    def interact(motion: Motion, joint_rotation: Array) -> tuple[Vector, Array]:
        torque = jnp.zeros_like(motion.rotation)
        force = Vector(x=torque, y=torque)
        batch = torque.shape[1:]
        for a, b, push_apart in lists:
            push = push_apart(motion)
            acts = _incidence(a, movable) - _incidence(b, movable)
            x, y = (_sum_over_pairs(acts, part, batch) for part in (push.force.x, push.force.y))
            force = force + Vector(x=x, y=y)
            if push.arm_a is not None and rotatable[a].any():
                torque = torque + _sum_over_pairs(_incidence(a, rotatable), push.arm_a.cross(push.force), batch)
            if push.arm_b is not None and rotatable[b].any():
                torque = torque - _sum_over_pairs(_incidence(b, rotatable), push.arm_b.cross(push.force), batch)
        if constraints:
            torque = torque + _joint_torques(world, motion, joint_rotation)
        return force, torque

    return interact


def _incidence(index: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """`[E, P]`, 1 where pair p acts on entity e, if e is `kept`. An index of −1 means no pair."""
    matrix = np.zeros((len(kept), len(index)), np.float32)
    matrix[index, np.arange(len(index))] = kept[index] & (index >= 0)
    return matrix


def _sum_over_pairs(incidence: np.ndarray, values: Array, batch: tuple[int, ...]) -> Array:
    """`incidence [E, P]` times `values`, `[P, *batch]` or a grid of pairs, over the rows that have any."""
    num_entities, num_pairs = incidence.shape
    values = values.reshape(num_pairs, *batch)
    rows = np.flatnonzero(incidence.any(axis=1))
    if not len(rows):
        return jnp.zeros((num_entities, *values.shape[1:]))
    first, last = rows[0], rows[-1] + 1
    summed = jnp.tensordot(incidence[first:last], values, 1)
    return jnp.pad(summed, [(first, num_entities - last), *[(0, 0)] * (values.ndim - 1)])


ORDER = {Box: 0, Line: 1, Sphere: 2}


def collision_pairs(world: World) -> dict[tuple[type, type], list[tuple[int, int]]]:
    """All pairs that can collide, by their shapes, boxes before lines before spheres."""
    joined = {frozenset((c.a, c.b)) for c in world.constraints()}
    kinds: dict[tuple[type, type], list[tuple[int, int]]] = {}
    for (i, a), (j, b) in itertools.combinations(enumerate(world.entities), 2):
        if frozenset((i, j)) in joined or not can_collide(a, b):
            continue
        if ORDER[type(a.shape)] > ORDER[type(b.shape)]:
            i, j, a, b = j, i, b, a
        kinds.setdefault((type(a.shape), type(b.shape)), []).append((i, j))
    return kinds


def can_collide(a: Entity, b: Entity) -> bool:
    moves = a.movable or a.rotatable or b.movable or b.rotatable
    return moves and a.may_collide(b) and b.may_collide(a)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Side:
    """Entities of one kind of shape along an axis of a grid of pairs: along axis 0 `[N, 1, …]`, along 1 `[1, M, …]`."""

    world: World
    rows: np.ndarray
    axis: int

    @property
    def shape(self) -> type:
        return type(self.world.entities[self.rows[0]].shape)

    def along(self, values: Any) -> Any:
        return values[:, None] if self.axis == 0 else values[None]

    def take(self, values: Any) -> Any:
        """The rows of `values [E, …]`, a slice where they are neighbours."""
        first, last = self.rows[0], self.rows[-1] + 1
        return self.along(values[first:last] if last - first == len(self.rows) else values[self.rows])

    def numbers(self, name: str, like: Array) -> np.ndarray:
        values = np.array([getattr(self.world.entities[row].shape, name) for row in self.rows], np.float32)
        aligned: np.ndarray = self.along(column(values, like))
        return aligned

    def centres(self, motion: Motion) -> Vector:
        return Vector(x=self.take(motion.position.x), y=self.take(motion.position.y))

    def segments(self, motion: Motion) -> Segment:
        direction = Vector.heading(motion.rotation)[self.rows]
        direction = Vector(x=self.along(direction.x), y=self.along(direction.y))
        half_length = jnp.asarray(self.numbers("length", motion.rotation) / 2)
        return Segment(centre=self.centres(motion), direction=direction, half_length=half_length)

    def rectangles(self, motion: Motion) -> Rectangle:
        length, width = (jnp.asarray(self.numbers(name, motion.rotation)) for name in ("length", "width"))
        return Rectangle(centre=self.centres(motion), angle=self.take(motion.rotation), length=length, width=width)


def _make_collision(world: World, a: Side, b: Side) -> Callable[[Motion], Push]:
    kind = (a.shape, b.shape)

    def from_within(
        outside: Vector, surface: Vector, centre: Vector, side: Side, like: Array
    ) -> tuple[Vector, Array | float]:
        hollow = side.numbers("hollow", like).astype(bool)
        if hollow.all():
            return surface, 0.0
        inner, depth = geometry.inner_point(outside, surface, centre)
        return choose(hollow, surface, inner), jnp.where(hollow, 0.0, depth)

    def points(motion: Motion) -> tuple[Vector, Vector, Vector | None, Vector | None, Array | np.ndarray | float]:
        """The points that push each other, the points of the outlines, and the distance up to which they push."""
        centre_a, centre_b, like = a.centres(motion), b.centres(motion), motion.rotation
        if kind == (Sphere, Sphere):
            return centre_a, centre_b, None, None, a.numbers("radius", like) + b.numbers("radius", like)
        if kind == (Line, Sphere):
            near = geometry.nearest_on_segment(a.segments(motion), centre_b)
            return near, centre_b, near, None, b.numbers("radius", like) + LINE_MARGIN
        if kind == (Line, Line):
            on_a, on_b = geometry.nearest_of_segments(a.segments(motion), b.segments(motion))
            return on_a, on_b, on_a, on_b, LINE_MARGIN
        box_a = a.rectangles(motion)
        if kind == (Box, Sphere):
            near = geometry.nearest_on_box(box_a, centre_b)
            inner, depth = from_within(centre_b, near, centre_a, a, like)
            return inner, centre_b, near, None, b.numbers("radius", like) + LINE_MARGIN + depth
        if kind == (Box, Line):
            on_a, on_b = geometry.nearest_of_box_and_segment(box_a, b.segments(motion))
            inner, depth = from_within(on_b, on_a, centre_a, a, like)
            return inner, on_b, on_a, on_b, LINE_MARGIN + depth
        on_a, on_b = geometry.nearest_of_boxes(box_a, b.rectangles(motion))
        inner_a, depth_a = from_within(on_b, on_a, centre_a, a, like)
        inner_b, depth_b = from_within(on_a, on_b, centre_b, b, like)
        return inner_a, inner_b, on_a, on_b, LINE_MARGIN + depth_a + depth_b

    def push(motion: Motion) -> Push:
        point_a, point_b, outline_a, outline_b, least = points(motion)
        centre_a, centre_b = a.centres(motion), b.centres(motion)
        force = repulsion(point_a - point_b, least, world.collision_force, world.contact_margin)
        if kind != (Sphere, Sphere):
            reach = a.numbers("reach", motion.rotation) + b.numbers("reach", motion.rotation)
            near = (centre_a - centre_b).squared() <= reach**2
            force = Vector(x=jnp.where(near, force.x, 0.0), y=jnp.where(near, force.y, 0.0))
        return Push(
            force=force,
            arm_a=None if outline_a is None else outline_a - centre_a,
            arm_b=None if outline_b is None else outline_b - centre_b,
        )

    return push


def repulsion(delta: Vector, least: Array | np.ndarray | float, strength: float, margin: float) -> Vector:
    """The force along `delta` that keeps its length above `least`."""
    distance = delta.norm()
    depth = soft_depth(jnp.maximum(least - distance, 0.0), margin)
    scale = strength * depth / jnp.where(distance > 0, distance, 1e-8)
    acting = (distance >= TOO_CLOSE) & (distance <= least)
    return delta * jnp.where(acting, scale, 0.0)


def soft_depth(depth: Array, margin: float) -> Array:
    """margin·softplus(depth / margin) for a `depth` of at least 0, where it takes no log1p, which is slow."""
    return depth + margin * jnp.log(1.0 + jnp.exp(-depth / margin))


def attraction(delta: Vector, strength: float, margin: float) -> Vector:
    """The force along `delta` that makes it vanish."""
    distance = delta.norm()
    depth = soft_depth(distance, margin)
    scale = -strength * depth / jnp.where(distance > 0, distance, 1e-8)
    return delta * jnp.where(distance >= TOO_CLOSE, scale, 0.0)


# --------------------------------------------------------------------------------------------------------- joints


def _make_joint_pull(world: World) -> Callable[[Motion], Push]:
    constraints = world.constraints()
    a, b = np.array([(constraint.a, constraint.b) for constraint in constraints]).T
    offset_a, offset_b = (
        np.array([getattr(c, name) for c in constraints], np.float32) for name in ("offset_a", "offset_b")
    )

    def arm(offset: np.ndarray, angle: Array) -> Vector:
        x, y = (jnp.asarray(column(offset[:, i], angle)) for i in range(2))
        return Vector(x=x, y=y).turned(angle)

    def pull(motion: Motion) -> Push:
        arm_a, arm_b = arm(offset_a, motion.rotation[a]), arm(offset_b, motion.rotation[b])
        delta = motion.position[a] + arm_a - motion.position[b] - arm_b
        return Push(force=attraction(delta, world.joint_force, world.contact_margin), arm_a=arm_a, arm_b=arm_b)

    return pull


def _joint_torques(world: World, motion: Motion, joint_rotation: Array) -> Array:
    """Torques `[E, …]` that keep the angles of joints that may not rotate, growing exponentially with the error."""
    constraints = world.constraints()
    a, b = np.array([(constraint.a, constraint.b) for constraint in constraints]).T
    rigid = np.array([not constraint.rotate for constraint in constraints])
    if not rigid.any():
        return jnp.zeros_like(motion.rotation)
    given = np.array([np.nan if c.fixed_rotation is None else c.fixed_rotation for c in constraints], np.float32)
    given = column(given, joint_rotation)
    kept = jnp.where(np.isnan(given), joint_rotation, np.nan_to_num(given))
    error = motion.rotation[a] - (motion.rotation[b] + kept)
    torque = world.torque_constraint_force * jnp.sign(error) * jnp.expm1(jnp.abs(error))
    torque = jnp.where(column(rigid, error) & (jnp.abs(error) >= 1e-9), torque, 0.0)
    rotatable = np.array([entity.rotatable for entity in world.entities])
    return _sum_over_pairs(_incidence(b, rotatable) - _incidence(a, rotatable), torque, torque.shape[1:])


# ------------------------------------------------------------------------------------------------------ distances


def distance(world: World, state: WorldState, a: int, b: int) -> Array:
    """Between the outlines of two entities: negative where they overlap (−1 for a sphere and a box)."""
    return distances(world, state, [a], [b])[0, 0]


def distances(world: World, state: WorldState, a: Sequence[int] | np.ndarray, b: Sequence[int] | np.ndarray) -> Array:
    """`[N, M]`, from each of the N entities `a` to each of the M entities `b`. All of `a` are of one kind of shape."""
    shape_a, shape_b = ({type(world.entities[i].shape) for i in rows} for rows in (a, b))
    if len(shape_a) != 1 or len(shape_b) != 1:
        raise ValueError(f"distances are between two kinds of shapes at a time, not {shape_a} and {shape_b}")
    kind = (*shape_a, *shape_b)
    if ORDER[kind[0]] > ORDER[kind[1]]:
        return distances(world, state, b, a).T
    motion, like = _motion(state), state.rotation
    side_a, side_b = (Side(world=world, rows=np.asarray(rows), axis=axis) for axis, rows in enumerate((a, b)))
    centre_a, centre_b = side_a.centres(motion), side_b.centres(motion)
    if kind == (Sphere, Sphere):
        return (centre_a - centre_b).norm() - side_a.numbers("radius", like) - side_b.numbers("radius", like)
    if kind == (Line, Sphere):
        near = geometry.nearest_on_segment(side_a.segments(motion), centre_b)
        return (near - centre_b).norm() - LINE_MARGIN - side_b.numbers("radius", like)
    if kind == (Box, Sphere):
        near = geometry.nearest_on_box(side_a.rectangles(motion), centre_b)
        gap = (near - centre_b).norm() - LINE_MARGIN - side_b.numbers("radius", like)
        within = (centre_b - centre_a).norm() < (centre_a - near).norm()
        return jnp.where(within | (gap < 0), -1.0, gap)
    if kind == (Line, Line):
        on_a, on_b = geometry.nearest_of_segments(side_a.segments(motion), side_b.segments(motion))
    elif kind == (Box, Line):
        on_a, on_b = geometry.nearest_of_box_and_segment(side_a.rectangles(motion), side_b.segments(motion))
    else:
        on_a, on_b = geometry.nearest_of_boxes(side_a.rectangles(motion), side_b.rectangles(motion))
    return (on_a - on_b).norm() - LINE_MARGIN


def _motion(state: WorldState) -> Motion:
    return Motion(
        position=Vector.of(state.position),
        velocity=Vector.of(state.velocity),
        rotation=state.rotation,
        spin=state.angular_velocity,
    )


def distance_to_point(world: World, state: WorldState, index: int, point: Array) -> Array:
    """From an entity's outline to a point `[2]`."""
    motion, there = _motion(state), Vector.of(point)
    side = Side(world=world, rows=np.array([index]), axis=0)
    match shape := world.entities[index].shape:
        case Sphere():
            gap = (side.centres(motion) - there).norm() - shape.radius
        case Line():
            gap = (geometry.nearest_on_segment(side.segments(motion), there) - there).norm() - LINE_MARGIN
        case Box():
            gap = (geometry.nearest_on_box(side.rectangles(motion), there) - there).norm() - LINE_MARGIN
    return gap[0, 0]


def overlapping(world: World, state: WorldState, a: int, b: int) -> Array:
    return distance(world, state, a, b) < 0
