"""The figures of a report, as wide as a column of a paper: `draw_figures(summary, folder, formats)`.

    aggregate_intervals           IQM, median, mean and optimality gap of every algorithm
    performance_profiles          share of runs above each score
    probability_of_improvement    how likely a run of one algorithm beats one of another
    sample_efficiency_frames      IQM over training, by frames; …_seconds by the clock
    task_curves, task_NAME        the metric over training, all tasks in one figure and each alone

An algorithm looks the same in all of them. The note under a figure states what scores are relative to, how many seeds
there are, and what the intervals are. `drawing.py` has the lines, legends and notes.
"""

from __future__ import annotations

import functools
import math
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from covey.report import text
from covey.report.drawing import (
    COLUMN_INCHES,
    GREY,
    LONGEST_NAME,
    PAGE_INCHES,
    STYLE,
    draw_interval,
    draw_legend,
    draw_line,
    draw_note,
    escape_mathtext,
    label_of,
    limit_y,
    look_of,
    make_figure,
    make_single_panel,
    spread,
    use_few_ticks,
    use_short_numbers,
)
from covey.report.summary import Curve, Normalisation, ReportSummary, Scale, TaskCurves
from covey.report.tables import AGGREGATES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = ("png", "svg", "pdf")


def draw_figures(
    summary: ReportSummary,
    folder: Path,
    formats: Sequence[str] = FORMATS,
    say: Callable[[str], None] = lambda message: None,
) -> list[Path]:
    """Draws every figure that the runs suffice for, in every format; returns the files. `say` receives progress."""
    import matplotlib

    folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # the font lacks some scripts
        for name, draw in list_figures(summary):
            say(f"drawing {name}")
            written.extend(_save(draw(), folder, name, formats))
    return written


def list_figures(summary: ReportSummary) -> Iterator[tuple[str, Callable[[], Figure]]]:
    """The name of each figure that the runs suffice for, and the function that draws it."""
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
    # Laying out and measuring take most of the time, so they are done once for all formats.
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


def draw_aggregates(summary: ReportSummary) -> Figure:
    """IQM, median, mean and optimality gap in four panels: a bar for the interval, a mark at the estimate."""
    rows = len(summary.aggregates)
    figure = make_figure(COLUMN_INCHES, 2 * (0.16 * rows + 0.42))
    panels = figure.subplots(2, 2, sharey=True)
    for panel, (title, field) in zip(panels.flat, AGGREGATES, strict=True):
        for row, aggregate in enumerate(summary.aggregates):
            colour, _ = look_of(summary, aggregate.algorithm)
            draw_interval(panel, row, getattr(aggregate, field), colour)
        panel.set_title(f"{title} {'←' if field == 'optimality_gap' else '→'}")
        panel.set_yticks(range(rows), [label_of(summary, a.algorithm) for a in summary.aggregates])
        panel.set_ylim(rows - 0.5, -0.5)
        panel.grid(axis="y", visible=False)
        panel.tick_params(axis="y", length=0)
        use_few_ticks(panel, 3)
        panel.margins(x=0.08)
        panel.use_sticky_edges = False
    draw_note(
        figure,
        f"{_describe_scores(summary)} Bars: {_describe_bootstrap(summary.options.repetitions)} Arrows point to better.",
    )
    return figure


def draw_profiles(summary: ReportSummary) -> Figure:
    """Performance profiles of all algorithms."""
    figure, panel = make_single_panel()
    for profile in summary.profiles:
        draw_line(summary, panel, profile.algorithm, profile.thresholds, profile.share)
    panel.set_ylim(-0.02, 1.02)
    panel.set_xlabel(f"score τ {_score_unit(summary)}")
    panel.set_ylabel("share of runs with score > τ")
    rows = draw_legend(figure, summary, summary.profiles)
    draw_note(
        figure,
        f"{_describe_scores(summary)} Bands: {_describe_bootstrap(summary.options.improvement_repetitions)}",
        rows,
    )
    return figure


