"""One step of a world: forces, collisions, joints, and semi-implicit Euler over substeps.

Bodies that overlap push each other apart with a force that grows softly with the depth, F = k·m·softplus(depth / m),
where k is the world's `collision_force` and m its `contact_margin`; joints pull their anchors together in the same way.
Which pairs can ever touch is known from the world's description, so only those are computed, all pairs of a kind of
shapes at once.

Differences from VMAS:
- VMAS skips a pair in all environments of a batch, unless in some of them the circles around the shapes meet. Here each
  environment decides for itself, as VMAS does with one environment.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from covey.envs.vmas import geometry
from covey.envs.vmas.dynamics import Bodies
from covey.envs.vmas.geometry import Segment, cross, norm, rotate, unit
from covey.envs.vmas.shapes import Box, Line, Sphere
from covey.envs.vmas.world import Entity, World, WorldState
from covey.types import Array

LINE_MARGIN = 4 / 600  # the thickness of lines and of the sides of boxes
TOO_CLOSE = 1e-6  # no direction to push in

Step = Callable[[WorldState, Array, Array, Array], WorldState]


def make_step(world: World) -> Step:
    """`step(state, u [A, U], communication [A, C], external [E, 2])`, where `external` are further forces."""
    substep = _make_substep(world)
    act = _make_act(world)

    def step(state: WorldState, u: Array, communication: Array, external: Array) -> WorldState:
        force, torque, memory = act(state, u)
        state = dataclasses.replace(state, u=u, communication=communication, dynamics=memory)
        for number in range(world.substeps):
            state = substep(state, force + external, torque, number == 0)
        return state

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
        force = jnp.clip(limit_norm(force, max_f), -f_range[:, None], f_range[:, None])
        torque = jnp.clip(torque, -max_t, max_t)
        force, torque = jnp.where(movable[:, None], force, 0.0), jnp.where(rotatable, torque, 0.0)
        return jnp.pad(force, ((first, 0), (0, 0))), jnp.pad(torque, (first, 0)), tuple(kept)

    return act


def _limits(entities: tuple[Entity, ...], name: str) -> np.ndarray:
    values = [getattr(entity, name) for entity in entities]
    return np.array([np.inf if value is None else value for value in values], np.float32)


def limit_norm(vector: Array, limit: np.ndarray) -> Array:
    """`vector [N, 2]` shortened to `limit [N]` where it is longer."""
    if np.isinf(limit).all():
        return vector
    length = norm(vector)
    scale = jnp.where(length > limit, limit / jnp.where(length > 0, length, 1.0), 1.0)
    return vector * scale[:, None]


# ---------------------------------------------------------------------------------------------------- integration


def _make_substep(world: World) -> Callable[[WorldState, Array, Array, bool], WorldState]:
    entities = world.entities
    dt = world.dt / world.substeps
    mass = np.array([entity.mass for entity in entities], np.float32)
    inertia = np.array([entity.moment_of_inertia for entity in entities], np.float32)
    movable = np.array([entity.movable for entity in entities])
    rotatable = np.array([entity.rotatable for entity in entities])
    gravity = np.array([np.add(world.gravity, entity.gravity or (0.0, 0.0)) for entity in entities], np.float32)
    drag = np.array([world.drag if entity.drag is None else entity.drag for entity in entities], np.float32)
    friction, angular_friction = (
        np.array([getattr(world if getattr(e, name) is None else e, name) for e in entities], np.float32)
        for name in ("linear_friction", "angular_friction")
    )
    max_speed, v_range = _limits(entities, "max_speed"), _limits(entities, "v_range")[:, None]
    bounds = np.array([np.inf if bound is None else bound for bound in (world.x_semidim, world.y_semidim)], np.float32)
    interact = _make_interactions(world)

    def substep(state: WorldState, force: Array, torque: Array, first: bool) -> WorldState:
        velocity, spin = state.velocity, state.angular_velocity
        if friction.any():
            force = force + _friction(velocity, friction[:, None], mass[:, None], dt)
        if angular_friction.any():
            torque = torque + _friction(spin[:, None], angular_friction[:, None], inertia[:, None], dt)[:, 0]
        if gravity.any():
            force = force + mass[:, None] * gravity
        pushed, turned = interact(state)
        force, torque = force + pushed, torque + turned

        if first:
            velocity, spin = velocity * (1 - drag[:, None]), spin * (1 - drag)
        velocity = limit_norm(velocity + force / mass[:, None] * dt, max_speed)
        velocity = jnp.where(movable[:, None], jnp.clip(velocity, -v_range, v_range), state.velocity)
        position = jnp.clip(state.position + velocity * dt, -bounds, bounds)
        spin = jnp.where(rotatable, spin + torque / inertia * dt, state.angular_velocity)
        return dataclasses.replace(
            state,
            position=jnp.where(movable[:, None], position, state.position),
            velocity=velocity,
            rotation=jnp.where(rotatable, state.rotation + spin * dt, state.rotation),
            angular_velocity=spin,
        )

    return substep


def _friction(velocity: Array, coefficient: np.ndarray, mass: np.ndarray, dt: float) -> Array:
    """Against the motion, and never more than would stop it within `dt`. `velocity` is `[E, 1 or 2]`."""
    speed = jnp.sqrt(jnp.sum(jnp.square(velocity), -1, keepdims=True))
    still = speed == 0
    most = jnp.minimum(coefficient * mass, jnp.abs(velocity) / dt * mass)
    return jnp.where(still, 0.0, -velocity / jnp.where(still, 1.0, speed) * most)


# -------------------------------------------------------------------------------------------------- interactions


@dataclasses.dataclass(frozen=True, kw_only=True)
class Push:
    """Forces of P pairs of bodies `a` and `b`: what acts on `a`; on `b` acts the opposite. Arms are from centres."""

    force: Array  # [P, 2]
    arm_a: Array | None  # [P, 2]; None: no torque
    arm_b: Array | None


def _make_interactions(world: World) -> Callable[[WorldState], tuple[Array, Array]]:
    """Forces `[E, 2]` and torques `[E]` of all collisions and joints."""
    kinds = collision_pairs(world)
    entities = world.entities
    constraints = world.constraints()
    lists: list[tuple[np.ndarray, np.ndarray, Callable[[WorldState], Push]]] = []
    for (shape_a, shape_b), pairs in kinds.items():
        a, b = np.array(pairs).T
        lists.append((a, b, _make_collision(world, shape_a, shape_b, a, b)))
    if constraints:
        a, b = np.array([(constraint.a, constraint.b) for constraint in constraints]).T
        lists.append((a, b, _make_joint_pull(world)))
    movable = np.array([entity.movable for entity in entities])
    rotatable = np.array([entity.rotatable for entity in entities])

    def interact(state: WorldState) -> tuple[Array, Array]:
        force, torque = jnp.zeros_like(state.position), jnp.zeros_like(state.rotation)
        for a, b, push_apart in lists:
            push = push_apart(state)
            on_a, on_b = _incidence(a, movable), _incidence(b, movable)
            force = force + (on_a - on_b) @ push.force
            if push.arm_a is not None and rotatable[a].any():
                torque = torque + _incidence(a, rotatable) @ cross(push.arm_a, push.force)
            if push.arm_b is not None and rotatable[b].any():
                torque = torque - _incidence(b, rotatable) @ cross(push.arm_b, push.force)
        if constraints:
            torque = torque + _joint_torques(world, state)
        return force, torque

    return interact


def _incidence(index: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """`[E, P]`, 1 where pair p acts on entity e, if e is `kept`."""
    matrix = np.zeros((len(kept), len(index)), np.float32)
    matrix[index, np.arange(len(index))] = kept[index]
    return matrix


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


def _make_collision(
    world: World, shape_a: type, shape_b: type, a: np.ndarray, b: np.ndarray
) -> Callable[[WorldState], Push]:
    shapes_a, shapes_b = ([world.entities[i].shape for i in index] for index in (a, b))
    reach = np.array([x.reach + y.reach for x, y in zip(shapes_a, shapes_b, strict=True)], np.float32)

    def numbers(shapes: list, name: str) -> np.ndarray:
        return np.array([getattr(shape, name) for shape in shapes], np.float32)

    def line(state: WorldState, index: np.ndarray, shapes: list) -> Segment:
        return Segment(
            centre=state.position[index],
            direction=unit(state.rotation[index]),
            half_length=jnp.asarray(numbers(shapes, "length") / 2),
        )

    def box(state: WorldState, index: np.ndarray, shapes: list) -> tuple[Array, Array, Array, Array]:
        length, width = jnp.asarray(numbers(shapes, "length")), jnp.asarray(numbers(shapes, "width"))
        return state.position[index], state.rotation[index], length, width

    def from_within(outside: Array, surface: Array, centre: Array, shapes: list) -> tuple[Array, Array | float]:
        hollow = numbers(shapes, "hollow").astype(bool)
        if hollow.all():
            return surface, 0.0
        inner, depth = geometry.inner_point(outside, surface, centre)
        return jnp.where(hollow[:, None], surface, inner), jnp.where(hollow, 0.0, depth)

    def points(state: WorldState) -> tuple[Array, Array, Array | None, Array | None, Array | np.ndarray | float]:
        """The points that push each other, the points of the outlines, and the distance up to which they push."""
        centre_a, centre_b = state.position[a], state.position[b]
        kind = (shape_a, shape_b)
        if kind == (Sphere, Sphere):
            return centre_a, centre_b, None, None, numbers(shapes_a, "radius") + numbers(shapes_b, "radius")
        if kind == (Line, Sphere):
            near = geometry.nearest_on_segment(line(state, a, shapes_a), centre_b)
            return near, centre_b, near, None, numbers(shapes_b, "radius") + LINE_MARGIN
        if kind == (Line, Line):
            on_a, on_b = geometry.nearest_of_segments(line(state, a, shapes_a), line(state, b, shapes_b))
            return on_a, on_b, on_a, on_b, LINE_MARGIN
        if kind == (Box, Sphere):
            near = geometry.nearest_on_box(*box(state, a, shapes_a), centre_b)
            inner, depth = from_within(centre_b, near, centre_a, shapes_a)
            return inner, centre_b, near, None, numbers(shapes_b, "radius") + LINE_MARGIN + depth
        if kind == (Box, Line):
            on_a, on_b = geometry.nearest_of_box_and_segment(*box(state, a, shapes_a), line(state, b, shapes_b))
            inner, depth = from_within(on_b, on_a, centre_a, shapes_a)
            return inner, on_b, on_a, on_b, LINE_MARGIN + depth
        on_a, on_b = geometry.nearest_of_boxes(*box(state, a, shapes_a), box(state, b, shapes_b))
        inner_a, depth_a = from_within(on_b, on_a, centre_a, shapes_a)
        inner_b, depth_b = from_within(on_a, on_b, centre_b, shapes_b)
        return inner_a, inner_b, on_a, on_b, LINE_MARGIN + depth_a + depth_b

    def push(state: WorldState) -> Push:
        point_a, point_b, outline_a, outline_b, least = points(state)
        centre_a, centre_b = state.position[a], state.position[b]
        force = repulsion(point_a - point_b, least, world.collision_force, world.contact_margin)
        if (shape_a, shape_b) != (Sphere, Sphere):
            force = jnp.where((norm(centre_a - centre_b) <= reach)[:, None], force, 0.0)
        return Push(
            force=force,
            arm_a=None if outline_a is None else outline_a - centre_a,
            arm_b=None if outline_b is None else outline_b - centre_b,
        )

    return push


def repulsion(delta: Array, least: Array | np.ndarray | float, strength: float, margin: float) -> Array:
    """The force along `delta` that keeps its length above `least`."""
    distance = norm(delta)
    depth = jax.nn.softplus((least - distance) / margin) * margin
    scale = strength * depth / jnp.where(distance > 0, distance, 1e-8)
    acting = (distance >= TOO_CLOSE) & (distance <= least)
    return jnp.where(acting, scale, 0.0)[..., None] * delta


def attraction(delta: Array, strength: float, margin: float) -> Array:
    """The force along `delta` that makes it vanish."""
    distance = norm(delta)
    depth = jax.nn.softplus(distance / margin) * margin
    scale = -strength * depth / jnp.where(distance > 0, distance, 1e-8)
    return jnp.where(distance >= TOO_CLOSE, scale, 0.0)[..., None] * delta


# --------------------------------------------------------------------------------------------------------- joints


def _make_joint_pull(world: World) -> Callable[[WorldState], Push]:
    constraints = world.constraints()
    a, b = np.array([(constraint.a, constraint.b) for constraint in constraints]).T
    offset_a, offset_b = (
        np.array([getattr(c, name) for c in constraints], np.float32) for name in ("offset_a", "offset_b")
    )

    def pull(state: WorldState) -> Push:
        arm_a = rotate(jnp.asarray(offset_a), state.rotation[a])
        arm_b = rotate(jnp.asarray(offset_b), state.rotation[b])
        delta = state.position[a] + arm_a - state.position[b] - arm_b
        return Push(force=attraction(delta, world.joint_force, world.contact_margin), arm_a=arm_a, arm_b=arm_b)

    return pull


def _joint_torques(world: World, state: WorldState) -> Array:
    """Torques `[E]` that keep the angles of joints that may not rotate, growing exponentially with the error."""
    constraints = world.constraints()
    a, b = np.array([(constraint.a, constraint.b) for constraint in constraints]).T
    rigid = np.array([not constraint.rotate for constraint in constraints])
    if not rigid.any():
        return jnp.zeros_like(state.rotation)
    given = np.array([np.nan if c.fixed_rotation is None else c.fixed_rotation for c in constraints], np.float32)
    kept = jnp.where(np.isnan(given), state.joint_rotation, np.nan_to_num(given))
    error = state.rotation[a] - (state.rotation[b] + kept)
    torque = world.torque_constraint_force * jnp.sign(error) * jnp.expm1(jnp.abs(error))
    torque = jnp.where(rigid & (jnp.abs(error) >= 1e-9), torque, 0.0)
    rotatable = np.array([entity.rotatable for entity in world.entities])
    return (_incidence(b, rotatable) - _incidence(a, rotatable)) @ torque


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
    rows_a, rows_b = (grid.ravel() for grid in np.meshgrid(a, b, indexing="ij"))
    centre_a, centre_b = state.position[rows_a], state.position[rows_b]

    def number(rows: np.ndarray, name: str) -> np.ndarray:
        return np.array([getattr(world.entities[i].shape, name) for i in rows], np.float32)

    def segment(rows: np.ndarray) -> Segment:
        half_length = jnp.asarray(number(rows, "length") / 2)
        return Segment(centre=state.position[rows], direction=unit(state.rotation[rows]), half_length=half_length)

    def box(rows: np.ndarray) -> tuple[Array, Array, Array, Array]:
        length, width = jnp.asarray(number(rows, "length")), jnp.asarray(number(rows, "width"))
        return state.position[rows], state.rotation[rows], length, width

    if kind == (Sphere, Sphere):
        gap = norm(centre_a - centre_b) - number(rows_a, "radius") - number(rows_b, "radius")
    elif kind == (Line, Sphere):
        near = geometry.nearest_on_segment(segment(rows_a), centre_b)
        gap = norm(near - centre_b) - LINE_MARGIN - number(rows_b, "radius")
    elif kind == (Box, Sphere):
        near = geometry.nearest_on_box(*box(rows_a), centre_b)
        gap = norm(near - centre_b) - LINE_MARGIN - number(rows_b, "radius")
        within = norm(centre_b - centre_a) < norm(centre_a - near)
        gap = jnp.where(within | (gap < 0), -1.0, gap)
    else:
        if kind == (Line, Line):
            on_a, on_b = geometry.nearest_of_segments(segment(rows_a), segment(rows_b))
        elif kind == (Box, Line):
            on_a, on_b = geometry.nearest_of_box_and_segment(*box(rows_a), segment(rows_b))
        else:
            on_a, on_b = geometry.nearest_of_boxes(*box(rows_a), box(rows_b))
        gap = norm(on_a - on_b) - LINE_MARGIN
    return gap.reshape(len(a), len(b))


def distance_to_point(world: World, state: WorldState, index: int, point: Array) -> Array:
    """From an entity's outline to a point."""
    shape, centre, angle = world.entities[index].shape, state.position[index], state.rotation[index]
    match shape:
        case Sphere():
            return norm(centre - point) - shape.radius
        case Line():
            segment = Segment(centre=centre, direction=unit(angle), half_length=jnp.float32(shape.length / 2))
            return norm(geometry.nearest_on_segment(segment, point) - point) - LINE_MARGIN
        case Box():
            near = geometry.nearest_on_box(centre, angle, jnp.float32(shape.length), jnp.float32(shape.width), point)
            return norm(near - point) - LINE_MARGIN


def overlapping(world: World, state: WorldState, a: int, b: int) -> Array:
    return distance(world, state, a, b) < 0
