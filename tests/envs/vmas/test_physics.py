"""The engine against single steps of VMAS's (tools/record_vmas_worlds.py), and a few numbers worked out by hand."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from replay import COMPILE_FAST

from covey.envs.vmas import dynamics, shapes
from covey.envs.vmas.physics import distance, distance_to_point, make_step
from covey.envs.vmas.world import Agent, Joint, Landmark, World

PATH = Path(__file__).parents[2] / "data" / "vmas_worlds.npz"
with np.load(PATH) as _file:
    ARRAYS = dict(_file)
WORLDS = json.loads(str(ARRAYS["meta"]))
KINDS = {
    "DifferentialDriveEuler": dynamics.DifferentialDrive(integration="euler"),
    "KinematicBicycle": dynamics.KinematicBicycle(width=0.1, l_f=0.1, l_r=0.15, max_steering_angle=0.6),
}


def make_world(description: dict[str, Any]) -> World:
    bodies = []
    for item in description["bodies"]:
        shape = getattr(shapes, item["shape"])(**item["parameters"])
        bodies.append(Landmark(name=item["name"], shape=shape, **item["fields"]))
    kind = description.get("dynamics", "Holonomic")
    agent = Agent(
        name="agent",
        shape=shapes.Sphere(radius=0.1),
        collide=False,
        mass=2.0,
        dynamics=KINDS.get(kind) or getattr(dynamics, kind)(),
    )
    joints: tuple[Joint, ...] = ()
    if "joint" in description:
        joints = (Joint(entity_a="a", entity_b="b", **description["joint"]),)
    return World(landmarks=tuple(bodies), agents=(agent,), joints=joints, **description["world"])


@pytest.mark.parametrize(("number", "name"), list(enumerate(WORLDS)))
def test_every_recorded_world(number: int, name: str) -> None:
    world = make_world(WORLDS[name])
    arrays = {key.removeprefix(f"{number}/"): value for key, value in ARRAYS.items() if key.startswith(f"{number}/")}
    order = np.argsort(np.argsort([entity.name for entity in world.entities]))
    step = make_step(world)
    remembers = bool(world.agents[0].dynamics.memory_size)

    def run(before: dict[str, Any], u: Any, memory: Any) -> Any:
        state = dataclasses.replace(
            world.start(),
            position=before["pos"][order],
            velocity=before["vel"][order],
            rotation=before["rot"][order, 0],
            angular_velocity=before["ang_vel"][order, 0],
            joint_rotation=before["joint_rotation"],
            dynamics=(memory[None],) if remembers else (),
        )
        return step(state, jnp.asarray(u)[None], state.communication, jnp.zeros_like(state.position))

    before = {key.removeprefix("before/"): value for key, value in arrays.items() if key.startswith("before/")}
    after = jax.jit(jax.vmap(run), compiler_options=COMPILE_FAST)(before, arrays["u"], arrays["memory"])
    for theirs, ours in (
        ("pos", after.position),
        ("vel", after.velocity),
        ("rot", after.rotation[..., None]),
        ("ang_vel", after.angular_velocity[..., None]),
    ):
        expected = arrays[f"after/{theirs}"][:, order]
        tolerance = 1e-4 * max(1.0, np.abs(expected).max())  # of single precision: joints far apart pull very hard
        np.testing.assert_allclose(ours, expected, atol=tolerance, rtol=1e-4, err_msg=f"{name}: {theirs}")
    if remembers:
        np.testing.assert_allclose(after.dynamics[0][:, 0], arrays["after/memory"], atol=1e-4, rtol=1e-4)


def test_most_recorded_worlds_are_in_contact() -> None:
    """A recording of bodies that never touch would prove nothing."""
    for number, (name, description) in enumerate(WORLDS.items()):
        if len(description["bodies"]) == 2 and "joint" not in description and "drag" not in description["world"]:
            spread = np.abs(ARRAYS[f"{number}/after/vel"] - 0.75 * ARRAYS[f"{number}/before/vel"])
            assert np.mean(spread[:, 1:].max((1, 2)) > 1e-3) > 0.3, name


def test_two_spheres_push_apart_by_hand() -> None:
    """Overlap 0.05, far above the margin, is a depth of 0.05: force 100 x 0.05, velocity 5 x 0.1, place + 0.05."""
    bodies = tuple(Landmark(name=name, shape=shapes.Sphere(radius=0.1), movable=True) for name in "ab")
    world = World(landmarks=bodies, agents=(Agent(name="agent", collide=False),), drag=0.0)
    state = world.start({"a": jnp.array([0.0, 0.0]), "b": jnp.array([0.15, 0.0]), "agent": jnp.array([5.0, 5.0])})
    after = make_step(world)(state, jnp.zeros((1, 2)), state.communication, jnp.zeros_like(state.position))
    np.testing.assert_allclose(after.velocity[:2], [[-0.5, 0.0], [0.5, 0.0]], atol=1e-5)
    np.testing.assert_allclose(after.position[:2], [[-0.05, 0.0], [0.2, 0.0]], atol=1e-6)


def test_distances_by_hand() -> None:
    margin = 4 / 600
    bodies = (
        Landmark(name="box", shape=shapes.Box(length=0.4, width=0.2)),
        Landmark(name="line", shape=shapes.Line(length=0.4)),
        Landmark(name="sphere", shape=shapes.Sphere(radius=0.1)),
    )
    world = World(landmarks=bodies, agents=(Agent(name="agent", shape=shapes.Sphere(radius=0.1)),))
    places = {"line": [0.0, 1.0], "sphere": [1.0, 0.0], "agent": [1.0, 0.5]}
    state = world.start({name: jnp.array(place) for name, place in places.items()})
    box, line, sphere, agent = range(4)
    assert float(distance(world, state, sphere, agent)) == pytest.approx(0.3)
    assert float(distance(world, state, box, sphere)) == pytest.approx(0.8 - 0.1 - margin)
    assert float(distance(world, state, line, box)) == pytest.approx(0.9 - margin)
    assert float(distance(world, state, agent, line)) == pytest.approx(np.hypot(0.8, 0.5) - 0.1 - margin)
    assert float(distance_to_point(world, state, box, jnp.array([0.0, 0.4]))) == pytest.approx(0.3 - margin)
    inside = world.start({"sphere": jnp.array([0.05, 0.0])})
    assert float(distance(world, inside, sphere, box)) == -1.0
