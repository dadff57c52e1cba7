"""Q-learning for teams: IQL, VDN and QMIX (Mnih et al., 2015; Sunehag et al., 2018; Rashid et al., 2018).

Each agent has Q_θ(o, a). IQL learns each agent's own value. VDN and QMIX learn the team's, which a mixer computes from
the values of the actions taken. VDN's mixer is their sum. QMIX's is a network that is monotonic in each of them, with
weights computed from the global state, or from the joint observation if the task has none:

    L(θ) = E[(Q_tot(s, a) − y)²],   y = r + γ Q'_tot(s', argmax_a' Q_θ(o', a'))

The maximum is over legal actions, and is found by the online network (double Q-learning) or by the target network. The
target parameters θ', the mixer's included, follow θ. With n-step returns, y sums the rewards of n steps, or of those up
to the episode's end.

Where several groups cooperate and share their reward, the mixer takes the values of all their agents, and the groups
learn in one update (with `scope=group`, each learns by itself). Groups with another algorithm are left out. The first
group keeps the mixer. Each group has its own optimiser, which also clips its gradients.

Memory is a property of the network. Learning starts each stored sequence from the carry that acting started it with.
The first `burn_in` steps only bring the memory up to date; the `sequence_length` steps after them are learned from.

Differences from the papers:
- A team's reward is the mean over its agents, so shared rewards stay as they are; the dead earn nothing. The team
  terminates when all of its agents have.
- Time limits bootstrap from the true final observation, with the memory that leads to it.
- Dead agents do not count: they have no loss of their own and no part in the team's value.
- Target networks follow softly by default; with `target_interval`, they are copied at that interval instead.

From top to bottom: configuration, state, acting, targets, loss, update. `QLearning` holds what these functions share,
and `make_qlearning` binds them to it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax

from covey.algorithms.base import (
    AlgorithmConfig,
    Context,
    adam_step,
    add_users_loss,
    init_coefficients,
    make_optimiser,
    mean_over_living,
)
from covey.algorithms.critics import Scope, join_agents
from covey.algorithms.q_values import Mixing, QActing, act_by_values, annealed_epsilon, make_q_network
from covey.checks import above_zero, at_least, between_0_and_1
from covey.fields import field
from covey.networks.mixing import Mixer, make_monotonic_mixer, make_sum_mixer
from covey.networks.network import apply_with_successors
from covey.observations import flat_size, flatten
from covey.ops.losses import weighted_mean
from covey.ops.mixing import returns_learned
from covey.ops.schedules import Schedule, scheduled
from covey.ops.targets import first_and_last, masked_argmax, move_towards, n_step_targets, take_action
from covey.types import (
    Algorithm,
    Array,
    Batch,
    EnvSpec,
    JointLearning,
    Key,
    Network,
    PyTree,
    TimeStep,
    Transition,
    learned,
    pytree,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class QLearningConfig(AlgorithmConfig):
    """Fields of `iql`, `vdn` and `qmix`."""

    mixer: Mixing = Mixing.none  # how the team's value is computed from the agents'
    # whose values are mixed where several groups cooperate; auto: those of all groups that share this one's reward;
    # team: the whole team's, which learns from the mean of all agents' rewards; group: only its own
    scope: Scope = field(Scope.auto, newer=True)
    mixer_size: int = 32  # size of the mixing network's hidden layer; only for mixer=monotonic
    # layers of the networks that compute the mixer's weights from the state: 1 or 2; only for mixer=monotonic
    hyper_layers: int = 2
    # scale of the mixing network's initial biases; small, so that the team's value starts near zero; only for
    # mixer=monotonic
    mixer_bias_gain: float = 0.01
    share_parameters: bool = True  # one set of parameters for all agents of a group; false: one for each
    agent_ids: bool = True  # append a one-hot id to observations, so that shared parameters can play different roles
    # choose the next action by the online network and rate it by the target network, against overestimation; false: the
    # target network does both
    double_q: bool = True
    lr: float = 5e-4  # Adam's step size, before `lr_schedule`
    lr_schedule: Schedule = Schedule.constant  # how the step size changes over `experiment.schedule_frames`
    adam_eps: float = 1e-5  # added to the denominator of Adam's step, to keep it above zero
    max_grad_norm: float = 10.0  # gradients are scaled down to this norm if theirs is larger
    gamma: float = 0.99  # discount: the weight of a reward one step later, against 1 now
    n_step: int = 1  # rewards summed before a target bootstraps from a value
    epsilon_start: float = 1.0  # probability of a random action at the start
    epsilon_end: float = 0.05  # probability of a random action after `epsilon_fraction` of the frames
    # share of `experiment.schedule_frames` over which the probability falls from start to end
    epsilon_fraction: float = 0.3
    # how far the target network moves towards the network in each update: 0 not at all, 1 all the way
    tau: float = 0.005
    # updates between full copies to the target network, instead of `tau`; null: `tau` decides
    target_interval: int | None = None
    sequence_length: int = 16  # steps learned from in each sequence, after `burn_in`; unused without memory
    burn_in: int = 0  # steps before each sequence that only fill the memory and are not learned from

    def __post_init__(self) -> None:
        above_zero(self, "lr", "adam_eps", "max_grad_norm", "mixer_bias_gain")
        between_0_and_1(self, "gamma", "epsilon_start", "epsilon_end", "epsilon_fraction", "tau")
        at_least(self, 1, "n_step", "target_interval", "sequence_length", "mixer_size")
        if self.hyper_layers not in (1, 2):
            raise ValueError(f"hyper_layers must be 1 or 2, not {self.hyper_layers}")
        at_least(self, 0, "burn_in")


IQL = QLearningConfig()
VDN = QLearningConfig(mixer=Mixing.sum)
# Where nothing terminates, a mixer whose targets follow it faster drives them up without end.
QMIX = QLearningConfig(mixer=Mixing.monotonic, lr=2e-4, tau=0.002)


# Groups whose values are mixed have one target, so these fields must be the same for all of them.
AGREED = ("mixer", "mixer_size", "hyper_layers", "mixer_bias_gain", "double_q", "gamma", "n_step", "burn_in")


@pytree
class QState:
    """Everything that a group learns. Schedules scale the `coefficients`, and callbacks may set them. `epsilon` is the
    current one."""

    params: dict[str, PyTree] = learned()  # network, mixer
    target: dict[str, PyTree] = learned(copies="params")
    optimiser: PyTree
    epsilon: Array
    updates: Array
    coefficients: dict[str, Array]


@dataclasses.dataclass(frozen=True, kw_only=True)
class QLearning:
    """What the functions of this file share. Without a mixer, each agent learns its own value.

    `mixed` are the groups whose agents' values are mixed. The first of them keeps the mixer's parameters.
    """

    config: QLearningConfig
    group: str
    context: Context
    network: Network
    mixer: Mixer | None
    optimiser: optax.GradientTransformation
    mixed: tuple[str, ...] = ()

    @property
    def keeps_mixer(self) -> bool:
        """Whether this group holds the mixer: of groups whose values are mixed, the first does."""
        return self.mixer is not None and (not self.mixed or self.mixed[0] == self.group)

    @property
    def burn_in(self) -> int:
        """Steps at the start of a sequence that only fill the memory; none without memory."""
        return self.config.burn_in if self.network.recurrent else 0


def init(q: QLearning, key: Key) -> QState:
    """Fresh parameters, targets equal to them, and an optimiser."""
    key_network, key_mixer = jax.random.split(key)
    mixer = q.mixer.init(key_mixer) if q.mixer and q.keeps_mixer else {}
    params = {"network": q.network.init(key_network), "mixer": mixer}
    coefficients = init_coefficients(q.config, "lr", "gamma", "epsilon_start", "epsilon_end")
    if q.config.target_interval is None:
        coefficients |= init_coefficients(q.config, "tau")
    return QState(
        params=params,
        target=params,
        optimiser=q.optimiser.init(params),
        epsilon=jnp.float32(q.config.epsilon_start),
        updates=jnp.zeros((), jnp.int32),
        coefficients=coefficients,
    )


def acting(state: QState) -> QActing:
    """The part of the state that `act` takes."""
    return QActing(params=state.params["network"], epsilon=state.epsilon)


def act(
    q: QLearning, acting: QActing, timestep: TimeStep, carry: PyTree, key: Key, explore: bool
) -> tuple[Array, dict[str, PyTree], PyTree]:
    """Actions `[B, A]`, with memory the carry that they were chosen with, and the next carry."""
    action, next_carry = act_by_values(q.network, q.group, acting, timestep, carry, key, explore)
    return action, {"carry": carry} if q.network.recurrent else {}, next_carry


# --------------------------------------------------------------------------------------------------------- targets


def mixed_groups(config: QLearningConfig, spec: EnvSpec, group: str, context: Context) -> tuple[str, ...]:
    """The groups whose agents' values are mixed with those of `group`, itself included, in the order of the task."""
    if config.mixer is Mixing.none or config.scope is Scope.group:
        return (group,)
    same = spec.groups if context.same_algorithm is None else context.same_algorithm
    team = tuple(name for name in spec.team_of(group) if name in same or name == group)
    if config.scope is Scope.team:
        return team
    return tuple(name for name in team if name == group or spec.share_reward((group, name)))


