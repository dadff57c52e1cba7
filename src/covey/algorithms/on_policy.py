"""What algorithms share that learn from what was just collected, with a policy and a critic: PPO and IMPALA.

They differ in their advantages, their losses, and in what they compute again for each gradient step. The rest is here:
the fields, what actor and critic are shown, acting, and a batch as samples to learn from.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import jax.numpy as jnp
import optax

from covey.algorithms.base import AlgorithmConfig, Context, make_optimiser
from covey.algorithms.critics import CriticOutputs, CriticSees, Scope, join_agents, resolve, resolve_scope
from covey.algorithms.policies import Inputs, Sampled, TeamPolicy, make_independent_policy
from covey.checks import above_zero, at_least, between_0_and_1
from covey.fields import field
from covey.observations import map_entries
from covey.ops import random
from covey.ops.distributions import MIN_SCALE
from covey.ops.losses import weigh
from covey.ops.normalisation import init_moments, merge_entries, normalise_entries
from covey.ops.schedules import Schedule
from covey.types import (
    Array,
    Batch,
    EnvSpec,
    GroupStep,
    Key,
    Observation,
    PyTree,
    TimeStep,
    Transition,
    pytree,
)

Bundle = TypeVar("Bundle", bound="OnPolicy")
State = TypeVar("State", bound=Any)  # with the fields of `init_input_moments`


class AdvantageNormalisation(enum.Enum):
    """What advantages are shifted and scaled by, to mean 0 and deviation 1, before the policy loss."""

    none = "none"  # advantages as they are
    minibatch = "by the mean and deviation of each minibatch"
    batch = "by the mean and deviation of the whole batch"


@dataclasses.dataclass(frozen=True, kw_only=True)
class OnPolicyConfig(AlgorithmConfig):
    """Fields that these algorithms have in common."""

    critic_sees: CriticSees = CriticSees.own  # what the critic sees
    # whose observations make up the joint one where several groups cooperate; auto: the team's, or only the group's if
    # the critic's model reads agents (gnn, attention, deepsets), whose observations must be of one size
    scope: Scope = field(Scope.auto, newer=True)
    critic_outputs: CriticOutputs = CriticOutputs.per_agent  # how many values a centralised critic gives
    share_parameters: bool = True  # one set of parameters for all agents of a group; false: one for each
    # one set of critic parameters for all agents of a group; false: one for each
    share_critic_parameters: bool = True
    agent_ids: bool = True  # append a one-hot id to observations, so that shared parameters can play different roles
    lr: float = 1e-3  # Adam's step size, before `lr_schedule`
    lr_schedule: Schedule = Schedule.linear  # how the step size changes over `experiment.schedule_frames`
    adam_eps: float = 1e-5  # added to the denominator of Adam's step, to keep it above zero
    max_grad_norm: float = 0.5  # each network's gradient is scaled down to this norm if it is larger
    gamma: float = 0.99  # discount: the weight of a reward one step later, against 1 now
    value_coef: float = 0.5  # weight of the critic's loss
    entropy_coef: float = 0.01  # weight of the policy's entropy, which rewards exploring
    entropy_schedule: Schedule = Schedule.constant  # how `entropy_coef` changes over `experiment.schedule_frames`
    epochs: int = field(8, changeable=True)  # passes over the batch in each iteration
    # how advantages are normalised before the loss
    advantage_normalisation: AdvantageNormalisation = AdvantageNormalisation.minibatch
    # normalise observations and the global state by their running mean and deviation
    observation_normalisation: bool = False
    # standard deviation of continuous actions at the start, before tanh fits them to their bounds: smaller ones stay
    # closer to the mean action, and above 1 most actions are at a bound
    initial_scale: float = field(1.0, newer=True)

    def __post_init__(self) -> None:
        above_zero(self, "lr", "adam_eps", "max_grad_norm")
        between_0_and_1(self, "gamma")
        at_least(self, 1, "epochs")
        if not self.initial_scale > MIN_SCALE:
            raise ValueError(f"initial_scale must be above {MIN_SCALE}, not {self.initial_scale}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class OnPolicy:
    """What the functions of this file and of the algorithms share.

    `sees` is what the critic sees, with `auto` resolved. `others` are the other groups whose observations are in the
    joint one.
    """

    config: OnPolicyConfig
    spec: EnvSpec
    group: str
    context: Context
    policy: TeamPolicy
    optimiser: optax.GradientTransformation
    sees: CriticSees
    others: tuple[str, ...] = ()


def make_bundle(kind: type[Bundle], config: OnPolicyConfig, spec: EnvSpec, group: str, context: Context) -> Bundle:
    """An algorithm's bundle for one group of a task, with its policy and critic."""
    sees = resolve(config.critic_sees, spec, context.critic_model)
    others = resolve_scope(config.scope, sees, spec, group, context.critic_model) if sees is CriticSees.joint else ()
    policy = make_independent_policy(
        spec,
        group,
        context,
        sees=sees,
        others=others,
        outputs=config.critic_outputs,
        share_parameters=config.share_parameters,
        share_critic_parameters=config.share_critic_parameters,
        initial_scale=config.initial_scale,
    )
    return kind(
        config=config,
        spec=spec,
        group=group,
        context=context,
        policy=policy,
        optimiser=make_optimiser(config),
        sees=sees,
        others=others,
    )


# ---------------------------------------------------------------------------------------------------------- inputs

OBSERVATION_CLIP = 10.0  # standard deviations


@pytree
class OnPolicyActing:
    """What acting needs of the state."""

    params: dict[str, PyTree]
    observation_moments: PyTree  # Moments of the array, or of each entry
    others_moments: dict[str, PyTree]  # of the other groups that the critic sees
    state_moments: PyTree


