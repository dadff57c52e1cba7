"""Pictures of a scenario's episode, drawn with Pillow: no display, no OpenGL.

From bottom to top: the world's bounds, what the scenario adds, landmarks (opaque), lidar rays with a dot where they
hit, trails of the last states, agents (half transparent) with their actions as arrows, and joints as dots. All pictures
of an episode show the same square around the origin, large enough for everything that is ever in play.

A scenario needs nothing to be drawn: its lidars are found among its attributes. It may override `Scenario.colours`, for
entities that change their colour or disappear, and `Scenario.decorations`, for what is not an entity.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from PIL import Image, ImageDraw

from covey.envs.vmas.dynamics import DifferentialDrive, Drone, Forward, KinematicBicycle, Rotation, Static
from covey.envs.vmas.lidar import Lidar
from covey.envs.vmas.shapes import Box, Line, Pair, Shape, Sphere
from covey.envs.vmas.world import BLACK, GRAY, Agent, Colour, Entity, World

if TYPE_CHECKING:
    from covey.envs.vmas.scenario import Scenario, ScenarioState

SIZE = 512  # pixels
SUPERSAMPLING = 3  # drawn this much larger and averaged, so that edges are smooth
MIN_VIEW = 1.2  # from the picture's centre to its edge, in the world's units
MARGIN = 1.05
OUT_OF_PLAY = 10.0  # scenarios put landmarks away beyond this; the view does not follow them there
BACKGROUND = 4.0  # landmarks that reach farther than this around their centre, floors for example, may be cut off
TRAIL_LENGTH = 20  # states
AGENT_ALPHA, RAY_ALPHA, HIT_ALPHA, TRAIL_ALPHA = 0.5, 0.2, 0.8, 0.7
ARROW_LENGTH = 0.9  # of an action at its limit, in units of the agent's reach, beyond its rim
MIN_ARROW_LENGTH = 14.0  # pixels, likewise
MIN_PUSH = 0.15  # weaker actions have no arrow; it would be a speck
JOINT_COLOUR: Colour = (1.0, 1.0, 1.0)
ALONG_HEADING = (Forward, DifferentialDrive, KinematicBicycle)  # the first number of the action pushes ahead
NO_DIRECTION = (Rotation, Static, Drone)  # the action points nowhere in the plane


@dataclasses.dataclass(frozen=True, kw_only=True)
class Decoration:
    """A shape that is only drawn. `filled=False` leaves its outline."""

    shape: Shape
    position: Pair | np.ndarray
    rotation: float = 0.0
    colour: Colour = GRAY
    alpha: float = 1.0
    filled: bool = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class Episode:
    """An episode on the host: T states of E entities, A of them agents, with U numbers in the largest action."""

    world: World
    position: np.ndarray  # [T, E, 2]
    rotation: np.ndarray  # [T, E]
    u: np.ndarray  # [T, A, U]
    colours: list[Mapping[str, Colour | None]]  # [T], of entities that do not have their own; None: invisible
    decorations: list[Sequence[Decoration]]  # [T]
    sights: list[tuple[Lidar, np.ndarray]]  # each with what it measured [T, N, num_rays]

    def colour(self, time: int, entity: Entity) -> Colour | None:
        return self.colours[time].get(entity.name, entity.colour)


def draw(scenario: Scenario, state: ScenarioState, *, size: int = SIZE) -> np.ndarray:
    """One state, without a past, as an RGB picture: uint8 `[size, size, 3]`."""
    return draw_episode(scenario, [state], size=size)[0]


def draw_episode(scenario: Scenario, states: Sequence[ScenarioState], *, size: int = SIZE) -> list[np.ndarray]:
    """One picture, uint8 `[size, size, 3]`, for each of an episode's states, which come in order."""
    if not states:
        return []
    episode = gather(scenario, states)
    view = find_view(episode)
    return [draw_moment(episode, time, Canvas(size, view)) for time in range(len(states))]


def draw_moment(episode: Episode, time: int, canvas: Canvas) -> np.ndarray:
    draw_bounds(episode.world, canvas)
    for decoration in episode.decorations[time]:
        draw_decoration(decoration, canvas)
    draw_landmarks(episode, time, canvas)
    draw_rays(episode, time, canvas)
    draw_trails(episode, time, canvas)
    draw_agents(episode, time, canvas)
    draw_joints(episode, time, canvas)
    return canvas.picture()


# ---------------------------------------------------------------------------------------------------------- the episode


