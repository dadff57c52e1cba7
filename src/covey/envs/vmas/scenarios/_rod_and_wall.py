"""What joint_passage and joint_passage_size share: two agents carry a rod through gaps in a wall to a goal.

The wall is made of boxes; those that VMAS leaves out for the gaps are landmarks too, which collide with nothing.

Differences from VMAS, which has bugs in both places:
- `joint_angle_obs_noise` is only on what agents see. VMAS adds it to the rod's angle itself, so that looking turns it.
- An episode ends when its own rod is at its goal. In VMAS with a batch of environments, the rods of all of them must be
  at their goals' places, and only the angle is that of the environment itself.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from covey.envs.vmas.dynamics import Holonomic, VelocityControl
from covey.envs.vmas.geometry import norm, unit
from covey.envs.vmas.physics import distances
from covey.envs.vmas.scenario import Scenario, ScenarioState, VmasConfig
from covey.envs.vmas.shapes import Box, Line, Sphere
from covey.envs.vmas.world import BLACK, GREEN, RED, Agent, Entity, Joint, Landmark, World, WorldState, numbered
from covey.types import Array, Key, MetricSpec

if TYPE_CHECKING:
    from covey.envs.vmas.render import Decoration

SEMIDIM = 1.0  # positions stay within ± this
RADIUS = 0.03333
MASS_RADIUS = RADIUS * 2 / 3
BOX = Box(length=0.1476, width=0.2)
NUM_BOXES = int((2 * SEMIDIM + 2 * RADIUS) // BOX.length)
BOXES, WALLS, AGENTS = numbered("passage", NUM_BOXES, " "), numbered("wall", 4, " "), numbered("agent", 2)
WALL_SIDES = (SEMIDIM + RADIUS) * np.array([[1, 0], [0, 1], [-1, 0], [0, -1]], np.float32)
WALL_ANGLES = np.array([math.pi / 2, 0.0, math.pi / 2, 0.0], np.float32)
TOUCHING = 0.005  # the distance that counts as a collision
AT_GOAL = 0.01  # in distance and in angle


@dataclasses.dataclass(frozen=True, kw_only=True)
class RodAndWallConfig(VmasConfig):
    time_limit: int = 500
    n_passages: int  # boxes left out of the wall
    fixed_passage: bool  # the gaps are always in the same place; false: anywhere
    joint_length: float  # length of the rod, above 0
    random_start_angle: bool  # the rod starts at any angle; false: level
    random_goal_angle: bool  # the goal is at any angle; false: level
    observe_joint_angle: bool = False  # agents see the rod's angle
    # deviation of the noise on the angle that agents see; only with `observe_joint_angle`
    joint_angle_obs_noise: float = 0.0
    asym_package: bool  # a weight is on the rod; false: the second agent is heavy
    mass_ratio: float  # mass of the weight, or of the heavy agent; the other agents have 1
    mass_position: float = 0.75  # where the weight is on the rod, from -1 (the first agent) to 1 (the second)
    max_speed_1: float | None = None  # greatest speed of the second agent; null: no limit
    pos_shaping_factor: float = 1.0  # weight of the progress of the rod's position
    rot_shaping_factor: float = 1.0  # weight of the progress of the rod's angle
    collision_reward: float = 0.0  # reward for each body that touches the wall
    energy_reward_coeff: float = 0.0  # weight of a penalty on the force that both agents use
    obs_noise: float = 0.0  # observations have uniform noise of ± this

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.joint_angle_obs_noise and not self.observe_joint_angle:
            raise ValueError("joint_angle_obs_noise needs observe_joint_angle=true")
        if not -1 <= self.mass_position <= 1:
            raise ValueError(f"mass_position must be between -1 and 1, not {self.mass_position}")
        if self.joint_length <= 0:
            raise ValueError(f"joint_length must be positive, not {self.joint_length}")


class RodAndWall(Scenario):
    """Reward, the same for both: how much the rod improved in place and angle, before and after the passage.

    Subclasses say where gaps are (`draw_gaps`), what place and angle mean (`shaping`), and what counts as a collision.
    """

    metric_specs: ClassVar = {
        "at_goal": MetricSpec(unit="share of episodes"),
        "passed": MetricSpec(unit="share of episodes"),
    }
    radii: ClassVar[tuple[float, float]]  # of the agents
    u_multiplier: ClassVar[float]
    f_range: ClassVar[float]
    config: RodAndWallConfig

    def __init__(self, config: RodAndWallConfig):
        super().__init__(config)
        index = self.world.index
        self.agents, self.rod = np.array([index(name) for name in AGENTS]), index(f"joint {AGENTS[0]} {AGENTS[1]}")
        self.goal, self.walls = index("joint_goal"), np.array([index(name) for name in WALLS])
        boxes, is_gap = np.array([index(name) for name in BOXES]), self.is_gap()
        self.gaps, self.boxes = boxes[is_gap], boxes[~is_gap]
        self.bodies = np.append(self.agents, index("mass")) if config.asym_package else self.agents

    # ------------------------------------------------------------------------------------------- for subclasses

    @property
    def controlled(self) -> bool:
        """Whether actions are velocities."""
        raise NotImplementedError

    def is_gap(self) -> np.ndarray:
        """Which of the boxes do not collide, by number: bool `[NUM_BOXES]`."""
        raise NotImplementedError

    def stops_rod(self) -> np.ndarray:
        """Which of the boxes collide with the rod, by number."""
        raise NotImplementedError

    def draw_gaps(self, key: Key) -> Array:
        """The places of the gaps, `[n_passages]`, counted from the left."""
        raise NotImplementedError

    def draw_start(self, key: Key) -> tuple[Array, Array]:
        """The angle at which the rod starts, and 1 or -1 for the end of it where the second agent is."""
        raise NotImplementedError

    def draw_goal_angle(self, key: Key) -> Array:
        raise NotImplementedError

    def shaping(self, world: WorldState) -> dict[str, Array]:
        """What should become small: `place_before` and `angle_before` the passage, `place_after` and `angle_after`."""
        raise NotImplementedError

    def angle_passed(self, world: WorldState) -> Array:
        """Whether it is `angle_after` that counts."""
        raise NotImplementedError

    def count_collisions(self, world: WorldState) -> Array:
        raise NotImplementedError

    def seen_gaps(self, world: WorldState) -> Array:
        """Positions `[N, 2]` that agents see."""
        return world.position[self.gaps]

    # --------------------------------------------------------------------------------------------------- world

    def make_rod_world(self, *, substeps: int, joint_force: float, rod_collides: bool) -> World:
        c = self.config
        rod = Joint(entity_a=AGENTS[0], entity_b=AGENTS[1], dist=c.joint_length, collidable=rod_collides)
        weight = Landmark(
            name="mass",
            shape=Sphere(radius=MASS_RADIUS),
            movable=True,
            mass=c.mass_ratio,
            colour=BLACK,
            collision_filter=lambda other: not isinstance(other.shape, Sphere),
        )
        hold = Joint(entity_a="mass", entity_b=rod.rod_name, anchor_b=(c.mass_position, 0.0))
        goal = Landmark(name="joint_goal", shape=Line(length=c.joint_length), collide=False, colour=GREEN)
        wall_shape = Line(length=2 * SEMIDIM + 2 * RADIUS)
        walls = [Landmark(name=name, shape=wall_shape, colour=BLACK, collision_filter=not_line) for name in WALLS]
        boxes = [
            Landmark(
                name=name, shape=BOX, collide=not gap, colour=RED, collision_filter=not_box if hit else only_sphere
            )
            for name, gap, hit in zip(BOXES, self.is_gap(), self.stops_rod(), strict=True)
        ]
        return World(
            landmarks=(*([weight] if c.asym_package else []), goal, *walls, *boxes),
            agents=tuple(self.make_agents()),
            joints=(rod, hold) if c.asym_package else (rod,),
            substeps=substeps,
            joint_force=joint_force,
            collision_force=2500.0 if c.asym_package else 1500.0,
            drag=0.15 if c.asym_package else 0.25,
            x_semidim=SEMIDIM,
            y_semidim=SEMIDIM,
        )

    def make_agents(self) -> list[Agent]:
        c = self.config
        control = VelocityControl(
            gain=2.0, integral_time=10.0, derivative_time=1e-5, max_force=self.f_range, stop_below=1e-3
        )
        masses, speeds = (1.0, 1.0 if c.asym_package else c.mass_ratio), (None, c.max_speed_1)
        return [
            Agent(
                name=name,
                shape=Sphere(radius=radius),
                mass=mass,
                max_speed=max_speed,
                u_multiplier=self.u_multiplier,
                f_range=self.f_range,
                dynamics=control if self.controlled else Holonomic(),
            )
            for name, radius, mass, max_speed in zip(AGENTS, self.radii, masses, speeds, strict=True)
        ]

    # ---------------------------------------------------------------------------------------------------- reset

    def reset(self, key: Key) -> ScenarioState:
        c = self.config
        key_gaps, key_start, key_goal_angle, key_place, key_goal = jax.random.split(key, 5)
        start_angle, end = self.draw_start(key_start)
        goal_angle = self.draw_goal_angle(key_goal_angle)
        arm = c.joint_length / 2 * unit(start_angle)  # from the rod's middle to one of its ends
        middle = self.draw_middle(key_place, start_angle) * jnp.array([1.0, -1.0])
        boxes = self.place_boxes(self.draw_gaps(key_gaps))
        world = self.world.start(
            {
                AGENTS[0]: middle - end * arm,
                AGENTS[1]: middle + end * arm,
                "mass": middle + end * c.mass_position * arm,
                "joint_goal": self.draw_middle(key_goal, goal_angle),
            }
            | dict(zip(WALLS, WALL_SIDES, strict=True))
            | dict(zip(BOXES, boxes, strict=True)),
            {"joint_goal": goal_angle} | dict(zip(WALLS, WALL_ANGLES, strict=True)),
        )
        return self.begin(world)

    def draw_middle(self, key: Key, angle: Array) -> Array:
        """Where a rod at `angle` has its middle, anywhere above the wall, so that its ends have room."""
        half, radius = self.config.joint_length / 2 * jnp.abs(unit(angle)), max(self.radii)
        most = SEMIDIM - radius - half
        least = jnp.stack([-most[0], 2 * radius + BOX.width / 2 + half[1]])
        # Where there is no room at all the bounds are the wrong way round, and VMAS still draws between them.
        return most + (least - most) * jax.random.uniform(key, (2,))

    def place_boxes(self, gaps: Array) -> Array:
        """Positions `[NUM_BOXES, 2]`: gaps where they are drawn, the other boxes from the left in what is free."""
        is_gap = self.is_gap()
        taken = jnp.any(np.arange(NUM_BOXES)[:, None] == gaps, -1)
        free = jnp.argsort(taken, stable=True)[: np.sum(~is_gap)]
        place = jnp.zeros(NUM_BOXES).at[np.flatnonzero(is_gap)].set(gaps).at[np.flatnonzero(~is_gap)].set(free)
        x = -SEMIDIM - RADIUS + BOX.length * (place + 0.5)
        return jnp.stack([x, jnp.zeros(NUM_BOXES)], -1)

    def begin(self, world: WorldState, **drawn: Array) -> ScenarioState:
        """`controller` is what the agents' dynamics remember; values of `shaping` may be given too."""
        if "controller" in drawn:
            world = dataclasses.replace(world, dynamics=(drawn.pop("controller"),))
        return super().begin(world, **(self.shaping(world) | drawn))

    # ------------------------------------------------------------------------------------------ reward and sight

    def shares_reward(self, group: str) -> bool:
        return True

    def reward(self, state: ScenarioState, key: Key) -> tuple[Array, ScenarioState]:
        c, world = self.config, state.world
        shaping = self.shaping(world)
        gained = {name: state.memory[name] - value for name, value in shaping.items()}
        passed = world.position[self.rod, 1] > 0
        reward = jnp.where(passed, gained["place_after"], gained["place_before"])
        reward = reward + jnp.where(self.angle_passed(world), gained["angle_after"], gained["angle_before"])
        if c.collision_reward:
            reward = reward + c.collision_reward * self.count_collisions(world)
        if c.energy_reward_coeff:
            force = world.dynamics[0][:, -2:] if self.controlled else world.u
            effort = jnp.sum(jnp.linalg.norm(force, axis=-1)) / (math.sqrt(2) * self.u_multiplier)
            reward = reward - c.energy_reward_coeff * effort
        return jnp.broadcast_to(reward, (2,)), state.remember(**shaping)

    def goal_distance(self, world: WorldState) -> Array:
        return norm(world.position[self.rod] - world.position[self.goal])

    def goal_angle(self, world: WorldState) -> Array:
        return angle_between_lines(world.rotation[self.rod], world.rotation[self.goal])

    def all_passed(self, world: WorldState) -> Array:
        return jnp.all(world.position[self.agents, 1] > BOX.width / 2)

    def count_touching(self, world: WorldState, some: np.ndarray, others: np.ndarray) -> Array:
        if not len(some) or not len(others):
            return jnp.zeros(())
        return jnp.sum(distances(self.world, world, some, others) <= TOUCHING)

    def observation(self, state: ScenarioState, key: Key) -> Array:
        c, world = self.config, state.world
        key_angle, key_noise = jax.random.split(key)
        position = world.position[self.agents]
        from_gaps = position[:, None] - self.seen_gaps(world)
        seen = [
            position,
            world.velocity[self.agents],
            position - world.position[self.goal],
            from_gaps.reshape(2, -1),
            jnp.broadcast_to(unit(world.rotation[self.goal]), (2, 2)),
        ]
        if c.observe_joint_angle:
            angle = world.rotation[self.rod] + c.joint_angle_obs_noise * jax.random.normal(key_angle, (2,))
            seen.append(unit(angle))
        observation = jnp.concatenate(seen, -1)
        if c.obs_noise:
            observation += jax.random.uniform(key_noise, observation.shape, minval=-c.obs_noise, maxval=c.obs_noise)
        return observation

    def done(self, state: ScenarioState) -> Array:
        return (self.goal_distance(state.world) <= AT_GOAL) & (self.goal_angle(state.world) <= AT_GOAL)

    def metrics(self, state: ScenarioState) -> dict[str, Array]:
        return {
            "at_goal": self.done(state).astype(jnp.float32),
            "passed": self.all_passed(state.world).astype(jnp.float32),
        }

    def colours(self, state: ScenarioState) -> dict[str, None]:
        return {self.world.entities[i].name: None for i in self.gaps}

    def decorations(self, state: ScenarioState) -> list[Decoration]:
        """Where the agents are when the rod is at its goal."""
        from covey.envs.vmas.render import Decoration

        centre, angle = np.asarray(state.world.position[self.goal]), float(state.world.rotation[self.goal])
        arm = self.config.joint_length / 2 * np.array([np.cos(angle), np.sin(angle)])
        return [Decoration(shape=Sphere(radius=RADIUS), position=centre + end * arm, colour=GREEN) for end in (-1, 1)]


def not_line(other: Entity) -> bool:
    return not isinstance(other.shape, Line)


def not_box(other: Entity) -> bool:
    return not isinstance(other.shape, Box)


def only_sphere(other: Entity) -> bool:
    return isinstance(other.shape, Sphere)


def angle_between_lines(a: Array, b: Array | float) -> Array:
    """Between lines at angles `a` and `b`: from 0 to π/2."""
    difference = jnp.mod(a, jnp.pi) - jnp.mod(b, jnp.pi)
    return jnp.minimum(jnp.abs(difference), jnp.pi - jnp.abs(difference))
