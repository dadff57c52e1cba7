"""Memory: an unroll with a reset in the middle is two unrolls; initialisers have the spread that they promise."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from covey.networks.layers import (
    Activation,
    Conv,
    Gru,
    Initialiser,
    LayersConfig,
    Lstm,
    Mlp,
    Norm,
    activate,
    make_linear,
    matmul_fast_backward,
    run_memory,
)

STEPS, ENVS, INPUTS, HIDDEN = 6, 3, 4, 5
CELLS = [Gru, Lstm]


def make_memory(cell: Any) -> tuple[Any, jax.Array, tuple[jax.Array, ...]]:
    memory = cell(INPUTS, HIDDEN, Initialiser.uniform, nnx.Rngs(params=0))
    x = jax.random.normal(jax.random.key(1), (STEPS, ENVS, INPUTS))
    keys = jax.random.split(jax.random.key(2), cell.num_states)
    carry = tuple(jax.random.normal(key, (ENVS, HIDDEN)) for key in keys)
    return memory, x, carry


def fresh(cell: Any) -> tuple[jax.Array, ...]:
    return tuple(jnp.zeros((ENVS, HIDDEN)) for _ in range(cell.num_states))


@pytest.mark.parametrize("cell", CELLS)
def test_reset_in_the_middle_equals_two_unrolls(cell: type[Any]) -> None:
    memory, x, carry = make_memory(cell)
    reset = jnp.zeros((STEPS, ENVS), bool).at[3].set(True)
    features, end = run_memory(memory, x, carry, reset)
    never = jnp.zeros((3, ENVS), bool)
    first, _ = run_memory(memory, x[:3], carry, never)
    second, second_end = run_memory(memory, x[3:], fresh(cell), never)
    np.testing.assert_allclose(features, jnp.concatenate([first, second]), atol=1e-6)
    np.testing.assert_allclose(jnp.stack(end), jnp.stack(second_end), atol=1e-6)
    unbroken, _ = run_memory(memory, x, carry, jnp.zeros_like(reset))
    assert not np.allclose(unbroken[3:], features[3:], atol=1e-3)  # the reset did something


@pytest.mark.parametrize("cell", CELLS)
def test_unroll_equals_stepping_one_by_one(cell: type[Any]) -> None:
    memory, x, carry = make_memory(cell)
    reset = jax.random.bernoulli(jax.random.key(3), 0.4, (STEPS, ENVS))
    assert reset.any() and not reset.all()
    features, end = run_memory(memory, x, carry, reset)
    for t in range(STEPS):
        step, carry = run_memory(memory, x[t : t + 1], carry, reset[t : t + 1])
        np.testing.assert_allclose(step[0], features[t], atol=1e-6)
    np.testing.assert_allclose(jnp.stack(carry), jnp.stack(end), atol=1e-6)


@pytest.mark.parametrize("cell", CELLS)
def test_environments_are_reset_one_by_one(cell: type[Any]) -> None:
    memory, x, carry = make_memory(cell)
    reset = jnp.zeros((STEPS, ENVS), bool).at[2, 1].set(True)
    features, _ = run_memory(memory, x, carry, reset)
    unbroken, _ = run_memory(memory, x, carry, jnp.zeros_like(reset))
    np.testing.assert_array_equal(features[:, [0, 2]], unbroken[:, [0, 2]])
    assert not np.allclose(features[2:, 1], unbroken[2:, 1])


def sigmoid(x: np.ndarray) -> np.ndarray:
    return np.asarray(1.0 / (1.0 + np.exp(-x)))


def test_gru_by_formula() -> None:
    h: Any
    memory, x, (h,) = make_memory(Gru)
    w, b = np.asarray(memory.project.kernel), np.asarray(memory.project.bias)
    u, c = np.asarray(memory.recur.kernel), np.asarray(memory.recur.bias)
    got, _ = run_memory(memory, x, (h,), jnp.zeros((STEPS, ENVS), bool))
    h = np.asarray(h)
    for t in range(STEPS):
        r_x, z_x, n_x = np.split(np.asarray(x[t]) @ w + b, 3, axis=-1)
        r_h, z_h, n_h = np.split(h @ u + c, 3, axis=-1)
        z = sigmoid(z_x + z_h)
        h = (1 - z) * np.tanh(n_x + sigmoid(r_x + r_h) * n_h) + z * h
        np.testing.assert_allclose(got[t], h, atol=1e-5)


def test_lstm_by_formula() -> None:
    c: Any
    h: Any
    memory, x, (c, h) = make_memory(Lstm)
    w, b = np.asarray(memory.project.kernel), np.asarray(memory.project.bias)
    u, d = np.asarray(memory.recur.kernel), np.asarray(memory.recur.bias)
    got, _ = run_memory(memory, x, (c, h), jnp.zeros((STEPS, ENVS), bool))
    c, h = np.asarray(c), np.asarray(h)
    for t in range(STEPS):
        i, f, g, o = np.split(np.asarray(x[t]) @ w + b + h @ u + d, 4, axis=-1)
        c = sigmoid(f + 1) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        np.testing.assert_allclose(got[t], h, atol=1e-5)


# ----------------------------------------------------------------------------------------------------- initialisers


@pytest.mark.parametrize(("cell", "gates"), [(Gru, 3), (Lstm, 4)])
def test_each_gate_is_orthogonal(cell: type[Any], gates: int) -> None:
    """Over all gates at once, a gate's matrix had singular values of about 1 / √gates."""
    memory = cell(HIDDEN, HIDDEN, Initialiser.orthogonal, nnx.Rngs(params=0))
    for kernel in (memory.project.kernel, memory.recur.kernel):
        parts = np.split(np.asarray(kernel), gates, axis=1)
        for part in parts:
            np.testing.assert_allclose(part.T @ part, np.eye(HIDDEN), atol=1e-5)
        assert not np.allclose(parts[0], parts[1])