def gather(scenario: Scenario, states: Sequence[ScenarioState]) -> Episode:
    on_host = jax.device_get(list(states))
    stacked: Any = jax.tree.map(lambda *leaves: np.stack(leaves), *[state.world for state in on_host])
    return Episode(
        world=scenario.world,
        position=stacked.position,
        rotation=stacked.rotation,
        u=stacked.u,
        colours=[scenario.colours(state) for state in on_host],
        decorations=[scenario.decorations(state) for state in on_host],
        sights=[(lidar, np.asarray(jax.jit(jax.vmap(lidar))(stacked))) for lidar in find_lidars(vars(scenario))],
    )


def find_lidars(value: Any) -> Iterator[Lidar]:
    """Lidars among a scenario's attributes, also in lists and dicts."""
    if isinstance(value, Lidar):
        yield value
    elif isinstance(value, (list, tuple, dict)):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from find_lidars(inner)


def find_view(episode: Episode) -> float:
    """How far the pictures reach from the origin, so that everything in play is inside all the time."""
    world, position = episode.world, np.abs(episode.position)
    extent = np.stack([half_extent(e.shape, episode.rotation[:, i]) for i, e in enumerate(world.entities)], 1)
    farthest = np.max(position + extent, -1)  # [T, E]
    visible = [[episode.colour(time, e) is not None for e in world.entities] for time in range(len(farthest))]
    agents = [isinstance(entity, Agent) for entity in world.entities]
    near = np.all(position < OUT_OF_PLAY, -1) & [entity.shape.reach < BACKGROUND for entity in world.entities]
    in_play = np.array(visible) & np.isfinite(farthest) & (agents | near)
    bounds = [bound for bound in find_bounds(world) if bound is not None]
    return float(max(MIN_VIEW, MARGIN * max([0.0, *farthest[in_play], *bounds])))


def half_extent(shape: Shape, rotation: np.ndarray) -> np.ndarray:
    """From the centre to the sides of the upright rectangle around the shape, `[T, 2]`."""
    if isinstance(shape, Sphere):
        return np.full((len(rotation), 2), shape.radius)
    length, width = shape.length / 2, shape.width / 2 if isinstance(shape, Box) else 0.0
    cos, sin = np.abs(np.cos(rotation)), np.abs(np.sin(rotation))
    return np.stack([cos * length + sin * width, sin * length + cos * width], -1)


def find_bounds(world: World) -> tuple[float | None, float | None]:
    """Where agents' outlines stop in x and y; the world stops their centres."""
    reach = max(agent.shape.reach for agent in world.agents)
    x, y = world.x_semidim, world.y_semidim
    return None if x is None else x + reach, None if y is None else y + reach


# -------------------------------------------------------------------------------------------------------- what is drawn


def draw_bounds(world: World, canvas: Canvas) -> None:
    x, y = find_bounds(world)
    far_x, far_y = (2 * canvas.view if bound is None else bound for bound in (x, y))
    for side in (-1, 1):
        if x is not None:
            canvas.line([(side * x, -far_y), (side * x, far_y)], BLACK, width=1.5)
        if y is not None:
            canvas.line([(-far_x, side * y), (far_x, side * y)], BLACK, width=1.5)


def draw_decoration(decoration: Decoration, canvas: Canvas) -> None:
    d = decoration
    position, rotation = np.asarray(d.position), float(d.rotation)
    if d.filled:
        canvas.fill(d.shape, position, rotation, d.colour, alpha=d.alpha)
    else:
        canvas.outline(d.shape, position, rotation, d.colour, alpha=d.alpha)


def draw_landmarks(episode: Episode, time: int, canvas: Canvas) -> None:
    for i, landmark in enumerate(episode.world.landmarks):
        colour = episode.colour(time, landmark)
        if colour is None:
            continue
        position, rotation = episode.position[time, i], episode.rotation[time, i]
        if isinstance(landmark.shape, Box) and landmark.shape.hollow:
            canvas.outline(landmark.shape, position, rotation, colour, width=2.5)
        else:
            canvas.fill(landmark.shape, position, rotation, colour)


def draw_rays(episode: Episode, time: int, canvas: Canvas) -> None:
    """Each ray from the agent's rim to what it meets; rays that meet nothing end without a dot."""
    for lidar, measured in episode.sights:
        for seer, distance in zip(lidar.seers, measured[time], strict=True):
            entity = episode.world.entities[seer]
            colour = episode.colour(time, entity)
            if colour is None:
                continue
            position, rotation = episode.position[time, seer], episode.rotation[time, seer]
            direction = unit(rotation + lidar.angles)  # [num_rays, 2]
            rim = np.minimum(distance_to_rim(entity.shape, direction, rotation), distance)
            ends = position + distance[:, None] * direction
            canvas.segments(position + rim[:, None] * direction, ends, colour, alpha=RAY_ALPHA)
            for end in ends[distance < lidar.max_range]:
                canvas.dot(end, colour, alpha=HIT_ALPHA, radius=2.3)


