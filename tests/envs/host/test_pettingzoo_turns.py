"""Games of turns: whose turn it is, who waits, and what everybody earns meanwhile."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from playing import Play, play

from covey.envs.host.pettingzoo.general import AnyConfig, make_any
from covey.envs.host.simulator import SimulatorError
from covey.errors import UsageError

TOYS = "zoo"
WAIT = 3


def make(*, turns: bool = True, time_limit: int = 100, **kwargs: Any) -> Play:
    config = AnyConfig(module=f"{TOYS}:Turns", kwargs=kwargs, turns=turns, time_limit=time_limit)
    return Play(make_any(config), config)


def masks(game: Play) -> list[list[int]]:
    found: list[list[int]] = game.groups["agents"]["action_mask"].astype(int).tolist()
    return found


def test_one_acts_and_the_others_wait() -> None:
    game = make()
    assert game.spec.groups["agents"].action.num_actions == 4  # type: ignore[union-attr]
    assert masks(game) == [[1, 1, 1, 0], [0, 0, 0, 1], [0, 0, 0, 1]]
    game.advance(agents=[2, WAIT, WAIT])
    assert masks(game) == [[0, 0, 0, 1], [1, 1, 1, 0], [0, 0, 0, 1]]
    assert game.groups["agents"]["observation"].tolist() == [[4, 0], [4, 1], [4, 0]]


def test_everybody_earns_at_once_also_while_waiting() -> None:
    game = make()
    game.advance(agents=[2, WAIT, WAIT])
    np.testing.assert_allclose(game.groups["agents"]["reward"], [0.1, -0.1, -0.1])
    game.advance(agents=[WAIT, 1, WAIT])
    np.testing.assert_allclose(game.groups["agents"]["reward"], [-0.1, 0.1, -0.1])


def test_everybody_lives_until_the_game_ends() -> None:
    game = make()  # of seven stones
    for move in ([2, WAIT, WAIT], [WAIT, 2, WAIT]):
        game.advance(agents=move)
        assert game.groups["agents"]["alive"].all() and not game.step["last"]
    assert masks(game)[2] == [1, 0, 0, 0]  # one stone is left
    game.advance(agents=[WAIT, WAIT, 0])
    group = game.groups["agents"]
    assert game.step["last"] and not game.step["truncated"] and group["terminated"].all()
    np.testing.assert_allclose(group["reward"], [-0.1, -0.1, -0.9])
    assert group["next_observation"][:, 0].tolist() == [0, 0, 0] and group["observation"][:, 0].tolist() == [7, 7, 7]
    assert group["next_action_mask"].astype(int).tolist() == [[0, 0, 0, 1]] * 3
    assert masks(game) == [[1, 1, 1, 0], [0, 0, 0, 1], [0, 0, 0, 1]]


def test_who_leaves_a_game_that_goes_on_waits_for_its_end() -> None:
    game = make(leaves=True)
    for move in ([0, WAIT, WAIT], [WAIT, 0, WAIT]):
        game.advance(agents=move)
    assert masks(game) == [[1, 1, 1, 0], [0, 0, 0, 1], [0, 0, 0, 1]]  # not the turn of the third, which left
    assert game.groups["agents"]["alive"].all()
    game.advance(agents=[2, WAIT, WAIT])
    game.advance(agents=[WAIT, 1, WAIT])
    assert game.step["last"] and game.groups["agents"]["terminated"].all()
    np.testing.assert_allclose(game.groups["agents"]["reward"], [-0.1, -0.9, 0], atol=1e-6)
    assert game.groups["agents"]["next_observation"][:, 0].tolist() == [0, 0, 5]  # the third saw what it saw last


def test_a_game_that_is_cut_is_truncated() -> None:
    game = make(stones=1, cut=True)
    game.advance(agents=[0, WAIT, WAIT])
    assert game.step["last"] and game.step["truncated"] and not game.groups["agents"]["terminated"].any()


def test_the_time_limit_counts_moves() -> None:
    game = make(time_limit=2)
    game.advance()
    game.advance()
    assert game.step["last"] and game.step["truncated"] and not game.groups["agents"]["terminated"].any()


def test_an_illegal_action_is_an_error() -> None:
    game = make()
    with pytest.raises(SimulatorError, match=r"^it is the turn of player_0, and its action 3 is not legal$"):
        game.advance(agents=[WAIT, WAIT, WAIT])


def test_games_of_turns_must_be_declared() -> None:
    with pytest.raises(
        UsageError, match=r"^agents take turns in '.*', so they cannot all act at once: set task.turns=true$"
    ):
        make(turns=False)


def test_connect_four_is_won_by_four_in_a_column() -> None:
    game = play("pettingzoo/connect_four")
    assert game.spec.teams == (("player_0",), ("player_1",))
    for move in range(7):
        mine = move % 2 == 0
        assert game.groups["player_0"]["action_mask"][0].tolist() == [mine] * 7 + [not mine]
        assert game.groups["player_1"]["action_mask"][0].tolist() == [not mine] * 7 + [mine]
        game.advance(player_0=[0 if mine else 7], player_1=[7 if mine else 1])
    assert game.step["last"] and not game.step["truncated"]
    assert game.groups["player_0"]["reward"].tolist() == [1] and game.groups["player_1"]["reward"].tolist() == [-1]
    final = game.groups["player_1"]["next_observation"][0]
    assert final[:, 1, 0].tolist() == [0, 0, 0, 1, 1, 1] and final[:, 0, 1].tolist() == [0, 0, 1, 1, 1, 1]


def test_a_full_column_of_connect_four_is_illegal() -> None:
    game = play("pettingzoo/connect_four")
    for move in range(6):
        mine = move % 2 == 0
        game.advance(player_0=[3 if mine else 7], player_1=[7 if mine else 3])
    assert game.groups["player_0"]["action_mask"][0].tolist() == [1, 1, 1, 0, 1, 1, 1, 0]
