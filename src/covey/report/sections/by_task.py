"""Results task by task: curve, final values, groups, references, tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from covey.report import text
from covey.report.markup import Html, join, tag
from covey.report.pieces import NO_BREAK, algorithm_cell, chart, describe_ends, estimate_cell, note, table
from covey.report.sections.pictures import find_pictures, show_pictures
from covey.report.summary import Comparison, Final, Normalisation, ReportSummary, Scale
from covey.report.tables import FAILED, describe_teams
from covey.report.text import SCORE_PLACES


def show_tasks(summary: ReportSummary) -> Html:
    """All tasks, one after the other."""
    pictures = find_pictures(summary.runs)
    return join(_show_task(summary, index, pictures) for index in range(len(summary.tasks)))


def _show_task(summary: ReportSummary, index: int, pictures: Mapping[tuple[str, str], bytes | Path]) -> Html:
    task, scale, curves = summary.tasks[index], summary.scales[index], summary.task_curves[index]
    finals = [final for final in summary.finals if final.task == task]
    digits = text.places([final.mean.value for final in finals])
    label = f"{summary.metric} on {task} over training. At the end: {describe_ends(curves.by_frames, digits)}."
    return join(
        tag("h3", task, id=f"task-{index}"),
        _describe_task(summary, scale),
        chart("task", label, index) if curves.by_frames or curves.by_seconds else note("No curves."),
        note(
            "These runs have few evaluations. The switch “collected” shows the returns of training episodes instead, "
            "at every iteration. They include exploration, so they are mostly lower."
        )
        if curves.collected_by_frames
        else None,
        _show_finals(summary, finals, digits),
        _show_groups(summary, task),
        _show_references(scale),
        _show_comparisons([c for c in summary.task_comparisons if c.tasks == (task,)]),
        show_pictures(summary, task, pictures),
    )


def _describe_task(summary: ReportSummary, scale: Scale) -> Html | None:
    parts = []
    if scale.returns and summary.metric.endswith("return"):
        parts.append(f"Return: {scale.returns}.")
    if summary.options.normalisation is not Normalisation.none:
        parts.append(f"Score: {scale.text}.")
    return note(" ".join(parts)) if parts else None


def _show_finals(summary: ReportSummary, finals: Sequence[Final], digits: int) -> Html:
    values = [final.mean.value if summary.higher_is_better else -final.mean.value for final in finals]
    rows = [
        [
            algorithm_cell(summary, final.algorithm),
            estimate_cell(final.mean, digits, data_field="mean", best=len(finals) > 1 and value == max(values)),
            text.number(float(final.scores.mean()), SCORE_PLACES),
            ", ".join(
                f"{seed}:{NO_BREAK}{text.number(float(v), digits)}{FAILED if seed in final.failed else ''}"
                for seed, v in zip(final.seeds, final.values, strict=True)
            ),
            f"{final.episodes} ({'absolute metric' if final.of == 'absolute' else 'last evaluations'})",
        ]
        for final, value in zip(finals, values, strict=True)
    ]
    columns = ("Algorithm", summary.metric, "Score", "By seed", "Episodes per seed")
    failed = any(final.failed for final in finals)
    return join(
        table(columns, rows, numbers=(1, 2), class_="finals"),
        note(f"{FAILED} failed: counted by its last evaluations, or by the worst value on this task if it has none.")
        if failed
        else None,
    )


def _show_groups(summary: ReportSummary, task: str) -> Html | None:
    """Each group's return, if the task's groups oppose each other."""
    if task not in summary.teams:
        return None
    groups = [group for team in summary.teams[task] for group in team]
    known = {(final.algorithm, final.group): final.mean for final in summary.group_finals if final.task == task}
    digits = text.places([mean.value for mean in known.values()])
    rows = [
        [algorithm_cell(summary, name), *(estimate_cell(known.get((name, group)), digits) for group in groups)]
        for name in summary.algorithms
        if any((name, group) in known for group in groups)
    ]
    return join(
        note(
            f"Groups oppose each other: {describe_teams(summary.teams[task])}. Groups that learned against different "
            "opponents are hard to compare; ",
            tag("code", f"covey evaluate RUN opponents.{groups[-1]}=random"),
            " plays a run against fixed opponents.",
        ),
        table(("Return of", *groups), rows, numbers=range(1, 1 + len(groups)), class_="groups"),
    )


def _show_references(scale: Scale) -> Html | None:
    if not scale.references:
        return None
    rows = [
        [
            r.algorithm,
            f"{r.value:g}",
            "" if r.frames is None else f"{r.frames:,}",
            join(r.source, tag("div", f"{r.definition}{f'; {r.note}' if r.note else ''}", class_="note")),
        ]
        for r in scale.references
    ]
    columns = ("Result", "Value", "Frames", "Source")
    heading = f"{text.count(len(rows), 'result')} to compare with (dashed lines)"
    return tag("details", tag("summary", heading), table(columns, rows, numbers=(1, 2)))


def _show_comparisons(comparisons: Sequence[Comparison]) -> Html | None:
    if not comparisons:
        return None
    rows = [
        [
            c.first,
            c.second,
            text.number(c.probability.value, 2),
            text.probability(c.p_value),
            text.probability(c.p_corrected),
            text.probability(c.smallest_p),
        ]
        for c in comparisons
    ]
    columns = ("First", "Second", "P(first beats second)", "p", "p, corrected", "Smallest possible p")
    return tag(
        "details", tag("summary", "Tests of every pair on this task"), table(columns, rows, numbers=(2, 3, 4, 5))
    )
