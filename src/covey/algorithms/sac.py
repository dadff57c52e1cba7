"""Soft actor-critic for teams: ISAC and MASAC (Haarnoja et al., 2018; Christodoulou, 2019, for discrete actions).

Each agent's policy π_θ is rewarded for its entropy, besides the task's reward. Two critics learn the soft value, and
the smaller of their values counts:

    y = r + γ (min_k Q'_k(s', a') − α log π(a' | o')),   a' ~ π(· | o')
    L(φ) = Σ_k E[(Q_k(s, a) − y)²],   L(θ) = E[α log π(ã | o) − min_k Q_k(s, ã)],   L(α) = −log α · E[log π + H̄]

With discrete actions the critics give a value for each, and expectations over the policy are exact. ISAC and MASAC
differ in what critics see: each agent's own observation and action, or everyone's.

`actor_gradient` says which actions a centralised critic sees in the actor's loss, where actions are continuous. With
`own`, agent i's value is that of its own new action beside the actions that the others took, so it follows its own
value. With `all`, everyone's actions are new, and each agent follows the sum of all values, which is the group's
return. The default is `own` where rewards are individual, and `all` where the task shares them, since it costs less.

Where several groups cooperate, a centralised critic also sees the other groups' observations and, where actions are
continuous, their actions (not with `scope=group`). In the targets those actions are drawn from the other groups'
policies. In the actor's loss they are the actions taken, whatever `actor_gradient` says.

Differences from the papers:
- Time limits bootstrap from the true final observation; dead agents' steps do not count.
- Policy and critics step at the same time, both from the old parameters: devices then synchronise once per update.
- A centralised critic has an output for each agent: rewards need not be shared.
- A critic with memory remembers the actions that it is shown; in the actor's loss, these are the policy's new ones.
- Where rewards are shared, the actor's loss draws all agents' actions from the policy, and the gradient reaches each.
- The target entropy of discrete actions is a share of the largest possible.

From top to bottom: configuration, state, acting, soft values and targets, the actor's loss, update. What SAC shares
with DDPG, the critics' loss and memory included, is in `off_policy.py`. `make_sac` binds the functions.
"""

from __future__ import annotations

import dataclasses
import math
from functools import partial

