"""default_tasks.json against the registry."""

from __future__ import annotations

import json

from covey.report.anchors import read_anchors
from covey.report.defaults import changed_fields, read_defaults, registered_defaults


def test_the_file_equals_the_registry() -> None:
    registered = json.loads(json.dumps(registered_defaults()))
    assert read_defaults() == registered, "a task's defaults changed: python -m covey.report.defaults"
    assert set(read_defaults()) == set(read_anchors("mean_return"))


def test_changed_fields() -> None:
    defaults = {"time_limit": 100, "mass": 5, "names": ["a"]}
    assert changed_fields({"name": "x", "time_limit": 100, "mass": 5.0, "names": ["a"], "shaping": 1.0}, defaults) == {}
    assert changed_fields({"time_limit": 300, "names": []}, defaults) == {"time_limit": 300, "names": []}
