"""Sampling: agents explore a field of hidden hills, where each cell of the ground is worth its height once.

Differences from VMAS: without collisions VMAS fails, since no agent has the lidar that it observes; here they observe
the rest.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from covey.envs.base import Reward
from covey.envs.vmas.lidar import make_lidar
from covey.envs.vmas.scenario import Scenario, ScenarioState, VmasConfig
from covey.envs.vmas.shapes import Sphere
from covey.envs.vmas.world import Agent, World, WorldState, numbered
from covey.task_fields import SHARED_REWARD_NAMES
from covey.types import Array, Key, MetricSpec

NUM_RAYS, FIRST_RAY = 12, 0.05
NEIGHBOURS = np.array([(1, 0), (-1, 0), (0, 1), (0, -1), (-1, -1), (1, -1), (-1, 1), (1, 1)], np.float32)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SamplingConfig(VmasConfig):
    shares_reward: ClassVar[bool] = True
    other_names: ClassVar = {**VmasConfig.other_names, **SHARED_REWARD_NAMES}

    n_agents: int = 3  # agents, from 1 up
    n_gaussians: int = 3  # hills of the field, from 1 up
    lidar_range: float = 0.2  # how far an agent sees others by lidar
    cov: float | tuple[float, ...] = 0.05  # variance of the hills, above 0: one number for all, or one for each
    collisions: bool = True  # agents collide, and see each other by lidar
    spawn_same_pos: bool = False  # all start in the middle; needs collisions=false
    comms_range: float = 0.0  # agents this close are drawn with a line between them
    agent_radius: float = 0.025  # radius of an agent
    xdim: float = 1.0  # half the width of the field, a multiple of `grid_spacing`
    ydim: float = 1.0  # half the height of the field, a multiple of `grid_spacing`
    grid_spacing: float = 0.05  # side of a cell, which can be sampled once
    norm: bool = True  # rewards are heights divided by the greatest height; false: heights

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.n_agents < 1 or self.n_gaussians < 1:
            raise ValueError("n_agents and n_gaussians must be at least 1")
        if self.spawn_same_pos and self.collisions:
            raise ValueError("agents that start at one point cannot collide: set collisions=false")
        if (self.xdim / self.grid_spacing) % 1 or (self.ydim / self.grid_spacing) % 1:
            raise ValueError("xdim and ydim must be multiples of grid_spacing")
        if len(self.covariances) != self.n_gaussians or min(self.covariances) <= 0:
            raise ValueError(f"cov must be one positive number, or n_gaussians={self.n_gaussians} of them")

    @property
    def covariances(self) -> tuple[float, ...]:
        return self.cov if isinstance(self.cov, tuple) else (self.cov,) * self.n_gaussians


class Sampling(Scenario):
    """Reward: the height of the field where the agent is, if nobody was in that cell before."""

    metric_specs: ClassVar = {"sampled": MetricSpec(unit="share of cells")}
    shared_returns: ClassVar = "; every agent gets the sum over the team"
    config: SamplingConfig

    def make_world(self) -> World:
        c = self.config
        return World(
            agents=tuple(
                Agent(name=name, shape=Sphere(radius=c.agent_radius), collide=c.collisions)
                for name in numbered("agent", c.n_agents)
            ),
            x_semidim=c.xdim - c.agent_radius,
            y_semidim=c.ydim - c.agent_radius,
        )

    def __init__(self, config: SamplingConfig):
        super().__init__(config)
        self.agents = self.world.agent_indices
        self.field = np.array([config.xdim, config.ydim], np.float32)
        self.reachable = np.array([self.world.x_semidim, self.world.y_semidim], np.float32)
        self.grid_shape = (int(2 * config.xdim / config.grid_spacing), int(2 * config.ydim / config.grid_spacing))
        self.measure = make_lidar(
            self.world,
            self.agents,
            self.agents,
            num_rays=NUM_RAYS,
            max_range=config.lidar_range,
            angle_start=FIRST_RAY,
            angle_end=FIRST_RAY + 2 * np.pi,
        )

    def reset(self, key: Key) -> ScenarioState:
        c = self.config
        key_hills, key_agents = jax.random.split(key)
        hills = jax.random.uniform(key_hills, (c.n_gaussians, 2), minval=-self.field, maxval=self.field)
        places = jax.random.uniform(key_agents, (c.n_agents, 2), minval=-self.field, maxval=self.field)
        places = jnp.zeros_like(places) if c.spawn_same_pos else jnp.clip(places, -self.reachable, self.reachable)
        world = self.world.start(dict(zip(numbered("agent", c.n_agents), places, strict=True)))
        return self.begin(world, hills=hills, sampled=jnp.zeros(self.grid_shape, bool))

    def begin(self, world: WorldState, **drawn: Array) -> ScenarioState:
        ticks = [np.arange(count) * self.config.grid_spacing for count in self.grid_shape]
        corners = np.stack(np.meshgrid(*ticks, indexing="ij"), -1).astype(np.float32) - self.field
        heights = self.height(np.clip(corners, -self.reachable, self.reachable), drawn["hills"])
        return super().begin(world, greatest=heights.max(), **drawn)

    def height(self, place: Array | np.ndarray, hills: Array) -> Array:
        """The sum of normal densities around the `hills` at places `[…, 2]`."""
        covariance = np.array(self.config.covariances, np.float32)
        square = jnp.sum(jnp.square(place[..., None, :] - hills), -1)
        return jnp.sum(jnp.exp(-square / (2 * covariance)) / (2 * np.pi * covariance), -1)

    def cell(self, place: Array) -> tuple[Array, Array]:
        """The row and column of the grid's cell that holds each place `[…, 2]`."""
        index = (place / self.config.grid_spacing + np.array(self.grid_shape) / 2).astype(int)
        return index[..., 0], index[..., 1]

    def shares_reward(self, group: str) -> bool:
        return self.config.reward is Reward.shared

    def reward(self, state: ScenarioState, key: Key) -> tuple[Array, ScenarioState]:
        c, memory = self.config, state.memory
        position = state.world.position[self.agents]
        x, y = self.cell(position)
        same_cell = (x[:, None] == x) & (y[:, None] == y)
        late = jnp.any(jnp.tril(same_cell, -1), -1)  # if two enter a cell at once, the first one counts
        taken = memory["sampled"][x, y] | late
        sample = jnp.where(taken, 0.0, self.height(position, memory["hills"]))
        sample = sample / memory["greatest"] if c.norm else sample
        rewards = jnp.broadcast_to(sample.sum(), sample.shape) if c.reward is Reward.shared else sample
        return rewards, state.remember(sampled=memory["sampled"].at[x, y].set(True))

    def observation(self, state: ScenarioState, key: Key) -> Array:
        world = state.world
        position, velocity = world.position[self.agents], world.velocity[self.agents]
        seen = [self.measure(world)] if self.config.collisions else []
        return jnp.concatenate([position, velocity, *seen, self.around(state, position)], -1)

    def around(self, state: ScenarioState, position: Array) -> Array:
        """What the eight places one cell away are worth, `[A, 8]`, as a share of the greatest height."""
        memory = state.memory
        places = position[:, None] + NEIGHBOURS * self.config.grid_spacing
        outside = jnp.any(jnp.abs(places) > self.field, -1)
        places = jnp.clip(places, -self.reachable, self.reachable)
        worthless = memory["sampled"][self.cell(places)] | outside
        return jnp.where(worthless, 0.0, self.height(places, memory["hills"]) / memory["greatest"])

    def metrics(self, state: ScenarioState) -> dict[str, Array]:
        return {"sampled": jnp.mean(state.memory["sampled"])}
