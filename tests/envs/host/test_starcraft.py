"""SMACv2 and SMAClite. No registry has them, so stand-ins with their interface ran here (tests/battles.py).

What is held here is covey's side of that interface: endings apart from cuts, who lives, masks, seeds, messages.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from battles import SMACLITE, SMACV2, write_package
from gymnasium.envs import registration
from playing import Play, assert_equal, play

from covey.envs.host.starcraft import ARMIES, armies
from covey.errors import MissingPackage, UsageError
from covey.registry import build_config, tasks
from covey.specs import Discrete

GROUP = "agents"
STOP = 1


@pytest.fixture(autouse=True)
def _fresh_modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a test imports and registers is gone after it."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    known = dict(registration.registry)
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] in ("smacv2", "smaclite")]:
        del sys.modules[name]
    registration.registry.clear()
    registration.registry.update(known)


@pytest.fixture
def smacv2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SC2PATH", str(tmp_path))
    return write_package(tmp_path, "smacv2.env.starcraft2.wrapper", SMACV2)


@pytest.fixture
def smaclite(tmp_path: Path) -> Path:
    return write_package(tmp_path, "smaclite", SMACLITE)


def battle(path: Path, **fields: Any) -> Play:
    return play("smacv2/terran_5_vs_5", path=str(path), num_units=3, num_enemies=2, **fields)


# ------------------------------------------------------------------------------------------------------------- SMACv2


def test_spec_and_masks(smacv2: Path) -> None:
    game = battle(smacv2)
    group = game.spec.groups[GROUP]
    assert (group.num_agents, group.observation_shape, group.action) == (3, (3,), Discrete(8))
    assert game.spec.state_shape == (4,) and group.shared_reward
    np.testing.assert_array_equal(game.groups[GROUP]["action_mask"][0], [False] + [True] * 7)


def test_dead_units_live_on_for_the_reward_and_can_only_do_nothing(smacv2: Path) -> None:
    game = battle(smacv2)
    for _ in range(2):
        game.advance(agents=[STOP] * 3)
    np.testing.assert_array_equal(game.groups[GROUP]["action_mask"][0], [True] + [False] * 7)
    assert game.groups[GROUP]["alive"].all() and not game.groups[GROUP]["terminated"].any()
    for _ in range(3):
        game.advance(agents=[0, 6, 7])
    np.testing.assert_array_equal(game.groups[GROUP]["reward"], [20, 20, 20])
    assert game.groups[GROUP]["terminated"].all() and game.step["last"] and not game.step["truncated"]
    assert game.step["metrics"] == {"win_rate": 1, "dead_allies": 1, "dead_enemies": 2}
    assert game.groups[GROUP]["next_observation"][0, 1] == 5, "the last observation is the true one"
    assert game.groups[GROUP]["observation"][0, 1] == 0
    game.advance(agents=[STOP] * 3)
    assert game.step["metrics"] == {"win_rate": 0, "dead_allies": 0, "dead_enemies": 0}


def test_the_time_limit_is_coveys_and_a_cut(smacv2: Path) -> None:
    """The stand-in's own is 4 steps, and reported as an ending."""
    game = battle(smacv2, time_limit=6)
    for step in range(1, 7):
        game.advance(agents=[STOP if step <= 2 else 0, STOP, STOP])
        assert bool(game.step["last"]) == bool(game.step["truncated"]) == (step == 6)
    assert not game.groups[GROUP]["terminated"].any() and game.step["metrics"]["win_rate"] == 0


def test_a_game_that_was_lost_and_started_again_is_no_defeat(smacv2: Path) -> None:
    game = battle(smacv2, kwargs={"debug": True})
    for step in range(1, 4):
        game.advance(agents=[STOP if step <= 2 else 0, STOP, STOP])
    assert game.step["last"] and game.step["truncated"] and not game.groups[GROUP]["terminated"].any()


def test_what_the_game_is_told(smacv2: Path) -> None:
    game = battle(smacv2, conic_fov=True)
    told = game.simulator.environment.unwrapped.game.kwargs
    assert told["map_name"] == "10gen_terran" and told["conic_fov"] and told["difficulty"] == "7"
    assert told["capability_config"]["n_units"] == 3 and told["capability_config"]["n_enemies"] == 2


