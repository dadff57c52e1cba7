"""A `Table` as LaTeX (booktabs), CSV and Markdown, each with its own escaping."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable
from dataclasses import dataclass

from covey.report import text
from covey.report.statistics import Estimate
from covey.report.text import SCORE_PLACES

Cell = str | int | float | Estimate | None


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row of a table."""

    cells: tuple[Cell, ...]
    places: int = SCORE_PLACES  # digits behind the point, for numbers that are not whole
    best: frozenset[int] = frozenset()  # columns in bold


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table, independent of its format."""

    name: str  # of its files, without the suffix
    caption: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]


def to_csv(table: Table) -> str:
    """CSV with all digits; a column of estimates becomes three, for the value and its limits."""
    output = io.StringIO()
    writer = csv.writer(output, lineterminator="\n")
    with_interval = [_has_estimates(table, column) for column in range(len(table.columns))]
    writer.writerow(
        cell
        for name, wide in zip(table.columns, with_interval, strict=True)
        for cell in ([_csv_text(f"{name}{part}") for part in ("", " low", " high")] if wide else [_csv_text(name)])
    )
    for row in table.rows:
        writer.writerow(
            value for cell, wide in zip(row.cells, with_interval, strict=True) for value in _csv_cells(cell, wide)
        )
    return output.getvalue()


def to_markdown(table: Table) -> str:
    """A Markdown table with its caption below."""
    rules = (" --- " if _is_text(table, column) else " ---: " for column in range(len(table.columns)))
    lines = [f"| {' | '.join(map(escape_markdown, table.columns))} |", f"|{'|'.join(rules)}|"]
    for row in table.rows:
        cells = [_markdown_cell(cell, row.places) for cell in row.cells]
        lines.append(f"| {' | '.join(f'**{cell}**' if c in row.best else cell for c, cell in enumerate(cells))} |")
    return "\n".join([*lines, "", escape_markdown(table.caption), ""])


def to_latex(table: Table) -> str:
    """A LaTeX table, for documents with \\usepackage{booktabs}."""
    alignment = "".join("l" if _is_text(table, column) else "r" for column in range(len(table.columns)))
    body = []
    for row in table.rows:
        cells = [_latex_cell(cell, row.places) for cell in row.cells]
        body.append(" & ".join(f"\\textbf{{{cell}}}" if c in row.best else cell for c, cell in enumerate(cells)))
    return "\n".join(
        [
            "\\begin{table}",
            "\\centering",
            f"\\caption{{{escape_latex(table.caption)}}}",
            f"\\label{{tab:{table.name.replace('_', '-')}}}",
            f"\\begin{{tabular}}{{{alignment}}}",
            "\\toprule",
            f"{' & '.join(map(escape_latex, table.columns))} \\\\",
            "\\midrule",
            *(f"{line} \\\\" for line in body),
            "\\bottomrule",
            "\\end{tabular}",
            "\\end{table}",
            "",
        ]
    )


FORMS: dict[str, Callable[[Table], str]] = {"tex": to_latex, "csv": to_csv, "md": to_markdown}
LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "[": "{[}",  # bare, it would open an optional argument after \\ or a command
    "]": "{]}",
    **{character: f"\\{character}" for character in "&%$#_{}"},
}


def escape_latex(name: str) -> str:
    """Escapes all characters that mean something in LaTeX."""
    return "".join(LATEX.get(character, character) for character in name)


def escape_markdown(name: str) -> str:
    """Escapes Markdown, and HTML, which Markdown passes through."""
    return re.sub(r"([\\`*_|\[\]~])", r"\\\1", name.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;"))


def _latex_cell(cell: Cell, digits: int) -> str:
    return escape_latex(cell) if isinstance(cell, str) else _rounded(cell, digits).replace("-", "$-$")


def _markdown_cell(cell: Cell, digits: int) -> str:
    return escape_markdown(cell) if isinstance(cell, str) else _rounded(cell, digits)


def _rounded(cell: int | float | Estimate | None, digits: int) -> str:
    if cell is None:
        return ""
    if isinstance(cell, Estimate):
        return text.estimate(cell, digits)
    return text.number(cell, 0 if isinstance(cell, int) else digits)


def _csv_cells(cell: Cell, wide: bool) -> list[str]:
    if not wide:
        return [_csv_number(cell)]
    values = (cell.value, cell.low, cell.high) if isinstance(cell, Estimate) else (None, None, None)
    return [_csv_number(value) for value in values]


def _csv_number(cell: Cell) -> str:
    if isinstance(cell, str):
        return _csv_text(cell)
    return "" if cell is None or (isinstance(cell, float) and not math.isfinite(cell)) else str(cell)


def _csv_text(name: str) -> str:
    """Spreadsheets run text that begins like a formula; an apostrophe keeps it text."""
    return f"'{name}" if name.startswith(("=", "+", "-", "@")) else name


def _has_estimates(table: Table, column: int) -> bool:
    return any(isinstance(row.cells[column], Estimate) for row in table.rows)


def _is_text(table: Table, column: int) -> bool:
    return all(isinstance(row.cells[column], str) for row in table.rows)
