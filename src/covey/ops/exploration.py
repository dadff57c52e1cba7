"""Exploration: ε-greedy actions, annealing, and uniformly random actions."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from covey.ops import random
from covey.ops.distributions import make_distribution
from covey.types import ActionSpec, Array, Continuous, Key


def epsilon_greedy(greedy: Array, mask: Array | None, num_actions: int, epsilon: Array, key: Key) -> Array:
    """`greedy [B, A]`, or with probability ε a random legal action. Agents explore independently."""
    key_whether, key_which = jax.random.split(key)
    logits = jnp.zeros((*greedy.shape, num_actions)) if mask is None else jnp.where(mask, 0.0, -jnp.inf)
    anything = jax.random.categorical(key_which, logits)
    return jnp.where(random.uniform(key_whether, greedy.shape) < epsilon, anything, greedy)


def anneal(start: Array | float, end: Array | float, fraction: float, progress: Array) -> Array:
    """Moves linearly from `start` to `end` over the first `fraction` of training, then stays at `end`."""
    passed = jnp.clip(progress / max(fraction, 1e-8), 0.0, 1.0)
    value: Array = jnp.float32(start) + passed * (end - start)
    return value


def sample_uniform(action: ActionSpec, shape: tuple[int, ...], mask: Array | None, key: Key) -> Array:
    """Actions `[*shape, …]`, drawn uniformly from the legal ones."""
    if isinstance(action, Continuous):
        low, high = jnp.asarray(action.low), jnp.asarray(action.high)
        return low + (high - low) * random.uniform(key, (*shape, action.size))
    distribution = make_distribution(action)
    return distribution.sample(jnp.zeros((*shape, distribution.num_parameters)), mask, key)
