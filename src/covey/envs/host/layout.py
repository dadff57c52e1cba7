"""Where in shared memory the answers and actions of each copy are.

A layout is a tree of dictionaries whose leaves say the shape and type of one copy's value; `arrays` makes the same tree
of arrays `[N, …]` over a buffer. The pool and its workers make it from the same description, so the layout itself is
never sent.

Everything of one copy is in one block of memory, which begins on a new cache line, so that processes never write to the
same line. In it, the numbers that follow a step are next to each other, and so are the numbers to act on, in the same
order. They are checked and copied in one operation each.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from covey.specs import ActionSpec, Continuous, Discrete, EnvSpec, GroupSpec, MultiDiscrete, ObservationShape

ALIGNMENT = 64  # bytes of a cache line: a copy's block of memory begins on a new one
WORD = 8  # bytes: each array in a block begins at a multiple of this
FOLLOWING, SHOWN = "following", "shown"  # all numbers that follow a step, rewards last; all numbers to act on
REWARDS = ("reward", "shaping")  # of a group
Path = tuple[str, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Description:
    """What a worker found out about its simulator from a first reset.

        masked                the groups that have action masks
    shaped                the groups that have a reward for learning only
    episodes_per_process  the configuration's, or else the simulator's own
    agents                by group, what the simulator itself calls its agents; empty if it names none
    """

    spec: EnvSpec
    masked: tuple[str, ...] = ()
    shaped: tuple[str, ...] = ()
    episodes_per_process: int | None = None
    agents: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)


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
        "groups": {
            name: group_layout(group, name in description.masked, name in description.shaped)
            for name, group in spec.groups.items()
        },
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


def group_layout(group: GroupSpec, masked: bool, shaped: bool) -> dict[str, Any]:
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
    if shaped:
        tree["shaping"] = Leaf(shape=(agents,))
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
    return num_copies * place_leaves(tree).size


def arrays(tree: Mapping[str, Any], num_copies: int, buffer: Any) -> dict[str, Any]:
    """The tree of arrays `[N, …]` in `buffer`. Two more entries, FOLLOWING `[N, F]` and SHOWN `[N, G]`, are views of
    all numbers that follow a step and of all numbers to act on."""
    places = place_leaves(tree)

    def array(shape: tuple[int, ...], dtype: Any, offset: int) -> np.ndarray:
        one: np.ndarray = np.empty(shape, dtype)
        return np.ndarray((num_copies, *shape), dtype, buffer, offset, (places.size, *one.strides))

    def build(part: Any, path: Path) -> Any:
        if isinstance(part, dict):
            return {name: build(each, (*path, name)) for name, each in part.items()}
        return array(part.shape, part.dtype, places.offsets[path])

    return {
        **build(tree, ()),
        FOLLOWING: array((places.num_following,), np.float32, 0),
        SHOWN: array((places.num_shown,), np.float32, places.shown),
    }


@dataclasses.dataclass(frozen=True, kw_only=True)
class Places:
    """Where the leaves of a tree are in a copy's block of memory, and the size of the block, in bytes.

    FOLLOWING begins at 0 and has `num_following` numbers, SHOWN begins at `shown` and has `num_shown`.
    """

    offsets: Mapping[Path, int]
    size: int
    shown: int
    num_following: int
    num_shown: int


def place_leaves(tree: Mapping[str, Any]) -> Places:
    """Places the numbers that follow a step first, then those to act on, then everything else."""
    leaves = dict(paths(tree))
    shown = {path: now for path in leaves if (now := counterpart(path)) and np.dtype(leaves[path].dtype) == np.float32}
    rewards = [path for path in leaves if path[:2] == ("step", "groups") and path[3] in REWARDS]
    rest = [path for path in leaves if path not in {*shown, *rewards, *shown.values()}]
    offsets: dict[Path, int] = {}
    size = 0

    def place(group: Iterable[Path], word: int) -> int:
        """Places leaves one after another; returns the number of bytes that they take."""
        nonlocal size
        size = start = _round_up(size, WORD)
        for path in group:
            offsets[path] = size = _round_up(size, word)
            size += math.prod(leaves[path].shape) * int(np.dtype(leaves[path].dtype).itemsize)
        return size - start

    num_following = place([*shown, *rewards], 1) // 4
    begin = _round_up(size, WORD)
    num_shown = place(shown.values(), 1) // 4
    place(rest, WORD)
    return Places(
        offsets=offsets,
        size=_round_up(size, ALIGNMENT),
        shown=begin,
        num_following=num_following,
        num_shown=num_shown,
    )


def paths(tree: Any, path: Path = ()) -> list[tuple[Path, Leaf]]:
    """Every leaf with its path, the names that lead to it."""
    if not isinstance(tree, dict):
        return [(path, tree)]
    return [found for name, part in tree.items() for found in paths(part, (*path, name))]


def counterpart(path: Path) -> Path | None:
    """For the path of a successor, the path of what to act on; None for other paths."""
    at = 3 if path[:2] == ("step", "groups") else 1
    if path[0] == "step" and path[at : at + 1] in (("next_observation",), ("next_state",)):
        return (*path[:at], path[at].removeprefix("next_"), *path[at + 1 :])
    return None


def rows(tree: Any, index: int | slice) -> Any:
    """The views of one copy, or of several, in a tree of arrays."""
    return map_leaves(lambda array: array[index, ...], tree)


def _round_up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple
