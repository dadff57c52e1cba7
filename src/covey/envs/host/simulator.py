"""How covey sees an ordinary Python simulator: one copy of it, which answers in NumPy, stacked by group of agents.

    class Chase:
        def __init__(self, config: ChaseConfig): …
        spec = EnvSpec(groups={"hunters": GroupSpec(num_agents=3, observation_shape=(4,), action=Discrete(5))}, …)
        def reset(self, seed: int) -> SimulatorStep: …
        def step(self, actions: Mapping[str, np.ndarray]) -> SimulatorStep: …

covey does the rest: copies in processes, one episode after another, a seed for each, the time limit, who is alive.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Protocol

import numpy as np

from covey.envs.config import TaskConfig
from covey.errors import CoveyError, place_in_users_code
from covey.specs import EnvSpec

Observations = np.ndarray | Mapping[str, np.ndarray]  # of a group: `[A, …]`, or a dictionary of such arrays


@dataclasses.dataclass(kw_only=True, slots=True)
class SimulatorStep:
    """What a simulator answers. Everything but `state`, `truncated` and `metrics` is by group.

    observations  [A, …]  what each agent sees; rows of agents that are not alive may hold anything finite
    rewards       [A]     for the action just taken; None at a reset
    shaping       [A]     a reward for learning only, in addition to `rewards`, which counts in no return; zeros at a
                          reset. A simulator without shaping always gives None
    terminated    [A]     bool: the agent's return ended with this step; None: nobody's did
    alive         [A]     bool: the agent acts next; None: all that have not terminated. False before an agent joins
                          late, and after one has left without terminating
    action_masks  [A, n]  bool: what each agent may do next (multi-discrete: choices concatenated); None: everything
    state                 global state, an array or a dictionary of arrays, or None
    truncated             the episode is cut here, for another reason than its agents' terminations
    metrics               the task's own measures at this step, by the names of its spec

    An episode is over when it is truncated or nobody is alive. covey keeps the time limit of the task's configuration.
    A simulator with a limit of its own must report it as `truncated`.
    """

    observations: Mapping[str, Observations]
    rewards: Mapping[str, np.ndarray] | None = None
    shaping: Mapping[str, np.ndarray] | None = None
    terminated: Mapping[str, np.ndarray] | None = None
    alive: Mapping[str, np.ndarray] | None = None
    action_masks: Mapping[str, np.ndarray] | None = None
    state: Observations | None = None
    truncated: bool = False
    metrics: Mapping[str, float] = dataclasses.field(default_factory=dict)


class Simulator(Protocol):
    """One copy of a simulator.

    Actions are by group, `[A]` or `[A, n]`, of the spec's types; ignore those of agents that are not alive. Two more
    methods are optional: `render()`, which returns an RGB picture, uint8 [H, W, 3], and `close()`.
    """

    @property
    def spec(self) -> EnvSpec: ...

    def reset(self, seed: int) -> SimulatorStep: ...

    def step(self, actions: Mapping[str, np.ndarray]) -> SimulatorStep: ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class SimulatorConfig(TaskConfig):
    """Fields of every task that is stepped in processes. A simulator's own dataclass inherits from this one."""

    # episodes after which a process that steps copies is replaced, for simulators that leak memory; null: never
    episodes_per_process: int | None = None

    largest_count: ClassVar[int] = 100_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """How a process makes copies of a registered task's simulator: with `make(config)`. `make` may be given as
    `module:attribute`."""

    name: str
    make: Callable[[Any], Simulator] | str
    config: SimulatorConfig

    def simulator(self) -> Simulator:
        """A new copy; raises SimulatorError with the simulator's own message if making it fails."""
        try:
            make = self.make
            if isinstance(make, str):
                module, _, attribute = make.partition(":")
                make = getattr(importlib.import_module(module), attribute)
            simulator: Simulator = make(self.config)
        except CoveyError:
            raise
        except Exception as error:
            raise SimulatorError(f"{self.name} cannot be made: {describe_error(error)}") from error
        return simulator


class SimulatorError(CoveyError):
    """A simulator failed, or did what its spec does not allow."""


def describe_error(error: BaseException) -> str:
    """An exception in one line, with where in the user's own files it was raised."""
    text, place = " ".join(str(error).split()), place_in_users_code(error)
    return type(error).__name__ + (f": {text}" if text else "") + (f" ({place})" if place else "")
