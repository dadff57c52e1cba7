"""The fields that every task shares. Nothing here imports JAX, because simulators in worker processes read them too."""

from __future__ import annotations

import dataclasses
import enum
from typing import ClassVar

from covey.checks import LARGEST_INT, at_least, at_most
from covey.registry import Configuration


class Reward(enum.Enum):
    """Who receives which reward."""

    individual = "each agent receives its own"
    shared = "as the task itself shares it; only for tasks that do"
    team_sum = "every agent receives the sum over its group"
    team_mean = "every agent receives the mean over its group"


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskConfig(Configuration):
    """Fields of every task. A suite's own dataclass inherits from this one and states its defaults."""

    reward: Reward = Reward.individual  # who receives which reward
    time_limit: int = 100  # steps after which an episode is cut
    # the time limit terminates the episode, so no value follows; false: it truncates, and values bootstrap through it
    time_limit_terminates: bool = False

    largest_count: ClassVar[int] = LARGEST_INT  # the largest whole number that a field may have, besides `time_limit`
    shares_reward: ClassVar[bool] = False  # the task has a way of its own to share rewards: `reward=shared`

    @property
    def with_discrete_actions(self) -> TaskConfig:
        """The same task with discrete actions, where these fields choose continuous ones and could choose discrete
        ones; otherwise itself. For algorithms that have no others."""
        return self

    def __post_init__(self) -> None:
        at_least(self, 1, "time_limit")
        counts = [name for name, value in vars(self).items() if type(value) is int and name != "time_limit"]
        at_most(self, self.largest_count, *counts)
        if self.reward is Reward.shared and not self.shares_reward:
            raise ValueError("reward=shared is only for tasks with their own way of sharing; use team_sum or team_mean")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SuiteConfig(TaskConfig):
    """Fields of every task of the suites that come with covey.

    Their programs grow with the number of agents, rays or rows of a grid, some with its square: with more than a few
    hundred, tracing would take hours, or the program would not fit into memory.
    """

    largest_count: ClassVar[int] = 256
