"""Gymnasium's spaces as specs, and how observations and actions pass between dictionaries and arrays."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from covey.envs.host.layout import num_choices
from covey.envs.host.simulator import Observations, SimulatorError
from covey.errors import UsageError
from covey.specs import ActionSpec, Continuous, Discrete, MultiDiscrete, ObservationShape, Shape

OBSERVATION, MASK = "observation", "action_mask"  # entries with which PettingZoo's games give masks
ONLY = ""  # the entry of observations that are one array

Write = Callable[[Any], None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entry:
    """An entry of a group's observations.

    path      the keys that lead to it in the environment's observation
    shape     for one agent, as the environment gives it
    kept      its shape as covey keeps it
    one_hot   the lowest value of a number that becomes one-hot; None: it is not such a number
    sequence  the shape of a row, if the number of rows varies
    stride    one pixel in this many is kept
    """

    path: tuple[str, ...]
    shape: Shape
    kept: Shape
    dtype: Any = np.float32
    one_hot: int | None = None
    sequence: Shape | None = None
    stride: int = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Seen:
    """What an agent observes: entries by name, and whether an action mask is one of the environment's entries."""

    entries: Mapping[str, Entry]
    masked: bool = False

    @property
    def shape(self) -> ObservationShape:
        shapes = {name: entry.kept for name, entry in self.entries.items()}
        return shapes.get(ONLY, shapes)

    @property
    def dtype(self) -> Any:
        types = {name: entry.dtype for name, entry in self.entries.items()}
        return types.get(ONLY, types)

    def arrays(self, num_agents: int) -> dict[str, np.ndarray]:
        """Arrays of zeros for what a group observes, by entry."""
        return {name: np.zeros((num_agents, *entry.kept), entry.dtype) for name, entry in self.entries.items()}


def as_observations(arrays: Mapping[str, np.ndarray]) -> Observations:
    """A copy of a group's entries, as a simulator returns them: an array, or a dictionary of arrays."""
    return arrays[ONLY].copy() if ONLY in arrays else {name: array.copy() for name, array in arrays.items()}


# ------------------------------------------------------------------------------------------------------- observations


def read_observation_space(space: Any, agent: str, sequence_length: int | None, stride: int) -> Seen:
    """What an agent with this observation space observes."""
    from gymnasium import spaces

    masked = isinstance(space, spaces.Dict) and MASK in space.spaces
    prefix: tuple[str, ...] = ()
    if masked:
        inner = {name: part for name, part in space.spaces.items() if name != MASK}
        space, prefix = (
            (inner[OBSERVATION], (OBSERVATION,)) if set(inner) == {OBSERVATION} else (spaces.Dict(inner), ())
        )
    entries: dict[str, Entry] = {}

    def add(part: Any, path: tuple[str, ...]) -> None:
        if isinstance(part, spaces.Dict):
            for name, each in part.spaces.items():
                add(each, (*path, str(name)))
        else:
            name = ".".join(path[len(prefix) :]) or ONLY
            entries[name] = read_entry(part, path, agent, sequence_length, stride)

    add(space, prefix)
    return Seen(entries=entries, masked=masked)


