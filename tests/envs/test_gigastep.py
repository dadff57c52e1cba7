"""Gigastep. No registry has it, and it did not run here: a stand-in with its interface does (tests/battles.py)."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from battles import GIGASTEP, write_package

from covey.envs.base import make_env
from covey.envs.check import check_env, check_shapes
from covey.errors import MissingPackage, UsageError
from covey.registry import tasks
from covey.specs import Continuous, Discrete

TASK = "gigastep/identical_5_vs_5"


@pytest.fixture(autouse=True)
def _fresh_modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delenv("COVEY_GIGASTEP", raising=False)
    yield
    sys.modules.pop("gigastep", None)


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return str(write_package(tmp_path, "gigastep", GIGASTEP))


def actions(*first: float) -> dict[str, Any]:
    """Continuous actions by group, from the first entry of each agent's in the suite's order."""
    chosen = jnp.zeros((5, 3)).at[:, 0].set(jnp.array(first))
    return {"team_0": chosen[jnp.array([0, 2])], "team_1": chosen[jnp.array([1, 3, 4])]}


def test_spec(folder: str) -> None:
    spec = make_env(TASK, path=folder).spec
    assert {name: group.num_agents for name, group in spec.groups.items()} == {"team_0": 2, "team_1": 3}
    assert spec.teams == (("team_0",), ("team_1",)) and spec.time_limit == 500
    assert spec.groups["team_0"].action == Continuous((-1.0,) * 3, (1.0,) * 3)
    discrete = make_env(TASK, path=folder, continuous_actions=False).spec
    assert discrete.groups["team_1"].action == Discrete(27)


def test_it_keeps_the_contract(folder: str) -> None:
    for fields in ({}, {"continuous_actions": False, "partial": True}):
        env = make_env(TASK, path=folder, time_limit=6, **fields)
        check_shapes(env, TASK)
        check_env(env, name=TASK)


def test_agents_of_a_team_are_found_where_they_are_in_the_suite(folder: str) -> None:
    env = make_env(TASK, path=folder)
    state, first = jax.jit(env.reset)(jax.random.key(0))
    np.testing.assert_array_equal(first.groups["team_0"].observation[:, 0], [0, 2])
    np.testing.assert_array_equal(first.groups["team_1"].observation[:, 0], [1, 3, 4])
    _, step = jax.jit(env.step)(state, actions(0.1, 0.2, 0.3, 0.4, 0.5), jax.random.key(1))
    np.testing.assert_allclose(step.groups["team_0"].reward, [0.1, 0.3])
    np.testing.assert_allclose(step.groups["team_1"].reward, [0.2, 0.4, 0.5])


def test_who_crashes_ends_alone_and_a_team_without_anybody_ends_the_battle(folder: str) -> None:
    env = make_env(TASK, path=folder)
    step_env = jax.jit(env.step)
    state, _ = env.reset(jax.random.key(0))
    state, step = step_env(state, actions(0, 0.9, 0, 0.9, 0), jax.random.key(1))
    np.testing.assert_array_equal(step.groups["team_1"].terminated, [True, True, False])
    np.testing.assert_array_equal(step.groups["team_1"].alive, [False, False, True])
    assert not step.last and step.metrics["win_rate"] == 0
    state, step = step_env(state, actions(0.9, 0.3, 0, 0.3, 0.9), jax.random.key(1))
    assert step.last and not step.truncated and step.metrics["win_rate"] == 1
    np.testing.assert_array_equal(step.groups["team_0"].terminated, [True, True])
    np.testing.assert_array_equal(step.groups["team_1"].terminated, [False, False, True])  # the others had before
    np.testing.assert_allclose(step.groups["team_1"].reward, [0, 0, 0.9])


def test_the_limit_is_coveys_and_a_cut(folder: str) -> None:
    """The suite calls its own an ending."""
    env = make_env(TASK, path=folder, time_limit=4)
    state, _ = env.reset(jax.random.key(0))
    for number in range(1, 5):
        state, step = jax.jit(env.step)(state, actions(0, 0, 0, 0, 0), jax.random.key(1))
        assert bool(step.last) == bool(step.truncated) == (number == 4)
    assert not step.groups["team_0"].terminated.any() and step.metrics["win_rate"] == 0


def test_either_order_of_observations_and_state_is_taken(tmp_path: Path) -> None:
    other = str(write_package(tmp_path, "gigastep", GIGASTEP.replace("STATE_FIRST = False", "STATE_FIRST = True")))
    env = make_env(TASK, path=other)
    assert env.spec.groups["team_0"].observation_shape == (3,)
    state, _ = env.reset(jax.random.key(0))
    _, step = env.step(state, actions(0, 0, 0, 0, 0), jax.random.key(1))
    np.testing.assert_array_equal(step.groups["team_0"].observation[:, 1], [1, 1])


def test_what_there_is_not(folder: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"task.scenario: Scenario identical_9_vs_9_fobs_vec_void_cont not found"):
        make_env(TASK, path=folder, scenario="identical_9_vs_9")
    with pytest.raises(UsageError, match="there is no package gigastep in it"):
        make_env(TASK, path=str(tmp_path / "nowhere"))


def test_a_missing_package_is_a_line() -> None:
    with pytest.raises(MissingPackage, match=r"needs gigastep, which is not installed: clone .* COVEY_GIGASTEP"):
        make_env(TASK)


def test_the_registrys_empty_placeholder_is_a_line(tmp_path: Path) -> None:
    with pytest.raises(MissingPackage, match="the installed package gigastep has no scenarios: clone"):
        make_env(TASK, path=str(write_package(tmp_path, "gigastep", "")))


def test_names_of_scenarios() -> None:
    config = tasks["gigastep/waypoint_5_vs_3"].defaults()
    assert config.name == "waypoint_5_vs_3_fobs_vec_void_cont"
