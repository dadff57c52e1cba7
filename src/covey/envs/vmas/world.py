"""What a world is made of, and the arrays that change while it runs.

A `World` is a description: landmarks, agents, joints and constants of nature. It holds no arrays and is fixed while a
program compiles. A `WorldState` holds the arrays, `[E, …]` over all entities: first the landmarks, then the agents, in
the order of the description. Scenarios read it with indices from `World.index` and `World.indices`.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence

import jax.numpy as jnp
import numpy as np

from covey.envs.vmas.dynamics import Dynamics, Holonomic
from covey.envs.vmas.geometry import rotate
from covey.envs.vmas.shapes import Box, Line, Pair, Shape, Sphere
from covey.types import Array, pytree

Colour = tuple[float, float, float]
RED, GREEN, BLUE = (0.75, 0.25, 0.25), (0.25, 0.75, 0.25), (0.25, 0.25, 0.75)
LIGHT_GREEN, ORANGE, PINK = (0.45, 0.95, 0.45), (1.0, 0.5, 0.0), (0.97, 0.51, 0.75)
PURPLE, YELLOW = (0.6, 0.31, 0.64), (0.87, 0.87, 0.0)
WHITE, GRAY, BLACK = (0.75, 0.75, 0.75), (0.25, 0.25, 0.25), (0.15, 0.15, 0.15)
HOLONOMIC = Holonomic()
SMALL_SPHERE = Sphere()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entity:
    """A body. What is None falls back to the world's constant, or sets no limit."""

    name: str
    shape: Shape = SMALL_SPHERE
    movable: bool = False
    rotatable: bool = False
    collide: bool = True
    collision_filter: Callable[[Entity], bool] | None = None  # whom it may collide with; None: anyone
    mass: float = 1.0
    max_speed: float | None = None  # of the velocity's length
    v_range: float | None = None  # of each of its components
    drag: float | None = None
    linear_friction: float | None = None
    angular_friction: float | None = None
    gravity: Pair | None = None  # on top of the world's
    colour: Colour = GRAY

    def may_collide(self, other: Entity) -> bool:
        return self.collide and (self.collision_filter is None or self.collision_filter(other))

    @property
    def moment_of_inertia(self) -> float:
        return self.shape.moment_of_inertia(self.mass)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Landmark(Entity):
    pass


@dataclasses.dataclass(frozen=True, kw_only=True)
class Agent(Entity):
    """A body that acts. An action lies in ±`u_range`; times `u_multiplier` it goes to the `dynamics`, which push."""

    movable: bool = True
    rotatable: bool = True
    colour: Colour = BLUE
    u_range: float | tuple[float, ...] = 1.0
    u_multiplier: float | tuple[float, ...] = 1.0
    u_noise: float = 0.0  # the deviation of the noise on actions
    c_noise: float = 0.0
    f_range: float | None = None
    max_f: float | None = None
    t_range: float | None = None
    max_t: float | None = None
    silent: bool = True  # it does not communicate
    scripted: bool = False  # the scenario acts for it
    dynamics: Dynamics = HOLONOMIC
    action_size: int | None = None  # None: what the dynamics need
    discrete_actions: tuple[int, ...] | None = None  # choices per dimension where actions are discrete; None: 3 each

    @property
    def num_actions(self) -> int:
        if self.action_size is not None:
            return self.action_size
        return self.dynamics.action_size if self.discrete_actions is None else len(self.discrete_actions)

    @property
    def choices(self) -> tuple[int, ...]:
        return self.discrete_actions or (3,) * self.num_actions

    def per_action(self, value: float | tuple[float, ...]) -> tuple[float, ...]:
        return value if isinstance(value, tuple) else (value,) * self.num_actions


