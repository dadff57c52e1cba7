"""Where each copy's values are in shared memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from covey.envs.host import layout
from covey.envs.host.layout import Description
from covey.specs import Continuous, Discrete, EnvSpec, GroupSpec

DESCRIPTION = Description(
    spec=EnvSpec(
        groups={
            "scouts": GroupSpec(
                num_agents=2,
                observation_shape={"picture": (3, 5, 1), "reward": (3,)},
                observation_dtype={"picture": np.uint8, "reward": np.float32},
                action=Discrete(3),
            ),
            "next_state": GroupSpec(num_agents=1, observation_shape=(7,), action=Continuous((-1.0,), (1.0,))),
        },
        time_limit=5,
        state_shape=(4,),
    ),
    masked=("scouts",),
)


def make_arrays(num_copies: int) -> dict[str, Any]:
    tree = layout.layout(DESCRIPTION)
    return layout.arrays(tree, num_copies, bytearray(layout.num_bytes(tree, num_copies)))


def test_every_array_has_memory_of_its_own() -> None:
    arrays = make_arrays(3)
    named = layout.paths({name: part for name, part in arrays.items() if name not in (layout.FOLLOWING, layout.SHOWN)})
    leaves: list[Any] = [array for _, array in named]
    for number, leaf in enumerate(leaves):
        leaf[...] = number % 2 if leaf.dtype == bool else number
    for number, leaf in enumerate(leaves):
        assert (leaf == (number % 2 if leaf.dtype == bool else number)).all()
        assert leaf.shape[0] == 3


def test_copies_share_no_cache_line() -> None:
    arrays = make_arrays(3)
    where = {name: array.__array_interface__["data"][0] for name, array in layout.paths(arrays) if array.size}  # type: ignore[attr-defined]
    strides = {array.strides[0] for _, array in layout.paths(arrays)}  # type: ignore[attr-defined]
    (stride,) = strides
    assert stride % layout.ALIGNMENT == 0 and max(where.values()) - min(where.values()) < stride


def test_numbers_that_follow_are_side_by_side_and_in_the_order_of_those_to_act_on() -> None:
    arrays = make_arrays(2)
    step = arrays["step"]
    scouts, others = step["groups"]["scouts"], step["groups"]["next_state"]
    following = [scouts["next_observation"]["reward"], others["next_observation"], step["next_state"]]
    shown = [scouts["observation"]["reward"], others["observation"], step["state"]]
    rewards = [scouts["reward"], others["reward"]]
    arrays[layout.FOLLOWING][1] = np.arange(arrays[layout.FOLLOWING].shape[1])
    arrays[layout.SHOWN][1] = np.arange(arrays[layout.SHOWN].shape[1])
    found = np.concatenate([part[1].ravel() for part in following])
    np.testing.assert_array_equal(found, np.arange(6 + 7 + 4))
    np.testing.assert_array_equal(np.concatenate([part[1].ravel() for part in shown]), found)
    np.testing.assert_array_equal(np.concatenate([part[1] for part in rewards]), np.arange(17, 20))
    assert not any(part[0].any() for part in following + shown + rewards), "another copy's"