def init_input_moments(op: OnPolicy) -> dict[str, PyTree]:
    """Fresh moments of all that actor and critic are shown, by the names that they have in states."""
    groups = op.spec.groups
    return {
        "observation_moments": map_entries(init_moments, groups[op.group].observation_shape),
        "others_moments": {name: map_entries(init_moments, groups[name].observation_shape) for name in op.others},
        "state_moments": map_entries(init_moments, op.spec.state_shape or ()),
    }


def observe(
    op: OnPolicy,
    acting: OnPolicyActing,
    observation: Observation,
    global_state: Observation | None,
    mask: Array | None,
    reset: Array,
    others: Sequence[Observation] = (),
) -> Inputs:
    """What actor and critic are shown, normalised where asked for: `Inputs` of `[T, B, …]`.

    `others` are the observations of the groups `op.others`.
    """
    normalised = op.config.observation_normalisation
    if normalised:
        observation = normalise_entries(observation, acting.observation_moments, clip=OBSERVATION_CLIP)
    match op.sees:
        case CriticSees.own:
            critic_input = observation
        case CriticSees.joint:
            if normalised:
                others = [
                    normalise_entries(seen, acting.others_moments[name], clip=OBSERVATION_CLIP)
                    for name, seen in zip(op.others, others, strict=True)
                ]
            critic_input = join_agents((observation,), *((seen,) for seen in others))
        case _:
            assert global_state is not None
            critic_input = global_state
            if normalised:
                critic_input = normalise_entries(global_state, acting.state_moments, clip=OBSERVATION_CLIP)
    return Inputs(observation=observation, critic_input=critic_input, action_mask=mask, reset=reset)


Steps = Mapping[str, GroupStep] | Mapping[str, Transition]  # of each group, `[T, B, …]`


def observe_steps(
    op: OnPolicy, acting: OnPolicyActing, groups: Steps, global_state: Observation | None, reset: Array
) -> Inputs:
    """What actor and critic are shown at these steps."""
    own, seen = groups[op.group], [groups[name].observation for name in op.others]
    return observe(op, acting, own.observation, global_state, own.action_mask, reset, seen)


def observe_successors(
    op: OnPolicy, acting: OnPolicyActing, groups: Steps, next_state: Observation | None, last: Array
) -> Inputs:
    """What the critic is shown at the true successors of these steps. The episode's memory continues to them, so that
    it is not reset there. The mask is that of the steps, which no critic looks at."""
    own, seen = groups[op.group], [groups[name].next_observation for name in op.others]
    return observe(op, acting, own.next_observation, next_state, own.action_mask, jnp.zeros_like(last), seen)


def update_input_moments(op: OnPolicy, state: State, by_group: Mapping[str, Transition], axis: str | None) -> State:
    """After the update, so that an iteration learns with the same normalisation that it acted with."""
    if not op.config.observation_normalisation:
        return state

    def merged(moments: PyTree, steps: Transition) -> PyTree:
        return merge_entries(moments, steps.observation, steps.alive, axis)

    transitions = by_group[op.group]
    state = dataclasses.replace(
        state,
        observation_moments=merged(state.observation_moments, transitions),
        others_moments={name: merged(state.others_moments[name], by_group[name]) for name in op.others},
    )
    if transitions.state is None:
        return state
    always = jnp.ones(transitions.last.shape, bool)
    return dataclasses.replace(state, state_moments=merge_entries(state.state_moments, transitions.state, always, axis))


# ---------------------------------------------------------------------------------------------------------- acting


def sample_now(
    op: OnPolicy, acting: OnPolicyActing, now: TimeStep, carry: PyTree, key: Key, explore: bool
) -> tuple[Sampled, PyTree]:
    """Actions for one step of time, `now [1, B, …]`, and the next carry."""
    inputs = observe_steps(op, acting, now.groups, now.state, now.last)
    return op.policy.sample(acting.params, inputs, carry, key, explore)


# --------------------------------------------------------------------------------------------------------- samples


@pytree
class CollectedSteps:
    """What was shown and done, `[T, B, …]` or in sequences, in the order that an algorithm cuts them to."""

    observation: Observation
    critic_input: Observation
    reset: Array
    action_mask: Array | None
    weight: Array  # what each agent's step counts for in losses: nothing after its death
    raw_action: Array
    log_prob: Array  # of the action, by the policy that took it
    noise: Array | None  # for the estimate of the entropy, where it has no closed form
    carry: PyTree

    @property
    def inputs(self) -> Inputs:
        return Inputs(
            observation=self.observation,
            critic_input=self.critic_input,
            action_mask=self.action_mask,
            reset=self.reset,
        )


def collected_steps(op: OnPolicy, acting: OnPolicyActing, batch: Batch, key: Key) -> CollectedSteps:
    """A batch `[T, B, …]` as an algorithm's samples begin, without a carry."""
    transitions = batch.transitions[op.group]
    inputs = observe_steps(op, acting, batch.transitions, transitions.state, transitions.reset)
    noise_shape = (*transitions.alive.shape, op.policy.noise_size)
    return CollectedSteps(
        observation=inputs.observation,
        critic_input=inputs.critic_input,
        reset=inputs.reset,
        action_mask=inputs.action_mask,
        weight=weigh(transitions.alive, op.context.device_axis),
        raw_action=transitions.extras["raw_action"],
        log_prob=transitions.extras["log_prob"],
        noise=random.normal(key, noise_shape) if op.policy.noise_size else None,
        carry=None,
    )


def fields_of(steps: CollectedSteps) -> dict[str, Any]:
    """The fields of collected steps, for a dataclass that adds some."""
    return {own.name: getattr(steps, own.name) for own in dataclasses.fields(CollectedSteps)}
