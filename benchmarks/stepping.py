"""Stepping simulators in processes: covey's pool beside the bare simulator, pipes and SuperSuit, in turn.

  raw        processes that step copies with PettingZoo's own interface and tell nobody: nothing could be faster that
             steps them so. The rates of two are summed
  pool       what actors use: shared memory, and two halves, of which one steps while the other is acted on
  pipes      pickled dictionaries through pipes, as Gymnasium's vectorised environments have it, all copies of a process
             in one message
  supersuit  SuperSuit's `concat_vec_envs_v1`, in a Python environment of its own: its observations are in shared memory

All are given the same random actions, drawn before, and one thread for each process. `raw`, `pool` and `pipes` play the
same episodes, with the same seeds. They take turns, and the best round of each counts. CPU seconds are those of all
processes, the one that gives the actions included.

  python -m venv PEER && PEER/bin/pip install supersuit==3.11.0 "pettingzoo[sisl]==1.27.0" mpe2==1.1.1
  python benchmarks/stepping.py --peer PEER/bin/python --output results/benchmark-stepping.json
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
from typing import Any

import common
import numpy as np

from covey import registry
from covey.envs.host.episodes import episode_seed
from covey.envs.host.make import make_simulator, source_of
from covey.envs.host.pool import Pool, one_thread
from covey.specs import Continuous

SPAWN = multiprocessing.get_context("spawn")
NUM_DRAWN = 64  # steps of random actions, taken again and again
CPU_CLOCK = 2  # of a process, in the lowest bits of its clock's number


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """A task, how it is stepped, and what is to be reached; None where nothing was set."""

    module: str  # PettingZoo's
    copies: int  # in all, in both of two processes
    steps: int  # of each copy in a round
    of_raw: float  # two processes, of the raw simulator's rate in two
    two_of_one: float | None = None
    over_others: float = 1.0
    cpu_of_raw: float | None = None  # at most: CPU seconds for a step, of those in one process


CASES = {
    "pettingzoo/multiwalker": Case(
        module="pettingzoo.sisl.multiwalker_v9", copies=16, steps=400, of_raw=0.92, two_of_one=1.8, cpu_of_raw=1.05
    ),
    "pettingzoo/simple_spread": Case(
        module="mpe2.simple_spread_v3", copies=64, steps=300, of_raw=0.85, over_others=1.7
    ),
}


def main(arguments: list[str] | None = None) -> None:
    parser = common.make_parser(__doc__)
    parser.add_argument("--peer", help="the Python that has supersuit, pettingzoo and mpe2; without it, no SuperSuit")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tasks", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--steps", type=int, help="of each copy in a round; default: as the task has it")
    parser.add_argument("--copies", type=int, help="in all; default: as the task has it")
    options = parser.parse_args(arguments)
    changes = {name: value for name in ("steps", "copies") if (value := getattr(options, name))}
    with one_thread():
        rows = [measure_task(task, dataclasses.replace(CASES[task], **changes), options) for task in options.tasks]
    common.write_figures(options.output, {"rows": rows})


def measure_task(task: str, case: Case, options: Any) -> dict[str, Any]:
    """All ways of stepping a task, in turn."""
    bare = make_bare(task, case)
    ways: dict[str, Callable[[], Measured]] = {
        "raw, 1 process": lambda: raw(bare, 1, case.copies // 2),
        "raw, 2 processes": lambda: raw(bare, 2, case.copies),
        "pool, 1 process": lambda: pool(task, bare, 1, case.copies),
        "pool, 2 processes": lambda: pool(task, bare, 2, case.copies),
        "pipes, 2 processes": lambda: pipes(bare, 2, case.copies),
    }
    if options.peer:
        ways["supersuit, 2 processes"] = lambda: supersuit(options.peer, bare, 2, case.copies)
    measured: dict[str, list[Measured]] = {name: [] for name in ways}
    for _ in range(options.rounds):
        for name, measure in ways.items():
            measured[name].append(measure())
    rates = {name: [one.rate for one in several] for name, several in measured.items()}
    cpu = {name: [one.cpu for one in several] for name, several in measured.items()}
    for name, values in rates.items():
        microseconds = 1e6 * min(cpu[name])
        print(f"{task:26} {name:24} {max(values):9,.0f} steps/s  {microseconds:7.1f} us of CPU a step", flush=True)
    row = {
        "task": task,
        "case": dataclasses.asdict(case),
        "steps_per_second": rates,
        "cpu_seconds_per_step": cpu,
        "ratios": ratios_of(rates, cpu),
    }
    print_verdicts(row)
    return row


def ratios_of(rates: dict[str, list[float]], cpu: dict[str, list[float]]) -> dict[str, float]:
    """What is to be reached, from the best rounds."""
    best = {name: max(values) for name, values in rates.items()}
    least = {name: min(values) for name, values in cpu.items()}
    mine = best["pool, 2 processes"]
    ratios = {
        "of_raw": mine / best["raw, 2 processes"],
        "two_of_one": mine / best["pool, 1 process"],
        "cpu_of_raw": least["pool, 2 processes"] / least["raw, 1 process"],
    }
    for other in ("pipes", "supersuit"):
        if (name := f"{other}, 2 processes") in best:
            ratios[f"over_{other}"] = mine / best[name]
            ratios[f"cpu_of_raw_{other}"] = least[name] / least["raw, 1 process"]
    return ratios


def print_verdicts(row: dict[str, Any]) -> None:
    case = row["case"]
    wanted = {"over_pipes": case["over_others"], "over_supersuit": case["over_others"], **case}
    for name, ratio in row["ratios"].items():
        target = wanted.get(name)
        if target is None:
            said = f"{ratio:.3f}"
        elif name == "cpu_of_raw":
            said = f"{ratio:.3f} (target at most {target:.2f}: {'reached' if ratio <= target else 'not reached'})"
        else:
            said = common.verdict(ratio, target)
        print(f"{row['task']:26} {name} {said}", flush=True)


@dataclasses.dataclass(frozen=True)
class Measured:
    """Steps in a second of all copies together, and CPU seconds of all processes for a step."""

    rate: float
    cpu: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bare:
    """PettingZoo's own environment, the actions to take in turn, by agent, and how many. Each copy begins with another
    of them."""

    module: str
    arguments: dict[str, Any]
    actions: list[dict[str, Any]]
    steps: int

    def make(self) -> Any:
        return importlib.import_module(self.module).parallel_env(**self.arguments)


class Stopwatch:
    """Measures from its start: wall time, and the CPU time of this process and of some others."""

    def __init__(self, pids: Sequence[int] = ()):
        self._pids = [os.getpid(), *pids]
        self._cpu = self._used()
        self._began = time.perf_counter()

    def measured(self, num_steps: int) -> Measured:
        seconds = time.perf_counter() - self._began
        return Measured(num_steps / seconds, (self._used() - self._cpu) / num_steps)

    def _used(self) -> float:
        return sum(time.clock_gettime(~pid << 3 | CPU_CLOCK) for pid in self._pids)


def make_bare(task: str, case: Case) -> Bare:
    """PettingZoo's own environment with the arguments of covey's task, and random actions for it."""
    fields: Any = registry.tasks[task].defaults()
    arguments = {**fields.recipe().arguments, "max_cycles": fields.time_limit}
    bare = Bare(module=case.module, arguments=arguments, actions=[], steps=case.steps)
    return dataclasses.replace(bare, actions=draw_actions(task, bare.make().possible_agents))


def draw_actions(task: str, names: Sequence[str]) -> list[dict[str, Any]]:
    """Random actions for one copy, by agent."""
    random = np.random.default_rng(0)
    (group,) = make_simulator(task).spec.groups.values()

    def one() -> Any:
        if isinstance(group.action, Continuous):
            return random.uniform(group.action.low, group.action.high).astype(np.float32)
        return int(random.integers(group.action.num_actions))  # type: ignore[union-attr]

    return [{name: one() for name in names} for _ in range(NUM_DRAWN)]


class Playing:
    """A copy of a bare environment that plays episode after episode, with the seeds of the pool's copy."""

    def __init__(self, bare: Bare, number: int):
        self.environment, self._number, self._episode = bare.make(), number, 0

    def reset(self) -> dict[str, Any]:
        seed = episode_seed(0, self._number, self._episode)
        self._episode += 1
        observations: dict[str, Any] = self.environment.reset(seed=seed)[0]
        return observations

    def step(self, actions: dict[str, Any]) -> tuple[Any, ...]:
        """What the environment answers; where the episode ended, with the first observations of the next."""
        answer = self.environment.step({agent: actions[agent] for agent in self.environment.agents})
        return answer if self.environment.agents else (self.reset(), *answer[1:])


