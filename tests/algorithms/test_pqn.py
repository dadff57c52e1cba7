"""PQN on the probes, each with its number."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import MakeTeam
from stubs import GROUP, constant_network, context, transitions

from covey.algorithms.base import make_algorithm, make_optimiser
from covey.algorithms.pqn import PQN, Pqn, PqnState, Samples, make_samples, pqn_targets, q_loss, update_minibatch
from covey.algorithms.q_values import Mixing
from covey.envs.base import make_env
from covey.experiment.configuration.compose import compose
from covey.networks.layers import Norm
from covey.types import Batch

slow = pytest.mark.slow
GAMMA = 0.8
DISCOUNT = f"algorithm.gamma={GAMMA}"
ALONE = "algorithm.mixer=none"


@pytest.mark.parametrize("model", ["mlp", pytest.param("gru", marks=slow)])
def test_a_time_limit_is_no_end(trained: MakeTeam, model: str) -> None:
    """Worth 1 / (1 − γ); taking the cut for a termination would give at most 3.4 with five steps left."""
    team = trained(
        "probe/truncation", DISCOUNT, ALONE, "task.time_limit=5", algorithm="pqn", model=model, iterations=150
    )
    assert team.metrics["agents/q_value"][-1] == pytest.approx(1 / (1 - GAMMA), rel=0.03)


@pytest.mark.parametrize("mixer", ["sum", pytest.param("none", marks=slow)])
def test_the_best_action_is_found(trained: MakeTeam, mixer: str) -> None:
    team = trained("probe/copy", DISCOUNT, f"algorithm.mixer={mixer}", algorithm="pqn", iterations=60)
    assert team.returns()["agents"] > 0.98


@slow
def test_illegal_actions_are_not_believed(trained: MakeTeam) -> None:
    team = trained("probe/masked", DISCOUNT, algorithm="pqn", iterations=60)
    assert team.returns()["agents"] == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize("fields", [{"lr": 0}, {"q_lambda": 1.5}, {"epochs": 0}, {"mixer": Mixing.monotonic}])
def test_impossible_fields_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        dataclasses.replace(PQN, **fields)


def test_layer_norm_is_on_unless_the_user_says_otherwise(tmp_path: Path) -> None:
    def norm(*words: str) -> Norm:
        found: Norm = compose(["task=probe/copy", *words]).model.config.norm
        return found

    assert norm("algorithm=pqn") is Norm.layer and norm("algorithm=pqn", "model=cnn") is Norm.layer
    assert norm("algorithm=pqn", "model.norm=none") is Norm.none
    assert norm("algorithm=iql") is Norm.none
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "bare.yaml").write_text("base: mlp\nnorm: none\n")
    assert norm("algorithm=pqn", "model=bare", f"config_dir={tmp_path}") is Norm.none
    compose(["task=probe/copy", "algorithm=pqn", "model=sequence"])  # whose stages have norms of their own


def test_layer_norm_of_groups_of_agents() -> None:
    def norm(*words: str) -> Norm:
        model = compose(["task=probe/groups", *words]).model
        found: Norm = model.groups.get("guessers", model).config.norm
        return found

    own = "algorithm.groups.guessers=pqn"
    assert norm("algorithm=pqn", "model.groups.guessers=gru") is Norm.layer
    assert norm("algorithm=pqn", "model.groups.guessers=gru", "model.groups.guessers.norm=none") is Norm.none
    assert norm("algorithm=ippo", own) is Norm.layer
    assert norm("algorithm=ippo", own, "model.groups.guessers=gru") is Norm.layer
    assert norm("algorithm=ippo", own, "model.groups.guessers.layers=[8]") is Norm.layer
    assert norm("algorithm=ippo", own, "model.groups.guessers.norm=none") is Norm.none
    assert norm("algorithm=ippo", own, "model.norm=none") is Norm.none
    assert compose(["task=probe/groups", "algorithm=ippo", own]).model.config.norm is Norm.none


def test_layer_norm_from_python() -> None:
    params = jax.eval_shape(make_algorithm("pqn", make_env("probe/copy").spec).init, jax.random.key(0))["agents"].params
    assert "norms" in params["model"]["mlp"]


# ------------------------------------------------------------------------------------------------- functions by name

NEXT = jnp.array([[[[1.0, 4.0], [6.0, 2.0]]], [[[8.0, 3.0], [5.0, 10.0]]]])  # best 4 and 6, then 8 and 10


def test_targets_of_each_agent_by_hand() -> None:
    """γ = λ = ½: G_1 = 1 + ½ v, and G_0 = 1 + ½ (½ v + ½ G_1). The second agent terminates with the first step."""
    steps = transitions(jnp.ones((2, 1, 2)))
    target, counts = pqn_targets(steps, NEXT, team=False, gamma=0.5, q_lambda=0.5)
    np.testing.assert_allclose(target[1, 0], [1 + 0.5 * 8, 1 + 0.5 * 10])
    np.testing.assert_allclose(target[0, 0], [1 + 0.5 * (0.5 * 4 + 0.5 * 5), 1 + 0.5 * (0.5 * 6 + 0.5 * 6)])
    assert counts.all()
    steps = transitions(jnp.ones((2, 1, 2)), terminated=[[[False, True]], [[False, False]]])
    target, _ = pqn_targets(steps, NEXT, team=False, gamma=0.5, q_lambda=0.5)
    np.testing.assert_allclose(target[0, 0, 1], 1.0)
    steps = transitions(jnp.ones((2, 1, 2)), last=[[True], [False]])
    target, _ = pqn_targets(steps, NEXT, team=False, gamma=0.5, q_lambda=0.5)
    np.testing.assert_allclose(target[0, 0], [1 + 0.5 * 4, 1 + 0.5 * 6])  # nothing is read from the next episode


def test_targets_of_the_team_by_hand() -> None:
    """Of the first agent only its first action is legal; the second dies with the first step."""
    mask = jnp.ones((2, 1, 2, 2), bool).at[:, :, 0, 1].set(False)
    steps = transitions(
        [[[1.0, 3.0]], [[1.0, 100.0]]],
        terminated=[[[False, True]], [[False, False]]],
        alive=[[[True, True]], [[True, False]]],
        next_action_mask=mask,
    )
    target, counts = pqn_targets(steps, NEXT, team=True, gamma=0.5, q_lambda=0.5)
    last = 0.5 + 0.5 * 8.0
    np.testing.assert_allclose(target[:, 0], [2.0 + 0.5 * (0.5 * 1.0 + 0.5 * last), last])
    assert counts.shape == (2, 1) and counts.all()


def told(mixer: Mixing) -> Pqn:
    config = dataclasses.replace(PQN, mixer=mixer)
    return Pqn(
        config=config,
        group=GROUP,
        num_agents=2,
        context=context(),
        network=constant_network(2),
        optimiser=make_optimiser(config),
    )


def told_samples(target: Any) -> Samples:
    """Three sequences of one step `[N, L, …]`: agents took actions 1 and 0; of the last, the second is dead."""
    target = jnp.asarray(target, jnp.float32)
    return Samples(
        observation=jnp.zeros((3, 1, 2, 1)),
        reset=jnp.zeros((3, 1), bool),
        action=jnp.tile(jnp.array([1, 0]), (3, 1, 1)),
        alive=jnp.ones((3, 1, 2), bool).at[2, 0, 1].set(False),
        target=target,
        weight=jnp.ones(target.shape),
        carry=(),
    )


VALUES = jnp.array([[1.0, 2.0], [5.0, 4.0]])  # taken: 2 and 5, together 7, or 2 without the dead


def test_q_loss_by_hand() -> None:
    samples = jax.tree.map(lambda x: jnp.moveaxis(x, 1, 0), told_samples([[7.0], [5.0], [5.0]]))
    loss, metrics = q_loss(VALUES, told(Mixing.sum), samples)
    assert float(loss) == pytest.approx((0.0 + 4.0 + 9.0) / 3)
    assert float(metrics["q_value"]) == pytest.approx((7.0 + 7.0 + 2.0) / 3)
    samples = jax.tree.map(lambda x: jnp.moveaxis(x, 1, 0), told_samples([[[2.0, 3.0]]] * 3))
    assert float(q_loss(VALUES, told(Mixing.none), samples)[0]) == pytest.approx((0.0 + 4.0) / 2)


def test_a_minibatch_moves_the_actions_that_were_taken() -> None:
    """By Adam's first step, as long as the learning rate; the sample that is left out would say otherwise."""
    pqn = told(Mixing.sum)
    state = PqnState(params=VALUES, optimiser=pqn.optimiser.init(VALUES), epsilon=jnp.ones(()), coefficients={})
    samples = told_samples([[9.0], [jnp.nan], [9.0]])
    after, metrics = update_minibatch(pqn, state, samples, jnp.array([0, 2]), jnp.float32(0.1))
    np.testing.assert_allclose(after.params, VALUES + jnp.array([[0.0, 0.1], [0.1, 0.0]]), rtol=1e-4)
    assert float(metrics["q_loss"]) == pytest.approx((4.0 + 49.0) / 2)


