"""What was run: counts, failures, problems, machines, and how the numbers were made."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from covey.experiment.running.console import format_seconds
from covey.report import text
from covey.report.benchmarks import STATES, Attempt, BenchmarkRecord
from covey.report.document import last
from covey.report.markup import Html, join, tag
from covey.report.pieces import NO_BREAK, command_box, note, table
from covey.report.runs import Run
from covey.report.summary import ReportSummary

PROBLEMS_SHOWN = 8
SHOWN_PACKAGES = ("covey", "jax", "jaxlib", "numpy", "flax", "optax")


def show_overview(summary: ReportSummary | None, benchmarks: Sequence[BenchmarkRecord]) -> Html:
    """What was run, what failed, what is odd, on which machines, and how to read the numbers."""
    attempts = [attempt for benchmark in benchmarks for attempt in benchmark.attempts]
    facts = [*(_facts(summary) if summary else []), *(_attempt_facts(attempts) if attempts else [])]
    boxes = [tag("div", tag("dt", name), tag("dd", value)) for name, value in facts]
    return join(
        tag("dl", boxes, class_="facts") if boxes else None,
        _failures(attempts),
        (_problems(summary), _machines(summary.runs)) if summary else None,
        [command_box(command, "The benchmark's command") for b in benchmarks for command in b.commands],
        _how_to_read(summary) if summary else None,
    )


def _facts(summary: ReportSummary) -> list[tuple[str, Html]]:
    runs = summary.runs
    seconds = [value for run in runs if (value := last(run.seconds)) is not None]
    frames = [value for run in runs if (value := last(run.frames)) is not None]
    seeds = [len(final.seeds) for final in summary.finals]
    facts = [
        ("Runs", _fact(f"{len(runs):,}", f"{text.span(seeds)} per algorithm and task")),
        ("Algorithms", _fact(str(len(summary.algorithms)), text.name_list(summary.algorithms, 4))),
        ("Tasks", _fact(str(len(summary.tasks)), text.name_list(summary.tasks, 3))),
    ]
    if frames:
        facts.append(("Frames per run", _fact(text.span(frames), f"{sum(frames):,.0f} in total")))
    if seconds:
        missing = len(runs) - len(seconds)
        without = f"; {text.count(missing, 'run')} without times" if missing else ""
        facts.append(("Time per run", _fact(_time_span(seconds), f"{format_seconds(sum(seconds))} in total{without}")))
    return facts


def _time_span(seconds: Sequence[float]) -> str:
    low, high = (format_seconds(value).replace(" ", NO_BREAK) for value in (min(seconds), max(seconds)))
    return low if low == high else f"{low} to {high}"


def _fact(value: str, detail: str) -> Html:
    return join(value, tag("small", detail))


def _attempt_facts(attempts: Sequence[Attempt]) -> list[tuple[str, Html]]:
    states = Counter(attempt.state for attempt in attempts)
    others = ", ".join(f"{states[state]} {state}" for state in STATES if states[state] and state != "done")
    return [("Planned experiments", _fact(f"{states['done']} of {len(attempts)} done", others or "all of them"))]


def _failures(attempts: Sequence[Attempt]) -> Html | None:
    failed = [attempt for attempt in attempts if attempt.state == "failed"]
    if not failed:
        return None
    items = [
        tag(
            "li",
            tag("b", f"{a.algorithm} on {a.task}, seed {a.seed}"),
            f": {a.error or 'no error recorded'} ",
            tag("code", a.log),
        )
        for a in failed
    ]
    return join(tag("h3", f"{len(failed)} failed", class_="bad"), tag("ul", items, class_="problems"))


def _problems(summary: ReportSummary) -> Html:
    items = [tag("li", tag("b", p.where), f": {p.what} ({p.why})") for p in summary.problems]
    if not items:
        return note("No problems found in the results.")
    shown = tag("ul", items[:PROBLEMS_SHOWN], class_="problems")
    rest = items[PROBLEMS_SHOWN:]
    more = tag("details", tag("summary", f"{len(rest)} more"), tag("ul", rest, class_="problems")) if rest else None
    return join(tag("h3", f"{text.count(len(items), 'thing')} to know about these results"), shown, more)


def _machines(runs: Sequence[Run]) -> Html | None:
    """Each distinct machine and its software, with commits and the number of runs."""
    commits: dict[tuple[str, ...], Counter[str]] = defaultdict(Counter)
    for environment in (run.environment for run in runs if run.environment):
        commits[_describe_machine(environment)][_describe_commit(environment)] += 1
    if not commits:
        return None
    columns = ("Device", "Cores", "System", "Python", "Packages", "Commits", "Runs")
    rows = [[*machine, "; ".join(filter(None, found)), found.total()] for machine, found in commits.items()]
    return join(tag("h3", "Where"), table(columns, rows, numbers=(1, 6)), _started(runs))


def _started(runs: Sequence[Run]) -> Html | None:
    dates = sorted({str(run.environment["started"]) for run in runs if run.environment.get("started")})
    if not dates:
        return None
    return note(f"Started between {dates[0]} and {dates[-1]}." if len(dates) > 1 else f"Started {dates[0]}.")


def _describe_machine(environment: Mapping[str, Any]) -> tuple[str, ...]:
    device, packages = _mapping(environment.get("device")), _mapping(environment.get("packages"))
    return (
        f"{device.get('number', '?')} × {device.get('kind', 'unknown')}",
        str(environment.get("cpu_count", "")),
        str(environment.get("platform", "")),
        str(environment.get("python", "")),
        ", ".join(f"{name} {packages[name]}" for name in SHOWN_PACKAGES if name in packages),
    )


def _describe_commit(environment: Mapping[str, Any]) -> str:
    commit = str(environment.get("git_commit") or "")[:10]
    return f"{commit}, modified" if commit and environment.get("git_dirty") else commit


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _how_to_read(summary: ReportSummary) -> Html:
    texts = (summary.final_text, summary.normalisation_text, summary.interval_text)
    body = [note(sentences) for sentences in (*texts, summary.curve_text, summary.test_text)]
    return tag("details", tag("summary", "How the numbers were made"), body)
