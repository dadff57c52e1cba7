"""Learning from a fixed set of transitions."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import MakeTeam, SameBits

from covey.data.fixed import fixed_data, make_fixed_source
from covey.loops.offline import make_offline_loop
from covey.types import Transition


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
