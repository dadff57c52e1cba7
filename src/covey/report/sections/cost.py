"""How long runs took, and the speeds of machines."""

from __future__ import annotations

from collections.abc import Sequence

from covey.report import text
from covey.report.markup import Html, join, tag
from covey.report.pieces import algorithm_cell, command_box, note, table
from covey.report.speeds import Speed, SpeedTable, speed_tables
from covey.report.summary import Cost, ReportSummary


def show_costs(summary: ReportSummary) -> Html | None:
    """Seconds and frames per second of each algorithm on each task."""
    if not summary.costs:
        return None
    parts = ("compiling", "collecting", "updating", "training", "evaluating")
    known = [part for part in parts if any(getattr(cost, part) is not None for cost in summary.costs)]
    rows = [
        [
            cost.task,
            algorithm_cell(summary, cost.algorithm),
            *(_seconds(getattr(cost, part)) for part in known),
            *_rates(cost),
        ]
        for cost in summary.costs
    ]
    columns = ("Task", "Algorithm", *(part.capitalize() for part in known), "Frames", "Frames per second", "Device")
    unknown = [part for part in parts if part not in known]
    missing = f" These runs do not record the time of {text.name_list(unknown)}." if unknown else ""
    return join(
        note(
            "Seconds per run, averaged over seeds. Training is collecting and updating, which are one program. "
            f"Frames per second are those of training.{missing}"
        ),
        table(columns, rows, numbers=range(2, 4 + len(known))),
    )


def _seconds(value: float | None) -> str:
    return "" if value is None else text.number(value, 1)


def _rates(cost: Cost) -> list[str]:
    rate = "" if cost.frames_per_second is None else text.number(cost.frames_per_second, 0)
    return [text.number(cost.frames, 0), rate, "; ".join(cost.devices)]


def show_speeds(speeds: Sequence[Speed]) -> Html | None:
    """What `covey speed` measured on several machines, side by side."""
    if not speeds:
        return None
    return join(
        note(
            "Frames per second, as ",
            tag("code", "covey speed"),
            " measured them. What limits the speed is in brackets.",
        ),
        [_show_speed_table(found) for found in speed_tables(speeds)],
        [_show_machine(speed) for speed in speeds],
    )


def _show_speed_table(speeds: SpeedTable) -> Html:
    return join(tag("h3", speeds.heading), table(speeds.columns, speeds.rows, numbers=range(1, len(speeds.columns))))


def _show_machine(speed: Speed) -> Html:
    return join(
        tag("h3", speed.name),
        note(f"{speed.about}. Measured with {speed.measured}."),
        tag("ul", [tag("li", finding) for finding in speed.findings], class_="problems"),
        command_box(f"covey train {speed.recommendation}", "Recommended") if speed.recommendation else None,
    )
