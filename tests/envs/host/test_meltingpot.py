"""The real Melting Pot, from its source archive: downloaded once, unpacked, and stepped.

The archive holds no bots, and is all that substrates need. Where the registry cannot be reached, or what the archive
imports is not installed, its tests are skipped, and say so.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tarfile
from typing import Any

import numpy as np
import pytest
from playing import Play, play

from covey.envs.host import meltingpot
from covey.envs.host.meltingpot import NEEDED, MeltingPotConfig
from covey.errors import MissingExtra, MissingPackage, UsageError
from covey.registry import tasks
from covey.specs import Discrete

GROUP = "agents"
ARCHIVE = "dm-meltingpot==2.4.1"
DILEMMA = "meltingpot/prisoners_dilemma_in_the_matrix__repeated"


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder that the variable COVEY_MELTINGPOT names, or one with the unpacked archive."""
    lacking = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if lacking:
        pytest.skip(f"not installed: {', '.join(lacking)}")
    if named := os.environ.get("COVEY_MELTINGPOT"):
        return named
    place = tmp_path_factory.mktemp("meltingpot")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:", ARCHIVE]
    try:
        done = subprocess.run([*command, "--dest", str(place)], capture_output=True, text=True, timeout=240)
    except subprocess.TimeoutExpired:
        pytest.skip("the registry did not answer in time")
    if done.returncode:
        pytest.skip(f"{ARCHIVE} cannot be downloaded: {done.stderr.strip().splitlines()[-1:]}")
    (archive,) = place.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        tar.extractall(place, filter="data")
    return str(place)


def world(game: Play) -> np.ndarray:
    picture: np.ndarray = game.simulator.render()
    return picture


def test_the_repeated_dilemma(folder: str) -> None:
    """What players see and do, episodes that differ, and a limit that is a cut.

    Nothing is held about equal seeds: a substrate that is built twice with one often is another.
    """
    one, other = (play(DILEMMA, path=folder, time_limit=6, number=number) for number in (0, 1))
    group = one.spec.groups[GROUP]
    assert group.num_agents == 2 and group.action == Discrete(8)
    assert group.observation_shape == {
        "INTERACTION_INVENTORIES": (2, 2),
        "INVENTORY": (2,),
        "READY_TO_SHOOT": (1,),
        "RGB": (40, 40, 3),
    }
    assert group.observation_dtype["RGB"] == np.uint8 and group.observation_dtype["INVENTORY"] == np.float32
    differs = not np.array_equal(world(one), world(other))
    for step in range(1, 14):
        one.choose()
        other.advance(**one.actions)
        one.episodes.advance()
        differs = differs or not np.array_equal(world(one), world(other))
        assert bool(one.step["last"]) == bool(one.step["truncated"]) == (step % 6 == 0)
        assert not one.groups[GROUP]["terminated"].any() and one.groups[GROUP]["reward"].dtype == np.float32
    assert differs
    np.testing.assert_array_equal(one.groups[GROUP]["observation"]["INVENTORY"], [[1, 1], [1, 1]])
    assert world(one).shape[-1] == 3 and world(one).std() > 0


def test_tensorflow_was_not_there_and_is_not_now(folder: str) -> None:
    """The stand-in is gone after the import, so that no other package takes it for the real one."""
    if importlib.util.find_spec("tensorflow") is not None:
        pytest.skip("tensorflow is installed")
    play(DILEMMA, path=folder)
    assert "meltingpot.bot" in sys.modules and "tensorflow" not in sys.modules


def test_an_ending_of_the_substrate_is_one(folder: str) -> None:
    """Its own limit, put back to 3 steps, stands for the endings by chance of matrix games."""
    game = play(DILEMMA, path=folder, time_limit=50)
    players = game.simulator.environment
    players._config = meltingpot.limited(players._library, DILEMMA.partition("/")[2], 3)
    game.simulator.reset(1)
    for step in range(1, 4):
        game.advance()
        assert bool(game.step["last"]) == (step == 3)
    assert not game.step["truncated"] and game.groups[GROUP]["terminated"].all()


