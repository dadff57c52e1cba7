"""Running mean and variance, for observations, values and advantages; over several devices where an axis is named."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from covey.types import Array, pytree


@pytree
class Moments:
    """Mean and variance of what was seen, and how much of it counts."""

    weight: Array
    mean: Array
    variance: Array


def init_moments(shape: tuple[int, ...] = ()) -> Moments:
    return Moments(weight=jnp.zeros(()), mean=jnp.zeros(shape), variance=jnp.ones(shape))


def batch_moments(x: Array, mask: Array, axis_name: str | None = None) -> Moments:
    """Moments over the axes of `mask`, of what it leaves; `x` may have further, trailing axes."""
    axes = tuple(range(mask.ndim))
    weights = mask.astype(jnp.float32).reshape(mask.shape + (1,) * (x.ndim - mask.ndim))

    def total(values: Array) -> Array:
        result = jnp.sum(values * weights, axis=axes)
        return jax.lax.psum(result, axis_name) if axis_name else result

    weight = total(jnp.ones(mask.shape + (1,) * (x.ndim - mask.ndim))).reshape(())
    mean = total(x) / jnp.maximum(weight, 1.0)
    variance = total(jnp.square(x - mean)) / jnp.maximum(weight, 1.0)
    return Moments(weight=weight, mean=mean, variance=variance)


def merge_moments(old: Moments, new: Moments, *, decay: float = 1.0) -> Moments:
    """Moments of both together (Chan et al., 1983); `decay` < 1 lets the old count for less each time."""
    old_weight = old.weight * decay
    weight = old_weight + new.weight
    share = new.weight / jnp.maximum(weight, 1e-8)
    difference = new.mean - old.mean
    mean = old.mean + difference * share
    variance = old.variance * (1.0 - share) + new.variance * share + jnp.square(difference) * share * (1.0 - share)
    return Moments(weight=weight, mean=mean, variance=jnp.where(weight > 0, variance, old.variance))


def normalise(x: Array, moments: Moments, *, clip: float = 10.0) -> Array:
    return jnp.clip((x - moments.mean) * jax.lax.rsqrt(moments.variance + 1e-8), -clip, clip)


def scale_up(x: Array, moments: Moments) -> Array:
    """Undoes the normalisation (without its clipping)."""
    return x * jnp.sqrt(moments.variance + 1e-8) + moments.mean
