"""Multi give way: four agents in the arms of a narrow crossing, each to the end of the next arm."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax.numpy as jnp
import numpy as np

from covey.envs.base import Reward
from covey.envs.vmas.geometry import norm
from covey.envs.vmas.physics import distances
from covey.envs.vmas.scenario import Scenario, ScenarioState, VmasConfig
from covey.envs.vmas.scenarios.give_way import (
    AGENT_BOX,
    AGENT_RADIUS,
    CORRIDOR_WIDTH,
    GOAL,
    GOAL_RADIUS,
    HALF_LENGTH,
    START,
    TOUCHING,
    UPRIGHT,
    Wall,
    add_noise,
    limit_command,
    velocity_control,
)
from covey.envs.vmas.shapes import Line, Sphere
from covey.envs.vmas.world import BLACK, BLUE, GRAY, GREEN, RED, Agent, Landmark, World, WorldState, numbered
from covey.task_fields import SHARED_REWARD_NAMES
from covey.types import Array, Key, MetricSpec

COLOURS = (GREEN, BLUE, RED, GRAY)
NUM_AGENTS = len(COLOURS)
ARMS = np.array([[-1, 0], [0, 1], [1, 0], [0, -1]], np.float32)  # where agents start


@dataclasses.dataclass(frozen=True, kw_only=True)
class MultiGiveWayConfig(VmasConfig):
    shares_reward: ClassVar[bool] = True
    other_names: ClassVar = {**VmasConfig.other_names, **SHARED_REWARD_NAMES, "comms_range": None}  # for VMAS's viewer

    time_limit: int = 200
    u_range: float = 0.5  # greatest velocity command, above 0
    a_range: float = 1.0  # force that an agent has beyond friction, above 0
    obs_noise: float = 0.0  # observations have uniform noise of ± this
    box_agents: bool = False  # agents are boxes; false: discs
    linear_friction: float = 0.1  # friction between agents and ground
    min_input_norm: float = 0.08  # velocity commands below this norm stop the agent
    # who receives which reward; shared: everyone receives the sum of all progress; individual: only its own
    reward: Reward = Reward.shared
    # weight of the progress towards the goal; 0: a small penalty for the distance instead
    pos_shaping_factor: float = 1.0
    final_reward: float = 0.01  # reward in each step in which all agents are at their goals
    agent_collision_penalty: float = -0.1  # reward, usually below 0, for touching another agent

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.u_range <= 0 or self.a_range <= 0:
            raise ValueError("u_range and a_range must be positive")


class MultiGiveWay(Scenario):
    """Reward: how much nearer the agents came to their goals, a bonus while all are there, a penalty per collision."""

    metric_specs: ClassVar = {
        "at_goal": MetricSpec(unit="share of agents"),
        "collisions": MetricSpec(reduction="sum", higher_is_better=False),
    }
    shared_returns: ClassVar = "; every agent gets the sum of all progress"
    config: MultiGiveWayConfig

    def make_world(self) -> World:
        c = self.config
        max_force = c.a_range + c.linear_friction
        goals = [
            Landmark(name=name, collide=False, shape=Sphere(radius=GOAL_RADIUS), colour=colour)
            for name, colour in zip(numbered("goal", NUM_AGENTS, " "), COLOURS, strict=True)
        ]
        walls = [Landmark(name=wall.name, shape=Line(length=wall.length), colour=BLACK) for wall in make_walls()]
        agents = [
            Agent(
                name=name,
                shape=AGENT_BOX if c.box_agents else Sphere(radius=AGENT_RADIUS),
                rotatable=False,
                linear_friction=c.linear_friction,
                u_range=c.u_range,
                f_range=max_force,
                dynamics=velocity_control(max_force),
                colour=colour,
            )
            for name, colour in zip(numbered("agent", NUM_AGENTS), COLOURS, strict=True)
        ]
        return World(
            landmarks=(*goals, *walls),
            agents=tuple(agents),
            substeps=16 if c.box_agents else 5,
            collision_force=10000.0 if c.box_agents else 500.0,
            drag=0.0,
            linear_friction=c.linear_friction,
        )

    def __init__(self, config: MultiGiveWayConfig):
        super().__init__(config)
        self.agents, self.goals = self.world.indices(r"agent_\d+"), self.world.indices(r"goal \d+")

    def reset(self, key: Key) -> ScenarioState:
        walls = make_walls()
        world = self.world.start(
            dict(zip(numbered("agent", NUM_AGENTS), START * ARMS, strict=True))
            | dict(zip(numbered("goal", NUM_AGENTS, " "), GOAL * np.roll(ARMS, 1, 0), strict=True))
            | {wall.name: wall.position for wall in walls},
            {wall.name: jnp.asarray(wall.angle) for wall in walls},
        )
        return self.begin(world)

    def begin(self, world: WorldState, **drawn: Array) -> ScenarioState:
        """`controller` is what the agents' dynamics remember."""
        if "controller" in drawn:
            world = dataclasses.replace(world, dynamics=(drawn["controller"],))
        return super().begin(world, distance=self.to_goals(world), collisions=jnp.zeros(()))

    def process_action(self, state: ScenarioState, u: Array, key: Key) -> tuple[Array, ScenarioState]:
        return limit_command(u, self.config.u_range, self.config.min_input_norm), state

    def to_goals(self, world: WorldState) -> Array:
        return norm(world.position[self.agents] - world.position[self.goals])

    def at_goal(self, world: WorldState) -> Array:
        return self.to_goals(world) < GOAL_RADIUS

    def shares_reward(self, group: str) -> bool:
        return self.config.reward is Reward.shared and not self.config.agent_collision_penalty

    def reward(self, state: ScenarioState, key: Key) -> tuple[Array, ScenarioState]:
        c = self.config
        distance = self.to_goals(state.world)
        if c.pos_shaping_factor:
            progress = c.pos_shaping_factor * (state.memory["distance"] - distance)
        else:
            progress = -0.0001 * distance
        if c.reward is Reward.shared:
            progress = jnp.broadcast_to(progress.sum(), progress.shape)
        bonus = c.final_reward * jnp.all(self.at_goal(state.world))
        touching = distances(self.world, state.world, self.agents, self.agents) <= TOUCHING
        touching = touching & ~np.eye(NUM_AGENTS, dtype=bool)
        penalty = c.agent_collision_penalty * touching.sum(-1)
        return progress + bonus + penalty, state.remember(distance=distance, collisions=touching.sum() / 2)

    def observation(self, state: ScenarioState, key: Key) -> Array:
        position, velocity = state.world.position[self.agents], state.world.velocity[self.agents]
        from_goal = position - state.world.position[self.goals]
        seen = jnp.concatenate([position, velocity, from_goal, norm(from_goal)[:, None]], -1)
        return add_noise(seen, self.config.obs_noise, key)

    def metrics(self, state: ScenarioState) -> dict[str, Array]:
        return {"at_goal": jnp.mean(self.at_goal(state.world)), "collisions": state.memory["collisions"]}


def make_walls() -> list[Wall]:
    """The two sides of each of four arms, and their ends."""
    length, aside = HALF_LENGTH - CORRIDOR_WIDTH / 2, CORRIDOR_WIDTH / 2
    middle = HALF_LENGTH - length / 2
    arms_and_sides = [(arm, side) for arm in (-middle, middle) for side in (-aside, aside)]
    horizontal = [Wall(f"wall {i}", length, (arm, side), 0.0) for i, (arm, side) in enumerate(arms_and_sides)]
    upright = [Wall(f"wall {i + 4}", length, (side, arm), UPRIGHT) for i, (arm, side) in enumerate(arms_and_sides)]
    ends = [
        Wall("short wall 0", CORRIDOR_WIDTH, (-HALF_LENGTH, 0.0), UPRIGHT),
        Wall("short wall 1", CORRIDOR_WIDTH, (HALF_LENGTH, 0.0), UPRIGHT),
        Wall("short wall 2", CORRIDOR_WIDTH, (0.0, -HALF_LENGTH), 0.0),
        Wall("short wall 3", CORRIDOR_WIDTH, (0.0, HALF_LENGTH), 0.0),
    ]
    return [*horizontal, *upright, *ends]
