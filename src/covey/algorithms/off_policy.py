"""The skeleton of off-policy actor-critics: SAC, DDPG and TD3 differ in their targets, in their actor's loss, and in
which target networks they have and when these follow. The rest is here: networks, critics' loss, sequences from replay,
and gradients.

Sequences are `[L, N, …]`: L steps of N sequences. With memory, actors start a sequence from the carry that acting
started it with. Critics never act, so they start from an empty carry. The first `burn_in` steps bring both up to date
and are not learned from. Without memory a sequence has one target, and M below is 1.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax

from covey.algorithms.base import (
    AlgorithmConfig,
    Context,
    add_users_loss,
    every_n_updates,
    make_optimiser,
    mean_over_living,
)
from covey.algorithms.critics import (
    ActorGradient,
    CriticOutputs,
    Critics,
    CriticSees,
    Others,
    Scope,
    encode_action,
    make_critics,
    own_values,
    require_memory_of_both,
    resolve,
    resolve_gradient,
    resolve_scope,
)
from covey.algorithms.seats import OWN, beside_partners
from covey.checks import above_zero, at_least, between_0_and_1
from covey.fields import field
from covey.networks.network import apply_after, apply_with_successors, make_network
from covey.ops.losses import weighted_mean
from covey.ops.schedules import Schedule
from covey.ops.targets import first_and_last, n_step_targets, take_action
from covey.types import (
    ActionSpec,
    Array,
    Batch,
    Continuous,
    Discrete,
    EnvSpec,
    Key,
    Network,
    PyTree,
    TimeStep,
    Transition,
    pytree,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class OffPolicyConfig(AlgorithmConfig):
    """Fields that these algorithms have in common."""

    critic_sees: CriticSees = CriticSees.own  # what the critic sees
    # whose observations and actions a centralised critic sees where several groups cooperate; auto: the team's, or only
    # the group's if the critic's model reads agents (gnn, attention, deepsets), whose observations must be of one size
    scope: Scope = field(Scope.auto, newer=True)
    # whose actions come from the policy in the actor's loss; only where a centralised critic rates continuous actions
    actor_gradient: ActorGradient = ActorGradient.auto
    critic_outputs: CriticOutputs = CriticOutputs.per_agent  # how many values a centralised critic gives
    num_critics: int = 1  # critics learned side by side; targets take the smallest of their values
    share_parameters: bool = True  # one set of parameters for all agents of a group; false: one for each
    # one set of critic parameters for all agents of a group; false: one for each
    share_critic_parameters: bool = True
    agent_ids: bool = True  # append a one-hot id to observations, so that shared parameters can play different roles
    lr: float = 1e-3  # Adam's step size, before `lr_schedule`
    lr_schedule: Schedule = Schedule.constant  # how the step size changes over `experiment.schedule_frames`
    adam_eps: float = 1e-5  # added to the denominator of Adam's step, to keep it above zero
    max_grad_norm: float = 5.0  # each network's gradient is scaled down to this norm if it is larger
    gamma: float = 0.99  # discount: the weight of a reward one step later, against 1 now
    n_step: int = 1  # rewards summed before a target bootstraps from a value
    tau: float = 0.005  # how far target networks move towards the networks in each update: 0 not at all, 1 all the way
    # updates of the critics for each update of the actor; in DDPG and TD3, also for each step of the target networks
    policy_delay: int = 1
    sequence_length: int = 16  # steps learned from in each sequence, after `burn_in`; unused without memory
    burn_in: int = 0  # steps before each sequence that only fill the memory and are not learned from

    def __post_init__(self) -> None:
        above_zero(self, "lr", "adam_eps", "max_grad_norm")
        between_0_and_1(self, "gamma", "tau")
        at_least(self, 1, "num_critics", "n_step", "policy_delay", "sequence_length")
        at_least(self, 0, "burn_in")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ActorCritic:
    """What the functions of this file and of the algorithms share.

    With `own_actions_only`, an agent's new action is rated beside the actions that the others took. `others` are the
    action specs of the other groups that the critics see. Outside of targets, critics see the actions these took.
    """

    config: OffPolicyConfig
    group: str
    context: Context
    action: Discrete | Continuous
    actor: Network
    critics: Critics
    optimiser: optax.GradientTransformation
    own_actions_only: bool
    others: Mapping[str, ActionSpec] = dataclasses.field(default_factory=dict)

    @property
    def discrete(self) -> bool:
        """Whether critics give a value for every action, instead of for the one that they are shown."""
        return isinstance(self.action, Discrete)

    @property
    def burn_in(self) -> int:
        """Steps at the start of a sequence that only fill the memory; none without memory."""
        return self.config.burn_in if self.actor.recurrent else 0

    @property
    def sequence_length(self) -> int:
        """Steps that an update needs of each sequence, including those that n-step targets look ahead."""
        length = self.config.sequence_length if self.actor.recurrent else 1
        return self.burn_in + length + self.config.n_step - 1


@pytree
class Samples:
    """Sequences with their targets: M steps of each are learned from.

    steps   [L, N, …]  those that networks are applied to
    carry   [N, …]     the actor's memory before the first; () where it has none
    target  [M, N, A]  of the steps after `burn_in`
    alive   [M, N, A]
    weight  [M, N, A]  of each in losses: 0 where dead, else the sequence's importance
    others             what critics see of other groups at these steps (`see_others`)
    """

    steps: Transition
    carry: PyTree
    target: Array
    alive: Array
    weight: Array
    others: Others = ()


def make_actor_critic(
    config: OffPolicyConfig, spec: EnvSpec, group: str, context: Context, *, num_outputs: int
) -> ActorCritic:
    """The networks of one group; `num_outputs` are the actor's for each agent."""
    group_spec = spec.groups[group]
    action = group_spec.action
    assert isinstance(action, (Continuous, Discrete))
    actor = make_network(
        context.model,
        name=f"{group}/actor",
        input_shape=group_spec.observation_shape,
        num_outputs=num_outputs,
        num_agents=group_spec.num_agents,
        head_gain=0.01,
        share_parameters=config.share_parameters,
    )
    sees = resolve(config.critic_sees, spec, context.critic_model)
    others = resolve_scope(config.scope, sees, spec, group, context.critic_model)
    critics = make_critics(
        context.critic_model,
        spec,
        group,
        sees=sees,
        others=others,
        action_size=0 if isinstance(action, Discrete) else action.size,
        num_outputs=action.num_actions if isinstance(action, Discrete) else 1,
        num_critics=config.num_critics,
        outputs=config.critic_outputs,
        share_parameters=config.share_critic_parameters,
    )
    require_memory_of_both(actor, critics)
    gradient = resolve_gradient(config.actor_gradient, spec, group)
    return ActorCritic(
        config=config,
        group=group,
        context=context,
        action=action,
        actor=actor,
        critics=critics,
        optimiser=make_optimiser(config),
        own_actions_only=gradient is ActorGradient.own and config.critic_sees is not CriticSees.own,
        others={name: spec.groups[name].action for name in others},
    )


