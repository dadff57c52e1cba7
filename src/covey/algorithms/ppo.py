"""Proximal policy optimisation for teams: IPPO and MAPPO (Schulman et al., 2017; Yu et al., 2022).

Each agent's policy π_θ(a | o) is improved on the clipped surrogate, with advantages by GAE from a critic V_φ:

    L(θ) = −E[min(ρ A, clip(ρ, 1 − ε, 1 + ε) A)] − c_H H[π_θ],   ρ = π_θ(a | o) / π_old(a | o)
    L(φ) = c_V E[(V_φ − V_target)²]

The two names differ in one field, `critic_sees`: each agent's own observation (IPPO), or the task's global state,
and where it has none the joint observation of the group (MAPPO). Memory is a property of the networks: with one, the
batch is cut into contiguous sequences of `sequence_length` steps, each learned from the carry that it was acted with.

Differences from the papers:
- A centralised critic has one output per agent (`critic_outputs=one` for a single value that all share): rewards need
  not be shared, so values are not either.
- Time limits bootstrap from the true final observation; the papers' code takes them for terminations.
- Actor and critic are separate networks, each with its own gradient clipping, so neither scales the other's step.
- Value targets are fixed for all epochs of an iteration, as in most implementations.
- Where agents die, each living agent's step counts the same in an epoch, whichever minibatch and device it falls to.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import Any

import jax
import jax.numpy as jnp
import optax

from covey.algorithms.base import Context, make_optimiser
from covey.algorithms.critics import CriticOutputs, CriticSees, resolve, seen_shape
from covey.checks import above_zero, at_least, between_0_and_1
from covey.networks.network import make_network
from covey.ops import random
from covey.ops.blocks import mean_over_blocks
from covey.ops.devices import mean_over_devices
from covey.ops.distributions import make_distribution
from covey.ops.losses import (
    approximate_kl,
    clipped_policy_loss,
    clipped_value_loss,
    explained_variance,
    value_loss,
    weigh,
    weighted_mean,
)
from covey.ops.normalisation import Moments, batch_moments, init_moments, merge_moments, normalise, scale_up
from covey.ops.returns import gae
from covey.ops.schedules import Schedule, factor
from covey.ops.seeds import any_seed
from covey.ops.sequences import cut, take
from covey.ops.shuffle import random_order
from covey.types import Algorithm, Array, Batch, EnvSpec, Key, PyTree, TimeStep, Transition, learned, pytree


class AdvantageNormalisation(enum.Enum):
    none = "none"  # advantages as they are
    minibatch = "by the mean and deviation of each minibatch"
    batch = "by those of the whole batch"


@dataclasses.dataclass(frozen=True, kw_only=True)
class PpoConfig:
    """Fields of `ippo` and `mappo`. Frames are steps of one environment, whatever the number of agents."""

    critic_sees: CriticSees = CriticSees.own  # what the critic sees
    critic_outputs: CriticOutputs = CriticOutputs.per_agent  # how many values a centralised critic gives
    share_parameters: bool = True  # one set of parameters for all agents of a group; false: one for each
    # one set of critic's parameters for all agents of a group; false: one for each
    share_critic_parameters: bool = True
    agent_ids: bool = True  # append a one-hot id to observations, so that shared parameters can play different roles
    lr: float = 1e-3  # Adam's step size, before `lr_schedule`
    lr_schedule: Schedule = Schedule.linear  # how the step size changes over `experiment.schedule_frames`
    adam_eps: float = 1e-5  # the number in Adam's denominator that keeps it above zero
    max_grad_norm: float = 0.5  # gradients of each network are scaled down to this norm where theirs is greater
    gamma: float = 0.99  # discount: what a reward one step later counts, against 1 now
    # λ of generalised advantage estimation: 0 trusts the critic after one step, 1 only the rewards
    gae_lambda: float = 0.95
    clip: float = 0.2  # how far the ratio of new to old probabilities may leave 1 before its gradient is cut: PPO's ε
    value_clip: float | None = None  # how far the critic's outputs may move in an iteration; null: plain squared error
    value_coef: float = 0.5  # weight of the critic's loss
    entropy_coef: float = 0.01  # weight of the policy's entropy, which rewards exploring
    entropy_schedule: Schedule = Schedule.constant  # how `entropy_coef` changes over `experiment.schedule_frames`
    epochs: int = 8  # passes over the batch in each iteration
    # minibatches that the batch is split into in each epoch; unused where `minibatch_size` is set
    num_minibatches: int = 8
    # frames in a minibatch, which sets the number of minibatches; null: `num_minibatches` decides
    minibatch_size: int | None = None
    # steps a memory is unrolled in learning; null: the whole rollout; unused without memory
    sequence_length: int | None = None
    # how advantages are normalised before the loss
    advantage_normalisation: AdvantageNormalisation = AdvantageNormalisation.minibatch
    # normalise observations and the global state by their running mean and deviation
    observation_normalisation: bool = False
    value_normalisation: bool = True  # normalise the critic's targets by their running mean and deviation

    def __post_init__(self) -> None:
        above_zero(self, "lr", "adam_eps", "max_grad_norm", "clip")
        between_0_and_1(self, "gamma", "gae_lambda")
        at_least(self, 1, "epochs", "num_minibatches", "minibatch_size", "sequence_length")

    def check(self, experiment: Any) -> None:
        """Raises ValueError where this does not fit how the experiment collects."""
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
    """All that a group learns. `coefficients` are the bases that schedules scale; callbacks may set them."""

    params: dict[str, PyTree] = learned()  # actor, critic
    optimiser: dict[str, PyTree]
    observation_moments: Moments = learned(parameters=False)
    state_moments: Moments = learned(parameters=False)
    value_moments: Moments = learned(parameters=False)
    coefficients: dict[str, Array]


@pytree
class Samples:
    """A batch flattened for learning: N sequences of L steps, `[N, L, …]`; carries are `[N, …]`."""

    observation: Array
    critic_input: Array
    reset: Array
    action_mask: Array | None
    weight: Array  # what each agent's step counts for in losses: nothing after its death
    raw_action: Array
    log_prob: Array
    value: Array
    output: Array | None  # of the critic when acting, in its own units; only where `value_clip` compares with it
    advantage: Array
    target: Array
    noise: Array | None  # for the estimate of the entropy, where it has no closed form
    carry: PyTree


OBSERVATION_CLIP = 10.0  # deviations
VALUE_DECAY = 0.99  # of the moments of value targets, per iteration: targets move as the policy improves


def make_ppo(config: PpoConfig, spec: EnvSpec, group: str, context: Context) -> Algorithm:
    """PPO for one group of a task."""
    group_spec = spec.groups[group]
    num_agents, observation_shape = group_spec.num_agents, group_spec.observation_shape
    distribution = make_distribution(group_spec.action)
    axis = context.device_axis
    sees = resolve(config.critic_sees, spec, context.critic_model)
    centralised = sees is not CriticSees.own
    one_value = centralised and (config.critic_outputs is CriticOutputs.one or not config.share_critic_parameters)

    actor = make_network(
        context.model,
        name=f"{group}/actor",
        input_shape=observation_shape,
        num_outputs=distribution.num_parameters,
        num_agents=num_agents,
        head_gain=0.01,
        share_parameters=config.share_parameters,
    )
    critic = make_network(
        context.critic_model,
        name=f"{group}/critic",
        input_shape=seen_shape(sees, spec, group),
        num_outputs=1 if one_value or not centralised else num_agents,
        num_agents=num_agents,
        head_gain=1.0,
        centralised=centralised,
        share_parameters=config.share_critic_parameters,
    )
    optimiser = make_optimiser(config)
    recurrent = actor.recurrent or critic.recurrent

    def init(key: Key) -> PpoState:
        key_actor, key_critic = jax.random.split(key)
        params = {"actor": actor.init(key_actor), "critic": critic.init(key_critic)}
        return PpoState(
            params=params,
            optimiser={name: optimiser.init(part) for name, part in params.items()},
            observation_moments=init_moments(observation_shape),
            state_moments=init_moments(spec.state_shape or ()),
            value_moments=init_moments(),
            coefficients={"lr": jnp.float32(config.lr), "entropy_coef": jnp.float32(config.entropy_coef)},
        )

    def initial_carry(num_envs: int) -> PyTree:
        return {"actor": actor.initial_carry(num_envs), "critic": critic.initial_carry(num_envs)}

    def observe(state: PpoState, observation: Array, global_state: Array | None) -> tuple[Array, Array]:
        """What actor and critic are shown, normalised where asked for."""
        if config.observation_normalisation:
            observation = normalise(observation, state.observation_moments, clip=OBSERVATION_CLIP)
        if sees is CriticSees.own:
            return observation, observation
        if sees is CriticSees.joint:  # [T, B, A, …] to [T, B, A * …]
            return observation, observation.reshape(*observation.shape[:2], -1)
        assert global_state is not None
        if config.observation_normalisation:
            global_state = normalise(global_state, state.state_moments, clip=OBSERVATION_CLIP)
        return observation, global_state

    def evaluate_critic(params: PyTree, inputs: Array, carry: PyTree, reset: Array) -> tuple[Array, PyTree]:
        """Values as the critic gives them (normalised, if values are), one per agent: `[T, B, A]`."""
        outputs, carry = critic.apply(params, inputs, carry, reset)
        if centralised and config.share_critic_parameters:  # [T, B, 1 or A]
            return jnp.broadcast_to(outputs, (*outputs.shape[:2], num_agents)), carry
        return outputs[..., 0], carry

    def to_value(state: PpoState, output: Array) -> Array:
        return scale_up(output, state.value_moments) if config.value_normalisation else output

    def to_output(state: PpoState, value: Array) -> Array:
        return normalise(value, state.value_moments) if config.value_normalisation else value

    def act(state: PpoState, timestep: TimeStep, carry: PyTree, key: Key, explore: bool) -> tuple[Array, dict, PyTree]:
        step = timestep.groups[group]
        observation, critic_input = observe(state, step.observation[None], _time_axis(timestep.state))
        parameters, actor_carry = actor.apply(state.params["actor"], observation, carry["actor"], timestep.last[None])
        value, critic_carry = evaluate_critic(
            state.params["critic"], critic_input, carry["critic"], timestep.last[None]
        )

        def value_of_successor() -> Array:
            # The episode's memory goes on to its true last observation, so the carry is not reset here.
            _, successor = observe(state, step.next_observation[None], _time_axis(timestep.next_state))
            return evaluate_critic(
                state.params["critic"], successor, carry["critic"], jnp.zeros_like(timestep.last[None])
            )[0]

        # Without a truncation nobody asks for it. Zero, since what is acted on may belong to the next episode.
        successor_value = jax.lax.cond(
            any_seed(timestep.truncated.any()), value_of_successor, lambda: jnp.zeros_like(value)
        )
        parameters = parameters[0]
        mask = step.action_mask
        raw = distribution.sample(parameters, mask, key) if explore else distribution.mode(parameters, mask)
        extras = {
            "raw_action": raw,
            "log_prob": distribution.log_prob(parameters, mask, raw),
            "value": to_value(state, value[0]),
            "successor_value": to_value(state, successor_value[0]),
        }
        return distribution.to_action(raw), extras, {"actor": actor_carry, "critic": critic_carry}

    def make_samples(state: PpoState, batch: Batch, sequence_length: int, key: Key) -> Samples:
        """Advantages, then the batch cut into sequences."""
        transitions = batch.transitions[group]
        value = transitions.extras["value"]
        assert batch.final is not None, "PPO learns from what was just collected"
        next_value = _next_values(transitions, act(state, batch.final, batch.final_carry, jax.random.key(0), False)[1])
        advantage, target = gae(
            transitions.reward,
            value,
            next_value,
            transitions.terminated,
            transitions.last[..., None],
            gamma=config.gamma,
            gae_lambda=config.gae_lambda,
        )
        observation, critic_input = observe(state, transitions.observation, transitions.state)
        if config.advantage_normalisation is AdvantageNormalisation.batch:
            advantage = normalise(advantage, batch_moments(advantage, transitions.alive, axis))
        noise_shape = (*transitions.alive.shape, distribution.noise_size)
        steps = Samples(
            observation=observation,
            critic_input=critic_input,
            reset=transitions.reset,
            action_mask=transitions.action_mask,
            weight=weigh(transitions.alive, axis),
            raw_action=transitions.extras["raw_action"],
            log_prob=transitions.extras["log_prob"],
            value=value,
            output=None if config.value_clip is None else to_output(state, value),
            advantage=advantage,
            target=target,
            noise=random.normal(key, noise_shape) if distribution.noise_size else None,
            carry=None,
        )
        sequences = jax.tree.map(lambda x: cut(x, sequence_length), steps)
        carry = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), batch.carries)
        return dataclasses.replace(sequences, carry=carry)

    def ppo_loss(params: PyTree, state: PpoState, samples: Samples, entropy_coef: Array) -> tuple[Array, dict]:
        """The loss on a minibatch or a block of it, `[L, N, …]`, and what is worth logging of it."""
        parameters, _ = actor.apply(params["actor"], samples.observation, samples.carry["actor"], samples.reset)
        output, _ = evaluate_critic(params["critic"], samples.critic_input, samples.carry["critic"], samples.reset)
        log_prob = distribution.log_prob(parameters, samples.action_mask, samples.raw_action)
        entropy = weighted_mean(distribution.entropy(parameters, samples.action_mask, samples.noise), samples.weight)
        policy_loss = clipped_policy_loss(
            log_prob, samples.log_prob, samples.advantage, samples.weight, clip=config.clip
        )
        critic_loss = fit_values(
            output, samples.output, to_output(state, samples.target), samples.weight, clip=config.value_clip
        )
        loss = policy_loss - entropy_coef * entropy + config.value_coef * critic_loss
        metrics = {
            "policy_loss": policy_loss,
            "value_loss": critic_loss,
            "entropy": entropy,
            "kl": approximate_kl(log_prob, samples.log_prob, samples.weight),
            "clip_fraction": weighted_mean(
                (jnp.abs(jnp.exp(log_prob - samples.log_prob) - 1.0) > config.clip).astype(jnp.float32), samples.weight
            ),
        }
        if context.hooks.loss:
            extra, extra_metrics = context.hooks.loss(group, params, samples)
            loss, metrics = loss + extra, metrics | extra_metrics
        return loss, metrics

    def update_minibatch(state: PpoState, samples: Samples, indices: Array, lr: Array, entropy_coef: Array):
        """`indices` of the samples are the minibatch."""
        moments = None
        if config.advantage_normalisation is AdvantageNormalisation.minibatch:
            moments = batch_moments(samples.advantage[indices], samples.weight[indices] > 0, axis)

        def gradient(block: Array) -> tuple[PyTree, dict]:
            part = take(samples, block)
            if moments is not None:
                part = dataclasses.replace(part, advantage=normalise(part.advantage, moments))
            return jax.grad(ppo_loss, has_aux=True)(state.params, state, part, entropy_coef)

        if context.hooks.loss:  # a user's loss need not be a mean over the minibatch
            grads, metrics = gradient(indices)
        else:
            grads, metrics = mean_over_blocks(gradient, indices, num_agents)
        grads = mean_over_devices(grads, axis)
        params, optimiser_state = {}, {}
        for name, grad in grads.items():
            steps, optimiser_state[name] = optimiser.update(grad, state.optimiser[name])
            params[name] = jax.tree.map(lambda p, step: p - lr * step, state.params[name], steps)
            metrics[f"{name}_grad_norm"] = optax.tree.norm(grad)
        return dataclasses.replace(state, params=params, optimiser=optimiser_state), metrics

    def update(state: PpoState, batch: Batch, key: Key, progress: Array) -> tuple[PpoState, dict[str, Array], None]:
        transitions = batch.transitions[group]
        rollout_length, num_envs = transitions.last.shape
        sequence_length = rollout_length // jax.tree.leaves(batch.carries)[0].shape[0] if recurrent else 1
        key_noise, key_epochs = jax.random.split(key)
        samples = make_samples(state, batch, sequence_length, key_noise)
        if config.value_normalisation:
            targets = batch_moments(samples.target, samples.weight > 0, axis)
            state = dataclasses.replace(
                state, value_moments=merge_moments(state.value_moments, targets, decay=VALUE_DECAY)
            )
        lr = state.coefficients["lr"] * factor(config.lr_schedule, progress)
        entropy_coef = state.coefficients["entropy_coef"] * factor(config.entropy_schedule, progress)
        num_sequences = samples.reset.shape[0]
        num_minibatches = _num_minibatches(config, rollout_length * num_envs, axis, num_sequences)

        def epoch(state: PpoState, key_epoch: Key) -> tuple[PpoState, dict]:
            def minibatch(state: PpoState, indices: Array) -> tuple[PpoState, dict]:
                return update_minibatch(state, samples, indices, lr, entropy_coef)

            return jax.lax.scan(minibatch, state, random_order(key_epoch, num_sequences).reshape(num_minibatches, -1))

        state, metrics = jax.lax.scan(epoch, state, jax.random.split(key_epochs, config.epochs))
        metrics = jax.tree.map(jnp.mean, metrics)
        metrics["explained_variance"] = explained_variance(samples.value, samples.target, samples.weight)
        metrics["lr"] = lr
        return _update_observation_moments(config, state, transitions, axis), metrics, None

    return Algorithm(
        init=init,
        initial_carry=initial_carry,
        act=act,
        update=update,
        sequence_length=_sequence_length(config, recurrent),
    )


# ----------------------------------------------------------------------------------------------------------- parts


def fit_values(output: Array, old_output: Array | None, target: Array, weight: Array, *, clip: float | None) -> Array:
    """The critic's loss. All are in the units of its outputs, so that `clip` compares like with like.

    `old_output` is what the critic gave when acting. As a value under moments that moved since, it would seem to be
    far from `output` before a single step was taken, and the clipped loss would have no gradient.
    """
    if clip is None:
        return value_loss(output, target, weight)
    assert old_output is not None
    return clipped_value_loss(output, old_output, target, weight, clip=clip)


def _sequence_length(config: PpoConfig, recurrent: bool) -> int:
    """1 for networks without memory; 0 stands for the whole rollout."""
    if not recurrent:
        return 1
    return config.sequence_length or 0


def _time_axis(x: Array | None) -> Array | None:
    return None if x is None else x[None]


def _next_values(transitions: Transition, final_extras: dict[str, Array]) -> Array:
    """Values of the true successors `[T, B, A]`: the next step's, or where an episode ended, its last observation's."""

    def following(name: str) -> Array:
        return jnp.concatenate([transitions.extras[name][1:], final_extras[name][None]])

    return jnp.where(transitions.last[..., None], following("successor_value"), following("value"))


def _num_minibatches(config: PpoConfig, local_frames: int, axis: str | None, num_sequences: int) -> int:
    frames = local_frames * (jax.lax.axis_size(axis) if axis else 1)
    num = frames // config.minibatch_size if config.minibatch_size else config.num_minibatches
    if num_sequences % num:
        raise ValueError(f"{num} minibatches do not divide {num_sequences} sequences (per device)")
    return num


def _update_observation_moments(
    config: PpoConfig, state: PpoState, transitions: Transition, axis: str | None
) -> PpoState:
    """After the update, so that an iteration learns with the same normalisation that it acted with."""
    if not config.observation_normalisation:
        return state
    observed = batch_moments(transitions.observation.astype(jnp.float32), transitions.alive, axis)
    state = dataclasses.replace(state, observation_moments=merge_moments(state.observation_moments, observed))
    if transitions.state is None:
        return state
    seen = batch_moments(transitions.state, jnp.ones(transitions.last.shape, bool), axis)
    return dataclasses.replace(state, state_moments=merge_moments(state.state_moments, seen))
