"""Adversary: agents know which landmark is the goal and cover it, without showing it to adversaries, who do not."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from covey.envs.vmas.geometry import norm
from covey.envs.vmas.particles import nearest_of, offsets, offsets_to_others, read_offsets, scatter
from covey.envs.vmas.scenario import Scenario, ScenarioState, VmasConfig
from covey.envs.vmas.shapes import Sphere
from covey.envs.vmas.world import BLACK, BLUE, RED, Agent, Landmark, World
from covey.types import Array, Key, MetricSpec

BODY = Sphere(radius=0.15)
LANDMARK = Sphere(radius=0.08)
GAIN = 5.0  # of a reference policy, from offsets to actions


@dataclasses.dataclass(frozen=True, kw_only=True)
class SimpleAdversaryConfig(VmasConfig):
    n_agents: int = 3  # agents, adversaries included; there is one landmark fewer
    n_adversaries: int = 1  # adversaries, which do not know the goal

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.n_adversaries < self.n_agents:
            raise ValueError(f"n_adversaries must be at least 1 and less than n_agents={self.n_agents}")


class SimpleAdversary(Scenario):
    """Reward: an adversary loses its distance to the goal. Each agent gets all adversaries' distances and loses that of
    the nearest agent."""

    metric_specs: ClassVar = {
        "goal_covered": MetricSpec(unit="by an agent, 0 or 1"),
        "goal_found": MetricSpec(unit="by an adversary, 0 or 1", higher_is_better=False),
    }
    opposed_groups: ClassVar = (("agent",), ("adversary",))
    config: SimpleAdversaryConfig

    def make_world(self) -> World:
        c = self.config
        return World(
            landmarks=tuple(
                Landmark(name=f"landmark {i}", shape=LANDMARK, collide=False, colour=BLACK)
                for i in range(c.n_agents - 1)
            ),
            agents=(
                *(Agent(name=f"adversary_{i}", shape=BODY, collide=False, colour=RED) for i in range(c.n_adversaries)),
                *(
                    Agent(name=f"agent_{i}", shape=BODY, collide=False, colour=BLUE)
                    for i in range(c.n_agents - c.n_adversaries)
                ),
            ),
        )

    def __init__(self, config: SimpleAdversaryConfig):
        super().__init__(config)
        self.agents, self.landmarks = self.world.agent_indices, self.world.indices(r"landmark \d+")

    def reset(self, key: Key) -> ScenarioState:
        """Also draws `goal`, the number of the landmark that is the goal."""
        key_goal, key_place = jax.random.split(key)
        goal = jax.random.randint(key_goal, (), 0, len(self.landmarks))
        return self.begin(scatter(self.world, key_place), goal=goal)

    def goal(self, state: ScenarioState) -> Array:
        return state.world.position[self.landmarks][state.memory["goal"]]

    def to_goal(self, state: ScenarioState) -> tuple[Array, Array]:
        """Distances of the adversaries and of the agents."""
        distance = norm(state.world.position[self.agents] - self.goal(state))
        return distance[: self.config.n_adversaries], distance[self.config.n_adversaries :]

    def shares_reward(self, group: str) -> bool:
        return True

    def reward(self, state: ScenarioState, key: Key) -> tuple[Array, ScenarioState]:
        adversaries, good = self.to_goal(state)
        for_good = jnp.broadcast_to(adversaries.sum() - good.min(), good.shape)
        return jnp.concatenate([-adversaries, for_good]), state

    def observation(self, state: ScenarioState, key: Key) -> list[Array]:
        position = state.world.position[self.agents]
        everything = jnp.concatenate(
            [offsets(position, state.world.position[self.landmarks]), offsets_to_others(position)], -1
        )
        split = self.config.n_adversaries
        with_goal = jnp.concatenate([self.goal(state) - position, everything], -1)
        return [*everything[:split], *with_goal[split:]]

    def reference_policies(self) -> dict[str, Callable[[Array], Array]]:
        """Adversaries go to the landmark nearest to an agent; the first agent to the goal, others to the farthest from
        it, so as not to give it away."""
        c = self.config
        num_landmarks, num_good = c.n_agents - 1, c.n_agents - c.n_adversaries

        def guess(observation: Array) -> Array:
            landmarks = read_offsets(observation, 0, num_landmarks)
            agents = read_offsets(observation, 2 * (num_landmarks + c.n_adversaries - 1), num_good)
            to_agents = norm(landmarks[:, :, None] - agents[:, None]).min(-1)
            return jnp.clip(GAIN * nearest_of(landmarks, to_agents), -1.0, 1.0)

        def mislead(observation: Array) -> Array:
            goal, landmarks = observation[:, :2], read_offsets(observation, 2, num_landmarks)
            elsewhere = nearest_of(landmarks, -norm(landmarks - goal[:, None]))
            first = np.arange(num_good)[:, None] == 0
            return jnp.clip(GAIN * jnp.where(first, goal, elsewhere), -1.0, 1.0)

        return {"adversary": guess, "agent": mislead}

    def metrics(self, state: ScenarioState) -> dict[str, Array]:
        adversaries, good = self.to_goal(state)
        return {
            "goal_covered": jnp.any(good < BODY.radius).astype(jnp.float32),
            "goal_found": jnp.any(adversaries < BODY.radius).astype(jnp.float32),
        }
