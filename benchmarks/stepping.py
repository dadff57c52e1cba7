"""Stepping simulators in processes: covey's pool beside the bare simulator, pipes and SuperSuit, in turn.

`raw` are processes that step copies with PettingZoo's own interface and tell nobody: nothing can be faster. `pool` is
what actors use. `pipes` sends pickled dictionaries through pipes, as vectorised environments of Gymnasium do, and
`supersuit` is SuperSuit's. All are given the same random actions, drawn before, and the best round of each counts.

  python benchmarks/stepping.py --output results/benchmark-stepping.json
"""

from __future__ import annotations

import multiprocessing
import resource
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import common
import numpy as np

from covey import registry
from covey.envs.host.make import make_simulator, source_of
from covey.envs.host.pool import Pool
from covey.specs import Continuous

SPAWN = multiprocessing.get_context("spawn")
TASKS = {  # copies, steps of each in a round, PettingZoo's module; least share of raw, least speed-up of two processes
    "pettingzoo/multiwalker": (16, 150, "pettingzoo.sisl.multiwalker_v9", 0.92, 1.8),
    "pettingzoo/simple_spread": (128, 150, "mpe2.simple_spread_v3", 0.85, 1.7),
}
NUM_DRAWN = 64  # steps of random actions, taken again and again


def main(arguments: list[str] | None = None) -> None:
    parser = common.make_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tasks", nargs="+", default=list(TASKS))
    options = parser.parse_args(arguments)
    rows = [measure_task(task, options.rounds) for task in options.tasks]
    common.write_figures(options.output, {"rows": rows})


