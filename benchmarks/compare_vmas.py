"""covey's simulator against VMAS: frames per second with random actions, on one core.

Both are measured in separate processes, in turn, pinned to the same core, and the best of each counts. On both
sides it is the simulation alone: actions are drawn beforehand, and nothing is reset. What covey's environments do as
algorithms see them, with new random actions, resets, statistics and agent ids, is measured besides. VMAS runs in
a separate Python environment, with torch, vmas and benchmarl (which has the scenarios' parameters):

  python benchmarks/compare_vmas.py --peer PATH/TO/ITS/python
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import common

# The least speed relative to VMAS, by number of environments.
TARGETS = {
    "navigation": {32: 20.0, 4096: 5.0},
    "balance": {32: 20.0, 4096: 5.0},
    "transport": {32: 20.0, 4096: 2.0},
    "football": {32: 20.0, 4096: 5.0},
}


def main(arguments: list[str] | None = None) -> None:
    parser = common.make_parser(__doc__)
    parser.add_argument("--peer", default="python", help="the Python that has vmas and benchmarl")
    parser.add_argument("--scenario", nargs="+", default=list(TARGETS))
    parser.add_argument("--environments", type=int, nargs="+", default=[32, 4096])
    parser.add_argument("--core", type=int, default=0)
    parser.add_argument("--repeats", type=int, default=2, help="processes for each side")
    parser.add_argument("--seconds", type=float, default=2.0, help="for each of three rounds in a process")
    options = parser.parse_args(arguments)
    rows: list[dict[str, Any]] = []
    for name in options.scenario:
        for number in options.environments:
            rates: dict[str, list[float]] = {"covey": [], "covey with resets": [], "vmas": []}
            for _ in range(options.repeats):
                covey = step_covey(options, name, number)
                rates["covey"].append(covey["simulation"])
                rates["covey with resets"].append(covey["stepping"])
                rates["vmas"].append(step_peer(options, name, number))
            best = {side: max(values) for side, values in rates.items()}
            target = TARGETS.get(name, {}).get(number, 1.0)
            ratio = best["covey"] / best["vmas"]
            with_resets = best["covey with resets"] / best["vmas"]
            print(
                f"{name:<10} {number:5d} environments  covey {best['covey']:11,.0f}  VMAS {best['vmas']:9,.0f} frames/s"
                f"  ratio {common.verdict(ratio, target)}; with resets {with_resets:.1f}",
                flush=True,
            )
            row = {"scenario": name, "environments": number, "frames_per_second": rates}
            rows.append(row | {"ratio": ratio, "ratio_with_resets": with_resets})
    common.write_figures(options.output, {"rows": rows, "targets": TARGETS})


def step_covey(options: Any, name: str, number: int) -> dict[str, float]:
    arguments = ["--task", f"vmas/{name}", "--parts", "simulation", "stepping", "--rollout", "100"]
    arguments += ["--environments", str(number)]
    arguments += ["--cores", str(options.core), "--rounds", "3", "--seconds", str(options.seconds)]
    return common.run_script("throughput.py", *arguments)["rows"][0]["frames_per_second"]


def step_peer(options: Any, name: str, number: int) -> float:
    script = common.HERE / "peers" / "step_vmas.py"
    command = [options.peer, str(script), name, str(number), str(options.seconds)]
    done = subprocess.run(["taskset", "-c", str(options.core), *command], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])["frames_per_second"]


if __name__ == "__main__":
    main()
