"""Deterministic policy gradients for teams: IDDPG and MADDPG (Lillicrap et al., 2016; Lowe et al., 2017), and with twin
critics ITD3 and MATD3 (Fujimoto et al., 2018).

Each agent has a policy a = μ_θ(o) in the actions' bounds. Critics learn its value, and it follows their slope:

    y = r + γ min_k Q'_k(s', μ'(o') + ε),   L(φ) = Σ_k E[(Q_k(s, a) − y)²],   L(θ) = −E[Q_1(s, μ(o))]

The names differ in what critics see (each agent's own observation and action, or everyone's), and in TD3's three
fields: two critics of which the smaller counts, noise ε on the target's actions, and a policy that moves less often.

`actor_gradient` says whose actions the actor's loss takes from the policy: with `own`, as in the paper, agent i's value
is that of its own new action beside the others' actions as they were; with `all`, everyone's are new.

Memory as in soft actor-critic: actors go on from stored carries, critics from empty ones, after `burn_in` steps.

Differences from the papers:
- Exploration is Gaussian noise whose deviation falls over training, in units of half the actions' range.
- Time limits bootstrap from the true final observation; dead agents' steps do not count.
- Policy and critics step at once, each from the others as they were: the devices meet once in an update.
- A centralised critic has an output for each agent: rewards need not be shared.
- A critic with memory remembers the actions that it is shown: in the actor's loss, the policy's new ones.
"""

from __future__ import annotations

import dataclasses
import enum
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
from covey.algorithms.critics import CriticOutputs, CriticSees, make_critics, require_memory_of_both
from covey.checks import above_zero, at_least, between_0_and_1
from covey.networks.network import apply_after, apply_with_successors, make_network
from covey.ops import random
from covey.ops.exploration import anneal
from covey.ops.losses import weighted_mean
from covey.ops.schedules import Schedule, factor
from covey.ops.targets import first_and_last, move_towards, n_step_targets
from covey.types import Algorithm, Array, Batch, Continuous, EnvSpec, Key, PyTree, TimeStep, Transition, pytree


class ActorGradient(enum.Enum):
    own = "the agent's own action is new, the others' are as they were"
    all = "all agents' actions are new"


@dataclasses.dataclass(frozen=True, kw_only=True)
class DdpgConfig:
    """Fields of `iddpg`, `maddpg`, `itd3` and `matd3`."""

    critic_sees: CriticSees = CriticSees.own
    actor_gradient: ActorGradient = ActorGradient.own
    critic_outputs: CriticOutputs = CriticOutputs.per_agent
    num_critics: int = 1
    share_parameters: bool = True  # between the actors of a group
    share_critic_parameters: bool = True
    agent_ids: bool = True
    lr: float = 1e-3
    lr_schedule: Schedule = Schedule.constant
    adam_eps: float = 1e-5
    max_grad_norm: float = 5.0  # of each network
    gamma: float = 0.99
    n_step: int = 1
    tau: float = 0.005  # how far target networks move in each update
    target_actor: bool = True  # targets' actions are by a target network too, or by the policy as it is
    policy_delay: int = 1  # updates of the critics for each of the actor
    noise_start: float = 0.5  # the deviation of exploration, of half the actions' range
    noise_end: float = 0.1
    noise_fraction: float = 0.5  # of the frames, over which it falls
    target_noise: float = 0.0
    target_noise_clip: float = 0.5
    sequence_length: int = 16  # steps a memory is unrolled in learning, besides `burn_in`
    burn_in: int = 0

    def __post_init__(self) -> None:
        above_zero(self, "lr", "adam_eps", "max_grad_norm")
        between_0_and_1(self, "gamma", "tau", "noise_fraction")
        at_least(self, 1, "num_critics", "n_step", "policy_delay", "sequence_length")
        at_least(self, 0, "noise_start", "noise_end", "target_noise", "target_noise_clip", "burn_in")


TD3 = {"num_critics": 2, "policy_delay": 2, "target_noise": 0.2}
IDDPG = DdpgConfig()
MADDPG = DdpgConfig(critic_sees=CriticSees.auto)
ITD3 = dataclasses.replace(IDDPG, **TD3)  # type: ignore[arg-type]
MATD3 = dataclasses.replace(MADDPG, **TD3)  # type: ignore[arg-type]


@pytree
class DdpgState:
    """All that a group learns; `noise` is the deviation of exploration in use."""

    params: dict[str, PyTree]  # actor, critic
    target: dict[str, PyTree]
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
    centralised = config.critic_sees is not CriticSees.own
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
        action = to_action(apply_after(actor, params, steps.observation, carry, steps.reset, burn_in))
        if centralised and config.actor_gradient is ActorGradient.own:

            def own_value(agent: Array) -> Array:
                mine = (jnp.arange(num_agents) == agent)[:, None]
                return value_of(state, steps, jnp.where(mine, action, steps.action[burn_in:]))[..., agent]

            value = jnp.moveaxis(jax.vmap(own_value)(jnp.arange(num_agents)), 0, -1)
        else:
            value = value_of(state, steps, action)
        return -weighted_mean(value[: len(weights)], weights)

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