def make_mixer(config: QLearningConfig, spec: EnvSpec, *groups: str) -> Mixer | None:
    """The mixer of the values `[…, A]` of all agents of `groups` into the team's `[…]`; None if each learns its own."""
    parts = [spec.groups[name] for name in groups]
    match config.mixer:
        case Mixing.none:
            return None
        case Mixing.sum:
            return make_sum_mixer()
        case Mixing.monotonic:
            joint = (sum(part.num_agents * flat_size(part.observation_shape) for part in parts),)
            return make_monotonic_mixer(
                num_agents=sum(part.num_agents for part in parts),
                state_shape=spec.state_shape or joint,
                hidden_size=config.mixer_size,
                hyper_size=2 * config.mixer_size if config.hyper_layers == 2 else None,
                bias_gain=config.mixer_bias_gain,
            )


def join_groups(steps: Sequence[Transition]) -> Transition:
    """The steps of several groups as those of one whose agents are theirs, one group after another.

    Observations differ in size, so they become the joint one, `[L, N, F]`. Masks and extras are left out.
    """
    if len(steps) == 1:
        return steps[0]

    def side_by_side(name: str) -> Array:
        return jnp.concatenate([getattr(own, name) for own in steps], -1)

    return dataclasses.replace(
        steps[0],
        observation=join_agents(*((own.observation,) for own in steps)),
        next_observation=join_agents(*((own.next_observation,) for own in steps)),
        **{name: side_by_side(name) for name in ("action", "alive", "terminated", "reward")},
        action_mask=None,
        next_action_mask=None,
        shaping=None,
        extras={},
    )


