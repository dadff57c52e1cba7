"""Gymnasium environments of several agents: spaces, observations and actions are tuples with one entry per agent.

Many multi-agent environments were written for Gym in this way. They differ in the rest: rewards are a list or one
number for all, `terminated` is one flag or one for each agent. `TupleEnvironment` gives them PettingZoo's parallel
interface, so that `ParallelSimulator` can step them.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import inspect
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from covey.envs.host.pettingzoo.parallel import ParallelSimulator
from covey.envs.host.pettingzoo.recipe import PettingZooConfig, Recipe
from covey.envs.host.pettingzoo.spaces import MASK
from covey.envs.host.simulator import SimulatorError
from covey.errors import MissingExtra, UsageError, nearest
from covey.fields import field

ByAgent = dict[str, Any]


class TupleEnvironment:
    """A parallel environment around one that answers in tuples. Its agents are `agent_0`, `agent_1`, …

    Masks are from `get_avail_actions()` and the global state from `get_state()`, where the environment has them.
    """

    def __init__(self, environment: Any):
        self.environment = environment
        observed, acted = parts_of(environment.observation_space), parts_of(environment.action_space)
        self.possible_agents = [f"agent_{number}" for number in range(len(acted))]
        self.agents: list[str] = []
        self._observed = dict(zip(self.possible_agents, observed, strict=True))
        self._acted = dict(zip(self.possible_agents, acted, strict=True))
        self._masked = hasattr(environment, "get_avail_actions")

    @property
    def unwrapped(self) -> Any:
        return self.environment

    @property
    def metadata(self) -> Any:
        return self.environment.metadata

    def observation_space(self, agent: str) -> Any:
        return self._observed[agent]

    def action_space(self, agent: str) -> Any:
        return self._acted[agent]

    def reset(self, seed: int) -> tuple[ByAgent, ByAgent]:
        answer = self.environment.reset(seed=seed)
        self.agents = self.possible_agents
        return self._by_agent(answer[0], "observations"), self._infos()

    def step(self, actions: Mapping[str, Any]) -> tuple[ByAgent, ByAgent, ByAgent, ByAgent, ByAgent]:
        """A step with everybody's action. Agents that have left take 0, whatever that means in the environment."""
        chosen = [actions[name] if name in actions else self._nothing(name) for name in self.possible_agents]
        observations, rewards, terminated, truncated, _ = self.environment.step(chosen)
        terminations, truncations = self._by_agent(terminated, "terminated"), self._by_agent(truncated, "truncated")
        acted = self.agents
        self.agents = [name for name in acted if not terminations[name] and not truncations[name]]
        return (
            self._by_agent(observations, "observations"),
            {name: reward for name, reward in self._by_agent(rewards, "rewards").items() if name in acted},
            terminations,
            truncations,
            self._infos(),
        )

    def state(self) -> np.ndarray:
        if not hasattr(self.environment, "get_state"):
            raise NotImplementedError
        return np.asarray(self.environment.get_state())

    def render(self) -> Any:
        return self.environment.render()

    def close(self) -> None:
        self.environment.close()

    def _by_agent(self, values: Any, what: str) -> ByAgent:
        """One value for each agent, from a tuple of values or from one value for all."""
        if not isinstance(values, (tuple, list)) and np.ndim(values) == 0:
            return dict.fromkeys(self.possible_agents, values)
        if len(values) != len(self.possible_agents):
            raise SimulatorError(f"{what} are {len(values)}, agents {len(self.possible_agents)}")
        return dict(zip(self.possible_agents, values, strict=True))

    def _infos(self) -> ByAgent:
        if not self._masked:
            return {}
        masks = self._by_agent(self.environment.get_avail_actions(), "masks")
        return {name: {MASK: mask} for name, mask in masks.items()}

    def _nothing(self, agent: str) -> Any:
        space = self._acted[agent]
        return np.zeros(space.shape, space.dtype) if space.shape else 0


def parts_of(space: Any) -> Sequence[Any]:
    """The space of each agent, from a Tuple space."""
    parts = getattr(space, "spaces", space)
    if not isinstance(parts, (tuple, list)):
        raise UsageError(
            f"{type(space).__name__} is the space of a single agent; covey takes environments with Tuple spaces, one "
            "entry per agent"
        )
    return parts


def require(package: str, what: str, extra: str) -> None:
    """Raises MissingExtra if a package is not installed."""
    if importlib.util.find_spec(package) is None:
        raise MissingExtra(what, extra)


# ------------------------------------------------------------------------------------------- any of them, by its name


def module_of(id: Any) -> str:
    """The module that Gymnasium would import for a name, whoever wrote that name; empty if it names none."""
    return str(id).rpartition(":")[0]


def texts_in(value: Any) -> Any:
    """All strings in nested lists and mappings."""
    if isinstance(value, Mapping):
        value = list(value.values())
    return [texts_in(item) for item in value] if isinstance(value, list) else value if isinstance(value, str) else None


@dataclasses.dataclass(frozen=True, kw_only=True)
class GymnasiumConfig(PettingZooConfig):
    """Which environment, and how covey makes it."""

    time_limit: int = 500
    # its name in Gymnasium's registry, after the module that registers it and a colon: `rware:rware-tiny-2ag-v2`
    id: str = field("", code=module_of)
    # arguments for it: `task.kwargs={sight: 3}`. Strings among them may make the environment import something
    kwargs: dict[str, Any] = field(default_factory=dict, code=texts_in)
    # the environment's own argument for its time limit, which it may report as an ending; covey sets it above
    # task.time_limit
    limit_argument: str | None = None

    other_names: ClassVar[Any] = {}

    def recipe(self) -> Recipe:
        if not self.id:
            raise UsageError("task.id says which environment, for example task.id=rware:rware-tiny-2ag-v2")
        arguments = {"id": self.id, "kwargs": self.kwargs, "limit_argument": self.limit_argument}
        return Recipe(module="covey.envs.host.tuples:make_registered", arguments=arguments)


def make_gymnasium(config: GymnasiumConfig) -> ParallelSimulator:
    """A simulator of an environment in Gymnasium's registry."""
    return ParallelSimulator(config)


def make_registered(
    *, id: str, kwargs: Mapping[str, Any], limit_argument: str | None, max_cycles: int, render_mode: str
) -> TupleEnvironment:
    """The environment itself, without Gymnasium's wrappers: these would check it as an environment of one agent."""
    require("gymnasium", "an environment of Gymnasium", "gymnasium")
    from gymnasium.envs import registration

    module, name = module_of(id), id.rpartition(":")[2]
    if module:
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise UsageError(f"task.id={id}: {error}") from None
    if name not in registration.registry:
        near = ", ".join(nearest(name, registration.registry))
        raise UsageError(
            f"Gymnasium has no environment '{name}'; nearest: {near}. If a module registers it, name that first: "
            "task.id=MODULE:NAME"
        )
    entry = registration.registry[name]
    if entry.entry_point is None:
        raise UsageError(f"'{name}' can only be made as a batch, which covey does not step")
    make = entry.entry_point if callable(entry.entry_point) else registration.load_env_creator(entry.entry_point)
    arguments = {**entry.kwargs, **kwargs}
    if limit_argument is not None:
        arguments[limit_argument] = max_cycles
    if "render_mode" in inspect.signature(make).parameters:
        arguments.setdefault("render_mode", render_mode)
    return TupleEnvironment(make(**arguments))
