"""Joint passage: two agents carry a rod, one end of it heavy, through a gap in a wall and to a goal beyond it."""

from __future__ import annotations

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np

from covey.envs.vmas.geometry import norm
from covey.envs.vmas.scenarios._rod_and_wall import (
    NUM_BOXES,
    RADIUS,
    RodAndWall,
    RodAndWallConfig,
    angle_between_lines,
)
from covey.envs.vmas.world import World, WorldState
from covey.types import Array, Key


@dataclasses.dataclass(frozen=True, kw_only=True)
class JointPassageConfig(RodAndWallConfig):
    n_passages: int = 1
    fixed_passage: bool = True  # the gaps are in the middle of the wall; false: anywhere
    joint_length: float = 0.5
    random_start_angle: bool = True
    random_goal_angle: bool = True
    asym_package: bool = True
    mass_ratio: float = 5.0
    all_passed_rot: bool = True  # the goal's angle counts once both agents passed; false: once the rod's middle did
    use_controller: bool = False  # actions are velocities, pursued by a controller; false: forces

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.n_passages <= NUM_BOXES:
            raise ValueError(f"n_passages must be between 1 and {NUM_BOXES}, not {self.n_passages}")


class JointPassage(RodAndWall):
    """Reward, the same for both: how much nearer the rod came to a gap and to standing upright; after the passage, to
    the goal and its angle. Penalties for touching the wall and for effort.
    """

    radii = (RADIUS, RADIUS)
    u_multiplier = 0.8
    f_range = 0.8
    config: JointPassageConfig

    def make_world(self) -> World:
        asym = self.config.asym_package
        return self.make_rod_world(substeps=10 if asym else 7, joint_force=900.0 if asym else 400.0, rod_collides=True)

    @property
    def controlled(self) -> bool:
        return self.config.use_controller

    def is_gap(self) -> np.ndarray:
        from_middle, half = np.arange(NUM_BOXES) - NUM_BOXES // 2, self.config.n_passages / 2
        return (-half <= from_middle) & (from_middle < half)

    def stops_rod(self) -> np.ndarray:
        """For a wall that never changes, only the boxes beside gaps: VMAS assumes that the rod reaches no others."""
        stops = np.ones(NUM_BOXES, bool)
        if self.config.fixed_passage:
            gaps = fixed_gaps(self.config.n_passages)
            places = np.setdiff1d(np.arange(NUM_BOXES), gaps)[: np.sum(~self.is_gap())]
            stops[~self.is_gap()] = np.isin(places - 1, gaps) | np.isin(places + 1, gaps)
        return stops

    def draw_gaps(self, key: Key) -> Array:
        num = self.config.n_passages
        if self.config.fixed_passage:
            return jnp.asarray(fixed_gaps(num))
        return jax.random.randint(key, (num,), 0, NUM_BOXES - 1)  # the last place never has a gap; two may coincide

    def draw_start(self, key: Key) -> tuple[Array, Array]:
        key_angle, key_end = jax.random.split(key)
        return draw_angle(key_angle, self.config.random_start_angle), jax.random.rademacher(key_end, (), jnp.float32)

    def draw_goal_angle(self, key: Key) -> Array:
        return draw_angle(key, self.config.random_goal_angle)

    def shaping(self, world: WorldState) -> dict[str, Array]:
        c = self.config
        to_gap = jnp.min(norm(world.position[self.rod] - world.position[self.gaps]))
        return {
            "place_before": c.pos_shaping_factor * to_gap,
            "place_after": c.pos_shaping_factor * self.goal_distance(world),
            "angle_before": c.rot_shaping_factor * angle_between_lines(world.rotation[self.rod], math.pi / 2),
            "angle_after": c.rot_shaping_factor * self.goal_angle(world),
        }

    def angle_passed(self, world: WorldState) -> Array:
        return self.all_passed(world) if self.config.all_passed_rot else world.position[self.rod, 1] > 0

    def count_collisions(self, world: WorldState) -> Array:
        bodies = self.count_touching(world, self.bodies, self.boxes) + self.count_touching(
            world, self.bodies, self.walls
        )
        return bodies + self.count_touching(world, np.array([self.rod]), self.boxes)


def draw_angle(key: Key, random: bool) -> Array:
    return jax.random.uniform(key, (), minval=-jnp.pi / 2, maxval=jnp.pi / 2) if random else jnp.zeros(())


def fixed_gaps(num: int) -> np.ndarray:
    """From the middle outwards, right and left by turns."""
    turns = np.arange(num)
    return NUM_BOXES // 2 + np.where(turns % 2, (turns + 1) // 2, -(turns // 2))
