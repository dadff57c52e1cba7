"""Where in shared memory the answers and actions of each copy are.

A layout is a tree of dictionaries whose leaves say the shape and type of one copy's value; `arrays` makes the same tree
of arrays `[N, …]` over a buffer. The pool and its workers make it from the same description, so the layout itself is
never sent.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from covey.specs import ActionSpec, Continuous, Discrete, EnvSpec, GroupSpec, MultiDiscrete, ObservationShape

ALIGNMENT = 64  # bytes: each array begins on a new cache line


@dataclasses.dataclass(frozen=True, kw_only=True)
class Description:
    """What a worker found out about its simulator from a first reset.

    masked                the groups that have action masks
    episodes_per_process  the configuration's, or else the simulator's own
    """

    spec: EnvSpec
    masked: tuple[str, ...] = ()
    episodes_per_process: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Leaf:
    """One copy's value."""

    shape: tuple[int, ...] = ()
    dtype: Any = np.float32


def layout(description: Description) -> dict[str, Any]:
    """The tree of leaves: `step` as in a TimeStep, `actions` by group, and where each copy is in its episode."""
    spec, flag = description.spec, Leaf(dtype=np.bool_)
    state = None if spec.state_shape is None else entries(spec.state_shape, np.float32)
    step = {
        "groups": {name: group_layout(group, name in description.masked) for name, group in spec.groups.items()},
        "truncated": flag,
        "last": flag,
        **({} if state is None else {"state": state, "next_state": state}),
        "metrics": dict.fromkeys(spec.metrics, Leaf()),
    }
    return {
        "step": step,
        "actions": {name: action_leaf(group.action, group.num_agents) for name, group in spec.groups.items()},
        "active": flag,  # whether the next command is for this copy
        "seed": Leaf(dtype=np.int32),  # of the run
        "episode": Leaf(dtype=np.int32),  # its number, from which its seed is made
        "elapsed": Leaf(dtype=np.int32),  # steps taken in it
    }


def group_layout(group: GroupSpec, masked: bool) -> dict[str, Any]:
    """A group's part of a step, with the names of `GroupStep`."""
    agents = group.num_agents
    seen = entries(group.observation_shape, group.observation_dtype, agents)
    tree = {
        "observation": seen,
        "next_observation": seen,
        "reward": Leaf(shape=(agents,)),
        "alive": Leaf(shape=(agents,), dtype=np.bool_),
        "terminated": Leaf(shape=(agents,), dtype=np.bool_),
    }
    if masked:
        mask = Leaf(shape=(agents, num_choices(group.action)), dtype=np.bool_)
        tree |= {"action_mask": mask, "next_action_mask": mask}
    return tree


def entries(shape: ObservationShape, dtype: Any, *leading: int) -> Leaf | dict[str, Leaf]:
    """The leaf of an array, or those of a dictionary of arrays."""
    if not isinstance(shape, Mapping):
        return Leaf(shape=(*leading, *shape), dtype=dtype)
    types = dtype if isinstance(dtype, Mapping) else dict.fromkeys(shape, dtype)
    return {name: Leaf(shape=(*leading, *shape[name]), dtype=types[name]) for name in sorted(shape)}


def action_leaf(action: ActionSpec, agents: int) -> Leaf:
    """A group's actions."""
    match action:
        case Discrete():
            return Leaf(shape=(agents,), dtype=np.int32)
        case MultiDiscrete(num_actions=numbers):
            return Leaf(shape=(agents, len(numbers)), dtype=np.int32)
        case Continuous():
            return Leaf(shape=(agents, action.size))


def num_choices(action: ActionSpec) -> int:
    """The width of an action mask."""
    match action:
        case Discrete(num_actions=number):
            return number
        case MultiDiscrete(num_actions=numbers):
            return sum(numbers)
        case Continuous():
            raise ValueError("continuous actions have no mask")


def map_leaves(function: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """`function(leaf, …)` of each leaf, in a tree of the same structure."""
    if isinstance(tree, dict):
        return {name: map_leaves(function, part, *(other[name] for other in others)) for name, part in tree.items()}
    return function(tree, *others)


def num_bytes(tree: Mapping[str, Any], num_copies: int) -> int:
    """The size of the memory that `arrays` needs."""
    sizes: list[int] = []
    map_leaves(lambda leaf: sizes.append(_padded_size(leaf, num_copies)), tree)
    return sum(sizes)


def arrays(tree: Mapping[str, Any], num_copies: int, buffer: Any) -> dict[str, Any]:
    """The tree of arrays `[N, …]` in `buffer`."""
    offset = 0

    def place(leaf: Leaf) -> np.ndarray:
        nonlocal offset
        array: np.ndarray = np.ndarray((num_copies, *leaf.shape), leaf.dtype, buffer, offset)
        offset += _padded_size(leaf, num_copies)
        return array

    placed: dict[str, Any] = map_leaves(place, tree)
    return placed


def rows(tree: Any, index: int | slice) -> Any:
    """The views of one copy, or of several, in a tree of arrays."""
    return map_leaves(lambda array: array[index, ...], tree)


def _padded_size(leaf: Leaf, num_copies: int) -> int:
    size = math.prod((num_copies, *leaf.shape)) * int(np.dtype(leaf.dtype).itemsize)
    return -(-size // ALIGNMENT) * ALIGNMENT
