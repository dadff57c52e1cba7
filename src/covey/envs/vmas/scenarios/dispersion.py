"""Dispersion: agents that start at one point spread out to eat pieces of food."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from covey.envs.base import Reward
from covey.envs.vmas.geometry import norm
from covey.envs.vmas.scenario import Scenario, ScenarioState, VmasConfig
from covey.envs.vmas.shapes import Sphere
from covey.envs.vmas.world import GREEN, Agent, Landmark, World, WorldState, numbered
from covey.task_fields import SHARED_REWARD_NAMES
from covey.types import Array, Key, MetricSpec

AGENT_RADIUS = 0.035
TIME_PENALTY = -0.01


@dataclasses.dataclass(frozen=True, kw_only=True)
class DispersionConfig(VmasConfig):
    shares_reward: ClassVar[bool] = True
    other_names: ClassVar = {**VmasConfig.other_names, **SHARED_REWARD_NAMES}

    n_agents: int = 4  # agents, from 1 up
    n_food: int = 4  # pieces of food, from 1 up
    # who receives which reward; shared: everyone receives 1 for each piece; individual: the agents at a piece divide it
    reward: Reward = Reward.shared
    food_radius: float = 0.02  # radius of a piece of food, above 0
    penalise_by_time: bool = False  # an agent that would earn nothing in a step receives a small penalty
    pos_range: float = 1.0  # half the side of the square that holds everything, above 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.n_agents < 1 or self.n_food < 1:
            raise ValueError("n_agents and n_food must be at least 1")
        if self.food_radius <= 0 or self.pos_range <= 0:
            raise ValueError("food_radius and pos_range must be positive")


class Dispersion(Scenario):
    """Reward: 1 for each piece of food that is eaten, to all, or divided among the agents at it."""

    metric_specs: ClassVar = {"eaten": MetricSpec(unit="share of food")}
    shared_returns: ClassVar = "; every agent gets 1 for each piece that is eaten"
    config: DispersionConfig

    def make_world(self) -> World:
        c = self.config
        return World(
            landmarks=tuple(
                Landmark(name=name, shape=Sphere(radius=c.food_radius), collide=False, colour=GREEN)
                for name in numbered("food", c.n_food)
            ),
            agents=tuple(
                Agent(name=name, shape=Sphere(radius=AGENT_RADIUS), collide=False)
                for name in numbered("agent", c.n_agents)
            ),
            x_semidim=c.pos_range,
            y_semidim=c.pos_range,
        )

    def __init__(self, config: DispersionConfig):
        super().__init__(config)
        self.agents, self.food = self.world.indices(r"agent_\d+"), self.world.indices(r"food_\d+")

    def reset(self, key: Key) -> ScenarioState:
        c = self.config
        places = jax.random.uniform(key, (c.n_food, 2), minval=-c.pos_range, maxval=c.pos_range)
        world = self.world.start(dict(zip(numbered("food", c.n_food), places, strict=True)))
        return self.begin(world, eaten=jnp.zeros(c.n_food, bool))

    def to_food(self, world: WorldState) -> Array:
        """From each agent to each piece of food, `[A, F, 2]`."""
        return world.position[self.food] - world.position[self.agents][:, None]

    def shares_reward(self, group: str) -> bool:
        return self.config.reward is Reward.shared

    def reward(self, state: ScenarioState, key: Key) -> tuple[Array, ScenarioState]:
        c = self.config
        eaten = state.memory["eaten"]
        at_food = norm(self.to_food(state.world)) < AGENT_RADIUS + c.food_radius
        eaters = at_food.sum(0)
        share = (eaters > 0) if c.reward is Reward.shared else at_food / jnp.maximum(eaters, 1)
        rewards = jnp.broadcast_to(jnp.sum(share * ~eaten, -1), (c.n_agents,)).astype(jnp.float32)
        if c.penalise_by_time:
            rewards = jnp.where(rewards == 0, TIME_PENALTY, rewards)
        return rewards, state.remember(eaten=eaten | (eaters > 0))

    def observation(self, state: ScenarioState, key: Key) -> Array:
        position, velocity = state.world.position[self.agents], state.world.velocity[self.agents]
        way = self.to_food(state.world)
        eaten = jnp.broadcast_to(state.memory["eaten"][:, None], (*way.shape[:2], 1))
        food = jnp.concatenate([way, eaten], -1).reshape(len(self.agents), -1)
        return jnp.concatenate([position, velocity, food], -1)

    def potential(self, state: ScenarioState) -> Array:
        """For each agent, minus the distance to the nearest piece that is left, and minus the number of pieces left, so
        that nothing is lost when the nearest is eaten and another one becomes the nearest."""
        eaten = state.memory["eaten"]
        nearest = jnp.where(eaten, jnp.inf, norm(self.to_food(state.world))).min(axis=-1)
        return -jnp.where(jnp.all(eaten), 0.0, nearest) - jnp.sum(~eaten)

    def done(self, state: ScenarioState) -> Array:
        return jnp.all(state.memory["eaten"])

    def colours(self, state: ScenarioState) -> dict[str, None]:
        """Eaten food is gone."""
        return {self.world.entities[i].name: None for i in self.food[state.memory["eaten"]]}

    def metrics(self, state: ScenarioState) -> dict[str, Array]:
        return {"eaten": jnp.mean(state.memory["eaten"])}
