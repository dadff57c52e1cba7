"""Any task as a PettingZoo environment: `covey.to_pettingzoo("vmas/navigation", n_agents=4)`.

PettingZoo is an extra, so it is imported when the function is called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from covey.envs.base import Env, make_env
from covey.errors import MissingExtra, UsageError

if TYPE_CHECKING:
    from covey.envs.parallel_env import CoveyParallelEnv


def to_pettingzoo(task: str | Env, *, render_mode: str | None = None, **fields: Any) -> CoveyParallelEnv:
    """A task as a `pettingzoo.ParallelEnv`, by its name and fields as in `make_env`, or an environment already made.

    Agents are named by their group and number, `agents_0`, `agents_1`. `render_mode="rgb_array"` is for `render`.
    """
    try:
        from covey.envs.parallel_env import CoveyParallelEnv
    except ModuleNotFoundError as error:
        if error.name not in ("pettingzoo", "gymnasium"):
            raise
        raise MissingExtra("to_pettingzoo", "pettingzoo") from error
    if isinstance(task, str):
        return CoveyParallelEnv(make_env(task, **fields), name=task, render_mode=render_mode)
    if fields:
        raise UsageError(f"{', '.join(fields)}: fields go with a task's name; this environment is already made")
    return CoveyParallelEnv(task, name=type(task).__name__, render_mode=render_mode)
