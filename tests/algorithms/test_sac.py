"""SAC on the probes, each with its number; the temperature finds its entropy."""

from __future__ import annotations

import dataclasses
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import MakeTeam, Team
from stubs import GROUP, constant_network, context, transitions
from test_off_policy import told_critics

from covey.algorithms.base import make_optimiser
from covey.algorithms.ddpg import MADDPG
from covey.algorithms.off_policy import ActorCritic, make_samples
from covey.algorithms.replay_critics import ActorGradient, own_values, resolve_gradient
from covey.algorithms.sac import (
    ISAC,
    MASAC,
    Sac,
    SacState,
    actor_loss,
    make_targets,
    soft_value,
    target_entropy,
    temperature,
    update,
)
from covey.envs.base import make_env
from covey.ops.distributions import make_distribution
from covey.types import Batch, Continuous, Discrete, Key

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
def test_a_time_limit_is_no_end(trained: MakeTeam, algorithm: str, model: str, n_step: int) -> None:
    """Worth 1 / (1 − γ), with next to no entropy earned; taking the cut for an end would give at most 3.4."""
    fields = (*NO_ENTROPY, "task.time_limit=5", f"algorithm.n_step={n_step}")
    team = trained("probe/truncation", *fields, algorithm=algorithm, model=model, iterations=120)
    assert team.metrics["agents/q_value"][-1] == pytest.approx(1 / (1 - GAMMA), rel=0.03)


@algorithms
def test_continuous_actions(trained: MakeTeam, algorithm: str) -> None:
    team = trained("probe/target", "algorithm.alpha=0.1", algorithm=algorithm, iterations=100)
    assert team.returns()["agents"] > 0.97


@pytest.mark.parametrize("algorithm", ["isac", pytest.param("masac", marks=slow)])
def test_discrete_actions(trained: MakeTeam, algorithm: str) -> None:
    team = trained("probe/copy", *NO_ENTROPY, algorithm=algorithm, iterations=60)
    assert team.returns()["agents"] > 0.98


@slow
def test_illegal_actions_are_never_taken(trained: MakeTeam) -> None:
    team = trained("probe/masked", *NO_ENTROPY, algorithm="isac", iterations=60)
    played = team.transitions()["agents"]
    assert np.take_along_axis(played.action_mask, played.action[..., None], -1).all()
    assert team.returns()["agents"] == pytest.approx(1.0, abs=0.02)


@slow
def test_the_temperature_reaches_the_target_entropy(trained: MakeTeam) -> None:
    """The probe rewards precision, so the policy would lose all entropy if the temperature did not rise."""
    team = trained(
        "probe/target", "algorithm.target_entropy=-0.5", "algorithm.alpha=0.05", algorithm="isac", iterations=200
    )
    entropy = team.metrics["agents/entropy"][-30:].mean()
    assert entropy == pytest.approx(-0.5, abs=0.15)


@slow
def test_the_actor_may_move_less_often(trained: MakeTeam) -> None:
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
def test_each_agent_follows_its_own_reward(trained: MakeTeam, algorithm: str, fields: tuple[str, ...]) -> None:
    """By the group's sum, agent 0 would go to −1."""
    team = trained("probe/selfish", *fields, algorithm=algorithm, iterations=80)
    assert greedy_actions(team) == pytest.approx([1.0, 1.0], abs=0.1)


@slow
def test_the_groups_sum_is_a_field(trained: MakeTeam) -> None:
    fields = ("algorithm.alpha=1e-3", "algorithm.learn_alpha=false", "algorithm.actor_gradient=all")
    team = trained("probe/selfish", *fields, algorithm="masac", iterations=80)
    assert greedy_actions(team) == pytest.approx([-1.0, 1.0], abs=0.1)


def greedy_actions(team: Team) -> np.ndarray:
    """Each agent's action at the start of an episode, without exploration."""
    timestep = jax.tree.map(lambda x: x[None], team.env.reset(jax.random.key(0))[1])
    carry = team.algorithm.initial_carry(1)
    actions, _, _ = team.algorithm.act(team.algorithm.acting(team.learner), timestep, carry, jax.random.key(0), False)
    return np.asarray(actions["agents"][0, :, 0])


def test_whose_value_an_actor_follows() -> None:
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


def test_tasks_say_whether_rewards_are_shared() -> None:
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


