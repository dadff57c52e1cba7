"""Deterministic policy gradients for teams: IDDPG and MADDPG (Lillicrap et al., 2016; Lowe et al., 2017), and with twin
critics ITD3 and MATD3 (Fujimoto et al., 2018).

Each agent has a policy a = μ_θ(o) within the actions' bounds. Critics learn its value, and it follows their gradient:

    y = r + γ min_k Q'_k(s', μ'(o') + ε),   L(φ) = Σ_k E[(Q_k(s, a) − y)²],   L(θ) = −E[Q_1(s, μ(o))]

The names differ in what critics see (each agent's own observation and action, or everyone's), and in TD3's three
fields: two critics, the smaller of whose values counts; noise ε on the targets' actions; and a policy that is updated
less often.

`actor_gradient` says whose actions the actor's loss takes from the policy. With `own`, as in the paper, agent i's value
is that of its own new action beside the actions that the others took. With `all`, everyone's actions are new, and each
agent follows the sum of all values. `auto` is `all` where the task shares rewards, and otherwise `own`.

Where several groups cooperate, a centralised critic also sees the other groups' observations and actions (not with
`scope=group`). In the targets those actions come from the other groups' target networks. In the actor's loss they are
the actions taken, whatever `actor_gradient` says.

Differences from the papers:
- Actors pay for outputs beyond ±3, where the tanh that bounds actions is flat. An early critic that prefers ever
  larger actions would otherwise drive an actor to where no gradient leads back. After 60,000 frames of vmas/sampling,
  5 of 12 IDDPG seeds had returns below 8 without the penalty (3 of them with at least 98% of actions at a bound), and
  none with it.
- Exploration is Gaussian noise whose deviation falls over training, in units of half the actions' range.
- Time limits bootstrap from the true final observation; dead agents' steps do not count.
- Policy and critics step at the same time, both from the old parameters: devices then synchronise once per update.
- A centralised critic has an output for each agent: rewards need not be shared.
- A critic with memory remembers the actions that it is shown; in the actor's loss, these are the policy's new ones.

From top to bottom: configuration, state, acting, targets, the actor's loss, update. What DDPG shares with SAC, the
critics' loss and memory included, is in `off_policy.py`. `make_ddpg` binds the functions.
"""

from __future__ import annotations

import dataclasses
from functools import partial

import jax.numpy as jnp
import numpy as np

from covey.algorithms.base import Context, descend, every_n_updates, init_coefficients
from covey.algorithms.critics import CriticSees
from covey.algorithms.off_policy import (
    ActorCritic,
    OffPolicyConfig,
    Samples,
    compute_gradients,
    init_networks,
    make_actor_critic,
    make_samples,
    rate_new_actions,
    rate_successors,
    rated_groups,
    run_actor,
    run_actor_on_steps,
    run_actor_on_successors,
    see_others,
    td_targets,
)
from covey.algorithms.replay_critics import ActorGradient, Others
from covey.checks import at_least, between_0_and_1
from covey.ops import random
from covey.ops.exploration import anneal
from covey.ops.losses import weighted_mean
from covey.ops.schedules import scheduled
from covey.ops.targets import first_and_last, move_towards
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
class DdpgConfig(OffPolicyConfig):
    """Fields of `iddpg`, `maddpg`, `itd3` and `matd3`."""

    actor_gradient: ActorGradient = ActorGradient.own
    # take the targets' next actions from a target network of the actor; false: from the actor itself
    target_actor: bool = True
    saturation_coef: float = 0.1  # weight of a penalty on the actor's outputs beyond ±3, where tanh is flat; 0: none
    noise_start: float = 0.5  # deviation of the exploration noise at the start, as a share of half the actions' range
    noise_end: float = 0.1  # deviation of the exploration noise after `noise_fraction` of the frames
    # share of `experiment.schedule_frames` over which the deviation falls from start to end
    noise_fraction: float = 0.5
    # deviation of noise on the targets' next actions, which smooths the critic, as a share of half the actions' range;
    # 0: none
    target_noise: float = 0.0
    # noise on the targets' next actions stays within ± this, as a share of half the actions' range
    target_noise_clip: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        between_0_and_1(self, "noise_fraction")
        at_least(self, 0, "saturation_coef", "noise_start", "noise_end", "target_noise", "target_noise_clip")


