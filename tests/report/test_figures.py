"""Figures: which runs suffice for which, the notes under them, and the lines in them."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from importlib.resources import files
from pathlib import Path
from typing import Any

import made
import matplotlib
import numpy as np
import pytest
from PIL import Image

from covey.report import drawing, figures
from covey.report.runs import read_runs
from covey.report.summary import Normalisation, ReportSummary, SummaryOptions, summarise

QUICK: dict[str, Any] = {"repetitions": 200, "curve_repetitions": 100, "improvement_repetitions": 100}


def summary_of(folder: Path, **options: Any) -> ReportSummary:
    runs, problems = read_runs([folder])
    return summarise(runs, problems, SummaryOptions(**QUICK | options))


@pytest.fixture(scope="module")
def summary(tmp_path_factory: pytest.TempPathFactory) -> ReportSummary:
    return summary_of(made.write_benchmark(tmp_path_factory.mktemp("figures") / "bench"))


def note_of(figure: Any) -> str:
    """The small print under a figure, on one line."""
    return " ".join(figure.texts[-1].get_text().split())


ALL = {
    "aggregate_intervals",
    "performance_profiles",
    "probability_of_improvement",
    "sample_efficiency_frames",
    "sample_efficiency_seconds",
    "task_curves",
    "task_vmas-balance",
    "task_vmas-navigation",
}


def test_all_figures_are_drawn_as_wide_as_a_column(summary: ReportSummary, tmp_path: Path) -> None:
    told: list[str] = []
    written = figures.draw_figures(summary, tmp_path, ["png"], told.append)
    assert set(told) == {f"drawing {name}" for name in ALL}
    assert (
        {path.name for path in written} == {f"{name}.png" for name in ALL} == {path.name for path in tmp_path.iterdir()}
    )
    for path in written:
        with Image.open(path) as image:
            wide = path.stem == "task_curves"
            assert (1900 if wide else 900) < image.width < (2200 if wide else 1150), path.name
            assert len(image.convert("L").getcolors() or ()) > 20  # not empty


def test_all_formats_and_the_same_figure_is_the_same_file(
    summary: ReportSummary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = [("performance_profiles", lambda: figures.draw_profiles(summary))]
    monkeypatch.setattr(figures, "list_figures", lambda s: one)
    first, second = (figures.draw_figures(summary, tmp_path / name) for name in ("a", "b"))
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    contents = {path.name: path.read_bytes() for path in first}
    assert contents["performance_profiles.png"].startswith(b"\x89PNG")
    assert contents["performance_profiles.pdf"].startswith(b"%PDF")
    assert ElementTree.fromstring(contents["performance_profiles.svg"]).tag.endswith("svg")


@pytest.mark.parametrize(
    ("normalisation", "words"),
    [
        (Normalisation.anchors, "fixed scales: 0 is a random team; 1 is a ceiling."),
        (Normalisation.minmax, "minimum and maximum of these runs"),
        (Normalisation.none, "not normalised"),
    ],
)
def test_figures_over_tasks_say_scale_seeds_and_intervals(
    tmp_path: Path, normalisation: Normalisation, words: str
) -> None:
    s = summary_of(made.write_benchmark(tmp_path / "bench"), normalisation=normalisation)
    with matplotlib.rc_context(drawing.STYLE):
        drawn = [
            figures.draw_aggregates(s),
            figures.draw_profiles(s),
            figures.draw_efficiency(s, s.curves_by_frames, "frames"),
        ]
    for figure in drawn:
        note = note_of(figure)
        assert words in note
        assert "2 tasks, 3 seeds per task" in note
        assert "95% intervals" in note


def test_figures_say_which_scales_are_in_use(tmp_path: Path) -> None:
    known = ("rware/tiny-2ag", "rware/tiny-4ag", "vmas/balance", "made-up/task")
    for task in known:
        made.write_run(tmp_path / task.replace("/", "-"), task=task, returns=(0.0, 1.0, 2.0))
    s = summary_of(tmp_path)
    words = (
        "fixed scales: 0 is a random team (3 tasks), the worst value of these runs (1 task); 1 is the best published "
        "result (2 tasks), the best of these runs (1 task), a ceiling (1 task)."
    )
    assert words in note_of(figures.draw_profiles(s)) and words in s.scale_text
    unknown = summary_of(tmp_path / "made-up-task")
    assert "relative to these runs: 0 is the worst value of these runs; 1 is the best of these runs." in note_of(
        figures.draw_profiles(unknown)
    )
    assert "ublished" not in note_of(
        figures.draw_task(s, s.task_curves[-1])
    )  # a heuristic and a ceiling are not published


def test_other_figures_say_that_they_are_not_normalised(summary: ReportSummary) -> None:
    note = note_of(figures.draw_improvements(summary))
    assert "ranks need no normalisation" in note and "3 seeds" in note and "95% intervals" in note
    note = note_of(figures.draw_task(summary, summary.task_curves[0]))
    assert "Not normalised" in note and "Mean over 3 seeds" in note and "95% intervals" in note


def test_references_are_lines_with_their_source(summary: ReportSummary) -> None:
    task = summary.task_curves[0]
    figure = figures.draw_task(summary, task)
    scale = summary.scale(task.task)
    drawn = [np.asarray(line.get_ydata()) for line in figure.axes[0].lines]
    heights = {float(ys[0]) for ys in drawn if len(set(ys)) == 1}
    low, high = figure.axes[0].get_ylim()
    expected = {reference.value for reference in scale.references if low <= reference.value <= high}
    assert expected and expected <= heights
    assert scale.random in heights
    for reference in scale.references:
        assert reference.source in note_of(figure)
        assert f"{reference.algorithm} {reference.value:g}" in note_of(figure)


def test_every_algorithm_has_one_look_in_all_figures(tmp_path: Path) -> None:
    names = [f"algorithm {i:02d}" for i in range(20)]
    s = summary_of(made.write_foreign(tmp_path / "many.json", names=names))
    looks = [drawing.look_of(s, name) for name in s.algorithms]
    assert len({str(look) for look in looks}) == 20
    for figure in (figures.draw_profiles(s), figures.draw_task(s, s.task_curves[0])):
        colours = {line.get_label(): line.get_color() for line in figure.axes[0].lines}
        assert all(colours[name] == colour for name, (colour, _) in zip(s.algorithms, looks, strict=True))


def test_the_page_uses_the_same_colours() -> None:
    style = files("covey.report").joinpath("page.css").read_text()
    assert re.findall(r"^\.s\d \{ --series: light-dark\((#\w+),", style, re.MULTILINE) == list(drawing.COLOURS)


@pytest.mark.parametrize(("seeds", "algorithms"), [(1, 2), (2, 1), (1, 1)])
def test_one_seed_or_one_algorithm(tmp_path: Path, seeds: int, algorithms: int) -> None:
    s = summary_of(made.write_foreign(tmp_path / "few.json", names=["a", "b"][:algorithms], seeds=seeds))
    names = {path.stem for path in figures.draw_figures(s, tmp_path / "figures", ["png"])}
    assert "aggregate_intervals" in names
    assert ("probability_of_improvement" in names) == (algorithms > 1)
    assert ("1 seed per task" if seeds == 1 else "2 seeds per task") in note_of(figures.draw_aggregates(s))


def test_hostile_names_are_drawn_as_text(tmp_path: Path) -> None:
    names = [*made.HOSTILE, "x" * 300, "$", "$\\frac{$"]
    s = summary_of(made.write_foreign(tmp_path / "hostile.json", names=names, task="../../<b>$task$"), pairs=())
    written = figures.draw_figures(s, tmp_path / "figures", ["svg"])
    assert {path.parent for path in written} == {tmp_path / "figures"}
    for path in written:
        tags = {element.tag.rpartition("}")[2] for element in ElementTree.parse(path).iter()}
        assert not tags & {"script", "img", "foreignObject"}


def test_every_algorithm_has_its_own_legend_entry(tmp_path: Path) -> None:
    long = "ippo (model=gru, experiment.num_envs="
    names = ["_private", "__", f"{long}64)", f"{long}128)", "x" * 60 + "a" + "y" * 60, "x" * 60 + "b" + "y" * 60]
    s = summary_of(made.write_foreign(tmp_path / "names.json", names=names))
    figures.draw_figures(s, tmp_path / "figures", ["svg"])
    for figure in (
        figures.draw_profiles(s),
        figures.draw_efficiency(s, s.curves_by_frames, "frames"),
        figures.draw_task(s, s.task_curves[0]),
    ):
        [legend] = figure.legends
        labels = [label.get_text() for label in legend.get_texts()]
        assert len(set(labels)) == len(names) and all(len(label) <= drawing.LONGEST_NAME for label in labels)
        assert {"_private", "__"} < set(labels)
        assert sum(label.startswith("ippo (model=g") and label.endswith(("64)", "128)")) for label in labels) == 2
        handles: Any = legend.legend_handles
        colours = [handle.get_color() for handle in handles]
        assert colours == [drawing.look_of(s, name)[0] for name in s.algorithms]
    ticks = [label.get_text() for label in figures.draw_aggregates(s).axes[0].get_yticklabels()]
    assert len(set(ticks)) == len(names)


def test_labels_are_moved_apart() -> None:
    assert drawing.spread([0.0, 5.0], 1.0, 0.0, 10.0) == [0.0, 5.0]
    assert drawing.spread([3.0, 3.0, 3.0], 1.0, 0.0, 10.0) == pytest.approx([2.0, 3.0, 4.0])  # as little as possible
    assert drawing.spread([5.0, 3.0], 1.0, 0.0, 10.0) == [5.0, 3.0]
    assert drawing.spread([9.9, 10.0], 1.0, 0.0, 10.0) == pytest.approx([9.0, 10.0])
    assert drawing.spread([0.0, 0.1], 1.0, 0.0, 10.0) == pytest.approx([0.0, 1.0])
    assert np.min(np.diff(sorted(drawing.spread([9.0, 9.5, 9.6, 10.0], 1.0, 0.0, 10.0)))) >= 1.0 - 1e-9


@pytest.mark.parametrize(
    ("value", "expected"), [(0, "0"), (950, "950"), (50_000, "50k"), (2_500_000, "2.5M"), (3e9, "3G")]
)
def test_short_numbers(value: float, expected: str) -> None:
    assert drawing.short_number(value) == expected
