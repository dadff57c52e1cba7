"""Groups of one team that learn by different algorithms and with different models: each learns as it would alone."""

from __future__ import annotations

from typing import Any

import jax
import pytest
from conftest import MakeTeam

from covey.errors import UsageError
from covey.experiment.configuration.compose import compose
from covey.experiment.running.build import build, build_algorithm, build_env


@pytest.mark.parametrize(
    ("algorithm", "other", "iterations"),
    [("ippo", "mappo", 50), ("iql", "isac", 60)],
)
@pytest.mark.slow
def test_two_algorithms_in_one_task(trained: MakeTeam, algorithm: str, other: str, iterations: int) -> None:
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
    structures: list[Any] = [jax.tree.structure(team.learner[group]) for group in ("copiers", "guessers")]
    assert structures[0] != structures[1]


def test_groups_may_remember_for_different_times() -> None:
    """From replay each takes of a sequence what it needs; what was just collected has one carry for all."""
    fields = ["algorithm.groups.guessers=isac", "model=gru", "model.groups.guessers=mlp", "critic_model=mlp"]
    config = compose(["task=probe/groups", "algorithm=iql", *fields, "algorithm.groups.guessers.n_step=3"])
    parts = build(config, jax.devices()[:1])
    lengths = {name: part.sequence_length for name, part in parts.algorithm.groups.items()}
    assert lengths["guessers"] == 3 < lengths["copiers"] == parts.algorithm.sequence_length
    config = compose(
        ["task=probe/groups", "algorithm=ippo", "model=gru", "algorithm.groups.guessers.sequence_length=8"]
    )
    with pytest.raises(UsageError, match=r"must agree on one sequence_length, not \[0, 8\]"):
        build(config, jax.devices()[:1])


def test_only_groups_with_ids_are_told_who_they_are() -> None:
    config = compose(["task=probe/groups", "algorithm=ippo", "algorithm.groups.guessers.agent_ids=false"])
    groups = build_env(config).spec.groups
    assert groups["copiers"].observation_shape == (1 + 2,)
    assert groups["guessers"].observation_shape == (3,)


def test_a_group_that_the_task_does_not_have_is_named() -> None:
    config = compose(["task=probe/groups", "algorithm=ippo", "algorithm.groups.copier.lr=1e-4"])
    with pytest.raises(UsageError, match=r"unknown group in algorithm\.groups 'copier'; nearest: copiers"):
        build_algorithm(config, build_env(config))
