"""Q-learning for teams: IQL, VDN and QMIX (Mnih et al., 2015; Sunehag et al., 2018; Rashid et al., 2018).

Each agent has Q_θ(o, a). What is learned is each agent's own value (IQL), or the team's, which a mixer makes of the
values of the actions taken: their sum (VDN), or a network that rises in each of them, with weights from the global
state (QMIX; where the task has none, from the joint observation):

    L(θ) = E[(Q_tot(s, a) − y)²],   y = r + γ Q'_tot(s', argmax_a' Q_θ(o', a'))

The maximum is over legal actions, taken by the network that learns (double Q-learning) or by the target network, whose
parameters θ' of all follow θ. With n-step returns, y sums the rewards of n steps, or up to the episode's end.

Memory is a property of the network: sequences of `sequence_length` steps are learned from the carry that the first was
acted with, after `burn_in` steps that only bring it up to date.

Differences from the papers:
- A team's reward is the mean over its agents, so shared rewards stay as they are; the dead earn nothing. The team
  terminates when all of its agents have.
- Time limits bootstrap from the true final observation, with the memory that leads to it.
- Dead agents count for nothing: no loss of their own, and no part in the team's value.
- Target networks follow softly by default; `target_interval` copies them now and then instead.
"""

from __future__ import annotations

import dataclasses
import enum
import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import optax

from covey.algorithms.base import Context, add_users_loss, make_optimiser, mean_over_living, require_discrete
from covey.checks import above_zero, at_least, between_0_and_1
from covey.networks.mixing import Mixer, make_monotonic_mixer, make_sum_mixer
from covey.networks.network import apply_with_successors, make_network
from covey.ops.exploration import anneal, epsilon_greedy
from covey.ops.losses import weighted_mean
from covey.ops.mixing import team_of
from covey.ops.schedules import Schedule, factor
from covey.ops.targets import first_and_last, masked_argmax, move_towards, n_step_targets, take_action
from covey.types import Algorithm, Array, Batch, EnvSpec, Key, PyTree, TimeStep, Transition, learned, pytree


class Mixing(enum.Enum):
    none = "each agent learns its own value"
    sum = "the team's value is the sum of the agents'"
    monotonic = "the team's value rises in each agent's, by weights from the global state"


@dataclasses.dataclass(frozen=True, kw_only=True)
class QLearningConfig:
    """Fields of `iql`, `vdn` and `qmix`."""

    evaluates_greedily: ClassVar[bool] = True
    discrete_actions_only: ClassVar[bool] = True
    mixer: Mixing = Mixing.none  # how the team's value is made of the agents'
    mixer_size: int = 32  # size of the mixing network's hidden layer; only for mixer=monotonic
    # layers of the networks that make the mixer's weights from the state: 1 or 2; only for mixer=monotonic
    hyper_layers: int = 2
    # scale of the mixing network's biases at the start, so that the team's value is near zero
    mixer_bias_gain: float = 0.01
    share_parameters: bool = True  # one set of parameters for all agents of a group; false: one for each
    agent_ids: bool = True  # append a one-hot id to observations, so that shared parameters can play different roles
    # choose the next action by the network and rate it by the target network, against overestimation
    double_q: bool = True
    lr: float = 5e-4  # Adam's step size, before `lr_schedule`
    lr_schedule: Schedule = Schedule.constant  # how the step size changes over `experiment.schedule_frames`
    adam_eps: float = 1e-5  # the number in Adam's denominator that keeps it above zero
    max_grad_norm: float = 10.0  # gradients are scaled down to this norm where theirs is greater
    gamma: float = 0.99  # discount: what a reward one step later counts, against 1 now
    n_step: int = 1  # rewards summed before a target bootstraps from a value
    epsilon_start: float = 1.0  # probability of a random action at the start
    epsilon_end: float = 0.05  # probability of a random action after `epsilon_fraction` of the frames
    # share of `experiment.schedule_frames` over which the probability falls from start to end
    epsilon_fraction: float = 0.3
    # how far the target network moves towards the network in each update: 0 not at all, 1 all the way
    tau: float = 0.005
    # updates between whole copies to the target network, instead of `tau`; null: `tau` decides
    target_interval: int | None = None
    sequence_length: int = 16  # steps a memory is unrolled in learning, after `burn_in`; unused without memory
    burn_in: int = 0  # steps before each sequence that only fill the memory and are not learned from

    def __post_init__(self) -> None:
        above_zero(self, "lr", "adam_eps", "max_grad_norm", "mixer_bias_gain")
        between_0_and_1(self, "gamma", "epsilon_start", "epsilon_end", "epsilon_fraction", "tau")
        at_least(self, 1, "n_step", "target_interval", "sequence_length", "mixer_size")
        if self.hyper_layers not in (1, 2):
            raise ValueError(f"hyper_layers must be 1 or 2, not {self.hyper_layers}")
        at_least(self, 0, "burn_in")

    def check(self, experiment: Any) -> None:
        """Nothing of it depends on how the experiment collects."""


