"""Reverse transport: agents are inside a heavy frame and push it from within until it lies over the goal."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from covey.envs.vmas import physics
from covey.envs.vmas.geometry import norm
from covey.envs.vmas.scenario import Scenario, ScenarioState, VmasConfig
from covey.envs.vmas.shapes import Box, Sphere
from covey.envs.vmas.world import GREEN, LIGHT_GREEN, RED, Agent, Colour, Landmark, World, WorldState, numbered
from covey.types import Array, Key, MetricSpec

AGENT_RADIUS = 0.03
GOAL_RADIUS = 0.09
SHAPING_FACTOR = 100.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReverseTransportConfig(VmasConfig):
    n_agents: int = 4  # agents inside the package, from 1 up
    package_width: float = 0.6  # width of the hollow package; greater than an agent
    package_length: float = 0.6  # length of the hollow package; greater than an agent
    package_mass: float = 50.0  # mass of the package; an agent has 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.n_agents < 1:
            raise ValueError("n_agents must be at least 1")
        if min(self.package_width, self.package_length) <= 2 * AGENT_RADIUS:
            raise ValueError(f"agents of radius {AGENT_RADIUS} must fit into package_width and package_length")
        if self.package_mass <= 0:
            raise ValueError("package_mass must be above 0")


class ReverseTransport(Scenario):
    """Reward, the same for all: how much nearer the package came to the goal, times 100; nothing once it is there."""

    metric_specs: ClassVar = {"at_goal": MetricSpec(unit="1 if the package is there")}
    config: ReverseTransportConfig

    def make_world(self) -> World:
        c = self.config
        frame = Box(length=c.package_length, width=c.package_width, hollow=True)
        return World(
            landmarks=(
                Landmark(name="goal", collide=False, shape=Sphere(radius=GOAL_RADIUS), colour=LIGHT_GREEN),
                # VMAS numbers the only package as its last agent.
                Landmark(name=f"package {c.n_agents - 1}", movable=True, mass=c.package_mass, shape=frame, colour=RED),
            ),
            agents=tuple(
                Agent(name=name, shape=Sphere(radius=AGENT_RADIUS), u_multiplier=0.5)
                for name in numbered("agent", c.n_agents)
            ),
            substeps=5,
            contact_margin=6e-3,
            collision_force=500.0,
        )

    def __init__(self, config: ReverseTransportConfig):
        super().__init__(config)
        self.goal, self.package = 0, 1
        self.agents = self.world.agent_indices

    def reset(self, key: Key) -> ScenarioState:
        c = self.config
        key_landmarks, key_agents = jax.random.split(key)
        goal, package = jax.random.uniform(key_landmarks, (2, 2), minval=-1.0, maxval=1.0)
        room = jnp.array([c.package_length, c.package_width]) / 2 - AGENT_RADIUS
        agents = package + jax.random.uniform(key_agents, (c.n_agents, 2), minval=-room, maxval=room)
        names = [entity.name for entity in self.world.entities]
        return self.begin(self.world.start(dict(zip(names, (goal, package, *agents), strict=True))))

    def begin(self, world: WorldState, **drawn: Array) -> ScenarioState:
        return super().begin(world, distance=self.distance(world))

    def distance(self, world: WorldState) -> Array:
        return norm(world.position[self.package] - world.position[self.goal])

    def at_goal(self, world: WorldState) -> Array:
        return physics.overlapping(self.world, world, self.package, self.goal)

    def shares_reward(self, group: str) -> bool:
        return True

    def reward(self, state: ScenarioState, key: Key) -> tuple[Array, ScenarioState]:
        distance = self.distance(state.world)
        progress = SHAPING_FACTOR * (state.memory["distance"] - distance)
        shared = jnp.where(self.at_goal(state.world), 0.0, progress)
        return jnp.full(len(self.agents), shared), state.remember(distance=distance)

    def observation(self, state: ScenarioState, key: Key) -> Array:
        world = state.world
        position, velocity = world.position[self.agents], world.velocity[self.agents]
        package = world.position[self.package]
        return jnp.concatenate(
            [
                position,
                velocity,
                jnp.broadcast_to(world.velocity[self.package], position.shape),
                package - position,
                jnp.broadcast_to(package - world.position[self.goal], position.shape),
            ],
            -1,
        )

    def colours(self, state: ScenarioState) -> dict[str, Colour]:
        return {self.world.entities[self.package].name: GREEN} if self.at_goal(state.world) else {}

    def done(self, state: ScenarioState) -> Array:
        return self.at_goal(state.world)

    def metrics(self, state: ScenarioState) -> dict[str, Array]:
        return {"at_goal": self.at_goal(state.world).astype(jnp.float32)}
