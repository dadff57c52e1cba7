"""Many copies of a simulator in several processes, in two halves: one steps while the other is acted on.

    pool = Pool(source, num_copies=16, num_workers=2)
    pool.begin(seed=0)
    while True:
        for half in range(pool.num_halves):
            answer = pool.receive(half)
            pool.send(half, actions_for(answer.timestep))

Answers and actions are in shared memory. A command is two bytes in a pipe, and waiting for the answer blocks in the
operating system, so nothing spins. A process that crashes or hangs is replaced: the episodes of its copies are dropped,
which `receive` reports, and new ones begin.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import multiprocessing
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from multiprocessing import resource_tracker, util
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from covey.envs.host import layout
from covey.envs.host.layout import Description
from covey.envs.host.simulator import SimulatorError, Source, describe_error
from covey.envs.host.worker import BEGIN, DONE, RENDER, SIGNALS_OF_OWNER, STEP, Assignment, Output, work
from covey.errors import UsageError
from covey.specs import Continuous
from covey.types import Array, GroupStep, TimeStep, pytree

START_SECONDS = 120.0  # that a process may take to import and make its simulators
MOST_FAILURES = 3  # of one process, with no episode completed in between
MOST_KILLS = 10  # likewise, of one that was killed, which need not be its simulator's fault
LOG_BYTES = 64_000_000  # of logged actions, from which episodes can be played again
TAIL_BYTES = 400  # read from the end of what a failed process printed
UNGUARDED = (  # why a process cannot import the script that starts it
    'it could not import the script that started it; what a script runs must be under `if __name__ == "__main__":`'
)
ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@pytree
class Answer:
    """What the copies of a half showed. Where `dropped [b]`, the copy's episode was lost with its process, and the time
    step is the first of a new one."""

    timestep: TimeStep
    dropped: Array


class Pool:
    """Copies `[N]` of a simulator, in `num_workers` processes."""

    def __init__(
        self,
        source: Source,
        num_copies: int,
        *,
        num_workers: int,
        stagger: bool = False,
        seconds: float = 60.0,
        warn: Callable[[str], None] | None = None,
    ):
        """A process may take `seconds` to step its copies. With `stagger`, first episodes are cut at times spread over
        the time limit. `warn` is called for every process that is replaced."""
        self.source, self.num_copies = source, num_copies
        self.description = describe(source)
        self.num_workers = min(num_workers, num_copies)
        sizes = half_sizes(num_copies, self.num_workers)
        self.num_halves = len(sizes)
        self.restarts = 0  # processes replaced because they crashed or hung
        self.dropped_episodes = 0
        self._seconds, self._warn = seconds, warn or print_warning
        self._tree = layout.layout(self.description)
        size = layout.num_bytes(self._tree, num_copies)
        self._memory = multiprocessing.get_context("spawn").RawArray("B", size)
        self.arrays = layout.arrays(self._tree, num_copies, self._memory)
        self.arrays["active"][...] = True
        self._stagger = stagger
        self._steps = np.zeros(num_copies, np.int32)  # of each copy's episode, in the log
        shapes = log_shapes(self.description, num_copies)
        self._log = layout.map_leaves(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes) if shapes else None
        self.halves = [slice(number * size, (number + 1) * size) for number, size in enumerate(sizes)]
        self._copies = deal(self.halves, self.num_workers)
        self._bounds = {
            name: (np.asarray(action.low, np.float32), np.asarray(action.high, np.float32))
            for name, group in self.description.spec.groups.items()
            if isinstance(action := group.action, Continuous)
        }
        self._dropped = np.zeros(num_copies, bool)
        self._waiting = [False] * self.num_halves  # for an answer
        self._paused: list[list[int]] = [[] for _ in range(self.num_halves)]  # copies that sit out a command
        self._playing_again = False
        self._episodes = np.zeros(self.num_workers, np.int64)  # completed in each process
        self._failures = [Failures() for _ in range(self.num_workers)]
        self._workers: list[Worker] = []
        try:
            self._workers = [self._start(number) for number in range(self.num_workers)]
            for number, worker in enumerate(self._workers):
                try:
                    worker.introduce(START_SECONDS)
                except WorkerLost as lost:
                    self._start_again(number, lost)
        except BaseException:
            self.close()
            raise

    # ---------------------------------------------------------------------------------------------------- stepping

    def begin(self, seed: int) -> None:
        """Starts the first episodes of a run; `receive` gives their first time steps."""
        self.finish()
        self._dropped[...] = False
        for number in self._worn_out():
            self._renew_process(number)
        limit = self.description.spec.time_limit
        self.arrays["seed"][...] = seed
        self.arrays["episode"][...] = 0
        self.arrays["elapsed"][...] = np.arange(self.num_copies) * limit // self.num_copies if self._stagger else 0
        self.arrays["active"][...] = True
        self._steps[...] = 0
        for half in range(self.num_halves):
            self._command(half, BEGIN)

    def send(self, half: int, actions: Mapping[str, np.ndarray]) -> None:
        """Steps a half with its actions, by group; returns before that is done."""
        part = self.halves[half]
        self._check_actions(part, actions)
        for name, values in actions.items():
            self.arrays["actions"][name][part] = values
        self._pause_dropped(half)
        if self._log is not None:
            stepped = part.start + np.flatnonzero(self.arrays["active"][part])
            for name, log in self._log.items():
                log[stepped, self._steps[stepped]] = self.arrays["actions"][name][stepped]
            self._steps[stepped] += 1
        self._command(half, STEP)

    def _check_actions(self, part: slice, actions: Mapping[str, np.ndarray]) -> None:
        """Raises SimulatorError where an action is outside its space, of an agent that lives and is to act."""
        for name, (low, high) in self._bounds.items():
            inside = (actions[name] >= low) & (actions[name] <= high)
            if inside.all():
                continue
            living = self.arrays["step"]["groups"][name]["alive"][part] & self.arrays["active"][part, None]
            wrong = np.argwhere(living & ~inside.all(-1))
            if wrong.size:
                row, agent = wrong[0]
                copy = part.start + row
                step, episode = self.arrays["elapsed"][copy] + 1, self.arrays["episode"][copy]
                raise SimulatorError(
                    f"{self.source.name}: copy {copy}, step {step} of episode {episode}: the action of agent {agent} "
                    f"of group {name} is outside its space: {actions[name][row, agent]}"
                )

    def _pause_dropped(self, half: int) -> None:
        """Pauses copies whose episode was lost after it was shown: the action was not chosen for their new one."""
        part = self.halves[half]
        waiting = self._dropped[part] & self.arrays["active"][part]
        self._paused[half] = (part.start + np.flatnonzero(waiting)).tolist()
        self.arrays["active"][self._paused[half]] = False

    def receive(self, half: int) -> Answer:
        """Waits until a half has stepped; returns a copy of what it shows."""
        self.wait(half)
        part = self.halves[half]
        dropped = self._dropped[part].copy()
        self._dropped[part] = False
        shown = layout.map_leaves(lambda array: array[part].copy(), self.arrays["step"])
        return Answer(timestep=as_timestep(shown), dropped=dropped)  # type: ignore[arg-type]

    def wait(self, half: int) -> None:
        """Waits until a half has stepped."""
        assert self._waiting[half], "nothing was sent"
        for number, worker in enumerate(self._workers):
            if not self._copies[number][half]:
                continue
            try:
                worker.receive(self._seconds)
            except WorkerLost as lost:
                self._replace(number, lost, half)
        self._waiting[half] = False
        part = self.halves[half]
        ended = self.arrays["step"]["last"] & self.arrays["active"]
        self._steps[part][ended[part] | self._dropped[part]] = 0
        self._episodes += [np.count_nonzero(ended[copies[half]]) for copies in self._copies]
        self.arrays["active"][self._paused[half]] = True
        self._paused[half] = []

    # ------------------------------------------------------------------------------------- continuing in another pool

    def saved(self) -> dict[str, Any]:
        """What `replay` needs to continue all episodes; empty where their actions would take too much memory."""
        if self._log is None:
            return {}
        where = {name: self.arrays[name].copy() for name in ("seed", "episode", "elapsed")}
        shown = layout.map_leaves(np.copy, self.arrays["step"])
        return {**where, "steps": self._steps.copy(), "actions": dict(self._log), "step": shown}

    def replay(self, saved: Mapping[str, Any]) -> bool:
        """Plays saved episodes again up to where they were; returns whether every copy shows what it showed then.

        It does if the simulator behaves the same for the same seed and actions. The copies then wait for actions: there
        is nothing to receive.
        """
        self.finish()
        self._dropped[...] = False
        return self._play_again(list(range(self.num_copies)), saved)

    def _play_again(self, copies: list[int], saved: Mapping[str, Any]) -> bool:
        """`replay` for some copies, while the others wait."""
        assert self._log is not None
        self._playing_again = True
        of_these = np.zeros(self.num_copies, bool)
        of_these[copies] = True
        steps = np.where(of_these, saved["steps"], 0)
        for name in ("seed", "episode", "elapsed"):
            self.arrays[name][copies] = saved[name][copies]
        self.arrays["elapsed"][copies] -= steps[copies]
        self.arrays["active"][...] = of_these
        self._steps[copies] = 0
        for half in range(self.num_halves):
            self._command(half, BEGIN)
        self.finish()
        for number in range(int(steps.max(initial=0))):
            self.arrays["active"][...] = steps > number
            for half, part in enumerate(self.halves):
                self.send(half, {name: np.asarray(log)[part, number] for name, log in saved["actions"].items()})
            self.finish()
        self.arrays["active"][...] = True
        self._playing_again = False
        return np.array_equal(self._steps[copies], steps[copies]) and self._shows(copies, saved)

    # ------------------------------------------------------------------------------------- processes that are worn out

    def renew(self) -> None:
        """Replaces processes that have completed `episodes_per_process` episodes.

        Their copies play the running episodes again in the new process. All answers must have been received.
        """
        assert not any(self._waiting), "copies are being stepped"
        for number in self._worn_out():
            copies = self._all_copies(number)
            saved = layout.map_leaves(np.copy, self.saved())
            self._renew_process(number)
            if saved and self._play_again(copies, saved):
                continue
            self.dropped_episodes += len(copies)
            try:
                self._begin_again(number)
            except WorkerLost as lost:
                self._start_again(number, lost, then=partial(self._begin_again, number))

    def _worn_out(self) -> list[int]:
        limit = self.description.episodes_per_process
        return [] if limit is None else np.flatnonzero(self._episodes >= limit).tolist()

    def _renew_process(self, number: int) -> None:
        """Replaces a process that works."""
        try:
            self._exchange(number)
        except WorkerLost as lost:
            self._start_again(number, lost)

    def _shows(self, copies: list[int], saved: Mapping[str, Any]) -> bool:
        same = [np.array_equal(self.arrays["episode"][copies], saved["episode"][copies])]
        for name, group in self.arrays["step"]["groups"].items():
            for part in ("observation", "alive", "action_mask"):
                if part in group:
                    then = saved["step"]["groups"][name][part]
                    layout.map_leaves(
                        lambda now, then: same.append(np.array_equal(now[copies], then[copies])), group[part], then
                    )
        return all(same)

    # ---------------------------------------------------------------------------------------------------- stepping

    def render(self) -> np.ndarray:
        """A picture of the first copy as it is now, uint8 [H, W, 3]."""
        assert not any(self._waiting), "copies are being stepped"
        try:
            return self._workers[0].render(self._seconds)
        except WorkerLost as lost:
            raise SimulatorError(f"{self.source.name}: {str(lost).removeprefix('failed: ')}") from lost

    def finish(self) -> None:
        """Waits for the answers that are due."""
        for half in range(self.num_halves):
            if self._waiting[half]:
                self.wait(half)

    def _command(self, half: int, command: bytes) -> None:
        assert not self._waiting[half], "the answer to the last command was not received"
        for number, worker in enumerate(self._workers):
            if self._copies[number][half]:
                worker.send(command + bytes([half]))
        self._waiting[half] = True

    # --------------------------------------------------------------------------------------------------- processes

    def _start(self, number: int) -> Worker:
        assignment = Assignment(halves=self._copies[number], num_copies=self.num_copies, memory=self._memory)
        return Worker(self.source, assignment)

    def _all_copies(self, number: int) -> list[int]:
        """The copies of a process, of both halves."""
        return [copy for half in self._copies[number] for copy in half]

    def _replace(self, number: int, why: WorkerLost, half: int) -> None:
        """Replaces a process that was lost while `half` was waited for. Its copies begin new episodes."""
        copies = self._all_copies(number)
        # Paused copies of other processes stay paused: those processes may not have read the flags yet.
        self.arrays["active"][[copy for paused in self._paused for copy in paused if copy in copies]] = True
        lost = len(copies) if self._playing_again else int(self.arrays["active"][copies].sum())
        self.dropped_episodes += lost
        self._start_again(number, why, lost, then=partial(self._begin_again, number))
        worker = self._workers[number]
        worker.owed = int(self._waiting[1 - half]) if self.num_halves == 2 else 0  # the other half has begun already

    def _start_again(
        self, number: int, why: WorkerLost, lost: int = 0, then: Callable[[], None] = lambda: None
    ) -> None:
        """Replaces a process that was lost with `lost` episodes, again and again until one survives `then`."""
        while True:
            self._note_failure(number, why, lost)
            try:
                self._exchange(number)
                then()
                return
            except WorkerLost as error:
                why, lost = error, 0

    def _note_failure(self, number: int, why: WorkerLost, lost: int) -> None:
        """Ends a process and warns of it; raises SimulatorError if it failed too often."""
        if self._episodes[number]:
            self._failures[number] = Failures()
        self._episodes[number] = 0
        too_often = self._failures[number].add(why)
        printed = self._workers[number].printed()
        self._workers[number].kill()
        copies = self._all_copies(number)
        where = f"{self.source.name}: the process of copies {copies[0]} to {copies[-1]}"
        message = f"{where} {why}" + (f"; it printed: {printed}" if printed else "")
        if too_often:
            raise SimulatorError(f"{message}; {too_often} without ending an episode")
        self.restarts += 1
        self._warn(f"{message}; it is replaced, and {lost} episodes are dropped")

    def _exchange(self, number: int) -> None:
        """Ends a process and starts another, without episodes yet; raises WorkerLost if the new one ends."""
        self._workers[number].close()
        self._workers[number] = self._start(number)
        self._workers[number].introduce(START_SECONDS)
        self._episodes[number] = 0

    def _begin_again(self, number: int) -> None:
        """Begins new episodes in a process's copies, in place of lost ones. Paused copies stay paused."""
        copies = self._all_copies(number)
        self.arrays["episode"][copies] += 1
        self.arrays["elapsed"][copies] = 0
        self._steps[copies] = 0
        self._dropped[copies] = True
        active = self.arrays["active"][copies]
        self.arrays["active"][copies] = True
        try:
            for half, own in enumerate(self._copies[number]):
                if own:
                    self._workers[number].send(BEGIN + bytes([half]))
                    self._workers[number].receive(START_SECONDS)
        finally:
            self.arrays["active"][copies] = active

    @property
    def pids(self) -> list[int]:
        """The numbers of the processes."""
        return [worker.pid for worker in self._workers]

    def close(self) -> None:
        """Ends all processes."""
        for worker in self._workers:
            worker.close()
        self._workers = []

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def print_warning(line: str) -> None:
    """Prints a warning on stderr."""
    print(f"warning: {line}", file=sys.stderr, flush=True)


