"""A simulator in processes as an `Env`, so that specs and wrappers work as for every other task.

No compiled program can step it. A pool does, and its time step is passed in place of the key at a reset and of the
action at a step: `env.step(state, answer, key)` sends it through the wrappers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from covey.envs.host.pool import describe
from covey.envs.host.simulator import Source
from covey.errors import UsageError
from covey.types import EnvSpec, PyTree, TimeStep


class HostEnv:
    """The registered simulator `source`. The constructor starts a process to read its spec."""

    def __init__(self, source: Source):
        self.source = source
        self._spec = describe(source).spec

    def __repr__(self) -> str:
        return f"HostEnv({self.source.name})"

    @property
    def spec(self) -> EnvSpec:
        return self._spec

    def reset(self, answer: Any) -> tuple[PyTree, TimeStep]:
        return (), self._checked(answer)

    def step(self, state: PyTree, answer: Any, key: Any) -> tuple[PyTree, TimeStep]:
        return (), self._checked(answer)

    def _checked(self, answer: Any) -> TimeStep:
        if not isinstance(answer, TimeStep):
            name = self.source.name
            raise UsageError(
                f"{name} is an ordinary Python simulator, which no compiled program can step; "
                f"covey.make_simulator('{name}') makes one to step by hand"
            )
        return answer

    def render(self, states: Sequence[PyTree]) -> list[np.ndarray]:
        raise UsageError(f"{self.source.name} can be drawn only while it is played")


def simulator_of(env: Any) -> Source | None:
    """The simulator under an environment's wrappers; None where the environment is compiled."""
    while not isinstance(env, HostEnv):
        if not hasattr(env, "env"):
            return None
        env = env.env
    return env.source
