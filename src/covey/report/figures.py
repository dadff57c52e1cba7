"""The figures of a report, as wide as a column of a paper: `draw_figures(summary, folder, formats)`.

    aggregate_intervals           IQM, median, mean and optimality gap of every algorithm
    performance_profiles          share of runs above each score
    probability_of_improvement    how likely a run of one algorithm beats one of another
    sample_efficiency_frames      IQM over training, by frames; …_seconds by the clock
    task_curves, task_NAME        the metric over training, all tasks in one figure and each alone

An algorithm has the same colour in all of them, and beyond seven algorithms also a dash of its own. Every figure says
below it what the scores are relative to, over how many seeds, and what its intervals are.
"""

from __future__ import annotations

import functools
import math
import os
import textwrap
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from covey.report import text
from covey.report.summary import Curve, Normalisation, Profile, ReportSummary, Scale, TaskCurves
from covey.report.tables import AGGREGATES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = ("png", "svg", "pdf")

# Told apart with every common kind of colour blindness, and in grey by their order of lightness as far as seven can be.
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


def draw_figures(
    summary: ReportSummary,
    folder: Path,
    formats: Sequence[str] = FORMATS,
    say: Callable[[str], None] = lambda message: None,
) -> list[Path]:
    """Draws what the runs suffice for, in every format; returns the files. `say` is told what comes."""
    import matplotlib

    folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # a name in a script that the font lacks
        for name, draw in _figures(summary):
            say(f"drawing {name}")
            written.extend(_save(draw(), folder, name, formats))
    return written


def _figures(summary: ReportSummary) -> Iterator[tuple[str, Callable[[], Figure]]]:
    if summary.aggregates:
        yield "aggregate_intervals", functools.partial(draw_aggregates, summary)
    if summary.profiles:
        yield "performance_profiles", functools.partial(draw_profiles, summary)
    if summary.improvements:
        yield "probability_of_improvement", functools.partial(draw_improvements, summary)
    for unit, curves in (("frames", summary.curves_by_frames), ("seconds", summary.curves_by_seconds)):
        if _drawable(curves):
            yield f"sample_efficiency_{unit}", functools.partial(draw_efficiency, summary, curves, unit)
    tasks = [task for task in summary.task_curves if _drawable(task.by_frames)]
    if len(tasks) > 1:
        yield "task_curves", functools.partial(draw_tasks, summary, tasks)
    names: list[str] = []
    for task in tasks:
        names.append(text.file_stem(f"task_{task.task}", names))
        yield names[-1], functools.partial(draw_task, summary, task)


def _drawable(curves: Sequence[Curve]) -> bool:
    return any(np.isfinite(curve.y.value).any() for curve in curves)


def _save(figure: Figure, folder: Path, name: str, formats: Sequence[str]) -> Iterator[Path]:
    # Laying out and measuring take much of the time, so they are done once for all formats.
    if figure.get_layout_engine() is not None:
        figure.draw_without_rendering()
        figure.set_layout_engine("none")
    box = figure.get_tightbbox().padded(0.03)
    undated: dict[str, dict[str, Any]] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
    for suffix in formats:
        path = folder / f"{name}.{suffix}"
        temporary = path.with_name(f".{path.name}.tmp")
        figure.savefig(temporary, format=suffix, dpi=300, bbox_inches=box, metadata=undated.get(suffix))
        os.replace(temporary, path)
        yield path


# --------------------------------------------------------------------------------------------------------- figures


def draw_aggregates(summary: ReportSummary) -> Figure:
    """Two by two panels: a bar for the interval, a line at the estimate."""
    rows = len(summary.aggregates)
    figure = _figure(COLUMN_INCHES, 2 * (0.16 * rows + 0.42))
    panels = figure.subplots(2, 2, sharey=True)
    for panel, (title, field) in zip(panels.flat, AGGREGATES, strict=True):
        for row, aggregate in enumerate(summary.aggregates):
            colour, _ = _look(summary, aggregate.algorithm)
            _interval(panel, row, getattr(aggregate, field), colour)
        panel.set_title(f"{title} {'←' if field == 'optimality_gap' else '→'}")
        panel.set_yticks(range(rows), [_label(summary, a.algorithm) for a in summary.aggregates])
        panel.set_ylim(rows - 0.5, -0.5)
        panel.grid(axis="y", visible=False)
        panel.tick_params(axis="y", length=0)
        _few_ticks(panel, 3)
        panel.margins(x=0.08)
        panel.use_sticky_edges = False
    _note(figure, f"{_scores_note(summary)} Bars: {_bootstrap(summary.options.repetitions)} Arrows point to better.")
    return figure


