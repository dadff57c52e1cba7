"""The multi-agent particle environments (Lowe et al. 2017) of mpe2: points that push, chase and talk.

Agents of one role are a group, named by it, as in covey's compiled `mpe/` tasks. Episodes never terminate: the time
limit truncates them. The global state is what all agents see, one after another.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from covey.checks import at_least, between_0_and_1
from covey.envs.host.pettingzoo.parallel import Cycle, ParallelSimulator
from covey.envs.host.pettingzoo.recipe import PettingZooConfig, Recipe
from covey.registry import OtherNames

OWN_SUM = "an agent's return is the sum of its own rewards over the episode"


@dataclasses.dataclass(frozen=True, kw_only=True)
class MpeConfig(PettingZooConfig):
    """Fields of all of these tasks; the defaults are BenchMARL's."""

    time_limit: int = 100
    continuous_actions: bool = True  # five forces from 0 to 1 (none, left, right, down, up); false: choose one of these

    @property
    def with_discrete_actions(self) -> MpeConfig:
        return dataclasses.replace(self, continuous_actions=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        counts = [field.name for field in dataclasses.fields(self) if field.name.startswith("num_")]
        at_least(self, 1, *(name for name in counts if name not in ("num_obstacles", "num_food", "num_forests")))

    def particles(self, scenario: str, returns: str, *, names: Mapping[str, str] | None = None, **more: Any) -> Recipe:
        """The recipe of a scenario of mpe2. `names` are what mpe2 calls fields that have another name here."""
        return Recipe(module=f"mpe2.{scenario}", arguments=self.arguments(**(names or {})), returns=returns, **more)


class ParticleCycle(Cycle):
    """A particle environment that takes only the last agent's turn, which moves the world. In PettingZoo the other
    turns just note an action, which is done here directly."""

    def take_turns(self, actions: Mapping[str, Any], agents: Sequence[str]) -> Mapping[str, Any]:
        world = self.game.unwrapped
        *others, last = agents
        world.current_actions[:-1] = [actions[agent] for agent in others]
        world.agent_selection = last
        world.step(actions[last])
        rewards: Mapping[str, Any] = world.rewards
        return rewards


class Particles(ParallelSimulator):
    """Joins what agents see into the global state. The environment's own would compute all of it a second time."""

    def __init__(self, config: MpeConfig):
        super().__init__(config)
        if isinstance(self.environment, Cycle):
            self.environment = ParticleCycle(self.environment.game)

    def global_state(self) -> np.ndarray:
        parts = [group.arrays[""].ravel() for group in self.groups.values()]
        return np.concatenate(parts) if len(parts) > 1 else parts[0]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpreadConfig(MpeConfig):
    num_agents: int = 3  # number of agents, and of landmarks that they should cover
    local_ratio: float = 0.5  # weight of an agent's own collisions in its reward; the rest is how well all are covered

    other_names: ClassVar[OtherNames] = {**MpeConfig.other_names, "N": "num_agents"}

    def __post_init__(self) -> None:
        super().__post_init__()
        between_0_and_1(self, "local_ratio")

    def recipe(self) -> Recipe:
        return self.particles(
            "simple_spread_v3",
            "minus (1 - local_ratio) of landmarks' distances to the nearest agent and local_ratio of own collisions",
            names={"num_agents": "N"},
            shared_reward=("agents",) if self.local_ratio == 0 else (),
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReferenceConfig(MpeConfig):
    local_ratio: float = 0.5  # weight of the agent's own distance in its reward; the rest is the team's mean

    def __post_init__(self) -> None:
        super().__post_init__()
        between_0_and_1(self, "local_ratio")

    def recipe(self) -> Recipe:
        return self.particles(
            "simple_reference_v3",
            "minus the distances to the goals, local_ratio own and the rest the mean, summed over the episode",
            shared_reward=("agents",) if self.local_ratio == 0 else (),
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpeakerListenerConfig(MpeConfig):
    def recipe(self) -> Recipe:
        return self.particles(
            "simple_speaker_listener_v4",
            "minus the listener's squared distance to its goal, the same for both, summed over the episode",
            shared_rewards=(("speaker", "listener"),),
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class CryptoConfig(MpeConfig):
    def recipe(self) -> Recipe:
        good = ("alice", "bob")
        return self.particles(
            "simple_crypto_v3",
            f"{OWN_SUM}: eve loses by her error, alice and bob win by it less bob's",
            teams=(good, ("eve",)),
            shared_rewards=(good,),
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class PushConfig(MpeConfig):
    def recipe(self) -> Recipe:
        return self.particles(
            "simple_push_v3",
            f"{OWN_SUM}: the agent near the goal wins, the adversary wins by keeping it away",
            teams=(("agent",), ("adversary",)),
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdversaryConfig(MpeConfig):
    # number of agents that know the goal, besides the one adversary; also of landmarks, one of which is the goal
    num_agents: int = 2

    other_names: ClassVar[OtherNames] = {**MpeConfig.other_names, "N": "num_agents"}

    def recipe(self) -> Recipe:
        return self.particles(
            "simple_adversary_v3",
            f"{OWN_SUM}: agents win by being near the goal and by the adversary being far from it",
            names={"num_agents": "N"},
            teams=(("agent",), ("adversary",)),
            shared_reward=("agent",),
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class TagConfig(MpeConfig):
    num_good_agents: int = 2  # number of agents that are hunted
    num_adversaries: int = 3  # number of adversaries that hunt
    num_obstacles: int = 2  # number of obstacles

    other_names: ClassVar[OtherNames] = {**MpeConfig.other_names, "num_good": "num_good_agents"}

    def recipe(self) -> Recipe:
        return self.particles(
            "simple_tag_v3",
            f"{OWN_SUM}: 10 to every adversary per catch, -10 to the caught agent",
            names={"num_good_agents": "num_good"},
            teams=(("adversary",), ("agent",)),
            shared_reward=("adversary",),
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class WorldCommConfig(MpeConfig):
    num_good_agents: int = 2  # number of agents that look for food and are hunted
    num_adversaries: int = 4  # number of adversaries that hunt, including the leader
    num_obstacles: int = 1  # number of obstacles
    num_food: int = 2  # number of pieces of food
    num_forests: int = 2  # number of forests, which hide agents from those outside

    other_names: ClassVar[OtherNames] = {**MpeConfig.other_names, "num_good": "num_good_agents"}

    def recipe(self) -> Recipe:
        hunters: dict[str, Sequence[str]] = {"leader": ["leadadversary"]}
        if self.num_adversaries > 1:
            hunters["adversary"] = ["adversary"]
        return self.particles(
            "simple_world_comm_v3",
            f"{OWN_SUM}: adversaries win by catching agents, agents by food and by not being caught",
            names={"num_good_agents": "num_good"},
            groups={**hunters, "agent": ["agent"]},
            teams=(tuple(hunters), ("agent",)),
        )
