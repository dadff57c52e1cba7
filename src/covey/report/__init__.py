"""From result files to statistics, figures, tables and the page. Imports nothing that trains.

runs/             files and folders of covey, BenchMARL, Mava and OG-MARL  →  list[Run], list[Problem]
summary/          list[Run] and options  →  ReportSummary: every number that a report shows
statistics.py     bootstrap, profiles, improvement, tests, ranks: NumPy arrays in, NumPy arrays out
anchors.py        what a random team earns and what was published, per task
defaults.py       the fields of registered tasks, to tell whether anchors apply
benchmarks.py     what `covey benchmark` left beside run directories
speeds.py         what `covey speed` measured

figures.py        ReportSummary  →  PNG, SVG, PDF, drawn with drawing.py
tables.py         ReportSummary  →  LaTeX, CSV, Markdown, by table_formats.py
document.py       ReportSummary  →  summary.json
page.py           ReportSummary  →  index.html, made of sections/, pieces.py and markup.py, page.css and page.js
text.py           names and numbers as text

report.py         `covey report`: all of the above
from_python.py    the same from Python: `covey.report(…)`
serve.py          shows the page on this machine and rebuilds it while experiments run
"""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any


class _Callable(types.ModuleType):
    """`covey.report` is this package, and the function that users call beside `covey.evaluate`."""

    def __call__(self, *runs: str | Path, **options: Any) -> Path:
        from covey.report.from_python import report

        return report(*runs, **options)


sys.modules[__name__].__class__ = _Callable
