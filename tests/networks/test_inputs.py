"""Which models have memory: they say so, and modules that have it without saying so keep it."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
import pytest
from flax import nnx

from covey import registry
from covey.errors import UsageError
from covey.networks.inputs import has_memory, make_module
from covey.networks.layers import ModelConfig
from covey.networks.network import make_model


@pytest.mark.parametrize("name", [entry.name for entry in registry.models])
def test_covey_s_models_say_whether_they_remember(name: str) -> None:
    """What the configuration says is what the module does, for all that are registered."""
    stages: dict[str, Any] = {"stages": {"see": {"model": "mlp", "layers": [4]}}} if name == "sequence" else {}
    config = make_model(name, **stages).config
    shape = (3, 3, 1) if name == "cnn" else (6,)
    assert config.has_memory == (name in ("gru", "lstm"))
    assert has_memory(name, config, make_module(name, config, shape, nnx.Rngs(0))) == config.has_memory


def test_a_sequence_remembers_if_a_stage_does() -> None:
    for stage, remembers in (("gru", True), ("mlp", False)):
        assert (
            make_model("sequence", stages={"one": {"model": "mlp"}, "two": {"model": stage}}).config.has_memory
            == remembers
        )


class Plain(nnx.Module):
    num_features = 1

    def __call__(self, x: Any) -> Any:
        return x


class Remembering(Plain):
    def initial_carry(self, leading: tuple[int, ...]) -> Any:
        return jnp.zeros(leading)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SaysSo(ModelConfig):
    has_memory: bool = True


def test_a_model_that_does_not_say_so_keeps_its_memory() -> None:
    assert not has_memory("mine", ModelConfig(), Plain())
    assert has_memory("mine", ModelConfig(), Remembering())
    assert has_memory("mine", SaysSo(), Remembering())


def test_a_model_that_says_so_needs_a_carry() -> None:
    with pytest.raises(UsageError, match="model 'mine' has memory, so Plain needs initial_carry"):
        has_memory("mine", SaysSo(), Plain())
