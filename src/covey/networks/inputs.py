"""Makes the module of a registered model for inputs of a shape. Refuses dictionaries if the model takes none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flax import nnx

from covey import registry
from covey.errors import UnfitInput, UsageError
from covey.networks.layers import Memory, ModelConfig
from covey.observations import describe_shape
from covey.types import ObservationShape


def make_module(name: str, config: Any, input_shape: ObservationShape, rngs: nnx.Rngs) -> Any:
    """The module of the registered model `name`, for inputs that are an array or a dictionary of arrays."""
    entry = registry.models[name]
    if isinstance(input_shape, Mapping) and not entry.takes_dictionaries:
        found = f"the dictionary {describe_shape(input_shape)}"
        able = [model.name for model in registry.models if model.takes_dictionaries and model.name != "mlp"]
        hint = "" if entry.built_in else "if yours takes dictionaries, register it with takes_dictionaries=True"
        raise UnfitInput(name, "observations that are one array", found, others=able, hint=hint)
    return entry.make_function()(config, input_shape, rngs)


def has_memory(name: str, config: ModelConfig, module: Any) -> bool:
    """Whether a module of the registered model `name` takes a carry: its configuration says so (`has_memory`).

    Modules of models that say nothing have memory if they are a `Memory` all the same.
    """
    if config.has_memory and not isinstance(module, Memory):
        raise UsageError(f"model '{name}' has memory, so {type(module).__name__} needs initial_carry(leading) -> carry")
    return isinstance(module, Memory)
