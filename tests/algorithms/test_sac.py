"""SAC on the probes, each with its number; the temperature finds its entropy."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from covey.algorithms.sac import ISAC, target_entropy
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
