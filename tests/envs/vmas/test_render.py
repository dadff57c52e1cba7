"""Pictures of a small world with one of everything, checked pixel by pixel where the place is known."""

from __future__ import annotations

import dataclasses
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from covey import make_env
from covey.envs.vmas.dynamics import DifferentialDrive
from covey.envs.vmas.lidar import make_lidar
from covey.envs.vmas.render import SIZE, Decoration, draw, draw_episode
from covey.envs.vmas.scenario import Scenario, ScenarioState, VmasConfig, VmasEnv
from covey.envs.vmas.shapes import Box, Line, Sphere
from covey.envs.vmas.world import BLACK, BLUE, GRAY, GREEN, ORANGE, PURPLE, RED, Agent, Joint, Landmark, World
from covey.types import Array

PLACES = {
    "goal": (-0.6, 0.6),
    "frame": (0.6, 0.6),
    "bar": (0.0, -0.9),
    "block": (-0.6, -0.6),
    "round": (0.0, 0.0),
    "driver": (0.6, -0.3),
    "mate": (0.2, 0.9),
}


class Playground(Scenario):
    """Every shape, a joint, agents of two kinds; nothing is played."""

    x_semidim: float | None = None

    def make_world(self) -> World:
        return World(
            landmarks=(
                Landmark(name="goal", shape=Sphere(radius=0.15), colour=GREEN),
                Landmark(name="frame", shape=Box(length=0.6, width=0.4, hollow=True), colour=RED),
                Landmark(name="bar", shape=Line(length=1.0), colour=BLACK),
                Landmark(name="block", shape=Box(length=0.4, width=0.2), colour=PURPLE),
            ),
            agents=(
                Agent(name="round", shape=Sphere(radius=0.1), colour=BLUE),
                Agent(name="driver", shape=Box(length=0.3, width=0.16), colour=ORANGE, dynamics=DifferentialDrive()),
                Agent(name="mate", colour=BLUE),
            ),
            joints=(Joint(entity_a="round", entity_b="mate", dist=0.9),),
            x_semidim=self.x_semidim,
            y_semidim=self.x_semidim,
        )

    def __init__(self) -> None:
        super().__init__(VmasConfig())
        world = self.world
        self.measure = {"round": make_lidar(world, [world.index("round")], [0, 2, 3], num_rays=12, max_range=0.7)}

    def reset(self, key: Array) -> ScenarioState:
        return self.at()

    def at(self, **places: tuple[float, float]) -> ScenarioState:
        positions = {name: jnp.array(place) for name, place in (PLACES | places).items()}
        return self.begin(self.world.start(positions, rotations={"driver": jnp.float32(0.5)}))

    def observation(self, state: ScenarioState, key: Array) -> Array:
        return state.world.position[self.world.agent_indices]


class Bounded(Playground):
    x_semidim = 1.0


PLAYGROUND = Playground()


def pixel(picture: np.ndarray, x: float, y: float, view: float = 1.2) -> np.ndarray:
    """The colour, in 0…1, at a place in the world."""
    row, column = (int(SIZE / 2 * (1 + share)) for share in (-y / view, x / view))
    return np.asarray(picture[row, column] / 255)


def over_white(colour: tuple[float, float, float], alpha: float) -> np.ndarray:
    return alpha * np.array(colour) + 1 - alpha


def test_shapes_have_their_colours() -> None:
    picture = draw(PLAYGROUND, PLAYGROUND.at())
    assert picture.shape == (SIZE, SIZE, 3) and picture.dtype == np.uint8
    for name, colour in {"goal": GREEN, "bar": BLACK, "block": PURPLE}.items():
        np.testing.assert_allclose(pixel(picture, *PLACES[name]), colour, atol=0.01)
    np.testing.assert_allclose(pixel(picture, *PLACES["driver"]), over_white(ORANGE, 0.5), atol=0.01)
    np.testing.assert_allclose(pixel(picture, 1.1, 1.1), 1.0)


def test_agents_let_landmarks_shine_through() -> None:
    picture = draw(PLAYGROUND, PLAYGROUND.at(driver=PLACES["goal"]))
    np.testing.assert_allclose(pixel(picture, *PLACES["goal"]), (np.array(ORANGE) + GREEN) / 2, atol=0.01)


def test_hollow_box_is_an_outline() -> None:
    picture = draw(PLAYGROUND, PLAYGROUND.at())
    np.testing.assert_allclose(pixel(picture, 0.6, 0.6), 1.0)
    np.testing.assert_allclose(pixel(picture, 0.6, 0.8), RED, atol=0.01)
    np.testing.assert_allclose(pixel(picture, 0.9, 0.6), RED, atol=0.01)


def test_rays_end_in_a_dot_where_they_hit() -> None:
    alone, seen = (draw(PLAYGROUND, PLAYGROUND.at(block=place)) for place in ((0.0, 1.1), (-0.6, 0.0)))
    np.testing.assert_allclose(pixel(alone, -0.4, 0.0), over_white(BLUE, 0.2), atol=0.1)  # the ray goes on
    assert pixel(seen, -0.405, 0.0).sum() < pixel(alone, -0.405, 0.0).sum() - 0.3  # the dot
    np.testing.assert_allclose(pixel(seen, -0.6, 0.0), PURPLE, atol=0.01)


