"""Ball trajectory: two agents carry a ball between them, by rods or by pushing it, at a given speed along a circle."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from covey.envs.vmas.geometry import norm
from covey.envs.vmas.scenario import Scenario, ScenarioState, VmasConfig
from covey.envs.vmas.shapes import Sphere
from covey.envs.vmas.world import BLACK, Agent, Joint, Landmark, World, WorldState, numbered
from covey.types import Array, Key, MetricSpec

if TYPE_CHECKING:
    from covey.envs.vmas.render import Decoration

AGENTS = numbered("agent", 2)
DESIRED_SPEED = 1.0
DESIRED_RADIUS = 0.5  # of the circle around the origin
AGENT_RADIUS = 0.03
BALL_RADIUS = 2 * AGENT_RADIUS
ROD_LENGTH = 0.2


@dataclasses.dataclass(frozen=True, kw_only=True)
class BallTrajectoryConfig(VmasConfig):
    joints: bool = True  # rods hold the ball between the agents
    pos_shaping_factor: float = 0.0  # weight of the progress of the ball towards the circle
    speed_shaping_factor: float = 1.0  # weight of the progress of the ball towards the desired speed
    dist_shaping_factor: float = 0.0  # weight of the progress of the agents towards the ball


class BallTrajectory(Scenario):
    """Reward: how much nearer the ball came to the desired speed, to the circle and to the agents, each by its factor.

    Only the first agent earns it, as in VMAS: there each agent in turn earns the change since the previous agent's,
    which for the second is nothing.
    """

    metric_specs: ClassVar = {
        "ball_speed": MetricSpec(),
        "distance_to_circle": MetricSpec(higher_is_better=False),
    }
    config: BallTrajectoryConfig

    def make_world(self) -> World:
        joints = self.config.joints
        return World(
            landmarks=(Landmark(name="ball", shape=Sphere(radius=BALL_RADIUS), movable=True, linear_friction=0.04),),
            agents=tuple(Agent(name=name, shape=Sphere(radius=AGENT_RADIUS), drag=0.25) for name in AGENTS),
            joints=tuple(Joint(entity_a=name, entity_b="ball", dist=ROD_LENGTH) for name in AGENTS) if joints else (),
            substeps=15 if joints else 5,
            joint_force=900.0,
            collision_force=1500.0 if joints else 400.0,
            drag=0.0,
        )

    def __init__(self, config: BallTrajectoryConfig):
        super().__init__(config)
        self.agents, self.ball = self.world.agent_indices, self.world.index("ball")

    def reset(self, key: Key) -> ScenarioState:
        key_ball, key_side = jax.random.split(key)
        ball = jax.random.uniform(key_ball, (2,), minval=-DESIRED_RADIUS, maxval=DESIRED_RADIUS)
        side = jnp.where(jax.random.bernoulli(key_side), 1.0, -1.0)
        agents = ball + side * np.array([[-ROD_LENGTH, 0.0], [ROD_LENGTH, 0.0]], np.float32)
        return self.begin(self.world.start({"ball": ball} | dict(zip(AGENTS, agents, strict=True))))

    def begin(self, world: WorldState, **drawn: Array) -> ScenarioState:
        return super().begin(world, shaping=self.shaping(world))

    def distance_to_circle(self, world: WorldState) -> Array:
        return jnp.abs(norm(world.position[self.ball]) - DESIRED_RADIUS)

    def shaping(self, world: WorldState) -> Array:
        c = self.config
        speed_error = jnp.abs(DESIRED_SPEED - norm(world.velocity[self.ball]))
        spread = norm(world.position[self.agents] - world.position[self.ball]).sum()
        return (
            c.pos_shaping_factor * jnp.sqrt(self.distance_to_circle(world))
            + c.speed_shaping_factor * speed_error
            + c.dist_shaping_factor * spread
        )

    def reward(self, state: ScenarioState, key: Key) -> tuple[Array, ScenarioState]:
        shaping = self.shaping(state.world)
        progress = state.memory["shaping"] - shaping
        return jnp.stack([progress, jnp.zeros_like(progress)]), state.remember(shaping=shaping)

    def observation(self, state: ScenarioState, key: Key) -> Array:
        position = state.world.position[self.agents]
        to_ball = position - state.world.position[self.ball]
        return jnp.concatenate([position, state.world.velocity[self.agents], to_ball, position], -1)

    def metrics(self, state: ScenarioState) -> dict[str, Array]:
        return {
            "ball_speed": norm(state.world.velocity[self.ball]),
            "distance_to_circle": self.distance_to_circle(state.world),
        }

    def decorations(self, state: ScenarioState) -> list[Decoration]:
        """The circle."""
        from covey.envs.vmas.render import Decoration

        return [Decoration(shape=Sphere(radius=DESIRED_RADIUS), position=(0.0, 0.0), colour=BLACK, filled=False)]
