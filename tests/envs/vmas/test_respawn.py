"""What comes back somewhere else in the middle of an episode: whoever is caught in tag, and covered targets."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from placing import placed

import covey


def scenario_of(task: str, **fields: Any) -> Any:
    env: Any = covey.make_env(task, **fields)
    return env.env.scenario


def rewarded(scenario: Any, state: Any, num: int = 64) -> Any:
    """Rewards and the states after them for so many keys."""
    return jax.jit(jax.vmap(scenario.reward, (None, 0)))(state, jax.random.split(jax.random.key(1), num))


def placed_at_speed(scenario: Any, places: dict[str, tuple[float, float]]) -> tuple[Any, list[str]]:
    state, names = placed(scenario, places)
    return state.with_world(velocity=jnp.ones_like(state.world.velocity)), names


def test_who_is_caught_in_tag_starts_again_at_rest() -> None:
    scenario = scenario_of("vmas/simple_tag", respawn_at_catch=True, num_adversaries=1, num_good_agents=2)
    caught, free = "agent_0", "agent_1"
    state, names = placed_at_speed(scenario, {"adversary_0": (0.0, 0.0), caught: (0.01, 0.0), free: (0.8, 0.8)})
    rewards, after = rewarded(scenario, state)
    np.testing.assert_allclose(rewards[0, 0], 10.0)
    position, velocity = np.asarray(after.world.position), np.asarray(after.world.velocity)
    one, other = names.index(caught), names.index(free)
    assert np.all(velocity[:, one] == 0) and np.all(velocity[:, other] == 1)
    assert np.all(np.abs(position[:, one]) <= scenario.config.bound)
    assert np.unique(position[:, one, 0]).size == len(position)  # each key another place, over the whole square
    assert position[:, one].min() < -0.8 * scenario.config.bound
    np.testing.assert_allclose(position[:, other], np.broadcast_to([0.8, 0.8], position[:, other].shape))
    np.testing.assert_array_equal(position[:, names.index("adversary_0")], 0.0)


def test_without_respawn_the_caught_stay() -> None:
    scenario = scenario_of("vmas/simple_tag", num_adversaries=1, num_good_agents=1)
    state, _ = placed_at_speed(scenario, {"adversary_0": (0.0, 0.0), "agent_0": (0.01, 0.0)})
    _, after = rewarded(scenario, state, 4)
    np.testing.assert_array_equal(after.world.position[0], state.world.position)


def covered_target(**fields: Any) -> tuple[Any, np.ndarray, list[str], Any]:
    scenario = scenario_of("vmas/discovery", n_agents=3, n_targets=2, **fields)
    places = {
        "agent_0": (0.5, 0.1),
        "agent_1": (0.5, -0.1),
        "agent_2": (-0.5, 0.0),
        "target_0": (0.5, 0.0),
        "target_1": (-0.9, -0.9),
    }
    state, names = placed_at_speed(scenario, places)
    _, after = rewarded(scenario, state)
    return scenario, np.asarray(after.world.position), names, after


def test_a_covered_target_comes_back_apart_from_all_others() -> None:
    scenario, position, names, _ = covered_target()
    target = names.index("target_0")
    moved = position[:, target]
    assert np.unique(moved[:, 0]).size == len(moved)
    assert np.all(np.abs(moved) <= [scenario.config.x_semidim, scenario.config.y_semidim])
    others = np.delete(position, target, axis=1)
    apart = np.linalg.norm(others - moved[:, None], axis=-1)
    assert apart.min() >= scenario.config.min_dist_between_entities
    np.testing.assert_allclose(position[:, names.index("target_1")] + 0.9, 0.0, atol=1e-6)  # seen by nobody: stays


def test_covered_targets_that_do_not_come_back_end_the_episode() -> None:
    scenario, position, names, after = covered_target(targets_respawn=False)
    assert np.all(position[:, names.index("target_0")] < -5 * scenario.config.x_semidim)
    np.testing.assert_array_equal(after.memory["gone"], np.broadcast_to([True, False], (len(position), 2)))
    assert not np.any(jax.vmap(scenario.done)(after))
    everything = after.remember(gone=jnp.ones_like(after.memory["gone"]))
    assert np.all(jax.vmap(scenario.done)(everything))
