"""A pool of worker processes that runs the experiments of a benchmark and records the result of each.

A worker receives another seed of the experiment it has compiled, if there is one, and otherwise an experiment that no
worker has compiled. A worker that dies is replaced, and its experiment is recorded as failed.
"""

from __future__ import annotations

import selectors
import signal
import time
from collections.abc import Sequence

from covey.experiment.running.console import describe_returns, format_seconds
from covey.launch.benchmark import Benchmark, BenchmarkExperiment
from covey.launch.benchmark_files import is_done, utc_now, write_status
from covey.launch.devices import Slot
from covey.launch.overview import Known, Overview, Running, Snapshot, expected_seconds, summary_text, time_left
from covey.launch.progress import read_progress
from covey.launch.worker_process import WorkerProcess, describe_death, read_end

SECONDS_BETWEEN_LOOKS = 0.5


class Pool:
    """Hands experiments to workers until none is left or a signal arrives."""

    def __init__(self, benchmark: Benchmark, slots: Sequence[Slot], overview: Overview, received: list[int]):
        """`received` collects the signals that end the command."""
        self.failed: list[BenchmarkExperiment] = []
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
        self._workers: list[WorkerProcess] = []
        self._selector = selectors.DefaultSelector()

    def run(self) -> None:
        """Runs all experiments that are not done."""
        todo, workers = len(self._pending), len(self._slots)
        before = f"{self._done} of {len(self._experiments)} done before, " if self._done else ""
        self._overview.line(f"{before}{todo} to run, {workers} in parallel" if todo else "everything is already done")
        try:
            while self._pending or any(worker.experiment for worker in self._workers):
                if self._received and not self._stopping:
                    self._stop()
                if self._received.count(signal.SIGINT) > 1:  # schedulers repeat SIGTERM without wanting to hurry
                    break
                self._hand_out()
                self._overview.update(self.snapshot())
                for key, _ in self._selector.select(timeout=SECONDS_BETWEEN_LOOKS):
                    self._read_answers(key.data)
            self._overview.update(self.snapshot())
        finally:
            self._close()

    def _stop(self) -> None:
        self._stopping = True
        self._pending.clear()
        self._overview.line("interrupted: saving; press Ctrl-C twice to end at once")
        for worker in self._workers:
            worker.stop()

    def _hand_out(self) -> None:
        used = {id(worker.slot) for worker in self._workers}  # by identity: unbound slots are equal
        free = [slot for slot in self._slots if id(slot) not in used]
        idle = [worker for worker in self._workers if worker.experiment is None]
        while self._pending and (idle or free):
            worker = idle.pop(0) if idle else None
            taken = {other.compiled for other in self._workers if other is not worker}
            experiment = choose_next(self._pending, worker.compiled if worker else None, taken)
            if worker is None:
                worker = WorkerProcess(free.pop(0), experiment.log_file)
                self._workers.append(worker)
                self._selector.register(worker.stdout, selectors.EVENT_READ, worker)
            self._pending.remove(experiment)
            worker.give(experiment, self._render)
            write_status(experiment, state="running", started=worker.started_at)

    def _read_answers(self, worker: WorkerProcess) -> None:
        answers = worker.read()
        if answers is None:
            self._discard(worker)
            return
        for answer in answers:
            self._record(worker, answer["state"], answer["error"])
            if answer["leaves"]:
                self._discard(worker)

    def _discard(self, worker: WorkerProcess) -> None:
        """Removes a worker that has ended or is about to. The next experiment will start a new one."""
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

    def _record(self, worker: WorkerProcess, state: str, error: str | None) -> None:
        experiment, worker.experiment = worker.experiment, None
        assert experiment is not None
        seconds = time.monotonic() - worker.started
        if state == "interrupted" and not self._received:
            state, error = (
                "failed",
                "only its process was told to stop; it was saved, and the same command continues it",
            )
        if error is not None:
            error = " ".join(error.split())
            self.failed.append(experiment)
            self.errors[experiment.index] = error
        if state != "busy":  # another command writes the status
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
        self._overview.line(self._describe_result(experiment, state, error, seconds))

    def _describe_result(self, experiment: BenchmarkExperiment, state: str, error: str | None, seconds: float) -> str:
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
        """`12 of 45 done, 1 failed`."""
        return summary_text(
            Snapshot(total=len(self._experiments), done=self._done, failed=len(self.failed), running=())
        )

    def snapshot(self) -> Snapshot:
        """The state of the benchmark, for the overview."""
        busy = [worker for worker in self._workers if worker.experiment]
        running, remaining, known = [], [], list(self._known)
        for worker in busy:
            assert worker.experiment is not None
            state = self._describe_running(worker)
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

    def _describe_running(self, worker: WorkerProcess) -> Running:
        assert worker.experiment is not None
        seconds = time.monotonic() - worker.started
        progress = read_progress(worker.experiment)
        if "share" in progress and worker.first_progress is None:
            worker.first_progress = (seconds, progress["share"])
        return Running(title=worker.experiment.title, seconds=seconds, **progress)

    def _seconds_left(self, worker: WorkerProcess, running: Running) -> float | None:
        """The seconds left of a running experiment, at its speed since training was first seen."""
        if running.share is None or worker.first_progress is None:
            return None
        if running.share >= 1.0:
            return 0.0
        since, share = worker.first_progress
        if running.share <= share:
            return None
        return (1 - running.share) * (running.seconds - since) / (running.share - share)

    def _time_left(
        self, running: Sequence[tuple[WorkerProcess, Running, float | None]], known: Sequence[Known]
    ) -> float | None:
        def expect(experiment: BenchmarkExperiment) -> float | None:
            return expected_seconds(experiment.name, experiment.config.algorithm.label, known)

        left: list[float | None] = [expect(experiment) for experiment in self._pending]
        for worker, state, seconds in running:
            assert worker.experiment is not None
            whole = expect(worker.experiment) if seconds is None else None
            left.append(seconds if whole is None else max(0.0, whole - state.seconds))
        return time_left(left, len(self._slots))


def choose_next(
    pending: Sequence[BenchmarkExperiment], compiled: str | None, taken: set[str | None]
) -> BenchmarkExperiment:
    """The next experiment of a worker: one that it has compiled, or that no worker has (`taken`), or the first."""
    own = [experiment for experiment in pending if experiment.name == compiled]
    new = [experiment for experiment in pending if experiment.name not in taken]
    return (own or new or list(pending))[0]


def known_of(experiment: BenchmarkExperiment, seconds: float) -> Known:
    """How long an experiment took, for estimates of the others."""
    return Known(name=experiment.name, algorithm=experiment.config.algorithm.label, seconds=seconds)
