"""How long a report's numbers take, against rliable on the same matrices.

The sizes are those of a large benchmark: 9 algorithms x 10 tasks x 10 seeds x 100 evaluations of 32 episodes; 50,000
bootstrap repetitions for the four aggregates, 5,000 for the sample-efficiency curves, 2,000 for the probability of
improvement of all 36 pairs. The returns are made up.

  whole     result files in a temporary folder are read and summarised, with all that the page shows: profiles, ranks,
            tests, curves by frames and by seconds, over tasks and per task. Seconds, and the process's peak memory
  parts     aggregates, curves and improvement alone, by covey and by rliable, on the same score matrices
  ratio     rliable's time for the three parts / covey's for the same

rliable does `--fraction` of the repetitions, and its time is taken as many times: each repetition is a call of the same
function, and what it does once per call is small. `--fraction 1` times all of it, which takes about half an hour.
"""

from __future__ import annotations

import dataclasses
import json
import resource
import tempfile
import time
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import common
import numpy as np

from covey.report import statistics
from covey.report.runs import read_runs
from covey.report.summary import Normalisation, ReportSummary, SummaryOptions, summarise

SECONDS, GIGABYTES, RATIO = 30.0, 2.0, 40.0  # targets
EPISODES = 32


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sizes:
    algorithms: int
    tasks: int
    seeds: int
    evaluations: int
    aggregates: int  # repetitions of each part
    curves: int
    improvement: int


