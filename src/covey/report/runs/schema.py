"""Files in MARL-eval's schema: environment → task → algorithm → run → step → metric → one value per episode.

Other systems write it with differences: names of metrics, capitals, win rates in percent, single numbers for lists.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from covey.metrics import MEAN_RETURN
from covey.report.runs.types import LARGEST, Problem, Run, as_number
from covey.results import ABSOLUTE_METRICS, ELAPSED_TIME, STEP_COUNT

# Other systems' names for covey's metrics. All names are compared in lower case, as in MARL-eval's loader.
METRIC_NAMES: Mapping[str, str] = {
    "return": MEAN_RETURN,  # BenchMARL
    "mean_episode_return": MEAN_RETURN,  # Mava, OG-MARL
    "episode_return": MEAN_RETURN,
}
BENCHMARL_RETURN = "return"
MAVA_RATE = "steps_per_second"  # only Mava writes it; its win rates are in percent
OG_MARL_RETURN = "mean_episode_return"  # Mava writes it too
WIN_RATE = "win_rate"

Note = Callable[[str, str], None]  # takes what is odd about the run, and why or what was done


def find_entries(data: Any, names: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """For every run that is nested as the schema says: (environment, task, algorithm, run) and its steps."""
    if not isinstance(data, dict):
        return
    if len(names) < 4:
        for name, inner in data.items():
            yield from find_entries(inner, (*names, name))
        return
    steps = {name.lower(): _with_lower_keys(step) for name, step in data.items() if isinstance(step, dict)}
    if ABSOLUTE_METRICS in steps or any(STEP_COUNT in step for step in steps.values()):
        yield names, steps


def make_run(names: tuple[str, ...], steps: dict[str, Any], source: Path, problems: list[Problem]) -> Run | None:
    """The run of an entry that `find_entries` found in the file `source`; None, and a problem, if it has no values."""
    suite, name, algorithm, seed = names
    task = name if suite == name else f"{suite}/{name}"
    seed = re.sub(r"^seed[_ ]?", "", seed, flags=re.IGNORECASE) or seed
    where = f"{algorithm} on {task}, seed {seed} ({source})"

    def note(what: str, why: str) -> None:
        problems.append(Problem(what=what, where=where, why=why))

    absolute = {metric: _read_values(value, metric, note) for metric, value in steps.pop(ABSOLUTE_METRICS, {}).items()}
    evaluations = _sort_evaluations(steps, note)
    if not evaluations and not any(values.size for values in absolute.values()):
        note("it has no evaluation", "left out")
        return None
    metrics = {name: None for step in evaluations.values() for name in step if name not in (STEP_COUNT, ELAPSED_TIME)}
    episodes = {
        metric: [_read_values(step.get(metric, []), metric, note) for step in evaluations.values()]
        for metric in metrics
    }
    if BENCHMARL_RETURN in metrics and absolute:
        note("its absolute metric is BenchMARL's, the luckiest single episode", "not used")
        absolute = {}
    if MAVA_RATE in metrics and WIN_RATE in metrics:
        note("its win rate is in percent, as Mava writes it", "divided by 100")
        episodes[WIN_RATE] = [values / 100 for values in episodes[WIN_RATE]]
        absolute |= {WIN_RATE: absolute[WIN_RATE] / 100} if WIN_RATE in absolute else {}
    return Run(
        task=task,
        algorithm=algorithm,
        seed=seed,
        frames=np.array(list(evaluations), np.float64),
        seconds=_read_seconds(list(evaluations.values()), note),
        episodes=_with_own_names(episodes),
        absolute=_with_own_names(absolute),
        folder=None,
        source=source,
        system=_find_system(metrics),
    )


def _find_system(metrics: Iterable[str]) -> str:
    """The system that wrote a file, found by metrics that only it writes."""
    signs = {BENCHMARL_RETURN: "BenchMARL", MAVA_RATE: "Mava", OG_MARL_RETURN: "OG-MARL"}
    return next((system for metric, system in signs.items() if metric in metrics), "")


def _sort_evaluations(steps: Mapping[str, dict[str, Any]], note: Note) -> dict[float, dict[str, Any]]:
    """Evaluations by frames, ascending. The name of a step says nothing about when it was."""
    found: dict[float, dict[str, Any]] = {}
    for name, step in steps.items():
        frames = as_number(step.get(STEP_COUNT))
        if frames is None or frames < 0:
            note(f"{name} has no step_count of 0 or more", "left out")
            continue
        if frames in found:
            note(f"two evaluations at {frames:,.0f} frames", "the later one in the file counts")
        found[frames] = step
    return dict(sorted(found.items()))


def _read_seconds(evaluations: Sequence[dict[str, Any]], note: Note) -> np.ndarray | None:
    """[E], or None if times are missing or do not ascend."""
    times = [as_number(step.get(ELAPSED_TIME)) for step in evaluations]
    if not times or all(time is None for time in times):
        return None
    seconds = np.array([np.nan if time is None else time for time in times])
    if np.isnan(seconds).any() or (np.diff(seconds) < 0).any():
        note("times are missing or do not ascend", "left out of curves by seconds")
        return None
    return seconds


def _read_values(value: Any, metric: str, note: Note) -> np.ndarray:
    """One value per episode, from a list or a single number; NaN if it is null, not finite or too large."""
    try:
        values = np.asarray(value, np.float64).reshape(-1)
    except (TypeError, ValueError, OverflowError):
        note(f"{metric} holds something that is not a number", "these values are left out")
        return np.empty(0)
    return np.where(np.abs(values) <= LARGEST, values, np.nan)


def _with_own_names(by_metric: dict[str, Any]) -> dict[str, Any]:
    """By covey's names of metrics. If a file has a metric under both names, covey's counts."""
    return {METRIC_NAMES.get(name, name): values for name, values in by_metric.items()} | {
        name: values for name, values in by_metric.items() if name not in METRIC_NAMES
    }


def _with_lower_keys(step: dict[str, Any]) -> dict[str, Any]:
    return {name.lower(): value for name, value in step.items()}
