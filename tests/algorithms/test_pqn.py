"""PQN on the probes, each with its number."""

from __future__ import annotations

import dataclasses

import jax
import pytest

from covey.algorithms.base import make_algorithm
from covey.algorithms.pqn import PQN
from covey.envs.base import make_env
from covey.experiment.compose import compose
from covey.networks.layers import Norm

slow = pytest.mark.slow
GAMMA = 0.8
DISCOUNT = f"algorithm.gamma={GAMMA}"
ALONE = "algorithm.mixer=none"


@pytest.mark.parametrize("model", ["mlp", pytest.param("gru", marks=slow)])
def test_a_time_limit_is_no_end(trained, model):
    """Worth 1 / (1 − γ); taking the cut for a termination would give at most 3.4 with five steps left."""
    team = trained(
        "probe/truncation", DISCOUNT, ALONE, "task.time_limit=5", algorithm="pqn", model=model, iterations=150
    )
    assert team.metrics["agents/q_value"][-1] == pytest.approx(1 / (1 - GAMMA), rel=0.03)


@pytest.mark.parametrize("mixer", ["sum", pytest.param("none", marks=slow)])
def test_the_best_action_is_found(trained, mixer):
    team = trained("probe/copy", DISCOUNT, f"algorithm.mixer={mixer}", algorithm="pqn", iterations=60)
    assert team.returns()["agents"] > 0.98


@slow
def test_illegal_actions_are_not_believed(trained):
    team = trained("probe/masked", DISCOUNT, algorithm="pqn", iterations=60)
    assert team.returns()["agents"] == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize("fields", [{"lr": 0}, {"q_lambda": 1.5}, {"epochs": 0}])
def test_impossible_fields_are_refused(fields):
    with pytest.raises(ValueError):
        dataclasses.replace(PQN, **fields)


def test_layer_norm_is_on_unless_the_user_says_otherwise(tmp_path):
    def norm(*words: str) -> Norm:
        return compose(["task=probe/copy", *words]).model.config.norm

    assert norm("algorithm=pqn") is Norm.layer and norm("algorithm=pqn", "model=cnn") is Norm.layer
    assert norm("algorithm=pqn", "model.norm=none") is Norm.none
    assert norm("algorithm=iql") is Norm.none
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "bare.yaml").write_text("base: mlp\nnorm: none\n")
    assert norm("algorithm=pqn", "model=bare", f"config_dir={tmp_path}") is Norm.none
    compose(["task=probe/copy", "algorithm=pqn", "model=sequence"])  # whose stages have norms of their own


def test_layer_norm_of_groups_of_agents():
    def norm(*words: str) -> Norm:
        model = compose(["task=probe/groups", *words]).model
        return model.groups.get("guessers", model).config.norm

    member = "algorithm.groups.guessers=pqn"
    assert norm("algorithm=pqn", "model.groups.guessers=gru") is Norm.layer
    assert norm("algorithm=pqn", "model.groups.guessers=gru", "model.groups.guessers.norm=none") is Norm.none
    assert norm("algorithm=ippo", member) is Norm.layer
    assert norm("algorithm=ippo", member, "model.groups.guessers=gru") is Norm.layer
    assert norm("algorithm=ippo", member, "model.groups.guessers.layers=[8]") is Norm.layer
    assert norm("algorithm=ippo", member, "model.groups.guessers.norm=none") is Norm.none
    assert norm("algorithm=ippo", member, "model.norm=none") is Norm.none
    assert compose(["task=probe/groups", "algorithm=ippo", member]).model.config.norm is Norm.none


def test_layer_norm_from_python():
    params = jax.eval_shape(make_algorithm("pqn", make_env("probe/copy").spec).init, jax.random.key(0))["agents"].params
    assert "norms" in params["model"]["mlp"]
