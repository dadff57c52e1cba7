"""Episodes of one copy, in this process: who lives, what ends how, what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from simulators import Clock, ClockConfig

from covey.envs.host import layout
from covey.envs.host.episodes import Episodes, episode_seed
from covey.envs.host.simulator import SimulatorError, Source
from covey.envs.host.worker import describe


def make_episodes(**fields: Any) -> tuple[Episodes, dict[str, Any]]:
    """A clock and its rows, at the beginning of its first episode."""
    source = Source(name="toy/clock", make=Clock, config=ClockConfig(**fields))
    simulator = source.simulator()
    tree = layout.layout(describe(source, simulator))
    arrays = layout.arrays(tree, 1, bytearray(layout.num_bytes(tree, 1)))
    row = layout.rows(arrays, 0)
    row["seed"][...] = 7
    episodes = Episodes(simulator, source.config, row, number=0)
    episodes.begin()
    return episodes, row


def step(episodes: Episodes, row: dict[str, Any], *actions: int) -> dict[str, Any]:
    """What the rows hold after a step."""
    row["actions"]["agents"][...] = actions
    episodes.advance()
    group: dict[str, Any] = layout.map_leaves(np.copy, row["step"]["groups"]["agents"])
    return group | {"last": bool(row["step"]["last"]), "truncated": bool(row["step"]["truncated"])}


def test_a_reset_shows_the_first_observation_and_no_reward() -> None:
    _, row = make_episodes()
    group = row["step"]["groups"]["agents"]
    seed = episode_seed(7, 0, 0) % 1000
    np.testing.assert_array_equal(group["observation"], [[seed, 0, 0], [seed, 0, 0]])
    np.testing.assert_array_equal(group["next_observation"], group["observation"])
    np.testing.assert_array_equal(group["reward"], [0, 0])
    np.testing.assert_array_equal(group["alive"], [True, True])
    np.testing.assert_array_equal(row["step"]["state"], [seed, 0])
    assert not row["step"]["last"]


def test_the_time_limit_truncates_and_keeps_the_true_last_observation() -> None:
    episodes, row = make_episodes(time_limit=2)
    first = step(episodes, row, 1, 2)
    assert not first["last"]
    np.testing.assert_array_equal(first["reward"], [1, 2])
    second = step(episodes, row, 1, 0)
    before, after = episode_seed(7, 0, 0) % 1000, episode_seed(7, 0, 1) % 1000
    assert second["last"] and second["truncated"] and not second["terminated"].any()
    np.testing.assert_array_equal(second["next_observation"], [[before, 2, 2], [before, 2, 2]])
    np.testing.assert_array_equal(second["observation"], [[after, 0, 0], [after, 0, 0]])
    assert second["alive"].all()
    np.testing.assert_array_equal(row["step"]["next_state"], [before, 2])
    np.testing.assert_array_equal(row["step"]["state"], [after, 0])


def test_the_time_limit_may_terminate() -> None:
    episodes, row = make_episodes(time_limit=1, time_limit_terminates=True)
    shown = step(episodes, row, 0, 0)
    assert shown["last"] and not shown["truncated"] and shown["terminated"].all()


def test_an_agent_terminates_once_and_earns_nothing_afterwards() -> None:
    episodes, row = make_episodes(dies_at=2, time_limit=4)
    shown = [step(episodes, row, 1, 1) for _ in range(4)]
    np.testing.assert_array_equal([s["terminated"][0] for s in shown], [False, True, False, False])
    np.testing.assert_array_equal([s["alive"][0] for s in shown[:3]], [True, False, False])
    np.testing.assert_array_equal([s["reward"][0] for s in shown], [1, 1, 0, 0])
    np.testing.assert_array_equal([s["reward"][1] for s in shown], [1, 1, 1, 1])
    assert shown[3]["last"] and shown[3]["truncated"], "the other agent was cut off"


def test_shaping_is_beside_the_reward_and_nothing_for_the_dead() -> None:
    episodes, row = make_episodes(dies_at=2, time_limit=4, shaping=0.5)
    assert row["step"]["groups"]["agents"]["shaping"].tolist() == [0, 0]
    shown = [step(episodes, row, 1, 1) for _ in range(4)]
    np.testing.assert_array_equal([s["shaping"][0] for s in shown], [0.5, 0.5, 0, 0])
    np.testing.assert_array_equal([s["shaping"][1] for s in shown], [0.5, 0.5, 0.5, 0.5])
    np.testing.assert_array_equal([s["reward"][0] for s in shown], [1, 1, 0, 0])


def test_an_episode_ends_when_nobody_is_alive() -> None:
    episodes, row = make_episodes(dies_at=2, num_agents=1)
    step(episodes, row, 0)
    shown = step(episodes, row, 0)
    assert shown["last"] and not shown["truncated"] and shown["terminated"].all()
    assert shown["alive"].all(), "the next episode has begun"


def test_an_agent_may_join_later() -> None:
    episodes, row = make_episodes(joins_at=2, time_limit=5)
    assert row["step"]["groups"]["agents"]["alive"].tolist() == [True, False]
    shown = [step(episodes, row, 1, 1) for _ in range(4)]
    assert [s["alive"][1] for s in shown] == [False, True, True, True]
    np.testing.assert_array_equal([s["reward"][1] for s in shown], [0, 0, 1, 1])
    assert not any(s["terminated"].any() for s in shown)


@pytest.mark.parametrize(
    ("fails", "message"),
    [
        ("nan", "observations of group agents are not finite: nan"),
        ("nan reward", "rewards of group agents are not finite: inf"),
        ("nan state", "global state are not finite: nan"),
        ("shape", r"observations of group agents have shape \[2, 2\], not \[2, 3\]"),
        ("exits", r"step ended the process \(exit code 4\)"),
        ("raises", "step failed: ZeroDivisionError: division by zero"),
        ("unshaped", "no shaping of group agents, though there was some before"),
        ("metrics={'cought': 1.0}", "step's metrics: metric caught is missing"),
        ("metrics={'caught': 1.0, 'cought': 1.0}", "step's metrics: the spec has no metric cought"),
        ("metrics={}", "step's metrics: metric caught is missing"),
        ("terminated=True", "step's terminated must be a dictionary by group, not bool"),
        ("terminated={'agents': [True]}", r"terminated of group agents has shape \[1\], not \[2\]"),
        ("alive={}", "step's alive: group agents is missing"),
        ("rewards={'agent': [1.0, 1.0]}", "step's rewards: group agents is missing"),
        ("rewards=[1.0, 1.0]", "step's rewards must be a dictionary by group, not list"),
        ("observations=None", "step's observations must be a dictionary by group, not NoneType"),
        (
            "action_masks={'agents': [[1, 1, 1], [1, 1, 1]]}",
            "action_masks: the first reset had none of group agents",
        ),
    ],
)
def test_what_a_simulator_may_not_do(fails: str, message: str) -> None:
    episodes, row = make_episodes(fails=fails, time_limit=2, shaping=float(fails == "unshaped"))
    step(episodes, row, 0, 0)
    with pytest.raises(SimulatorError, match=message):
        step(episodes, row, 0, 0)
    assert episodes.place().startswith("copy 0, step ")


def test_large_numbers_are_finite() -> None:
    episodes, row = make_episodes(fails="large")
    step(episodes, row, 0, 0)
    assert step(episodes, row, 0, 0)["observation"].min() == np.finfo(np.float32).max


def test_seeds_differ_between_copies_and_episodes_and_fit_31_bits() -> None:
    seeds = {episode_seed(seed, copy, episode) for seed in range(4) for copy in range(8) for episode in range(8)}
    assert len(seeds) == 4 * 8 * 8
    assert all(0 <= seed < 2**31 for seed in seeds)


def test_a_simulator_that_cannot_be_made_says_why() -> None:
    source = Source(name="toy/clock", make=Clock, config=ClockConfig(fails="start"))
    with pytest.raises(SimulatorError, match="toy/clock cannot be made: FileNotFoundError: no such map: desert"):
        source.simulator()
