"""Environments in which all agents act at once: PettingZoo's `ParallelEnv`, and AEC environments that are parallel."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from covey.envs.host.layout import num_choices
from covey.envs.host.pettingzoo import spaces
from covey.envs.host.pettingzoo.recipe import (
    PICTURES,
    PettingZooConfig,
    Recipe,
    make_environment,
    quiet,
    without_checks,
)
from covey.envs.host.pettingzoo.spaces import MASK, Seen
from covey.envs.host.simulator import SimulatorError, SimulatorStep, describe_error
from covey.errors import UsageError
from covey.specs import ActionSpec, EnvSpec, GroupSpec, ObservationShape

EVERYONE = "agents"  # the group's name in tasks with one group


@dataclasses.dataclass(frozen=True, kw_only=True)
class Member:
    """An agent: its group, its row there, and functions that write its observation and its mask into that row."""

    name: str
    group: str
    row: int
    write: spaces.Write
    write_mask: spaces.Write


class Group:
    """Agents with equal spaces, and the arrays that their part of an answer is written into."""

    def __init__(self, agents: Sequence[str], seen: Seen, action: ActionSpec, action_space: Any):
        size = len(agents)
        self.agents, self.seen, self.action = tuple(agents), seen, action
        self.choose = spaces.make_choose(action_space, action)
        self.arrays = seen.arrays(size)
        self.rewards = np.zeros(size, np.float32)
        self.alive = np.ones(size, bool)
        self.terminated = np.zeros(size, bool)
        self.mask: np.ndarray | None = None

    def add_mask(self) -> None:
        self.mask = np.ones((len(self.agents), num_choices(self.action)), bool)


class ParallelSimulator:
    """One copy of an environment in which all agents act at once.

    What agents see is written into arrays by group, and each answer is a copy of these. So after an agent has left, its
    row still holds what it saw last.
    """

    def __init__(self, config: PettingZooConfig):
        self.config, self.recipe = config, config.recipe()
        self.environment = as_parallel(make_environment(self.recipe, config.time_limit), self.recipe)
        with quiet():
            self.groups = make_groups(self.environment, self.recipe)
            first, infos = ask_reset(self.environment, seed=0)  # masks and the state are known only after a reset
        add_masks(self.groups, infos)
        self._members = make_members(self.groups)
        self._rewards = {name: (self.groups[each.group].rewards, each.row) for name, each in self._members.items()}
        self._masked = any(group.mask is not None for group in self.groups.values())
        self._num_alive = 0
        self._acting: list[Member] = []
        self._begin()
        self._read(first, infos)
        self._state: Any = None
        self._state_shape: ObservationShape | None = None
        if self.recipe.state:
            self._state = first_state(self.global_state)
            self._state_shape = None if self._state is None else self._state.shape
        self.spec = make_spec(self.groups, self.recipe, config.time_limit, self._state_shape)

    @property
    def agent_names(self) -> dict[str, tuple[str, ...]]:
        """By group, what the environment calls its agents."""
        return {name: tuple(group.agents) for name, group in self.groups.items()}

    def reset(self, seed: int) -> SimulatorStep:
        observations, infos = ask_reset(self.environment, seed=seed)
        self._begin()
        self._read(observations, infos)
        return self._answer(rewards=False, changed=True)

    def step(self, actions: Mapping[str, np.ndarray]) -> SimulatorStep:
        chosen = {name: list(group.choose(actions[name])) for name, group in self.groups.items()}
        observations, rewards, terminations, truncations, infos = self.environment.step(
            {member.name: chosen[member.group][member.row] for member in self._acting}
        )
        for group in self.groups.values():
            group.rewards.fill(0)
        for name, reward in rewards.items():
            into, row = self._rewards[name] if name in self._rewards else self._unannounced(name)
            into[row] = one_number(reward, name) if hasattr(reward, "__len__") else reward
        self._read(observations, infos)
        agents = self.environment.agents
        if len(agents) == self._num_alive and not any(terminations.values()) and not any(truncations.values()):
            return self._answer(rewards=True)
        truncated = self._settle(agents, terminations, truncations)
        return self._answer(rewards=True, changed=True, truncated=truncated)

    def render(self) -> np.ndarray:
        return as_picture(self.environment)

    def close(self) -> None:
        self.environment.close()

    # ------------------------------------------------------------------------------------- what a task may override

    def global_state(self) -> Any:
        """The environment's own global state; None if it has none."""
        return environment_state(self.environment)

    def measure(self) -> dict[str, float]:
        """The metrics of the recipe."""
        return {}

    def shape(self) -> dict[str, np.ndarray] | None:
        """Rewards for learning only, by group; also called at resets."""
        return None

    # --------------------------------------------------------------------------------------------------- who is alive

    def _begin(self) -> None:
        """Starts an episode, with the agents that the environment starts with."""
        agents = set(self.environment.agents)
        for name in agents - set(self._members):
            self._unannounced(name)
        self._acting = [member for member in self._members.values() if member.name in agents]
        self._num_alive = len(self._acting)
        for group in self.groups.values():
            group.alive[...] = [agent in agents for agent in group.agents]
            group.terminated.fill(False)
            if not group.alive.all():  # rows of agents that join later still hold the last episode
                for array in group.arrays.values():
                    array.fill(0)

    def _settle(self, agents: Sequence[str], terminations: Mapping[str, Any], truncations: Mapping[str, Any]) -> bool:
        """Notes who terminated and who acts next; returns whether the episode was cut off.

        An agent that is truncated while others continue counts as terminated (`Episodes`), because in covey an agent is
        alive until it terminates or its episode ends.
        """
        acted = self._acting
        ended = {name for flags in (terminations, truncations) for name, flag in flags.items() if flag}
        left = set(agents) - ended
        for name in left - set(self._members):
            self._unannounced(name)
        self._acting = [member for member in self._members.values() if member.name in left]
        self._num_alive = len(self._acting)
        for group in self.groups.values():
            group.alive[...] = [agent in left for agent in group.agents]
            group.terminated[...] = [bool(terminations.get(agent, False)) for agent in group.agents]
        cut = any(truncations.get(member.name) and not terminations.get(member.name) for member in acted)
        return not left and cut

    def _unannounced(self, name: str) -> Any:
        raise SimulatorError(f"agent {name} appeared, which is not among the possible_agents")

    # ------------------------------------------------------------------------------------------------------- answering

    def _read(self, observations: Mapping[str, Any], infos: Mapping[str, Any]) -> None:
        """Writes what agents see into their rows. Rows of agents without an observation do not change."""
        members = self._members
        for name, observation in observations.items():
            if name not in members:
                self._unannounced(name)
            members[name].write(observation)
        if len(observations) < self._num_alive:
            lacking = next(member.name for member in self._acting if member.name not in observations)
            if lacking in self.environment.agents:
                raise SimulatorError(f"there is no observation of agent {lacking}, which acts next")
        if self._masked:
            write_masks(members, self.groups, observations, infos)

    def _answer(self, *, rewards: bool, changed: bool = False, truncated: bool = False) -> SimulatorStep:
        """`changed`: who is alive may have changed."""
        if self._state_shape is not None:
            self._state = self._next_state()
        groups = self.groups.items()
        return SimulatorStep(
            observations={name: spaces.as_observations(group.arrays) for name, group in groups},
            rewards={name: group.rewards.copy() for name, group in groups} if rewards else None,
            shaping=self.shape(),
            terminated={name: group.terminated.copy() for name, group in groups} if changed else None,
            alive={name: group.alive.copy() for name, group in groups} if changed else None,
            action_masks=masks_of(self.groups) if self._masked else None,
            state=self._state,
            truncated=truncated,
            metrics=self.measure() if self.recipe.metrics else {},
        )

    def _next_state(self) -> Any:
        """The global state; the last one if an environment cannot compute it after agents have left."""
        try:
            return self.global_state()
        except Exception as error:
            if self._num_alive == len(self._members):
                raise SimulatorError(f"its global state failed: {describe_error(error)}") from error
            return self._state