def split_copies(copies: int, num_workers: int) -> list[list[int]]:
    """The numbers of the copies of each process."""
    return [share.tolist() for share in np.array_split(np.arange(copies), num_workers)]


# --------------------------------------------------------------------------------------------------------------- raw


def _step_raw(bare: Bare, copies: list[int], connection: Connection) -> None:
    playing = [Playing(bare, number) for number in copies]
    for copy in playing:
        copy.reset()
    connection.send(None)
    connection.recv()
    watch = Stopwatch()
    for number in range(bare.steps):
        for copy, each in zip(playing, copies, strict=True):
            copy.step(bare.actions[(number + each) % NUM_DRAWN])
    connection.send(watch.measured(len(copies) * bare.steps))
    connection.recv()


def raw(bare: Bare, num_workers: int, copies: int) -> Measured:
    """Processes that step their copies and tell nobody: the sum of their rates, and the mean of their CPU seconds."""
    with Processes(_step_raw, bare, num_workers, copies) as ends:
        for end in ends:
            end.send(None)
        measured = [end.recv() for end in ends]
    return Measured(sum(one.rate for one in measured), sum(one.cpu for one in measured) / num_workers)


class Processes:
    """Processes with a pipe to each, that have said that they are ready."""

    def __init__(self, work: Callable[..., None], bare: Bare, num_workers: int, copies: int):
        self._ends: list[Connection] = []
        self.workers = []
        for share in split_copies(copies, num_workers):
            here, there = SPAWN.Pipe()
            self.workers.append(SPAWN.Process(target=work, args=(bare, share, there), daemon=True))
            self.workers[-1].start()
            self._ends.append(here)
            there.close()

    def __enter__(self) -> list[Connection]:
        for end in self._ends:
            end.recv()
        return self._ends

    def __exit__(self, *_: object) -> None:
        for end, worker in zip(self._ends, self.workers, strict=True):
            end.send(None)
            worker.join()
            end.close()


