"""Runs a benchmark on this machine: worker processes side by side, each with devices of its own.

The command's process composes, hands out, watches and records; it builds nothing and never starts JAX's devices. A
worker (worker.py) gets one experiment at a time: a further seed of the one that it has compiled, if there is one, or
else one that nobody has compiled yet. A worker that dies is replaced, and what it ran is recorded as failed.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from covey import metrics as names
from covey.errors import CoveyError, Interrupted, UsageError
from covey.experiment.config import to_dict
from covey.experiment.console import describe_returns, format_seconds
from covey.experiment.lease import living_holder
from covey.experiment.loggers import check_loggers
from covey.files import writing
from covey.launch.benchmark import Benchmark, Experiment, is_done, read_status, write_description, write_status
from covey.launch.devices import Slot, available_cores, find_accelerators, make_slots
from covey.launch.overview import Known, Overview, Running, Snapshot, expected_seconds, summary_text, time_left
from covey.process import ending_signals

SECONDS_BETWEEN_LOOKS = 0.5
TAIL_BYTES = 65_536  # of metrics.jsonl: enough for its last record, whatever the task


def print_list(benchmark: Benchmark) -> None:
    """The numbered experiments; `only=NUMBER` runs one."""
    width = len(str(len(benchmark.experiments) - 1))
    for experiment in benchmark.experiments:
        state = read_status(experiment).get("state", "not started")
        print(f"{experiment.index:{width}}  {experiment.title}  ({experiment.run_directory}, {state})")


def run_benchmark(benchmark: Benchmark) -> None:
    """Runs what is not done. Raises CoveyError where some failed; on signals Interrupted, with everything saved."""
    slots = find_slots(benchmark)
    with writing(f"to {benchmark.folder}"):
        (benchmark.folder / "status").mkdir(parents=True, exist_ok=True)
        write_description(benchmark)
    if benchmark.options.force:
        forget(benchmark.chosen)
    with Overview() as overview, caught_signals() as received:
        pool = Pool(benchmark, slots, overview, received)
        try:
            pool.run()
        except OSError as error:
            raise CoveyError(f"cannot go on with {benchmark.folder}: {error}") from error
        overview.line(f"{pool.summary()}: {benchmark.folder}")
    if received:
        raise Interrupted(received[0], "interrupted: running experiments were saved; the same command goes on")
    if pool.failed:
        first = pool.failed[0]
        raise CoveyError(
            f"{len(pool.failed)} of {len(benchmark.chosen)} experiments failed, the first being {first.title}: "
            f"{pool.errors[first.index]}"
        )


def find_slots(benchmark: Benchmark) -> list[Slot]:
    """Where the experiments run; also checks what can be checked before any does."""
    configs = [experiment.config.experiment for experiment in benchmark.chosen]
    for config in configs:
        check_loggers(config.loggers, config.logger_options)
    platforms = {config.platform.name for config in configs}
    if len(platforms) > 1:
        raise UsageError(
            f"all experiments of a benchmark run on one platform, not on {' and '.join(sorted(platforms))}"
        )
    platform = platforms.pop()
    todo = sum(benchmark.options.force or not is_done(experiment) for experiment in benchmark.chosen)
    return make_slots(
        platform,
        max(config.devices or 1 for config in configs),
        cores=available_cores(),
        accelerators=find_accelerators(platform),
        most=todo,
        workers=benchmark.options.workers,
    )


def forget(experiments: Sequence[Experiment]) -> None:
    """Removes what is there of the experiments, unless another command is at it."""
    for experiment in experiments:
        if (holder := living_holder(experiment.run_directory)) is not None:
            raise UsageError(
                f"{experiment.title} is being trained by {holder}; force=true would remove its run directory"
            )
    for experiment in experiments:
        experiment.status_file.unlink(missing_ok=True)
        if (experiment.run_directory / "config.yaml").is_file():
            shutil.rmtree(experiment.run_directory)


# --------------------------------------------------------------------------------------------------------- processes


class Process:
    """A worker process, and what it is doing."""

    def __init__(self, slot: Slot, log: Path):
        """`log` takes what is printed before the first job begins."""
        settings = {"cores": slot.cores, "platform": slot.platform, "devices": slot.devices}
        with open(log, "ab") as file:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "covey.launch.worker", json.dumps(settings)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                env={**os.environ, **slot.environment},
            )
        assert self._process.stdout is not None
        self.stdout = self._process.stdout
        self.slot = slot
        self.experiment: Experiment | None = None
        self.compiled: str | None = None  # the name of the experiment that it has ready
        self.started = 0.0
        self.started_at = ""
        self.log_begin = 0  # where this attempt begins in the experiment's log
        self.first_progress: tuple[float, float] | None = None  # when training was first seen, and how far it was
        self._received = b""

    def give(self, experiment: Experiment, render: bool) -> None:
        self.experiment, self.compiled, self.first_progress = experiment, experiment.name, None
        self.started, self.started_at = time.monotonic(), utc_now()
        self.log_begin = experiment.log_file.stat().st_size if experiment.log_file.exists() else 0
        job = {
            "name": experiment.name,
            "config": to_dict(experiment.config),
            "run_directory": str(experiment.run_directory),
            "log": str(experiment.log_file),
            "command": experiment.command,
            "render": render,
        }
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it is dead, and its end of the other pipe will say so
            self._process.stdin.write(json.dumps(job).encode() + b"\n")
            self._process.stdin.flush()

    def read(self) -> list[dict[str, Any]] | None:
        """The answers that have come; None where the process has ended."""
        data = os.read(self.stdout.fileno(), 65_536)
        *lines, self._received = (self._received + data).split(b"\n")
        return [json.loads(line) for line in lines] if data else None

    def stop(self) -> None:
        """Asks it to save and end."""
        self._process.send_signal(signal.SIGTERM)

    def end(self) -> int:
        """Ends it, if it has not ended by itself; returns its exit code."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            return self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            return self.kill()

    def kill(self) -> int:
        self._process.kill()
        return self._process.wait()