def test_own_values_by_hand() -> None:
    """Values a₀ and a₁ − 3 a₀: agent 1's own value has agent 0's old action in it, and so has the slope."""
    new, old = jnp.array([[0.5], [0.25]]), jnp.array([[1.0], [-1.0]])

    def evaluate(actions: jax.Array) -> jax.Array:
        return jnp.array([1.0, 0.0]) * actions[0] + jnp.array([0.0, 1.0]) * (actions[1] - 3 * actions[0])

    np.testing.assert_allclose(own_values(evaluate, new, old), [0.5, 0.25 - 3.0])
    slope = jax.grad(lambda new: own_values(evaluate, new, old).sum())(new)
    np.testing.assert_allclose(slope, [[1.0], [1.0]])
    np.testing.assert_allclose(jax.grad(lambda new: evaluate(new).sum())(new), [[-2.0], [1.0]])


def test_target_entropies_by_hand() -> None:
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
def test_impossible_fields_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        dataclasses.replace(ISAC, **fields)


def test_several_choices_at_once_are_refused(fresh: MakeTeam) -> None:
    with pytest.raises(ValueError, match="one discrete choice"):
        fresh("probe/choices", algorithm="isac", iterations=0)


# ------------------------------------------------------------------------------------------------- functions by name

LOGITS = jnp.log(jnp.array([[1.0, 3.0], [1.0, 1.0]]))  # of two agents: probabilities ¼ and ¾, ½ and ½
ENTROPY = np.array([-0.25 * np.log(0.25) - 0.75 * np.log(0.75), np.log(2)])
NO_KEY = cast(Key, None)  # for discrete actions, nothing is drawn


def told(**fields: Any) -> tuple[Sac, SacState]:
    """Two agents with two actions; policy and critics say what their parameters are."""
    config = dataclasses.replace(ISAC, **fields)
    action = Discrete(2)
    ac = ActorCritic(
        config=config,
        group=GROUP,
        context=context(),
        action=action,
        actor=constant_network(2),
        critics=told_critics(),
        optimiser=make_optimiser(config),
        own_actions_only=False,
    )
    critics = {  # of one step of one sequence, [1, 1, A, n]
        "critic_0": jnp.array([[[[1.0, 9.0], [4.0, 6.0]]]]),
        "critic_1": jnp.array([[[[5.0, 2.0], [8.0, 3.0]]]]),  # the smaller are 1, 2 and 4, 3
    }
    state = SacState(
        params={"actor": LOGITS, "critic": critics, "log_alpha": jnp.log(0.5)},
        target=critics,
        optimiser={},
        updates=jnp.zeros((), jnp.int32),
        coefficients={"gamma": jnp.float32(0.5), "alpha": jnp.float32(0.25)},
    )
    return Sac(config=config, ac=ac, distribution=make_distribution(action)), state


SMALLER = np.array([0.25 * 1 + 0.75 * 2, 0.5 * 4 + 0.5 * 3])  # their means under the policy


def test_soft_values_by_hand() -> None:
    values = jnp.array([[[1.0, 9.0], [4.0, 6.0]], [[5.0, 2.0], [8.0, 3.0]]])
    np.testing.assert_allclose(soft_value(values, LOGITS, None, None, 0.5), SMALLER + 0.5 * ENTROPY, rtol=1e-6)
    mask = jnp.array([[True, False], [False, True]])
    np.testing.assert_allclose(soft_value(values, LOGITS, mask, None, 0.5), [1.0, 3.0], rtol=1e-6)
    drawn = soft_value(values[..., :1], LOGITS, None, jnp.array([-2.0, 1.0]), 0.5)
    np.testing.assert_allclose(drawn, [1.0 + 1.0, 4.0 - 0.5], rtol=1e-6)


def test_targets_by_hand() -> None:
    sac, state = told()
    steps = transitions([[[1.0, 3.0]]], terminated=[[[False, True]]])
    soft = SMALLER + 0.5 * ENTROPY
    np.testing.assert_allclose(make_targets(sac, state, steps, NO_KEY), [[[1.0 + 0.5 * soft[0], 3.0]]], rtol=1e-6)


def test_the_temperature_is_learned_or_the_coefficient() -> None:
    assert float(temperature(*told())) == pytest.approx(0.5)
    assert float(temperature(*told(learn_alpha=False))) == 0.25


