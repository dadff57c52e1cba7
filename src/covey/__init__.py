"""covey: trains, benchmarks and evaluates teams of learning agents, compiled end to end in JAX.

What users call is here; each name is imported on first use, so that `import covey` imports no JAX.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from covey.algorithms.base import make_algorithm
    from covey.envs.base import make_env
    from covey.envs.check import check_env
    from covey.envs.config import TaskConfig
    from covey.envs.host.make import make_simulator
    from covey.envs.host.simulator import SimulatorConfig, SimulatorStep
    from covey.envs.to_pettingzoo import to_pettingzoo
    from covey.experiment.loading.evaluation import evaluate_run as evaluate
    from covey.experiment.loading.policy import load
    from covey.experiment.running.experiment import Experiment
    from covey.launch.from_python import benchmark
    from covey.networks.network import make_model
    from covey.registry import register_algorithm, register_loop, register_model, register_task
    from covey.report.from_python import report

    __version__: str

_HOMES = {
    "Experiment": "covey.experiment.running.experiment:Experiment",
    "SimulatorConfig": "covey.envs.host.simulator:SimulatorConfig",
    "SimulatorStep": "covey.envs.host.simulator:SimulatorStep",
    "TaskConfig": "covey.envs.config:TaskConfig",
    "benchmark": "covey.launch.from_python:benchmark",
    "check_env": "covey.envs.check:check_env",
    "evaluate": "covey.experiment.loading.evaluation:evaluate_run",
    "load": "covey.experiment.loading.policy:load",
    "make_algorithm": "covey.algorithms.base:make_algorithm",
    "make_env": "covey.envs.base:make_env",
    "make_simulator": "covey.envs.host.make:make_simulator",
    "make_model": "covey.networks.network:make_model",
    "register_algorithm": "covey.registry:register_algorithm",
    "register_loop": "covey.registry:register_loop",
    "register_model": "covey.registry:register_model",
    "register_task": "covey.registry:register_task",
    "report": "covey.report",  # a package that can be called
    "to_pettingzoo": "covey.envs.to_pettingzoo:to_pettingzoo",
}

__all__ = [
    "Experiment",
    "SimulatorConfig",
    "SimulatorStep",
    "TaskConfig",
    "__version__",
    "benchmark",
    "check_env",
    "evaluate",
    "load",
    "make_algorithm",
    "make_env",
    "make_model",
    "make_simulator",
    "register_algorithm",
    "register_loop",
    "register_model",
    "register_task",
    "report",
    "to_pettingzoo",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("covey")
    if name not in _HOMES:
        raise AttributeError(f"module 'covey' has no attribute '{name}'")
    module, _, attribute = _HOMES[name].partition(":")
    found = importlib.import_module(module)
    return getattr(found, attribute) if attribute else found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