class Pool:
    """Hands experiments to workers until none is left or a signal came, and records what became of each."""

    def __init__(self, benchmark: Benchmark, slots: Sequence[Slot], overview: Overview, received: list[int]):
        self.failed: list[Experiment] = []
        self.errors: dict[int, str] = {}
        self._experiments = benchmark.chosen
        self._render = benchmark.options.render
        self._slots = list(slots)
        self._overview = overview
        self._received = received
        self._stopping = False
        self._pending = [experiment for experiment in self._experiments if not is_done(experiment)]
        self._done = len(self._experiments) - len(self._pending)
        self._known: list[Known] = []
        self._workers: list[Process] = []
        self._selector = selectors.DefaultSelector()

    def run(self) -> None:
        todo, workers = len(self._pending), len(self._slots)
        before = f"{self._done} of {len(self._experiments)} done before, " if self._done else ""
        self._overview.line(f"{before}{todo} to run, {workers} side by side" if todo else "all is done already")
        try:
            while self._pending or any(worker.experiment for worker in self._workers):
                if self._received and not self._stopping:
                    self._stop()
                if self._received.count(signal.SIGINT) > 1:  # schedulers repeat SIGTERM, and mean the same
                    break
                self._hand_out()
                self._overview.update(self.snapshot())
                for key, _ in self._selector.select(timeout=SECONDS_BETWEEN_LOOKS):
                    self._hear(key.data)
            self._overview.update(self.snapshot())
        finally:
            self._close()

    def _stop(self) -> None:
        self._stopping = True
        self._pending.clear()
        self._overview.line("interrupted: saving; Ctrl-C twice ends at once")
        for worker in self._workers:
            worker.stop()

    def _hand_out(self) -> None:
        used = {id(worker.slot) for worker in self._workers}  # slots that are bound to no cores are equal
        free = [slot for slot in self._slots if id(slot) not in used]
        idle = [worker for worker in self._workers if worker.experiment is None]
        while self._pending and (idle or free):
            worker = idle.pop(0) if idle else None
            taken = {other.compiled for other in self._workers if other is not worker}
            experiment = choose(self._pending, worker.compiled if worker else None, taken)
            if worker is None:
                worker = Process(free.pop(0), experiment.log_file)
                self._workers.append(worker)
                self._selector.register(worker.stdout, selectors.EVENT_READ, worker)
            self._pending.remove(experiment)
            worker.give(experiment, self._render)
            write_status(experiment, state="running", started=worker.started_at)

    def _hear(self, worker: Process) -> None:
        answers = worker.read()
        if answers is None:
            self._bury(worker)
            return
        for answer in answers:
            self._record(worker, answer["state"], answer["error"])
            if answer["leaves"]:
                self._bury(worker)

    def _bury(self, worker: Process) -> None:
        """Takes leave of a process that has ended, or is about to; the next experiment gets a new one."""
        if worker not in self._workers:
            return
        self._selector.unregister(worker.stdout)
        self._workers.remove(worker)
        code = worker.end()
        if worker.experiment is not None:
            if self._received:
                self._record(worker, "interrupted", None)
            else:
                self._record(worker, "failed", describe_death(code, read_end(worker)))

    def _record(self, worker: Process, state: str, error: str | None) -> None:
        experiment, worker.experiment = worker.experiment, None
        assert experiment is not None
        seconds = time.monotonic() - worker.started
        if state == "interrupted" and not self._received:
            state, error = "failed", "its process alone was told to stop, and saved; the same command goes on"
        if error is not None:
            error = " ".join(error.split())
            self.failed.append(experiment)
            self.errors[experiment.index] = error
        if state != "busy":  # then the status is another command's to write
            write_status(
                experiment,
                state=state,
                error=error,
                started=worker.started_at,
                finished=utc_now(),
                seconds=round(seconds, 3),
            )
        if state == "done":
            self._done += 1
            self._known.append(known_of(experiment, seconds))
        self._overview.line(self._event(experiment, state, error, seconds))

    def _event(self, experiment: Experiment, state: str, error: str | None, seconds: float) -> str:
        number = f"[{self._done + len(self.failed)}/{len(self._experiments)}]"
        if error is not None:
            return f"{number} {experiment.title}: {state}: {error}"
        progress = read_progress(experiment)
        value = progress.get("mean_return")
        returns = progress.get("by_group") or ({} if value is None else {"": value})
        reached = f", {describe_returns(returns)}" if returns else ""
        return f"{number} {experiment.title}: {state} after {format_seconds(seconds)}{reached}"

    def _close(self) -> None:
        for worker in self._workers:
            self._selector.unregister(worker.stdout)
            worker.kill() if worker.experiment else worker.end()
        self._selector.close()

    # ------------------------------------------------------------------------------------------------ the overview

    def summary(self) -> str:
        return summary_text(
            Snapshot(total=len(self._experiments), done=self._done, failed=len(self.failed), running=())
        )

    def snapshot(self) -> Snapshot:
        busy = [worker for worker in self._workers if worker.experiment]
        running, remaining, known = [], [], list(self._known)
        for worker in busy:
            assert worker.experiment is not None
            state = self._running(worker)
            running.append(state)
            left = self._seconds_left(worker, state)
            remaining.append((worker, state, left))
            if left is not None:
                known.append(known_of(worker.experiment, state.seconds + left))
        return Snapshot(
            total=len(self._experiments),
            done=self._done,
            failed=len(self.failed),
            running=tuple(running),
            seconds_left=self._time_left(remaining, known),
        )

    def _running(self, worker: Process) -> Running:
        assert worker.experiment is not None
        seconds = time.monotonic() - worker.started
        progress = read_progress(worker.experiment)
        if "share" in progress and worker.first_progress is None:
            worker.first_progress = (seconds, progress["share"])
        return Running(title=worker.experiment.title, seconds=seconds, **progress)

    def _seconds_left(self, worker: Process, running: Running) -> float | None:
        """Of a running experiment, at the speed that it had since training was first seen."""
        if running.share is None or worker.first_progress is None:
            return None
        if running.share >= 1.0:
            return 0.0
        since, share = worker.first_progress
        if running.share <= share:
            return None
        return (1 - running.share) * (running.seconds - since) / (running.share - share)

    def _time_left(
        self, running: Sequence[tuple[Process, Running, float | None]], known: Sequence[Known]
    ) -> float | None:
        def expect(experiment: Experiment) -> float | None:
            return expected_seconds(experiment.name, experiment.config.algorithm.label, known)

        left: list[float | None] = [expect(experiment) for experiment in self._pending]
        for worker, state, seconds in running:
            assert worker.experiment is not None
            whole = expect(worker.experiment) if seconds is None else None
            left.append(seconds if whole is None else max(0.0, whole - state.seconds))
        return time_left(left, len(self._slots))


