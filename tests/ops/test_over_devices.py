"""Sums, means and lists over devices, which a mapped axis stands for: a row of each array is one device's."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from covey.ops.devices import gather_over_devices, mean_over_devices, pack, sum_over_devices

TREE = {"weight": jnp.array([[1.0, 2.0], [3.0, 6.0]]), "count": jnp.array([4, 8]), "nothing": jnp.zeros((2, 0))}


def over_devices(function: Any) -> Any:
    return jax.vmap(lambda tree: function(tree, "device"), axis_name="device")(TREE)


@pytest.mark.parametrize(
    ("function", "weight", "count"),
    [(sum_over_devices, [4.0, 8.0], 12), (mean_over_devices, [2.0, 4.0], 6)],
)
def test_every_device_has_the_same(function: Any, weight: list[float], count: int) -> None:
    found = over_devices(function)
    np.testing.assert_array_equal(found["weight"], [weight, weight])
    np.testing.assert_array_equal(found["count"], [count, count])
    assert found["count"].dtype == jnp.int32 and found["nothing"].shape == (2, 0)


@pytest.mark.parametrize("function", [sum_over_devices, mean_over_devices])
def test_one_device_has_its_own(function: Any) -> None:
    assert function(TREE, None) is TREE


def test_every_device_gathers_the_trees_of_all() -> None:
    found = over_devices(gather_over_devices)
    for device in range(2):
        np.testing.assert_array_equal(found["weight"][device], TREE["weight"])
        np.testing.assert_array_equal(found["count"][device], TREE["count"])


def test_a_packed_tree_is_its_leaves_in_order() -> None:
    """The largest is written first, and stands in its place all the same."""
    tree = {"a": jnp.float32(1.0), "b": jnp.array([[2.0, 3.0], [4.0, 5.0]]), "c": jnp.array([6, 7])}
    vector, unpack = pack(tree)
    np.testing.assert_array_equal(vector, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0])
    again = unpack(10 * vector)
    assert jax.tree.map(lambda x: x.dtype, again) == jax.tree.map(lambda x: x.dtype, tree)
    np.testing.assert_array_equal(again["a"], 10.0)
    np.testing.assert_array_equal(again["b"], [[20.0, 30.0], [40.0, 50.0]])
    np.testing.assert_array_equal(again["c"], [60, 70])
