"""Environments in which all act at once: who lives, what they see, and every trap of real ones in a toy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import pytest
from playing import Play, play

from covey.envs.host.pettingzoo import parallel
from covey.envs.host.pettingzoo.general import AnyConfig, make_any
from covey.envs.host.simulator import SimulatorError
from covey.errors import UsageError
from covey.specs import Discrete, MultiDiscrete

TOYS = "zoo"


def make(toy: str, *, time_limit: int = 100, kwargs: dict[str, Any] | None = None, **fields: Any) -> Play:
    config = AnyConfig(module=f"{TOYS}:{toy}", kwargs=kwargs or {}, time_limit=time_limit, **fields)
    return Play(make_any(config), config)


def test_observations_rewards_and_state_are_stacked_as_float32() -> None:
    game = make("Duo")
    assert list(game.spec.groups) == ["agents"] and game.spec.state_shape == (2,)
    game.advance(agents=[2, 1])
    seed = game.groups["agents"]["observation"][0, 2]
    np.testing.assert_array_equal(game.groups["agents"]["observation"], [[1, 2, seed], [1, 1, seed]])
    np.testing.assert_array_equal(game.groups["agents"]["reward"], [2, 1])
    np.testing.assert_array_equal(game.step["state"], [1, seed])
    types = {game.groups["agents"][name].dtype for name in ("observation", "reward")}
    assert types == {np.dtype(np.float32)} and game.step["state"].dtype == np.float32


def test_every_episode_has_a_seed_of_its_own() -> None:
    game = make("Duo", time_limit=2)
    seeds = []
    for _ in range(6):
        seeds.append(float(game.groups["agents"]["observation"][0, 2]))
        game.advance()
    assert seeds[0] == seeds[1] and seeds[2] == seeds[3] and len({seeds[0], seeds[2], seeds[4]}) == 3


def test_an_agent_that_dies_shows_its_last_observation_from_then_on() -> None:
    game = make("Duo", kwargs={"ends": {"walker_0": (3, "terminated")}}, time_limit=5)
    for step in (1, 2, 3):
        game.advance(agents=[step % 3, 1])
    group = game.groups["agents"]
    assert group["terminated"].tolist() == [True, False] and group["alive"].tolist() == [False, True]
    assert group["next_observation"][0].tolist()[:2] == [3, 0] and group["reward"].tolist() == [0, 1]
    game.advance(agents=[2, 2])
    assert group["terminated"].tolist() == [False, False] and group["alive"].tolist() == [False, True]
    assert group["observation"][:, :2].tolist() == [[3, 0], [4, 2]] and group["reward"].tolist() == [0, 2]
    game.advance()  # the limit cuts the survivor off, and only it
    assert game.step["last"] and game.step["truncated"] and group["terminated"].tolist() == [False, False]
    assert group["next_observation"][:, 0].tolist() == [3, 5] and group["observation"][:, 0].tolist() == [0, 0]


def test_the_state_remains_the_last_good_one_after_an_agent_left() -> None:
    game = make("Duo", kwargs={"ends": {"walker_0": (2, "terminated")}}, time_limit=4)
    states = []
    for _ in range(4):
        game.advance()
        states.append(float(game.step["next_state"][0]))
    assert states == [1, 1, 1, 1] and float(game.step["state"][0]) == 0  # that of the new episode


def test_what_is_called_state_need_not_be_one() -> None:
    game = play("pettingzoo/any", module="classic/rps-v2", time_limit=3)  # keeps a dictionary under that name
    assert game.spec.state_shape is None and game.spec.groups["agents"].observation_shape == (4,)
    assert make("Duo", state=False).spec.state_shape is None


def test_a_state_that_fails_while_all_live_is_an_error() -> None:
    game = make("Duo", kwargs={"trap": "state"})
    game.advance()
    with pytest.raises(SimulatorError, match=r"^its global state failed: AttributeError: 'NoneType' object"):
        game.advance()


def test_everybody_truncated_by_the_environment_is_a_truncation() -> None:
    ends = {"walker_0": (2, "truncated"), "walker_1": (2, "truncated")}
    game = make("Duo", kwargs={"ends": ends})
    game.advance()
    assert not game.step["last"]
    game.advance()
    assert game.step["last"] and game.step["truncated"]
    assert game.groups["agents"]["terminated"].tolist() == [False, False]


def test_at_the_last_step_some_terminate_and_some_are_truncated() -> None:
    game = make("Duo", kwargs={"ends": {"walker_0": (1, "terminated"), "walker_1": (1, "truncated")}})
    game.advance()
    assert game.step["last"] and game.step["truncated"]
    assert game.groups["agents"]["terminated"].tolist() == [True, False]


def test_an_agent_truncated_alone_counts_as_terminated() -> None:
    """In covey, an agent lives until it terminates or its episode ends."""
    game = make("Duo", kwargs={"ends": {"walker_0": (1, "truncated")}})
    game.advance()
    assert not game.step["last"] and game.groups["agents"]["terminated"].tolist() == [True, False]
    game.advance()
    assert game.groups["agents"]["alive"].tolist() == [False, True]


def test_an_agent_may_join_later() -> None:
    game = make("Duo", kwargs={"trap": "late"}, time_limit=4, state=False)
    group = game.groups["agents"]
    for _ in range(2):  # episodes
        assert group["alive"].tolist() == [True, False] and not group["observation"][1].any()
        game.advance(agents=[1, 2])
        assert group["alive"].tolist() == [True, False] and group["reward"].tolist() == [1, 0]
        game.advance(agents=[1, 2])
        assert group["alive"].tolist() == [True, True] and group["reward"].tolist() == [1, 0]
        assert group["observation"][1, 0] == 2
        game.advance(agents=[1, 2])
        assert group["reward"].tolist() == [1, 2] and not group["terminated"].any()
        game.advance()
        assert game.step["last"] and game.step["truncated"]


def test_the_environment_never_reaches_a_limit_of_its_own() -> None:
    """The toy reports its limit as a termination, as multiwalker does."""
    game = make("Duo", time_limit=3)
    assert game.simulator.environment.max_cycles == 4
    for _ in range(3):
        game.advance()
    assert game.step["last"] and game.step["truncated"] and not game.groups["agents"]["terminated"].any()
    keeps = r"^max_cycles cannot be set, because covey keeps the time limit: set task.time_limit instead$"
    with pytest.raises(UsageError, match=keeps):
        make("Duo", kwargs={"max_cycles": 7})


def test_what_an_environment_may_not_do_is_one_line() -> None:
    def error(trap: str) -> str:
        with pytest.raises(SimulatorError) as caught:
            game = make("Duo", kwargs={"trap": trap}, state=False)
            for _ in range(2):
                game.advance()
        return str(caught.value)

    assert error("stranger") == "agent runner_7 appeared, which is not among the possible_agents"
    assert error("shape") == "the observation of walker_1 has shape [1], its space [3]"
    assert error("silent") == "there is no observation of agent walker_1, which acts next"
    assert error("old reset") == "its reset must return observations and infos, both by agent"


def test_groups_follow_prefixes_and_spaces() -> None:
    groups = make("Many").spec.groups
    assert list(groups) == ["archer_0", "archer_1", "knight"]
    assert groups["archer_0"].observation_shape == {"image": (5, 7, 3), "arrows": (3,)}
    assert groups["archer_1"].observation_shape == {"image": (5, 7, 3), "arrows": (2,)}
    assert groups["archer_0"].observation_dtype == {"image": np.uint8, "arrows": np.float32}
    assert groups["archer_0"].action == Discrete(3) and groups["knight"].action == MultiDiscrete((2, 3))
    assert groups["knight"].observation_shape == (4,)


def test_prefixes() -> None:
    assert parallel.prefix_groups(["a_0", "b_0", "a_1"]) == {"a": ["a_0", "a_1"], "b": ["b_0"]}
    assert parallel.prefix_groups(["a_0", "a_10"]) == {"agents": ["a_0", "a_10"]}
    assert parallel.prefix_groups(["alice", "bob"]) == {"alice": ["alice"], "bob": ["bob"]}
    assert parallel.prefix_groups(["0", "1"]) == {"agents": ["0", "1"]}


def test_a_configuration_can_name_groups_and_teams() -> None:
    game = make("Duo", agent_groups={"left": ["walker_0"], "right": "walker_1"}, teams=(("left",), ("right",)))
    assert list(game.spec.groups) == ["left", "right"] and game.spec.teams == (("left",), ("right",))
    game.advance(left=[2], right=[1])
    assert game.groups["left"]["reward"].tolist() == [2] and game.groups["right"]["reward"].tolist() == [1]
    assert list(make("Duo", agent_groups={"everyone": "walker"}).spec.groups) == ["everyone"]


def test_groups_that_do_not_fit_are_refused() -> None:
    def error(toy: str, **fields: Any) -> str:
        with pytest.raises(UsageError) as caught:
            make(toy, **fields)
        return str(caught.value)

    assert (
        error("Duo", agent_groups={"x": ["walker_0"]})
        == "agent_groups: agent walker_1 is in no group; each must be in one"
    )
    assert error("Duo", agent_groups={"x": "walker", "y": ["walker_1"]}) == (
        "agent_groups: agent walker_1 is in 2 groups; each must be in one"
    )
    assert error("Duo", agent_groups={"x": "runner"}) == (
        "agent_groups.x: there is no agent runner; agents are walker_0, walker_1"
    )
    assert error("Many", agent_groups={"x": "archer", "y": "knight"}) == (
        "group x: archer_0 and archer_1 have different spaces; put them in two groups"
    )
    assert "must name each of the groups" in error("Duo", teams=(("red",),))


def test_actions_and_masks_arrive_as_the_environment_means_them() -> None:
    game = make("Many")
    assert game.description.masked == ("archer_0", "archer_1", "knight")
    np.testing.assert_array_equal(game.groups["archer_0"]["action_mask"], [[False, True, True]])
    np.testing.assert_array_equal(game.groups["knight"]["action_mask"], [[True, False, True, True, False]])
    game.advance(archer_0=[2], archer_1=[1], knight=[[1, 2]])
    acted = game.simulator.environment.acted
    assert acted["archer_0"] == 12 and acted["archer_1"] == 11 and acted["knight_0"].tolist() == [1, 2]
    # In infos, nothing was said of legal actions this time: what was said last remains.
    np.testing.assert_array_equal(game.groups["knight"]["action_mask"], [[True, False, True, True, False]])
    assert game.groups["knight"]["reward"].tolist() == [0.5]  # a list of one number
    assert game.groups["knight"]["observation"].tolist() == [[0, 1, 0, 0]]


def test_an_image_is_kept_as_bytes_and_subsampled() -> None:
    image = np.arange(105, dtype=np.uint8).reshape(5, 7, 3)
    np.testing.assert_array_equal(make("Many").groups["archer_0"]["observation"]["image"][0], image)
    game = make("Many", image_stride=3)
    assert dict(cast(Mapping[str, Any], game.spec.groups["archer_0"].observation_shape))["image"] == (2, 3, 3)
    np.testing.assert_array_equal(game.groups["archer_0"]["observation"]["image"][0], image[[0, 3]][:, [0, 3, 6]])


@pytest.mark.parametrize("trap", ["", "tuples"])
def test_sequences_are_padded_and_each_row_says_that_it_is_one(trap: str) -> None:
    game = make("Rows", sequence_length=2, kwargs={"trap": trap})
    seen = game.groups["agents"]["observation"]
    assert seen.shape == (2, 2, 3) and not seen.any()
    game.advance()
    np.testing.assert_array_equal(seen[0], [[0.5, 0.5, 1], [0, 0, 0]])
    game.advance()
    np.testing.assert_array_equal(seen[1], [[0.5, 0.5, 1], [0.5, 0.5, 1]])
    with pytest.raises(
        SimulatorError, match=r"^the observation of walker_0 has 3 rows, more than task.sequence_length=2$"
    ):
        game.advance()
    with pytest.raises(UsageError, match=r"set task\.sequence_length, the length to pad them to$"):
        make("Rows")


def test_pictures() -> None:
    game = make("Duo")
    game.advance()
    picture = game.simulator.render()
    assert picture.shape == (4, 6, 3) and picture.dtype == np.uint8 and (picture == 1).all()
    with pytest.raises(UsageError, match=r"^it draws no pictures \(rgb_array\); its render modes: rgb_array$"):
        make("Duo", kwargs={"trap": "no pictures"}).simulator.render()
