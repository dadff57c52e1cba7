"""Gigastep (Lechner et al. 2023): two teams fly above a plane and chase each other. It is JAX, so it compiles.

No registry has the package, only its repository. What covey relies on is its interface:

    make_scenario(name, …) → environment with `n_agents`, `teams` [A] of 0 and 1, `action_space`, `observation_space`
    reset(key) → observations [A, …], state
    step(state, actions, key) → observations, state, rewards [A], dones [A], episode_done []

Its documentation has observations and state the other way round, so either order is taken: the array is what is seen.
An agent that is done was caught, or crashed; it earns nothing any more. The package's time limit makes an episode done
without saying so. It is set above covey's.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from covey.envs.base import Actions, SuiteConfig, first_step, next_step
from covey.errors import MissingPackage, UsageError
from covey.fields import field, whole
from covey.types import ActionSpec, Array, Continuous, Discrete, EnvSpec, GroupSpec, Key, MetricSpec, PyTree, TimeStep

HOW = (
    "clone https://github.com/mlech26l/gigastep, and install type_enforced, pygame-ce and opencv-python-headless for it"
)
VARIABLE = "COVEY_GIGASTEP"


@dataclasses.dataclass(frozen=True, kw_only=True)
class GigastepConfig(SuiteConfig):
    """Fields of every scenario."""

    time_limit: int = 500
    # the battle, without what agents see and do: identical, special, waypoint or hide_and_seek, and how many per team
    scenario: str = "identical_5_vs_5"
    partial: bool = False  # agents see what is near only, with noise
    pixels: bool = False  # agents see a picture [84, 84, 3] instead of a vector
    obstacles: bool = False  # there are boxes to crash into
    continuous_actions: bool = True  # turning, diving and throttle, from -1 to 1; false: one of 27 combinations
    # folder with the package gigastep; null: COVEY_GIGASTEP, or an installed package
    path: str | None = field(None, code=whole)

    @property
    def name(self) -> str:
        """The package's name of it."""
        parts = (
            self.scenario,
            "pobs" if self.partial else "fobs",
            "rgb" if self.pixels else "vec",
            "maps" if self.obstacles else "void",
            "cont" if self.continuous_actions else "disc",
        )
        return "_".join(parts)


def make_gigastep(config: GigastepConfig) -> Gigastep:
    make_scenario = import_gigastep(config)
    try:
        suite = make_scenario(config.name, max_episode_length=config.time_limit + 1)
    except ValueError as error:
        raise UsageError(f"task.scenario: {error}") from error
    return Gigastep(suite)


def import_gigastep(config: GigastepConfig) -> Callable[..., Any]:
    """The package's `make_scenario`."""
    named = config.path or os.environ.get(VARIABLE)
    if named:
        folder = Path(named).expanduser()
        if not (folder / "gigastep" / "__init__.py").is_file():
            place = "task.path" if config.path else VARIABLE
            raise UsageError(f"{place}={named}: there is no package gigastep in it")
        if str(folder) not in sys.path:
            sys.path.insert(0, str(folder))
    try:
        import gigastep
    except ImportError as error:
        missing = getattr(error, "name", None)
        what = "gigastep, which is not installed" if missing == "gigastep" else f"{missing}, which gigastep imports"
        raise MissingPackage(
            f"task 'gigastep/{config.scenario}' needs {what}: {HOW}; "
            f"a folder with it is named by task.path or {VARIABLE}"
        ) from error
    make: Any = getattr(gigastep, "make_scenario", None)
    if make is None:  # the registry's package of this name is an empty placeholder
        raise MissingPackage(f"the installed package gigastep has no scenarios: {HOW}")
    return make  # type: ignore[no-any-return]


class Gigastep:
    """Two groups that oppose each other, `team_0` and `team_1`."""

    def __init__(self, suite: Any):
        self.suite = suite
        teams = np.asarray(suite.teams)
        self.rows: Mapping[str, np.ndarray] = {f"team_{team}": np.flatnonzero(teams == team) for team in (0, 1)}
        self.order = np.argsort(np.concatenate(list(self.rows.values())))  # from groups back to the suite's agents

    @property
    def spec(self) -> EnvSpec:
        observations = jax.eval_shape(lambda key: in_order(self.suite.reset(key))[0], jax.random.key(0))
        groups = {
            name: GroupSpec(
                num_agents=len(rows),
                observation_shape=observations.shape[1:],
                observation_dtype=np.dtype(observations.dtype),
                action=action_spec(self.suite.action_space),
            )
            for name, rows in self.rows.items()
        }
        return EnvSpec(
            groups=groups,
            time_limit=2**30,
            metrics={"win_rate": MetricSpec(unit="share of episodes")},
            returns="the agent's own: for chasing, catching and the victory, less for being caught and for crashing",
            teams=tuple((name,) for name in groups),
        )

    def reset(self, key: Key) -> tuple[PyTree, TimeStep]:
        observations, state = in_order(self.suite.reset(key))
        return state, first_step(self.by_group(observations), metrics={"win_rate": jnp.zeros(())})

    def step(self, state: PyTree, action: Actions, key: Key) -> tuple[PyTree, TimeStep]:
        actions = jnp.concatenate([action[name] for name in self.rows])[self.order]
        *answer, rewards, dones, over = self.suite.step(state, actions, key)
        observations, after = in_order(answer)
        left = self.by_group(~dones)
        won = over & left["team_0"].any() & ~left["team_1"].any()
        return after, next_step(
            self.by_group(observations),
            self.by_group(rewards),
            terminated={name: ~alive | over for name, alive in left.items()},
            alive={name: alive & ~over for name, alive in left.items()},
            last=over,
            metrics={"win_rate": won.astype(jnp.float32)},
        )

    def by_group(self, values: Array) -> dict[str, Array]:
        return {name: values[rows] for name, rows in self.rows.items()}

    def render(self, states: Sequence[PyTree]) -> list[np.ndarray]:
        raise UsageError("covey draws no pictures of gigastep; its own viewer needs a window")


def in_order(answer: Sequence[Any]) -> tuple[Array, PyTree]:
    """Observations and state, of the two in either order."""
    first, second = answer
    return (first, second) if isinstance(first, jax.Array) else (second, first)


def action_spec(space: Any) -> ActionSpec:
    if hasattr(space, "n"):
        return Discrete(int(space.n))
    low, high = (tuple(map(float, np.asarray(bound).reshape(-1))) for bound in (space.low, space.high))
    return Continuous(low, high)
