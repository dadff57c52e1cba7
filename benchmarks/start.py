"""How long a command takes to start: this checkout and another one, in turn, as ratios.

Warm: CPU seconds of a whole `covey train` of one iteration on one core, with all programs compiled before. Cold:
seconds until the first iteration is trained, on all given cores, with nothing compiled.

  git worktree add ../before COMMIT
  python benchmarks/start.py --before ../before --output results/benchmark-start.json
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import common

TARGET = 0.5  # of what it took before
HERE = Path(__file__).resolve().parents[1]


def main(arguments: list[str] | None = None) -> None:
    parser = common.make_parser(__doc__)
    parser.add_argument("--before", type=Path, help="a checkout of the commit to compare with")
    parser.add_argument("--cores", type=int, default=2, help="for the cold start")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("overrides", nargs="*", help="what to train; default: the bare `covey train`")
    options = parser.parse_args(arguments)
    sides = {"now": HERE} | ({"before": options.before.resolve()} if options.before else {})
    seconds: dict[str, dict[str, list[float]]] = {side: {"warm": [], "cold": []} for side in sides}
    with tempfile.TemporaryDirectory() as folder:
        for side, checkout in sides.items():
            train(checkout, Path(folder), f"warm-{side}", {0}, options.overrides)  # fills the cache
        for number in range(options.rounds):
            for side, checkout in sides.items():
                warm = train(checkout, Path(folder), f"warm-{side}", {0}, options.overrides)
                cold = train(
                    checkout, Path(folder), f"cold-{side}-{number}", set(range(options.cores)), options.overrides
                )
                seconds[side]["warm"].append(warm["cpu"])
                seconds[side]["cold"].append(cold["first"])
                print(f"{side:<7} warm {warm['cpu']:.2f} CPU s, cold {cold['first']:.2f} s", flush=True)
    figures: dict[str, Any] = {
        "seconds": seconds,
        "target": TARGET,
        "cores": options.cores,
        "overrides": options.overrides,
    }
    if options.before:
        best = {side: {kind: min(values) for kind, values in kinds.items()} for side, kinds in seconds.items()}
        figures["ratios"] = {kind: best["now"][kind] / best["before"][kind] for kind in ("warm", "cold")}
        for kind, ratio in figures["ratios"].items():
            reached = "reached" if ratio <= TARGET else "not reached"
            print(f"{kind}: {ratio:.2f} times the earlier commit (target at most {TARGET}: {reached})")
    common.write_figures(options.output, figures)


def train(checkout: Path, folder: Path, cache: str, cores: set[int], overrides: list[str]) -> dict[str, float]:
    """Trains one iteration: CPU seconds of it all, and seconds until it was trained."""
    run_dir = Path(tempfile.mkdtemp(dir=folder)) / "run"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment |= {"PYTHONPATH": str(checkout / "src"), "XDG_CACHE_HOME": str(folder / cache)}
    words = ["train", f"run_dir={run_dir}", "experiment.frames=1", *overrides]
    begun, first = time.perf_counter(), None
    process = subprocess.Popen(
        [sys.executable, "-m", "covey.cli", *words],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: os.sched_setaffinity(0, cores),
    )
    assert process.stdout is not None
    for line in process.stdout:  # the first line of progress is printed after the first iteration
        if first is None and " frames (" in line:
            first = time.perf_counter() - begun
    _, status, usage = os.wait4(process.pid, 0)
    if status or first is None:
        sys.exit(f"{checkout}: covey {' '.join(words)} failed")
    return {"cpu": usage.ru_utime + usage.ru_stime, "first": first}


if __name__ == "__main__":
    main()
