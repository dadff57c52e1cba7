"""The compiled loop: how the host cuts training into chunks changes no bit and compiles nothing; devices agree."""

from __future__ import annotations

import dataclasses
import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import MakeTeam, SameBits, Team

from covey.loops.learning import updates_due

TASK = ("probe/memory", "algorithm.sequence_length=4", "algorithm.epochs=2")
OPTIONS = {"model": "gru", "num_envs": 8, "rollout_length": 8, "iterations": 7}


@pytest.fixture(scope="module")
def team(fresh: MakeTeam) -> Team:
    return fresh(*TASK, **OPTIONS)


def run(loop: Any, chunks: list[int]) -> tuple[Any, dict[str, np.ndarray]]:
    state, histories = loop.init(jax.random.key(0)), []
    for size in chunks:
        state, history = loop.advance(state, jnp.int32(size))
        histories.append({name: np.asarray(values)[:size] for name, values in history.items()})
    metrics = {name: np.concatenate([history[name] for history in histories]) for name in histories[0]}
    return jax.device_get(jax.tree.map(as_numbers, state)), metrics


def as_numbers(leaf: Any) -> Any:
    return jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf


def test_chunks_change_no_bit_and_compile_once(team: Team, same_bits: SameBits) -> None:
    whole = run(team.loop, [7])
    assert int(whole[0].iteration) == 7
    assert all(np.isfinite(values).all() for name, values in whole[1].items() if not name.startswith("collection/"))
    compiled: list[str] = []

    def listen(event: str, duration_secs: float, **details: str | int) -> None:
        if "backend_compile" in event:
            compiled.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    for chunks in ([1] * 7, [3, 4]):
        same_bits(run(team.loop, chunks), whole)
    assert not compiled  # the listener works: the next line compiles
    jax.jit(lambda x: x * 3 - 1)(jnp.arange(5)).block_until_ready()
    assert compiled


def test_a_chunk_beyond_its_size_is_marked(team: Team) -> None:
    _, history = team.loop.advance(team.loop.init(jax.random.key(0)), jnp.int32(2))
    loss = np.asarray(history["agents/policy_loss"])
    assert loss.shape == (7,) and np.isfinite(loss[:2]).all() and np.isnan(loss[2:]).all()


def test_same_seed_same_bits_and_another_seed_others(team: Team, same_bits: SameBits) -> None:
    first, again = (team.loop.advance(team.loop.init(jax.random.key(5)), jnp.int32(2))[0] for _ in range(2))
    same_bits(first, again)
    other, _ = team.loop.advance(team.loop.init(jax.random.key(6)), jnp.int32(2))
    params, others = (jax.tree.leaves(state.learner["agents"].params) for state in (first, other))
    assert not any(np.array_equal(a, b) for a, b in zip(params, others, strict=True))


def test_iterations_draw_new_randomness(team: Team) -> None:
    """Each iteration collects other episodes: the returns of random play are not the same twice in a row."""
    _, metrics = run(team.loop, [7])
    assert len(np.unique(metrics["collection/mean_return"])) > 2


def test_every_parameter_is_trained(team: Team) -> None:
    """A layer that never learns fails here: all arrays differ from where they began."""
    begun = team.loop.init(jax.random.key(0)).learner["agents"].params
    for (path, a), b in zip(
        jax.tree_util.tree_leaves_with_path(begun), jax.tree.leaves(team.learner["agents"].params), strict=True
    ):
        assert not np.array_equal(a, b), jax.tree_util.keystr(path)


def test_collect_leaves_the_learner_alone(team: Team, same_bits: SameBits) -> None:
    state = team.loop.init(jax.random.key(0))
    after, checksum = team.loop.collect(state)
    same_bits(after.learner, state.learner)
    assert np.isfinite(checksum).all()
    with pytest.raises(AssertionError):
        same_bits(after.actor, state.actor)


# -------------------------------------------------------------------------------------------------------- two devices


