"""A model of your own: one nnx module, one dataclass, one `register_model` call.

Run this file, or, in its folder,

    covey train model=residual imports=[custom_model] model.num_blocks=3
"""

from __future__ import annotations

import dataclasses
import math

import jax
from flax import nnx

import covey
from covey.networks.layers import ModelConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class ResidualConfig(ModelConfig):
    """The defaults live here and nowhere else."""

    width: int = 64
    num_blocks: int = 2


class Residual(nnx.Module):
    """Features from one observation `[N, *input_shape]`. covey adds the head: logits for an actor, values for a critic.

    `num_features` tells it how wide the features are. A model with memory says so (`has_memory`); see
    `covey.networks.models.RecurrentModel`.
    """

    def __init__(self, config: ResidualConfig, input_shape: tuple[int, ...], rngs: nnx.Rngs):
        self.embed = nnx.Linear(math.prod(input_shape), config.width, rngs=rngs)
        self.blocks = nnx.List([nnx.Linear(config.width, config.width, rngs=rngs) for _ in range(config.num_blocks)])
        self.norms = nnx.List([nnx.LayerNorm(config.width, rngs=rngs) for _ in range(config.num_blocks)])
        self.num_features = config.width

    def __call__(self, x: jax.Array) -> jax.Array:
        x = self.embed(x.reshape(x.shape[0], -1))
        for norm, block in zip(self.norms, self.blocks, strict=True):
            x = x + jax.nn.relu(block(norm(x)))
        return x


covey.register_model("residual", Residual, config=ResidualConfig, description="dense layers with residual connections")


def main() -> None:
    # The critic's model is the actor's unless `critic_model` names another.
    experiment = covey.Experiment(
        task="probe/copy",
        model="residual",
        imports=["custom_model"],
        fields={
            "model.num_blocks": 1,
            "algorithm.num_minibatches": 2,
            "experiment.frames": 20_000,
            "experiment.num_envs": 32,
            "experiment.rollout_length": 8,
            "experiment.evaluation_interval": 0,
        },
    )
    experiment.run()


if __name__ == "__main__":
    main()
