"""Dropout: one agent is enough at the goal, and motion costs energy, so the others had better stay where they are."""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

import jax.numpy as jnp

from covey.envs.vmas.geometry import norm
from covey.envs.vmas.placement import place_apart
from covey.envs.vmas.scenario import Scenario, ScenarioState, VmasConfig
from covey.envs.vmas.shapes import Sphere
from covey.envs.vmas.world import GREEN, Agent, Landmark, World, WorldState, numbered
from covey.types import Array, Key, MetricSpec

AGENT_RADIUS, GOAL_RADIUS = 0.05, 0.03
GREATEST_ACTION = math.sqrt(2)  # the length of an action with both components at 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class DropoutConfig(VmasConfig):
    n_agents: int = 4  # agents, from 1 up
    energy_coeff: float = 0.02  # weight of a penalty, the same for all, on the energy that all agents' actions take
    start_same_point: bool = False  # all agents start in the middle; false: anywhere

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.n_agents < 1:
            raise ValueError("n_agents must be at least 1")


class Dropout(Scenario):
    """Reward, the same for all: 1 when an agent reaches the goal, which ends the episode, less the energy of all."""

    metric_specs: ClassVar = {"reached": MetricSpec(reduction="max", unit="share of episodes")}
    config: DropoutConfig

    def make_world(self) -> World:
        names = numbered("agent", self.config.n_agents)
        return World(
            landmarks=(Landmark(name="goal", shape=Sphere(radius=GOAL_RADIUS), collide=False, colour=GREEN),),
            agents=tuple(Agent(name=name, shape=Sphere(radius=AGENT_RADIUS), collide=False) for name in names),
        )

    def __init__(self, config: DropoutConfig):
        super().__init__(config)
        self.agents, self.goal = self.world.agent_indices, self.world.index("goal")

    def reset(self, key: Key) -> ScenarioState:
        c = self.config
        names = ["goal"] if c.start_same_point else [*numbered("agent", c.n_agents), "goal"]
        places = place_apart(
            key,
            len(names),
            min_distance=GOAL_RADIUS + AGENT_RADIUS + 0.01,
            x_bounds=(-1.0, 1.0),
            y_bounds=(-1.0, 1.0),
            occupied=jnp.zeros((1, 2)) if c.start_same_point else None,
        )
        world = self.world.start(dict(zip(names, places, strict=True)))
        return self.begin(world, reached=jnp.zeros((), bool))

    def at_goal(self, world: WorldState) -> Array:
        """Whether any agent is."""
        distance = norm(world.position[self.agents] - world.position[self.goal])
        return jnp.any(distance < AGENT_RADIUS + GOAL_RADIUS)

    def shares_reward(self, group: str) -> bool:
        return True

    def reward(self, state: ScenarioState, key: Key) -> tuple[Array, ScenarioState]:
        reached, at_goal = state.memory["reached"], self.at_goal(state.world)
        energy = jnp.sum(jnp.linalg.norm(state.world.u, axis=-1)) / GREATEST_ACTION
        reward = (at_goal & ~reached) - self.config.energy_coeff * energy
        return jnp.broadcast_to(reward, self.agents.shape), state.remember(reached=reached | at_goal)

    def observation(self, state: ScenarioState, key: Key) -> Array:
        position, velocity = state.world.position[self.agents], state.world.velocity[self.agents]
        reached = jnp.broadcast_to(state.memory["reached"], (len(self.agents), 1))
        return jnp.concatenate([position, velocity, state.world.position[self.goal] - position, reached], -1)

    def done(self, state: ScenarioState) -> Array:
        return self.at_goal(state.world)

    def metrics(self, state: ScenarioState) -> dict[str, Array]:
        return {"reached": state.memory["reached"].astype(jnp.float32)}
