"""Where environments lie in memory changes nothing."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from covey.envs.vmas.vectors import Vector, column, environments_last

WEIGHTS = np.array([1.0, 2.0, 3.0], np.float32)


def weigh(points: Any, extra: Any) -> tuple[dict[str, Any], Any]:
    """Of points `[3, 2, …]` and a number: the points weighted, and their distances from the centre plus the number."""
    vectors = Vector.of(points, 1)
    return {"weighted": (vectors * column(WEIGHTS, vectors.x)).stack(1)}, vectors.norm() + extra["plus"]


def test_environments_last_computes_the_same() -> None:
    points = jax.random.normal(jax.random.key(0), (5, 3, 2))
    extra = {"plus": jnp.arange(5.0)}
    each = [weigh(one, {"plus": plus}) for one, plus in zip(points, extra["plus"], strict=True)]
    batch = jax.vmap(environments_last(weigh))(points, extra)
    expected = jax.tree.map(lambda *rows: jnp.stack(rows), *each)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), batch, expected)


def test_what_all_environments_share_is_repeated() -> None:
    points = jax.random.normal(jax.random.key(0), (5, 3, 2))
    shared = {"plus": jnp.float32(2.0)}
    batch = jax.vmap(environments_last(weigh), in_axes=(0, None))(points, shared)
    np.testing.assert_allclose(batch[1][4], weigh(points[4], shared)[1], rtol=1e-6)


def test_batches_of_batches() -> None:
    points = jax.random.normal(jax.random.key(0), (2, 5, 3, 2))
    extra = {"plus": jnp.arange(10.0).reshape(2, 5)}
    both = jax.vmap(jax.vmap(environments_last(weigh)))(points, extra)
    expected = jnp.linalg.norm(points, axis=-1) + extra["plus"][..., None]
    np.testing.assert_allclose(both[1], expected, rtol=1e-6)
    np.testing.assert_allclose(both[0]["weighted"], points * WEIGHTS[:, None], rtol=1e-6)


def test_one_environment_needs_no_batch() -> None:
    points, extra = jax.random.normal(jax.random.key(0), (3, 2)), {"plus": jnp.float32(1.0)}
    np.testing.assert_array_equal(environments_last(weigh)(points, extra)[1], weigh(points, extra)[1])
