"""From agents to their team: its reward, its end, and whether it counts."""

from __future__ import annotations

import jax.numpy as jnp

from covey.types import Array


def team_of(reward: Array, terminated: Array, alive: Array) -> tuple[Array, Array, Array]:
    """The mean reward of living agents, whether the team's return ended, and whether anyone lived: `[…]` of `[…, A]`.

    Shared rewards stay as they are. The team goes on while one of its agents does.
    """
    living = jnp.maximum(alive.sum(-1), 1)
    mean = jnp.sum(jnp.where(alive, reward, 0.0), -1) / living
    return mean, jnp.all(terminated | ~alive, -1), jnp.any(alive, -1)