@dataclasses.dataclass(frozen=True, kw_only=True)
class Joint:
    """Holds anchors of two entities `dist` apart. Unless `dist` is 0, a rod does this: a landmark `joint A B`.

    An end that may not rotate keeps its angle to the rod, as it was at reset, or `fixed_rotation`.
    """

    entity_a: str
    entity_b: str
    anchor_a: Pair = (0.0, 0.0)
    anchor_b: Pair = (0.0, 0.0)
    rotate_a: bool = True
    rotate_b: bool = True
    dist: float = 0.0
    collidable: bool = False
    width: float = 0.0
    mass: float = 1.0
    fixed_rotation_a: float | None = None
    fixed_rotation_b: float | None = None

    @property
    def rod_name(self) -> str:
        return f"joint {self.entity_a} {self.entity_b}"

    def rod(self) -> Landmark:
        return Landmark(
            name=self.rod_name,
            shape=Box(length=self.dist, width=self.width) if self.width else Line(length=self.dist),
            movable=True,
            rotatable=True,
            collide=self.collidable,
            mass=self.mass,
            colour=BLACK,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Constraint:
    """Two anchors that are pulled together, and a torque that keeps an angle between their bodies unless `rotate`."""

    a: int
    b: int
    offset_a: Pair
    offset_b: Pair
    rotate: bool
    fixed_rotation: float | None  # None: as it was at reset, in `WorldState.joint_rotation`


@pytree
class WorldState:
    """Everything that moves: E entities, A agents, J constraints of joints, U numbers in the largest action.

    `u` is the action as the dynamics saw it, and `communication` what agents say, both from the last step.
    """

    position: Array  # [E, 2]
    velocity: Array  # [E, 2]
    rotation: Array  # [E]
    angular_velocity: Array  # [E]
    u: Array  # [A, U]
    communication: Array  # [A, dim_c]
    joint_rotation: Array  # [J]
    dynamics: tuple[Array, ...]  # what dynamics remember, one for each kind that does


@dataclasses.dataclass(frozen=True, kw_only=True)
class World:
    agents: tuple[Agent, ...]
    landmarks: tuple[Landmark, ...] = ()
    joints: tuple[Joint, ...] = ()
    dt: float = 0.1
    substeps: int = 1
    drag: float = 0.25
    linear_friction: float = 0.0
    angular_friction: float = 0.0
    x_semidim: float | None = None  # positions are kept within ± this
    y_semidim: float | None = None
    dim_c: int = 0  # size of a message
    collision_force: float = 100.0
    joint_force: float = 130.0
    torque_constraint_force: float = 1.0
    contact_margin: float = 1e-3
    gravity: Pair = (0.0, 0.0)

    def __post_init__(self) -> None:
        known = {landmark.name for landmark in self.landmarks}  # a copy of a world has its rods already
        rods = [joint.rod() for joint in self.joints if joint.dist > 0 and joint.rod_name not in known]
        object.__setattr__(self, "landmarks", (*self.landmarks, *rods))
        names = [entity.name for entity in self.entities]
        if len(set(names)) < len(names):
            raise ValueError(f"two entities have the same name: {names}")

    @property
    def entities(self) -> tuple[Entity, ...]:
        return (*self.landmarks, *self.agents)

    @property
    def num_agents(self) -> int:
        return len(self.agents)

    @property
    def max_actions(self) -> int:
        return max(agent.num_actions for agent in self.agents)

    def index(self, name: str) -> int:
        """The entity's row in the arrays `[E, …]`."""
        return [entity.name for entity in self.entities].index(name)

    def indices(self, pattern: str) -> np.ndarray:
        """Rows of all entities whose name matches the regular expression from its beginning to its end."""
        return np.array([i for i, entity in enumerate(self.entities) if re.fullmatch(pattern, entity.name)], int)

    @property
    def agent_indices(self) -> np.ndarray:
        """Rows of the agents, which come last."""
        return np.arange(len(self.landmarks), len(self.entities))

    def constraints(self) -> list[Constraint]:
        found = []
        for joint in self.joints:
            a, b = self.index(joint.entity_a), self.index(joint.entity_b)
            offset_a = self.entities[a].shape.anchor_offset(joint.anchor_a)
            offset_b = self.entities[b].shape.anchor_offset(joint.anchor_b)
            if joint.dist == 0:
                rotates = joint.rotate_a and joint.rotate_b
                fixed = 0.0 if rotates else joint.fixed_rotation_a
                found.append(
                    Constraint(a=a, b=b, offset_a=offset_a, offset_b=offset_b, rotate=rotates, fixed_rotation=fixed)
                )
                continue
            rod = self.index(joint.rod_name)
            for end, other, offset, rotates, fixed in (
                (-1.0, a, offset_a, joint.rotate_a, joint.fixed_rotation_a),
                (1.0, b, offset_b, joint.rotate_b, joint.fixed_rotation_b),
            ):
                rod_offset = self.entities[rod].shape.anchor_offset((end, 0.0))
                fixed = 0.0 if rotates else fixed
                found.append(
                    Constraint(
                        a=rod, b=other, offset_a=rod_offset, offset_b=offset, rotate=rotates, fixed_rotation=fixed
                    )
                )
        return found

    def start(
        self,
        positions: Mapping[str, Array] | None = None,
        rotations: Mapping[str, Array] | None = None,
        velocities: Mapping[str, Array] | None = None,
    ) -> WorldState:
        """The world at rest, with entities by name where they are put and rods between what they join."""
        state = self._zeros()
        state = dataclasses.replace(
            state,
            position=self._place(state.position, positions),
            rotation=self._place(state.rotation, rotations),
            velocity=self._place(state.velocity, velocities),
        )
        return self.settle_joints(state)

    def _place(self, values: Array, by_name: Mapping[str, Array] | None) -> Array:
        if not by_name:
            return values
        rows = [by_name.get(entity.name, values[i]) for i, entity in enumerate(self.entities)]
        return jnp.stack([jnp.asarray(row, jnp.float32) for row in rows])

    def _zeros(self) -> WorldState:
        entities = len(self.entities)
        return WorldState(
            position=jnp.zeros((entities, 2)),
            velocity=jnp.zeros((entities, 2)),
            rotation=jnp.zeros(entities),
            angular_velocity=jnp.zeros(entities),
            u=jnp.zeros((self.num_agents, self.max_actions)),
            communication=jnp.zeros((self.num_agents, self.dim_c)),
            joint_rotation=jnp.zeros(len(self.constraints())),
            dynamics=tuple(
                jnp.zeros((len(indices), kind.memory_size))
                for kind, indices in self.dynamics_groups()
                if kind.memory_size
            ),
        )

    def dynamics_groups(self) -> list[tuple[Dynamics, np.ndarray]]:
        """The agents, by number, under each kind of dynamics."""
        kinds = list(dict.fromkeys(agent.dynamics for agent in self.agents))
        return [
            (kind, np.array([i for i, agent in enumerate(self.agents) if agent.dynamics == kind])) for kind in kinds
        ]

    def settle_joints(self, state: WorldState) -> WorldState:
        """Puts rods between the anchors that they join, and records the angles that joints keep."""
        position, rotation, kept = state.position, state.rotation, state.joint_rotation
        constraints = self.constraints()
        number = 0
        for joint in self.joints:
            if joint.dist == 0:
                number += 1
                continue
            rod = self.index(joint.rod_name)
            first, second = constraints[number], constraints[number + 1]
            end_a, end_b = (
                position[end.b] + rotate(jnp.asarray(end.offset_b), rotation[end.b]) for end in (first, second)
            )
            angle = jnp.arctan2(end_b[1] - end_a[1], end_b[0] - end_a[0])
            position = position.at[rod].set((end_a + end_b) / 2)
            rotation = rotation.at[rod].set(angle)
            for i, end in ((number, first), (number + 1, second)):
                kept = kept.at[i].set(angle - rotation[end.b])
            number += 2
        return dataclasses.replace(state, position=position, rotation=rotation, joint_rotation=kept)


def numbered(prefix: str, count: int, separator: str = "_") -> Sequence[str]:
    """`prefix_0`, `prefix_1`, …"""
    return [f"{prefix}{separator}{i}" for i in range(count)]