def draw_improvements(summary: ReportSummary) -> Figure:
    """The probability of improvement of each pair, with the first algorithm on the left and the second on the right."""
    pairs = summary.improvements
    figure = make_figure(COLUMN_INCHES, 0.17 * len(pairs) + 0.6)
    panel = figure.subplots()
    for row, pair in enumerate(pairs):
        draw_interval(panel, row, pair.probability, look_of(summary, pair.first)[0])
    panel.axvline(0.5, color=GREY, linewidth=0.8, linestyle="--", zorder=1)
    panel.set_yticks(range(len(pairs)), [label_of(summary, pair.first) for pair in pairs])
    panel.set_ylim(len(pairs) - 0.5, -0.5)
    panel.set_xlim(-0.02, 1.02)
    panel.set_xlabel("P(left beats right)")
    panel.grid(axis="y", visible=False)
    panel.tick_params(axis="y", length=0)
    opposite = panel.twinx()
    opposite.set_yticks(range(len(pairs)), [label_of(summary, pair.second) for pair in pairs])
    opposite.set_ylim(panel.get_ylim())
    opposite.grid(visible=False)
    opposite.tick_params(axis="y", length=0)
    tasks = text.span([len(pair.tasks) for pair in pairs])
    bars = _describe_bootstrap(summary.options.improvement_repetitions)
    draw_note(figure, f"Mean over {tasks} tasks, {_count_seeds(summary)}; ranks need no normalisation. Bars: {bars}")
    return figure


def draw_efficiency(summary: ReportSummary, curves: Sequence[Curve], unit: str) -> Figure:
    """IQM of scores over training; `unit` of the x axis is "frames" or "seconds"."""
    figure, panel = make_single_panel()
    for curve in curves:
        draw_line(summary, panel, curve.algorithm, curve.x, curve.y)
    limit_y(panel, curves)
    panel.set_xlabel(_x_label(unit))
    panel.set_ylabel(f"IQM score {_score_unit(summary)}")
    use_short_numbers(panel)
    rows = draw_legend(figure, summary, curves)
    draw_note(
        figure, f"{_describe_scores(summary)} Bands: {_describe_bootstrap(summary.options.curve_repetitions)}", rows
    )
    return figure


def draw_task(summary: ReportSummary, task: TaskCurves) -> Figure:
    """The metric over training on one task."""
    figure, panel = make_single_panel(right=0.84)
    scale = summary.scale(task.task)
    draw_task_panel(summary, panel, task, scale, labels=True)
    panel.set_xlabel(_x_label("frames"))
    panel.set_ylabel(_metric_label(summary))
    rows = draw_legend(figure, summary, task.by_frames)
    seeds = text.span([len(curve.seeds) for curve in task.by_frames])
    note = f"Not normalised. Mean over {seeds} seeds; 95% intervals by Student's t. {_describe_sources([scale])}"
    draw_note(figure, note, rows)
    return figure


def draw_tasks(summary: ReportSummary, tasks: Sequence[TaskCurves]) -> Figure:
    """The metric over training on all tasks, up to three side by side."""
    columns = 2 if len(tasks) in (2, 4) else 3
    rows = math.ceil(len(tasks) / columns)
    figure = make_figure(PAGE_INCHES, 1.75 * rows + 0.3)
    panels = list(figure.subplots(rows, columns, squeeze=False).flat)
    scales = [summary.scale(task.task) for task in tasks]
    for panel, task, scale in zip(panels, tasks, scales, strict=False):
        draw_task_panel(summary, panel, task, scale, labels=False)
    for panel in panels[len(tasks) :]:
        panel.remove()
    figure.supxlabel(_x_label("frames"), fontsize=STYLE["axes.labelsize"])
    figure.supylabel(_metric_label(summary), fontsize=STYLE["axes.labelsize"])
    legend_rows = draw_legend(figure, summary, [curve for task in tasks for curve in task.by_frames])
    seeds = text.span([len(curve.seeds) for task in tasks for curve in task.by_frames])
    note = f"Not normalised. Mean over {seeds} seeds; 95% intervals by Student's t. {_describe_sources(scales)}"
    draw_note(figure, note, legend_rows)
    return figure


