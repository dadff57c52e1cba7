"""Q-learning on the probes, each with its number; mixers; and targets that respect masks, borders and the dead."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from covey.algorithms.qlearning import IQL, QMIX, VDN, _make_mixer
from covey.networks.mixing import make_monotonic_mixer
from covey.networks.network import make_model, make_network

slow = pytest.mark.slow
algorithms = pytest.mark.parametrize("algorithm", ["vdn", *(pytest.param(n, marks=slow) for n in ("iql", "qmix"))])
GAMMA = 0.8
DISCOUNT = f"algorithm.gamma={GAMMA}"


def q_value(team) -> float:
    """The mean of the values learned, at the end of training."""
    return float(team.metrics["agents/q_value"][-1])


@pytest.mark.parametrize(
    ("algorithm", "model"),
    [("qmix", "mlp"), *(pytest.param(*pair, marks=slow) for pair in (("iql", "gru"), ("iql", "mlp"), ("vdn", "gru")))],
)
def test_a_time_limit_is_no_end(trained, algorithm, model):
    """Worth 1 / (1 − γ); taking the cut for a termination would give at most 3.4 with five steps left."""
    team = trained("probe/truncation", DISCOUNT, "task.time_limit=5", algorithm=algorithm, model=model, iterations=120)
    assert q_value(team) == pytest.approx(1 / (1 - GAMMA), rel=0.03)


@pytest.mark.parametrize("n_step", [3, pytest.param(1, marks=slow)])
def test_a_delayed_reward_is_discounted(trained, n_step):
    """Half of the steps are worth γ, half 1."""
    team = trained("probe/delayed", DISCOUNT, f"algorithm.n_step={n_step}", algorithm="iql", iterations=80)
    assert q_value(team) == pytest.approx((1 + GAMMA) / 2, abs=0.05)


@algorithms
def test_the_best_action_is_found(trained, algorithm):
    returns = trained("probe/copy", DISCOUNT, algorithm=algorithm, iterations=60).returns()
    assert returns["agents"] == pytest.approx(1.0, abs=0.01)


def test_illegal_actions_are_never_taken_nor_believed(trained):
    team = trained("probe/masked", DISCOUNT, algorithm="iql", iterations=60)
    played = team.transitions()["agents"]
    legal = np.take_along_axis(played.action_mask, played.action[..., None], -1)
    assert legal.all()
    assert team.returns()["agents"] == pytest.approx(1.0, abs=0.01)


def test_the_dead_earn_nothing(trained):
    """Of two agents one earns 1 in two steps and one in four: the team 1, 1, ½, ½, as it is reported."""
    team = trained("probe/death", DISCOUNT, "task.num_agents=2", algorithm="vdn", iterations=80)
    values = [0.5]
    for reward in (0.5, 1.0, 1.0):
        values.append(reward + GAMMA * values[-1])
    assert q_value(team) == pytest.approx(np.mean(values), abs=0.05)
    assert team.returns()["agents"] == pytest.approx(3.0)


@slow
def test_memory_is_needed_and_used(trained):
    team = trained("probe/memory", algorithm="iql", model="gru", iterations=400)
    assert team.returns()["agents"] == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize(
    "extra", [("buffer.prioritised=true",), pytest.param(("algorithm.target_interval=20",), marks=slow)]
)
def test_variants_learn_too(trained, extra):
    assert trained("probe/copy", DISCOUNT, *extra, algorithm="iql", iterations=60).returns()["agents"] > 0.98


@slow
def test_burn_in_is_not_learned_from(trained):
    """With burn-in, stored carries only start the memory; the probe is still worth 1 / (1 − γ)."""
    team = trained(
        "probe/truncation",
        DISCOUNT,
        "task.time_limit=5",
        "algorithm.burn_in=4",
        "algorithm.sequence_length=4",
        algorithm="iql",
        model="gru",
        iterations=120,
    )
    assert q_value(team) == pytest.approx(1 / (1 - GAMMA), rel=0.03)
    assert team.algorithm.sequence_length == 8


def joint_values(team, config) -> np.ndarray:
    """Q_tot of the two-step game `[place, action of the first agent, of the second]`, by the networks learned."""
    spec, params = team.env.spec, team.learner["agents"].params
    network = make_network(
        make_model("mlp", layers=(32,)),
        input_shape=spec.groups["agents"].observation_shape,
        num_outputs=2,
        num_agents=2,
        head_gain=0.01,
    )
    place = jnp.eye(3)
    seen = jnp.concatenate([jnp.repeat(place[:, None], 2, 1), jnp.tile(jnp.eye(2), (3, 1, 1))], -1)[None]
    values = network.apply(params["network"], seen, (), jnp.zeros((1, 3), bool))[0][0]  # [place, agent, action]
    pairs = jnp.stack([values[:, 0][:, [0, 0, 1, 1]], values[:, 1][:, [0, 1, 0, 1]]], -1)  # [place, pair, agent]
    mixer = _make_mixer(config, spec, "agents")
    mixed = mixer.apply(params["mixer"], pairs, jnp.repeat(place[:, None], 4, 1))
    return np.asarray(mixed).reshape(3, 2, 2)


TWO_STEP = ("algorithm.gamma=1.0", "algorithm.epsilon_end=1.0", "experiment.updates=16")  # every action alike, always


def test_qmix_finds_that_agreeing_is_worth_8(trained):
    team = trained("probe/two_step", *TWO_STEP, algorithm="qmix", iterations=250)
    assert team.returns()["agents"] == pytest.approx(8.0)
    values = joint_values(team, QMIX)
    np.testing.assert_allclose(values[2], [[0, 1], [1, 8]], atol=0.5)
    np.testing.assert_allclose(values[1], 7, atol=0.3)
    np.testing.assert_allclose(values[0].max(axis=1), [7, 8], atol=0.3)


def test_a_sum_of_values_settles_for_7(trained):
    """The best sum for ((0, 1), (1, 8)) by least squares is ((−1.5, 2.5), (2.5, 6.5)), so that 7 looks better."""
    team = trained("probe/two_step", *TWO_STEP, algorithm="vdn", iterations=250)
    assert team.returns()["agents"] == pytest.approx(7.0)
    np.testing.assert_allclose(joint_values(team, VDN)[2], [[-1.5, 2.5], [2.5, 6.5]], atol=0.5)


# ---------------------------------------------------------------------------------------------------------- pieces


@jax.jit
def slopes_of_a_mixer(key):
    """By each agent's value, with parameters, values and states drawn."""
    mixer = make_monotonic_mixer(num_agents=3, state_shape=(4,), hidden_size=8, hyper_size=8)
    key_params, key_values, key_state = jax.random.split(key, 3)
    params = mixer.init(key_params)
    values, state = 10 * jax.random.normal(key_values, (5, 3)), jax.random.normal(key_state, (5, 4))
    return jax.grad(lambda q: mixer.apply(params, q, state).sum())(values)


