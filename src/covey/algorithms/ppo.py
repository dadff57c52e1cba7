"""Proximal policy optimisation for teams: IPPO and MAPPO (Schulman et al., 2017; Yu et al., 2022).

Each agent's policy π_θ(a | o) minimises the clipped surrogate loss, with GAE's advantages from a critic V_φ:

    L(θ) = −E[min(ρ A, clip(ρ, 1 − ε, 1 + ε) A)] − c_H H[π_θ],   ρ = π_θ(a | o) / π_old(a | o)
    L(φ) = c_V E[(V_φ − V_target)²]

The two differ in one field, `critic_sees`. IPPO's critic sees each agent's own observation. MAPPO's sees the task's
global state or, if the task has none, the joint observation: that of all agents in all groups that cooperate, or with
`scope=group` in one group. Dead agents appear in it as the environment shows them.

Memory is a property of the networks. With memory, the batch is cut into contiguous sequences of `sequence_length`
steps, and learning starts each sequence from the carry that acting started it with.

Differences from the papers:
- A centralised critic has one output per agent (`critic_outputs=one` for a single value that all share). Rewards
  may differ between agents, and then values do too.
- Time limits bootstrap from the true final observation; the papers' code treats them as terminations.
- Actor and critic are separate networks, each with its own gradient clipping, so neither scales the other's step.
- Value targets are fixed for all epochs of an iteration, as in most implementations.
- Where agents die, each living agent's step counts the same in an epoch, whichever minibatch and device it falls to.

From top to bottom: configuration, state, acting, samples with their advantages, loss, update. `Ppo` holds what these
functions share, and `make_ppo` binds them to it.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax

from covey.algorithms.base import Context, descend, init_coefficients
from covey.algorithms.critics import CriticSees
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
from covey.checks import above_zero, at_least, between_0_and_1
from covey.fields import field
from covey.ops.blocks import mean_over_blocks
from covey.ops.devices import mean_over_devices
from covey.ops.losses import (
    approximate_kl,
    clipped_policy_loss,
    clipped_value_loss,
    explained_variance,
    value_loss,
    weighted_mean,
)
from covey.ops.normalisation import Moments, batch_moments, init_moments, merge_moments, normalise, scale_up
from covey.ops.returns import gae
from covey.ops.schedules import scheduled
from covey.ops.seeds import any_seed
from covey.ops.sequences import cut, take
from covey.ops.shuffle import random_order
from covey.types import Algorithm, Array, Batch, EnvSpec, Key, PyTree, TimeStep, Transition, learned, pytree


@dataclasses.dataclass(frozen=True, kw_only=True)
class PpoConfig(OnPolicyConfig):
    """Fields of `ippo` and `mappo`. Frames are steps of one environment, whatever the number of agents."""

    # λ of generalised advantage estimation: 0 trusts the critic after one step, 1 trusts only the rewards
    gae_lambda: float = 0.95
    clip: float = 0.2  # PPO's ε: how far the ratio of new to old probabilities may leave 1 before its gradient is cut
    value_clip: float | None = None  # how far the critic's outputs may move in an iteration; null: plain squared error
    # minibatches that the batch is split into in each epoch; unused if `minibatch_size` is set
    num_minibatches: int = field(8, changeable=True, overruled_by="minibatch_size")
    # frames in a minibatch, which sets the number of minibatches; null: `num_minibatches` decides
    minibatch_size: int | None = field(None, changeable=True)
    # steps for which a memory is unrolled while learning; null: the whole rollout; unused without memory
    sequence_length: int | None = None
    value_normalisation: bool = True  # normalise the critic's targets by their running mean and deviation

    def __post_init__(self) -> None:
        super().__post_init__()
        above_zero(self, "clip")
        between_0_and_1(self, "gae_lambda")
        at_least(self, 1, "num_minibatches", "minibatch_size", "sequence_length")

    def check(self, experiment: Any) -> None:
        """Raises ValueError if minibatches or sequences do not divide what the experiment collects."""
        frames = experiment.num_envs * experiment.rollout_length
        if self.minibatch_size is not None and self.minibatch_size > frames:
            raise ValueError(
                f"minibatch_size {self.minibatch_size} is larger than the batch of {frames} frames "
                f"({experiment.num_envs} environments x {experiment.rollout_length} steps)"
            )
        if self.minibatch_size is not None and frames % self.minibatch_size:
            raise ValueError(f"minibatch_size {self.minibatch_size} does not divide the batch of {frames} frames")
        if self.sequence_length is not None and experiment.rollout_length % self.sequence_length:
            raise ValueError(
                f"sequence_length {self.sequence_length} does not divide rollout_length {experiment.rollout_length}"
            )
        if self.minibatch_size is None and frames % self.num_minibatches:
            raise ValueError(f"num_minibatches {self.num_minibatches} does not divide the batch of {frames} frames")


IPPO = PpoConfig()
MAPPO = PpoConfig(critic_sees=CriticSees.auto)


@pytree
class PpoState:
    """Everything that a group learns. Schedules scale the `coefficients`, and callbacks may set them."""

    params: dict[str, PyTree] = learned()  # actor, critic
    optimiser: dict[str, PyTree]
    observation_moments: PyTree = learned(parameters=False)  # Moments of the array, or of each entry
    others_moments: dict[str, PyTree] = learned(parameters=False)  # of the other groups that the critic sees
    state_moments: PyTree = learned(parameters=False)
    value_moments: Moments = learned(parameters=False)
    coefficients: dict[str, Array]


@pytree
class PpoActing(OnPolicyActing):
    """The part of the state that acting needs."""

    value_moments: Moments


@pytree
class Samples(CollectedSteps):
    """A batch flattened for learning: N sequences of L steps, `[N, L, …]`; carries are `[N, …]`."""

    value: Array
    output: Array | None  # the critic's, when acting, in its own units; only with `value_clip`, which compares with it
    advantage: Array
    target: Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ppo(OnPolicy):
    """What the functions of this file share."""

    config: PpoConfig


VALUE_DECAY = 0.99  # of the moments of value targets, per iteration: targets move as the policy improves


def init(ppo: Ppo, key: Key) -> PpoState:
    """Fresh parameters, optimisers and moments."""
    params = ppo.policy.init(key)
    return PpoState(
        params=params,
        optimiser={name: ppo.optimiser.init(part) for name, part in params.items()},
        value_moments=init_moments(),
        **init_input_moments(ppo),
        coefficients=init_coefficients(ppo.config, "lr", "entropy_coef", "value_coef", "clip", "gamma", "gae_lambda"),
    )


# ---------------------------------------------------------------------------------------------------------- acting


def acting(state: PpoState) -> PpoActing:
    """The part of the state that `act` takes."""
    return PpoActing(
        params=state.params,
        observation_moments=state.observation_moments,
        others_moments=state.others_moments,
        state_moments=state.state_moments,
        value_moments=state.value_moments,
    )


def to_value(config: PpoConfig, moments: Moments, output: Array) -> Array:
    """A critic's output in units of the return."""
    return scale_up(output, moments) if config.value_normalisation else output


