"""How fast SuperSuit steps copies of a PettingZoo environment; run by stepping.py in its own Python environment.

Standard input is JSON: the module, its arguments, actions by agent to take in turn, and the numbers of steps, of
processes and of copies. Prints JSON: steps in a second of all copies together, and CPU seconds of all processes for a
step.
"""

import importlib
import json
import multiprocessing
import os
import sys
import time

import numpy as np
import supersuit

CPU_CLOCK = 2  # of a process, in the lowest bits of its clock's number


def cpu_seconds(pids: list[int]) -> float:
    return sum(time.clock_gettime(~pid << 3 | CPU_CLOCK) for pid in pids)


def main(module: str, arguments: dict, actions: list, steps: int, processes: int, copies: int) -> dict:
    single = importlib.import_module(module).parallel_env(**arguments)
    agents = single.possible_agents
    single = supersuit.pettingzoo_env_to_vec_env_v1(supersuit.black_death_v3(single))
    vector = supersuit.concat_vec_envs_v1(single, copies, num_cpus=processes, base_class="gymnasium")
    vector.reset(seed=0)
    dtype = vector.action_space.dtype
    drawn = []
    for number in range(len(actions)):  # each copy begins with another of them
        given = [actions[(number + copy) % len(actions)] for copy in range(copies)]
        drawn.append(np.asarray([each[agent] for each in given for agent in agents], dtype))
    pids = [os.getpid(), *(child.pid for child in multiprocessing.active_children())]
    before, began = cpu_seconds(pids), time.perf_counter()
    for number in range(steps):
        vector.step(drawn[number % len(drawn)])
    seconds, used = time.perf_counter() - began, cpu_seconds(pids) - before
    vector.close()
    return {"rate": copies * steps / seconds, "cpu": used / (copies * steps)}


if __name__ == "__main__":
    print(json.dumps(main(**json.load(sys.stdin))))
