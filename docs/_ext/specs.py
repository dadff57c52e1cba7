"""The specs of tasks that need an extra, recorded in docs/specs.json, so that their pages show spaces without it.

    python tools/record_specs.py mabrax     writes the specs of a suite's tasks, where its extra is installed

`tests/test_docs.py` compares the file with the tasks where the extra is installed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from covey.types import Continuous, EnvSpec, GroupSpec

FILE = Path(__file__).parents[1] / "specs.json"


def recorded_specs() -> dict[str, EnvSpec]:
    """By the name of the task."""
    return {name: from_plain(plain) for name, plain in json.loads(FILE.read_text(encoding="utf-8")).items()}


def to_plain(spec: EnvSpec) -> dict[str, Any]:
    """What a page shows of a spec whose groups see arrays and choose continuous actions; others are refused."""
    groups = {}
    for name, group in spec.groups.items():
        if not isinstance(group.action, Continuous) or not isinstance(group.observation_shape, tuple):
            raise ValueError(f"group '{name}': only arrays and continuous actions can be recorded")
        groups[name] = {
            "num_agents": group.num_agents,
            "observation_shape": list(group.observation_shape),
            "low": list(group.action.low),
            "high": list(group.action.high),
            "shared_reward": group.shared_reward,
        }
    if spec.state_shape or spec.metrics or spec.teams:
        raise ValueError("a global state, metrics and teams cannot be recorded")
    return {"groups": groups, "time_limit": spec.time_limit, "returns": spec.returns}


def from_plain(plain: dict[str, Any]) -> EnvSpec:
    """The inverse of `to_plain`."""
    groups = {
        name: GroupSpec(
            num_agents=group["num_agents"],
            observation_shape=tuple(group["observation_shape"]),
            action=Continuous(low=tuple(group["low"]), high=tuple(group["high"])),
            shared_reward=group["shared_reward"],
        )
        for name, group in plain["groups"].items()
    }
    return EnvSpec(groups=groups, time_limit=plain["time_limit"], returns=plain["returns"])