def to_output(config: PpoConfig, moments: Moments, value: Array) -> Array:
    """A return in units of the critic's outputs."""
    return normalise(value, moments) if config.value_normalisation else value


def act(
    ppo: Ppo, acting: PpoActing, timestep: TimeStep, carry: PyTree, key: Key, explore: bool
) -> tuple[Array, dict[str, Array], PyTree]:
    """Actions `[B, A, …]`, what `update` needs to know about them (each `[B, A, …]`), and the next carry."""
    # One step of time: [1, B, …].
    now = jax.tree.map(lambda x: x[None], timestep)
    sampled, next_carry = sample_now(ppo, acting, now, carry, key, explore)

    def output_of_successor() -> Array:
        successor = observe_successors(ppo, acting, now.groups, now.next_state, now.last)
        return ppo.policy.evaluate_critic(acting.params, successor, carry)

    # It counts only after a truncation, and is zero elsewhere: `sampled.output` may belong to the next episode.
    successor_output = jax.lax.cond(
        any_seed(timestep.truncated.any()), output_of_successor, lambda: jnp.zeros_like(sampled.output)
    )
    extras = {
        "raw_action": sampled.raw_action[0],
        "log_prob": sampled.log_prob[0],
        "value": to_value(ppo.config, acting.value_moments, sampled.output[0]),
        "successor_value": to_value(ppo.config, acting.value_moments, successor_output[0]),
    }
    return ppo.policy.to_action(extras["raw_action"]), extras, next_carry


# --------------------------------------------------------------------------------------------------------- samples