def mix(mixer: Mixer | None, params: PyTree, values: Array, steps: Transition) -> Array:
    """The values that are learned, from the agents' `[L, N, A]`: theirs, or the team's `[L, N]`, with the dead as 0.

    The mixer sees the global state, or the joint observation where the task has none.
    """
    if mixer is None:
        return values
    seen = flatten(steps.observation if steps.state is None else steps.state, 2)
    return mixer.apply(params, jnp.where(steps.alive, values, 0.0), seen)


def mix_successors(mixer: Mixer | None, params: PyTree, values: Array, steps: Transition) -> Array:
    """Like `mix`, for values at the steps' successors: agents that terminated in the step are 0 too."""
    if mixer is None:
        return values
    seen = flatten(steps.next_observation if steps.next_state is None else steps.next_state, 2)
    return mixer.apply(params, jnp.where(steps.alive & ~steps.terminated, values, 0.0), seen)


def best_values(q: QLearning, ends: Transition, next_values: Array, target_values: Array) -> Array:
    """What the best legal actions at the successors of `ends` are worth to each agent, `[.., N, A]`.

    next_values    [.., N, A, n] of each action, by the online network
    target_values  [.., N, A, n] by the target network
    """
    best = masked_argmax(next_values if q.config.double_q else target_values, ends.next_action_mask)
    return take_action(target_values, best)


