"""Football: two teams on a pitch with walls; blue learns and red plays by itself, or red learns too.

A team that learns sees and acts as if it attacked the right goal: for red, everything is mirrored. A team that plays by
itself is in `_football_ai.py`.

Difference from VMAS: there, in a batch, all environments' teams that play by themselves choose among the places that
one of the environments searched; here each chooses among its own, as VMAS does with one environment.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import TYPE_CHECKING, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from covey.envs.vmas.dynamics import Holonomic, HolonomicWithRotation
from covey.envs.vmas.geometry import norm, rotate
from covey.envs.vmas.scenario import Rows, Scenario, ScenarioState, VmasConfig
from covey.envs.vmas.scenarios._football_ai import FootballPolicy
from covey.envs.vmas.shapes import Box, Line, Pair, Shape, Sphere
from covey.envs.vmas.world import BLACK, GRAY, GREEN, WHITE, Agent, Landmark, World, WorldState, numbered
from covey.types import Array, Key, MetricSpec

if TYPE_CHECKING:
    from covey.envs.vmas.render import Decoration

TEAM_COLOURS = {"blue": (0.22, 0.49, 0.72), "red": (0.89, 0.1, 0.11)}
NET_COLOUR = (0.5, 0.5, 0.5)
KICK = 2.67  # the force on a ball that is shot, beyond the multipliers
WALL_IMPULSE = 0.05  # the greatest force that keeps a slow ball from resting at a wall
WALL_SPEED = 0.3  # a ball slower than this counts as slow

Strength = float | tuple[float, float]  # of both teams, or of blue and of red


@dataclasses.dataclass(frozen=True, kw_only=True)
class FootballConfig(VmasConfig):
    time_limit: int = 500
    n_blue_agents: int = 3  # agents of the blue team, from 1 up
    n_red_agents: int = 3  # agents of the red team; 0 only if red plays by itself
    ai_red_agents: bool = True  # red plays by a built-in policy and does not learn
    ai_blue_agents: bool = False  # blue plays by a built-in policy and does not learn; only one team can
    # blue has two fast attackers, two defenders and a slow goalkeeper; needs n_blue_agents=5
    physically_different: bool = False

    spawn_in_formation: bool = False  # agents start in columns; false: anywhere in their half
    only_blue_formation: bool = True  # only blue starts in columns; only with `spawn_in_formation`
    formation_agents_per_column: int = 2  # agents in a column of a formation, from 1 up
    # agents take the spots of a formation in random order; false: always the same
    randomise_formation_indices: bool = False
    formation_noise: float = 0.2  # size of the square in which an agent starts around its spot

    n_traj_points: int = 0  # landmarks that show where each agent with the built-in policy wants to go
    ai_strength: Strength = 1.0  # speed of built-in players, from 0 to 1: one number, or [blue, red]
    # how well built-in players choose who takes the ball and where to go, from 0 to 1: one number, or [blue, red]
    ai_decision_strength: Strength = 1.0
    # how exactly built-in players go where they want, from 0 to 1: one number, or [blue, red]
    ai_precision_strength: Strength = 1.0
    disable_ai_red: bool = False  # red with the built-in policy does not move

    agent_size: float = 0.025  # radius of an agent
    goal_size: float = 0.35  # width of a goal, along the end of the pitch
    goal_depth: float = 0.1  # depth of a goal, behind the end of the pitch
    pitch_length: float = 3.0  # length of the pitch, from goal to goal
    pitch_width: float = 1.5  # width of the pitch; greater than a goal and an agent together
    ball_mass: float = 0.25  # mass of the ball; an agent has 1
    ball_size: float = 0.02  # radius of the ball

    u_multiplier: float = 0.1  # force of an agent at full action
    enable_shooting: bool = False  # agents that learn have two more actions: turn and shoot
    u_rot_multiplier: float = 0.0003  # torque of an agent at full action; only with `enable_shooting`
    u_shoot_multiplier: float = 0.6  # strength of a shot at full action; only with `enable_shooting`
    shooting_radius: float = 0.08  # greatest distance to the ball of an agent that shoots
    shooting_angle: float = 1.5708  # sector ahead of an agent, in radians, in which the ball must be for a shot

    max_speed: float = 0.15  # greatest speed of an agent
    ball_max_speed: float = 0.3  # greatest speed of the ball

    dense_reward: bool = True  # reward progress too, with the factors below; false: only goals
    pos_shaping_factor_ball_goal: float = 10.0  # weight of the ball's progress towards the opponents' goal
    # weight of the progress of the team's nearest agent to the ball while the ball lies still
    pos_shaping_factor_agent_ball: float = 0.1
    # progress to the ball counts only while the team's nearest agent is farther away than this
    distance_to_ball_trigger: float = 0.4
    scoring_reward: float = 100.0  # reward of a team that scores; the other team loses as much

    observe_teammates: bool = True  # agents see their teammates
    observe_adversaries: bool = True  # agents see the opponents
    dict_obs: bool = False  # must be false: observations are always vectors here

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ai_blue_agents and self.ai_red_agents:
            raise ValueError("one team must learn: ai_blue_agents and ai_red_agents cannot both be true")
        if self.n_blue_agents < 1 or self.n_red_agents < (0 if self.ai_red_agents else 1):
            raise ValueError("a team needs an agent, except red if it plays by itself")
        if self.physically_different and self.n_blue_agents != 5:
            raise ValueError("physically_different needs n_blue_agents=5")
        if self.formation_agents_per_column < 1:
            raise ValueError("formation_agents_per_column must be at least 1")
        if self.goal_size + 2 * self.agent_size >= self.pitch_width:
            raise ValueError("pitch_width must be greater than goal_size and an agent together")
        strengths = (self.ai_strength, self.ai_decision_strength, self.ai_precision_strength)
        if any(isinstance(strength, tuple) and len(strength) != 2 for strength in strengths):
            raise ValueError("a strength is one number, or two: of blue and of red")
        if self.dict_obs:
            raise ValueError("dict_obs is not supported: observations are vectors")


# ----------------------------------------------------------------------------------------------- the world's pieces


@dataclasses.dataclass(frozen=True, kw_only=True)
class Piece:
    """A part of the pitch that stays where it is."""

    shape: Shape
    position: Pair
    rotation: float = 0.0


def make_pitch(c: FootballConfig) -> dict[str, Piece]:
    """Walls beside the goals, and the goals' three sides and nets. Positions are those of the upper right ones."""
    upright = math.pi / 2
    wall = Line(length=c.pitch_width / 2 - c.agent_size - c.goal_size / 2)
    end, goal_end = c.pitch_length / 2, c.pitch_length / 2 + c.goal_depth - c.agent_size
    goal_middle = goal_end - c.goal_depth / 2
    pieces = {}
    for height, up in (("Top", 1), ("Bottom", -1)):
        for side, right in (("Right", 1), ("Left", -1)):
            place = (right * end, up * (c.pitch_width + c.goal_size) / 4)
            pieces[f"{side} {height} Wall"] = Piece(shape=wall, position=place, rotation=upright)
    for side, right in (("Right", 1), ("Left", -1)):
        pieces[f"{side} Goal Back"] = Piece(
            shape=Line(length=c.goal_size), position=(right * goal_end, 0.0), rotation=upright
        )
    for height, up in (("Top", 1), ("Bottom", -1)):
        for side, right in (("Right", 1), ("Left", -1)):
            pieces[f"{side} Goal {height}"] = Piece(
                shape=Line(length=c.goal_depth), position=(right * goal_middle, up * c.goal_size / 2)
            )
    net = Box(length=c.goal_depth, width=c.goal_size)
    for team, right in (("Blue", -1), ("Red", 1)):
        pieces[f"{team} Net"] = Piece(shape=net, position=(right * (goal_middle + c.agent_size / 2), 0.0))
    return pieces