@settings(deadline=None, max_examples=100)
@given(st.integers(0, 2**31 - 1))
def test_the_mixer_rises_in_every_agents_value(seed):
    slopes = slopes_of_a_mixer(jax.random.key(seed))
    assert (slopes >= 0).all()
    assert jnp.abs(slopes).sum() > 0


def test_at_first_the_mixer_leaves_it_to_the_agents():
    """Where their values are nothing, the team's is nothing, whatever the state; and theirs count."""
    mixer = make_monotonic_mixer(num_agents=3, state_shape=(4,), bias_gain=0.01)
    params, states = mixer.init(jax.random.key(0)), jax.random.normal(jax.random.key(1), (100, 4))
    assert jnp.abs(mixer.apply(params, jnp.zeros((100, 3)), states)).max() < 0.05
    assert (mixer.apply(params, jnp.ones((100, 3)), states) > 0.3).all()


@pytest.mark.parametrize(
    "fields", [{"lr": 0}, {"gamma": 1.5}, {"n_step": 0}, {"burn_in": -1}, {"epsilon_fraction": 2.0}]
)
def test_impossible_fields_are_refused(fields):
    with pytest.raises(ValueError):
        dataclasses.replace(IQL, **fields)


def test_continuous_actions_are_refused(fresh):
    with pytest.raises(ValueError, match="continuous_actions=false"):
        fresh("vmas/navigation", "task.continuous_actions=true", algorithm="iql", iterations=0)