def draw_trails(episode: Episode, time: int, canvas: Canvas) -> None:
    """Where agents came from, up to their rim, fainter and thinner the longer it is past."""
    places = episode.position[max(0, time - TRAIL_LENGTH) : time + 1]
    freshness = 1 - np.arange(len(places) - 1)[::-1] / TRAIL_LENGTH
    for i, agent in zip(episode.world.agent_indices, episode.world.agents, strict=True):
        colour = episode.colour(time, agent)
        if colour is None:
            continue
        starts, ends = places[:-1, i], places[1:, i]
        before, after = (np.hypot(*(ways - places[-1, i]).T) - agent.shape.reach for ways in (starts, ends))
        outside = before > 0
        starts, ends, before, after, fresh = (x[outside] for x in (starts, ends, before, after, freshness))
        share = before / (before - np.minimum(after, 0))  # of the way, to where it enters the rim
        ends = starts + share[:, None] * (ends - starts)
        canvas.segments(starts, ends, colour, alpha=TRAIL_ALPHA * fresh, width=1 + 1.5 * fresh)


def draw_agents(episode: Episode, time: int, canvas: Canvas) -> None:
    for number, (i, agent) in enumerate(zip(episode.world.agent_indices, episode.world.agents, strict=True)):
        colour = episode.colour(time, agent)
        if colour is None:
            continue
        position, rotation = episode.position[time, i], episode.rotation[time, i]
        canvas.fill(agent.shape, position, rotation, colour, alpha=AGENT_ALPHA)
        canvas.outline(agent.shape, position, rotation, colour)
        push = find_push(agent, episode.u[time, number], rotation)
        strength = float(np.hypot(*push))
        if strength > MIN_PUSH:
            direction = push / strength
            start = position + distance_to_rim(agent.shape, direction, rotation) * direction
            length = max(ARROW_LENGTH * agent.shape.reach, canvas.to_length(MIN_ARROW_LENGTH))
            canvas.arrow(start, start + length * push, colour)


def find_push(agent: Agent, u: np.ndarray, rotation: float) -> np.ndarray:
    """Where the action points in the world, of length 1 where it is as strong as it may be."""
    if isinstance(agent.dynamics, NO_DIRECTION) or agent.num_actions == 0:
        return np.zeros(2)
    limit = np.multiply(agent.per_action(agent.u_range), agent.per_action(agent.u_multiplier))
    share = u[: len(limit)] / np.where(limit == 0, 1.0, limit)
    push = share[0] * unit(rotation) if len(share) == 1 or isinstance(agent.dynamics, ALONG_HEADING) else share[:2]
    return push / max(1.0, float(np.hypot(*push)))


def draw_joints(episode: Episode, time: int, canvas: Canvas) -> None:
    """A dot on every anchor. Rods between anchors are landmarks."""
    for joint in episode.world.constraints():
        cos, sin = unit(episode.rotation[time, joint.b])
        x, y = joint.offset_b
        anchor = episode.position[time, joint.b] + np.array([x * cos - y * sin, x * sin + y * cos])
        canvas.dot(anchor, BLACK, radius=3.0)
        canvas.dot(anchor, JOINT_COLOUR, radius=1.7)


def unit(angle: np.ndarray | float) -> np.ndarray:
    return np.stack([np.cos(angle), np.sin(angle)], -1)


def distance_to_rim(shape: Shape, direction: np.ndarray, rotation: float) -> np.ndarray:
    """From the centre to the outline along directions `[…, 2]` in the world."""
    if isinstance(shape, Sphere):
        return np.full(direction.shape[:-1], shape.radius)
    if isinstance(shape, Line):
        return np.zeros(direction.shape[:-1])
    ahead, aside = np.abs(direction @ unit(rotation)), np.abs(direction @ unit(rotation + np.pi / 2))
    ahead, aside = np.maximum(ahead, 1e-6), np.maximum(aside, 1e-6)
    distance: np.ndarray = np.minimum(shape.length / 2 / ahead, shape.width / 2 / aside)
    return distance


# --------------------------------------------------------------------------------------------------------------- Pillow