# ---------------------------------------------------------------------------------------- all agents of a game at once


class Cycle:
    """A game of turns in which nothing happens before all have acted, as a parallel environment.

    It does what PettingZoo's own conversion does, without computing an observation before each turn.
    """

    def __init__(self, game: Any):
        self.game, self.possible_agents = game, game.possible_agents

    def __getattr__(self, name: str) -> Any:
        return getattr(self.game, name)

    @property
    def agents(self) -> list[str]:
        return self.game.agents  # type: ignore[no-any-return]

    @property
    def unwrapped(self) -> Any:
        return self.game.unwrapped

    def reset(self, seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
        game = self.game
        game.reset(seed=seed)
        return {agent: game.observe(agent) for agent in game.agents}, game.infos

    def step(self, actions: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
        game = self.game
        rewards = self.take_turns(actions, game.agents[:])
        terminations, truncations = dict(game.terminations), dict(game.truncations)
        observations = {agent: game.observe(agent) for agent in game.agents}
        infos = dict(game.infos)
        while game.agents and (
            game.terminations[game.agent_selection] or game.truncations[game.agent_selection]
        ):  # agents that ended leave
            game.step(None)
        return observations, rewards, terminations, truncations, infos

    def take_turns(self, actions: Mapping[str, Any], agents: Sequence[str]) -> Mapping[str, Any]:
        """Takes every agent's turn; returns what each agent earned over all of them."""
        game = self.game
        rewards: dict[str, Any] = dict.fromkeys(agents, 0.0)
        for agent in agents:
            if agent != game.agent_selection:
                raise SimulatorError(f"it is the turn of {game.agent_selection}, not of {agent}: it is not parallel")
            game.step(actions[agent])
            earned = game.rewards
            for other in agents:
                rewards[other] += earned[other]
        return rewards


def as_parallel(environment: Any, recipe: Recipe) -> Any:
    """A parallel environment. Games of turns become one if PettingZoo declares them parallelizable."""
    game = getattr(environment, "aec_env", environment)  # PettingZoo's conversion
    if not hasattr(game, "agent_iter"):
        return environment
    if not game.metadata.get("is_parallelizable", False):
        raise UsageError(f"agents take turns in '{recipe.module}', so they cannot all act at once: set task.turns=true")
    inner = without_checks(game)
    parallel = getattr(inner, "env", None)
    if type(inner).__name__ == "parallel_to_aec_wrapper":
        return parallel
    return Cycle(inner)


# -------------------------------------------------------------------------------------------------------------- groups


def make_groups(environment: Any, recipe: Recipe) -> dict[str, Group]:
    """The groups of an environment's agents, each with equal spaces."""
    agents = list(environment.possible_agents)
    observed = {agent: environment.observation_space(agent) for agent in agents}
    acted = {agent: environment.action_space(agent) for agent in agents}
    names = named_groups(agents, recipe.groups) if recipe.groups else prefix_groups(agents)
    if not recipe.groups:
        names = split_by(names, lambda one, other: observed[one] == observed[other] and acted[one] == acted[other])
    groups = {}
    for name, members in names.items():
        first = members[0]
        for agent in members:
            if observed[agent] != observed[first] or acted[agent] != acted[first]:
                raise UsageError(f"group {name}: {first} and {agent} have different spaces; put them in two groups")
        seen = spaces.read_observation_space(observed[first], first, recipe.sequence_length, recipe.image_stride)
        groups[name] = Group(members, seen, spaces.read_action_space(acted[first], first), acted[first])
    return groups


def prefix_groups(agents: Sequence[str]) -> dict[str, list[str]]:
    """Agents by the prefix of their names: `archer_0` and `archer_1` are `archer`. A single group is `agents`."""
    groups: dict[str, list[str]] = {}
    for agent in agents:
        groups.setdefault(prefix_of(agent), []).append(agent)
    return groups if len(groups) > 1 else {EVERYONE: list(agents)}


def prefix_of(agent: str) -> str:
    return re.sub(r"_?\d+$", "", str(agent)) or EVERYONE


def split_by(groups: Mapping[str, Sequence[str]], same: Callable[[str, str], bool]) -> dict[str, list[str]]:
    """Splits groups whose agents are not all the `same`. Each part of such a group is named after its first agent."""
    split: dict[str, list[str]] = {}
    for name, agents in groups.items():
        parts: list[list[str]] = []
        for agent in agents:
            part = next((part for part in parts if same(part[0], agent)), None)
            if part is None:
                parts.append([agent])
            else:
                part.append(agent)
        split |= {name: parts[0]} if len(parts) == 1 else {part[0]: part for part in parts}
    return split


def named_groups(agents: Sequence[str], groups: Mapping[str, str | Sequence[str]]) -> dict[str, list[str]]:
    """The groups of a configuration, which lists agents or prefixes of their names."""
    named: dict[str, list[str]] = {}
    for group, wanted in groups.items():
        entries = [wanted] if isinstance(wanted, str) else list(wanted)
        named[group] = []
        for entry in entries:
            found = [agent for agent in agents if agent == entry or prefix_of(agent) == entry]
            if not found:
                raise UsageError(
                    f"agent_groups.{group}: there is no agent {entry}; agents are {', '.join(agents[:12])}"
                )
            named[group] += [agent for agent in found if agent not in named[group]]
    counts = {agent: sum(agent in members for members in named.values()) for agent in agents}
    wrong = [agent for agent, count in counts.items() if count != 1]
    if wrong:
        how = "no group" if counts[wrong[0]] == 0 else f"{counts[wrong[0]]} groups"
        raise UsageError(f"agent_groups: agent {wrong[0]} is in {how}; each must be in one")
    return named


def make_members(groups: Mapping[str, Group]) -> dict[str, Member]:
    """Every agent by name."""
    members = {}
    for name, group in groups.items():
        for row, agent in enumerate(group.agents):
            mask = group.mask
            members[agent] = Member(
                name=agent,
                group=name,
                row=row,
                write=spaces.make_write(group.seen, agent, group.arrays, row),
                write_mask=_ignore if mask is None else spaces.make_write_mask(group.action, agent, mask[row]),
            )
    return members


def _ignore(_: Any) -> None:
    """Writes no mask."""


def make_spec(
    groups: Mapping[str, Group], recipe: Recipe, time_limit: int, state_shape: ObservationShape | None
) -> EnvSpec:
    """The task's spec."""
    try:
        return EnvSpec(
            groups={
                name: GroupSpec(
                    num_agents=len(group.agents),
                    observation_shape=group.seen.shape,
                    observation_dtype=group.seen.dtype,
                    action=group.action,
                    shared_reward=name in recipe.shared_reward,
                )
                for name, group in groups.items()
            },
            time_limit=time_limit,
            state_shape=state_shape,
            metrics=recipe.metrics,
            returns=recipe.returns,
            teams=tuple(tuple(team) for team in recipe.teams),
            shared_rewards=tuple(tuple(sharing) for sharing in recipe.shared_rewards),
        )
    except ValueError as error:
        raise UsageError(str(error)) from error


# --------------------------------------------------------------------------------------------- what environments return


def ask_reset(environment: Any, seed: int) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """The first observations and infos of an episode."""
    answer = environment.reset(seed=seed)
    if not isinstance(answer, tuple) or len(answer) != 2:
        raise SimulatorError("its reset must return observations and infos, both by agent")
    return answer


def one_number(reward: Any, agent: str) -> float:
    """The reward from a list or an array of one number."""
    numbers = np.asarray(reward, np.float32).reshape(-1)
    if numbers.size != 1:
        raise SimulatorError(f"the reward of {agent} is {numbers.size} numbers")
    return float(numbers[0])


def environment_state(environment: Any) -> Any:
    """An environment's own global state as float32; None if it is a picture, whose raw pixels no critic could use."""
    if not callable(environment.state):  # some have other things under that name
        return None
    state = np.asarray(environment.state())
    return None if state.dtype == np.uint8 and state.ndim == 3 else state.astype(np.float32)


def first_state(ask: Callable[[], Any]) -> Any:
    """The global state after a reset; None if there is none."""
    try:
        return ask()
    except (NotImplementedError, AttributeError):
        return None


def add_masks(groups: Mapping[str, Group], infos: Mapping[str, Any]) -> None:
    """Adds masks to the groups whose observations or infos have them."""
    for group in groups.values():
        in_infos = any(MASK in (infos.get(agent) or {}) for agent in group.agents)
        if group.seen.masked or in_infos:
            group.add_mask()


def masks_of(groups: Mapping[str, Group]) -> dict[str, np.ndarray]:
    """A copy of the masks, by group."""
    return {name: group.mask.copy() for name, group in groups.items() if group.mask is not None}


def write_masks(
    members: Mapping[str, Member],
    groups: Mapping[str, Group],
    observations: Mapping[str, Any],
    infos: Mapping[str, Any],
) -> None:
    """Writes the masks of all agents that have one."""
    for name, observation in observations.items():
        member = members[name]
        if groups[member.group].seen.masked:
            member.write_mask(observation[MASK])
        elif MASK in (infos.get(name) or {}):
            member.write_mask(infos[name][MASK])


def as_picture(environment: Any) -> np.ndarray:
    """A picture of an environment, uint8 [H, W, 3]."""
    inner = environment.unwrapped
    hidden = getattr(inner, "render_mode", "") is None  # made without a mode, because it would draw every step
    if hidden:
        inner.render_mode = PICTURES["render_mode"]
    try:
        with quiet():
            picture = environment.render()
    finally:
        if hidden:
            inner.render_mode = None
    if not isinstance(picture, np.ndarray) or picture.ndim != 3:
        modes = (getattr(environment, "metadata", None) or {}).get("render_modes", [])
        raise UsageError(f"it draws no pictures (rgb_array); its render modes: {', '.join(modes) or 'none'}")
    return np.ascontiguousarray(picture[..., :3], np.uint8)
