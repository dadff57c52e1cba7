"""IMPALA for teams: actor-critic with V-trace (Espeholt et al., 2018).

The batch may have been collected by an older policy μ, for example where actors run beside the learner. V-trace weighs
each step by the ratio of its action's probabilities under the learned policy π_θ and under μ. The ratio is clipped, so
that a single step cannot dominate:

    ρ_t = min(ρ̄, π_θ(a_t | o_t) / μ(a_t | o_t)),   c_t = λ min(c̄, π_θ(a_t | o_t) / μ(a_t | o_t))
    v_t = V_φ(s_t) + Σ_{k ≥ t} γ^{k − t} (c_t ⋯ c_{k − 1}) ρ_k (r_k + γ V_φ(s_{k+1}) − V_φ(s_k))
    A_t = r_t + γ (λ v_{t+1} + (1 − λ) V_φ(s_{t+1})) − V_φ(s_t)
    L(θ) = −E[ρ_t A_t log π_θ(a_t | o_t)] − c_H H[π_θ]
    L(φ) = c_V E[(V_φ(s_t) − v_t)²]

No values from acting are used. Before each gradient step, V_φ is computed with the current critic, also for the true
last observation of an episode that was cut. So a batch may be several updates old, and V-trace also corrects for
several passes over it (`epochs`).

`critic_sees` is what the critic sees, as for PPO: each agent's own observation, the task's global state, or the joint
observation. With `popart` (van Hasselt et al., 2016) the critic learns in units of the returns' running deviation. When
that deviation moves, the critic's last layer is rescaled so that its values do not change.

Memory is a property of the networks. With memory, each environment's rollout is one sequence, learned from the carry
that acting began it with. A minibatch has the whole rollouts of some of the environments.

From top to bottom: configuration, state, acting, trajectories, targets, loss, update. `Impala` holds what these
functions share, and `make_impala` binds them to it.

Differences from the papers:
- Each agent's ratio is that of its own action. That the other agents' policies have moved too is not corrected for.
- Adam instead of RMSProp, and means over steps instead of sums, so that the step size does not depend on the batch.
- λ is taken from the authors' implementation, and advantages are normalised by default.
- Time limits bootstrap from the true final observation; the paper treats them as terminations.
- Actor and critic are separate networks, each with its own gradient clipping, so neither scales the other's step.
- PopArt takes its first moments without rescaling, because an untrained critic has no values to preserve.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax

from covey.algorithms.base import Context, descend, init_coefficients
from covey.algorithms.on_policy import (
    AdvantageNormalisation,
    CollectedSteps,
    OnPolicy,
    OnPolicyActing,
    OnPolicyConfig,
    collected_steps,
    fields_of,
    init_input_moments,
    make_bundle,
    observe_successors,
    sample_now,
    update_input_moments,
)
from covey.checks import above_zero, at_least, between_0_and_1, check_divides
from covey.fields import field
from covey.ops.blocks import mean_over_blocks
from covey.ops.devices import mean_over_devices
from covey.ops.losses import approximate_kl, explained_variance, value_loss, weighted_mean
from covey.ops.normalisation import (
    Moments,
    batch_moments,
    change_of_units,
    init_moments,
    merge_moments,
    normalise,
    scale_up,
)
from covey.ops.schedules import scheduled
from covey.ops.sequences import take_environments
from covey.ops.shuffle import random_order
from covey.ops.vtrace import vtrace
from covey.types import Algorithm, Array, Batch, EnvSpec, Key, Observation, PyTree, TimeStep, learned, pytree


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImpalaConfig(OnPolicyConfig):
    """Fields of `impala`. Frames are steps of one environment, whatever the number of agents."""

    # λ of V-trace's returns: 0 trusts the critic after one step, 1 the corrected rewards
    vtrace_lambda: float = 1.0
    rho_bar: float = 1.0  # ρ̄, at which the weight of a step is clipped; it decides which policy's values are learned
    c_bar: float = 1.0  # c̄, at which a step's factor in the weight of later steps is clipped; it limits the variance
    epochs: int = field(1, changeable=True)  # passes over the batch in each iteration
    num_minibatches: int = field(4, changeable=True)  # minibatches that the environments are split into in each epoch
    # normalise the critic's targets by their running mean and deviation, and rescale its last layer when these move
    popart: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        above_zero(self, "rho_bar", "c_bar")
        between_0_and_1(self, "vtrace_lambda")
        at_least(self, 1, "num_minibatches")
        if self.advantage_normalisation is AdvantageNormalisation.batch:
            raise ValueError("advantage_normalisation: IMPALA computes advantages by minibatch; use minibatch or none")

    def check(self, experiment: Any) -> None:
        """Raises ValueError where this does not fit how the experiment collects."""
        check_divides("num_minibatches", self.num_minibatches, "experiment.num_envs", experiment.num_envs)


IMPALA = ImpalaConfig()


@pytree
class ImpalaState:
    """Everything that a group learns. `coefficients` are what schedules scale and callbacks may set."""

    params: dict[str, PyTree] = learned()  # actor, critic
    optimiser: dict[str, PyTree]
    observation_moments: PyTree = learned(parameters=False)  # Moments of the array, or of each entry
    others_moments: dict[str, PyTree] = learned(parameters=False)  # of the other groups that the critic sees
    state_moments: PyTree = learned(parameters=False)
    value_moments: Moments = learned(parameters=False)
    coefficients: dict[str, Array]


@pytree
class Trajectories(CollectedSteps):
    """A batch as it was collected: steps `[T, B, …]` of environments, whose carries are `[B, …]`."""

    next_critic_input: Observation  # at the true successors
    reward: Array
    terminated: Array
    truncated: Array
    last: Array


@pytree
class Samples(CollectedSteps):
    """Trajectories with V-trace's values, advantages and targets for the current parameters, `[T, B, A]`."""

    value: Array
    advantage: Array
    target: Array
    rho: Array  # the clipped weight of the step in the policy's gradient


