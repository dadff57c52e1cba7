"""covey: trains, benchmarks and evaluates teams of learning agents, compiled end to end in JAX.

What users call is here; each name is imported on first use, so that `import covey` imports no JAX.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from covey.algorithms.base import make_algorithm
    from covey.envs.base import TaskConfig, make_env
    from covey.envs.check import check_env
    from covey.experiment.experiment import Experiment
    from covey.experiment.policy import load
    from covey.networks.network import make_model
    from covey.registry import register_algorithm, register_model, register_task

    __version__: str

_HOMES = {
    "Experiment": "covey.experiment.experiment",
    "TaskConfig": "covey.envs.base",
    "check_env": "covey.envs.check",
    "load": "covey.experiment.policy",
    "make_algorithm": "covey.algorithms.base",
    "make_env": "covey.envs.base",
    "make_model": "covey.networks.network",
    "register_algorithm": "covey.registry",
    "register_model": "covey.registry",
    "register_task": "covey.registry",
}

__all__ = [
    "Experiment",
    "TaskConfig",
    "__version__",
    "check_env",
    "load",
    "make_algorithm",
    "make_env",
    "make_model",
    "register_algorithm",
    "register_model",
    "register_task",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("covey")
    if name not in _HOMES:
        raise AttributeError(f"module 'covey' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
