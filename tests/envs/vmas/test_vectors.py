"""Where environments lie in memory changes nothing."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from covey.envs.vmas.vectors import Vector, column, environments_last

WEIGHTS = np.array([1.0, 2.0, 3.0], np.float32)


def weigh(points, extra):
    """Points `[3, 2, …]`, of which it returns two things; and a number."""
    vectors = Vector.of(points, 1)
    return {"weighted": (vectors * column(WEIGHTS, vectors.x)).stack(1)}, vectors.norm() + extra["plus"]


def test_environments_last_computes_the_same():
    points = jax.random.normal(jax.random.key(0), (5, 3, 2))
    extra = {"plus": jnp.arange(5.0)}
    each = [weigh(one, {"plus": plus}) for one, plus in zip(points, extra["plus"], strict=True)]
    batch = jax.vmap(environments_last(weigh))(points, extra)
    expected = jax.tree.map(lambda *rows: jnp.stack(rows), *each)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), batch, expected)


def test_what_all_environments_share_is_repeated():
    points = jax.random.normal(jax.random.key(0), (5, 3, 2))
    shared = {"plus": jnp.float32(2.0)}
    batch = jax.vmap(environments_last(weigh), in_axes=(0, None))(points, shared)
    np.testing.assert_allclose(batch[1][4], weigh(points[4], shared)[1], rtol=1e-6)


def test_batches_of_batches():
    points = jax.random.normal(jax.random.key(0), (2, 5, 3, 2))
    extra = {"plus": jnp.zeros((2, 5))}
    both = jax.vmap(jax.vmap(environments_last(weigh)))(points, extra)
    np.testing.assert_allclose(both[1][1, 3], weigh(points[1, 3], {"plus": 0.0})[1], rtol=1e-6)
