"""Policies as bundles: what an on-policy algorithm asks of a policy and its critic, whatever networks they use.

`make_independent_policy` is the usual one: each agent's action depends on its own observation alone. One that decodes
actions agent by agent, each agent seeing the earlier choices, would offer the same functions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial

import jax
import jax.numpy as jnp

from covey.algorithms.base import Context
from covey.algorithms.critics import CriticOutputs, CriticSees, seen_shape
from covey.networks.network import apply_with_true_successors, make_network, rescale_outputs
from covey.ops.distributions import Distribution, make_distribution
from covey.types import Array, EnvSpec, Key, Network, Observation, PyTree, pytree


@pytree
class Inputs:
    """What a policy and its critic are shown.

    observation   [T, B, A, …]
    critic_input  [T, B, A, …]  or [T, B, …] for a critic that sees more than one agent's observation
    action_mask   [T, B, A, n]  legal actions, or None where all are
    reset         [T, B]        the observation is the first of an episode, so memory starts empty
    """

    observation: Observation
    critic_input: Observation
    action_mask: Array | None
    reset: Array


@pytree
class Sampled:
    """An action, its log-probability and the critic's output: `raw_action [T, B, A, …]`, the others `[T, B, A]`."""

    raw_action: Array
    log_prob: Array
    output: Array


@pytree
class Evaluated:
    """Of actions that were taken: log-probability, entropy of the policy and the critic's output, all `[T, B, A]`."""

    log_prob: Array
    entropy: Array
    output: Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class TeamPolicy:
    """The policy of a group and its critic, as pure functions. Actions are raw, as in `ops.distributions`.

    init(key) -> params                                             "actor" and "critic", each with its own gradient
    initial_carry(num_envs) -> carry
    sample(params, inputs, carry, key, explore) -> (Sampled, carry)  without `explore`, the most likely action
    evaluate(params, inputs, carry, raw_action, noise) -> Evaluated
    evaluate_critic(params, inputs, carry) -> [T, B, A]              the critic's outputs alone
    evaluate_with_successors(params, inputs, successors, carry, cut) -> ([T, B, A], [T, B, A])
                                                                    the critic's outputs at each step and at its true
                                                                    successor; where none of the episodes was `cut`,
                                                                    those of the next step, except for the last step's
    rescale_critic(params, scale, shift) -> params                  with critic's outputs `scale · outputs + shift`
    to_action(raw_action) -> action
    noise_size                                                      normal numbers that an estimate of the entropy
                                                                    takes per agent; 0: the entropy is exact
    recurrent
    """

    init: Callable[[Key], dict[str, PyTree]]
    initial_carry: Callable[[int], PyTree]
    sample: Callable[[PyTree, Inputs, PyTree, Key, bool], tuple[Sampled, PyTree]]
    evaluate: Callable[[PyTree, Inputs, PyTree, Array, Array | None], Evaluated]
    evaluate_critic: Callable[[PyTree, Inputs, PyTree], Array]
    evaluate_with_successors: Callable[[PyTree, Inputs, Inputs, PyTree, Array], tuple[Array, Array]]
    rescale_critic: Callable[[dict[str, PyTree], Array, Array], dict[str, PyTree]]
    to_action: Callable[[Array], Array]
    noise_size: int
    recurrent: bool


# ------------------------------------------------------------------------------------------- independent agents


@dataclasses.dataclass(frozen=True, kw_only=True)
class IndependentPolicy:
    """What the functions below share.

    actor         from each agent's observation to the parameters of its distribution `[T, B, A, n]`
    critic        to `[T, B, A, 1]`, or if it is the team's, to `[T, B, 1]` or `[T, B, A]`
    team_critic   one critic with one set of parameters gives all agents' values from what it sees of several
    """

    actor: Network
    critic: Network
    distribution: Distribution
    num_agents: int
    team_critic: bool


def init(policy: IndependentPolicy, key: Key) -> dict[str, PyTree]:
    """Fresh parameters."""
    key_actor, key_critic = jax.random.split(key)
    return {"actor": policy.actor.init(key_actor), "critic": policy.critic.init(key_critic)}


def initial_carry(policy: IndependentPolicy, num_envs: int) -> PyTree:
    """The memory that an episode begins with; empty without memory."""
    return {"actor": policy.actor.initial_carry(num_envs), "critic": policy.critic.initial_carry(num_envs)}


def by_agent(policy: IndependentPolicy, outputs: Array) -> Array:
    """The critic's outputs as `[T, B, A]`."""
    if policy.team_critic:
        return jnp.broadcast_to(outputs, (*outputs.shape[:2], policy.num_agents))
    return outputs[..., 0]


