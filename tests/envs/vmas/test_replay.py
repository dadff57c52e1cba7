"""covey's own simulator against recordings of VMAS (tools/record_vmas.py): the same state and action, the same outcome.

The checks are in `replay.py`.
"""

from __future__ import annotations

import importlib
import json

import numpy as np
import pytest
from replay import FOLDER, NAMES, check_free_runs, check_steps, load

from covey import registry

# Every kind of shape, joint, controller and group, before each change; all the rest is in the slow tier.
GATING = {
    (name, 0)
    for name in ("navigation", "balance", "transport", "football", "give_way", "joint_passage", "simple_world_comm")
} | {("football", 2)}  # weak, imprecise players that show their ways
CASES = [
    pytest.param(name, number, marks=() if (name, number) in GATING else pytest.mark.slow)
    for name in NAMES
    for number in range(3)
]
UNREPEATABLE = [("football", 0), ("football", 2)]  # in each step, red draws where to go
FREE_CASES = [
    pytest.param(name, number, marks=() if (name, number) == ("navigation", 0) else pytest.mark.slow)
    for name in NAMES
    for number in range(3)
    if (name, number) not in UNREPEATABLE
]


@pytest.mark.parametrize(("name", "number"), CASES)
def test_every_recorded_step(name: str, number: int) -> None:
    check_steps(load(name, number))


@pytest.mark.parametrize(("name", "number"), FREE_CASES)
def test_free_runs(name: str, number: int) -> None:
    check_free_runs(load(name, number))


@pytest.mark.parametrize("name", NAMES)
def test_defaults_are_benchmarls(name: str) -> None:
    entry = registry.tasks[f"vmas/{name}"]
    with np.load(FOLDER / f"{name}.npz") as file:
        parameters = json.loads(str(file["meta"]))["configs"][0]["parameters"]
    config = entry.defaults()
    for key, value in parameters.items():
        fields = {"time_limit" if key == "max_steps" else key: value}
        assert registry.build_config(config, fields, "task") == config, key


def test_every_scenario_has_a_recording() -> None:
    assert {path.stem for path in FOLDER.glob("*.npz")} >= set(NAMES)
    for name in NAMES:
        importlib.import_module(f"covey.envs.vmas.scenarios.{name}")
