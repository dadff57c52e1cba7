"""How fast training is: this checkout and another one, in turn, as ratios of their rates.

Each round trains each case for a few iterations in a separate process, with the defaults of its task and algorithm.
The best rate of each side counts.

  git worktree add ../before COMMIT
  python benchmarks/rates.py --before ../before --output results/benchmark-rates.json
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import common

TARGET = 0.97  # of the rate before
HERE = Path(__file__).resolve().parents[1]
ITERATIONS = 4
CASES = (
    "algorithm=mappo task=vmas/navigation",
    "algorithm=mappo task=vmas/balance model=gru",
    "algorithm=mappo task=smax/2s3z",
    "algorithm=ippo task=lbf/8x8-2p-2f-coop",
    "algorithm=ippo task=rware/tiny-4ag",
    "algorithm=pqn task=lbf/8x8-2p-2f-coop model.norm=none critic_model.norm=none",
    "algorithm=qmix task=smax/2s3z",
    "algorithm=iddpg task=vmas/balance",
    "algorithm=masac task=vmas/navigation",
)


def main(arguments: list[str] | None = None) -> None:
    parser = common.make_parser(__doc__)
    parser.add_argument("--before", type=Path, help="a checkout of the commit to compare with")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cases", nargs="+", default=CASES, help="each the words of a `covey train`")
    parser.add_argument("--one", help="only measure this case, in this process")
    options = parser.parse_args(arguments)
    if options.one:
        print(train(options.one.split()))
        return
    sides = {"now": HERE} | ({"before": options.before.resolve()} if options.before else {})
    rows = []
    for case in options.cases:
        rates: dict[str, list[float]] = {side: [] for side in sides}
        for _ in range(options.rounds):
            for side, checkout in sides.items():
                rates[side].append(measure(case, checkout))
        best = {side: max(values) for side, values in rates.items()}
        row: dict[str, Any] = {"case": case, "frames_per_second": rates}
        line = f"{case:<80} {best['now']:>9,.0f} frames/s"
        if "before" in best:
            row["ratio"] = best["now"] / best["before"]
            line += f", before {best['before']:,.0f}: {common.verdict(row['ratio'], TARGET)}"
        print(line, flush=True)
        rows.append(row)
    common.write_figures(options.output, {"rows": rows, "target": TARGET})


def measure(case: str, checkout: Path) -> float:
    environment = os.environ | {"PYTHONPATH": str(checkout / "src")}
    command = [sys.executable, __file__, "--one", case]
    return float(
        subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.split()[-1]
    )


def train(words: list[str]) -> float:
    """Frames per second of the best of several chunks, compiling left out."""
    import jax
    import numpy as np

    from covey.experiment.configuration.compose import compose
    from covey.experiment.running.build import build
    from covey.experiment.running.experiment import prepare

    config, devices = prepare(compose(words))
    loop = build(config, devices).loop
    advance = getattr(loop, "advance", None) or loop.run_chunk  # its name before version 0.2
    state, seconds = loop.init(jax.random.key(0)), []
    for _ in range(8):
        begun = time.perf_counter()
        state, metrics = advance(state, np.int32(ITERATIONS))
        jax.block_until_ready(metrics)
        seconds.append(time.perf_counter() - begun)
    return ITERATIONS * loop.frames_per_iteration / min(seconds)


if __name__ == "__main__":
    main()