def test_fewer_observations_and_pixels(folder: str) -> None:
    game = play(DILEMMA, path=folder, observations=["RGB", "COLLECTIVE_REWARD"], image_stride=8)
    assert game.spec.groups[GROUP].observation_shape == {"COLLECTIVE_REWARD": (1,), "RGB": (5, 5, 3)}
    game.advance()


@pytest.mark.slow
def test_commons_harvest(folder: str) -> None:
    """Seven players, who see more pixels."""
    game = play("meltingpot/commons_harvest__open", path=folder, time_limit=5)
    group = game.spec.groups[GROUP]
    assert group.num_agents == 7 and group.observation_shape == {"READY_TO_SHOOT": (1,), "RGB": (88, 88, 3)}
    for step in range(1, 7):
        game.advance()
        assert bool(game.step["truncated"]) == (step == 5)
    assert world(game).shape == (144, 192, 3)


@pytest.mark.slow
def test_roles_are_groups(folder: str) -> None:
    game = play("meltingpot/predator_prey__open", path=folder, time_limit=3, roles=["prey", "predator", "prey"])
    assert {name: group.num_agents for name, group in game.spec.groups.items()} == {"prey": 2, "predator": 1}
    assert game.spec.teams == (("predator",), ("prey",))
    for _ in range(3):
        game.advance()
    assert game.step["truncated"]
    family = play("meltingpot/daycare", path=folder).spec
    assert {name: group.num_agents for name, group in family.groups.items()} == {"child": 1, "parent": 1}
    assert len(family.cooperating) == 1


@pytest.mark.slow
def test_cooks_share_their_reward(folder: str) -> None:
    game = play("meltingpot/collaborative_cooking__cramped", path=folder, time_limit=20)
    assert game.spec.groups[GROUP].shared_reward
    for _ in range(20):
        game.advance()
        assert np.ptp(game.groups[GROUP]["reward"]) == 0


@pytest.mark.slow
def test_every_substrate_has_a_task_with_its_own_limit(folder: str) -> None:
    library = meltingpot.import_meltingpot(folder)
    ready = {entry.name.partition("/")[2]: entry for entry in tasks if entry.name.startswith("meltingpot/")}
    assert set(ready) == set(library.SUBSTRATES) and len(ready) == 49
    for name, entry in ready.items():
        config = library.get_config(name)
        settings = config.lab2d_settings_builder(roles=config.default_player_roles, config=config)
        assert entry.defaults().time_limit == settings["maxEpisodeLengthFrames"], name


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"roles": ("dog",)}, "task.roles: prisoners_dilemma_in_the_matrix__repeated has no role dog; it has default"),
        ({"observations": ("SMELL",)}, "task.observations: .* has no SMELL; it has COLLECTIVE_REWARD, INTERACTION_"),
    ],
)
def test_what_a_substrate_does_not_have(folder: str, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        play(DILEMMA, path=folder, **fields)


# --------------------------------------------------------------------------------------------- without Melting Pot


def test_returns_say_whose_they_are() -> None:
    assert "the player's own" in MeltingPotConfig().recipe().returns
    assert "the team" in MeltingPotConfig(substrate="collaborative_cooking__ring").recipe().returns


def test_a_missing_package_is_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.delenv("COVEY_MELTINGPOT", raising=False)
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == "dmlab2d" else found(name, *more)
    )
    with pytest.raises(MissingExtra, match=r"Melting Pot needs the extra: pip install 'covey\[meltingpot\]'"):
        play("meltingpot/clean_up")


def test_a_missing_archive_is_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    if "meltingpot" in sys.modules or importlib.util.find_spec("meltingpot") is not None:
        pytest.skip("it is installed, or was found for another test")
    monkeypatch.delenv("COVEY_MELTINGPOT", raising=False)
    monkeypatch.setattr(meltingpot, "NEEDED", ())
    with pytest.raises(MissingPackage, match=r"needs meltingpot, .* `pip download .*task.path or COVEY_MELTINGPOT"):
        play("meltingpot/clean_up")
