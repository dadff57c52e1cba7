"""What PPO and IMPALA share; what critics are shown of one step is tested with PPO."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from stubs import GROUP, context, told_policy, transitions

from covey.algorithms.base import make_optimiser
from covey.algorithms.critics import CriticSees
from covey.algorithms.on_policy import (
    OnPolicy,
    OnPolicyActing,
    OnPolicyConfig,
    collected_steps,
    init_input_moments,
    make_bundle,
    observe_steps,
    observe_successors,
    update_input_moments,
)
from covey.algorithms.policies import Inputs
from covey.ops.normalisation import Moments
from covey.types import Batch, Continuous, Discrete, EnvSpec, GroupSpec, Transition


def told(sees: CriticSees, **fields: Any) -> OnPolicy:
    """For two agents that see one number each, in a team with one that sees two."""
    config = OnPolicyConfig(**fields)
    groups = {
        GROUP: GroupSpec(num_agents=2, observation_shape=(1,), action=Discrete(2)),
        "other": GroupSpec(num_agents=1, observation_shape=(2,), action=Discrete(2)),
    }
    return OnPolicy(
        config=config,
        spec=EnvSpec(groups=groups, time_limit=10, state_shape=(1,)),
        group=GROUP,
        context=context(),
        policy=told_policy(),
        optimiser=make_optimiser(config),
        sees=sees,
        others=("other",) if sees is CriticSees.joint else (),
    )


def test_actions_start_with_the_deviation_that_is_asked_for() -> None:
    groups = {GROUP: GroupSpec(num_agents=2, observation_shape=(3,), action=Continuous(low=(-1.0,), high=(1.0,)))}
    spec = EnvSpec(groups=groups, time_limit=10)
    for scale in (0.2, 1.0):
        op = make_bundle(OnPolicy, OnPolicyConfig(initial_scale=scale), spec, GROUP, context())
        seen = jnp.zeros((1, 4000, 2, 3))
        inputs = Inputs(observation=seen, critic_input=seen, action_mask=None, reset=jnp.zeros((1, 4000), bool))
        params, carry = op.policy.init(jax.random.key(0)), op.policy.initial_carry(4000)
        sampled, _ = op.policy.sample(params, inputs, carry, jax.random.key(1), True)
        assert float(sampled.raw_action.std()) == pytest.approx(scale, rel=0.05)
    with pytest.raises(ValueError, match=r"initial_scale must be above 0\.01, not 0\.01"):
        OnPolicyConfig(initial_scale=0.01)


def steps() -> dict[str, Transition]:
    """One step of one environment, the last of its episode; the second agent died before."""
    last = jnp.ones((1, 1), bool)
    fields = {
        "last": last,
        "reset": last,
        "state": jnp.array([[[7.0]]]),
        "next_state": jnp.array([[[8.0]]]),
        "alive": [[[True, False]]],
        "extras": {"raw_action": jnp.array([[[1, 0]]]), "log_prob": jnp.array([[[-0.5, -0.7]]])},
    }
    own = {"observation": jnp.array([[[[1.0], [2.0]]]]), "next_observation": jnp.array([[[[3.0], [4.0]]]])}
    other = {"observation": jnp.array([[[[5.0, 6.0]]]]), "next_observation": jnp.array([[[[-5.0, -6.0]]]])}
    return {
        GROUP: transitions([[[1.0, 1.0]]], **fields, **own),
        "other": transitions([[[1.0]]], last=last, **other),
    }


def acting_with(op: OnPolicy) -> OnPolicyActing:
    return OnPolicyActing(params=op.policy.init(jax.random.key(0)), **init_input_moments(op))


@pytest.mark.parametrize(
    ("sees", "now", "following"),
    [
        (CriticSees.own, [[1.0], [2.0]], [[3.0], [4.0]]),
        (CriticSees.joint, [1.0, 2.0, 5.0, 6.0], [3.0, 4.0, -5.0, -6.0]),
        (CriticSees.state, [7.0], [8.0]),
    ],
)
def test_steps_and_their_successors(sees: CriticSees, now: Any, following: Any) -> None:
    """At the successor, an episode that ended has its memory still."""
    op, by_group = told(sees), steps()
    acting, own = acting_with(op), by_group[GROUP]
    inputs = observe_steps(op, acting, by_group, own.state, own.reset)
    successors = observe_successors(op, acting, by_group, own.next_state, own.last)
    np.testing.assert_array_equal(inputs.critic_input[0, 0], now)
    np.testing.assert_array_equal(successors.critic_input[0, 0], following)
    np.testing.assert_array_equal(inputs.observation[0, 0], [[1.0], [2.0]])
    assert inputs.reset.all() and not successors.reset.any()


def test_samples_begin_with_what_was_done() -> None:
    op = told(CriticSees.own)
    collected = collected_steps(op, acting_with(op), Batch(transitions=steps()), jax.random.key(0))
    np.testing.assert_array_equal(collected.raw_action, [[[1, 0]]])
    np.testing.assert_array_equal(collected.log_prob, jnp.array([[[-0.5, -0.7]]]))
    np.testing.assert_array_equal(collected.weight, [[[2.0, 0.0]]])
    assert collected.noise is None


@pytest.mark.parametrize("normalised", [True, False])
def test_moments_are_of_the_living_where_they_are_asked_for(normalised: bool) -> None:
    op = told(CriticSees.joint, observation_normalisation=normalised)
    before = acting_with(op)
    after = update_input_moments(op, before, steps(), None)
    if not normalised:
        assert after is before
        return
    assert isinstance(after.observation_moments, Moments)
    assert float(after.observation_moments.weight) == 1.0 and float(after.observation_moments.mean[0]) == 1.0
    np.testing.assert_array_equal(after.others_moments["other"].mean, [5.0, 6.0])
    assert float(after.state_moments.mean[0]) == 7.0
    assert dataclasses.asdict(before)["params"] == dataclasses.asdict(after)["params"]