def samples_of(mixer: Mixing) -> Samples:
    """Two steps of two agents with rewards of 1; values of the best next actions are 2 and 5. γ = λ = ½."""
    pqn = told(mixer)
    coefficients = {"gamma": jnp.float32(0.5), "q_lambda": jnp.float32(0.5)}
    state = PqnState(params=VALUES, optimiser=(), epsilon=jnp.ones(()), coefficients=coefficients)
    steps = transitions(
        jnp.ones((2, 1, 2)),
        action=jnp.array([[[0, 1]], [[1, 0]]]),
        alive=[[[True, True]], [[True, False]]],
        terminated=[[[False, True]], [[False, False]]],
    )
    return make_samples(pqn, state, Batch(transitions={GROUP: steps}))


def test_samples_of_each_agent_by_hand() -> None:
    """The second agent terminates with the first step. The three living steps weigh 4/3 each, so that their mean is 1
    over all four."""
    samples = samples_of(Mixing.none)
    last = 1 + 0.5 * 2
    np.testing.assert_allclose(samples.target[:, 0, 0], [1 + 0.5 * (0.5 * 2 + 0.5 * last), last])
    assert float(samples.target[0, 0, 1]) == 1.0
    np.testing.assert_allclose(samples.weight[:, 0], [[4 / 3, 4 / 3], [4 / 3, 0.0]], rtol=1e-6)
    np.testing.assert_array_equal(samples.action[:, 0], [[0, 1], [1, 0]])  # two sequences of one step


def test_samples_of_the_team_by_hand() -> None:
    """The team earns 1 and then ½, when half of it is dead. Only the first agent has a value to come."""
    samples = samples_of(Mixing.sum)
    last = 0.5 + 0.5 * 2
    np.testing.assert_allclose(samples.target[:, 0], [1 + 0.5 * (0.5 * 2 + 0.5 * last), last])
    np.testing.assert_allclose(samples.weight, [[1.0], [1.0]])
