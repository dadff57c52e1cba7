"""Substrates of Melting Pot 2 (Agapiou et al. 2022): many players in a world of pixels, with mixed motives.

Substrates are what agents train on. Melting Pot's scenarios add trained bots. Its source archive does not contain the
bots, so covey has no scenarios.

`import meltingpot` imports TensorFlow for those bots. During the import an empty stand-in takes TensorFlow's place, in
the worker process only.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import sys
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from covey.envs.host.pettingzoo.parallel import ParallelSimulator
from covey.envs.host.pettingzoo.recipe import PettingZooConfig, Recipe
from covey.envs.host.sources import Randomness, import_from, standing_in
from covey.errors import MissingExtra, UsageError
from covey.fields import field, whole

HOW = (
    "`pip download --no-deps --no-binary :all: dm-meltingpot==2.4.1`, unpack the archive, and `pip install "
    "'covey[meltingpot]'` for what it imports"
)
WORLD = "WORLD.RGB"  # the picture of the whole world, which players do not see
NEEDED = ("chex", "dm_env", "dmlab2d", "gymnasium", "immutabledict", "ml_collections", "networkx", "reactivex", "tree")
OPPOSED = (("predator", "prey"), ("crewmate", "impostor"))  # roles that play against each other


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeltingPotConfig(PettingZooConfig):
    """Fields of every substrate."""

    time_limit: int = 1000
    substrate: str = "clean_up"  # the substrate: `covey list tasks meltingpot` shows the names
    # each player's role, from those of the substrate, which also sets the number of players; empty: the substrate's own
    roles: tuple[str, ...] = ()
    # names of the substrate's observations that players receive; empty: all that the substrate gives each player
    observations: tuple[str, ...] = ()
    image_stride: int = 1  # keep one pixel in this many of an image, in both directions; sprites are 8 wide
    # folder with the unpacked source archive; null: COVEY_MELTINGPOT, or an installed package
    path: str | None = field(None, code=whole)

    def recipe(self) -> Recipe:
        cooking = self.substrate.startswith("collaborative_cooking")
        names = ("substrate", "roles", "observations", "path")
        return Recipe(
            module="covey.envs.host.meltingpot:Players",
            arguments={name: getattr(self, name) for name in names},
            shared_reward=("agents",) if cooking else (),
            image_stride=self.image_stride,
            returns="what the team earned by deliveries" if cooking else "the sum of the player's own rewards",
        )


class MeltingPotSimulator(ParallelSimulator):
    """Adds which roles oppose each other. Players of one role are a group; if there is one role, it is `agents`."""

    def __init__(self, config: MeltingPotConfig):
        super().__init__(config)
        teams = next((pair for pair in OPPOSED if set(pair) == set(self.groups)), ())
        self.spec = dataclasses.replace(self.spec, teams=tuple((role,) for role in teams))


class Players:
    """A substrate with PettingZoo's parallel interface: players are named by role, `prey_3`.

    As in Melting Pot itself, each episode builds the substrate again, with its own seed. The seed does not decide much:
    two substrates built with the same seed often differ from the first frame on, even in one process.
    """

    metadata: Mapping[str, Any] = {"render_modes": ["rgb_array"]}

    def __init__(
        self,
        *,
        substrate: str,
        roles: Sequence[str],
        observations: Sequence[str],
        path: str | None,
        max_cycles: int,
        render_mode: str,
    ):
        self._library = import_meltingpot(path)
        self._config = limited(self._library, substrate, max_cycles)
        self._roles = tuple(roles) or tuple(self._config.default_player_roles)
        known = sorted(self._config.valid_roles)
        if wrong := [role for role in self._roles if role not in known]:
            raise UsageError(f"task.roles: {substrate} has no role {wrong[0]}; it has {', '.join(known)}")
        self.possible_agents = [f"{role}_{number}" for number, role in enumerate(self._roles)]
        self.agents: list[str] = []
        self._randomness = Randomness()
        self._world: Any = None
        self._unplayed: int | None = None  # the seed of the current substrate, if it was not stepped yet
        self._begin(seed=0)
        self._spec: Mapping[str, Any] = self._observation_spec()
        own = [name for name in self._spec if name in self._config.individual_observation_names]
        self._seen = tuple(observations) or tuple(own)
        if wrong := [name for name in self._seen if name not in self._spec]:
            choices = ", ".join(sorted(set(self._spec) - {WORLD}))
            raise UsageError(f"task.observations: {substrate} has no {wrong[0]}; it has {choices}")

    @property
    def unwrapped(self) -> Players:
        return self

    def observation_space(self, agent: str) -> Any:
        from gymnasium import spaces

        parts: dict[str, spaces.Space[Any]] = {}
        for name in self._seen:
            array = self._spec[name]
            image = array.dtype == np.uint8
            low, high, kept = (0, 255, np.uint8) if image else (-np.inf, np.inf, np.float32)
            parts[name] = spaces.Box(low, high, array.shape or (1,), kept)
        return spaces.Dict(parts)

    def action_space(self, agent: str) -> Any:
        from gymnasium import spaces

        return spaces.Discrete(int(self._config.action_spec.num_values))

    def reset(self, seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
        self._begin(seed)
        self.agents = self.possible_agents
        return self._observations(), {}

    def step(self, actions: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
        self._unplayed = None
        with self._randomness:
            self._timestep = self._world.step([int(actions[name]) for name in self.possible_agents])
        over = self._timestep.last()
        rewards = {name: float(self._timestep.reward[row]) for row, name in enumerate(self.possible_agents)}
        flags = dict.fromkeys(self.possible_agents, over)
        if over:
            self.agents = []
        return self._observations(), rewards, flags, dict.fromkeys(self.possible_agents, False), {}

    def state(self) -> np.ndarray:
        raise NotImplementedError

    def render(self) -> np.ndarray:
        picture: np.ndarray = self._timestep.observation[0][WORLD]
        return picture

    def close(self) -> None:
        self._world.close()

    def _begin(self, seed: int) -> None:
        """Builds the substrate. It draws its seed, and some of its maps, from Python's generator.

        Building can take seconds, so a substrate that was not stepped yet is used again.
        """
        if seed == self._unplayed:
            return
        if self._world is not None:
            self._world.close()
        self._randomness.seed(seed)
        with self._randomness:
            self._world = self._library.build_from_config(self._config, roles=self._roles)
            self._timestep = self._world.reset()
        self._unplayed = seed

    def _observation_spec(self) -> Mapping[str, Any]:
        own: Mapping[str, Any] = self._world.observation_spec()[0]
        return own

    def _observations(self) -> dict[str, Any]:
        return {
            agent: {name: np.atleast_1d(seen[name]) for name in self._seen}
            for agent, seen in zip(self.possible_agents, self._timestep.observation, strict=True)
        }


def limited(library: Any, substrate: str, max_cycles: int) -> Any:
    """A substrate's configuration with a time limit above covey's."""
    config = library.get_config(substrate)
    build = config.lab2d_settings_builder

    def with_limit(*, roles: Sequence[str], config: Any) -> Any:
        settings = build(roles=roles, config=config)
        settings["maxEpisodeLengthFrames"] = max_cycles
        return settings

    with config.unlocked():
        config.lab2d_settings_builder = with_limit
    return config


def import_meltingpot(path: str | None) -> Any:
    """`meltingpot.substrate`, from the user's folder or as it is installed."""
    what = "Melting Pot"
    if "jax" not in sys.modules:  # chex imports it, and a worker must not take an accelerator
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
    stand_in = ModuleType("tensorflow")
    stand_in.Tensor = object  # type: ignore[attr-defined]
    stand_in.executing_eagerly = lambda: True  # type: ignore[attr-defined]
    if any(importlib.util.find_spec(name) is None for name in NEEDED):
        raise MissingExtra(what, "meltingpot")
    with standing_in("tensorflow", stand_in):
        return import_from(
            "meltingpot", "meltingpot.substrate", path=path, variable="COVEY_MELTINGPOT", what=what, how=HOW
        )