def q_targets(
    q: QLearning,
    target_mixer: PyTree,
    steps: Transition,
    ends: Transition,
    next_value: Array,
    gamma: Array | float,
) -> tuple[Array, Array]:
    """y for the first L − n + 1 of L steps and whether each counts: `[…, N]` with a mixer, `[…, N, A]` without.

    steps        [L, N, …]    sequences, of all agents whose values are mixed (`join_groups`)
    ends         [L or 1, N]  the steps whose successors the targets bootstrap from (`first_and_last`)
    next_value   [.., N, A]   of the agents at these successors (`best_values`); `target_mixer` are parameters
    """
    next_value = mix_successors(q.mixer, target_mixer, next_value, ends)
    reward, terminated, last, counts = returns_learned(steps, team=q.mixer is not None)
    target = n_step_targets(reward, next_value, terminated, last, gamma=gamma, num_steps=q.config.n_step)
    return jax.lax.stop_gradient(target), counts[: len(target)]


# ------------------------------------------------------------------------------------------------------------ loss


def warm_up(q: QLearning, state: QState, steps: Transition) -> tuple[dict[str, PyTree], Transition]:
    """The carries of both networks after `burn_in` steps, and the steps after those."""
    if not q.network.recurrent:
        return {"online": (), "target": ()}, steps
    stored = jax.tree.map(lambda x: x[0], steps.extras["carry"])
    rest = jax.tree.map(lambda x: x[q.burn_in :], dataclasses.replace(steps, extras={}))
    if not q.burn_in:
        return {"online": stored, "target": stored}, rest
    first, reset = jax.tree.map(lambda x: x[: q.burn_in], (steps.observation, steps.reset))

    def run(params: PyTree) -> PyTree:
        _, carry = q.network.apply(params["network"], first, stored, reset)
        return jax.lax.stop_gradient(carry)

    return {"online": run(state.params), "target": run(state.target)}, rest


def agents_values(
    q: QLearning, params: PyTree, target: PyTree, steps: Transition, carries: PyTree
) -> tuple[Array, Array]:
    """The values of one group's actions, and of the best actions at the successors, each `[.., N, A]`.

    `params` and `target` are the networks' parameters, `carries` their memory before the first step.
    """
    first, ends = first_and_last(steps, remembers=q.network.recurrent)

    def values_of(params: PyTree, carry: PyTree) -> tuple[Array, Array]:
        """Of every action, at each of `first` and at the successor of each of `ends`: `[.., N, A, n]`."""
        return apply_with_successors(q.network, params, first.observation, ends.next_observation, carry, first.reset)

    values, next_values = values_of(params, carries["online"])
    _, target_values = values_of(target, carries["target"])
    return take_action(values, first.action), best_values(q, ends, next_values, target_values)


def q_loss(
    params: Mapping[str, PyTree],
    members: Mapping[str, QLearning],
    target: Mapping[str, PyTree],
    steps: Mapping[str, Transition],
    carries: Mapping[str, PyTree],
    weight: Array,
    gamma: Array,
) -> tuple[Array, dict[str, Any]]:
    """E[(Q_tot − y)²] on sequences `[L, N, …]`, each with a `weight [N]`.

    Mappings are by group, for all groups that learn together. `params` and `target` hold network and mixer; `carries`
    hold the memory before the first step of both networks, "online" and "target". Also returns metrics, the mean TD
    error of each sequence `[N]`, and which values count.
    """
    group, q = next(iter(members.items()))  # the one that keeps the mixer
    joined = join_groups([steps[name] for name in members])
    first, ends = first_and_last(joined, remembers=q.network.recurrent)
    found = [
        agents_values(own, params[name]["network"], target[name]["network"], steps[name], carries[name])
        for name, own in members.items()
    ]
    taken, best = (
        values[0] if len(values) == 1 else jnp.concatenate(values, -1) for values in zip(*found, strict=True)
    )
    y, counts = q_targets(q, target[group]["mixer"], joined, ends, best, gamma)
    chosen = mix(q.mixer, params[group]["mixer"], taken, first)[: len(y)]
    error = chosen - y
    # [L, N] or [L, N, A]: a sequence's weight applies to all of its agents' steps.
    weights = counts * weight.reshape(1, -1, *[1] * (error.ndim - 2))
    loss = weighted_mean(jnp.square(error), weights)
    td_error = jnp.where(counts, jnp.abs(error), 0.0).mean(axis=(0, *range(2, error.ndim)))
    metrics = {"q_loss": loss, "q_value": weighted_mean(chosen, weights)}
    return loss, {"metrics": metrics, "td_error": td_error, "counts": counts}