def choose(pending: Sequence[Experiment], compiled: str | None, taken: set[str | None]) -> Experiment:
    """What a worker runs next: what it has compiled, or what nobody else has, or else the first."""
    own = [experiment for experiment in pending if experiment.name == compiled]
    new = [experiment for experiment in pending if experiment.name not in taken]
    return (own or new or list(pending))[0]


def known_of(experiment: Experiment, seconds: float) -> Known:
    return Known(name=experiment.name, algorithm=experiment.config.algorithm.label, seconds=seconds)


def read_progress(experiment: Experiment) -> dict[str, Any]:
    """share, mean_return and frames_per_second of a run, as far as the end of its metrics.jsonl has them; where groups
    oppose each other, the returns of all beside them, by_group."""
    try:
        with open(experiment.run_directory / "metrics.jsonl", "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
            lines = file.read().split(b"\n")[:-1]
    except OSError:
        return {}
    progress: dict[str, Any] = {}
    groups = read_opposed_groups(experiment.run_directory)
    for line in reversed(lines):
        try:
            record = json.loads(line)
        except ValueError:  # cut at its beginning
            break
        if record[names.KIND] == names.TRAIN:
            progress.setdefault("share", min(1.0, record[names.FRAMES] / experiment.config.experiment.frames))
            progress.setdefault("frames_per_second", record.get(names.FRAMES_PER_SECOND))
        else:
            progress.setdefault("mean_return", record.get(names.MEAN_RETURN))
            found = {group: record.get(names.group_return(group)) for group in groups}
            if groups and None not in found.values():
                progress.setdefault("by_group", found)
        if len(progress) == 3 + bool(groups):
            break
    return progress


def read_opposed_groups(run_directory: Path) -> tuple[str, ...]:
    """The groups of a run's task, where they oppose each other; () elsewhere."""
    try:
        teams = json.loads((run_directory / "environment.json").read_text(encoding="utf-8")).get("teams", [])
    except (OSError, ValueError, AttributeError):
        return ()
    return names.shown_groups(teams)


def read_end(worker: Process) -> list[str]:
    """The last lines that a worker printed for its experiment."""
    assert worker.experiment is not None
    with open(worker.experiment.log_file, "rb") as file:
        file.seek(max(worker.log_begin, file.seek(0, os.SEEK_END) - TAIL_BYTES))
        return file.read().decode(errors="replace").splitlines()


def describe_death(code: int, lines: Sequence[str]) -> str:
    """Why a worker died, as far as its exit code and what it printed tell."""
    number = -code
    if code >= 0:
        what = f"the process ended with exit code {code}"
    elif number in set(signal.Signals):
        what = f"the process died of {signal.Signals(number).name}"
    else:
        what = f"the process died of signal {number}"
    if number == signal.SIGKILL:
        what += " (out of memory?)"
    words = next((line for line in lines if line.startswith(("Fatal Python error", "terminate called"))), None)
    words = words or next((line for line in reversed(lines) if "error" in line.lower()), None)
    return f"{what}: {words[:300]}" if words else what


def utc_now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


@contextlib.contextmanager
def caught_signals() -> Iterator[list[int]]:
    """Collects the signals that end a command, repeated ones too."""
    received: list[int] = []
    previous = {number: signal.signal(number, lambda number, _: received.append(number)) for number in ending_signals()}
    try:
        yield received
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
