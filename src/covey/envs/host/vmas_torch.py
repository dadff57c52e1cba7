"""VMAS as it was published, in PyTorch. It is here to compare with covey's own, which is the one to train with.

The package steps a batch, and each copy here is a batch of one. PyTorch is imported in worker processes only. It is not
a dependency of covey.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from covey.envs.host.pettingzoo.recipe import PettingZooConfig, Recipe
from covey.envs.host.tuples import require
from covey.errors import UsageError
from covey.registry import OtherNames

ByAgent = dict[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class VmasTorchConfig(PettingZooConfig):
    """Fields of every scenario."""

    time_limit: int = 100
    scenario: str = "balance"  # the scenario: `covey list tasks vmas_torch` shows those that have a task
    continuous_actions: bool = True  # actions are forces; false: directions to choose from
    # arguments of the scenario, by its own names: `task.kwargs={n_agents: 3}`
    kwargs: dict[str, Any] = dataclasses.field(default_factory=dict)

    other_names: ClassVar[OtherNames] = {**PettingZooConfig.other_names, "max_steps": "time_limit"}

    @property
    def with_discrete_actions(self) -> VmasTorchConfig:
        return dataclasses.replace(self, continuous_actions=False)

    def recipe(self) -> Recipe:
        return Recipe(
            module="covey.envs.host.vmas_torch:make_scenario",
            arguments=self.arguments(),
            returns="the sum of the agent's own rewards, as the scenario gives them",
            state=False,
        )


def make_scenario(*, scenario: str, continuous_actions: bool, kwargs: Mapping[str, Any]) -> Scenario:
    """A batch of one environment, without a time limit of its own."""
    for package in ("torch", "vmas"):
        require(package, "the published VMAS", "vmas")
    torch, vmas = importlib.import_module("torch"), importlib.import_module("vmas")
    torch.set_num_threads(1)  # each process has a core
    try:
        batch = vmas.make_env(
            scenario,
            num_envs=1,
            device="cpu",
            continuous_actions=continuous_actions,
            terminated_truncated=True,
            **kwargs,
        )
    except AssertionError as error:
        if f"{scenario}.py" in str(error):  # not found
            raise UsageError(f"task.scenario: VMAS has no scenario '{scenario}'") from error
        raise
    return Scenario(batch, torch, continuous_actions)


class Scenario:
    """A batch of one, with PettingZoo's parallel interface."""

    metadata: Mapping[str, Any] = {"render_modes": ["rgb_array"]}

    def __init__(self, batch: Any, torch: Any, continuous: bool):
        self.batch, self._torch, self._continuous = batch, torch, continuous
        self.possible_agents = [agent.name for agent in batch.agents]
        self.agents: list[str] = []
        sizes = [part.shape for part in batch.observation_space]
        self._sizes = dict(zip(self.possible_agents, sizes, strict=True))
        self._acted = dict(zip(self.possible_agents, batch.action_space, strict=True))

    @property
    def unwrapped(self) -> Scenario:
        return self

    def observation_space(self, agent: str) -> Any:
        from gymnasium import spaces

        return spaces.Box(-np.inf, np.inf, self._sizes[agent], np.float32)

    def action_space(self, agent: str) -> Any:
        """In Gymnasium's classes. Those of the package's own spaces depend on its version."""
        from gymnasium import spaces

        own = self._acted[agent]
        if self._continuous:
            return spaces.Box(own.low, own.high, own.shape, np.float32)
        return spaces.Discrete(int(own.n)) if hasattr(own, "n") else spaces.MultiDiscrete(own.nvec)

    def reset(self, seed: int) -> tuple[ByAgent, ByAgent]:
        self.agents = self.possible_agents
        return self._by_agent(self.batch.reset(seed=seed)), {}

    def step(self, actions: Mapping[str, Any]) -> tuple[ByAgent, ...]:
        kind = self._torch.float32 if self._continuous else self._torch.int64
        chosen = [
            self._torch.as_tensor(np.atleast_1d(actions[name]), dtype=kind)[None] for name in self.possible_agents
        ]
        observations, rewards, terminated, truncated, _ = self.batch.step(chosen)
        over, cut = bool(terminated[0]), bool(truncated[0])
        if over or cut:
            self.agents = []
        return (
            self._by_agent(observations),
            # Some scenarios give an array of one number.
            {name: reward.item() for name, reward in self._by_agent(rewards).items()},
            dict.fromkeys(self.possible_agents, over),
            dict.fromkeys(self.possible_agents, cut and not over),
            {},
        )

    def state(self) -> np.ndarray:
        raise NotImplementedError

    def render(self) -> Any:
        return self.batch.render(mode="rgb_array", visualize_when_rgb=False)

    def close(self) -> None:
        """There is nothing to close."""

    def _by_agent(self, values: Any) -> ByAgent:
        """Arrays by agent, from one tensor [1, …] per agent."""
        rows = [value[0].detach().numpy() for value in values]
        return dict(zip(self.possible_agents, rows, strict=True))