@dataclasses.dataclass(frozen=True, kw_only=True)
class Impala(OnPolicy):
    """What the functions of this file share."""

    config: ImpalaConfig


ROUNDING = 1e-4  # ratios of the same policy are not exactly 1, so those this little above ρ̄ do not count as clipped
VALUE_DECAY = 0.999  # of the moments of value targets, per gradient step, because targets move as the policy improves


def init(impala: Impala, key: Key) -> ImpalaState:
    """Fresh parameters, optimisers and moments."""
    params = impala.policy.init(key)
    names = ("lr", "entropy_coef", "value_coef", "gamma", "vtrace_lambda", "rho_bar", "c_bar")
    return ImpalaState(
        params=params,
        optimiser={name: impala.optimiser.init(part) for name, part in params.items()},
        value_moments=init_moments(),
        **init_input_moments(impala),
        coefficients=init_coefficients(impala.config, *names),
    )


# ---------------------------------------------------------------------------------------------------------- acting


def acting(state: ImpalaState) -> OnPolicyActing:
    """The part of the state that `act` takes. The critic is part of it, because acting keeps its memory up to date."""
    return OnPolicyActing(
        params=state.params,
        observation_moments=state.observation_moments,
        others_moments=state.others_moments,
        state_moments=state.state_moments,
    )


def act(
    impala: Impala, acting: OnPolicyActing, timestep: TimeStep, carry: PyTree, key: Key, explore: bool
) -> tuple[Array, dict[str, Array], PyTree]:
    """Actions `[B, A, …]`, what `update` needs to know of them (each `[B, A, …]`), and the next carry."""
    now = jax.tree.map(lambda x: x[None], timestep)
    sampled, next_carry = sample_now(impala, acting, now, carry, key, explore)
    extras = {"raw_action": sampled.raw_action[0], "log_prob": sampled.log_prob[0]}
    return impala.policy.to_action(extras["raw_action"]), extras, next_carry


# ---------------------------------------------------------------------------------------------------- trajectories


def make_trajectories(impala: Impala, state: ImpalaState, batch: Batch, key: Key) -> Trajectories:
    """The batch as trajectories, with what the critic sees at the true successors."""
    steps, seen = batch.transitions[impala.group], acting(state)
    successors = observe_successors(impala, seen, batch.transitions, steps.next_state, steps.last)
    collected = collected_steps(impala, seen, batch, key)
    carry = jax.tree.map(lambda x: x[0], batch.carries) if impala.policy.recurrent else batch.carries
    return Trajectories(
        **fields_of(dataclasses.replace(collected, carry=carry)),
        next_critic_input=successors.critic_input,
        reward=steps.reward,
        terminated=steps.terminated,
        truncated=steps.truncated,
        last=steps.last,
    )


