"""Random orders hold every index once, at sizes on both sides of 2^20."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from covey.ops.shuffle import random_order


@pytest.mark.parametrize("num", [1, 7, 1024, 2**20, 2**20 + 1])
def test_an_order_holds_every_index_once(num: int) -> None:
    orders = [np.asarray(random_order(jax.random.key(seed), num)) for seed in (0, 1)]
    for order in orders:
        assert order.dtype == np.int32
        np.testing.assert_array_equal(np.sort(order), np.arange(num))
    if num > 7:
        assert (orders[0] == orders[1]).mean() < 0.01 and (orders[0] == np.arange(num)).mean() < 0.01
