"""Wind flocking: two agents fly upwards against the wind, from which the small one can shelter the big one.

Differences from VMAS: there the big agent begins an episode in the shelter that it had at the end of the one before;
here it begins in the full wind.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from covey.envs.vmas.dynamics import Holonomic, VelocityControl
from covey.envs.vmas.geometry import norm, unit
from covey.envs.vmas.scenario import Scenario, ScenarioState, VmasConfig
from covey.envs.vmas.shapes import Sphere
from covey.envs.vmas.world import Agent, World, WorldState
from covey.types import Array, Key, MetricSpec

DESIRED_DISTANCE = 1.0
DESIRED_HEIGHT = 10.0
BIG, SMALL = 0, 1  # the agents' rows
WIND_COUNTS_FROM, ENERGY_COUNTS_FROM = 5, 10  # steps


@dataclasses.dataclass(frozen=True, kw_only=True)
class WindFlockingConfig(VmasConfig):
    horizon: int = 100  # steps to the finish line that VMAS draws; the game does not depend on it
    dist_shaping_factor: float = 1.0  # weight of the progress towards the desired distance between the two
    vel_shaping_factor: float = 1.0  # weight of the progress towards the desired velocity
    wind_shaping_factor: float = 1.0  # weight of the progress towards little wind on the big agent
    rot_shaping_factor: float = 0.0  # weight of the progress towards being level with each other
    pos_shaping_factor: float = 0.0  # weight of the progress of the higher agent towards the desired height
    energy_shaping_factor: float = 0.0  # weight of the progress towards little force
    wind: float = 0.0  # force of the wind, downwards
    # how exactly the big agent must be below the small one to be covered: 1 − cos of the angle; above 0
    cover_angle_tolerance: float = 1.0
    observe_rel_pos: bool = True  # agents see each other's position relative to their own
    observe_rel_vel: bool = True  # agents see each other's velocity relative to their own
    observe_pos: bool = False  # agents see their own position
    desired_vel: float = 0.4  # velocity to reach, upwards
    use_controller: bool = True  # actions are velocities, pursued by a controller; false: forces
    v_range: float = 0.5  # greatest velocity, above 0
    f_range: float = 100.0  # greatest force, above 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.cover_angle_tolerance <= 0:
            raise ValueError("cover_angle_tolerance must be positive")
        if self.v_range <= 0 or self.f_range <= 0:
            raise ValueError("v_range and f_range must be positive")


class WindFlocking(Scenario):
    """Reward, the same for both: how much nearer they came to what is desired, each with its factor.

    That is: their distance, their velocities, being level with each other, the height of the higher one, little effort
    and little wind.
    """

    metric_specs: ClassVar = {
        "height": MetricSpec(unit="metres"),
        "distance_error": MetricSpec(unit="metres", higher_is_better=False),
    }
    config: WindFlockingConfig

    def make_world(self) -> World:
        c = self.config
        control = VelocityControl(gain=1.5, integral_time=0.6, derivative_time=0.002, max_force=c.f_range)
        return World(
            agents=tuple(
                Agent(
                    name=name,
                    shape=Sphere(radius=radius),
                    u_range=c.v_range if c.use_controller else c.f_range,
                    v_range=c.v_range,
                    f_range=c.f_range,
                    dynamics=control if c.use_controller else Holonomic(),
                )
                for name, radius in (("agent_0", 0.05), ("agent_1", 0.03))
            ),
            drag=0.0,
            linear_friction=0.1,
        )

    def reset(self, key: Key) -> ScenarioState:
        key_angle, key_side = jax.random.split(key)
        angle = jax.random.uniform(key_angle, minval=-np.pi / 8, maxval=np.pi / 8)
        side = jnp.where(jax.random.bernoulli(key_side), 1.0, -1.0)
        place = side * DESIRED_DISTANCE / 2 * unit(angle)
        world = self.world.start({"agent_0": place, "agent_1": -place})
        wind = jnp.broadcast_to(jnp.array([0.0, -self.config.wind]), (2, 2))
        return self.begin(world, wind=wind, effort=jnp.zeros(2), time=jnp.zeros((), int))

    def begin(self, world: WorldState, **drawn: Array) -> ScenarioState:
        """`wind [2, 2]` is what blows on each, `effort [2]` the last forces; `controller [2, 6]`: see `Dynamics`."""
        if "controller" in drawn:
            world = dataclasses.replace(world, dynamics=(drawn.pop("controller"),))
        state = super().begin(world, **drawn)
        return state.remember(**self.shapings(state))

    def external_force(self, state: ScenarioState) -> Array:
        return state.memory["wind"]  # times the mass, which is 1

    def shapings(self, state: ScenarioState) -> dict[str, Array]:
        """How far they are from what is desired, each times its factor; `[2]` or for both together."""
        c, memory = self.config, state.memory
        position, velocity = state.world.position, state.world.velocity
        x, y = position[BIG] - position[SMALL]
        angle = jnp.arctan2(y, x) % np.pi
        return {
            "distance": c.dist_shaping_factor * jnp.abs(norm(position[SMALL] - position[BIG]) - DESIRED_DISTANCE),
            "rotation": c.rot_shaping_factor * jnp.minimum(angle, np.pi - angle),
            "height": c.pos_shaping_factor * jnp.abs(position[:, 1].max() - DESIRED_HEIGHT),
            "velocity": c.vel_shaping_factor * norm(velocity - jnp.array([0.0, c.desired_vel])),
            "energy": c.energy_shaping_factor * memory["effort"],
            "exposure": c.wind_shaping_factor * norm(memory["wind"]),
        }

    def shares_reward(self, group: str) -> bool:
        return True

    def reward(self, state: ScenarioState, key: Key) -> tuple[Array, ScenarioState]:
        before, time = state.memory, state.memory["time"] + 1
        force = state.world.dynamics[0][:, 4:] if self.config.use_controller else state.world.u
        effort, wind = jnp.linalg.norm(force, axis=-1), before["wind"].at[BIG].set(self.wind_on_big(state))
        state = state.remember(time=time, effort=effort, wind=wind)
        after = self.shapings(state)
        gains = {name: jnp.mean(before[name] - after[name]) for name in after}
        gains["exposure"] = jnp.where(time < WIND_COUNTS_FROM, 0.0, gains["exposure"])
        gains["energy"] = jnp.where(time < ENERGY_COUNTS_FROM, 0.0, gains["energy"])
        return jnp.broadcast_to(sum(gains.values()), (2,)), state.remember(**after)

    def wind_on_big(self, state: ScenarioState) -> Array:
        """None when the big agent is straight below the small one."""
        x, y = state.world.position[BIG] - state.world.position[SMALL]
        tolerance = self.config.cover_angle_tolerance
        share = jnp.minimum(1 + jnp.sin(jnp.arctan2(y, x)), tolerance) / tolerance
        return share * jnp.array([0.0, -self.config.wind])

    def observation(self, state: ScenarioState, key: Key) -> Array:
        c = self.config
        position, velocity = state.world.position, state.world.velocity
        seen = [position] if c.observe_pos else []
        seen.append(velocity)
        if c.observe_rel_pos:
            seen.append(position[::-1] - position)
        if c.observe_rel_vel:
            seen.append(velocity[::-1] - velocity)
        return jnp.concatenate(seen, -1)

    def metrics(self, state: ScenarioState) -> dict[str, Array]:
        position = state.world.position
        return {
            "height": position[:, 1].max(),
            "distance_error": jnp.abs(norm(position[BIG] - position[SMALL]) - DESIRED_DISTANCE),
        }
