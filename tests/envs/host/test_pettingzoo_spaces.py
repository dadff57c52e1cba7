"""Gymnasium's spaces as specs, and what passes between dictionaries and arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces as gym

from covey.envs.host.pettingzoo import spaces
from covey.envs.host.simulator import SimulatorError
from covey.errors import UsageError
from covey.specs import Continuous, Discrete, MultiDiscrete


def observe(space: Any, *values: Any, length: int | None = None, stride: int = 1) -> Any:
    """What a group of one agent has seen after these observations."""
    seen = spaces.read_observation_space(space, "walker_0", length, stride)
    arrays = seen.arrays(1)
    write = spaces.make_write(seen, "walker_0", arrays, 0)
    for value in values:
        write(value)
    return spaces.as_observations(arrays)


def act(space: Any, actions: Any) -> Any:
    """What an agent's environment is given for a group's actions."""
    return list(spaces.make_choose(space, spaces.read_action_space(space, "walker_0"))(np.asarray(actions)))


def test_boxes_become_float32_and_bytes_stay_bytes() -> None:
    seen = observe(gym.Box(-1, 1, (2,), np.float64), np.array([0.25, -1.0]))
    assert seen.dtype == np.float32 and seen.tolist() == [[0.25, -1.0]]
    assert observe(gym.Box(0, 255, (2, 2, 3), np.uint8)).dtype == np.uint8
    assert observe(gym.Box(0, 1, (3,), np.int8), np.array([1, 0, 1], np.int8)).tolist() == [[1, 0, 1]]


def test_numbers_become_one_hot_and_flags_floats() -> None:
    assert observe(gym.Discrete(4), 3, 2).tolist() == [[0, 0, 1, 0]]
    assert observe(gym.Discrete(3, start=-1), np.int64(-1)).tolist() == [[1, 0, 0]]
    assert observe(gym.MultiBinary(3), np.array([1, 0, 1], np.int8)).tolist() == [[1, 0, 1]]
    assert observe(gym.MultiDiscrete([5, 5]), np.array([4, 2])).tolist() == [[4, 2]]


def test_dictionaries_in_dictionaries_have_dotted_names() -> None:
    space = gym.Dict(
        {"body": gym.Dict({"arm": gym.Box(0, 1, (1,)), "leg": gym.Discrete(2)}), "eye": gym.Box(0, 1, (2,))}
    )
    seen = observe(space, {"body": {"arm": np.ones(1), "leg": 1}, "eye": np.zeros(2)})
    assert {name: array.tolist() for name, array in seen.items()} == {
        "body.arm": [[1]],
        "body.leg": [[0, 1]],
        "eye": [[0, 0]],
    }
    with pytest.raises(SimulatorError, match=r"^the observation of walker_0 has no entry body\.leg$"):
        observe(space, {"body": {"arm": np.ones(1)}, "eye": np.zeros(2)})


def test_an_observation_beside_its_mask_is_one_array() -> None:
    mask = gym.Box(0, 1, (4,), np.int8)
    alone = spaces.read_observation_space(
        gym.Dict({"observation": gym.Box(0, 1, (2,)), "action_mask": mask}), "a", None, 1
    )
    assert alone.masked and alone.shape == (2,) and alone.dtype is np.float32
    more = gym.Dict({"observation": gym.Box(0, 1, (2,)), "role": gym.Discrete(3), "action_mask": mask})
    seen = spaces.read_observation_space(more, "a", None, 1)
    assert seen.masked and seen.shape == {"observation": (2,), "role": (3,)}


def test_a_stride_thins_images_and_nothing_else() -> None:
    image = np.arange(4 * 5 * 3, dtype=np.uint8).reshape(4, 5, 3)
    space = gym.Dict({"image": gym.Box(0, 255, (4, 5, 3), np.uint8), "map": gym.Box(0, 1, (4, 5, 3))})
    seen = observe(space, {"image": image, "map": np.ones((4, 5, 3))}, stride=2)
    np.testing.assert_array_equal(seen["image"][0], image[[0, 2]][:, [0, 2, 4]])
    assert seen["map"].shape == (1, 4, 5, 3)


def test_rows_that_are_gone_leave_nothing_behind() -> None:
    seen = observe(gym.Sequence(gym.Box(0, 1, (1,)), stack=True), [[1.0], [1.0]], [[0.5]], np.zeros((0, 1)), length=3)
    assert seen.tolist() == [[[0, 0]] * 3]
    seen = observe(gym.Sequence(gym.Box(0, 1, (1,))), [[1.0], [1.0]], ([0.5],), length=3)
    assert seen.tolist() == [[[0.5, 1], [0, 0], [0, 0]]]


@pytest.mark.parametrize(
    ("space", "action", "given", "taken"),
    [
        (gym.Discrete(3), Discrete(3), [2, 0], [2, 0]),
        (gym.Discrete(3, start=5), Discrete(3), [2, 0], [7, 5]),
        (gym.MultiDiscrete([2, 4]), MultiDiscrete((2, 4)), [[1, 3]], [[1, 3]]),
        (gym.MultiDiscrete([2, 4], start=[1, 10]), MultiDiscrete((2, 4)), [[1, 3]], [[2, 13]]),
        (gym.MultiBinary(2), MultiDiscrete((2, 2)), [[1, 0]], [[1, 0]]),
        (gym.Box(-2, 1, (2,)), Continuous((-2.0, -2.0), (1.0, 1.0)), [[0.5, -1.0]], [[0.5, -1.0]]),
        (gym.Box(0, 1, (2, 1)), Continuous((0.0, 0.0), (1.0, 1.0)), [[0.5, 1.0]], [[[0.5], [1.0]]]),
    ],
)
def test_actions(space: Any, action: Any, given: Any, taken: Any) -> None:
    assert spaces.read_action_space(space, "walker_0") == action
    chosen = act(space, given)
    np.testing.assert_array_equal(np.array(chosen), np.array(taken))
    assert all(space.contains(each) for each in chosen)


def test_an_environment_cannot_change_covey_s_actions() -> None:
    """Some keep what they were given: it must not be memory that is written again."""
    actions = np.zeros((1, 2), np.float32)
    (given,) = spaces.make_choose(gym.Box(-1, 1, (2,)), Continuous((-1.0, -1.0), (1.0, 1.0)))(actions)
    actions[...] = 1
    assert given.tolist() == [0, 0]


def test_spaces_that_covey_cannot_take_are_refused() -> None:
    def error(read: Any, *arguments: Any) -> str:
        with pytest.raises(UsageError) as caught:
            read(*arguments)
        return str(caught.value)

    pair = gym.Tuple([gym.Discrete(2), gym.Discrete(2)])
    assert error(spaces.read_observation_space, pair, "a", None, 1) == (
        "agent a observes a Tuple space; covey takes Box, Dict, Discrete, MultiBinary, MultiDiscrete and Sequence"
    )
    assert error(spaces.read_action_space, pair, "a") == (
        "agent a acts in a Tuple space; covey takes Box, Discrete, MultiBinary, MultiDiscrete"
    )
    assert error(spaces.read_action_space, gym.Box(-np.inf, np.inf, (2,)), "a") == (
        "the actions of agent a have no bounds; covey needs finite ones"
    )
    assert "covey takes sequences of vectors" in error(
        spaces.read_observation_space, gym.Sequence(gym.Discrete(3)), "a", 4, 1
    )


def test_masks_have_an_entry_for_each_action() -> None:
    target = np.zeros(3, bool)
    write = spaces.make_write_mask(Discrete(3), "a", target)
    write(np.array([0, 1, 1], np.int8))
    assert target.tolist() == [False, True, True]
    with pytest.raises(SimulatorError, match=r"^the action mask of a has 2 entries for 3 actions$"):
        write([1, 1])
    both = np.zeros(5, bool)
    spaces.make_write_mask(MultiDiscrete((2, 3)), "a", both)((np.array([1, 0]), np.array([0, 0, 1])))
    assert both.tolist() == [True, False, False, False, True]
