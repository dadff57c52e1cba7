"""Speaker and listener: one agent, which cannot move, tells the other to which of three landmarks it should go."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from covey.envs.vmas.geometry import norm
from covey.envs.vmas.particles import scatter
from covey.envs.vmas.scenario import Scenario, ScenarioState, VmasConfig
from covey.envs.vmas.shapes import Sphere
from covey.envs.vmas.world import GRAY, Agent, Landmark, World
from covey.types import Array, Key, MetricSpec

COLOURS = ((0.65, 0.15, 0.15), (0.15, 0.65, 0.15), (0.15, 0.15, 0.65))
BODY = Sphere(radius=0.075)
LANDMARK = Sphere(radius=0.04)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SimpleSpeakerListenerConfig(VmasConfig):
    pass


class SimpleSpeakerListener(Scenario):
    """Reward, the same for both: minus twice the listener's distance to the goal."""

    shared_rewards: ClassVar = (("speaker", "listener"),)
    metric_specs: ClassVar = {"at_goal": MetricSpec(unit="0 or 1")}
    config: SimpleSpeakerListenerConfig

    def make_world(self) -> World:
        return World(
            landmarks=tuple(
                Landmark(name=f"landmark {i}", shape=LANDMARK, collide=False, colour=colour)
                for i, colour in enumerate(COLOURS)
            ),
            agents=(
                Agent(name="speaker_0", shape=BODY, collide=False, movable=False, silent=False, colour=GRAY),
                Agent(name="listener_0", shape=BODY, collide=False, colour=GRAY),
            ),
            dim_c=3,
        )

    def __init__(self, config: SimpleSpeakerListenerConfig):
        super().__init__(config)
        self.listener, self.landmarks = self.world.index("listener_0"), self.world.indices(r"landmark \d+")

    def reset(self, key: Key) -> ScenarioState:
        """The number of the landmark that is the `goal` is drawn too."""
        key_goal, key_place = jax.random.split(key)
        goal = jax.random.randint(key_goal, (), 0, len(self.landmarks))
        return self.begin(scatter(self.world, key_place), goal=goal)

    def to_landmarks(self, state: ScenarioState) -> Array:
        """From the listener, `[3, 2]`."""
        return state.world.position[self.landmarks] - state.world.position[self.listener]

    def to_goal(self, state: ScenarioState) -> Array:
        return norm(self.to_landmarks(state)[state.memory["goal"]])

    def reward(self, state: ScenarioState, key: Key) -> tuple[Array, ScenarioState]:
        return jnp.broadcast_to(-2 * self.to_goal(state), (2,)), state

    def observation(self, state: ScenarioState, key: Key) -> list[Array]:
        """The speaker sees the goal's colour only. Messages arrive with the next observation."""
        velocity, heard = state.world.velocity[self.listener], state.world.communication[0]
        return [
            jnp.array(COLOURS)[state.memory["goal"]],
            jnp.concatenate([velocity, self.to_landmarks(state).reshape(-1), heard]),
        ]

    def metrics(self, state: ScenarioState) -> dict[str, Array]:
        return {"at_goal": (self.to_goal(state) < BODY.radius).astype(jnp.float32)}
