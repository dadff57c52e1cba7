"""Wrappers of one environment: lifetimes, time limit, shared reward, agent ids. Each is an `Env` over an `Env`.

Auto-reset and episode statistics are not wrappers: they need the whole batch of environments (`envs.batch`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from covey.envs.base import Actions, Env, ReferencePolicy, Reward, reference_policies
from covey.observations import AGENT_ID, dtypes, leading_shape
from covey.types import Array, EnvSpec, GroupSpec, GroupStep, Key, Observation, PyTree, TimeStep


class Wrapper:
    """Passes everything through; subclasses override what they change."""

    def __init__(self, env: Env):
        self.env = env

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.env!r})"

    @property
    def spec(self) -> EnvSpec:
        return self.env.spec

    @property
    def reference_policies(self) -> Mapping[str, ReferencePolicy]:
        return reference_policies(self.env)

    def reset(self, key: Key) -> tuple[PyTree, TimeStep]:
        return self.env.reset(key)

    def step(self, state: PyTree, action: Actions, key: Key) -> tuple[PyTree, TimeStep]:
        return self.env.step(state, action, key)

    def render(self, states: Sequence[PyTree]) -> list[np.ndarray]:
        return self.env.render(states)

    def with_elapsed(self, state: PyTree, elapsed: Array) -> PyTree:
        """`state` as if `elapsed` steps of its episode were over; unchanged if no wrapper counts steps."""
        return self.env.with_elapsed(state, elapsed) if isinstance(self.env, Wrapper) else state


def map_groups(timestep: TimeStep, change: Callable[[GroupStep], GroupStep]) -> TimeStep:
    """`timestep` with every group's part changed."""
    return dataclasses.replace(timestep, groups={name: change(group) for name, group in timestep.groups.items()})


def earned(group: GroupStep, values: Array) -> Array:
    """`values [..., A]` of the agents that were alive when they acted (they still are, or this step was their last)."""
    return jnp.where(group.alive | group.terminated, values, 0.0)


class Lifetimes(Wrapper):
    """Remembers who is alive, so that a time step's flags tell exactly whose rewards count (`earned`).

    Environments report deaths in several ways: some repeat `terminated` in every later step, or set it for everybody
    when the episode ends; others only clear `alive`. Here an agent terminates once, in a step that it began alive.
    """

    def reset(self, key: Key) -> tuple[PyTree, TimeStep]:
        inner, timestep = self.env.reset(key)
        return (inner, _alive(timestep)), timestep

    def step(self, state: PyTree, action: Actions, key: Key) -> tuple[PyTree, TimeStep]:
        inner, acted = state
        inner, timestep = self.env.step(inner, action, key)
        groups = {name: live_on(group, acted[name], timestep.last) for name, group in timestep.groups.items()}
        timestep = dataclasses.replace(timestep, groups=groups)
        return (inner, _alive(timestep)), timestep

    def render(self, states: Sequence[PyTree]) -> list[np.ndarray]:
        return self.env.render([inner for inner, _ in states])

    def with_elapsed(self, state: PyTree, elapsed: Array) -> PyTree:
        inner, alive = state
        return super().with_elapsed(inner, elapsed), alive


def _alive(timestep: TimeStep) -> dict[str, Array]:
    return {name: group.alive for name, group in timestep.groups.items()}


def live_on(group: GroupStep, acted: Array, last: Array) -> GroupStep:
    """`group` after a step; `acted [A]` says which agents were alive before it.

    An agent that is no longer alive has terminated. At the `last` step, only agents that the environment reports have.
    """
    terminated = acted & (group.terminated | ~(group.alive | last))
    return dataclasses.replace(group, alive=acted & ~terminated, terminated=terminated)


class TimeLimit(Wrapper):
    """Ends an episode after `limit` steps. That is a truncation, by which nobody terminates. If the limit `terminates`,
    it is a termination instead (as in BenchMARL)."""

    def __init__(self, env: Env, limit: int, *, terminates: bool = False):
        super().__init__(env)
        self.limit = limit
        self.terminates = terminates

    @property
    def spec(self) -> EnvSpec:
        return dataclasses.replace(self.env.spec, time_limit=self.limit)

    def reset(self, key: Key) -> tuple[PyTree, TimeStep]:
        state, timestep = self.env.reset(key)
        return (state, jnp.zeros((), jnp.int32)), timestep

    def step(self, state: PyTree, action: Actions, key: Key) -> tuple[PyTree, TimeStep]:
        inner, elapsed = state
        inner, timestep = self.env.step(inner, action, key)
        cut = (elapsed + 1 >= self.limit) & ~timestep.last
        if self.terminates:
            ended = map_groups(
                timestep, lambda group: dataclasses.replace(group, terminated=group.terminated | (group.alive & cut))
            )
            timestep = dataclasses.replace(ended, last=timestep.last | cut)
        else:
            timestep = dataclasses.replace(timestep, truncated=timestep.truncated | cut, last=timestep.last | cut)
        return (inner, elapsed + 1), timestep

    def render(self, states: Sequence[PyTree]) -> list[np.ndarray]:
        return self.env.render([inner for inner, _ in states])

    def with_elapsed(self, state: PyTree, elapsed: Array) -> PyTree:
        return state[0], elapsed


