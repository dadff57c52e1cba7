"""`covey report`: reads runs, summarises them, and writes the page, the figures and the tables.

report/index.html      the page; it needs none of the other files
report/summary.json    every number on it
report/figures/        PNG, SVG, PDF
report/tables/         LaTeX, CSV, Markdown
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from covey.errors import UsageError, unknown_name
from covey.files import read_text, to_json, write_atomically, writing
from covey.report import text
from covey.report.benchmarks import find_benchmarks
from covey.report.document import KIND, describe
from covey.report.figures import FORMATS, draw_figures
from covey.report.page import Content, render_page
from covey.report.runs import Problem, Run, read_runs
from covey.report.runs import describe as describe_problem
from covey.report.speeds import find_speeds, is_speed_file, read_speeds
from covey.report.summary import Normalisation, ReportSummary, SummaryOptions, summarise
from covey.report.tables import failures, write_tables

Say = Callable[[str], None]
PROBLEMS_PRINTED = 20  # on the terminal; the page shows all


@dataclass(frozen=True, kw_only=True)
class ReportOptions:
    """The options of `covey report`. Algorithms may be named as in the files or as in the legend."""

    output: str = "report"  # folder to write to
    metric: str = "mean_return"  # metric to report: mean_return, or another that the runs have
    normalisation: Normalisation = Normalisation.anchors  # what 0 and 1 mean on a task's scale
    legend: dict[str, str] = field(default_factory=dict)  # names to show for algorithms: {mappo: MAPPO}
    order: tuple[str, ...] = ()  # algorithms to list first; the others follow by name
    # pairs of algorithms to compare: [[mappo, ippo]]; null: every pair
    pairs: tuple[tuple[str, ...], ...] | None = None
    title: str = "Results"  # title of the page
    formats: tuple[str, ...] = FORMATS  # file formats of the figures: png, svg, pdf; []: no figures
    serve: bool = False  # show the page on this machine, and rebuild it while experiments run
    port: int = 8000  # port to show the page on, from 0 to 65535; 0: any free port

    def __post_init__(self) -> None:
        for name in self.formats:
            if name not in FORMATS:
                raise ValueError(f"unknown format '{name}'; the formats are {', '.join(FORMATS)}")
        for pair in self.pairs or ():
            if len(pair) != 2:
                raise ValueError(f"a pair is two algorithms, not {list(pair)}")
        if not all(isinstance(name, str) for pair in self.legend.items() for name in pair):
            raise ValueError(f"legend maps names to names, as in legend={{mappo: MAPPO}}, not {self.legend}")
        if not 0 <= self.port < 65536:
            raise ValueError(f"port must be between 0 and 65535, not {self.port}")


def parse_value(name: str, value: str) -> Any:
    """An option's value from the command line: YAML, except for options that are text."""
    if name in ("output", "metric", "title"):
        return value
    try:
        parsed = yaml.safe_load(value)
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # invalid dates, thousands of brackets
        raise UsageError(f"cannot read {name}={value}: it is not YAML") from error
    if name == "legend" and isinstance(parsed, dict):
        return dict(_split_entry(key, item) for key, item in parsed.items())
    if name in ("order", "formats") and isinstance(parsed, str):
        return [parsed]
    if name == "pairs" and isinstance(parsed, list) and len(parsed) == 2 and all(isinstance(x, str) for x in parsed):
        return [parsed]
    return parsed


def _split_entry(key: Any, value: Any) -> tuple[Any, Any]:
    """Splits `mappo:MAPPO`, which Hydra's users type, and which YAML reads as a key without a value."""
    if value is None and isinstance(key, str) and ":" in key:
        first, _, second = key.partition(":")
        return first, second
    return key, value


def report(paths: Sequence[str], options: ReportOptions, command: str = "covey report") -> None:
    """Writes the report and prints what was written; with `serve`, continues to show it."""
    if not paths:
        raise UsageError("report needs run directories or result files: covey report RUNS (`covey report --help`)")

    def build_and_tell() -> None:
        with _progress() as say:
            lines = build(paths, options, command, say)
        print("\n".join(lines))

    if not options.serve:
        build_and_tell()
        return
    from covey.report.serve import fingerprint, make_server, serve

    output, given = Path(options.output), [Path(path) for path in paths]
    with make_server(output, options.port) as server:  # first: a taken port is an error before anything is built
        seen = fingerprint(output, given)
        build_and_tell()
        serve(server, output, given, lambda: build(paths, options, command), seen)


def build(paths: Sequence[str], options: ReportOptions, command: str, say: Say = lambda message: None) -> list[str]:
    """Writes the report; returns lines that say what was written."""
    content = read_content([Path(path) for path in paths], options, command, say)
    files = write_files(content, options, say)
    return list(_describe_files(Path(options.output), files, content))


def read_content(paths: Sequence[Path], options: ReportOptions, command: str, say: Say) -> Content:
    """Reads and computes everything to show; UsageError if there is nothing."""
    say(f"reading {text.name_list(map(str, paths), 3)}")
    others = [path for path in paths if not is_speed_file(path)]
    speed_files = find_speeds(paths)
    runs, problems = _read_runs(others, bool(speed_files)) if others else ([], [])
    speeds = read_speeds(speed_files, paths, problems)
    benchmarks = find_benchmarks(others, [run.folder for run in runs if run.folder is not None])
    if not (runs or speeds or benchmarks):
        raise UsageError(describe_problem(problems[0]))
    summary = None
    if runs:
        say(f"computing the statistics of {text.count(len(runs), 'run')}")
        summary = _summarise(runs, problems, options)
    return Content(
        title=text.clean(options.title), command=command, summary=summary, benchmarks=benchmarks, speeds=speeds
    )


