"""How far a running experiment is, read from the end of its metrics.jsonl."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from covey import metrics as names
from covey.launch.benchmark import BenchmarkExperiment

TAIL_BYTES = 65_536  # at the end of metrics.jsonl: enough for the last record of any task


def read_progress(experiment: BenchmarkExperiment) -> dict[str, Any]:
    """The fields `share`, `mean_return` and `frames_per_second` of `overview.Running`, as far as they are known.

    If groups oppose each other, also `by_group`, the returns of all groups.
    """
    try:
        with open(experiment.run_directory / "metrics.jsonl", "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
            lines = file.read().split(b"\n")[:-1]
    except OSError:
        return {}
    progress: dict[str, Any] = {}
    groups = read_opposed_groups(experiment.run_directory)
    for line in reversed(lines):
        try:
            record = json.loads(line)
        except ValueError:  # the first line is cut
            break
        if record[names.KIND] == names.TRAIN:
            progress.setdefault("share", min(1.0, record[names.FRAMES] / experiment.config.experiment.frames))
            progress.setdefault("frames_per_second", record.get(names.FRAMES_PER_SECOND))
        else:
            progress.setdefault("mean_return", record.get(names.MEAN_RETURN))
            found = {group: record.get(names.group_return(group)) for group in groups}
            if groups and None not in found.values():
                progress.setdefault("by_group", found)
        if len(progress) == 3 + bool(groups):
            break
    return progress


def read_opposed_groups(run_directory: Path) -> tuple[str, ...]:
    """The groups of a run's task if they oppose each other; otherwise ()."""
    try:
        teams = json.loads((run_directory / "environment.json").read_text(encoding="utf-8")).get("teams", [])
    except (OSError, ValueError, AttributeError):
        return ()
    return names.shown_groups(teams)
