"""The fields that every task shares. Nothing here imports JAX, because simulators in worker processes read them too."""

from __future__ import annotations

import dataclasses
import enum
from typing import ClassVar

from covey.checks import LARGEST_INT, at_least, at_most


class Reward(enum.Enum):
    """Who gets which reward."""

    individual = "each agent what the task gives it"
    shared = "as the task itself shares it; only for tasks that do"
    team_sum = "every agent the sum over its group"
    team_mean = "every agent the mean over its group"


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskConfig:
    """Fields of every task. A suite's own dataclass inherits from this one and states its defaults."""

    reward: Reward = Reward.individual  # who gets which reward
    time_limit: int = 100  # steps after which an episode is cut
    # the time limit is an ending, after which nothing is worth anything; false: a cut, through which values bootstrap
    time_limit_terminates: bool = False

    largest_count: ClassVar[int] = LARGEST_INT  # the most of anything that a task counts, besides its steps
    shares_reward: ClassVar[bool] = False  # the task has a way of its own to share rewards: `reward=shared`

    def __post_init__(self) -> None:
        at_least(self, 1, "time_limit")
        counts = [name for name, value in vars(self).items() if type(value) is int and name != "time_limit"]
        at_most(self, self.largest_count, *counts)
        if self.reward is Reward.shared and not self.shares_reward:
            raise ValueError("reward=shared is for tasks that share it by themselves; here, team_sum and team_mean do")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SuiteConfig(TaskConfig):
    """Fields of every task of the suites that come with covey.

    Their programs grow with each agent, ray or row of a grid, some with the square: more than a few hundred would be
    traced for hours, or not fit into the memory.
    """

    largest_count: ClassVar[int] = 256