def measure_task(task: str, rounds: int) -> dict[str, Any]:
    """All ways of stepping a task, in turn, and CPU seconds for a step with eight copies in one process."""
    copies, steps, module, least_share, least_speedup = TASKS[task]
    ways: dict[str, Callable[[], float]] = {
        "raw, 1 process": lambda: raw(module, task, 1, copies // 2, steps),
        "raw, 2 processes": lambda: raw(module, task, 2, copies // 2, steps),
        "pool, 1 process": lambda: pool(task, 1, copies, steps),
        "pool, 2 processes": lambda: pool(task, 2, copies, steps),
        "pipes, 2 processes": lambda: pipes(module, task, 2, copies // 2, steps),
        "supersuit, 2 processes": lambda: supersuit(module, task, 2, copies, steps),
    }
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, measure in ways.items():
            rates[name].append(measure())
    best = {name: max(values) for name, values in rates.items()}
    for name, rate in best.items():
        print(f"{task:26} {name:24} {rate:9,.0f} steps/s", flush=True)
    mine = best["pool, 2 processes"]
    print(f"{task:26} of raw {common.verdict(mine / best['raw, 2 processes'], least_share)}", flush=True)
    print(f"{task:26} two of one {common.verdict(mine / best['pool, 1 process'], least_speedup)}", flush=True)
    cpu = {
        "one process": cpu_per_step(lambda: in_process(module, task, 8, steps), 8 * steps),
        "pool of one process": cpu_per_step(lambda: pool(task, 1, 8, steps), 8 * steps),
    }
    return {"task": task, "copies": copies, "steps_per_second": rates, "cpu_seconds_per_step": cpu}


def draw_actions(task: str) -> list[dict[str, Any]]:
    """Random actions for one copy, by agent as PettingZoo names them."""
    random = np.random.default_rng(0)
    (group,) = make_simulator(task).spec.groups.values()

    def one() -> Any:
        if isinstance(group.action, Continuous):
            return random.uniform(group.action.low, group.action.high).astype(np.float32)
        return int(random.integers(group.action.num_actions))  # type: ignore[union-attr]

    names = make(TASKS[task][2]).possible_agents
    return [{name: one() for name in names} for _ in range(NUM_DRAWN)]


def make(module: str) -> Any:
    """PettingZoo's own environment."""
    import importlib

    kwargs = {"continuous_actions": True, "max_cycles": 100} if "simple_spread" in module else {}
    return importlib.import_module(module).parallel_env(**kwargs)


def step_all(environments: list[Any], actions: list[dict[str, Any]], number: int) -> None:
    for environment in environments:
        given = actions[number % NUM_DRAWN]
        environment.step({agent: given[agent] for agent in environment.agents})
        if not environment.agents:
            environment.reset()


# --------------------------------------------------------------------------------------------------------------- raw


def _step_raw(module: str, actions: list[dict[str, Any]], copies: int, steps: int, ready: Any, start: Any) -> None:
    environments = [make(module) for _ in range(copies)]
    for number, environment in enumerate(environments):
        environment.reset(seed=number)
    ready.release()
    start.acquire()
    for number in range(steps):
        step_all(environments, actions, number)


def raw(module: str, task: str, num_workers: int, copies: int, steps: int) -> float:
    """Steps in a second of all processes together."""
    ready, start, actions = SPAWN.Semaphore(0), SPAWN.Semaphore(0), draw_actions(task)
    arguments = (module, actions, copies, steps, ready, start)
    workers = [SPAWN.Process(target=_step_raw, args=arguments) for _ in range(num_workers)]
    for worker in workers:
        worker.start()
    for _ in workers:
        ready.acquire()
    began = time.perf_counter()
    for _ in workers:
        start.release()
    for worker in workers:
        worker.join()
    return num_workers * copies * steps / (time.perf_counter() - began)


def in_process(module: str, task: str, copies: int, steps: int) -> float:
    """The same in this process."""
    environments, actions = [make(module) for _ in range(copies)], draw_actions(task)
    for number, environment in enumerate(environments):
        environment.reset(seed=number)
    began = time.perf_counter()
    for number in range(steps):
        step_all(environments, actions, number)
    return copies * steps / (time.perf_counter() - began)


def cpu_per_step(run: Callable[[], float], num_steps: int) -> float:
    """CPU seconds of this process and its children for a step, starting included alike."""
    before = _cpu_seconds()
    run()
    return (_cpu_seconds() - before) / num_steps


def _cpu_seconds() -> float:
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


# -------------------------------------------------------------------------------------------------------------- pool


def pool(task: str, num_workers: int, copies: int, steps: int) -> float:
    """Steps in a second of all copies, in two halves as actors step them."""
    source = source_of(task, registry.tasks[task].defaults())
    drawn = draw_actions(task)
    actions = [np.stack(list(given.values())) for given in drawn]
    (group,) = make_simulator(task).spec.groups
    with Pool(source, copies, num_workers=num_workers) as made:
        made.begin(seed=0)
        for half in range(made.num_halves):
            made.receive(half)
        began = time.perf_counter()
        for number in range(steps + 1):
            for half, part in enumerate(made.halves):
                if number:
                    made.receive(half)
                if number < steps:
                    size = part.stop - part.start
                    made.send(half, {group: np.broadcast_to(actions[number % NUM_DRAWN], (size, *actions[0].shape))})
        return copies * steps / (time.perf_counter() - began)


# ------------------------------------------------------------------------------------------------------------- others


def _step_pipes(module: str, copies: int, connection: Connection) -> None:
    environments = [make(module) for _ in range(copies)]
    shown = [environment.reset(seed=number)[0] for number, environment in enumerate(environments)]
    connection.send(shown)
    while (given := connection.recv()) is not None:
        answers = []
        for environment, actions in zip(environments, given, strict=True):
            answer = environment.step({agent: actions[agent] for agent in environment.agents})
            if not environment.agents:
                answer = (environment.reset()[0], *answer[1:])
            answers.append(answer)
        connection.send(answers)


def pipes(module: str, task: str, num_workers: int, copies: int, steps: int) -> float:
    """Steps in a second with pickled dictionaries, all workers stepped together."""
    drawn, ends, workers = draw_actions(task), [], []
    for _ in range(num_workers):
        here, there = SPAWN.Pipe()
        worker = SPAWN.Process(target=_step_pipes, args=(module, copies, there))
        worker.start()
        ends.append(here)
        workers.append(worker)
    for end in ends:
        end.recv()
    began = time.perf_counter()
    for number in range(steps):
        for end in ends:
            end.send([drawn[number % NUM_DRAWN]] * copies)
        for end in ends:
            end.recv()
    seconds = time.perf_counter() - began
    for end, worker in zip(ends, workers, strict=True):
        end.send(None)
        worker.join()
    return num_workers * copies * steps / seconds


def supersuit(module: str, task: str, num_workers: int, copies: int, steps: int) -> float:
    """Steps in a second with SuperSuit's vectorised environment."""
    import supersuit as suit

    drawn = draw_actions(task)
    actions = [np.stack(list(given.values())) for given in drawn]
    single = suit.pettingzoo_env_to_vec_env_v1(suit.black_death_v3(make(module)))
    vector = suit.concat_vec_envs_v1(single, copies, num_cpus=num_workers, base_class="gymnasium")
    vector.reset(seed=0)
    all_actions = [np.concatenate([given] * copies) for given in actions]
    began = time.perf_counter()
    for number in range(steps):
        vector.step(all_actions[number % NUM_DRAWN])
    seconds = time.perf_counter() - began
    vector.close()
    return copies * steps / seconds


if __name__ == "__main__":
    main()
