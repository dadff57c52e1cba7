"""What the tests against recordings of VMAS share: reading one (tools/record_vmas.py), and the checks on it.

Every transition is stepped from its recorded state. Free runs start from the first recorded state and then go on by
themselves for 100 steps. Where bodies bounce against each other, that is chaos: rounding grows until two runs have
nothing in common. So each run is compared for as long as it is predictable, that is, until a change of its start by
1e-6 has grown to 1e-4.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from covey import registry
from covey.envs.vmas.scenario import ScenarioState, VmasEnv
from covey.envs.vmas.world import WorldState

FOLDER = Path(__file__).parents[2] / "data" / "vmas"
NAMES = sorted(entry.name.removeprefix("vmas/") for entry in registry.tasks if entry.name.startswith("vmas/"))
CHAOS = 1e-4
# Fast to compile, but in the operations as users run them: numbers are compared.
COMPILE_FAST = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    "xla_cpu_use_fusion_emitters": True,
}
STATE = {"pos": "position", "vel": "velocity", "rot": "rotation", "ang_vel": "angular_velocity"}


@dataclasses.dataclass(frozen=True)
class Recording:
    env: VmasEnv
    arrays: dict[str, np.ndarray]
    meta: dict[str, Any]
    entities: list[int]  # the recording's entities as rows here
    compared: np.ndarray  # which of them do not move at random

    def part(self, prefix: str) -> dict[str, np.ndarray]:
        return {key.removeprefix(prefix): value for key, value in self.arrays.items() if key.startswith(prefix)}


def make_scenario_env(name: str, parameters: dict[str, Any]) -> VmasEnv:
    """The environment without the wrappers of tasks: time limits are not VMAS's to test."""
    entry = registry.tasks[f"vmas/{name}"]
    fields = {("time_limit" if key == "max_steps" else key): value for key, value in parameters.items()}
    env: VmasEnv = entry.make_function()(registry.build_config(entry.defaults(), fields, "task"))
    return env


@functools.cache
def load(name: str, number: int, folder: Path = FOLDER) -> Recording:
    with np.load(folder / f"{name}.npz") as file:
        meta = json.loads(str(file["meta"]))
        arrays = {key.removeprefix(f"{number}/"): file[key] for key in file.files if key.startswith(f"{number}/")}
    config = meta["configs"][number]
    env = make_scenario_env(name, config["parameters"])
    assert sorted(config["entities"]) == sorted(entity.name for entity in env.world.entities)
    return Recording(
        env=env,
        arrays=arrays,
        meta=config,
        entities=[env.world.index(entity) for entity in config["entities"]],
        compared=np.array([not (meta["random"] and re.fullmatch(meta["random"], e)) for e in config["entities"]]),
    )


def world_of(recording: Recording, values: dict[str, np.ndarray]) -> WorldState:
    """A recorded state in covey's order, for one environment."""
    world = recording.env.world
    order = np.argsort(recording.entities)
    state = world.start()
    pairs = [frozenset(pair) for pair in recording.meta["joints"]]
    names = [entity.name for entity in world.entities]
    joints = [pairs.index(frozenset((names[c.a], names[c.b]))) for c in world.constraints()]
    recorded: dict[str, Any] = {ours: values[theirs][order] for theirs, ours in STATE.items()}
    return dataclasses.replace(state, joint_rotation=values["joint_rotation"][np.array(joints, int)], **recorded)


def split_actions(recording: Recording, arrays: dict[str, np.ndarray]) -> dict[str, jax.Array]:
    """Recorded actions by group, agents on the axis before the last."""
    acting = [agent.name for agent in recording.env.world.agents if not agent.scripted]
    recorded = recording.meta["agents"]
    return {
        group: jnp.stack([jnp.asarray(arrays[str(recorded.index(acting[i]))]) for i in members], -2)
        for group, members in recording.env.groups.items()
    }


def begin(recording: Recording, world: WorldState, drawn: dict[str, jax.Array]) -> ScenarioState:
    return recording.env.scenario.begin(world, **drawn)


def rows_by_agent(recording: Recording, rows: dict[str, jax.Array]) -> list[np.ndarray]:
    """Values by group as a list in the recording's order of agents."""
    acting = [agent.name for agent in recording.env.world.agents if not agent.scripted]
    found = {acting[i]: np.asarray(rows[g])[:, k] for g, m in recording.env.groups.items() for k, i in enumerate(m)}
    return [found[name] for name in recording.meta["agents"]]


