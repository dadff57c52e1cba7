"""What a team earns that acts at random: the lower end of a task's scale, measured and written to `anchors.json`.

Every agent takes each of its legal actions with equal probability (continuous actions: uniform within the bounds). The
mean over episodes comes with its 95% interval, by Student's t, for the mean return, each group's return and the task's
own metrics. Without tasks, those that published results are compared on are measured; with `--missing`, all that have
no such entry yet, except probes, whose values are worked out, and simulators that are stepped in processes, which take
long: name those. Nothing else in the file changes.
"""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

import common
import jax
import numpy as np

import covey
from covey import registry
from covey.algorithms.random import make_random_team
from covey.envs.base import Env, make_env
from covey.envs.batch import episode_values
from covey.envs.host.env import simulator_of
from covey.errors import MissingExtra
from covey.experiment.running.build import make_evaluate
from covey.files import write_atomically
from covey.loops.config import ActorsConfig
from covey.loops.evaluate import play_episodes
from covey.loops.pool_evaluation import PoolEvaluation
from covey.metrics import scored_groups
from covey.results import mean_and_interval
from covey.types import Array, Key

ANCHORS = Path(covey.__file__).parent / "anchors.json"
SUITES = ("lbf", "mpe", "overcooked", "vmas")  # all of their tasks
TASKS = (
    "rware/tiny-2ag",
    "rware/tiny-2ag-hard",
    "rware/tiny-4ag",
    "rware/tiny-4ag-hard",
    "rware/tiny-4ag-easy",
    "rware/small-4ag",
    "rware/small-4ag-hard",
    "connector/con-5x5x3a",
    "connector/con-7x7x5a",
    "connector/con-10x10x10a",
    "cleaner/clean-5x5x5a",
    "cleaner/clean-10x10x10a",
    "smax/2s3z",
    "smax/3s5z",
)


def main(arguments: list[str] | None = None) -> None:
    parser = common.make_parser(__doc__)
    parser.add_argument("tasks", nargs="*", help="default: the main ones")
    parser.add_argument("--missing", action="store_true", help="the tasks of all suites that have no entry yet")
    parser.add_argument("--episodes", type=int, default=1024)
    parser.add_argument("--at-once", type=int, default=256, help="episodes played side by side")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--anchors", type=Path, default=ANCHORS, help="the file to write to (default: covey's own)")
    options = parser.parse_args(arguments)

    common.start(1)
    measured = {}
    for task in missing_tasks(options.anchors) if options.missing else options.tasks or main_tasks():
        started = time.monotonic()
        measured[task] = measure(task, options.episodes, min(options.at_once, options.episodes), options.seed)
        add_to_anchors(options.anchors, task, measured[task])
        mean, half = measured[task]["mean_return"], measured[task]["interval_95"]
        seconds = time.monotonic() - started
        print(f"{task:<32} {mean:10.4f} ± {half:.4f}  ({options.episodes} episodes, {seconds:.0f} s)", flush=True)
    common.write_figures(options.output, {"random": measured})


def main_tasks() -> list[str]:
    return [*TASKS, *(entry.name for entry in registry.tasks if entry.name.partition("/")[0] in SUITES)]


def missing_tasks(anchors: Path) -> list[str]:
    """Those without a random return whose simulator is installed."""
    known = json.loads(anchors.read_text(encoding="utf-8"))["tasks"]
    entries = [entry for entry in registry.tasks if entry.built_in and not entry.host]
    names = [entry.name for entry in entries if not entry.name.startswith("probe/")]
    return [name for name in names if not known.get(name, {}).get("random") and is_installed(name)]


def is_installed(task: str) -> bool:
    try:
        make_env(task)
    except MissingExtra as error:
        print(f"left out: {error}")
        return False
    return True


def measure(task: str, num_episodes: int, at_once: int, seed: int) -> dict[str, Any]:
    env = make_env(task)
    host = simulator_of(env) is not None
    values = (play_in_processes if host else play_compiled)(env, num_episodes, at_once, jax.random.key(seed))
    means = {name: mean_and_interval(value.astype(np.float64)) for name, value in values.items()}
    mean, half_width = means.pop("mean_return")
    return {
        "mean_return": _rounded(mean),
        "interval_95": _rounded(half_width),
        "episodes": num_episodes,
        "others": {name: _rounded(value) for name, (value, _) in means.items()},
        "returns": env.spec.returns,
        "teams": [list(team) for team in env.spec.teams],
    }


def play_compiled(env: Env, num_episodes: int, at_once: int, key: Key) -> dict[str, np.ndarray]:
    """Each `[num_episodes]`."""
    team = make_random_team(env.spec)

    @jax.jit
    def play(key: Key) -> dict[str, Array]:
        episodes = play_episodes(env, team, team.init(key), key, num_episodes=at_once, deterministic=False)
        return episode_values(episodes, scored_groups(env.spec.cooperating))

    keys = jax.random.split(key, math.ceil(num_episodes / at_once))
    rounds = [jax.device_get(play(key)) for key in keys]
    return {name: np.concatenate([r[name] for r in rounds])[:num_episodes] for name in rounds[0]}


def play_in_processes(env: Env, num_episodes: int, at_once: int, key: Key) -> dict[str, np.ndarray]:
    """Each `[num_episodes]`."""
    team, actors = make_random_team(env.spec), ActorsConfig(evaluation_copies=min(at_once, 64))
    evaluate = make_evaluate(
        env, team, num_episodes=num_episodes, deterministic=False, devices=jax.devices()[:1], actors=actors
    )
    assert isinstance(evaluate, PoolEvaluation)
    try:
        return evaluate.play(team.init(key), key)
    finally:
        evaluate.close()


def add_to_anchors(path: Path, task: str, measured: dict[str, Any]) -> None:
    anchors = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"tasks": {}}
    entry = anchors["tasks"].setdefault(task, {"returns": "", "random": None, "published": []})
    entry["returns"] = measured["returns"]
    if measured["teams"]:
        entry["teams"] = measured["teams"]
    entry["random"] = {name: value for name, value in measured.items() if name not in ("returns", "teams")}
    write_atomically(path, json.dumps(anchors, indent=2, ensure_ascii=False) + "\n")


def _rounded(value: float) -> float:
    """To five significant digits: more would only be noise in the file, and so would the rounding error of a zero."""
    return float(f"{value:.5g}") if abs(value) > 1e-6 else 0.0


if __name__ == "__main__":
    main()
