"""Draws the pictures of tasks that the documentation shows: docs/pictures/SUITE/TASK.png.

    python tools/draw_tasks.py                 all tasks that have no picture yet
    python tools/draw_tasks.py vmas/balance    one task, or all of a suite (vmas)

Each picture shows a state after some steps at random. It is small and has few colours, so that all of them together
stay well below 5 MB. Probes have nothing to see and are left out. Pictures are committed: building the documentation
draws none.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from PIL import Image

import covey
from covey import registry
from covey.algorithms.random import make_random_team
from covey.envs.base import Env
from covey.errors import CoveyError

FOLDER = Path(__file__).parents[1] / "docs" / "pictures"
STEPS = {"smax": 12, "hanabi": 10, "connector": 6, "mmst": 4, "multi_cvrp": 4, "cleaner": 40, "storm": 30}
DEFAULT_STEPS = 20
UNDRAWN = ("probe",)
WIDTH = 320  # pixels
COLOURS = 48


def main() -> None:
    for name in chosen(sys.argv[1:]):
        path = FOLDER / f"{name}.png"
        try:
            picture = draw(covey.make_env(name), STEPS.get(name.partition("/")[0], DEFAULT_STEPS))
        except (CoveyError, NotImplementedError) as error:
            print(f"{name}: no picture: {error}")
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        save(picture, path)
        print(f"{path.relative_to(FOLDER)}: {path.stat().st_size / 1000:.1f} kB", flush=True)


def chosen(words: Sequence[str]) -> list[str]:
    names = [entry.name for entry in registry.tasks if not entry.host and not entry.name.startswith(UNDRAWN)]
    if words:
        return [name for name in names if any(name == word or name.startswith(f"{word}/") for word in words)]
    return [name for name in names if not (FOLDER / f"{name}.png").exists()]


def draw(env: Env, num_steps: int) -> np.ndarray:
    """The last of the states that a team at random comes through, before its episode ends."""
    team = make_random_team(env.spec)

    @jax.jit
    def step(state: Any, timestep: Any, key: Any) -> Any:
        key_act, key_env = jax.random.split(key)
        actions, _, _ = team.act((), jax.tree.map(lambda x: x[None], timestep), (), key_act, True)
        return env.step(state, jax.tree.map(lambda action: action[0], actions), key_env)

    key = jax.random.key(1)
    state, timestep = jax.jit(env.reset)(key)
    states = [state]
    for number in range(num_steps):
        state, timestep = step(state, timestep, jax.random.fold_in(key, number))
        if timestep.last:
            break
        states.append(state)
    return env.render(jax.device_get(states))[-1]


def save(picture: np.ndarray, path: Path) -> None:
    image = Image.fromarray(picture)
    height = round(image.height * WIDTH / image.width)
    if image.width > WIDTH:
        image = image.resize((WIDTH, height), Image.Resampling.LANCZOS)
    image.quantize(COLOURS).save(path, optimize=True)


if __name__ == "__main__":
    main()
