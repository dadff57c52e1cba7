"""Episodes of one copy of a task in this process, with random legal actions."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np

from covey.envs.host import layout
from covey.envs.host.episodes import Episodes
from covey.envs.host.simulator import Simulator, SimulatorConfig, Source
from covey.envs.host.worker import describe
from covey.registry import build_config, tasks
from covey.specs import Continuous, MultiDiscrete


class Play:
    """A copy of a simulator and its rows; `step` and the rest are views of what it showed last."""

    def __init__(self, simulator: Simulator, config: SimulatorConfig, *, seed: int = 0, number: int = 0):
        source = Source(name="test", make=lambda config: simulator, config=config)
        self.simulator: Any = simulator
        self.config = config
        self.description = describe(source, simulator)
        self.spec = self.description.spec
        tree = layout.layout(self.description)
        self.row = layout.rows(layout.arrays(tree, 1, bytearray(layout.num_bytes(tree, 1))), 0)
        self.step, self.groups, self.actions = self.row["step"], self.row["step"]["groups"], self.row["actions"]
        self.row["seed"][...] = seed
        self.episodes = Episodes(simulator, config, self.row, number)
        self.random = np.random.default_rng(seed)
        self.episodes.begin()

    def choose(self) -> None:
        """Random legal actions for everybody."""
        for name, group in self.spec.groups.items():
            into, mask = self.actions[name], self.groups[name].get("action_mask")
            match group.action:
                case Continuous(low=low, high=high):
                    into[...] = self.random.uniform(low, high, into.shape)
                case MultiDiscrete(num_actions=numbers):
                    into[...] = self.random.integers(0, numbers, into.shape)
                case _ if mask is None:
                    into[...] = self.random.integers(0, group.action.num_actions, into.shape)
                case _:
                    into[...] = [self.random.choice(np.flatnonzero(legal)) for legal in mask]

    def advance(self, **actions: Any) -> None:
        """A step with these actions by group, or random ones."""
        self.choose()
        for name, values in actions.items():
            self.actions[name][...] = values
        self.episodes.advance()

    def snapshot(self) -> Any:
        return copy.deepcopy(self.step)


def play(name: str, *, seed: int = 0, number: int = 0, **fields: Any) -> Play:
    """A registered task."""
    entry = tasks[name]
    config = build_config(entry.defaults(), fields, name)
    simulator = Source(name=name, make=entry.make, config=config).simulator()
    return Play(simulator, config, seed=seed, number=number)


def assert_equal(one: Any, other: Any) -> None:
    """Two trees of arrays are equal, entry by entry."""
    layout.map_leaves(lambda a, b: np.testing.assert_array_equal(a, b), one, other)


def leaves(tree: Any) -> list[np.ndarray]:
    found: list[np.ndarray] = []
    collect: Callable[[np.ndarray], None] = found.append
    layout.map_leaves(collect, tree)
    return found