def nudge(values: dict[str, np.ndarray], seed: int) -> dict[str, np.ndarray]:
    """Positions and angles off by their last bit or so.

    Joints that are nearly tight pull with a force that does not vanish, in a direction that rounding decides. With both
    simulators in double precision these steps agree to 1e-12; here, they must agree as well as rounding allows.
    """
    rng = np.random.default_rng(seed)
    return values | {
        name: values[name] * (1 + 1.2e-7 * rng.choice([-1, 1], values[name].shape)).astype(np.float32)
        for name in ("pos", "rot")
    }


def check_steps(recording: Recording) -> None:
    """From each recorded state, the same action leads to the same state, reward, observation and ending."""
    env = recording.env
    step = recording.part("step/")
    before, after = recording.part("step/before/"), recording.part("step/after/")
    drawn, actions = recording.part("step/drawn/"), split_actions(recording, recording.part("step/action/"))

    @functools.partial(jax.jit, compiler_options=COMPILE_FAST)
    @jax.vmap
    def outcome(before: Any, drawn: Any, actions: Any, after: Any) -> Any:
        state = begin(recording, world_of(recording, before), drawn)
        stepped, timestep = env.step(state, actions, jax.random.key(0))
        # Seen is what the recorded next state shows: entities may have moved to random places.
        world = world_of(recording, after)
        seen = dataclasses.replace(world, u=stepped.world.u, communication=stepped.world.communication)
        observations = env._observe(dataclasses.replace(stepped, world=seen), jax.random.key(0))
        return stepped.world, timestep, observations

    world, timestep, observations = outcome(before, drawn, actions, after)
    rows = np.array(recording.entities)[recording.compared]
    others = [outcome(nudge(before, seed), drawn, actions, after)[0] for seed in range(4)] if env.world.joints else []
    for theirs, ours in STATE.items():
        found, expected = np.asarray(getattr(world, ours))[:, rows], after[theirs][:, recording.compared]
        rounding = [np.abs(np.asarray(getattr(other, ours))[:, rows] - found) for other in others]
        allowed = 1e-4 + 1e-4 * np.abs(expected) + 10 * np.max([np.zeros_like(found), *rounding], 0)
        assert np.all(np.abs(found - expected) <= allowed), (theirs, np.abs(found - expected).max())
    rewards = rows_by_agent(recording, {group: part.reward for group, part in timestep.groups.items()})
    np.testing.assert_allclose(np.stack(rewards, -1), step["reward"], atol=1e-4, rtol=1e-4, err_msg="reward")
    for i, seen in enumerate(rows_by_agent(recording, observations)):
        np.testing.assert_allclose(seen, step[f"observation/{i}"], atol=1e-4, rtol=1e-4, err_msg=f"observation {i}")
    np.testing.assert_array_equal(timestep.last, step["done"], err_msg="done")


def check_free_runs(recording: Recording) -> None:
    """The recorded actions lead to the recorded places, for as long as that can be foreseen."""
    if not recording.compared.all():
        pytest.skip("entities move to random places")
    env = recording.env
    free = recording.part("free/")
    actions = split_actions(recording, recording.part("free/action/"))  # [R, T, A, …]

    @functools.partial(jax.jit, compiler_options=COMPILE_FAST)
    @jax.vmap
    def run(before: Any, drawn: Any, actions: Any) -> tuple[jax.Array, jax.Array]:
        def step(state: ScenarioState, action: Any) -> tuple[ScenarioState, tuple[jax.Array, jax.Array]]:
            state, _ = env.step(state, action, jax.random.key(0))
            return state, (state.world.position, state.world.rotation)

        return jax.lax.scan(step, begin(recording, world_of(recording, before), drawn), actions)[1]

    before, drawn = recording.part("free/before/"), recording.part("free/drawn/")
    position, rotation = run(before, drawn, actions)
    # No two numbers alike: bodies that move together by the same do not show how they collide.
    nudge = 1e-6 * np.random.default_rng(0).normal(size=before["pos"].shape).astype(np.float32)
    nudged, _ = run(before | {"pos": before["pos"] + nudge}, drawn, actions)
    checked = np.arange(9, 100, 10)
    spread = np.abs(np.asarray(position - nudged))[:, : checked[-1] + 1].max((2, 3))
    predictable = (np.maximum.accumulate(spread, 1) < CHAOS)[:, checked]  # [R, checks]
    if not predictable[:, 0].any():
        pytest.skip("chaos from the first steps on: joints that are nearly tight pull in any direction")
    for theirs, ours in (("pos", position), ("rot", rotation)):
        np.testing.assert_allclose(
            np.asarray(ours)[:, checked][:, :, recording.entities][predictable],
            free[f"after/{theirs}"][predictable],
            atol=1e-3,
            rtol=1e-3,
            err_msg=theirs,
        )