import jax
import jax.numpy as jnp

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
    rate,
    rate_new_actions,
    rate_successors,
    rated_groups,
    run_actor,
    run_actor_on_steps,
    run_actor_on_successors,
    scale_delayed,
    see_others,
    td_targets,
)
from covey.algorithms.replay_critics import Others
from covey.checks import above_zero, between_0_and_1
from covey.ops.distributions import Distribution, make_distribution, masked_logits
from covey.ops.losses import weighted_mean
from covey.ops.schedules import scheduled
from covey.ops.targets import first_and_last, move_towards
from covey.types import (
    Algorithm,
    Array,
    Batch,
    Continuous,
    Discrete,
    EnvSpec,
    Key,
    PyTree,
    TimeStep,
    Transition,
    learned,
    pytree,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SacConfig(OffPolicyConfig):
    """Fields of `isac` and `masac`."""

    num_critics: int = 2  # critics learned side by side; targets take the smallest of their values
    alpha_lr: float | None = None  # step size of the temperature; null: `lr`
    alpha: float = 0.1  # initial temperature, the weight of the policy's entropy
    learn_alpha: bool = True  # adapt the temperature so that the entropy reaches its target; false: keep it fixed
    # entropy to reach with continuous actions; null: −1 for each dimension, plus the logarithm of half its range
    target_entropy: float | None = None
    # entropy to reach with discrete actions, as a share of the largest that the legal actions allow
    discrete_entropy: float = 0.2

    def __post_init__(self) -> None:
        super().__post_init__()
        above_zero(self, "alpha_lr", "alpha")
        between_0_and_1(self, "discrete_entropy")


ISAC = SacConfig()
MASAC = SacConfig(critic_sees=CriticSees.auto)


@pytree
class SacState:
    """Everything that a group learns. Schedules scale the `coefficients`, and callbacks may set them."""

    params: dict[str, PyTree] = learned()  # actor, critic, log_alpha
    target: PyTree = learned(copies="params.critic")
    optimiser: dict[str, PyTree]
    updates: Array
    coefficients: dict[str, Array]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sac:
    """What the functions of this file share."""

    config: SacConfig
    ac: ActorCritic
    distribution: Distribution


def init(sac: Sac, key: Key) -> SacState:
    """Fresh parameters, target critics equal to the critics, and optimisers."""
    config = sac.config
    params = init_networks(sac.ac, key) | {"log_alpha": jnp.float32(math.log(config.alpha))}
    coefficients = init_coefficients(config, "lr", "gamma", "tau")
    coefficients["alpha_lr"] = jnp.float32(config.alpha_lr or config.lr)
    if not config.learn_alpha:
        coefficients |= init_coefficients(config, "alpha")
    return SacState(
        params=params,
        target=params["critic"],
        optimiser={name: sac.ac.optimiser.init(part) for name, part in params.items()},
        updates=jnp.zeros((), jnp.int32),
        coefficients=coefficients,
    )


def acting(state: SacState) -> PyTree:
    """The part of the state that `act` takes: the actor's parameters."""
    return state.params["actor"]


def act(
    sac: Sac, acting: PyTree, timestep: TimeStep, carry: PyTree, key: Key, explore: bool
) -> tuple[Array, dict[str, PyTree], PyTree]:
    """Actions `[B, A, …]`, with memory the carry that they were chosen with, and the next carry."""
    parameters, extras, carry = run_actor(sac.ac, acting, timestep, carry)
    mask = timestep.groups[sac.ac.group].action_mask
    distribution = sac.distribution
    raw = distribution.sample(parameters, mask, key) if explore else distribution.mode(parameters, mask)
    return distribution.to_action(raw), extras, carry


# ---------------------------------------------------------------------------------------------- soft values, targets


def temperature(sac: Sac, state: SacState) -> Array:
    """α. If it is not learned, this is the coefficient, even if parameters were taken from a run that learned it."""
    return jnp.exp(state.params["log_alpha"]) if sac.config.learn_alpha else state.coefficients["alpha"]


def soft_value(
    values: Array, parameters: Array, mask: Array | None, log_prob: Array | None, alpha: Array | float
) -> Array:
    """E_π[min_k Q_k − α log π], exact for discrete actions: `[L, N, A]` of values `[K, L, N, A, n]`.

    Discrete: n values for the n actions, with the policy's logits `parameters [L, N, A, n]` and legal actions `mask`.
    Continuous: n is 1, the value of an action that was drawn with `log_prob [L, N, A]`.
    """
    smallest = values.min(axis=0)
    if log_prob is not None:
        return smallest[..., 0] - alpha * log_prob
    log_probs = jax.nn.log_softmax(masked_logits(parameters, mask))
    return jnp.sum(jnp.exp(log_probs) * (smallest - alpha * log_probs), axis=-1)


def draw(sac: Sac, parameters: Array, mask: Array | None, key: Key) -> tuple[Array | None, Array | None]:
    """Continuous actions and their log-probabilities; None for discrete ones, whose expectations are exact."""
    if sac.ac.discrete:
        return None, None
    raw = sac.distribution.sample(parameters, mask, key)
    return sac.distribution.to_action(raw), sac.distribution.log_prob(parameters, mask, raw)


def next_actions(sac: Sac, state: SacState, steps: Transition, key: Key) -> Array:
    """Actions `[.., N, A, …]` drawn from the current policy, at the successors that targets bootstrap from."""
    first, ends = first_and_last(steps, remembers=sac.ac.actor.recurrent)
    parameters = run_actor_on_successors(sac.ac, state.params["actor"], first, ends)
    return sac.distribution.to_action(sac.distribution.sample(parameters, ends.next_action_mask, key))


def make_targets(
    sac: Sac, state: SacState, steps: Transition, key: Key, others: tuple[Others, Others] = ((), ())
) -> Array:
    """y `[M, N, A]` of sequences `[L, N, …]`, by the target critics and the current policy.

    `others` is what critics see of other groups (`see_others`).
    """
    first, ends = first_and_last(steps, remembers=sac.ac.actor.recurrent)
    mask = ends.next_action_mask
    parameters = run_actor_on_successors(sac.ac, state.params["actor"], first, ends)
    action, log_prob = draw(sac, parameters, mask, key)
    values = rate_successors(sac.ac, state.target, first, ends, action, others)
    next_value = soft_value(values, parameters, mask, log_prob, temperature(sac, state))
    return td_targets(sac.ac, steps, next_value, state.coefficients["gamma"])


def target_entropy(config: SacConfig, action: Discrete | Continuous, mask: Array | None) -> Array | float:
    """H̄, the entropy that the temperature aims for.

    Continuous: −(dimension) for bounds of ±1, as in the paper; other bounds add the logarithm of half their range.
    Discrete: a share of the largest entropy. With a mask it is `[…]`, the largest over each agent's legal actions: an
    agent without a choice has no entropy, so one target for all might be out of reach, and the temperature would grow
    without end.
    """
    if isinstance(action, Discrete) and mask is not None:
        return config.discrete_entropy * jnp.log(jnp.maximum(mask.sum(-1), 1))
    if isinstance(action, Discrete):
        return config.discrete_entropy * math.log(action.num_actions)
    if config.target_entropy is not None:
        return config.target_entropy
    return sum(math.log((high - low) / 2) - 1.0 for low, high in zip(action.low, action.high, strict=True))


# ------------------------------------------------------------------------------------------------- loss and update


def actor_loss(
    params: PyTree, sac: Sac, critic_params: PyTree, samples: Samples, alpha: Array, key: Key
) -> tuple[Array, dict[str, Array]]:
    """E[α log π(ã | o) − min_k Q_k(s, ã)] of the actor's `params`.

    Also returns the policy's mean entropy and its surplus over the target, neither weighted by the samples' importance.
    """
    ac, steps = sac.ac, samples.steps
    parameters = run_actor_on_steps(ac, params, samples)
    mask = None if steps.action_mask is None else steps.action_mask[ac.burn_in :]
    action, log_prob = draw(sac, parameters, mask, key)
    if action is None:
        values = rate(ac, critic_params, steps, None, samples.others)
    else:
        values = rate_new_actions(ac, critic_params, steps, action, samples.others)[..., None]
    value = soft_value(values, parameters, mask, log_prob, alpha)
    entropy = sac.distribution.entropy(parameters, mask, None) if log_prob is None else -log_prob
    surplus = entropy - target_entropy(sac.config, ac.action, mask)
    kept = len(samples.target)
    found = {
        "entropy": weighted_mean(entropy[:kept], samples.alive),
        "surplus": weighted_mean(surplus[:kept], samples.alive),
    }
    return -weighted_mean(value[:kept], samples.weight), found


def update(
    sac: Sac, state: SacState, batch: Batch, key: Key, progress: Array
) -> tuple[SacState, dict[str, Array], Array]:
    """One gradient step of critics, actor and temperature on sequences `[L, N, …]` from replay.

    Also returns metrics, and the sequences' TD errors `[N]`, which are their priorities.
    """
    config, ac = sac.config, sac.ac
    key_target, key_actor = jax.random.split(key)
    coefficients = scheduled(state.coefficients, progress, lr=config.lr_schedule, alpha_lr=config.lr_schedule)
    target = make_targets(sac, state, batch.transitions[ac.group], key_target, see_others(ac, batch))
    samples = make_samples(ac, batch, target)
    alpha, critic_params = temperature(sac, state), state.params["critic"]

    def own_loss(params: PyTree) -> tuple[Array, dict[str, Array]]:
        return actor_loss(params, sac, critic_params, samples, alpha, key_actor)

    updates = state.updates + 1
    computed = compute_gradients(ac, state, updates, batch, samples, own_loss)
    grads = computed.grads
    state = descend(ac.optimiser, state, {"critic": grads["critic"]}, coefficients["lr"])
    followed = move_towards(state.target, state.params["critic"], coefficients["tau"])
    state = dataclasses.replace(state, target=followed, updates=updates)

    def improve() -> SacState:
        improved = descend(ac.optimiser, state, {"actor": grads["actor"]}, coefficients["lr"])
        if not config.learn_alpha:
            return improved
        # d/d log α of −log α (log π + H̄), where −log π is the entropy
        return descend(ac.optimiser, improved, {"log_alpha": computed.found["surplus"]}, coefficients["alpha_lr"])

    state = every_n_updates(updates, config.policy_delay, improve, otherwise=lambda: state)
    metrics = computed.metrics | {
        "entropy": scale_delayed(config, computed.found["entropy"]),
        "alpha": temperature(sac, state),
        "lr": coefficients["lr"],
    }
    return state, metrics, computed.td_error


def make_sac(config: SacConfig, spec: EnvSpec, group: str, context: Context) -> Algorithm:
    """SAC for one group of a task."""
    distribution = make_distribution(spec.groups[group].action)
    ac = make_actor_critic(config, spec, group, context, num_outputs=distribution.num_parameters)
    sac = Sac(config=config, ac=ac, distribution=distribution)
    return Algorithm(
        init=partial(init, sac),
        acting=acting,
        initial_carry=ac.actor.initial_carry,
        act=partial(act, sac),
        update=partial(update, sac),
        sequence_length=ac.sequence_length,
        next_actions=partial(next_actions, sac),
        rates_actions_of=rated_groups(ac),
    )
