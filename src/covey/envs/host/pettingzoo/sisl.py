"""PettingZoo's sisl: multiwalker and pursuit (Gupta et al. 2017)."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import numpy as np

from covey.checks import at_least
from covey.envs.config import Reward
from covey.envs.host.pettingzoo.parallel import ParallelSimulator
from covey.envs.host.pettingzoo.recipe import PettingZooConfig, Recipe
from covey.registry import OtherNames
from covey.specs import MetricSpec
from covey.task_fields import SHARED_REWARD_NAMES

WALKER_SIZE = 24  # entries of a walker's observation about itself
REWARD_FOR_WAY = 130 / 30  # for a metre that the package moves, with forward_reward=1


@dataclasses.dataclass(frozen=True, kw_only=True)
class MultiwalkerConfig(PettingZooConfig):
    """Fields of multiwalker; the defaults are BenchMARL's."""

    time_limit: int = 500
    num_walkers: int = 3  # number of walkers that carry the package, at least 2
    position_noise: float = 1e-3  # standard deviation of the noise on positions of neighbours and package
    angle_noise: float = 1e-3  # standard deviation of the noise on the package's angle
    forward_reward: float = 1.0  # reward per unit of distance that the package moves, before a factor of 130/30
    fall_reward: float = -10.0  # reward of a walker that falls
    # reward of every walker when the package falls, or with terminate_on_fall when any walker falls
    terminate_reward: float = -100.0
    terminate_on_fall: bool = True  # a fall ends the episode; false: only for the walker that fell
    remove_on_fall: bool = True  # a fallen walker disappears; only with terminate_on_fall=false
    terrain_length: int = 200  # steps of terrain
    # weight of the package's movement in a reward for learning only, which no return counts; 1 is as much as
    # forward_reward=1
    shaping: float = 0.0
    # episodes after which a process that steps copies is replaced, because each reset leaks 17 kB; null: never
    episodes_per_process: int | None = 20_000

    shares_reward: ClassVar[bool] = True
    other_names: ClassVar[OtherNames] = {
        **PettingZooConfig.other_names,
        **SHARED_REWARD_NAMES,
        "n_walkers": "num_walkers",
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 2, "num_walkers")
        at_least(self, 50, "terrain_length")

    def recipe(self) -> Recipe:
        shared = self.reward is Reward.shared
        own = "the mean over the walkers of" if shared else "the sum over the episode of"
        return Recipe(
            module="sisl/multiwalker-v9",
            arguments={**self.arguments(without=("shaping",), num_walkers="n_walkers"), "shared_reward": shared},
            shared_reward=("agents",) if shared else (),
            metrics={
                "displacement": MetricSpec(reduction="last", unit="m"),
                "falls": MetricSpec(reduction="last", unit="walkers", higher_is_better=False),
                "standing": MetricSpec(reduction="last", unit="walkers"),
            },
            returns=f"{own} rewards for moving the package, less penalties for tilted hulls and for falls",
        )


class Multiwalker(ParallelSimulator):
    """Reports how far the package moved, because rewards alone do not tell walking from standing still."""

    def __init__(self, config: MultiwalkerConfig):
        self._world: Any = None
        self._shaping = config.shaping * REWARD_FOR_WAY
        self._start = self._before = 0.0  # where the package started, and where it was a step ago
        self._state_array = np.zeros(config.num_walkers * WALKER_SIZE + 3, np.float32)
        self._state_of_walkers = self._state_array[:-3].reshape(-1, WALKER_SIZE)
        super().__init__(config)

    def _begin(self) -> None:
        super()._begin()
        self._world = self.environment.unwrapped.env
        self._start = self._before = self._world.package.position.x

    def global_state(self) -> np.ndarray:
        """As the environment computes it, from what walkers saw last: its own method fails once a walker has fallen."""
        self._state_of_walkers[...] = self.groups["agents"].arrays[""][:, :WALKER_SIZE]
        package, state = self._world.package, self._state_array
        state[-3], state[-2] = package.position
        state[-1] = package.angle
        return state.copy()

    def shape(self) -> dict[str, np.ndarray] | None:
        if not self._shaping:
            return None
        now = self._world.package.position.x
        gained, self._before = now - self._before, now
        return {"agents": np.full(len(self._state_of_walkers), self._shaping * gained, np.float32)}

    def measure(self) -> dict[str, float]:
        fallen = self._world.fallen_walkers
        falls = np.count_nonzero(fallen)
        way = self._state_array[-3] - self._start  # `global_state` was called just before
        return {"displacement": way, "falls": falls, "standing": len(fallen) - falls}


@dataclasses.dataclass(frozen=True, kw_only=True)
class PursuitConfig(PettingZooConfig):
    """Fields of pursuit; the defaults are PettingZoo's."""

    time_limit: int = 500
    reward: Reward = Reward.shared
    num_pursuers: int = 8  # number of pursuers, which learn
    num_evaders: int = 30  # number of evaders, which move at random
    size_x: int = 16  # columns of the grid
    size_y: int = 16  # rows of the grid
    obs_range: int = 7  # cells on a side of the square that a pursuer sees, an odd number
    num_catch: int = 2  # pursuers that must be around an evader to catch it
    surround: bool = True  # an evader is caught when it is surrounded; false: when num_catch pursuers are on its cell
    tag_reward: float = 0.01  # reward for touching an evader
    catch_reward: float = 5.0  # reward for catching one
    urgency_reward: float = -0.1  # reward of every step
    freeze_evaders: bool = False  # evaders do not move
    constraint_window: float = 1.0  # share of the grid, around its middle, in which everybody starts, from 0 to 1

    shares_reward: ClassVar[bool] = True
    other_names: ClassVar[OtherNames] = {
        **PettingZooConfig.other_names,
        **SHARED_REWARD_NAMES,
        "n_pursuers": "num_pursuers",
        "n_evaders": "num_evaders",
        "n_catch": "num_catch",
        "x_size": "size_x",
        "y_size": "size_y",
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 1, "num_pursuers", "num_evaders", "num_catch")
        if self.obs_range % 2 == 0 or self.obs_range < 1:
            raise ValueError(f"obs_range must be odd, not {self.obs_range}")

    def recipe(self) -> Recipe:
        shared = self.reward is Reward.shared
        own = self.arguments(
            num_pursuers="n_pursuers", num_evaders="n_evaders", num_catch="n_catch", size_x="x_size", size_y="y_size"
        )
        return Recipe(
            module="sisl/pursuit-v5",
            arguments={**own, "shared_reward": shared},
            shared_reward=("agents",) if shared else (),
            metrics={"caught": MetricSpec(reduction="last", unit="evaders")},
            returns=("the pursuers' mean" if shared else "the sum over the episode")
            + " of rewards for touching and catching evaders, less a little for each step",
        )


class Pursuit(ParallelSimulator):
    def measure(self) -> dict[str, float]:
        return {"caught": float(self.environment.unwrapped.env.evaders_gone.sum())}