IQL = QLearningConfig()
VDN = QLearningConfig(mixer=Mixing.sum)
# Where nothing terminates, a mixer that follows its own targets faster drives them up without end.
QMIX = QLearningConfig(mixer=Mixing.monotonic, lr=2e-4, tau=0.002)


@pytree
class QState:
    """All that a group learns. `coefficients` are what schedules scale and callbacks may set; `epsilon` is in use."""

    params: dict[str, PyTree] = learned()  # network, mixer
    target: dict[str, PyTree] = learned(copies="params")
    optimiser: PyTree
    epsilon: Array
    updates: Array
    coefficients: dict[str, Array]


def make_qlearning(config: QLearningConfig, spec: EnvSpec, group: str, context: Context) -> Algorithm:
    """Q-learning for one group of a task."""
    group_spec = spec.groups[group]
    num_actions = require_discrete(spec, group).num_actions
    num_agents, axis = group_spec.num_agents, context.device_axis
    network = make_network(
        context.model,
        name=f"{group}/q",
        input_shape=group_spec.observation_shape,
        num_outputs=num_actions,
        num_agents=num_agents,
        head_gain=0.01,
        share_parameters=config.share_parameters,
    )
    mixer = _make_mixer(config, spec, group)
    optimiser = make_optimiser(config)
    burn_in = config.burn_in if network.recurrent else 0

    def init(key: Key) -> QState:
        key_network, key_mixer = jax.random.split(key)
        params = {"network": network.init(key_network), "mixer": mixer.init(key_mixer) if mixer else {}}
        return QState(
            params=params,
            target=params,
            optimiser=optimiser.init(params),
            epsilon=jnp.float32(config.epsilon_start),
            updates=jnp.zeros((), jnp.int32),
            coefficients={"lr": jnp.float32(config.lr)},
        )

    def act(state: QState, timestep: TimeStep, carry: PyTree, key: Key, explore: bool) -> tuple[Array, dict, PyTree]:
        step = timestep.groups[group]
        values, next_carry = network.apply(state.params["network"], step.observation[None], carry, timestep.last[None])
        action = masked_argmax(values[0], step.action_mask)
        if explore:
            action = epsilon_greedy(action, step.action_mask, num_actions, state.epsilon, key)
        extras = {"carry": carry} if network.recurrent else {}
        return action.astype(jnp.int32), extras, next_carry

    def values_of(params: PyTree, steps: Transition, ends: Transition, carry: PyTree) -> tuple[Array, Array]:
        """Q of every action at each of `steps` and at the successor of each of `ends`, `[L, N, A, n]`."""
        return apply_with_successors(
            network, params["network"], steps.observation, ends.next_observation, carry, steps.reset
        )

    def q_loss(params: PyTree, state: QState, steps: Transition, carries: PyTree, weight: Array) -> tuple[Array, dict]:
        """On sequences `[L, N, …]`, of which the first L − n + 1 steps have a target."""
        first, ends = first_and_last(steps, remembers=network.recurrent)
        values, next_values = values_of(params, first, ends, carries["online"])
        _, target_values = values_of(state.target, first, ends, carries["target"])
        chosen = take_action(values, first.action)
        best = masked_argmax(next_values if config.double_q else target_values, ends.next_action_mask)
        next_value = take_action(target_values, best)
        if mixer is None:
            reward, terminated, counts = steps.reward, steps.terminated, steps.alive
            last = jnp.broadcast_to(steps.last[..., None], reward.shape)
        else:
            chosen = mixer.apply(params["mixer"], jnp.where(first.alive, chosen, 0.0), _mixer_input(first))
            still = ends.alive & ~ends.terminated
            next_value = mixer.apply(state.target["mixer"], jnp.where(still, next_value, 0.0), _next_mixer_input(ends))
            reward, terminated, counts = team_of(steps.reward, steps.terminated, steps.alive)
            last = steps.last
        target = n_step_targets(reward, next_value, terminated, last, gamma=config.gamma, num_steps=config.n_step)
        error = chosen[: len(target)] - jax.lax.stop_gradient(target)
        counts = counts[: len(target)]
        # [L, N] or [L, N, A]: a sequence's weight counts for all of its agents' steps.
        weights = counts * weight.reshape(1, -1, *[1] * (error.ndim - 2))
        loss = weighted_mean(jnp.square(error), weights)
        per_sequence = jnp.where(counts, jnp.abs(error), 0.0).mean(axis=(0, *range(2, error.ndim)))
        metrics = {"q_loss": loss, "q_value": weighted_mean(chosen[: len(target)], weights)}
        return loss, {"metrics": metrics, "priorities": per_sequence, "counts": counts}

    def update(state: QState, batch: Batch, key: Key, progress: Array) -> tuple[QState, dict[str, Array], Array]:
        steps = batch.transitions[group]
        num_sequences = steps.last.shape[1]
        weight = jnp.ones(num_sequences) if batch.weight is None else batch.weight
        carries, steps = warm_up(state, steps)
        grads, about = jax.grad(q_loss, has_aux=True)(state.params, state, steps, carries, weight)
        grads, metrics = mean_over_living((grads, about["metrics"]), about["counts"], axis)
        grads, users_metrics = add_users_loss(grads, context, group, state.params, batch.transitions[group])
        lr = state.coefficients["lr"] * factor(config.lr_schedule, progress)
        changes, optimiser_state = optimiser.update(grads, state.optimiser)
        params = jax.tree.map(lambda p, change: p - lr * change, state.params, changes)
        updates = state.updates + 1
        if config.target_interval is None:
            step: Array | float = config.tau
        else:
            step = (updates % config.target_interval == 0).astype(jnp.float32)
        epsilon = anneal(config.epsilon_start, config.epsilon_end, config.epsilon_fraction, progress)
        state = dataclasses.replace(
            state,
            params=params,
            target=move_towards(state.target, params, step),
            optimiser=optimiser_state,
            epsilon=epsilon,
            updates=updates,
        )
        metrics |= {"grad_norm": optax.tree.norm(grads), "epsilon": epsilon, "lr": lr} | users_metrics
        return state, metrics, about["priorities"]

    def warm_up(state: QState, steps: Transition) -> tuple[dict[str, PyTree], Transition]:
        """The carries after `burn_in` steps, of both networks, and the steps after those."""
        if not network.recurrent:
            return {"online": (), "target": ()}, steps
        stored = jax.tree.map(lambda x: x[0], steps.extras["carry"])
        rest = jax.tree.map(lambda x: x[burn_in:], dataclasses.replace(steps, extras={}))
        if not burn_in:
            return {"online": stored, "target": stored}, rest

        def run(params: PyTree) -> PyTree:
            _, carry = network.apply(params["network"], steps.observation[:burn_in], stored, steps.reset[:burn_in])
            return jax.lax.stop_gradient(carry)

        return {"online": run(state.params), "target": run(state.target)}, rest

    return Algorithm(
        init=init,
        initial_carry=network.initial_carry,
        act=act,
        update=update,
        sequence_length=burn_in + (config.sequence_length if network.recurrent else 1) + config.n_step - 1,
    )


# ----------------------------------------------------------------------------------------------------------- teams


def _make_mixer(config: QLearningConfig, spec: EnvSpec, group: str) -> Mixer | None:
    group_spec = spec.groups[group]
    match config.mixer:
        case Mixing.none:
            return None
        case Mixing.sum:
            return make_sum_mixer()
        case Mixing.monotonic:
            joint = (group_spec.num_agents * math.prod(group_spec.observation_shape),)
            return make_monotonic_mixer(
                num_agents=group_spec.num_agents,
                state_shape=spec.state_shape or joint,
                hidden_size=config.mixer_size,
                hyper_size=2 * config.mixer_size if config.hyper_layers == 2 else None,
                bias_gain=config.mixer_bias_gain,
            )


def _mixer_input(steps: Transition) -> Array:
    """The global state, or the joint observation where the task has none: `[L, N, …]`."""
    return steps.observation if steps.state is None else steps.state


def _next_mixer_input(steps: Transition) -> Array:
    return steps.next_observation if steps.next_state is None else steps.next_state
