"""Each probe is the game that its docstring says: what the best and the worst play earn, step by step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from covey import registry
from covey.envs.base import make_env
from covey.envs.probes import GROUP

NUM = 64


def best(name: str, observation: dict[str, Any], first: dict[str, Any]) -> dict[str, jax.Array]:
    """What a player who knows the game does; for `memory` it remembers the first observation."""
    seen: Any = observation.get(GROUP)
    match name:
        case "copy":
            return {GROUP: seen[:, 0].astype(jnp.int32)}
        case "masked":
            return {GROUP: jnp.ones(2, jnp.int32)}
        case "choices":
            return {GROUP: seen.astype(jnp.int32)}
        case "target":
            return {GROUP: seen}
        case "selfish":
            return {GROUP: jnp.ones((2, 1))}
        case "rows":
            return {GROUP: jnp.sum(seen[..., 0] * seen[..., 1], -1).astype(jnp.int32)}
        case "image_and_vector":
            is_right = seen["image"][:, :, 2:].sum((1, 2, 3)) > 0
            return {GROUP: is_right.astype(jnp.int32) ^ seen["vector"][:, 1].astype(jnp.int32)}
        case "compare":
            return {GROUP: (seen[:, 0] > seen.mean()).astype(jnp.int32)}
        case "memory":
            return {GROUP: (first[GROUP][:, 0] > 0).astype(jnp.int32)}
        case "two_step":
            return {GROUP: jnp.ones(2, jnp.int32)}
        case "groups":
            return {"copiers": observation["copiers"][:, 0].astype(jnp.int32), "guessers": jnp.zeros(1, jnp.int32)}
        case "team":
            return {"seers": (observation["seers"][:, 0] > 0).astype(jnp.int32), "blind": jnp.zeros(1, jnp.int32)}
        case "team_two_step":
            return {"leader": jnp.ones(1, jnp.int32), "follower": jnp.ones(1, jnp.int32)}
        case "team_target":
            return {"near": observation["near"][:, :1], "far": observation["far"][:, :2]}
        case _:
            return {GROUP: jnp.zeros(2, jnp.int32)}


def turned(actions: dict[str, jax.Array], name: str) -> Any:
    """The worst play: every choice another one."""
    worst = {
        "target": lambda a: jnp.clip(a - 1.0, -2, 2),
        "team_target": lambda a: a - 1.0,
        "choices": lambda a: (a + 1) % jnp.array([2, 3]),
    }
    return jax.tree.map(worst.get(name, lambda a: 1 - a), actions)


def returns(name: str, change: Callable[[Any, str], Any] = lambda actions, name: actions) -> Any:
    """Each group's return of each agent `[NUM, A]`, and the length of the episodes."""
    env = make_env(f"probe/{name}")

    @jax.jit
    @jax.vmap
    def play(key: jax.Array) -> Any:
        state, timestep = env.reset(key)
        first = {group: step.observation for group, step in timestep.groups.items()}
        total = {group: jnp.zeros_like(step.reward) for group, step in timestep.groups.items()}
        length: Any
        done, length = jnp.zeros((), bool), 0
        for _ in range(env.spec.time_limit):
            observation = {group: step.observation for group, step in timestep.groups.items()}
            state, timestep = env.step(state, change(best(name, observation, first), name), key)
            total = {group: value + jnp.where(done, 0, timestep.groups[group].reward) for group, value in total.items()}
            length, done = length + ~done, done | timestep.last
        return total, length

    return jax.device_get(play(jax.random.split(jax.random.key(0), NUM)))


# name: (best return of an agent, worst, steps)
GAMES = {
    "constant": (1.0, 1.0, 1),
    "delayed": (1.0, 1.0, 2),
    "truncation": (10.0, 10.0, 10),
    "copy": (1.0, 0.0, 1),
    "masked": (1.0, 0.0, 1),
    "choices": (1.0, 0.0, 1),
    "target": (1.0, 0.0, 1),
    "rows": (1.0, 0.0, 1),
    "image_and_vector": (1.0, 0.0, 1),
    "compare": (1.0, 0.0, 1),
    "memory": (1.0, 0.0, 5),
    "two_step": (8.0, 7.0, 2),
}


