"""Robots whose joints are agents: padded or in groups, endings apart from cuts, Gymnasium's own robot as the oracle."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from playing import Play, assert_equal, play

from covey.errors import MissingExtra, UsageError
from covey.registry import tasks
from covey.specs import Continuous

READY = [entry.name for entry in tasks if entry.name.startswith("mamujoco/")]
GROUP = "agents"
# agents, size of an observation and of an action, all padded, and of the state
SIZES = {
    "ant_4x2": (4, 42, 2, 105),
    "halfcheetah_6x1": (6, 9, 1, 17),
    "hopper_3x1": (3, 9, 1, 11),
    "humanoid_9_8": (2, 242, 9, 348),
    "walker2d_2x3": (2, 12, 3, 17),
}


def robot(game: Play) -> Any:
    return game.simulator.environment.single_agent_env


@pytest.mark.parametrize("name", READY)
def test_the_same_seed_gives_the_same_steps_and_another_one_others(name: str) -> None:
    one, same, other = (play(name, time_limit=8, number=number) for number in (0, 0, 1))
    for _ in range(20):
        assert_equal(one.step, same.step)
        one.choose()
        same.advance(**one.actions)
        other.advance(**one.actions)
        one.episodes.advance()
        assert np.ptp(one.groups[GROUP]["reward"]) == 0
    assert not np.array_equal(one.step["state"], other.step["state"])
    assert one.spec.groups[GROUP].shared_reward and one.groups[GROUP]["observation"].dtype == np.float32
    assert one.step["state"].dtype == np.float32


@pytest.mark.parametrize("name", SIZES)
def test_sizes(name: str) -> None:
    spec = play(f"mamujoco/{name}").spec
    group = spec.groups[GROUP]
    action = group.action
    assert isinstance(action, Continuous)
    sizes = (group.num_agents, group.observation_shape, action.size, spec.state_shape)
    agents, seen, acted, state = SIZES[name]
    assert sizes == (agents, (seen,), acted, (state,))


def test_the_robot_is_gymnasiums_own() -> None:
    """Rewards and state of the undivided robot, under the joints' actions put together."""
    game = play("mamujoco/walker2d_2x3")
    game.simulator.reset(3)
    own = gymnasium.make("Walker2d-v5")
    own.reset(seed=3)
    for _ in range(10):
        game.choose()
        answer = game.simulator.step(game.actions)
        joints = np.zeros(6)
        for row, part in enumerate(game.simulator.environment.agent_action_partitions):
            for place, joint in enumerate(part):
                joints[joint.act_ids] = game.actions[GROUP][row, place]
        state, reward, _, _, _ = own.step(joints)
        np.testing.assert_allclose(answer.state, state, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(answer.rewards[GROUP], float(reward), rtol=1e-5)


def test_padding_is_zeros_that_do_nothing() -> None:
    """The humanoid's legs have 8 joints, its upper body 9."""
    padded, split = play("mamujoco/humanoid_9_8"), play("mamujoco/humanoid_9_8", pad=False)
    actions = {name: group.action for name, group in split.spec.groups.items()}
    low, high = (-np.float32(0.4).item(), np.float32(0.4).item())
    assert actions == {name: Continuous((low,) * n, (high,) * n) for name, n in (("agent_0", 9), ("agent_1", 8))}
    assert split.spec.shared_rewards == (("agent_0", "agent_1"),) and len(split.spec.cooperating) == 1
    for _ in range(5):
        padded.choose()
        padded.actions[GROUP][1, 8] = padded.random.uniform(-0.4, 0.4)
        split.advance(agent_0=padded.actions[GROUP][0], agent_1=padded.actions[GROUP][1, :8])
        padded.episodes.advance()
        seen = padded.groups[GROUP]["observation"]
        np.testing.assert_array_equal(seen[0], split.groups["agent_0"]["observation"][0])
        np.testing.assert_array_equal(seen[1, :170], split.groups["agent_1"]["observation"][0])
        assert not seen[1, 170:].any()
        np.testing.assert_array_equal(padded.step["state"], split.step["state"])


def test_a_fall_is_an_ending_and_the_limit_a_cut() -> None:
    game = play("mamujoco/hopper_3x1", time_limit=50)
    game.advance()
    robot(game).unwrapped.data.qpos[1] = -1.0  # far below where a hopper is healthy
    game.advance()
    assert game.step["last"] and not game.step["truncated"] and game.groups[GROUP]["terminated"].all()
    assert game.step["metrics"]["fell"] == 1
    fallen, upright = game.groups[GROUP]["next_observation"], game.groups[GROUP]["observation"]
    assert np.abs(fallen - upright).max() > 0.5, "the last observation is the true one"
    game = play("mamujoco/hopper_3x1", time_limit=2)
    for _ in range(2):
        game.advance()
    assert game.step["last"] and game.step["truncated"] and not game.groups[GROUP]["terminated"].any()
    assert game.step["metrics"]["fell"] == 0


def test_the_robots_own_limit_is_off() -> None:
    """Gymnasium's reacher ends after 50 steps."""
    game = play("mamujoco/reacher_2x1", time_limit=60)
    for step in range(1, 61):
        game.advance()
        assert bool(game.step["last"]) == (step == 60)


def test_arguments_reach_the_robot() -> None:
    game = play("mamujoco/hopper_3x1", kwargs={"terminate_when_unhealthy": False})
    game.advance()
    robot(game).unwrapped.data.qpos[1] = -1.0
    game.advance()
    assert not game.step["last"]


def test_pictures_without_a_display(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DISPLAY", raising=False)
    game = play("mamujoco/hopper_3x1")
    try:
        picture = game.simulator.render()
    except (ImportError, AttributeError, RuntimeError) as error:
        pytest.skip(f"no EGL here: {error}")
    assert picture.shape == (480, 480, 3) and picture.std() > 0
    assert os.environ["MUJOCO_GL"] == "egl"


def test_warnings_leave_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MuJoCo would write MUJOCO_LOG.TXT where covey was started: about this robot's description, for one."""
    monkeypatch.chdir(tmp_path)
    play("mamujoco/many_segment_ant_2x3").advance()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"agent_conf": "3x3"}, "task.agent_conf: Ant cannot be divided as '3x3'"),
        ({"scenario": "Elephant"}, "task.scenario: there is no robot 'Elephant'"),
        ({"agent_obsk": -1}, "agent_obsk must be at least 0"),
    ],
)
def test_what_there_is_not(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        play("mamujoco/ant_4x2", **fields)


def test_a_missing_package_is_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == "gymnasium_robotics" else found(name, *more)
    )
    with pytest.raises(MissingExtra, match=r"pip install 'covey\[mamujoco\]'"):
        play("mamujoco/ant_4x2")
