"""Give way: two agents change sides in a corridor that is too narrow for both; one must wait in a recess."""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from covey.envs.vmas.dynamics import Delayed, Dynamics, Holonomic, VelocityControl
from covey.envs.vmas.geometry import norm
from covey.envs.vmas.physics import distances, limit_length
from covey.envs.vmas.scenario import Scenario, ScenarioState, VmasConfig
from covey.envs.vmas.shapes import Box, Line, Sphere
from covey.envs.vmas.vectors import Vector
from covey.envs.vmas.world import BLACK, BLUE, GREEN, Agent, Landmark, World, WorldState, numbered
from covey.types import Array, Key, MetricSpec

AGENT_RADIUS, GOAL_RADIUS = 0.16, 0.08
AGENT_BOX = Box(length=0.32, width=0.24)
HALF_LENGTH, CORRIDOR_WIDTH, RECESS_DEPTH = 2.5, 0.4, 0.48
START = HALF_LENGTH - 0.5  # agents from the middle
GOAL = HALF_LENGTH - AGENT_RADIUS - 0.05
SPAWN_NOISE = 0.02
TOUCHING = 0.005  # the distance that counts as a collision
UPRIGHT = math.pi / 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class GiveWayConfig(VmasConfig):
    v_range: float = 0.5  # greatest velocity, above 0
    a_range: float = 1.0  # force that an agent has beyond friction, above 0
    obs_noise: float = 0.0  # observations have uniform noise of ± this
    box_agents: bool = False  # agents are boxes; false: discs
    linear_friction: float = 0.1  # friction between agents and ground
    mirror_passage: bool = False  # a second recess, opposite the first
    done_on_completion: bool = False  # the episode ends when both are at their goals
    observe_rel_pos: bool = False  # agents see where the other is, from their own position
    pos_shaping_factor: float = 1.0  # weight of the progress of both towards their goals
    final_reward: float = 0.01  # reward in each step in which all agents are at their goals
    energy_rew_coeff: float = 0.0  # weight of a penalty on the force that an agent uses
    agent_collision_penalty: float = 0.0  # reward, usually below 0, for touching another agent
    passage_collision_penalty: float = 0.0  # reward, usually below 0, for touching the recess
    obstacle_collision_penalty: float = 0.0  # reward, usually below 0, for touching other walls
    use_velocity_controller: bool = True  # actions are velocities, pursued by a controller; false: forces
    min_input_norm: float = 0.08  # velocity commands below this norm stop the agent
    dt_delay: int = 0  # steps by which velocity commands arrive late, from 0 up

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dt_delay < 0:
            raise ValueError(f"dt_delay must not be negative, but is {self.dt_delay}")
        if self.v_range <= 0 or self.a_range <= 0:
            raise ValueError("v_range and a_range must be positive")