@pytest.mark.parametrize("place", [(0.0, 3.0), (-5.0, 0.0)])
def test_far_wall_is_in_the_picture(place: tuple[float, float]) -> None:
    states = [PLAYGROUND.at(), PLAYGROUND.at(block=place)]
    first, second = draw_episode(PLAYGROUND, states)
    purple = np.abs(second / 255 - PURPLE).max(-1) < 0.01
    assert purple.any() and not purple[[0, -1]].any() and not purple[:, [0, -1]].any()
    assert np.abs(first / 255 - PURPLE).max(-1).min() < 0.01
    assert np.array_equal(first[0], second[0])  # one view for the whole episode
    assert (first != draw(PLAYGROUND, states[0])).any()


def test_what_was_put_away_does_not_widen_the_view() -> None:
    away = draw(PLAYGROUND, PLAYGROUND.at(block=(-500.0, 20.0)))
    np.testing.assert_allclose(pixel(away, *PLACES["goal"]), GREEN, atol=0.01)


def test_floor_does_not_widen_the_view() -> None:
    class Floored(Playground):
        def make_world(self) -> World:
            floor = Landmark(name="floor", shape=Box(length=10.0, width=1.0), colour=GRAY)
            return dataclasses.replace(PLAYGROUND.world, landmarks=(floor,), joints=())

        def __init__(self) -> None:
            Scenario.__init__(self, VmasConfig())

    scenario = Floored()
    picture = draw(scenario, scenario.at(floor=(0.0, -1.5)))
    np.testing.assert_allclose(pixel(picture, *PLACES["driver"]), over_white(ORANGE, 0.5), atol=0.01)
    np.testing.assert_allclose([pixel(picture, x, -1.1) for x in (-1.15, 1.15)], [GRAY, GRAY], atol=0.01)


def test_bounds_stop_outlines() -> None:
    """Centres stop at ±1, so the outline is drawn by the largest agent's reach farther out."""
    scenario = Bounded()
    edge = 1.0 + Box(length=0.3, width=0.16).reach
    picture = draw(scenario, scenario.at())
    for x, y in ((edge, 0.5), (-edge, 0.5), (0.5, edge), (0.5, -edge)):
        assert pixel(picture, x, y, view=1.05 * edge).mean() < 0.8


def test_trails_show_the_past() -> None:
    states = [PLAYGROUND.at(driver=(0.4 + 0.02 * i, -0.42)) for i in range(25)]
    *_, last = draw_episode(PLAYGROUND, states)
    ink = [1 - pixel(last, x, -0.42).mean() for x in (0.45, 0.51, 0.58, 0.66)]  # forgotten, old, less so, new
    assert ink[0] == 0 and 0 < ink[1] < ink[2] < ink[3]


def test_arrows_show_the_action() -> None:
    still = PLAYGROUND.at()
    pushed = still.with_world(u=jnp.array([[0.0, -1.0], [1.0, 0.0], [0.0, 0.0]]))
    before, after = draw(PLAYGROUND, still), draw(PLAYGROUND, pushed)
    np.testing.assert_allclose(pixel(after, 0.02, -0.18), pixel(before, 0.02, -0.18))
    assert (pixel(after, 0.0, -0.18) < pixel(before, 0.0, -0.18)).any()
    ahead = 0.6 + 0.24 * np.cos(0.5), -0.3 + 0.24 * np.sin(0.5)  # this one drives where it heads
    np.testing.assert_allclose(pixel(before, *ahead), 1.0)
    np.testing.assert_allclose(pixel(after, *ahead), ORANGE, atol=0.2)


def test_scenario_changes_colours_and_decorates() -> None:
    class Decorated(Playground):
        def colours(self, state: ScenarioState) -> dict[str, tuple[float, float, float] | None]:
            assert isinstance(state.world.position, np.ndarray)
            return {"goal": None, "block": ORANGE}

        def decorations(self, state: ScenarioState) -> list[Decoration]:
            return [Decoration(shape=Sphere(radius=0.5), position=(0.5, -0.5), colour=RED, filled=False)]

    scenario = Decorated()
    picture = draw(scenario, scenario.at())
    np.testing.assert_allclose(pixel(picture, *PLACES["goal"]), 1.0)
    np.testing.assert_allclose(pixel(picture, *PLACES["block"]), ORANGE, atol=0.01)
    assert pixel(picture, 0.998, -0.5)[1] < 0.6
    np.testing.assert_allclose(pixel(picture, 0.3, -0.7), 1.0)


def test_same_state_same_picture() -> None:
    state = PLAYGROUND.at()
    assert np.array_equal(draw(PLAYGROUND, state), draw(PLAYGROUND, jax.device_get(state)))
    one, other = draw_episode(PLAYGROUND, [state, state])
    assert np.array_equal(one, other)


def test_broken_numbers_are_drawn_nowhere() -> None:
    state = PLAYGROUND.at(driver=(jnp.nan, jnp.nan), round=(jnp.inf, 0.0))
    picture = draw(PLAYGROUND, state)
    np.testing.assert_allclose(pixel(picture, *PLACES["goal"]), GREEN, atol=0.01)


def test_an_episode_takes_a_few_seconds() -> None:
    """Navigation with lidar, through the wrappers that every task has. Measured in the process's own time."""
    env = make_env("vmas/navigation")
    inner, elapsed = jax.device_get(jax.jit(env.reset)(jax.random.key(0))[0])
    drift = np.linspace(0, 1, 100)[:, None, None] * np.ones_like(inner.world.position)
    worlds = [dataclasses.replace(inner.world, position=inner.world.position + offset) for offset in drift]
    start = time.process_time()
    pictures = env.render([(dataclasses.replace(inner, world=world), elapsed) for world in worlds])
    assert time.process_time() - start < 6
    assert len(pictures) == 100 and all(picture.shape == (SIZE, SIZE, 3) for picture in pictures)


def test_no_states_no_pictures() -> None:
    assert VmasEnv(PLAYGROUND).render([]) == []
