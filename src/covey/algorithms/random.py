"""Groups that draw their actions uniformly from the legal ones: a lower baseline, and an opponent."""

from __future__ import annotations

from typing import Any

import jax

from covey.ops.exploration import sample_uniform
from covey.types import Algorithm, Array, EnvSpec, Key, PyTree, TimeStep


def make_random_team(spec: EnvSpec) -> Algorithm:
    """All groups of a task. Its `act` accepts any acting tree and carry, and ignores both."""
    parts = {group: make_random_group(spec, group) for group in spec.groups}

    def act(
        acting: PyTree, timestep: TimeStep, carry: PyTree, key: Key, explore: bool
    ) -> tuple[PyTree, PyTree, PyTree]:
        keys = jax.random.split(key, len(parts))
        actions = {
            group: part.act((), timestep, (), key_group, explore)[0]
            for (group, part), key_group in zip(parts.items(), keys, strict=True)
        }
        return actions, {group: {} for group in parts}, carry

    return Algorithm(init=lambda key: (), initial_carry=lambda num_envs: (), act=act, update=_never)


def make_random_group(spec: EnvSpec, group: str) -> Algorithm:
    """An `Algorithm` for one group: legal actions with equal probability, continuous ones uniform within their bounds.

    It learns nothing.
    """
    action = spec.groups[group].action

    def act(
        acting: PyTree, timestep: TimeStep, carry: PyTree, key: Key, explore: bool
    ) -> tuple[Array, dict[str, Array], PyTree]:
        step = timestep.groups[group]
        return sample_uniform(action, step.alive.shape, step.action_mask, key), {}, carry

    return Algorithm(init=lambda key: (), initial_carry=lambda num_envs: (), act=act, update=_never)


def _never(*_: Any) -> Any:
    raise NotImplementedError("a random policy does not learn")
