"""Stepping simulators in processes: covey's pool beside the bare simulator, pipes and SuperSuit, in turn.

`raw` are processes that step copies with PettingZoo's own interface and tell nobody: nothing can be faster. `pool` is
what actors use. `pipes` sends pickled dictionaries through pipes, as vectorised environments of Gymnasium do, and
`supersuit` is SuperSuit's, in a Python environment of its own. All are given random actions, drawn before, and one
thread for each process; they take turns, and the best round of each counts.

  python benchmarks/stepping.py --peer PATH/TO/ITS/python --output results/benchmark-stepping.json
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import common
import numpy as np

from covey import registry
from covey.envs.host.make import make_simulator, source_of
from covey.envs.host.pool import Pool
from covey.specs import Continuous

SPAWN = multiprocessing.get_context("spawn")
NUM_DRAWN = 64  # steps of random actions, taken again and again


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """A task, how it is stepped, and what is to be reached; None where nothing was set."""

    module: str  # PettingZoo's
    copies: int
    steps: int  # of each copy in a round
    of_raw: float  # two processes, of the raw simulator's rate in two
    two_of_one: float | None = None
    over_others: float | None = None
    cpu_of_raw: float | None = None  # at most: CPU seconds for a step, of those in one process


CASES = {
    "pettingzoo/multiwalker": Case(
        module="pettingzoo.sisl.multiwalker_v9", copies=16, steps=400, of_raw=0.92, two_of_one=1.8, cpu_of_raw=1.05
    ),
    "pettingzoo/simple_spread": Case(
        module="mpe2.simple_spread_v3", copies=128, steps=150, of_raw=0.85, over_others=1.7
    ),
}


def main(arguments: list[str] | None = None) -> None:
    parser = common.make_parser(__doc__)
    parser.add_argument("--peer", default=sys.executable, help="the Python that has supersuit, pettingzoo and mpe2")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tasks", nargs="+", default=list(CASES), choices=list(CASES))
    options = parser.parse_args(arguments)
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"
    rows = [measure_task(task, CASES[task], options) for task in options.tasks]
    common.write_figures(options.output, {"rows": rows})


def measure_task(task: str, case: Case, options: Any) -> dict[str, Any]:
    """All ways of stepping a task, in turn, and CPU seconds for a step with eight copies in one process."""
    half = case.copies // 2
    ways: dict[str, Callable[[], Measured]] = {
        "raw, 1 process": lambda: raw(task, case, 1, half),
        "raw, 2 processes": lambda: raw(task, case, 2, half),
        "pool, 1 process": lambda: pool(task, case, 1, case.copies),
        "pool, 2 processes": lambda: pool(task, case, 2, case.copies),
        "pipes, 2 processes": lambda: pipes(task, case, 2, half),
        "supersuit, 2 processes": lambda: supersuit(options.peer, case, 2),
        "raw, 8 copies in 1 process": lambda: raw(task, case, 1, 8),
        "pool, 8 copies in 1 process": lambda: pool(task, case, 1, 8),
    }
    measured: dict[str, list[Measured]] = {name: [] for name in ways}
    for _ in range(options.rounds):
        for name, measure in ways.items():
            measured[name].append(measure())
    rates = {name: [one.rate for one in several] for name, several in measured.items()}
    best = {name: max(values) for name, values in rates.items()}
    cpu = {name: min(one.cpu for one in several) for name, several in measured.items()}
    for name, rate in best.items():
        print(f"{task:26} {name:28} {rate:9,.0f} steps/s  {1e6 * cpu[name]:7.1f} us of CPU a step", flush=True)
    mine = best["pool, 2 processes"]
    ratios = {
        "of_raw": mine / best["raw, 2 processes"],
        "two_of_one": mine / best["pool, 1 process"],
        "over_pipes": mine / best["pipes, 2 processes"],
        "over_supersuit": mine / best["supersuit, 2 processes"],
        "cpu_of_raw": cpu["pool, 8 copies in 1 process"] / cpu["raw, 8 copies in 1 process"],
    }
    wanted = {"over_pipes": case.over_others, "over_supersuit": case.over_others}
    for name, ratio in ratios.items():
        least = wanted.get(name, getattr(case, name, None))
        if name == "cpu_of_raw":
            print(f"{task:26} {name} {ratio:.3f}" + (f" (target at most {least:.2f})" if least else ""), flush=True)
        else:
            print(f"{task:26} {name} {common.verdict(ratio, least) if least else f'{ratio:.3f}'}", flush=True)
    return {
        "task": task,
        "case": dataclasses.asdict(case),
        "steps_per_second": rates,
        "cpu_seconds_per_step": cpu,
        "ratios": ratios,
    }


@dataclasses.dataclass(frozen=True)
class Measured:
    """Steps in a second of all copies together, and CPU seconds of all processes for a step."""

    rate: float
    cpu: float


class Stopwatch:
    """Measures from its start: wall time, and the CPU time of this process and of some others."""

    def __init__(self, pids: Sequence[int]):
        self._pids = [os.getpid(), *pids]
        self._cpu = self._used()
        self._began = time.perf_counter()

    def measured(self, num_steps: int) -> Measured:
        seconds = time.perf_counter() - self._began
        return Measured(num_steps / seconds, (self._used() - self._cpu) / num_steps)

    def _used(self) -> float:
        return sum(cpu_seconds(pid) for pid in self._pids)


def cpu_seconds(pid: int) -> float:
    """What a running process has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def draw_actions(task: str) -> list[dict[str, Any]]:
    """Random actions for one copy, by agent as PettingZoo names them."""
    random = np.random.default_rng(0)
    (group,) = make_simulator(task).spec.groups.values()

    def one() -> Any:
        if isinstance(group.action, Continuous):
            return random.uniform(group.action.low, group.action.high).astype(np.float32)
        return int(random.integers(group.action.num_actions))  # type: ignore[union-attr]

    names = make(CASES[task].module).possible_agents
    return [{name: one() for name in names} for _ in range(NUM_DRAWN)]


