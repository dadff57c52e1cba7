"""The modules that models are made of: dense stacks, convolutions, gated memory. Written in flax.nnx.

A model maps inputs `[T, …, *input_shape]` to features `[T, …, num_features]`. One with memory also takes a carry and
`reset [T, …]`, which empties the carry before each step where it is true. Its `initial_carry` method tells the rest of
covey that it has memory.
"""

from __future__ import annotations

import dataclasses
import enum
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from covey.types import Array

FEW_OUTPUTS = 16  # below this, the gradient of a kernel is fastest as (dyᵀ x)ᵀ


class Activation(enum.Enum):
    """What follows each dense or convolutional layer."""

    relu = "relu"  # max(x, 0)
    tanh = "tanh"  # hyperbolic tangent
    gelu = "gelu"  # x times the normal distribution function of x
    silu = "silu"  # x times the sigmoid of x, also called swish
    elu = "elu"  # x above 0, exp(x) − 1 below


class Norm(enum.Enum):
    """What normalises the outputs of layers."""

    none = "none"  # no normalisation
    layer = "layer"  # layer normalisation after each dense or convolutional layer


class Initialiser(enum.Enum):
    """What weights start as."""

    orthogonal = "orthogonal with gain √2, biases zero"
    lecun = "normal with variance 1 / fan-in, biases zero"
    uniform = "uniform within ±1 / √fan-in, biases too (what torch does)"


def activate(activation: Activation, x: Array) -> Array:
    """The activation, of each entry of `x`."""
    function: Callable[[Array], Array] = getattr(jax.nn, activation.value)
    return function(x)


class Linear(nnx.Linear):
    """A dense layer with a fast gradient on CPUs.

    Leading axes are merged into one: with several, the gradient of a plain product transposes its inputs in memory.
    """

    def __call__(self, x: Array) -> Array:  # type: ignore[override]
        rows = x.reshape(-1, x.shape[-1])
        outputs = (
            matmul_fast_backward(rows, self.kernel[...]) if jax.default_backend() == "cpu" else rows @ self.kernel[...]
        )
        if self.bias is not None:
            outputs = outputs + self.bias[...]
        return outputs.reshape(*x.shape[:-1], -1)


@jax.custom_vjp
def matmul_fast_backward(x: Array, kernel: Array) -> Array:
    """`x [N, inputs] @ kernel [inputs, outputs]`, with the kernel's gradient xᵀ dy in the fastest order for CPUs.

    XLA's fast matrix product needs operands that are not transposed in memory; with few outputs, dyᵀ x is the faster
    order. Left alone, XLA picks a slower product that reads x transposed; the barriers keep it from undoing the choice.
    There is no forward-mode derivative.
    """
    return x @ kernel


def _product_forward(x: Array, kernel: Array) -> tuple[Array, tuple[Array, Array]]:
    return x @ kernel, (x, kernel)


def _product_backward(residuals: tuple[Array, Array], dy: Array) -> tuple[Array, Array]:
    x, kernel = residuals
    if dy.shape[-1] < FEW_OUTPUTS:
        return dy @ kernel.T, jax.lax.optimization_barrier(jax.lax.optimization_barrier(dy.T) @ x).T
    return dy @ kernel.T, jax.lax.optimization_barrier(x.T) @ dy


matmul_fast_backward.defvjp(_product_forward, _product_backward)


def make_linear(
    inputs: int, outputs: int, initialiser: Initialiser, rngs: nnx.Rngs, *, gain: float = math.sqrt(2.0), gates: int = 1
) -> Linear:
    """A dense layer; `gain` scales the orthogonal initialiser and is ignored by the others.

    The outputs of several `gates` lie side by side, and each gate's part of the kernel is orthogonal by itself. If the
    kernel were orthogonal as a whole, its parts would be smaller, and memory would fade.
    """
    kernel_init, bias_init = _initialisers(initialiser, inputs, gain)
    if gates > 1 and initialiser is Initialiser.orthogonal:
        kernel_init = _side_by_side(kernel_init, gates)
    return Linear(inputs, outputs, kernel_init=kernel_init, bias_init=bias_init, rngs=rngs)