def draw_task_panel(summary: ReportSummary, panel: Axes, task: TaskCurves, scale: Scale, *, labels: bool) -> None:
    """One task's curves, with lines for the random team and the references. `labels` leaves room for more names."""
    for curve in task.by_frames:
        draw_line(summary, panel, curve.algorithm, curve.x, curve.y)
    limit_y(panel, task.by_frames, [value for _, value in _levels(scale)])
    panel.set_title(escape_mathtext(text.shorten(task.task, 40)))
    use_few_ticks(panel, 5)
    use_short_numbers(panel)
    low, high = panel.get_ylim()
    shown = [(name, value) for name, value in _levels(scale) if low <= value <= high]
    for name, value in shown:
        style = ":" if name == "random" else (0, (5, 2))
        panel.axhline(value, color=GREY, linewidth=0.8, linestyle=style, zorder=1)
    # The height of a label as a share of the panel's height. Small panels hold fewer labels.
    apart = (high - low) * (0.055 if labels else 0.09)
    shown = shown[: 9 if labels else 4]
    for (name, _), height in zip(shown, spread([value for _, value in shown], apart, low, high), strict=True):
        panel.annotate(
            escape_mathtext(text.shorten(name, LONGEST_NAME)),
            (1.01, height),
            xycoords=panel.get_yaxis_transform(),
            fontsize=5.5,
            color=GREY,
            va="center",
            annotation_clip=False,
        )


def _levels(scale: Scale) -> list[tuple[str, float]]:
    """The levels drawn as lines: the random team, then the references, best first."""
    levels = [("random", scale.random)] if scale.random is not None else []
    return levels + [(reference.algorithm, reference.value) for reference in scale.references]


def _describe_scores(summary: ReportSummary) -> str:
    tasks = text.count(len(summary.aggregate_tasks), "task")
    few = " Few seeds: intervals are too narrow." if summary.seeds_text else ""
    failed = " Runs that failed count by their last evaluations." if any(f.failed for f in summary.finals) else ""
    return f"{summary.scale_text} {tasks}, {_count_seeds(summary)}.{few}{failed}"


def _describe_bootstrap(repetitions: int) -> str:
    return f"95% intervals, stratified bootstrap with {repetitions:,} repetitions."


def _count_seeds(summary: ReportSummary) -> str:
    seeds = [len(final.seeds) for final in summary.finals]
    return f"{text.span(seeds)} {'seed' if set(seeds) == {1} else 'seeds'} per task"


def _describe_sources(scales: Sequence[Scale]) -> str:
    """The sources of the dashed lines, each once; with their values if only one task is shown."""
    by_source: dict[str, list[str]] = {}
    for scale in scales:
        for reference in scale.references:
            value = f"{reference.algorithm} {reference.value:g}" if len(scales) == 1 else ""
            by_source.setdefault(reference.source, []).append(value)
    random = "Dotted: a random team. " if any(scale.random is not None for scale in scales) else ""
    listed = "; ".join(
        f"{', '.join(filter(None, values))}: {source}".removeprefix(": ") for source, values in by_source.items()
    )
    return f"{random}{f'Dashed: references. {listed}.' if listed else ''}"


def _score_unit(summary: ReportSummary) -> str:
    return "" if summary.options.normalisation is Normalisation.none else "(normalised)"


def _metric_label(summary: ReportSummary) -> str:
    return escape_mathtext(f"{text.shorten(summary.metric, 30)}{f' ({summary.unit})' if summary.unit else ''}")


def _x_label(unit: str) -> str:
    return "frames" if unit == "frames" else "seconds of training"