def make(module: str) -> Any:
    """PettingZoo's own environment."""
    kwargs = {"continuous_actions": True, "max_cycles": 100} if "simple_spread" in module else {}
    return importlib.import_module(module).parallel_env(**kwargs)


def step_all(environments: list[Any], actions: list[dict[str, Any]], number: int) -> None:
    for environment in environments:
        given = actions[number % NUM_DRAWN]
        environment.step({agent: given[agent] for agent in environment.agents})
        if not environment.agents:
            environment.reset()


# --------------------------------------------------------------------------------------------------------------- raw


def _step_raw(
    module: str, actions: list[dict[str, Any]], copies: int, steps: int, ready: Any, start: Any, end: Any
) -> None:
    environments = [make(module) for _ in range(copies)]
    for number, environment in enumerate(environments):
        environment.reset(seed=number)
    ready.release()
    start.acquire()
    for number in range(steps):
        step_all(environments, actions, number)
    ready.release()
    end.acquire()


def raw(task: str, case: Case, num_workers: int, copies: int) -> Measured:
    """Processes that step their copies and tell nobody."""
    ready, start, end, actions = SPAWN.Semaphore(0), SPAWN.Semaphore(0), SPAWN.Semaphore(0), draw_actions(task)
    arguments = (case.module, actions, copies, case.steps, ready, start, end)
    workers = [SPAWN.Process(target=_step_raw, args=arguments) for _ in range(num_workers)]
    for worker in workers:
        worker.start()
    for _ in workers:
        ready.acquire()
    watch = Stopwatch([worker.pid for worker in workers])  # type: ignore[misc]
    for _ in workers:
        start.release()
    for _ in workers:
        ready.acquire()
    measured = watch.measured(num_workers * copies * case.steps)
    for _ in workers:
        end.release()
    for worker in workers:
        worker.join()
    return measured


# -------------------------------------------------------------------------------------------------------------- pool


def pool(task: str, case: Case, num_workers: int, copies: int) -> Measured:
    """covey's processes, in two halves as actors step them."""
    source = source_of(task, registry.tasks[task].defaults())
    actions = [np.stack(list(given.values())) for given in draw_actions(task)]
    (group,) = make_simulator(task).spec.groups
    with Pool(source, copies, num_workers=num_workers) as made:
        made.begin(seed=0)
        for half in range(made.num_halves):
            made.receive(half)
        watch = Stopwatch(made.pids)
        for number in range(case.steps + 1):
            for half, part in enumerate(made.halves):
                if number:
                    made.receive(half)
                if number < case.steps:
                    size = part.stop - part.start
                    made.send(half, {group: np.broadcast_to(actions[number % NUM_DRAWN], (size, *actions[0].shape))})
        return watch.measured(copies * case.steps)


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


def pipes(task: str, case: Case, num_workers: int, copies: int) -> Measured:
    """Pickled dictionaries through pipes, all processes stepped together."""
    drawn, ends, workers = draw_actions(task), [], []
    for _ in range(num_workers):
        here, there = SPAWN.Pipe()
        worker = SPAWN.Process(target=_step_pipes, args=(case.module, copies, there))
        worker.start()
        ends.append(here)
        workers.append(worker)
    for end in ends:
        end.recv()
    watch = Stopwatch([worker.pid for worker in workers])  # type: ignore[misc]
    for number in range(case.steps):
        for end in ends:
            end.send([drawn[number % NUM_DRAWN]] * copies)
        for end in ends:
            end.recv()
    measured = watch.measured(num_workers * copies * case.steps)
    for end, worker in zip(ends, workers, strict=True):
        end.send(None)
        worker.join()
    return measured


def supersuit(python: str, case: Case, num_workers: int) -> Measured:
    """SuperSuit's vectorised environment, in a Python environment of its own."""
    script = common.HERE / "peers" / "step_supersuit.py"
    command = [python, str(script), case.module, str(num_workers), str(case.copies), str(case.steps)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr}")
    return Measured(**json.loads(done.stdout.splitlines()[-1]))


if __name__ == "__main__":
    main()
