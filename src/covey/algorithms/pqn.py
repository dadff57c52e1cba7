"""Parallel Q-learning for teams (PQN; Gallici et al., 2024): Q-learning without replay and without target networks.

Many parallel environments replace the buffer. Each iteration acts ε-greedily for some steps, computes λ-returns from
the current network's values,

    G_t = r_t + γ [(1 − λ) max_a Q(s_{t+1}, a) + λ G_{t+1}],

and fits Q to them in a few epochs of minibatches. Agents learn by themselves, or as a team whose value is the sum of
theirs (`mixer=sum`, as in VDN).

Differences from the paper:
- Layer normalisation, on which PQN relies, is a field of the model. It is on unless the user sets `model.norm=none`.
- Time limits bootstrap from the true final observation; dead agents do not count.
- With memory, minibatches consist of whole rollouts, each learned from the carry that acting started it with.

From top to bottom: configuration, state, acting, samples with their targets, loss, update. `Pqn` holds what these
functions share, and `make_pqn` binds them to it.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax

from covey.algorithms.base import AlgorithmConfig, Context, adam_step, add_users_loss, init_coefficients, make_optimiser
from covey.algorithms.q_values import Mixing, QActing, act_by_values, annealed_epsilon, make_q_network
from covey.checks import above_zero, at_least, between_0_and_1
from covey.fields import field
from covey.networks.network import apply_with_successors
from covey.ops.blocks import mean_over_blocks
from covey.ops.devices import mean_over_devices
from covey.ops.losses import weigh, weighted_mean
from covey.ops.mixing import returns_learned
from covey.ops.returns import lambda_returns
from covey.ops.schedules import Schedule, scheduled
from covey.ops.sequences import cut, take
from covey.ops.shuffle import random_order
from covey.ops.targets import masked_max, take_action
from covey.types import (
    Algorithm,
    Array,
    Batch,
    EnvSpec,
    Key,
    Network,
    Observation,
    PyTree,
    TimeStep,
    Transition,
    learned,
    pytree,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PqnConfig(AlgorithmConfig):
    """Fields of `pqn`."""

    mixer: Mixing = Mixing.sum  # how the team's value is computed from the agents': none or sum
    share_parameters: bool = True  # one set of parameters for all agents of a group; false: one for each
    agent_ids: bool = True  # append a one-hot id to observations, so that shared parameters can play different roles
    lr: float = 5e-4  # Adam's step size, before `lr_schedule`
    lr_schedule: Schedule = Schedule.linear  # how the step size changes over `experiment.schedule_frames`
    adam_eps: float = 1e-5  # added to the denominator of Adam's step, to keep it above zero
    max_grad_norm: float = 10.0  # gradients are scaled down to this norm if theirs is larger
    gamma: float = 0.99  # discount: the weight of a reward one step later, against 1 now
    q_lambda: float = 0.65  # λ of the returns: 0 bootstraps after one step, 1 only at the end of the rollout
    epsilon_start: float = 1.0  # probability of a random action at the start
    epsilon_end: float = 0.05  # probability of a random action after `epsilon_fraction` of the frames
    # share of `experiment.schedule_frames` over which the probability falls from start to end
    epsilon_fraction: float = 0.2
    epochs: int = field(4, changeable=True)  # passes over the batch in each iteration
    num_minibatches: int = field(8, changeable=True)  # minibatches that the batch is split into in each epoch

    def __post_init__(self) -> None:
        above_zero(self, "lr", "adam_eps", "max_grad_norm")
        between_0_and_1(self, "gamma", "q_lambda", "epsilon_start", "epsilon_end", "epsilon_fraction")
        at_least(self, 1, "epochs", "num_minibatches")
        if self.mixer is Mixing.monotonic:
            raise ValueError("mixer must be none or sum, not monotonic: mixing networks are learned from replay (qmix)")

    def check(self, experiment: Any) -> None:
        frames = experiment.num_envs * experiment.rollout_length
        if frames % self.num_minibatches:
            raise ValueError(f"num_minibatches {self.num_minibatches} does not divide the batch of {frames} frames")


PQN = PqnConfig()


@pytree
class PqnState:
    """Everything that a group learns. Schedules scale the `coefficients`, and callbacks may set them. `epsilon` is the
    current one."""

    params: PyTree = learned()
    optimiser: PyTree
    epsilon: Array
    coefficients: dict[str, Array]


@pytree
class Samples:
    """N sequences of L steps, `[N, L, …]`; carries are `[N, …]`."""

    observation: Observation
    reset: Array
    action: Array
    alive: Array
    target: Array
    weight: Array
    carry: PyTree


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pqn:
    """What the functions of this file share."""

    config: PqnConfig
    group: str
    num_agents: int
    context: Context
    network: Network
    optimiser: optax.GradientTransformation

    @property
    def team(self) -> bool:
        """Whether the team's value is learned, instead of each agent's own."""
        return self.config.mixer is Mixing.sum


def init(pqn: Pqn, key: Key) -> PqnState:
    """Fresh parameters and an optimiser."""
    params = pqn.network.init(key)
    return PqnState(
        params=params,
        optimiser=pqn.optimiser.init(params),
        epsilon=jnp.float32(pqn.config.epsilon_start),
        coefficients=init_coefficients(pqn.config, "lr", "gamma", "q_lambda", "epsilon_start", "epsilon_end"),
    )


def acting(state: PqnState) -> QActing:
    """The part of the state that `act` takes."""
    return QActing(params=state.params, epsilon=state.epsilon)


def act(
    pqn: Pqn, acting: QActing, timestep: TimeStep, carry: PyTree, key: Key, explore: bool
) -> tuple[Array, dict[str, Array], PyTree]:
    """Actions `[B, A]`, no extras, and the next carry."""
    action, carry = act_by_values(pqn.network, pqn.group, acting, timestep, carry, key, explore)
    return action, {}, carry


# --------------------------------------------------------------------------------------------------------- targets


def pqn_targets(
    steps: Transition, next_values: Array, *, team: bool, gamma: Array | float, q_lambda: Array | float
) -> tuple[Array, Array]:
    """λ-returns G of steps `[T, B, …]` and whether each counts: `[T, B]` of the team, or `[T, B, A]` of each agent.

    `next_values [T, B, A, n]` are those of each action at the true successors.
    """
    continues = steps.alive & ~steps.terminated  # an agent that is out may have no legal action, and so no value
    next_value = jnp.where(continues, masked_max(next_values, steps.next_action_mask), 0.0)
    if team:
        next_value = jnp.sum(next_value, -1)
    reward, terminated, last, counts = returns_learned(steps, team=team)
    return lambda_returns(reward, next_value, terminated, last, gamma=gamma, lambda_=q_lambda), counts


def make_samples(pqn: Pqn, state: PqnState, batch: Batch) -> Samples:
    """Targets of a batch `[T, B, …]` by the current network, and the batch cut into sequences `[N, L, …]`."""
    steps = batch.transitions[pqn.group]
    carry = jax.tree.map(lambda x: x[0], batch.carries)
    _, next_values = apply_with_successors(
        pqn.network, state.params, steps.observation, steps.next_observation, carry, steps.reset
    )
    gamma, q_lambda = state.coefficients["gamma"], state.coefficients["q_lambda"]
    target, counts = pqn_targets(steps, next_values, team=pqn.team, gamma=gamma, q_lambda=q_lambda)
    samples = Samples(
        observation=steps.observation,
        reset=steps.reset,
        action=steps.action,
        alive=steps.alive,
        target=target,
        weight=weigh(counts, pqn.context.device_axis),
        carry=None,
    )
    length = steps.last.shape[0] if pqn.network.recurrent else 1
    sequences: Samples = jax.tree.map(lambda x: cut(x, length), samples)
    sequences = jax.lax.stop_gradient(dataclasses.replace(sequences, carry=carry))
    return sequences


# ---------------------------------------------------------------------------------------------------- loss and update


def q_loss(params: PyTree, pqn: Pqn, samples: Samples) -> tuple[Array, dict[str, Array]]:
    """E[(Q − G)²] on a minibatch or a block of it, time first `[L, N, …]`, and metrics."""
    values, _ = pqn.network.apply(params, samples.observation, samples.carry, samples.reset)
    chosen = take_action(values, samples.action)
    if pqn.team:
        chosen = jnp.sum(jnp.where(samples.alive, chosen, 0.0), -1)
    loss = weighted_mean(jnp.square(chosen - samples.target), samples.weight)
    return loss, {"q_loss": loss, "q_value": weighted_mean(chosen, samples.weight)}


def update_minibatch(
    pqn: Pqn, state: PqnState, samples: Samples, indices: Array, lr: Array
) -> tuple[PqnState, dict[str, Array]]:
    """One gradient step on the samples at `indices [n]`, and the metrics of their loss."""

    def gradient(block: Array) -> tuple[PyTree, dict[str, Array]]:
        grads, metrics = jax.grad(q_loss, has_aux=True)(state.params, pqn, take(samples, block))
        return grads, metrics

    grads, metrics = mean_over_blocks(gradient, indices, pqn.num_agents)
    grads = mean_over_devices(grads, pqn.context.device_axis)
    if pqn.context.hooks.loss:
        grads, users_metrics = add_users_loss(grads, pqn.context, pqn.group, state.params, take(samples, indices))
        metrics |= users_metrics
    params, optimiser_state = adam_step(pqn.optimiser, state.params, state.optimiser, grads, lr)
    metrics["grad_norm"] = optax.tree.norm(grads)
    return dataclasses.replace(state, params=params, optimiser=optimiser_state), metrics


def update(
    pqn: Pqn, state: PqnState, batch: Batch, key: Key, progress: Array
) -> tuple[PqnState, dict[str, Array], None]:
    """`epochs` passes over shuffled minibatches of a batch `[T, B, …]` that was just collected."""
    config = pqn.config
    samples = make_samples(pqn, state, batch)
    coefficients = scheduled(state.coefficients, progress, lr=config.lr_schedule)
    num_sequences = samples.reset.shape[0]
    if num_sequences % config.num_minibatches:
        num = config.num_minibatches
        raise ValueError(
            f"{num} minibatches (num_minibatches) do not divide the {num_sequences} sequences of each device; with "
            "memory, minibatches hold whole sequences of sequence_length steps"
        )

    def minibatch(state: PqnState, indices: Array) -> tuple[PqnState, dict[str, Array]]:
        return update_minibatch(pqn, state, samples, indices, coefficients["lr"])

    def epoch(state: PqnState, key_epoch: Key) -> tuple[PqnState, dict[str, Array]]:
        order = random_order(key_epoch, num_sequences).reshape(config.num_minibatches, -1)
        return jax.lax.scan(minibatch, state, order)

    state, metrics = jax.lax.scan(epoch, state, jax.random.split(key, config.epochs))
    metrics = jax.tree.map(jnp.mean, metrics)
    epsilon = annealed_epsilon(coefficients, config.epsilon_fraction, progress)
    metrics |= {"epsilon": epsilon, "lr": coefficients["lr"]}
    return dataclasses.replace(state, epsilon=epsilon), metrics, None


# ------------------------------------------------------------------------------------------------------------ make


def make_pqn(config: PqnConfig, spec: EnvSpec, group: str, context: Context) -> Algorithm:
    """PQN for one group of a task."""
    pqn = Pqn(
        config=config,
        group=group,
        num_agents=spec.groups[group].num_agents,
        context=context,
        network=make_q_network(spec, group, context, share_parameters=config.share_parameters),
        optimiser=make_optimiser(config),
    )
    return Algorithm(
        init=partial(init, pqn),
        acting=acting,
        initial_carry=pqn.network.initial_carry,
        act=partial(act, pqn),
        update=partial(update, pqn),
        sequence_length=0 if pqn.network.recurrent else 1,
    )
