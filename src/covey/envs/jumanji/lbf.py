"""Level-based foraging: food is eaten when the levels of the agents that load it sum to at least its own."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
from jumanji.environments.routing.lbf.env import LevelBasedForaging
from jumanji.environments.routing.lbf.generator import RandomGenerator

from covey.envs.base import Reward, SuiteConfig
from covey.envs.jumanji.core import NEVER, JumanjiEnv, ObservationKind
from covey.types import Array, Discrete, MetricSpec, PyTree


@dataclasses.dataclass(frozen=True, kw_only=True)
class LbfConfig(SuiteConfig):
    grid_size: int = 8  # cells on a side of the grid
    num_agents: int = 2  # agents
    num_food: int = 2  # pieces of food
    fov: int | None = None  # cells seen to each side, from 1 to grid_size; null: the whole grid
    max_agent_level: int = 2  # greatest level of an agent, from 2 up; a food needs levels that sum to its own
    # every food has the sum of the three lowest levels of agents as its level, or of all levels of a smaller team
    force_coop: bool = False
    normalise_reward: bool = True  # rewards are scaled so that a team earns 1 for eating all food
    load_penalty: float = 0.0  # penalty for loading a food that is too heavy
    observation: ObservationKind = ObservationKind.vector  # how an agent sees the grid
    reward: Reward = Reward.team_sum

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.fov is not None and not 1 <= self.fov <= self.grid_size:
            raise ValueError(f"fov must be between 1 and grid_size ({self.grid_size}), not {self.fov}")
        if self.max_agent_level < 2:
            raise ValueError(f"max_agent_level must be at least 2, not {self.max_agent_level}")
        # A food and its four neighbours take five of the cells that are not on the edge.
        if (self.grid_size - 2) ** 2 - self.num_agents <= 5 * self.num_food:
            raise ValueError(f"grid_size {self.grid_size} is too small for {self.num_food} food items")


class Lbf(JumanjiEnv):
    def __init__(self, config: LbfConfig):
        fov = config.grid_size if config.fov is None else config.fov
        generator = RandomGenerator(
            grid_size=config.grid_size,
            fov=fov,
            num_agents=config.num_agents,
            num_food=config.num_food,
            max_agent_level=config.max_agent_level,
            force_coop=config.force_coop,
        )
        env = LevelBasedForaging(
            generator,
            time_limit=NEVER,
            grid_observation=config.observation is ObservationKind.grid,
            normalize_reward=config.normalise_reward,
            penalty=config.load_penalty,
        )
        self._sees_all = fov >= config.grid_size - 1
        self._channels_first = config.observation is ObservationKind.grid
        super().__init__(
            env,
            config,
            action=Discrete(6),
            metrics={"food_eaten": MetricSpec(reduction="last", unit="share")},
            returns="the agent's part of the food eaten, by level; with normalise_reward a team that eats all earns 1",
        )

    def observe(self, state: PyTree, observation: Any) -> Array:
        view = observation.agents_view
        return jnp.moveaxis(view, 1, -1) if self._channels_first else view

    def global_state(self, state: PyTree) -> Array | None:
        """Row, column and level of each food, then of each agent; an eaten food is (-1, -1, 0), as agents see it."""
        if self._sees_all:
            return None
        food, agents = state.food_items, state.agents
        foods = jnp.column_stack([food.position, food.level])
        foods = jnp.where(food.eaten[:, None], jnp.array([-1, -1, 0]), foods)
        rows = jnp.concatenate([foods, jnp.column_stack([agents.position, agents.level])])
        return rows.ravel().astype(jnp.float32)

    def measure(self, state: PyTree, timestep: Any) -> dict[str, Array]:
        return {"food_eaten": state.food_items.eaten.mean()}