def rated_groups(ac: ActorCritic) -> tuple[str, ...]:
    """The other groups whose actions the critics are shown: none where critics give a value to each action."""
    return () if ac.discrete else tuple(ac.others)


def init_networks(ac: ActorCritic, key: Key) -> dict[str, PyTree]:
    """Fresh parameters of "actor" and "critic"."""
    key_actor, key_critic = jax.random.split(key)
    return {"actor": ac.actor.init(key_actor), "critic": ac.critics.init(key_critic)}


def run_actor(
    ac: ActorCritic, params: PyTree, timestep: TimeStep, carry: PyTree
) -> tuple[Array, dict[str, PyTree], PyTree]:
    """The actor's outputs for one step `[B, A, n]`, the extras that learning with memory needs, and the next carry."""
    observation = jax.tree.map(lambda x: x[None], timestep.groups[ac.group].observation)  # one step of time
    outputs, next_carry = ac.actor.apply(params, observation, carry, timestep.last[None])
    return outputs[0], {"carry": carry} if ac.actor.recurrent else {}, next_carry


# --------------------------------------------------------------------------------------------------------- targets


def stored_carry(ac: ActorCritic, steps: Transition) -> PyTree:
    """The actor's memory `[N, …]` before the first of the stored steps."""
    return jax.tree.map(lambda x: x[0], steps.extras["carry"]) if ac.actor.recurrent else ()


