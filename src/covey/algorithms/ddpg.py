"""Deterministic policy gradients for teams: IDDPG and MADDPG (Lillicrap et al., 2016; Lowe et al., 2017), and with twin
critics ITD3 and MATD3 (Fujimoto et al., 2018).

Each agent has a policy a = μ_θ(o) in the actions' bounds. Critics learn its value, and it follows their slope:

    y = r + γ min_k Q'_k(s', μ'(o') + ε),   L(φ) = Σ_k E[(Q_k(s, a) − y)²],   L(θ) = −E[Q_1(s, μ(o))]

The names differ in what critics see (each agent's own observation and action, or everyone's), and in TD3's three
fields: two critics of which the smaller counts, noise ε on the target's actions, and a policy that moves less often.

`actor_gradient` says whose actions the actor's loss takes from the policy: with `own`, as in the paper, agent i's value
is that of its own new action beside the others' actions as they were; with `all`, everyone's are new, and each agent
follows the sum of all values; `auto` takes `all` where the task shares rewards, and otherwise `own`.

Memory as in soft actor-critic: actors go on from stored carries, critics from empty ones, after `burn_in` steps.

Differences from the papers:
- Actors pay for outputs beyond ±3, where the tanh that bounds actions is flat. An early critic that likes ever larger
  actions otherwise drives an actor to where no gradient leads back. After 60,000 frames of vmas/sampling, 5 of 12 IDDPG
  seeds had returns below 8 without the penalty (3 of them with at least 98% of actions at a bound), and none with it.
- Exploration is Gaussian noise whose deviation falls over training, in units of half the actions' range.
- Time limits bootstrap from the true final observation; dead agents' steps do not count.
- Policy and critics step at once, each from the others as they were: the devices meet once in an update.
- A centralised critic has an output for each agent: rewards need not be shared.
- A critic with memory remembers the actions that it is shown: in the actor's loss, the policy's new ones.
"""

