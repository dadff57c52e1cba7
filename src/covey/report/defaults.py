"""The fields of each task with anchors as it is registered: `default_tasks.json`.

Anchors are of tasks as registered, and a report must know whether runs are; but to ask the registry is to import the
environments, and JAX with them. So these fields stand in a file, which a test holds against the registry:

    python -m covey.report.defaults        writes it anew
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
    """What a run's configuration of a task changes in what is to be done; fields that only one of both has, nothing."""
    return {name: task[name] for name, default in defaults.items() if name in task and task[name] != default}


@functools.cache
def read_defaults() -> dict[str, dict[str, Any]]:
    """By task, the values of its fields."""
    return json.loads((files("covey.report") / FILE).read_text(encoding="utf-8"))


def registered_defaults() -> dict[str, dict[str, Any]]:
    """The same from the registry."""
    from covey.experiment.config import plain

    tasks = sorted(name for name in read_anchors(MEAN_RETURN) if name in registry.tasks)
    how_to_play = {name.removeprefix("task.") for name in FIELDS_OF_PLAY}
    fields = {name: plain(registry.tasks[name].defaults()) for name in tasks}
    return {task: {n: v for n, v in values.items() if n not in how_to_play} for task, values in fields.items()}


def main() -> None:
    lines = [f"{json.dumps(task)}: {json.dumps(values)}" for task, values in registered_defaults().items()]
    write_atomically(Path(__file__).with_name(FILE), "{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