SHARED_RETURNS = {  # what sharing adds to the text that says what a return is
    Reward.team_sum: "; every agent gets the sum over the team",
    Reward.team_mean: "; every agent gets the mean over the team",
}


class ShareReward(Wrapper):
    """Gives every agent the sum or mean of its group's rewards, and of its shaping. The dead add nothing.

    A mean is over all agents of the group, the dead included, so the team gains nothing when a low earner dies.
    """

    def __init__(self, env: Env, reward: Reward):
        super().__init__(env)
        self._reduce = jnp.sum if reward is Reward.team_sum else jnp.mean
        self._reward = reward

    @property
    def spec(self) -> EnvSpec:
        inner = self.env.spec
        groups = {name: dataclasses.replace(group, shared_reward=True) for name, group in inner.groups.items()}
        return dataclasses.replace(
            inner,
            groups=groups,
            shared_rewards=tuple(each for each in inner.shared_rewards if self._keeps_shared(each)),
            returns=inner.returns + SHARED_RETURNS[self._reward],
        )

    def _keeps_shared(self, groups: Sequence[str]) -> bool:
        """Whether groups that shared a reward still do. Sums over groups of different sizes differ."""
        return self._reward is Reward.team_mean or len({self.env.spec.groups[name].num_agents for name in groups}) == 1

    def step(self, state: PyTree, action: Actions, key: Key) -> tuple[PyTree, TimeStep]:
        state, timestep = self.env.step(state, action, key)
        return state, map_groups(timestep, self._share)

    def _share(self, group: GroupStep) -> GroupStep:
        def share(values: Array) -> Array:
            return jnp.broadcast_to(self._reduce(earned(group, values)), values.shape)

        shaping = None if group.shaping is None else share(group.shaping)
        return dataclasses.replace(group, reward=share(group.reward), shaping=shaping)


class AgentIds(Wrapper):
    """Appends each agent's one-hot index within its group to the last axis of its observation, in all `groups`.

    Each row of an observation with further axes (entities, pixels) receives the same id. A dictionary receives the ids
    as a new entry, `agent_id`; its other entries do not change.
    """

    def __init__(self, env: Env, groups: Iterable[str] | None = None):
        super().__init__(env)
        self.groups = tuple(env.spec.groups if groups is None else groups)

    @property
    def spec(self) -> EnvSpec:
        inner = self.env.spec
        groups = dict(inner.groups)
        for name in self.groups:
            groups[name] = with_agent_ids(groups[name])
        return dataclasses.replace(inner, groups=groups)

    def reset(self, key: Key) -> tuple[PyTree, TimeStep]:
        state, timestep = self.env.reset(key)
        return state, self._append(timestep)

    def step(self, state: PyTree, action: Actions, key: Key) -> tuple[PyTree, TimeStep]:
        state, timestep = self.env.step(state, action, key)
        return state, self._append(timestep)

    def _append(self, timestep: TimeStep) -> TimeStep:
        groups = dict(timestep.groups)
        for name in self.groups:
            groups[name] = dataclasses.replace(
                groups[name],
                observation=append_agent_ids(groups[name].observation),
                next_observation=append_agent_ids(groups[name].next_observation),
            )
        return dataclasses.replace(timestep, groups=groups)


def with_agent_ids(spec: GroupSpec) -> GroupSpec:
    """The spec of a group whose observations have ids."""
    if isinstance(spec.observation_shape, Mapping):
        shapes = {**spec.observation_shape, AGENT_ID: (spec.num_agents,)}
        types = {**dtypes(spec), AGENT_ID: np.float32}
        return dataclasses.replace(spec, observation_shape=shapes, observation_dtype=types)
    *rows, size = spec.observation_shape
    return dataclasses.replace(spec, observation_shape=(*rows, size + spec.num_agents))


def without_agent_ids(spec: GroupSpec) -> GroupSpec:
    """Undoes `with_agent_ids`."""
    if isinstance(spec.observation_shape, Mapping):
        shapes = {name: shape for name, shape in spec.observation_shape.items() if name != AGENT_ID}
        return dataclasses.replace(spec, observation_shape=shapes)
    *rows, size = spec.observation_shape
    return dataclasses.replace(spec, observation_shape=(*rows, size - spec.num_agents))


def append_agent_ids(observation: Observation) -> Observation:
    """`[A, …, F]` to `[A, …, F + A]`; a dictionary has the new entry `agent_id [A, A]`."""
    if isinstance(observation, Mapping):
        agents = leading_shape(observation, 1)[0]
        return {**observation, AGENT_ID: jnp.eye(agents)}
    agents = observation.shape[0]
    ids = jnp.eye(agents, dtype=observation.dtype).reshape(agents, *[1] * (observation.ndim - 2), agents)
    ids = jnp.broadcast_to(ids, (*observation.shape[:-1], agents))
    return jnp.concatenate([observation, ids], axis=-1)


def unbatch(tree: PyTree, index: int) -> PyTree:
    """Element `index` of the leading axis of every leaf."""
    return jax.tree.map(lambda leaf: leaf[index], tree)
