"""Soft actor-critic for teams: ISAC and MASAC (Haarnoja et al., 2018; Christodoulou, 2019, for discrete actions).

Each agent's policy π_θ earns its entropy besides its reward. Two critics learn the soft value, of which the smaller
counts:

    y = r + γ (min_k Q'_k(s', a') − α log π(a' | o')),   a' ~ π(· | o')
    L(φ) = Σ_k E[(Q_k(s, a) − y)²],   L(θ) = E[α log π(ã | o) − min_k Q_k(s, ã)],   L(α) = −log α · E[log π + H̄]

With discrete actions the critics give a value to each, and expectations over the policy are exact. The two names differ
in what critics see: each agent's own observation and action, or everyone's.

`actor_gradient` says which actions a centralised critic sees in the actor's loss, where actions are continuous. With
`own`, agent i's value is that of its own new action beside the others' actions as they were: it follows its own value.
With `all`, everyone's actions are new, and each agent follows the sum of all values, which is the group's return. The
default is `own` where rewards are individual, and `all` where the task shares them, since it costs less.

Memory: actors go on from the carry that a sequence's first step was acted with, critics, which never act, from an empty
one; `burn_in` steps bring both up to date and are not learned from.

Differences from the papers:
- Time limits bootstrap from the true final observation; dead agents' steps do not count.
- Policy and critics step at once, each from the others as they were: the devices meet once in an update.
- A centralised critic has an output for each agent: rewards need not be shared.
- A critic with memory remembers the actions that it is shown: in the actor's loss, the policy's new ones.
- Where rewards are shared, the actor's loss draws all agents' actions from the policy, and the gradient reaches each.
- The target entropy of discrete actions is a share of the largest possible.
"""

from __future__ import annotations

import dataclasses
import math
from functools import partial

import jax
import jax.numpy as jnp

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
from covey.ops.distributions import make_distribution, masked_logits
from covey.ops.losses import weighted_mean
from covey.ops.schedules import Schedule, factor
from covey.ops.targets import first_and_last, move_towards, n_step_targets, take_action
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
class SacConfig:
    """Fields of `isac` and `masac`."""

    critic_sees: CriticSees = CriticSees.own  # what the critic sees
    # whose actions are the actor's new ones when a centralised critic of continuous actions rates it
    actor_gradient: ActorGradient = ActorGradient.auto
    critic_outputs: CriticOutputs = CriticOutputs.per_agent  # how many values a centralised critic gives
    num_critics: int = 2  # critics learned side by side; targets take the smallest of their values
    share_parameters: bool = True  # one set of parameters for all agents of a group; false: one for each
    # one set of critic's parameters for all agents of a group; false: one for each
    share_critic_parameters: bool = True
    agent_ids: bool = True  # append a one-hot id to observations, so that shared parameters can play different roles
    lr: float = 1e-3  # Adam's step size, before `lr_schedule`
    alpha_lr: float | None = None  # step size of the temperature; null: `lr`
    lr_schedule: Schedule = Schedule.constant  # how the step size changes over `experiment.schedule_frames`
    adam_eps: float = 1e-5  # the number in Adam's denominator that keeps it above zero
    max_grad_norm: float = 5.0  # gradients of each network are scaled down to this norm where theirs is greater
    gamma: float = 0.99  # discount: what a reward one step later counts, against 1 now
    n_step: int = 1  # rewards summed before a target bootstraps from a value
    tau: float = 0.005  # how far target critics move towards the critics in each update: 0 not at all, 1 all the way
    policy_delay: int = 1  # updates of the critics for each update of the actor
    alpha: float = 0.1  # the temperature, which weighs the policy's entropy, at the start
    learn_alpha: bool = True  # adapt the temperature so that the entropy reaches its target; false: it stays
    # entropy to reach with continuous actions; null: −1 for each action, where bounds are ±1
    target_entropy: float | None = None
    # entropy to reach with discrete actions, as a share of the largest that the legal ones allow
    discrete_entropy: float = 0.2
    sequence_length: int = 16  # steps a memory is unrolled in learning, after `burn_in`; unused without memory
    burn_in: int = 0  # steps before each sequence that only fill the memory and are not learned from

    def __post_init__(self) -> None:
        above_zero(self, "lr", "alpha_lr", "adam_eps", "max_grad_norm", "alpha")
        between_0_and_1(self, "gamma", "tau", "discrete_entropy")
        at_least(self, 1, "num_critics", "n_step", "policy_delay", "sequence_length")
        at_least(self, 0, "burn_in")


