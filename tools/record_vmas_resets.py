"""Records where VMAS starts its episodes, for the test that holds covey's own scenarios to it.

It runs in the environment of tools/record_vmas.py and writes tests/data/vmas_resets.npz:

    python tools/record_vmas_resets.py [NAME …]

Each scenario is reset 10,000 times at its default parameters. Of every entity's x, y and angle, the mean, the standard
deviation and quantiles are kept, and of every two entities' distance, centre to centre, the smallest and quantiles.

Where possible, one environment is reset again and again: in a batch, VMAS draws for all environments together which
of several agents takes which place. With names, only those are recorded, and the others are kept in the file.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import vmas
from record_vmas import SCENARIOS, default_parameters

PATH = Path(__file__).parents[1] / "tests" / "data" / "vmas_resets.npz"
NUM_RESETS = 10_000
SEED = 0
QUANTILES = (0.01, 0.1, 0.5, 0.9, 0.99)
DISTANCE_QUANTILES = (0.01, 0.5, 0.99)
AT_ONCE = {"sampling": 500}  # a reset takes a second, and draws for each environment by itself


def main() -> None:
    torch.set_num_threads(1)
    names = sys.argv[1:] or list(SCENARIOS)
    arrays: dict[str, np.ndarray] = {}
    meta: dict[str, Any] = {"num_resets": NUM_RESETS, "scenarios": {}}
    if sys.argv[1:] and PATH.exists():
        with np.load(PATH) as file:
            arrays, meta = dict(file), json.loads(str(file["meta"]))
    meta |= {"quantiles": QUANTILES, "distance_quantiles": DISTANCE_QUANTILES}
    for name in names:
        entities, poses = draw(name)
        summary = summarise(poses)
        arrays |= {f"{name}/{key}": value.astype(np.float32) for key, value in summary.items()}
        meta["scenarios"][name] = {"entities": entities, "parameters": default_parameters(name)}
        print(f"{name}: {len(entities)} entities", flush=True)
    arrays["meta"] = np.array(json.dumps(meta))
    np.savez_compressed(PATH, **arrays)
    print(f"{PATH.name}: {PATH.stat().st_size / 1000:.0f} kB")


def draw(name: str) -> tuple[list[str], np.ndarray]:
    """The names of the entities, and x, y and angle of each at every reset, `[N, E, 3]`."""
    num_envs = AT_ONCE.get(name, 1)
    fields = {key: value for key, value in default_parameters(name).items() if key != "max_steps"}
    env = vmas.make_env(scenario=name, num_envs=num_envs, continuous_actions=True, max_steps=None, seed=SEED, **fields)
    torch.manual_seed(SEED)
    poses = []
    for _ in range(NUM_RESETS // num_envs):
        env.scenario.env_reset_world_at(None)
        poses.append(torch.stack([torch.cat([e.state.pos, e.state.rot], -1) for e in env.world.entities], 1))
    return [entity.name for entity in env.world.entities], torch.cat(poses).double().numpy()


def summarise(poses: np.ndarray) -> dict[str, np.ndarray]:
    first, second = np.triu_indices(poses.shape[1], 1)
    distance = np.linalg.norm(poses[:, first, :2] - poses[:, second, :2], axis=-1)
    return {
        "mean": poses.mean(0),
        "deviation": poses.std(0),
        "quantiles": np.quantile(poses, QUANTILES, axis=0, method="lower"),
        "smallest_distance": distance.min(0),
        "distance_quantiles": np.quantile(distance, DISTANCE_QUANTILES, axis=0, method="lower"),
    }


if __name__ == "__main__":
    main()
