"""Tables: numbers worked out by hand, in each of the three formats, and names with special characters in each."""

from __future__ import annotations

import csv
import dataclasses
import io
import math
import re
from pathlib import Path
from typing import cast

import made
import pytest

from covey.report import text
from covey.report.runs import read_runs
from covey.report.statistics import Estimate
from covey.report.summary import ReportSummary, SummaryOptions, summarise
from covey.report.table_formats import Row, Table, escape_latex, escape_markdown, to_csv, to_latex, to_markdown
from covey.report.tables import aggregates_table, finals_table, make_tables, write_tables

QUICK = SummaryOptions(repetitions=200, curve_repetitions=100, improvement_repetitions=100)


@pytest.fixture(scope="module")
def summary(tmp_path_factory: pytest.TempPathFactory) -> ReportSummary:
    runs, problems = read_runs([made.write_benchmark(tmp_path_factory.mktemp("tables") / "bench")])
    return summarise(runs, problems, QUICK)


def hostile_table() -> Table:
    rows = tuple(Row(cells=(name, 1, Estimate(value=-0.5, low=-1.0, high=0.25))) for name in made.HOSTILE)
    return Table(name="hostile", caption="50% & more", columns=("Name", "n_runs", made.HOSTILE[2]), rows=rows)


def test_finals_are_means_over_seeds_with_students_interval(summary: ReportSummary) -> None:
    table = finals_table(summary)
    assert table.columns == ("Task", "ippo", "mappo")
    _, ippo, mappo = table.rows[0].cells
    assert isinstance(ippo, Estimate) and isinstance(mappo, Estimate)
    # MAPPO's seeds have 40, 42 and 44: a standard deviation of 2, and t(0.975, 2) = 4.302653.
    assert (mappo.value, ippo.value) == pytest.approx((42.0, 32.0))
    assert mappo.high - mappo.value == pytest.approx(4.302653 * 2 / 3**0.5, rel=1e-6)
    assert table.rows[0].best == {2}


def test_ranks_over_one_seed_have_no_interval(tmp_path: Path) -> None:
    runs, problems = read_runs([made.write_benchmark(tmp_path / "bench", seeds=1)])
    table = aggregates_table(summarise(runs, problems, QUICK))
    assert [text.estimate(cast(Estimate, row.cells[-1]), 2) for row in table.rows] == ["2.00", "1.00"]


def test_if_lower_is_better_the_lowest_is_best(summary: ReportSummary) -> None:
    assert finals_table(dataclasses.replace(summary, higher_is_better=False)).rows[0].best == {1}


def test_every_table_is_written_in_every_format(summary: ReportSummary, tmp_path: Path) -> None:
    names = {path.name for path in write_tables(summary, tmp_path)}
    stems = {"aggregates", "finals", "improvements", "task_comparisons", "costs"}
    assert names == {f"{stem}.{suffix}" for stem in stems for suffix in ("tex", "csv", "md")}
    assert {path.name for path in tmp_path.iterdir()} == names
    assert "Scores are on fixed scales" in (tmp_path / "aggregates.md").read_text()


def test_csv_has_every_digit(summary: ReportSummary) -> None:
    [aggregates] = [table for table in make_tables(summary) if table.name == "aggregates"]
    header, first, _ = csv.reader(io.StringIO(to_csv(aggregates)))
    assert header[:5] == ["Algorithm", "Runs", "IQM", "IQM low", "IQM high"]
    assert first[:2] == ["ippo", "6"]
    assert float(first[2]) == summary.aggregates[0].iqm.value
    assert float(first[4]) == summary.aggregates[0].iqm.high


def test_csv_reads_back_hostile_names_and_no_cell_is_a_formula() -> None:
    rows = list(csv.reader(io.StringIO(to_csv(hostile_table()))))
    assert [row[0] for row in rows[1:]] == [*made.HOSTILE[:-1], "'=1+2"]
    assert all(row[2:] == ["-0.5", "-1.0", "0.25"] for row in rows[1:])


def test_markdown_keeps_its_columns_and_shows_no_markup() -> None:
    lines = to_markdown(hostile_table()).splitlines()[: 2 + len(made.HOSTILE)]
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines} == {4}
    assert not any("<" in line for line in lines)
    assert "\\[z\\](javascript" in lines[4]
    assert lines[2].endswith("| 1 | -0.500 [-1.000, 0.250] |")


def test_latex_keeps_its_columns_and_escapes_what_is_special() -> None:
    latex = to_latex(hostile_table())
    body = latex.split("\\midrule\n")[1].split("\\bottomrule")[0]
    lines = body.strip().splitlines()
    assert len(lines) == len(made.HOSTILE)
    assert all(len(re.findall(r"(?<!\\)&", line)) == 2 and line.endswith(r" \\") for line in lines)
    assert r"\caption{50\% \& more}" in latex
    assert "$-$0.500 [$-$1.000, 0.250]" in lines[0]
    assert r"\toprule" in latex and r"\begin{tabular}{lrr}" in latex


@pytest.mark.parametrize(
    ("name", "latex", "markdown"),
    [
        ("a_b", r"a\_b", r"a\_b"),
        ("5% & $x$ #1", r"5\% \& \$x\$ \#1", "5% &amp; $x$ #1"),
        ("{a}^~\\", r"\{a\}\textasciicircum{}\textasciitilde{}\textbackslash{}", "{a}^\\~\\\\"),
        ("<b>", r"\textless{}b\textgreater{}", "&lt;b&gt;"),
        ("[0]|*", r"{[}0{]}\textbar{}*", r"\[0\]\|\*"),
    ],
)
def test_escaping(name: str, latex: str, markdown: str) -> None:
    assert escape_latex(name) == latex
    assert escape_markdown(name) == markdown


@pytest.mark.parametrize(
    ("values", "expected"),
    [([57.7, -5.8], "57.70 -5.80"), ([0.9], "0.900"), ([1234.5, 0.1], "1,234 0"), ([0.00042], "0.0004200")],
)
def test_numbers_of_a_column_share_their_places(values: list[float], expected: str) -> None:
    assert " ".join(text.number(value, text.places(values)) for value in values) == expected


def test_missing_numbers() -> None:
    assert text.number(math.nan, 2) == text.number(None, 2) == "n/a"
    assert text.number(-0.001, 2) == "0.00"
    assert text.estimate(Estimate(value=1.0, low=math.nan, high=math.nan), 1) == "1.0"
    assert text.places([]) == text.places([0.0, math.nan]) == 2


def test_one_algorithm_and_one_seed_leave_the_tables_that_make_sense(tmp_path: Path) -> None:
    made.write_run(tmp_path / "alone")
    runs, problems = read_runs([tmp_path])
    tables = {table.name: table for table in make_tables(summarise(runs, problems, QUICK)) if table.rows}
    assert tables.keys() == {"aggregates", "finals", "costs"}
    assert tables["finals"].rows[0].best == frozenset()
    assert to_markdown(tables["finals"]).splitlines()[2] == "| vmas/balance | 50.00 |"
