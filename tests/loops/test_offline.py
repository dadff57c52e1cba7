"""Learning from a fixed set of transitions."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import MakeTeam, SameBits

from covey.data.fixed import fixed_data, make_fixed_source
from covey.data.source import Sample, Source
from covey.loops.offline import (
    OfflineState,
    OfflineTraining,
    advance,
    init_state,
    iterate,
    make_offline_loop,
    restored_state,
    saved_parts,
)
from covey.types import Algorithm, Batch, Key, Transition


def numbered(num_steps: int, num_rows: int) -> dict[str, Transition]:
    """Transitions of one agent whose observation says where they are: 100 × row + time."""
    where = jnp.arange(num_steps)[:, None] + 100.0 * jnp.arange(num_rows)
    flag = jnp.zeros((num_steps, num_rows), bool)
    one = where[..., None]
    transition = Transition(
        observation=one[..., None],
        next_observation=one[..., None] + 1,
        action=jnp.zeros(one.shape, jnp.int32),
        action_mask=None,
        reward=one,
        terminated=jnp.zeros(one.shape, bool),
        alive=jnp.ones(one.shape, bool),
        state=None,
        next_state=None,
        reset=flag,
        truncated=flag,
        last=flag,
        extras={},
    )
    return {"agents": transition}


def test_a_sample_is_sequences_from_anywhere() -> None:
    source, data = make_fixed_source(batch_size=4000, sequence_length=3), fixed_data(numbered(6, 2))
    sample = jax.jit(source.sample)(data, jax.random.key(0))
    where = np.asarray(sample.batch.transitions["agents"].observation)[..., 0, 0]  # [L, N]
    np.testing.assert_array_equal(where[1:] - where[:-1], 1)  # one after another, in one row
    starts, counts = np.unique(where[0], return_counts=True)
    assert starts.tolist() == [0, 1, 2, 3, 100, 101, 102, 103]
    np.testing.assert_allclose(counts / 4000, 1 / 8, atol=0.02)


def test_a_sequence_must_fit() -> None:
    source = make_fixed_source(batch_size=1, sequence_length=3)
    with pytest.raises(ValueError, match="2 steps are fewer than a sequence of 3"):
        source.sample(fixed_data(numbered(2, 1)), jax.random.key(0))


def test_chunks_and_a_restored_state_change_no_bit(fresh: MakeTeam, same_bits: SameBits) -> None:
    team = fresh("probe/copy", "model.layers=[8]", algorithm="iql", iterations=20)
    recorded = team.transitions(num_envs=8, num_steps=20)
    loop = make_offline_loop(team.algorithm, recorded, batch_size=8, updates=2, num_iterations=10)
    whole, metrics = loop.advance(loop.init(jax.random.key(0)), jnp.int32(7))
    half, _ = loop.advance(loop.init(jax.random.key(0)), jnp.int32(3))
    saved = jax.device_get(loop.saved(half))
    assert set(saved) == set(loop.parts)
    resumed, _ = loop.advance(loop.restored(loop.init(jax.random.key(5)), saved), jnp.int32(4))
    same_bits(loop.saved(whole), loop.saved(resumed))
    assert np.isfinite(metrics["agents/q_loss"][:7]).all() and np.isnan(metrics["agents/q_loss"][7:]).all()
    assert loop.frames_per_iteration == 2


# ------------------------------------------------------------------------------------------------- functions by name


def adding_progress() -> OfflineTraining:
    """Two updates an iteration, ten iterations; each update adds `progress` and what it is shown to the learner."""

    def update(learner: Any, batch: Batch, key: Key, progress: Any) -> tuple[Any, Any, Any]:
        return learner + progress + batch.weight, {"progress": progress}, {"agents": jnp.float32(0)}

    algorithm = Algorithm(
        init=lambda key: jnp.float32(100), initial_carry=lambda n: (), act=lambda *_: (None, None, None), update=update
    )
    source = Source(
        sample=lambda data, key: Sample(batch=Batch(transitions={}, weight=data), indices=None),
        set_priorities=lambda data, sample, priorities: data,
    )
    return OfflineTraining(algorithm=algorithm, source=source, updates=2, num_iterations=10, max_iterations=4)


def state_at(iteration: int) -> OfflineState:
    return OfflineState(
        learner=jnp.float32(100), key=jax.random.key(1), iteration=jnp.int32(iteration), data=jnp.float32(1)
    )


def test_an_iteration_updates_and_counts() -> None:
    """The fourth of ten: progress is 0.3, so two updates add 2 × 1.3."""
    state, metrics = iterate(adding_progress(), state_at(3))
    assert float(state.learner) == pytest.approx(102.6)
    assert int(state.iteration) == 4 and float(state.data) == 1.0
    assert float(metrics["progress"]) == pytest.approx(0.3)


def test_iterations_follow_one_another() -> None:
    """After the first two: 100 + 2 × 1.0 + 2 × 1.1; what was not done is NaN."""
    state, metrics = advance(adding_progress(), state_at(0), jnp.int32(2))
    assert float(state.learner) == pytest.approx(104.2)
    np.testing.assert_allclose(metrics["progress"], [0.0, 0.1, np.nan, np.nan], rtol=1e-6)


def test_the_data_is_no_part_of_what_is_saved() -> None:
    saved = saved_parts(state_at(3))
    assert set(saved) == {"learner", "clock"}
    other = OfflineState(learner=jnp.float32(0), key=jax.random.key(2), iteration=jnp.int32(0), data=jnp.float32(8))
    restored = restored_state(other, saved)
    assert (float(restored.learner), int(restored.iteration), float(restored.data)) == (100.0, 3, 8.0)
    assert (jax.random.key_data(restored.key) == jax.random.key_data(jax.random.key(1))).all()
    assert int(restored_state(other, {"learner": saved["learner"]}).iteration) == 0


def test_a_state_begins_with_the_transitions_in_it() -> None:
    state = init_state(adding_progress(), numbered(3, 2), jax.random.key(0))
    assert int(state.iteration) == 0 and float(state.learner) == 100.0
    np.testing.assert_array_equal(state.data["groups"]["agents"]["reward"][..., 0], [[0, 100], [1, 101], [2, 102]])
