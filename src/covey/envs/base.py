"""The `Env` protocol, the configuration that every task shares, and `make_env`.

An environment is pure and vmappable, and knows nothing of batches: `envs.batch` runs many of them and resets those that
end. Dictionaries by agent name exist only inside adapters; here, agents of a kind are one group, stacked on one axis.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Sequence
from typing import Any, Protocol

import jax.numpy as jnp
import numpy as np

from covey import registry
from covey.types import Array, EnvSpec, GroupStep, Key, PyTree, TimeStep

Actions = dict[str, Array]


class Env(Protocol):
    """One environment. `action` is a dict: group name to `[A]` (discrete) or `[A, n]` (multi-discrete, continuous)."""

    @property
    def spec(self) -> EnvSpec: ...

    def reset(self, key: Key) -> tuple[PyTree, TimeStep]: ...

    def step(self, state: PyTree, action: Actions, key: Key) -> tuple[PyTree, TimeStep]: ...

    def render(self, states: Sequence[PyTree]) -> list[np.ndarray]:
        """One RGB picture, uint8 [H, W, 3], per state of an episode. Runs on the host, without a display."""
        ...


class Reward(enum.Enum):
    """Who gets which reward."""

    individual = "each agent what the task gives it"
    team_sum = "every agent the sum over its group"
    team_mean = "every agent the mean over its group"


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskConfig:
    """Fields of every task. A suite's own dataclass inherits from this one and states its defaults."""

    reward: Reward = Reward.individual
    time_limit: int = 100  # steps
    time_limit_terminates: bool = False  # the limit is a truncation, through which values bootstrap; true: an ending

    def __post_init__(self) -> None:
        if self.time_limit < 1:
            raise ValueError(f"time_limit must be at least 1, not {self.time_limit}")


def make_env(name: str, **fields: Any) -> Env:
    """The task `name`, e.g. `make_env("lbf/8x8-2p-2f-coop", time_limit=50)`."""
    defaults = registry.tasks[name].defaults()
    return make_env_from_config(name, registry.build_config(defaults, fields, "task"))


def make_env_from_config(name: str, config: TaskConfig) -> Env:
    """The registered environment under the wrappers that every task gets: shared reward and time limit."""
    from covey.envs.wrappers import ShareReward, TimeLimit

    env: Env = TimeLimit(
        registry.tasks[name].make_function()(config), config.time_limit, terminates=config.time_limit_terminates
    )
    if config.reward is not Reward.individual:
        env = ShareReward(env, config.reward)
    return env


def first_step(
    observations: dict[str, Array],
    *,
    action_masks: dict[str, Array] | None = None,
    shaping: dict[str, Array] | None = None,
    state: Array | None = None,
    metrics: dict[str, Array] | None = None,
) -> TimeStep:
    """The time step of a reset: no reward yet, everybody alive, nothing ended."""
    groups = {}
    for name, observation in observations.items():
        agents = observation.shape[0]
        groups[name] = GroupStep(
            observation=observation,
            next_observation=observation,
            reward=jnp.zeros(agents),
            action_mask=None if action_masks is None else action_masks[name],
            next_action_mask=None if action_masks is None else action_masks[name],
            alive=jnp.ones(agents, bool),
            terminated=jnp.zeros(agents, bool),
            shaping=None if shaping is None else shaping[name],
        )
    no = jnp.zeros((), bool)
    return TimeStep(groups=groups, truncated=no, last=no, state=state, next_state=state, metrics=metrics or {})


def next_step(
    observations: dict[str, Array],
    rewards: dict[str, Array],
    *,
    terminated: Array | dict[str, Array],
    alive: dict[str, Array] | None = None,
    last: Array | None = None,
    action_masks: dict[str, Array] | None = None,
    shaping: dict[str, Array] | None = None,
    state: Array | None = None,
    metrics: dict[str, Array] | None = None,
) -> TimeStep:
    """The time step after an action, before any time limit or reset.

    `terminated` is one flag for all, which then also ends the episode, or a dict of `[A]` flags with `last` beside it.
    `alive` says who can still earn after this step (default: all). Rewards are `[A]`, or scalars shared by the group.
    """
    if last is None:
        assert not isinstance(terminated, dict), "per-agent termination needs `last`"
        last = terminated
    groups = {}
    for name, observation in observations.items():
        shape = (observation.shape[0],)
        groups[name] = GroupStep(
            observation=observation,
            next_observation=observation,
            reward=jnp.broadcast_to(jnp.asarray(rewards[name], jnp.float32), shape),
            action_mask=None if action_masks is None else action_masks[name],
            next_action_mask=None if action_masks is None else action_masks[name],
            alive=jnp.ones(shape, bool) if alive is None else alive[name],
            terminated=jnp.broadcast_to(terminated[name] if isinstance(terminated, dict) else terminated, shape),
            shaping=None if shaping is None else shaping[name],
        )
    last = jnp.asarray(last, bool)
    return TimeStep(
        groups=groups, truncated=jnp.zeros((), bool), last=last, state=state, next_state=state, metrics=metrics or {}
    )
