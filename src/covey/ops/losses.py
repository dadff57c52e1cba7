"""Losses of policy gradient and value learning, each a mean over the agents that were alive."""

from __future__ import annotations

import jax.numpy as jnp

from covey.types import Array


def masked_mean(x: Array, mask: Array) -> Array:
    """The mean of `x` where `mask`; zero where nothing is."""
    return jnp.sum(jnp.where(mask, x, 0.0)) / jnp.maximum(jnp.sum(mask), 1)


def clipped_policy_loss(log_prob: Array, old_log_prob: Array, advantage: Array, mask: Array, *, clip: float) -> Array:
    """PPO's surrogate (Schulman et al., 2017, eq. 7): −E[min(ρ A, clip(ρ, 1 − ε, 1 + ε) A)], ρ = π / π_old."""
    ratio = jnp.exp(log_prob - old_log_prob)
    clipped = jnp.clip(ratio, 1.0 - clip, 1.0 + clip)
    return -masked_mean(jnp.minimum(ratio * advantage, clipped * advantage), mask)


def value_loss(value: Array, target: Array, mask: Array) -> Array:
    """Mean squared error, not halved."""
    return masked_mean(jnp.square(value - target), mask)


def clipped_value_loss(value: Array, old_value: Array, target: Array, mask: Array, *, clip: float) -> Array:
    """The larger of the squared errors of `value` and of `value` kept within `clip` of the one that acted."""
    near = old_value + jnp.clip(value - old_value, -clip, clip)
    return masked_mean(jnp.maximum(jnp.square(value - target), jnp.square(near - target)), mask)


def approximate_kl(log_prob: Array, old_log_prob: Array, mask: Array) -> Array:
    """KL(π_old ‖ π) by the low-variance estimator (ρ − 1) − log ρ (Schulman, 2020, "k3")."""
    log_ratio = log_prob - old_log_prob
    return masked_mean(jnp.exp(log_ratio) - 1.0 - log_ratio, mask)


def explained_variance(value: Array, target: Array, mask: Array) -> Array:
    """1 − Var(target − value) / Var(target) over what `mask` leaves."""

    def variance(x: Array) -> Array:
        return masked_mean(jnp.square(x - masked_mean(x, mask)), mask)

    return 1.0 - variance(target - value) / jnp.maximum(variance(target), 1e-8)
