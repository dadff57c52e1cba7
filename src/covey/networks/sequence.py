"""`sequence`: models one after another, each reading the features of the previous one.

    model=sequence 'model.stages={see:{model:mlp,layers:[64]},talk:{model:gnn},remember:{model:gru}}'

Stages have names of the user's choice and run in the order in which they are written. A stage's `model` is any
registered one, and the rest are its fields.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from flax import nnx

from covey import registry
from covey.errors import UnfitInput, UsageError
from covey.networks.inputs import has_memory, make_module
from covey.networks.layers import Initialiser, ModelConfig
from covey.types import Array, Observation, ObservationShape, PyTree


@dataclasses.dataclass(frozen=True, kw_only=True)
class SequenceConfig(ModelConfig):
    """The stages, in the order in which they run."""

    # models one after another, by names of your choice: {see: {model: mlp, layers: [64]}, remember: {model: gru}}
    stages: dict[str, Any] = dataclasses.field(default_factory=dict)
    # how the weights of the output layer are initialised; stages have their own fields
    initialiser: Initialiser = Initialiser.orthogonal

    def __post_init__(self) -> None:
        self.configs()

    def configs(self) -> dict[str, tuple[str, Any]]:
        """Each stage's registered model and its configuration."""
        found = {}
        for stage, fields in self.stages.items():
            if not isinstance(fields, Mapping) or "model" not in fields:
                raise ValueError(f"stages.{stage} takes a mapping with a `model`, not {fields!r}")
            name = fields["model"]
            if name == "sequence":
                raise ValueError(f"stages.{stage}: a sequence cannot be a stage of another; write its stages out")
            rest = {key: value for key, value in fields.items() if key != "model"}
            try:
                found[stage] = (name, registry.build_config(registry.models[name].defaults(), rest, f"stages.{stage}"))
            except UsageError as error:
                raise ValueError(str(error)) from error
        return found

    @property
    def reads_team(self) -> bool:
        return any(config.reads_team for _, config in self.configs().values())

    @property
    def has_memory(self) -> bool:
        return any(config.has_memory for _, config in self.configs().values())


class SequenceModel(nnx.Module):
    """`recurrent`: whether each stage has memory."""

    def __init__(self, stages: list[Any], recurrent: tuple[bool, ...]):
        self.stages = nnx.List(stages)
        self.recurrent = recurrent
        self.num_features = stages[-1].num_features

    def run(self, x: Observation, carry: tuple[PyTree, ...], reset: Array) -> tuple[Array, tuple[PyTree, ...]]:
        kept, remembered = [], iter(carry)
        for stage, recurrent in zip(self.stages, self.recurrent, strict=True):
            if recurrent:
                x, new = stage(x, next(remembered), reset)
                kept.append(new)
            else:
                x = stage(x)
        return x, tuple(kept)


class PlainSequence(SequenceModel):
    """A sequence without memory."""

    def __call__(self, x: Observation) -> Array:
        return self.run(x, (), x)[0]


class RecurrentSequence(SequenceModel):
    """A sequence whose carry holds those of the stages that have memory, in their order."""

    def initial_carry(self, leading: tuple[int, ...]) -> tuple[PyTree, ...]:
        stages = zip(self.stages, self.recurrent, strict=True)
        return tuple(stage.initial_carry(leading) for stage, recurrent in stages if recurrent)

    def __call__(self, x: Observation, carry: tuple[PyTree, ...], reset: Array) -> tuple[Array, tuple[PyTree, ...]]:
        return self.run(x, carry, reset)


def make_sequence(config: SequenceConfig, input_shape: ObservationShape, rngs: nnx.Rngs) -> SequenceModel:
    """Makes the stages one after another, each for the features of the one before."""
    if not config.stages:
        raise UsageError("model 'sequence' needs stages, e.g. 'model.stages={see:{model:mlp},keep:{model:gru}}'")
    stages: list[Any] = []
    recurrent: list[bool] = []
    for stage, (name, stage_config) in config.configs().items():
        try:
            stages.append(make_module(name, stage_config, input_shape, rngs))
        except UnfitInput as error:
            raise error.replace(section=f"model.stages.{stage}") from error
        recurrent.append(has_memory(name, stage_config, stages[-1]))
        input_shape = (stages[-1].num_features,)
    return (RecurrentSequence if any(recurrent) else PlainSequence)(stages, tuple(recurrent))
