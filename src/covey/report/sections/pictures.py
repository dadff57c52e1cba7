"""The animations of teams (team.gif), embedded in the page."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from covey.report.markup import Html, join, tag
from covey.report.pieces import note, swatch
from covey.report.runs import Run
from covey.report.summary import ReportSummary

LARGEST_PICTURE = 4_000_000  # bytes
LARGEST_PICTURES = 40_000_000  # bytes, all pictures together


def find_pictures(runs: Sequence[Run]) -> dict[tuple[str, str], bytes | Path]:
    """By task and algorithm, the first run's team.gif; only its path if the page would become too large."""
    pictures: dict[tuple[str, str], bytes | Path] = {}
    left = LARGEST_PICTURES
    for run in runs:
        key = (run.task, run.algorithm)
        path = None if run.folder is None else run.folder / "team.gif"
        if path is None or key in pictures or not path.is_file():
            continue
        with contextlib.suppress(OSError):  # a picture that cannot be read must not prevent the page
            if path.stat().st_size > min(LARGEST_PICTURE, left):
                pictures[key] = path
            elif (content := path.read_bytes())[:6] in (b"GIF87a", b"GIF89a"):
                pictures[key] = content
                left -= len(content)
    return pictures


def show_pictures(summary: ReportSummary, task: str, pictures: Mapping[tuple[str, str], bytes | Path]) -> Html | None:
    """The pictures of a task's teams, and the paths of those that are too large."""
    here = [(name, pictures[task, name]) for name in summary.algorithms if (task, name) in pictures]
    figures = [_show_picture(summary, task, name, picture) for name, picture in here if isinstance(picture, bytes)]
    large = [str(picture) for _, picture in here if isinstance(picture, Path)]
    return join(
        tag("div", figures, class_="teams") if figures else None,
        note("Pictures of teams that are too large for this page: ", tag("code", ", ".join(large))) if large else None,
    )


def _show_picture(summary: ReportSummary, task: str, name: str, picture: bytes) -> Html:
    source = f"data:image/gif;base64,{base64.b64encode(picture).decode()}"
    image = tag("img", src=source, alt=f"A team trained by {name} playing an episode of {task}")
    return tag("figure", image, tag("figcaption", tag("span", swatch(summary.algorithms.index(name)), name)))
