"""How a coefficient changes over training: a factor on its base value, by progress from 0 to 1."""

from __future__ import annotations

import enum
from collections.abc import Mapping

import jax.numpy as jnp

from covey.types import Array


class Schedule(enum.Enum):
    constant = "stays"
    linear = "falls linearly to zero"
    cosine = "falls along half a cosine to zero"


def scheduled(coefficients: Mapping[str, Array], progress: Array, **schedules: Schedule) -> dict[str, Array]:
    """The coefficients at `progress`: those that `schedules` names are scaled, the others are as they are."""
    now = {name: coefficients[name] * factor(schedule, progress) for name, schedule in schedules.items()}
    return {**coefficients, **now}


def factor(schedule: Schedule, progress: Array) -> Array:
    progress = jnp.clip(progress, 0.0, 1.0)
    match schedule:
        case Schedule.constant:
            return jnp.ones_like(progress)
        case Schedule.linear:
            return 1.0 - progress
        case Schedule.cosine:
            return 0.5 * (1.0 + jnp.cos(jnp.pi * progress))
