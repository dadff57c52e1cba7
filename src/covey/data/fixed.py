"""A fixed set of transitions as a source: sampled like replay, never added to."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from covey.data.source import Sample, Source, Transitions, pack, unpack
from covey.types import Array, Batch, Key, PyTree


def make_fixed_source(*, batch_size: int, sequence_length: int = 1) -> Source:
    """Samples sequences uniformly, from anywhere in any environment's row. The state is `fixed_data(transitions)`."""

    def sample(state: PyTree, key: Key) -> Sample:
        num_steps, num_rows = jax.tree.leaves(state)[0].shape[:2]
        if num_steps < sequence_length:
            raise ValueError(f"{num_steps} steps are fewer than a sequence of {sequence_length}")
        key_row, key_start = jax.random.split(key)
        rows = jax.random.randint(key_row, (batch_size,), 0, num_rows)
        starts = jax.random.randint(key_start, (batch_size,), 0, num_steps - sequence_length + 1)
        times = starts + jnp.arange(sequence_length)[:, None]  # [L, N]
        batch = Batch(transitions=unpack(jax.tree.map(lambda x: x[times, rows], state)))
        return Sample(batch=batch, indices=None)

    def set_priorities(state: PyTree, sample: Sample, priorities: Array) -> PyTree:
        return state

    return Source(sample=sample, set_priorities=set_priorities)


def fixed_data(transitions: Transitions) -> PyTree:
    """`transitions [T, B, …]` as the state of a fixed source."""
    return pack(transitions)
