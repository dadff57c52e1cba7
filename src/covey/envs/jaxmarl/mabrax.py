"""MABrax: a robot of Brax, whose joints are divided among several agents. Needs the extra `mabrax`."""

from __future__ import annotations

import dataclasses
import importlib.util
from typing import Any

import numpy as np

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
        """The robot's limbs, seen from the side by a camera that moves along. Those further away are paler."""
        centre = state.pipeline_state.x.pos[0]
        axes.set(
            xlim=(centre[0] - 1.5, centre[0] + 1.5),
            ylim=(-0.5, 2.5),
            aspect="equal",
            title=f"{round(centre[0], 1) + 0.0:.1f} m ahead",
        )
        axes.axhline(0, color="0.7")
        points_per_metre = 72 * axes.figure.get_figwidth() * axes.get_position().width / 3
        limbs = limb_segments(self.suite.env.sys, state.pipeline_state.x)
        for start, end, radius in sorted(limbs, key=lambda limb: -(limb[0][1] + limb[1][1])):  # far ones first
            colour = "#a3c8e3" if start[1] + end[1] > 2 * centre[1] + 1e-3 else "tab:blue"
            width = 2 * radius * points_per_metre
            x, z = (start[0], end[0]), (start[2], end[2])
            for shown, across in (("white", width + 1.5), (colour, width)):
                if np.allclose(start, end):  # a sphere; a line without length is not drawn
                    axes.plot(x[:1], z[:1], "o", color=shown, markersize=across, markeredgewidth=0)
                else:
                    axes.plot(x, z, color=shown, linewidth=across, solid_capstyle="round")


CAPSULE, SPHERE = 3, 2  # MuJoCo's numbers for kinds of shapes


def limb_segments(system: Any, links: Any) -> list[tuple[np.ndarray, np.ndarray, float]]:
    """The two ends `[3]` and the radius, in metres, of every capsule and sphere of a Brax system.

    `links` are positions `[L, 3]` and rotations `[L, 4]` of its links. Body 0 is the ground, and link i is body i + 1.
    """
    segments = []
    kinds, bodies = np.asarray(system.geom_type), np.asarray(system.geom_bodyid)
    sizes, places, turns = (np.asarray(x) for x in (system.geom_size, system.geom_pos, system.geom_quat))
    for kind, body, size, place, turn in zip(kinds, bodies, sizes, places, turns, strict=True):
        if body == 0 or kind not in (CAPSULE, SPHERE):
            continue
        half_length = size[1] if kind == CAPSULE else 0.0
        half = rotate(turn, np.array([0.0, 0.0, half_length]))
        position, rotation = np.asarray(links.pos[body - 1]), np.asarray(links.rot[body - 1])
        ends = [position + rotate(rotation, place + sign * half) for sign in (-1.0, 1.0)]
        segments.append((ends[0], ends[1], float(size[0])))
    return segments


def rotate(quaternion: np.ndarray, vector: np.ndarray) -> np.ndarray:
    """`vector [3]` turned by a unit quaternion (w, x, y, z)."""
    w, axis = quaternion[0], quaternion[1:]
    across = np.cross(axis, vector)
    turned: np.ndarray = vector + 2.0 * (w * across + np.cross(axis, across))
    return turned