@pytest.mark.parametrize("race", ARMIES)
def test_armies(race: str) -> None:
    made = armies(race, 10, 11)
    kinds = made["team_gen"]
    assert len(kinds["unit_types"]) == len(kinds["weights"]) == 3 and sum(kinds["weights"]) == pytest.approx(1)
    assert set(kinds["exception_unit_types"]) <= set(kinds["unit_types"])


def test_fifteen_battles() -> None:
    names = {entry.name: entry.defaults() for entry in tasks if entry.name.startswith("smacv2/")}
    assert len(names) == 15
    config = names["smacv2/zerg_20_vs_23"]
    assert (config.race, config.num_units, config.num_enemies) == ("zerg", 20, 23)
    with pytest.raises(UsageError, match="race=human must be one of protoss, terran, zerg"):
        build_config(config, {"race": "human"}, "task")


def test_the_game_must_be_there(smacv2: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SC2PATH", str(smacv2 / "nowhere"))
    with pytest.raises(MissingPackage, match=r"needs the game StarCraft II .* set SC2PATH to its folder"):
        battle(smacv2)


# ----------------------------------------------------------------------------------------------------------- SMAClite


def test_masks_decide_how_many_actions_there_are(smaclite: Path) -> None:
    game = play("smaclite/2s3z", path=str(smaclite))
    assert game.spec.groups[GROUP].action == Discrete(8) and game.spec.state_shape == (2,)
    for _ in range(10):
        game.advance()  # the stand-in refuses what a mask does not allow


def test_a_victory_and_a_defeat(smaclite: Path) -> None:
    game = play("smaclite/2s3z", path=str(smaclite))
    lives = int(game.step["state"][1])
    for step in range(1, lives + 1):
        game.advance(agents=[STOP if step <= 3 else 0, 6])
        assert game.step["metrics"]["win_rate"] == (step == lives)
    assert game.groups[GROUP]["terminated"].all() and not game.step["truncated"]
    np.testing.assert_array_equal(game.groups[GROUP]["reward"], [10, 10])
    game = play("smaclite/2s3z", path=str(smaclite), map="hopeless")
    for _ in range(3):
        game.advance(agents=[STOP, STOP])
    assert game.groups[GROUP]["terminated"].all() and game.step["metrics"]["win_rate"] == 0


def test_the_limit_is_a_cut(smaclite: Path) -> None:
    game = play("smaclite/2s3z", path=str(smaclite), time_limit=5)
    for step in range(1, 6):
        game.advance(agents=[STOP if step <= 3 else 0, STOP])
    assert game.step["last"] and game.step["truncated"] and not game.groups[GROUP]["terminated"].any()


def test_copies_do_not_share_the_global_generators(smaclite: Path) -> None:
    """Observations hold a number from NumPy's global generator, and how long an episode lasts is from Python's."""
    alone = play("smaclite/2s3z", path=str(smaclite))
    one, other = play("smaclite/2s3z", path=str(smaclite)), play("smaclite/2s3z", path=str(smaclite), number=1)
    differs = False
    for step in range(12):
        actions = [0 if flags[0] else 6 for flags in one.groups[GROUP]["action_mask"]]
        if step % 3:
            other.advance(agents=[0 if flags[0] else STOP for flags in other.groups[GROUP]["action_mask"]])
        one.advance(agents=actions)
        alone.advance(agents=actions)
        assert_equal(one.step, alone.step)
        differs = differs or not np.array_equal(one.groups[GROUP]["observation"], other.groups[GROUP]["observation"])
    assert differs


def test_maps_that_the_package_does_not_have(smaclite: Path) -> None:
    with pytest.raises(UsageError, match="SMAClite has no map '5m'; it has 2s3z, hopeless"):
        play("smaclite/2s3z", path=str(smaclite), map="5m")


@pytest.mark.parametrize(
    ("name", "package", "variable"),
    [("smacv2/zerg_5_vs_5", "smacv2", "COVEY_SMACV2"), ("smaclite/2s3z", "smaclite", "COVEY_SMACLITE")],
)
def test_a_missing_package_is_a_line(name: str, package: str, variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(variable, raising=False)
    with pytest.raises(
        MissingPackage, match=f"needs {package}, which is not installed: .*task.path or {variable}"
    ) as line:
        play(name)
    assert "\n" not in str(line.value)
