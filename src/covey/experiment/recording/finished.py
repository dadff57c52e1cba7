"""Whether a run is finished, found out in a moment: without JAX, and without importing the run's code.

finished.json holds how far the run went, and a checksum of every file that a resumed run would read. If one of them was
changed or damaged, the run counts as unfinished: resuming finds what is wrong, and makes it again.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from covey.experiment.recording.run_directory import RunDirectory
from covey.files import check_regular, read_text, to_json, write_atomically

FILE = "finished.json"
BLOCK_BYTES = 1 << 20


def mark_finished(run: RunDirectory, *, frames: int, absolute_metric: bool) -> None:
    """Marks a run whose files are all written. If the disk is full, the next `covey resume` is only slower."""
    try:
        mark = {"frames": frames, "absolute_metric": absolute_metric, "files": _checksums(run.path)}
        write_atomically(run.path / FILE, to_json(mark, indent=1) + "\n")
    except OSError:
        (run.path / FILE).unlink(missing_ok=True)


def finished_frames(run: RunDirectory, config: Mapping[str, Any] | None = None) -> int | None:
    """The frames of a run with nothing left to do by `config` (default: the stored one); otherwise None."""
    values: Any = (run.config if config is None else config).get("experiment")
    try:
        mark = json.loads(read_text(run.path / FILE))
        enough = values["frames"] <= mark["frames"] and values["absolute_metric"] <= mark["absolute_metric"]
        return mark["frames"] if enough and mark["files"] == _checksums(run.path) else None
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None


def describe_finished(run: RunDirectory, frames: int) -> str:
    return f"{run.path} is finished at {frames:,} frames; `covey resume {run.path} experiment.frames=…` extends it"


def _checksums(folder: Path) -> dict[str, list[int]]:
    """Size and CRC-32 of metrics, results and the newest checkpoint, file by file."""
    checkpoints = sorted(path for path in (folder / "checkpoints").glob("[0-9]*") if path.is_dir())
    files = [folder / "metrics.jsonl", folder / "results.json"]
    files += sorted(path for path in checkpoints[-1].rglob("*") if path.is_file()) if checkpoints else []
    return {path.relative_to(folder).as_posix(): _checksum(path) for path in files}


def _checksum(path: Path) -> list[int]:
    size = checksum = 0
    check_regular(path)
    with open(path, "rb") as file:
        while block := file.read(BLOCK_BYTES):
            size, checksum = size + len(block), zlib.crc32(block, checksum)
    return [size, checksum]
