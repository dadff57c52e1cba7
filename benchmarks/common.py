"""What the benchmarks share: starting JAX on given cores, timing, and how to report.

Wall time on a shared machine is noisy, and always upwards. So everything is run several times, programs that are to be
compared in turn, and the best time of each counts. Where the process's CPU time tells something, it is given beside.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import jax

from covey.experiment.recording.environment import git_commit
from covey.experiment.running.devices import start_jax
from covey.files import to_json, write_atomically

HERE = Path(__file__).parent


def start(num_devices: int = 1, cores: Iterable[int] | None = None, acting_devices: int = 0) -> list[Any]:
    """CPU devices of one thread each, beside those on which actors act, the process bound to `cores` if given. Before
    anything else uses JAX."""
    if cores is not None and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, set(cores))
    return start_jax("cpu", num_devices, acting_devices)


def describe_machine() -> dict[str, Any]:
    """The machine and versions, for the JSON beside a figure."""
    commit, dirty = git_commit()
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "cores_used": sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "load_average": os.getloadavg(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "jax": jax.__version__,
        "covey_commit": commit,
        "covey_dirty": dirty,
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


# ---------------------------------------------------------------------------------------------------------- timing


@dataclasses.dataclass(frozen=True, kw_only=True)
class Program:
    """`run(n)` does its work n times and returns arrays to wait for; n is at most `largest`."""

    run: Callable[[int], Any]
    largest: int = 1_000_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Timing:
    """Best seconds per repetition, by the clock and by the process's CPU time."""

    wall: float
    cpu: float


def measure(programs: Mapping[str, Program], *, seconds: float, rounds: int) -> dict[str, Timing]:
    """Times all programs in turn, `rounds` times, each with as many repetitions as take about `seconds`."""
    repetitions = {name: _calibrate(program, seconds) for name, program in programs.items()}
    wall: dict[str, list[float]] = {name: [] for name in programs}
    cpu: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(rounds):
        for name, program in programs.items():
            elapsed = _time(program, repetitions[name])
            wall[name].append(elapsed.wall)
            cpu[name].append(elapsed.cpu)
    return {name: Timing(wall=min(wall[name]), cpu=min(cpu[name])) for name in programs}


def _time(program: Program, repetitions: int) -> Timing:
    wall, cpu = time.perf_counter(), time.process_time()
    jax.block_until_ready(program.run(repetitions))
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return Timing(wall=wall / repetitions, cpu=cpu / repetitions)


def _calibrate(program: Program, seconds: float) -> int:
    """How many repetitions take about `seconds`; compiles on the way."""
    jax.block_until_ready(program.run(1))
    repetitions = 1
    while repetitions < program.largest:
        elapsed = _time(program, repetitions).wall * repetitions
        if elapsed >= seconds / 2:
            repetitions = round(repetitions * seconds / elapsed)
            break
        repetitions *= 2
    return max(1, min(repetitions, program.largest))


# -------------------------------------------------------------------------------------------------------- reporting


def make_parser(documentation: str | None) -> argparse.ArgumentParser:
    """A parser with a script's docstring as its help, and `--output`."""
    parser = argparse.ArgumentParser(description=documentation, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, metavar="FILE.json", help="also write the figures there")
    return parser


def write_figures(path: Path | None, figures: Mapping[str, Any]) -> None:
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, to_json({**figures, "machine": describe_machine()}, indent=2) + "\n")


def verdict(value: float, target: float) -> str:
    return f"{value:.3f} (target at least {target:.2f}: {'reached' if value >= target else 'not reached'})"


def run_script(name: str, *arguments: str) -> dict[str, Any]:
    """What a benchmark of this folder reports when it runs in a separate process."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "figures.json"
        command = [sys.executable, str(HERE / name), *arguments, "--output", str(output)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"{name} {' '.join(arguments)} failed:\n{done.stderr}")
        return json.loads(output.read_text(encoding="utf-8"))
