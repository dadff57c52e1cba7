"""The models that a configuration can name: `mlp`, `cnn`, `gru`, `lstm`.

Each is a frozen dataclass of its fields and a module made from it: `make_x(config, input_shape, rngs)`. All of them
take dictionaries of arrays too: dense layers and memories join all entries in one row, in the order of their names.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import jax.numpy as jnp
from flax import nnx

from covey.errors import UnfitInput, UsageError
from covey.networks.layers import Conv, Gru, LayersConfig, Lstm, Mlp, run_memory
from covey.observations import describe_shape, flat_size, flatten, flatten_last, num_axes
from covey.types import Array, Observation, ObservationShape


@dataclasses.dataclass(frozen=True, kw_only=True)
class MlpConfig(LayersConfig):
    """Dense layers. `flatten` joins all axes of an observation into one; without it the layers act on the last axis
    alone, row by row, and the rows' features are averaged. The entries of a dictionary are flattened and joined."""

    layers: tuple[int, ...] = (128, 128)  # sizes of the dense layers
    # join all axes of an observation into one; false: layers act on each row alone, and the rows' features are averaged
    flatten: bool = True


class MlpModel(nnx.Module):
    """Dense layers over all that an agent sees: features `[…, F]`."""

    def __init__(self, config: MlpConfig, input_shape: ObservationShape, rngs: nnx.Rngs):
        self.flatten = config.flatten
        self.num_axes = num_axes(input_shape)
        if config.flatten:
            num_inputs = flat_size(input_shape)
        elif isinstance(input_shape, Mapping):
            raise UsageError(
                f"model 'mlp' with flatten=false reads the rows of one array, not {describe_shape(input_shape)}"
            )
        else:
            num_inputs = input_shape[-1]
        self.mlp = Mlp(num_inputs, config.layers, config, rngs)
        self.num_features = self.mlp.num_features

    def __call__(self, x: Observation) -> Array:
        if self.flatten:
            return self.mlp(flatten_last(x, self.num_axes))
        rows = self.mlp(x)
        return rows.mean(axis=tuple(range(rows.ndim - self.num_axes, rows.ndim - 1))) if self.num_axes > 1 else rows


@dataclasses.dataclass(frozen=True, kw_only=True)
class CnnConfig(LayersConfig):
    """Convolutions over an image `[H, W, C]`, padded to keep its size, then dense layers. In a dictionary, each entry
    with three axes has its own convolutions. The other entries are flattened and appended to the convolutions' features
    before the dense layers."""

    channels: tuple[int, ...] = (32, 32)  # channels of each convolution
    kernels: tuple[int, ...] = (3, 3)  # side of each convolution's kernel, in cells; one entry per convolution
    strides: tuple[int, ...] = (1, 1)  # stride of each convolution, in cells; one entry per convolution
    layers: tuple[int, ...] = (128,)  # sizes of the dense layers after the convolutions

    def __post_init__(self) -> None:
        if not len(self.channels) == len(self.kernels) == len(self.strides):
            raise ValueError("channels, kernels and strides must have one entry per convolution")


def make_cnn(config: CnnConfig, input_shape: ObservationShape, rngs: nnx.Rngs) -> CnnModel | CnnOfEntries:
    """Convolutions over an image, or over the images among the entries of a dictionary."""
    if isinstance(input_shape, Mapping):
        if all(len(shape) != 3 for shape in input_shape.values()):
            raise UnfitInput("cnn", "an entry [H, W, C]", describe_shape(input_shape))
        return CnnOfEntries(config, input_shape, rngs)
    if len(input_shape) != 3:
        raise UnfitInput("cnn", "observations [H, W, C]", input_shape)
    return CnnModel(config, input_shape, rngs)


class CnnModel(nnx.Module):
    """Convolutions over one image `[…, H, W, C]`, then dense layers: features `[…, F]`."""

    def __init__(self, config: CnnConfig, input_shape: tuple[int, ...], rngs: nnx.Rngs):
        self.conv = Conv(input_shape, config.channels, config.kernels, config.strides, config, rngs)
        self.mlp = Mlp(self.conv.num_features, config.layers, config, rngs)
        self.num_features = self.mlp.num_features

    def __call__(self, x: Array) -> Array:
        return self.mlp(self.conv(x))


class CnnOfEntries(nnx.Module):
    """A CNN for a dictionary with images. Dense layers read the images' features, then the other entries, by name."""

    def __init__(self, config: CnnConfig, input_shape: Mapping[str, tuple[int, ...]], rngs: nnx.Rngs):
        self.images = tuple(name for name in sorted(input_shape) if len(input_shape[name]) == 3)
        self.others = tuple(name for name in sorted(input_shape) if len(input_shape[name]) != 3)
        self.conv = nnx.Dict(
            {
                name: Conv(input_shape[name], config.channels, config.kernels, config.strides, config, rngs)
                for name in self.images
            }
        )
        num_inputs = sum(self.conv[name].num_features for name in self.images)
        num_inputs += flat_size({name: input_shape[name] for name in self.others})
        self.mlp = Mlp(num_inputs, config.layers, config, rngs)
        self.num_features = self.mlp.num_features

    def __call__(self, x: dict[str, Array]) -> Array:
        features = [self.conv[name](x[name]) for name in self.images]
        num_leading = features[0].ndim - 1
        features += [flatten(x[name], num_leading) for name in self.others]
        return self.mlp(jnp.concatenate(features, axis=-1))


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecurrentConfig(LayersConfig):
    """Dense layers, a memory cell, dense layers. Observations are flattened, and the entries of a dictionary joined."""

    layers: tuple[int, ...] = (128,)  # sizes of the dense layers before the memory
    hidden_size: int = 128  # size of the memory
    layers_after: tuple[int, ...] = (128,)  # sizes of the dense layers after the memory


class RecurrentModel(nnx.Module):
    """Dense layers, a cell with memory, dense layers: features `[T, …, F]` of observations in time."""

    def __init__(
        self, cell: type[Gru] | type[Lstm], config: RecurrentConfig, input_shape: ObservationShape, rngs: nnx.Rngs
    ):
        self.num_axes = num_axes(input_shape)
        self.before = Mlp(flat_size(input_shape), config.layers, config, rngs)
        self.memory = cell(self.before.num_features, config.hidden_size, config.initialiser, rngs)
        self.after = Mlp(config.hidden_size, config.layers_after, config, rngs)
        self.num_features = self.after.num_features

    def initial_carry(self, leading: tuple[int, ...]) -> tuple[Array, ...]:
        """Zeros, one array `[*leading, H]` for each state of the cell: GRU one, LSTM two."""
        return tuple(jnp.zeros((*leading, self.memory.hidden_size)) for _ in range(self.memory.num_states))

    def __call__(self, x: Observation, carry: tuple[Array, ...], reset: Array) -> tuple[Array, tuple[Array, ...]]:
        x = flatten_last(x, self.num_axes)
        features, carry = run_memory(self.memory, self.before(x), carry, reset)
        return self.after(features), carry


def make_gru(config: RecurrentConfig, input_shape: ObservationShape, rngs: nnx.Rngs) -> RecurrentModel:
    """Dense layers around a gated recurrent unit."""
    return RecurrentModel(Gru, config, input_shape, rngs)


def make_lstm(config: RecurrentConfig, input_shape: ObservationShape, rngs: nnx.Rngs) -> RecurrentModel:
    """Dense layers around a long short-term memory."""
    return RecurrentModel(Lstm, config, input_shape, rngs)