def draw_profiles(summary: ReportSummary) -> Figure:
    figure, panel = _single()
    for profile in summary.profiles:
        _line(summary, panel, profile.algorithm, profile.thresholds, profile.share)
    panel.set_ylim(-0.02, 1.02)
    panel.set_xlabel(f"score τ {_unit_of_scores(summary)}")
    panel.set_ylabel("share of runs with score > τ")
    rows = _legend(figure, summary, summary.profiles)
    _note(figure, f"{_scores_note(summary)} Bands: {_bootstrap(summary.options.improvement_repetitions)}", rows)
    return figure


def draw_improvements(summary: ReportSummary) -> Figure:
    """A row per pair, the first algorithm's name on the left and the second's on the right."""
    pairs = summary.improvements
    figure = _figure(COLUMN_INCHES, 0.17 * len(pairs) + 0.6)
    panel = figure.subplots()
    for row, pair in enumerate(pairs):
        _interval(panel, row, pair.probability, _look(summary, pair.first)[0])
    panel.axvline(0.5, color=GREY, linewidth=0.8, linestyle="--", zorder=1)
    panel.set_yticks(range(len(pairs)), [_label(summary, pair.first) for pair in pairs])
    panel.set_ylim(len(pairs) - 0.5, -0.5)
    panel.set_xlim(-0.02, 1.02)
    panel.set_xlabel("P(left beats right)")
    panel.grid(axis="y", visible=False)
    panel.tick_params(axis="y", length=0)
    opposite = panel.twinx()
    opposite.set_yticks(range(len(pairs)), [_label(summary, pair.second) for pair in pairs])
    opposite.set_ylim(panel.get_ylim())
    opposite.grid(visible=False)
    opposite.tick_params(axis="y", length=0)
    tasks = text.span([len(pair.tasks) for pair in pairs])
    bars = _bootstrap(summary.options.improvement_repetitions)
    _note(figure, f"Mean over {tasks} tasks, {_seeds(summary)}; ranks need no normalisation. Bars: {bars}")
    return figure


def draw_efficiency(summary: ReportSummary, curves: Sequence[Curve], unit: str) -> Figure:
    figure, panel = _single()
    for curve in curves:
        _line(summary, panel, curve.algorithm, curve.x, curve.y)
    _limit(panel, curves)
    panel.set_xlabel(_x_label(unit))
    panel.set_ylabel(f"IQM score {_unit_of_scores(summary)}")
    _thousands(panel)
    rows = _legend(figure, summary, curves)
    _note(figure, f"{_scores_note(summary)} Bands: {_bootstrap(summary.options.curve_repetitions)}", rows)
    return figure


def draw_task(summary: ReportSummary, task: TaskCurves) -> Figure:
    figure, panel = _single(right=0.84)
    scale = summary.scale(task.task)
    _draw_task_panel(summary, panel, task, scale, labels=True)
    panel.set_xlabel(_x_label("frames"))
    panel.set_ylabel(_metric(summary))
    rows = _legend(figure, summary, task.by_frames)
    seeds = text.span([len(curve.seeds) for curve in task.by_frames])
    note = f"Not normalised. Mean over {seeds} seeds; 95% intervals by Student's t. {_sources([scale])}"
    _note(figure, note, rows)
    return figure


