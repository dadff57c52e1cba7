"""Small environments with PettingZoo's interface, each with a trap in it. They need Gymnasium's spaces only."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces


class Duo:
    """Two agents. They see the step and their last action; what they do is their reward. `ends` says who ends when:
    `{agent: (step, "terminated" or "truncated")}`."""

    names: ClassVar[tuple[str, ...]] = ("walker_0", "walker_1")
    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"]}

    def __init__(self, ends: Any = None, render_mode: str | None = None, max_cycles: int = 10**9, trap: str = ""):
        self.possible_agents = list(self.names)
        self.ends, self.max_cycles, self.trap, self.render_mode = ends or {}, max_cycles, trap, render_mode
        self.agents: list[str] = []

    @property
    def unwrapped(self) -> Any:
        return self

    def observation_space(self, agent: str) -> Any:
        return spaces.Box(-np.inf, np.inf, (3,), np.float64)

    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(3)

    def state(self) -> np.ndarray:
        if len(self.agents) < len(self.possible_agents) or (self.trap == "state" and self.elapsed == 2):
            raise AttributeError("'NoneType' object has no attribute 'position'")
        return np.array([self.elapsed, self.seed], np.float64)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.seed, self.elapsed, self.agents = (seed or 0) % 1000, 0, self.possible_agents[:]
        if self.trap == "late":
            self.agents.remove("walker_1")
        answer: Any = {agent: self.see(0) for agent in self.agents}, {agent: {} for agent in self.agents}
        return answer[0] if self.trap == "old reset" else answer

    def see(self, action: int) -> Any:
        return np.array([self.elapsed, action, self.seed], np.float64)

    def step(self, actions: dict[str, int]) -> Any:
        assert sorted(actions) == sorted(self.agents), "an action for everybody who acts, and nobody else"
        self.elapsed += 1
        acted = self.agents
        observations = {agent: self.see(actions[agent]) for agent in acted}
        if self.trap == "shape" and self.elapsed == 2:
            observations[acted[1]] = np.zeros(1)
        if self.trap == "silent" and self.elapsed == 2:
            del observations[acted[1]]
        rewards = {agent: actions[agent] for agent in acted}  # of type int
        flags = {
            kind: {agent: self.ends.get(agent) == (self.elapsed, kind) for agent in acted}
            for kind in ("terminated", "truncated")
        }
        over = self.elapsed >= self.max_cycles
        terminations = {
            agent: over or flags["terminated"][agent] for agent in acted
        }  # as multiwalker reports its limit
        self.agents = [agent for agent in acted if not (terminations[agent] or flags["truncated"][agent])]
        if self.trap == "late" and self.elapsed == 2:
            self.agents.append("walker_1")
            observations["walker_1"] = self.see(0)
        if self.trap == "stranger" and self.elapsed == 2:
            self.agents.append("runner_7")
            observations["runner_7"] = self.see(0)
        return observations, rewards, terminations, flags["truncated"], {agent: {} for agent in acted}

    def render(self) -> Any:
        return np.full((4, 6, 3), self.elapsed, np.uint8) if self.trap != "no pictures" else None

    def close(self) -> None:
        pass


class Many(Duo):
    """Two archers and a knight, with spaces of every kind; archer_1 has fewer arrows than archer_0."""

    names = ("archer_0", "archer_1", "knight_0")

    def observation_space(self, agent: str) -> Any:
        if agent == "knight_0":
            return spaces.Discrete(4, start=1)
        return spaces.Dict(
            {
                "observation": spaces.Dict(
                    {
                        "image": spaces.Box(0, 255, (5, 7, 3), np.uint8),
                        "arrows": spaces.MultiBinary(3 if agent == "archer_0" else 2),
                    }
                ),
                "action_mask": spaces.Box(0, 1, (3,), np.int8),
            }
        )

    def action_space(self, agent: str) -> Any:
        if agent == "knight_0":
            return spaces.MultiDiscrete([2, 3])
        return spaces.Discrete(3, start=10)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.elapsed, self.agents, self.seed = 0, self.possible_agents[:], 0
        return {agent: self.show(agent) for agent in self.agents}, {"knight_0": {"action_mask": ([1, 0], [1, 1, 0])}}

    def show(self, agent: str) -> Any:
        if agent == "knight_0":
            return 1 + self.elapsed % 4
        image = np.arange(105, dtype=np.uint8).reshape(5, 7, 3)
        arrows = np.ones(3 if agent == "archer_0" else 2, np.int8)
        return {"observation": {"image": image, "arrows": arrows}, "action_mask": np.array([0, 1, 1], np.int8)}

    def step(self, actions: dict[str, Any]) -> Any:
        self.elapsed += 1
        self.acted = actions
        observations = {agent: self.show(agent) for agent in self.agents}
        flags = dict.fromkeys(self.agents, False)
        return observations, {agent: [0.5] for agent in self.agents}, flags, flags, {"knight_0": {}}


class Rows(Duo):
    """What agents see has as many rows as steps have passed."""

    def observation_space(self, agent: str) -> Any:
        return spaces.Sequence(spaces.Box(-1, 1, (2,), np.float64), stack=self.trap != "tuples")

    def see(self, action: int) -> Any:
        rows = np.full((self.elapsed, 2), 0.5)
        return tuple(rows) if self.trap == "tuples" else rows


class Turns:
    """A game of turns: of a heap of stones, a player takes one to three. Who takes the last loses a point to the other;
    whoever takes one earns a tenth, and everybody else loses as much."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["ansi"], "is_parallelizable": False}

    def __init__(self, stones: int = 7, leaves: bool = False, cut: bool = False):
        self.possible_agents = ["player_0", "player_1", "player_2"]
        self.stones, self.leaves, self.cut = stones, leaves, cut

    @property
    def unwrapped(self) -> Any:
        return self

    def agent_iter(self) -> None:
        raise NotImplementedError

    def observation_space(self, agent: str) -> Any:
        return spaces.Box(0, 100, (2,), np.int8)

    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(3)

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        self.heap, self.agents, self.turn = self.stones, self.possible_agents[:], 0
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self.agent_selection = "player_0"
        self._tell()

    def _tell(self) -> None:
        legal = np.array([number <= self.heap for number in (1, 2, 3)], np.int8)
        self.infos = {agent: {"action_mask": legal} if agent == self.agent_selection else {} for agent in self.agents}

    def observe(self, agent: str) -> Any:
        return np.array([self.heap, agent == self.agent_selection], np.int8)

    def last(self) -> None:
        raise AssertionError("observations are asked for by name")

    def step(self, action: int | None) -> None:
        who = self.agent_selection
        if self.terminations[who] or self.truncations[who]:
            assert action is None
            self.agents.remove(who)
            self.rewards = dict.fromkeys(self.agents, 0.0)
            self._next(who)
            return
        assert action is not None
        taken = action + 1
        assert taken <= self.heap
        self.heap -= taken
        self.rewards = {agent: 0.1 if agent == who else -0.1 for agent in self.agents}
        self.turn += 1
        if self.heap == 0:
            self.rewards[who] -= 1
            flags = self.truncations if self.cut else self.terminations
            flags.update(dict.fromkeys(self.agents, True))
        elif self.leaves and self.turn == 2:
            self.terminations["player_2"] = True
        self._next(who)

    def _next(self, who: str) -> None:
        order = self.possible_agents
        if self.agents:
            after = [order[(order.index(who) + ahead) % 3] for ahead in (1, 2, 3)]
            self.agent_selection = next(agent for agent in after if agent in self.agents)
        self._tell()

    def close(self) -> None:
        pass

    def render(self) -> None:
        return None
