"""`covey.report(…)`: what `covey report` does, called from Python."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from covey import registry
from covey.report.report import ReportOptions
from covey.report.report import report as write_report


def report(*runs: str | Path, **options: Any) -> Path:
    """Writes a page, figures and tables over any number of runs; returns the path of the page.

        covey.report("bench/first", output="report", metric="win_rate")

    `runs` are run directories, parents of some, benchmarks and result files. `options` are those of `covey report`:
    output, metric, normalisation, legend, order, pairs, title, formats, serve, port.
    """
    chosen = registry.build_config(ReportOptions(), options, "report")
    words = [*map(str, runs), *(f"{name}={value}" for name, value in options.items())]
    write_report([str(path) for path in runs], chosen, shlex.join(["covey", "report", *words]))
    return Path(chosen.output) / "index.html"
