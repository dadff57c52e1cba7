"""Episodes of one copy of a simulator: seeds, time limit, who is alive, auto-reset, and checks of its answers."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from typing import Any

import numpy as np

from covey.envs.host import layout
from covey.envs.host.simulator import Simulator, SimulatorConfig, SimulatorError, SimulatorStep, describe_error
from covey.errors import CoveyError
from covey.specs import ActionSpec, Continuous, Discrete, EnvSpec, MultiDiscrete

FLOAT32 = np.dtype(np.float32)


def episode_seed(seed: int, copy: int, episode: int) -> int:
    """The seed of one episode, 31 bits. It differs between copies and episodes, and not between processes."""
    return int(np.random.SeedSequence((seed, copy, episode)).generate_state(1)[0] >> 1)


class Episodes:
    """Plays one episode after another in one copy, and writes what happens into its rows of shared memory (layout.py).

    As everywhere in covey, `observation` is what to act on (after an auto-reset, the new episode's first), and
    `next_observation` is the true successor of the last action. An agent that is not alive has a reward of zero,
    whatever the simulator gives it.
    """

    def __init__(self, simulator: Simulator, config: SimulatorConfig, row: Mapping[str, Any], number: int):
        self.simulator = simulator
        self.number = number
        self.resets = 0
        self._limit, self._limit_terminates = config.time_limit, config.time_limit_terminates
        self._row, self._step, self._groups = row, row["step"], row["step"]["groups"]
        self._elapsed = row["elapsed"]
        self._rewards = [  # rewards and shaping, each with the agents that can earn it
            (group[kind], group["alive"]) for group in self._groups.values() for kind in layout.REWARDS if kind in group
        ]
        self._following, self._shown = row[layout.FOLLOWING], row[layout.SHOWN]
        self._following_shown = self._following[: len(self._shown)]
        self._now, self._next = places(self._groups, ""), places(self._groups, "next_")
        self._apart = list(apart(self._now, self._next, self._step))
        self._reward_words = {name: f"rewards of group {name}" for name in self._groups}
        self._names = {
            **names_of(simulator.spec),
            "action_masks": {name for name, group in self._groups.items() if "action_mask" in group},
            "shaping": {name for name, group in self._groups.items() if "shaping" in group},
        }
        self._widths = {name: choice_widths(group.action) for name, group in simulator.spec.groups.items()}

    def begin(self) -> None:
        """Starts the episode whose number is in the row."""
        for group in self._groups.values():
            group["terminated"][...] = False
        for rewards, _ in self._rewards:
            rewards[...] = 0
        first = self._reset()
        self._write(first, self._next, "next_state", self._following)
        self._act_on_next()
        self._write_alive(first)
        self._step["last"][...] = self._step["truncated"][...] = False
        self._write_metrics(first)

    def advance(self) -> None:
        """One step with the actions in the row, and a reset if that ended the episode."""
        answer = self._ask("step", lambda: self.simulator.step(self._row["actions"]))
        self._elapsed += 1
        self._write_rewards(answer)
        self._write(answer, self._next, "next_state", self._following)
        self._write_metrics(answer)
        if self._settle(answer):
            self._row["episode"][...] += 1
            self._row["elapsed"][...] = 0
            first = self._reset()
            self._write(first, self._now, "state", self._shown)
            self._write_alive(first)
        else:
            self._act_on_next()

    def place(self) -> str:
        """Where this copy is, for messages."""
        return f"copy {self.number}, step {int(self._row['elapsed'])} of episode {int(self._row['episode'])}"

    # ------------------------------------------------------------------------------------------ asking the simulator

    def _reset(self) -> SimulatorStep:
        seed = episode_seed(int(self._row["seed"]), self.number, int(self._row["episode"]))
        self.resets += 1
        return self._ask("reset", lambda: self.simulator.reset(seed))

    def _ask(self, what: str, call: Callable[[], SimulatorStep]) -> SimulatorStep:
        try:
            answer = call()
        except CoveyError:
            raise
        except SystemExit as error:
            raise SimulatorError(f"{what} ended the process (exit code {error.code})") from error
        except Exception as error:
            raise SimulatorError(f"{what} failed: {describe_error(error)}") from error
        check_names(answer, what, self._names)
        return answer

    # ------------------------------------------------------------------------------------------------------- endings

    def _settle(self, answer: SimulatorStep) -> bool:
        """Zeroes rewards of agents that were not alive, and writes who is now; returns whether the episode is over."""
        for rewards, acting in self._rewards:
            rewards *= acting
        out_of_time = int(self._row["elapsed"]) >= self._limit
        if answer.terminated is None and answer.alive is None and not answer.truncated and not out_of_time:
            for group in self._groups.values():  # nobody left, as in most steps
                group["terminated"].fill(False)
            self._step["last"][...] = self._step["truncated"][...] = False
            return False
        acted = {name: group["alive"].copy() for name, group in self._groups.items()}
        ended = {name: flags_of(answer, "terminated", name, np.zeros_like(acted[name])) for name in acted}
        alive = {name: flags_of(answer, "alive", name, acted[name]) & ~ended[name] for name in acted}
        by_itself = bool(answer.truncated) or not any(flags.any() for flags in alive.values())
        cut = not by_itself and out_of_time
        cut_off = False
        for name, group in self._groups.items():
            if answer.truncated or (cut and not self._limit_terminates):
                gone = ended[name]
                cut_off = cut_off or bool((acted[name] & ~gone).any())
            elif cut:
                gone = np.ones_like(ended[name])
            else:  # whoever left has terminated
                gone = ~alive[name]
            group["terminated"][...] = acted[name] & gone
            group["alive"][...] = alive[name]
        self._step["last"][...] = by_itself or cut
        self._step["truncated"][...] = cut_off
        return by_itself or cut

    def _write_alive(self, answer: SimulatorStep) -> None:
        for name, group in self._groups.items():
            group["alive"][...] = flags_of(answer, "alive", name, np.ones_like(group["alive"]))

    # ------------------------------------------------------------------------------------------- writing and checking

    def _write_rewards(self, answer: SimulatorStep) -> None:
        if answer.rewards is None:
            raise SimulatorError("step gave no rewards")
        for name, group in self._groups.items():
            put(group["reward"], answer.rewards[name], self._reward_words[name])
            if "shaping" in group:
                if answer.shaping is None:
                    raise SimulatorError(f"no shaping of group {name}, though there was some before")
                put(group["shaping"], answer.shaping[name], f"shaping of group {name}")

    def _write(self, answer: SimulatorStep, places: Sequence[Place], state: str, numbers: np.ndarray) -> None:
        """Writes observations, masks and state, as successors or as what to act on, and checks them. `numbers` is the
        part of the row that they are in."""
        for place in places:
            put(place.observation, answer.observations[place.name], place.observation_words)
            if place.mask is not None:
                if answer.action_masks is None:
                    raise SimulatorError(f"no action masks of group {place.name}, though there were some before")
                put(place.mask, answer.action_masks[place.name], place.mask_words)
                free_without_choice(place.mask, self._widths[place.name])
        if state in self._step:
            if answer.state is None:
                raise SimulatorError("no global state, though the spec has one")
            put(self._step[state], answer.state, "global state")
        if not is_finite(numbers):
            self._find_not_finite(places, state)

    def _find_not_finite(self, places: Sequence[Place], state: str) -> None:
        """Raises SimulatorError with the name of the first value that is not finite."""
        for place in places:
            check_finite(place.observation, place.observation_words)
        if state in self._step:
            check_finite(self._step[state], "global state")
        for name, group in self._groups.items():
            check_finite(group["reward"], self._reward_words[name])
            check_finite(group.get("shaping", 0.0), f"shaping of group {name}")

    def _act_on_next(self) -> None:
        """The episode continues, so its successors are what to act on."""
        self._shown[...] = self._following_shown
        for now, following in self._apart:
            now[...] = following

    def _write_metrics(self, answer: SimulatorStep) -> None:
        for name, into in self._step["metrics"].items():
            into[...] = answer.metrics.get(name, 0.0)


def names_of(spec: EnvSpec) -> dict[str, Set[str]]:
    """The names that each dictionary of an answer must have, by field. Masks and shaping may be of some groups only."""
    groups = spec.groups.keys()
    return {**dict.fromkeys(("observations", "rewards", "terminated", "alive"), groups), "metrics": spec.metrics.keys()}


def check_names(answer: Any, what: str, wanted: Mapping[str, Set[str]]) -> None:
    """Raises SimulatorError unless each field of an answer is None or a dictionary with its `wanted` names.

    `what` gave the answer: reset or step. A reset need not measure anything.
    """
    if not isinstance(answer, SimulatorStep):
        raise SimulatorError(f"{what} must give a covey.SimulatorStep, not {type(answer).__name__}")
    for field, names in wanted.items():
        given = getattr(answer, field)
        if given is None and field != "observations":
            continue
        one = "metric" if field == "metrics" else "group"
        if not isinstance(given, Mapping):
            raise SimulatorError(f"{what}'s {field} must be a dictionary by {one}, not {type(given).__name__}")
        if given.keys() == names or (what == "reset" and one == "metric" and not given):
            continue
        for name in sorted(names - given.keys()):
            raise SimulatorError(f"{what}'s {field}: {one} {name} is missing")
        of_first = field in ("action_masks", "shaping")
        for name in given.keys() - names:
            why = f"the first reset had none of group {name}" if of_first else f"the spec has no {one} {name}"
            raise SimulatorError(f"{what}'s {field}: {why}")


def check_first(answer: Any, spec: EnvSpec) -> None:
    """`check_names` of a simulator's first reset, which says of which groups there are masks and shaping."""
    check_names(answer, "reset", names_of(spec))
    for field in ("action_masks", "shaping"):
        given = getattr(answer, field)
        if given is not None:
            named = set(given) if isinstance(given, Mapping) else set()
            check_names(answer, "reset", {field: named})
            for name in named - spec.groups.keys():
                raise SimulatorError(f"reset's {field}: the spec has no group {name}")


def choice_widths(action: ActionSpec) -> tuple[int, ...]:
    """How many options each choice of an agent has; empty for continuous actions."""
    match action:
        case Discrete(num_actions=number):
            return (number,)
        case MultiDiscrete(num_actions=numbers):
            return numbers
        case Continuous():
            return ()


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where a group's observations and masks are written, and what messages call them."""

    name: str
    observation: Any
    mask: Any
    observation_words: str
    mask_words: str


def places(groups: Mapping[str, Any], prefix: str) -> list[Place]:
    """The places of all groups: of successors (prefix `next_`), or of what to act on (no prefix)."""
    return [
        Place(
            name=name,
            observation=group[f"{prefix}observation"],
            mask=group.get(f"{prefix}action_mask"),
            observation_words=f"observations of group {name}",
            mask_words=f"action masks of group {name}",
        )
        for name, group in groups.items()
    ]


def free_without_choice(mask: np.ndarray, widths: Sequence[int]) -> None:
    """Allows every action to agents without a legal one, as the dead often are: an action is drawn for them too."""
    start = 0
    for width in widths:
        part = mask[:, start : start + width]
        stuck = ~part.any(-1)
        if stuck.any():
            part[stuck] = True
        start += width


def apart(now: Sequence[Place], following: Sequence[Place], step: Mapping[str, Any]) -> Iterator[tuple[Any, Any]]:
    """Pairs of what to act on and its successor, for arrays that are not among the row's numbers: images and masks."""
    pairs = [(one.observation, other.observation) for one, other in zip(now, following, strict=True)]
    pairs += [(step["state"], step["next_state"])] if "state" in step else []
    for into, value in pairs:
        entries = [(part, value[name]) for name, part in into.items()] if isinstance(into, dict) else [(into, value)]
        yield from (pair for pair in entries if pair[0].dtype != np.float32)
    yield from ((one.mask, other.mask) for one, other in zip(now, following, strict=True) if one.mask is not None)


def put(into: Any, value: Any, what: str) -> None:
    """Writes an array, or each entry of a dictionary; raises SimulatorError for a wrong shape.

    Numbers of single precision are checked after they are written, all at once; others are checked here."""
    if isinstance(into, dict):
        if not isinstance(value, Mapping) or set(value) != set(into):
            has = f"entries {', '.join(map(str, value))}" if isinstance(value, Mapping) else "one array"
            raise SimulatorError(f"{what} have {has}, not entries {', '.join(into)}")
        for name, part in into.items():
            put(part, value[name], f"entry {name} of the {what}")
        return
    if type(value) is not np.ndarray:
        value = np.asarray(value)
    if value.shape != into.shape:
        raise SimulatorError(f"{what} have shape {list(value.shape)}, not {list(into.shape)}")
    if into.dtype is not FLOAT32 and value.dtype.kind == "f":
        check_finite(value, what)
    into[...] = value


def is_finite(numbers: np.ndarray) -> bool:
    """Whether all numbers `[N]` of single precision are finite. Then their sum in double precision is finite too."""
    return math.isfinite(np.add.reduce(numbers, dtype=np.float64))


def check_finite(value: Any, what: str) -> None:
    """Raises SimulatorError if an array, or an entry of a dictionary, is not finite."""
    if isinstance(value, dict):
        for name, part in value.items():
            check_finite(part, f"entry {name} of the {what}")
    elif value.dtype.kind == "f" and not np.isfinite(value).all():
        raise SimulatorError(f"{what} are not finite: {value[~np.isfinite(value)][0]}")


def flags_of(answer: SimulatorStep, field: str, name: str, default: np.ndarray) -> np.ndarray:
    """A group's flags `[A]`, or `default` where the answer has none."""
    given = getattr(answer, field)
    if given is None:
        return default
    flags = np.asarray(given[name], bool)
    if flags.shape not in ((), default.shape):
        raise SimulatorError(f"{field} of group {name} has shape {list(flags.shape)}, not {list(default.shape)}")
    return np.broadcast_to(flags, default.shape)
