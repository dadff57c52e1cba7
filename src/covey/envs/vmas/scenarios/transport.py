"""Transport: heavy packages lie about, and agents push them to a goal, which one agent alone can hardly do."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from covey.envs.vmas import physics
from covey.envs.vmas.geometry import norm
from covey.envs.vmas.placement import place_apart
from covey.envs.vmas.scenario import Scenario, ScenarioState, VmasConfig
from covey.envs.vmas.shapes import Box, Sphere
from covey.envs.vmas.world import GREEN, LIGHT_GREEN, RED, Agent, Colour, Landmark, World, WorldState, numbered
from covey.types import Array, Key, MetricSpec

SEMIDIM = 1.0  # everything starts within ± this
AGENT_RADIUS = 0.03
GOAL_RADIUS = 0.15
SHAPING_FACTOR = 100.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class TransportConfig(VmasConfig):
    n_agents: int = 4  # agents that push, from 1 up
    n_packages: int = 1  # packages to push to the goal, from 1 up
    package_width: float = 0.15  # width of each package, above 0
    package_length: float = 0.15  # length of each package, above 0
    package_mass: float = 50.0  # mass of each package, above 0; an agent has 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if min(self.n_agents, self.n_packages) < 1:
            raise ValueError("n_agents and n_packages must be at least 1")
        if min(self.package_width, self.package_length, self.package_mass) <= 0:
            raise ValueError("package_width, package_length and package_mass must be above 0")


class Transport(Scenario):
    """Reward, the same for all: how much nearer the packages that are not at the goal came to it, times 100."""

    metric_specs: ClassVar = {"at_goal": MetricSpec(unit="share of packages")}
    config: TransportConfig

    def make_world(self) -> World:
        c = self.config
        package = Box(length=c.package_length, width=c.package_width)
        semidim = SEMIDIM + 2 * AGENT_RADIUS + max(c.package_length, c.package_width)
        return World(
            landmarks=(
                Landmark(name="goal", collide=False, shape=Sphere(radius=GOAL_RADIUS), colour=LIGHT_GREEN),
                *(
                    Landmark(name=name, movable=True, mass=c.package_mass, shape=package, colour=RED)
                    for name in numbered("package", c.n_packages, " ")
                ),
            ),
            agents=tuple(
                Agent(name=name, shape=Sphere(radius=AGENT_RADIUS), u_multiplier=0.6)
                for name in numbered("agent", c.n_agents)
            ),
            x_semidim=semidim,
            y_semidim=semidim,
        )

    def __init__(self, config: TransportConfig):
        super().__init__(config)
        self.goal, self.packages = self.world.index("goal"), self.world.indices(r"package \d+")
        self.agents = self.world.agent_indices

    def reset(self, key: Key) -> ScenarioState:
        c = self.config
        key_agents, key_others = jax.random.split(key)
        bounds = (-SEMIDIM, SEMIDIM)
        agents = place_apart(key_agents, c.n_agents, min_distance=2 * AGENT_RADIUS, x_bounds=bounds, y_bounds=bounds)
        others = place_apart(
            key_others,
            1 + c.n_packages,
            min_distance=Box(length=c.package_length, width=c.package_width).reach + GOAL_RADIUS + 0.01,
            x_bounds=bounds,
            y_bounds=bounds,
            occupied=agents,
        )
        names = ("goal", *numbered("package", c.n_packages, " "), *numbered("agent", c.n_agents))
        return self.begin(self.world.start(dict(zip(names, (*others, *agents), strict=True))))

    def begin(self, world: WorldState, **drawn: Array) -> ScenarioState:
        return super().begin(world, distance=self.distance(world))

    def distance(self, world: WorldState) -> Array:
        """Of each package to the goal."""
        return norm(world.position[self.packages] - world.position[self.goal])

    def at_goal(self, world: WorldState) -> Array:
        """Which packages overlap the goal."""
        return jnp.stack([physics.overlapping(self.world, world, package, self.goal) for package in self.packages])

    def shares_reward(self, group: str) -> bool:
        return True

    def reward(self, state: ScenarioState, key: Key) -> tuple[Array, ScenarioState]:
        distance = self.distance(state.world)
        progress = SHAPING_FACTOR * (state.memory["distance"] - distance)
        shared = jnp.sum(jnp.where(self.at_goal(state.world), 0.0, progress))
        return jnp.full(len(self.agents), shared), state.remember(distance=distance)

    def potential(self, state: ScenarioState) -> Array:
        """For each agent, minus the distance to where it can push the nearest package that is not yet at the goal, and
        minus the number of such packages, so that nothing is lost when another one becomes the nearest."""
        c, world = self.config, state.world
        packages, arrived = world.position[self.packages], self.at_goal(world)
        from_goal = packages - world.position[self.goal]
        behind = max(c.package_length, c.package_width) / 2 + AGENT_RADIUS
        pushing = packages + behind * from_goal / jnp.maximum(norm(from_goal), 1e-6)[:, None]
        way = jnp.where(arrived, jnp.inf, norm(pushing - world.position[self.agents][:, None])).min(axis=-1)
        return -jnp.where(jnp.all(arrived), 0.0, way) - jnp.sum(~arrived)

    def observation(self, state: ScenarioState, key: Key) -> Array:
        world = state.world
        position, velocity = world.position[self.agents], world.velocity[self.agents]
        packages = world.position[self.packages]
        a, p = len(self.agents), len(self.packages)
        per_package = [
            jnp.broadcast_to(packages - world.position[self.goal], (a, p, 2)),
            packages - position[:, None],
            jnp.broadcast_to(world.velocity[self.packages], (a, p, 2)),
            jnp.broadcast_to(self.at_goal(world)[:, None], (a, p, 1)),
        ]
        return jnp.concatenate([position, velocity, jnp.concatenate(per_package, -1).reshape(a, -1)], -1)

    def colours(self, state: ScenarioState) -> dict[str, Colour]:
        arrived = zip(self.packages, self.at_goal(state.world), strict=True)
        return {self.world.entities[package].name: GREEN for package, there in arrived if there}

    def done(self, state: ScenarioState) -> Array:
        return jnp.all(self.at_goal(state.world))

    def metrics(self, state: ScenarioState) -> dict[str, Array]:
        return {"at_goal": jnp.mean(self.at_goal(state.world))}
