"""Environments that answer in tuples: the robot warehouse, foraging, and toys for what those two do not show."""

from __future__ import annotations

import importlib.util
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from playing import Play, assert_equal, play

from covey.envs.host.simulator import SimulatorError
from covey.envs.host.tuples import TupleEnvironment
from covey.errors import MissingExtra, UsageError
from covey.registry import build_config, tasks
from covey.specs import Discrete, MultiDiscrete

READY = [entry.name for entry in tasks if entry.name.startswith(("robotic_warehouse/", "foraging/"))]
GROUP = "agents"
FORWARD, LEFT, RIGHT, TOGGLE = 1, 2, 3, 4


class Duo(gymnasium.Env[Any, Any]):
    """Two agents see the step and their action. `how` says in which of the usual ways it answers."""

    def __init__(self, how: str = "lists", limit: int = 100):
        self.how, self.limit, self.elapsed = how, limit, 0
        self.observation_space = spaces.Tuple([spaces.Box(-9, 9, (2,), np.float64)] * 2)
        self.action_space = spaces.Tuple([spaces.Discrete(3)] * 2)
        if how == "one agent":
            self.observation_space, self.action_space = spaces.Box(-9, 9, (2,)), spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.elapsed = 0
        return self.seen([0, 0]), {}

    def step(self, actions: Any) -> Any:
        self.elapsed += 1
        over = self.elapsed >= self.limit
        match self.how:
            case "scalars":
                return self.seen(actions), 0.5, over, False, {}
            case "flags":
                return self.seen(actions), [1, 2], [self.elapsed == 2, over], [False, False], {}
            case "wrong":
                return self.seen(actions), [1, 2, 3], over, False, {}
        return self.seen(actions), [1, 2], over, False, {}

    def seen(self, actions: Any) -> Any:
        return tuple(np.array([self.elapsed, action], np.float64) for action in actions)


gymnasium.register("covey-duo-v0", entry_point=lambda **arguments: Duo(**arguments), kwargs={"how": "lists"})


def duo(how: str, **fields: Any) -> Play:
    return play("gymnasium/any", id="covey-duo-v0", kwargs={"how": how}, **fields)


@pytest.mark.parametrize(("how", "rewards"), [("lists", [1, 2]), ("scalars", [0.5, 0.5])])
def test_rewards_come_as_a_list_or_as_one_number(how: str, rewards: list[float]) -> None:
    game = duo(how)
    game.advance(agents=[2, 1])
    np.testing.assert_array_equal(game.groups[GROUP]["reward"], rewards)
    np.testing.assert_array_equal(game.groups[GROUP]["observation"], [[1, 2], [1, 1]])
    assert game.groups[GROUP]["observation"].dtype == np.float32


def test_agents_may_end_one_by_one() -> None:
    game = duo("flags", time_limit=5)
    for _ in range(2):
        game.advance()
    np.testing.assert_array_equal(game.groups[GROUP]["terminated"], [True, False])
    np.testing.assert_array_equal(game.groups[GROUP]["alive"], [False, True])
    game.advance()
    np.testing.assert_array_equal(game.groups[GROUP]["reward"], [0, 2])


