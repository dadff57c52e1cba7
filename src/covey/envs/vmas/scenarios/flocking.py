"""Flocking: agents stay close to each other and to a target that moves by itself, among obstacles."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax.numpy as jnp

from covey.envs.vmas.geometry import norm, unit
from covey.envs.vmas.lidar import make_lidar
from covey.envs.vmas.placement import place_apart
from covey.envs.vmas.scenario import Scenario, ScenarioState, VmasConfig
from covey.envs.vmas.shapes import Sphere
from covey.envs.vmas.world import GREEN, RED, Agent, Landmark, World, WorldState, numbered
from covey.types import Array, Key, MetricSpec

DESIRED_DISTANCE = 0.1  # between centres: agents that touch
COLLISION_GAP = 0.005  # agents this close count as colliding
LIDAR_RANGE = 0.2
STEPS_PER_RADIAN = 30  # of the target's circling


@dataclasses.dataclass(frozen=True, kw_only=True)
class FlockingConfig(VmasConfig):
    n_agents: int = 4  # agents that flock, from 1 up
    n_obstacles: int = 5  # obstacles, from 0 up
    collision_reward: float = -0.1  # reward for each other agent, or the target, that an agent touches
    min_dist_between_entities: float = 0.15  # least distance between agents and obstacles at the start
    n_lidar_rays: int = 12  # rays of the lidar that sees obstacles, from 1 up
    dist_shaping_factor: float = 1.0  # weight of the progress towards the desired distance to the others

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.n_agents < 1 or self.n_obstacles < 0 or self.n_lidar_rays < 1:
            raise ValueError("n_agents and n_lidar_rays must be at least 1, and n_obstacles at least 0")


class Flocking(Scenario):
    """Reward: how much nearer the agent's distances to all others came to the desired one, and a penalty per collision.

    Both count the target, which pushes in a slowly turning direction.
    """

    metric_specs: ClassVar = {
        "target_distance": MetricSpec(unit="mean over agents", higher_is_better=False),
        "collisions": MetricSpec(reduction="sum", higher_is_better=False),
    }
    config: FlockingConfig

    def make_world(self) -> World:
        c = self.config
        return World(
            landmarks=tuple(
                Landmark(name=name, shape=Sphere(radius=0.1), colour=RED)
                for name in numbered("obstacle", c.n_obstacles)
            ),
            agents=(
                Agent(name="target", colour=GREEN, scripted=True),
                *(Agent(name=name) for name in numbered("agent", c.n_agents)),
            ),
            collision_force=400.0,
            substeps=5,
        )

    def __init__(self, config: FlockingConfig):
        super().__init__(config)
        self.flock, self.target = self.world.agent_indices, self.world.index("target")  # the flock: agents and target
        self.agents = self.world.indices(r"agent_\d+")
        self.others = self.agents[:, None] != self.flock
        self.measure = make_lidar(
            self.world,
            self.agents,
            self.world.indices(r"obstacle_\d+"),
            num_rays=config.n_lidar_rays,
            max_range=LIDAR_RANGE,
        )

    def reset(self, key: Key) -> ScenarioState:
        c = self.config
        start = jnp.array([0.0, -1.0])
        places = place_apart(
            key,
            c.n_obstacles + c.n_agents,
            min_distance=c.min_dist_between_entities,
            x_bounds=(-1.0, 1.0),
            y_bounds=(-1.0, 1.0),
            occupied=start[None],
        )
        names = [*numbered("obstacle", c.n_obstacles), *numbered("agent", c.n_agents)]
        world = self.world.start({"target": start} | dict(zip(names, places, strict=True)))
        return self.begin(world, time=jnp.zeros(()))

    def begin(self, world: WorldState, **drawn: Array) -> ScenarioState:
        shaping = self.shaping(self.distances(world))
        return super().begin(world, shaping=shaping, collisions=jnp.zeros(()), **drawn)

    def process_action(self, state: ScenarioState, u: Array, key: Key) -> tuple[Array, ScenarioState]:
        return u.at[0, :2].set(unit(state.memory["time"] / STEPS_PER_RADIAN)), state

    def distances(self, world: WorldState) -> Array:
        """From each agent to everyone in the flock, `[A, 1 + A]`."""
        return norm(world.position[self.agents][:, None] - world.position[self.flock])

    def shaping(self, distances: Array) -> Array:
        error = jnp.square(distances - DESIRED_DISTANCE)
        return self.config.dist_shaping_factor * error.mean(-1, where=self.others)

    def reward(self, state: ScenarioState, key: Key) -> tuple[Array, ScenarioState]:
        memory = state.memory
        distances = self.distances(state.world)
        shaping = self.shaping(distances)
        colliding = (distances - 2 * Sphere().radius <= COLLISION_GAP) & self.others
        penalty = self.config.collision_reward * colliding.sum(-1)
        with_target = colliding[:, 0].sum()  # counted once, other pairs twice
        state = state.remember(shaping=shaping, time=memory["time"] + 1, collisions=(colliding.sum() + with_target) / 2)
        return memory["shaping"] - shaping + penalty, state

    def observation(self, state: ScenarioState, key: Key) -> Array:
        world = state.world
        position, velocity = world.position[self.agents], world.velocity[self.agents]
        to_target = position - world.position[self.target]
        return jnp.concatenate([position, velocity, to_target, self.measure(world)], -1)

    def metrics(self, state: ScenarioState) -> dict[str, Array]:
        return {
            "target_distance": jnp.mean(self.distances(state.world)[:, 0]),
            "collisions": state.memory["collisions"],
        }
