"""A simulator stepped in this process, episode by episode, with covey's seeds, time limit and wrappers.

It has no pool: `to_pettingzoo` steps one copy, and its caller waits for each step anyway.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from covey.envs.base import Env
from covey.envs.host import layout
from covey.envs.host.episodes import Episodes
from covey.envs.host.pool import as_timestep
from covey.envs.host.simulator import Source
from covey.envs.host.worker import describe, draw
from covey.types import TimeStep


class InProcess:
    """One copy of `source`, the simulator under the wrappers of `env`."""

    def __init__(self, env: Env, source: Source):
        self._env, self._name = env, source.name
        self._simulator = source.simulator()
        tree = layout.layout(describe(source, self._simulator))
        self._row = layout.rows(layout.arrays(tree, 1, bytearray(layout.num_bytes(tree, 1))), 0)
        self._episodes = Episodes(self._simulator, source.config, self._row, number=0)

    def reset(self, seed: int | None) -> TimeStep:
        """Starts the first episode of a seed, or without one the next episode."""
        if seed is not None:
            self._row["seed"][...] = seed % 2**31
            self._row["episode"][...] = 0
        elif not self._row["step"]["last"]:  # after an ending the row names the next one already
            self._row["episode"][...] += 1
        self._row["elapsed"][...] = 0
        self._episodes.begin()
        return self._env.reset(self._answer())[1]  # type: ignore[arg-type]

    def step(self, actions: Mapping[str, np.ndarray]) -> TimeStep:
        """Takes actions `[A, …]` by group. `next_observation` is what they led to, also where the episode ended."""
        for name, values in actions.items():
            self._row["actions"][name][...] = values
        self._episodes.advance()
        return self._env.step((), self._answer(), None)[1]  # type: ignore[arg-type]

    def render(self) -> np.ndarray:
        """A picture as it is now, uint8 [H, W, 3]."""
        return draw(self._simulator, self._name)

    def close(self) -> None:
        close = getattr(self._simulator, "close", None)
        if close is not None:
            close()

    def _answer(self) -> TimeStep:
        return as_timestep(layout.map_leaves(np.copy, self._row["step"]))
