"""Losses of policy gradient and value learning. Each is a mean over living agents: `weight` comes from `weigh`."""

from __future__ import annotations

import jax.numpy as jnp

from covey.ops.devices import mean_over_devices
from covey.types import Array


def weigh(mask: Array, axis_name: str | None = None) -> Array:
    """Equal weights where `mask` is true, 0 elsewhere, scaled to a mean of 1 over all devices."""
    share = mean_over_devices(jnp.mean(mask.astype(jnp.float32)), axis_name)
    return mask / jnp.maximum(share, 1e-8)


def weighted_mean(x: Array, weight: Array) -> Array:
    """The mean of `weight · x`.

    Entries of weight 0 may hold anything, even NaN, unless a gradient flows through them: then they must be finite.
    """
    return jnp.mean(jnp.where(weight > 0, x * weight, 0.0))


def clipped_policy_loss(
    log_prob: Array, old_log_prob: Array, advantage: Array, weight: Array, *, clip: Array | float
) -> Array:
    """PPO's surrogate (Schulman et al., 2017, eq. 7): −E[min(ρ A, clip(ρ, 1 − ε, 1 + ε) A)], ρ = π / π_old."""
    ratio = jnp.exp(log_prob - old_log_prob)
    clipped = jnp.clip(ratio, 1.0 - clip, 1.0 + clip)
    return -weighted_mean(jnp.minimum(ratio * advantage, clipped * advantage), weight)


def value_loss(value: Array, target: Array, weight: Array) -> Array:
    """Mean squared error, not halved."""
    return weighted_mean(jnp.square(value - target), weight)


def clipped_value_loss(value: Array, old_value: Array, target: Array, weight: Array, *, clip: float) -> Array:
    """The larger squared error of `value` and of `value` clipped to within `clip` of `old_value`, that of acting."""
    near = old_value + jnp.clip(value - old_value, -clip, clip)
    return weighted_mean(jnp.maximum(jnp.square(value - target), jnp.square(near - target)), weight)


def approximate_kl(log_prob: Array, old_log_prob: Array, weight: Array) -> Array:
    """KL(π_old ‖ π) by the low-variance estimator (ρ − 1) − log ρ (Schulman, 2020, "k3")."""
    log_ratio = log_prob - old_log_prob
    return weighted_mean(jnp.exp(log_ratio) - 1.0 - log_ratio, weight)


def explained_variance(value: Array, target: Array, weight: Array) -> Array:
    """1 − Var(target − value) / Var(target) over entries with a weight above 0, on this device."""
    weight = weigh(weight > 0)

    def variance(x: Array) -> Array:
        return weighted_mean(jnp.square(x - weighted_mean(x, weight)), weight)

    return 1.0 - variance(target - value) / jnp.maximum(variance(target), 1e-8)