def see_others(ac: ActorCritic, batch: Batch) -> tuple[Others, Others]:
    """What critics see of other groups, at the steps that networks are applied to and at the successors of `ends`.

    For each group, its observation `[.., N, A, …]` and its encoded action: the one that it took, or at a successor the
    one that its own policy would take there.
    """
    now, after = [], []
    for name, action in ac.others.items():
        first, ends = first_and_last(batch.transitions[name], remembers=ac.actor.recurrent)
        now.append((first.observation, encode_action(action, first.action)))
        taken = batch.next_actions.get(name)
        # Without next actions, critics see no actions at all (`rated_groups`).
        encoded = None if taken is None else encode_action(action, beside_partners(taken, ends.extras))
        after.append((ends.next_observation, encoded))
    return tuple(now), tuple(after)


def run_actor_on_successors(ac: ActorCritic, params: PyTree, first: Transition, ends: Transition) -> Array:
    """The actor's outputs `[.., N, A, n]` at the true successors of `ends` (see `first_and_last`)."""
    carry = stored_carry(ac, first)
    return apply_with_successors(ac.actor, params, first.observation, ends.next_observation, carry, first.reset)[1]


def rate_successors(
    ac: ActorCritic,
    params: PyTree,
    first: Transition,
    ends: Transition,
    action: Array | None,
    others: tuple[Others, Others] = ((), ()),
) -> Array:
    """Values `[K, .., N, A, n]` by each of K critics at the true successors of `ends`, where `action` is taken.

    `action` is None if actions are discrete: then there is a value for each of them. `others` comes from `see_others`.
    """
    if action is not None:
        action = beside_partners(action, ends.extras)
    now, after = others
    inputs = ac.critics.inputs(first.observation, first.state, None if ac.discrete else first.action, now)
    next_inputs = ac.critics.inputs(ends.next_observation, ends.next_state, action, after)
    return ac.critics.evaluate_successors(params, inputs, next_inputs, first.reset)


def td_targets(ac: ActorCritic, steps: Transition, next_value: Array, gamma: Array | float) -> Array:
    """y = r + γ V(s'), over n steps: `[M, N, A]` of the steps after `burn_in`, each agent's own."""
    last = jnp.broadcast_to(steps.last[..., None], steps.reward.shape)
    target = n_step_targets(steps.reward, next_value, steps.terminated, last, gamma=gamma, num_steps=ac.config.n_step)
    return jax.lax.stop_gradient(target[ac.burn_in :])


def make_samples(ac: ActorCritic, batch: Batch, target: Array) -> Samples:
    """What losses need of a batch from replay, with its targets `[M, N, A]`."""
    transitions = batch.transitions[ac.group]
    steps, _ = first_and_last(transitions, remembers=ac.actor.recurrent)
    alive = steps.alive[ac.burn_in : ac.burn_in + len(target)]
    return Samples(
        steps=steps,
        carry=stored_carry(ac, transitions),
        target=target,
        alive=alive,
        weight=alive * (1.0 if batch.weight is None else batch.weight[:, None]),
        others=see_others(ac, batch)[0],
    )


# ---------------------------------------------------------------------------------------------------------- losses


def rate(ac: ActorCritic, params: PyTree, steps: Transition, action: Array | None, others: Others = ()) -> Array:
    """Values `[K, L − burn_in, N, A, n]` by each of K critics of `action [L, N, A, …]`; with None, of all n actions."""
    inputs = ac.critics.inputs(steps.observation, steps.state, action, others)
    return ac.critics.evaluate(params, inputs, steps.reset, ac.burn_in)


