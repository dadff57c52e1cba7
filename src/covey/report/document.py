"""A `ReportSummary` as plain data: `summary.json`, and the part of it that the page's script draws.

Keys are the field names of the dataclasses in summary/types.py, and NaN is null. Numbers in arrays have six significant
digits, unless they are whole. Runs appear without their episodes, which are in the files that `source` names.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from covey.report.runs import Run
from covey.report.summary import ReportSummary

KIND = "covey-report"
# The fields that the script draws from; Python writes the rest of the page.
DRAWN = (
    "algorithms",
    "metric",
    "scales",
    "profiles",
    "curves_by_frames",
    "curves_by_seconds",
    "task_curves",
)


def describe(summary: ReportSummary, title: str, files: Sequence[Path] = ()) -> dict[str, Any]:
    """The content of summary.json. `files` are written beside it; the next report may remove them."""
    parts = {field.name: getattr(summary, field.name) for field in dataclasses.fields(summary) if field.name != "runs"}
    return {
        "kind": KIND,
        "title": title,
        "files": [path.as_posix() for path in files],
        **plain(parts),
        "runs": [describe_run(run) for run in summary.runs],
    }


def drawn(document: Mapping[str, Any]) -> dict[str, Any]:
    """The part of summary.json that is embedded in the page."""
    return {name: document[name] for name in DRAWN}


def describe_run(run: Run) -> dict[str, Any]:
    """A run without its episodes."""
    return {
        "task": run.task,
        "algorithm": run.algorithm,
        "seed": run.seed,
        "source": str(run.source),
        "evaluations": len(run.frames),
        "frames": last(run.frames),
        "seconds": last(run.seconds),
        "has_absolute_metric": bool(run.absolute),
    }


def last(values: np.ndarray | None) -> float | None:
    """The last number in an array; None if it is empty or absent."""
    return None if values is None or len(values) == 0 else float(values[-1])


def plain(value: Any) -> Any:
    """Dataclasses as dictionaries, enums by name, arrays as lists."""
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, np.ndarray):
        return _six_digits(value.tolist()) if value.dtype.kind == "f" else value.tolist()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


def _six_digits(values: Any) -> Any:
    if isinstance(values, list):
        return [_six_digits(item) for item in values]
    return int(values) if values.is_integer() else float(f"{values:.6g}")