def draw_tasks(summary: ReportSummary, tasks: Sequence[TaskCurves]) -> Figure:
    """All tasks in one figure, three abreast."""
    columns = 2 if len(tasks) in (2, 4) else 3
    rows = math.ceil(len(tasks) / columns)
    figure = _figure(PAGE_INCHES, 1.75 * rows + 0.3)
    panels = list(figure.subplots(rows, columns, squeeze=False).flat)
    scales = [summary.scale(task.task) for task in tasks]
    for panel, task, scale in zip(panels, tasks, scales, strict=False):
        _draw_task_panel(summary, panel, task, scale, labels=False)
    for panel in panels[len(tasks) :]:
        panel.remove()
    figure.supxlabel(_x_label("frames"), fontsize=STYLE["axes.labelsize"])
    figure.supylabel(_metric(summary), fontsize=STYLE["axes.labelsize"])
    legend_rows = _legend(figure, summary, [curve for task in tasks for curve in task.by_frames])
    seeds = text.span([len(curve.seeds) for task in tasks for curve in task.by_frames])
    note = f"Not normalised. Mean over {seeds} seeds; 95% intervals by Student's t. {_sources(scales)}"
    _note(figure, note, legend_rows)
    return figure


# ---------------------------------------------------------------------------------------------------------- pieces


def _figure(width: float, height: float) -> Figure:
    """For several panels, or names of any length beside them."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _single(right: float = 0.985) -> tuple[Figure, Axes]:
    """One panel over numbers: what stands beside it is known, and need not be laid out."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(COLUMN_INCHES, 2.2))
    return figure, figure.add_axes((0.14, 0.165, right - 0.14, 0.74))


def _look(summary: ReportSummary, algorithm: str) -> tuple[str, Any]:
    """An algorithm's colour and dash."""
    round_, place = divmod(summary.algorithms.index(algorithm), len(COLOURS))
    return COLOURS[place], DASHES[round_ % len(DASHES)]


def _line(summary: ReportSummary, panel: Axes, algorithm: str, x: np.ndarray, y: Any) -> None:
    colour, dash = _look(summary, algorithm)
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


def _interval(panel: Axes, row: int, estimate: Any, colour: str) -> None:
    if math.isfinite(estimate.low) and math.isfinite(estimate.high):
        panel.barh(row, estimate.high - estimate.low, left=estimate.low, height=0.55, color=colour, alpha=0.45)
    panel.vlines(estimate.value, row - 0.36, row + 0.36, color=colour, linewidth=1.6)


def _draw_task_panel(summary: ReportSummary, panel: Axes, task: TaskCurves, scale: Scale, *, labels: bool) -> None:
    for curve in task.by_frames:
        _line(summary, panel, curve.algorithm, curve.x, curve.y)
    _limit(panel, task.by_frames, [value for _, value in _levels(scale)])
    panel.set_title(_plain(text.shorten(task.task, 40)))
    _few_ticks(panel, 5)
    _thousands(panel)
    low, high = panel.get_ylim()
    shown = [(name, value) for name, value in _levels(scale) if low <= value <= high]
    for name, value in shown:
        style = ":" if name == "random" else (0, (5, 2))
        panel.axhline(value, color=GREY, linewidth=0.8, linestyle=style, zorder=1)
    # A label's height as a share of the panel's: small panels hold fewer.
    apart = (high - low) * (0.055 if labels else 0.09)
    shown = shown[: 9 if labels else 4]
    for (name, _), height in zip(shown, spread([value for _, value in shown], apart, low, high), strict=True):
        panel.annotate(
            _plain(text.shorten(name, LONGEST_NAME)),
            (1.01, height),
            xycoords=panel.get_yaxis_transform(),
            fontsize=5.5,
            color=GREY,
            va="center",
            annotation_clip=False,
        )


def _levels(scale: Scale) -> list[tuple[str, float]]:
    """What is drawn as lines: the random team, and what else there is to compare with, the best first."""
    levels = [("random", scale.random)] if scale.random is not None else []
    return levels + [(reference.algorithm, reference.value) for reference in scale.references]


def spread(heights: Sequence[float], apart: float, low: float, high: float) -> list[float]:
    """`heights` moved as little as keeps them `apart`, in their order; between `low` and `high` as far as they fit.

    Heights that are too close form a block around their mean; a block that then touches the next one joins it.
    """
    order = sorted(range(len(heights)), key=heights.__getitem__)
    blocks: list[list[float]] = []  # of each height, where it would have its block begin
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


