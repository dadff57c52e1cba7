"""Random numbers in the shapes of actions and small worlds: many rows of a few numbers.

They are drawn in one row and reshaped: along a last axis of two or three, a processor's vector units idle. The numbers
equal those of `jax.random` for the same key and shape; normal ones, up to rounding.

On a CPU, JAX computes its generator in a loop of five rounds. That compiles fast but runs slowly: its hundred tiny
operations take longer than everything else that is done with a hundred numbers. Here the loop is unrolled.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.extend.random
import jax.numpy as jnp
import numpy as np

from covey.ops.operations import is_uncompiled, one_operation
from covey.types import Array, Key

Shape = tuple[int, ...]

SMALLEST_ABOVE_MINUS_1 = np.nextafter(np.float32(-1.0), np.float32(0.0))

# Giles, "Approximating the erfinv function" (2010), single precision: polynomials in w − 2.5, and in √w − 3 from w = 5
# on, where w = −log(1 − x²); highest powers first.
CENTRE_POLYNOMIAL = np.array(
    (
        2.81022636e-08,
        3.43273939e-07,
        -3.5233877e-06,
        -4.39150654e-06,
        2.1858087e-04,
        -1.25372503e-03,
        -4.17768164e-03,
        0.246640727,
        1.50140941,
    ),
    np.float32,
)
TAIL_POLYNOMIAL = np.array(
    (
        -2.00214257e-04,
        1.00950558e-04,
        1.34934322e-03,
        -3.67342844e-03,
        5.73950773e-03,
        -7.6224613e-03,
        9.43887047e-03,
        1.00167406,
        2.83297682,
    ),
    np.float32,
)


def uniform(key: Key, shape: Shape) -> Array:
    """Uniform numbers from 0 up to, but not including, 1."""
    return jax.random.uniform(unrolled(key), (math.prod(shape),)).reshape(shape)


def normal(key: Key, shape: Shape) -> Array:
    """Standard normal numbers."""
    return to_normal(uniform(key, (math.prod(shape),))).reshape(shape)


def to_normal(numbers: Array) -> Array:
    """Standard normal numbers from uniform ones in 0…1."""
    return np.float32(np.sqrt(2)) * inverse_error_function(2 * numbers + SMALLEST_ABOVE_MINUS_1)


@one_operation
def inverse_error_function(x: Array) -> Array:
    """erf⁻¹ of numbers between −1 and 1, equal to `jax.lax.erf_inv` up to rounding.

    JAX selects every coefficient by branch. Here both polynomials are evaluated and one result is selected, which is
    faster on a CPU.
    """
    w = -jnp.log1p(-x * x)
    centre, tail = jnp.polyval(CENTRE_POLYNOMIAL, w - 2.5), jnp.polyval(TAIL_POLYNOMIAL, jnp.sqrt(w) - 3.0)
    return x * jnp.where(w < 5, centre, tail)


# ------------------------------------------------------------------------------------------------- without a loop


def unrolled(key: Key) -> Key:
    """A key that gives the same numbers without JAX's loop.

    Its type differs from that of other keys, so make it where numbers are drawn and do not pass it on.
    """
    if is_uncompiled():  # there, JAX's generator is one operation and this one is two hundred
        return key
    same: Key = jax.random.wrap_key_data(jax.random.key_data(key), impl=UNROLLED)
    return same


def threefry(key: Any, high: Any, low: Any) -> tuple[Any, Any]:
    """Threefry-2x32 with 20 rounds (Salmon et al., 2011): encrypts a counter of two words with a key of two words."""
    keys = (key[0], key[1], key[0] ^ key[1] ^ np.uint32(0x1BD11BDA))
    high, low = high + keys[0], low + keys[1]
    for group in range(5):
        for distance in ((13, 15, 26, 6), (17, 29, 16, 24))[group % 2]:
            high = high + low
            low = high ^ (low << np.uint32(distance) | low >> np.uint32(32 - distance))
        high = high + keys[(group + 1) % 3]
        low = low + keys[(group + 2) % 3] + np.uint32(group + 1)
    return high, low


def host_key(seed: int) -> Key:
    """`jax.random.key(seed)`, made on the host."""
    return _wrapped(np.array([0, seed % 2**32], np.uint32))


def host_fold_in(key: Key, number: int) -> Key:
    """`jax.random.fold_in(key, number)`, computed on the host.

    A command derives a few keys before it trains, and JAX would load or compile a program for each.
    """
    words = np.asarray(jax.random.key_data(key))
    zero, low = np.zeros(1, np.uint32), np.array([number % 2**32], np.uint32)
    return _wrapped(np.concatenate(threefry(words[:, None], zero, low)))


def _wrapped(words: np.ndarray) -> Key:
    key: Key = jax.random.wrap_key_data(jax.device_put(words), impl="threefry2x32")
    return key


def _numbered(key: Array, shape: Shape) -> tuple[Array, Array]:
    """Two random words for each entry of `shape`, from its position as the counter."""
    low = jnp.arange(math.prod(shape), dtype=jnp.uint32).reshape(shape)
    return threefry(key, jnp.zeros_like(low), low)


def _random_bits(key: Array, bit_width: int, shape: Shape) -> Array:
    if bit_width != 32:
        bits: Array = THREEFRY.random_bits(key, bit_width, shape)
        return bits
    high, low = _numbered(key, shape)
    return high ^ low


THREEFRY = jax.extend.random.threefry_prng_impl
UNROLLED = jax.extend.random.define_prng_impl(
    key_shape=(2,),
    seed=THREEFRY.seed,
    split=lambda key, shape: jnp.stack(_numbered(key, shape), axis=-1),
    random_bits=_random_bits,
    fold_in=lambda key, data: jnp.stack(threefry(key, *THREEFRY.seed(data))),
    name="threefry2x32_unrolled",
    tag="fru",
)
