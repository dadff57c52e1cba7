"""Losses by hand, by NumPy and against rlax; masked entries never count, whatever they hold."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from covey.ops import losses

ALL = losses.weigh(jnp.ones(4, bool))
SOME = losses.weigh(jnp.array([True, False, True, False]))


def test_weighted_mean() -> None:
    np.testing.assert_array_equal(SOME, [2.0, 0.0, 2.0, 0.0])
    x = jnp.array([1.0, jnp.nan, 5.0, jnp.inf])
    assert losses.weighted_mean(x, SOME) == 3.0
    assert losses.weighted_mean(x, losses.weigh(jnp.zeros(4, bool))) == 0.0
    gradient = jax.grad(lambda x: losses.weighted_mean(jnp.square(x), SOME))(jnp.array([1.0, 2.0, 3.0, 4.0]))
    np.testing.assert_array_equal(gradient, [1.0, 0.0, 3.0, 0.0])


def test_clipped_policy_loss_by_hand() -> None:
    """ρ = (1.5, 1.5, 0.5, 0.5), ε = 0.2: gains are clipped, losses are not."""
    log_prob, advantage = jnp.log(jnp.array([1.5, 1.5, 0.5, 0.5])), jnp.array([1.0, -1.0, 1.0, -1.0])
    loss = losses.clipped_policy_loss(log_prob, jnp.zeros(4), advantage, ALL, clip=0.2)
    assert float(loss) == pytest.approx(-(1.2 - 1.5 + 0.5 - 0.8) / 4)
    loss = losses.clipped_policy_loss(log_prob, jnp.zeros(4), advantage, SOME, clip=0.2)
    assert float(loss) == pytest.approx(-(1.2 + 0.5) / 2)


def test_clipped_policy_loss_equals_rlax() -> None:
    import rlax

    keys = jax.random.split(jax.random.key(0), 3)
    log_prob, old_log_prob, advantage = (jax.random.normal(key, (64,)) for key in keys)
    ours = losses.clipped_policy_loss(log_prob, old_log_prob, advantage, jnp.ones(64), clip=0.3)
    theirs = rlax.clipped_surrogate_pg_loss(jnp.exp(log_prob - old_log_prob), advantage, 0.3)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)


def test_clipped_policy_loss_pushes_towards_good_actions_until_the_clip() -> None:
    gradient = jax.grad(losses.clipped_policy_loss)
    inside = gradient(jnp.zeros(4), jnp.zeros(4), jnp.array([1.0, -1.0, 2.0, 0.0]), ALL, clip=0.2)
    np.testing.assert_allclose(inside, [-0.25, 0.25, -0.5, 0.0])
    beyond = gradient(jnp.full(4, 0.5), jnp.zeros(4), jnp.array([1.0, -1.0, 2.0, 0.0]), ALL, clip=0.2)
    np.testing.assert_allclose(beyond, [0.0, 0.25 * np.exp(0.5), 0.0, 0.0], rtol=1e-6)


def test_value_losses_by_hand() -> None:
    value, old, target = (
        jnp.array([2.0, 0.0, 1.0, 5.0]),
        jnp.array([1.0, 0.0, 1.0, 1.0]),
        jnp.array([3.0, 1.0, 1.0, 0.0]),
    )
    assert float(losses.value_loss(value, target, ALL)) == pytest.approx((1 + 1 + 0 + 25) / 4)
    assert float(losses.value_loss(value, target, SOME)) == pytest.approx(0.5)
    # Kept within 0.5 of the old value: 1.5, 0, 1, 1.5; the larger error of each counts.
    clipped = losses.clipped_value_loss(value, old, target, ALL, clip=0.5)
    assert float(clipped) == pytest.approx((2.25 + 1 + 0 + 25) / 4)


def test_approximate_kl_estimates_the_divergence() -> None:
    assert float(losses.approximate_kl(jnp.full(4, -0.3), jnp.full(4, -0.3), ALL)) == 0.0
    old, new = np.array([0.7, 0.2, 0.1]), np.array([0.4, 0.4, 0.2])
    actions = np.random.default_rng(0).choice(3, 200_000, p=old)
    estimate = losses.approximate_kl(jnp.log(new[actions]), jnp.log(old[actions]), jnp.ones(len(actions)))
    assert float(estimate) == pytest.approx(np.sum(old * np.log(old / new)), rel=0.02)


def test_explained_variance() -> None:
    target = jnp.array([1.0, 2.0, 3.0, 100.0])
    seen = jnp.array([True, True, True, False])
    assert float(losses.explained_variance(target, target, seen)) == 1.0
    assert float(losses.explained_variance(jnp.zeros(4), target, seen)) == pytest.approx(0.0, abs=1e-6)
    assert float(losses.explained_variance(-target, target, seen)) == pytest.approx(-3.0)
    assert np.isfinite(losses.explained_variance(target, jnp.ones(4), seen))  # targets without variance


def test_weights_over_two_devices_count_every_living_agent_alike() -> None:
    """Three living on one device and one on the other: the mean over devices is the mean over the four."""
    mask = jnp.array([[True, True, True, False], [True, False, False, False]])
    x = jnp.array([[1.0, 2.0, 3.0, 100.0], [10.0, 100.0, 100.0, 100.0]])

    def mean(x: jax.Array, mask: jax.Array) -> Any:
        return jax.lax.pmean(losses.weighted_mean(x, losses.weigh(mask, "devices")), "devices")

    mesh = Mesh(jax.devices()[:2], ("devices",))
    over = jax.shard_map(mean, mesh=mesh, in_specs=P("devices"), out_specs=P())
    assert float(over(x, mask)) == pytest.approx((1 + 2 + 3 + 10) / 4)
