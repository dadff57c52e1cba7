"""A group that takes every legal action with equal probability: the lower end of every scale, and an opponent."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from covey.ops.distributions import make_distribution
from covey.types import ActionSpec, Algorithm, Array, Continuous, EnvSpec, Key, PyTree, TimeStep


def make_random_group(spec: EnvSpec, group: str) -> Algorithm:
    action = spec.groups[group].action

    def act(state: PyTree, timestep: TimeStep, carry: PyTree, key: Key, explore: bool) -> tuple[Array, dict, PyTree]:
        step = timestep.groups[group]
        return sample_uniform(action, step.alive.shape, step.action_mask, key), {}, carry

    def update(*_: Any) -> Any:
        raise NotImplementedError("a random group does not learn")

    return Algorithm(init=lambda key: (), initial_carry=lambda num_envs: (), act=act, update=update)


def sample_uniform(action: ActionSpec, shape: tuple[int, ...], mask: Array | None, key: Key) -> Array:
    """Actions `[*shape, …]`, uniform over what is legal."""
    if isinstance(action, Continuous):
        low, high = jnp.asarray(action.low), jnp.asarray(action.high)
        return jax.random.uniform(key, (*shape, action.size), minval=low, maxval=high)
    distribution = make_distribution(action)
    return distribution.sample(jnp.zeros((*shape, distribution.num_parameters)), mask, key)
