"""Targets of value learning from sequences that may span several episodes, and updates of target networks."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from covey.types import Array, PyTree, Transition


def n_step_targets(
    reward: Array, next_value: Array, terminated: Array, last: Array, *, gamma: Array | float, num_steps: int
) -> Array:
    """n-step returns with a bootstrapped value, for each step with n steps ahead: `[T − n + 1, …]` from `[T, …]`.

    G_t = r_t + γ G_{t+1}. The sum ends after n steps or with the episode, and there `next_value`, the value of the true
    successor, replaces G_{t+1}; it is 0 where the return terminated. Nothing is read across the end of an episode.
    With a single target (`first_and_last`), `next_value [1, …]` is the value that ends it.
    """
    next_value = jnp.broadcast_to(next_value, reward.shape)
    one_step = reward + gamma * jnp.where(terminated, 0.0, next_value)
    target = one_step
    for _ in range(num_steps - 1):
        following = reward[:-1] + gamma * jnp.where(terminated[:-1], 0.0, target[1:])
        target = jnp.where(last[:-1], one_step[:-1], following)
        reward, terminated, last, one_step = (x[:-1] for x in (reward, terminated, last, one_step))
    return target


def first_and_last(steps: Transition, *, remembers: bool) -> tuple[Transition, Transition]:
    """From sequences `[L, N, …]`: the steps that have a target, and those whose successors the targets bootstrap from.

    Without memory a sequence has one target, and networks evaluate only two of its steps, `[1, N, …]`: the first, and
    the one that ends its episode or else the sequence. With memory they evaluate all steps.
    """
    length, num_sequences = steps.last.shape
    if remembers or length == 1:
        return steps, steps
    end = jnp.where(steps.last.any(0), jnp.argmax(steps.last, axis=0), length - 1)
    first = jax.tree.map(lambda x: x[:1], steps)
    return first, jax.tree.map(lambda x: x[end, jnp.arange(num_sequences)][None], steps)


def masked_max(values: Array, mask: Array | None) -> Array:
    """The largest of `values [..., n]` that `mask` allows."""
    return jnp.max(mask_out(values, mask), axis=-1)


def masked_argmax(values: Array, mask: Array | None) -> Array:
    """The index of the largest of `values [..., n]` that `mask` allows."""
    return jnp.argmax(mask_out(values, mask), axis=-1)


def mask_out(values: Array, mask: Array | None) -> Array:
    """`values` with −∞ where `mask` is false."""
    return values if mask is None else jnp.where(mask, values, -jnp.inf)


def take_action(values: Array, action: Array) -> Array:
    """The entry of `values [..., n]` at `action [...]`."""
    return jnp.take_along_axis(values, action[..., None], axis=-1)[..., 0]


def move_towards(target: PyTree, params: PyTree, step: Array | float) -> PyTree:
    """Target parameters after a soft update, θ' + τ (θ − θ'): a step of 1 copies θ, 0 keeps θ'."""
    return jax.tree.map(lambda old, new: old + step * (new - old), target, params)
