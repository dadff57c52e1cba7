"""Scenarios in states where things stand at given places."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def placed(scenario: Any, places: dict[str, tuple[float, float]]) -> tuple[Any, list[str]]:
    """A state after a reset with some entities moved, and the names of all entities in their order."""
    state = scenario.reset(jax.random.key(0))
    names = [entity.name for entity in scenario.world.entities]
    position = np.array(state.world.position)
    for name, place in places.items():
        position[names.index(name)] = place
    return state.with_world(position=jnp.array(position)), names
