"""A task of your own: one class and one `register_task` call.

Agents on a line of cells are rewarded when all of them meet on one. Run this file, or, in its folder,

    covey check task=mine/meet imports=[custom_task]       checks it against its spec
    covey train task=mine/meet imports=[custom_task] task.num_agents=3

What a time step must hold is written on `GroupStep` and `TimeStep` in covey/types.py. `first_step` and `next_step` fill
in what most tasks leave alone. Every start compares shapes and types with the spec before anything compiles;
`covey check`, or `covey.check_env(env)` in Python, also plays at random and looks at the values.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

import covey
from covey.envs.base import first_step, next_step
from covey.types import Array, Discrete, EnvSpec, GroupSpec, MetricSpec, TimeStep


# Every field is also a key of the command line, checked against its type. `TaskConfig` brings those that all tasks
# have: the time limit, and who receives which reward.
@dataclasses.dataclass(frozen=True, kw_only=True)
class MeetConfig(covey.TaskConfig):
    num_agents: int = 2
    num_cells: int = 9
    time_limit: int = 20


class Meet:
    """One environment, pure and unbatched. The state is whatever pytree you like: here, the cell of each agent."""

    def __init__(self, config: MeetConfig):
        self.config = config

    @property
    def spec(self) -> EnvSpec:
        # Agents of one kind are one group, stacked on one axis. Agents that see or do something else are another group.
        # `shared_reward` says that all agents of a group earn the same; MASAC then takes a cheaper actor's gradient.
        # Groups that oppose each other are named in `EnvSpec.teams`, and their returns are shown apart.
        walkers = GroupSpec(
            num_agents=self.config.num_agents, observation_shape=(2,), action=Discrete(3), shared_reward=True
        )
        return EnvSpec(
            groups={"walkers": walkers},
            time_limit=self.config.time_limit,
            metrics={"spread": MetricSpec(reduction="last", unit="cells", higher_is_better=False)},
            returns="1 if all meet, less 0.01 for each step; the same for every agent",
        )

    def reset(self, key: Array) -> tuple[Array, TimeStep]:
        cells = jax.random.randint(key, (self.config.num_agents,), 0, self.config.num_cells)
        return cells, first_step({"walkers": self._observe(cells)}, metrics=self._measure(cells))

    def step(self, cells: Array, action: dict[str, Array], key: Array) -> tuple[Array, TimeStep]:
        cells = jnp.clip(cells + action["walkers"] - 1, 0, self.config.num_cells - 1)  # left, stay, right
        met = (cells == cells[0]).all()
        # `terminated` is for endings that belong to the task. The time limit is covey's: it cuts the episode, and
        # values bootstrap through the cut.
        timestep = next_step(
            {"walkers": self._observe(cells)},
            {"walkers": jnp.where(met, 1.0, 0.0) - 0.01},  # a scalar is for every agent of the group; else `[A]`
            terminated=met,
            metrics=self._measure(cells),
        )
        return cells, timestep

    def _observe(self, cells: Array) -> Array:
        """`[A, 2]`: where I am, and where the others are from here."""
        here = cells / self.config.num_cells
        return jnp.stack([here, here.mean() - here], axis=-1)

    def _measure(self, cells: Array) -> dict[str, Array]:
        return {"spread": cells.max() - cells.min()}

    def render(self, states: Sequence[Array]) -> list[np.ndarray]:
        """A picture per state, for `covey evaluate … render=meet.gif`: plain NumPy, so that no display is needed."""
        pictures = []
        for cells in states:
            line = np.full((1, self.config.num_cells, 3), 255, np.uint8)
            line[0, np.asarray(cells)] = (30, 90, 160)
            pictures.append(line.repeat(24, axis=0).repeat(24, axis=1))
        return pictures


covey.register_task("mine/meet", Meet, config=MeetConfig, description="agents on a line are paid when all meet")


def main() -> None:
    # `imports` is stored with the run, so that `covey resume` and `covey.load` find the task too.
    experiment = covey.Experiment(
        task="mine/meet",
        imports=["custom_task"],
        model="mlp",
        fields={
            "model.layers": [32, 32],
            "experiment.frames": 40_000,
            "experiment.num_envs": 32,
            "experiment.rollout_length": 32,
            "experiment.evaluation_interval": 0,
        },
    )
    experiment.run()


if __name__ == "__main__":
    main()
