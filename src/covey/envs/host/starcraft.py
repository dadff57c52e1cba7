"""StarCraft's micromanagement: SMACv2 (Ellis et al. 2023), which needs the game, and SMAClite (Michalski et al. 2023).

No registry has either package. covey relies on their published interfaces alone:

    SMACv2    reset() → observations, state; step(actions) → reward, terminated, info
    SMAClite  reset(seed) → observations, info; step(actions) → observations, reward, terminated, truncated, info
    both      get_avail_actions(), get_state()

All units share one reward and still receive it after their own death. So to covey a dead unit stays alive until the
battle is over. Its only legal action is to do nothing.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from covey.checks import at_least
from covey.envs.host.pettingzoo.parallel import ParallelSimulator
from covey.envs.host.pettingzoo.recipe import PettingZooConfig, Recipe
from covey.envs.host.pettingzoo.spaces import MASK
from covey.envs.host.sources import Randomness, import_from
from covey.envs.host.tuples import parts_of, require
from covey.errors import MissingPackage, UsageError
from covey.fields import field, whole
from covey.registry import OtherNames
from covey.specs import MetricSpec

ByAgent = dict[str, Any]

RETURNS = "the team's: damage, kills and victory, scaled so that a battle won without loss of shields is worth about 20"
WIN_RATE = {"win_rate": MetricSpec(unit="share of episodes")}


class Battle:
    """What both have in common, with PettingZoo's parallel interface. All units have the same rewards and endings."""

    metadata: Mapping[str, Any] = {"render_modes": []}

    def __init__(self, game: Any, num_agents: int, observation_size: int):
        self.game = game
        self.possible_agents = [f"agent_{number}" for number in range(num_agents)]
        self.agents: list[str] = []
        self.won = False
        self._observation_size = observation_size
        self._num_actions = 0

    @property
    def unwrapped(self) -> Battle:
        return self

    def observation_space(self, agent: str) -> Any:
        from gymnasium import spaces

        return spaces.Box(-np.inf, np.inf, (self._observation_size,), np.float32)

    def action_space(self, agent: str) -> Any:
        from gymnasium import spaces

        return spaces.Discrete(self._num_actions)

    def state(self) -> np.ndarray:
        return np.asarray(self.game.get_state(), np.float32)

    def close(self) -> None:
        self.game.close()

    def begun(self, observations: Sequence[Any]) -> tuple[ByAgent, ByAgent]:
        """What a reset returns."""
        self.agents, self.won = self.possible_agents, False
        return self._by_agent(observations), self._infos()

    def stepped(
        self, observations: Sequence[Any], reward: float, *, over: bool, cut: bool
    ) -> tuple[ByAgent, ByAgent, ByAgent, ByAgent, ByAgent]:
        """What a step returns. `over`: the battle has ended; `cut`: it was cut off."""
        if over or cut:
            self.agents = []
        everyone = self.possible_agents
        return (
            self._by_agent(observations),
            dict.fromkeys(everyone, float(reward)),
            dict.fromkeys(everyone, over),
            dict.fromkeys(everyone, cut),
            self._infos(),
        )

    def _by_agent(self, values: Any) -> ByAgent:
        return dict(zip(self.possible_agents, values, strict=True))

    def _infos(self) -> ByAgent:
        return {agent: {MASK: mask} for agent, mask in self._by_agent(self._masks()).items()}

    def _masks(self) -> np.ndarray:
        return np.asarray(self.game.get_avail_actions(), bool)


class BattleSimulator(ParallelSimulator):
    """Reports whether the battle was won."""

    def measure(self) -> dict[str, float]:
        return {"win_rate": float(self.environment.unwrapped.won)}


# ------------------------------------------------------------------------------------------------------------- SMACv2

