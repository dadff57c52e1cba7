"""How an environment with PettingZoo's interface is made and described."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import importlib
import importlib.util
import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from covey.envs.host.simulator import SimulatorConfig, SimulatorError, describe_error
from covey.errors import CoveyError, MissingExtra, UsageError, nearest
from covey.registry import OtherNames
from covey.specs import MetricSpec

# Arguments that covey offers to every environment. One that does not take an argument is made without it.
LIMIT, PICTURES = "max_cycles", {"render_mode": "rgb_array"}
EXTRAS = {"magent2": "magent2", "mpe2": "pettingzoo", "pettingzoo": "pettingzoo"}  # by package
# PettingZoo's wrappers that only check what covey checks itself or never does.
CHECKING = ("AssertOutOfBoundsWrapper", "ClipOutOfBoundsWrapper", "OrderEnforcingWrapper", "TerminateIllegalWrapper")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """How an environment is made, and what its spec says.

    module           a module, a registered name (`sisl/multiwalker-v9`), or `module:attribute`
    arguments        for it; covey adds `max_cycles` and `render_mode`
    turns            one agent acts at a time
    groups           agents or prefixes of their names, by group; empty: by prefix and spaces
    shared_reward    groups whose agents all receive the same reward
    teams, shared_rewards, metrics, returns
                     as in an EnvSpec
    sequence_length  rows to which sequences of observations are padded
    image_stride     one pixel in this many of an image is kept, in both directions
    state            whether to read the environment's global state
    """

    module: str
    arguments: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    turns: bool = False
    groups: Mapping[str, str | Sequence[str]] = dataclasses.field(default_factory=dict)
    shared_reward: Sequence[str] = ()
    teams: Sequence[Sequence[str]] = ()
    shared_rewards: Sequence[Sequence[str]] = ()
    metrics: Mapping[str, MetricSpec] = dataclasses.field(default_factory=dict)
    returns: str = "the sum of the agent's own rewards over the episode"
    sequence_length: int | None = None
    image_stride: int = 1
    state: bool = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class PettingZooConfig(SimulatorConfig):
    """Fields of every task with PettingZoo's interface."""

    other_names: ClassVar[OtherNames] = {LIMIT: "time_limit", "render_mode": None}

    def recipe(self) -> Recipe:
        """How the environment with these fields is made."""
        raise NotImplementedError

    def arguments(self, *, without: Sequence[str] = (), **renamed: str) -> dict[str, Any]:
        """The task's own fields as the environment's arguments. `renamed` are those with another name there."""
        shared = {field.name for field in dataclasses.fields(PettingZooConfig)} | set(without)
        own = [field.name for field in dataclasses.fields(self) if field.name not in shared]
        values = {name: getattr(self, name) for name in own}
        return {
            renamed.get(name, name): value.name if isinstance(value, enum.Enum) else value
            for name, value in values.items()
        }


# ---------------------------------------------------------------------------------------------------------- making it


def make_environment(recipe: Recipe, time_limit: int) -> Any:
    """The environment, parallel or turn-based by `recipe.turns`, with pictures and no effective time limit of its own.

    Many environments count steps themselves, and some report their limit as a termination. Their limit is set one step
    above covey's, so it is never reached.
    """
    prepare_headless()
    if LIMIT in recipe.arguments:
        raise UsageError(f"{LIMIT} cannot be set, because covey keeps the time limit: set task.time_limit instead")
    make = find_maker(recipe.module, recipe.turns)
    with quiet():
        try:
            environment = call_with_known(make, recipe.arguments, {LIMIT: time_limit + 1, **PICTURES})
        except Exception as error:
            if isinstance(error, ImportError) or isinstance(error.__cause__, ImportError):
                raise missing(recipe.module, error) from error
            raise
    return check_environment(environment, recipe)


