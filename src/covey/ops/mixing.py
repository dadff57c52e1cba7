"""From agents to their team: its reward, its end, and whether it counts."""

from __future__ import annotations

import jax.numpy as jnp

from covey.types import Array, Transition


def team_of(reward: Array, terminated: Array, alive: Array) -> tuple[Array, Array, Array]:
    """The team's reward, whether its return ended, and whether anyone lived: `[…]` of `[…, A]`.

    The reward is the mean over all agents of what the living earn, so that it adds up to the return that is reported:
    a mean over the living alone would pay for ending one after another. The team goes on while one of its agents does.
    """
    mean = jnp.mean(jnp.where(alive, reward, 0.0), -1)
    return mean, jnp.all(terminated | ~alive, -1), jnp.any(alive, -1)


def returns_learned(steps: Transition, *, team: bool) -> tuple[Array, Array, Array, Array]:
    """Reward, termination, end of the episode and whether the step counts, of the return that is learned.

    `[…]` for the team's return, or `[…, A]` for each agent's own, of steps `[…, A]`.
    """
    if team:
        reward, terminated, counts = team_of(steps.reward, steps.terminated, steps.alive)
        return reward, terminated, steps.last, counts
    last = jnp.broadcast_to(steps.last[..., None], steps.reward.shape)
    return steps.reward, steps.terminated, last, steps.alive
