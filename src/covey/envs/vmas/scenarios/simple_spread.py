"""Spread: as many agents as landmarks cover all landmarks, and keep out of each other's way."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax.numpy as jnp
import numpy as np

from covey.envs.vmas.particles import distances, offsets, offsets_to_others, scatter
from covey.envs.vmas.scenario import Scenario, ScenarioState, VmasConfig
from covey.envs.vmas.shapes import Sphere
from covey.envs.vmas.world import BLACK, BLUE, Agent, Landmark, World
from covey.types import Array, Key, MetricSpec

RADIUS = 0.15


@dataclasses.dataclass(frozen=True, kw_only=True)
class SimpleSpreadConfig(VmasConfig):
    n_agents: int = 3  # agents, and as many landmarks
    obs_agents: bool = True  # agents see each other

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.n_agents < 1:
            raise ValueError(f"n_agents must be at least 1, not {self.n_agents}")


class SimpleSpread(Scenario):
    """Reward, the same for all: minus the distance from each landmark to its nearest agent, times the number of
    agents, and minus two for every pair of agents that overlap."""

    metric_specs: ClassVar = {
        "covered": MetricSpec(unit="share of landmarks"),
        "collisions": MetricSpec(reduction="sum", higher_is_better=False),
    }
    config: SimpleSpreadConfig

    def make_world(self) -> World:
        numbers = range(self.config.n_agents)
        return World(
            landmarks=tuple(Landmark(name=f"landmark {i}", collide=False, colour=BLACK) for i in numbers),
            agents=tuple(Agent(name=f"agent_{i}", shape=Sphere(radius=RADIUS), colour=BLUE) for i in numbers),
        )

    def __init__(self, config: SimpleSpreadConfig):
        super().__init__(config)
        self.agents, self.landmarks = self.world.agent_indices, self.world.indices(r"landmark \d+")

    def reset(self, key: Key) -> ScenarioState:
        return self.begin(scatter(self.world, key))

    def shares_reward(self, group: str) -> bool:
        return True

    def reward(self, state: ScenarioState, key: Key) -> tuple[Array, ScenarioState]:
        count = self.config.n_agents
        shared = -count * self.to_nearest_agent(state).sum() - 2 * self.num_collisions(state)
        return jnp.broadcast_to(shared, (count,)), state

    def to_nearest_agent(self, state: ScenarioState) -> Array:
        """From each landmark."""
        position = state.world.position
        return distances(position[self.landmarks], position[self.agents]).min(-1)

    def num_collisions(self, state: ScenarioState) -> Array:
        position = state.world.position[self.agents]
        first, second = np.triu_indices(self.config.n_agents, 1)
        return jnp.sum(distances(position, position)[first, second] < 2 * RADIUS)

    def observation(self, state: ScenarioState, key: Key) -> Array:
        position, velocity = state.world.position[self.agents], state.world.velocity[self.agents]
        to_landmarks = offsets(position, state.world.position[self.landmarks])
        to_others = [offsets_to_others(position)] if self.config.obs_agents else []
        return jnp.concatenate([position, velocity, to_landmarks, *to_others], -1)

    def metrics(self, state: ScenarioState) -> dict[str, Array]:
        return {
            "covered": jnp.mean(self.to_nearest_agent(state) < RADIUS),
            "collisions": self.num_collisions(state).astype(jnp.float32),
        }
