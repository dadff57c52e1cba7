"""Reads what `covey speed` wrote on several machines and puts it side by side; covey/launch/speed.py has the schema.

A file may come from another version of covey. What it lacks, or has in another form, stays empty.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from covey.errors import UsageError
from covey.files import read_text
from covey.report import text
from covey.report.runs import Problem, as_number, find_files

KIND = "covey-speed"
PARTS = {  # of the loop that were timed, with their headings
    "whole": "The whole loop",
    "simulation": "Simulation alone",
    "acting": "Simulation and acting",
    "update": "Update alone",
}


@dataclass(frozen=True, kw_only=True)
class Speed:
    """What was measured on one machine."""

    name: str
    about: str  # processor, cores, memory, versions
    measured: str  # task, algorithm, model
    rates: Mapping[tuple[str, str, int], float]  # frames per second by part, device and number of environments
    limits: Mapping[tuple[str, int], str]  # what limits the speed, by device and number of environments
    findings: tuple[str, ...]
    recommendation: str  # arguments of `covey train`; "" if there are none


@dataclass(frozen=True)
class SpeedTable:
    """Frames per second: a row for each number of environments, a column for each machine and device."""

    heading: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def is_speed_file(path: Path) -> bool:
    """Whether `covey speed` wrote this file."""
    if path.suffix != ".json" or not os.path.isfile(path):
        return False
    try:
        with open(path, encoding="utf-8") as file:
            return f'"{KIND}"' in file.read(500)
    except (OSError, ValueError):
        return False


def find_speeds(paths: Iterable[Path]) -> list[Path]:
    """The speed files among `paths` and in folders among them, each once."""
    found: dict[Path, Path] = {}
    for path in paths:
        files = find_files(path, []) if os.path.isdir(path) else [path]
        found |= {file.resolve(): file for file in files if is_speed_file(file) and file.resolve() not in found}
    return list(found.values())


def read_speeds(paths: Iterable[Path], named: Collection[Path], problems: list[Problem]) -> list[Speed]:
    """The speeds in each file, with distinct names. A bad file is an error if the user named it, else a problem."""
    speeds: dict[Path, Speed] = {}
    for path in paths:
        try:
            speeds[path] = read_speed(path)
        except UsageError as error:
            if path in named:
                raise
            problems.append(Problem(what="speeds that cannot be read", where=str(path), why=str(error)))
    names = Counter(speed.name for speed in speeds.values())
    stems = Counter((speed.name, path.stem) for path, speed in speeds.items())
    return [
        dataclasses.replace(
            speed, name=f"{speed.name} ({text.clean(path.stem if stems[speed.name, path.stem] == 1 else str(path))})"
        )
        if names[speed.name] > 1
        else speed
        for path, speed in speeds.items()
    ]


def read_speed(path: Path) -> Speed:
    """The speeds in a file; UsageError if it holds none."""
    try:
        content = json.loads(read_text(path))
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"cannot read {path}: {error}") from error
    if not isinstance(content, dict):
        raise UsageError(f"{path} holds no speeds")
    machine, settings, versions = (_mapping(content, key) for key in ("machine", "settings", "versions"))
    rates, limits = _read_rows(content.get("rows"))
    if not rates:
        raise UsageError(f"{path} holds no speeds")
    memory = as_number(machine.get("memory_bytes"))
    about = [
        str(machine.get("processor") or ""),
        f"{machine.get('cores_used', '?')} of {machine.get('cores', '?')} cores used",
        f"{memory / 2**30:.0f} GiB" if memory is not None else "",
        *(str(name) for name in _list(machine.get("accelerators"))),
        *(f"{name} {version}" for name, version in versions.items()),
    ]
    return Speed(
        name=text.clean(str(machine.get("name") or path.stem)),
        about=text.clean(", ".join(part for part in about if part)),
        measured=text.clean(", ".join(str(settings[key]) for key in ("task", "algorithm", "model") if key in settings)),
        rates=rates,
        limits=limits,
        findings=tuple(text.clean(str(finding)) for finding in _list(content.get("findings"))),
        recommendation=text.clean(str(words)) if (words := _mapping(content, "recommendation").get("words")) else "",
    )


def speed_tables(speeds: Sequence[Speed]) -> list[SpeedTable]:
    """One table for each part that was timed on any machine."""
    tables = []
    for part, heading in PARTS.items():
        places = [
            (speed, device)
            for speed in speeds
            for device in dict.fromkeys(device for p, device, _ in speed.rates if p == part)
        ]
        sizes = sorted({size for speed in speeds for p, _, size in speed.rates if p == part})
        rows = tuple((f"{size:,}", *(_rate(speed, part, device, size) for speed, device in places)) for size in sizes)
        columns = ("Environments", *(f"{speed.name}: {device}" for speed, device in places))
        if rows:
            tables.append(SpeedTable(heading, columns, rows))
    return tables


def _rate(speed: Speed, part: str, device: str, size: int) -> str:
    rate = speed.rates.get((part, device, size))
    if rate is None:
        return ""
    limit = speed.limits.get((device, size)) if part == "whole" else None
    return f"{rate:,.0f}{f' ({limit})' if limit else ''}"


def _read_rows(rows: Any) -> tuple[dict[tuple[str, str, int], float], dict[tuple[str, int], str]]:
    rates, limits = {}, {}
    for row in _list(rows):
        if not isinstance(row, dict) or not isinstance(row.get("environments"), int):
            continue
        device, size = text.clean(str(row.get("device", ""))), row["environments"]
        for part in PARTS:
            rate = as_number(_mapping(row, "frames_per_second").get(part))
            if rate is not None:
                rates[part, device, size] = rate
        if row.get("limit"):
            limits[device, size] = text.clean(str(row["limit"]))
    return rates, limits


def _mapping(content: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = content.get(key)
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
