"""The files in a benchmark's folder.

    benchmark.yaml               kind: covey-benchmark; `commands` that wrote here; `experiments`, each with name, task,
                                 algorithm, model, seeds, and a `command` that trains it alone
    NAME/seed_N/                 run directories, with team.gif
    status/NAME-seed_N.json      kind: covey-status; experiment (the NAME), seed, task, algorithm, model, run_directory
                                 and log (relative to the folder), state (running, done, failed or interrupted), error
                                 (one line or null), started and finished (UTC), seconds (of the last attempt)
    status/NAME-seed_N.log       the run's output, tracebacks included

An experiment without a status was not started. If the command was killed, its experiments' state is still `running`.
"""

from __future__ import annotations

import datetime
import json
import os
import shlex
import uuid
from pathlib import Path
from typing import Any

import yaml

from covey.errors import UsageError
from covey.files import read_text, to_json, write_atomically
from covey.launch.benchmark import Benchmark, BenchmarkExperiment


def is_done(experiment: BenchmarkExperiment) -> bool:
    """Whether its status says so and its run directory exists."""
    status = read_status(experiment)
    return status.get("state") == "done" and (experiment.run_directory / "config.yaml").is_file()


def read_status(experiment: BenchmarkExperiment) -> dict[str, Any]:
    """The status of an experiment; empty if it is missing or damaged, and then the experiment is continued."""
    try:
        status = json.loads(read_text(experiment.status_file))
    except (OSError, ValueError):
        return {}
    return status if isinstance(status, dict) else {}


def write_status(experiment: BenchmarkExperiment, *, state: str, **fields: Any) -> None:
    """Records an experiment's state. `fields` are error, started, finished and seconds; those not given are null."""
    config, folder = experiment.config, experiment.folder
    status = {
        "kind": "covey-status",
        "experiment": experiment.name,
        "seed": experiment.seed,
        "task": config.task.name,
        "algorithm": config.algorithm.label,
        "model": config.model.label,
        "run_directory": experiment.run_directory.relative_to(folder).as_posix(),
        "log": experiment.log_file.relative_to(folder).as_posix(),
        "state": state,
        **dict.fromkeys(("error", "started", "finished", "seconds")),
        **fields,
    }
    write_atomically(experiment.status_file, to_json(status, indent=2) + "\n")


def write_description(benchmark: Benchmark) -> None:
    """Adds the benchmark to benchmark.yaml, which keeps what earlier commands asked for."""
    path = benchmark.folder / "benchmark.yaml"
    known = _read_description(path)
    experiments = {entry["name"]: entry for entry in known["experiments"]}
    for experiment in benchmark.experiments:
        seeds = sorted({*experiments.get(experiment.name, {}).get("seeds", ()), experiment.seed})
        experiments[experiment.name] = {
            "name": experiment.name,
            "task": experiment.config.task.name,
            "algorithm": experiment.config.algorithm.label,
            "model": experiment.config.model.label,
            "seeds": seeds,
            "command": shlex.join(["covey", "train", *experiment.words, f"seeds=[{','.join(map(str, seeds))}]"]),
        }
    description = {
        "kind": "covey-benchmark",
        "commands": list(dict.fromkeys([*known["commands"], benchmark.command])),
        "experiments": list(experiments.values()),
    }
    if description == known:
        return
    # The jobs of an array may write this at the same moment, so each first writes its own file.
    own = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
    write_atomically(own, yaml.safe_dump(description, sort_keys=False, width=1000, allow_unicode=True))
    os.replace(own, path)


def _read_description(path: Path) -> dict[str, Any]:
    try:
        known = yaml.safe_load(read_text(path))
    except OSError:
        known = None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {path}: {error}") from error
    if known is None:
        return {"kind": "covey-benchmark", "commands": [], "experiments": []}
    lists = isinstance(known, dict) and all(isinstance(known.get(key), list) for key in ("commands", "experiments"))
    if not lists or not all(isinstance(entry, dict) and "name" in entry for entry in known["experiments"]):
        raise UsageError(f"{path} is not a benchmark of covey; choose another run_dir")
    return dict(known)


def utc_now() -> str:
    """The time in UTC, as 2026-01-31T12:34:56+00:00."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
