"""MAgent2: armies of small agents on a grid (Zheng et al. 2018)."""

from __future__ import annotations

import dataclasses

from covey.checks import at_least
from covey.envs.host.pettingzoo.parallel import ParallelSimulator
from covey.envs.host.pettingzoo.recipe import PettingZooConfig, Recipe
from covey.specs import MetricSpec


@dataclasses.dataclass(frozen=True, kw_only=True)
class MagentConfig(PettingZooConfig):
    """Fields of all of MAgent2's tasks."""

    map_size: int = 45  # cells on a side of the map, which also decides how many agents there are
    minimap_mode: bool = False  # agents also see roughly where everybody is, and their own position
    extra_features: bool = False  # agents also see their number, their last action and their last reward

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 12, "map_size")


@dataclasses.dataclass(frozen=True, kw_only=True)
class BattleConfig(MagentConfig):
    """Fields of battle; the defaults are MAgent2's."""

    time_limit: int = 1000
    step_reward: float = -0.005  # reward of every step
    dead_penalty: float = -0.1  # reward of an agent that dies
    attack_penalty: float = -0.1  # reward of every attack
    attack_opponent_reward: float = 0.2  # reward of an attack that hits an opponent; 5 more for one that kills it

    def recipe(self) -> Recipe:
        return Recipe(
            module="magent2.environments.battle_v4",
            arguments=self.arguments(),
            teams=(("red",), ("blue",)),
            metrics={
                "red": MetricSpec(reduction="last", unit="agents alive"),
                "blue": MetricSpec(reduction="last", unit="agents alive", higher_is_better=False),
            },
            returns="the sum of the agent's own rewards over its life: 5 for a kill, 0.2 for a hit, less penalties",
        )


class Battle(ParallelSimulator):
    def measure(self) -> dict[str, float]:
        """Who is still on the map: at the end of a battle, agents that have won terminate too."""
        armies = self.environment.unwrapped
        return {
            name: float(armies.env.get_num(handle)) for name, handle in zip(self.groups, armies.handles, strict=True)
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdversarialPursuitConfig(MagentConfig):
    """Fields of adversarial_pursuit; the defaults are BenchMARL's."""

    time_limit: int = 500
    tag_penalty: float = -0.2  # reward of a predator for every attempt to tag

    def recipe(self) -> Recipe:
        return Recipe(
            module="magent2.environments.adversarial_pursuit_v4",
            arguments=self.arguments(),
            teams=(("predator",), ("prey",)),
            returns="the sum of the agent's own rewards: 1 for tagging a prey, -1 for being tagged, less penalties",
        )
