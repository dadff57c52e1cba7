"""PQN on the probes, each with its number."""

from __future__ import annotations

import dataclasses

import pytest

from covey.algorithms.pqn import PQN

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
