"""Reads results: from any paths to a list of `Run`, and a list of `Problem` for everything odd about them.

    runs, problems = read_runs(["bench/first", "theirs/ippo.json"])

A path may be one of covey's run directories, a folder of them at any depth (`seed_N/`, a benchmark), a folder of other
libraries' files, or a file in MARL-eval's schema with one run or many. BenchMARL, Mava and OG-MARL write that schema
with differences. All are read, and a `Problem` names every decision that had to be made; nothing is left out silently.
Only paths that do not exist or hold no results at all are errors (`UsageError`).

    read.py          read_runs
    types.py         Run, Problem
    find.py          the result files below a path
    schema.py        files in MARL-eval's schema, and what other systems do differently
    directories.py   covey's run directories: configuration, failures, damaged files
    names.py         names that tell runs with different settings apart; duplicates
    gaps.py          missing seeds, unfinished runs, unequal evaluations
"""

from covey.report.runs.directories import read_status
from covey.report.runs.find import find_files
from covey.report.runs.gaps import is_unfinished, split_unfinished
from covey.report.runs.names import FIELDS_OF_PLAY
from covey.report.runs.read import read_runs
from covey.report.runs.schema import METRIC_NAMES
from covey.report.runs.types import Problem, Run, as_number, describe

__all__ = [
    "FIELDS_OF_PLAY",
    "METRIC_NAMES",
    "Problem",
    "Run",
    "as_number",
    "describe",
    "find_files",
    "is_unfinished",
    "read_runs",
    "read_status",
    "split_unfinished",
]
