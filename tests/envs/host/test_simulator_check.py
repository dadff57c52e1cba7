"""What `covey check` says of simulators that break the contract: one line, which names the field or the user's line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from simulators import Clock, ClockConfig

from covey.envs.host.check import check_simulator
from covey.envs.host.simulator import SimulatorStep, Source
from covey.errors import UsageError


def check(make: type[Clock] = Clock, **fields: Any) -> str:
    return str(check_simulator(Source(name="toy/clock", make=make, config=ClockConfig(**fields))))


def test_a_simulator_that_keeps_the_contract() -> None:
    assert "keeps the contract" in check(dies_at=3, time_limit=4)


@pytest.mark.parametrize(
    ("fails", "message"),
    [
        ("terminated=True", "step 1 of episode 0: step's terminated must be a dictionary by group, not bool"),
        ("rewards={}", "step's rewards: group agents is missing"),
        ("raises", r"step failed: ZeroDivisionError: division by zero \(simulators.py, line \d+\)"),
        (
            "start",
            r"^task toy/clock: cannot be made: FileNotFoundError: no such map: desert \(simulators.py, line \d+\)",
        ),
    ],
)
def test_what_is_wrong_is_one_line(fails: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        check(fails=fails)


class Broken(Clock):
    def reset(self, seed: int) -> SimulatorStep:
        raise KeyError("hunters")


class Misnamed(Clock):
    def reset(self, seed: int) -> SimulatorStep:
        return SimulatorStep(observations=super().reset(seed).observations, terminated=True)  # type: ignore[arg-type]


def test_a_first_reset_that_fails() -> None:
    with pytest.raises(
        UsageError, match=r"^task toy/clock: its first reset failed: KeyError: 'hunters' \(test_simulator_check"
    ):
        check(Broken)
    with pytest.raises(
        UsageError, match=r"^task toy/clock: reset's terminated must be a dictionary by group, not bool"
    ):
        check(Misnamed)


class Seedless(Clock):
    """Every episode begins elsewhere, whatever its seed."""

    def reset(self, seed: int) -> SimulatorStep:
        answer: SimulatorStep = super().reset(self.episodes)
        return answer


class Unseeded(Clock):
    """The same seed gives the same first observation, and then another course."""

    def step(self, actions: Mapping[str, np.ndarray]) -> SimulatorStep:
        answer: SimulatorStep = super().step(actions)
        answer.rewards = {"agents": np.random.default_rng().random(2)}
        return answer


class Remembering(Clock):
    """What it gives also depends on how many episodes it has played."""

    def step(self, actions: Mapping[str, np.ndarray]) -> SimulatorStep:
        answer: SimulatorStep = super().step(actions)
        answer.rewards = {"agents": np.full(2, float(self.episodes))}
        return answer


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (Seedless, "reset ignores its seed"),
        (Unseeded, "the same seed gave other rewards of group agents at step 1"),
    ],
)
def test_a_simulator_that_ignores_its_seed_is_refused(make: type[Clock], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        check(make)


def test_what_remains_of_earlier_episodes_is_a_note() -> None:
    note = "the same seed gave other rewards of group agents at step 1 after other episodes had been played"
    assert note in check(Remembering)
    assert note not in check()


class MaskedLate(Clock):
    def step(self, actions: Mapping[str, np.ndarray]) -> SimulatorStep:
        answer: SimulatorStep = super().step(actions)
        answer.action_masks = {"agents": np.ones((2, 3), bool)}
        return answer


def test_masks_that_begin_with_a_step_are_refused() -> None:
    with pytest.raises(UsageError, match="step's action_masks: the first reset had none of group agents"):
        check(MaskedLate)
