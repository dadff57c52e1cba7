"""Balance: agents under a line lift a package that lies on it to a goal, against gravity, and must not let it fall."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from covey.envs.vmas.geometry import norm
from covey.envs.vmas.physics import overlapping
from covey.envs.vmas.scenario import Scenario, ScenarioState, VmasConfig
from covey.envs.vmas.shapes import Box, Line, Sphere
from covey.envs.vmas.world import BLACK, LIGHT_GREEN, RED, WHITE, Agent, Landmark, World, WorldState, numbered
from covey.types import Array, Key, MetricSpec

LINE_LENGTH = 0.8
AGENT_RADIUS = 0.03
PACKAGE_RADIUS = 0.05
HEIGHT = 1.0  # the lowest agents can go is −HEIGHT, and the floor lies below their feet
FLOOR_WIDTH = 1.0
SHAPING_FACTOR = 100.0
FALL_REWARD = -10.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class BalanceConfig(VmasConfig):
    n_agents: int = 4  # agents that hold the line, from 2 up
    random_package_pos_on_line: bool = True  # the package starts anywhere on the line; false: in its middle
    package_mass: float = 5.0  # mass of the package, above 0; an agent has 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.n_agents < 2:
            raise ValueError(f"n_agents must be at least 2 to hold the line, not {self.n_agents}")
        if self.package_mass <= 0:
            raise ValueError(f"package_mass must be positive, not {self.package_mass}")


class Balance(Scenario):
    """Reward, the same for all: how much nearer the package came to its goal, a penalty when it or the line falls."""

    metric_specs: ClassVar = {
        "at_goal": MetricSpec(unit="share of episodes"),
        "fallen": MetricSpec(unit="share of episodes", higher_is_better=False),
    }
    config: BalanceConfig

    def make_world(self) -> World:
        c = self.config
        return World(
            landmarks=(
                Landmark(name="goal", collide=False, colour=LIGHT_GREEN),
                Landmark(
                    name="package", shape=Sphere(radius=PACKAGE_RADIUS), movable=True, mass=c.package_mass, colour=RED
                ),
                Landmark(
                    name="line", shape=Line(length=LINE_LENGTH), movable=True, rotatable=True, mass=5.0, colour=BLACK
                ),
                Landmark(name="floor", shape=Box(length=10.0, width=FLOOR_WIDTH), colour=WHITE),
            ),
            agents=tuple(
                Agent(name=name, shape=Sphere(radius=AGENT_RADIUS), u_multiplier=0.7)
                for name in numbered("agent", c.n_agents)
            ),
            gravity=(0.0, -0.05),
            y_semidim=HEIGHT,
        )

    def __init__(self, config: BalanceConfig):
        super().__init__(config)
        self.agents = self.world.agent_indices
        self.goal, self.package, self.line, self.floor = map(self.world.index, ("goal", "package", "line", "floor"))

    def reset(self, key: Key) -> ScenarioState:
        c = self.config
        key_goal, key_line, key_package = jax.random.split(key, 3)
        goal = jax.random.uniform(key_goal, (2,), minval=jnp.array([-1.0, 0.0]), maxval=jnp.array([1.0, HEIGHT]))
        most = 1.0 - LINE_LENGTH / 2
        line = jnp.stack(
            [jax.random.uniform(key_line, minval=-most, maxval=most), jnp.array(-HEIGHT + 2 * AGENT_RADIUS)]
        )
        most = LINE_LENGTH / 2 - PACKAGE_RADIUS if c.random_package_pos_on_line else 0.0
        along = jax.random.uniform(key_package, minval=-most, maxval=most)
        reach = (LINE_LENGTH - AGENT_RADIUS) / 2
        below = np.stack([np.linspace(-reach, reach, c.n_agents), np.full(c.n_agents, -2 * AGENT_RADIUS)], -1)
        agents = line + below.astype(np.float32)
        world = self.world.start(
            {
                "goal": goal,
                "package": line + jnp.stack([along, jnp.array(PACKAGE_RADIUS)]),
                "line": line,
                "floor": jnp.array([0.0, -HEIGHT - FLOOR_WIDTH / 2 - AGENT_RADIUS]),
            }
            | dict(zip(numbered("agent", c.n_agents), agents, strict=True))
        )
        return self.begin(world)

    def begin(self, world: WorldState, **drawn: Array) -> ScenarioState:
        return super().begin(world, shaping=self.shaping(world))

    def shaping(self, world: WorldState) -> Array:
        return SHAPING_FACTOR * norm(world.position[self.package] - world.position[self.goal])

    def fallen(self, world: WorldState) -> Array:
        return overlapping(self.world, world, self.line, self.floor) | overlapping(
            self.world, world, self.package, self.floor
        )

    def at_goal(self, world: WorldState) -> Array:
        return overlapping(self.world, world, self.package, self.goal)

    def shares_reward(self, group: str) -> bool:
        return True

    def reward(self, state: ScenarioState, key: Key) -> tuple[Array, ScenarioState]:
        shaping = self.shaping(state.world)
        reward = state.memory["shaping"] - shaping + FALL_REWARD * self.fallen(state.world)
        return jnp.full(self.config.n_agents, reward), state.remember(shaping=shaping)

    def observation(self, state: ScenarioState, key: Key) -> Array:
        position, velocity = state.world.position, state.world.velocity
        own = position[self.agents]
        of_all = jnp.concatenate(
            [
                position[self.package] - position[self.goal],
                velocity[self.package],
                velocity[self.line],
                state.world.angular_velocity[self.line][None],
                state.world.rotation[self.line][None] % jnp.pi,
            ]
        )
        return jnp.concatenate(
            [
                own,
                velocity[self.agents],
                own - position[self.package],
                own - position[self.line],
                jnp.broadcast_to(of_all, (len(self.agents), of_all.size)),
            ],
            -1,
        )

    def done(self, state: ScenarioState) -> Array:
        return self.fallen(state.world) | self.at_goal(state.world)

    def metrics(self, state: ScenarioState) -> dict[str, Array]:
        return {
            "at_goal": self.at_goal(state.world).astype(jnp.float32),
            "fallen": self.fallen(state.world).astype(jnp.float32),
        }
