"""Every ready task: what it shows is what its spec says and what PettingZoo's own environment answers."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from playing import Play, assert_equal, leaves, play

from covey.envs.host.pettingzoo.recipe import find_maker, prepare_headless
from covey.registry import tasks
from covey.specs import Continuous

READY = [entry.name for entry in tasks if entry.name.startswith(("pettingzoo/", "magent2/"))]
READY.remove("pettingzoo/any")
SMALL: dict[str, dict[str, Any]] = {  # what is large by default
    "magent2/adversarial_pursuit": {"map_size": 16},
    "magent2/battle": {"map_size": 16},
    "pettingzoo/cooperative_pong": {"image_stride": 40},
    "pettingzoo/pistonball": {"num_pistons": 4, "image_stride": 40},
}
STEPS = {"pettingzoo/cooperative_pong": 60, "pettingzoo/pistonball": 40, "pettingzoo/pursuit": 80}
ENDLESS = [  # nothing but the time limit ends them within a few random steps
    name
    for name in READY
    if name.startswith(("magent2/", "pettingzoo/simple")) or name.endswith(("pursuit", "multiwalker", "zombies"))
]
NO_CHANCE = ("magent2/battle", "pettingzoo/connect_four", "pettingzoo/tictactoe")  # the seed decides nothing


def small(name: str, **fields: Any) -> Play:
    return play(name, **{**SMALL.get(name, {}), **fields})


@pytest.mark.parametrize("name", READY)
def test_a_few_hundred_random_steps(name: str) -> None:
    """`Episodes` checks shapes and that numbers are finite; the same seed gives the same steps, another one others."""
    one, same, other = small(name), small(name), small(name, number=1)
    differs = False
    for _ in range(STEPS.get(name, 200)):
        assert_equal(one.step, same.step)
        one.choose()
        same.advance(**one.actions)
        other.advance(**(one.actions if not one.description.masked else {}))
        one.episodes.advance()
        differs = differs or any(
            not np.array_equal(mine, its) for mine, its in zip(leaves(one.step), leaves(other.step), strict=True)
        )
        check_step(one)
    assert differs or name in NO_CHANCE


def check_step(game: Play) -> None:
    for name, group in game.spec.groups.items():
        step = game.groups[name]
        if "action_mask" in step:
            assert step["action_mask"].any(-1).all() and step["next_action_mask"].any(-1).all()
        if group.shared_reward:
            rewards = step["reward"][step["alive"] | step["terminated"]]
            assert rewards.size == 0 or np.ptp(rewards) < 1e-4
    for sharing in game.spec.shared_rewards:
        assert np.ptp([game.groups[name]["reward"].mean() for name in sharing]) < 1e-5
    if not game.step["last"]:
        assert not game.step["truncated"]
    elif not game.step["truncated"]:  # everybody terminated, now or before
        assert any(step["terminated"].any() for step in game.groups.values())


@pytest.mark.parametrize("name", ENDLESS)
def test_the_time_limit_truncates(name: str) -> None:
    game = small(name, time_limit=6)
    for step in range(1, 13):
        game.advance()
        cut = step % 6 == 0
        assert bool(game.step["last"]) == bool(game.step["truncated"]) == cut
        if cut:
            assert all(not group["terminated"].any() and group["alive"].all() for group in game.groups.values())


@pytest.mark.parametrize("name", READY)
def test_pictures(name: str) -> None:
    game = small(name)
    game.advance()
    picture = game.simulator.render()
    assert picture.dtype == np.uint8 and picture.ndim == 3 and picture.shape[-1] == 3 and picture.std() > 0


@pytest.mark.parametrize("name", READY)
def test_every_task_says_what_a_return_is(name: str) -> None:
    assert len(tasks[name].defaults().recipe().returns) > 20


# ------------------------------------------------------------------------------------- PettingZoo's own as the oracle

ORACLES: dict[str, dict[str, Any]] = {
    "magent2/adversarial_pursuit": {"map_size": 16},
    "magent2/battle": {"map_size": 16},
    "pettingzoo/cooperative_pong": {"image_stride": 1},
    "pettingzoo/knights_archers_zombies": {"line_death": True},
    "pettingzoo/multiwalker": {"terminate_on_fall": False},
    "pettingzoo/pistonball": {"num_pistons": 3, "image_stride": 1},
    "pettingzoo/pursuit": {},
    "pettingzoo/simple_spread": {},
    "pettingzoo/simple_world_comm": {"continuous_actions": False},
    "pettingzoo/simple_speaker_listener": {},
    "pettingzoo/simple_reference": {"continuous_actions": False},
}


@pytest.mark.parametrize("name", ORACLES)
def test_steps_are_those_of_the_environment_itself(name: str) -> None:
    """Stepped through its own public conversion, with the same seed and actions: observations, rewards, who ends."""
    game = play(name, **ORACLES[name], time_limit=500)
    recipe = game.config.recipe()  # type: ignore[attr-defined]
    prepare_headless()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        raw = find_maker(recipe.module, turns=False)(**recipe.arguments, max_cycles=501, render_mode="rgb_array")
        game.simulator.reset(5)
        first, _ = raw.reset(seed=5)
    alive = {name: np.ones(group.num_agents, bool) for name, group in game.spec.groups.items()}
    members = {
        agent: (group, row) for group, each in game.simulator.groups.items() for row, agent in enumerate(each.agents)
    }
    seen = {agent: np.asarray(value, np.float32) for agent, value in first.items()}
    for _ in range({"pettingzoo/pistonball": 15, "pettingzoo/cooperative_pong": 15}.get(name, 60)):
        game.choose()
        answer = game.simulator.step(game.actions)
        given = {agent: game.actions[members[agent][0]][members[agent][1]] for agent in raw.agents}
        observations, rewards, terminations, _, _ = raw.step(given)
        seen |= {agent: np.asarray(value, np.float32) for agent, value in observations.items()}
        assert answer.rewards is not None
        if answer.alive is not None:  # otherwise nobody left
            alive = {name: flags.copy() for name, flags in answer.alive.items()}
        for agent, (group, row) in members.items():
            np.testing.assert_array_equal(answer.observations[group][row], seen[agent])
            assert answer.rewards[group][row] == np.float32(rewards.get(agent, 0))
            if agent in terminations:
                said = answer.terminated is not None and answer.terminated[group][row]
                assert said == terminations[agent]
            assert alive[group][row] == (agent in raw.agents)
        if not raw.agents:
            break
    raw.close()


@pytest.mark.parametrize("name", ["pettingzoo/multiwalker", "pettingzoo/simple_spread", "pettingzoo/simple_world_comm"])
def test_states_that_covey_puts_together_are_the_environments_own(name: str) -> None:
    game = play(name)
    for _ in range(20):
        game.advance()
        assert not game.step["last"]
        expected = game.simulator.environment.state()
        np.testing.assert_allclose(game.step["state"], expected, rtol=1e-6, atol=1e-6)


# ------------------------------------------------------------------------------------------------------------- traps


def test_multiwalker_reports_how_far_the_package_came_and_who_stands() -> None:
    game = play("pettingzoo/multiwalker")
    for _ in range(2):  # episodes
        world = game.simulator.environment.unwrapped.env
        start, way = world.package.position.x, []
        game.advance()
        assert float(game.step["metrics"]["falls"]) == 0 and float(game.step["metrics"]["standing"]) == 3
        while not game.step["last"]:
            way.append(world.package.position.x - start)
            assert float(game.step["metrics"]["displacement"]) == pytest.approx(way[-1], abs=1e-5)
            game.advance()
        falls = float(game.step["metrics"]["falls"])
        assert np.ptp(way) > 0.1 and not game.step["truncated"]
        assert 1 <= falls == 3 - float(game.step["metrics"]["standing"])


def test_multiwalkers_shaping_pays_for_the_way_and_leaves_rewards_alone() -> None:
    shaped, plain = play("pettingzoo/multiwalker", shaping=2.0), play("pettingzoo/multiwalker")
    assert shaped.description.shaped == ("agents",) and "shaping" not in plain.groups["agents"]
    total = 0.0
    while not shaped.step["last"]:
        shaped.advance()
        plain.advance()
        shaping = shaped.groups["agents"]["shaping"]
        np.testing.assert_array_equal(shaped.groups["agents"]["reward"], plain.groups["agents"]["reward"])
        assert shaping[0] == shaping[1] == shaping[2]
        total += shaping[0]
    way = float(shaped.step["metrics"]["displacement"])
    assert abs(way) > 0.05 and total == pytest.approx(2.0 * 130 / 30 * way, rel=1e-3)
    shaped.advance()  # of the next episode: the way back to its beginning does not count
    assert abs(shaped.groups["agents"]["shaping"][0]) < 2.0 * 130 / 30 * 0.2


def test_multiwalkers_fall_one_by_one_and_its_state_never_fails() -> None:
    game = play("pettingzoo/multiwalker", terminate_on_fall=False, time_limit=300)
    alone = False
    for _ in range(400):
        game.advance()
        alive = game.groups["agents"]["alive"]
        alone = alone or (0 < alive.sum() < 3 and not game.step["last"])
    assert alone


def test_multiwalkers_processes_are_replaced_since_it_leaks() -> None:
    assert play("pettingzoo/multiwalker").description.episodes_per_process == 20_000


def test_multiwalker_shares_its_reward_where_asked() -> None:
    game = play("pettingzoo/multiwalker", reward="shared")
    assert game.spec.groups["agents"].shared_reward
    own = play("pettingzoo/multiwalker")
    for _ in range(10):
        own.advance()
        game.advance()
        rewards = game.groups["agents"]["reward"]
        assert rewards[0] == rewards[1] == rewards[2] == pytest.approx(own.groups["agents"]["reward"].mean(), abs=1e-5)
    assert np.ptp(own.groups["agents"]["reward"]) > 0


def test_knights_and_archers_die_alone() -> None:
    game = play("pettingzoo/knights_archers_zombies", line_death=True)
    walk_up = 0
    survivors = []
    while True:
        game.advance(archers=[walk_up, 5], knights=[5, 5])
        if game.groups["archers"]["terminated"].any() or game.step["last"]:
            break
    assert not game.step["last"] and game.groups["archers"]["terminated"].tolist() == [True, False]
    last_seen = game.groups["archers"]["next_observation"][0].copy()
    assert last_seen.any()
    for _ in range(3):
        game.advance(archers=[5, 5], knights=[5, 5])
        survivors.append(float(game.step["metrics"]["survivors"]))
        assert game.groups["archers"]["alive"].tolist() == [False, True]
        np.testing.assert_array_equal(game.groups["archers"]["observation"][0], last_seen)
    assert survivors == [3, 3, 3]


def test_the_kinds_of_observations_of_knights_and_archers_agree() -> None:
    kinds = ("vector", "vector_masked", "sequence", "image")
    games = {kind: play("pettingzoo/knights_archers_zombies", observation=kind) for kind in kinds}
    shapes = [game.spec.groups["archers"].observation_shape for game in games.values()]
    assert shapes == [(27, 5), (27, 11), (27, 12), (64, 64, 3)]
    assert games["image"].spec.state_shape is None and games["sequence"].spec.state_shape == (26, 10)
    for _ in range(40):
        games["vector"].choose()
        for kind in kinds[1:]:
            games[kind].advance(**games["vector"].actions)
        games["vector"].episodes.advance()
        vector, masked, sequence, _ = (game.groups["knights"]["observation"] for game in games.values())
        np.testing.assert_array_equal(vector, masked[..., 6:])
        for mine, padded in zip(masked, sequence, strict=True):
            rows = mine[mine.any(-1)]
            np.testing.assert_array_equal(padded[: len(rows), :-1], rows)
            assert (padded[: len(rows), -1] == 1).all() and not padded[len(rows) :].any()
    assert games["vector"].groups["knights"]["observation"].dtype == np.float32
    assert games["image"].groups["knights"]["observation"].std() > 0


def test_a_step_of_cooperative_pong_earns_its_share_of_the_time_limit() -> None:
    game = play("pettingzoo/cooperative_pong", time_limit=50, image_stride=4)
    before = game.groups["agents"]["observation"].copy()
    game.advance()
    np.testing.assert_allclose(game.groups["agents"]["reward"], 100 / 50, rtol=1e-6)
    assert not np.array_equal(game.groups["agents"]["observation"], before)  # without a render mode, it never draws


def test_a_battle_is_won_and_its_state_never_fails() -> None:
    """Red walks up to blue and hits it; blue does nothing."""
    moves = [(x, y) for x in range(-2, 3) for y in range(-2, 3) if x * x + y * y <= 4]
    hits = [(x, y) for x in (-1, 0, 1) for y in (-1, 0, 1) if (x, y) != (0, 0)]
    stay = moves.index((0, 0))

    def hunt(seen: np.ndarray) -> int:
        opponents = np.argwhere(seen[:, :, 3] > 0) - 6
        if not len(opponents):
            return int(game.random.integers(len(moves)))
        nearest = opponents[np.abs(opponents).max(1).argmin()]
        if np.abs(nearest).max() <= 1:
            return len(moves) + hits.index(tuple(nearest))
        return int(np.argmin([np.abs(nearest - move).sum() for move in np.array(moves)]))

    game = play("magent2/battle", map_size=16, time_limit=1000)
    red, blue = game.groups["red"], game.groups["blue"]
    terminated, returns = np.zeros(6), np.zeros(6)
    while True:
        died_before = ~blue["alive"]
        game.advance(red=[hunt(seen) for seen in red["observation"]], blue=[stay] * 6)
        terminated += blue["terminated"]
        returns += red["reward"]
        assert not blue["reward"][died_before].any()
        if game.step["last"]:
            break
        assert float(game.step["metrics"]["blue"]) == blue["alive"].sum() == 6 - terminated.sum()
    assert terminated.tolist() == [1] * 6 and red["terminated"].all() and not game.step["truncated"]
    assert (float(game.step["metrics"]["red"]), float(game.step["metrics"]["blue"])) == (6, 0)
    assert 30 < returns.sum() < 40  # 5 for each kill, 0.2 for each hit, less penalties
    assert game.spec.teams == (("red",), ("blue",))


def test_hanabis_rewards_add_up_to_its_score() -> None:
    game = play("pettingzoo/hanabi")
    assert game.spec.groups["agents"].shared_reward
    returns, ended = np.zeros(2), 0
    while ended < 5:
        state = game.simulator.game.unwrapped.hanabi_env.game_state
        game.advance()
        returns += game.groups["agents"]["reward"]
        if game.step["last"]:
            assert returns.tolist() == list(state.returns())
            returns, ended = np.zeros(2), ended + 1


def test_poker_is_a_game_of_two_teams_whose_rewards_cancel() -> None:
    game = play("pettingzoo/leduc_holdem")
    first = set()
    for _ in range(100):
        first.add(bool(game.groups["player_0"]["action_mask"][0, -1]))
        game.advance()
        rewards = [float(game.groups[name]["reward"][0]) for name in ("player_0", "player_1")]
        assert sum(rewards) == 0 and (any(rewards) <= bool(game.step["last"]))
    assert first == {True, False}


def test_particles_act_continuously_or_not() -> None:
    assert isinstance(play("pettingzoo/simple_tag").spec.groups["agent"].action, Continuous)
    game = play("pettingzoo/simple_tag", continuous_actions=False)
    assert game.spec.groups["agent"].action.num_actions == 5  # type: ignore[union-attr]
    assert game.spec.teams == (("adversary",), ("agent",)) and game.spec.groups["adversary"].shared_reward
