"""Episodes of one copy of a simulator: seeds, time limit, who lives, auto-reset, and checks of what it answers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from covey.envs.host.simulator import Simulator, SimulatorConfig, SimulatorError, SimulatorStep, describe_error
from covey.errors import CoveyError
from covey.specs import Continuous


def episode_seed(seed: int, copy: int, episode: int) -> int:
    """The seed of one episode, 31 bits: the same in whichever process, and another one for every copy and episode."""
    return int(np.random.SeedSequence((seed, copy, episode)).generate_state(1)[0] >> 1)


class Episodes:
    """Plays episode after episode in one copy and writes what happens into its rows of shared memory (layout.py).

    As everywhere in covey, `observation` is what to act on, after an auto-reset that of the new episode, and
    `next_observation` is the true successor of the last action. What an agent is offered when it is not alive counts
    nowhere: its reward is zero.
    """

    def __init__(self, simulator: Simulator, config: SimulatorConfig, row: Mapping[str, Any], number: int):
        self.simulator = simulator
        self.number = number
        self.resets = 0
        self._limit, self._limit_terminates = config.time_limit, config.time_limit_terminates
        self._row, self._step, self._groups = row, row["step"], row["step"]["groups"]
        self._bounds = {
            name: (np.asarray(group.action.low, np.float32), np.asarray(group.action.high, np.float32))
            for name, group in simulator.spec.groups.items()
            if isinstance(group.action, Continuous)
        }

    def begin(self) -> None:
        """Resets into the episode that the row names."""
        first = self._reset()
        self._write(first, "next_")
        self._write(first, "")
        self._write_alive(first)
        for group in self._groups.values():
            group["reward"][...] = 0
            group["terminated"][...] = False
        self._step["last"][...] = self._step["truncated"][...] = False
        self._write_metrics(first)

    def advance(self) -> None:
        """One step with the actions in the row, and a reset if it ended the episode."""
        self._check_actions()
        answer = self._ask("step", lambda: self.simulator.step(self._row["actions"]))
        self._row["elapsed"][...] += 1
        self._write(answer, "next_")
        self._write_metrics(answer)
        if self._settle(answer):
            self._row["episode"][...] += 1
            self._row["elapsed"][...] = 0
            first = self._reset()
            self._write(first, "")
            self._write_alive(first)
        else:
            self._write(answer, "")

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
            return call()
        except CoveyError:
            raise
        except SystemExit as error:
            raise SimulatorError(f"{what} ended the process (exit code {error.code})") from error
        except Exception as error:
            raise SimulatorError(f"{what} failed: {describe_error(error)}") from error

    # ------------------------------------------------------------------------------------------------------- endings

    def _settle(self, answer: SimulatorStep) -> bool:
        """Writes rewards and who lives on; returns whether the episode is over."""
        acted = {name: group["alive"].copy() for name, group in self._groups.items()}
        ended = {name: _flags(answer.terminated, name, False) for name in acted}
        alive = {name: _flags(answer.alive, name, acted[name]) & ~ended[name] for name in acted}
        by_itself = bool(answer.truncated) or not any(flags.any() for flags in alive.values())
        cut = not by_itself and int(self._row["elapsed"]) >= self._limit
        cut_off = False
        for name, group in self._groups.items():
            if answer.truncated or (cut and not self._limit_terminates):
                gone = ended[name]
                cut_off = cut_off or bool((acted[name] & ~gone).any())
            elif cut:
                gone = True
            else:  # whoever left has terminated
                gone = ~alive[name]
            group["terminated"][...] = acted[name] & gone
            group["alive"][...] = alive[name]
            self._write_rewards(answer, name, acted[name])
        self._step["last"][...] = by_itself or cut
        self._step["truncated"][...] = cut_off
        return by_itself or cut

    def _write_alive(self, answer: SimulatorStep) -> None:
        for name, group in self._groups.items():
            group["alive"][...] = _flags(answer.alive, name, True)

    # ------------------------------------------------------------------------------------------- writing and checking

    def _write_rewards(self, answer: SimulatorStep, name: str, acted: np.ndarray) -> None:
        if answer.rewards is None:
            raise SimulatorError("step gave no rewards")
        into = self._groups[name]["reward"]
        put(into, answer.rewards[name], f"rewards of group {name}", check=True)
        into *= acted

    def _write(self, answer: SimulatorStep, prefix: str) -> None:
        """Observations, masks and state, as what follows (`next_`) or as what to act on."""
        check = prefix == "next_"  # each answer is written as that first
        for name, group in self._groups.items():
            put(group[f"{prefix}observation"], answer.observations[name], f"observations of group {name}", check=check)
            if f"{prefix}action_mask" in group:
                if answer.action_masks is None:
                    raise SimulatorError(f"no action masks of group {name}, though there were some before")
                put(group[f"{prefix}action_mask"], answer.action_masks[name], f"action masks of group {name}")
        if "state" in self._step:
            if answer.state is None:
                raise SimulatorError("no global state, though the spec has one")
            put(self._step[f"{prefix}state"], answer.state, "global state", check=check)

    def _write_metrics(self, answer: SimulatorStep) -> None:
        for name, into in self._step["metrics"].items():
            into[...] = answer.metrics.get(name, 0.0)

    def _check_actions(self) -> None:
        for name, (low, high) in self._bounds.items():
            chosen = self._row["actions"][name]
            inside = ((chosen >= low) & (chosen <= high)).all(-1) | ~self._groups[name]["alive"]
            if not inside.all():
                agent = int(np.argmin(inside))
                raise SimulatorError(
                    f"the action of agent {agent} of group {name} is outside its space: {chosen[agent]}"
                )


def put(into: Any, value: Any, what: str, *, check: bool = False) -> None:
    """Writes a value, or each entry of a dictionary, where its shape is right and, with `check`, all of it finite."""
    if isinstance(into, dict):
        if not isinstance(value, Mapping) or set(value) != set(into):
            has = f"entries {', '.join(map(str, value))}" if isinstance(value, Mapping) else "one array"
            raise SimulatorError(f"{what} have {has}, not entries {', '.join(into)}")
        for name, part in into.items():
            put(part, value[name], f"entry {name} of the {what}", check=check)
        return
    value = np.asarray(value)
    if value.shape != into.shape:
        raise SimulatorError(f"{what} have shape {list(value.shape)}, not {list(into.shape)}")
    if check and value.dtype.kind == "f" and not math.isfinite(value.sum()) and not np.isfinite(value).all():
        raise SimulatorError(f"{what} are not finite: {value[~np.isfinite(value)][0]}")
    into[...] = value


def _flags(given: Mapping[str, np.ndarray] | None, name: str, default: Any) -> Any:
    return np.asarray(default) if given is None else np.asarray(given[name], bool)