class Canvas:
    """A white picture of the square ±`view`. Places are in the world's units, widths in pixels of the picture.

    What is half transparent is blended with what is there already.
    """

    def __init__(self, size: int, view: float):
        self.view = view
        self._fine = size * SUPERSAMPLING
        self._pixel = SUPERSAMPLING * size / SIZE  # lines and dots keep their share of larger pictures
        self._scale = self._fine / (2 * view)
        self._image = Image.new("RGB", (self._fine, self._fine), "white")
        self._pen = ImageDraw.Draw(self._image, "RGBA")

    def to_length(self, pixels: float) -> float:
        return pixels * self._pixel / self._scale

    def picture(self) -> np.ndarray:
        return np.asarray(self._image.reduce(SUPERSAMPLING))

    def fill(self, shape: Shape, position: np.ndarray, rotation: float, colour: Colour, *, alpha: float = 1.0) -> None:
        if isinstance(shape, Sphere):
            self._pen.ellipse(self._around(position, shape.radius * self._scale), fill=_rgba(colour, alpha))
        elif isinstance(shape, Box):
            self._pen.polygon(self._to_pixels(_corners(shape, position, rotation)), fill=_rgba(colour, alpha))
        else:
            self.line(_ends(shape, position, rotation), colour, alpha=alpha, width=3.0)

    def outline(
        self,
        shape: Shape,
        position: np.ndarray,
        rotation: float,
        colour: Colour,
        *,
        alpha: float = 1.0,
        width: float = 1.5,
    ) -> None:
        if isinstance(shape, Sphere):
            box = self._around(position, shape.radius * self._scale)
            self._pen.ellipse(box, outline=_rgba(colour, alpha), width=self._thickness(width))
        elif isinstance(shape, Box):
            corners = _corners(shape, position, rotation)
            closed = np.concatenate([corners, corners[:2]])  # past the first corner, which is then as sharp as others
            self.line(closed, colour, alpha=alpha, width=width)
        else:
            self.line(_ends(shape, position, rotation), colour, alpha=alpha, width=3.0)

    def line(
        self, points: Sequence[Any] | np.ndarray, colour: Colour, *, alpha: float = 1.0, width: float = 1.0
    ) -> None:
        """Through all of the points."""
        pixels = self._to_pixels(np.asarray(points))
        self._pen.line(pixels, fill=_rgba(colour, alpha), width=self._thickness(width), joint="curve")

    def segments(
        self,
        starts: np.ndarray,
        ends: np.ndarray,
        colour: Colour,
        *,
        alpha: np.ndarray | float = 1.0,
        width: np.ndarray | float = 1.0,
    ) -> None:
        """Many lines, each from a start to its end, with their own alpha and width or with the same."""
        alphas, widths = np.broadcast_to(alpha, len(starts)), np.broadcast_to(width, len(starts))
        pairs = zip(self._to_pixels(starts), self._to_pixels(ends), strict=True)
        for pair, own_alpha, own_width in zip(pairs, alphas, widths, strict=True):
            self._pen.line(pair, fill=_rgba(colour, own_alpha), width=self._thickness(own_width))

    def dot(self, position: np.ndarray, colour: Colour, *, alpha: float = 1.0, radius: float) -> None:
        self._pen.ellipse(self._around(position, radius * self._pixel), fill=_rgba(colour, alpha))

    def arrow(self, start: np.ndarray, end: np.ndarray, colour: Colour) -> None:
        """A line with a head, which is smaller on arrows too short for it."""
        way = end - start
        length = float(np.hypot(*way))
        ahead = way / length
        head = min(self.to_length(7.0), length) * ahead
        aside = 0.5 * np.array([-head[1], head[0]])
        self.line([start, end - 0.8 * head], colour, width=2.0)
        self._pen.polygon(self._to_pixels(np.stack([end, end - head + aside, end - head - aside])), fill=_rgba(colour))

    def _to_pixels(self, points: np.ndarray) -> list[tuple[float, float]]:
        """x to the right, y up. Places may be outside the picture, within what Pillow can count."""
        pixels = self._fine / 2 + points * (self._scale, -self._scale)
        return [(x, y) for x, y in np.clip(pixels, -1e6, 1e6).tolist()]

    def _around(self, position: np.ndarray, radius: float) -> tuple[float, float, float, float]:
        ((x, y),) = self._to_pixels(position[None])
        return x - radius, y - radius, x + radius, y + radius

    def _thickness(self, width: float) -> int:
        return max(1, round(width * self._pixel))


def _rgba(colour: Colour, alpha: float = 1.0) -> tuple[int, ...]:
    return tuple(round(255 * float(part)) for part in (*colour, alpha))


def _corners(box: Box, position: np.ndarray, rotation: float) -> np.ndarray:
    ahead, aside = unit(rotation) * box.length / 2, unit(rotation + np.pi / 2) * box.width / 2
    return position + np.stack([ahead + aside, ahead - aside, -ahead - aside, -ahead + aside])


def _ends(line: Line, position: np.ndarray, rotation: float) -> np.ndarray:
    return position + np.outer([-0.5, 0.5], unit(rotation)) * line.length
