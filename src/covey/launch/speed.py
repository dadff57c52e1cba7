"""`covey speed`: how fast this machine simulates, acts, learns and trains; what limits it; and what to use.

The file that `output=` names is JSON:

    kind            "covey-speed"
    machine         name, processor, cores, cores_used, memory_bytes, platform, accelerators (what each is called)
    versions        covey, python, jax, jaxlib, numpy
    settings        task, algorithm, model, environments, rollout_length, seconds, command
    rows            one for each device and number of environments:
        device              "cpu x1", "cpu x2", "gpu 0": so many cores, or one accelerator
        devices             how many
        environments
        frames_per_iteration, iterations_per_chunk
        frames_per_second   of simulation alone, acting (simulation included), update alone, and the whole loop
        seconds_per_iteration   simulation, acting and update without each other, and the whole
        launch_seconds      of starting a chunk of iterations; transfer_seconds of fetching its metrics
        limit               compute, launch overhead, transfers, too few environments, or null where nothing tells
        largest_part        simulation, acting or update: what takes most of the time
    findings        sentences
    recommendation  device, devices, environments, frames_per_second, and the words for `covey train`
    created         when, UTC

What limits a row is found by these rules, the first that holds:

    transfers              fetching a chunk's metrics takes a fifth of the time or more
    launch overhead        starting a chunk does, or: the time of an iteration hardly grows with the environments
                           (elasticity below 1/3: eight times the environments take less than twice as long). Then
                           starting operations takes the time, not what they compute.
    too few environments   it grows, but not in proportion (below 0.8: eight times as many, less than 5.3 times as long)
    compute                it grows in proportion: more environments would make it no faster

The growth is that to the next number of environments, or, for the largest, from the one before. Recommended is, on the
fastest device, the least number of environments that runs at 90% of its best: more of them mean fewer updates for the
same frames, and frames per second are not yet learning.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import math
import os
import platform as host
import shlex
import subprocess
import sys
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from covey import registry
from covey.errors import UsageError
from covey.experiment.compose import compose, parse_override
from covey.experiment.config import CollectingConfig, Config, from_dict, to_dict
from covey.files import to_json, write_atomically
from covey.launch.devices import available_cores, find_accelerators, visible
from covey.launch.local import utc_now

ENVIRONMENTS = (1, 64, 512, 4096)
PARTS = ("simulation", "acting", "update")
HARDLY, IN_PROPORTION = 1 / 3, 0.8  # elasticities: the growth of time over that of environments, both as logarithms
NOTABLE = 0.2  # share of the time
NEARLY_BEST = 0.9
SAYS, FOUND = "says ", "found "  # how lines begin by which the process of an accelerator tells what it does and found
Row = dict[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpeedOptions:
    output: str | None = None  # JSON file to write the figures to; null: only print
    name: str | None = None  # what to call this machine; null: its host name
    environments: tuple[int, ...] = ENVIRONMENTS  # numbers of environments to time, each from 1 up
    seconds: float = 0.5  # time to spend on each figure, about; above 0

    def __post_init__(self) -> None:
        if not self.environments or min(self.environments) < 1:
            raise ValueError(f"environments takes numbers from 1 on, not {list(self.environments)}")
        if not 0 < self.seconds < math.inf:
            raise ValueError(f"seconds must be above 0, not {self.seconds}")


def report_speed(words: Sequence[str]) -> dict[str, Any]:
    """Measures, prints, writes and logs, as the words of the command line say."""
    options, config = read_words(words)
    if options.output is not None and not Path(options.output).absolute().parent.is_dir():
        raise UsageError(f"output={options.output}: there is no such folder")
    console = Console(width=None if sys.stdout.isatty() else 120)
    with console.status("") as status:
        say = status.update if console.is_terminal else print
        measured = measure(config, options, say)
    report = make_report(config, options, words, measured)
    print_report(report, console)
    if options.output is not None:
        write_atomically(Path(options.output), to_json(report, indent=2) + "\n")
        print(f"wrote {options.output}")
    log(report, config, Path(options.output or "speed.json").parent)
    return report


def read_words(words: Sequence[str]) -> tuple[SpeedOptions, Config]:
    from covey.experiment.loggers import check_loggers

    known = [field.name for field in dataclasses.fields(SpeedOptions)]
    own = [parse_override(word) for word in words if word.partition("=")[0] in known]
    options = registry.build_config(SpeedOptions(), {item.key: item.override.value() for item in own}, "speed")
    rest = [word for word in words if word.partition("=")[0] not in known]
    config = compose([f"experiment.{word}" if word.startswith("loggers=") else word for word in rest])
    if not isinstance(config.experiment, CollectingConfig):
        raise UsageError(f"algorithm '{config.algorithm.name}' collects nothing that could be timed")
    check_loggers(config.experiment.loggers, config.experiment.logger_options)
    return dataclasses.replace(options, environments=tuple(sorted(set(options.environments)))), config


# ------------------------------------------------------------------------------------------------------- measuring


def measure(config: Config, options: SpeedOptions, say: Callable[[str], None]) -> dict[str, Any]:
    """One core and all of them, in this process; each accelerator in a process of its own, which sees no other."""
    from covey.launch.timing import time_devices

    accelerators = find_accelerators(config.experiment.platform.name)
    numbers = sorted({1, len(available_cores())})
    measured = time_devices(config, "cpu", numbers, options.environments, options.seconds, say)
    measured["accelerators"] = []
    number = 0 if accelerators is None else 1 if accelerators.kind == "tpu" else accelerators.number
    for index in range(number):
        assert accelerators is not None
        settings = visible(accelerators.kind, [index], os.environ)
        found = measure_elsewhere(config, options, f"{accelerators.kind} {index}", settings, say)
        measured["accelerators"].append(found["kind"])
        measured["rows"] += found["rows"]
        measured["left_out"] += found["left_out"]
    return measured


def measure_elsewhere(
    config: Config, options: SpeedOptions, device: str, settings: dict[str, str], say: Callable[[str], None]
) -> dict[str, Any]:
    """What `time_devices` finds on one accelerator; no rows, and why, where its process fails."""
    job = {"config": to_dict(config), "environments": options.environments, "seconds": options.seconds}
    command = [sys.executable, "-m", "covey.launch.speed", json.dumps(job)]
    found: dict[str, Any] | None = None
    last = "no word"
    environment = {**os.environ, **settings}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", env=environment
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith(SAYS):
                say(f"{device}: {line.removeprefix(SAYS).strip()}")
            elif line.startswith(FOUND):
                found = json.loads(line.removeprefix(FOUND))
            else:
                last = line.strip() or last
    if process.returncode or found is None:
        reason = f"its process ended with exit code {process.returncode}: {last}"
        return {"kind": device, "rows": [], "left_out": [f"{device}: {reason}"]}
    return found | {"rows": [row | {"device": device} for row in found["rows"]]}


def main() -> None:
    """The process of `measure_elsewhere`."""
    from covey.launch.timing import time_devices

    job = json.loads(sys.argv[1])
    config, environments = from_dict(job["config"]), job["environments"]
    found = time_devices(
        config, "auto", [1], environments, job["seconds"], lambda text: print(f"{SAYS}{text}", flush=True)
    )
    print(f"{FOUND}{to_json(found)}")


# ----------------------------------------------------------------------------------------------------------- rules


def judge(rows: Sequence[Row]) -> list[Row]:
    """The rows with what limits each, and its largest part."""
    judged = []
    for row in rows:
        parts = row["seconds_per_iteration"]
        largest = max(PARTS, key=lambda part: parts[part])
        judged.append(row | {"limit": find_limit(row, rows), "largest_part": largest})
    return judged


def find_limit(row: Row, rows: Sequence[Row]) -> str | None:
    seconds, chunk = row["seconds_per_iteration"]["whole"], row["iterations_per_chunk"]
    launch, transfer = row["launch_seconds"] / chunk, row["transfer_seconds"] / chunk
    total = seconds + launch + transfer
    if transfer >= NOTABLE * total:
        return "transfers"
    if launch >= NOTABLE * total:
        return "launch overhead"
    growth = elasticity(row, rows)
    if growth is None:
        return None
    if growth < HARDLY:
        return "launch overhead"
    return "too few environments" if growth < IN_PROPORTION else "compute"


def elasticity(row: Row, rows: Sequence[Row]) -> float | None:
    """log(time ratio) / log(ratio of environments), to the next number of them on the same device."""
    same = sorted((other for other in rows if other["device"] == row["device"]), key=lambda r: r["environments"])
    if len(same) < 2:
        return None
    index = next(i for i, other in enumerate(same) if other["environments"] == row["environments"])
    first, second = (same[index], same[index + 1]) if index + 1 < len(same) else (same[index - 1], same[index])
    times = second["seconds_per_iteration"]["whole"] / first["seconds_per_iteration"]["whole"]
    return math.log(times) / math.log(second["environments"] / first["environments"])


def rate(row: Row) -> float:
    return row["frames_per_second"]["whole"]


def good_row(rows: Sequence[Row]) -> Row:
    """The least number of environments that is nearly as fast as the fastest."""
    best = max(map(rate, rows))
    return min((row for row in rows if rate(row) >= NEARLY_BEST * best), key=lambda row: row["environments"])


def by_device(rows: Sequence[Row]) -> dict[str, list[Row]]:
    return {device: [row for row in rows if row["device"] == device] for device in {r["device"]: 0 for r in rows}}


def recommend(rows: Sequence[Row]) -> dict[str, Any]:
    fastest = max(by_device(rows).values(), key=lambda own: max(map(rate, own)))
    row = good_row(fastest)
    is_cpu = row["device"].startswith("cpu")
    words = f"experiment.platform={'cpu' if is_cpu else 'auto'} experiment.devices={row['devices']}"
    return {
        "device": row["device"],
        "devices": row["devices"],
        "environments": row["environments"],
        "frames_per_second": rate(row),
        "words": f"{words} experiment.num_envs={row['environments']}",
    }


def find(rows: Sequence[Row], left_out: Sequence[str] = ()) -> list[str]:
    """What the rows say, in sentences."""
    findings = [_about_device(device, own) for device, own in by_device(rows).items()]
    findings += _about_cores(rows)
    findings += _about_accelerators(rows)
    return [*findings, *(f"left out: {reason}" for reason in left_out)]


def _shares(row: Row) -> dict[str, float]:
    """Of the time of the whole."""
    seconds = row["seconds_per_iteration"]
    return {part: seconds[part] / seconds["whole"] for part in PARTS}


def _about_device(device: str, rows: Sequence[Row]) -> str:
    row = good_row(rows)
    shares = ", ".join(f"{part} {share:.0%}" for part, share in _shares(row).items())
    few = min(rows, key=lambda other: other["environments"])
    limits = f"; {row['limit']} limits" if row["limit"] else ""
    text = f"{device}: {row['environments']:,} environments run at {rate(row):,.0f} frames/s ({shares}){limits}"
    if few is not row:
        text += f"; {few['environments']:,} at {rate(few):,.0f}"
        text += f" ({few['limit']})" if few["limit"] else ""
    return text


def _about_cores(rows: Sequence[Row]) -> list[str]:
    one = {row["environments"]: row for row in rows if row["device"] == "cpu x1"}
    pairs = [
        (row, one[row["environments"]])
        for row in rows
        if row["device"].startswith("cpu x") and row["devices"] > 1 and row["environments"] in one
    ]
    if not pairs:
        return []
    many, single = max(pairs, key=lambda pair: rate(pair[0]))
    times = rate(many) / rate(single)
    return [f"{many['devices']} cores are {times:.2f} times one, at {many['environments']:,} environments"]


def _about_accelerators(rows: Sequence[Row]) -> list[str]:
    """Where each accelerator is slower than the CPU, and from where on it is not."""
    findings = []
    cpu: dict[int, float] = {}
    for row in rows:
        if row["device"].startswith("cpu"):
            cpu[row["environments"]] = max(rate(row), cpu.get(row["environments"], 0.0))
    for device, own in by_device(rows).items():
        common = sorted((row for row in own if row["environments"] in cpu), key=lambda row: row["environments"])
        if device.startswith("cpu") or not common:
            continue
        slower = [row for row in common if rate(row) < cpu[row["environments"]]]
        if not slower:
            findings.append(f"{device} is faster than the CPU at every number of environments")
            continue
        row = slower[-1]
        times = rate(row) / cpu[row["environments"]]
        cause = f", for {row['limit']}" if row["limit"] else ""
        text = f"{device} is slower than the CPU at {row['environments']:,} environments ({times:.2f} times{cause})"
        faster = [other for other in common if other["environments"] > row["environments"]]
        findings.append(f"{text}; from {faster[0]['environments']:,} on it is faster" if faster else text)
    return findings


# ---------------------------------------------------------------------------------------------------------- reports


def make_report(
    config: Config, options: SpeedOptions, words: Sequence[str], measured: dict[str, Any]
) -> dict[str, Any]:
    rows = judge(measured["rows"])
    if not rows:
        raise UsageError(f"nothing can be timed: {'; '.join(measured['left_out'])}")
    assert isinstance(config.experiment, CollectingConfig)
    return {
        "kind": "covey-speed",
        "created": utc_now(),
        "machine": describe_machine(options.name) | {"accelerators": measured["accelerators"]},
        "versions": {name: _version(name) for name in ("covey", "jax", "jaxlib", "numpy")}
        | {"python": host.python_version()},
        "settings": {
            "task": config.task.name,
            "algorithm": config.algorithm.label,
            "model": config.model.label,
            "environments": options.environments,
            "rollout_length": config.experiment.rollout_length,
            "seconds": options.seconds,
            "command": shlex.join(["covey", "speed", *words]),
        },
        "rows": rows,
        "findings": find(rows, measured["left_out"]),
        "recommendation": recommend(rows),
    }


def describe_machine(name: str | None = None) -> dict[str, Any]:
    return {
        "name": name or host.node(),
        "processor": _from_proc("/proc/cpuinfo", "model name") or host.processor(),
        "cores": os.cpu_count(),
        "cores_used": len(available_cores()),
        "memory_bytes": int((_from_proc("/proc/meminfo", "MemTotal") or "0 kB").split()[0]) * 1024 or None,
        "platform": host.platform(),
    }


def _from_proc(path: str, key: str) -> str | None:
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(key)), None)


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def print_report(report: dict[str, Any], console: Console) -> None:
    settings = report["settings"]
    title = f"{settings['algorithm']} on {settings['task']}: frames per second, and where the time of the whole goes"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in ("device", "envs", "simulation", "acting", "update", "whole", "sim./act./upd.", "limited by"):
        table.add_column(name, justify="left" if name in ("device", "limited by") else "right")
    for row in report["rows"]:
        rates = [f"{row['frames_per_second'][part]:,.0f}" for part in (*PARTS, "whole")]
        shares = "/".join(f"{share:.0%}" for share in _shares(row).values())
        table.add_row(row["device"], f"{row['environments']:,}", *rates, shares, row["limit"] or "")
    console.print(table)
    for finding in report["findings"]:
        console.print(f"- {finding}", markup=False, highlight=False, soft_wrap=True)
    best = report["recommendation"]
    console.print(
        f"recommended: {best['environments']:,} environments on {best['device']}, {best['frames_per_second']:,.0f} "
        f"frames/s: {best['words']}",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )


def log(report: dict[str, Any], config: Config, folder: Path) -> None:
    """To the loggers that are on, one record for each row; their step is the number of environments."""
    from covey.experiment.loggers import LoggerTeam
    from covey.experiment.run_directory import RunDirectory

    def warn(text: str) -> None:
        print(f"warning: {text}", file=sys.stderr)

    given = config.experiment.logger_options
    named = {"name": f"speed of {report['machine']['name']}", **(given.get("wandb") or {})}
    team = LoggerTeam(config.experiment.loggers, {**given, "wandb": named}, warn=warn)
    about = {name: report[name] for name in ("machine", "versions", "settings", "findings", "recommendation")}
    team.start(RunDirectory(folder, about, {"run_id": uuid.uuid4().hex[:12]}), about)
    for row in report["rows"]:
        record = {"environments": row["environments"], **row["frames_per_second"]}
        team.log(f"speed/{row['device']}", record, row["environments"])
    team.finish()


if __name__ == "__main__":
    main()
