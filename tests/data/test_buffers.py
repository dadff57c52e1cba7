"""Replay against a plain ring buffer in NumPy; what is read, where rows wrap, priorities, memory."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import MakeTeam, SameBits

from covey.data.buffer import BufferConfig, Place
from covey.data.replay import HOST_PART, importance, make_replay, rows_length
from covey.data.source import pack, unpack
from covey.types import Transition

ENVS, AGENTS, LENGTH = 3, 2, 5


def steps(first: int, count: int) -> dict[str, Transition]:
    """An observation is (environment, number of the step), its successor (environment, number + ½)."""
    number = jnp.arange(first, first + count, dtype=jnp.float32)[:, None, None, None]
    env = jnp.arange(ENVS, dtype=jnp.float32)[None, :, None, None]
    shape = (count, ENVS, AGENTS, 1)
    seen = jnp.concatenate([jnp.broadcast_to(env, shape), jnp.broadcast_to(number, shape)], -1)
    flags = jnp.zeros((count, ENVS), bool)
    agents = jnp.zeros((count, ENVS, AGENTS), bool)

    def of(group_offset: float) -> Transition:
        return Transition(
            observation=seen + group_offset,
            state=seen[:, :, 0],
            action_mask=None,
            alive=~agents,
            reset=flags,
            action=jnp.zeros((count, ENVS, AGENTS), jnp.int32),
            extras={},
            reward=number[..., 0] * jnp.ones((1, ENVS, AGENTS)),
            terminated=agents,
            truncated=flags,
            last=flags.at[:].set(number[:, :, 0, 0] % 4 == 3),
            next_observation=seen + group_offset + jnp.array([0.0, 0.5]),
            next_state=seen[:, :, 0] + 0.5,
        )

    return {"one": of(0.0), "two": of(100.0)}


def filled(config: BufferConfig, additions: list[int], sequence_length: int = 2) -> tuple[Any, Any, int]:
    replay = make_replay(config, num_envs=ENVS, sequence_length=sequence_length)
    state = replay.init(jax.tree.map(lambda x: x[0], steps(0, 1)))
    first = 0
    for count in additions:
        state = jax.jit(replay.add)(state, steps(first, count))
        first += count
    return replay, state, first


PLACES = pytest.mark.parametrize("place", Place)


@PLACES
@pytest.mark.parametrize("additions", [[3], [2, 2, 2], [4, 3, 4, 1]], ids=["half full", "wraps once", "wraps twice"])
def test_samples_are_what_a_ring_buffer_holds(additions: list[int], place: Place) -> None:
    config = BufferConfig(size=ENVS * LENGTH, batch_size=512, place=place)
    replay, state, total = filled(config, additions)
    held = range(max(0, total - LENGTH), total)
    pairs = {(step, step + 1) for step in held if step + 1 in held}
    batch = jax.jit(replay.sample)(state, jax.random.key(0)).batch.transitions
    first, second = batch["one"].observation[:, :, 0, 1]
    assert set(zip(first.tolist(), second.tolist(), strict=True)) == pairs  # contiguous, none across the writing place
    env = batch["one"].observation[:, :, 0, 0]
    np.testing.assert_array_equal(env[0], env[1])  # and of one environment
    assert set(env[0].tolist()) == {0.0, 1.0, 2.0}


@PLACES
def test_successors_and_groups_stay_together(place: Place) -> None:
    config = BufferConfig(size=ENVS * LENGTH, batch_size=64, place=place)
    replay, state, _ = filled(config, [4, 4])
    batch = replay.sample(state, jax.random.key(1)).batch.transitions
    one, two = batch["one"], batch["two"]
    np.testing.assert_allclose(one.next_observation, one.observation + np.array([0.0, 0.5]))
    np.testing.assert_allclose(two.observation, one.observation + 100)
    np.testing.assert_allclose(one.state, one.observation[:, :, 0])
    np.testing.assert_allclose(two.next_state, one.next_state)
    np.testing.assert_array_equal(one.last, one.observation[:, :, 0, 1] % 4 == 3)


def test_no_samples_before_there_are_enough() -> None:
    config = BufferConfig(size=ENVS * LENGTH, batch_size=6)
    replay, state, _ = filled(config, [1], sequence_length=2)
    assert not replay.can_sample(state)
    state = replay.add(state, steps(1, 1))
    assert replay.can_sample(state)


def test_priorities_decide_how_often() -> None:
    config = BufferConfig(size=ENVS * LENGTH, batch_size=256, prioritised=True, priority_exponent=1.0)
    replay, state, _ = filled(config, [LENGTH], sequence_length=1)
    draw, rate = jax.jit(replay.sample), jax.jit(replay.set_priorities)

    def number(sample: Any) -> np.ndarray:
        return np.asarray(sample.batch.transitions["one"].observation[0, :, 0, 1])

    for seed in range(4):  # until every step has got its priority
        sample = draw(state, jax.random.key(seed))
        state = rate(state, sample, jnp.where(number(sample) == 2, 8.0, 1.0))
    counts = np.zeros(LENGTH)
    for seed in range(10, 30):
        sample = draw(state, jax.random.key(seed))
        counts += np.bincount(number(sample).astype(int), minlength=LENGTH)
        expected = np.where(number(sample) == 2, (1 / 8) ** config.importance_exponent, 1.0)
        np.testing.assert_allclose(sample.batch.weight, expected, rtol=1e-4)
    assert counts[2] / counts.sum() == pytest.approx(8 / 12, abs=0.03)


def test_priorities_stay_exact() -> None:
    """Every node of the tree is the sum of its children, however many changes there were and however unlike they are.

    Otherwise draws end, after some thousand updates, where there is nothing.
    """
    config = BufferConfig(size=ENVS * LENGTH, batch_size=32, prioritised=True)
    replay, state, _ = filled(config, [LENGTH], sequence_length=2)

    def rate(state: Any, key: jax.Array) -> tuple[Any, jax.Array]:
        key_sample, key_priority = jax.random.split(key)
        sample = replay.sample(state, key_sample)
        unlike = 10 ** jax.random.uniform(key_priority, (32,), minval=-6.0, maxval=4.0)
        return replay.set_priorities(state, sample, unlike), sample.batch.weight.min()

    state, least = jax.jit(lambda state, keys: jax.lax.scan(rate, state, keys))(
        state, jax.random.split(jax.random.key(0), 500)
    )
    tree = state["buffer"].sum_tree_state
    nodes = np.asarray(tree.nodes)
    inner = len(nodes) // 2
    np.testing.assert_array_equal(nodes[:inner], nodes[1::2] + nodes[2::2])
    assert least.min() > 0

    state = replay.add(state, steps(LENGTH, 1))  # what is new is as likely as the likeliest ever, to the bit
    nodes = np.asarray(state["buffer"].sum_tree_state.nodes)
    np.testing.assert_array_equal(nodes[:inner], nodes[1::2] + nodes[2::2])
    assert (nodes[inner:] == np.asarray(tree.max_recorded_priority)).sum() >= ENVS
    assert float(tree.max_recorded_priority) % 1 != 0


def test_what_cannot_be_drawn_keeps_its_priority() -> None:
    config = BufferConfig(size=ENVS * LENGTH, batch_size=4, prioritised=True)
    replay, state, _ = filled(config, [LENGTH], sequence_length=1)
    sample = replay.sample(state, jax.random.key(0))
    nowhere = dataclasses.replace(sample, batch=dataclasses.replace(sample.batch, weight=jnp.zeros(4)))
    after = replay.set_priorities(state, nowhere, jnp.full(4, 100.0))
    np.testing.assert_array_equal(after["buffer"].sum_tree_state.nodes, state["buffer"].sum_tree_state.nodes)


def test_importance_by_hand() -> None:
    np.testing.assert_allclose(importance(jnp.array([0.1, 0.4]), 0.5), [1.0, 0.5])
    np.testing.assert_allclose(importance(jnp.array([0.1, 0.0, 0.4]), 0.5), [1.0, 0.0, 0.5])
    np.testing.assert_allclose(importance(jnp.array([0.0, 0.0]), 0.5), [0.0, 0.0])


def test_importance_is_the_same_on_any_number_of_devices() -> None:
    probabilities = jnp.array([[0.01, 0.02], [0.1, 0.2]])
    apart = jax.vmap(lambda p: importance(p, 0.4, "devices"), axis_name="devices")(probabilities)
    np.testing.assert_allclose(apart.reshape(-1), importance(probabilities.reshape(-1), 0.4), rtol=1e-6)


def test_memory_counts_what_is_stored_once() -> None:
    _, state, _ = filled(BufferConfig(size=999, batch_size=4), [1])
    own = AGENTS * (2 * 4 + 1 + 4 + 4 + 1 + 2 * 4)  # observation, alive, action, reward, terminated, successor
    shared = 2 * 4 + 2 * 4 + 3  # state, its successor, three flags
    assert sum(leaf.nbytes for leaf in jax.tree.leaves(state["buffer"].experience)) == 999 * (2 * own + shared)


def test_packing_loses_nothing() -> None:
    transitions = steps(0, 2)
    back = unpack(pack(transitions))
    structures: list[Any] = [jax.tree.structure(tree) for tree in (back, transitions)]
    assert structures[0] == structures[1]
    for one, other in zip(jax.tree.leaves(back), jax.tree.leaves(transitions), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_buffer_smaller_than_a_sequence_is_refused() -> None:
    with pytest.raises(ValueError, match="fewer than a sequence of 8"):
        rows_length(BufferConfig(size=20), 4, 8)


@pytest.mark.parametrize("fields", [{"size": 0}, {"batch_size": 0}, {"priority_exponent": 2.0}])
def test_impossible_fields_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        BufferConfig(**fields)


@pytest.mark.parametrize(("prioritised", "devices"), [(False, 1), pytest.param(True, 2, marks=pytest.mark.slow)])
def test_where_the_buffer_is_changes_nothing(
    fresh: MakeTeam, same_bits: SameBits, prioritised: bool, devices: int
) -> None:
    """Training from the host's memory is training from the device's, to the bit, on several devices too."""
    options = {"algorithm": "iql", "iterations": 4, "num_devices": devices}
    learners = []
    for place in Place:
        fields = (f"buffer.place={place.name}", f"buffer.prioritised={str(prioritised).lower()}")
        team = fresh("probe/copy", *fields, **options)
        learners.append(team.learner)
        kinds = {leaf.sharding.memory_kind for leaf in jax.tree.leaves(team.state.buffer.get(HOST_PART, {}))}
        assert kinds == ({"pinned_host"} if place is Place.host else set())
    same_bits(*learners)
