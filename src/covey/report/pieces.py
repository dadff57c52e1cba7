"""What the sections of the page are made of: notes, tables, cells, swatches, places for charts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from covey.report import text
from covey.report.drawing import COLOURS, DASHES
from covey.report.markup import Html, join, tag
from covey.report.statistics import Estimate
from covey.report.summary import Curve, ReportSummary

NO_BREAK = "\u00a0"  # a space at which lines do not break


def chart(kind: str, label: str, index: int = 0) -> Html:
    """Where the script draws a chart; `label` is what it shows, in words."""
    return tag("div", tag("noscript", label), class_="chart", data_chart=kind, data_index=index, data_label=label)


def note(*children: object) -> Html:
    return tag("p", *children, class_="note")


def table(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    numbers: Sequence[int] = (),
    class_: str | None = None,
    id_: str | None = None,
) -> Html:
    """Columns in `numbers` stand to the right; the first cell of a row is its heading. A cell may be a whole <td>."""
    header = [tag("th", name, scope="col", class_="number" if i in numbers else None) for i, name in enumerate(columns)]
    body = [tag("tr", [_cell(cell, i, i in numbers) for i, cell in enumerate(row)]) for row in rows]
    inner = tag("table", tag("thead", tag("tr", header)), tag("tbody", body), class_=class_, id=id_)
    return tag("div", inner, class_="scroll", role="region", aria_label=f"Table: {', '.join(columns)}")


def _cell(cell: object, column: int, is_number: bool) -> Html:
    if isinstance(cell, Html) and cell.startswith("<td"):
        return cell
    if column == 0:
        return tag("th", cell, scope="row", class_="name")
    return tag("td", cell, class_="number" if is_number else None)


def estimate_cell(estimate: Estimate | None, digits: int, *, data_field: str | None = None, best: bool = False) -> Html:
    if estimate is None:
        return tag("td")
    return tag("td", estimate_text(estimate, digits), class_="number best" if best else "number", data_field=data_field)


def estimate_text(estimate: Estimate, digits: int) -> Html:
    middle = text.number(estimate.value, digits)
    interval = text.estimate(estimate, digits).removeprefix(middle).strip()
    return join(middle, " ", tag("span", interval, class_="range")) if interval else join(middle)


def algorithm_cell(summary: ReportSummary, name: str) -> Html:
    return join(swatch(summary.algorithms.index(name)), name)


def look(index: int) -> str:
    """The classes of an algorithm's colour and dash."""
    return f"s{index % len(COLOURS)} d{index // len(COLOURS) % len(DASHES)}"


def swatch(index: int) -> Html:
    line = tag("line", class_=f"stroke {look(index)}", x1=0, x2=24, y1=5, y2=5)
    return tag("svg", line, class_=f"swatch {look(index)}", viewBox="0 0 24 10", aria_hidden="true")


def interval_picture(summary: ReportSummary, name: str, estimate: Estimate, scale: Sequence[float]) -> Html:
    """The interval as a bar and the estimate as a line, on a scale that all rows share; the numbers stand beside it."""
    low, high = min(scale, default=0.0), max(scale, default=1.0)

    def x(value: float) -> float:
        return round(6 + 132 * (value - low) / (high - low or 1.0), 1)

    zero = tag("line", class_="zero", x1=0, x2=144, y1=8, y2=8)
    marks = []
    if math.isfinite(estimate.low) and math.isfinite(estimate.high):
        marks.append(tag("line", class_="range", x1=x(estimate.low), x2=x(estimate.high), y1=8, y2=8))
    if math.isfinite(estimate.value):
        marks.append(tag("line", class_="stroke", x1=x(estimate.value), x2=x(estimate.value), y1=1, y2=15))
    classes = f"interval {look(summary.algorithms.index(name))}"
    return tag("svg", zero, marks, class_=classes, viewBox="0 0 144 16", aria_hidden="true")


def command_box(command: str, label: str = "") -> Html:
    box = tag("div", tag("pre", command, class_="command"), class_="copied")
    return join(tag("h4", label), box) if label else box


def shaded_cell(share: float, content: object, *, half: bool) -> Html:
    """A cell with one of eleven shades; with `half`, from orange over none to blue, else from none to blue."""
    if not math.isfinite(share):
        return tag("td", content, class_="empty")
    return tag("td", content, class_=f"p{round(10 * share) if half else 5 + round(5 * share)}")


def describe_ends(curves: Iterable[Curve], digits: int) -> str:
    """Where each curve ends, in words: the text alternative of a chart."""
    return "; ".join(
        f"{curve.algorithm} {text.number(float(curve.y.value[-1]), digits)} at {float(curve.x[-1]):,.0f}"
        for curve in curves
        if len(curve.x)
    )
