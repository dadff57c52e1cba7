"""The switch riddle (Foerster et al. 2016): prisoners enter a room one at a time, and may switch its bulb or announce
that all have been there.

The number of days is a rule of the riddle, and its solution depends on it: the last day terminates the episode. So
here, unlike in the other suites, the suite keeps its own limit, `deadline`.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

from covey.envs.base import SuiteConfig
from covey.envs.jaxmarl.core import SuiteEnv, import_suite
from covey.types import Array, MetricSpec, PyTree


@dataclasses.dataclass(frozen=True, kw_only=True)
class SwitchRiddleConfig(SuiteConfig):
    """The reward is shared by the suite itself."""

    time_limit: int = 6
    num_agents: int = 3  # prisoners, from 3 up
    deadline: int = 6  # days after which the riddle ends; 4 * num_agents - 6 in the paper

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_agents < 3:
            raise ValueError(f"num_agents must be at least 3, not {self.num_agents}")


def make_switch_riddle(config: SwitchRiddleConfig) -> SuiteEnv:
    suite = import_suite("switch_riddle").SwitchRiddle(num_agents=config.num_agents)
    suite.max_steps = config.deadline
    return SwitchRiddleEnv(suite, returns="the team's: 1 for telling rightly, -1 for telling wrongly, else 0")


class SwitchRiddleEnv(SuiteEnv):
    shared_reward = True
    metrics: ClassVar = {"win_rate": MetricSpec(reduction="last")}

    def measure(self, before: PyTree, after: PyTree, rewards: Any) -> dict[str, Array]:
        return {"win_rate": rewards["agent_0"] > 0}

    def draw(self, axes: Any, state: PyTree) -> None:
        axes.set(xlim=(-0.5, self.suite.num_agents - 0.5), ylim=(-1, 2), title=f"day {state.step}")
        for agent, has_been in enumerate(state.has_been):
            axes.plot(agent, 0, marker="o", markersize=24, color="tab:green" if has_been else "0.7")
        axes.plot(state.agent_in_room, 1, marker="*", markersize=30, color="gold" if state.bulb_state else "0.3")
