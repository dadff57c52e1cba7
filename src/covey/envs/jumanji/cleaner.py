"""Cleaner: agents start in one corner of a maze and clean all its tiles. An invalid move ends the episode."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
from jumanji.environments.routing.cleaner.constants import DIRTY, WALL
from jumanji.environments.routing.cleaner.env import Cleaner as JumanjiCleaner
from jumanji.environments.routing.cleaner.generator import RandomGenerator

from covey.envs.base import SuiteConfig
from covey.envs.jumanji.core import NEVER, JumanjiEnv, ObservationKind, flatten, windows
from covey.types import Array, Discrete, MetricSpec, PyTree

NUM_TILES = 3  # dirty, clean, wall


@dataclasses.dataclass(frozen=True, kw_only=True)
class CleanerConfig(SuiteConfig):
    grid_size: int = 5  # cells on a side of the maze, which is square: Jumanji's action mask is wrong for any other
    num_agents: int = 5  # agents that clean
    observation: ObservationKind = ObservationKind.vector  # how an agent sees the maze
    fov: int = 4  # cells seen to each side, from 1 up; only with observation=vector
    step_penalty: float = 0.5  # penalty for each step, to everyone
    time_limit: int = 25

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.fov < 1:
            raise ValueError(f"fov must be at least 1, not {self.fov}")


class Cleaner(JumanjiEnv):
    shared_reward = True

    def __init__(self, config: CleanerConfig):
        env = JumanjiCleaner(
            RandomGenerator(num_rows=config.grid_size, num_cols=config.grid_size, num_agents=config.num_agents),
            time_limit=NEVER,
            penalty_per_timestep=config.step_penalty,
        )
        self._kind = config.observation
        self._fov = config.fov
        self._itself = np.zeros((2 * config.fov + 1, 2 * config.fov + 1), np.int32)
        self._itself[config.fov, config.fov] = NUM_TILES
        self._scale = 1.0 / (config.grid_size - 1)
        super().__init__(
            env,
            config,
            action=Discrete(4),
            metrics={"cleaned": MetricSpec(reduction="last", unit="share")},
            returns=f"the tiles that the team cleaned, less {config.step_penalty} for each step, given to every agent",
        )

    def observe(self, state: PyTree, observation: Any) -> Array:
        positions = state.agents_locations
        rows, columns = positions.T
        # One layer and one scatter for both: a cell's tile, and how many agents are on it.
        cells = state.grid.astype(jnp.int32).at[rows, columns].add(NUM_TILES)
        if self._kind is ObservationKind.grid:
            one = jnp.arange(rows.size)
            itself = jnp.zeros((rows.size, *state.grid.shape), bool).at[one, rows, columns].set(True)
            shared = [state.grid == DIRTY, state.grid == WALL, cells >= NUM_TILES]
            return jnp.stack([*(jnp.broadcast_to(layer, itself.shape) for layer in shared), itself], axis=-1)
        seen = windows(cells, positions, self._fov, WALL) - self._itself
        tiles = seen % NUM_TILES
        return flatten([tiles == DIRTY, tiles == WALL, seen >= NUM_TILES], positions * self._scale)

    def global_state(self, state: PyTree) -> Array:
        """Which tiles are dirty, which are walls, then each agent's position."""
        grid = state.grid.ravel()
        positions = state.agents_locations.ravel() * self._scale
        return jnp.concatenate([grid == DIRTY, grid == WALL, positions]).astype(jnp.float32)

    def measure(self, state: PyTree, timestep: Any) -> dict[str, Array]:
        return {"cleaned": 1.0 - timestep.extras["ratio_dirty_tiles"]}
