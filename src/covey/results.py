"""`results.json`, in the schema of MARL-eval: every evaluation of a run, episode by episode.

    {environment: {task: {algorithm: {"seed_N": {
        "step_0": {"step_count": 0, "elapsed_time": 0.0, "mean_return": [one per episode], "agents_return": [...], ...},
        "step_1": {"step_count": frames, "elapsed_time": seconds, ...},
        "absolute_metrics": {"mean_return": [ten times as many episodes], ...}}}}}}

Steps are numbered by evaluation, from the one at frame 0. `absolute_metrics` comes last and only when the run is done.
MARL-eval takes every other key for an environment, a task, an algorithm, a run or a step, so this file can hold nothing
else. Whether evaluation was greedy, and what a return means, are in config.yaml and environment.json. Its loader
lower-cases all keys. Values that are not finite are null.

The functions are pure: they return new results and do not change their arguments. No JAX here.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from covey.errors import CoveyError
from covey.files import UNREADABLE, read_text, to_json, why_unreadable, write_atomically

Results = dict[str, dict[str, dict[str, dict[str, dict[str, dict[str, Any]]]]]]
Run = dict[str, dict[str, Any]]
Values = Sequence[float] | np.ndarray

ABSOLUTE_METRICS = "absolute_metrics"
STEP_COUNT = "step_count"
ELAPSED_TIME = "elapsed_time"


def make_results(task: str, algorithm: str, seed: int) -> Results:
    """Results without a step yet. `task` is covey's `suite/name`: the suite is MARL-eval's environment."""
    suite, _, name = task.partition("/")
    return {suite: {name or suite: {algorithm.replace(",", "_"): {f"seed_{seed}": {}}}}}


def add_step(results: Results, *, frames: int, elapsed_seconds: float, metrics: Mapping[str, Values]) -> Results:
    """Adds an evaluation, or replaces the one made at the same frame."""
    run = dict(steps(results))
    known = {step[STEP_COUNT]: name for name, step in run.items()}
    run[known.get(frames, f"step_{len(run)}")] = {
        STEP_COUNT: int(frames),
        ELAPSED_TIME: float(elapsed_seconds),
        **_per_episode(metrics),
    }
    return _with_run(results, run | _absolute(results))


def set_absolute_metrics(results: Results, metrics: Mapping[str, Values]) -> Results:
    """Adds the absolute metric: the best parameters over ten times the episodes."""
    return _with_run(results, steps(results) | {ABSOLUTE_METRICS: _per_episode(metrics)})


def cut_steps(results: Results, frames: int) -> Results:
    """Drops everything after `frames`: a resumed run makes it again."""
    return _with_run(results, {name: step for name, step in steps(results).items() if step[STEP_COUNT] <= frames})


def steps(results: Results) -> Run:
    """The evaluations by name, in order, without the absolute metric."""
    return {name: step for name, step in only_run(results).items() if name != ABSOLUTE_METRICS}


def absolute_metrics(results: Results) -> dict[str, list[float]] | None:
    """The absolute metric's values per episode, or None before the run is done."""
    return only_run(results).get(ABSOLUTE_METRICS)


def only_run(results: Results) -> Run:
    """The steps of the one run that a run directory's results hold."""
    run: Run = _only(_only(_only(_only(results))))
    return run


def read_results(path: Path) -> Results:
    try:
        results: Results = json.loads(read_text(path))
        only_run(results)
        return results
    except (AttributeError, *UNREADABLE) as error:
        raise CoveyError(f"cannot read results {path}: {why_unreadable(error)}") from error


def write_results(path: Path, results: Results) -> None:
    write_atomically(path, to_json(results))


def mean_and_interval(values: Values) -> tuple[float, float]:
    """Mean and half the width of its 95% interval, by Student's t; NaN for fewer than two values."""
    from scipy.special import stdtrit

    sample = np.asarray(values, dtype=np.float64)
    if sample.size < 2:
        return (float(sample.mean()) if sample.size else math.nan), math.nan
    standard_error = sample.std(ddof=1) / math.sqrt(sample.size)
    return float(sample.mean()), float(stdtrit(sample.size - 1, 0.975) * standard_error)


def describe_mean(mean: float, half_width: float | None) -> str:
    """As "4.321 ± 0.12": the interval has two digits, and is left out if it is unknown."""
    if half_width is None or not math.isfinite(half_width):
        return f"{mean:.4g}"
    digits = max(0, 1 - math.floor(math.log10(half_width))) if half_width > 0 else 0
    return f"{mean:.4g} ± {half_width:.{digits}f}"


def _per_episode(metrics: Mapping[str, Values]) -> dict[str, list[float]]:
    return {name: np.asarray(values, dtype=np.float64).reshape(-1).tolist() for name, values in metrics.items()}


def _absolute(results: Results) -> Run:
    run = only_run(results)
    return {ABSOLUTE_METRICS: run[ABSOLUTE_METRICS]} if ABSOLUTE_METRICS in run else {}


def _with_run(results: Results, run: Run) -> Results:
    [(suite, tasks)] = results.items()
    [(task, algorithms)] = tasks.items()
    [(algorithm, runs)] = algorithms.items()
    [seed] = runs
    return {suite: {task: {algorithm: {seed: run}}}}


def _only(mapping: dict[str, Any]) -> Any:
    [value] = mapping.values()
    return value
