"""`covey check`: a task against its own spec."""

from __future__ import annotations

from covey import registry
from covey.envs.base import make_bare_env
from covey.envs.check import Checked, check_env
from covey.envs.host.check import check_simulator
from covey.envs.host.make import source_of
from covey.experiment.configuration.config import Config
from covey.experiment.running.devices import start_jax


def check_task(config: Config) -> Checked:
    """Checks the task that `config` describes, without the wrappers that covey puts around it."""
    start_jax(config.experiment.platform.name, 1)
    task = config.task
    if registry.tasks[task.registered].host:
        return check_simulator(source_of(task.registered, task.config))
    return check_env(make_bare_env(task.registered, task.config), f"task {task.name}")
