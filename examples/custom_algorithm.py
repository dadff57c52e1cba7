"""An algorithm of your own: REINFORCE with a running baseline (Williams, 1992), complete.

    ∇J(θ) = E[(G_t − b) ∇ log π_θ(a_t | o_t)],   G_t = Σ_k γ^k r_{t+k},   b the running mean of G

An algorithm is a few pure functions for one group of agents; covey makes one for each group of the task, and compiles
collection and update into one program around them. Run this file, or, in its folder,

    covey train algorithm=reinforce imports=[custom_algorithm] task=probe/copy

Differences from the paper: returns are cut at the end of the rollout, so that nothing waits for an episode to end.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import optax

import covey
from covey.algorithms.base import AlgorithmConfig, Context
from covey.networks.network import make_network
from covey.ops.devices import mean_over_devices
from covey.ops.distributions import make_distribution
from covey.ops.losses import weigh, weighted_mean
from covey.ops.normalisation import Moments, batch_moments, init_moments, merge_moments
from covey.ops.returns import gae
from covey.registry import Capabilities
from covey.types import Algorithm, Array, Batch, EnvSpec, Key, TimeStep, learned, pytree


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReinforceConfig(AlgorithmConfig):
    lr: float = 3e-3
    gamma: float = 0.99
    baseline_decay: float = 0.9  # of the running mean, per iteration
    agent_ids: bool = True  # observations come with a one-hot id; covey reads it of every algorithm


@pytree
class ReinforceState:
    params: Any = learned()  # what `init_from` takes from another run; the other fields start fresh
    optimiser: Any
    returns: Moments = learned(parameters=False)  # their running mean is the baseline
    coefficients: dict[str, Array]  # what callbacks may set while training runs


def make_reinforce(config: ReinforceConfig, spec: EnvSpec, group: str, context: Context) -> Algorithm:
    group_spec = spec.groups[group]
    distribution = make_distribution(group_spec.action)  # masked categorical, several, or tanh-normal: all work below
    actor = make_network(
        context.model,
        input_shape=group_spec.observation_shape,
        num_outputs=distribution.num_parameters,
        num_agents=group_spec.num_agents,
        head_gain=0.01,
    )
    optimiser = optax.scale_by_adam()

    def init(key: Key) -> ReinforceState:
        params = actor.init(key)
        return ReinforceState(
            params=params,
            optimiser=optimiser.init(params),
            returns=init_moments(),
            coefficients={"lr": jnp.float32(config.lr)},
        )

    def act(params: Any, timestep: TimeStep, carry: Any, key: Key, explore: bool) -> tuple[Array, dict, Any]:
        step = timestep.groups[group]
        # Networks take `[T, B, A, …]`; acting is one step of time. The observation may be a dictionary of arrays.
        now = jax.tree.map(lambda x: x[None], step.observation)
        outputs, carry = actor.apply(params, now, carry, timestep.last[None])
        if explore:
            raw = distribution.sample(outputs[0], step.action_mask, key)
        else:
            raw = distribution.mode(outputs[0], step.action_mask)
        return distribution.to_action(raw), {"raw_action": raw}, carry  # the extras come back in `update`

    def update(state: ReinforceState, batch: Batch, key: Key, progress: Array) -> tuple[ReinforceState, dict, None]:
        steps = batch.transitions[group]
        nothing = jnp.zeros_like(steps.reward)
        # With values of zero and λ = 1, generalised advantages are returns.
        returns, _ = gae(
            steps.reward, nothing, nothing, steps.terminated, steps.last[..., None], gamma=config.gamma, gae_lambda=1.0
        )
        observed = batch_moments(returns, steps.alive, context.device_axis)
        moments = merge_moments(state.returns, observed, decay=config.baseline_decay)
        weight = weigh(steps.alive, context.device_axis)  # the dead do not learn

        def loss(params: Any) -> Array:
            outputs, _ = actor.apply(params, steps.observation, batch.carries, steps.reset)
            log_prob = distribution.log_prob(outputs, steps.action_mask, steps.extras["raw_action"])
            return -weighted_mean(log_prob * (returns - moments.mean), weight)

        value, grads = jax.value_and_grad(loss)(state.params)
        grads = mean_over_devices(grads, context.device_axis)  # each device collected a part of the environments
        changes, optimiser_state = optimiser.update(grads, state.optimiser)
        lr = state.coefficients["lr"]
        params = jax.tree.map(lambda p, change: p - lr * change, state.params, changes)
        state = dataclasses.replace(state, params=params, optimiser=optimiser_state, returns=moments)
        return state, {"policy_loss": value, "baseline": moments.mean}, None  # None: no priorities, there is no replay

    return Algorithm(
        init=init,
        acting=lambda state: state.params,  # the part of the state that `act` needs
        initial_carry=actor.initial_carry,
        act=act,
        update=update,
    )


covey.register_algorithm(
    "reinforce",
    make_reinforce,
    config=ReinforceConfig,
    description="REINFORCE with a running baseline",
    capabilities=Capabilities(memory=False),  # with model=gru it is refused in one line, before anything compiles
)


def main() -> None:
    experiment = covey.Experiment(
        algorithm="reinforce",
        task="probe/copy",
        imports=["custom_algorithm"],
        fields={
            "model.layers": [32],
            "experiment.frames": 30_000,
            "experiment.num_envs": 32,
            "experiment.rollout_length": 8,
            "experiment.evaluation_interval": 0,
        },
    )
    [summary] = experiment.run()
    after = sum(summary.returns_after) / len(summary.returns_after)
    assert after > 0.9, f"chance is 0.5 and the best is 1; this reached {after}"


if __name__ == "__main__":
    main()
