"""The parts of the page's sections: notes, tables, cells, swatches, places for charts."""

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
    """A place for the script to draw a chart; `label` describes it in words."""
    return tag("div", tag("noscript", label), class_="chart", data_chart=kind, data_index=index, data_label=label)


def note(*children: object) -> Html:
    """A paragraph of small print."""
    return tag("p", *children, class_="note")


def table(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    numbers: Sequence[int] = (),
    class_: str | None = None,
    id_: str | None = None,
) -> Html:
    """A table. Columns in `numbers` are aligned right; the first cell of a row is its heading. A cell may be a <td>."""
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
    """A cell with an estimate and its interval; an empty cell for None."""
    if estimate is None:
        return tag("td")
    return tag("td", estimate_text(estimate, digits), class_="number best" if best else "number", data_field=data_field)


def estimate_text(estimate: Estimate, digits: int) -> Html:
    """An estimate and, less prominent, its interval."""
    middle = text.number(estimate.value, digits)
    interval = text.estimate(estimate, digits).removeprefix(middle).strip()
    return join(middle, " ", tag("span", interval, class_="range")) if interval else join(middle)


def algorithm_cell(summary: ReportSummary, name: str) -> Html:
    """An algorithm's name and swatch."""
    return join(swatch(summary.algorithms.index(name)), name)


def look(index: int) -> str:
    """The CSS classes of the colour and dash of the algorithm at `index` in the report's order."""
    return f"s{index % len(COLOURS)} d{index // len(COLOURS) % len(DASHES)}"


def swatch(index: int) -> Html:
    """A short line in an algorithm's colour and dash."""
    line = tag("line", class_=f"stroke {look(index)}", x1=0, x2=24, y1=5, y2=5)
    return tag("svg", line, class_=f"swatch {look(index)}", viewBox="0 0 24 10", aria_hidden="true")


def interval_picture(summary: ReportSummary, name: str, estimate: Estimate, scale: Sequence[float]) -> Html:
    """The interval as a bar and the estimate as a mark, on a scale that all rows share."""
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
    """A command that the script adds a copy button to."""
    box = tag("div", tag("pre", command, class_="command"), class_="copied")
    return join(tag("h4", label), box) if label else box


def shaded_cell(share: float, content: object, *, half: bool) -> Html:
    """A cell with one of eleven shades, from none to blue; with `half`, from orange at 0 to blue at 1, none at 0.5."""
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
