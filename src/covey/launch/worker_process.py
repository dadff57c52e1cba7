"""A worker process (worker.py), as seen by the process that started it: jobs to its stdin, answers from its stdout."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from covey.experiment.configuration.config import to_dict
from covey.launch.benchmark import BenchmarkExperiment
from covey.launch.benchmark_files import utc_now
from covey.launch.devices import Slot

TAIL_BYTES = 65_536  # at the end of a log: enough for the last messages


class WorkerProcess:
    """A worker process and the experiment it is running."""

    def __init__(self, slot: Slot, log: Path):
        """Starts the process in a slot. `log` takes its output until the first job begins."""
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
        self.experiment: BenchmarkExperiment | None = None
        self.compiled: str | None = None  # name of the experiment whose programs it has
        self.started = 0.0
        self.started_at = ""
        self.log_begin = 0  # byte at which this attempt begins in the experiment's log
        self.first_progress: tuple[float, float] | None = None  # seconds and share when training was first seen
        self._received = b""

    def give(self, experiment: BenchmarkExperiment, render: bool) -> None:
        """Sends it an experiment to run."""
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
        with contextlib.suppress(BrokenPipeError):  # it is dead, which reading its stdout will show
            self._process.stdin.write(json.dumps(job).encode() + b"\n")
            self._process.stdin.flush()

    def read(self) -> list[dict[str, Any]] | None:
        """The answers that have arrived; None if the process has ended."""
        data = os.read(self.stdout.fileno(), 65_536)
        *lines, self._received = (self._received + data).split(b"\n")
        return [json.loads(line) for line in lines] if data else None

    def stop(self) -> None:
        """Asks it to save its run and to end."""
        self._process.send_signal(signal.SIGTERM)

    def end(self) -> int:
        """Ends the process if it is still running; returns its exit code."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            code = self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            return self.kill()
        self.stdout.close()
        return code

    def kill(self) -> int:
        """Kills the process; returns its exit code."""
        assert self._process.stdin is not None
        self._process.kill()
        self.stdout.close()
        with contextlib.suppress(BrokenPipeError):  # it may hold a job that was never sent
            self._process.stdin.close()
        return self._process.wait()


def read_end(worker: WorkerProcess) -> list[str]:
    """The last lines of output that a worker wrote for its experiment."""
    assert worker.experiment is not None
    with open(worker.experiment.log_file, "rb") as file:
        file.seek(max(worker.log_begin, file.seek(0, os.SEEK_END) - TAIL_BYTES))
        return file.read().decode(errors="replace").splitlines()


def describe_death(code: int, lines: Sequence[str]) -> str:
    """Why a worker died, from its exit code and the last lines of its output."""
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
