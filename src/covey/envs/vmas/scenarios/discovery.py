"""Discovery: agents search for targets with lidar. When several of them cover a target, it moves away."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from covey.envs.base import Reward
from covey.envs.vmas.geometry import norm
from covey.envs.vmas.lidar import make_lidar
from covey.envs.vmas.placement import place_apart
from covey.envs.vmas.scenario import Scenario, ScenarioState, VmasConfig
from covey.envs.vmas.shapes import Sphere
from covey.envs.vmas.world import GREEN, Agent, Landmark, World, WorldState, numbered
from covey.task_fields import SHARED_REWARD_NAMES
from covey.types import Array, Key, MetricSpec

RADIUS = 0.05  # of agents and targets
COLLISION_GAP = 0.005  # agents closer than this count as colliding
FIRST_AGENT_RAY = 0.05
FAR_AWAY = (-1000.0, -10.0)  # where covered targets go that do not respawn, in units of x_semidim


@dataclasses.dataclass(frozen=True, kw_only=True)
class DiscoveryConfig(VmasConfig):
    shares_reward: ClassVar[bool] = True
    other_names: ClassVar = {**VmasConfig.other_names, **SHARED_REWARD_NAMES}

    n_agents: int = 5  # agents
    n_targets: int = 7  # targets to find, from 1 up
    lidar_range: float = 0.35  # how far an agent sees by lidar
    covering_range: float = 0.25  # distance from which an agent covers a target
    agents_per_target: int = 2  # agents that must be in `covering_range` at once to cover a target, from 1 to n_agents
    targets_respawn: bool = True  # covered targets move to a random place; false: they disappear
    # who receives which reward; shared: everyone receives half of the sum over all agents; individual: each agent only
    # for its own targets
    reward: Reward = Reward.shared
    x_semidim: float = 1.0  # half the width of the world
    y_semidim: float = 1.0  # half the height of the world
    min_dist_between_entities: float = 0.2  # least distance between agents and targets at the start
    use_agent_lidar: bool = False  # agents see each other too, with a second lidar
    n_lidar_rays_entities: int = 15  # rays of the lidar that sees targets
    n_lidar_rays_agents: int = 12  # rays of the lidar that sees agents; only with `use_agent_lidar`
    agent_collision_penalty: float = 0.0  # reward, usually below 0, for each other agent that an agent touches
    covering_rew_coeff: float = 1.0  # reward for a covered target
    time_penalty: float = 0.0  # reward in each step, usually below 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.n_targets < 1 or not 1 <= self.agents_per_target <= self.n_agents:
            raise ValueError(f"agents_per_target must be between 1 and n_agents={self.n_agents}, n_targets at least 1")


class Discovery(Scenario):
    """Reward: one for each covered target that the agent is at, less penalties per collision and per step.

    If shared, everyone receives half of the sum over agents, which is one per target that two cover.
    """

    metric_specs: ClassVar = {"covered": MetricSpec(reduction="sum", unit="targets")}
    shared_returns: ClassVar = "; every agent gets half the sum of what all cover"
    config: DiscoveryConfig

    def make_world(self) -> World:
        c = self.config
        body = Sphere(radius=RADIUS)
        return World(
            landmarks=tuple(Landmark(name=n, shape=body, colour=GREEN) for n in numbered("target", c.n_targets)),
            agents=tuple(Agent(name=n, shape=body) for n in numbered("agent", c.n_agents)),
            x_semidim=c.x_semidim,
            y_semidim=c.y_semidim,
            collision_force=500.0,
            substeps=2,
        )

    def __init__(self, config: DiscoveryConfig):
        super().__init__(config)
        self.agents, self.targets = self.world.indices(r"agent_\d+"), self.world.indices(r"target_\d+")
        self.see_targets = make_lidar(
            self.world, self.agents, self.targets, num_rays=config.n_lidar_rays_entities, max_range=config.lidar_range
        )
        self.see_agents = make_lidar(
            self.world,
            self.agents,
            self.agents,
            num_rays=config.n_lidar_rays_agents,
            max_range=config.lidar_range,
            angle_start=FIRST_AGENT_RAY,
            angle_end=FIRST_AGENT_RAY + 2 * np.pi,
        )

    def place(self, key: Key, num: int, occupied: Array | None = None) -> Array:
        c = self.config
        return place_apart(
            key,
            num,
            min_distance=c.min_dist_between_entities,
            x_bounds=(-c.x_semidim, c.x_semidim),
            y_bounds=(-c.y_semidim, c.y_semidim),
            occupied=occupied,
        )

    def reset(self, key: Key) -> ScenarioState:
        c = self.config
        names = [*numbered("target", c.n_targets), *numbered("agent", c.n_agents)]
        world = self.world.start(dict(zip(names, self.place(key, len(names)), strict=True)))
        return self.begin(world, gone=jnp.zeros(c.n_targets, bool))

    def begin(self, world: WorldState, **drawn: Array) -> ScenarioState:
        return super().begin(world, covered=jnp.zeros(self.config.n_targets, bool), **drawn)

    def shares_reward(self, group: str) -> bool:
        return self.config.reward is Reward.shared and not self.config.agent_collision_penalty

    def reward(self, state: ScenarioState, key: Key) -> tuple[Array, ScenarioState]:
        c = self.config
        agents, targets = state.world.position[self.agents], state.world.position[self.targets]
        at_target = norm(agents[:, None] - targets) < c.covering_range
        covered = at_target.sum(0) >= c.agents_per_target
        covering = c.covering_rew_coeff * jnp.sum(at_target & covered, -1)
        if c.reward is Reward.shared:
            covering = jnp.broadcast_to(covering.sum() / 2, covering.shape)  # 2 whatever agents_per_target
        colliding = norm(agents[:, None] - agents) - 2 * RADIUS < COLLISION_GAP
        collisions = colliding.sum(-1) - 1  # without itself
        rewards = covering + c.agent_collision_penalty * collisions + c.time_penalty
        move = self.respawn if c.targets_respawn else self.remove
        return rewards, move(state.remember(covered=covered), key)

    def respawn(self, state: ScenarioState, key: Key) -> ScenarioState:
        """Covered targets, one after another, to places apart from agents and all other targets."""
        agents, covered = state.world.position[self.agents], state.memory["covered"]

        def move(targets: Array, at: tuple[Array, Key]) -> tuple[Array, None]:
            number, key_place = at
            others = targets.at[number].set(jnp.inf)
            place = self.place(key_place, 1, jnp.concatenate([agents, others]))[0]
            return targets.at[number].set(jnp.where(covered[number], place, targets[number])), None

        numbers, keys = jnp.arange(len(self.targets)), jax.random.split(key, len(self.targets))
        targets, _ = jax.lax.scan(move, state.world.position[self.targets], (numbers, keys))
        return state.with_world(position=state.world.position.at[self.targets].set(targets))

    def remove(self, state: ScenarioState, key: Key) -> ScenarioState:
        covered = state.memory["covered"]
        low, high = (bound * self.config.x_semidim for bound in FAR_AWAY)
        away = jax.random.uniform(key, (len(self.targets), 2), minval=low, maxval=high)
        targets = jnp.where(covered[:, None], away, state.world.position[self.targets])
        state = state.with_world(position=state.world.position.at[self.targets].set(targets))
        return state.remember(gone=state.memory["gone"] | covered)

    def observation(self, state: ScenarioState, key: Key) -> Array:
        world = state.world
        others = [self.see_agents(world)] if self.config.use_agent_lidar else []
        return jnp.concatenate(
            [world.position[self.agents], world.velocity[self.agents], self.see_targets(world), *others], -1
        )

    def done(self, state: ScenarioState) -> Array:
        return jnp.all(state.memory["gone"])

    def metrics(self, state: ScenarioState) -> dict[str, Array]:
        return {"covered": state.memory["covered"].sum().astype(jnp.float32)}
