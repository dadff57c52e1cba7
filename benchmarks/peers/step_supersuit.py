"""How fast SuperSuit steps copies of a PettingZoo environment; run by stepping.py in its own Python environment.

    python step_supersuit.py MODULE PROCESSES COPIES STEPS

Prints JSON: steps in a second of all copies together, and CPU seconds of all processes for one.
"""

import importlib
import json
import multiprocessing
import os
import sys
import time
from pathlib import Path

import numpy as np
import supersuit

NUM_DRAWN = 64  # steps of random actions, taken again and again


def cpu_seconds(pids: list[int]) -> float:
    total = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")


def main(module: str, num_workers: int, copies: int, steps: int) -> dict:
    kwargs = {"continuous_actions": True, "max_cycles": 100} if "simple_spread" in module else {}
    single = importlib.import_module(module).parallel_env(**kwargs)
    single = supersuit.pettingzoo_env_to_vec_env_v1(supersuit.black_death_v3(single))
    vector = supersuit.concat_vec_envs_v1(single, copies, num_cpus=num_workers, base_class="gymnasium")
    vector.reset(seed=0)
    vector.action_space.seed(0)
    actions = [np.asarray(vector.action_space.sample()) for _ in range(NUM_DRAWN)]
    pids = [os.getpid(), *(child.pid for child in multiprocessing.active_children())]
    before, began = cpu_seconds(pids), time.perf_counter()
    for number in range(steps):
        vector.step(actions[number % NUM_DRAWN])
    seconds, used = time.perf_counter() - began, cpu_seconds(pids) - before
    vector.close()
    return {"rate": copies * steps / seconds, "cpu": used / (copies * steps)}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], *map(int, sys.argv[2:5]))))
