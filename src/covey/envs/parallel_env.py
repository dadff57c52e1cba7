"""One covey environment behind PettingZoo's parallel API. It imports PettingZoo, so only `to_pettingzoo` imports it.

Reset and step of a compiled task are one program each, including random keys, and their results come to the host in one
transfer. A simulator is stepped in this process (`envs/host/in_process.py`). Then arrays stacked by group become
dictionaries by agent name.
"""

from __future__ import annotations

import dataclasses
import reprlib
import secrets
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv

from covey.envs.agent_names import agent_names
from covey.envs.base import Actions, Env
from covey.envs.host.env import simulator_of
from covey.envs.host.in_process import InProcess
from covey.errors import CoveyError, UsageError, unknown_name
from covey.observations import dtypes, map_entries
from covey.ops.random import host_key
from covey.types import (
    ActionSpec,
    Array,
    Continuous,
    Discrete,
    GroupSpec,
    Key,
    MultiDiscrete,
    Observation,
    ObservationShape,
    PyTree,
    TimeStep,
    pytree,
)

RENDER_MODES = ("rgb_array",)
FRAMES_PER_SECOND = 10
ROUNDING = 1e-6  # how far an action may exceed a bound, as a share of its range, because squashing rounds


@pytree
class GroupShown:
    """What the host reads of a group in a time step; fields as in `GroupStep`."""

    observation: Observation
    reward: Array
    alive: Array
    terminated: Array
    action_mask: Array | None


@pytree
class Shown:
    """What the host reads of a time step."""

    groups: dict[str, GroupShown]
    last: Array
    state: Observation | None
    metrics: dict[str, Array]


def show(timestep: TimeStep) -> Shown:
    """`timestep` without what nobody reads, so that less is copied."""
    groups = {
        name: GroupShown(
            observation=group.observation,
            reward=group.reward,
            alive=group.alive,
            terminated=group.terminated,
            action_mask=group.action_mask,
        )
        for name, group in timestep.groups.items()
    }
    return Shown(groups=groups, last=timestep.last, state=timestep.state, metrics=timestep.metrics)


def show_following(timestep: TimeStep) -> Shown:
    """`show` of what the last action led to, where a new episode may already have begun."""
    groups = {
        name: dataclasses.replace(group, observation=group.next_observation, action_mask=group.next_action_mask)
        for name, group in timestep.groups.items()
    }
    return show(dataclasses.replace(timestep, groups=groups, state=timestep.next_state))


def reset_with(env: Env, key: Key) -> tuple[PyTree, Key, Shown]:
    """Resets: the environment's state, the key for what follows, and what is shown."""
    key, key_reset = jax.random.split(key)
    state, timestep = env.reset(key_reset)
    return strongly_typed(state), key, show(timestep)


def step_with(env: Env, state: PyTree, actions: Actions, key: Key) -> tuple[PyTree, Key, Shown]:
    """Steps; returns the same as `reset_with`."""
    key, key_step = jax.random.split(key)
    state, timestep = env.step(state, actions, key_step)
    return strongly_typed(state), key, show(timestep)


def strongly_typed(tree: PyTree) -> PyTree:
    """`tree` without JAX's weak types. A reset and a step may differ in them, and the step would then compile twice."""

    def typed(leaf: Any) -> Array:
        array = jnp.asarray(leaf)
        is_key = jnp.issubdtype(array.dtype, jax.dtypes.prng_key)
        return array if is_key else array.astype(array.dtype)

    return jax.tree.map(typed, tree)


