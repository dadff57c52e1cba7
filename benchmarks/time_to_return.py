"""How long until navigation is learned: wall-clock seconds, imports and start-up included, in covey and in BenchMARL.

covey trains MAPPO with its own defaults, from an empty compilation cache and again with a warm one; BenchMARL trains
MAPPO with its base configuration (with `--fine-tuned`, that one). Both on the same cores, one process after another.
Both are scored alike: greedily, on 500 episodes or more every 6,000 frames or so, by BenchMARL's return (the mean over
agents of their own rewards). 0.9 is reached where the mean of an evaluation and the two after it is at least 0.9, at
the time of the first of the three. BenchMARL's evaluations do not count as time; covey's do.

  python benchmarks/time_to_return.py --peer PATH/TO/ITS/python --output results/benchmark-time-to-return.json
  python benchmarks/time_to_return.py --draw results/benchmark-time-to-return.json

BenchMARL runs in a Python environment of its own. The curves are drawn beside the output.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import common

LEVEL, TOGETHER = 0.9, 3
TARGETS = {"warm": 10.5, "cold": 6.5}
WARM_CACHE = Path(tempfile.gettempdir()) / "covey-warm-cache"
SIDES = ("cold", "warm", "benchmarl")
Points = list[dict[str, float]]


def main(arguments: list[str] | None = None) -> None:
    parser = common.make_parser(__doc__)
    parser.add_argument("--peer", default="python", help="the Python that has benchmarl")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--frames", type=int, default=250_000, help="covey's, at most")
    parser.add_argument("--seconds", type=float, default=400.0, help="BenchMARL's, at most")
    parser.add_argument("--fine-tuned", action="store_true", help="BenchMARL's fine-tuned configuration")
    parser.add_argument(
        "--sides", nargs="+", choices=SIDES, default=SIDES, help="what to measure; the rest stays as the output has it"
    )
    parser.add_argument("--draw", type=Path, help="only draw the figures of this file")
    options = parser.parse_args(arguments)
    if options.draw:
        return draw(json.loads(options.draw.read_text(encoding="utf-8")), options.draw.with_suffix(".png"))
    figures: dict[str, Any] = {"level": LEVEL, "together": TOGETHER, "cores": options.cores, "sides": {}}
    if options.output and options.output.exists():
        figures["sides"] = json.loads(options.output.read_text(encoding="utf-8"))["sides"]
    shutil.rmtree(WARM_CACHE, ignore_errors=True)
    for side in options.sides:
        runs: list[Points] = []
        for seed in range(options.seeds):
            runs.append(run(side, options, seed))
            seconds = [time_to_level(points) for points in runs]
            figures["sides"][side] = {"seconds": seconds, "mean": mean_of_reached(seconds), "curves": runs}
            common.write_figures(options.output, figures)
    if set(SIDES) <= set(figures["sides"]):
        figures["ratios"] = report(figures["sides"])
    common.write_figures(options.output, figures)
    if options.output:
        draw(figures, options.output.with_suffix(".png"))


def run(side: str, options: Any, seed: int) -> Points:
    points = train_peer(options, seed) if side == "benchmarl" else train_covey(side == "warm", options, seed)
    seconds = time_to_level(points)
    reached = "not reached" if seconds is None else f"{seconds:.1f} s"
    print(f"{side:<10} seed {seed}: {LEVEL} after {reached}, {points[-1]['return']:.3f} at the end", flush=True)
    return points


def report(sides: dict[str, Any]) -> dict[str, float]:
    peer = sides["benchmarl"]["mean"]
    ratios = {side: peer / sides[side]["mean"] for side in TARGETS}
    for side, target in TARGETS.items():
        print(f"{side} cache: {sides[side]['mean']:.1f} s against {peer:.1f} s, {common.verdict(ratios[side], target)}")
    return ratios


def time_to_level(points: Points) -> float | None:
    """When the mean of an evaluation and those after it, `TOGETHER` in all, is first at least `LEVEL`."""
    for i in range(len(points) - TOGETHER + 1):
        if sum(point["return"] for point in points[i : i + TOGETHER]) / TOGETHER >= LEVEL:
            return points[i]["seconds"]
    return None


def mean_of_reached(seconds: list[float | None]) -> float:
    """Infinite where a seed never reached it."""
    return sum(float("inf") if s is None else s for s in seconds) / len(seconds)


# ------------------------------------------------------------------------------------------------------ both sides


def train_covey(warm: bool, options: Any, seed: int) -> Points:
    """`covey train` as a user runs it; its metrics are read as they appear."""
    with tempfile.TemporaryDirectory() as folder:
        cache = WARM_CACHE if warm else Path(folder) / "cache"
        environment = os.environ | {"XDG_CACHE_HOME": str(cache)}
        command = [sys.executable, "-m", "covey.cli", "train", f"seed={seed}", f"experiment.devices={options.cores}"]
        command += ["experiment.evaluation_interval=6_144", "experiment.evaluation_episodes=512"]
        if warm and not cache.exists():
            train_covey_briefly(command, environment, Path(folder) / "fill")
        run_dir = Path(folder) / "run"
        command += [f"run_dir={run_dir}"]
        begun = time.perf_counter()
        process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
        try:
            return follow(run_dir / "metrics.jsonl", process, begun, options.frames)
        finally:
            process.terminate()
            process.wait()


def train_covey_briefly(command: list[str], environment: dict[str, str], run_dir: Path) -> None:
    """Fills the compilation cache: the same programs, ended at the first evaluation."""
    process = subprocess.Popen([*command, f"run_dir={run_dir}"], env=environment, stdout=subprocess.DEVNULL)
    follow(run_dir / "metrics.jsonl", process, time.perf_counter(), 6_000)
    process.terminate()
    process.wait()


def follow(path: Path, process: subprocess.Popen, begun: float, frames: int) -> Points:
    points: Points = []
    read = 0
    while process.poll() is None and (not points or points[-1]["frames"] < frames):
        time.sleep(0.02)
        if not path.exists():
            continue
        with path.open("rb") as file:
            file.seek(read)
            text = file.read()
        complete = text[: text.rfind(b"\n") + 1]
        read += len(complete)
        now = time.perf_counter() - begun
        for record in map(json.loads, complete.splitlines()):
            if record["kind"] == "evaluation":
                point = {"seconds": now, "frames": record["frames"], "return": record["mean_return"]}
                points.append(point | {"at_goal": record["at_goal"]})
        if time_to_level(points) is not None and time_to_level(points[: -2 * TOGETHER]) is not None:
            break  # a few more than needed, for the picture
    return points


def train_peer(options: Any, seed: int) -> Points:
    peer = shutil.which(options.peer) or options.peer
    script = common.HERE / "peers" / "train_benchmarl.py"
    configuration = "fine_tuned" if options.fine_tuned else "base"
    command = [peer, str(script), "curve", str(options.cores), str(options.seconds), configuration, str(seed)]
    cores = ",".join(map(str, range(options.cores)))
    with tempfile.TemporaryDirectory() as folder:  # BenchMARL leaves files where it runs
        done = subprocess.run(
            ["taskset", "-c", cores, *command], capture_output=True, text=True, check=False, cwd=folder
        )
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])["points"]


def draw(figures: dict[str, Any], path: Path) -> None:
    """Returns and fraction of agents at their goals, by wall-clock time on a logarithmic axis."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    looks = {
        "warm": ("covey, warm cache", "#0b6e99"),
        "cold": ("covey, cold cache", "#3b8c4b"),
        "benchmarl": ("BenchMARL", "#d1611b"),
    }
    with plt.rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
        figure, axes = plt.subplots(1, 2, figsize=(9, 3.2))
        for side, about in figures["sides"].items():
            label, colour = looks[side]
            for number, points in enumerate(about["curves"]):
                for panel, name in zip(axes, ("return", "at_goal"), strict=True):
                    x, y = [p["seconds"] for p in points], [p[name] for p in points]
                    panel.plot(x, y, color=colour, alpha=0.7, linewidth=1.1, label=None if number else label)
        axes[0].axhline(figures["level"], color="#777777", linewidth=1, linestyle=(0, (5, 3)))
        for panel, name in zip(axes, ("mean return", "fraction of agents at their goals"), strict=True):
            panel.set(xscale="log", xlabel="seconds since the command", ylabel=name)
        axes[0].set_ylim(-0.6, 1.1)
        axes[0].legend(frameon=False)
        figure.tight_layout()
        figure.savefig(path, dpi=130)
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