def _initialisers(initialiser: Initialiser, fan_in: int, gain: float) -> tuple[Callable[..., Any], Callable[..., Any]]:
    match initialiser:
        case Initialiser.orthogonal:
            return nnx.initializers.orthogonal(gain), nnx.initializers.zeros_init()
        case Initialiser.lecun:
            return nnx.initializers.lecun_normal(), nnx.initializers.zeros_init()
        case Initialiser.uniform:
            return _uniform(1.0 / math.sqrt(fan_in)), _uniform(1.0 / math.sqrt(fan_in))


def _side_by_side(initialiser: Callable[..., Array], parts: int) -> Callable[..., Array]:
    def init(key: Array, shape: Sequence[int], dtype: Any = jnp.float32, **_: Any) -> Array:
        *leading, outputs = shape
        keys = jax.random.split(key, parts)
        return jnp.concatenate([initialiser(each, (*leading, outputs // parts), dtype) for each in keys], axis=-1)

    return init


def _uniform(bound: float) -> Callable[..., Array]:
    def init(key: Array, shape: Sequence[int], dtype: Any = jnp.float32, **_: Any) -> Array:
        return jax.random.uniform(key, shape, dtype, -bound, bound)

    return init


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """What covey reads from every model's configuration. A model's dataclass inherits from this one, and overrides a
    default that does not fit with a field or a property of the same name."""

    @property
    def reads_team(self) -> bool:
        """Whether the model sees the observations of all agents and gives each its own features."""
        return False

    @property
    def initialiser(self) -> Initialiser:
        """How the weights of the output layer, which covey adds, are initialised."""
        return Initialiser.orthogonal


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayersConfig(ModelConfig):
    """Fields of covey's own models: how their layers are initialised, normalised and activated."""

    activation: Activation = Activation.relu  # activation function after each layer
    # normalisation between each layer, dense or convolutional, and its activation; `layer` by default for algorithms
    # that rely on it (pqn)
    norm: Norm = Norm.none
    initialiser: Initialiser = Initialiser.orthogonal  # how weights are initialised


class Mlp(nnx.Module):
    """Dense layers on the last axis, each normalised (if asked) and activated."""

    def __init__(self, inputs: int, sizes: Sequence[int], config: LayersConfig, rngs: nnx.Rngs):
        self.activation = config.activation
        borders = [inputs, *sizes]
        self.layers = nnx.List([make_linear(a, b, config.initialiser, rngs) for a, b in itertools.pairwise(borders)])
        self.norms = nnx.List([nnx.LayerNorm(size, rngs=rngs) for size in sizes] if config.norm is Norm.layer else [])
        self.num_features = borders[-1]

    def __call__(self, x: Array) -> Array:
        for i, layer in enumerate(self.layers):
            x = layer(x)
            if self.norms:
                x = self.norms[i](x)
            x = activate(self.activation, x)
        return x


class Conv(nnx.Module):
    """Convolutions over `[…, H, W, C]`, each normalised over its channels (if asked) and activated; flattened."""

    def __init__(
        self,
        input_shape: tuple[int, ...],
        channels: Sequence[int],
        kernels: Sequence[int],
        strides: Sequence[int],
        config: LayersConfig,
        rngs: nnx.Rngs,
    ):
        self.activation = config.activation
        height, width, inputs = input_shape
        layers = []
        for outputs, kernel, stride in zip(channels, kernels, strides, strict=True):
            kernel_init, bias_init = _initialisers(config.initialiser, inputs * kernel * kernel, math.sqrt(2.0))
            layers.append(
                nnx.Conv(
                    inputs,
                    outputs,
                    (kernel, kernel),
                    (stride, stride),
                    kernel_init=kernel_init,
                    bias_init=bias_init,
                    rngs=rngs,
                )
            )
            inputs, height, width = outputs, math.ceil(height / stride), math.ceil(width / stride)
        self.layers = nnx.List(layers)
        normalised = channels if config.norm is Norm.layer else ()
        self.norms = nnx.List([nnx.LayerNorm(outputs, rngs=rngs) for outputs in normalised])
        self.num_features = height * width * inputs

    def __call__(self, x: Array) -> Array:
        leading = x.shape[:-3]
        x = x.reshape(-1, *x.shape[-3:])
        for i, layer in enumerate(self.layers):
            x = layer(x)
            if self.norms:
                x = self.norms[i](x)
            x = activate(self.activation, x)
        return x.reshape(*leading, -1)


class Gru(nnx.Module):
    """Gated recurrent unit (Cho et al., 2014). The inputs of all steps are projected at once, outside the recurrence.

    r, z = σ(W x + U h)      n = tanh(W_n x + r ⊙ (U_n h + b))      h' = (1 − z) n + z h
    """

    num_states = 1

    def __init__(self, inputs: int, hidden_size: int, initialiser: Initialiser, rngs: nnx.Rngs):
        self.hidden_size = hidden_size
        self.project = make_linear(inputs, 3 * hidden_size, initialiser, rngs, gain=1.0, gates=3)
        self.recur = make_linear(hidden_size, 3 * hidden_size, initialiser, rngs, gain=1.0, gates=3)

    def cell(self, carry: tuple[Array, ...], projected: Array) -> tuple[tuple[Array, ...], Array]:
        """One step, from the input projected by `project`: the new carry, and the output."""
        (h,) = carry
        r_x, z_x, n_x = jnp.split(projected, 3, axis=-1)
        r_h, z_h, n_h = jnp.split(self.recur(h), 3, axis=-1)
        z = jax.nn.sigmoid(z_x + z_h)
        n = jnp.tanh(n_x + jax.nn.sigmoid(r_x + r_h) * n_h)
        h = (1.0 - z) * n + z * h
        return (h,), h


class Lstm(nnx.Module):
    """Long short-term memory (Hochreiter and Schmidhuber, 1997). The forget gate's bias starts at 1."""

    num_states = 2

    def __init__(self, inputs: int, hidden_size: int, initialiser: Initialiser, rngs: nnx.Rngs):
        self.hidden_size = hidden_size
        self.project = make_linear(inputs, 4 * hidden_size, initialiser, rngs, gain=1.0, gates=4)
        self.recur = make_linear(hidden_size, 4 * hidden_size, initialiser, rngs, gain=1.0, gates=4)

    def cell(self, carry: tuple[Array, ...], projected: Array) -> tuple[tuple[Array, ...], Array]:
        """One step, from the input projected by `project`: the new carry, and the output."""
        c, h = carry
        i, f, g, o = jnp.split(projected + self.recur(h), 4, axis=-1)
        c = jax.nn.sigmoid(f + 1.0) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (c, h), h


def run_memory(memory: Gru | Lstm, x: Array, carry: tuple[Array, ...], reset: Array) -> tuple[Array, tuple[Array, ...]]:
    """Runs a cell over time: x `[T, …, F]`, carry of `[…, H]`, reset `[T, …]` (before the step) -> `[T, …, H]`."""
    projected = memory.project(x)
    graph, parameters = nnx.split(memory)

    def step(carry: tuple[Array, ...], inputs: tuple[Array, Array]) -> tuple[tuple[Array, ...], Array]:
        projected_t, reset_t = inputs
        carry = jax.tree.map(lambda h: jnp.where(reset_t[..., None], 0.0, h), carry)
        return nnx.merge(graph, parameters).cell(carry, projected_t)

    carry, features = jax.lax.scan(step, carry, (projected, reset))
    return features, carry