def find_maker(module: str, turns: bool) -> Callable[..., Any]:
    """The function that makes an environment: from PettingZoo's registry, of a module, or the attribute named."""
    if ":" not in module and "/" in module:
        return find_registered(module, turns)
    name, _, attribute = module.partition(":")
    with quiet():
        try:
            found = importlib.import_module(name)
        except ImportError as error:
            raise missing(name, error) from error
    wanted = [attribute] if attribute else ["env", "parallel_env"] if turns else ["parallel_env", "env"]
    for attribute in wanted:
        if callable(make := getattr(found, attribute, None)):
            return make  # type: ignore[no-any-return]
    raise UsageError(f"module '{name}' has no {' or '.join(wanted)} that makes an environment")


def find_registered(name: str, turns: bool) -> Callable[..., Any]:
    """The function that makes an environment of PettingZoo's registry, such as `sisl/multiwalker-v9`."""
    with quiet():
        try:
            import pettingzoo
        except ImportError as error:
            raise missing(name, error) from error
    kinds = ["aec", "parallel"] if turns else ["parallel", "aec"]
    registries = {"aec": pettingzoo.aec_registry, "parallel": pettingzoo.parallel_registry}
    for kind in kinds:
        if name in registries[kind]:
            return lambda **arguments: pettingzoo.make(kind, name, **arguments)
    near = ", ".join(nearest(name, {*registries["aec"], *registries["parallel"]}))
    raise UsageError(f"PettingZoo {pettingzoo.__version__} has no '{name}'; nearest: {near}")


def call_with_known(make: Callable[..., Any], arguments: Mapping[str, Any], offered: Mapping[str, Any]) -> Any:
    """`make(**arguments)`, with those of `offered` that it takes: most signatures are `**kwargs`, so it is tried."""
    offered = {name: value for name, value in offered.items() if name not in arguments}
    while True:
        try:
            return make(**{**offered, **arguments})
        except TypeError as error:
            unknown = re.search(r"unexpected keyword argument '(\w+)'", str(error))
            if unknown is None or unknown[1] not in offered:
                raise
            offered = {name: value for name, value in offered.items() if name != unknown[1]}


def check_environment(environment: Any, recipe: Recipe) -> Any:
    """The environment itself; raises UsageError if it lacks a method that covey calls."""
    needs = ["possible_agents", "reset", "step", *(["observe", "last"] if recipe.turns else [])]
    lacking = [name for name in needs if not hasattr(environment, name)]
    if lacking:
        kind = "turn-based" if recipe.turns else "parallel"
        raise UsageError(
            f"'{recipe.module}' does not make a {kind} PettingZoo environment: "
            f"{type(environment).__name__} has no {', '.join(lacking)}"
        )
    return environment


def without_checks(game: Any) -> Any:
    """A turn-based environment without the wrappers that only check what covey checks itself."""
    while type(game).__name__ in CHECKING and type(game).__module__.startswith("pettingzoo."):
        game = game.env
    return game


def missing(module: str, error: BaseException) -> CoveyError:
    """The error to raise where a module, or one that it imports, is missing."""
    package = "pettingzoo" if "/" in module else module.partition(".")[0]
    while isinstance(error.__cause__, ImportError):
        error = error.__cause__
    named = getattr(error, "name", None) or ""
    if package in EXTRAS and (importlib.util.find_spec(package) is None or not f"{named}.".startswith(f"{package}.")):
        return MissingExtra(f"'{module}'", EXTRAS[package])
    if named and f"{module}.".startswith(f"{named}."):
        folder, _, last = module.rpartition(".")
        return UsageError(f"there is no module '{module}'{_others_in(folder, last)}")
    return SimulatorError(f"'{module}' cannot be imported: {describe_error(error)}")


def _others_in(folder: str, name: str) -> str:
    """The modules of a package with names close to one that it does not have, for a message."""
    import pkgutil

    with contextlib.suppress(ImportError, AttributeError):
        found = [each.name for each in pkgutil.iter_modules(importlib.import_module(folder).__path__)]
        return f"; nearest in {folder}: {', '.join(nearest(name, found))}" if found else ""
    return ""


def prepare_headless() -> None:
    """No window, no sound, no banner."""
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    os.environ.setdefault("SDL_AUDIODRIVER", "dummy")
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "hide")


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Suppresses the warnings that environments give while they are imported and made."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