class CoveyParallelEnv(ParallelEnv[str, Any, Any]):  # type: ignore[misc]
    """A covey environment with PettingZoo's parallel interface; made by `covey.to_pettingzoo`.

    An agent leaves when it terminates. When the episode ends, for example at the time limit, all others are truncated
    and leave too. The step in which an agent leaves still gives its last observation and reward. `infos` hold each
    agent's `action_mask`, if the task has masks, and this step's values of the task's metrics.

    `reset(seed=…)` starts a sequence of episodes that depends on the seed alone; without a seed, `reset` continues it.
    """

    def __init__(self, env: Env, *, name: str, render_mode: str | None = None):
        if render_mode is not None and render_mode not in RENDER_MODES:
            raise UsageError(f"render_mode='{render_mode}': it must be None or one of {', '.join(RENDER_MODES)}")
        self.env = env
        self.name = name
        self.render_mode = render_mode
        self.metadata = {"name": name, "render_modes": list(RENDER_MODES), "render_fps": FRAMES_PER_SECOND}
        spec = env.spec
        self._groups = dict(spec.groups)
        self._names = agent_names({group: part.num_agents for group, part in spec.groups.items()})
        self.possible_agents = [agent for names in self._names.values() for agent in names]
        self.agents: list[str] = []
        by_agent = {agent: spec.groups[group] for group, names in self._names.items() for agent in names}
        self.observation_spaces = {
            agent: observation_space(part.observation_shape, dtypes(part)) for agent, part in by_agent.items()
        }
        self.action_spaces = {agent: action_space(part.action) for agent, part in by_agent.items()}
        if spec.state_shape is not None:  # PettingZoo's environments without a global state lack this attribute
            self.state_space = observation_space(spec.state_shape, map_entries(lambda _: np.float32, spec.state_shape))
        self._key = host_key(secrets.randbits(32))
        self._state: PyTree = None
        self._shown: Shown | None = None
        self._time_limit, self._elapsed = spec.time_limit, 0
        source = simulator_of(env)
        self._simulator = None if source is None else InProcess(env, source)
        self._seed: int | None = secrets.randbits(31)  # of a simulator, until it has begun
        self._reset = jax.jit(lambda key: reset_with(env, key))
        self._step = jax.jit(lambda state, actions, key: step_with(env, state, actions, key))

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        agents = ", ".join(f"{len(names)} {group}" for group, names in self._names.items())
        return f"CoveyParallelEnv({self.name}: {agents})"

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return self._of_agent(self.observation_spaces, agent)

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return self._of_agent(self.action_spaces, agent)

    def _of_agent(self, found: Mapping[str, spaces.Space[Any]], agent: str) -> spaces.Space[Any]:
        if agent not in found:
            raise unknown_name("agent", str(agent), found, see=f"{self.name} has {len(found)}")
        return found[agent]

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        """Starts an episode; returns observations and infos by agent. `options` are ignored."""
        if seed is not None:
            self._seed = check_seed(seed)
            self._key = host_key(self._seed)
        if self._simulator is None:
            self._state, self._key, shown = self._reset(self._key)
        else:
            shown = show_following(self._simulator.reset(self._seed))
            self._seed = None
        shown = self._shown = jax.device_get(shown)
        self._elapsed = 0
        self.agents = [agent for agent, alive in self._each_agent(shown, "alive") if alive]
        return self._observations(shown, self.agents), self._infos(shown, self.agents)

    def step(
        self, actions: Mapping[str, Any]
    ) -> tuple[dict[str, Any], dict[str, float], dict[str, bool], dict[str, bool], dict[str, dict[str, Any]]]:
        """Takes one action for each of `agents`; returns observations, rewards, terminations, truncations and infos."""
        stacked = self._stacked(actions)
        if self._simulator is None:
            self._state, self._key, shown = self._step(self._state, stacked, self._key)
        else:
            shown = show_following(self._simulator.step(stacked))
        shown = self._shown = jax.device_get(shown)
        self._elapsed += 1
        # An environment without wrappers may not keep its time limit itself. `loops.evaluate` allows for that too.
        acted, last = self.agents, bool(shown.last) or self._elapsed >= self._time_limit
        reward, alive = dict(self._each_agent(shown, "reward")), dict(self._each_agent(shown, "alive"))
        said = dict(self._each_agent(shown, "terminated"))
        # As in `wrappers.live_on`: an agent that is no longer alive has terminated, unless the episode ends.
        terminations = {agent: bool(said[agent] or not (alive[agent] or last)) for agent in acted}
        truncations = {agent: last and not terminated for agent, terminated in terminations.items()}
        self.agents = [agent for agent in acted if not (terminations[agent] or truncations[agent])]
        rewards = {agent: float(reward[agent]) for agent in acted}
        return self._observations(shown, acted), rewards, terminations, truncations, self._infos(shown, acted)

    def state(self) -> Any:
        """The global state, an array or a dictionary of arrays."""
        shown = self._last_shown()
        if shown.state is None:
            raise NotImplementedError(f"{self.name} has no global state")
        return jax.tree.map(np.array, shown.state)

    def render(self) -> np.ndarray:
        """A picture of the environment now, `[H, W, 3]`, uint8."""
        if self.render_mode is None:
            raise UsageError("render needs an environment made with render_mode='rgb_array'")
        self._last_shown()
        if self._simulator is not None:
            return self._simulator.render()
        [picture] = self.env.render([self._state])
        return picture

    def close(self) -> None:
        """Closes a simulator; a compiled environment has nothing to close."""
        if self._simulator is not None:
            self._simulator.close()

    def _last_shown(self) -> Shown:
        if self._shown is None:
            raise CoveyError(f"{self.name}: call reset first")
        return self._shown

    def _each_agent(self, shown: Shown, field: str) -> list[tuple[str, Any]]:
        """All agents' values of a field `[A]`, by name, in the order of the spec: JAX sorts the names of groups."""
        values = ((names, getattr(shown.groups[group], field)) for group, names in self._names.items())
        return [pair for names, array in values for pair in zip(names, array.tolist(), strict=True)]

    def _observations(self, shown: Shown, agents: list[str]) -> dict[str, Any]:
        """Observations by agent, as arrays that the caller may keep and write to."""
        found = {}
        for group, names in self._names.items():
            observation = jax.tree.map(np.array, shown.groups[group].observation)
            for index, agent in enumerate(names):
                found[agent] = _row(observation, index)
        return {agent: found[agent] for agent in agents}

    def _infos(self, shown: Shown, agents: list[str]) -> dict[str, dict[str, Any]]:
        infos = {}
        metrics = {name: float(value) for name, value in shown.metrics.items()}
        for group, names in self._names.items():
            mask, action = shown.groups[group].action_mask, self._groups[group].action
            for index, agent in enumerate(names):
                infos[agent] = dict(metrics)
                if mask is not None:
                    infos[agent]["action_mask"] = split_mask(action, np.asarray(mask[index]))
        return {agent: infos[agent] for agent in agents}

    def _stacked(self, actions: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Actions `[A, …]` by group, checked. For agents that have left, one that makes no difference."""
        shown = self._last_shown()
        if not self.agents:
            raise CoveyError(f"{self.name}: the episode is over; call reset first")
        if not isinstance(actions, Mapping):
            raise UsageError(f"actions must be a dictionary by agent name, not {_short(actions)}")
        for agent in actions:
            if agent in self.agents:
                continue
            if agent in self.action_spaces:
                raise UsageError(f"action for {agent}, which has left; still there: {', '.join(self.agents)}")
            raise unknown_name("agent", str(agent), self.agents, see="`agents` lists who acts")
        missing = [agent for agent in self.agents if agent not in actions]
        if missing:
            raise UsageError(f"no action for {', '.join(missing)}; each of `agents` needs one")
        return {
            group: np.stack(
                [
                    check_action(agent, part.action, actions[agent])
                    if agent in actions
                    else idle_action(part, shown.groups[group].action_mask, index)
                    for index, agent in enumerate(self._names[group])
                ]
            )
            for group, part in self._groups.items()
        }


# -------------------------------------------------------------------------------------------------------------- spaces


def observation_space(shape: ObservationShape, dtype: Any) -> spaces.Space[Any]:
    """A space of all values of a type, because specs have no bounds of observations."""
    if isinstance(shape, Mapping):
        return spaces.Dict({name: observation_space(shape[name], dtype[name]) for name in sorted(shape)})
    dtype = np.dtype(dtype)
    low, high = -np.inf, np.inf
    if dtype.kind in "iu":
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    elif dtype.kind == "b":
        low, high = 0, 1
    return spaces.Box(low, high, tuple(shape), dtype)


def action_space(action: ActionSpec) -> spaces.Space[Any]:
    match action:
        case Discrete(num_actions=number):
            return spaces.Discrete(number)
        case MultiDiscrete(num_actions=numbers):
            return spaces.MultiDiscrete(list(numbers))
        case Continuous(low=low, high=high):
            return spaces.Box(np.array(low, np.float32), np.array(high, np.float32), dtype=np.float32)


def split_mask(action: ActionSpec, mask: np.ndarray) -> Any:
    """An agent's mask as `sample` of its action space takes it: int8, and for several choices a tuple with one each."""
    mask = mask.astype(np.int8)
    if isinstance(action, MultiDiscrete):
        return tuple(np.split(mask, np.cumsum(action.num_actions)[:-1]))
    return mask


# ------------------------------------------------------------------------------------------------------------- actions


def check_action(agent: str, action: ActionSpec, given: Any) -> np.ndarray:
    """`given` as an array of the type that environments take; raises UsageError if it is not in the agent's space."""
    try:
        array = np.asarray(given)
    except ValueError:  # lists of different lengths
        array = np.array(None)
    if isinstance(action, Continuous):
        low, high = np.asarray(action.low, np.float32), np.asarray(action.high, np.float32)
        if array.dtype.kind in "iuf" and array.shape == low.shape:
            with np.errstate(over="ignore"):
                array = array.astype(np.float32)
                inside: np.ndarray = np.clip(array, low, high)
                if (np.abs(inside - array) <= ROUNDING * (high - low)).all():
                    return inside
    else:
        numbers = np.asarray(action.num_actions)
        if array.dtype.kind in "iu" and array.shape == numbers.shape and ((array >= 0) & (array < numbers)).all():
            return array.astype(np.int32)
    raise UsageError(f"action of {agent} is {_short(given)}, which is not in its space {action_space(action)}")


def idle_action(spec: GroupSpec, mask: Array | None, index: int) -> np.ndarray:
    """An action for an agent that has left: the first legal choice, or the continuous action nearest to zero."""
    match spec.action:
        case Continuous(low=low, high=high):
            return np.clip(np.zeros(len(low), np.float32), low, high).astype(np.float32)
        case Discrete():
            return np.int32(0 if mask is None else np.argmax(mask[index]))  # type: ignore[return-value]
        case MultiDiscrete(num_actions=numbers):
            if mask is None:
                return np.zeros(len(numbers), np.int32)
            return np.array([choice.argmax() for choice in split_mask(spec.action, np.asarray(mask[index]))], np.int32)


def check_seed(seed: Any) -> int:
    if not isinstance(seed, (int, np.integer)) or seed < 0:
        raise UsageError(f"seed must be a whole number, at least 0, not {_short(seed)}")
    return int(seed)


def _row(observation: Any, index: int) -> Any:
    """Agent `index`'s part of an observation `[A, …]`."""
    if isinstance(observation, Mapping):
        return {name: entry[index] for name, entry in observation.items()}
    return observation[index]


def _short(value: Any) -> str:
    return " ".join(reprlib.repr(value).split())