# --------------------------------------------------------------------------------------------------------- targets


def to_value(config: ImpalaConfig, moments: Moments, output: Array) -> Array:
    """A critic's output in units of the return."""
    return scale_up(output, moments) if config.popart else output


def to_output(config: ImpalaConfig, moments: Moments, value: Array) -> Array:
    """A return in units of the critic's outputs."""
    return normalise(value, moments) if config.popart else value


def make_samples(
    impala: Impala, state: ImpalaState, trajectories: Trajectories, coefficients: dict[str, Array]
) -> Samples:
    """Advantages and value targets of trajectories `[T, n, …]` by V-trace, for the parameters of `state`.

    Reads `gamma`, `vtrace_lambda`, `rho_bar` and `c_bar`.
    """
    policy, inputs, carry = impala.policy, trajectories.inputs, trajectories.carry
    now = policy.evaluate(state.params, inputs, carry, trajectories.raw_action, trajectories.noise)
    successors = dataclasses.replace(inputs, critic_input=trajectories.next_critic_input)
    outputs = policy.evaluate_with_successors(state.params, inputs, successors, carry, trajectories.truncated.any())
    value, next_value = (to_value(impala.config, state.value_moments, output) for output in outputs)
    ratio = jnp.exp(now.log_prob - trajectories.log_prob)
    advantage, target = vtrace(
        trajectories.reward,
        value,
        next_value,
        ratio,
        trajectories.terminated,
        trajectories.last[..., None],
        gamma=coefficients["gamma"],
        vtrace_lambda=coefficients["vtrace_lambda"],
        rho_bar=coefficients["rho_bar"],
        c_bar=coefficients["c_bar"],
    )
    return Samples(
        **fields_of(trajectories),
        value=value,
        advantage=advantage,
        target=target,
        rho=jnp.minimum(coefficients["rho_bar"], ratio),
    )


def move_moments(impala: Impala, state: ImpalaState, samples: Samples) -> ImpalaState:
    """PopArt: merges the moments of new targets into the running ones, and rescales the critic to keep its values."""
    old = state.value_moments
    targets = batch_moments(samples.target, samples.weight > 0, impala.context.device_axis)
    moments = merge_moments(old, targets, decay=VALUE_DECAY)
    scale, shift = change_of_units(old, moments)
    learned_something = old.weight > 0
    scale, shift = jnp.where(learned_something, scale, 1.0), jnp.where(learned_something, shift, 0.0)
    params = impala.policy.rescale_critic(state.params, scale, shift)
    return dataclasses.replace(state, params=params, value_moments=moments)


def normalise_advantages(impala: Impala, state: ImpalaState, samples: Samples) -> Samples:
    """Normalises advantages by their own moments; without that but with PopArt, by the deviation of the returns."""
    config, advantage = impala.config, samples.advantage
    if config.advantage_normalisation is AdvantageNormalisation.minibatch:
        moments = batch_moments(advantage, samples.weight > 0, impala.context.device_axis)
        return dataclasses.replace(samples, advantage=normalise(advantage, moments))
    if config.popart:
        in_deviations = advantage * jax.lax.rsqrt(state.value_moments.variance + 1e-8)
        return dataclasses.replace(samples, advantage=in_deviations)
    return samples


# ------------------------------------------------------------------------------------------------------------ loss


def impala_loss(
    params: PyTree, impala: Impala, samples: Samples, value_moments: Moments, coefficients: dict[str, Array]
) -> tuple[Array, dict[str, Array]]:
    """L(θ) + L(φ) on samples `[T, n, …]`, and metrics. Both are means over agents.

    Reads `entropy_coef`, `value_coef` and `rho_bar`. `value_moments` normalise the critic's targets.
    """
    new = impala.policy.evaluate(params, samples.inputs, samples.carry, samples.raw_action, samples.noise)
    weight = samples.weight
    target = to_output(impala.config, value_moments, samples.target)
    policy_loss = -weighted_mean(samples.rho * samples.advantage * new.log_prob, weight)
    critic_loss = value_loss(new.output, target, weight)
    entropy = weighted_mean(new.entropy, weight)
    loss = policy_loss - coefficients["entropy_coef"] * entropy + coefficients["value_coef"] * critic_loss
    ratio = jnp.exp(new.log_prob - samples.log_prob)
    clipped = ratio > coefficients["rho_bar"] + ROUNDING
    metrics = {
        "policy_loss": policy_loss,
        "value_loss": critic_loss,
        "entropy": entropy,
        "kl": approximate_kl(new.log_prob, samples.log_prob, weight),
        "rho": weighted_mean(ratio, weight),
        "clip_fraction": weighted_mean(clipped.astype(jnp.float32), weight),
    }
    if impala.context.hooks.loss:
        extra, extra_metrics = impala.context.hooks.loss(impala.group, params, samples)
        loss, metrics = loss + extra, metrics | extra_metrics
    return loss, metrics