def test_actor_loss_by_hand() -> None:
    """The second agent is dead: it has no part in the loss, nor in the entropy."""
    sac, state = told()
    steps = transitions([[[0.0, 0.0]]], alive=[[[True, False]]])
    samples = make_samples(sac.ac, Batch(transitions={GROUP: steps}), jnp.zeros((1, 1, 2)))
    critics = state.params["critic"]
    loss, found = actor_loss(LOGITS, sac, critics, samples, jnp.float32(0.5), NO_KEY)
    assert float(loss) == pytest.approx(-(SMALLER[0] + 0.5 * ENTROPY[0]) / 2, rel=1e-6)
    assert float(found["entropy"]) == pytest.approx(ENTROPY[0] / 2, rel=1e-6)
    assert float(found["surplus"]) == pytest.approx((ENTROPY[0] - 0.2 * np.log(2)) / 2, rel=1e-6)
    # d/dz of −E[Q − α log π] is −π (Q − α log π − their mean)
    slope = jax.grad(lambda logits: actor_loss(logits, sac, critics, samples, jnp.float32(0.5), NO_KEY)[0])(LOGITS)
    probabilities = np.array([0.25, 0.75])
    each = np.array([1.0, 2.0]) - 0.5 * np.log(probabilities)
    np.testing.assert_allclose(slope[0], -probabilities * (each - probabilities @ each) / 2, rtol=1e-5)
    np.testing.assert_array_equal(slope[1], 0.0)


@pytest.mark.parametrize("delay", [1, 2])
def test_update_by_hand(delay: int) -> None:
    """Rewards of 1 and 3 end the episode. The first critic is 0 and 3 off, the second 4 and 0, in what was done.
    Adam's first step is as long as the learning rate. With a delay of two, actor and temperature wait."""
    sac, state = told(policy_delay=delay, num_critics=2)
    coefficients = {"lr": 0.1, "alpha_lr": 0.05, "tau": 0.25, "gamma": 0.5}
    state = dataclasses.replace(
        state,
        target=jax.tree.map(jnp.zeros_like, state.target),
        optimiser={name: sac.ac.optimiser.init(part) for name, part in state.params.items()},
        coefficients={name: jnp.float32(value) for name, value in coefficients.items()},
    )
    steps = transitions([[[1.0, 3.0]]], action=[[[0, 1]]], terminated=[[[True, True]]])
    batch, key = Batch(transitions={GROUP: steps}), jax.random.key(0)
    after, metrics, td_error = jax.jit(lambda state: update(sac, state, batch, key, jnp.float32(0.0)))(state)
    critics = {"critic_0": [[1.0, 9.0], [4.0, 5.9]], "critic_1": [[4.9, 2.0], [8.0, 3.0]]}
    for name, values in critics.items():
        np.testing.assert_allclose(after.params["critic"][name][0, 0], values, rtol=1e-5)
        np.testing.assert_allclose(after.target[name][0, 0], 0.25 * np.array(values), rtol=1e-5)
    np.testing.assert_allclose(td_error, [((0 + 4) / 2 + (3 + 0) / 2) / 2])
    assert float(metrics["q_loss"]) == pytest.approx((0 + 9) / 2 + (16 + 0) / 2)
    assert float(metrics["q_value"]) == pytest.approx(2.0) and float(metrics["lr"]) == pytest.approx(0.1)
    # Each agent leans to its better action. There is more entropy than wanted, so the temperature falls.
    better = np.array([[-0.1, 0.1], [0.1, -0.1]])
    alpha = 0.5
    if delay == 1:
        np.testing.assert_allclose(after.params["actor"], LOGITS + better, rtol=1e-3)
        alpha = 0.5 * np.exp(-0.05)
        assert float(metrics["policy_loss"]) == pytest.approx(-np.mean(SMALLER + 0.5 * ENTROPY), rel=1e-5)
        assert float(metrics["entropy"]) == pytest.approx(ENTROPY.mean(), rel=1e-5)
    else:
        np.testing.assert_array_equal(after.params["actor"], LOGITS)
        assert float(metrics["policy_loss"]) == float(metrics["entropy"]) == 0.0
    assert float(metrics["alpha"]) == pytest.approx(alpha, rel=1e-4)
    assert int(after.updates) == 1
