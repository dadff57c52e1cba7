"""`covey speed`: how fast this machine simulates, acts, learns and trains; what limits it; and what to use.

The file that `output=` names is JSON:

    kind            "covey-speed"
    machine         name, processor, cores, cores_used, memory_bytes, platform, accelerators (their names)
    versions        covey, python, jax, jaxlib, numpy
    settings        task, algorithm, model, environments, rollout_length, seconds, command
    rows            one for each device and number of environments:
        device              "cpu x1" and "cpu x2" for one and two cores, "gpu 0" for one accelerator
        devices             how many
        environments
        frames_per_iteration, iterations_per_chunk
        frames_per_second   of simulation alone, acting (with simulation), update alone, and the whole loop
        seconds_per_iteration   of simulation, acting and update, each alone, and of the whole loop
        launch_seconds      for starting a chunk of iterations; transfer_seconds for fetching its metrics
        limit               compute, launch overhead, transfers, too few environments, or null if unknown
        largest_part        simulation, acting or update: what takes most of the time
    findings        sentences
    recommendation  device, devices, environments, frames_per_second, and the arguments of `covey train` (words)
    created         when, UTC

`speed_rules.py` has the rules for limits, findings and the recommendation.
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
from covey.experiment.configuration.compose import compose, parse_override
from covey.experiment.configuration.config import Config, from_dict, to_dict
from covey.files import to_json, write_atomically
from covey.launch.benchmark_files import utc_now
from covey.launch.devices import available_cores, find_accelerators, visible
from covey.launch.speed_rules import PARTS, describe_rows, judge, recommend, shares

ENVIRONMENTS = (1, 64, 512, 4096)
SAYS, FOUND = "says ", "found "  # prefixes of the lines by which the process of an accelerator reports


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpeedOptions:
    """The options of `covey speed` itself. All other arguments configure the experiment that is timed."""

    output: str | None = None  # JSON file to write the figures to; null: only print
    name: str | None = None  # name of this machine; null: its host name
    environments: tuple[int, ...] = ENVIRONMENTS  # numbers of environments to time, each at least 1
    seconds: float = 0.5  # approximate time to spend on each figure; above 0

    def __post_init__(self) -> None:
        if not self.environments or min(self.environments) < 1:
            raise ValueError(f"environments takes numbers of at least 1, not {list(self.environments)}")
        if not 0 < self.seconds < math.inf:
            raise ValueError(f"seconds must be above 0, not {self.seconds}")


def report_speed(words: Sequence[str]) -> dict[str, Any]:
    """`covey speed`: measures, prints, writes and logs; returns the content of the file."""
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
    """The options of the command, and the configuration of the experiment to time."""
    from covey.experiment.recording.loggers import check_loggers

    known = [field.name for field in dataclasses.fields(SpeedOptions)]
    own = [parse_override(word) for word in words if word.partition("=")[0] in known]
    options = registry.build_config(SpeedOptions(), {item.key: item.override.value() for item in own}, "speed")
    rest = [word for word in words if word.partition("=")[0] not in known]
    config = compose([f"experiment.{word}" if word.startswith("loggers=") else word for word in rest])
    if config.experiment.collecting is None:
        raise UsageError(f"experiment.loop={config.experiment.loop} has no rollouts of `num_envs` environments to time")
    check_loggers(config.experiment.loggers, config.experiment.logger_options)
    return dataclasses.replace(options, environments=tuple(sorted(set(options.environments)))), config


def measure(config: Config, options: SpeedOptions, say: Callable[[str], None]) -> dict[str, Any]:
    """Times one core and all cores in this process, and each accelerator in a process that sees no other."""
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
    """The result of `time_devices` on one accelerator; without rows, and with the reason, if its process fails."""
    job = {"config": to_dict(config), "environments": options.environments, "seconds": options.seconds}
    command = [sys.executable, "-m", "covey.launch.speed", json.dumps(job)]
    found: dict[str, Any] | None = None
    last = "no output"
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


def make_report(
    config: Config, options: SpeedOptions, words: Sequence[str], measured: dict[str, Any]
) -> dict[str, Any]:
    """The content of the file; UsageError if nothing could be timed."""
    rows = judge(measured["rows"])
    if not rows:
        raise UsageError(f"nothing can be timed: {'; '.join(measured['left_out'])}")
    collecting = config.experiment.collecting
    assert collecting is not None
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
            "rollout_length": collecting.rollout_length,
            "seconds": options.seconds,
            "command": shlex.join(["covey", "speed", *words]),
        },
        "rows": rows,
        "findings": describe_rows(rows, measured["left_out"]),
        "recommendation": recommend(rows),
    }


def describe_machine(name: str | None = None) -> dict[str, Any]:
    """The machine's name, processor, cores, memory and platform."""
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
    """Prints the rows as a table, then the findings and the recommendation."""
    settings = report["settings"]
    title = f"{settings['algorithm']} on {settings['task']}: frames per second, and where the time of the whole goes"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in ("device", "envs", "simulation", "acting", "update", "whole", "sim./act./upd.", "limited by"):
        table.add_column(name, justify="left" if name in ("device", "limited by") else "right")
    for row in report["rows"]:
        rates = [f"{row['frames_per_second'][part]:,.0f}" for part in (*PARTS, "whole")]
        split = "/".join(f"{share:.0%}" for share in shares(row).values())
        table.add_row(row["device"], f"{row['environments']:,}", *rates, split, row["limit"] or "")
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
    """Sends each row to the configured loggers; the step is the number of environments."""
    from covey.experiment.recording.loggers import LoggerTeam
    from covey.experiment.recording.run_directory import RunDirectory

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


def main() -> None:
    """Runs in the process that `measure_elsewhere` starts."""
    from covey.launch.timing import time_devices

    job = json.loads(sys.argv[1])
    config, environments = from_dict(job["config"]), job["environments"]
    found = time_devices(
        config, "auto", [1], environments, job["seconds"], lambda text: print(f"{SAYS}{text}", flush=True)
    )
    print(f"{FOUND}{to_json(found)}")


if __name__ == "__main__":
    main()