@pytest.mark.parametrize("name", GAMES)
def test_best_and_worst_play(name: str) -> None:
    good, bad, steps = GAMES[name]
    total, length = returns(name)
    np.testing.assert_allclose(total[GROUP], good, atol=1e-5)
    assert np.all(length == steps)
    if bad != good:
        np.testing.assert_allclose(returns(name, turned)[0][GROUP], bad, atol=1e-5)


def test_observed() -> None:
    total, _ = returns("observed")
    assert set(np.unique(total[GROUP])) == {-1.0, 1.0}


def test_death_offers_the_dead_a_hundred() -> None:
    total, length = returns("death")
    np.testing.assert_array_equal(total[GROUP], np.tile([202.0, 4.0], (NUM, 1)))
    assert np.all(length == 4)


def test_groups() -> None:
    total, _ = returns("groups")
    assert np.all(total["copiers"] == 1.0)
    assert total["guessers"].mean() == pytest.approx(0.5, abs=0.2)
    assert np.all(returns("groups", turned)[0]["copiers"] == 0.0)


TEAMS = {"team": (1.0, 0.0, 1), "team_two_step": (8.0, 7.0, 2), "team_target": (2.0, 0.0, 2)}


@pytest.mark.parametrize("name", TEAMS)
def test_groups_that_share_a_reward(name: str) -> None:
    """In `team`, the mean of the numbers is added: −1, 0 or 1."""
    good, bad, steps = TEAMS[name]
    first, second = make_env(f"probe/{name}").spec.shared_rewards[0]
    for change, earned in ((lambda actions, name: actions, good), (turned, bad)):
        total, length = returns(name, change)
        assert np.all(length == steps)
        np.testing.assert_array_equal(total[first][:, :1], total[second])
        offsets = {-1.0, 0.0, 1.0} if name == "team" else {0.0}
        assert set(np.round(total[second].ravel() - earned, 4)) == offsets


def test_memory_shows_its_cue_once() -> None:
    env = make_env("probe/memory")
    cues = set()
    for seed in range(6):
        state, timestep = env.reset(jax.random.key(seed))
        cues |= set(np.asarray(timestep.groups[GROUP].observation).ravel().tolist())
        for _ in range(4):
            state, timestep = env.step(state, {GROUP: jnp.zeros(2, jnp.int32)}, jax.random.key(0))
            assert not timestep.groups[GROUP].observation.any()
    assert cues == {-1.0, 1.0}


def test_alone_nobody_can_compare() -> None:
    """The best guess by one's own number: above the mean if it is above 0, which is near the ends of the range only."""
    env = make_env("probe/compare", num_agents=3)
    numbers = jax.vmap(env.reset)(jax.random.split(jax.random.key(0), 20_000))[1].groups[GROUP].observation[..., 0]
    right = (numbers > 0) == (numbers > numbers.mean(axis=1, keepdims=True))
    assert 0.5 < right.mean() < 0.55


def test_selfish_agents_cost_the_group() -> None:
    total, length = returns("selfish")
    np.testing.assert_array_equal(total[GROUP], np.tile([1.0, -2.0], (NUM, 1)))
    assert np.all(length == 1)
    sacrifice = returns("selfish", lambda actions, name: {GROUP: actions[GROUP] * jnp.array([[-1.0], [1.0]])})[0]
    np.testing.assert_array_equal(sacrifice[GROUP], np.tile([-1.0, 4.0], (NUM, 1)))


def test_every_probe_is_played_here() -> None:
    names = {entry.name.removeprefix("probe/") for entry in registry.tasks if entry.name.startswith("probe/")}
    assert names == {*GAMES, *TEAMS, "observed", "death", "groups", "selfish"}
