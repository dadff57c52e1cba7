"""Moments: merged equals of all together; masks and weights count; normalising and scaling up are inverses."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from covey.ops.normalisation import (
    Moments,
    batch_moments,
    change_of_units,
    init_moments,
    merge_moments,
    normalise,
    scale_up,
)


def draw(seed: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(3.0, 2.0, (size, 2, 3)).astype(np.float32), rng.random((size, 2)) < 0.7


def check(moments: Moments, data: np.ndarray) -> None:
    np.testing.assert_allclose(moments.weight, len(data))
    np.testing.assert_allclose(moments.mean, data.mean(0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(moments.variance, data.var(0), rtol=1e-4, atol=1e-5)


@settings(max_examples=25, deadline=None)
@given(sizes=st.lists(st.sampled_from([1, 4, 9]), min_size=1, max_size=4), seed=st.integers(0, 999))
def test_merged_moments_are_those_of_the_concatenation(sizes: list[int], seed: int) -> None:
    moments, kept = init_moments((3,)), []
    for number, size in enumerate(sizes):
        x, mask = draw(seed + number, size)
        mask[0, 0] = True
        moments = merge_moments(moments, batch_moments(jnp.array(x), jnp.array(mask)))
        kept.append(x[mask])
    check(moments, np.concatenate(kept))


def test_masked_entries_do_not_count() -> None:
    x, mask = draw(0, 5)
    spoiled = np.where(mask[..., None], x, 1e6).astype(np.float32)
    check(batch_moments(jnp.array(spoiled), jnp.array(mask)), x[mask])


def test_nothing_seen_changes_nothing() -> None:
    x, mask = draw(1, 5)
    old = batch_moments(jnp.array(x), jnp.array(mask))
    merged = merge_moments(old, batch_moments(jnp.array(x), jnp.zeros_like(jnp.array(mask))))
    np.testing.assert_allclose(merged.mean, old.mean)
    np.testing.assert_allclose(merged.variance, old.variance)
    still_fresh = merge_moments(init_moments(), batch_moments(jnp.ones(4), jnp.zeros(4, bool)))
    found: tuple[Any, Any] = still_fresh.mean, still_fresh.variance
    assert found == (0.0, 1.0)


def test_decay_forgets() -> None:
    """Old moments count for half each time: after many, the mean is near that of the newest."""
    old = Moments(weight=jnp.float32(8.0), mean=jnp.float32(0.0), variance=jnp.float32(1.0))
    new = Moments(weight=jnp.float32(4.0), mean=jnp.float32(3.0), variance=jnp.float32(1.0))
    once = merge_moments(old, new, decay=0.5)
    assert float(once.weight) == 8.0 and float(once.mean) == pytest.approx(1.5)
    assert float(once.variance) == pytest.approx(1.0 + 0.25 * 9)  # both halves' and that between them
    for _ in range(30):
        old = merge_moments(old, new, decay=0.5)
    assert float(old.mean) == pytest.approx(3.0, abs=1e-4) and float(old.weight) == pytest.approx(8.0)


def test_normalise_and_scale_up() -> None:
    moments = Moments(weight=jnp.float32(1.0), mean=jnp.float32(5.0), variance=jnp.float32(4.0))
    x = jnp.array([5.0, 7.0, 1.0])
    np.testing.assert_allclose(normalise(x, moments), [0.0, 1.0, -2.0], rtol=1e-6)
    np.testing.assert_allclose(scale_up(normalise(x, moments), moments), x, rtol=1e-6)
    np.testing.assert_allclose(normalise(jnp.array([1e9, -1e9]), moments, clip=10.0), [10.0, -10.0])
    np.testing.assert_allclose(normalise(jnp.array([2005.0]), moments), [1000.0])  # what is learned is not clipped
    constant = Moments(weight=jnp.float32(1.0), mean=jnp.float32(5.0), variance=jnp.float32(0.0))
    assert np.all(np.isfinite(normalise(x, constant)))


def test_moments_over_two_devices_are_those_of_all() -> None:
    x, mask = draw(2, 6)
    mesh = Mesh(jax.devices()[:2], ("devices",))
    over = jax.shard_map(
        functools.partial(batch_moments, axis_name="devices"),
        mesh=mesh,
        in_specs=P("devices"),
        out_specs=P(),
        check_vma=False,
    )
    check(over(jnp.array(x), jnp.array(mask)), x[mask])


def test_a_change_of_units_by_hand() -> None:
    """4 is 1 under a mean of 2 and a deviation of 2, and 0 under a mean of 4 and a deviation of 4."""
    old = Moments(weight=jnp.ones(()), mean=jnp.float32(2.0), variance=jnp.float32(4.0))
    new = Moments(weight=jnp.ones(()), mean=jnp.float32(4.0), variance=jnp.float32(16.0))
    scale, shift = change_of_units(old, new)
    assert float(scale) == pytest.approx(0.5) and float(shift) == pytest.approx(-0.5)
    x = jnp.array([1.0, -3.0, 40.0])
    np.testing.assert_allclose(scale_up(scale * x + shift, new), scale_up(x, old), rtol=1e-5, atol=1e-5)
