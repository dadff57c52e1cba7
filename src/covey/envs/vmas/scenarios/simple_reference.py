"""Reference: each of two agents knows, and must tell the other, to which of three landmarks the other should go."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from covey.envs.vmas.geometry import norm
from covey.envs.vmas.particles import offsets, scatter
from covey.envs.vmas.scenario import Scenario, ScenarioState, VmasConfig
from covey.envs.vmas.shapes import Sphere
from covey.envs.vmas.world import BLUE, GRAY, GREEN, RED, Agent, Landmark, World
from covey.types import Array, Key, MetricSpec

COLOURS = (RED, GREEN, BLUE)
BODY = Sphere(radius=0.05)
NUM_AGENTS = 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class SimpleReferenceConfig(VmasConfig):
    pass


class SimpleReference(Scenario):
    """Reward, the same for both: minus the sum of their distances to where they should go."""

    metric_specs: ClassVar = {"at_goal": MetricSpec(unit="share of agents")}
    config: SimpleReferenceConfig

    def make_world(self) -> World:
        return World(
            landmarks=tuple(
                Landmark(name=f"landmark {i}", shape=BODY, collide=False, colour=colour)
                for i, colour in enumerate(COLOURS)
            ),
            agents=tuple(
                Agent(name=f"agent_{i}", shape=BODY, collide=False, silent=False, colour=GRAY)
                for i in range(NUM_AGENTS)
            ),
            dim_c=10,
        )

    def __init__(self, config: SimpleReferenceConfig):
        super().__init__(config)
        self.agents, self.landmarks = self.world.agent_indices, self.world.indices(r"landmark \d+")

    def reset(self, key: Key) -> ScenarioState:
        """`known_goal [2]` is drawn too: the number of the landmark that each agent knows, for the other to go to."""
        key_goal, key_place = jax.random.split(key)
        known_goal = jax.random.randint(key_goal, (NUM_AGENTS,), 0, len(self.landmarks))
        return self.begin(scatter(self.world, key_place), known_goal=known_goal)

    def to_goal(self, state: ScenarioState) -> Array:
        """Each agent's distance to its own goal, which the other one knows."""
        own_goal = state.memory["known_goal"][::-1]
        return norm(state.world.position[self.agents] - state.world.position[self.landmarks][own_goal])

    def shares_reward(self, group: str) -> bool:
        return True

    def reward(self, state: ScenarioState, key: Key) -> tuple[Array, ScenarioState]:
        return jnp.broadcast_to(-self.to_goal(state).sum(), (NUM_AGENTS,)), state

    def observation(self, state: ScenarioState, key: Key) -> Array:
        """A goal is known by its colour."""
        world = state.world
        to_landmarks = offsets(world.position[self.agents], world.position[self.landmarks])
        known_colour = jnp.array(COLOURS)[state.memory["known_goal"]]
        heard = world.communication[::-1]
        return jnp.concatenate([world.velocity[self.agents], to_landmarks, known_colour, heard], -1)

    def metrics(self, state: ScenarioState) -> dict[str, Array]:
        return {"at_goal": jnp.mean(self.to_goal(state) < BODY.radius)}