def run_critic(policy: IndependentPolicy, params: PyTree, inputs: Inputs, carry: PyTree) -> tuple[Array, PyTree]:
    """The critic's outputs `[T, B, A]` and its next carry."""
    outputs, carry = policy.critic.apply(params["critic"], inputs.critic_input, carry["critic"], inputs.reset)
    return by_agent(policy, outputs), carry


def sample(
    policy: IndependentPolicy, params: PyTree, inputs: Inputs, carry: PyTree, key: Key, explore: bool
) -> tuple[Sampled, PyTree]:
    """Actions, and the next carry. Without `explore`, the most likely actions."""
    parameters, actor_carry = policy.actor.apply(params["actor"], inputs.observation, carry["actor"], inputs.reset)
    output, critic_carry = run_critic(policy, params, inputs, carry)
    distribution, mask = policy.distribution, inputs.action_mask
    raw = distribution.sample(parameters, mask, key) if explore else distribution.mode(parameters, mask)
    sampled = Sampled(raw_action=raw, log_prob=distribution.log_prob(parameters, mask, raw), output=output)
    return sampled, {"actor": actor_carry, "critic": critic_carry}


def evaluate(
    policy: IndependentPolicy, params: PyTree, inputs: Inputs, carry: PyTree, raw_action: Array, noise: Array | None
) -> Evaluated:
    """Of actions that were taken, from the carry before the first."""
    parameters, _ = policy.actor.apply(params["actor"], inputs.observation, carry["actor"], inputs.reset)
    return Evaluated(
        log_prob=policy.distribution.log_prob(parameters, inputs.action_mask, raw_action),
        entropy=policy.distribution.entropy(parameters, inputs.action_mask, noise),
        output=run_critic(policy, params, inputs, carry)[0],
    )


def evaluate_critic(policy: IndependentPolicy, params: PyTree, inputs: Inputs, carry: PyTree) -> Array:
    """The critic's outputs `[T, B, A]`."""
    return run_critic(policy, params, inputs, carry)[0]


def evaluate_with_successors(
    policy: IndependentPolicy, params: PyTree, inputs: Inputs, successors: Inputs, carry: PyTree, cut: Array
) -> tuple[Array, Array]:
    """The critic's outputs `[T, B, A]` at each step, and at its true successor."""
    outputs, next_outputs = apply_with_true_successors(
        policy.critic,
        params["critic"],
        inputs.critic_input,
        successors.critic_input,
        carry["critic"],
        inputs.reset,
        cut,
    )
    return by_agent(policy, outputs), by_agent(policy, next_outputs)


def rescale_critic(params: dict[str, PyTree], scale: Array, shift: Array) -> dict[str, PyTree]:
    """Parameters with which the critic's outputs are `scale · outputs + shift`."""
    return params | {"critic": rescale_outputs(params["critic"], scale, shift)}


def make_independent_policy(
    spec: EnvSpec,
    group: str,
    context: Context,
    *,
    sees: CriticSees,
    others: Sequence[str] = (),
    outputs: CriticOutputs,
    share_parameters: bool,
    share_critic_parameters: bool,
    initial_scale: float = 1.0,
) -> TeamPolicy:
    """An actor that maps each agent's observation to a distribution over its actions, and a critic that `sees`.

    A critic of the joint observation also sees that of the `others`, groups of the same team. Continuous actions start
    with the deviation `initial_scale`, before tanh.
    """
    group_spec = spec.groups[group]
    distribution = make_distribution(group_spec.action, initial_scale)
    centralised = sees is not CriticSees.own
    one_output = not centralised or outputs is CriticOutputs.one or not share_critic_parameters
    actor = make_network(
        context.model,
        name=f"{group}/actor",
        input_shape=group_spec.observation_shape,
        num_outputs=distribution.num_parameters,
        num_agents=group_spec.num_agents,
        head_gain=0.01,
        share_parameters=share_parameters,
    )
    critic = make_network(
        context.critic_model,
        name=f"{group}/critic",
        input_shape=seen_shape(sees, spec, group, others),
        num_outputs=1 if one_output else group_spec.num_agents,
        num_agents=group_spec.num_agents,
        head_gain=1.0,
        centralised=centralised,
        share_parameters=share_critic_parameters,
    )
    policy = IndependentPolicy(
        actor=actor,
        critic=critic,
        distribution=distribution,
        num_agents=group_spec.num_agents,
        team_critic=centralised and share_critic_parameters,
    )
    return TeamPolicy(
        init=partial(init, policy),
        initial_carry=partial(initial_carry, policy),
        sample=partial(sample, policy),
        evaluate=partial(evaluate, policy),
        evaluate_critic=partial(evaluate_critic, policy),
        evaluate_with_successors=partial(evaluate_with_successors, policy),
        rescale_critic=rescale_critic,
        to_action=distribution.to_action,
        noise_size=distribution.noise_size,
        recurrent=actor.recurrent or critic.recurrent,
    )
