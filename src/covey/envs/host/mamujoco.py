"""Multi-agent MuJoCo (Peng et al. 2021) as Gymnasium-Robotics implements it: the joints of one robot as agents.

Agents of a robot often see and move different numbers of joints. By default they are padded to the largest, as in
MABrax: missing entries of an observation are zero, and surplus actions do nothing. With `pad=false`, agents with equal
spaces form a group.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from covey.checks import at_least
from covey.envs.host.pettingzoo.parallel import ParallelSimulator
from covey.envs.host.pettingzoo.recipe import PettingZooConfig, Recipe
from covey.envs.host.tuples import require
from covey.errors import UsageError
from covey.registry import OtherNames
from covey.specs import MetricSpec

ROBOT_NEVER_FALLS = ("HalfCheetah", "Swimmer", "ManySegmentSwimmer", "Reacher", "Pusher", "HumanoidStandup")


@dataclasses.dataclass(frozen=True, kw_only=True)
class MamujocoConfig(PettingZooConfig):
    """Fields of every robot."""

    time_limit: int = 1000
    scenario: str = "Ant"  # the robot
    agent_conf: str = "4x2"  # how its joints are divided: `4x2` is 4 agents of 2 joints, `9|8` is 2 agents of 9 and 8
    agent_obsk: int = 1  # how many joints away from its own an agent sees
    pad: bool = True  # observations and actions are padded to the largest, and all agents are one group
    # further arguments of Gymnasium's robot: `task.kwargs={terminate_when_unhealthy: false}`
    kwargs: dict[str, Any] = dataclasses.field(default_factory=dict)

    other_names: ClassVar[OtherNames] = {**PettingZooConfig.other_names, "max_episode_steps": "time_limit"}

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 0, "agent_obsk")

    def recipe(self) -> Recipe:
        return Recipe(
            module="covey.envs.host.mamujoco:make_robot",
            arguments=self.arguments(),
            metrics={} if self.scenario in ROBOT_NEVER_FALLS else {"fell": MetricSpec(higher_is_better=False)},
            returns="the robot's, the same for all its agents: progress less the cost of control",
        )


class MamujocoSimulator(ParallelSimulator):
    """All agents receive the robot's reward."""

    def __init__(self, config: MamujocoConfig):
        self._fell = 0.0
        super().__init__(config)
        groups = {name: dataclasses.replace(group, shared_reward=True) for name, group in self.spec.groups.items()}
        sharing = (tuple(groups),) if len(groups) > 1 else ()
        self.spec = dataclasses.replace(self.spec, groups=groups, shared_rewards=sharing)

    def measure(self) -> dict[str, float]:
        return {"fell": float(self._num_alive == 0)}

    def render(self) -> np.ndarray:
        os.environ.setdefault("MUJOCO_GL", "egl")  # needs no display; it is read when a robot is first drawn
        return super().render()


def make_robot(
    *, scenario: str, agent_conf: str, agent_obsk: int, pad: bool, kwargs: Mapping[str, Any], render_mode: str
) -> Any:
    """The robot, without a time limit of its own."""
    require("gymnasium_robotics", "MaMuJoCo", "mamujoco")
    import mujoco
    from gymnasium_robotics import mamujoco_v1

    mujoco.set_mju_user_warning(warn)

    try:
        robot = mamujoco_v1.parallel_env(
            scenario=scenario,
            agent_conf=agent_conf,
            agent_obsk=agent_obsk,
            render_mode=render_mode,
            **{"max_episode_steps": -1, **kwargs},  # for Gymnasium, -1 means no limit
        )
    except NotImplementedError as error:
        raise UsageError(f"task.scenario: there is no robot '{scenario}'") from error
    except Exception as error:
        if "UNKNOWN partitioning" in str(error):
            raise UsageError(f"task.agent_conf: {scenario} cannot be divided as '{agent_conf}'") from error
        raise
    return Padded(robot) if pad else robot


def warn(message: str) -> None:
    """Prints a warning of MuJoCo's, which MuJoCo would otherwise write into a file in the working directory."""
    print(message, file=sys.stderr)


class Padded:
    """A parallel environment of continuous agents whose observations and actions all have the size of the largest."""

    def __init__(self, environment: Any):
        self.environment = environment
        self.possible_agents = environment.possible_agents
        agents = self.possible_agents
        self._sizes = {agent: environment.action_space(agent).shape[0] for agent in agents}
        self._observed = max(environment.observation_space(agent).shape[0] for agent in agents)
        self._acted = max(self._sizes.values())

    def __getattr__(self, name: str) -> Any:
        return getattr(self.environment, name)

    def observation_space(self, agent: str) -> Any:
        from gymnasium import spaces

        return spaces.Box(-np.inf, np.inf, (self._observed,), np.float32)

    def action_space(self, agent: str) -> Any:
        from gymnasium import spaces

        own = self.environment.action_space(agent)
        return spaces.Box(float(own.low.min()), float(own.high.max()), (self._acted,), np.float32)

    def reset(self, seed: int) -> tuple[dict[str, Any], Any]:
        observations, infos = self.environment.reset(seed=seed)
        return self._pad(observations), infos

    def step(self, actions: Mapping[str, np.ndarray]) -> tuple[Any, ...]:
        own = {agent: action[: self._sizes[agent]] for agent, action in actions.items()}
        observations, *rest = self.environment.step(own)
        return self._pad(observations), *rest

    def _pad(self, observations: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        padded = {}
        for agent, observation in observations.items():
            padded[agent] = np.zeros(self._observed, np.float32)
            padded[agent][: len(observation)] = observation
        return padded
