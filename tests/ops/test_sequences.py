"""Taking environments out of a batch; cutting it is tested with PPO, which does that."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from covey.ops.sequences import take_environments


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Both:
    steps: jax.Array
    carry: jax.Array | tuple[()]


def test_environments_are_taken_with_all_their_steps() -> None:
    steps = jnp.arange(3)[:, None] * 100 + jnp.arange(4)[None]  # 100 t + b
    taken = take_environments(Both(steps=steps, carry=jnp.arange(4) * 10), jnp.array([2, 0]))
    np.testing.assert_array_equal(taken.steps, [[2, 0], [102, 100], [202, 200]])
    np.testing.assert_array_equal(taken.carry, [20, 0])
    assert take_environments(Both(steps=steps, carry=()), jnp.array([1])).carry == ()
