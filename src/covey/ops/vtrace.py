"""V-trace (Espeholt et al., 2018): returns and advantages from steps that an older policy took, batched, time-major."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from covey.types import Array


def vtrace(
    reward: Array,
    value: Array,
    next_value: Array,
    ratio: Array,
    terminated: Array,
    last: Array,
    *,
    gamma: Array | float,
    vtrace_lambda: Array | float = 1.0,
    rho_bar: Array | float = 1.0,
    c_bar: Array | float = 1.0,
) -> tuple[Array, Array]:
    """Advantages and value targets (eq. 1 and section 4.2), corrected for the policy that acted.

        δ_t = ρ_t (r_t + γ_t v(s'_t) − v(s_t))            ρ_t = min(ρ̄, ratio_t),   γ_t = γ (1 − terminated_t)
        e_t = δ_t + γ_t c_t (1 − last_t) e_{t+1}          c_t = λ min(c̄, ratio_t)
        A_t = r_t + γ_t (v(s'_t) + λ (1 − last_t) e_{t+1}) − v(s_t)          target_t = v(s_t) + e_t

    `ratio` is the probability of the action by the policy that learns, over that by the one that acted. The policy's
    gradient is ρ_t A_t ∇ log π: the weight ρ_t is not in `A_t`. With ratios of 1 both are those of GAE.

    `next_value` is the value of the true successor s'_t, also where the episode was cut there: a truncated step
    bootstraps, a terminated one does not, and neither looks into the next episode. All arrays `[T, …]`.
    """
    discount = gamma * (1.0 - terminated)
    advantage = reward + discount * next_value - value  # after one step
    delta = jnp.minimum(rho_bar, ratio) * advantage
    following = discount * vtrace_lambda * (1.0 - last)  # what e_{t+1} counts for in A_t

    def backward(error: Array, step: tuple[Array, Array, Array]) -> tuple[Array, tuple[Array, Array]]:
        delta_t, following_t, c_t = step
        ahead = following_t * error
        error = delta_t + c_t * ahead
        return error, (error, ahead)

    steps = (delta, following, jnp.minimum(c_bar, ratio))
    _, (errors, ahead) = jax.lax.scan(backward, jnp.zeros_like(delta[0]), steps, reverse=True)
    return advantage + ahead, value + errors