from __future__ import annotations

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from covey.algorithms.base import (
    Context,
    add_users_loss,
    descend,
    make_optimiser,
    mean_over_living,
    now_and_then,
)
from covey.algorithms.critics import (
    ActorGradient,
    CriticOutputs,
    CriticSees,
    make_critics,
    own_values,
    require_memory_of_both,
    resolve_gradient,
)
from covey.checks import above_zero, at_least, between_0_and_1
from covey.networks.network import apply_after, apply_with_successors, make_network
from covey.ops import random
from covey.ops.exploration import anneal
from covey.ops.losses import weighted_mean
from covey.ops.schedules import Schedule, factor
from covey.ops.targets import first_and_last, move_towards, n_step_targets
from covey.types import (
    Algorithm,
    Array,
    Batch,
    Continuous,
    EnvSpec,
    Key,
    PyTree,
    TimeStep,
    Transition,
    learned,
    pytree,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DdpgConfig:
    """Fields of `iddpg`, `maddpg`, `itd3` and `matd3`."""

    critic_sees: CriticSees = CriticSees.own  # what the critic sees
    # whose actions are the actor's new ones when a centralised critic rates it
    actor_gradient: ActorGradient = ActorGradient.own
    critic_outputs: CriticOutputs = CriticOutputs.per_agent  # how many values a centralised critic gives
    num_critics: int = 1  # critics learned side by side; targets take the smallest of their values
    share_parameters: bool = True  # one set of parameters for all agents of a group; false: one for each
    # one set of critic's parameters for all agents of a group; false: one for each
    share_critic_parameters: bool = True
    agent_ids: bool = True  # append a one-hot id to observations, so that shared parameters can play different roles
    lr: float = 1e-3  # Adam's step size, before `lr_schedule`
    lr_schedule: Schedule = Schedule.constant  # how the step size changes over `experiment.schedule_frames`
    adam_eps: float = 1e-5  # the number in Adam's denominator that keeps it above zero
    max_grad_norm: float = 5.0  # gradients of each network are scaled down to this norm where theirs is greater
    gamma: float = 0.99  # discount: what a reward one step later counts, against 1 now
    n_step: int = 1  # rewards summed before a target bootstraps from a value
    tau: float = 0.005  # how far target networks move towards the networks in each update: 0 not at all, 1 all the way
    # take the targets' next actions from a target network of the actor; false: from the actor itself
    target_actor: bool = True
    policy_delay: int = 1  # updates of the critics for each update of the actor
    saturation_coef: float = 0.1  # weight of a penalty on the actor's outputs beyond ±3, where tanh is flat; 0: none
    noise_start: float = 0.5  # deviation of the exploration noise at the start, as a share of half the actions' range
    noise_end: float = 0.1  # deviation of the exploration noise after `noise_fraction` of the frames
    # share of `experiment.schedule_frames` over which the deviation falls from start to end
    noise_fraction: float = 0.5
    target_noise: float = 0.0  # deviation of noise on the targets' next actions, which smooths the critic; 0: none
    target_noise_clip: float = 0.5  # noise on the targets' next actions stays within ± this
    sequence_length: int = 16  # steps a memory is unrolled in learning, after `burn_in`; unused without memory
    burn_in: int = 0  # steps before each sequence that only fill the memory and are not learned from

    def __post_init__(self) -> None:
        above_zero(self, "lr", "adam_eps", "max_grad_norm")
        between_0_and_1(self, "gamma", "tau", "noise_fraction")
        at_least(self, 1, "num_critics", "n_step", "policy_delay", "sequence_length")
        at_least(self, 0, "saturation_coef", "noise_start", "noise_end", "target_noise", "target_noise_clip", "burn_in")


TD3 = {"num_critics": 2, "policy_delay": 2, "target_noise": 0.2}
IDDPG = DdpgConfig()
MADDPG = DdpgConfig(critic_sees=CriticSees.auto)
ITD3 = dataclasses.replace(IDDPG, **TD3)  # type: ignore[arg-type]
MATD3 = dataclasses.replace(MADDPG, **TD3)  # type: ignore[arg-type]


FLAT_BEYOND = 3.0  # an actor's outputs: tanh(3) is 0.995, and its slope there 0.01


def saturation(outputs: Array) -> Array:
    """How far an actor's outputs `[…, n]` are beyond where tanh is flat, squared: `[…]`."""
    return jnp.sum(jnp.square(jnp.maximum(jnp.abs(outputs) - FLAT_BEYOND, 0.0)), axis=-1)


@pytree
class DdpgState:
    """All that a group learns; `noise` is the deviation of exploration in use."""

    params: dict[str, PyTree] = learned()  # actor, critic
    target: dict[str, PyTree] = learned(copies="params")
    optimiser: dict[str, PyTree]
    noise: Array
    updates: Array
    coefficients: dict[str, Array]


def make_ddpg(config: DdpgConfig, spec: EnvSpec, group: str, context: Context) -> Algorithm:
    """DDPG or TD3 for one group of a task."""
    group_spec = spec.groups[group]
    action, num_agents, axis = group_spec.action, group_spec.num_agents, context.device_axis
    if not isinstance(action, Continuous):
        raise ValueError(
            f"deterministic policy gradients need continuous actions, and group '{group}' acts otherwise "
            "(vmas tasks: task.continuous_actions=true)"
        )
    low, high = np.asarray(action.low, np.float32), np.asarray(action.high, np.float32)
    half_range = (high - low) / 2
    actor = make_network(
        context.model,
        name=f"{group}/actor",
        input_shape=group_spec.observation_shape,
        num_outputs=action.size,
        num_agents=num_agents,
        head_gain=0.01,
        share_parameters=config.share_parameters,
    )
    critics = make_critics(
        context.critic_model,
        spec,
        group,
        sees=config.critic_sees,
        action_size=action.size,
        num_outputs=1,
        num_critics=config.num_critics,
        outputs=config.critic_outputs,
        share_parameters=config.share_critic_parameters,
    )
    gradient = resolve_gradient(config.actor_gradient, spec, group)
    separately = gradient is ActorGradient.own and config.critic_sees is not CriticSees.own
    require_memory_of_both(actor, critics)
    optimiser = make_optimiser(config)
    burn_in = config.burn_in if actor.recurrent else 0

    def init(key: Key) -> DdpgState:
        key_actor, key_critic = jax.random.split(key)
        params = {"actor": actor.init(key_actor), "critic": critics.init(key_critic)}
        return DdpgState(
            params=params,
            target=params,
            optimiser={name: optimiser.init(part) for name, part in params.items()},
            noise=jnp.float32(config.noise_start),
            updates=jnp.zeros((), jnp.int32),
            coefficients={"lr": jnp.float32(config.lr)},
        )

    def to_action(outputs: Array) -> Array:
        return (jnp.tanh(outputs) + 1.0) * half_range + low

    def with_noise(action: Array, noise: Array) -> Array:
        return jnp.clip(action + noise * half_range, low, high)

    def act(state: DdpgState, timestep: TimeStep, carry: PyTree, key: Key, explore: bool) -> tuple[Array, dict, PyTree]:
        step = timestep.groups[group]
        outputs, next_carry = actor.apply(state.params["actor"], step.observation[None], carry, timestep.last[None])
        action = to_action(outputs[0])
        if explore:
            action = with_noise(action, state.noise * random.normal(key, action.shape))
        extras = {"carry": carry} if actor.recurrent else {}
        return action, extras, next_carry

    def make_targets(state: DdpgState, steps: Transition, carry: PyTree, key: Key) -> Array:
        """Of the first L − n + 1 steps, `[.., N, A]`."""
        first, ends = first_and_last(steps, remembers=actor.recurrent)
        policy = state.target["actor"] if config.target_actor else state.params["actor"]
        _, outputs = apply_with_successors(actor, policy, first.observation, ends.next_observation, carry, first.reset)
        action = to_action(outputs)
        if config.target_noise:
            clip = config.target_noise_clip
            noise = jnp.clip(config.target_noise * random.normal(key, action.shape), -clip, clip)
            action = with_noise(action, noise)
        inputs = critics.inputs(first.observation, first.state, first.action)
        next_inputs = critics.inputs(ends.next_observation, ends.next_state, action)
        values = critics.evaluate_successors(state.target["critic"], inputs, next_inputs, first.reset)
        last = jnp.broadcast_to(steps.last[..., None], steps.reward.shape)
        return n_step_targets(
            steps.reward,
            values.min(axis=0)[..., 0],
            steps.terminated,
            last,
            gamma=config.gamma,
            num_steps=config.n_step,
        )

    def critic_loss(params: PyTree, steps: Transition, target: Array, weights: Array) -> tuple[Array, Array]:
        """The loss, and how wrong each sequence's values were."""
        inputs = critics.inputs(steps.observation, steps.state, steps.action)
        error = critics.evaluate(params, inputs, steps.reset, burn_in)[:, : len(target), ..., 0] - target
        wrong = jnp.where(weights > 0, jnp.abs(error).mean(axis=0), 0.0).mean(axis=(0, 2))
        return sum(weighted_mean(jnp.square(e), weights) for e in error), wrong  # type: ignore[return-value]

    def value_of(state: DdpgState, steps: Transition, action: Array) -> Array:
        """By the first critic, after `burn_in` steps, `[.., N, A]`; of these on, `action` says what was done."""
        first = dict([next(iter(state.params["critic"].items()))])
        shown = jnp.concatenate([steps.action[:burn_in], action])
        inputs = critics.inputs(steps.observation, steps.state, shown)
        return critics.evaluate(first, inputs, steps.reset, burn_in)[0, ..., 0]

    def actor_loss(params: PyTree, state: DdpgState, steps: Transition, carry: PyTree, weights: Array) -> Array:
        outputs = apply_after(actor, params, steps.observation, carry, steps.reset, burn_in)
        action = to_action(outputs)
        if separately:
            value = own_values(partial(value_of, state, steps), action, steps.action[burn_in:])
        else:
            value = value_of(state, steps, action)
        loss = -weighted_mean(value[: len(weights)], weights)
        if config.saturation_coef:
            loss += config.saturation_coef * weighted_mean(saturation(outputs)[: len(weights)], weights)
        return loss

    def update(state: DdpgState, batch: Batch, key: Key, progress: Array) -> tuple[DdpgState, dict[str, Array], Array]:
        steps = batch.transitions[group]
        carry = jax.tree.map(lambda x: x[0], steps.extras["carry"]) if actor.recurrent else ()
        target = jax.lax.stop_gradient(make_targets(state, steps, carry, key)[burn_in:])
        steps, _ = first_and_last(steps, remembers=actor.recurrent)
        alive = steps.alive[burn_in : burn_in + len(target)]
        weights = alive * (1.0 if batch.weight is None else batch.weight[:, None])
        updates = state.updates + 1
        delay = config.policy_delay

        def policy_gradient() -> tuple[Array, PyTree]:
            return jax.value_and_grad(actor_loss)(state.params["actor"], state, steps, carry, weights)

        (q_loss, wrong), critic_grads = jax.value_and_grad(critic_loss, has_aux=True)(
            state.params["critic"], steps, target, weights
        )
        policy_loss, actor_grads = now_and_then(updates, delay, policy_gradient)
        means = mean_over_living(
            {
                "critic": critic_grads,
                "actor": actor_grads,
                "metrics": {
                    "q_loss": q_loss,
                    "q_value": weighted_mean(target, weights),
                    "policy_loss": policy_loss * delay,  # so that its mean over updates is that of the delayed ones
                },
            },
            alive,
            axis,
        )
        grads, users_metrics = add_users_loss(
            {name: means[name] for name in state.params}, context, group, state.params, batch.transitions[group]
        )
        lr = state.coefficients["lr"] * factor(config.lr_schedule, progress)
        state = descend(optimiser, state, "critic", grads["critic"], lr)

        def improve(state: DdpgState) -> DdpgState:
            state = descend(optimiser, state, "actor", grads["actor"], lr)
            return dataclasses.replace(state, target=move_towards(state.target, state.params, config.tau))

        state = now_and_then(updates, delay, partial(improve, state), otherwise=lambda: state)
        noise = anneal(config.noise_start, config.noise_end, config.noise_fraction, progress)
        state = dataclasses.replace(state, noise=noise, updates=updates)
        return state, means["metrics"] | {"noise": noise, "lr": lr} | users_metrics, wrong

    return Algorithm(
        init=init,
        initial_carry=actor.initial_carry,
        act=act,
        update=update,
        sequence_length=burn_in + (config.sequence_length if actor.recurrent else 1) + config.n_step - 1,
    )
