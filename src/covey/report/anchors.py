"""Reads covey/anchors.json: what a random team earns on each task, and what others published.

Published results that the file marks as not comparable are left out here, so they can never be drawn.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from covey.metrics import MEAN_RETURN


@dataclass(frozen=True, kw_only=True)
class Reference:
    """A published result that may be drawn beside covey's: same task, same definition of the metric."""

    algorithm: str  # "mappo"; also "heuristic" and "ceiling"
    value: float
    source: str  # title of the publication
    definition: str  # how the publication measured it
    frames: int | None  # its budget
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Anchor:
    """What is known about a metric on one task. References are in descending order of value."""

    random: float | None
    random_interval: float | None  # half the width of its 95% interval
    references: tuple[Reference, ...]
    returns: str  # what a return means in this task, in words
    earlier_returns: tuple[str, ...] = ()  # wordings of the same meaning in older runs
    teams: tuple[tuple[str, ...], ...] = ()  # as `EnvSpec.teams`, if groups oppose each other


def read_anchors(metric: str) -> Mapping[str, Anchor]:
    """The anchors of one metric, by task."""
    known = json.loads((files("covey") / "anchors.json").read_text(encoding="utf-8"))
    return {task: _anchor(entry, metric, known["sources"]) for task, entry in known["tasks"].items()}


@functools.cache
def read_opposed_tasks() -> Mapping[str, tuple[tuple[str, ...], ...]]:
    """By task, the teams of tasks whose groups oppose each other."""
    return {task: anchor.teams for task, anchor in read_anchors(MEAN_RETURN).items() if anchor.teams}


def _anchor(entry: dict[str, Any], metric: str, sources: dict[str, Any]) -> Anchor:
    random = entry["random"] or {}
    is_return = metric == MEAN_RETURN
    references = [
        _reference(published, sources[published["source"]])
        for published in entry["published"]
        if published["metric"] == metric and published.get("comparable", True) and published["algorithm"] != "random"
    ]
    return Anchor(
        random=random.get(MEAN_RETURN) if is_return else random.get("others", {}).get(metric),
        random_interval=random.get("interval_95") if is_return else None,
        references=tuple(sorted(references, key=lambda reference: -reference.value)),
        returns=entry["returns"],
        earlier_returns=tuple(entry.get("earlier_returns", ())),
        teams=tuple(tuple(team) for team in entry.get("teams", ())),
    )


def _reference(published: dict[str, Any], source: dict[str, Any]) -> Reference:
    return Reference(
        algorithm=published["algorithm"],
        value=float(published["value"]),
        source=source["title"],
        definition=source["definition"],
        frames=published.get("frames", source["frames"]),
        note=published.get("note", ""),
    )
