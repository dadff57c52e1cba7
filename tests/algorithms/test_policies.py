"""Policies as bundles: what is sampled is what is evaluated, for every kind of action and critic."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from stubs import GROUP, context

from covey.algorithms.critics import CriticOutputs, CriticSees
from covey.algorithms.policies import Inputs, TeamPolicy, make_independent_policy
from covey.types import ActionSpec, Continuous, Discrete, EnvSpec, GroupSpec, MultiDiscrete

STEPS, ENVS, AGENTS, SIZE = 3, 4, 2, 5
ACTIONS: dict[str, ActionSpec] = {
    "discrete": Discrete(3),
    "multi-discrete": MultiDiscrete((2, 3)),
    "continuous": Continuous(low=(-1.0, 0.0), high=(1.0, 4.0)),
}


def make(action: ActionSpec, sees: CriticSees, outputs: CriticOutputs = CriticOutputs.per_agent) -> TeamPolicy:
    groups = {GROUP: GroupSpec(num_agents=AGENTS, observation_shape=(SIZE,), action=action)}
    return make_independent_policy(
        EnvSpec(groups=groups, time_limit=10),
        GROUP,
        context(),
        sees=sees,
        outputs=outputs,
        share_parameters=True,
        share_critic_parameters=True,
    )


def inputs(sees: CriticSees, mask: jax.Array | None = None) -> Inputs:
    observation = jax.random.normal(jax.random.key(1), (STEPS, ENVS, AGENTS, SIZE))
    joint = observation.reshape(STEPS, ENVS, -1)
    return Inputs(
        observation=observation,
        critic_input=observation if sees is CriticSees.own else joint,
        action_mask=mask,
        reset=jnp.zeros((STEPS, ENVS), bool),
    )


@pytest.mark.parametrize("sees", [CriticSees.own, CriticSees.joint])
@pytest.mark.parametrize("kind", ACTIONS)
def test_evaluating_what_was_sampled(kind: str, sees: CriticSees) -> None:
    policy, shown = make(ACTIONS[kind], sees), inputs(sees)
    params, carry = policy.init(jax.random.key(0)), policy.initial_carry(ENVS)
    assert params.keys() == {"actor", "critic"} and not policy.recurrent
    sampled, _ = policy.sample(params, shown, carry, jax.random.key(2), True)
    noise = jnp.zeros((STEPS, ENVS, AGENTS, policy.noise_size)) if policy.noise_size else None
    evaluated = policy.evaluate(params, shown, carry, sampled.raw_action, noise)
    assert sampled.log_prob.shape == evaluated.entropy.shape == evaluated.output.shape == (STEPS, ENVS, AGENTS)
    np.testing.assert_allclose(evaluated.log_prob, sampled.log_prob, rtol=1e-5)
    np.testing.assert_allclose(evaluated.output, sampled.output, rtol=1e-5)
    np.testing.assert_allclose(policy.evaluate_critic(params, shown, carry), sampled.output, rtol=1e-5)


@pytest.mark.parametrize("kind", ACTIONS)
def test_without_exploring_nothing_is_more_likely(kind: str) -> None:
    policy, shown = make(ACTIONS[kind], CriticSees.own), inputs(CriticSees.own)
    params, carry = policy.init(jax.random.key(0)), policy.initial_carry(ENVS)
    best, _ = policy.sample(params, shown, carry, jax.random.key(2), False)
    again, _ = policy.sample(params, shown, carry, jax.random.key(3), False)
    np.testing.assert_array_equal(best.raw_action, again.raw_action)
    if kind != "continuous":  # there, the mode is that of the normal before it is squashed
        drawn, _ = policy.sample(params, shown, carry, jax.random.key(2), True)
        assert (best.log_prob >= drawn.log_prob).all()


def test_only_legal_actions_are_sampled() -> None:
    mask = jnp.zeros((STEPS, ENVS, AGENTS, 3), bool).at[..., 1].set(True)
    policy = make(ACTIONS["discrete"], CriticSees.own)
    params = policy.init(jax.random.key(0))
    shown, carry = inputs(CriticSees.own, mask), policy.initial_carry(ENVS)
    for explore in (True, False):
        sampled, _ = policy.sample(params, shown, carry, jax.random.key(2), explore)
        assert (sampled.raw_action == 1).all()
        np.testing.assert_allclose(sampled.log_prob, 0.0, atol=1e-6)


def test_one_output_is_everybodys() -> None:
    policy = make(ACTIONS["discrete"], CriticSees.joint, CriticOutputs.one)
    params, carry = policy.init(jax.random.key(0)), policy.initial_carry(ENVS)
    output = policy.evaluate_critic(params, inputs(CriticSees.joint), carry)
    assert output.shape == (STEPS, ENVS, AGENTS)
    np.testing.assert_array_equal(output[..., 0], output[..., 1])


@pytest.mark.parametrize("sees", [CriticSees.own, CriticSees.joint])
@pytest.mark.parametrize("outputs", CriticOutputs)
def test_the_critic_in_other_units_and_at_successors(sees: CriticSees, outputs: CriticOutputs) -> None:
    policy, shown = make(ACTIONS["discrete"], sees, outputs), inputs(sees)
    params, carry = policy.init(jax.random.key(0)), policy.initial_carry(ENVS)
    before = policy.evaluate_critic(params, shown, carry)
    rescaled = policy.rescale_critic(params, jnp.float32(2.0), jnp.float32(7.0))
    np.testing.assert_allclose(policy.evaluate_critic(rescaled, shown, carry), 2.0 * before + 7.0, rtol=1e-5)
    jax.tree.map(np.testing.assert_array_equal, rescaled["actor"], params["actor"])
    successors = dataclasses.replace(shown, critic_input=-shown.critic_input)
    now, following = policy.evaluate_with_successors(params, shown, successors, carry, jnp.bool_(True))
    np.testing.assert_allclose(now, before, rtol=1e-5)
    np.testing.assert_allclose(following, policy.evaluate_critic(params, successors, carry), rtol=1e-5)
    assert following.shape == (STEPS, ENVS, AGENTS)
