"""Records single steps of VMAS's physics in small worlds, for every pair of shapes, kind of joint and of dynamics.

It runs where VMAS is installed and writes tests/data/vmas_worlds.npz:

    python tools/record_vmas_worlds.py

Scenarios use a part of the engine; these worlds use all of it. Each is described as JSON that the test turns into
covey's own, and stepped once from 30 random states, most of them with bodies in contact.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from vmas.simulator.core import Agent, Box, Landmark, Line, Sphere, World
from vmas.simulator.dynamics.diff_drive import DiffDrive
from vmas.simulator.dynamics.drone import Drone
from vmas.simulator.dynamics.forward import Forward
from vmas.simulator.dynamics.holonomic import Holonomic
from vmas.simulator.dynamics.holonomic_with_rot import HolonomicWithRotation
from vmas.simulator.dynamics.kinematic_bicycle import KinematicBicycle
from vmas.simulator.dynamics.roatation import Rotation
from vmas.simulator.dynamics.static import Static
from vmas.simulator.joints import Joint

PATH = Path(__file__).parents[1] / "tests" / "data" / "vmas_worlds.npz"
NUM_STATES = 30
SHAPES = {"Sphere": Sphere, "Box": Box, "Line": Line}
DYNAMICS = {
    "Holonomic": lambda world: Holonomic(),
    "HolonomicWithRotation": lambda world: HolonomicWithRotation(),
    "Forward": lambda world: Forward(),
    "Rotation": lambda world: Rotation(),
    "Static": lambda world: Static(),
    "DifferentialDrive": lambda world: DiffDrive(world),
    "DifferentialDriveEuler": lambda world: DiffDrive(world, integration="euler"),
    "KinematicBicycle": lambda world: KinematicBicycle(world, width=0.1, l_f=0.1, l_r=0.15, max_steering_angle=0.6),
    "Drone": lambda world: Drone(world),
}
EXAMPLES = {
    "sphere": ("Sphere", {"radius": 0.2}),
    "box": ("Box", {"length": 0.5, "width": 0.2}),
    "hollow": ("Box", {"length": 0.9, "width": 0.8, "hollow": True}),
    "line": ("Line", {"length": 0.6}),
}


def describe_worlds() -> dict[str, dict[str, Any]]:
    worlds: dict[str, dict[str, Any]] = {}
    kinds = list(EXAMPLES)
    for i, first in enumerate(kinds):
        for second in kinds[i:]:
            bodies = [body("a", first, movable=True, rotatable=True), body("b", second, movable=True, rotatable=True)]
            worlds[f"{first} and {second}"] = {"bodies": bodies, "world": {"substeps": 2}}
    fixed = [body("a", "sphere", movable=True, mass=3.0), body("b", "box", rotatable=True), body("c", "line")]
    worlds["bodies that cannot move or turn"] = {"bodies": fixed, "world": {"substeps": 3, "drag": 0.1}}
    free = {"linear_friction": 0.3, "angular_friction": 0.2, "gravity": (0.1, -0.4), "x_semidim": 0.5, "y_semidim": 0.4}
    worlds["friction, gravity and borders"] = {
        "bodies": [
            body("a", "sphere", movable=True, rotatable=True, max_speed=0.3),
            body("b", "box", movable=True, rotatable=True, v_range=0.2, drag=0.0, linear_friction=0.01),
        ],
        "world": free,
    }
    for rotate in (True, False):
        for dist in (0.0, 0.4):
            worlds[f"joint, {'free' if rotate else 'rigid'}, distance {dist}"] = {
                "bodies": [
                    body("a", "sphere", movable=True, rotatable=True),
                    body("b", "box", movable=True, rotatable=True),
                ],
                "world": {"substeps": 5},
                "joint": {
                    "anchor_a": (0.0, 0.5),
                    "anchor_b": (-1.0, 0.0),
                    "dist": dist,
                    "rotate_a": rotate,
                    "rotate_b": rotate,
                    "fixed_rotation_a": None if rotate or dist else 0.3,
                    "fixed_rotation_b": None if rotate or dist else 0.3,
                },
            }
    for kind in DYNAMICS:
        worlds[f"dynamics {kind}"] = {"bodies": [], "world": {"substeps": 2, "drag": 0.1}, "dynamics": kind}
    return worlds


def body(name: str, example: str, **fields: Any) -> dict[str, Any]:
    shape, parameters = EXAMPLES[example]
    return {"name": name, "shape": shape, "parameters": parameters, "fields": fields}


def main() -> None:
    arrays: dict[str, np.ndarray] = {}
    worlds = describe_worlds()
    for number, description in enumerate(worlds.values()):
        rng = np.random.default_rng(number)
        samples = [record(description, rng) for _ in range(NUM_STATES)]
        for key in samples[0]:
            arrays[f"{number}/{key}"] = np.stack([sample[key] for sample in samples])
    np.savez_compressed(PATH, meta=np.array(json.dumps(worlds)), **arrays)
    print(f"{PATH.name}: {PATH.stat().st_size / 1000:.0f} kB")


def record(description: dict[str, Any], rng: np.random.Generator) -> dict[str, np.ndarray]:
    world = World(1, torch.device("cpu"), **description["world"])
    for item in description["bodies"]:
        shape = SHAPES[item["shape"]](**item["parameters"])
        world.add_landmark(Landmark(name=item["name"], shape=shape, collide=True, **item["fields"]))
    kind = description.get("dynamics", "Holonomic")
    dynamics = DYNAMICS[kind](world)
    agent = Agent(name="agent", shape=Sphere(radius=0.1), collide=False, mass=2.0, dynamics=dynamics, max_f=None)
    world.add_agent(agent)
    if "joint" in description:
        first, second = world.landmarks[:2]
        world.add_joint(Joint(first, second, **description["joint"]))
    for entity in world.entities:
        entity.set_pos(tensor(rng.uniform(-0.3, 0.3, 2)), batch_index=0)
        entity.set_rot(tensor(rng.uniform(-3, 3, 1)), batch_index=0)
    for entity in world.entities:  # joints have put their rods in place by now
        entity.set_vel(tensor(rng.uniform(-0.5, 0.5, 2)), batch_index=0)
        entity.set_ang_vel(tensor(rng.uniform(-1, 1, 1)), batch_index=0)
        if entity.name.startswith("joint"):  # not exactly where they belong
            entity.state.pos = entity.state.pos + tensor(rng.uniform(-0.01, 0.01, (1, 2)))
            entity.state.rot = entity.state.rot + tensor(rng.uniform(-0.1, 0.1, (1, 1)))
    agent.action.u = tensor(rng.uniform(-1, 1, (1, agent.action_size)))
    memory = np.zeros(12, np.float32)
    if kind == "Drone":
        agent.dynamics.drone_state = tensor(rng.uniform(-0.2, 0.2, (1, 12)))
        memory = agent.dynamics.drone_state[0].numpy().copy()
    sample = {f"before/{key}": value for key, value in snapshot(world).items()}
    sample |= {"u": agent.action.u[0].numpy().copy(), "memory": memory}
    agent.dynamics.check_and_process_action()
    world.step()
    sample |= {f"after/{key}": value for key, value in snapshot(world).items()}
    sample["after/memory"] = agent.dynamics.drone_state[0].numpy().copy() if kind == "Drone" else memory
    return sample


def tensor(values: np.ndarray) -> torch.Tensor:
    return torch.tensor(np.asarray(values), dtype=torch.float32)


def snapshot(world: World) -> dict[str, np.ndarray]:
    """Copies, and entities in the order of their names."""
    entities = sorted(world.entities, key=lambda entity: entity.name)
    values = {
        name: np.stack([getattr(entity.state, name)[0].numpy().copy() for entity in entities])
        for name in ("pos", "vel", "rot", "ang_vel")
    }
    kept = [joint.fixed_rotation for joint in world.joints]
    values["joint_rotation"] = np.array(
        [float(x[0]) if torch.is_tensor(x) else float(x or 0) for x in kept], np.float32
    )
    return values


if __name__ == "__main__":
    main()
