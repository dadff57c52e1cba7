"""The registered fields of each task that has anchors: `default_tasks.json`.

Anchors were measured on tasks as registered, and a report must know whether its runs used those fields. Asking the
registry would import the environments and JAX, so the fields are in a file. A test compares it with the registry.

    python -m covey.report.defaults        writes the file
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from covey import registry
from covey.files import write_atomically
from covey.metrics import MEAN_RETURN
from covey.report.anchors import read_anchors
from covey.report.runs import FIELDS_OF_PLAY

FILE = "default_tasks.json"


def changed_fields(task: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a run's task that differ from `defaults`, among those that both have."""
    return {name: task[name] for name, default in defaults.items() if name in task and task[name] != default}


@functools.cache
def read_defaults() -> dict[str, dict[str, Any]]:
    """The registered values of each task's fields, from the file."""
    defaults: dict[str, dict[str, Any]] = json.loads((files("covey.report") / FILE).read_text(encoding="utf-8"))
    return defaults


def registered_defaults() -> dict[str, dict[str, Any]]:
    """The same from the registry. Fields that only change how agents play are left out."""
    from covey.experiment.configuration.config import plain

    tasks = sorted(name for name in read_anchors(MEAN_RETURN) if name in registry.tasks)
    of_play = {name.removeprefix("task.") for name in FIELDS_OF_PLAY}
    fields = {name: plain(registry.tasks[name].defaults()) for name in tasks}
    return {task: {n: v for n, v in values.items() if n not in of_play} for task, values in fields.items()}


def main() -> None:
    """Writes the file."""
    lines = [f"{json.dumps(task)}: {json.dumps(values)}" for task, values in registered_defaults().items()]
    write_atomically(Path(__file__).with_name(FILE), "{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