def next_values(transitions: Transition, final_extras: dict[str, Array]) -> Array:
    """Values of the true successors `[T, B, A]`: the next step's, or where an episode ended, its last observation's.

    `final_extras [B, A]` are those of acting on what follows the last transition.
    """

    def following(name: str) -> Array:
        return jnp.concatenate([transitions.extras[name][1:], final_extras[name][None]])

    return jnp.where(transitions.last[..., None], following("successor_value"), following("value"))


def make_samples(ppo: Ppo, state: PpoState, batch: Batch, key: Key) -> Samples:
    """Advantages and value targets of a batch `[T, B, …]`, which is then cut into sequences `[N, L, …]`."""
    assert batch.final is not None, "PPO learns from what was just collected"
    config, policy, axis = ppo.config, ppo.policy, ppo.context.device_axis
    transitions, published = batch.transitions[ppo.group], acting(state)
    value = transitions.extras["value"]
    _, final_extras, _ = act(ppo, published, batch.final, batch.final_carry, jax.random.key(0), False)
    advantage, target = gae(
        transitions.reward,
        value,
        next_values(transitions, final_extras),
        transitions.terminated,
        transitions.last[..., None],
        gamma=state.coefficients["gamma"],
        gae_lambda=state.coefficients["gae_lambda"],
    )
    if config.advantage_normalisation is AdvantageNormalisation.batch:
        advantage = normalise(advantage, batch_moments(advantage, transitions.alive, axis))
    steps = Samples(
        **fields_of(collected_steps(ppo, published, batch, key)),
        value=value,
        output=None if config.value_clip is None else to_output(config, state.value_moments, value),
        advantage=advantage,
        target=target,
    )
    num_steps = transitions.last.shape[0]
    length = num_steps // jax.tree.leaves(batch.carries)[0].shape[0] if policy.recurrent else 1
    sequences: Samples = jax.tree.map(lambda x: cut(x, length), steps)
    carry = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), batch.carries)
    return dataclasses.replace(sequences, carry=carry)


# ------------------------------------------------------------------------------------------------------------ loss


def fit_values(output: Array, old_output: Array | None, target: Array, weight: Array, *, clip: float | None) -> Array:
    """The critic's loss. All arguments are in the units of its outputs, so that `clip` compares like with like.

    `old_output` is the critic's output when acting. Computed from the value instead, under moments that changed since,
    it could be far from `output` before any gradient step, and the clipped loss would have no gradient.
    """
    if clip is None:
        return value_loss(output, target, weight)
    assert old_output is not None
    return clipped_value_loss(output, old_output, target, weight, clip=clip)


def ppo_loss(
    params: PyTree, ppo: Ppo, samples: Samples, value_moments: Moments, coefficients: dict[str, Array]
) -> tuple[Array, dict[str, Array]]:
    """L(θ) + L(φ) on a minibatch or a block of it, time first `[L, N, …]`, and metrics. Both are means over agents.

    Reads `clip`, `entropy_coef` and `value_coef` from `coefficients`. `value_moments` normalise the critic's targets.
    """
    new = ppo.policy.evaluate(params, samples.inputs, samples.carry, samples.raw_action, samples.noise)
    weight, clip = samples.weight, coefficients["clip"]
    target = to_output(ppo.config, value_moments, samples.target)
    policy_loss = clipped_policy_loss(new.log_prob, samples.log_prob, samples.advantage, weight, clip=clip)
    critic_loss = fit_values(new.output, samples.output, target, weight, clip=ppo.config.value_clip)
    entropy = weighted_mean(new.entropy, weight)
    loss = policy_loss - coefficients["entropy_coef"] * entropy + coefficients["value_coef"] * critic_loss
    clipped = jnp.abs(jnp.exp(new.log_prob - samples.log_prob) - 1.0) > clip
    metrics = {
        "policy_loss": policy_loss,
        "value_loss": critic_loss,
        "entropy": entropy,
        "kl": approximate_kl(new.log_prob, samples.log_prob, weight),
        "clip_fraction": weighted_mean(clipped.astype(jnp.float32), weight),
    }
    if ppo.context.hooks.loss:
        extra, extra_metrics = ppo.context.hooks.loss(ppo.group, params, samples)
        loss, metrics = loss + extra, metrics | extra_metrics
    return loss, metrics


# ---------------------------------------------------------------------------------------------------------- update


