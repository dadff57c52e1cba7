"""Any environment with PettingZoo's interface, by the name of its module."""

from __future__ import annotations

import dataclasses
from typing import Any

from covey.checks import at_least
from covey.envs.host.pettingzoo.parallel import ParallelSimulator
from covey.envs.host.pettingzoo.recipe import PettingZooConfig, Recipe
from covey.envs.host.pettingzoo.turns import AecSimulator
from covey.errors import UsageError
from covey.fields import field, whole


@dataclasses.dataclass(frozen=True, kw_only=True)
class AnyConfig(PettingZooConfig):
    """Which environment, and how covey sees it."""

    time_limit: int = 1000
    # what makes it: a module (`mpe2.simple_spread_v3`), a name that PettingZoo registers (`sisl/multiwalker-v9`), or
    # `module:attribute` of a class or function
    module: str = field("", code=whole)
    kwargs: dict[str, Any] = dataclasses.field(default_factory=dict)  # arguments for it: `task.kwargs={n_walkers: 4}`
    turns: bool = False  # one agent acts at a time, and a step is one move
    # agents by group, as names or prefixes of names: `{archers: [archer], knights: [knight]}`; empty: by the prefixes
    # of their names
    agent_groups: dict[str, Any] = dataclasses.field(default_factory=dict)
    # teams of groups that cooperate: `[[red], [blue]]`. Teams oppose each other, and `mean_return` is the first one's.
    # Empty: all groups cooperate
    teams: tuple[tuple[str, ...], ...] = ()
    # rows to which observations of varying length are padded; null: no observation has varying length
    sequence_length: int | None = None
    image_stride: int = 1  # keep one pixel in this many of an image, in both directions
    state: bool = True  # show critics the environment's global state, if it has one

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 1, "sequence_length", "image_stride")

    def recipe(self) -> Recipe:
        if not self.module:
            raise UsageError("task.module says which environment, for example task.module=sisl/multiwalker-v9")
        return Recipe(
            module=self.module,
            arguments=self.kwargs,
            turns=self.turns,
            groups=self.agent_groups,
            teams=self.teams,
            sequence_length=self.sequence_length,
            image_stride=self.image_stride,
            state=self.state,
        )


def make_any(config: AnyConfig) -> ParallelSimulator | AecSimulator:
    """A simulator in which all agents act at once, or with `turns` one at a time."""
    return AecSimulator(config) if config.turns else ParallelSimulator(config)
