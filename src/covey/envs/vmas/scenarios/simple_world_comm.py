"""World with communication: adversaries, one of whom leads and speaks to the rest, hunt agents that look for food."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np

from covey.envs.vmas.particles import distances, offsets, others, scatter
from covey.envs.vmas.scenario import Scenario, ScenarioState, VmasConfig
from covey.envs.vmas.shapes import Sphere
from covey.envs.vmas.world import GRAY, LIGHT_GREEN, Agent, Landmark, World
from covey.types import Array, Key, MetricSpec

ADVERSARY = Sphere(radius=0.075)
GOOD = Sphere(radius=0.045)
OBSTACLE, FOOD, FOREST = Sphere(radius=0.2), Sphere(radius=0.03), Sphere(radius=0.3)
LEADER_COLOUR, ADVERSARY_COLOUR = (0.65, 0.15, 0.15), (0.95, 0.45, 0.45)
FOOD_COLOUR, FOREST_COLOUR = (0.15, 0.15, 0.65), (0.6, 0.9, 0.6)
LANDMARK_REACH = 0.9  # landmarks start within ± this, agents within the world's bounds


@dataclasses.dataclass(frozen=True, kw_only=True)
class SimpleWorldCommConfig(VmasConfig):
    num_good_agents: int = 2  # agents that look for food and are hunted
    num_adversaries: int = 4  # adversaries that hunt, the leader included
    num_landmarks: int = 1  # obstacles
    num_food: int = 2  # pieces of food
    num_forests: int = 2  # forests, in which agents cannot be seen from outside

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("num_good_agents", "num_adversaries", "num_food", "num_forests"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.num_landmarks < 0:
            raise ValueError(f"num_landmarks must not be negative, but is {self.num_landmarks}")


class SimpleWorldComm(Scenario):
    """Reward: an agent loses five for each adversary that touches it, gets two for each food that it touches and loses
    0.05 times the distance to the nearest food. Adversaries get five for every touch of any of them.

    As in VMAS, forests hide everyone always, also within the same forest: only the leader sees other agents, and
    whether one is in a forest is always observed as −1, which means no. The others see zeros.
    """

    metric_specs: ClassVar = {
        "catches": MetricSpec(reduction="sum", unit="steps in contact, over all pairs"),
        "eaten": MetricSpec(reduction="sum", unit="steps at food, over all agents"),
    }
    opposed_groups: ClassVar = (("lead_adversary", "adversary"), ("agent",))
    shared_rewards: ClassVar = (("lead_adversary", "adversary"),)
    config: SimpleWorldCommConfig

    def make_world(self) -> World:
        c = self.config
        hunting: dict[str, Any] = {"shape": ADVERSARY, "u_multiplier": 3.0, "max_speed": 1.0}
        return World(
            landmarks=(
                *(Landmark(name=f"landmark {i}", shape=OBSTACLE, colour=GRAY) for i in range(c.num_landmarks)),
                *(Landmark(name=f"food {i}", shape=FOOD, collide=False, colour=FOOD_COLOUR) for i in range(c.num_food)),
                *(
                    Landmark(name=f"forest {i}", shape=FOREST, collide=False, colour=FOREST_COLOUR)
                    for i in range(c.num_forests)
                ),
            ),
            agents=(
                Agent(name="lead_adversary_0", silent=False, colour=LEADER_COLOUR, **hunting),
                *(
                    Agent(name=f"adversary_{i}", colour=ADVERSARY_COLOUR, **hunting)
                    for i in range(1, c.num_adversaries)
                ),
                *(
                    Agent(name=f"agent_{i}", shape=GOOD, u_multiplier=4.0, max_speed=1.3, colour=LIGHT_GREEN)
                    for i in range(c.num_good_agents)
                ),
            ),
            x_semidim=1.0,
            y_semidim=1.0,
            dim_c=4,
        )

    def __init__(self, config: SimpleWorldCommConfig):
        super().__init__(config)
        self.landmarks, self.food = self.world.indices("(landmark|food|forest) .*"), self.world.indices("food .*")
        self.agents = self.world.agent_indices
        self.adversaries, self.good = np.split(self.agents, [config.num_adversaries])

    def reset(self, key: Key) -> ScenarioState:
        reach = np.ones((len(self.world.entities), 1), np.float32)
        reach[self.landmarks] = LANDMARK_REACH
        return self.begin(scatter(self.world, key, reach))

    def shares_reward(self, group: str) -> bool:
        return group != "agent"

    def reward(self, state: ScenarioState, key: Key) -> tuple[Array, ScenarioState]:
        caught, to_food = self.caught(state), self.to_food(state)
        for_good = 2.0 * self.eating(to_food).sum(1) - 5.0 * caught.sum(0) - 0.05 * to_food.min(1)
        for_adversaries = jnp.broadcast_to(5.0 * caught.sum(), (len(self.adversaries),))
        return jnp.concatenate([for_adversaries, for_good]), state

    def caught(self, state: ScenarioState) -> Array:
        """Which adversaries touch which agents, `[adversaries, agents]`."""
        position = state.world.position
        return distances(position[self.adversaries], position[self.good]) < ADVERSARY.radius + GOOD.radius

    def to_food(self, state: ScenarioState) -> Array:
        """From each agent that is not an adversary, `[agents, food]`."""
        return distances(state.world.position[self.good], state.world.position[self.food])

    def eating(self, to_food: Array) -> Array:
        return to_food < GOOD.radius + FOOD.radius

    def observation(self, state: ScenarioState, key: Key) -> list[Array]:
        world, forests = state.world, self.config.num_forests
        position, velocity = world.position[self.agents], world.velocity[self.agents]
        count = len(self.agents)
        itself = jnp.concatenate([velocity, position, offsets(position, world.position[self.landmarks])], -1)
        hidden = jnp.zeros(2 * 2 * forests * (count - 1))
        in_forest = jnp.full(forests, -1.0)
        heard = world.communication[0]
        rows = [
            jnp.concatenate([itself[0], self.seen_by_leader(state), in_forest, heard]),
            *(jnp.concatenate([itself[i], hidden, in_forest, heard]) for i in range(1, len(self.adversaries))),
            *(jnp.concatenate([itself[i], hidden, in_forest]) for i in range(len(self.adversaries), count)),
        ]
        return rows

    def seen_by_leader(self, state: ScenarioState) -> Array:
        """Of each other agent, once per forest, its offset; then in the same way the velocity, zero for adversaries."""
        world = state.world
        rest = self.agents[others(len(self.agents))[0]]
        prey = np.isin(rest, self.good)[:, None]
        offset = world.position[rest] - world.position[self.agents[0]]
        velocity = jnp.where(prey, world.velocity[rest], 0.0)
        per_forest = [jnp.repeat(values, self.config.num_forests, axis=0).reshape(-1) for values in (offset, velocity)]
        return jnp.concatenate(per_forest)

    def metrics(self, state: ScenarioState) -> dict[str, Array]:
        return {
            "catches": self.caught(state).sum().astype(jnp.float32),
            "eaten": self.eating(self.to_food(state)).sum().astype(jnp.float32),
        }
