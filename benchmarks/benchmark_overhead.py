"""`covey benchmark` against `covey train` one after another: seconds for the same experiments on the same cores.

Short ones are eight: two algorithms, two tasks, two seeds, at most 20 core-seconds each, starting included. Long ones
are four, of a minute or two each. `covey train` runs each by itself with its defaults, so on all cores; `covey
benchmark` runs them side by side, one core each, and draws a picture of each team besides.

Compiling these tasks for the first time takes longer than a short experiment, so both sides find their programs in the
compilation cache: before short ones are timed, each side runs them once with another seed. Long ones start without.
The ratio is the benchmark's time over the sum of the others'. Run it on a quiet machine.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import common

from covey.launch.benchmark import make_benchmark

SHORT = ("algorithms=[ippo,mappo]", "tasks=[vmas/navigation,vmas/balance]", "seeds=2", "experiment.frames=60_000")
LONG = ("algorithms=[ippo,mappo]", "tasks=[vmas/navigation,vmas/balance]", "seeds=1", "experiment.frames=1_500_000")
KINDS = {"short": (SHORT, 0.60), "long": (LONG, 0.95)}
CORE_SECONDS = 20.0  # of a short experiment, at most


def main(arguments: list[str] | None = None) -> None:
    parser = common.make_parser(__doc__)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=["short", "long"])
    parser.add_argument("--overrides", nargs="+", default=[], help="further words, for both sides")
    options = parser.parse_args(arguments)
    figures: dict[str, Any] = {}
    for kind in options.kinds:
        words, target = KINDS[kind]
        figures[kind] = compare([*words, *options.overrides], kind == "short") | {"target": target}
        ratio = figures[kind]["ratio"]
        reached = "reached" if ratio <= target else "not reached"
        print(f"  ratio {ratio:.3f} (target at most {target:.2f}: {reached})", flush=True)
        common.write_figures(options.output, figures)


def compare(words: list[str], short: bool) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        if short:
            run_alone(words, f"{folder}/first", f"{folder}/cache", ["seeds=[9]"])
            run_together(words, f"{folder}/first", f"{folder}/cache", ["seeds=[9]"])
        alone = run_alone(words, f"{folder}/second", f"{folder}/cache")
        together = run_together(words, f"{folder}/second", f"{folder}/cache")
    one_by_one = sum(one["seconds"] for one in alone)
    most = max(one["core_seconds"] for one in alone)
    print(f"{len(alone)} experiments, {' '.join(words)}")
    print(f"  one after another {one_by_one:7.1f} s, {most:.1f} core-seconds at most")
    print(f"  covey benchmark   {together['seconds']:7.1f} s, {together['core_seconds']:.1f} core-seconds in all")
    if short and most > CORE_SECONDS:
        print(f"  not short: more than {CORE_SECONDS:g} core-seconds")
    return {"words": words, "alone": alone, "together": together, "ratio": together["seconds"] / one_by_one}


def run_alone(words: list[str], folder: str, cache: str, more: Sequence[str] = ()) -> list[dict[str, float]]:
    """`covey train` for each of the experiments; alone, it takes all cores that it finds."""
    experiments = make_benchmark([*words, *more, f"run_dir={folder}/bench"]).experiments
    return [
        run(
            cache,
            "train",
            *(word for word in experiment.words if word != "experiment.devices=1"),
            f"seed={experiment.seed}",
            f"run_dir={folder}/alone/{experiment.index}",
        )
        for experiment in experiments
    ]


def run_together(words: list[str], folder: str, cache: str, more: Sequence[str] = ()) -> dict[str, float]:
    return run(cache, "benchmark", *words, *more, f"run_dir={folder}/bench")


def run(cache: str, *arguments: str) -> dict[str, float]:
    """Seconds by the clock and of the cores that a command of covey's took."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    command = [sys.executable, "-m", "covey.cli", *arguments]
    settings = {**os.environ, "JAX_COMPILATION_CACHE_DIR": cache}
    done = subprocess.run(command, capture_output=True, text=True, env=settings, cwd=Path.cwd(), check=False)
    if done.returncode:
        sys.exit(f"covey {' '.join(arguments)} failed:\n{done.stderr}")
    seconds, after = time.monotonic() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"seconds": seconds, "core_seconds": used}


if __name__ == "__main__":
    main()
