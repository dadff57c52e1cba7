"""PettingZoo's butterfly: knights, archers and zombies; cooperative pong; pistonball.

Rewards for killing zombies are as PettingZoo gives them. Except for the first agent, they come one step late, and those
of the last step are lost.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import ClassVar

from covey.checks import at_least
from covey.envs.host.pettingzoo.parallel import ParallelSimulator
from covey.envs.host.pettingzoo.recipe import PettingZooConfig, Recipe
from covey.registry import OtherNames
from covey.specs import MetricSpec


class KazObservation(enum.Enum):
    """How a knight or an archer sees the field."""

    vector = "rows of distance, position and direction: its own, then one for each other agent and object"
    vector_masked = "rows as in vector, each with six flags for what it describes"
    sequence = "rows as in vector_masked, only of what exists, then empty rows; the last entry marks rows that are used"
    image = "its surroundings, as a picture of 512×512 pixels"


@dataclasses.dataclass(frozen=True, kw_only=True)
class KazConfig(PettingZooConfig):
    """Fields of knights_archers_zombies; the defaults are BenchMARL's."""

    time_limit: int = 900
    observation: KazObservation = KazObservation.vector  # how a knight or an archer sees the field
    image_stride: int = 8  # keep one pixel in this many, in both directions; only with observation=image
    num_archers: int = 2  # number of archers
    num_knights: int = 2  # number of knights
    spawn_delay: int = 20  # steps before another zombie comes
    max_zombies: int = 10  # most zombies at a time
    max_arrows: int = 10  # most arrows at a time
    killable_knights: bool = True  # zombies can kill knights
    killable_archers: bool = True  # zombies can kill archers
    line_death: bool = False  # whoever touches the upper or lower edge dies

    other_names: ClassVar[OtherNames] = {**PettingZooConfig.other_names, "spawn_rate": "spawn_delay"}

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 1, "num_archers", "num_knights", "spawn_delay", "max_zombies", "max_arrows", "image_stride")

    def recipe(self) -> Recipe:
        methods = {KazObservation.vector_masked: "vector-masked", KazObservation.sequence: "vector-sequence"}
        own = self.arguments(without=("observation", "image_stride"))
        # First the agent itself, then all agents, a sword for each knight, arrows and zombies.
        rows = self.num_archers + 2 * self.num_knights + self.max_arrows + self.max_zombies + 1
        return Recipe(
            module="butterfly/knights_archers_zombies-v11",
            arguments={**own, "obs_method": methods.get(self.observation, self.observation.name)},
            groups={"archers": ["archer"], "knights": ["knight"]},
            sequence_length=rows,
            image_stride=self.image_stride,
            metrics={
                "kills": MetricSpec(reduction="sum", unit="zombies"),
                "survivors": MetricSpec(reduction="last", unit="agents"),
            },
            returns="the zombies that the agent killed",
        )


class Kaz(ParallelSimulator):
    def measure(self) -> dict[str, float]:
        groups = self.groups.values()
        return {
            "kills": float(sum(group.rewards.sum() for group in groups)),
            "survivors": float(len(self.environment.unwrapped.player_list)),
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class CooperativePongConfig(PettingZooConfig):
    """Fields of cooperative_pong; the defaults are PettingZoo's."""

    time_limit: int = 900
    image_stride: int = 8  # keep one pixel in this many of the screen of 280×480, in both directions
    ball_speed: float = 9.0  # pixels a step
    left_paddle_speed: float = 12.0  # pixels a step
    right_paddle_speed: float = 12.0  # pixels a step
    cake_paddle: bool = True  # the right paddle has the shape of a cake with four tiers
    max_reward: float = 100.0  # each agent's return if the ball stays on the screen until the time limit
    off_screen_penalty: float = -10.0  # reward of both agents when the ball leaves the screen
    bounce_randomness: bool = False  # paddles deflect the ball by a small random angle

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 1, "image_stride")

    def recipe(self) -> Recipe:
        own = self.arguments(without=("image_stride",))
        # The reward of a step is max_reward / max_cycles, and max_cycles is one more than the time limit.
        own["max_reward"] = self.max_reward * (self.time_limit + 1) / self.time_limit
        return Recipe(
            module="butterfly/cooperative_pong-v6",
            arguments=own,
            image_stride=self.image_stride,
            shared_reward=("agents",),
            returns="max_reward times the share of the time limit for which the ball stayed in play, less the penalty",
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class PistonballConfig(PettingZooConfig):
    """Fields of pistonball; the defaults are PettingZoo's."""

    time_limit: int = 125
    continuous_actions: bool = True  # how far to move, from -1 to 1; false: down, not at all, up
    image_stride: int = 4  # keep one pixel in this many of the 457×120 around a piston, in both directions
    num_pistons: int = 20  # number of pistons, which are the agents
    time_penalty: float = -0.1  # reward of every step
    random_drop: bool = True  # the ball begins at a random place
    random_rotate: bool = True  # the ball begins with a random spin
    ball_mass: float = 0.75  # mass of the ball
    ball_friction: float = 0.3  # friction of the ball
    ball_elasticity: float = 1.5  # elasticity of the ball

    other_names: ClassVar[OtherNames] = {
        **PettingZooConfig.other_names,
        "n_pistons": "num_pistons",
        "continuous": "continuous_actions",
    }

    @property
    def with_discrete_actions(self) -> PistonballConfig:
        return dataclasses.replace(self, continuous_actions=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 1, "num_pistons", "image_stride")

    def recipe(self) -> Recipe:
        return Recipe(
            module="butterfly/pistonball-v6",
            arguments=self.arguments(
                without=("image_stride",), num_pistons="n_pistons", continuous_actions="continuous"
            ),
            image_stride=self.image_stride,
            shared_reward=("agents",),
            returns="how far the ball moved left, at most 100, less a penalty for each step; the same for all pistons",
        )
