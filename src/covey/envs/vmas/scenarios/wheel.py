"""Wheel: agents push a heavy line that is fixed at its centre, until it turns at a given speed."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from covey.envs.vmas.geometry import unit
from covey.envs.vmas.scenario import Scenario, ScenarioState, VmasConfig
from covey.envs.vmas.shapes import Line, Sphere
from covey.envs.vmas.world import BLACK, Agent, Landmark, World, WorldState, numbered
from covey.types import Array, Key, MetricSpec


@dataclasses.dataclass(frozen=True, kw_only=True)
class WheelConfig(VmasConfig):
    n_agents: int = 4  # agents that turn the line, from 1 up
    line_length: float = 1.0  # length of the line, above 0
    line_mass: float = 30.0  # mass of the line, above 0; an agent has 1
    desired_velocity: float = 0.05  # angular speed to reach, in radians per second, either way

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("n_agents", "line_length", "line_mass"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be positive, not {getattr(self, name)}")


class Wheel(Scenario):
    """Reward, the same for all: minus how far the line's angular speed is from the desired one."""

    metric_specs: ClassVar = {"speed_error": MetricSpec(unit="radians per second", higher_is_better=False)}
    config: WheelConfig

    def make_world(self) -> World:
        c = self.config
        return World(
            landmarks=(
                Landmark(name="line", shape=Line(length=c.line_length), rotatable=True, mass=c.line_mass, colour=BLACK),
                Landmark(name="center", shape=Sphere(radius=0.02), collide=False, colour=BLACK),
            ),
            agents=tuple(
                Agent(name=name, shape=Sphere(radius=0.03), u_multiplier=0.6) for name in numbered("agent", c.n_agents)
            ),
        )

    def __init__(self, config: WheelConfig):
        super().__init__(config)
        self.agents, self.line = self.world.agent_indices, self.world.index("line")

    def reset(self, key: Key) -> ScenarioState:
        c = self.config
        key_agents, key_line = jax.random.split(key)
        agents = jax.random.uniform(key_agents, (c.n_agents, 2), minval=-1.0, maxval=1.0)
        angle = jax.random.uniform(key_line, minval=-jnp.pi / 2, maxval=jnp.pi / 2)
        return self.begin(
            self.world.start(dict(zip(numbered("agent", c.n_agents), agents, strict=True)), {"line": angle})
        )

    def speed_error(self, world: WorldState) -> Array:
        return jnp.abs(jnp.abs(world.angular_velocity[self.line]) - self.config.desired_velocity)

    def shares_reward(self, group: str) -> bool:
        return True

    def reward(self, state: ScenarioState, key: Key) -> tuple[Array, ScenarioState]:
        return jnp.full(self.config.n_agents, -self.speed_error(state.world)), state

    def observation(self, state: ScenarioState, key: Key) -> Array:
        world = state.world
        own, angle = world.position[self.agents], world.rotation[self.line]
        end = self.config.line_length / 2 * unit(angle)
        turning = jnp.stack([angle % jnp.pi, jnp.abs(world.angular_velocity[self.line]), self.speed_error(world)])
        return jnp.concatenate(
            [
                own,
                world.velocity[self.agents],
                world.position[self.line] - own,
                end - own,
                -end - own,
                jnp.broadcast_to(turning, (len(self.agents), turning.size)),
            ],
            -1,
        )

    def metrics(self, state: ScenarioState) -> dict[str, Array]:
        return {"speed_error": self.speed_error(state.world)}
