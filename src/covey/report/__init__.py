"""From result files to statistics, figures, tables and the page. Imports nothing that trains.

runs.py         files and folders of covey, BenchMARL, Mava and OG-MARL  →  list[Run], list[Problem]
anchors.py      what a random team earns and what was published, per task
statistics.py   bootstrap, profiles, improvement, tests, ranks: NumPy arrays in, NumPy arrays out
summary.py      list[Run] and options  →  Summary: every number that the page and the tables show
figures.py      Summary  →  PNG, SVG, PDF;   tables.py  →  LaTeX, CSV, Markdown;   document.py  →  summary.json
page.py         Summary  →  index.html, out of sections.py, pieces.py and markup.py, page.css and page.js
benchmarks.py, speeds.py   what `covey benchmark` and `covey speed` left beside runs
report.py       all of it, for `covey report`;   serve.py  the page on loopback, rewritten while runs continue
from_python.py  the same as `covey.report(…)`
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
