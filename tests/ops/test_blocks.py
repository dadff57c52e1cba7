"""Means over blocks are the means over all, whatever the blocks, and blocks fit the cache."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import MakeTeam

from covey.ops import blocks
from covey.ops.blocks import mean_over_blocks


@pytest.mark.parametrize(
    ("num_indices", "rows_per_index", "expected"),
    [
        (640, 1, 1),
        (641, 1, 1),  # a prime number: rather whole than row by row
        (400, 3, 2),  # 600 rows each
        (2048, 3, 16),  # 384 each: 8 blocks would have 768
        (4, 10_000, 4),  # many agents: one each
    ],
)
def test_the_fewest_blocks_that_fit(num_indices: int, rows_per_index: int, expected: int) -> None:
    assert blocks._num_blocks(num_indices, rows_per_index) == expected


def test_the_mean_over_blocks_is_the_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    x = jnp.arange(24.0)
    seen = []

    def function(indices: jax.Array) -> dict[str, Any]:
        seen.append(indices.shape)
        return {"mean": jnp.mean(x[indices] ** 2), "two": (jnp.mean(x[indices]), jnp.ones(3))}

    order = jax.random.permutation(jax.random.key(0), 24)
    whole = mean_over_blocks(function, order)
    monkeypatch.setattr(blocks, "MAX_ROWS_PER_BLOCK", 8)
    parts = mean_over_blocks(function, order, 2)
    assert seen[0] == (24,) and set(seen[1:]) == {(4,)}
    np.testing.assert_allclose(whole["mean"], np.mean(np.arange(24.0) ** 2))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), whole, parts)


@pytest.mark.parametrize("normalisation", ["minibatch", pytest.param("batch", marks=pytest.mark.slow)])
def test_ppo_learns_the_same_in_blocks(fresh: MakeTeam, monkeypatch: pytest.MonkeyPatch, normalisation: str) -> None:
    overrides = (f"algorithm.advantage_normalisation={normalisation}", "algorithm.epochs=2")
    options = {"iterations": 1, "num_envs": 8, "rollout_length": 16}
    whole = fresh("probe/copy", *overrides, **options)
    monkeypatch.setattr(blocks, "MAX_ROWS_PER_BLOCK", 16)
    parts = fresh("probe/copy", *overrides, **options)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=2e-6),
        whole.learner["agents"].params,
        parts.learner["agents"].params,
    )
    for name, values in whole.metrics.items():
        np.testing.assert_allclose(values, parts.metrics[name], atol=1e-4, err_msg=name)
