"""Action distributions as bundles of pure functions over a network's outputs: `make_distribution(action_spec)`.

A bundle works on *raw* actions, and `to_action` converts them to the environment's. Discrete actions are their own raw
actions. For continuous ones the raw action is the Gaussian sample before tanh squashes it into the bounds: its density
then needs no inverse tanh, which saturates in single precision.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from covey.ops import random
from covey.types import ActionSpec, Array, Continuous, Discrete, Key, MultiDiscrete

# Far below any logit, far from overflow: probability zero, and 0 * log 0 stays 0.
MASKED_LOGIT = -1e9
MIN_SCALE = 0.01


@dataclasses.dataclass(frozen=True, kw_only=True)
class Distribution:
    """The leading axes of all arguments are batch axes; `mask` is None where every action is legal.

    num_parameters                               network outputs per agent
    sample(parameters, mask, key) -> raw
    mode(parameters, mask) -> raw
    log_prob(parameters, mask, raw) -> [...]
    entropy(parameters, mask, noise) -> [...]    exact if there is a closed form, else an estimate from one sample
    noise_size                                   standard normal numbers that the estimate needs; 0 if exact
    to_action(raw) -> action
    """

    num_parameters: int
    sample: Callable[[Array, Array | None, Key], Array]
    mode: Callable[[Array, Array | None], Array]
    log_prob: Callable[[Array, Array | None, Array], Array]
    entropy: Callable[[Array, Array | None, Array | None], Array]
    to_action: Callable[[Array], Array]
    noise_size: int = 0


def make_distribution(action: ActionSpec, initial_scale: float = 1.0) -> Distribution:
    """The distribution that fits `action`: masked categorical, several of them, or tanh-normal to the bounds.

    `initial_scale` is the tanh-normal's where the head gives zeros.
    """
    match action:
        case Discrete(num_actions):
            return _make_categorical(num_actions)
        case MultiDiscrete(num_actions):
            return _make_multi_categorical(num_actions)
        case Continuous():
            return _make_tanh_normal(action, initial_scale)


# ---------------------------------------------------------------------------------------------------- categorical


def masked_logits(logits: Array, mask: Array | None) -> Array:
    """Logits that give illegal actions probability 0."""
    return logits if mask is None else jnp.where(mask, logits, MASKED_LOGIT)


def sample_categorical(logits: Array, key: Key) -> Array:
    """Inverts the cumulative distribution: one random number per sample, where Gumbel noise needs one per choice."""
    cumulative = jnp.cumsum(jax.nn.softmax(logits), axis=-1)
    # Kept below the total, so that rounding can never select past the last legal choice.
    threshold = random.uniform(key, logits.shape[:-1]) * (1.0 - 1e-6) * cumulative[..., -1]
    return jnp.sum(cumulative <= threshold[..., None], axis=-1, dtype=jnp.int32)


def categorical_log_prob(logits: Array, action: Array) -> Array:
    """Log-probability of `action`, selected by comparison: the gradient of indexing is a scatter, slow on a CPU."""
    choices = jnp.arange(logits.shape[-1]).reshape(-1, *[1] * action.ndim)
    return jnp.sum(jnp.where(choices == action, log_probabilities(logits), 0.0), axis=0)


def categorical_entropy(logits: Array) -> Array:
    """H = −Σ_a p(a) log p(a) of the distribution with these logits: `[…]` from `[…, n]`."""
    log_probs = log_probabilities(logits)
    return -jnp.sum(jnp.exp(log_probs) * log_probs, axis=0)


def log_probabilities(logits: Array) -> Array:
    """`[n, …]` from `[…, n]`: along a last axis of a few choices, a processor's vector units idle."""
    return jax.nn.log_softmax(jnp.moveaxis(logits, -1, 0), axis=0)


def _make_categorical(num_actions: int) -> Distribution:
    return Distribution(
        num_parameters=num_actions,
        sample=lambda logits, mask, key: sample_categorical(masked_logits(logits, mask), key),
        mode=lambda logits, mask: jnp.argmax(masked_logits(logits, mask), axis=-1).astype(jnp.int32),
        log_prob=lambda logits, mask, raw: categorical_log_prob(masked_logits(logits, mask), raw),
        entropy=lambda logits, mask, noise: categorical_entropy(masked_logits(logits, mask)),
        to_action=lambda raw: raw,
    )