# -------------------------------------------------------------------------------------------------------------- pool


def pool(task: str, bare: Bare, num_workers: int, copies: int) -> Measured:
    """covey's processes, in two halves as actors step them."""
    source = source_of(task, registry.tasks[task].defaults())
    actions = np.stack([np.stack(list(given.values())) for given in bare.actions])
    with Pool(source, copies, num_workers=num_workers) as made:
        (group,) = made.description.spec.groups
        made.begin(seed=0)
        for half in range(made.num_halves):
            made.receive(half)
        watch = Stopwatch(made.pids)
        for number in range(bare.steps + 1):
            for half, part in enumerate(made.halves):
                if number:
                    made.receive(half)
                if number < bare.steps:
                    made.send(half, {group: actions[np.arange(number + part.start, number + part.stop) % NUM_DRAWN]})
        return watch.measured(copies * bare.steps)


# ------------------------------------------------------------------------------------------------------------- others


def _step_pipes(bare: Bare, copies: list[int], connection: Connection) -> None:
    playing = [Playing(bare, number) for number in copies]
    connection.send([copy.reset() for copy in playing])
    while (given := connection.recv()) is not None:
        connection.send([copy.step(actions) for copy, actions in zip(playing, given, strict=True)])


def pipes(bare: Bare, num_workers: int, copies: int) -> Measured:
    """Pickled dictionaries through pipes, all processes stepped together."""
    processes = Processes(_step_pipes, bare, num_workers, copies)
    shares = split_copies(copies, num_workers)
    with processes as ends:
        watch = Stopwatch([worker.pid for worker in processes.workers])  # type: ignore[misc]
        for number in range(bare.steps):
            for end, share in zip(ends, shares, strict=True):
                end.send([bare.actions[(number + copy) % NUM_DRAWN] for copy in share])
            for end in ends:
                end.recv()
        return watch.measured(copies * bare.steps)


def supersuit(python: str, bare: Bare, num_workers: int, copies: int) -> Measured:
    """SuperSuit's vectorised environment, in a Python environment of its own."""
    script = common.HERE / "peers" / "step_supersuit.py"
    actions = [{agent: np.asarray(action).tolist() for agent, action in given.items()} for given in bare.actions]
    given = {**dataclasses.asdict(bare), "actions": actions, "processes": num_workers, "copies": copies}
    command = [python, str(script)]
    done = subprocess.run(command, input=json.dumps(given), capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr}")
    return Measured(**json.loads(done.stdout.splitlines()[-1]))


if __name__ == "__main__":
    main()
