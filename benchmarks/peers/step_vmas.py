"""How fast VMAS steps a scenario with random actions; run by compare_vmas.py in VMAS's own environment.

    python step_vmas.py NAME NUM_ENVS SECONDS

Prints the frames per second of the best of three rounds as JSON. Actions are drawn beforehand, and nothing is reset.
"""

import json
import sys
import time
from pathlib import Path

import benchmarl
import torch
import vmas
import yaml


def main() -> None:
    name, num_envs, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    torch.set_num_threads(1)
    path = Path(benchmarl.__file__).parent / "conf" / "task" / "vmas" / f"{name}.yaml"
    fields = {k: v for k, v in yaml.safe_load(path.read_text()).items() if k not in ("defaults", "max_steps")}
    env = vmas.make_env(scenario=name, num_envs=num_envs, continuous_actions=True, max_steps=None, seed=0, **fields)
    env.reset()
    actions = [env.get_random_actions() for _ in range(10)]
    for action in actions[:3]:
        env.step(action)
    best = 0.0
    for _ in range(3):
        steps, start = 0, time.perf_counter()
        while time.perf_counter() - start < seconds:
            env.step(actions[steps % len(actions)])
            steps += 1
        best = max(best, steps * num_envs / (time.perf_counter() - start))
    print(json.dumps({"frames_per_second": best}))


if __name__ == "__main__":
    main()
