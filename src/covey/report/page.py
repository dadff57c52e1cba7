"""The report's page: one HTML file with its style, script, data and pictures, which needs no network.

Python writes all text and tables; the script (page.js) draws the charts from the embedded data. Names come from files
that anyone may have written, so `markup.tag` escapes them, the data is JSON without `<`, the script only makes text
nodes, and a content security policy allows no other script.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import importlib.resources
import string
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from covey.report import text
from covey.report.benchmarks import BenchmarkRecord
from covey.report.document import DRAWN, describe, drawn
from covey.report.markup import Html, join, json_script, tag
from covey.report.sections.by_task import show_tasks
from covey.report.sections.cost import show_costs, show_speeds
from covey.report.sections.over_tasks import (
    show_curves,
    show_improvement,
    show_leaderboard,
    show_profiles,
    show_toolbar,
)
from covey.report.sections.overview import show_overview
from covey.report.sections.reproduce import show_reproduction
from covey.report.speeds import Speed
from covey.report.summary import ReportSummary

WITH_CHARTS = ("curves", "profiles", "improvement", "tasks")  # adjacent sections


@dataclass(frozen=True, kw_only=True)
class Content:
    """Everything a page shows. Without runs, as in a benchmark that has just begun, there is no summary."""

    title: str
    command: str  # that made the report
    summary: ReportSummary | None
    benchmarks: Sequence[BenchmarkRecord] = ()
    speeds: Sequence[Speed] = ()
    files: Sequence[Path] = ()  # written beside the page, relative to it


@dataclass(frozen=True)
class Section:
    """A section of the page and its anchor in links."""

    anchor: str
    heading: str
    body: Html | None  # None: there is nothing to show


def render_page(content: Content) -> str:
    """The whole page as HTML."""
    style, script = _resource("page.css"), _resource("page.js")
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; img-src data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'"
    )
    shown = [section for section in _sections(content) if section.body]
    data = drawn(describe(content.summary, content.title)) if content.summary else {name: [] for name in DRAWN}
    return string.Template(_resource("page.html")).substitute(
        version=join(importlib.metadata.version("covey")),
        policy=policy,  # its quotes are single, so it needs no escaping
        title=join(content.title),
        style=style,
        script=script,
        header=_header(content, shown),
        body=_main(content.summary, shown),
        footer=_footer(content),
        data=json_script("data", data),
    )


def _main(summary: ReportSummary | None, shown: Sequence[Section]) -> Html:
    """The sections in order. Those with charts share a toolbar that stays visible beside them."""
    charts = [section for section in shown if section.anchor in WITH_CHARTS]
    if summary is None or not charts:
        return join(_section(section) for section in shown)
    first, *others = charts
    toolbar = show_toolbar(summary)
    together = tag("div", _heading(first), toolbar, first.body, [_section(section) for section in others])
    place = shown.index(first)
    before, after = shown[:place], shown[place + len(charts) :]
    return join((_section(section) for section in before), together, (_section(section) for section in after))


def _section(section: Section) -> Html:
    return tag("section", _heading(section), section.body)


def _heading(section: Section) -> Html:
    return tag("h2", section.heading, id=section.anchor)


def _resource(name: str) -> str:
    return importlib.resources.files("covey.report").joinpath(name).read_text(encoding="utf-8")


def _hash(source: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()}'"


def _sections(content: Content) -> Iterable[Section]:
    summary, benchmarks = content.summary, content.benchmarks
    yield Section("summary", "What was run", show_overview(summary, benchmarks))
    if summary is not None:
        yield Section("leaderboard", "Leaderboard", show_leaderboard(summary))
        yield Section("curves", "Learning curves", show_curves(summary))
        yield Section("profiles", "Performance profiles", show_profiles(summary))
        yield Section("improvement", "Probability of improvement", show_improvement(summary))
        yield Section("tasks", "Task by task", show_tasks(summary))
        yield Section("cost", "Cost", show_costs(summary))
    yield Section("speed", "Machines", show_speeds(content.speeds))
    if summary is not None:
        yield Section("reproduce", "Reproducing it", show_reproduction(summary, benchmarks))


def _header(content: Content, shown: Sequence[Section]) -> Html:
    links = [tag("li", tag("a", section.heading, href=f"#{section.anchor}")) for section in shown]
    actions = tag(
        "div",
        tag("span", "● live", id="live", class_="live", hidden=True),
        tag("button", "Dark mode", id="theme", type="button", hidden=True),
        class_="actions",
    )
    return tag(
        "header",
        tag("div", tag("h1", content.title), actions, class_="masthead"),
        tag("p", _lead(content), class_="lead"),
        tag("nav", tag("ul", links), aria_label="Sections"),
    )


def _lead(content: Content) -> str:
    s = content.summary
    if s is None:
        return "No results yet." if content.benchmarks else text.count(len(content.speeds), "machine")
    things = {"algorithm": s.algorithms, "task": s.tasks, "run": s.runs}
    counted = ", ".join(text.count(len(found), thing) for thing, found in things.items())
    better = "higher" if s.higher_is_better else "lower"
    return f"{counted}. Measured by {s.metric}{f' ({s.unit})' if s.unit else ''}; {better} is better."


def _footer(content: Content) -> Html:
    links = [(tag("a", path.as_posix(), href=path.as_posix()), " ") for path in content.files]
    files = tag("details", tag("summary", f"{text.count(len(links), 'file')} beside this page"), tag("p", links))
    made = tag("p", f"Made by covey {importlib.metadata.version('covey')}: ", tag("code", content.command))
    return tag("footer", made, files if links else None)