@dataclasses.dataclass(frozen=True, kw_only=True)
class Role:
    """What is added to the config's values for a player."""

    size: float = 0.0
    u_multiplier: float = 0.0
    u_rot_multiplier: float = 0.0
    u_shoot_multiplier: float = 0.0
    max_speed: float = 0.0


ATTACKER = Role(size=-0.005, u_multiplier=0.1, u_shoot_multiplier=-0.2, max_speed=0.05)
DEFENDER = Role()
# As in VMAS, where the addition was perhaps meant for the shot.
GOALKEEPER = Role(size=0.01, u_multiplier=-0.05, u_rot_multiplier=0.2, max_speed=-0.1)
BLUE_ROLES = (ATTACKER, ATTACKER, DEFENDER, DEFENDER, GOALKEEPER)


def make_player(c: FootballConfig, team: str, number: int) -> Agent:
    role = BLUE_ROLES[number] if c.physically_different and team == "blue" else DEFENDER
    scripted = c.ai_red_agents if team == "red" else c.ai_blue_agents
    shoots = c.enable_shooting and not (team == "red" and scripted)
    push = c.u_multiplier + role.u_multiplier
    turn, shot = c.u_rot_multiplier + role.u_rot_multiplier, c.u_shoot_multiplier + role.u_shoot_multiplier
    return Agent(
        name=f"agent_{team}_{number}",
        shape=Sphere(radius=c.agent_size + role.size),
        u_multiplier=(push, push, turn, shot) if shoots else (push, push),
        action_size=4 if shoots else 2,
        dynamics=HolonomicWithRotation() if shoots else Holonomic(),
        max_speed=c.max_speed + role.max_speed,
        scripted=scripted,
        colour=TEAM_COLOURS[team],
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Team:
    name: str
    ahead: int  # 1 if it attacks to the right, −1 to the left
    rows: np.ndarray  # of its agents among all entities
    numbers: np.ndarray  # and among the agents
    opponents: np.ndarray  # rows
    opponent_numbers: np.ndarray
    learns: bool
    policy: FootballPolicy | None  # if it plays by itself

    @property
    def mirror(self) -> np.ndarray:
        """Multiplied by this, vectors are as if the team attacked to the right."""
        return np.array([self.ahead, 1.0], np.float32)

    def own(self, memory: dict[str, Array]) -> dict[str, Array]:
        """What is remembered of this team."""
        return {key.removeprefix(f"{self.name}_"): value for key, value in memory.items() if key.startswith(self.name)}

    def named(self, values: dict[str, Array]) -> dict[str, Array]:
        return {f"{self.name}_{key}": value for key, value in values.items()}


# ------------------------------------------------------------------------------------------------------ the scenario


class Football(Scenario):
    """Reward, the same for a whole team: ±`scoring_reward` for a goal, and how much nearer the ball came to the
    opponents' goal. As long as the ball lies still and nobody is near, also how much nearer the team's nearest agent
    came to it."""

    metric_specs: ClassVar = {
        "blue_goals": MetricSpec(reduction="sum"),
        "red_goals": MetricSpec(reduction="sum", higher_is_better=False),
    }
    opposed_groups: ClassVar = (("agent_blue",), ("agent_red",))
    config: FootballConfig

    def make_world(self) -> World:
        c = self.config
        solid = [
            Landmark(
                name=name,
                shape=piece.shape,
                collide=isinstance(piece.shape, Line),
                colour=WHITE if isinstance(piece.shape, Line) else NET_COLOUR,
            )
            for name, piece in make_pitch(c).items()
        ]
        shown = [
            Landmark(name=f"{team} {i} Trajectory {j}", shape=Sphere(radius=0.01), collide=False, colour=GRAY)
            for team, count, plays in (
                ("Red", c.n_red_agents, c.ai_red_agents),
                ("Blue", c.n_blue_agents, c.ai_blue_agents),
            )
            for i in range(count if plays else 0)
            for j in range(c.n_traj_points)
        ]
        ball = Agent(
            name="Ball",
            shape=Sphere(radius=c.ball_size),
            mass=c.ball_mass,
            max_speed=c.ball_max_speed,
            scripted=True,
            colour=BLACK,
        )
        return World(
            landmarks=(*solid, *shown),
            agents=(
                *(make_player(c, "blue", i) for i in range(c.n_blue_agents)),
                *(make_player(c, "red", i) for i in range(c.n_red_agents)),
                ball,
            ),
            substeps=2,
            drag=0.05,
            x_semidim=c.pitch_length / 2 + c.goal_depth - c.agent_size,
            y_semidim=c.pitch_width / 2 - c.agent_size,
        )

    def __init__(self, config: FootballConfig):
        super().__init__(config)
        self.ball, self.ball_number = self.world.index("Ball"), self.world.num_agents - 1
        self.goal_x = config.pitch_length / 2 + config.ball_size / 2  # the ball is in when it is beyond
        self.teams = (self.make_team("blue", "red"), self.make_team("red", "blue"))
        self.learning = [team for team in self.teams if team.learns]
        self.playing = [(team, team.policy) for team in self.teams if team.policy is not None]
        self.multiplier = np.zeros((self.world.num_agents, self.world.max_actions), np.float32)
        for i, agent in enumerate(self.world.agents):
            self.multiplier[i, : agent.num_actions] = agent.per_action(agent.u_multiplier)

    def make_team(self, name: str, other: str) -> Team:
        c = self.config
        rows, opponents = (self.world.indices(rf"agent_{team}_\d+") for team in (name, other))
        scripted = c.ai_red_agents if name == "red" else c.ai_blue_agents
        plays = scripted and len(rows) > 0 and not (name == "red" and c.disable_ai_red)
        return Team(
            name=name,
            ahead=1 if name == "blue" else -1,
            rows=rows,
            numbers=rows - len(self.world.landmarks),
            opponents=opponents,
            opponent_numbers=opponents - len(self.world.landmarks),
            learns=not scripted,
            policy=self.make_policy(name, rows) if plays else None,
        )

    def contact(self, rows: np.ndarray) -> np.ndarray:
        """Between the centres of players and a ball that they touch."""
        return np.array([self.config.ball_size + self.world.entities[row].shape.reach for row in rows], np.float32)

    def make_policy(self, name: str, rows: np.ndarray) -> FootballPolicy:
        c = self.config

        def strength(value: Strength) -> float:
            return value[name == "red"] if isinstance(value, tuple) else value

        nets = self.world.index("Blue Net"), self.world.index("Red Net")
        return FootballPolicy(
            players=rows,
            ball=self.ball,
            own_net=nets[name == "red"],
            target_net=nets[name == "blue"],
            contact=self.contact(rows),
            pitch=(c.pitch_length, c.pitch_width),
            goal_size=c.goal_size,
            goal_depth=c.goal_depth,
            agent_size=c.agent_size,
            speed=strength(c.ai_strength),
            decision=strength(c.ai_decision_strength),
            precision=strength(c.ai_precision_strength),
        )

    # -------------------------------------------------------------------------------------------------------- start

    def reset(self, key: Key) -> ScenarioState:
        c = self.config
        key_blue, key_red, *keys = jax.random.split(key, 4)
        blue_in_formation = c.spawn_in_formation
        red_in_formation = c.spawn_in_formation and not c.only_blue_formation
        blue = self.formation(key_blue, self.teams[0]) if blue_in_formation else self.anywhere(key_blue, self.teams[0])
        red = self.formation(key_red, self.teams[1]) if red_in_formation else self.anywhere(key_red, self.teams[1])
        pieces = make_pitch(c)
        places = {name: jnp.array(piece.position) for name, piece in pieces.items()}
        places |= zip(numbered("agent_blue", c.n_blue_agents), blue, strict=True)
        places |= zip(numbered("agent_red", c.n_red_agents), red, strict=True)
        angles = {name: jnp.array(piece.rotation) for name, piece in pieces.items()}
        if not red_in_formation:  # in formation, VMAS does not turn them
            angles |= dict.fromkeys(numbered("agent_red", c.n_red_agents), jnp.array(math.pi))
        drawn: dict[str, Array] = {}
        for (team, policy), key_team in zip(self.playing, keys, strict=False):
            drawn |= team.named(policy.start(key_team))
        return self.begin(self.world.start(places, angles), **drawn)

    def anywhere(self, key: Key, team: Team) -> Array:
        """Places `[N, 2]` in the team's half."""
        c = self.config
        left = -c.pitch_length / 2 + c.agent_size if team.ahead > 0 else -c.agent_size
        low = jnp.array([left, -c.pitch_width / 2])
        return jax.random.uniform(key, (len(team.rows), 2)) * jnp.array([c.pitch_length / 2, c.pitch_width]) + low

    def formation(self, key: Key, team: Team) -> Array:
        """Places `[N, 2]` in columns across the team's half, from the centre line back, with noise."""
        c = self.config
        count, per_column = len(team.rows), c.formation_agents_per_column
        key_order, key_noise = jax.random.split(key)
        columns = np.linspace(0, -team.ahead * (c.pitch_length / 2 + c.goal_depth), count // per_column + 3)[1:-1]
        spots = []
        for i, first in enumerate(range(0, count, per_column)):
            heights = np.linspace(c.pitch_width / 2, -c.pitch_width / 2, min(per_column, count - first) + 2)[1:-1]
            spots += [(columns[i], height) for height in heights]
        places = jnp.array(spots, jnp.float32).reshape(count, 2)
        if c.randomise_formation_indices:
            places = jax.random.permutation(key_order, places)
        return places + (jax.random.uniform(key_noise, places.shape) - 0.5) * c.formation_noise

    def begin(self, world: WorldState, **drawn: Array) -> ScenarioState:
        """`drawn` is what teams that play by themselves remember and will draw on, `red_searched` for example."""
        for team in self.learning:
            drawn |= team.named(self.distances(team, world))
        return super().begin(world, **drawn)

    # ------------------------------------------------------------------------------------------------------- actions

    def process_action(self, state: ScenarioState, u: Array, key: Key) -> tuple[Array, ScenarioState]:
        world = state.world
        for team in self.learning:
            turned = [team.ahead, 1, team.ahead, 1] if self.config.enable_shooting else [team.ahead, 1]
            u = u.at[team.numbers].multiply(np.array(turned, np.float32))
        for (team, policy), key_team in zip(self.playing, jax.random.split(key, 2), strict=False):
            push, kept, ways = policy.play(world, team.own(state.memory), self.config.n_traj_points)
            u = u.at[team.numbers].set(self.with_turn(team, world, push) * self.multiplier[team.numbers])
            state = self.show(team, ways, state).remember(**team.named(kept | policy.draw(key_team)))
        force = self.off_the_walls(world)
        if self.config.enable_shooting:
            force = force + self.kick(world, u)
        return u.at[self.ball_number, :2].set(force), state

    def with_turn(self, team: Team, world: WorldState, push: Array) -> Array:
        """The actions `[N, U]` of a team that plays by itself. Where it can turn, it turns to the right."""
        rest = self.world.max_actions - 2
        if not rest:
            return push
        angle = wrap(-world.rotation[team.rows])
        turn = jnp.where(jnp.abs(angle) > np.pi / 2, jnp.sign(angle), jnp.sin(angle))
        return jnp.concatenate([push, turn[:, None], jnp.zeros((len(team.rows), rest - 1))], -1)

    def off_the_walls(self, world: WorldState) -> Array:
        """The force on a slow ball near a wall, away from it; none along the pitch in front of a goal."""
        c = self.config
        ball, velocity = world.position[self.ball], world.velocity[self.ball]
        half, near = np.array([c.pitch_length, c.pitch_width], np.float32) / 2, 2 * c.agent_size
        from_low = 1 - jnp.minimum(half + ball, near) / near
        from_high = 1 - jnp.minimum(half - ball, near) / near
        slow = 1 - jnp.minimum(jnp.abs(velocity[1]), WALL_SPEED) / WALL_SPEED  # VMAS looks across the pitch only
        force = (from_low - from_high) * slow * WALL_IMPULSE
        before_goal = jnp.abs(ball[1]) < c.goal_size / 2
        return force.at[0].set(jnp.where(before_goal, 0.0, force[0]))

    def kick(self, world: WorldState, u: Array) -> Array:
        """The force of shots on the ball: by whoever is nearest to it, if it is within reach and ahead."""
        c = self.config
        players = np.concatenate([team.rows for team in self.teams])
        learns = np.concatenate([np.full(len(team.rows), team.learns) for team in self.teams])
        to_ball = world.position[self.ball] - world.position[players]
        distance, angle = norm(to_ball), world.rotation[players]
        off = wrap(angle - jnp.arctan2(to_ball[:, 1], to_ball[:, 0]))
        allowed = learns & (distance <= c.shooting_radius) & (distance == distance.min())
        allowed &= jnp.abs(off) <= c.shooting_angle / 2
        shot = jnp.where(allowed, u[: len(players), 3], 0.0) * KICK * c.u_shoot_multiplier
        return jnp.sum(rotate(jnp.stack([shot, jnp.zeros_like(shot)], -1), angle), 0)

    def show(self, team: Team, ways: list[Array], state: ScenarioState) -> ScenarioState:
        """`state` with the landmarks that mark the paths of a team that plays by itself."""
        if not ways:
            return state
        rows = self.world.indices(rf"{team.name.capitalize()} \d+ Trajectory \d+")
        return state.with_world(position=state.world.position.at[rows].set(jnp.stack(ways, 1).reshape(-1, 2)))

    # ------------------------------------------------------------------------------------------------------- rewards

    def scored(self, world: WorldState) -> tuple[Array, Array]:
        """Whether the ball is in the right goal, and in the left: by blue, and by red."""
        x, y = world.position[self.ball]
        inside = jnp.abs(y) <= self.config.goal_size / 2
        return inside & (x > self.goal_x), inside & (x < -self.goal_x)

    def distances(self, team: Team, world: WorldState) -> dict[str, Array]:
        """From the ball to the goal that the team attacks, and from its nearest agent to the ball."""
        ball = world.position[self.ball]
        goal = np.array([team.ahead * self.goal_x, 0.0], np.float32)
        return {
            "ball_to_goal": norm(ball - goal),
            # Not `min`, which is slow over a few numbers each.
            "to_ball": functools.reduce(jnp.minimum, norm(world.position[team.rows] - ball)),
        }

    def shares_reward(self, group: str) -> bool:
        return True

    def reward(self, state: ScenarioState, key: Key) -> tuple[Rows, ScenarioState]:
        c = self.config
        blue_scored, red_scored = self.scored(state.world)
        for_blue = c.scoring_reward * (blue_scored.astype(jnp.float32) - red_scored)
        ball_moves = norm(state.world.velocity[self.ball]) > 1e-6
        rewards = []
        for team in self.learning:
            before, now = team.own(state.memory), self.distances(team, state.world)
            reward = team.ahead * for_blue
            if c.dense_reward:
                to_goal = c.pos_shaping_factor_ball_goal * (before["ball_to_goal"] - now["ball_to_goal"])
                to_ball = c.pos_shaping_factor_agent_ball * (before["to_ball"] - now["to_ball"])
                near = now["to_ball"] < c.distance_to_ball_trigger
                reward += to_goal + jnp.where(near | ball_moves, 0.0, to_ball)
            rewards.append(jnp.full(len(team.rows), reward))
            state = state.remember(**team.named(now))
        return jnp.concatenate(rewards), state

    def potential(self, state: ScenarioState) -> Array:
        """For each agent that learns, minus the distance to where it can push the ball towards the opponents' goal,
        until someone scores."""
        ball = state.world.position[self.ball]
        ways = []
        for team in self.learning:
            from_goal = ball - np.array([team.ahead * self.goal_x, 0.0], np.float32)
            back = from_goal / jnp.maximum(norm(from_goal), 1e-6)
            pushing = ball + self.contact(team.rows)[:, None] * back
            ways.append(norm(pushing - state.world.position[team.rows]))
        return -jnp.where(self.done(state), 0.0, jnp.concatenate(ways))

    def done(self, state: ScenarioState) -> Array:
        blue_scored, red_scored = self.scored(state.world)
        return blue_scored | red_scored

    def metrics(self, state: ScenarioState) -> dict[str, Array]:
        blue_scored, red_scored = self.scored(state.world)
        return {"blue_goals": blue_scored.astype(jnp.float32), "red_goals": red_scored.astype(jnp.float32)}

    # -------------------------------------------------------------------------------------------------- observations

    def observation(self, state: ScenarioState, key: Key) -> Rows:
        seen = [self.team_observation(team, state.world) for team in self.learning]
        return seen[0] if len(seen) == 1 else [row for rows in seen for row in rows]

    def team_observation(self, team: Team, world: WorldState) -> Array:
        """`[N, F]`, mirrored for a team that attacks to the left."""
        c = self.config
        position, velocity = world.position * team.mirror, world.velocity * team.mirror
        force = world.u[:, :2] * team.mirror
        mine, my_velocity, count = position[team.rows], velocity[team.rows], len(team.rows)
        ball, ball_velocity = position[self.ball], velocity[self.ball]
        goal = np.array([self.goal_x, 0.0], np.float32)

        def same(vector: Array) -> Array:
            return jnp.broadcast_to(vector, (count, 2))

        def others(rows: np.ndarray, numbers: np.ndarray) -> Array:
            """Of the others `[N, K]` that each agent sees, or `[1, K]` that all see, all in a row: `[N, 8·K]`."""
            each = [
                mine[:, None] - position[rows],
                my_velocity[:, None] - velocity[rows],
                velocity[rows],
                force[numbers],
            ]
            shape = (count, rows.shape[1], 2)
            return jnp.concatenate([jnp.broadcast_to(part, shape) for part in each], -1).reshape(count, -1)

        parts = [
            force[team.numbers],
            mine - ball,
            my_velocity - ball_velocity,
            same(ball - goal),
            same(ball_velocity),
            same(force[self.ball_number]),
        ]
        if c.enable_shooting:
            parts.append(world.rotation[team.rows][:, None] - (np.pi if team.ahead < 0 else 0.0))
        parts += [mine - goal, my_velocity]
        if c.observe_adversaries and len(team.opponents):
            parts.append(others(team.opponents[None], team.opponent_numbers[None]))
        if c.observe_teammates and count > 1:
            not_me = np.array([[j for j in range(count) if j != i] for i in range(count)])
            parts.append(others(team.rows[not_me], team.numbers[not_me]))
        return jnp.concatenate(parts, -1)

    # ------------------------------------------------------------------------------------------------------ pictures

    def decorations(self, state: ScenarioState) -> list[Decoration]:
        """The grass and its white lines."""
        from covey.envs.vmas.render import Decoration

        c = self.config
        x, y = c.pitch_length / 2 - c.agent_size, c.pitch_width / 2 - c.agent_size
        across, along = Line(length=2 * y), Line(length=2 * x)
        centre = (0.0, 0.0)
        return [
            Decoration(shape=Box(length=c.pitch_length, width=c.pitch_width), position=centre, colour=GREEN),
            Decoration(shape=Sphere(radius=c.goal_size / 2), position=centre, colour=WHITE),
            Decoration(shape=Sphere(radius=c.goal_size / 2 - 0.02), position=centre, colour=GREEN),
            *(Decoration(shape=across, position=(p, 0.0), rotation=np.pi / 2, colour=WHITE) for p in (0.0, x, -x)),
            *(Decoration(shape=along, position=(0.0, p), colour=WHITE) for p in (y, -y)),
        ]


def wrap(angle: Array) -> Array:
    """The same angle in −π…π."""
    return (angle + np.pi) % (2 * np.pi) - np.pi
