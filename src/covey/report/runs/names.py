"""Names that tell runs apart: one spelling for names that differ in case, suffixes for runs that differ in settings."""

from __future__ import annotations

import dataclasses
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any

from covey.experiment.configuration.config import not_compared
from covey.report.runs.types import Problem, Run

# Fields of a task that change how agents act or learn in it, but neither the goal nor the reward. Runs that differ in
# them are compared with each other, for example discrete with continuous actions.
FIELDS_OF_PLAY = ("task.continuous_actions", "task.shaping")
NOT_COMPARED = frozenset(not_compared())  # fields that say where, how long and how watched a run is
SYSTEM = "system"  # the key of `Run.system` among a run's fields


def unify_case(runs: Sequence[Run]) -> list[Run]:
    """Gives tasks and algorithms that differ only in case one spelling: covey's if there is one, otherwise the first.

    MARL-eval's loader drops case.
    """
    spelling: dict[str, str] = {}
    for run in sorted(runs, key=lambda run: run.system != "covey"):
        for name in (run.task, run.algorithm):
            spelling.setdefault(name.lower(), name)
    return [
        dataclasses.replace(run, task=spelling[run.task.lower()], algorithm=spelling[run.algorithm.lower()])
        for run in runs
    ]


def tell_apart(runs: Sequence[Run]) -> list[Run]:
    """Adds to the names of tasks and algorithms the fields in which runs with the same name differ.

    Tasks differ by their own fields, algorithms by all other fields that change what is learned. Two models under one
    algorithm become `ippo (model=gru)` and `ippo (model=mlp)` on every task, two numbers of environments
    `ippo (num_envs=64)` and so on. The same algorithm of two systems becomes `mappo (covey)` and `mappo (BenchMARL)`.
    A run that was extended is still the same run, and folders' names do not matter. Files without a config.yaml tell
    nothing but their system.
    """
    tasks = _make_suffixes(runs, "task", _belongs_to_task, lambda run: run.task)
    runs = [dataclasses.replace(run, task=run.task + suffix) for run, suffix in zip(runs, tasks, strict=True)]
    algorithms = _make_suffixes(runs, "algorithm", _belongs_to_algorithm, lambda run: (run.algorithm, run.task))
    return [
        dataclasses.replace(run, algorithm=run.algorithm + suffix) for run, suffix in zip(runs, algorithms, strict=True)
    ]


def _belongs_to_task(field_name: str) -> bool:
    return field_name.startswith("task.") and field_name not in FIELDS_OF_PLAY


def _belongs_to_algorithm(field_name: str) -> bool:
    if field_name == SYSTEM or field_name in FIELDS_OF_PLAY:
        return True
    return not field_name.startswith("task.") and not NOT_COMPARED.intersection(_with_parents(field_name))


def _with_parents(field_name: str) -> list[str]:
    """`a`, `a.b` and `a.b.c` of `a.b.c`."""
    return list(accumulate(field_name.split("."), "{}.{}".format))


def _make_suffixes(
    runs: Sequence[Run], attribute: str, counts: Callable[[str], bool], cell: Callable[[Run], Any]
) -> Iterator[str]:
    """For each run ` (field=value, …)`, with the fewest fields that tell runs of a cell apart; mostly ""."""
    fields = [{name: value for name, value in _fields(run).items() if counts(name)} for run in runs]
    chosen: dict[str, list[str]] = {}
    for name in {getattr(run, attribute) for run in runs}:
        cells = defaultdict(list)
        for run, values in zip(runs, fields, strict=True):
            if values and getattr(run, attribute) == name:
                cells[cell(run)].append(values)
        chosen[name] = _find_distinguishing(list(cells.values()))
    for run, values in zip(runs, fields, strict=True):
        parts = [
            values[name] if name == SYSTEM else f"{_shorten(name)}={values.get(name)}"
            for name in chosen[getattr(run, attribute)]
            if name in values or run.config
        ]
        yield f" ({', '.join(parts)})" if parts else ""


def _fields(run: Run) -> dict[str, str]:
    return ({SYSTEM: run.system} if run.system else {}) | _flatten(run.config)


def _find_distinguishing(cells: Sequence[Sequence[dict[str, str]]]) -> list[str]:
    """Fields that split each cell as far as all fields together would; the system and names come first."""
    candidates = {name for cell in cells for values in cell for name in values if len({v.get(name) for v in cell}) > 1}
    chosen: list[str] = []
    parts = len(cells)

    def order(name: str) -> tuple[bool, bool, bool, bool, str]:
        return name != SYSTEM, not name.endswith(".name"), name.startswith("critic"), name.startswith("exp"), name

    for name in sorted(candidates, key=order):
        split = sum(len({tuple(v.get(n) for n in [*chosen, name]) for v in cell}) for cell in cells)
        if split > parts:
            chosen.append(name)
            parts = split
    return chosen


def _flatten(values: Any, prefix: str = "") -> dict[str, str]:
    if isinstance(values, dict):
        return {k: v for name, inner in values.items() for k, v in _flatten(inner, f"{prefix}.{name}").items()}
    return {prefix.removeprefix("."): str(values)}


def _shorten(field_name: str) -> str:
    """`model` for model.name, `lr` for algorithm.lr, `num_envs` for experiment.num_envs; `model.layers` stays."""
    return re.sub(r"^(task|algorithm|experiment)\.", "", field_name).removesuffix(".name")


def drop_duplicates(runs: Iterable[Run], problems: list[Problem]) -> list[Run]:
    """The first of all runs with the same task, algorithm and seed; each of the others is a problem."""
    kept: dict[tuple[str, str, str], Run] = {}
    for run in runs:
        first = kept.setdefault((run.task, run.algorithm, run.seed), run)
        if first is not run:
            what = f"a duplicate of {run.title}"
            problems.append(Problem(what=what, where=str(run.source), why=f"left out: {first.source} counts"))
    return list(kept.values())