def test_a_limit_that_is_reported_as_an_ending_is_set_above_coveys() -> None:
    game = play("gymnasium/any", id="covey-duo-v0", kwargs={"limit": 3}, time_limit=3)
    for _ in range(3):
        game.advance()
    assert game.step["last"] and not game.step["truncated"], "without its argument covey cannot tell"
    game = play("gymnasium/any", id="covey-duo-v0", limit_argument="limit", time_limit=3)
    for _ in range(3):
        game.advance()
    assert game.step["last"] and game.step["truncated"]
    assert not game.groups[GROUP]["terminated"].any()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "task.id says which environment"),
        ({"id": "covey-dua-v0"}, "no environment 'covey-dua-v0'; nearest: covey-duo-v0"),
        ({"id": "no_such_module:x-v0"}, "No module named 'no_such_module'"),
        ({"id": "covey-duo-v0", "kwargs": {"how": "one agent"}}, "Box is the space of a single agent"),
    ],
)
def test_what_covey_cannot_step_is_refused_in_a_line(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        play("gymnasium/any", **fields)


def test_another_number_of_rewards_than_agents_is_an_error() -> None:
    with pytest.raises(SimulatorError, match="rewards are 3, agents 2"):
        duo("wrong").advance()


def test_masks_and_state_of_environments_that_have_some() -> None:
    class Masked(Duo):
        def get_avail_actions(self) -> Any:
            return [[1, 0, self.elapsed > 0]] * 2

        def get_state(self) -> Any:
            return [self.elapsed, 7.0]

    environment = TupleEnvironment(Masked())
    _, infos = environment.reset(seed=1)
    assert infos["agent_1"]["action_mask"] == [1, 0, False]
    assert environment.step({"agent_0": 0, "agent_1": 0})[-1]["agent_0"]["action_mask"] == [1, 0, True]
    np.testing.assert_array_equal(environment.state(), [1, 7])
    with pytest.raises(NotImplementedError):
        TupleEnvironment(Duo()).state()


# ------------------------------------------------------------------------------------------------ the two real packages


@pytest.mark.parametrize("name", READY)
def test_the_same_seed_gives_the_same_steps_and_another_one_others(name: str) -> None:
    one, same, other = (play(name, time_limit=30, number=number) for number in (0, 0, 1))
    starts_differ = not np.array_equal(one.groups[GROUP]["observation"], other.groups[GROUP]["observation"])
    for _ in range(65):
        assert_equal(one.step, same.step)
        one.choose()
        same.advance(**one.actions)
        one.episodes.advance()
    assert starts_differ and one.simulator.render().std() > 0


@pytest.mark.parametrize("name", ["robotic_warehouse/tiny-2ag", "foraging/15x15-4p-3f"])
def test_the_time_limit_is_a_cut_and_the_last_observation_the_true_one(name: str) -> None:
    """Both packages call it an ending. The raw environment, with the same actions, shows the same last observation."""
    game = play(name, time_limit=7)
    raw = play(name, time_limit=100)
    for step in range(1, 15):
        game.choose()
        raw.advance(**game.actions) if step <= 7 else None
        game.episodes.advance()
        assert bool(game.step["last"]) == bool(game.step["truncated"]) == (step % 7 == 0)
        assert not game.groups[GROUP]["terminated"].any() and game.groups[GROUP]["alive"].all()
        if step == 7:
            np.testing.assert_array_equal(game.groups[GROUP]["next_observation"], raw.groups[GROUP]["next_observation"])
            assert not np.array_equal(game.groups[GROUP]["observation"], game.groups[GROUP]["next_observation"])


def test_the_package_itself_calls_its_limit_an_ending() -> None:
    """What the adapters are there for: if this fails, the packages have changed."""
    for name, argument in (("rware:rware-tiny-2ag-v2", "max_steps"), ("lbforaging:Foraging-8x8-2p-1f-v3", "limit")):
        module, _, short = name.partition(":")
        importlib.import_module(module)
        argument = {"limit": "max_episode_steps"}.get(argument, argument)
        entry = gymnasium.envs.registration.registry[short]
        make = gymnasium.envs.registration.load_env_creator(entry.entry_point)  # type: ignore[arg-type]
        environment = make(**{**entry.kwargs, argument: 3})
        environment.reset(seed=0)
        flags = [environment.step([0, 0])[2:4] for _ in range(3)]
        assert flags[-1] == (True, False)


@pytest.mark.parametrize("name", READY)
def test_ready_tasks_are_made_as_the_package_registers_them(name: str) -> None:
    suite, _, short = name.partition("/")
    if suite == "robotic_warehouse":
        ours: dict[str, Any] = {"max_steps": None}
        registered = f"rware:rware-{short}-v2"
    else:
        parts = short.split("-")
        sight, parts = ("-2s", parts[1:]) if parts[0] == "2s" else ("", parts)
        coop = "-coop" if parts[-1] == "coop" else ""
        registered = f"lbforaging:Foraging{sight}-{'-'.join(parts).removesuffix('-coop')}{coop}-v3"
        ours = {"max_episode_steps": 50}
    general = play("gymnasium/any", id=registered, kwargs=ours)
    own = play(name)
    assert own.spec.groups[GROUP].observation_shape == general.spec.groups[GROUP].observation_shape
    for _ in range(20):
        own.choose()
        general.advance(**own.actions)
        own.episodes.advance()
        np.testing.assert_array_equal(own.groups[GROUP]["observation"], general.groups[GROUP]["observation"])


def carry_to_the_goal(game: Play) -> float:
    """Puts robot 0 with a requested shelf next to a goal, facing it, and drives there; returns what was earned."""
    warehouse = game.simulator.environment.unwrapped
    from rware.warehouse import Direction

    column, row = warehouse.goals[0]
    robot, shelf = warehouse.agents[0], warehouse.request_queue[0]
    robot.x, robot.y, robot.dir = column, row - 1, Direction.DOWN
    shelf.x, shelf.y, robot.carrying_shelf = column, row - 1, shelf
    warehouse.agents[1].x, warehouse.agents[1].y = 0, 0
    warehouse._recalc_grid()
    game.advance(agents=[FORWARD, 0])
    return float(game.groups[GROUP]["reward"].sum())


@pytest.mark.parametrize(
    ("fields", "rewards"),
    [({}, [1, 0]), ({"reward": "shared"}, [1, 1]), ({"two_stage": True}, [0.5, 0])],
)
def test_a_delivery_is_rewarded_and_counted(fields: dict[str, Any], rewards: list[float]) -> None:
    game = play("robotic_warehouse/tiny-2ag", **fields)
    assert carry_to_the_goal(game) == sum(rewards)
    np.testing.assert_array_equal(game.groups[GROUP]["reward"], rewards)
    assert game.step["metrics"]["deliveries"] == 1
    assert game.spec.groups[GROUP].shared_reward == (fields.get("reward") == "shared")
    game.advance(agents=[0, 0])
    assert game.step["metrics"]["deliveries"] == 0


def test_inactivity_is_an_ending() -> None:
    game = play("robotic_warehouse/tiny-2ag", max_inactivity_steps=4)
    for _ in range(4):
        game.advance(agents=[0, 0])
    assert game.step["last"] and not game.step["truncated"] and game.groups[GROUP]["terminated"].all()


def test_bits_to_send_are_further_choices() -> None:
    game = play("robotic_warehouse/tiny-2ag", msg_bits=2)
    assert game.spec.groups[GROUP].action == MultiDiscrete((5, 2, 2))
    game.advance()


def test_food_that_is_eaten_ends_the_episode_and_is_counted_in_levels() -> None:
    game = play("foraging/8x8-2p-1f")
    assert game.spec.groups[GROUP].action == Discrete(6)
    world = game.simulator.environment.unwrapped
    world.field[...] = 0
    world.field[3, 3] = 2
    world._food_spawned = 2.0
    game.simulator._levels = 2.0
    world.players[0].position, world.players[1].position = (3, 2), (3, 4)
    world.players[0].level, world.players[1].level = 1, 1
    world._gen_valid_moves()
    assert game.simulator.measure() == {"food_eaten": 0}
    game.advance(agents=[5, 5])
    np.testing.assert_array_equal(game.groups[GROUP]["reward"], [0.5, 0.5])
    assert game.step["metrics"]["food_eaten"] == 1
    assert game.step["last"] and not game.step["truncated"]


@pytest.mark.parametrize(
    ("name", "package", "extra"),
    [("robotic_warehouse/tiny-2ag", "rware", "rware"), ("foraging/8x8-2p-1f", "lbforaging", "lbforaging")],
)
def test_a_missing_package_is_a_line(name: str, package: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda each, *more: None if each == package else found(each, *more)
    )
    with pytest.raises(MissingExtra, match=rf"pip install 'covey\[{extra}\]'"):
        play(name)


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("robotic_warehouse/tiny-2ag", {"shelf_columns": 2}, "shelf_columns must be odd"),
        ("robotic_warehouse/tiny-2ag", {"two_stage": True, "reward": "shared"}, "does not combine"),
        ("foraging/8x8-2p-1f", {"max_agent_level": 0}, "below min_agent_level"),
        ("foraging/8x8-2p-1f", {"min_food_level": 4, "max_food_level": 2}, "below min_food_level"),
        ("foraging/8x8-2p-1f", {"reward": "shared"}, "use team_sum or team_mean"),
    ],
)
def test_fields_that_make_no_sense(name: str, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        build_config(tasks[name].defaults(), fields, name)
