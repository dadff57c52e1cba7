"""The same experiment on navigation in covey and in BenchMARL: frames per second.

covey runs `experiment=benchmarl`, BenchMARL its base configuration: the same network, frames per iteration, epochs and
minibatches (off-policy: optimiser steps and batch size); evaluation and logging are off on both sides, start-up and
compilation are not counted. On one core with one thread or on two (covey: two devices; BenchMARL: two threads),
separate processes in turn. BenchMARL runs in a separate Python environment:

  python benchmarks/compare_benchmarl.py --peer PATH/TO/ITS/python
  python benchmarks/compare_benchmarl.py --peer PATH/TO/ITS/python --algorithms iql qmix maddpg masac --cores 2
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from typing import Any

import common
import jax
import jax.numpy as jnp

TARGETS = {  # by algorithm and number of cores
    "mappo": {1: 2.3, 2: 3.8},
    "iql": {2: 6.1},
    "qmix": {2: 7.2},
    "maddpg": {2: 6.7},
    "masac": {2: 6.0},
}
OVERRIDES = ["experiment=benchmarl", "task=vmas/navigation", "experiment.platform=cpu"]


def main(arguments: list[str] | None = None) -> None:
    parser = common.make_parser(__doc__)
    parser.add_argument("--peer", default="python", help="the Python that has benchmarl")
    parser.add_argument("--algorithms", nargs="+", default=["mappo"])
    parser.add_argument("--cores", type=int, nargs="+", default=[1, 2], help="numbers of cores to compare on")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--iterations", type=int, default=3, help="of BenchMARL, in each repeat, the first not counted")
    parser.add_argument("--covey-only", type=int, metavar="CORES", help="only measure covey")
    options = parser.parse_args(arguments)
    if options.covey_only:
        rate = train_covey(options.algorithms[0], options.covey_only)
        print(f"covey on {options.covey_only}: {rate:,.0f} frames/s")
        return common.write_figures(options.output, {"frames_per_second": rate})
    rows = []
    for algorithm, cores in itertools.product(options.algorithms, options.cores):
        rates: dict[str, list[float]] = {"covey": [], "benchmarl": []}
        for _ in range(options.repeats):
            arguments = ["--covey-only", str(cores), "--algorithms", algorithm]
            rates["covey"].append(common.run_script("compare_benchmarl.py", *arguments)["frames_per_second"])
            rates["benchmarl"].append(train_peer(options, algorithm, cores))
        best = {side: max(values) for side, values in rates.items()}
        ratio = best["covey"] / best["benchmarl"]
        target = TARGETS.get(algorithm, {}).get(cores, 1.0)
        print(
            f"{algorithm:<7}{cores} core{'s' if cores > 1 else ' '}  covey {best['covey']:8,.0f}  "
            f"BenchMARL {best['benchmarl']:8,.0f} frames/s  ratio {common.verdict(ratio, target)}",
            flush=True,
        )
        rows.append({"algorithm": algorithm, "cores": cores, "frames_per_second": rates, "ratio": ratio})
    common.write_figures(options.output, {"rows": rows, "targets": TARGETS})


def train_covey(algorithm: str, cores: int) -> float:
    """The best of several iterations in one process."""
    from covey.experiment.configuration.compose import compose
    from covey.experiment.running.build import build

    devices = common.start(cores, range(cores))
    config = compose([*OVERRIDES, f"algorithm={algorithm}", f"experiment.devices={cores}"])
    loop = build(config, devices).loop
    state: Any = loop.init(jax.random.key(0))

    def run(repetitions: int) -> Any:
        nonlocal state
        state, metrics = loop.advance(state, jnp.int32(repetitions))
        return state, metrics

    program = common.Program(run=run, largest=loop.max_iterations)
    timing = common.measure({"training": program}, seconds=6.0, rounds=3)["training"]
    return loop.frames_per_iteration / timing.wall


def train_peer(options: Any, algorithm: str, cores: int) -> float:
    peer = shutil.which(options.peer) or options.peer
    script = common.HERE / "peers" / "train_benchmarl.py"
    command = [peer, str(script), "speed", str(cores), str(options.iterations), algorithm]
    numbers = ",".join(map(str, range(cores)))
    with tempfile.TemporaryDirectory() as folder:  # BenchMARL leaves files where it runs
        done = subprocess.run(
            ["taskset", "-c", numbers, *command],
            capture_output=True,
            text=True,
            check=False,
            cwd=folder,
            env=os.environ | {"OMP_NUM_THREADS": str(cores), "MKL_NUM_THREADS": str(cores)},
        )
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])["frames_per_second"]


if __name__ == "__main__":
    main()
