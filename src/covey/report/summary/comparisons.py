"""Pairs of algorithms: how likely one beats the other, and whether the difference is significant."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Sequence

import numpy as np

from covey.errors import UsageError, unknown_name
from covey.report import statistics
from covey.report.statistics import Estimate
from covey.report.summary.options import SummaryOptions, make_generator
from covey.report.summary.series import Cells
from covey.report.summary.types import Comparison

Pair = tuple[str, str]


def choose_pairs(pairs: Sequence[Pair] | None, algorithms: Sequence[str]) -> tuple[Pair, ...]:
    """The pairs to compare: those given, checked, or every pair."""
    if pairs is None:
        return tuple(itertools.combinations(algorithms, 2))
    for pair in pairs:
        if len(pair) != 2 or pair[0] == pair[1]:
            raise UsageError(f"a pair is two algorithms, not {list(pair)}")
        for name in pair:
            check_algorithm(name, algorithms)
    return tuple((first, second) for first, second in pairs)


def check_algorithm(name: str, known: Collection[str]) -> None:
    """UsageError if `name` is not among the known algorithms."""
    if name not in known:
        raise unknown_name("algorithm", name, known, see=f"the runs have {', '.join(sorted(known))}")


def compare_overall(
    cells: Cells, tasks: Sequence[str], pairs: Sequence[Pair], options: SummaryOptions
) -> tuple[Comparison, ...]:
    """Compares each pair over all tasks that both algorithms have; pairs without such a task are left out."""

    def estimate(pair: Pair, first: list[np.ndarray], second: list[np.ndarray]) -> Estimate:
        generator = make_generator(options, "improvement", *pair)
        return statistics.improvement(first, second, options.improvement_repetitions, generator)

    both = [(pair, [task for task in tasks if all(cells.has(task, name) for name in pair)]) for pair in pairs]
    return _compare(cells, [(pair, shared) for pair, shared in both if shared], estimate)


def compare_by_task(cells: Cells, tasks: Sequence[str], pairs: Sequence[Pair]) -> tuple[Comparison, ...]:
    """Compares each pair on each task that both algorithms have."""

    def estimate(pair: Pair, first: list[np.ndarray], second: list[np.ndarray]) -> Estimate:
        return Estimate(value=float(statistics.win_matrix(first[0], second[0]).mean()), low=np.nan, high=np.nan)

    each = [(pair, [task]) for task in tasks for pair in pairs if all(cells.has(task, name) for name in pair)]
    return _compare(cells, each, estimate)


def _compare(
    cells: Cells,
    comparisons: Sequence[tuple[Pair, list[str]]],
    estimate: Callable[[Pair, list[np.ndarray], list[np.ndarray]], Estimate],
) -> tuple[Comparison, ...]:
    """Each pair on its tasks; p-values are corrected for all of these comparisons together."""
    scores = [[cells.final_scores(tasks, name) for name in pair] for pair, tasks in comparisons]
    p_values = [statistics.rank_test(first, second) for first, second in scores]
    corrected = statistics.holm(p_values)
    return tuple(
        Comparison(
            first=pair[0],
            second=pair[1],
            tasks=tuple(tasks),
            probability=estimate(pair, first, second),
            p_value=p_values[i],
            p_corrected=float(corrected[i]),
            smallest_p=statistics.smallest_p(first, second),
        )
        for i, ((pair, tasks), (first, second)) in enumerate(zip(comparisons, scores, strict=True))
    )
