"""MABrax: a robot of Brax, whose joints are divided among several agents. Needs the extra `mabrax`."""

from __future__ import annotations

import dataclasses
import importlib.util
from typing import Any

from covey.envs.base import SuiteConfig
from covey.envs.jaxmarl.core import SuiteEnv, import_suite, quiet
from covey.errors import MissingExtra
from covey.types import PyTree


@dataclasses.dataclass(frozen=True, kw_only=True)
class MabraxConfig(SuiteConfig):
    """The reward is shared by the suite itself."""

    time_limit: int = 1000
    robot: str = "ant_4x2"  # the robot and how it is split into agents: `covey list tasks mabrax` shows the names
    backend: str = "positional"  # Brax's physics: positional, spring or generalized


def make_mabrax(config: MabraxConfig) -> SuiteEnv:
    if importlib.util.find_spec("brax") is None:
        raise MissingExtra(f"task 'mabrax/{config.robot}'", "mabrax")
    with quiet():
        # No episode length and no auto-reset: Brax then ends an episode only where the robot falls. Observations and
        # actions of unequal size are padded to the largest, as in JaxMARL's own baselines.
        suite = import_suite("mabrax.mabrax_env").MABraxEnv(
            config.robot.replace("humanoid_9_8", "humanoid_9|8"),
            episode_length=None,
            auto_reset=False,
            homogenisation_method="max",
            backend=config.backend,
        )
    return MabraxEnv(suite, returns="the robot's, the same for all its agents: progress less the cost of control")


class MabraxEnv(SuiteEnv):
    shared_reward = True

    def draw(self, axes: Any, state: PyTree) -> None:
        """The links, seen from the side and from a camera that moves along."""
        x, _, z = state.pipeline_state.x.pos.T
        axes.set(xlim=(x[0] - 1.5, x[0] + 1.5), ylim=(-0.5, 2.5), title=f"x = {x[0]:.1f}")
        axes.axhline(0, color="0.7")
        axes.plot(x, z, marker="o", linestyle="none", color="tab:blue")
