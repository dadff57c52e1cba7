"""The `Env` protocol, the configuration that every task shares, and `make_env`.

An environment is pure and vmappable, and knows nothing of batches: `envs.batch` runs many of them and resets those that
end. Dictionaries by agent name exist only inside adapters; here, agents of a kind are one group, stacked on one axis.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import jax.numpy as jnp
import numpy as np

from covey import registry
from covey.envs.config import Reward, SuiteConfig, TaskConfig
from covey.errors import CoveyError, UsageError
from covey.observations import leading_shape
from covey.types import Array, EnvSpec, GroupStep, Key, Observation, PyTree, TimeStep

__all__ = [
    "Actions",
    "Env",
    "HasReferences",
    "ReferencePolicy",
    "Reward",
    "SuiteConfig",
    "TaskConfig",
    "first_step",
    "make_bare_env",
    "make_env",
    "make_env_from_config",
    "next_step",
    "present_sharing",
    "present_teams",
    "reference_policies",
]

Actions = dict[str, Array]


class Env(Protocol):
    """One environment. `action` is a dict: group name to `[A]` (discrete) or `[A, n]` (multi-discrete, continuous)."""

    @property
    def spec(self) -> EnvSpec:
        """All that the rest of covey needs to know before the first step."""
        ...

    def reset(self, key: Key) -> tuple[PyTree, TimeStep]:
        """The start of an episode: a state, and what it shows, with rewards of zero."""
        ...

    def step(self, state: PyTree, action: Actions, key: Key) -> tuple[PyTree, TimeStep]:
        """The next state, and what it shows. Nothing is reset here: `envs.batch` starts the next episode."""
        ...

    def render(self, states: Sequence[PyTree]) -> list[np.ndarray]:
        """One RGB picture, uint8 [H, W, 3], per state of an episode. Runs on the host, without a display."""
        ...


ReferencePolicy = Callable[[Array], Array]  # from a group's observations [A, F] to its actions


@runtime_checkable
class HasReferences(Protocol):
    """An environment with hand-written policies for some of its groups, for partners and opponents to play.

    They are given the group's observations, and whatever wrappers appended to them.
    """

    @property
    def reference_policies(self) -> Mapping[str, ReferencePolicy]: ...


def reference_policies(env: Env) -> Mapping[str, ReferencePolicy]:
    """By group, the hand-written policies that an environment has; without any, empty."""
    return env.reference_policies if isinstance(env, HasReferences) else {}


def make_env(name: str, **fields: Any) -> Env:
    """The task `name`, e.g. `make_env("lbf/8x8-2p-2f-coop", time_limit=50)`."""
    defaults = registry.tasks[name].defaults()
    return make_env_from_config(name, registry.build_config(defaults, fields, "task"))


def make_env_from_config(name: str, config: TaskConfig) -> Env:
    """The registered environment under the wrappers that every task gets: lifetimes, time limit and shared reward.

    Simulators in processes have lifetimes and time limits there (`envs.host.episodes`).
    """
    from covey.envs.wrappers import Lifetimes, ShareReward, TimeLimit

    entry = registry.tasks[name]
    if entry.host:
        from covey.envs.host.env import HostEnv
        from covey.envs.host.make import source_of

        env: Env = HostEnv(source_of(name, config))
    else:
        env = make_bare_env(name, config)
        if not entry.built_in:
            from covey.envs.check import check_shapes

            check_shapes(env, f"task {name}")
        if not env.spec.keeps_lifetimes:
            env = Lifetimes(env)
        env = TimeLimit(env, config.time_limit, terminates=config.time_limit_terminates)
    if config.reward in (Reward.team_sum, Reward.team_mean):
        env = ShareReward(env, config.reward)
    return env


def present_teams(teams: Sequence[Sequence[str]], groups: Iterable[str]) -> tuple[tuple[str, ...], ...]:
    """`teams` without the groups that a configuration of the task does not have; () if only one team is left."""
    present = set(groups)
    kept = [tuple(group for group in team if group in present) for team in teams]
    found = tuple(team for team in kept if team)
    return found if len(found) > 1 else ()


def present_sharing(sharing: Sequence[Sequence[str]], groups: Iterable[str]) -> tuple[tuple[str, ...], ...]:
    """`EnvSpec.shared_rewards` without the groups that a configuration of the task does not have."""
    present = set(groups)
    kept = (tuple(group for group in each if group in present) for each in sharing)
    return tuple(each for each in kept if len(each) > 1)


def make_bare_env(name: str, config: TaskConfig) -> Env:
    """The registered environment itself."""
    entry = registry.tasks[name]
    if entry.built_in:
        try:
            env: Env = entry.make_function()(config)
            return env
        except CoveyError:
            raise
        except Exception as error:
            what = f"{type(error).__name__}: {error}"
            raise UsageError(f"task '{name}' cannot be made with these fields: {what}") from error
    from covey.envs.check import run_users_code
    from covey.envs.host.simulator import SimulatorConfig

    if isinstance(config, SimulatorConfig):
        raise UsageError(
            f"task '{name}': its configuration inherits from covey.SimulatorConfig, so it is a simulator: "
            "add host=True to register_task"
        )
    users_env: Env = run_users_code(f"task {name}", "making it", lambda: entry.make_function()(config))
    return users_env


def first_step(
    observations: dict[str, Observation],
    *,
    action_masks: dict[str, Array] | None = None,
    shaping: dict[str, Array] | None = None,
    state: Observation | None = None,
    metrics: dict[str, Array] | None = None,
) -> TimeStep:
    """The time step of a reset: no reward yet, everybody alive, nothing ended."""
    groups = {}
    for name, observation in observations.items():
        (agents,) = leading_shape(observation, 1)
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
    observations: dict[str, Observation],
    rewards: dict[str, Array],
    *,
    terminated: Array | dict[str, Array],
    alive: dict[str, Array] | None = None,
    last: Array | None = None,
    action_masks: dict[str, Array] | None = None,
    shaping: dict[str, Array] | None = None,
    state: Observation | None = None,
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
        shape = leading_shape(observation, 1)
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
