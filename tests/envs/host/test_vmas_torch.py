"""The published VMAS. PyTorch is not among what the tests install: without it, only its message is tested."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
from playing import assert_equal, play

from covey.errors import MissingExtra, UsageError
from covey.registry import tasks

READY = [entry.name for entry in tasks if entry.name.startswith("vmas_torch/")]
INSTALLED = all(importlib.util.find_spec(package) is not None for package in ("torch", "vmas"))
with_torch = pytest.mark.skipif(not INSTALLED, reason="torch or vmas is not installed")
no_torch = pytest.mark.skipif(INSTALLED, reason="torch and vmas are installed")


def test_every_scenario_of_coveys_own_has_one() -> None:
    own = [entry.name.partition("/")[2] for entry in tasks if entry.name.startswith("vmas/")]
    assert [name.partition("/")[2] for name in READY] == own and len(own) == 28


@no_torch
def test_a_missing_package_is_a_line() -> None:
    with pytest.raises(MissingExtra, match=r"the published VMAS needs the extra: pip install 'covey\[vmas\]'"):
        play("vmas_torch/balance")


@with_torch
@pytest.mark.parametrize("continuous", [True, False])
@pytest.mark.parametrize("name", READY)
def test_a_few_random_steps(name: str, continuous: bool) -> None:
    one = play(name, time_limit=4, continuous_actions=continuous)
    same = play(name, time_limit=4, continuous_actions=continuous)
    for _ in range(6):
        assert_equal(one.step, same.step)
        one.choose()
        same.advance(**one.actions)
        one.episodes.advance()


@with_torch
def test_the_limit_is_a_cut() -> None:
    game = play("vmas_torch/navigation", time_limit=3)
    for step in range(1, 7):
        game.advance()
        assert bool(game.step["last"]) == bool(game.step["truncated"]) == (step % 3 == 0)


@with_torch
def test_an_ending_is_one() -> None:
    """A package that falls to the floor ends an episode of balance."""
    game = play("vmas_torch/balance", time_limit=400)
    while not game.step["last"]:
        game.advance(agents=np.array([[1, 0]] * game.spec.groups["agents"].num_agents))
    assert not game.step["truncated"] and game.groups["agents"]["terminated"].all()


@with_torch
def test_what_there_is_not() -> None:
    with pytest.raises(UsageError, match=r"task.scenario: VMAS has no scenario 'chess'"):
        play("vmas_torch/balance", scenario="chess")
