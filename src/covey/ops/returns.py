"""Returns and advantages, batched and time-major."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from covey.types import Array


def gae(
    reward: Array,
    value: Array,
    next_value: Array,
    terminated: Array,
    last: Array,
    *,
    gamma: Array | float,
    gae_lambda: Array | float,
) -> tuple[Array, Array]:
    """Generalised advantage estimation (Schulman et al., 2016, eq. 16) and its value targets.

        δ_t = r_t + γ (1 − terminated_t) v(s'_t) − v(s_t)
        A_t = δ_t + γ λ (1 − terminated_t) (1 − last_t) A_{t+1}          target_t = A_t + v(s_t)

    `next_value` is the value of the true successor s'_t, also where the episode was cut there: a truncated step
    bootstraps, a terminated one does not, and neither looks into the next episode. All arrays `[T, …]`.
    """
    discount = gamma * (1.0 - terminated)
    delta = reward + discount * next_value - value
    decay = discount * gae_lambda * (1.0 - last)

    def backward(advantage: Array, step: tuple[Array, Array]) -> tuple[Array, Array]:
        delta_t, decay_t = step
        advantage = delta_t + decay_t * advantage
        return advantage, advantage

    _, advantages = jax.lax.scan(backward, jnp.zeros_like(delta[0]), (delta, decay), reverse=True)
    return advantages, advantages + value


def lambda_returns(
    reward: Array, next_value: Array, terminated: Array, last: Array, *, gamma: Array | float, lambda_: Array | float
) -> Array:
    """G_t = r_t + γ (1 − terminated_t) [(1 − λ) v(s'_t) + λ G_{t+1}], and where an episode ends, v(s'_t) alone.

    This is GAE's target if the value of each step is the `next_value` of the step before. All arrays `[T, …]`.
    """
    value = jnp.concatenate([jnp.zeros_like(next_value[:1]), next_value[:-1]])
    return gae(reward, value, next_value, terminated, last, gamma=gamma, gae_lambda=lambda_)[1]
