"""Groups of one team that learn by different algorithms and with different models: each learns as it would alone."""

from __future__ import annotations

import jax
import pytest

from covey.errors import UsageError
from covey.experiment.build import build_algorithm, build_env
from covey.experiment.compose import compose


@pytest.mark.parametrize(
    ("algorithm", "other", "iterations"),
    [("ippo", "mappo", 50), ("iql", "isac", 60)],
)
@pytest.mark.slow
def test_two_algorithms_in_one_task(trained, algorithm, other, iterations):
    team = trained(
        "probe/groups",
        f"algorithm.groups.guessers={other}",
        "model.groups.guessers=gru" if algorithm == "ippo" else "model.groups.guessers.layers=[16]",
        algorithm=algorithm,
        iterations=iterations,
    )
    returns = team.returns()
    assert returns["copiers"] == pytest.approx(1.0, abs=0.02)
    assert returns["guessers"] == pytest.approx(0.5, abs=0.1)  # there is nothing to learn
    assert type(team.learner["copiers"].params) is type(team.learner["guessers"].params)
    assert jax.tree.structure(team.learner["copiers"]) != jax.tree.structure(team.learner["guessers"])


def test_only_groups_with_ids_are_told_who_they_are():
    config = compose(["task=probe/groups", "algorithm=ippo", "algorithm.groups.guessers.agent_ids=false"])
    groups = build_env(config).spec.groups
    assert groups["copiers"].observation_shape == (1 + 2,)
    assert groups["guessers"].observation_shape == (3,)


def test_a_group_that_the_task_does_not_have_is_named():
    config = compose(["task=probe/groups", "algorithm=ippo", "algorithm.groups.copier.lr=1e-4"])
    with pytest.raises(UsageError, match=r"unknown group in algorithm\.groups 'copier'; nearest: copiers"):
        build_algorithm(config, build_env(config))
