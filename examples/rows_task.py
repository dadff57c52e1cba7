"""A task whose observations are rows, `[N, F]`: a set of things that each agent sees, in no particular order.

Agents on a grid gather pieces of food, whose places are drawn for each episode. An agent sees one row for each piece:
where it is from here, and whether it is still there. Dense layers would have to learn the same thing for every row;
`deepsets` and `attention` treat all rows alike. Run this file, or, in its folder,

    covey check task=mine/gather 'imports=[rows_task]'
    covey train task=mine/gather 'imports=[rows_task]' model=attention model.over=rows critic_model=mlp

MAPPO's critic sees what all agents see in one long row, so it needs a different model. IPPO's takes the actor's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

import covey
from covey.envs.base import first_step, next_step
from covey.types import Array, Discrete, EnvSpec, GroupSpec, TimeStep, pytree

MOVES = jnp.array([[0, 0], [1, 0], [-1, 0], [0, 1], [0, -1]])


@dataclasses.dataclass(frozen=True, kw_only=True)
class GatherConfig(covey.TaskConfig):
    num_agents: int = 2
    num_food: int = 4  # rows of an observation
    grid_size: int = 5  # cells in each direction
    time_limit: int = 25


@pytree
class GatherState:
    agents: Array  # [A, 2], cells
    food: Array  # [N, 2]
    is_left: Array  # [N]


class Gather:
    def __init__(self, config: GatherConfig):
        self.config = config

    @property
    def spec(self) -> EnvSpec:
        gatherers = GroupSpec(
            num_agents=self.config.num_agents,
            observation_shape=(self.config.num_food, 3),  # without the axis of agents
            action=Discrete(len(MOVES)),
            shared_reward=True,
        )
        return EnvSpec(
            groups={"gatherers": gatherers},
            time_limit=self.config.time_limit,
            returns="the share of the food that the team gathered, the same for every agent",
        )

    def reset(self, key: Array) -> tuple[GatherState, TimeStep]:
        key_agents, key_food = jax.random.split(key)
        size = self.config.grid_size
        state = GatherState(
            agents=jax.random.randint(key_agents, (self.config.num_agents, 2), 0, size),
            food=jax.random.randint(key_food, (self.config.num_food, 2), 0, size),
            is_left=jnp.ones(self.config.num_food, bool),
        )
        return state, first_step({"gatherers": self._observe(state)})

    def step(self, state: GatherState, action: dict[str, Array], key: Array) -> tuple[GatherState, TimeStep]:
        agents = jnp.clip(state.agents + MOVES[action["gatherers"]], 0, self.config.grid_size - 1)
        reached = (agents[:, None] == state.food).all(-1).any(0) & state.is_left  # [N]
        state = dataclasses.replace(state, agents=agents, is_left=state.is_left & ~reached)
        return state, next_step(
            {"gatherers": self._observe(state)},
            {"gatherers": reached.mean()},
            terminated=~state.is_left.any(),
        )

    def _observe(self, state: GatherState) -> Array:
        """`[A, N, 3]`: for every agent and piece of food, the way to it and whether it is left."""
        way = (state.food - state.agents[:, None]) / self.config.grid_size
        is_left = jnp.broadcast_to(state.is_left[:, None], (*way.shape[:2], 1))
        return jnp.concatenate([way * is_left, is_left], axis=-1)

    def render(self, states: Sequence[GatherState]) -> list[np.ndarray]:
        pictures = []
        for state in states:
            grid = np.full((self.config.grid_size, self.config.grid_size, 3), 255, np.uint8)
            grid[tuple(np.asarray(state.food)[np.asarray(state.is_left)].T)] = (60, 140, 60)
            grid[tuple(np.asarray(state.agents).T)] = (30, 90, 160)
            pictures.append(grid.repeat(32, axis=0).repeat(32, axis=1))
        return pictures


covey.register_task("mine/gather", Gather, config=GatherConfig, description="agents gather food that they see as rows")


def main() -> None:
    experiment = covey.Experiment(
        task="mine/gather",
        imports=["rows_task"],
        model="deepsets",
        critic_model="mlp",
        fields={
            "model.over": "rows",
            "model.layers": [32],
            "model.layers_after": [32],
            "experiment.frames": 60_000,
            "experiment.num_envs": 32,
            "experiment.rollout_length": 32,
            "experiment.evaluation_interval": 0,
        },
    )
    experiment.run()


if __name__ == "__main__":
    main()