# ---------------------------------------------------------------------------------------------------------- update


def update_minibatch(
    impala: Impala, state: ImpalaState, trajectories: Trajectories, indices: Array, coefficients: dict[str, Array]
) -> tuple[ImpalaState, dict[str, Array]]:
    """One gradient step of actor and critic on the environments at `indices [n]`, and the metrics of their loss."""
    axis = impala.context.device_axis
    samples = make_samples(impala, state, take_environments(trajectories, indices), coefficients)
    if impala.config.popart:
        state = move_moments(impala, state, samples)
    samples = normalise_advantages(impala, state, samples)

    def gradient(block: Array) -> tuple[PyTree, dict[str, Array]]:
        part = take_environments(samples, block)
        grads, metrics = jax.grad(impala_loss, has_aux=True)(
            state.params, impala, part, state.value_moments, coefficients
        )
        return grads, metrics

    num_steps, num_envs, num_agents = samples.weight.shape
    every = jnp.arange(num_envs)
    if impala.context.hooks.loss:  # a user's loss need not be a mean over the minibatch
        grads, metrics = gradient(every)
    else:
        rows = num_agents if impala.policy.recurrent else num_agents * num_steps
        grads, metrics = mean_over_blocks(gradient, every, rows)
    grads = mean_over_devices(grads, axis)
    metrics["explained_variance"] = explained_variance(samples.value, samples.target, samples.weight)
    norms = {f"{name}_grad_norm": optax.tree.norm(grad) for name, grad in grads.items()}
    return descend(impala.optimiser, state, grads, coefficients["lr"]), metrics | norms


def update(
    impala: Impala, state: ImpalaState, batch: Batch, key: Key, progress: Array
) -> tuple[ImpalaState, dict[str, Array], None]:
    """Several epochs of minibatches on a batch `[T, B, …]`, which may have been collected several updates ago."""
    config, axis = impala.config, impala.context.device_axis
    key_noise, key_epochs = jax.random.split(key)
    trajectories = make_trajectories(impala, state, batch, key_noise)
    coefficients = scheduled(state.coefficients, progress, lr=config.lr_schedule, entropy_coef=config.entropy_schedule)
    num_envs = trajectories.reset.shape[1]
    if num_envs % config.num_minibatches:
        raise ValueError(f"{config.num_minibatches} minibatches do not divide {num_envs} environments (per device)")

    def minibatch(state: ImpalaState, indices: Array) -> tuple[ImpalaState, dict[str, Array]]:
        return update_minibatch(impala, state, trajectories, indices, coefficients)

    def epoch(state: ImpalaState, key_epoch: Key) -> tuple[ImpalaState, dict[str, Array]]:
        order = random_order(key_epoch, num_envs).reshape(config.num_minibatches, -1)
        return jax.lax.scan(minibatch, state, order)

    state, metrics = jax.lax.scan(epoch, state, jax.random.split(key_epochs, config.epochs))
    metrics = jax.tree.map(jnp.mean, metrics)
    metrics["lr"] = coefficients["lr"]
    return update_input_moments(impala, state, batch.transitions, axis), metrics, None


# ------------------------------------------------------------------------------------------------------------ make


def make_impala(config: ImpalaConfig, spec: EnvSpec, group: str, context: Context) -> Algorithm:
    """IMPALA for one group of a task."""
    impala = make_bundle(Impala, config, spec, group, context)
    return Algorithm(
        init=partial(init, impala),
        acting=acting,
        initial_carry=impala.policy.initial_carry,
        act=partial(act, impala),
        update=partial(update, impala),
        sequence_length=0 if impala.policy.recurrent else 1,  # 0 stands for the whole rollout
    )