def rate_new_actions(ac: ActorCritic, params: PyTree, steps: Transition, action: Array, others: Others = ()) -> Array:
    """Values `[K, L − burn_in, N, A]` of continuous actions `[L − burn_in, N, A, …]` that the actor would take now."""

    taken = steps.action[ac.burn_in :]
    extras = {name: value[ac.burn_in :] for name, value in steps.extras.items() if name == OWN}
    action = beside_partners(action, extras, taken)

    def values_of(action: Array) -> Array:
        return rate(ac, params, steps, jnp.concatenate([steps.action[: ac.burn_in], action]), others)[..., 0]

    return own_values(values_of, action, taken) if ac.own_actions_only else values_of(action)


def critic_loss(params: PyTree, ac: ActorCritic, samples: Samples) -> tuple[Array, Array]:
    """Σ_k E[(Q_k(s, a) − y)²], and the mean TD error of each sequence `[N]`."""
    steps, target = samples.steps, samples.target
    values = rate(ac, params, steps, None if ac.discrete else steps.action, samples.others)[:, : len(target)]
    if ac.discrete:
        taken = steps.action[ac.burn_in : ac.burn_in + len(target)]
        chosen = jax.vmap(lambda v: take_action(v, taken))(values)
    else:
        chosen = values[..., 0]
    error = chosen - target
    td_error = jnp.where(samples.weight > 0, jnp.abs(error).mean(axis=0), 0.0).mean(axis=(0, 2))
    return sum(weighted_mean(jnp.square(e), samples.weight) for e in error), td_error  # type: ignore[return-value]


def run_actor_on_steps(ac: ActorCritic, params: PyTree, samples: Samples) -> Array:
    """The actor's outputs `[L − burn_in, N, A, n]`."""
    steps = samples.steps
    return apply_after(ac.actor, params, steps.observation, samples.carry, steps.reset, ac.burn_in)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gradients:
    """The gradients of one update and what else it computed, as means over the living agents on all devices.

    grads     of "actor" and "critic"; the actor's are zero in updates that skip it
    found     the further results of the actor's loss; zero likewise
    metrics   to be logged
    td_error  [N]  the new priorities of the sequences
    """

    grads: dict[str, PyTree]
    found: dict[str, Array]
    metrics: dict[str, Array]
    td_error: Array


ActorLoss = Callable[[PyTree], tuple[Array, dict[str, Array]]]


def compute_gradients(
    ac: ActorCritic, state: Any, updates: Array, batch: Batch, samples: Samples, actor_loss: ActorLoss
) -> Gradients:
    """Gradients of critics and actor, both at the current parameters, so that devices exchange them together.

    `updates` counts this one too. `actor_loss(params)` gives the loss and further means over agents.
    """
    config, delay = ac.config, ac.config.policy_delay
    (q_loss, td_error), critic_grads = jax.value_and_grad(critic_loss, has_aux=True)(
        state.params["critic"], ac, samples
    )
    (policy_loss, found), actor_grads = every_n_updates(
        updates, delay, lambda: jax.value_and_grad(actor_loss, has_aux=True)(state.params["actor"])
    )
    means = mean_over_living(
        {
            "grads": {"actor": actor_grads, "critic": critic_grads},
            "found": found,
            "metrics": {
                "q_loss": q_loss,
                "q_value": weighted_mean(samples.target, samples.weight),
                "policy_loss": scale_delayed(config, policy_loss),
            },
        },
        samples.alive,
        ac.context.device_axis,
    )
    networks = {name: state.params[name] for name in means["grads"]}
    transitions = batch.transitions[ac.group]
    grads, users_metrics = add_users_loss(means["grads"], ac.context, ac.group, networks, transitions)
    return Gradients(grads=grads, found=means["found"], metrics=means["metrics"] | users_metrics, td_error=td_error)


def scale_delayed(config: OffPolicyConfig, value: Array) -> Array:
    """Scales a metric that is zero except in every `policy_delay`-th update, so that its mean is over these alone."""
    return value * config.policy_delay
