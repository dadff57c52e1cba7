"""What the rest of covey needs to know of a task before its first step: what agents see and do, and who cooperates.

Nothing here imports JAX, because simulators in worker processes describe themselves with it too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

Shape = tuple[int, ...]
ObservationShape = Shape | Mapping[str, Shape]  # of an array, or of each entry of a dictionary of arrays


@dataclasses.dataclass(frozen=True)
class Discrete:
    """One choice out of `num_actions`; an action is an int32 scalar per agent."""

    num_actions: int


@dataclasses.dataclass(frozen=True)
class MultiDiscrete:
    """Several choices at once; an action is an int32 vector with one entry per element of `num_actions`."""

    num_actions: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Continuous:
    """A float32 vector between `low` and `high`, one bound per dimension."""

    low: tuple[float, ...]
    high: tuple[float, ...]

    @property
    def size(self) -> int:
        """How many numbers one action has."""
        return len(self.low)


ActionSpec = Discrete | MultiDiscrete | Continuous


@dataclasses.dataclass(frozen=True, kw_only=True)
class GroupSpec:
    """What one agent of a group sees and does.

    An agent sees one array, or several under names of the task's choice: then `observation_shape` maps each name to a
    shape, and `observation_dtype` is one for all entries or maps each name to its own.
    """

    num_agents: int
    observation_shape: ObservationShape
    action: ActionSpec
    observation_dtype: Any = np.float32
    shared_reward: bool = False  # all agents of the group learn from the same reward at every step


@dataclasses.dataclass(frozen=True, kw_only=True)
class MetricSpec:
    """A task's own measure of an episode, e.g. the win rate.

    `reduction` says how the per-step values of `TimeStep.metrics` make the episode's value: "sum", "last" or "max".
    """

    reduction: str = "last"
    unit: str = ""
    higher_is_better: bool = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class EnvSpec:
    """All that the rest of covey needs to know of a task before the first step.

    `time_limit` bounds the length of an episode; evaluation relies on it. `state_shape` is None where the task has no
    global state. `returns` says in words what an agent's return is. `keeps_lifetimes` promises that `alive` and
    `terminated` follow the rule on `GroupStep` by themselves; otherwise covey remembers who is alive and sees to it.

    `teams` says which groups cooperate: groups of one team do, teams oppose each other. Empty: all groups are one team.
    The first team is the one that the task is about: `mean_return` is the mean over its groups.

    `shared_rewards` lists sets of groups of one team whose agents all learn from the same reward at every step. Within
    a single group, `GroupSpec.shared_reward` says it.
    """

    groups: Mapping[str, GroupSpec]
    time_limit: int
    state_shape: ObservationShape | None = None
    metrics: Mapping[str, MetricSpec] = dataclasses.field(default_factory=dict)
    returns: str = ""
    keeps_lifetimes: bool = False
    teams: tuple[tuple[str, ...], ...] = ()
    shared_rewards: tuple[tuple[str, ...], ...] = ()

    def __post_init__(self) -> None:
        named = [group for team in self.teams for group in team]
        if self.teams and sorted(named) != sorted(self.groups):
            raise ValueError(f"teams={self.teams} must name each of the groups {', '.join(self.groups)} once")
        for sharing in self.shared_rewards:
            if not any(set(sharing) <= set(team) for team in self.cooperating):
                raise ValueError(f"shared_rewards={self.shared_rewards}: {', '.join(sharing)} are not in one team")

    @property
    def cooperating(self) -> tuple[tuple[str, ...], ...]:
        """The teams. Where the spec names none, all groups are one team."""
        return self.teams or (tuple(self.groups),)

    def team_of(self, group: str) -> tuple[str, ...]:
        """The groups that cooperate with `group`, itself included, in the order of `groups`."""
        team = next(team for team in self.cooperating if group in team)
        return tuple(name for name in self.groups if name in team)

    def share_reward(self, groups: Collection[str]) -> bool:
        """Whether all agents of all of these groups learn from the same reward at every step."""
        return any(set(groups) <= set(sharing) for sharing in self.shared_rewards)