def _limit(panel: Axes, curves: Sequence[Curve], levels: Sequence[float] = ()) -> None:
    """Shows every mean, intervals as far as they do not flatten the means, and levels that are not far off."""
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
    return values[np.isfinite(values)]


def _few_ticks(panel: Axes, number: int) -> None:
    from matplotlib.ticker import MaxNLocator

    panel.xaxis.set_major_locator(MaxNLocator(number, steps=[1, 2, 5, 10]))


def _thousands(panel: Axes) -> None:
    """50k, 2.5M instead of a power of ten beside the axis."""
    from matplotlib.ticker import FuncFormatter

    panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: short_number(value)))


def short_number(value: float) -> str:
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"


def _legend(figure: Figure, summary: ReportSummary, drawn: Sequence[Curve | Profile]) -> int:
    """Below all panels; each algorithm once, in as many columns as their names leave room for. Returns its rows."""
    from matplotlib.lines import Line2D

    shown = {line.algorithm for line in drawn}
    algorithms = [name for name in summary.algorithms if name in shown]
    names = [_label(summary, name) for name in algorithms]
    handles = [Line2D([], [], color=colour, linestyle=dash) for colour, dash in (_look(summary, n) for n in algorithms)]
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
        place.set_text(name)  # afterwards: given as a label, a name that begins with _ would be left out
    return math.ceil(len(names) / columns)


def _note(figure: Figure, note: str, legend_rows: int = 0) -> None:
    """Small print under the figure and its legend; saving with a tight box makes room for both."""
    width = int(figure.get_figwidth() * NOTE_CHARACTERS_PER_INCH)
    lines = textwrap.wrap(_plain(" ".join(note.split())), width)
    below = 0.04 + (0.1 + 0.135 * legend_rows if legend_rows else 0.0)  # inches
    place = (0.01, -below / figure.get_figheight())
    figure.text(*place, "\n".join(lines), fontsize=5.2, color=GREY, va="top", linespacing=1.3)


def _scores_note(summary: ReportSummary) -> str:
    tasks = text.count(len(summary.aggregate_tasks), "task")
    few = " Few seeds: intervals are too narrow." if summary.seeds_text else ""
    failed = " Runs that failed count by their last evaluations." if any(f.failed for f in summary.finals) else ""
    return f"{summary.scale_text} {tasks}, {_seeds(summary)}.{few}{failed}"


def _bootstrap(repetitions: int) -> str:
    return f"95% intervals, stratified bootstrap with {repetitions:,} repetitions."


def _seeds(summary: ReportSummary) -> str:
    seeds = [len(final.seeds) for final in summary.finals]
    return f"{text.span(seeds)} {'seed' if set(seeds) == {1} else 'seeds'} per task"


def _sources(scales: Sequence[Scale]) -> str:
    """Where the dashed lines come from, each source once with its results where one task is shown."""
    by_source: dict[str, list[str]] = {}
    for scale in scales:
        for reference in scale.references:
            value = f"{reference.algorithm} {reference.value:g}" if len(scales) == 1 else ""
            by_source.setdefault(reference.source, []).append(value)
    random = "Dotted: a random team. " if any(scale.random is not None for scale in scales) else ""
    listed = "; ".join(
        f"{', '.join(filter(None, values))}: {source}".removeprefix(": ") for source, values in by_source.items()
    )
    return f"{random}{f'Dashed: to compare with. {listed}.' if listed else ''}"


def _unit_of_scores(summary: ReportSummary) -> str:
    return "" if summary.options.normalisation is Normalisation.none else "(normalised)"


def _metric(summary: ReportSummary) -> str:
    return _plain(f"{text.shorten(summary.metric, 30)}{f' ({summary.unit})' if summary.unit else ''}")


def _x_label(unit: str) -> str:
    return "frames" if unit == "frames" else "seconds of training"


def _label(summary: ReportSummary, algorithm: str) -> str:
    """An algorithm's name, shortened where it is long, and like no other's."""
    return _plain(text.shorten_all(summary.algorithms, LONGEST_NAME)[algorithm])


def _plain(name: str) -> str:
    """Matplotlib takes a pair of dollars for mathematics."""
    return name.replace("$", r"\$")