def test_a_run_that_lost_its_buffer_updates_as_it_fills(fresh: MakeTeam) -> None:
    """At the full rate, a trained network would learn from its first 64 frames alone. The share of 8 updates that the
    iteration after a resume makes is that of the buffer which is filled: 8 of 256 steps a row, then 16, …"""
    team = fresh("probe/copy", "model.layers=[8]", algorithm="iql", num_envs=8, rollout_length=8, iterations=40)
    state = team.state
    assert int(state.learner["agents"].updates) == 40 * 8  # never fewer while nothing was lost
    updates = []
    state = dataclasses.replace(state, buffer=team.loop.init(jax.random.key(1)).buffer)
    for _ in range(33):
        before = int(state.learner["agents"].updates)
        state, metrics = team.loop.advance(state, jnp.int32(1))
        updates.append(int(state.learner["agents"].updates) - before)
        assert np.isfinite(metrics["agents/q_loss"][0]) and (metrics["agents/q_loss"][0] > 0) == (updates[-1] > 0)
    assert updates == [round(8 * share / 32) for share in range(1, 33)] + [8]


def test_updates_that_are_due_by_hand() -> None:
    replay = types.SimpleNamespace(length=100)
    learning: Any = types.SimpleNamespace(num_updates=1000, replay=replay)
    cases = ((4, 4, 1000), (100, 100, 1000), (100, 5000, 1000), (1, 50, 20), (1, 5000, 10), (50, 5000, 500))
    for held, collected, due in cases:
        assert updates_due(learning, jnp.int32(held), jnp.int32(collected)) == due


def test_one_update_an_iteration_is_spread_while_a_lost_buffer_fills(fresh: MakeTeam) -> None:
    """Rounded, none would be due until half of the buffer is filled: 16 of 32 iterations."""
    fields = ("model.layers=[8]", "experiment.updates=1")
    team = fresh("probe/copy", *fields, algorithm="iql", num_envs=8, rollout_length=8, iterations=40)
    assert int(team.learner["agents"].updates) == 40
    state = dataclasses.replace(team.state, buffer=team.loop.init(jax.random.key(1)).buffer)
    updates = []
    for _ in range(2):
        state, _ = team.loop.advance(state, jnp.int32(16))
        updates.append(int(state.learner["agents"].updates) - 40)
    assert 2 <= updates[0] <= 5 and updates[1] == updates[0] + 16  # a quarter in the mean, then one each


@pytest.fixture(scope="module")
def pair(fresh: MakeTeam) -> Team:
    return fresh(*TASK, "algorithm.observation_normalisation=true", **OPTIONS, num_devices=2)


def test_two_devices_hold_the_same_learner(pair: Team) -> None:
    assert all(np.isfinite(values).all() for name, values in pair.metrics.items() if not name.startswith("collection/"))
    for leaf in jax.tree.leaves(pair.learner):
        shards = [np.asarray(shard.data) for shard in leaf.addressable_shards]
        assert len(shards) == 2
        np.testing.assert_array_equal(shards[0], shards[1])


def test_two_devices_act_in_environments_of_their_own(pair: Team) -> None:
    observation = pair.state.actor.timestep.groups["agents"].observation
    assert observation.shape[:2] == (2, 4)  # devices, environments of each
    assert len(observation.sharding.device_set) == 2
    cues = np.asarray(pair.state.actor.env.env[0][0])  # [devices, environments, agents]: what is to be remembered
    assert not np.array_equal(cues[0], cues[1])
    moments = pair.learner["agents"].observation_moments
    assert float(moments.weight) == 7 * 8 * 8 * 2  # of both devices' frames


def test_two_devices_learn(fresh: MakeTeam) -> None:
    team = fresh("probe/copy", iterations=60, num_devices=2)
    assert team.metrics["collection/mean_return"][-5:].mean() >= 0.9
    assert team.metrics["collection/episodes"][-1] == 32 * 8  # counted over both


def test_two_devices_repeat_to_the_bit(pair: Team, same_bits: SameBits) -> None:
    one, other = run(pair.loop, [7]), run(pair.loop, [3, 4])
    same_bits(one, other)


def test_nothing_collected_makes_no_more_than_all_updates() -> None:
    """As when speeds are timed, which starts before iteration 0."""
    learning: Any = types.SimpleNamespace(num_updates=4, replay=types.SimpleNamespace(length=16))
    for collected in (-8, 0, 1):
        assert updates_due(learning, jnp.int32(8), jnp.int32(collected)) == 4
