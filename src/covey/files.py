"""Writing files so that a process killed at any instant leaves the old or the new content, never half of it."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any


def write_atomically(path: Path, text: str) -> None:
    """Puts `text` at `path` in one step: a temporary file in the same folder, forced to the disk, then renamed.

    The temporary name is fixed, so that what a killed process left is overwritten; a file has one writer at a time.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Forces a folder's own entries (names made, renamed or removed in it) to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def to_json(value: Any, indent: int | None = None) -> str:
    """`value` as strict JSON: NumPy scalars and arrays as numbers and lists, NaN and infinities as null."""
    return json.dumps(_plain(value), indent=indent, allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float):  # before tolist: np.float64 is a float
        return float(value) if math.isfinite(value) else None
    if hasattr(value, "tolist"):  # arrays and scalars, NumPy's and JAX's
        return _plain(value.tolist())
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return value
