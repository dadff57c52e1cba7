"""Whether actors and learner overlap: whole training beside stepping alone and updating alone, in turn.

With `actors.lag=1` the next batch is collected while the learner updates, so that an iteration should take as long as
the slower of the two. Each has one core's worth of threads:

  stepping    a pool of one process and nothing else; the actions are those of a batch
  collecting  the same with networks that act, and everything kept that an update needs
  updating    updates alone, over and over on one batch, with all threads on one core
  training    the loop as `covey train` runs it, on two cores
  ratio       training / min(stepping, updating)

It is hardest where both take as long: then acting has no core of its own. (Where updating is slower, the learner's
spare thread may find some time on the other core.) The number of epochs sets how long an update takes; it is chosen
here so that an update takes about 0.5, 1 and 2 times as long as stepping its batch. The learning rate is next to
nothing, so that all rounds play the same policy. Compiling does not count. Each part is run for several seconds in each
round, and the best round of each counts. `cores` is the CPU time used in a second, that of the simulators' process
included.

  python benchmarks/overlap.py --output results/benchmark-overlap.json
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import common
import jax
import numpy as np
from stepping import Stopwatch

from covey.envs.host.env import simulator_of
from covey.envs.host.pool import Pool
from covey.experiment.configuration.compose import compose
from covey.experiment.running.build import Parts, build
from covey.loops.actor_learner import ActorLearner

TARGET = 0.88
CASES = (0.5, 1.0, 2.0)  # about how long an update takes, of the time of stepping its batch
EPOCHS = 4  # with which the time of an epoch is measured
WARM_ITERATIONS = 2  # of training, in each round, before the clock starts: batches that were ready are used up


def main(arguments: list[str] | None = None) -> None:
    parser = common.make_parser(__doc__)
    parser.add_argument("--task", default="pettingzoo/multiwalker")
    parser.add_argument("--cases", type=float, nargs="+", default=CASES, help="updating over stepping, in time")
    parser.add_argument("--environments", type=int, default=16)
    parser.add_argument("--rollout", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10.0, help="for each part, each round")
    parser.add_argument("--overrides", nargs="*", default=[], help="further ones, as of `covey train`")
    options = parser.parse_args(arguments)
    devices = common.start(1, acting_devices=1)
    rows = []
    with Measuring(options, devices, EPOCHS) as first:
        seconds = {name: first.seconds(name, 2, warm=1) for name in ("stepping", "updating")}
    for case in options.cases:
        epochs = max(1, round(EPOCHS * case * seconds["stepping"] / seconds["updating"]))
        with Measuring(options, devices, epochs) as measuring:
            rows.append({"updating_of_stepping": case, "epochs": epochs, **measure(measuring, options)})
        print_row(rows[-1])
    settings = {name: value for name, value in vars(options).items() if name != "output"}
    common.write_figures(options.output, {"settings": settings, "rows": rows, "target": TARGET})


def measure(measuring: Measuring, options: Any) -> dict[str, Any]:
    """All parts in turn, round by round."""
    sizes = {
        name: max(1, round(options.seconds / measuring.seconds(name, 1, warm=WARM_ITERATIONS)))
        for name in measuring.parts
    }
    rates: dict[str, list[float]] = {name: [] for name in sizes}
    cores: dict[str, list[float]] = {name: [] for name in sizes}
    for _ in range(options.rounds):
        for name, size in sizes.items():
            measuring.run(name, WARM_ITERATIONS if name == "training" else 1)
            watch = Stopwatch(measuring.pids(name))
            measuring.run(name, size)
            measured = watch.measured(size * measuring.frames)
            measuring.rest()
            rates[name].append(measured.rate)
            cores[name].append(measured.cpu * measured.rate)
    best = {name: max(values) for name, values in rates.items()}
    return {
        "frames_per_second": rates,
        "cores": cores,
        "ratio": best["training"] / min(best["stepping"], best["updating"]),
    }


def print_row(row: dict[str, Any]) -> None:
    print(f"an update takes about {row['updating_of_stepping']:g} of stepping ({row['epochs']} epochs)")
    for name, rates in row["frames_per_second"].items():
        print(f"  {name:<10} {max(rates):9,.0f} frames/s  {max(row['cores'][name]):.2f} cores")
    print(f"  ratio      {common.verdict(row['ratio'], TARGET)}", flush=True)


class Measuring:
    """An experiment whose parts can be run alone, with the processes that they need."""

    def __init__(self, options: Any, devices: list[Any], epochs: int):
        self._config: Any = compose(
            [
                "algorithm=ippo",
                f"task={options.task}",
                "actors.num=1",
                "actors.lag=1",
                f"experiment.num_envs={options.environments}",
                f"experiment.rollout_length={options.rollout}",
                "experiment.devices=1",
                "experiment.platform=cpu",
                "algorithm.lr=1e-9",
                f"algorithm.epochs={epochs}",
                *options.overrides,
            ]
        )
        self._built: Parts = build(self._config, devices)
        self._loop: ActorLearner = self._built.loop.advance.__self__  # type: ignore[attr-defined]
        self.frames = self._built.loop.frames_per_iteration
        self.parts: dict[str, Callable[[int], Any]] = {
            "stepping": self._step,
            "collecting": self._collect,
            "updating": self._update,
            "training": self._train,
        }

    def __enter__(self) -> Measuring:
        self._state: Any = self._built.loop.init(jax.random.key(0))
        self._updated: Any = self._built.loop.init(jax.random.key(0))
        self._acting = self._loop._acting(self._state)
        self._collector: Any = self._loop._parts.make_collector()
        self._collector.begin(jax.random.key(1))
        self._batch = self._loop._on_learner(self._collector.collect(self._acting, jax.random.key(2), False).batch)
        transitions = jax.device_get(self._batch.transitions)
        self._actions = {name: part.action for name, part in transitions.items()}  # [T, B, A, …]
        source = simulator_of(self._built.env)
        assert source is not None
        experiment = self._config.experiment
        self._pool = Pool(source, experiment.num_envs, num_workers=1, stagger=experiment.stagger)
        self._pool.begin(seed=0)
        for half in range(self._pool.num_halves):
            self._pool.receive(half)
        return self

    def __exit__(self, *_: object) -> None:
        self._built.close()
        self._collector.close()
        self._pool.close()

    def run(self, name: str, num_iterations: int) -> None:
        """Runs a part and waits for it. Of training, the actors may still be collecting the next batch."""
        jax.block_until_ready(self.parts[name](num_iterations))

    def rest(self) -> None:
        """Waits until nothing is computed."""
        while self._loop._actors is not None and self._loop._actors._batches.empty():
            time.sleep(0.01)

    def seconds(self, name: str, num_iterations: int, *, warm: int) -> float:
        """What an iteration of a part takes, after some that do not count."""
        self.run(name, warm)
        began = time.perf_counter()
        self.run(name, num_iterations)
        seconds = (time.perf_counter() - began) / num_iterations
        self.rest()
        return seconds

    def pids(self, name: str) -> Sequence[int]:
        """The processes that a part uses besides this one."""
        collector: Any = self._loop._collector
        return {
            "stepping": self._pool.pids,
            "collecting": self._collector._pool.pids,
            "updating": [],
            "training": [] if collector is None else collector._pool.pids,
        }[name]

    def _step(self, num_iterations: int) -> None:
        pool, length = self._pool, self._config.experiment.rollout_length
        for step in range(num_iterations * length + 1):
            for half, part in enumerate(pool.halves):
                if step:
                    pool.receive(half)
                if step < num_iterations * length:
                    pool.send(half, {name: actions[step % length, part] for name, actions in self._actions.items()})

    def _collect(self, num_iterations: int) -> Any:
        for number in range(num_iterations):
            collected = self._collector.collect(self._acting, jax.random.key(number), False)
        return collected.batch

    def _update(self, num_iterations: int) -> Any:
        with on_one_core():
            for _ in range(num_iterations):
                self._updated, metrics = self._loop._learn(self._updated, self._batch)
            return jax.block_until_ready((self._updated.iteration, metrics))

    def _train(self, num_iterations: int) -> Any:
        for _ in range(num_iterations):
            self._state, metrics = self._built.loop.advance(self._state, np.int32(1))
        return metrics


@contextlib.contextmanager
def on_one_core() -> Iterator[None]:
    """Binds all threads of this process, of which XLA has one for each device, to one core."""
    cores = os.sched_getaffinity(0)
    bind_threads({min(cores)})
    try:
        yield
    finally:
        bind_threads(cores)


def bind_threads(cores: set[int]) -> None:
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(ProcessLookupError):  # it ended just now
            os.sched_setaffinity(int(thread.name), cores)


if __name__ == "__main__":
    main()
