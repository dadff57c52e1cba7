"""Connector: each agent draws a path to its target, and nobody can cross a path.

Without a shared reward, an agent that reached its target has finished: it earns nothing more and has no choice left.
One that is blocked continues to pay for every step, so its return runs until the episode ends.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
from jumanji.environments.routing.connector.constants import EMPTY, PATH, POSITION, TARGET
from jumanji.environments.routing.connector.env import Connector as JumanjiConnector
from jumanji.environments.routing.connector.generator import RandomWalkGenerator
from jumanji.environments.routing.connector.reward import DenseRewardFn

from covey.envs.base import Reward, SuiteConfig
from covey.envs.jumanji.core import NEVER, JumanjiEnv, ObservationKind, flatten, windows
from covey.types import Array, Discrete, MetricSpec, PyTree

OUTSIDE = -1


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConnectorConfig(SuiteConfig):
    grid_size: int = 5  # cells on a side of the grid
    num_agents: int = 3  # agents, each with a path to draw
    observation: ObservationKind = ObservationKind.vector  # how an agent sees the grid
    fov: int = 2  # cells seen to each side, from 1 up; only with observation=vector
    connect_reward: float = 1.0  # reward for connecting
    step_penalty: float = 0.03  # penalty for each step before an agent has connected
    time_limit: int = 25

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.fov < 1:
            raise ValueError(f"fov must be at least 1, not {self.fov}")


class Connector(JumanjiEnv):
    def __init__(self, config: ConnectorConfig):
        env = JumanjiConnector(
            RandomWalkGenerator(grid_size=config.grid_size, num_agents=config.num_agents),
            DenseRewardFn(connected_reward=config.connect_reward, timestep_reward=-config.step_penalty),
            time_limit=NEVER,
        )
        self._kind = config.observation
        self._fov = config.fov
        self._scale = 1.0 / (config.grid_size - 1)
        self._individual = config.reward is Reward.individual
        super().__init__(
            env,
            config,
            action=Discrete(5),
            metrics={"connected": MetricSpec(reduction="last", unit="share")},
            returns=f"{config.connect_reward} for connecting, less {config.step_penalty} for each step until then",
        )

    def observe(self, state: PyTree, observation: Any) -> Array:
        agents = state.agents
        if self._kind is ObservationKind.grid:
            cells = jnp.broadcast_to(state.grid, (agents.id.size, *state.grid.shape))
            return jnp.stack(self._channels(cells, agents.id), axis=-1)
        cells = windows(state.grid, agents.position, self._fov, OUTSIDE)
        blocked = (cells != EMPTY) & (cells != own(TARGET, agents.id))
        _, own_target, heads, targets, _ = self._channels(cells, agents.id)
        to_target = (agents.target - agents.position) * self._scale
        return flatten([blocked, own_target, heads, targets], agents.position * self._scale, to_target)

    @staticmethod
    def _channels(cells: Array, agent: Array) -> list[Array]:
        """Own head, own target, other heads, other targets, and paths, whoever drew them. Each `[A, h, w]`."""
        own_head, own_target = cells == own(POSITION, agent), cells == own(TARGET, agent)
        kind = jnp.where(cells > EMPTY, (cells - 1) % 3 + 1, EMPTY)
        return [own_head, own_target, (kind == POSITION) & ~own_head, (kind == TARGET) & ~own_target, kind == PATH]

    def global_state(self, state: PyTree) -> Array:
        """Which cells are taken, then each agent's position and target, and whether it has connected."""
        agents = state.agents
        taken = (state.grid != EMPTY).ravel()
        places = jnp.column_stack([agents.position, agents.target]) * self._scale
        return jnp.concatenate([taken, places.ravel(), agents.connected]).astype(jnp.float32)

    def finished(self, state: PyTree) -> Array | None:
        return state.agents.connected if self._individual else None

    def measure(self, state: PyTree, timestep: Any) -> dict[str, Array]:
        return {"connected": state.agents.connected.mean()}


def own(kind: int, agent: Array) -> Array:
    """Jumanji's value for a cell of this kind that belongs to the agent, `[A, 1, 1]`."""
    return (kind + 3 * agent)[:, None, None]
