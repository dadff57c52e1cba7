"""Parallel Q-learning for teams (PQN; Gallici et al., 2024): Q-learning without replay and without target networks.

Many environments take the place of a buffer. Each iteration acts ε-greedily for some steps, computes λ-returns from the
values of the network as it is,

    G_t = r_t + γ [(1 − λ) max_a Q(s_{t+1}, a) + λ G_{t+1}],

and fits Q to them in a few epochs of minibatches. Agents learn by themselves, or as a team whose value is the sum of
theirs (`mixer=sum`, as in VDN).

Differences from the paper:
- Layer normalisation, on which it relies, is the model's field. It is on unless the user says `model.norm=none`.
- Time limits bootstrap from the true final observation; dead agents count for nothing.
- With memory, minibatches are of whole rollouts, each from the carry that it was acted with.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import optax

from covey.algorithms.base import Context, add_users_loss, make_optimiser, require_discrete
from covey.checks import above_zero, at_least, between_0_and_1
from covey.networks.network import apply_with_successors, make_network
from covey.ops.blocks import mean_over_blocks
from covey.ops.devices import mean_over_devices
from covey.ops.exploration import anneal, epsilon_greedy
from covey.ops.losses import weigh, weighted_mean
from covey.ops.mixing import team_of
from covey.ops.returns import lambda_returns
from covey.ops.schedules import Schedule, factor
from covey.ops.sequences import cut, take
from covey.ops.shuffle import random_order
from covey.ops.targets import masked_argmax, masked_max, take_action
from covey.types import Algorithm, Array, Batch, EnvSpec, Key, PyTree, TimeStep, learned, pytree


class Mixing(enum.Enum):
    none = "each agent learns its own value"
    sum = "the team's value is the sum of the agents'"


@dataclasses.dataclass(frozen=True, kw_only=True)
class PqnConfig:
    """Fields of `pqn`."""

    evaluates_greedily: ClassVar[bool] = True
    discrete_actions_only: ClassVar[bool] = True
    model_defaults: ClassVar[Mapping[str, str]] = {"norm": "layer"}  # without targets, only the norm keeps it stable
    mixer: Mixing = Mixing.sum  # how the team's value is made of the agents'
    share_parameters: bool = True  # one set of parameters for all agents of a group; false: one for each
    agent_ids: bool = True  # append a one-hot id to observations, so that shared parameters can play different roles
    lr: float = 5e-4  # Adam's step size, before `lr_schedule`
    lr_schedule: Schedule = Schedule.linear  # how the step size changes over `experiment.schedule_frames`
    adam_eps: float = 1e-5  # the number in Adam's denominator that keeps it above zero
    max_grad_norm: float = 10.0  # gradients are scaled down to this norm where theirs is greater
    gamma: float = 0.99  # discount: what a reward one step later counts, against 1 now
    q_lambda: float = 0.65  # λ of the returns: 0 bootstraps after one step, 1 only at the end of the rollout
    epsilon_start: float = 1.0  # probability of a random action at the start
    epsilon_end: float = 0.05  # probability of a random action after `epsilon_fraction` of the frames
    # share of `experiment.schedule_frames` over which the probability falls from start to end
    epsilon_fraction: float = 0.2
    epochs: int = 4  # passes over the batch in each iteration
    num_minibatches: int = 8  # minibatches that the batch is split into in each epoch

    def __post_init__(self) -> None:
        above_zero(self, "lr", "adam_eps", "max_grad_norm")
        between_0_and_1(self, "gamma", "q_lambda", "epsilon_start", "epsilon_end", "epsilon_fraction")
        at_least(self, 1, "epochs", "num_minibatches")

    def check(self, experiment: Any) -> None:
        frames = experiment.num_envs * experiment.rollout_length
        if frames % self.num_minibatches:
            raise ValueError(f"num_minibatches {self.num_minibatches} does not divide the batch of {frames} frames")


PQN = PqnConfig()


@pytree
class PqnState:
    """All that a group learns; `epsilon` is in use."""

    params: PyTree = learned()
    optimiser: PyTree
    epsilon: Array
    coefficients: dict[str, Array]


@pytree
class Samples:
    """N sequences of L steps, `[N, L, …]`; carries are `[N, …]`."""

    observation: Array
    reset: Array
    action: Array
    alive: Array
    target: Array
    weight: Array
    carry: PyTree


def make_pqn(config: PqnConfig, spec: EnvSpec, group: str, context: Context) -> Algorithm:
    """PQN for one group of a task."""
    group_spec = spec.groups[group]
    num_actions, axis = require_discrete(spec, group).num_actions, context.device_axis
    network = make_network(
        context.model,
        name=f"{group}/q",
        input_shape=group_spec.observation_shape,
        num_outputs=num_actions,
        num_agents=group_spec.num_agents,
        head_gain=0.01,
        share_parameters=config.share_parameters,
    )
    optimiser = make_optimiser(config)
    team = config.mixer is Mixing.sum

    def init(key: Key) -> PqnState:
        params = network.init(key)
        return PqnState(
            params=params,
            optimiser=optimiser.init(params),
            epsilon=jnp.float32(config.epsilon_start),
            coefficients={"lr": jnp.float32(config.lr)},
        )

    def act(state: PqnState, timestep: TimeStep, carry: PyTree, key: Key, explore: bool) -> tuple[Array, dict, PyTree]:
        step = timestep.groups[group]
        values, carry = network.apply(state.params, step.observation[None], carry, timestep.last[None])
        action = masked_argmax(values[0], step.action_mask)
        if explore:
            action = epsilon_greedy(action, step.action_mask, num_actions, state.epsilon, key)
        return action.astype(jnp.int32), {}, carry

    def make_samples(state: PqnState, batch: Batch) -> Samples:
        """Targets by the network as it is, then the batch cut into sequences."""
        steps = batch.transitions[group]
        length = steps.last.shape[0] if network.recurrent else 1
        carry = jax.tree.map(lambda x: x[0], batch.carries)
        _, next_values = apply_with_successors(
            network, state.params, steps.observation, steps.next_observation, carry, steps.reset
        )
        still = steps.alive & ~steps.terminated  # who is out may have no legal action, and so no value
        next_value = jnp.where(still, masked_max(next_values, steps.next_action_mask), 0.0)
        if team:
            reward, terminated, counts = team_of(steps.reward, steps.terminated, steps.alive)
            next_value = jnp.sum(next_value, -1)
            last = steps.last
        else:
            reward, terminated, counts = steps.reward, steps.terminated, steps.alive
            last = jnp.broadcast_to(steps.last[..., None], reward.shape)
        target = lambda_returns(reward, next_value, terminated, last, gamma=config.gamma, lambda_=config.q_lambda)
        samples = Samples(
            observation=steps.observation,
            reset=steps.reset,
            action=steps.action,
            alive=steps.alive,
            target=target,
            weight=weigh(counts, axis),
            carry=None,
        )
        sequences = jax.tree.map(lambda x: cut(x, length), samples)
        return dataclasses.replace(sequences, carry=carry)

    def q_loss(params: PyTree, samples: Samples) -> tuple[Array, dict[str, Array]]:
        values, _ = network.apply(params, samples.observation, samples.carry, samples.reset)
        chosen = take_action(values, samples.action)
        if team:
            chosen = jnp.sum(jnp.where(samples.alive, chosen, 0.0), -1)
        loss = weighted_mean(jnp.square(chosen - samples.target), samples.weight)
        return loss, {"q_loss": loss, "q_value": weighted_mean(chosen, samples.weight)}

    def update(state: PqnState, batch: Batch, key: Key, progress: Array) -> tuple[PqnState, dict[str, Array], None]:
        samples = jax.lax.stop_gradient(make_samples(state, batch))
        lr = state.coefficients["lr"] * factor(config.lr_schedule, progress)
        num_sequences = samples.reset.shape[0]
        if num_sequences % config.num_minibatches:
            raise ValueError(
                f"{config.num_minibatches} minibatches do not divide {num_sequences} sequences (per device)"
            )

        def minibatch(state: PqnState, indices: Array) -> tuple[PqnState, dict[str, Array]]:
            def gradient(block: Array) -> tuple[PyTree, dict[str, Array]]:
                return jax.grad(q_loss, has_aux=True)(state.params, take(samples, block))

            grads, metrics = mean_over_blocks(gradient, indices, group_spec.num_agents)
            grads = mean_over_devices(grads, axis)
            if context.hooks.loss:
                grads, own = add_users_loss(grads, context, group, state.params, take(samples, indices))
                metrics |= own
            changes, optimiser_state = optimiser.update(grads, state.optimiser)
            params = jax.tree.map(lambda p, change: p - lr * change, state.params, changes)
            metrics["grad_norm"] = optax.tree.norm(grads)
            return dataclasses.replace(state, params=params, optimiser=optimiser_state), metrics

        def epoch(state: PqnState, key_epoch: Key) -> tuple[PqnState, dict[str, Array]]:
            order = random_order(key_epoch, num_sequences).reshape(config.num_minibatches, -1)
            return jax.lax.scan(minibatch, state, order)

        state, metrics = jax.lax.scan(epoch, state, jax.random.split(key, config.epochs))
        metrics = jax.tree.map(jnp.mean, metrics)
        epsilon = anneal(config.epsilon_start, config.epsilon_end, config.epsilon_fraction, progress)
        return dataclasses.replace(state, epsilon=epsilon), metrics | {"epsilon": epsilon, "lr": lr}, None

    return Algorithm(
        init=init,
        initial_carry=network.initial_carry,
        act=act,
        update=update,
        sequence_length=0 if network.recurrent else 1,
    )