def main(arguments: list[str] | None = None) -> None:
    parser = common.make_parser(__doc__)
    parser.add_argument("--algorithms", type=int, default=9)
    parser.add_argument("--tasks", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--evaluations", type=int, default=100)
    parser.add_argument("--aggregates", type=int, default=50_000, help="repetitions (default 50,000)")
    parser.add_argument("--curves", type=int, default=5_000, help="repetitions (default 5,000)")
    parser.add_argument("--improvement", type=int, default=2_000, help="repetitions (default 2,000)")
    parser.add_argument("--fraction", type=float, default=0.02, help="of the repetitions that rliable does")
    parser.add_argument(
        "--rounds", type=int, default=3, help="repetitions of covey's part, of which the best counts (default 3)"
    )
    options = parser.parse_args(arguments)
    sizes = Sizes(**{field.name: getattr(options, field.name) for field in dataclasses.fields(Sizes)})

    scores = make_scores(sizes)
    whole = time_whole(scores, sizes, options.rounds)
    print(
        f"whole        {whole['seconds']:.2f} s (target below {SECONDS:.0f}): read {whole['reading']:.2f} s, ", end=""
    )
    print(f"summarised {whole['summarising']:.2f} s; {whole['cpu_seconds']:.2f} s of CPU; ", end="")
    print(f"{whole['gigabytes']:.2f} GB (target below {GIGABYTES:.0f})")

    covey = time_covey(scores, sizes, options.rounds)
    rliable, measured = time_rliable(scores, sizes, options.fraction)
    for part in covey:
        print(f"{part:12} covey {covey[part]:8.3f} s   rliable {rliable[part]:8.1f} s", end="")
        print(f"   {rliable[part] / covey[part]:8.0f} times as long ({measured[part]:.1f} s measured)")
    ratio = sum(rliable.values()) / sum(covey.values())
    print(f"ratio        {common.verdict(ratio, RATIO)}")
    reached = ratio >= RATIO and whole["seconds"] < SECONDS and whole["gigabytes"] < GIGABYTES
    figures = {
        "sizes": dataclasses.asdict(sizes),
        "whole": whole,
        "covey_seconds": covey,
        "rliable_seconds": rliable,
        "rliable_measured_seconds": measured,
        "rliable_fraction": options.fraction,
        "ratio": ratio,
        "ratio_to_whole": sum(rliable.values()) / whole["seconds"],
        "target": RATIO,
        "reached": reached,
    }
    common.write_figures(options.output, figures)


def make_scores(sizes: Sizes) -> np.ndarray:
    """Learning curves [algorithm, seed, task, evaluation] from 0 to about 1, algorithms better one after the other."""
    rng = np.random.default_rng(0)
    progress = 1 - np.exp(-5 * np.linspace(0, 1, sizes.evaluations))
    level = rng.normal(0.8, 0.15, (sizes.algorithms, sizes.seeds, sizes.tasks, 1))
    level += 0.02 * np.arange(sizes.algorithms)[:, None, None, None]
    noise = rng.normal(0, 0.05, (sizes.algorithms, sizes.seeds, sizes.tasks, sizes.evaluations))
    return level * progress + noise


# --------------------------------------------------------------------------------------------------------------- covey


def time_whole(scores: np.ndarray, sizes: Sizes, rounds: int) -> dict[str, float]:
    """The best of several rounds, by the clock, and its parts; CPU time tells how much of it was waiting for others."""
    with tempfile.TemporaryDirectory() as folder:
        write_runs(Path(folder), scores)
        best = min((time_report(folder, sizes) for _ in range(rounds)), key=lambda times: times["seconds"])
    return {**best, "gigabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6}  # kilobytes on Linux


def time_report(folder: str, sizes: Sizes) -> dict[str, float]:
    started, cpu = time.perf_counter(), time.process_time()
    runs, problems = read_runs([folder])
    reading = time.perf_counter() - started
    summary = summarise(runs, problems, make_options(sizes))
    seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    check(summary, sizes)
    return {"seconds": seconds, "reading": reading, "summarising": seconds - reading, "cpu_seconds": cpu}


def make_options(sizes: Sizes) -> SummaryOptions:
    return SummaryOptions(
        normalisation=Normalisation.none,
        repetitions=sizes.aggregates,
        curve_repetitions=sizes.curves,
        improvement_repetitions=sizes.improvement,
    )


def write_runs(folder: Path, scores: np.ndarray) -> None:
    """One file per run, with one metric."""
    rng = np.random.default_rng(1)
    for algorithm, seed, task in np.ndindex(scores.shape[:3]):
        episodes = scores[algorithm, seed, task][:, None] + rng.normal(0, 0.1, (scores.shape[3], EPISODES))
        steps: dict[str, dict[str, Any]] = {
            f"step_{i}": {"step_count": 1000 * i, "elapsed_time": 2.0 * i + seed / 10, "mean_return": values.tolist()}
            for i, values in enumerate(episodes)
        }
        steps["absolute_metrics"] = {"mean_return": episodes[-1].tolist()}
        results = {"made-up": {f"task_{task}": {f"algorithm_{algorithm}": {f"seed_{seed}": steps}}}}
        (folder / f"{algorithm}-{task}-{seed}.json").write_text(json.dumps(results), encoding="utf-8")


def check(summary: ReportSummary, sizes: Sizes) -> None:
    """That nothing was skipped."""
    assert len(summary.runs) == sizes.algorithms * sizes.tasks * sizes.seeds
    for part in (summary.aggregates, summary.profiles, summary.curves_by_frames, summary.curves_by_seconds):
        assert len(part) == sizes.algorithms
    assert all(curve.x.size == sizes.evaluations for curve in summary.curves_by_frames)
    assert len(summary.improvements) == sizes.algorithms * (sizes.algorithms - 1) // 2
    assert not summary.problems, summary.problems[:3]


def time_covey(scores: np.ndarray, sizes: Sizes, rounds: int) -> dict[str, float]:
    curves = [list(np.moveaxis(of, 1, 0)) for of in scores]  # per algorithm, a list of tasks
    finals = [[task[:, -1] for task in of] for of in curves]

    def aggregates() -> None:
        for of in finals:
            statistics.aggregate(of, sizes.aggregates, np.random.default_rng(0))

    def sample_efficiency() -> None:
        for of in curves:
            statistics.iqm_curve(of, sizes.curves, np.random.default_rng(0))

    def improvement() -> None:
        for first, second in combinations(finals, 2):
            statistics.improvement(first, second, sizes.improvement, np.random.default_rng(0))

    parts = {"aggregates": aggregates, "curves": sample_efficiency, "improvement": improvement}
    return {name: min(time_call(part) for _ in range(rounds)) for name, part in parts.items()}


# ------------------------------------------------------------------------------------------------------------- rliable


def time_rliable(scores: np.ndarray, sizes: Sizes, fraction: float) -> tuple[dict[str, float], dict[str, float]]:
    """Seconds for all repetitions, extrapolated, and seconds measured."""
    from rliable import library, metrics

    finals = {str(i): of[:, :, -1] for i, of in enumerate(scores)}
    curves = {str(i): of for i, of in enumerate(scores)}
    pairs = {f"{i},{j}": (finals[str(i)], finals[str(j)]) for i, j in combinations(range(len(scores)), 2)}
    four = (
        metrics.aggregate_median,
        metrics.aggregate_iqm,
        metrics.aggregate_mean,
        metrics.aggregate_optimality_gap,
    )

    def aggregate(matrix: np.ndarray) -> np.ndarray:
        return np.array([function(matrix) for function in four])

    def iqm(matrix: np.ndarray) -> np.ndarray:
        return np.array([metrics.aggregate_iqm(matrix[..., point]) for point in range(matrix.shape[-1])])

    work: dict[str, tuple[dict[str, Any], Callable[..., Any], int]] = {
        "aggregates": (finals, aggregate, sizes.aggregates),
        "curves": (curves, iqm, sizes.curves),
        "improvement": (pairs, metrics.probability_of_improvement, sizes.improvement),
    }
    whole, measured = {}, {}
    for name, (data, function, repetitions) in work.items():
        some = max(1, round(repetitions * fraction))
        measured[name] = time_call(lambda: library.get_interval_estimates(data, function, reps=some))  # noqa: B023
        whole[name] = measured[name] * repetitions / some
    return whole, measured


def time_call(function: Callable[[], Any]) -> float:
    started = time.perf_counter()
    function()
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
