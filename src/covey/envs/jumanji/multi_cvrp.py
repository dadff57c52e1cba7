"""Vehicles share customers with demands and soft time windows, and return to the depot (Zhang et al., 2020).

After two steps per customer Jumanji ends the episode and charges an estimate of what the rest would have cost. That
estimate replaces the value of the rest, so this ending is a termination; a shorter `time_limit` truncates.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
from jumanji.environments.routing.multi_cvrp.env import MultiCVRP
from jumanji.environments.routing.multi_cvrp.generator import UniformRandomGenerator

from covey.envs.base import SuiteConfig
from covey.envs.jumanji.core import JumanjiEnv
from covey.types import Array, Discrete, MetricSpec, PyTree

FLEETS = {6: (2, 3), 20: (2, 3), 50: (2, 3, 4, 5), 100: (2, 3, 4, 5), 150: (5,)}  # by number of customers


@dataclasses.dataclass(frozen=True, kw_only=True)
class MultiCvrpConfig(SuiteConfig):
    num_vehicles: int = 2  # vehicles; Jumanji has fleets of certain sizes for each number of customers
    num_customers: int = 6  # customers to serve: 6, 20, 50, 100 or 150
    time_limit: int = 12

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_vehicles not in FLEETS.get(self.num_customers, ()):
            sizes = "; ".join(f"{customers}: {fleet}" for customers, fleet in FLEETS.items())
            raise ValueError(f"Jumanji has only these num_vehicles for each num_customers: {sizes}")


class MultiCvrp(JumanjiEnv):
    shared_reward = True

    def __init__(self, config: MultiCvrpConfig):
        env = MultiCVRP(UniformRandomGenerator(config.num_customers, config.num_vehicles))
        vehicles = np.arange(config.num_vehicles)
        self._own_first = (vehicles[:, None] + vehicles) % config.num_vehicles
        super().__init__(
            env,
            config,
            action=Discrete(config.num_customers + 1),
            metrics={"served": MetricSpec(reduction="last", unit="share")},
            returns="minus the distance and the time penalties of the whole fleet, given to every agent",
        )

    def observe(self, state: PyTree, observation: Any) -> Array:
        """Every node (place, demand, window, coefficients), then every vehicle (place, time, capacity), own first."""
        nodes, windows, coeffs, vehicles, _ = observation
        place, time, load = self._env._map_max, self._env._max_end_window, self._env._max_capacity
        node_rows = jnp.column_stack(
            [
                nodes.coordinates / place,
                nodes.demands / load,
                windows.start / time,
                windows.end / time,
                coeffs.early,
                coeffs.late,
            ]
        )
        vehicle_rows = jnp.column_stack(
            [vehicles.coordinates / place, vehicles.local_times / time, vehicles.capacities / load]
        )
        num_vehicles = vehicle_rows.shape[0]
        nodes_for_all = jnp.broadcast_to(node_rows.ravel(), (num_vehicles, node_rows.size))
        return jnp.concatenate([nodes_for_all, vehicle_rows[self._own_first].reshape(num_vehicles, -1)], axis=-1)

    def measure(self, state: PyTree, timestep: Any) -> dict[str, Array]:
        return {"served": (state.nodes.demands[1:] == 0).mean()}