def _make_multi_categorical(num_actions: tuple[int, ...]) -> Distribution:
    """Independent choices; their logits and masks are concatenated."""
    borders = np.cumsum(num_actions)[:-1]

    def parts(logits: Array, mask: Array | None) -> list[Array]:
        return jnp.split(masked_logits(logits, mask), borders, axis=-1)

    def sample(logits: Array, mask: Array | None, key: Key) -> Array:
        keys = jax.random.split(key, len(num_actions))
        return jnp.stack(
            [sample_categorical(part, k) for part, k in zip(parts(logits, mask), keys, strict=True)], axis=-1
        )

    def mode(logits: Array, mask: Array | None) -> Array:
        return jnp.stack([jnp.argmax(part, axis=-1).astype(jnp.int32) for part in parts(logits, mask)], axis=-1)

    def log_prob(logits: Array, mask: Array | None, raw: Array) -> Array:
        return sum(categorical_log_prob(part, raw[..., i]) for i, part in enumerate(parts(logits, mask)))  # type: ignore

    def entropy(logits: Array, mask: Array | None, noise: Array | None) -> Array:
        return sum(categorical_entropy(part) for part in parts(logits, mask))  # type: ignore[return-value]

    return Distribution(
        num_parameters=sum(num_actions),
        sample=sample,
        mode=mode,
        log_prob=log_prob,
        entropy=entropy,
        to_action=lambda raw: raw,
    )


# ---------------------------------------------------------------------------------------------------- tanh-normal


def location_and_scale(parameters: Array, initial_scale: float = 1.0) -> tuple[Array, Array]:
    """Splits a head's outputs into location and scale. An output of 0 gives `initial_scale`, none less than 0.01."""
    location, raw_scale = jnp.split(jnp.moveaxis(parameters, -1, 0), 2)  # as in `log_probabilities`
    scale = jax.nn.softplus(raw_scale + math.log(math.expm1(initial_scale - MIN_SCALE))) + MIN_SCALE
    return jnp.moveaxis(location, 0, -1), jnp.moveaxis(scale, 0, -1)


def tanh_normal_log_prob(location: Array, scale: Array, raw: Array, half_range: Array | np.ndarray) -> Array:
    """log N(raw; location, scale) − log |d action / d raw|, with log(1 − tanh² x) = 2 (log 2 − x − softplus(−2x))."""
    location, scale, raw = (jnp.moveaxis(x, -1, 0) for x in jnp.broadcast_arrays(location, scale, raw))
    normal = -0.5 * jnp.square((raw - location) / scale) - jnp.log(scale) - 0.5 * math.log(2.0 * math.pi)
    squash = 2.0 * (math.log(2.0) - raw - jax.nn.softplus(-2.0 * raw))
    log_prob: Array = jnp.sum(normal - squash, axis=0) - np.sum(np.log(half_range))
    return log_prob


def _make_tanh_normal(action: Continuous, initial_scale: float) -> Distribution:
    low, high = np.asarray(action.low, np.float32), np.asarray(action.high, np.float32)
    half_range = (high - low) / 2.0

    def split(parameters: Array) -> tuple[Array, Array]:
        return location_and_scale(parameters, initial_scale)

    def sample(parameters: Array, mask: Array | None, key: Key) -> Array:
        location, scale = split(parameters)
        return location + scale * random.normal(key, location.shape)

    def log_prob(parameters: Array, mask: Array | None, raw: Array) -> Array:
        return tanh_normal_log_prob(*split(parameters), raw, half_range)

    def entropy(parameters: Array, mask: Array | None, noise: Array | None) -> Array:
        assert noise is not None
        location, scale = split(parameters)
        return -tanh_normal_log_prob(location, scale, location + scale * noise, half_range)

    return Distribution(
        num_parameters=2 * action.size,
        sample=sample,
        mode=lambda parameters, mask: split(parameters)[0],
        log_prob=log_prob,
        entropy=entropy,
        to_action=lambda raw: (jnp.tanh(raw) + 1.0) * half_range + low,
        noise_size=action.size,
    )
