"""`covey.benchmark(…)`: what `covey benchmark` does, called from Python."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from covey.experiment.running.experiment import as_override
from covey.launch.benchmark import make_benchmark
from covey.launch.local import run_benchmark


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinishedBenchmark:
    """Where a benchmark's results are. `covey.report(benchmark.folder)` reports on them."""

    folder: Path
    run_directories: tuple[Path, ...]  # one for each experiment and seed

    def __repr__(self) -> str:
        return f"FinishedBenchmark({self.folder}: {len(self.run_directories)} runs)"


def benchmark(*, fields: Mapping[str, Any] | None = None, **options: Any) -> FinishedBenchmark:
    """Trains every algorithm on every task with every seed, in processes side by side, and skips what is done.

        covey.benchmark(algorithms=["ippo", "mappo"], tasks=["vmas/navigation"], seeds=3, run_dir="bench/first")
        covey.benchmark(benchmark="vmas_quick", fields={"experiment.frames": 1e6, "masac:experiment.updates": 16})

    `options` are those of `covey benchmark`: algorithms, tasks, models, seeds, benchmark (a preset), run_dir, only,
    workers, render, force. `fields` are dotted, for every experiment, or after names and a colon for those with these
    names. Raises CoveyError where experiments failed, after the others have ended.
    """
    values = {**options, **(fields or {})}
    plan = make_benchmark([f"{name}={as_override(value)}" for name, value in values.items()])
    run_benchmark(plan)
    return FinishedBenchmark(
        folder=plan.folder, run_directories=tuple(experiment.run_directory for experiment in plan.chosen)
    )
