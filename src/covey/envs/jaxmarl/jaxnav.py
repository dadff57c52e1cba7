"""JaxNav: robots with lidar drive to their goals through a random map.

A robot that arrives or crashes stands still until all have; the episode then terminates. Part of the reward is the mean
over the team, so its return continues: it stays `alive`. The global state is the map and all poses, goals and speeds.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import jax.numpy as jnp

from covey.envs.base import SuiteConfig
from covey.envs.jaxmarl.core import NEVER, SuiteEnv, import_suite, quiet
from covey.envs.jaxmarl.mpe import ActionChoice
from covey.types import Array, MetricSpec, PyTree


@dataclasses.dataclass(frozen=True, kw_only=True)
class JaxNavConfig(SuiteConfig):
    time_limit: int = 500
    actions: ActionChoice = ActionChoice.continuous  # kind of actions: speed and turn, or one of 15 pairs of them
    num_agents: int = 2  # robots
    map_size: int = 11  # cells on a side of the map
    fill: float = 0.3  # largest share of the cells that are walls, from 0 to 1
    own_share: float = 0.5  # share of the agent's own reward, from 0 to 1; the rest is the team's mean
    lidar_num_beams: int = 200  # rays of the lidar


def make_jaxnav(config: JaxNavConfig) -> SuiteEnv:
    with quiet():
        suite = import_suite("jaxnav").JaxNav(
            num_agents=config.num_agents,
            act_type=config.actions.name.capitalize(),
            map_params={"map_size": (config.map_size, config.map_size), "fill": config.fill},
            rew_lambda=config.own_share,
            lidar_num_beams=config.lidar_num_beams,
            max_steps=NEVER,
        )
    return JaxNavEnv(
        suite, returns="own_share of the agent's own rewards (goal 4, crash -4, progress) plus the team's mean"
    )


class JaxNavEnv(SuiteEnv):
    metrics: ClassVar = {
        "goal_rate": MetricSpec(reduction="last"),
        "crash_rate": MetricSpec(reduction="last", higher_is_better=False),
    }

    def global_state(self, observations: Any, state: PyTree) -> Array:
        """The suite's own also appends every observation."""
        size = jnp.array([self.suite.map_obj.width, self.suite.map_obj.height])
        walls = state.map_data[1:-1, 1:-1]
        heading = jnp.stack([jnp.cos(state.theta), jnp.sin(state.theta)])
        parts = (walls, state.pos / size, heading, state.goal / size, state.vel)
        return jnp.concatenate([part.astype(jnp.float32).ravel() for part in parts])

    def measure(self, before: PyTree, after: PyTree, rewards: Any) -> dict[str, Array]:
        return {"goal_rate": after.goal_reached.mean(), "crash_rate": after.move_term.mean()}

    def draw(self, axes: Any, state: PyTree) -> None:
        self.suite.init_render(axes, state, lidar=False, ticks_off=True)
        axes.set_title(f"step {state.step}")