TD3 = {"num_critics": 2, "policy_delay": 2, "target_noise": 0.2}
IDDPG = DdpgConfig()
MADDPG = DdpgConfig(critic_sees=CriticSees.auto)
ITD3 = dataclasses.replace(IDDPG, **TD3)  # type: ignore[arg-type]
MATD3 = dataclasses.replace(MADDPG, **TD3)  # type: ignore[arg-type]


@pytree
class DdpgState:
    """Everything that a group learns. Schedules scale the `coefficients`, and callbacks may set them. `noise` is the
    current deviation of the exploration noise."""

    params: dict[str, PyTree] = learned()  # actor, critic
    target: dict[str, PyTree] = learned(copies="params")
    optimiser: dict[str, PyTree]
    noise: Array
    updates: Array
    coefficients: dict[str, Array]


@pytree
class DdpgActing:
    """The part of the state that acting needs: the actor's parameters, and the deviation of the exploration noise."""

    params: PyTree
    noise: Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ddpg:
    """What the functions of this file share."""

    config: DdpgConfig
    ac: ActorCritic
    action: Continuous


def init(ddpg: Ddpg, key: Key) -> DdpgState:
    """Fresh parameters, targets equal to them, and optimisers."""
    params = init_networks(ddpg.ac, key)
    return DdpgState(
        params=params,
        target=params,
        optimiser={name: ddpg.ac.optimiser.init(part) for name, part in params.items()},
        noise=jnp.float32(ddpg.config.noise_start),
        updates=jnp.zeros((), jnp.int32),
        coefficients=init_coefficients(ddpg.config, "lr", "gamma", "tau", "noise_start", "noise_end"),
    )


# ---------------------------------------------------------------------------------------------------------- acting


def to_action(action: Continuous, outputs: Array) -> Array:
    """An actor's outputs `[…, n]` within the bounds of the actions, by tanh."""
    low, half_range = _low_and_half_range(action)
    return (jnp.tanh(outputs) + 1.0) * half_range + low


def with_noise(action: Continuous, taken: Array, noise: Array) -> Array:
    """Actions `[…, n]` with noise in units of half their range, within the bounds."""
    low, half_range = _low_and_half_range(action)
    return jnp.clip(taken + noise * half_range, low, np.asarray(action.high, np.float32))


def _low_and_half_range(action: Continuous) -> tuple[np.ndarray, np.ndarray]:
    low, high = np.asarray(action.low, np.float32), np.asarray(action.high, np.float32)
    return low, (high - low) / 2


def acting(state: DdpgState) -> DdpgActing:
    """The part of the state that `act` takes."""
    return DdpgActing(params=state.params["actor"], noise=state.noise)


def act(
    ddpg: Ddpg, acting: DdpgActing, timestep: TimeStep, carry: PyTree, key: Key, explore: bool
) -> tuple[Array, dict[str, PyTree], PyTree]:
    """Actions `[B, A, n]`, with memory the carry that they were chosen with, and the next carry."""
    outputs, extras, carry = run_actor(ddpg.ac, acting.params, timestep, carry)
    action = to_action(ddpg.action, outputs)
    if explore:
        action = with_noise(ddpg.action, action, acting.noise * random.normal(key, action.shape))
    return action, extras, carry


# ------------------------------------------------------------------------------------------------ targets and loss


def next_actions(ddpg: Ddpg, state: DdpgState, steps: Transition, key: Key) -> Array:
    """μ'(o') + ε `[.., N, A, n]` at the successors that targets bootstrap from; `key` is for the noise."""
    config, ac = ddpg.config, ddpg.ac
    first, ends = first_and_last(steps, remembers=ac.actor.recurrent)
    policy = state.target["actor"] if config.target_actor else state.params["actor"]
    action = to_action(ddpg.action, run_actor_on_successors(ac, policy, first, ends))
    if config.target_noise:
        clip = config.target_noise_clip
        noise = jnp.clip(config.target_noise * random.normal(key, action.shape), -clip, clip)
        action = with_noise(ddpg.action, action, noise)
    return action


