"""Hooks: your own pure functions inside the compiled step, without touching an algorithm.

    hooks.batch     (group, transitions) -> transitions            before the update
    hooks.loss      (group, params, minibatch) -> (loss, metrics)  added to the algorithm's own
    hooks.metrics   (metrics) -> metrics                           of the whole iteration

Here, an intrinsic reward: agents are paid a little for steps that change what they see. Run this file, or, in its
folder,

    covey train task=mine/meet imports=[custom_task] hooks.batch=hooks:pay_for_change hooks.metrics=hooks:add_surprise
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

import covey
from covey.types import Transition

BONUS = 0.01


def pay_for_change(group: str, transitions: Transition) -> Transition:
    """Arrays are `[T, B, A, …]`. Only what is learned from changes: returns are still counted in the task's reward."""
    features = tuple(range(transitions.reward.ndim, transitions.observation.ndim))
    changed = jnp.any(transitions.observation != transitions.next_observation, axis=features)
    return dataclasses.replace(transitions, reward=transitions.reward + BONUS * changed)


def add_surprise(metrics: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """What is added here is logged like the rest; names begin with the group."""
    return metrics | {"walkers/surprise": 1.0 - metrics["walkers/explained_variance"]}


def main() -> None:
    # Hooks are given by name, `module:function`, so that the run directory holds all that `covey resume` needs.
    experiment = covey.Experiment(
        task="mine/meet",
        imports=["custom_task"],
        fields={
            "hooks.batch": "hooks:pay_for_change",
            "hooks.metrics": "hooks:add_surprise",
            "model.layers": [32, 32],
            "experiment.frames": 40_000,
            "experiment.num_envs": 32,
            "experiment.rollout_length": 32,
            "experiment.evaluation_interval": 0,
        },
    )
    experiment.run()


if __name__ == "__main__":
    main()