def read_entry(space: Any, path: tuple[str, ...], agent: str, sequence_length: int | None, stride: int) -> Entry:
    """An entry of an observation, from its space."""
    from gymnasium import spaces

    match space:
        case spaces.Box():
            shape = tuple(space.shape)
            image = space.dtype == np.uint8
            if image and len(shape) == 3 and stride > 1:
                kept = (-(-shape[0] // stride), -(-shape[1] // stride), shape[2])
                return Entry(path=path, shape=shape, kept=kept, dtype=np.uint8, stride=stride)
            return Entry(path=path, shape=shape, kept=shape, dtype=np.uint8 if image else np.float32)
        case spaces.MultiBinary() | spaces.MultiDiscrete():
            return Entry(path=path, shape=tuple(space.shape), kept=tuple(space.shape))
        case spaces.Discrete():
            return Entry(path=path, shape=(), kept=(int(space.n),), one_hot=int(space.start))
        case spaces.Sequence():
            return _sequence_entry(space, path, agent, sequence_length)
    raise UsageError(
        f"agent {agent} observes a {type(space).__name__} space; covey takes Box, Dict, Discrete, MultiBinary, "
        f"MultiDiscrete and Sequence"
    )


def _sequence_entry(space: Any, path: tuple[str, ...], agent: str, length: int | None) -> Entry:
    """An entry padded to a fixed number of rows. The last number of each row is 1 if the row is used and 0 if it is
    padding, so every model can read it, above all those over rows (`deepsets`, `attention`)."""
    from gymnasium import spaces

    row = space.feature_space
    if not isinstance(row, spaces.Box) or len(row.shape) != 1:
        raise UsageError(f"agent {agent} observes a sequence of {row}; covey takes sequences of vectors")
    if length is None:
        raise UsageError(
            f"agent {agent} observes sequences of varying length: set task.sequence_length, the length to pad them to"
        )
    width = row.shape[0]
    return Entry(path=path, shape=(length, width), kept=(length, width + 1), sequence=tuple(row.shape))


def make_write(seen: Seen, agent: str, arrays: Mapping[str, np.ndarray], row: int) -> Write:
    """Writes an agent's observation into its row of each entry's array."""
    writes = [(entry.path, _write_entry(entry, agent, arrays[name][row])) for name, entry in seen.entries.items()]
    if len(writes) == 1 and not writes[0][0]:
        return writes[0][1]

    def write(observation: Any) -> None:
        for path, write_entry in writes:
            part = observation
            try:
                for key in path:
                    part = part[key]
            except (KeyError, TypeError, IndexError) as error:
                raise SimulatorError(f"the observation of {agent} has no entry {'.'.join(path)}") from error
            write_entry(part)

    return write


def _write_entry(entry: Entry, agent: str, target: np.ndarray) -> Write:
    shape, stride = entry.shape, entry.stride

    def changed(found: Any) -> SimulatorError:
        where = f" at {'.'.join(entry.path)}" if entry.path else ""
        return SimulatorError(f"the observation of {agent}{where} has shape {list(found)}, its space {list(shape)}")

    def write_array(value: Any) -> None:
        if type(value) is not np.ndarray:
            value = np.asarray(value)
        if value.shape != shape:
            raise changed(value.shape)
        target[...] = value

    def write_image(value: Any) -> None:
        if value.shape != shape:
            raise changed(value.shape)
        target[...] = value[::stride, ::stride]

    def write_one_hot(value: Any) -> None:
        target[...] = 0
        target[int(value) - entry.one_hot] = 1  # type: ignore[operator]

    def write_rows(value: Any) -> None:
        rows = np.asarray(value, np.float32).reshape(-1, shape[1])
        if len(rows) > shape[0]:
            raise SimulatorError(
                f"the observation of {agent} has {len(rows)} rows, more than task.sequence_length={shape[0]}"
            )
        target[: len(rows), :-1] = rows
        target[: len(rows), -1] = 1
        target[len(rows) :] = 0

    if entry.sequence is not None:
        return write_rows
    if entry.one_hot is not None:
        return write_one_hot
    return write_image if stride > 1 else write_array


# ------------------------------------------------------------------------------------------------------------ actions


def read_action_space(space: Any, agent: str) -> ActionSpec:
    """An agent's action space as a spec."""
    from gymnasium import spaces

    match space:
        case spaces.Discrete():
            return Discrete(int(space.n))
        case spaces.MultiDiscrete() if len(space.shape) == 1:
            return MultiDiscrete(tuple(int(n) for n in space.nvec))
        case spaces.MultiBinary() if len(space.shape) == 1:
            return MultiDiscrete((2,) * int(space.shape[0]))
        case spaces.Box():
            low, high = (bound.astype(np.float32).reshape(-1) for bound in (space.low, space.high))
            if not (np.isfinite(low).all() and np.isfinite(high).all()):
                raise UsageError(f"the actions of agent {agent} have no bounds; covey needs finite ones")
            return Continuous(tuple(low.tolist()), tuple(high.tolist()))
    raise UsageError(
        f"agent {agent} acts in a {type(space).__name__} space; covey takes Box, Discrete, MultiBinary, MultiDiscrete"
    )


def make_choose(space: Any, action: ActionSpec) -> Callable[[np.ndarray], Sequence[Any]]:
    """A function from a group's actions to each agent's, in the form that the environment takes."""
    start = getattr(space, "start", 0)
    match action:
        case Discrete() if start:
            return lambda actions: (actions + start).tolist()
        case Discrete():
            return lambda actions: actions.tolist()
        case MultiDiscrete():
            return lambda actions: actions.astype(space.dtype) + start  # type: ignore[return-value]
        case Continuous() if len(space.shape) == 1:
            dtype = space.dtype
            return lambda actions: actions.astype(dtype)  # type: ignore[return-value]
        case Continuous():
            return lambda actions: actions.reshape(len(actions), *space.shape).astype(space.dtype)  # type: ignore[return-value]


def make_write_mask(action: ActionSpec, agent: str, target: np.ndarray) -> Write:
    """Writes which actions are legal."""
    number = num_choices(action)

    def write(mask: Any) -> None:
        if isinstance(mask, tuple):  # Gymnasium's form for multi-discrete actions
            mask = np.concatenate([np.asarray(part) for part in mask])
        mask = np.asarray(mask, bool).reshape(-1)
        if mask.shape != (number,):
            raise SimulatorError(f"the action mask of {agent} has {mask.size} entries for {number} actions")
        target[...] = mask

    return write
