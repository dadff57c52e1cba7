"""A simulator of a registered task, in this process, to step by hand."""

from __future__ import annotations

from typing import Any

from covey import registry
from covey.envs.host.simulator import Simulator, SimulatorConfig, Source
from covey.errors import UsageError


def make_simulator(name: str, **fields: Any) -> Simulator:
    """One copy of the simulator `name`, e.g. `make_simulator("pettingzoo/multiwalker", n_walkers=2)`.

    It behaves as its package made it. Seeds, time limits and automatic resets are added when covey trains on it.
    """
    entry = registry.tasks[name]
    if not entry.host:
        raise UsageError(f"{name} is a compiled task: covey.make_env('{name}')")
    return source_of(name, registry.build_config(entry.defaults(), fields, "task")).simulator()


def source_of(name: str, config: Any) -> Source:
    """The registered simulator as something that worker processes can make copies of."""
    if not isinstance(config, SimulatorConfig):
        kind = type(config).__name__
        raise UsageError(f"task '{name}': its configuration {kind} must inherit from covey.SimulatorConfig")
    return Source(name=name, make=registry.tasks[name].make, config=config)