class GiveWay(Scenario):
    """Reward: how much nearer both together came to their goals, a bonus while both are there; less penalties."""

    metric_specs: ClassVar = {"at_goal": MetricSpec(unit="share of agents")}
    config: GiveWayConfig

    def make_world(self) -> World:
        c = self.config
        max_force = c.a_range + c.linear_friction
        dynamics: Dynamics = velocity_control(max_force) if c.use_velocity_controller else Holonomic()
        if c.use_velocity_controller and c.dt_delay:
            dynamics = Delayed(dynamics=dynamics, steps=c.dt_delay)
        colours = (BLUE, GREEN)
        goals = [
            Landmark(name=name, collide=False, shape=Sphere(radius=GOAL_RADIUS), colour=colour)
            for name, colour in zip(numbered("goal", 2), colours, strict=True)
        ]
        walls = [Landmark(name=wall.name, shape=Line(length=wall.length), colour=BLACK) for wall in self.walls()]
        agents = [
            Agent(
                name=name,
                shape=AGENT_BOX if c.box_agents else Sphere(radius=AGENT_RADIUS),
                rotatable=False,
                linear_friction=c.linear_friction,
                u_range=c.v_range if c.use_velocity_controller else max_force,
                f_range=max_force,
                v_range=c.v_range,
                dynamics=dynamics,
                colour=colour,
            )
            for name, colour in zip(numbered("agent", 2), colours, strict=True)
        ]
        return World(
            landmarks=(*goals, *walls),
            agents=tuple(agents),
            dt=0.05,
            substeps=16 if c.box_agents else 5,
            collision_force=10000.0 if c.box_agents else 500.0,
            drag=0.0,
            linear_friction=c.linear_friction,
        )

    def walls(self) -> list[Wall]:
        """Ends, then a ceiling with a recess in its middle, and a floor that is plain or like the ceiling."""
        ends = [Wall(f"wall {i}", CORRIDOR_WIDTH, (side * HALF_LENGTH, 0.0), UPRIGHT) for i, side in ((0, -1), (1, 1))]
        if self.config.mirror_passage:
            return [*ends, *recessed("1", "2", 1), *recessed("12", "22", -1)]
        floor = Wall("floor", 2 * HALF_LENGTH, (0.0, -CORRIDOR_WIDTH / 2), 0.0)
        return [*ends, *recessed("1", "2", 1), floor]

    def __init__(self, config: GiveWayConfig):
        super().__init__(config)
        world = self.world
        self.agents, self.goals = world.indices(r"agent_\d+"), world.indices(r"goal_\d+")
        self.wall_rows = np.array([world.index(wall.name) for wall in self.walls()])
        in_recess = np.isin(self.wall_rows, world.indices(r"ceil 22? \d"))
        self.wall_penalty = np.where(in_recess, config.passage_collision_penalty, config.obstacle_collision_penalty)
        # VMAS looks at a wall only where the circles around both shapes meet, which matters at its ends.
        reach = [
            [world.entities[i].shape.reach + world.entities[j].shape.reach for j in self.wall_rows] for i in self.agents
        ]
        self.wall_reach = np.array(reach, np.float32)

    def reset(self, key: Key) -> ScenarioState:
        noise = jax.random.uniform(key, (2, 2), minval=-SPAWN_NOISE, maxval=SPAWN_NOISE)
        sides = np.array([[-1.0, 0.0], [1.0, 0.0]], np.float32)
        world = self.world.start(
            dict(zip(numbered("agent", 2), START * sides + noise, strict=True))
            | dict(zip(numbered("goal", 2), -GOAL * sides, strict=True))
            | {wall.name: wall.position for wall in self.walls()},
            {wall.name: jnp.asarray(wall.angle) for wall in self.walls()},
        )
        return self.begin(world)

    def begin(self, world: WorldState, **drawn: Array) -> ScenarioState:
        """`controller` is what the agents' dynamics remember."""
        if "controller" in drawn:
            world = dataclasses.replace(world, dynamics=(drawn["controller"],))
        return super().begin(world, distance=self.to_goals(world))

    def process_action(self, state: ScenarioState, u: Array, key: Key) -> tuple[Array, ScenarioState]:
        c = self.config
        return limit_command(u, c.v_range, c.min_input_norm) if c.use_velocity_controller else u, state

    def to_goals(self, world: WorldState) -> Array:
        return norm(world.position[self.agents] - world.position[self.goals])

    def at_goal(self, world: WorldState) -> Array:
        return self.to_goals(world) < GOAL_RADIUS

    def shares_reward(self, group: str) -> bool:
        return not self.wall_penalty.any() and not self.config.energy_rew_coeff

    def reward(self, state: ScenarioState, key: Key) -> tuple[Array, ScenarioState]:
        c, world = self.config, state.world
        distance = self.to_goals(world)
        progress = c.pos_shaping_factor * jnp.sum(state.memory["distance"] - distance)
        bonus = c.final_reward * jnp.all(self.at_goal(world))
        own = jnp.zeros(2)
        if c.agent_collision_penalty:  # between boxes, distances take long to compile
            apart = distances(self.world, world, self.agents[:1], self.agents[1:])[0, 0]
            own = own + c.agent_collision_penalty * (apart <= TOUCHING)
        if self.wall_penalty.any():
            own = own + self.touching_walls(world) @ self.wall_penalty.astype(np.float32)
        if c.energy_rew_coeff:
            force = world.dynamics[0][:, -2:] if c.use_velocity_controller else world.u
            effort = jnp.linalg.norm(force, axis=-1)
            own = own - c.energy_rew_coeff * effort / (math.sqrt(2) * (c.a_range + c.linear_friction))
        return progress + bonus + own, state.remember(distance=distance)

    def touching_walls(self, world: WorldState) -> Array:
        """`[A, W]`, 1 where an agent touches a wall."""
        between = world.position[self.agents][:, None] - world.position[self.wall_rows]
        near = norm(between) <= self.wall_reach
        touching = distances(self.world, world, self.agents, self.wall_rows) <= TOUCHING
        return (near & touching).astype(jnp.float32)

    def observation(self, state: ScenarioState, key: Key) -> Array:
        c = self.config
        position, velocity = state.world.position[self.agents], state.world.velocity[self.agents]
        to_other = [position - position[::-1]] if c.observe_rel_pos else []
        return add_noise(jnp.concatenate([position, velocity, *to_other], -1), c.obs_noise, key)

    def done(self, state: ScenarioState) -> Array:
        return jnp.all(self.at_goal(state.world)) & self.config.done_on_completion

    def metrics(self, state: ScenarioState) -> dict[str, Array]:
        return {"at_goal": jnp.mean(self.at_goal(state.world))}


@dataclasses.dataclass(frozen=True)
class Wall:
    name: str
    length: float
    position: tuple[float, float]
    angle: float


def recessed(flat: str, recess: str, side: int) -> list[Wall]:
    """A ceiling (`side` 1) or floor (-1): the flat parts right and left, and between them a recess of three walls."""
    flat_length, y = HALF_LENGTH - CORRIDOR_WIDTH / 2, side * CORRIDOR_WIDTH / 2
    flat_x, deep = HALF_LENGTH - flat_length / 2, side * RECESS_DEPTH
    return [
        Wall(f"ceil {flat} 0", flat_length, (flat_x, y), 0.0),
        Wall(f"ceil {flat} 1", flat_length, (-flat_x, y), 0.0),
        Wall(f"ceil {recess} 0", RECESS_DEPTH, (-CORRIDOR_WIDTH / 2, y + deep / 2), UPRIGHT),
        Wall(f"ceil {recess} 1", RECESS_DEPTH, (CORRIDOR_WIDTH / 2, y + deep / 2), UPRIGHT),
        Wall(f"ceil {recess} 2", CORRIDOR_WIDTH, (0.0, y + deep), 0.0),
    ]


def velocity_control(max_force: float) -> VelocityControl:
    return VelocityControl(gain=2.0, integral_time=6.0, derivative_time=0.002, max_force=max_force, stop_below=1e-3)


def limit_command(u: Array, fastest: float, slowest: float) -> Array:
    """Velocity commands `[A, 2]` no longer than `fastest`, and 0 where they are shorter than `slowest`."""
    u = limit_length(Vector.of(u), np.full(len(u), fastest, np.float32)).stack()
    return jnp.where(norm(u)[:, None] < slowest, 0.0, u)


def add_noise(observation: Array, size: float, key: Key) -> Array:
    if not size:
        return observation
    return observation + jax.random.uniform(key, observation.shape, minval=-size, maxval=size)