ISAC = SacConfig()
MASAC = SacConfig(critic_sees=CriticSees.auto)


@pytree
class SacState:
    """All that a group learns."""

    params: dict[str, PyTree] = learned()  # actor, critic, log_alpha
    target: PyTree = learned(copies="params.critic")
    optimiser: dict[str, PyTree]
    updates: Array
    coefficients: dict[str, Array]


def make_sac(config: SacConfig, spec: EnvSpec, group: str, context: Context) -> Algorithm:
    """SAC for one group of a task."""
    group_spec = spec.groups[group]
    action_spec, num_agents, axis = group_spec.action, group_spec.num_agents, context.device_axis
    if not isinstance(action_spec, (Continuous, Discrete)):
        raise ValueError(f"SAC needs continuous actions or one discrete choice, and group '{group}' acts otherwise")
    discrete = isinstance(action_spec, Discrete)
    distribution = make_distribution(action_spec)
    actor = make_network(
        context.model,
        name=f"{group}/actor",
        input_shape=group_spec.observation_shape,
        num_outputs=distribution.num_parameters,
        num_agents=num_agents,
        head_gain=0.01,
        share_parameters=config.share_parameters,
    )
    critics = make_critics(
        context.critic_model,
        spec,
        group,
        sees=config.critic_sees,
        action_size=0 if isinstance(action_spec, Discrete) else action_spec.size,
        num_outputs=action_spec.num_actions if isinstance(action_spec, Discrete) else 1,
        num_critics=config.num_critics,
        outputs=config.critic_outputs,
        share_parameters=config.share_critic_parameters,
    )
    require_memory_of_both(actor, critics)
    gradient = resolve_gradient(config.actor_gradient, spec, group)
    separately = gradient is ActorGradient.own and config.critic_sees is not CriticSees.own
    optimiser = make_optimiser(config)
    burn_in = config.burn_in if actor.recurrent else 0

    def init(key: Key) -> SacState:
        key_actor, key_critic = jax.random.split(key)
        params = {
            "actor": actor.init(key_actor),
            "critic": critics.init(key_critic),
            "log_alpha": jnp.float32(math.log(config.alpha)),
        }
        return SacState(
            params=params,
            target=params["critic"],
            optimiser={name: optimiser.init(part) for name, part in params.items()},
            updates=jnp.zeros((), jnp.int32),
            coefficients={"lr": jnp.float32(config.lr), "alpha_lr": jnp.float32(config.alpha_lr or config.lr)},
        )

    def act(state: SacState, timestep: TimeStep, carry: PyTree, key: Key, explore: bool) -> tuple[Array, dict, PyTree]:
        step = timestep.groups[group]
        parameters, next_carry = actor.apply(state.params["actor"], step.observation[None], carry, timestep.last[None])
        mask = step.action_mask
        raw = distribution.sample(parameters[0], mask, key) if explore else distribution.mode(parameters[0], mask)
        extras = {"carry": carry} if actor.recurrent else {}
        return distribution.to_action(raw), extras, next_carry

    # --------------------------------------------------------------------------------------------------- soft values

    def temperature(state: SacState) -> Array:
        """α; where it is not learned, as configured, even if the state was taken from a run that learned it."""
        return jnp.exp(state.params["log_alpha"] if config.learn_alpha else jnp.float32(math.log(config.alpha)))

    def soft_value(values: Array, parameters: Array, mask: Array | None, log_prob: Array | None, alpha: Array) -> Array:
        """E_π[min_k Q_k − α log π], exact for discrete actions: `[L, N, A]` of values `[K, L, N, A, n]`."""
        smallest = values.min(axis=0)
        if log_prob is not None:
            return smallest[..., 0] - alpha * log_prob
        log_probs = jax.nn.log_softmax(masked_logits(parameters, mask))
        return jnp.sum(jnp.exp(log_probs) * (smallest - alpha * log_probs), axis=-1)

    def draw(parameters: Array, mask: Array | None, key: Key) -> tuple[Array | None, Array | None]:
        """Actions and their log-probabilities, for continuous actions."""
        if discrete:
            return None, None
        raw = distribution.sample(parameters, mask, key)
        return distribution.to_action(raw), distribution.log_prob(parameters, mask, raw)

    def make_targets(state: SacState, steps: Transition, carry: PyTree, key: Key) -> Array:
        """Of the first L − n + 1 steps, `[.., N, A]`."""
        first, ends = first_and_last(steps, remembers=actor.recurrent)
        _, parameters = apply_with_successors(
            actor, state.params["actor"], first.observation, ends.next_observation, carry, first.reset
        )
        action, log_prob = draw(parameters, ends.next_action_mask, key)
        taken = None if discrete else first.action
        inputs = critics.inputs(first.observation, first.state, taken)
        next_inputs = critics.inputs(ends.next_observation, ends.next_state, action)
        values = critics.evaluate_successors(state.target, inputs, next_inputs, first.reset)
        alpha = temperature(state)
        next_value = soft_value(values, parameters, ends.next_action_mask, log_prob, alpha)
        last = jnp.broadcast_to(steps.last[..., None], steps.reward.shape)
        return n_step_targets(
            steps.reward, next_value, steps.terminated, last, gamma=config.gamma, num_steps=config.n_step
        )

    # -------------------------------------------------------------------------------------------------------- losses

    def critic_loss(params: PyTree, steps: Transition, target: Array, weights: Array) -> tuple[Array, Array]:
        """The loss, and how wrong each sequence's values were."""
        values = critics.evaluate(
            params,
            critics.inputs(steps.observation, steps.state, None if discrete else steps.action),
            steps.reset,
            burn_in,
        )
        learned = values[:, : len(target)]
        actions = steps.action[burn_in : burn_in + len(target)]
        chosen = jax.vmap(lambda v: take_action(v, actions))(learned) if discrete else learned[..., 0]
        error = chosen - target
        wrong = jnp.where(weights > 0, jnp.abs(error).mean(axis=0), 0.0).mean(axis=(0, 2))
        return sum(weighted_mean(jnp.square(e), weights) for e in error), wrong  # type: ignore[return-value]

    def actor_loss(
        params: PyTree, state: SacState, steps: Transition, carry: PyTree, weights: Array, alive: Array, key: Key
    ) -> tuple[Array, dict[str, Array]]:
        """The loss, the policy's mean entropy and by how much it is above the target; samples' importance does not
        matter to these."""
        parameters = apply_after(actor, params, steps.observation, carry, steps.reset, burn_in)
        mask = None if steps.action_mask is None else steps.action_mask[burn_in:]
        action, log_prob = draw(parameters, mask, key)

        def values_of(action: Array | None) -> Array:
            shown = None if action is None else jnp.concatenate([steps.action[:burn_in], action])
            inputs = critics.inputs(steps.observation, steps.state, shown)
            return critics.evaluate(state.params["critic"], inputs, steps.reset, burn_in)

        if separately and action is not None:
            values = own_values(lambda new: values_of(new)[..., 0], action, steps.action[burn_in:])[..., None]
        else:
            values = values_of(action)
        alpha = temperature(state)
        value = soft_value(values, parameters, mask, log_prob, alpha)
        entropy = distribution.entropy(parameters, mask, None) if log_prob is None else -log_prob
        surplus = entropy - target_entropy(config, action_spec, mask)
        kept = len(weights)
        about = {"entropy": weighted_mean(entropy[:kept], alive), "surplus": weighted_mean(surplus[:kept], alive)}
        return -weighted_mean(value[:kept], weights), about

    def update(state: SacState, batch: Batch, key: Key, progress: Array) -> tuple[SacState, dict[str, Array], Array]:
        steps = batch.transitions[group]
        key_target, key_actor = jax.random.split(key)
        carry = jax.tree.map(lambda x: x[0], steps.extras["carry"]) if actor.recurrent else ()
        target = jax.lax.stop_gradient(make_targets(state, steps, carry, key_target)[burn_in:])
        steps, _ = first_and_last(steps, remembers=actor.recurrent)
        alive = steps.alive[burn_in : burn_in + len(target)]
        weights = alive * (1.0 if batch.weight is None else batch.weight[:, None])
        updates = state.updates + 1
        delay = config.policy_delay

        def policy_gradient() -> tuple[tuple[Array, dict[str, Array]], PyTree]:
            return jax.value_and_grad(actor_loss, has_aux=True)(
                state.params["actor"], state, steps, carry, weights, alive, key_actor
            )

        (q_loss, wrong), critic_grads = jax.value_and_grad(critic_loss, has_aux=True)(
            state.params["critic"], steps, target, weights
        )
        (policy_loss, about), actor_grads = now_and_then(updates, delay, policy_gradient)
        means = mean_over_living(
            {
                "critic": critic_grads,
                "actor": actor_grads,
                "metrics": {"q_loss": q_loss, "q_value": weighted_mean(target, weights)},
                # Between delayed updates these are zero: scaled, their means over updates are those of the others.
                "delayed": {"policy_loss": policy_loss * delay, "entropy": about["entropy"] * delay},
                "surplus": about["surplus"],
            },
            alive,
            axis,
        )
        networks = {name: state.params[name] for name in ("actor", "critic")}
        grads, users_metrics = add_users_loss(
            {name: means[name] for name in networks}, context, group, networks, batch.transitions[group]
        )
        lr = state.coefficients["lr"] * factor(config.lr_schedule, progress)
        state = descend(optimiser, state, "critic", grads["critic"], lr)
        state = dataclasses.replace(
            state, target=move_towards(state.target, state.params["critic"], config.tau), updates=updates
        )

        def improve(state: SacState) -> SacState:
            state = descend(optimiser, state, "actor", grads["actor"], lr)
            if not config.learn_alpha:
                return state
            # d/d log α of −log α (log π + H̄), where −log π is the entropy
            alpha_lr = state.coefficients["alpha_lr"] * factor(config.lr_schedule, progress)
            return descend(optimiser, state, "log_alpha", means["surplus"], alpha_lr)

        state = now_and_then(updates, delay, partial(improve, state), otherwise=lambda: state)
        alpha = temperature(state)
        return state, {**means["metrics"], **means["delayed"], "alpha": alpha, "lr": lr, **users_metrics}, wrong

    return Algorithm(
        init=init,
        initial_carry=actor.initial_carry,
        act=act,
        update=update,
        sequence_length=burn_in + (config.sequence_length if actor.recurrent else 1) + config.n_step - 1,
    )


def target_entropy(config: SacConfig, action: Discrete | Continuous, mask: Array | None) -> Array | float:
    """−(dimension), as in the paper, whose bounds are ±1: in other units an entropy is another by log(units).

    Of discrete actions a share of the largest, `[…]` where a mask leaves agents fewer of them: who has no choice has no
    entropy either, so that a target for all alike may be out of reach, and the temperature would grow without end.
    """
    if isinstance(action, Discrete) and mask is not None:
        return config.discrete_entropy * jnp.log(jnp.maximum(mask.sum(-1), 1))
    if isinstance(action, Discrete):
        return config.discrete_entropy * math.log(action.num_actions)
    if config.target_entropy is not None:
        return config.target_entropy
    return sum(math.log((high - low) / 2) - 1.0 for low, high in zip(action.low, action.high, strict=True))
