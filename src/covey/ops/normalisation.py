"""Running mean and variance, for observations, values and advantages; over several devices where an axis is named."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from covey.ops.devices import gather_over_devices
from covey.types import Array, Observation, PyTree, pytree


@pytree
class Moments:
    """Mean and variance of the values seen so far, and their total weight."""

    weight: Array
    mean: Array
    variance: Array


def init_moments(shape: tuple[int, ...] = ()) -> Moments:
    """Moments of nothing yet: weight and mean 0, variance 1."""
    return Moments(weight=jnp.zeros(()), mean=jnp.zeros(shape), variance=jnp.ones(shape))


def batch_moments(x: Array, mask: Array, axis_name: str | None = None) -> Moments:
    """Moments of the entries where `mask` is true, over its axes; `x` may have more, trailing axes."""
    axes = tuple(range(mask.ndim))
    weights = mask.astype(jnp.float32).reshape(mask.shape + (1,) * (x.ndim - mask.ndim))
    weight = jnp.sum(weights)
    mean = jnp.sum(x * weights, axis=axes) / jnp.maximum(weight, 1.0)
    variance = jnp.sum(jnp.square(x - mean) * weights, axis=axes) / jnp.maximum(weight, 1.0)
    moments = Moments(weight=weight, mean=mean, variance=variance)
    return moments if axis_name is None else _pool(gather_over_devices(moments, axis_name))


def _pool(moments: Moments) -> Moments:
    """Pools moments along the leading axis into one."""
    weight = jnp.sum(moments.weight)
    shares = moments.weight / jnp.maximum(weight, 1.0)
    mean = jnp.tensordot(shares, moments.mean, 1)
    variance = jnp.tensordot(shares, moments.variance + jnp.square(moments.mean - mean), 1)
    return Moments(weight=weight, mean=mean, variance=variance)


def merge_moments(old: Moments, new: Moments, *, decay: float = 1.0) -> Moments:
    """Moments of both together (Chan et al., 1983); `decay` < 1 reduces the weight of the old ones."""
    old_weight = old.weight * decay
    weight = old_weight + new.weight
    share = new.weight / jnp.maximum(weight, 1e-8)
    difference = new.mean - old.mean
    mean = old.mean + difference * share
    variance = old.variance * (1.0 - share) + new.variance * share + jnp.square(difference) * share * (1.0 - share)
    return Moments(weight=weight, mean=mean, variance=jnp.where(weight > 0, variance, old.variance))


def normalise(x: Array, moments: Moments, *, clip: float | None = None) -> Array:
    """`x` in standard deviations from the mean; `clip` bounds it, for network inputs but not for targets."""
    deviations = (x - moments.mean) * jax.lax.rsqrt(moments.variance + 1e-8)
    return deviations if clip is None else jnp.clip(deviations, -clip, clip)


def normalise_entries(x: Observation, moments: PyTree, *, clip: float | None = None) -> Observation:
    """`normalise` of an array, or of each entry of a dictionary by moments of its own."""
    return jax.tree.map(lambda leaf, own: normalise(leaf, own, clip=clip), x, moments)


def merge_entries(moments: PyTree, x: Observation, mask: Array, axis_name: str | None = None) -> PyTree:
    """`moments` with those of `x` where `mask` is true, of an array or entry by entry."""

    def merge(leaf: Array, old: Moments) -> Moments:
        return merge_moments(old, batch_moments(leaf.astype(jnp.float32), mask, axis_name))

    return jax.tree.map(merge, x, moments)


def scale_up(x: Array, moments: Moments) -> Array:
    """Undoes `normalise`, except for its clipping."""
    return x * jnp.sqrt(moments.variance + 1e-8) + moments.mean
