"""A task whose observations are dictionaries: agents see a map `[7, 7, 2]`, and a vector with what they carry.

Each agent carries a parcel for one of two places, which the map marks in colours that the vector names. It earns 1 for
the step in which it reaches the right place, and is then done. So it needs the map to know where the places are, and
the vector to know which one is its own. Run this file, or, in its folder,

    covey check task=mine/deliver 'imports=[dictionary_task]'
    covey train task=mine/deliver 'imports=[dictionary_task]' algorithm=ippo model=cnn

`cnn` takes the map through convolutions and joins the vector before its dense layers; `mlp` joins all numbers in one
row. A central critic sees the observations of all agents in one row, so MAPPO needs critic_model=mlp beside model=cnn.
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

GROUP = "couriers"
MOVES = jnp.array([[0, 0], [1, 0], [-1, 0], [0, 1], [0, -1]])
REACH = 3  # cells that an agent sees in each direction, itself in the middle


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeliverConfig(covey.TaskConfig):
    num_agents: int = 2
    grid_size: int = 4  # cells in each direction
    time_limit: int = 12


@pytree
class DeliverState:
    agents: Array  # [A, 2], cells
    places: Array  # [2, 2], cells
    wanted: Array  # [A], the place that each agent's parcel is for
    carries: Array  # [A], whether it still has the parcel


class Deliver:
    def __init__(self, config: DeliverConfig):
        self.config = config

    @property
    def spec(self) -> EnvSpec:
        couriers = GroupSpec(
            num_agents=self.config.num_agents,
            observation_shape={"map": (2 * REACH + 1, 2 * REACH + 1, 2), "parcel": (2,)},
            observation_dtype={"map": np.uint8, "parcel": np.float32},
            action=Discrete(len(MOVES)),
        )
        return EnvSpec(
            groups={GROUP: couriers},
            time_limit=self.config.time_limit,
            returns="1 if the agent delivered its parcel, else 0",
        )

    def reset(self, key: Array) -> tuple[DeliverState, TimeStep]:
        key_cells, key_wanted = jax.random.split(key)
        num_agents, size = self.config.num_agents, self.config.grid_size
        cells = jax.random.permutation(key_cells, size * size)[: num_agents + 2]  # all different
        cells = jnp.stack([cells // size, cells % size], axis=-1)
        state = DeliverState(
            agents=cells[2:],
            places=cells[:2],
            wanted=jax.random.randint(key_wanted, (num_agents,), 0, 2),
            carries=jnp.ones(num_agents, bool),
        )
        return state, first_step({GROUP: self._observe(state)})

    def step(self, state: DeliverState, action: dict[str, Array], key: Array) -> tuple[DeliverState, TimeStep]:
        agents = jnp.clip(state.agents + MOVES[action[GROUP]], 0, self.config.grid_size - 1)
        delivered = state.carries & (agents == state.places[state.wanted]).all(-1)
        state = dataclasses.replace(state, agents=agents, carries=state.carries & ~delivered)
        return state, next_step(
            {GROUP: self._observe(state)},
            {GROUP: delivered.astype(jnp.float32)},
            terminated={GROUP: delivered},
            alive={GROUP: state.carries},
            last=~state.carries.any(),
        )

    def _observe(self, state: DeliverState) -> dict[str, Array]:
        """The map around each agent, with a channel for each place, and which place its parcel is for."""
        way = state.places - state.agents[:, None] + REACH  # [A, 2 places, 2]
        side = jnp.arange(2 * REACH + 1)
        rows, columns = (way[:, None, :, i] == side[:, None] for i in (0, 1))  # [A, side, 2 places]
        seen = rows[:, :, None] & columns[:, None, :]
        parcel = jax.nn.one_hot(state.wanted, 2) * state.carries[:, None]
        return {"map": seen.astype(jnp.uint8), "parcel": parcel}

    def render(self, states: Sequence[DeliverState]) -> list[np.ndarray]:
        pictures = []
        for state in states:
            grid = np.full((self.config.grid_size, self.config.grid_size, 3), 255, np.uint8)
            for place, colour in zip(np.asarray(state.places), ((200, 80, 60), (60, 140, 60)), strict=True):
                grid[tuple(place)] = colour
            grid[tuple(np.asarray(state.agents).T)] = (30, 90, 160)
            pictures.append(grid.repeat(32, axis=0).repeat(32, axis=1))
        return pictures


covey.register_task(
    "mine/deliver", Deliver, config=DeliverConfig, description="agents deliver parcels by a map and an address"
)


def main() -> None:
    print(covey.check_env(Deliver(DeliverConfig())))
    experiment = covey.Experiment(
        task="mine/deliver",
        algorithm="ippo",
        model="cnn",
        imports=["dictionary_task"],
        fields={
            "model.channels": [4],
            "model.kernels": [3],
            "model.strides": [2],
            "model.layers": [32],
            "algorithm.epochs": 4,
            "experiment.frames": 40_000,
            "experiment.num_envs": 32,
            "experiment.rollout_length": 32,
            "experiment.evaluation_interval": 0,
        },
    )
    experiment.run()


if __name__ == "__main__":
    main()
