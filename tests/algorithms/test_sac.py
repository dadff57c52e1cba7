"""SAC on the probes, each with its number; the temperature finds its entropy."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from covey.algorithms.critics import ActorGradient, own_values, resolve_gradient
from covey.algorithms.ddpg import MADDPG
from covey.algorithms.sac import ISAC, MASAC, target_entropy
from covey.envs.base import make_env
from covey.types import Continuous, Discrete

slow = pytest.mark.slow
GAMMA = 0.8
NO_ENTROPY = ("algorithm.alpha=1e-4", "algorithm.learn_alpha=false", f"algorithm.gamma={GAMMA}")
algorithms = pytest.mark.parametrize("algorithm", ["masac", pytest.param("isac", marks=slow)])


@pytest.mark.parametrize(
    ("algorithm", "model", "n_step"),
    [
        ("isac", "mlp", 3),
        pytest.param("isac", "mlp", 1, marks=slow),
        pytest.param("masac", "gru", 1, marks=slow),
        pytest.param("isac", "gru", 3, marks=slow),
    ],
)
def test_a_time_limit_is_no_end(trained, algorithm, model, n_step):
    """Worth 1 / (1 − γ), with next to no entropy earned; taking the cut for an end would give at most 3.4."""
    fields = (*NO_ENTROPY, "task.time_limit=5", f"algorithm.n_step={n_step}")
    team = trained("probe/truncation", *fields, algorithm=algorithm, model=model, iterations=120)
    assert team.metrics["agents/q_value"][-1] == pytest.approx(1 / (1 - GAMMA), rel=0.03)


@algorithms
def test_continuous_actions(trained, algorithm):
    team = trained("probe/target", "algorithm.alpha=0.1", algorithm=algorithm, iterations=100)
    assert team.returns()["agents"] > 0.97


@pytest.mark.parametrize("algorithm", ["isac", pytest.param("masac", marks=slow)])
def test_discrete_actions(trained, algorithm):
    team = trained("probe/copy", *NO_ENTROPY, algorithm=algorithm, iterations=60)
    assert team.returns()["agents"] > 0.98


@slow
def test_illegal_actions_are_never_taken(trained):
    team = trained("probe/masked", *NO_ENTROPY, algorithm="isac", iterations=60)
    played = team.transitions()["agents"]
    assert np.take_along_axis(played.action_mask, played.action[..., None], -1).all()
    assert team.returns()["agents"] == pytest.approx(1.0, abs=0.02)


@slow
def test_the_temperature_reaches_the_target_entropy(trained):
    """The probe rewards precision, so the policy would lose all entropy if the temperature did not rise."""
    team = trained(
        "probe/target", "algorithm.target_entropy=-0.5", "algorithm.alpha=0.05", algorithm="isac", iterations=200
    )
    entropy = team.metrics["agents/entropy"][-30:].mean()
    assert entropy == pytest.approx(-0.5, abs=0.15)


@slow
def test_the_actor_may_move_less_often(trained):
    team = trained("probe/target", "algorithm.policy_delay=2", "algorithm.alpha=0.1", algorithm="isac", iterations=150)
    assert team.returns()["agents"] > 0.95


@pytest.mark.parametrize(
    ("algorithm", "fields"),
    [
        ("masac", ("algorithm.alpha=1e-3", "algorithm.learn_alpha=false")),
        pytest.param("maddpg", (), marks=slow),
        pytest.param("mappo", (), marks=slow),
    ],
)
def test_each_agent_follows_its_own_reward(trained, algorithm, fields):
    """By the group's sum, agent 0 would go to −1."""
    team = trained("probe/selfish", *fields, algorithm=algorithm, iterations=80)
    assert greedy_actions(team) == pytest.approx([1.0, 1.0], abs=0.1)


@slow
def test_the_groups_sum_is_a_field(trained):
    fields = ("algorithm.alpha=1e-3", "algorithm.learn_alpha=false", "algorithm.actor_gradient=all")
    team = trained("probe/selfish", *fields, algorithm="masac", iterations=80)
    assert greedy_actions(team) == pytest.approx([-1.0, 1.0], abs=0.1)


