"""Runs a benchmark on this machine, in parallel worker processes that each have their own devices.

The process of the command composes, hands out, watches and records. It builds nothing and never starts JAX's devices.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
from collections.abc import Iterator, Sequence

from covey.errors import CoveyError, Interrupted, UsageError
from covey.experiment.recording.lease import living_holder
from covey.experiment.recording.loggers import check_loggers
from covey.files import writing
from covey.launch.benchmark import Benchmark, BenchmarkExperiment
from covey.launch.benchmark_files import is_done, read_status, write_description
from covey.launch.devices import Slot, available_cores, find_accelerators, make_slots
from covey.launch.overview import Overview
from covey.launch.pool import Pool
from covey.process import ending_signals


def print_list(benchmark: Benchmark) -> None:
    """Prints the numbered experiments and their states; `only=NUMBER` runs one."""
    width = len(str(len(benchmark.experiments) - 1))
    for experiment in benchmark.experiments:
        state = read_status(experiment).get("state", "not started")
        print(f"{experiment.index:{width}}  {experiment.title}  ({experiment.run_directory}, {state})")


def run_benchmark(benchmark: Benchmark) -> None:
    """Runs all experiments that are not done.

    Raises CoveyError if some failed, and Interrupted after a signal, once the running experiments are saved.
    """
    slots = find_slots(benchmark)
    with writing(f"to {benchmark.folder}"):
        (benchmark.folder / "status").mkdir(parents=True, exist_ok=True)
        write_description(benchmark)
    if benchmark.options.force:
        discard_runs(benchmark.chosen)
    with Overview() as overview, caught_signals() as received:
        pool = Pool(benchmark, slots, overview, received)
        try:
            pool.run()
        except OSError as error:
            raise CoveyError(f"cannot continue {benchmark.folder}: {error}") from error
        overview.line(f"{pool.summary()}: {benchmark.folder}")
    if received:
        raise Interrupted(received[0], "interrupted: running experiments were saved; the same command continues them")
    if pool.failed:
        first = pool.failed[0]
        raise CoveyError(
            f"{len(pool.failed)} of {len(benchmark.chosen)} experiments failed, the first is {first.title}: "
            f"{pool.errors[first.index]}"
        )


def find_slots(benchmark: Benchmark) -> list[Slot]:
    """The places where the experiments run. Also checks everything that can be checked before the first one starts."""
    configs = [experiment.config.experiment for experiment in benchmark.chosen]
    for config in configs:
        check_loggers(config.loggers, config.logger_options)
    platforms = {config.platform.name for config in configs}
    if len(platforms) > 1:
        raise UsageError(
            f"all experiments of a benchmark run on one platform, not on {' and '.join(sorted(platforms))}"
        )
    platform = platforms.pop()
    todo = sum(benchmark.options.force or not is_done(experiment) for experiment in benchmark.chosen)
    return make_slots(
        platform,
        max(config.devices or 1 for config in configs),
        cores=available_cores(),
        accelerators=find_accelerators(platform),
        most=todo,
        workers=benchmark.options.workers,
    )


def discard_runs(experiments: Sequence[BenchmarkExperiment]) -> None:
    """Removes the status and run directories of experiments; UsageError if another process is training one."""
    for experiment in experiments:
        if (holder := living_holder(experiment.run_directory)) is not None:
            raise UsageError(
                f"{experiment.title} is being trained by {holder}; force=true would remove its run directory"
            )
    for experiment in experiments:
        experiment.status_file.unlink(missing_ok=True)
        if (experiment.run_directory / "config.yaml").is_file():
            shutil.rmtree(experiment.run_directory)


@contextlib.contextmanager
def caught_signals() -> Iterator[list[int]]:
    """Collects the signals that end a command, including repeated ones."""
    received: list[int] = []
    previous = {number: signal.signal(number, lambda number, _: received.append(number)) for number in ending_signals()}
    try:
        yield received
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
