"""How to train each run again: commands, configurations, files."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

import yaml

from covey.report.benchmarks import BenchmarkRecord
from covey.report.markup import Html, join, tag
from covey.report.pieces import command_box, note
from covey.report.runs import Run
from covey.report.summary import ReportSummary


def show_reproduction(summary: ReportSummary, benchmarks: Sequence[BenchmarkRecord]) -> Html:
    """For each task and algorithm: commands, configurations, and the files that were read."""
    cells: dict[tuple[str, str], list[Run]] = {}
    for run in summary.runs:
        cells.setdefault((run.task, run.algorithm), []).append(run)
    return join(
        tag("details", tag("summary", f"{algorithm} on {task}"), _show_recipes(runs, benchmarks))
        for (task, algorithm), runs in sorted(cells.items(), key=lambda item: _place(summary, item[0]))
    )


def _place(summary: ReportSummary, cell: tuple[str, str]) -> tuple[int, int]:
    return summary.tasks.index(cell[0]), summary.algorithms.index(cell[1])


def _show_recipes(runs: Sequence[Run], benchmarks: Sequence[BenchmarkRecord]) -> Html:
    """Seeds with the same command and configuration share one recipe."""
    recipes: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        recipes.setdefault((train_command(run, benchmarks), _configuration(run)), []).append(run)
    parts = []
    for (command, configuration), same in recipes.items():
        parts.append(tag("h4", f"Seed{'s' if len(same) > 1 else ''} {', '.join(run.seed for run in same)}"))
        parts.append(command_box(command) if command else note("The command is not recorded."))
        if configuration:
            parts.append(tag("details", tag("summary", "Configuration"), tag("pre", configuration)))
        sources = [tag("li", tag("code", str(run.source))) for run in same]
        parts.append(tag("details", tag("summary", "Files"), tag("ul", sources)))
    return join(parts)


def train_command(run: Run, benchmarks: Sequence[BenchmarkRecord]) -> str:
    """The command that trains this run again; "" if it is not recorded.

    A benchmark's workers start its runs, so benchmark.yaml has their commands.
    """
    if run.folder is None:
        return ""
    name = run.folder.parent.name
    for benchmark in benchmarks:
        if name in benchmark.train_commands and run.folder.parent.parent.resolve() == benchmark.folder.resolve():
            return benchmark.train_commands[name]
    command = run.environment.get("command")
    if not isinstance(command, list) or len(command) < 2:
        return ""
    return shlex.join(["covey", *(str(word) for word in command[1:])])


def _configuration(run: Run) -> str:
    """config.yaml without the fields that differ between seeds."""
    shared = {key: value for key, value in run.config.items() if key not in ("seed", "seeds", "run_dir")}
    return yaml.safe_dump(shared, sort_keys=False, allow_unicode=True) if shared else ""