def make_targets(
    ddpg: Ddpg, state: DdpgState, steps: Transition, key: Key, others: tuple[Others, Others] = ((), ())
) -> Array:
    """y `[M, N, A]` of sequences `[L, N, …]`, by the target networks; `key` is for the noise on the next actions.

    `others` is what critics see of other groups (`see_others`).
    """
    ac = ddpg.ac
    first, ends = first_and_last(steps, remembers=ac.actor.recurrent)
    action = next_actions(ddpg, state, steps, key)
    values = rate_successors(ac, state.target["critic"], first, ends, action, others)
    return td_targets(ac, steps, values.min(axis=0)[..., 0], state.coefficients["gamma"])


FLAT_BEYOND = 3.0  # an actor's outputs: tanh(3) is 0.995, and its slope there 0.01


def saturation(outputs: Array) -> Array:
    """How far an actor's outputs `[…, n]` are beyond where tanh is flat, squared: `[…]`."""
    return jnp.sum(jnp.square(jnp.maximum(jnp.abs(outputs) - FLAT_BEYOND, 0.0)), axis=-1)


def actor_loss(
    params: PyTree, ddpg: Ddpg, critic_params: dict[str, PyTree], samples: Samples
) -> tuple[Array, dict[str, Array]]:
    """−E[Q_1(s, μ(o))] of the actor's `params`, with the penalty on saturated outputs; and no further results."""
    outputs = run_actor_on_steps(ddpg.ac, params, samples)
    first_critic = dict([next(iter(critic_params.items()))])
    action = to_action(ddpg.action, outputs)
    value = rate_new_actions(ddpg.ac, first_critic, samples.steps, action, samples.others)[0]
    kept = len(samples.target)
    loss = -weighted_mean(value[:kept], samples.weight)
    if ddpg.config.saturation_coef:
        loss += ddpg.config.saturation_coef * weighted_mean(saturation(outputs)[:kept], samples.weight)
    return loss, {}


# ---------------------------------------------------------------------------------------------------------- update


def update(
    ddpg: Ddpg, state: DdpgState, batch: Batch, key: Key, progress: Array
) -> tuple[DdpgState, dict[str, Array], Array]:
    """One gradient step of critics and actor on sequences `[L, N, …]` from replay.

    Also returns metrics, and the sequences' TD errors `[N]`, which are their priorities.
    """
    config, ac = ddpg.config, ddpg.ac
    coefficients = scheduled(state.coefficients, progress, lr=config.lr_schedule)
    target = make_targets(ddpg, state, batch.transitions[ac.group], key, see_others(ac, batch))
    samples = make_samples(ac, batch, target)
    critic_params, updates = state.params["critic"], state.updates + 1

    def own_loss(params: PyTree) -> tuple[Array, dict[str, Array]]:
        return actor_loss(params, ddpg, critic_params, samples)

    computed = compute_gradients(ac, state, updates, batch, samples, own_loss)
    state = descend(ac.optimiser, state, {"critic": computed.grads["critic"]}, coefficients["lr"])

    def improve() -> DdpgState:
        improved = descend(ac.optimiser, state, {"actor": computed.grads["actor"]}, coefficients["lr"])
        followed = move_towards(improved.target, improved.params, coefficients["tau"])
        return dataclasses.replace(improved, target=followed)

    state = every_n_updates(updates, config.policy_delay, improve, otherwise=lambda: state)
    noise = anneal(coefficients["noise_start"], coefficients["noise_end"], config.noise_fraction, progress)
    state = dataclasses.replace(state, noise=noise, updates=updates)
    return state, computed.metrics | {"noise": noise, "lr": coefficients["lr"]}, computed.td_error


def make_ddpg(config: DdpgConfig, spec: EnvSpec, group: str, context: Context) -> Algorithm:
    """DDPG or TD3 for one group of a task."""
    action = spec.groups[group].action
    assert isinstance(action, Continuous)
    ac = make_actor_critic(config, spec, group, context, num_outputs=action.size)
    ddpg = Ddpg(config=config, ac=ac, action=action)
    return Algorithm(
        init=partial(init, ddpg),
        acting=acting,
        initial_carry=ac.actor.initial_carry,
        act=partial(act, ddpg),
        update=partial(update, ddpg),
        sequence_length=ac.sequence_length,
        next_actions=partial(next_actions, ddpg),
        rates_actions_of=rated_groups(ac),
    )
