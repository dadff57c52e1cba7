"""Ball passage: two agents push a ball through a gap in a wall to a goal on the other side."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from covey.envs.vmas.geometry import norm, unit
from covey.envs.vmas.physics import distances
from covey.envs.vmas.scenario import Scenario, ScenarioState, VmasConfig
from covey.envs.vmas.shapes import Box, Sphere
from covey.envs.vmas.world import BLACK, GREEN, RED, Agent, Landmark, World, WorldState, numbered
from covey.types import Array, Key, MetricSpec

AGENTS = numbered("agent", 2)
RADIUS = 0.03333  # of agents, ball and goal
AGENT_SPACING = 0.5
SEMIDIM = 1.0  # positions stay within ± this
BOX_LENGTH, BOX_WIDTH = 0.103, 0.2  # of each piece of the wall
NUM_BOXES = int((2 * SEMIDIM + 2 * RADIUS) // BOX_LENGTH)
BOXES = numbered("passage", NUM_BOXES, " ")
COLLISION_REWARD = -0.06
GOAL_DISTANCE = 0.01


@dataclasses.dataclass(frozen=True, kw_only=True)
class BallPassageConfig(VmasConfig):
    time_limit: int = 500
    n_passages: int = 1  # boxes left out of the wall
    fixed_passage: bool = False  # the gaps are in the middle of the wall; false: anywhere
    random_start_angle: bool = True  # the line through agents and ball starts at any angle; false: upright

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.n_passages <= NUM_BOXES:
            raise ValueError(f"n_passages must be between 1 and {NUM_BOXES}, not {self.n_passages}")


class BallPassage(Scenario):
    """Reward, the same for both: how much nearer the ball came to a gap or, once past the wall, to the goal; a penalty
    for each body that touches a piece of the wall. The episode ends when the ball reaches the goal or the edge.
    """

    metric_specs: ClassVar = {
        "at_goal": MetricSpec(unit="share of episodes"),
        "passed": MetricSpec(unit="share of episodes"),
    }
    config: BallPassageConfig

    def make_world(self) -> World:
        # A gap is a piece of the wall that does not collide, VMAS's "passage" like all pieces.
        from_middle = np.arange(NUM_BOXES) - NUM_BOXES // 2
        half = self.config.n_passages / 2
        is_gap = (-half <= from_middle) & (from_middle < half)
        return World(
            landmarks=(
                Landmark(name="goal", shape=Sphere(radius=RADIUS), collide=False, colour=GREEN),
                Landmark(name="ball", shape=Sphere(radius=RADIUS), movable=True, linear_friction=0.02, colour=BLACK),
                *(
                    Landmark(name=name, shape=Box(length=BOX_LENGTH, width=BOX_WIDTH), collide=not gap, colour=RED)
                    for name, gap in zip(BOXES, is_gap, strict=True)
                ),
            ),
            agents=tuple(
                Agent(name=name, shape=Sphere(radius=RADIUS), u_multiplier=0.7, mass=2.0, drag=0.25) for name in AGENTS
            ),
            x_semidim=SEMIDIM,
            y_semidim=SEMIDIM,
            drag=0.0,
        )

    def __init__(self, config: BallPassageConfig):
        super().__init__(config)
        self.agents = self.world.agent_indices
        self.ball, self.goal = self.world.index("ball"), self.world.index("goal")
        boxes = self.world.indices(r"passage \d+")
        collide = np.array([self.world.entities[i].collide for i in boxes])
        self.walls, self.gaps = boxes[collide], boxes[~collide]

    def reset(self, key: Key) -> ScenarioState:
        key_angle, key_ball, key_goal, key_wall = jax.random.split(key, 4)
        upright = -jnp.pi / 2
        angle = (
            jax.random.uniform(key_angle, minval=-jnp.pi / 2, maxval=jnp.pi / 2)
            if self.config.random_start_angle
            else upright
        )
        arm = AGENT_SPACING / 2 * unit(jnp.asarray(angle))
        room = SEMIDIM - RADIUS - jnp.abs(arm)  # both agents are inside
        below_wall = -2 * RADIUS - BOX_WIDTH / 2
        ball = jax.random.uniform(
            key_ball, (2,), minval=-room, maxval=jnp.stack([room[0], below_wall - jnp.abs(arm[1])])
        )
        most = SEMIDIM - RADIUS
        goal = jax.random.uniform(
            key_goal, (2,), minval=jnp.array([-most, -below_wall]), maxval=jnp.array([most, most])
        )
        world = self.world.start(
            {"ball": ball, "goal": goal, AGENTS[0]: ball - arm, AGENTS[1]: ball + arm}
            | dict(zip(BOXES, self.place_wall(key_wall), strict=True))
        )
        return self.begin(world)

    def place_wall(self, key: Key) -> Array:
        """Where the pieces of the wall are, `[NUM_BOXES, 2]`: from left to right, or in random order."""
        x = -SEMIDIM - RADIUS + BOX_LENGTH * (np.arange(NUM_BOXES) + 0.5)
        places = jnp.asarray(np.stack([x, np.zeros_like(x)], -1), jnp.float32)
        return places if self.config.fixed_passage else jax.random.permutation(key, places)

    def begin(self, world: WorldState, **drawn: Array) -> ScenarioState:
        return super().begin(world, to_gap=self.distance_to_gap(world), to_goal=self.distance_to_goal(world))

    def distance_to_gap(self, world: WorldState) -> Array:
        return norm(world.position[self.ball] - world.position[self.gaps]).min()

    def distance_to_goal(self, world: WorldState) -> Array:
        return norm(world.position[self.ball] - world.position[self.goal])

    def passed(self, world: WorldState) -> Array:
        return world.position[self.ball, 1] > 0

    def touching(self, world: WorldState) -> Array:
        """Which of the agents and the ball touch which piece of the wall, `[3, walls]`."""
        if not len(self.walls):
            return jnp.zeros((3, 0), bool)
        return distances(self.world, world, np.append(self.agents, self.ball), self.walls) < 0

    def shares_reward(self, group: str) -> bool:
        return True

    def reward(self, state: ScenarioState, key: Key) -> tuple[Array, ScenarioState]:
        before, world = state.memory, state.world
        to_gap, to_goal = self.distance_to_gap(world), self.distance_to_goal(world)
        progress = jnp.where(self.passed(world), before["to_goal"] - to_goal, before["to_gap"] - to_gap)
        reward = progress + COLLISION_REWARD * self.touching(world).sum()
        return jnp.full(len(AGENTS), reward), state.remember(to_gap=to_gap, to_goal=to_goal)

    def observation(self, state: ScenarioState, key: Key) -> Array:
        position = state.world.position
        own = position[self.agents]
        to_gaps = (own[:, None] - position[self.gaps]).reshape(len(own), -1)
        return jnp.concatenate(
            [own, state.world.velocity[self.agents], own - position[self.goal], own - position[self.ball], to_gaps], -1
        )

    def at_goal(self, world: WorldState) -> Array:
        return self.distance_to_goal(world) <= GOAL_DISTANCE

    def done(self, state: ScenarioState) -> Array:
        at_edge = jnp.any(jnp.abs(state.world.position[self.ball]) >= SEMIDIM - RADIUS)
        return self.at_goal(state.world) | at_edge

    def metrics(self, state: ScenarioState) -> dict[str, Array]:
        return {
            "at_goal": self.at_goal(state.world).astype(jnp.float32),
            "passed": self.passed(state.world).astype(jnp.float32),
        }

    def colours(self, state: ScenarioState) -> dict[str, None]:
        return {self.world.entities[i].name: None for i in self.gaps}
