"""Games in which one agent acts at a time: PettingZoo's `AECEnv`.

A step is one move. All agents observe and act in every step, and are alive until the game ends. An agent whose turn
it is not has one legal action: to wait, which is added as the last one. What it earns while others move, it receives at
once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from covey.envs.host.pettingzoo.parallel import (
    Group,
    add_masks,
    as_picture,
    environment_state,
    first_state,
    make_groups,
    make_members,
    make_spec,
    masks_of,
)
from covey.envs.host.pettingzoo.recipe import PettingZooConfig, make_environment, quiet, without_checks
from covey.envs.host.pettingzoo.spaces import MASK, as_observations
from covey.envs.host.simulator import SimulatorError, SimulatorStep
from covey.errors import UsageError
from covey.specs import Discrete


class AecSimulator:
    """One copy of a game of turns."""

    def __init__(self, config: PettingZooConfig):
        self.config, self.recipe = config, config.recipe()
        self.game = without_checks(make_environment(self.recipe, config.time_limit))
        with quiet():
            self.groups = make_groups(self.game, self.recipe)
            self.game.reset(seed=0)
        for name, group in self.groups.items():
            add_waiting(name, group)
        add_masks(self.groups, {})
        for group in self.groups.values():
            if group.mask is None:
                group.add_mask()
        self._members = make_members(self.groups)
        self._state = first_state(lambda: environment_state(self.game)) if self.recipe.state else None
        shape = None if self._state is None else self._state.shape
        self.spec = make_spec(self.groups, self.recipe, config.time_limit, shape)

    @property
    def agent_names(self) -> dict[str, tuple[str, ...]]:
        """By group, what the environment calls its agents."""
        return {name: tuple(group.agents) for name, group in self.groups.items()}

    def reset(self, seed: int) -> SimulatorStep:
        self.game.reset(seed=seed)
        for group in self.groups.values():
            group.terminated.fill(False)
            group.rewards.fill(0)
        self._read()
        self._skip_those_that_left()
        self._write_masks()
        return self._answer(rewards=False)

    def step(self, actions: Mapping[str, np.ndarray]) -> SimulatorStep:
        game = self.game
        acting = self._members[game.agent_selection]
        group = self.groups[acting.group]
        choice = int(actions[acting.group][acting.row])
        assert group.mask is not None
        if not group.mask[acting.row, choice]:
            raise SimulatorError(f"it is the turn of {acting.name}, and its action {choice} is not legal")
        game.step(choice + getattr(game.action_space(acting.name), "start", 0))
        for each in self.groups.values():
            each.rewards.fill(0)
        for name, reward in game.rewards.items():
            member = self._members[name]
            self.groups[member.group].rewards[member.row] = reward
        ended = {name for name in game.agents if game.terminations[name] or game.truncations[name]}
        cut = any(game.truncations[name] and not game.terminations[name] for name in ended)
        over = ended == set(game.agents)
        self._read()
        if over:
            for each in self.groups.values():
                each.terminated[...] = [not game.truncations.get(agent, False) for agent in each.agents]
        else:
            self._skip_those_that_left()
        self._write_masks(over=over)
        return self._answer(rewards=True, truncated=over and cut)

    def render(self) -> np.ndarray:
        return as_picture(self.game)

    def close(self) -> None:
        self.game.close()

    def _skip_those_that_left(self) -> None:
        """PettingZoo gives agents that left while the game continues one more turn, in which they must pass None."""
        game = self.game
        while game.agents and (game.terminations[game.agent_selection] or game.truncations[game.agent_selection]):
            game.step(None)

    def _read(self) -> None:
        """Writes what everybody sees. The row of an agent that left keeps what that agent saw last."""
        for name in self.game.agents:
            if name not in self._members:
                raise SimulatorError(f"agent {name} appeared, which is not among the possible_agents")
            self._members[name].write(self.game.observe(name))

    def _write_masks(self, *, over: bool = False) -> None:
        """The agent whose turn it is has its legal actions. All others, and all after the game, can only wait."""
        for group in self.groups.values():
            assert group.mask is not None
            group.mask[:, :-1] = False
            group.mask[:, -1] = True
        if over:
            return
        name = self.game.agent_selection
        member = self._members[name]
        mask = self.groups[member.group].mask
        assert mask is not None
        legal = legal_actions(self.game, name)
        mask[member.row, :-1] = True if legal is None else np.asarray(legal, bool)
        mask[member.row, -1] = False
        if not mask[member.row].any():
            raise SimulatorError(f"it is the turn of {name}, which has no legal action")

    def _answer(self, *, rewards: bool, truncated: bool = False) -> SimulatorStep:
        if self._state is not None:
            with contextlib.suppress(Exception):  # some games have no state at the end: the last one remains
                self._state = environment_state(self.game)
        groups = self.groups.items()
        return SimulatorStep(
            observations={name: as_observations(group.arrays) for name, group in groups},
            rewards={name: group.rewards.copy() for name, group in groups} if rewards else None,
            terminated={name: group.terminated.copy() for name, group in groups},
            action_masks=masks_of(self.groups),
            state=self._state,
            truncated=truncated,
        )


def add_waiting(name: str, group: Group) -> None:
    """Adds the action to wait, after all other actions of a group."""
    if not isinstance(group.action, Discrete):
        raise UsageError(
            f"group {name} has {type(group.action).__name__} actions; in games of turns, covey takes Discrete"
        )
    group.action = Discrete(group.action.num_actions + 1)


def legal_actions(game: Any, agent: str) -> Any:
    """The mask of the agent whose turn it is, from its observation or its infos; None if everything is legal."""
    observation = game.observe(agent)
    if isinstance(observation, Mapping) and MASK in observation:
        return observation[MASK]
    return (game.infos.get(agent) or {}).get(MASK)
