"""The table of speeds, made of results/benchmark-NAME.json.

Each file was written by one script of this folder; `FILES` has its options and says what to read from it.

  python benchmarks/speeds.py             prints the table
  python benchmarks/learning.py table     puts it into results/README.md, comparisons with others into docs/results.md
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from time_to_return import TARGETS

RESULTS = Path(__file__).parents[1] / "results"
Figures = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Row:
    what: str
    measured: str
    to_reach: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class File:
    script: str  # and its options
    rows: Callable[[Figures], Iterator[Row]]
    peer: bool = False  # compares with another system: for docs/results.md


def at_least(value: float, target: float) -> str:
    return f"≥ {target:g}: {'reached' if value >= target else 'not reached'}"


def at_most(value: float, target: float) -> str:
    return f"≤ {target:g}: {'reached' if value <= target else 'not reached'}"


def _times(ratio: float, other: str, rates: dict[str, list[float]]) -> str:
    ours, theirs = (max(values) for values in rates.values())
    return f"{ratio:.1f} times {other} ({ours:,.0f} against {theirs:,.0f} frames/s)"


# ---------------------------------------------------------------------------------------------- what the files hold


def _vmas(figures: Figures) -> Iterator[Row]:
    for row in figures["rows"]:
        scenario, number = row["scenario"], row["environments"]
        what = f"simulating {scenario}, {number:,} environments, one core"
        target = figures["targets"][scenario][str(number)]
        rates = {side: row["frames_per_second"][side] for side in ("covey", "vmas")}
        with_resets = f"; {row['ratio_with_resets']:.1f} with resets and statistics, which VMAS's leave out"
        yield Row(what, _times(row["ratio"], "VMAS", rates) + with_resets, at_least(row["ratio"], target))


def _benchmarl(figures: Figures) -> Iterator[Row]:
    for row in figures["rows"]:
        algorithm, cores = row.get("algorithm", "mappo"), str(row["cores"])
        targets = figures["targets"]
        target = targets[algorithm][cores] if "algorithm" in row else targets[cores]
        task = figures.get("task", "vmas/navigation").partition("/")[2]
        what = f"training {algorithm.upper()} on {task}, BenchMARL's settings, {cores} core{'s' * (cores != '1')}"
        measured = _times(row["ratio"], "BenchMARL", row["frames_per_second"])
        if "benchmarl_collection" in row:
            measured += f", which collects faster in its {row['benchmarl_collection']} way"
        yield Row(what, measured, at_least(row["ratio"], target))


def _time_to_return(figures: Figures) -> Iterator[Row]:
    peer = figures["sides"]["benchmarl"]["mean"]
    for side, target in TARGETS.items():
        ratio = figures["ratios"][side]
        seconds = f"{figures['sides'][side]['mean']:.0f} s against BenchMARL's {peer:.0f} s, {ratio:.1f} times less"
        yield Row(f"from the command to a return of 0.9 on navigation, {side} cache", seconds, at_least(ratio, target))


def _fine_tuned(figures: Figures) -> Iterator[Row]:
    for points in figures["sides"]["benchmarl"]["curves"]:
        curve = ", ".join(f"{point['return']:.2f} after {point['seconds']:.0f} s" for point in points)
        yield Row("BenchMARL's fine-tuned settings on navigation", curve)


def _jaxmarl(figures: Figures) -> Iterator[Row]:
    for threads, ratio in figures["ratios"].items():
        what = f"IPPO on simple_spread, two devices, over JaxMARL's random stepping with {threads}"
        limit = max(figures["covey_with_plain_gradients_alone"]) / max(figures["jaxmarl_stepping"][threads])
        measured = f"{ratio:.3f}; {limit:.3f} if updates were plain gradients of the networks alone"
        yield Row(what, measured, at_least(ratio, figures["target"]))


def _devices(figures: Figures) -> Iterator[Row]:
    yield Row("two CPU devices over one", f"{figures['ratio']:.2f}", at_least(figures["ratio"], figures["target"]))


def _update_limit(figures: Figures) -> Iterator[Row]:
    measured = f"{figures['ratio']:.2f} of the rate of its matrix products alone"
    yield Row("MAPPO's update, one thread", measured, at_least(figures["ratio"], figures["target"]))


def _throughput(figures: Figures) -> Iterator[Row]:
    for row in figures["rows"]:
        training = row["frames_per_second"]["training"]
        measured = f"{training:,.0f} frames/s, {row['ratio']:.2f} of what its parts allow"
        yield Row(f"training IPPO on {row['task']}, one device", measured, at_least(row["ratio"], figures["target"]))


def _scaling(figures: Figures) -> Iterator[Row]:
    for task in dict.fromkeys(row["task"] for row in figures["rows"]):
        rates = [
            f"{row['overrides'][0].partition('=')[2]}: {row['frames_per_second']['training']:,.0f}"
            for row in figures["rows"]
            if row["task"] == task
        ]
        yield Row(f"training IPPO on {task}, by number of {figures['settings']['scaling']}", ", ".join(rates))


def _replay(figures: Figures) -> Iterator[Row]:
    for row in figures["rows"]:
        share, what = row["share"], f"replay of {row['size']:,} frames, share of an iteration"
        yield Row(what, f"{share:.1%}", at_most(share, figures["target"]))


def _report(figures: Figures) -> Iterator[Row]:
    whole, sizes = figures["whole"], figures["sizes"]
    what = f"a report over {sizes['algorithms']} algorithms, {sizes['tasks']} tasks, {sizes['seeds']} seeds"
    yield Row(what, f"{whole['seconds']:.1f} s, {whole['gigabytes']:.2f} GB", at_most(whole["seconds"], 30.0))
    ratio = f"{figures['ratio']:,.0f} times rliable"
    yield Row("its statistics", ratio, at_least(figures["ratio"], figures["target"]))


def _start(figures: Figures) -> Iterator[Row]:
    units = {"warm": "CPU seconds on one core", "cold": "seconds on two cores"}
    for kind, ratio in figures["ratios"].items():
        now, before = (min(figures["seconds"][side][kind]) for side in ("now", "before"))
        measured = f"{now:.1f} {units[kind]}, {ratio:.2f} of version 0.1's {before:.1f}"
        yield Row(f"start of `covey train`, {kind} cache", measured, at_most(ratio, figures["target"]))


def _rates(figures: Figures) -> Iterator[Row]:
    for row in figures["rows"]:
        now, before = (max(row["frames_per_second"][side]) for side in ("now", "before"))
        measured = f"{now:,.0f} frames/s, {row['ratio']:.2f} of version 0.1's {before:,.0f}"
        yield Row(f"training `{row['case']}`", measured, at_least(row["ratio"], figures["target"]))


def _overhead(figures: Figures) -> Iterator[Row]:
    for kind, about in figures.items():
        if "alone" in about:
            what = f"`covey benchmark` over {len(about['alone'])} {kind} experiments, share of their time one by one"
            yield Row(what, f"{about['ratio']:.2f}", at_most(about["ratio"], about["target"]))


STEPPING = {  # by ratio: what it is, and which of the case's targets it has
    "two_of_one": ("two processes over one", "two_of_one"),
    "of_raw": ("of the bare simulator's rate in two processes", "of_raw"),
    "over_pipes": ("times Gymnasium-style pipes", "over_others"),
    "over_supersuit": ("times SuperSuit", "over_others"),
    "cpu_of_raw": ("of the CPU seconds that the bare simulator takes in one process", "cpu_of_raw"),
    "cpu_of_raw_pipes": ("of them with pipes", ""),
    "cpu_of_raw_supersuit": ("of them with SuperSuit", ""),
}


def _stepping(figures: Figures) -> Iterator[Row]:
    for row in figures["rows"]:
        case, rate = row["case"], max(row["steps_per_second"]["pool, 2 processes"])
        what = f"stepping {row['task']}, {case['copies']} copies in two processes"
        yield Row(what, f"{rate:,.0f} steps/s")
        for name, (words, field) in STEPPING.items():
            if name not in row["ratios"]:
                continue
            ratio, target = row["ratios"][name], case.get(field)
            check = at_most if name == "cpu_of_raw" else at_least
            yield Row(what, f"{ratio:.2f} {words}", check(ratio, target) if target else "")


def _overlap(figures: Figures) -> Iterator[Row]:
    for row in figures["rows"]:
        best = {name: max(rates) for name, rates in row["frames_per_second"].items()}
        what = f"training IPPO on {figures['settings']['task']} with actors.lag=1, {row['epochs']} epochs"
        alone = f"stepping alone {best['stepping']:,.0f}, updating alone {best['updating']:,.0f}"
        measured = f"{best['training']:,.0f} frames/s, {row['ratio']:.2f} of the slower part ({alone})"
        yield Row(what, measured, at_least(row["ratio"], figures["target"]))


def _soak(figures: Figures) -> Iterator[Row]:
    for row in figures["rows"]:
        what = f"{row['minutes']:.0f} minutes of training with {len(row['kills'])} killed processes, lag {row['lag']}"
        lost = (
            f"{row['frames_learned']:,} of {row['frames_asked']:,} frames, {row['dropped_episodes']} episodes dropped"
        )
        growth = row["growth"]
        more = ", ".join(f"{name} {growth[name]:+.0f}" for name in ("threads", "files", "processes"))
        measured = f"{lost}; memory {row['bytes_an_hour'] / 1e6:+.1f} MB an hour, {more}"
        wrong = [name for name, fine in row["checks"].items() if not fine]
        yield Row(what, measured, f"not reached: {', '.join(wrong)}" if wrong else "nothing lost or leaked: reached")


FILES = {
    "vmas": File(script="compare_vmas.py --peer PYTHON --repeats 1 --seconds 1", rows=_vmas, peer=True),
    "benchmarl": File(script="compare_benchmarl.py --peer PYTHON", rows=_benchmarl, peer=True),
    "benchmarl-off-policy": File(
        script="compare_benchmarl.py --peer PYTHON --algorithms iql qmix maddpg masac --cores 2",
        rows=_benchmarl,
        peer=True,
    ),
    "benchmarl-multiwalker": File(
        script="compare_benchmarl.py --peer PYTHON --task pettingzoo/multiwalker --algorithms ippo --cores 2",
        rows=_benchmarl,
        peer=True,
    ),
    "stepping": File(script="stepping.py --peer PYTHON", rows=_stepping, peer=True),
    "overlap": File(script="overlap.py", rows=_overlap),
    "soak": File(script="soak.py", rows=_soak),
    "start": File(script="start.py --before CHECKOUT", rows=_start),
    "rates": File(script="rates.py --before CHECKOUT", rows=_rates),
    "time-to-return": File(script="time_to_return.py --peer PYTHON", rows=_time_to_return, peer=True),
    "time-to-return-fine-tuned": File(
        script="time_to_return.py --peer PYTHON --fine-tuned --sides benchmarl --seeds 1 --seconds 150",
        rows=_fine_tuned,
    ),
    "jaxmarl": File(script="throughput.py --jaxmarl", rows=_jaxmarl),
    "devices": File(script="devices.py --repeats 4", rows=_devices),
    "update-limit": File(script="update_limit.py", rows=_update_limit),
    "throughput": File(script="throughput.py --rounds 3", rows=_throughput),
    "scaling-environments": File(script="throughput.py --scaling environments --rounds 1", rows=_scaling),
    "scaling-agents": File(script="throughput.py --scaling agents --rounds 1", rows=_scaling),
    "replay": File(script="replay.py", rows=_replay),
    "report": File(script="report.py", rows=_report, peer=True),
    "overhead": File(script="benchmark_overhead.py", rows=_overhead),
}


# ------------------------------------------------------------------------------------------------------------ tables


def make_table(folder: Path, peers_only: bool = False) -> str:
    """Markdown. The long one also states thresholds, and names the script and options that wrote each figure."""
    lines = ["| what | measured |", "| --- | --- |"]
    if not peers_only:
        lines = [
            line + end for line, end in zip(lines, (" threshold | script and options |", " --- | --- |"), strict=True)
        ]
    for name, file in FILES.items():
        path = folder / f"benchmark-{name}.json"
        if not path.exists() or (peers_only and not file.peer):
            continue
        for row in file.rows(json.loads(path.read_text(encoding="utf-8"))):
            line = f"| {row.what} | {row.measured} |"
            lines.append(line if peers_only else f"{line} {row.to_reach} | `{file.script}` |")
    return "\n".join(lines) + "\n"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder of the files")
    parser.add_argument("--peers-only", action="store_true", help="only what compares with other systems")
    options = parser.parse_args(arguments)
    print(make_table(options.results, options.peers_only), end="")


if __name__ == "__main__":
    main()
