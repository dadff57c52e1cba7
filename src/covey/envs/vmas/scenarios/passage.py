"""Passage: five agents in a cross go through gaps in a wall, and each to its own place in a cross on the other side."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from covey.envs.base import Reward
from covey.envs.vmas.geometry import norm
from covey.envs.vmas.physics import distances
from covey.envs.vmas.scenario import Scenario, ScenarioState, VmasConfig
from covey.envs.vmas.shapes import Box, Sphere
from covey.envs.vmas.world import LIGHT_GREEN, RED, Agent, Entity, Landmark, World, WorldState, numbered
from covey.task_fields import SHARED_REWARD_NAMES
from covey.types import Array, Key, MetricSpec

AGENT_RADIUS = 0.03333
SPACING = 0.1
CROSS = SPACING * np.array([[1, 0], [0, 1], [-1, 0], [0, -1], [0, 0]], np.float32)
NUM_AGENTS = len(CROSS)
REACH = 3 * AGENT_RADIUS + SPACING  # how far a cross's centre stays from walls
WALL = Box(length=0.103, width=0.2)  # one of the boxes that fill the wall from side to side
NUM_BOXES = int((2 + 2 * AGENT_RADIUS) // WALL.length)
SHAPING_FACTOR, COLLISION_PENALTY = 100.0, -10.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class PassageConfig(VmasConfig):
    shares_reward: ClassVar[bool] = True
    other_names: ClassVar = {**VmasConfig.other_names, **SHARED_REWARD_NAMES}
    time_limit: int = 500
    n_passages: int = 1  # boxes left out of the wall
    # who receives which reward; shared: everyone receives the sum of all progress; individual: only its own
    reward: Reward = Reward.shared

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.n_passages <= NUM_BOXES:
            raise ValueError(f"n_passages must be between 1 and {NUM_BOXES}, not {self.n_passages}")


class Passage(Scenario):
    """Reward: how much nearer the agent came to its goal (or all to theirs), and a penalty per collision.

    As in VMAS, if the reward is shared, an agent also receives the penalties of the agents before it.
    """

    metric_specs: ClassVar = {
        "at_goal": MetricSpec(unit="share of agents"),
        "success": MetricSpec(unit="all agents at their goals, 0 or 1"),
        "collisions": MetricSpec(reduction="sum", higher_is_better=False),
    }
    shared_returns: ClassVar = "; every agent gets the sum of all progress"
    config: PassageConfig

    def make_world(self) -> World:
        agent_shape = Sphere(radius=AGENT_RADIUS)

        def not_box(other: Entity) -> bool:
            return not isinstance(other.shape, Box)

        goals = [
            Landmark(name=name, collide=False, shape=agent_shape, colour=LIGHT_GREEN)
            for name in numbered("goal", NUM_AGENTS, " ")
        ]
        boxes = [
            Landmark(name=name, collide=i >= self.config.n_passages, shape=WALL, colour=RED, collision_filter=not_box)
            for i, name in enumerate(numbered("passage", NUM_BOXES, " "))
        ]
        return World(
            landmarks=(*goals, *boxes),
            agents=tuple(
                Agent(name=name, shape=agent_shape, u_multiplier=0.7) for name in numbered("agent", NUM_AGENTS)
            ),
            x_semidim=1.0,
            y_semidim=1.0,
        )

    def __init__(self, config: PassageConfig):
        super().__init__(config)
        self.agents, self.goals = self.world.indices(r"agent_\d+"), self.world.indices(r"goal \d+")
        boxes = self.world.indices(r"passage \d+")
        self.gaps, self.wall = boxes[: config.n_passages], boxes[config.n_passages :]

    def reset(self, key: Key) -> ScenarioState:
        key_agents, key_goals, key_order, key_wall = jax.random.split(key, 4)
        far, near = 1 - REACH, REACH + WALL.width / 2
        agents = jax.random.uniform(key_agents, (2,), minval=jnp.array([-far, -far]), maxval=jnp.array([far, -near]))
        goals = jax.random.uniform(key_goals, (2,), minval=jnp.array([-far, near]), maxval=jnp.array([far, far]))
        cross = jax.random.permutation(key_order, CROSS)  # an agent and its goal have the same place in their crosses
        x = -1 - AGENT_RADIUS + WALL.length * (np.arange(NUM_BOXES, dtype=np.float32) + 0.5)
        boxes = jax.random.permutation(key_wall, np.stack([x, np.zeros_like(x)], -1))
        world = self.world.start(
            dict(zip(numbered("agent", NUM_AGENTS), agents + cross, strict=True))
            | dict(zip(numbered("goal", NUM_AGENTS, " "), goals + cross, strict=True))
            | dict(zip(numbered("passage", NUM_BOXES, " "), boxes, strict=True))
        )
        return self.begin(world)

    def begin(self, world: WorldState, **drawn: Array) -> ScenarioState:
        return super().begin(world, distance=self.to_goals(world), collisions=jnp.zeros(()))

    def to_goals(self, world: WorldState) -> Array:
        return norm(world.position[self.agents] - world.position[self.goals])

    def reward(self, state: ScenarioState, key: Key) -> tuple[Array, ScenarioState]:
        distance = self.to_goals(state.world)
        progress = SHAPING_FACTOR * state.memory["distance"] - SHAPING_FACTOR * distance
        with_agents, with_wall = self.collisions(state.world)
        penalty = COLLISION_PENALTY * (with_agents + with_wall)
        if self.config.reward is Reward.shared:
            progress, penalty = jnp.broadcast_to(progress.sum(), progress.shape), jnp.cumsum(penalty)
        return progress + penalty, state.remember(distance=distance, collisions=with_agents.sum() / 2 + with_wall.sum())

    def collisions(self, world: WorldState) -> tuple[Array, Array]:
        """How many agents, and how many boxes of the wall, each agent overlaps."""
        with_agents = (distances(self.world, world, self.agents, self.agents) < 0) & ~np.eye(NUM_AGENTS, dtype=bool)
        if not len(self.wall):
            return with_agents.sum(-1), jnp.zeros(NUM_AGENTS)
        return with_agents.sum(-1), jnp.sum(distances(self.world, world, self.agents, self.wall) < 0, -1)

    def observation(self, state: ScenarioState, key: Key) -> Array:
        position, velocity = state.world.position[self.agents], state.world.velocity[self.agents]
        to_goal = state.world.position[self.goals] - position
        to_gaps = state.world.position[self.gaps] - position[:, None]
        return jnp.concatenate([position, velocity, to_goal, to_gaps.reshape(NUM_AGENTS, -1)], -1)

    def potential(self, state: ScenarioState) -> Array:
        """For each agent, minus the length of the path to its goal, in units of the reward. While the wall is ahead, it
        is the shortest path through a gap."""
        position, goals = state.world.position[self.agents], state.world.position[self.goals]
        gaps = state.world.position[self.gaps]
        through = norm(gaps - position[:, None]) + norm(gaps - goals[:, None])
        ahead = position[:, 1] < gaps[0, 1]
        return -SHAPING_FACTOR * jnp.where(ahead, through.min(axis=-1), self.to_goals(state.world))

    def at_goal(self, world: WorldState) -> Array:
        return self.to_goals(world) <= AGENT_RADIUS / 2

    def done(self, state: ScenarioState) -> Array:
        return jnp.all(self.at_goal(state.world))

    def colours(self, state: ScenarioState) -> dict[str, None]:
        return {self.world.entities[i].name: None for i in self.gaps}

    def metrics(self, state: ScenarioState) -> dict[str, Array]:
        at_goal = self.at_goal(state.world)
        return {
            "at_goal": jnp.mean(at_goal),
            "success": jnp.all(at_goal).astype(jnp.float32),
            "collisions": state.memory["collisions"],
        }
