"""Deterministic policy gradients on the probes, each with its number."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from covey.algorithms.ddpg import IDDPG, ITD3, MATD3, saturation
from covey.envs.base import next_step
from covey.envs.probes import GROUP, ContinuousTarget, ProbeConfig
from covey.envs.wrappers import AgentIds, TimeLimit

slow = pytest.mark.slow
GAMMA = 0.8


class Ceaseless(ContinuousTarget):
    """Reward 1 whatever is done, until the time limit cuts."""

    def step(self, state, action, key):
        return state, next_step({GROUP: state}, {GROUP: jnp.ones(())}, terminated=jnp.zeros((), bool))


@slow
@pytest.mark.parametrize(
    ("algorithm", "model", "n_step"),
    [("matd3", "mlp", 1), ("matd3", "mlp", 3), ("matd3", "gru", 1), ("iddpg", "mlp", 1)],
)
def test_a_time_limit_is_no_end(fresh, algorithm, model, n_step):
    """Worth 1 / (1 − γ); taking the cut for a termination would give at most 3.4 with five steps left."""
    env = AgentIds(TimeLimit(Ceaseless(ProbeConfig(time_limit=5)), 5))
    fields = (f"algorithm.gamma={GAMMA}", f"algorithm.n_step={n_step}")
    team = fresh("probe/target", *fields, algorithm=algorithm, model=model, iterations=120, env=env)
    assert team.metrics["agents/q_value"][-1] == pytest.approx(1 / (1 - GAMMA), rel=0.03)


@pytest.mark.parametrize(
    "algorithm", ["maddpg", *(pytest.param(name, marks=slow) for name in ("iddpg", "itd3", "matd3"))]
)
def test_the_best_action_is_found(trained, algorithm):
    assert trained("probe/target", algorithm=algorithm, iterations=100).returns()["agents"] > 0.97


@slow
def test_the_gradient_of_all_actions_learns_too(trained):
    team = trained("probe/target", "algorithm.actor_gradient=all", algorithm="maddpg", iterations=100)
    assert team.returns()["agents"] > 0.97


def test_actions_stay_within_bounds(trained):
    team = trained("probe/target", "algorithm.noise_start=5", algorithm="iddpg", iterations=1)
    actions = team.transitions()["agents"].action
    assert actions.min() >= -2.0 and actions.max() <= 2.0
    assert np.mean(np.abs(actions) == 2.0) > 0.3


def test_saturation_by_hand():
    outputs = jnp.array([[0.0, 2.9], [5.0, -4.0]])
    np.testing.assert_allclose(saturation(outputs), [0.0, 2.0**2 + 1.0**2])


@pytest.mark.parametrize(("coef", "escapes"), [(0.1, True), (0.0, False)])
def test_a_saturated_actor_comes_back(fresh, coef, escapes):
    """Every output is 10, where tanh is 1 to the last bit: its gradient is zero, and only the penalty leads back."""
    team = fresh("probe/target", f"algorithm.saturation_coef={coef}", algorithm="iddpg", iterations=100)
    assert team.returns()["agents"] > 0.95
    state = team.loop.init(jax.random.key(0))
    saturated = dataclasses.replace(state.learner["agents"], params=with_bias(state.learner["agents"].params, 10.0))
    state, _ = team.loop.advance(dataclasses.replace(state, learner={"agents": saturated}), jnp.int32(100))
    returns = dataclasses.replace(team, state=state).returns()["agents"]
    assert returns > 0.9 if escapes else returns < -2.0  # at the bound: 1 − E[(2 − o)²] = −3.3


def with_bias(params, bias):
    head = params["actor"]["head"] | {"bias": jnp.full_like(params["actor"]["head"]["bias"], bias)}
    return params | {"actor": params["actor"] | {"head": head}}


def test_td3_is_three_fields():
    changed = {f.name for f in dataclasses.fields(IDDPG) if getattr(IDDPG, f.name) != getattr(ITD3, f.name)}
    assert changed == {"num_critics", "policy_delay", "target_noise"}
    assert MATD3.critic_sees is not ITD3.critic_sees


@pytest.mark.parametrize(
    "fields", [{"lr": 0}, {"noise_start": -1}, {"saturation_coef": -1}, {"num_critics": 0}, {"tau": 2.0}]
)
def test_impossible_fields_are_refused(fields):
    with pytest.raises(ValueError):
        dataclasses.replace(IDDPG, **fields)


def test_discrete_actions_are_refused(fresh):
    with pytest.raises(ValueError, match="continuous actions"):
        fresh("probe/copy", algorithm="iddpg", iterations=0)
