"""Tag: slower adversaries hunt faster agents between obstacles, in a square that nobody can leave."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from covey.envs.base import Reward
from covey.envs.vmas.geometry import norm
from covey.envs.vmas.particles import (
    distances,
    full_speed,
    nearest_of,
    offsets,
    offsets_to_others,
    others,
    read_offsets,
    scatter,
)
from covey.envs.vmas.scenario import Scenario, ScenarioState, VmasConfig
from covey.envs.vmas.shapes import Sphere
from covey.envs.vmas.world import BLACK, GREEN, RED, Agent, Landmark, World, WorldState
from covey.types import Array, Key, MetricSpec

ADVERSARY = Sphere(radius=0.075)
GOOD = Sphere(radius=0.05)
OBSTACLE = Sphere(radius=0.2)
REACH = ADVERSARY.radius + GOOD.radius  # an adversary that is nearer than this has caught the agent
LEAD = 0.2  # seconds that a chasing adversary looks ahead
EDGE = 0.1  # obstacles start at least this far from the bounds


@dataclasses.dataclass(frozen=True, kw_only=True)
class SimpleTagConfig(VmasConfig):
    num_good_agents: int = 1  # agents that are hunted, from 1 up
    num_adversaries: int = 3  # adversaries that hunt, from 1 up
    num_landmarks: int = 2  # obstacles, from 0 up
    shape_agent_rew: bool = False  # agents also get 0.1 times the distance to each adversary
    shape_adversary_rew: bool = False  # adversaries also lose 0.1 times the distance to the nearest agent
    # each agent gets the sum of all agents' rewards; false: its own; without effect where `reward` shares them
    agents_share_rew: bool = False
    # each adversary gets the sum of all adversaries' rewards; false: its own; without effect where `reward` shares them
    adversaries_share_rew: bool = True
    observe_same_team: bool = True  # agents see those of their own team
    observe_pos: bool = True  # agents see their own position
    observe_vel: bool = True  # agents see their own velocity
    bound: float = 1.0  # half the side of the square that nobody leaves, from 0.1 up
    respawn_at_catch: bool = False  # a caught agent starts again somewhere else

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_good_agents < 1 or self.num_adversaries < 1:
            raise ValueError("num_good_agents and num_adversaries must be at least 1")
        if self.num_landmarks < 0:
            raise ValueError(f"num_landmarks must not be negative, but is {self.num_landmarks}")
        if not EDGE <= self.bound < float("inf"):
            raise ValueError(f"bound must be finite and at least {EDGE}, not {self.bound}")


class SimpleTag(Scenario):
    """Reward: an agent loses ten for each adversary that touches it, and an adversary gets ten for each touched."""

    metric_specs: ClassVar = {"catches": MetricSpec(reduction="sum", unit="steps in contact, over all pairs")}
    opposed_groups: ClassVar = (("adversary",), ("agent",))
    config: SimpleTagConfig

    def make_world(self) -> World:
        c = self.config
        return World(
            landmarks=tuple(
                Landmark(name=f"landmark {i}", shape=OBSTACLE, colour=BLACK) for i in range(c.num_landmarks)
            ),
            agents=(
                *(
                    Agent(name=f"adversary_{i}", shape=ADVERSARY, u_multiplier=3.0, max_speed=1.0, colour=RED)
                    for i in range(c.num_adversaries)
                ),
                *(
                    Agent(name=f"agent_{i}", shape=GOOD, u_multiplier=4.0, max_speed=1.3, colour=GREEN)
                    for i in range(c.num_good_agents)
                ),
            ),
            substeps=10,
            x_semidim=c.bound,
            y_semidim=c.bound,
            collision_force=500.0,
        )

    def __init__(self, config: SimpleTagConfig):
        super().__init__(config)
        self.landmarks = self.world.indices(r"landmark \d+")
        self.adversaries, self.good = self.world.indices(r"adversary_\d+"), self.world.indices(r"agent_\d+")

    def reset(self, key: Key) -> ScenarioState:
        reach = np.full((len(self.world.entities), 1), self.config.bound, np.float32)
        reach[self.landmarks] -= EDGE
        return self.begin(scatter(self.world, key, reach))

    def begin(self, world: WorldState, **drawn: Array) -> ScenarioState:
        return super().begin(world, catches=jnp.zeros(()))

    def describe_returns(self) -> str:
        teams = {"adversary": "adversaries", "agent": "agents"}
        sharing = [f"{team} get the sum over their team" for group, team in teams.items() if self.shares_reward(group)]
        return "; ".join([self.returns, *sharing])

    def shares_reward(self, group: str) -> bool:
        """Where `task.reward` shares rewards, it shares each agent's own."""
        c = self.config
        switch = c.adversaries_share_rew if group == "adversary" else c.agents_share_rew
        return switch and c.reward is Reward.individual

    def reward(self, state: ScenarioState, key: Key) -> tuple[Array, ScenarioState]:
        c = self.config
        distance = distances(state.world.position[self.adversaries], state.world.position[self.good])
        caught = distance < REACH
        for_adversaries, for_good = 10.0 * caught.sum(1), -10.0 * caught.sum(0)
        if c.shape_adversary_rew:
            for_adversaries = for_adversaries - 0.1 * distance.min(1)
        if c.shape_agent_rew:
            for_good = for_good + 0.1 * distance.sum(0)
        if self.shares_reward("adversary"):
            for_adversaries = jnp.broadcast_to(for_adversaries.sum(), for_adversaries.shape)
        if self.shares_reward("agent"):
            for_good = jnp.broadcast_to(for_good.sum(), for_good.shape)
        if c.respawn_at_catch:
            state = self.respawn(state, key)
        return jnp.concatenate([for_adversaries, for_good]), state.remember(catches=caught.sum().astype(jnp.float32))

    def respawn(self, state: ScenarioState, key: Key) -> ScenarioState:
        """Adversaries one after another, as the next may already be where an agent has just come back."""
        bound, good = self.config.bound, self.good
        position, velocity = state.world.position, state.world.velocity
        for adversary, key_place in zip(self.adversaries, jax.random.split(key, len(self.adversaries)), strict=True):
            caught = distances(position[good], position[adversary][None]) < REACH
            places = jax.random.uniform(key_place, (len(good), 2), minval=-bound, maxval=bound)
            position = position.at[good].set(jnp.where(caught, places, position[good]))
            velocity = velocity.at[good].set(jnp.where(caught, 0.0, velocity[good]))
        return state.with_world(position=position, velocity=velocity)

    def observation(self, state: ScenarioState, key: Key) -> list[Array]:
        """Of other agents: where they are, and how fast the good ones move."""
        same_team = self.config.observe_same_team
        position, velocity = state.world.position, state.world.velocity
        good, adversaries = position[self.good], position[self.adversaries]
        speeds = jnp.broadcast_to(velocity[self.good].reshape(-1), (len(adversaries), 2 * len(good)))
        speeds_of_others = velocity[self.good][others(len(good))].reshape(len(good), -1)
        seen_by_adversaries = [
            *self.itself(state, self.adversaries),
            *([offsets_to_others(adversaries)] if same_team else []),
            offsets(adversaries, good),
            speeds,
        ]
        seen_by_good = [
            *self.itself(state, self.good),
            offsets(good, adversaries),
            *([offsets_to_others(good), speeds_of_others] if same_team else []),
        ]
        return [*jnp.concatenate(seen_by_adversaries, -1), *jnp.concatenate(seen_by_good, -1)]

    def itself(self, state: ScenarioState, agents: np.ndarray) -> list[Array]:
        """What the agents observe of themselves, and the obstacles."""
        c = self.config
        position = state.world.position[agents]
        return [
            *([state.world.velocity[agents]] if c.observe_vel else []),
            *([position] if c.observe_pos else []),
            offsets(position, state.world.position[self.landmarks]),
        ]

    def reference_policies(self) -> dict[str, Callable[[Array], Array]]:
        """Adversaries run to where the nearest agent will be; agents run from all adversaries, and from the edge."""
        c = self.config
        of_itself = 2 * (c.observe_vel + c.observe_pos + c.num_landmarks)
        of_team = 2 * (c.num_adversaries - 1) * c.observe_same_team

        def chase(observation: Array) -> Array:
            prey = read_offsets(observation, of_itself + of_team, c.num_good_agents)
            speeds = read_offsets(observation, of_itself + of_team + 2 * c.num_good_agents, c.num_good_agents)
            return full_speed(nearest_of(prey + LEAD * speeds, norm(prey)))

        def flee(observation: Array) -> Array:
            hunters = read_offsets(observation, of_itself, c.num_adversaries)
            away = -jnp.sum(hunters / jnp.maximum(norm(hunters), 1e-3)[..., None] ** 3, 1)
            if c.observe_pos:
                at = 2 * c.observe_vel
                position = observation[:, at : at + 2] / c.bound
                away = away - 10.0 * position * jnp.abs(position) ** 7
            return full_speed(away)

        return {"adversary": chase, "agent": flee}

    def metrics(self, state: ScenarioState) -> dict[str, Array]:
        return {"catches": state.memory["catches"]}