def update_minibatch(
    ppo: Ppo, state: PpoState, samples: Samples, indices: Array, coefficients: dict[str, Array]
) -> tuple[PpoState, dict[str, Array]]:
    """One gradient step of actor and critic on the samples at `indices [n]`, and the metrics of their loss."""
    axis = ppo.context.device_axis
    moments = None
    if ppo.config.advantage_normalisation is AdvantageNormalisation.minibatch:
        moments = batch_moments(samples.advantage[indices], samples.weight[indices] > 0, axis)

    def gradient(block: Array) -> tuple[PyTree, dict[str, Array]]:
        part = take(samples, block)
        if moments is not None:
            part = dataclasses.replace(part, advantage=normalise(part.advantage, moments))
        grads, metrics = jax.grad(ppo_loss, has_aux=True)(state.params, ppo, part, state.value_moments, coefficients)
        return grads, metrics

    if ppo.context.hooks.loss:  # a user's loss need not be a mean over the minibatch
        grads, metrics = gradient(indices)
    else:
        grads, metrics = mean_over_blocks(gradient, indices, ppo.spec.groups[ppo.group].num_agents)
    grads = mean_over_devices(grads, axis)
    norms = {f"{name}_grad_norm": optax.tree.norm(grad) for name, grad in grads.items()}
    return descend(ppo.optimiser, state, grads, coefficients["lr"]), metrics | norms


def update(
    ppo: Ppo, state: PpoState, batch: Batch, key: Key, progress: Array
) -> tuple[PpoState, dict[str, Array], None]:
    """`epochs` passes over shuffled minibatches of a batch `[T, B, …]` that was just collected."""
    config, axis = ppo.config, ppo.context.device_axis
    transitions = batch.transitions[ppo.group]
    key_noise, key_epochs = jax.random.split(key)
    samples = make_samples(ppo, state, batch, key_noise)
    if config.value_normalisation:
        targets = batch_moments(samples.target, samples.weight > 0, axis)
        moments = merge_moments(state.value_moments, targets, decay=VALUE_DECAY)
        state = dataclasses.replace(state, value_moments=moments)
    coefficients = scheduled(state.coefficients, progress, lr=config.lr_schedule, entropy_coef=config.entropy_schedule)
    num_sequences = samples.reset.shape[0]
    num_minibatches = _num_minibatches(config, transitions.last.size, axis, num_sequences)

    def minibatch(state: PpoState, indices: Array) -> tuple[PpoState, dict[str, Array]]:
        return update_minibatch(ppo, state, samples, indices, coefficients)

    def epoch(state: PpoState, key_epoch: Key) -> tuple[PpoState, dict[str, Array]]:
        return jax.lax.scan(minibatch, state, random_order(key_epoch, num_sequences).reshape(num_minibatches, -1))

    state, metrics = jax.lax.scan(epoch, state, jax.random.split(key_epochs, config.epochs))
    metrics = jax.tree.map(jnp.mean, metrics)
    metrics["explained_variance"] = explained_variance(samples.value, samples.target, samples.weight)
    metrics["lr"] = coefficients["lr"]
    return update_input_moments(ppo, state, batch.transitions, axis), metrics, None


def _num_minibatches(config: PpoConfig, local_frames: int, axis: str | None, num_sequences: int) -> int:
    frames = local_frames * (jax.lax.axis_size(axis) if axis else 1)
    num = frames // config.minibatch_size if config.minibatch_size else config.num_minibatches
    if num_sequences % num:
        field = "minibatch_size" if config.minibatch_size else "num_minibatches"
        raise ValueError(
            f"{num} minibatches ({field}) do not divide the {num_sequences} sequences of each device; with memory, "
            f"minibatches hold whole sequences of sequence_length steps"
        )
    return num


# ------------------------------------------------------------------------------------------------------------ make


def make_ppo(config: PpoConfig, spec: EnvSpec, group: str, context: Context) -> Algorithm:
    """PPO for one group of a task."""
    ppo = make_bundle(Ppo, config, spec, group, context)
    policy = ppo.policy
    return Algorithm(
        init=partial(init, ppo),
        acting=acting,
        initial_carry=policy.initial_carry,
        act=partial(act, ppo),
        update=partial(update, ppo),
        # 0 means the whole rollout.
        sequence_length=(config.sequence_length or 0) if policy.recurrent else 1,
    )