def _read_runs(paths: Sequence[Path], have_speeds: bool) -> tuple[list[Run], list[Problem]]:
    """The runs below `paths`. Finding none is an error unless there are speeds, or a benchmark without results yet."""
    try:
        runs, problems = read_runs(paths)
    except UsageError:
        if all(map(os.path.exists, paths)) and (have_speeds or find_benchmarks(paths, [])):
            return [], []
        raise
    return runs, [problem for problem in problems if not _is_covey_file(Path(problem.where))]


def _is_covey_file(path: Path) -> bool:
    """Whether covey left this file beside results (a status, a summary, speeds): then it is not a problem."""
    try:
        return re.match(r'\s*\{\s*"kind":\s*"covey-', read_text(path)[:200]) is not None
    except (OSError, ValueError):
        return False


def _summarise(runs: Sequence[Run], problems: Sequence[Problem], options: ReportOptions) -> ReportSummary:
    shown = shown_names([run.algorithm for run in runs], options.legend)
    tasks = shown_names([run.task for run in runs], {})
    renamed = [dataclasses.replace(run, task=tasks[run.task], algorithm=shown[run.algorithm]) for run in runs]
    pairs = None if options.pairs is None else tuple((shown.get(a, a), shown.get(b, b)) for a, b in options.pairs)
    chosen = SummaryOptions(
        metric=options.metric,
        normalisation=options.normalisation,
        pairs=pairs,
        order=tuple(shown.get(name, name) for name in options.order),
    )
    return summarise(renamed, problems, chosen)


def shown_names(names: Sequence[str], legend: dict[str, str]) -> dict[str, str]:
    """By name, the name to show: the legend's, as text that every format can hold, and no two the same."""
    known = list(dict.fromkeys(names))
    for name in legend:
        if name not in known:
            raise unknown_name("algorithm in the legend", name, known, see=f"the runs have {text.name_list(known)}")
    shown: dict[str, str] = {}
    for name in known:
        wanted = text.clean(legend.get(name, name))
        if wanted in shown.values():
            if name in legend:
                raise UsageError(f"the legend gives two algorithms the name '{wanted}'")
            wanted = f"{wanted} ({len(shown) + 1})"
        shown[name] = wanted
    return shown


def write_files(content: Content, options: ReportOptions, say: Say) -> list[Path]:
    """Writes all files of the report, the page last; returns their paths relative to the output folder."""
    output = Path(options.output)
    with writing(f"to {output}"):
        output.mkdir(parents=True, exist_ok=True)
        files = []
        if content.summary is not None:
            say("writing tables")
            files += write_tables(content.summary, output / "tables")
            if options.formats:
                files += draw_figures(content.summary, output / "figures", options.formats, say)
        relative = [path.relative_to(output) for path in files]
        if content.summary is not None:
            old = _read_earlier_files(output)
            _write(output / "summary.json", to_json(describe(content.summary, content.title, relative)))
            _remove(output, old - {*relative})
            relative = [Path("summary.json"), *relative]
        say("writing the page")
        _write(output / "index.html", render_page(dataclasses.replace(content, files=relative)))
    return [Path("index.html"), *relative]


def _read_earlier_files(output: Path) -> set[Path]:
    """The tables and figures that the last report in this folder wrote. All other files are the user's own."""
    try:
        before = json.loads((output / "summary.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return set()
    if not isinstance(before, dict) or before.get("kind") != KIND or not isinstance(before.get("files"), list):
        return set()
    paths = {Path(name) for name in before["files"] if isinstance(name, str)}
    return {path for path in paths if len(path.parts) == 2 and path.parts[0] in ("figures", "tables")}


def _remove(output: Path, old: Iterable[Path]) -> None:
    """Removes files of tasks, pairs or formats that are no longer in the report."""
    for path in old:
        if (output / path).is_file():
            (output / path).unlink()


def _write(path: Path, content: str) -> None:
    """Writes text. Paths in it may hold bytes that are not UTF-8; they are replaced."""
    write_atomically(path, content.encode("utf-8", "replace").decode("utf-8"))


def _describe_files(output: Path, files: Sequence[Path], content: Content) -> Iterator[str]:
    folders = dict.fromkeys(path.parent for path in files)
    for folder in folders:
        here = [path for path in files if path.parent == folder]
        if folder == Path():
            yield from (str(output / path) for path in here)
        else:
            kinds = ", ".join(dict.fromkeys(path.suffix.removeprefix(".") for path in here))
            yield f"{output / folder}/: {text.count(len(here), 'file')} ({kinds})"
    failed = sum(attempt.state == "failed" for benchmark in content.benchmarks for attempt in benchmark.attempts)
    if failed:
        yield f"{text.count(failed, 'experiment')} failed: the page names them"
    if content.summary is not None:
        yield from _list_problems(content.summary)


def _list_problems(summary: ReportSummary) -> Iterator[str]:
    """The warnings and problems on the page, for readers of the terminal."""
    if summary.seeds_text:
        yield summary.seeds_text
    yield from failures(summary)
    problems = summary.problems
    if problems:
        yield f"{text.count(len(problems), 'thing')} to know about these results:"
        yield from (f"  {text.clean(describe_problem(problem))}" for problem in problems[:PROBLEMS_PRINTED])
    if len(problems) > PROBLEMS_PRINTED:
        yield f"  and {len(problems) - PROBLEMS_PRINTED} more: the page names them"


@contextlib.contextmanager
def _progress() -> Iterator[Say]:
    """Shows progress: beside a spinner on a terminal, otherwise one line each on stderr."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda message: print(message, file=sys.stderr, flush=True)
        return
    with console.status("") as status:
        yield lambda message: status.update(message.replace("[", r"\["))