# ---------------------------------------------------------------------------------------------------------- update


def update(
    q: QLearning, state: QState, batch: Batch, key: Key, progress: Array
) -> tuple[QState, dict[str, Array], Array]:
    """`update_together`, for a group that learns by itself."""
    states, metrics, td_errors = update_together({q.group: q}, {q.group: state}, batch, key, progress)
    return states[q.group], metrics[q.group], td_errors[q.group]


def update_together(
    members: Mapping[str, QLearning], states: Mapping[str, QState], batch: Batch, key: Key, progress: Array
) -> tuple[dict[str, QState], dict[str, dict[str, Array]], dict[str, Array]]:
    """One gradient step of groups that learn together, on sequences `[L, N, …]` from replay. Their TD errors `[N]` are
    the new priorities."""
    first = next(iter(members.values()))
    transitions = {name: batch.transitions[name] for name in members}
    coefficients = {
        name: scheduled(states[name].coefficients, progress, lr=q.config.lr_schedule) for name, q in members.items()
    }
    weight = jnp.ones(transitions[first.group].last.shape[1]) if batch.weight is None else batch.weight
    warm = {name: warm_up(q, states[name], transitions[name]) for name, q in members.items()}
    grads, found = jax.grad(q_loss, has_aux=True)(
        {name: states[name].params for name in members},
        members,
        {name: states[name].target for name in members},
        {name: steps for name, (_, steps) in warm.items()},
        {name: carries for name, (carries, _) in warm.items()},
        weight,
        coefficients[first.group]["gamma"],
    )
    grads, metrics = mean_over_living((grads, found["metrics"]), found["counts"], first.context.device_axis)
    stepped = {
        name: step(q, states[name], grads[name], transitions[name], coefficients[name], progress)
        for name, q in members.items()
    }
    return (
        {name: state for name, (state, _) in stepped.items()},
        {name: metrics | own for name, (_, own) in stepped.items()},
        dict.fromkeys(members, found["td_error"]),
    )


def step(
    q: QLearning, state: QState, grads: PyTree, transitions: Transition, coefficients: dict[str, Array], progress: Array
) -> tuple[QState, dict[str, Array]]:
    """A group's state after a step along `grads`, already means over all devices; and metrics of the step."""
    config = q.config
    grads, users_metrics = add_users_loss(grads, q.context, q.group, state.params, transitions)
    params, optimiser_state = adam_step(q.optimiser, state.params, state.optimiser, grads, coefficients["lr"])
    updates = state.updates + 1
    if config.target_interval is None:
        share = coefficients["tau"]
    else:
        share = (updates % config.target_interval == 0).astype(jnp.float32)
    epsilon = annealed_epsilon(coefficients, config.epsilon_fraction, progress)
    state = dataclasses.replace(
        state,
        params=params,
        target=move_towards(state.target, params, share),
        optimiser=optimiser_state,
        epsilon=epsilon,
        updates=updates,
    )
    metrics = {"grad_norm": optax.tree.norm(grads), "epsilon": epsilon, "lr": coefficients["lr"]}
    return state, metrics | users_metrics


# ------------------------------------------------------------------------------------------------------------ make


def make_qlearning(config: QLearningConfig, spec: EnvSpec, group: str, context: Context) -> Algorithm:
    """Q-learning for one group of a task."""
    mixed = mixed_groups(config, spec, group, context)
    q = QLearning(
        config=config,
        group=group,
        context=context,
        network=make_q_network(spec, group, context, share_parameters=config.share_parameters),
        mixer=make_mixer(config, spec, *mixed),
        optimiser=make_optimiser(config),
        mixed=mixed,
    )
    agreed = {name: getattr(config, name) for name in AGREED}
    return Algorithm(
        init=partial(init, q),
        acting=acting,
        initial_carry=q.network.initial_carry,
        act=partial(act, q),
        update=partial(update, q),
        joint=JointLearning(groups=mixed, member=q, agreed=agreed, update=update_together) if len(mixed) > 1 else None,
        sequence_length=q.burn_in + (config.sequence_length if q.network.recurrent else 1) + config.n_step - 1,
    )
