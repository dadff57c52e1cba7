"""Level-based foraging (Christianos et al. 2020), in its own package `lbforaging`: food that may take several agents.

The package reports its time limit as an ending, so that limit is set too high to be reached. It can draw only in a
window, so pictures here are covey's own.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import numpy as np

from covey.checks import at_least
from covey.envs.host.pettingzoo.parallel import ParallelSimulator
from covey.envs.host.pettingzoo.recipe import PettingZooConfig, Recipe
from covey.envs.host.pictures import COLOURS, Grid
from covey.envs.host.simulator import SimulatorStep
from covey.envs.host.tuples import TupleEnvironment, require
from covey.registry import OtherNames
from covey.specs import MetricSpec


@dataclasses.dataclass(frozen=True, kw_only=True)
class ForagingConfig(PettingZooConfig):
    """Fields of level-based foraging; the defaults are the package's."""

    time_limit: int = 50
    grid_size: int = 8  # rows, and columns
    num_agents: int = 2  # number of agents
    num_food: int = 1  # number of pieces of food
    sight: int | None = None  # cells that an agent sees in each direction; null: all
    force_coop: bool = False  # every piece of food takes all agents
    min_agent_level: int = 1  # lowest level of an agent
    max_agent_level: int = 2  # highest level of an agent
    min_food_level: int = 1  # lowest level of food
    # highest level of food; null: the sum of the three lowest levels among the agents
    max_food_level: int | None = None
    normalise_reward: bool = True  # rewards of all agents for all food sum to 1
    penalty: float = 0.0  # what an agent loses when it tries to eat food above its level

    largest_count: ClassVar[int] = 256
    other_names: ClassVar[OtherNames] = {
        **PettingZooConfig.other_names,
        "players": "num_agents",
        "max_num_food": "num_food",
        "max_episode_steps": "time_limit",
        "min_player_level": "min_agent_level",
        "max_player_level": "max_agent_level",
        "normalize_reward": "normalise_reward",
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 1, "num_agents", "num_food", "sight", "min_agent_level", "min_food_level")
        at_least(self, 5, "grid_size")
        if self.max_agent_level < self.min_agent_level:
            raise ValueError(f"max_agent_level={self.max_agent_level} is below min_agent_level={self.min_agent_level}")
        if self.max_food_level is not None and self.max_food_level < self.min_food_level:
            raise ValueError(f"max_food_level={self.max_food_level} is below min_food_level={self.min_food_level}")

    def recipe(self) -> Recipe:
        return Recipe(
            module="covey.envs.host.lbforaging:make_foraging",
            arguments={
                "players": self.num_agents,
                "min_player_level": self.min_agent_level,
                "max_player_level": self.max_agent_level,
                "min_food_level": self.min_food_level,
                "max_food_level": self.max_food_level,
                "field_size": (self.grid_size, self.grid_size),
                "max_num_food": self.num_food,
                "sight": self.sight or self.grid_size,
                "force_coop": self.force_coop,
                "normalize_reward": self.normalise_reward,
                "penalty": self.penalty,
            },
            metrics={"food_eaten": MetricSpec(reduction="last", unit="share")},
            returns="the agent's part of the food eaten, by level; with normalise_reward a team that eats all earns 1",
        )


def make_foraging(*, max_cycles: int, **arguments: Any) -> TupleEnvironment:
    """The package's environment, with a limit above covey's."""
    require("lbforaging", "level-based foraging", "lbforaging")
    from lbforaging.foraging.environment import ForagingEnv

    return TupleEnvironment(ForagingEnv(**arguments, max_episode_steps=max_cycles))


class ForagingSimulator(ParallelSimulator):
    """Reports the share of the food's levels that was eaten."""

    _levels: float

    def __init__(self, config: ForagingConfig):
        self._levels = 1.0
        super().__init__(config)

    def reset(self, seed: int) -> SimulatorStep:
        answer = super().reset(seed)
        self._levels = float(self.environment.unwrapped.field.sum())
        return dataclasses.replace(answer, metrics=self.measure())

    def measure(self) -> dict[str, float]:
        return {"food_eaten": 1.0 - float(self.environment.unwrapped.field.sum()) / self._levels}

    def render(self) -> np.ndarray:
        """Food in green and agents in blue, with as many dots as their level."""
        world = self.environment.unwrapped
        picture = Grid(*world.field.shape)
        for row, column in zip(*np.nonzero(world.field), strict=True):
            picture.fill(row, column, COLOURS["green"], inset=2)
            picture.dots(row, column, int(world.field[row, column]))
        for agent in world.players:
            row, column = agent.position
            picture.fill(row, column, COLOURS["blue"], inset=2)
            picture.dots(row, column, agent.level)
        return picture.pixels
