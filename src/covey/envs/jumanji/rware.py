"""Robot warehouse: robots fetch the requested shelves and bring them to the goal (Papoudakis et al., 2021).

A collision ends the episode. Invalid moves do nothing.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from jumanji.environments.routing.robot_warehouse.env import RobotWarehouse
from jumanji.environments.routing.robot_warehouse.generator import RandomGenerator

from covey.envs.base import SuiteConfig
from covey.envs.jumanji.core import NEVER, JumanjiEnv
from covey.types import Array, Discrete, MetricSpec, PyTree


@dataclasses.dataclass(frozen=True, kw_only=True)
class RwareConfig(SuiteConfig):
    num_agents: int = 2  # robots
    shelf_rows: int = 1  # clusters of shelves, one above the other
    shelf_columns: int = 3  # clusters of shelves side by side, an odd number
    column_height: int = 8  # cells of a cluster, from top to bottom
    request_queue_size: int = 2  # shelves requested at any time
    sensor_range: int = 1  # cells that a robot sees to each side
    time_limit: int = 500

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shelf_columns % 2 == 0:
            raise ValueError(f"shelf_columns must be odd, not {self.shelf_columns}")


class Rware(JumanjiEnv):
    shared_reward = True

    def __init__(self, config: RwareConfig):
        generator = RandomGenerator(
            shelf_rows=config.shelf_rows,
            shelf_columns=config.shelf_columns,
            column_height=config.column_height,
            num_agents=config.num_agents,
            sensor_range=config.sensor_range,
            request_queue_size=config.request_queue_size,
        )
        super().__init__(
            RobotWarehouse(generator, time_limit=NEVER),
            config,
            action=Discrete(5),
            metrics={
                "deliveries": MetricSpec(reduction="sum", unit="shelves"),
                "collision": MetricSpec(reduction="last", unit="share of episodes", higher_is_better=False),
            },
            returns="the number of requested shelves that the team delivered, given to every agent",
        )

    def observe(self, state: PyTree, observation: Any) -> Array:
        view: Array = observation.agents_view
        return view

    def measure(self, state: PyTree, timestep: Any) -> dict[str, Array]:
        return {"deliveries": timestep.reward, "collision": timestep.last()}