# What armies are made of: kinds of units, their probabilities, and the kind that may not make up a whole army.
ARMIES = {
    "protoss": (("stalker", "zealot", "colossus"), (0.45, 0.45, 0.1), "colossus"),
    "terran": (("marine", "marauder", "medivac"), (0.45, 0.45, 0.1), "medivac"),
    "zerg": (("zergling", "hydralisk", "baneling"), (0.45, 0.45, 0.1), "baneling"),
}
SMACV2_HOW = (
    "install https://github.com/oxwhirl/smacv2 with pip, in a separate environment because it needs an old protobuf"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SmacV2Config(PettingZooConfig):
    """Fields of SMACv2; the defaults are those of its published experiments."""

    time_limit: int = 200
    race: str = "terran"  # of both armies: protoss, terran or zerg
    num_units: int = 5  # units of the team
    num_enemies: int = 5  # units of the game's own army
    difficulty: str = "7"  # of the game's own player, from 1 to 9, or A
    step_mul: int = 8  # steps of the game in one of the task
    conic_fov: bool = False  # units see only a cone, and choose where to look
    num_fov_actions: int = 12  # directions to choose from, with conic_fov
    prob_obs_enemy: float = 1.0  # probability that a unit sees an enemy in its sight
    reward_sparse: bool = False  # only 1 for a victory and -1 for a defeat
    # further arguments of its StarCraft2Env: `task.kwargs={obs_last_action: true}`
    kwargs: dict[str, Any] = dataclasses.field(default_factory=dict)
    # folder with the package smacv2; null: COVEY_SMACV2, or an installed package
    path: str | None = field(None, code=whole)

    largest_count: ClassVar[int] = 256
    other_names: ClassVar[OtherNames] = {
        **PettingZooConfig.other_names,
        "n_units": "num_units",
        "n_enemies": "num_enemies",
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 1, "num_units", "num_enemies", "step_mul", "num_fov_actions")
        if self.race not in ARMIES:
            raise ValueError(f"race={self.race} must be one of {', '.join(ARMIES)}")

    def recipe(self) -> Recipe:
        own = ("difficulty", "step_mul", "conic_fov", "num_fov_actions", "prob_obs_enemy", "reward_sparse")
        game = {name: getattr(self, name) for name in own} | {
            "map_name": f"10gen_{self.race}",
            "capability_config": armies(self.race, self.num_units, self.num_enemies),
            "obs_own_pos": True,
            "use_unit_ranges": True,
            "min_attack_range": 2,
            **self.kwargs,
        }
        return Recipe(
            module="covey.envs.host.starcraft:make_smacv2",
            arguments={"game": game, "path": self.path},
            shared_reward=("agents",),
            metrics={
                **WIN_RATE,
                "dead_allies": MetricSpec(unit="units", higher_is_better=False),
                "dead_enemies": MetricSpec(unit="units"),
            },
            returns="1 for a victory, -1 for a defeat" if self.reward_sparse else RETURNS,
        )


def armies(race: str, num_units: int, num_enemies: int) -> dict[str, Any]:
    """SMACv2's description of both armies and where they start. Both are drawn for each battle."""
    kinds, weights, exception = ARMIES[race]
    return {
        "n_units": num_units,
        "n_enemies": num_enemies,
        "team_gen": {
            "dist_type": "weighted_teams",
            "unit_types": list(kinds),
            "exception_unit_types": [exception],
            "weights": list(weights),
            "observe": True,
        },
        "start_positions": {"dist_type": "surrounded_and_reflect", "p": 0.5, "map_x": 32, "map_y": 32},
    }


class SmacV2(Battle):
    """SMACv2's wrapper. The game takes a seed only when it starts, so the seed of an episode does not fix the battle.

    Two things are corrected. SMACv2 reports its time limit as an ending, so that limit is set above covey's. When it
    loses the connection to the game, it starts the game again and reports an ending with empty information. That is not
    a defeat, so the episode counts as cut off.
    """

    def __init__(self, game: Any, max_cycles: int):
        facts = game.get_env_info()
        super().__init__(game, int(facts["n_agents"]), int(facts["obs_shape"]))
        self._num_actions = int(facts["n_actions"])
        self._limit = max_cycles
        self.dead = {"dead_allies": 0.0, "dead_enemies": 0.0}

    def reset(self, seed: int) -> tuple[ByAgent, ByAgent]:
        observations, _ = self.game.reset()
        getattr(self.game, "env", self.game).episode_limit = self._limit
        self.dead = dict.fromkeys(self.dead, 0.0)
        return self.begun(observations)

    def step(self, actions: Mapping[str, Any]) -> tuple[ByAgent, ...]:
        reward, over, info = self.game.step([int(actions[agent]) for agent in self.possible_agents])
        cut = bool(over and (not info or info.get("episode_limit", False)))
        self.won = bool(info.get("battle_won", False))
        self.dead |= {name: float(info[name]) for name in self.dead if name in info}
        return self.stepped(self.game.get_obs(), reward, over=bool(over) and not cut, cut=cut)


class SmacV2Simulator(BattleSimulator):
    def measure(self) -> dict[str, float]:
        return {**super().measure(), **self.environment.unwrapped.dead}


def make_smacv2(*, game: dict[str, Any], path: str | None, max_cycles: int) -> SmacV2:
    """The battle. StarCraft II itself must be where pysc2 looks for it: in SC2PATH, or in ~/StarCraftII."""
    what = "SMACv2"
    module = import_from(
        "smacv2",
        "smacv2.env.starcraft2.wrapper",
        path=path,
        variable="COVEY_SMACV2",
        what=what,
        how=SMACV2_HOW,
    )
    place = Path(os.environ.get("SC2PATH", "~/StarCraftII")).expanduser()
    if not place.is_dir():
        raise MissingPackage(
            f"{what} needs the game StarCraft II for Linux with SMACv2's maps: set SC2PATH to its folder (there is "
            f"no {place})"
        )
    return SmacV2(module.StarCraftCapabilityEnvWrapper(**game), max_cycles)


# ----------------------------------------------------------------------------------------------------------- SMAClite

SMACLITE_HOW = "clone https://github.com/uoe-agents/smaclite, and install Rtree 1.4.1 instead of the 1.0.0 that it pins"


@dataclasses.dataclass(frozen=True, kw_only=True)
class SmacLiteConfig(PettingZooConfig):
    """Fields of SMAClite."""

    time_limit: int = 120
    map: str = "2s3z"  # the battle: `covey list tasks smaclite` shows those that have a task
    # folder with the package smaclite; null: COVEY_SMACLITE, or an installed package
    path: str | None = field(None, code=whole)

    def recipe(self) -> Recipe:
        return Recipe(
            module="covey.envs.host.starcraft:make_smaclite",
            arguments={"map": self.map, "path": self.path},
            shared_reward=("agents",),
            metrics=WIN_RATE,
            returns=RETURNS,
        )


class SmacLite(Battle):
    """SMAClite's environment. It draws from Python's and NumPy's global generators, so each copy has its own states.

    It never truncates. Its masks can be longer than its action space says (MMM: 16 and 15), so the masks decide.
    """

    def __init__(self, game: Any):
        observed = parts_of(game.observation_space)
        super().__init__(game, len(observed), int(np.prod(observed[0].shape)))
        self._randomness = Randomness()
        self._randomness.seed(0)
        with self._randomness:
            game.reset(seed=0)  # masks are known only then
        self._num_actions = self._masks().shape[1]

    def reset(self, seed: int) -> tuple[ByAgent, ByAgent]:
        self._randomness.seed(seed)
        with self._randomness:
            observations, _ = self.game.reset(seed=seed)
        return self.begun(observations)

    def step(self, actions: Mapping[str, Any]) -> tuple[ByAgent, ...]:
        with self._randomness:
            observations, reward, over, cut, _ = self.game.step([int(actions[agent]) for agent in self.possible_agents])
        # A victory is an ending at which some unit is left, so it can do more than nothing.
        self.won = bool(over and not self._masks()[:, 0].all())
        return self.stepped(observations, reward, over=bool(over), cut=bool(cut) and not over)


def make_smaclite(*, map: str, path: str | None) -> SmacLite:
    """The battle on a map that SMAClite registers with Gymnasium."""
    what = "SMAClite"
    require("gymnasium", what, "gymnasium")
    import_from("smaclite", "smaclite", path=path, variable="COVEY_SMACLITE", what=what, how=SMACLITE_HOW)
    from gymnasium.envs import registration

    name = f"smaclite/{map}-v0"
    if name not in registration.registry:
        known = [
            each.split("/")[1].removesuffix("-v0") for each in registration.registry if each.startswith("smaclite/")
        ]
        raise UsageError(f"task.map: SMAClite has no map '{map}'; it has {', '.join(sorted(known))}")
    entry = registration.registry[name]
    make: Any = entry.entry_point
    make = make if callable(make) else registration.load_env_creator(make)
    return SmacLite(make(**entry.kwargs))