def test_orthogonal_initialiser() -> None:
    layer = make_linear(16, 8, Initialiser.orthogonal, nnx.Rngs(params=0), gain=0.5)
    kernel = np.asarray(layer.kernel)
    np.testing.assert_allclose(kernel.T @ kernel, 0.25 * np.eye(8), atol=1e-5)
    assert not np.any(layer.bias)
    by_default = np.asarray(make_linear(8, 8, Initialiser.orthogonal, nnx.Rngs(params=0)).kernel)
    np.testing.assert_allclose(by_default.T @ by_default, 2.0 * np.eye(8), atol=1e-5)


def test_uniform_initialiser_is_torchs() -> None:
    layer = make_linear(100, 400, Initialiser.uniform, nnx.Rngs(params=0), gain=7.0)
    for values in (np.asarray(layer.kernel), np.asarray(layer.bias)):
        assert np.abs(values).max() <= 0.1
        assert np.abs(values).max() > 0.098
        assert values.std() == pytest.approx(0.1 / math.sqrt(3), rel=0.05)
        assert abs(values.mean()) < 0.01


def test_lecun_initialiser() -> None:
    layer = make_linear(100, 400, Initialiser.lecun, nnx.Rngs(params=0))
    assert np.asarray(layer.kernel).std() == pytest.approx(0.1, rel=0.03)
    assert not np.any(layer.bias)


def test_convolutions_take_their_fan_in_from_the_window() -> None:
    conv = Conv((5, 5, 4), (300,), (3,), (1,), LayersConfig(initialiser=Initialiser.uniform), nnx.Rngs(params=0))
    bound = 1 / math.sqrt(4 * 3 * 3)
    assert bound * 0.98 < np.abs(np.asarray(conv.layers[0].kernel)).max() <= bound


def test_layers_differ_and_keys_count() -> None:
    one = Mlp(8, (8, 8), LayersConfig(), nnx.Rngs(params=0))
    other = Mlp(8, (8, 8), LayersConfig(), nnx.Rngs(params=1))
    assert not np.allclose(one.layers[0].kernel, one.layers[1].kernel)
    assert not np.allclose(one.layers[0].kernel, other.layers[0].kernel)


# ------------------------------------------------------------------------------------------------------------ stacks


@pytest.mark.parametrize("activation", list(Activation), ids=lambda activation: activation.name)
def test_activations(activation: Activation) -> None:
    x = np.array([-1.5, 0.0, 2.0])
    wanted = {
        Activation.relu: np.maximum(x, 0),
        Activation.tanh: np.tanh(x),
        Activation.gelu: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
        Activation.silu: x * sigmoid(x),
        Activation.elu: np.where(x > 0, x, np.expm1(x)),
    }
    np.testing.assert_allclose(activate(activation, jnp.array(x)), wanted[activation], atol=1e-5)


def test_mlp_by_formula_with_and_without_norm() -> None:
    x = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    for norm in Norm:
        config = LayersConfig(norm=norm, activation=Activation.tanh, initialiser=Initialiser.uniform)
        mlp = Mlp(4, (5, 6), config, nnx.Rngs(params=0))
        h = x
        for layer in mlp.layers:
            h = h @ np.asarray(layer.kernel) + np.asarray(layer.bias)
            if norm is Norm.layer:
                h = (h - h.mean(-1, keepdims=True)) / np.sqrt(h.var(-1, keepdims=True) + 1e-6)
            h = np.tanh(h)
        np.testing.assert_allclose(mlp(jnp.array(x)), h, atol=1e-4)
        assert mlp.num_features == 6


@pytest.mark.parametrize("outputs", [3, 32])  # below and above `FEW_OUTPUTS`
def test_a_layers_gradient_is_that_of_its_product(outputs: int) -> None:
    """Written out for speed, so against what JAX derives; for one layer, and for one of each agent's own."""
    keys = jax.random.split(jax.random.key(0), 3)
    x, kernel = jax.random.normal(keys[0], (4, 20, 8)), jax.random.normal(keys[1], (4, 8, outputs))
    dy = jax.random.normal(keys[2], (4, 20, outputs))

    def check(multiply: Callable[..., Any], *arguments: jax.Array) -> None:
        _, ours = jax.vjp(multiply, *arguments)
        _, theirs = jax.vjp(jnp.matmul, *arguments)
        own_dy = dy.reshape(*arguments[0].shape[:-1], outputs)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), ours(own_dy), theirs(own_dy))

    check(matmul_fast_backward, x.reshape(-1, 8), kernel[0])
    check(jax.vmap(matmul_fast_backward), x, kernel)


def test_norms_reach_convolutions() -> None:
    """Over the channels of each pixel: deviations are 1 before the activation, whatever the input's scale."""
    config = LayersConfig(norm=Norm.layer, activation=Activation.tanh)
    conv = Conv((4, 4, 2), (8, 6), (3, 3), (1, 1), config, nnx.Rngs(params=0))
    x = jax.random.normal(jax.random.key(0), (5, 4, 4, 2))
    small, large = conv(x), conv(1000.0 * x)
    np.testing.assert_allclose(large, small, atol=1e-2)
    before = np.arctanh(np.asarray(small).reshape(5, 4, 4, 6))
    np.testing.assert_allclose(before.mean(-1), 0.0, atol=1e-3)
    np.testing.assert_allclose(before.std(-1), 1.0, atol=1e-2)
    plain = Conv((4, 4, 2), (8, 6), (3, 3), (1, 1), LayersConfig(), nnx.Rngs(params=0))
    assert not plain.norms and len(conv.norms) == 2
