"""`read_runs`: finds, reads, names and checks all runs below some paths."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterable
from pathlib import Path

from covey.errors import UsageError
from covey.files import read_text
from covey.report.runs.directories import (
    compare_with_metrics,
    find_failure,
    has_evaluations,
    is_run_directory,
    one_line,
    read_config,
    read_environment,
    read_failed_run,
    rebuild_results,
)
from covey.report.runs.find import find_files
from covey.report.runs.gaps import find_gaps, is_unfinished
from covey.report.runs.names import drop_duplicates, tell_apart, unify_case
from covey.report.runs.schema import find_entries, make_run
from covey.report.runs.types import Problem, Run, describe, sort_key


def read_runs(paths: Iterable[str | os.PathLike[str]]) -> tuple[list[Run], list[Problem]]:
    """All runs found, sorted by task, algorithm and seed, each of these triples once; and what is odd about them.

    UsageError if a path does not exist, or if no path holds any results.
    """
    given = [Path(path) for path in paths]
    problems: list[Problem] = []
    files: dict[str, Path] = {}  # by where links lead, so that overlapping paths count once
    for path in given:
        try:
            for file in find_files(path, problems):
                files.setdefault(os.path.realpath(file), file)  # Path.resolve rejects circles of links
        except OSError as error:
            raise UsageError(f"cannot read '{path}': {error.strerror or error}") from error
    found = [run for file in files.values() for run in read_file(file, problems)]
    if not found:
        first = f": {describe(problems[0])}" if problems else ""
        raise UsageError(f"no results in {', '.join(map(str, given)) or 'no paths'}{first}")
    runs = drop_duplicates(tell_apart(unify_case(found)), problems)
    runs.sort(key=lambda run: (run.task, run.algorithm, sort_key(run.seed)))
    return runs, list(dict.fromkeys(problems + find_gaps(runs)))


def read_file(path: Path, problems: list[Problem]) -> list[Run]:
    """The runs in a file of MARL-eval's schema; none, and a problem, if it has another schema or cannot be read."""
    folder = path.parent if path.name == "results.json" and is_run_directory(path.parent) else None
    try:
        data = json.loads(read_text(path))
        damage = None
    except OSError as error:
        damage = Problem(what="cannot be read", where=str(path), why=error.strerror or str(error))
    except (ValueError, RecursionError) as error:
        damage = Problem(what="damaged or not JSON, left out", where=str(path), why=one_line(error))
    entries = list(find_entries(data)) if damage is None else []
    if not entries and folder is not None and has_evaluations(folder):
        rebuilt = rebuild_results(folder, problems)
        entries = list(find_entries(rebuilt)) if rebuilt is not None else []
    elif folder is not None and not path.exists():  # the run failed: otherwise it would have results
        return [run] if (run := read_failed_run(folder, problems)) else []
    elif damage is not None:
        problems.append(damage)
        return []
    elif folder is not None:
        compare_with_metrics(data, folder, problems)
    if not entries:
        why = "MARL-eval's schema is environment → task → algorithm → run → step"
        problems.append(Problem(what="holds no results, left out", where=str(path), why=why))
    config = read_config(folder, problems) if folder else {}
    environment = read_environment(folder, problems) if folder else {}
    runs = []
    for names, steps in entries:
        run = make_run(names, steps, path, problems)
        if run is not None:
            system = "covey" if folder else run.system
            run = dataclasses.replace(run, folder=folder, config=config, environment=environment, system=system)
            failure = find_failure(folder) if folder and is_unfinished(run) else ""
            runs.append(dataclasses.replace(run, failure=failure))
    return runs
