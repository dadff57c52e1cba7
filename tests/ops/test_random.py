"""Random numbers are those of `jax.random`, whatever their shape."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import kstest

from covey.ops import random

SHAPES = [(), (7,), (5, 3), (4, 3, 2, 2)]


@pytest.mark.parametrize("shape", SHAPES)
def test_numbers_are_those_of_jax(shape: tuple[int, ...]) -> None:
    key = jax.random.key(3)
    np.testing.assert_array_equal(random.uniform(key, shape), jax.random.uniform(key, shape))
    np.testing.assert_allclose(random.normal(key, shape), jax.random.normal(key, shape), atol=1e-5)


def test_each_key_of_a_batch_has_its_own() -> None:
    keys = jax.random.split(jax.random.key(0), 4)
    batch = jax.vmap(lambda key: random.normal(key, (3, 2)))(keys)
    np.testing.assert_allclose(batch, jnp.stack([random.normal(key, (3, 2)) for key in keys]), atol=1e-6)


def test_normal_numbers_are_normal() -> None:
    assert kstest(np.asarray(random.normal(jax.random.key(1), (100_000,))), "norm").pvalue > 0.01


def test_the_ends_of_the_uniform_numbers_are_finite() -> None:
    ends = np.array([0.0, np.nextafter(np.float32(1), np.float32(0))], np.float32)
    low, high = random.to_normal(jnp.asarray(ends))
    assert -6 < low < -5 and 5 < high < 6


def test_the_inverse_error_function() -> None:
    x = np.concatenate([np.linspace(-0.999999, 0.999999, 10_001), 1 - 2.0 ** -np.arange(1, 24)]).astype(np.float32)
    np.testing.assert_allclose(random.inverse_error_function(jnp.asarray(x)), jax.lax.erf_inv(x), rtol=1e-6, atol=1e-7)
    assert random.inverse_error_function(jnp.float32(0.5)) == pytest.approx(0.4769362762, abs=1e-6)


DRAWS = {
    "split": lambda key: jax.random.key_data(jax.random.split(key, (3, 2))),
    "fold_in": lambda key: jax.random.key_data(jax.random.fold_in(key, 12345)),
    "bits": lambda key: jax.random.bits(key, (5, 3)),
    "bytes": lambda key: jax.random.bits(key, (5, 3), jnp.uint8),
    "uniform": lambda key: jax.random.uniform(key, (7,)),
    "normal": lambda key: jax.random.normal(key, ()),
    "randint": lambda key: jax.random.randint(key, (9,), 0, 1000),
    "of a key of its own": lambda key: jax.random.uniform(jax.random.split(jax.random.fold_in(key, 1))[1], (4,)),
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_unrolled_numbers_are_the_same(draw: Callable[..., Any]) -> None:
    keys = jax.random.split(jax.random.key(2**31 + 7), 3)
    np.testing.assert_array_equal(draw(random.unrolled(keys[0])), draw(keys[0]))
    np.testing.assert_array_equal(jax.jit(jax.vmap(draw))(random.unrolled(keys)), jax.vmap(draw)(keys))


def test_unrolled_numbers_need_no_loop() -> None:
    program = jax.jit(lambda key: jax.random.uniform(random.unrolled(key), (96,))).lower(jax.random.key(0))
    text = program.compile().as_text()
    assert text and "while" not in text


@pytest.mark.parametrize("seed", [0, 1, 12345, 2**31, 2**32 - 1])
def test_keys_made_on_the_host_are_jaxs(seed: int) -> None:
    key = random.host_key(seed)
    np.testing.assert_array_equal(jax.random.key_data(key), jax.random.key_data(jax.random.key(jnp.uint32(seed))))
    for number in (0, 7, 2**31 - 1):
        expected = jax.random.key_data(jax.random.fold_in(jax.random.key(jnp.uint32(seed)), number))
        np.testing.assert_array_equal(jax.random.key_data(random.host_fold_in(key, number)), expected)
