"""What the figures are drawn with: style, colours, lines, intervals, legends and notes."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from covey.report import text
from covey.report.statistics import Band, Estimate
from covey.report.summary import Curve, Profile, ReportSummary

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Distinct with every common kind of colour blindness, and in grey by lightness, as far as seven colours can be.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b8860b", "#4aa3df", "#707070")
DASHES: tuple[Any, ...] = ("-", (0, (4, 1.5)), (0, (1, 1.2)), (0, (5, 1, 1, 1)))
COLUMN_INCHES = 3.4
PAGE_INCHES = 6.9
NOTE_CHARACTERS_PER_INCH = 25
LONGEST_NAME = 26
GREY = "#6e6e6e"
STYLE: Any = {  # matplotlib's parameters
    "font.family": "DejaVu Sans",
    "font.size": 7.5,
    "axes.titlesize": 7.5,
    "axes.labelsize": 7.5,
    "xtick.labelsize": 6.5,
    "ytick.labelsize": 6.5,
    "legend.fontsize": 6.5,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "axes.edgecolor": "#444444",
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.formatter.limits": (-4, 6),
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.5,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "lines.linewidth": 1.3,
    "svg.hashsalt": "covey",  # the same figure is the same file
    "pdf.fonttype": 42,  # text stays text
}


def make_figure(width: float, height: float) -> Figure:
    """A figure for several panels, or with names of any length beside them."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def make_single_panel(right: float = 0.985) -> tuple[Figure, Axes]:
    """A figure with one panel. Its margins are known, so it needs no layout."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(COLUMN_INCHES, 2.2))
    return figure, figure.add_axes((0.14, 0.165, right - 0.14, 0.74))


def look_of(summary: ReportSummary, algorithm: str) -> tuple[str, Any]:
    """An algorithm's colour and dash."""
    round_, place = divmod(summary.algorithms.index(algorithm), len(COLOURS))
    return COLOURS[place], DASHES[round_ % len(DASHES)]


def label_of(summary: ReportSummary, algorithm: str) -> str:
    """An algorithm's name, shortened if it is long, and different from every other label."""
    return escape_mathtext(text.shorten_all(summary.algorithms, LONGEST_NAME)[algorithm])


def escape_mathtext(name: str) -> str:
    """Escapes dollars: Matplotlib reads text between two of them as mathematics."""
    return name.replace("$", r"\$")


def draw_line(summary: ReportSummary, panel: Axes, algorithm: str, x: np.ndarray, y: Band) -> None:
    """An algorithm's line over x [P], with the band around it."""
    colour, dash = look_of(summary, algorithm)
    panel.plot(
        x,
        y.value,
        color=colour,
        linestyle=dash,
        label=algorithm,
        marker="o" if len(x) == 1 else None,
        markersize=3,
    )
    panel.fill_between(x, y.low, y.high, color=colour, alpha=0.15, linewidth=0)


def draw_interval(panel: Axes, row: int, estimate: Estimate, colour: str) -> None:
    """A bar for the interval and a mark at the estimate, in one row of a panel."""
    if math.isfinite(estimate.low) and math.isfinite(estimate.high):
        panel.barh(row, estimate.high - estimate.low, left=estimate.low, height=0.55, color=colour, alpha=0.45)
    panel.vlines(estimate.value, row - 0.36, row + 0.36, color=colour, linewidth=1.6)


def draw_legend(figure: Figure, summary: ReportSummary, drawn: Sequence[Curve | Profile]) -> int:
    """Draws the legend below all panels, in as many columns as fit. Returns its number of rows."""
    from matplotlib.lines import Line2D

    shown = {line.algorithm for line in drawn}
    algorithms = [name for name in summary.algorithms if name in shown]
    names = [label_of(summary, name) for name in algorithms]
    handles = [
        Line2D([], [], color=colour, linestyle=dash) for colour, dash in (look_of(summary, n) for n in algorithms)
    ]
    columns = max(1, min(len(names), int(figure.get_figwidth() * 19 / (max(map(len, names)) + 7))))
    legend = figure.legend(
        handles,
        ["" for _ in names],
        loc="upper center",
        bbox_to_anchor=(0.5, 0.0),
        ncols=columns,
        handlelength=2.2,
        borderaxespad=0.2,
    )
    for place, name in zip(legend.get_texts(), names, strict=True):
        place.set_text(name)  # set afterwards: Matplotlib leaves out labels that begin with _
    return math.ceil(len(names) / columns)


def draw_note(figure: Figure, note: str, legend_rows: int = 0) -> None:
    """Draws small print under the figure and its legend. Saving with a tight box makes room for both."""
    width = int(figure.get_figwidth() * NOTE_CHARACTERS_PER_INCH)
    lines = textwrap.wrap(escape_mathtext(" ".join(note.split())), width)
    below = 0.04 + (0.1 + 0.135 * legend_rows if legend_rows else 0.0)  # inches
    place = (0.01, -below / figure.get_figheight())
    figure.text(*place, "\n".join(lines), fontsize=5.2, color=GREY, va="top", linespacing=1.3)


def limit_y(panel: Axes, curves: Sequence[Curve], levels: Sequence[float] = ()) -> None:
    """Limits the y axis to every mean, intervals unless they would flatten the means, and levels that are near."""
    values = _finite([curve.y.value for curve in curves])
    low, high = float(values.min()), float(values.max())
    room = max(high - low, 0.02 * max(abs(low), abs(high)), 1e-9)
    edges = _finite([edge for curve in curves for edge in (curve.y.low, curve.y.high)])
    seen = [low, high, *np.clip(edges, low - 0.6 * room, high + 0.6 * room)]
    seen += [level for level in levels if low - room <= level <= high + room]
    margin = 0.04 * max(max(seen) - min(seen), room)
    panel.set_ylim(min(seen) - margin, max(seen) + margin)


def _finite(arrays: Sequence[np.ndarray]) -> np.ndarray:
    values = np.concatenate(arrays)
    finite: np.ndarray = values[np.isfinite(values)]
    return finite


def use_few_ticks(panel: Axes, number: int) -> None:
    """At most about `number` ticks on the x axis."""
    from matplotlib.ticker import MaxNLocator

    panel.xaxis.set_major_locator(MaxNLocator(number, steps=[1, 2, 5, 10]))


def use_short_numbers(panel: Axes) -> None:
    """Labels the x axis 50k or 2.5M, without a power of ten beside it."""
    from matplotlib.ticker import FuncFormatter

    panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: short_number(value)))


def short_number(value: float) -> str:
    """`950`, `50k`, `2.5M`, `3G`."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"


def spread(heights: Sequence[float], apart: float, low: float, high: float) -> list[float]:
    """Moves `heights` as little as possible so that they are `apart`, and between `low` and `high` if they fit.

    Heights that are too close form a block around their mean; a block that then touches the next one joins it.
    """
    order = sorted(range(len(heights)), key=heights.__getitem__)
    blocks: list[list[float]] = []  # for each height, where its block would begin
    for place, index in enumerate(order):
        blocks.append([heights[index] - place * apart])
        while len(blocks) > 1 and np.mean(blocks[-2]) > np.mean(blocks[-1]):
            blocks[-2:] = [blocks[-2] + blocks[-1]]
    starts = [float(np.mean(block)) for block in blocks for _ in block]
    highest = high - (len(order) - 1) * apart
    moved = [0.0] * len(order)
    for place, index in enumerate(order):
        moved[index] = max(min(starts[place], highest), low) + place * apart
    return moved