def greedy_actions(team) -> np.ndarray:
    """Each agent's action at the start of an episode, without exploration."""
    timestep = jax.tree.map(lambda x: x[None], team.env.reset(jax.random.key(0))[1])
    carry = team.algorithm.initial_carry(1)
    actions, _, _ = team.algorithm.act(team.learner, timestep, carry, jax.random.key(0), False)
    return np.asarray(actions["agents"][0, :, 0])


def test_whose_value_an_actor_follows():
    """Everyone's new actions only where rewards are shared, or where there is nobody else."""
    auto = ActorGradient.auto
    individual, shared, alone = (
        make_env("probe/selfish", **f) for f in ({}, {"reward": "team_sum"}, {"num_agents": 1})
    )
    assert resolve_gradient(auto, individual.spec, "agents") is ActorGradient.own
    assert resolve_gradient(auto, shared.spec, "agents") is ActorGradient.all
    assert resolve_gradient(auto, alone.spec, "agents") is ActorGradient.all
    assert resolve_gradient(ActorGradient.all, individual.spec, "agents") is ActorGradient.all
    assert MASAC.actor_gradient is auto and MADDPG.actor_gradient is ActorGradient.own


def test_tasks_say_whether_rewards_are_shared():
    for name, fields, group, shared in (
        ("vmas/balance", {}, "agents", True),
        ("vmas/transport", {"shaping": 1.0}, "agents", False),  # shaping is each agent's own
        ("vmas/navigation", {}, "agents", False),
        ("vmas/navigation", {"shared_rew": True}, "agents", False),  # collisions are each agent's own
        ("vmas/navigation", {"shared_rew": True, "agent_collision_penalty": 0.0}, "agents", True),
        ("vmas/navigation", {"reward": "team_mean"}, "agents", True),
        ("vmas/simple_tag", {}, "adversary", True),
        ("vmas/simple_tag", {"adversaries_share_rew": False}, "adversary", False),
    ):
        assert make_env(name, **fields).spec.groups[group].shared_reward is shared, (name, fields)


def test_own_values_by_hand():
    """Values a₀ and a₁ − 3 a₀: agent 1's own value has agent 0's old action in it, and so has the slope."""
    new, old = jnp.array([[0.5], [0.25]]), jnp.array([[1.0], [-1.0]])

    def evaluate(actions):
        return jnp.array([1.0, 0.0]) * actions[0] + jnp.array([0.0, 1.0]) * (actions[1] - 3 * actions[0])

    np.testing.assert_allclose(own_values(evaluate, new, old), [0.5, 0.25 - 3.0])
    slope = jax.grad(lambda new: own_values(evaluate, new, old).sum())(new)
    np.testing.assert_allclose(slope, [[1.0], [1.0]])
    np.testing.assert_allclose(jax.grad(lambda new: evaluate(new).sum())(new), [[-2.0], [1.0]])


def test_target_entropies_by_hand():
    assert target_entropy(ISAC, Continuous(low=(-1.0, -1.0), high=(1.0, 1.0)), None) == -2.0
    assert target_entropy(ISAC, Discrete(5), None) == pytest.approx(0.2 * np.log(5))
    # Uniform on ±1 has entropy log 2, on (0, 0.5) a log 4 less: so much less is the target.
    assert target_entropy(ISAC, Continuous(low=(0.0,), high=(0.5,)), None) == pytest.approx(-1.0 - np.log(4))
    mask = jnp.array([[True, True, False, True, True], [False, False, True, False, False]])
    np.testing.assert_allclose(target_entropy(ISAC, Discrete(5), mask), [0.2 * np.log(4), 0.0], rtol=1e-6)
    chosen = dataclasses.replace(ISAC, target_entropy=-1.0)
    assert target_entropy(chosen, Continuous(low=(0.0,), high=(0.5,)), None) == -1.0
    assert target_entropy(chosen, Discrete(5), None) == pytest.approx(0.2 * np.log(5))


@pytest.mark.parametrize("fields", [{"lr": 0}, {"alpha": 0}, {"num_critics": 0}, {"tau": 2.0}, {"burn_in": -1}])
def test_impossible_fields_are_refused(fields):
    with pytest.raises(ValueError):
        dataclasses.replace(ISAC, **fields)


def test_several_choices_at_once_are_refused(fresh):
    with pytest.raises(ValueError, match="one discrete choice"):
        fresh("probe/choices", algorithm="isac", iterations=0)
