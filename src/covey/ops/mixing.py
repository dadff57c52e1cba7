"""From agents to their team: the team's reward, whether it terminated, and whether its step counts."""

from __future__ import annotations

import jax.numpy as jnp

from covey.types import Array, Transition


def team_of(reward: Array, terminated: Array, alive: Array) -> tuple[Array, Array, Array]:
    """The team's reward, whether its return terminated, and whether any agent was alive: `[…]` from `[…, A]`.

    The reward is the mean over all agents, where the dead earn 0, so that it adds up to the reported return. A mean
    over living agents only would reward agents for dying one by one. The team continues while any of its agents does.
    """
    mean = jnp.mean(jnp.where(alive, reward, 0.0), -1)
    return mean, jnp.all(terminated | ~alive, -1), jnp.any(alive, -1)


def returns_learned(steps: Transition, *, team: bool) -> tuple[Array, Array, Array, Array]:
    """Reward, termination, end of episode and whether the step counts, for the return that is learned.

    Shapes are `[…]` for the team's return and `[…, A]` for each agent's own, from steps `[…, A]`.
    """
    if team:
        reward, terminated, counts = team_of(steps.reward, steps.terminated, steps.alive)
        return reward, terminated, steps.last, counts
    last = jnp.broadcast_to(steps.last[..., None], steps.reward.shape)
    return steps.reward, steps.terminated, last, steps.alive
