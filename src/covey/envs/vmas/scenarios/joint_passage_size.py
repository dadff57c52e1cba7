"""Joint passage size: a small and a big agent carry a rod through a wall with a small and a big gap."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from covey.envs.vmas.geometry import norm
from covey.envs.vmas.scenario import ScenarioState
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
class JointPassageSizeConfig(RodAndWallConfig):
    n_passages: int = 3  # boxes left out of the wall: two for the big gap, one or two for the small one
    fixed_passage: bool = False
    joint_length: float = 0.52
    random_start_angle: bool = False  # without effect, as in VMAS: the rod starts upright, either way up
    random_goal_angle: bool = False
    asym_package: bool = False
    mass_ratio: float = 1.0
    # in the passage the rod may lie either way; false: the big agent must be at the big gap
    middle_angle_180: bool = False
    use_vel_controller: bool = False  # actions are velocities, pursued by a controller; false: forces

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.n_passages not in (3, 4):
            raise ValueError(f"n_passages must be 3 or 4, not {self.n_passages}")


class JointPassageSize(RodAndWall):
    """Reward, the same for both: how much nearer the rod came to the middle between the gaps or, after the passage, to
    the goal, and always to an angle at which each agent fits through its gap. Penalties for touching the wall and for
    effort.
    """

    radii = (RADIUS, 3 * RADIUS)
    u_multiplier = 1.0
    f_range = 10.0
    config: JointPassageSizeConfig

    def make_world(self) -> World:
        asym = self.config.asym_package
        return self.make_rod_world(substeps=10 if asym else 5, joint_force=700.0 if asym else 400.0, rod_collides=False)

    @property
    def controlled(self) -> bool:
        return self.config.use_vel_controller

    def is_gap(self) -> np.ndarray:
        return np.arange(NUM_BOXES) < self.config.n_passages

    def stops_rod(self) -> np.ndarray:
        return np.zeros(NUM_BOXES, bool)

    def draw_gaps(self, key: Key) -> Array:
        """Two places for the big gap, and those of the small one, which leaves two boxes between them."""
        num = self.config.n_passages
        key_big, key_side = jax.random.split(key)
        if self.config.fixed_passage:
            big, right = jnp.asarray(5), jnp.asarray(True)
        else:
            big, right = jax.random.randint(key_big, (), 0, NUM_BOXES - 1), jax.random.bernoulli(key_side)
        right = (right & (big < NUM_BOXES - 1 - num)) | (big < num)
        small = big + jnp.where(right, 4, -3)
        gaps = [big, big + 1, small, small + jnp.where(right, 1, -1)]
        return jnp.stack(gaps[:num])

    def draw_start(self, key: Key) -> tuple[Array, Array]:
        return jax.random.rademacher(key, (), jnp.float32) * jnp.pi / 2, jnp.ones(())

    def draw_goal_angle(self, key: Key) -> Array:
        if not self.config.random_goal_angle:
            return jnp.full((), jnp.pi)
        return jax.random.uniform(key, (), minval=-jnp.pi / 2, maxval=jnp.pi / 2)

    def seen_gaps(self, world: WorldState) -> Array:
        """The middle of the big gap, and the nearer place of the small one."""
        places = world.position[self.gaps]
        return jnp.stack([(places[0] + places[1]) / 2, places[2]])

    def to_passage(self, world: WorldState) -> Array:
        return norm(world.position[self.rod] - self.seen_gaps(world).mean(0))

    def begin(self, world: WorldState, **drawn: Array) -> ScenarioState:
        # VMAS multiplies by its factor once at the start of an episode, and twice afterwards.
        first = {"place_before": self.config.pos_shaping_factor * self.to_passage(world)}
        return super().begin(world, **(first | drawn))

    def shaping(self, world: WorldState) -> dict[str, Array]:
        c = self.config
        big, small = self.seen_gaps(world)
        wanted = jnp.where(small[0] > big[0], jnp.pi, 0.0)  # the rod points from the small agent to the big one
        angle = world.rotation[self.rod]
        off = angle_between_lines(angle, wanted) if c.middle_angle_180 else -jnp.cos(angle - wanted)
        return {
            "place_before": c.pos_shaping_factor**2 * self.to_passage(world),
            "place_after": c.pos_shaping_factor * self.goal_distance(world),
            "angle_before": c.rot_shaping_factor * off,
            "angle_after": c.rot_shaping_factor * self.goal_angle(world),
        }

    def angle_passed(self, world: WorldState) -> Array:
        return jnp.zeros((), bool)

    def count_collisions(self, world: WorldState) -> Array:
        """Walls count only for the last body, as in VMAS."""
        with_boxes = self.count_touching(world, self.bodies, self.boxes)
        return with_boxes + self.count_touching(world, self.bodies[-1:], self.walls)
