"""Made-up runs on disk, as covey and others leave them, for the tests of figures, tables and the page."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from PIL import Image

from covey import results

HOSTILE = [
    "<script>window.stolen = 1</script>",
    "\"><img src=x onerror='window.stolen = 2'>",
    "a, b; c/d $x^2$ & 100%_#{~}\\ | [z](javascript:alert(1))",
    "</script><svg onload=alert(1)>",
    "<!-- <script x",
    "=1+2",
]


def write_run(
    folder: Path,
    *,
    task: str = "vmas/balance",
    algorithm: str = "mappo",
    seed: int = 0,
    returns: Sequence[float] = (0.0, 40.0, 50.0),
    gif: bool = False,
    environment: Mapping[str, Any] | None = None,
) -> Path:
    """A run directory: an evaluation of two episodes every 1,000 frames, and an absolute metric like the last one."""
    run = folder / f"seed_{seed}"
    run.mkdir(parents=True)
    found = results.make_results(task, algorithm, seed)
    for i, value in enumerate(returns):
        found = results.add_step(
            found, frames=1000 * i, elapsed_seconds=2.0 * i, metrics={"mean_return": [value - 1, value + 1]}
        )
    found = results.set_absolute_metrics(found, {"mean_return": [returns[-1] - 0.5, returns[-1] + 0.5]})
    results.write_results(run / "results.json", found)
    config = {
        "algorithm": {"name": algorithm},
        "task": {"name": task},
        "experiment": {"frames": 1000 * (len(returns) - 1)},
    }
    (run / "config.yaml").write_text(yaml.safe_dump({**config, "seed": seed, "run_dir": str(run)}))
    (run / "environment.json").write_text(json.dumps(ENVIRONMENT | dict(environment or {})))
    records = [{"kind": "train", "frames": 1000 * i, "elapsed_seconds": 2.0 * i} for i in range(1, len(returns))]
    (run / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    if gif:
        (run / "team.gif").write_bytes(make_gif())
    return run


ENVIRONMENT = {
    "started": "2026-01-02T03:04:05+00:00",
    "command": ["/somewhere/covey", "train", "algorithm=mappo", "seeds=3"],
    "git_commit": "0123456789abcdef",
    "git_dirty": True,
    "python": "3.11.7",
    "platform": "Linux-6",
    "cpu_count": 2,
    "device": {"platform": "cpu", "kind": "cpu", "number": 1},
    "packages": {"covey": "0.1.0", "jax": "0.10.2", "requests": "2.0"},
}


def write_benchmark(folder: Path, *, seeds: int = 3) -> Path:
    """Two algorithms, two tasks; MAPPO is better by 10 on each seed."""
    for task in ("vmas/balance", "vmas/navigation"):
        for algorithm, better in (("ippo", 0.0), ("mappo", 10.0)):
            for seed in range(seeds):
                returns = (0.0, 20.0 + better + seed, 30.0 + better + 2 * seed)
                name = folder / f"{task.replace('/', '-')}-{algorithm}"
                write_run(name, task=task, algorithm=algorithm, seed=seed, returns=returns, gif=seed == 0)
    return folder


def write_foreign(path: Path, *, names: Sequence[str], task: str = "a <b>task</b>", seeds: int = 2) -> Path:
    """A file in MARL-eval's schema from another system, with any names."""
    runs = {
        name: {
            f"seed_{seed}": {
                f"step_{i}": {"step_count": 100 * i, "elapsed_time": i, "mean_return": [i + seed + place]}
                for i in range(3)
            }
            for seed in range(seeds)
        }
        for place, name in enumerate(names)
    }
    path.write_text(json.dumps({"suite": {task: runs}}))
    return path


def write_speed(path: Path, name: str, rate: float) -> Path:
    row = {"device": "cpu x2", "devices": 2, "environments": 64, "limit": "compute"}
    row["frames_per_second"] = {"simulation": 4 * rate, "acting": 2 * rate, "update": 2 * rate, "whole": rate}
    content = {
        "kind": "covey-speed",
        "machine": {"name": name, "processor": "a processor", "cores": 2, "cores_used": 2, "memory_bytes": 2**34},
        "versions": {"covey": "0.1.0"},
        "settings": {"task": "vmas/navigation", "algorithm": "mappo", "model": "mlp"},
        "rows": [row],
        "findings": ["2 cores are 1.80 times as fast as one"],
        "recommendation": {"words": "experiment.num_envs=64"},
    }
    path.write_text(json.dumps(content, indent=2))
    return path


def make_gif() -> bytes:
    frames = [Image.new("P", (8, 6), colour) for colour in (0, 1)]
    output = io.BytesIO()
    frames[0].save(output, "GIF", save_all=True, append_images=frames[1:], duration=100, loop=0)
    return output.getvalue()
