"""Rewards for learning by a scenario's potential: they add up to what it gained, and no return counts them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from placing import placed

import covey


def play(env: Any, num_steps: int = 60) -> tuple[Any, Any, np.ndarray, np.ndarray]:
    """Rewards and shaping `[T, A]` of agents that go straight for the food of their number, and the last state."""

    def step(carry: Any, key: jax.Array) -> tuple[Any, Any]:
        state, timestep = carry
        seen = timestep.groups["agents"].observation
        food = seen[:, 4:].reshape(4, 4, 3)[np.arange(4), np.arange(4), :2]
        state, timestep = env.step(state, {"agents": jnp.clip(5.0 * food - seen[:, 2:4], -1, 1)}, key)
        group = timestep.groups["agents"]
        return (state, timestep), (group.reward, group.shaping)

    start = env.reset(jax.random.key(3))
    keys = jax.random.split(jax.random.key(4), num_steps)
    (end, _), (rewards, shaping) = jax.jit(lambda: jax.lax.scan(step, start, keys))()
    return start[0], end, np.asarray(rewards), np.asarray(shaping)


def test_shaping_adds_up_to_the_potential_gained() -> None:
    env: Any = covey.make_env("vmas/dispersion", shaping=2.0, time_limit=1000)
    start, end, rewards, shaping = play(env)
    scenario = env.env.scenario
    gained = scenario.potential(end[0]) - scenario.potential(start[0])
    np.testing.assert_allclose(shaping.sum(axis=0), 2.0 * gained, rtol=1e-4)
    np.testing.assert_allclose(rewards.sum(axis=0), 4.0)  # all food is eaten, and that alone is the return
    np.testing.assert_allclose(scenario.potential(end[0]), 0.0)  # nothing is left to go to


def test_without_it_nothing_changes() -> None:
    env: Any = covey.make_env("vmas/dispersion")
    _, timestep = env.reset(jax.random.key(0))
    assert timestep.groups["agents"].shaping is None


def test_a_scenario_without_a_potential_says_so() -> None:
    env = covey.make_env("vmas/navigation", shaping=1.0)
    with pytest.raises(ValueError, match="no potential"):
        jax.eval_shape(env.reset, jax.random.key(0))


@pytest.mark.parametrize(
    ("task", "places", "expected"),
    [
        # Behind the package, seen from the goal: 0.5 + 0.075 + 0.03 is where to push.
        ("transport", {"goal": (0.0, 0.0), "package 0": (0.5, 0.0), "agent_0": (0.605, 0.2)}, -1.2),
        # Behind the ball, seen from the right goal: the radii of both to its left.
        ("football", {"Ball": (0.0, 0.0), "agent_blue_0": (-0.045, 0.3)}, -0.3),
        ("football", {"Ball": (1.52, 0.0), "agent_blue_0": (0.0, 0.3)}, 0.0),  # in the goal
        # 0.3 up to the gap and 0.4 on to the goal; beyond the wall, straight to it.
        ("passage", {"passage 0": (0.0, 0.0), "goal 0": (0.0, 0.4), "agent_0": (0.0, -0.3)}, -70.0),
        ("passage", {"passage 0": (0.9, 0.0), "goal 0": (0.0, 0.4), "agent_0": (0.0, 0.1)}, -30.0),
    ],
)
def test_potentials_by_hand(task: str, places: dict[str, tuple[float, float]], expected: float) -> None:
    env: Any = covey.make_env(f"vmas/{task}")
    scenario = env.env.scenario
    state, _ = placed(scenario, places)
    assert float(scenario.potential(state)[0]) == pytest.approx(expected, rel=1e-5)
