"""The same experiment in covey and in BenchMARL: frames per second, on navigation or on multiwalker.

covey runs `experiment=benchmarl`, BenchMARL its base configuration: the same network, environments, frames per
iteration, epochs and minibatches (off-policy: optimiser steps and batch size); evaluation and logging are off on both
sides, start-up and compilation are not counted. On one core with one thread or on two (covey: two devices; BenchMARL:
two threads), separate processes in turn. BenchMARL runs in a separate Python environment:

  python benchmarks/compare_benchmarl.py --peer PEER/bin/python
  python benchmarks/compare_benchmarl.py --peer PEER/bin/python --algorithms iql qmix maddpg masac --cores 2
  python benchmarks/compare_benchmarl.py --peer PEER/bin/python --task pettingzoo/multiwalker --algorithms ippo \\
      --cores 2

Multiwalker is an ordinary Python simulator. covey steps the copies in one process for each core, and learns when all
are done (`actors.lag=0`), as BenchMARL does. BenchMARL steps them one after another, or each in a process of its own
(`parallel_collection`); both are measured, and the better one counts.

BenchMARL's environment, for which the system needs swig (`apt-get install swig`):

  python -m venv PEER && PEER/bin/pip install torch==2.13.0
  PEER/bin/pip install --no-deps benchmarl==1.5.2 torchrl==0.11.1 tensordict==0.11.0 vmas==1.5.2
  PEER/bin/pip install hydra-core numpy tqdm cloudpickle gym==0.26.2 pyvers importlib_metadata orjson packaging \
      "pyglet<=1.5.27" six "pettingzoo[sisl]==1.25.0"
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
import numpy as np

NAVIGATION, MULTIWALKER = "vmas/navigation", "pettingzoo/multiwalker"
TARGETS = {  # by task, algorithm and number of cores
    NAVIGATION: {
        "mappo": {1: 2.3, 2: 3.8},
        "iql": {2: 6.1},
        "qmix": {2: 7.2},
        "maddpg": {2: 6.7},
        "masac": {2: 6.0},
    },
    MULTIWALKER: {"ippo": {2: 3.0}},
}
# how BenchMARL steps copies: all of VMAS's are one program
COLLECTIONS = {NAVIGATION: ["serial"], MULTIWALKER: ["serial", "parallel"]}


def main(arguments: list[str] | None = None) -> None:
    parser = common.make_parser(__doc__)
    parser.add_argument("--peer", default="python", help="the Python that has benchmarl")
    parser.add_argument("--task", default=NAVIGATION, choices=list(TARGETS))
    parser.add_argument("--algorithms", nargs="+", default=["mappo"])
    parser.add_argument("--cores", type=int, nargs="+", default=[1, 2], help="numbers of cores to compare on")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--iterations", type=int, default=3, help="of BenchMARL, in each repeat, the first not counted")
    parser.add_argument("--covey-only", type=int, metavar="CORES", help="only measure covey")
    options = parser.parse_args(arguments)
    if options.covey_only:
        rate = train_covey(options.task, options.algorithms[0], options.covey_only)
        print(f"covey on {options.covey_only}: {rate:,.0f} frames/s")
        return common.write_figures(options.output, {"frames_per_second": rate})
    rows = [
        compare(options, algorithm, cores) for algorithm, cores in itertools.product(options.algorithms, options.cores)
    ]
    common.write_figures(options.output, {"task": options.task, "rows": rows, "targets": TARGETS[options.task]})


def compare(options: Any, algorithm: str, cores: int) -> dict[str, Any]:
    """Both sides in turn; of several ways in which BenchMARL can collect, the best counts."""
    covey: list[float] = []
    peer: dict[str, list[float]] = {collection: [] for collection in COLLECTIONS[options.task]}
    for _ in range(options.repeats):
        arguments = ["--covey-only", str(cores), "--task", options.task, "--algorithms", algorithm]
        covey.append(common.run_script("compare_benchmarl.py", *arguments)["frames_per_second"])
        for collection, rates in peer.items():
            rates.append(train_peer(options, algorithm, cores, collection))
    collection = max(peer, key=lambda name: max(peer[name]))
    rates = {"covey": covey, "benchmarl": peer[collection]}
    ratio = max(covey) / max(peer[collection])
    target = TARGETS[options.task].get(algorithm, {}).get(cores, 1.0)
    print(
        f"{algorithm:<7}{cores} core{'s' if cores > 1 else ' '}  covey {max(covey):8,.0f}  "
        f"BenchMARL {max(peer[collection]):8,.0f} frames/s  ratio {common.verdict(ratio, target)}",
        flush=True,
    )
    row = {"algorithm": algorithm, "cores": cores, "frames_per_second": rates, "ratio": ratio}
    if len(peer) > 1:
        row |= {"benchmarl_collection": collection, "benchmarl_frames_per_second": peer}
        print("  BenchMARL: " + ", ".join(f"{name} {max(found):,.0f}" for name, found in peer.items()), flush=True)
    return row


def train_covey(task: str, algorithm: str, cores: int) -> float:
    """The best of several iterations in one process, with those that it starts."""
    from covey.experiment.configuration.compose import compose
    from covey.experiment.running.build import build

    words = ["experiment=benchmarl", f"task={task}", "experiment.platform=cpu", f"algorithm={algorithm}"]
    if task == MULTIWALKER:
        words.append(f"actors.num={cores}")
    config = compose([*words, f"experiment.devices={cores}"])
    devices = common.start(cores, range(cores), config.experiment.acting_devices)
    parts = build(config, devices)
    loop = parts.loop
    state: Any = loop.init(jax.random.key(0))

    def run(repetitions: int) -> Any:
        nonlocal state
        state, metrics = loop.advance(state, np.int32(repetitions))
        return state, metrics

    program = common.Program(run=run, largest=loop.max_iterations)
    timing = common.measure({"training": program}, seconds=6.0, rounds=3)["training"]
    parts.close()
    return loop.frames_per_iteration / timing.wall


def train_peer(options: Any, algorithm: str, cores: int, collection: str) -> float:
    peer = shutil.which(options.peer) or options.peer
    script = common.HERE / "peers" / "train_benchmarl.py"
    command = [peer, str(script), "speed", str(cores), str(options.iterations), algorithm, options.task, collection]
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
