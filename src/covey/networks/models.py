"""The models that a configuration can name: `mlp`, `cnn`, `gru`, `lstm`.

Each is a frozen dataclass of its fields and a module made from it: `make_x(config, input_shape, rngs)`.
"""

from __future__ import annotations

import dataclasses
import math

import jax.numpy as jnp
from flax import nnx

from covey.errors import UnfitInput
from covey.networks.layers import Conv, Gru, LayersConfig, Lstm, Mlp, run_memory
from covey.types import Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class MlpConfig(LayersConfig):
    """Dense layers. `flatten` joins all axes of an observation into one; without it the layers act on the last axis
    alone, row by row, and the rows' features are averaged."""

    layers: tuple[int, ...] = (128, 128)  # sizes of the dense layers
    # join all axes of an observation into one; false: layers act on each row alone, and the rows are averaged
    flatten: bool = True


class MlpModel(nnx.Module):
    def __init__(self, config: MlpConfig, input_shape: tuple[int, ...], rngs: nnx.Rngs):
        self.flatten = config.flatten
        self.num_row_axes = len(input_shape) - 1
        self.mlp = Mlp(math.prod(input_shape) if config.flatten else input_shape[-1], config.layers, config, rngs)
        self.num_features = self.mlp.num_features

    def __call__(self, x: Array) -> Array:
        if self.num_row_axes and self.flatten:
            x = x.reshape(*x.shape[: x.ndim - self.num_row_axes - 1], -1)
        x = self.mlp(x)
        if self.num_row_axes and not self.flatten:
            x = x.mean(axis=tuple(range(x.ndim - self.num_row_axes - 1, x.ndim - 1)))
        return x


@dataclasses.dataclass(frozen=True, kw_only=True)
class CnnConfig(LayersConfig):
    """Convolutions over an image `[H, W, C]`, padded to keep its size, then dense layers."""

    channels: tuple[int, ...] = (32, 32)  # channels of each convolution
    kernels: tuple[int, ...] = (3, 3)  # side of each convolution's kernel, in cells; one entry per convolution
    strides: tuple[int, ...] = (1, 1)  # stride of each convolution, in cells; one entry per convolution
    layers: tuple[int, ...] = (128,)  # sizes of the dense layers after the convolutions

    def __post_init__(self) -> None:
        if not len(self.channels) == len(self.kernels) == len(self.strides):
            raise ValueError("channels, kernels and strides must have one entry per convolution")


class CnnModel(nnx.Module):
    def __init__(self, config: CnnConfig, input_shape: tuple[int, ...], rngs: nnx.Rngs):
        if len(input_shape) != 3:
            raise UnfitInput("cnn", "observations [H, W, C]", input_shape)
        self.conv = Conv(input_shape, config.channels, config.kernels, config.strides, config, rngs)
        self.mlp = Mlp(self.conv.num_features, config.layers, config, rngs)
        self.num_features = self.mlp.num_features

    def __call__(self, x: Array) -> Array:
        return self.mlp(self.conv(x))


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecurrentConfig(LayersConfig):
    """Dense layers, a memory cell, dense layers. Observations are flattened."""

    layers: tuple[int, ...] = (128,)  # sizes of the dense layers before the memory
    hidden_size: int = 128  # size of the memory
    layers_after: tuple[int, ...] = (128,)  # sizes of the dense layers after the memory


class RecurrentModel(nnx.Module):
    def __init__(self, cell: type[Gru] | type[Lstm], config: RecurrentConfig, input_shape: tuple, rngs: nnx.Rngs):
        self.num_row_axes = len(input_shape) - 1
        self.before = Mlp(math.prod(input_shape), config.layers, config, rngs)
        self.memory = cell(self.before.num_features, config.hidden_size, config.initialiser, rngs)
        self.after = Mlp(config.hidden_size, config.layers_after, config, rngs)
        self.num_features = self.after.num_features

    def initial_carry(self, leading: tuple[int, ...]) -> tuple[Array, ...]:
        return tuple(jnp.zeros((*leading, self.memory.hidden_size)) for _ in range(self.memory.num_states))

    def __call__(self, x: Array, carry: tuple[Array, ...], reset: Array) -> tuple[Array, tuple[Array, ...]]:
        x = x.reshape(*x.shape[: x.ndim - self.num_row_axes - 1], -1)
        features, carry = run_memory(self.memory, self.before(x), carry, reset)
        return self.after(features), carry


def make_gru(config: RecurrentConfig, input_shape: tuple[int, ...], rngs: nnx.Rngs) -> RecurrentModel:
    return RecurrentModel(Gru, config, input_shape, rngs)


def make_lstm(config: RecurrentConfig, input_shape: tuple[int, ...], rngs: nnx.Rngs) -> RecurrentModel:
    return RecurrentModel(Lstm, config, input_shape, rngs)
