"""Navigation: every agent goes to its own goal, around the others, which it sees by lidar."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax.numpy as jnp
import numpy as np

from covey.envs.base import Reward
from covey.envs.vmas.geometry import norm
from covey.envs.vmas.lidar import make_lidar
from covey.envs.vmas.placement import place_apart
from covey.envs.vmas.scenario import Scenario, ScenarioState, VmasConfig
from covey.envs.vmas.shapes import Sphere
from covey.envs.vmas.world import Agent, Landmark, World, WorldState, numbered
from covey.task_fields import SHARED_REWARD_NAMES
from covey.types import Array, Key, MetricSpec

COLOURS = (
    (0.22, 0.49, 0.72),
    (1.0, 0.5, 0.0),
    (0.3, 0.69, 0.29),
    (0.97, 0.51, 0.75),
    (0.6, 0.31, 0.64),
    (0.89, 0.1, 0.11),
    (0.87, 0.87, 0.0),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class NavigationConfig(VmasConfig):
    shares_reward: ClassVar[bool] = True
    other_names: ClassVar = {**VmasConfig.other_names, **SHARED_REWARD_NAMES, "comms_range": None}  # for VMAS's viewer

    n_agents: int = 3  # agents, each with a goal, from 1 up
    collisions: bool = True  # agents collide, and see each other by lidar
    world_spawning_x: float = 1.0  # agents and goals start within ± this across
    world_spawning_y: float = 1.0  # agents and goals start within ± this up and down
    enforce_bounds: bool = False  # agents cannot leave the area in which they start
    # agents that share the first goal, from 1 to n_agents; more than 1 needs collisions=false
    agents_with_same_goal: int = 1
    # half of the agents share one goal, half another; needs agents_with_same_goal = n_agents / 2
    split_goals: bool = False
    observe_all_goals: bool = False  # agents see everyone's goal; false: only their own
    lidar_range: float = 0.35  # how far an agent sees others by lidar
    agent_radius: float = 0.1  # radius of an agent
    n_lidar_rays: int = 12  # rays of the lidar
    pos_shaping_factor: float = 1.0  # weight of the progress towards the goal
    final_reward: float = 0.01  # reward in each step in which all agents are at their goals
    agent_collision_penalty: float = -1.0  # reward, usually below 0, for each other agent that an agent touches

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.agents_with_same_goal <= self.n_agents:
            raise ValueError(f"agents_with_same_goal must be between 1 and n_agents={self.n_agents}")
        if self.agents_with_same_goal > 1 and self.collisions:
            raise ValueError("agents that share a goal cannot collide: set collisions=false")
        if self.split_goals and self.agents_with_same_goal * 2 != self.n_agents:
            raise ValueError("split_goals needs agents_with_same_goal to be half of n_agents")


class Navigation(Scenario):
    """Reward: how much nearer the agent came to its goal, a bonus while all are there, a penalty per collision."""

    metric_specs: ClassVar = {
        "at_goal": MetricSpec(unit="share of agents"),
        "collisions": MetricSpec(reduction="sum", higher_is_better=False),
    }
    shared_returns: ClassVar = "; every agent gets the sum of all progress"
    config: NavigationConfig

    def make_world(self) -> World:
        c = self.config
        colours = [COLOURS[i % len(COLOURS)] for i in range(c.n_agents)]
        goals = zip(numbered("goal", c.n_agents, " "), colours, strict=True)
        agents = zip(numbered("agent", c.n_agents), colours, strict=True)
        return World(
            landmarks=tuple(Landmark(name=name, collide=False, colour=colour) for name, colour in goals),
            agents=tuple(
                Agent(name=name, shape=Sphere(radius=c.agent_radius), collide=c.collisions, colour=colour)
                for name, colour in agents
            ),
            substeps=2,
            x_semidim=c.world_spawning_x if c.enforce_bounds else None,
            y_semidim=c.world_spawning_y if c.enforce_bounds else None,
        )

    def __init__(self, config: NavigationConfig):
        super().__init__(config)
        self.agents, self.goals = self.world.indices(r"agent_\d+"), self.world.indices(r"goal \d+")
        self.goal_radius = Sphere().radius
        seen = self.agents if config.collisions else self.agents[:0]
        self.measure = make_lidar(self.world, seen, seen, num_rays=config.n_lidar_rays, max_range=config.lidar_range)

    def reset(self, key: Key) -> ScenarioState:
        c = self.config
        places = place_apart(
            key,
            2 * c.n_agents,
            min_distance=2 * c.agent_radius + 0.05,
            x_bounds=(-c.world_spawning_x, c.world_spawning_x),
            y_bounds=(-c.world_spawning_y, c.world_spawning_y),
        )
        numbers = np.arange(c.n_agents)
        if c.split_goals:
            chosen = numbers // c.agents_with_same_goal
        else:
            chosen = np.where(numbers < c.agents_with_same_goal, 0, numbers)
        world = self.world.start(
            dict(zip(numbered("agent", c.n_agents), places[: c.n_agents], strict=True))
            | dict(zip(numbered("goal", c.n_agents, " "), places[c.n_agents :][chosen], strict=True))
        )
        return self.begin(world)

    def begin(self, world: WorldState, **drawn: Array) -> ScenarioState:
        shaping = self.distances(world) * self.config.pos_shaping_factor
        return super().begin(world, shaping=shaping, collisions=jnp.zeros(()))

    def distances(self, world: WorldState) -> Array:
        return norm(world.position[self.agents] - world.position[self.goals])

    def shares_reward(self, group: str) -> bool:
        return self.config.reward is Reward.shared and not self.config.agent_collision_penalty

    def reward(self, state: ScenarioState, key: Key) -> tuple[Array, ScenarioState]:
        c = self.config
        distance = self.distances(state.world)
        shaping = distance * c.pos_shaping_factor
        progress = state.memory["shaping"] - shaping
        if c.reward is Reward.shared:
            progress = jnp.broadcast_to(progress.sum(), progress.shape)
        bonus = c.final_reward * jnp.all(distance < self.goal_radius)
        touching = self.touching(state)
        penalty = c.agent_collision_penalty * touching.sum(-1)
        state = state.remember(shaping=shaping, collisions=touching.sum() / 2)
        return progress + bonus + penalty, state

    def touching(self, state: ScenarioState) -> Array:
        """Which agents overlap, `[A, A]`, none with itself."""
        position = state.world.position[self.agents]
        near = norm(position[:, None] - position) <= 2 * self.config.agent_radius
        return near & ~np.eye(len(self.agents), dtype=bool) & self.config.collisions

    def observation(self, state: ScenarioState, key: Key) -> Array:
        c = self.config
        position, velocity = state.world.position[self.agents], state.world.velocity[self.agents]
        goals = state.world.position[self.goals]
        to_goals = (position[:, None] - goals).reshape(c.n_agents, -1) if c.observe_all_goals else position - goals
        seen = [c.lidar_range - self.measure(state.world)] if c.collisions else []
        return jnp.concatenate([position, velocity, to_goals, *seen], -1)

    def done(self, state: ScenarioState) -> Array:
        return jnp.all(self.distances(state.world) < self.config.agent_radius)

    def metrics(self, state: ScenarioState) -> dict[str, Array]:
        return {
            "at_goal": jnp.mean(self.distances(state.world) < self.config.agent_radius),
            "collisions": state.memory["collisions"],
        }
