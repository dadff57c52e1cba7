"""Buzz wire: two agents, outside of a corridor, move a ball inside it by rods to a goal, without touching its walls."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from covey.envs.vmas.geometry import norm, unit
from covey.envs.vmas.physics import distances
from covey.envs.vmas.scenario import Scenario, ScenarioState, VmasConfig
from covey.envs.vmas.shapes import Line, Sphere
from covey.envs.vmas.world import BLACK, GREEN, Agent, Joint, Landmark, World, WorldState, numbered
from covey.types import Array, Key, MetricSpec

AGENTS = numbered("agent", 2)
WALLS, FLOORS = numbered("wall", 2, " "), numbered("floor", 2, " ")
RADIUS = 0.03  # of agents, ball and goal
ROD_LENGTH = 0.25
WALL_LENGTH = 2.0
FLOOR_LENGTH = 0.25  # the corridor's width
GOAL_DISTANCE = 0.01


@dataclasses.dataclass(frozen=True, kw_only=True)
class BuzzWireConfig(VmasConfig):
    random_start_angle: bool = True  # the rods start at up to ±30 degrees; false: level
    collision_reward: float = -10.0  # reward for each body that touches a side of the corridor
    pos_shaping_factor: float = 1.0  # weight of the progress of the ball towards the goal
    max_speed_1: float | None = None  # greatest speed of the second agent; null: no limit

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_speed_1 is not None and self.max_speed_1 < 0:
            raise ValueError(f"max_speed_1 must not be negative, but is {self.max_speed_1}")


class BuzzWire(Scenario):
    """Reward, the same for both: how much nearer the ball came to the goal, a penalty for each body that touches a side
    of the corridor. Such a touch ends the episode, and so does reaching the goal.
    """

    metric_specs: ClassVar = {
        "at_goal": MetricSpec(unit="share of episodes"),
        "touched": MetricSpec(unit="share of episodes", higher_is_better=False),
    }
    config: BuzzWireConfig

    def make_world(self) -> World:
        max_speeds = (None, self.config.max_speed_1)
        return World(
            landmarks=(
                Landmark(name="goal", shape=Sphere(radius=RADIUS), collide=False, colour=GREEN),
                Landmark(name="ball", shape=Sphere(radius=RADIUS), movable=True),
                *(Landmark(name=name, shape=Line(length=WALL_LENGTH), colour=BLACK) for name in WALLS),
                *(Landmark(name=name, shape=Line(length=FLOOR_LENGTH), colour=BLACK) for name in FLOORS),
            ),
            agents=tuple(
                Agent(name=name, shape=Sphere(radius=RADIUS), max_speed=max_speed)
                for name, max_speed in zip(AGENTS, max_speeds, strict=True)
            ),
            joints=tuple(Joint(entity_a=name, entity_b="ball", dist=ROD_LENGTH) for name in AGENTS),
            substeps=15,
            joint_force=900.0,
            collision_force=1500.0,
        )

    def __init__(self, config: BuzzWireConfig):
        super().__init__(config)
        self.agents = self.world.agent_indices
        self.ball, self.goal = self.world.index("ball"), self.world.index("goal")
        self.sides = np.array([self.world.index(name) for name in (*WALLS, *FLOORS)])

    def reset(self, key: Key) -> ScenarioState:
        key_angle, key_ball, key_goal = jax.random.split(key, 3)
        most = jnp.pi / 6 if self.config.random_start_angle else 0.0
        arm = ROD_LENGTH * unit(jax.random.uniform(key_angle, minval=-most, maxval=most))
        end = WALL_LENGTH / 2 - 2 * RADIUS
        ball = jax.random.uniform(
            key_ball, (2,), minval=jnp.array([-RADIUS, -end]), maxval=jnp.array([RADIUS, -RADIUS])
        )
        goal = jax.random.uniform(key_goal, (2,), minval=-RADIUS, maxval=jnp.array([RADIUS, end]))
        half_width, half_length = FLOOR_LENGTH / 2, WALL_LENGTH / 2
        world = self.world.start(
            {
                "ball": ball,
                "goal": goal,
                AGENTS[0]: ball - arm,
                AGENTS[1]: ball + arm,
                WALLS[0]: jnp.array([-half_width, 0.0]),
                WALLS[1]: jnp.array([half_width, 0.0]),
                FLOORS[0]: jnp.array([0.0, -half_length]),
                FLOORS[1]: jnp.array([0.0, half_length]),
            },
            {wall: jnp.array(jnp.pi / 2) for wall in WALLS},
        )
        return self.begin(world)

    def begin(self, world: WorldState, **drawn: Array) -> ScenarioState:
        return super().begin(world, shaping=self.config.pos_shaping_factor * self.distance_to_goal(world))

    def distance_to_goal(self, world: WorldState) -> Array:
        return norm(world.position[self.ball] - world.position[self.goal])

    def touching(self, world: WorldState) -> Array:
        """Which of the agents and the ball touch which side of the corridor, `[3, 4]`."""
        return distances(self.world, world, np.append(self.agents, self.ball), self.sides) < 0

    def shares_reward(self, group: str) -> bool:
        return True

    def reward(self, state: ScenarioState, key: Key) -> tuple[Array, ScenarioState]:
        c = self.config
        shaping = c.pos_shaping_factor * self.distance_to_goal(state.world)
        reward = state.memory["shaping"] - shaping + c.collision_reward * self.touching(state.world).sum()
        return jnp.full(len(AGENTS), reward), state.remember(shaping=shaping)

    def observation(self, state: ScenarioState, key: Key) -> Array:
        position = state.world.position[self.agents]
        to_goal = position - state.world.position[self.goal]
        return jnp.concatenate([position, state.world.velocity[self.agents], to_goal], -1)

    def at_goal(self, world: WorldState) -> Array:
        return self.distance_to_goal(world) <= GOAL_DISTANCE

    def done(self, state: ScenarioState) -> Array:
        return self.at_goal(state.world) | self.touching(state.world).any()

    def metrics(self, state: ScenarioState) -> dict[str, Array]:
        return {
            "at_goal": self.at_goal(state.world).astype(jnp.float32),
            "touched": self.touching(state.world).any().astype(jnp.float32),
        }
