"""Reads covey's run directories: configuration, environment, failures, and results that are missing or damaged."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from covey.errors import UsageError
from covey.experiment.recording.mirror import disagreements, read_intact, results_from_records
from covey.experiment.recording.run_directory import CHANGED, UNKNOWN_FAILURE, read_failure
from covey.files import CHECKSUM, check_regular, checksum_holds, read_text
from covey.metrics import EVALUATION, KIND
from covey.registry import renamed
from covey.report.runs.types import Problem, Run
from covey.results import make_results
from covey.task_fields import SHARED_REWARD_NAMES

DEEPEST = 50  # levels of nesting in a configuration: the code that shows it is recursive
TOO_DEEP = f"nested more than {DEEPEST} levels deep"


def is_run_directory(folder: Path) -> bool:
    """Whether covey made this folder. W&B and Hydra also leave a config.yaml, but not the other files."""
    return (folder / "config.yaml").is_file() and any(
        (folder / name).is_file() for name in ("environment.json", "results.json")
    )


def read_config(folder: Path, problems: list[Problem]) -> dict[str, Any]:
    """config.yaml. Older ones use VMAS's names for who receives which reward; they are translated."""
    config = _read_mapping(folder / "config.yaml", _load_yaml, problems)
    task = config.get("task")
    if isinstance(task, dict) and str(task.get("base") or task.get("name")).startswith("vmas/"):
        with contextlib.suppress(UsageError):
            return {**config, "task": renamed(SHARED_REWARD_NAMES, task, "task")}
    return config


def read_environment(folder: Path, problems: list[Problem]) -> dict[str, Any]:
    """environment.json: the machine, the command, and what the task declares."""
    return _read_mapping(folder / "environment.json", json.loads, problems)


def read_failed_run(folder: Path, problems: list[Problem]) -> Run | None:
    """A run that failed before its first evaluation. It has no results, so its configuration says what it was."""
    config = read_config(folder, problems)
    task, algorithm = (_choice_name(config.get(kind)) for kind in ("task", "algorithm"))
    if not task or not algorithm:
        problems.append(Problem(what="no evaluation and no readable configuration", where=str(folder), why="left out"))
        return None
    return Run(
        task=task,
        algorithm=algorithm.replace(",", "_"),
        seed=str(config.get("seed", 0)),
        frames=np.empty(0),
        seconds=None,
        episodes={},
        absolute={},
        folder=folder,
        source=folder / "config.yaml",
        system="covey",
        config=config,
        environment=read_environment(folder, problems),
        failure=find_failure(folder),
    )


def _choice_name(choice: Any) -> str:
    """The name in covey's result files: `mappo`, or `mappo+ippo` if a group has its own algorithm."""
    if not isinstance(choice, dict) or not choice.get("name"):
        return ""
    groups = choice.get("groups")
    others = [_choice_name(own) for own in groups.values()] if isinstance(groups, dict) else []
    return "+".join(dict.fromkeys(filter(None, [str(choice["name"]), *others])))


def find_failure(folder: Path) -> str:
    """Why the run in a run directory failed, in one line; "" if nothing says that it did.

    A run records its own failure in failure.json. A killed process cannot, but a benchmark's status records it.
    """
    status = read_status(folder.parent.parent / "status" / f"{folder.parent.name}-{folder.name}.json")
    if status.get("state") == "running":  # tried again
        return ""
    if status.get("state") == "failed":
        return str(status.get("error") or UNKNOWN_FAILURE)
    return read_failure(folder)


def read_status(path: Path) -> dict[str, Any]:
    """What a benchmark recorded about one experiment; empty if the file is missing or damaged."""
    try:
        status = json.loads(read_text(path))
    except (OSError, ValueError, RecursionError):
        return {}
    return status if isinstance(status, dict) else {}


def has_evaluations(folder: Path) -> bool:
    """Whether metrics.jsonl of a run directory has evaluations, which results.json should then have too."""
    try:
        check_regular(folder / "metrics.jsonl")
        with open(folder / "metrics.jsonl", "rb") as file:  # the first line is the evaluation at frame 0
            return f'"{KIND}": "{EVALUATION}"'.encode() in file.read(4096)
    except OSError:
        return False


def rebuild_results(folder: Path, problems: list[Problem]) -> Any:
    """The content of a missing results.json, as far as metrics.jsonl has it; None if nothing can be rebuilt."""
    config = _read_mapping(folder / "config.yaml", _load_yaml, [])
    try:
        chosen = [config["algorithm"], *config["algorithm"].get("groups", {}).values()]
        algorithm = "+".join(dict.fromkeys(choice["name"] for choice in chosen))
        empty = make_results(config["task"]["name"], algorithm, config["seed"])
        results = results_from_records(empty, read_intact(folder / "metrics.jsonl")[0])
    except (KeyError, TypeError, AttributeError, OSError, ValueError):
        return None
    why = "rebuilt from metrics.jsonl, which has means of evaluations but no single episodes"
    problems.append(Problem(what="is missing or damaged", where=str(folder / "results.json"), why=why))
    return results


def compare_with_metrics(results: Any, folder: Path, problems: list[Problem]) -> None:
    """Appends a problem if results.json and metrics.jsonl, which hold the same evaluations, do not agree."""
    metrics = folder / "metrics.jsonl"
    try:
        # A run that was copied without its checkpoints may also have been copied without its metrics.
        if not metrics.exists() and any(folder.glob("checkpoints/*/index.json")):
            why = "the metrics of each iteration are lost"
            problems.append(Problem(what="is missing", where=str(metrics), why=why))
        records, damaged = read_intact(metrics)
        differing = disagreements(results, records)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        problems.append(Problem(what="has unexpected names", where=str(folder / "results.json"), why=one_line(error)))
        return
    if damaged:
        more = f" and {len(damaged) - 1} more" if len(damaged) > 1 else ""
        problems.append(Problem(what=f"damaged: line {damaged[0]}{more}", where=str(metrics), why="left out"))
    if differing:
        more = f", and {len(differing) - 1} more" if len(differing) > 1 else ""
        why = "metrics.jsonl disagrees: one of them was edited or damaged"
        problems.append(Problem(what=differing[0] + more, where=str(folder / "results.json"), why=why))


def _read_mapping(path: Path, load: Callable[[str], Any], problems: list[Problem]) -> dict[str, Any]:
    """A file's content as a dictionary; empty if it is missing or damaged, because results can be shown without it."""
    try:
        text = read_text(path)
        raw, content = text.encode(), load(text)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        problems.append(Problem(what="cannot be read", where=str(path), why=one_line(error)))
        return {}
    if _is_deeper(content, DEEPEST):
        problems.append(Problem(what="cannot be read", where=str(path), why=TOO_DEEP))
        return {}
    if checksum_holds(raw) is False:
        problems.append(Problem(what=CHANGED, where=str(path), why="used nevertheless"))
    return {name: value for name, value in content.items() if name != CHECKSUM} if isinstance(content, dict) else {}


def _is_deeper(value: Any, depth: int) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return any(depth == 0 or _is_deeper(item, depth - 1) for item in inner)


def _load_yaml(text: str) -> Any:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the C library is much faster, if it is installed
    depth = 0
    for event in yaml.parse(text, loader):  # the depth is checked first: loading deep nesting crashes the process
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST + 1:
            raise ValueError(TOO_DEEP)
    return yaml.load(text, loader)


def one_line(error: BaseException) -> str:
    """An error's message without line breaks."""
    return " ".join(str(error).split()) or type(error).__name__
