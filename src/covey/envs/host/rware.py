"""The robot warehouse (Papoudakis et al. 2021), in its own package `rware`: robots deliver shelves that are requested.

The package reports its time limit as an ending, so it is made without one. It can draw only in a window, so pictures
here are covey's own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from covey.checks import at_least
from covey.envs.config import Reward
from covey.envs.host.pettingzoo.parallel import ParallelSimulator
from covey.envs.host.pettingzoo.recipe import PettingZooConfig, Recipe
from covey.envs.host.pictures import COLOURS, Grid
from covey.envs.host.simulator import SimulatorStep
from covey.envs.host.tuples import TupleEnvironment, require
from covey.registry import OtherNames
from covey.specs import MetricSpec
from covey.task_fields import SHARED_REWARD_NAMES


@dataclasses.dataclass(frozen=True, kw_only=True)
class WarehouseConfig(PettingZooConfig):
    """Fields of the robot warehouse; the defaults are the package's."""

    time_limit: int = 500
    num_agents: int = 2  # number of robots
    shelf_rows: int = 1  # rows of blocks of shelves
    shelf_columns: int = 3  # columns of blocks of shelves, an odd number
    column_height: int = 8  # shelves in a column of a block
    request_queue_size: int = 2  # shelves that are requested at a time
    sensor_range: int = 1  # cells that a robot sees in each direction
    msg_bits: int = 0  # bits that a robot sends to those that see it; above 0, an action is several choices at once
    two_stage: bool = False  # half of a delivery's reward is for returning the shelf to a place among the others
    max_inactivity_steps: int | None = None  # steps without a delivery after which an episode ends; null: never

    shares_reward: ClassVar[bool] = True
    largest_count: ClassVar[int] = 256
    other_names: ClassVar[OtherNames] = {
        **PettingZooConfig.other_names,
        **SHARED_REWARD_NAMES,
        "n_agents": "num_agents",
        "max_steps": "time_limit",
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 1, "num_agents", "shelf_rows", "shelf_columns", "column_height", "request_queue_size")
        at_least(self, 1, "sensor_range", "max_inactivity_steps")
        at_least(self, 0, "msg_bits")
        if self.shelf_columns % 2 == 0:
            raise ValueError(f"shelf_columns must be odd, not {self.shelf_columns}")
        if self.two_stage and self.reward is Reward.shared:
            raise ValueError("two_stage=true does not combine with reward=shared; reward=team_sum shares both stages")

    def recipe(self) -> Recipe:
        shared = self.reward is Reward.shared
        whose = "that anybody delivered" if shared else "that it delivered"
        returns = f"the number of requested shelves {whose}"
        if self.two_stage:
            returns = "half of the number of requested shelves that it delivered, and half of those that it returned"
        own = self.arguments(without=["two_stage"], num_agents="n_agents")
        kind = "GLOBAL" if shared else "TWO_STAGE" if self.two_stage else "INDIVIDUAL"
        return Recipe(
            module="covey.envs.host.rware:make_warehouse",
            arguments={**own, "reward_type": kind},
            shared_reward=("agents",) if shared else (),
            metrics={"deliveries": MetricSpec(reduction="sum", unit="shelves")},
            returns=returns,
        )


def make_warehouse(*, reward_type: str, **arguments: Any) -> TupleEnvironment:
    """The package's warehouse, without a limit of its own."""
    require("rware", "the robot warehouse", "rware")
    from rware.warehouse import RewardType, Warehouse

    return TupleEnvironment(Warehouse(**arguments, reward_type=RewardType[reward_type], max_steps=None))


class WarehouseSimulator(ParallelSimulator):
    """Counts deliveries: shelves that another one has replaced among those requested."""

    _requested: list[Any]

    def __init__(self, config: WarehouseConfig):
        self._requested = []
        super().__init__(config)

    def reset(self, seed: int) -> SimulatorStep:
        self._requested = []
        return super().reset(seed)

    def step(self, actions: Mapping[str, np.ndarray]) -> SimulatorStep:
        self._requested = list(self.environment.unwrapped.request_queue)
        return super().step(actions)

    def measure(self) -> dict[str, float]:
        now = self.environment.unwrapped.request_queue
        pairs = zip(self._requested, now, strict=False)
        return {"deliveries": float(sum(before is not after for before, after in pairs))}

    def render(self) -> np.ndarray:
        """Shelves in grey, requested ones in green, goals in black; robots in orange, red while they carry a shelf."""
        warehouse = self.environment.unwrapped
        picture = Grid(*warehouse.grid_size)
        for column, row in warehouse.goals:
            picture.fill(row, column, COLOURS["black"])
        for shelf in warehouse.shelfs:
            picture.fill(shelf.y, shelf.x, COLOURS["green" if shelf in warehouse.request_queue else "grey"], inset=1)
        for agent in warehouse.agents:
            colour = COLOURS["red" if agent.carrying_shelf else "orange"]
            picture.arrow(agent.y, agent.x, colour, agent.dir.name)
        return picture.pixels
