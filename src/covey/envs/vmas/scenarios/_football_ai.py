"""A football team that plays by itself: one player dribbles the ball to the goal, the others look for good positions.

Who has the ball or is best placed to get it dribbles: it runs a curve that ends behind the ball, in the direction in
which the ball should go. Every other player compares where it was going with two random places, one around the ball and
one around itself, and goes to the best. Both ways are cubic splines, planned anew in every step, of which a player
follows the first hundredth.

Three strengths between 0 and 1 weaken a team: `speed` of its moves, `decision` of who goes for the ball and which
place is best, `precision` of where it goes.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from covey.envs.vmas.geometry import dot, norm
from covey.envs.vmas.vectors import Vector, choose
from covey.envs.vmas.world import WorldState
from covey.types import Array, Key, pytree

GAIN = 25.0  # from the error in position and velocity to the action
LOOKAHEAD = 0.01  # of the spline, which goes from 0 to 1
POSSESSION_SECONDS = 0.5  # the ball is nearest to whom it will be nearest in this time
SEARCH_DEVIATION = 0.5  # of the random places that are compared
NUM_SEARCHED = 2
NUM_COMPARED = 1 + NUM_SEARCHED  # with the place that it was going to


@pytree
class Plan:
    """The ends of N players' splines, all `[N, 2]`, and the target's place relative to the ball."""

    start_position: Array
    start_velocity: Array
    target_position: Array
    target_velocity: Array
    target_from_ball: Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class TeamPolicy:
    """What N players do against M opponents. Entities are rows of the world's arrays."""

    players: np.ndarray
    opponents: np.ndarray
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
        """The chance in one step's decisions: standard normal numbers."""
        n, all_players = self.num_players, self.num_players + len(self.opponents)
        shapes: dict[str, tuple[int, ...]] = {"searched": (n, NUM_SEARCHED, 2)}
        if self.decision != 1:
            shapes |= {"claim_error": (all_players,), "value_error": (n, NUM_COMPARED)}
        if self.precision != 1:
            shapes |= {"position_error": (n, 2), "velocity_error": (n, 2)}
        keys = jax.random.split(key, len(shapes))
        return {name: jax.random.normal(k, shape) for k, (name, shape) in zip(keys, shapes.items(), strict=True)}

    def remember(self, plan: Plan, key: Key) -> dict[str, Array]:
        return {"target": plan.target_position, "target_from_ball": plan.target_from_ball} | self.draw(key)

    def act(self, world: WorldState, plan: Plan) -> Array:
        """Actions `[N, 2]` along the splines, in −1…1."""
        position, velocity = (spline(plan, LOOKAHEAD, derivative) for derivative in (0, 1))
        error = (position - world.position[self.players]) + (velocity - world.velocity[self.players])
        return jnp.clip(GAIN * self.speed**2 * error / 2, -1.0, 1.0)

    def plan(self, world: WorldState, memory: dict[str, Array]) -> Plan:
        position = world.position[self.players]
        dribbles = (self.dribbler(world, memory) == np.arange(self.num_players))[:, None]
        hit, hit_velocity, start_velocity = self.dribble(world)
        place = self.best_place(world, memory)
        far = norm(place - position) > 0.1
        target = jnp.where(dribbles, hit, place)
        velocity = jnp.where(dribbles, hit_velocity, 0.0)
        start_velocity = jnp.where(dribbles, start_velocity, direction(place - position) * far[:, None])
        if self.precision != 1:
            change = norm(memory["target"] - target)[:, None]
            deviation = 10 * (1 - self.precision) * (1 - jnp.exp(-change))
            target = target + deviation * memory["position_error"]
            velocity = velocity + deviation * memory["velocity_error"]
        return Plan(
            start_position=position,
            start_velocity=start_velocity,
            target_position=target,
            target_velocity=velocity,
            target_from_ball=target - world.position[self.ball],
        )

    # ---------------------------------------------------------------------------------------------------- the ball

    def dribbler(self, world: WorldState, memory: dict[str, Array]) -> Array:
        """The number of the player who goes for the ball: near it, and on the side from which it can push it on."""
        rows = np.concatenate([self.players, self.opponents])
        to_ball = world.position[self.ball] - world.position[rows]
        to_net = world.position[self.target_net] - world.position[rows]
        away = world.velocity[self.ball] - world.velocity[rows]
        claim = norm(to_ball + away * POSSESSION_SECONDS)
        claim = claim - 0.5 * self.decision * dot(direction(to_ball), direction(to_net))
        if self.decision != 1:
            claim = claim + 0.5 * (1 - self.decision) ** 2 * memory["claim_error"]
        return jnp.argmin(claim[: self.num_players])

    def dribble(self, world: WorldState) -> tuple[Array, Array, Array]:
        """Where each player would hit the ball, at which velocity, and the velocity with which it would start."""
        position, ball = world.position[self.players], world.position[self.ball]
        onward = jnp.broadcast_to(direction(world.position[self.target_net] - ball), position.shape)
        dribble_speed = 0.16 + 0.16 * self.speed
        behind = ball - 0.6 * norm(ball - position)[:, None] * onward  # aimed at first, so that the way is a curve
        approach = direction(behind - position)
        hit = ball - 0.7 * self.contact[:, None] * direction(onward + 0.5 * approach)
        return hit, dribble_speed * onward, dribble_speed * approach

    # -------------------------------------------------------------------------------------------------- positioning

    def best_place(self, world: WorldState, memory: dict[str, Array]) -> Array:
        """`[N, 2]`, of the last target, which moves with the ball, and random places."""
        position, ball = world.position[self.players], world.position[self.ball]
        deviation = SEARCH_DEVIATION * (1 + 3 * (1 - self.decision))
        around_ball, around_self = (
            centre + deviation * memory["searched"][:, i] for i, centre in enumerate((ball, position))
        )
        last = ball + memory["target_from_ball"]
        places = [self.within_pitch(Vector.of(place)) for place in (last, around_ball, around_self)]
        values = [self.value(world, place) for place in places]
        if self.decision != 1:
            weakness = 1 - self.decision
            values = [value + weakness * memory["value_error"][:, i] for i, value in enumerate(values)]
            values[0] = values[0] + 3 * weakness  # a weak team rarely thinks again
        best, best_value = places[0], values[0]
        for place, value in zip(places[1:], values[1:], strict=True):
            best = choose(value > best_value, place, best)
            best_value = jnp.maximum(value, best_value)
        return best.stack()

    def within_pitch(self, place: Vector) -> Vector:
        """The nearest place on the pitch or, at the height of a goal, inside it."""
        half_length, half_width = (size / 2 - self.agent_size for size in self.pitch)
        y = jnp.clip(place.y, -half_width, half_width)
        before_goal = jnp.abs(y) < self.goal_size / 2 - self.agent_size
        limit = half_length + self.goal_depth * before_goal
        return Vector(x=jnp.clip(place.x, -limit, limit), y=y)

    def value(self, world: WorldState, place: Vector) -> Array:
        """How good it is for each player to go to its `place [N]`: `[N]`."""
        at = Vector.of(world.position)
        to_ball = (at[self.ball] - place).direction()
        near_ball = jnp.exp(-2 * jnp.square((place - at[self.ball]).squared()))
        behind_ball = jnp.minimum(1.25 + to_ball.dot((at[self.target_net] - place).direction()), 1.0)
        # VMAS does not bring this to length 1.
        defending = jnp.maximum(to_ball.dot(place - at[self.own_net]), 0.0)
        others = ~np.eye(self.num_players, dtype=bool)
        to_others = (at[self.players][None] - place[:, None]).norm()
        alone = 1 - jnp.sqrt(jnp.sum(jnp.exp(-10 * to_others) * others, -1))
        to_wall_x, to_wall_y = (size / 2 - jnp.abs(z) for size, z in zip(self.pitch, (place.x, place.y), strict=True))
        off_walls = 1 - jnp.sqrt(jnp.exp(-16 * jnp.abs(to_wall_x)) + jnp.exp(-16 * jnp.abs(to_wall_y)))
        return (off_walls + alone + near_ball + behind_ball + defending) / 5


def spline(plan: Plan, u: float, derivative: int = 0) -> Array:
    """The cubic Hermite spline of a plan at `u` in 0…1, or its first derivative: `[N, 2]`."""
    if derivative == 0:
        weights = (2 * u**3 - 3 * u**2 + 1, 3 * u**2 - 2 * u**3, u**3 - 2 * u**2 + u, u**3 - u**2)
    else:
        weights = (6 * u**2 - 6 * u, 6 * u - 6 * u**2, 3 * u**2 - 4 * u + 1, 3 * u**2 - 2 * u)
    ends = (plan.start_position, plan.target_position, plan.start_velocity, plan.target_velocity)
    return sum((weight * end for weight, end in zip(weights, ends, strict=True)), jnp.zeros_like(ends[0]))


def direction(vector: Array) -> Array:
    """`vector` at length 1; zero stays zero."""
    length = norm(vector)[..., None]
    return vector / jnp.where(length > 0, length, 1.0)
