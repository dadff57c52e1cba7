"""Push: an agent goes to its goal, one of two landmarks; an adversary, who does not know which, keeps it away."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from covey.envs.vmas.geometry import norm
from covey.envs.vmas.particles import offsets, scatter
from covey.envs.vmas.scenario import Scenario, ScenarioState, VmasConfig
from covey.envs.vmas.shapes import Sphere
from covey.envs.vmas.world import GRAY, RED, Agent, Landmark, World
from covey.types import Array, Key, MetricSpec

LANDMARK_COLOURS = ((0.1, 0.9, 0.1), (0.1, 0.1, 0.9))
AGENT_COLOURS = ((0.25, 0.75, 0.25), (0.25, 0.25, 0.75))  # the agent's, by its goal
BODY = Sphere(radius=0.05)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SimplePushConfig(VmasConfig):
    pass


class SimplePush(Scenario):
    """Reward: the agent loses its distance to the goal; the adversary gets that distance and loses its own."""

    metric_specs: ClassVar = {
        "agent_at_goal": MetricSpec(unit="0 or 1"),
        "adversary_at_goal": MetricSpec(unit="0 or 1", higher_is_better=False),
    }
    opposed_groups: ClassVar = (("agent",), ("adversary",))
    config: SimplePushConfig

    def make_world(self) -> World:
        return World(
            landmarks=tuple(
                Landmark(name=f"landmark {i}", shape=BODY, collide=False, colour=colour)
                for i, colour in enumerate(LANDMARK_COLOURS)
            ),
            agents=(Agent(name="adversary_0", shape=BODY, colour=RED), Agent(name="agent_0", shape=BODY, colour=GRAY)),
        )

    def __init__(self, config: SimplePushConfig):
        super().__init__(config)
        self.agents, self.landmarks = self.world.agent_indices, self.world.indices(r"landmark \d+")

    def reset(self, key: Key) -> ScenarioState:
        """The number of the landmark that is the `goal` is drawn too."""
        key_goal, key_place = jax.random.split(key)
        goal = jax.random.randint(key_goal, (), 0, len(self.landmarks))
        return self.begin(scatter(self.world, key_place), goal=goal)

    def to_goal(self, state: ScenarioState) -> Array:
        """From the adversary and from the agent, `[2, 2]`."""
        goal = state.world.position[self.landmarks][state.memory["goal"]]
        return goal - state.world.position[self.agents]

    def reward(self, state: ScenarioState, key: Key) -> tuple[Array, ScenarioState]:
        adversary, agent = norm(self.to_goal(state))
        return jnp.stack([agent - adversary, -agent]), state

    def observation(self, state: ScenarioState, key: Key) -> list[Array]:
        """The agent also sees colours: its own, which is like its goal's, and those of the landmarks."""
        position, velocity = state.world.position[self.agents], state.world.velocity[self.agents]
        to_landmarks = offsets(position, state.world.position[self.landmarks])
        to_other = position[::-1] - position
        own_colour = jnp.array(AGENT_COLOURS)[state.memory["goal"]]
        colours = np.ravel(LANDMARK_COLOURS)
        return [
            jnp.concatenate([velocity[0], to_landmarks[0], to_other[0]]),
            jnp.concatenate([velocity[1], self.to_goal(state)[1], own_colour, to_landmarks[1], colours, to_other[1]]),
        ]

    def metrics(self, state: ScenarioState) -> dict[str, Array]:
        adversary, agent = (norm(self.to_goal(state)) < BODY.radius).astype(jnp.float32)
        return {"agent_at_goal": agent, "adversary_at_goal": adversary}
