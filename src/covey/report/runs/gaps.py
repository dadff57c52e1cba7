"""What is missing in a set of runs: whole cells, seeds, evaluations, the ends of unfinished runs.

A cell is one algorithm on one task.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from covey.report.runs.types import Problem, Run, as_number, sort_key


def find_gaps(runs: Sequence[Run]) -> list[Problem]:
    """The problems of a set of runs: cells without runs, with fewer seeds than others, with unequal evaluations, …"""
    cells: dict[tuple[str, str], list[Run]] = defaultdict(list)
    for run in runs:
        cells[run.task, run.algorithm].append(run)
    tasks, algorithms = (sorted({cell[i] for cell in cells}) for i in (0, 1))
    problems = []
    for algorithm in algorithms:
        without = [task for task in tasks if (task, algorithm) not in cells]
        if without:
            why = "these tasks are left out of aggregates, but pairs that both have runs there are compared on them"
            problems.append(Problem(what=f"no runs on {', '.join(without)}", where=algorithm, why=why))
    most = max((len(cell) for cell in cells.values()), default=0)
    all_seeds = {run.seed for run in runs}
    for (task, algorithm), cell in cells.items():
        where = f"{algorithm} on {task}"
        if len(cell) < most:
            problems.append(_describe_missing_seeds(where, cell, most, all_seeds))
        problems += [Problem(what=what, where=where, why=why) for what, why in _find_incomplete(cell)]
        problems += _find_unequal_steps(where, cell)
    return problems


def split_unfinished(cell: Sequence[Run]) -> tuple[list[Run], list[Run]]:
    """A cell's runs that count, and its unfinished runs, which do not count if another run of the cell is finished.

    An unfinished run does not show where it will end, and it would cut the mean curve short. A failed run counts: an
    algorithm must not gain by failing. If no run of the cell is finished, all count as far as they are.
    """
    if all(is_unfinished(run) for run in cell):
        return list(cell), []
    unfinished = [run for run in cell if is_unfinished(run) and not run.failure]
    return [run for run in cell if not is_unfinished(run) or run.failure], unfinished


def is_unfinished(run: Run) -> bool:
    """Whether the run failed, or lacks evaluations that its configuration asks for."""
    return bool(run.failure or _find_missing_part(run))


def _find_missing_part(run: Run) -> str:
    """What the run lacks of what its configuration asks for; "" if nothing, or if that is not known."""
    experiment = run.config.get("experiment")
    if not isinstance(experiment, dict) or not run.frames.size:
        return ""
    wanted = as_number(experiment.get("frames"))
    if wanted is not None and run.frames[-1] < wanted:
        return f"stopped at {run.frames[-1]:,.0f} of {wanted:,.0f} frames"
    return (
        "stopped before its absolute metric" if experiment.get("absolute_metric") is True and not run.absolute else ""
    )


def _describe_missing_seeds(where: str, cell: Sequence[Run], most: int, all_seeds: set[str]) -> Problem:
    seeds = [run.seed for run in cell]
    missing = sorted(all_seeds.difference(seeds), key=sort_key)
    names = f"; seed {', '.join(missing)} missing" if len(missing) == most - len(seeds) else ""
    why = "intervals use the available seeds" if len(seeds) > 1 else "there is no interval for one seed"
    return Problem(what=f"{len(seeds)} of {most} seeds{names}", where=where, why=why)


def _find_incomplete(cell: Sequence[Run]) -> Iterator[tuple[str, str]]:
    """Failed, unfinished and unevaluated runs of a cell: what is odd, and why or what was done."""
    counting, left_out = split_unfinished(cell)
    for run in (run for run in cell if run.failure):
        how = (
            "by its last evaluations"
            if run.frames.size
            else "as the worst value on this task, because it has no evaluation"
        )
        missing = _find_missing_part(run)
        yield f"seed {run.seed} failed{f', {missing}' if missing else ''}: {run.failure}", f"counts {how}"
    why = "left out of scores until it is done" if left_out else "shown as far as it got"
    yield from (
        (f"seed {run.seed} {_find_missing_part(run)}", why) for run in cell if is_unfinished(run) and not run.failure
    )
    without = [run.seed for run in counting if not run.absolute and not run.failure]
    if without:
        why = "on this task, the last evaluations are the final values of all algorithms"
        yield f"no absolute metric for seed {', '.join(without)}", why
    none = [run.seed for run in cell if not run.frames.size and not run.failure]
    if none:
        yield f"no evaluation during training for seed {', '.join(none)}", "not in the curves"


def _find_unequal_steps(where: str, cell: Sequence[Run]) -> Iterator[Problem]:
    """A problem if runs of a cell were evaluated at different frames: they make one curve."""
    evaluated = [run for run in split_unfinished(cell)[0] if run.frames.size and not run.failure]
    if len({tuple(run.frames) for run in evaluated}) < 2:
        return
    [(usual, _)] = Counter(tuple(run.frames) for run in evaluated).most_common(1)
    others = [run.seed for run in evaluated if tuple(run.frames) != usual]
    named = ", ".join(others[:6]) + (f" and {len(others) - 6} more" if len(others) > 6 else "")
    yield Problem(
        what=f"evaluated at other frames than the rest: seed {named}",
        where=where,
        why="its curve is interpolated to common points",
    )
