"""A football team that plays by itself: one player dribbles the ball to the goal, the others look for good positions.

The player that has the ball, or is best placed to get it, dribbles: it runs a curve that ends behind the ball, in the
direction in which the ball should go. Every other player compares where it was going with two random places, one around
the ball and one around itself, and goes to the best. Both paths are cubic splines, planned again in every step, of
which a player follows the first hundredth.

Three strengths between 0 and 1 weaken a team: `speed` of its moves, `decision` of who goes for the ball and which
place is best, `precision` of where it goes.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from covey.envs.vmas.vectors import Vector, choose, column, environments_last
from covey.envs.vmas.world import WorldState
from covey.ops import random
from covey.types import Array, Key, pytree

GAIN = 25.0  # from the error in position and velocity to the action
LOOKAHEAD = 0.01  # of the spline, which goes from 0 to 1
POSSESSION_SECONDS = 0.5  # who goes for the ball depends on the distances after this time
SEARCH_DEVIATION = 0.5  # of the random places that are compared
NUM_SEARCHED = 2
NUM_COMPARED = 1 + NUM_SEARCHED  # with the place that it was going to


@pytree
class Scene:
    """All entities, `[E]` and any environments."""

    position: Vector
    velocity: Vector


@pytree
class Plan:
    """The ends of N players' splines, and the target's place relative to the ball."""

    start: Vector
    start_velocity: Vector
    target: Vector
    target_velocity: Vector
    target_from_ball: Vector


@dataclasses.dataclass(frozen=True, kw_only=True)
class FootballPolicy:
    """What N players do. Entities are rows of the world's arrays."""

    players: np.ndarray
    ball: int
    own_net: int
    target_net: int
    contact: np.ndarray  # [N], the distance between the centres of the player and a ball that it touches
    pitch: tuple[float, float]  # length and width
    goal_size: float
    goal_depth: float
    agent_size: float
    speed: float = 1.0
    decision: float = 1.0
    precision: float = 1.0

    @property
    def num_players(self) -> int:
        return len(self.players)

    def start(self, key: Key) -> dict[str, Array]:
        """What is remembered from one step to the next, at the beginning of an episode."""
        nowhere = jnp.zeros((self.num_players, 2))
        return {"target": nowhere, "target_from_ball": nowhere} | self.draw(key)

    def draw(self, key: Key) -> dict[str, Array]:
        """The random numbers of one step's decisions, all standard normal."""
        n = self.num_players
        shapes: dict[str, tuple[int, ...]] = {"searched": (n, NUM_SEARCHED, 2)}
        if self.decision != 1:
            shapes |= {"claim_error": (n,), "value_error": (n, NUM_COMPARED)}
        if self.precision != 1:
            shapes |= {"position_error": (n, 2), "velocity_error": (n, 2)}
        keys = jax.random.split(key, len(shapes))
        drawn = {name: random.uniform(k, shape) for k, (name, shape) in zip(keys, shapes.items(), strict=True)}
        # Environments last: a few numbers each, and a function that is slow where it is not vectorised.
        return {name: environments_last(random.to_normal)(numbers) for name, numbers in drawn.items()}

    def play(
        self, world: WorldState, memory: dict[str, Array], num_points: int = 0
    ) -> tuple[Array, dict[str, Array], list[Array]]:
        """Actions `[N, 2]` in −1…1, what is remembered of them, and points of the players' paths, each `[N, 2]`."""

        @environments_last
        def decide(
            position: Array, velocity: Array, remembered: dict[str, Array]
        ) -> tuple[Array, dict[str, Array], list[Array]]:
            scene = Scene(position=Vector.of(position, 1), velocity=Vector.of(velocity, 1))
            plan = self.plan(scene, remembered)
            kept = {"target": plan.target.stack(1), "target_from_ball": plan.target_from_ball.stack(1)}
            ways = [spline(plan, u).stack(1) for u in np.linspace(0, 1, num_points).tolist()]
            return self.follow(plan, scene).stack(1), kept, ways

        return decide(world.position, world.velocity, memory)

    def follow(self, plan: Plan, scene: Scene) -> Vector:
        """Actions along the splines."""
        position, velocity = (spline(plan, LOOKAHEAD, derivative) for derivative in (0, 1))
        error = (position - scene.position[self.players]) + (velocity - scene.velocity[self.players])
        push = error * (GAIN * self.speed**2 / 2)
        return Vector(x=jnp.clip(push.x, -1.0, 1.0), y=jnp.clip(push.y, -1.0, 1.0))

    def plan(self, scene: Scene, memory: dict[str, Array]) -> Plan:
        position = scene.position[self.players]
        dribbles = self.dribbles(scene, memory)
        hit, hit_velocity, start_velocity = self.dribble(scene)
        place = self.best_place(scene, memory)
        way = place - position
        target = choose(dribbles, hit, place)
        velocity = hit_velocity * dribbles
        start_velocity = choose(dribbles, start_velocity, way.direction() * (way.norm() > 0.1))
        if self.precision != 1:
            change = (Vector.of(memory["target"], 1) - target).norm()
            deviation = 10 * (1 - self.precision) * (1 - jnp.exp(-change))
            target = target + Vector.of(memory["position_error"], 1) * deviation
            velocity = velocity + Vector.of(memory["velocity_error"], 1) * deviation
        return Plan(
            start=position,
            start_velocity=start_velocity,
            target=target,
            target_velocity=velocity,
            target_from_ball=target - scene.position[self.ball],
        )

    # ---------------------------------------------------------------------------------------------------- the ball

    def dribbles(self, scene: Scene, memory: dict[str, Array]) -> Array:
        """Of N players, who goes for the ball: one near it, and on the side from which it can push it on."""
        position, velocity = scene.position, scene.velocity
        to_ball = position[self.ball] - position[self.players]
        to_net = position[self.target_net] - position[self.players]
        away = velocity[self.ball] - velocity[self.players]
        claim = (to_ball + away * POSSESSION_SECONDS).norm()
        claim = claim - 0.5 * self.decision * to_ball.direction().dot(to_net.direction())
        if self.decision != 1:
            claim = (
                claim + 0.5 * (1 - self.decision) ** 2 * memory["claim_error"][: self.num_players]
            )  # recordings have further entries
        return jnp.argmin(claim, 0) == column(np.arange(self.num_players), claim)

    def dribble(self, scene: Scene) -> tuple[Vector, Vector, Vector]:
        """Where each player would hit the ball, at which velocity, and the velocity with which it would start."""
        position, ball = scene.position[self.players], scene.position[self.ball]
        onward = (scene.position[self.target_net] - ball).direction()
        dribble_speed = 0.16 + 0.16 * self.speed
        behind = ball - onward * (0.6 * (ball - position).norm())  # aimed at first, so that the path is a curve
        approach = (behind - position).direction()
        hit = ball - (onward + approach * 0.5).direction() * (0.7 * column(self.contact, position.x))
        return hit, onward * dribble_speed, approach * dribble_speed

    # -------------------------------------------------------------------------------------------------- positioning

    def best_place(self, scene: Scene, memory: dict[str, Array]) -> Vector:
        """For each player, the best of its last target, which moves with the ball, and random places."""
        position, ball = scene.position[self.players], scene.position[self.ball]
        deviation = SEARCH_DEVIATION * (1 + 3 * (1 - self.decision))
        around_ball, around_self = (
            centre + Vector.of(memory["searched"][:, i], 1) * deviation for i, centre in enumerate((ball, position))
        )
        last = ball + Vector.of(memory["target_from_ball"], 1)
        places = [self.within_pitch(place) for place in (last, around_ball, around_self)]
        values = [self.value(scene.position, place) for place in places]
        if self.decision != 1:
            weakness = 1 - self.decision
            values = [value + weakness * memory["value_error"][:, i] for i, value in enumerate(values)]
            values[0] = values[0] + 3 * weakness  # a weak team rarely changes its mind
        best, best_value = places[0], values[0]
        for place, value in zip(places[1:], values[1:], strict=True):
            best = choose(value > best_value, place, best)
            best_value = jnp.maximum(value, best_value)
        return best

    def within_pitch(self, place: Vector) -> Vector:
        """The nearest place on the pitch or, at the height of a goal, inside it."""
        half_length, half_width = (size / 2 - self.agent_size for size in self.pitch)
        y = jnp.clip(place.y, -half_width, half_width)
        before_goal = jnp.abs(y) < self.goal_size / 2 - self.agent_size
        limit = half_length + self.goal_depth * before_goal
        return Vector(x=jnp.clip(place.x, -limit, limit), y=y)

    def value(self, at: Vector, place: Vector) -> Array:
        """How good it is for each player to go to its `place [N, …]`, where entities are `at [E, …]`."""
        to_ball = (at[self.ball] - place).direction()
        near_ball = jnp.exp(-2 * jnp.square((place - at[self.ball]).squared()))
        behind_ball = jnp.minimum(1.25 + to_ball.dot((at[self.target_net] - place).direction()), 1.0)
        # VMAS does not bring this to length 1.
        defending = jnp.maximum(to_ball.dot(place - at[self.own_net]), 0.0)
        to_others = (at[self.players][None] - place[:, None]).norm()
        others = column(~np.eye(self.num_players, dtype=bool), to_others)
        crowd = jnp.exp(-10 * to_others) * others
        alone = 1 - jnp.sqrt(sum(crowd[:, i] for i in range(self.num_players)))
        to_wall_x, to_wall_y = (size / 2 - jnp.abs(z) for size, z in zip(self.pitch, (place.x, place.y), strict=True))
        off_walls = 1 - jnp.sqrt(jnp.exp(-16 * jnp.abs(to_wall_x)) + jnp.exp(-16 * jnp.abs(to_wall_y)))
        return (off_walls + alone + near_ball + behind_ball + defending) / 5


def spline(plan: Plan, u: float, derivative: int = 0) -> Vector:
    """The cubic Hermite spline of a plan at `u` in 0…1, or its first derivative."""
    if derivative == 0:
        at_start, at_target, leaving, arriving = (
            2 * u**3 - 3 * u**2 + 1,
            3 * u**2 - 2 * u**3,
            u**3 - 2 * u**2 + u,
            u**3 - u**2,
        )
    else:
        at_start, at_target, leaving, arriving = (
            6 * u**2 - 6 * u,
            6 * u - 6 * u**2,
            3 * u**2 - 4 * u + 1,
            3 * u**2 - 2 * u,
        )
    ends = plan.start * at_start + plan.target * at_target
    return ends + plan.start_velocity * leaving + plan.target_velocity * arriving