def half_sizes(num_copies: int, num_workers: int) -> list[int]:
    """The copies in each half: two equal ones, if every process has a copy in both."""
    two = num_copies % 2 == 0 and num_copies >= 2 * num_workers
    return [num_copies // 2] * 2 if two else [num_copies]


def deal(halves: list[slice], num_workers: int) -> list[list[list[int]]]:
    """The copies of each half, by process. If copies cannot be divided evenly, processes with one more in the first
    half have one fewer in the second, so that all have about the same work."""
    shares = [np.array_split(np.arange(half.start, half.stop), num_workers) for half in halves]
    for half, share in zip(halves[1:], shares[1:], strict=True):
        cuts = np.cumsum([len(part) for part in reversed(share)])[:-1]
        share[:] = np.split(np.arange(half.start, half.stop), cuts)
    return [[share[worker].tolist() for share in shares] for worker in range(num_workers)]


def log_shapes(description: Description, num_copies: int) -> dict[str, layout.Leaf]:
    """The log of all actions of the running episodes, by group; empty where it would take more than `LOG_BYTES`."""
    limit, actions = description.spec.time_limit, layout.layout(description)["actions"]
    shapes = {
        name: layout.Leaf(shape=(num_copies, limit, *leaf.shape), dtype=leaf.dtype) for name, leaf in actions.items()
    }
    fits = sum(4 * math.prod(leaf.shape) for leaf in shapes.values()) <= LOG_BYTES
    return shapes if fits else {}


def saved_episodes(description: Description, num_copies: int) -> dict[str, Any]:
    """What `Pool.saved` gives, all zeros."""
    log = log_shapes(description, num_copies)
    if not log:
        return {}
    tree = layout.layout(description)
    leaves = {name: tree[name] for name in ("seed", "episode", "elapsed", "step")} | {"steps": tree["elapsed"]}
    zeros = layout.map_leaves(lambda leaf: np.zeros((num_copies, *leaf.shape), leaf.dtype), leaves)
    return {**zeros, "actions": layout.map_leaves(lambda leaf: np.zeros(leaf.shape, leaf.dtype), log)}


class WorkerLost(Exception):
    """A process crashed, hangs, or reported a failure; `killed`, where it was ended by SIGKILL."""

    def __init__(self, message: str, *, killed: bool = False):
        super().__init__(message)
        self.killed = killed


@dataclasses.dataclass
class Failures:
    """How often a process failed, and was killed, without an episode that ended in between."""

    own: int = 0
    kills: int = 0

    def add(self, lost: WorkerLost) -> str:
        """Counts one more; what to say where that is too many."""
        self.own, self.kills = self.own + (not lost.killed), self.kills + lost.killed
        if self.own >= MOST_FAILURES:
            return f"it failed {self.own} times"
        return f"it was killed {self.kills} times" if self.kills >= MOST_KILLS else ""


class Worker:
    """A process and the pipe to it."""

    def __init__(self, source: Source, assignment: Assignment):
        context = multiprocessing.get_context("spawn")
        self._connection: Connection
        self._connection, remote = context.Pipe()
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 (it is open as long as the process runs)
        self.owed = 0  # answers that count as received
        arguments = (source, remote, assignment, Output(self._output.fileno()))
        self._process = context.Process(target=work, args=arguments, daemon=True, name=f"covey {source.name}")
        try:
            with one_thread(), signals_blocked():
                self._process.start()
        except Exception as error:  # it cannot be pickled
            self._output.close()
            self._connection.close()
            what = f"{source.name} cannot be sent to a process ({describe_error(error)})"
            raise SimulatorError(f"{what}; define it at the top level of a module") from error
        finally:
            remote.close()
        # At exit, Python sends daemons SIGTERM, which workers ignore, and waits for them. This ends them before.
        self._at_exit = util.Finalize(self, self._process.kill, exitpriority=1)

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def introduce(self, seconds: float) -> Description:
        """Waits for its description of the simulator; raises WorkerLost if there is none."""
        try:
            self.receive(seconds)
        except WorkerLost as lost:
            if self._process.exitcode == 1 and not self.printed():  # it did not come to `work`
                raise WorkerLost(f"{lost}: {UNGUARDED}") from None
            raise
        try:
            description: Description = self._connection.recv()
        except (EOFError, OSError):
            raise WorkerLost("ended while it described its simulator") from None
        return description

    def send(self, command: bytes) -> None:
        with contextlib.suppress(OSError):  # it is dead, and `receive` will notice
            self._connection.send_bytes(command)

    def receive(self, seconds: float) -> None:
        """Waits for the answer to a command; raises WorkerLost where there is none."""
        if self.owed:
            self.owed -= 1
            return
        try:
            if not self._connection.poll(seconds):
                raise WorkerLost(f"did not answer within {seconds:g} seconds")
            if self._connection.recv_bytes() != DONE:
                raise WorkerLost(f"failed: {self._connection.recv()}")
        except (EOFError, OSError):
            self._process.join(5.0)
            code = self._process.exitcode
            how = f"by signal {-code}" if code is not None and code < 0 else f"with exit code {code}"
            raise WorkerLost(f"ended {how}", killed=code == -signal.SIGKILL) from None

    def render(self, seconds: float) -> np.ndarray:
        """A picture of its first copy."""
        self.send(RENDER + bytes([0]))
        self.receive(seconds)
        picture: np.ndarray = self._connection.recv()
        return picture

    def printed(self) -> str:
        """The last line of what it printed."""
        size = self._output.seek(0, os.SEEK_END)
        self._output.seek(max(0, size - TAIL_BYTES))
        lines = self._output.read().decode(errors="replace").strip().splitlines()
        return lines[-1].strip() if lines else ""

    def close(self) -> None:
        """Closes the pipe, at which the process ends, and kills it if it does not."""
        if not self._output.closed:
            self._connection.close()
            self._process.join(2.0)
            self.kill()

    def kill(self) -> None:
        """Kills it."""
        if not self._output.closed:
            self._at_exit.cancel()
            self._process.kill()
            self._process.join()
            self._process.close()
            self._connection.close()
            self._output.close()


_described: dict[str, Description] = {}


def describe(source: Source) -> Description:
    """Describes a simulator, from a separate process; raises UsageError with the simulator's message if that fails."""
    key = repr(source)
    if key not in _described:
        _described[key] = _describe(source)
    return _described[key]


def _describe(source: Source) -> Description:
    try:
        worker = Worker(source, Assignment())
        try:
            return worker.introduce(START_SECONDS)
        except WorkerLost as lost:
            printed = worker.printed()
            raise SimulatorError(f"{lost}" + (f"; it printed: {printed}" if printed else "")) from lost
        finally:
            worker.close()
    except SimulatorError as error:
        text = str(error).removeprefix("failed: ")
        raise UsageError(text if text.startswith(source.name) else f"{source.name}: {text}") from error


def check_workers(num: int) -> None:
    """Raises UsageError if there are more processes than cores."""
    cores = num_cores()
    if num > cores:
        raise UsageError(f"actors.num={num} processes are more than this machine's {cores} core{'s' * (cores > 1)}")


def num_cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def as_timestep(step: Mapping[str, Any]) -> TimeStep:
    """The `step` part of a pool's arrays as a TimeStep."""
    groups = {
        name: GroupStep(
            observation=group["observation"],
            next_observation=group["next_observation"],
            reward=group["reward"],
            shaping=group.get("shaping"),
            action_mask=group.get("action_mask"),
            next_action_mask=group.get("next_action_mask"),
            alive=group["alive"],
            terminated=group["terminated"],
        )
        for name, group in step["groups"].items()
    }
    return TimeStep(
        groups=groups,
        truncated=step["truncated"],
        last=step["last"],
        state=step.get("state"),
        next_state=step.get("next_state"),
        metrics=step["metrics"],
    )


@contextlib.contextmanager
def signals_blocked() -> Iterator[None]:
    """Processes that are started inside this context receive no signal of their owner's until they unblock them."""
    resource_tracker.ensure_running()  # else `multiprocessing` starts it here and unblocks these signals
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS_OF_OWNER)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Processes that are started inside this context compute in one thread each."""
    before = {name: os.environ.get(name) for name in ONE_THREAD}
    os.environ.update(dict.fromkeys(ONE_THREAD, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
