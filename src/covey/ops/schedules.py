"""Schedules: the factor that scales a coefficient at each point of training, from progress 0 to 1."""

from __future__ import annotations

import enum
from collections.abc import Mapping

import jax.numpy as jnp

from covey.types import Array


class Schedule(enum.Enum):
    """How a coefficient changes from the start of a run to the end of its schedule."""

    constant = "stays the same"
    linear = "falls linearly to zero"
    cosine = "falls along half a cosine to zero"


def scheduled(coefficients: Mapping[str, Array], progress: Array, **schedules: Schedule) -> dict[str, Array]:
    """The coefficients at `progress`: those that `schedules` names are scaled, the others unchanged."""
    now = {name: coefficients[name] * factor(schedule, progress) for name, schedule in schedules.items()}
    return {**coefficients, **now}


def factor(schedule: Schedule, progress: Array) -> Array:
    """What a coefficient with this schedule is multiplied by at `progress`."""
    progress = jnp.clip(progress, 0.0, 1.0)
    match schedule:
        case Schedule.constant:
            return jnp.ones_like(progress)
        case Schedule.linear:
            return 1.0 - progress
        case Schedule.cosine:
            return 0.5 * (1.0 + jnp.cos(jnp.pi * progress))
