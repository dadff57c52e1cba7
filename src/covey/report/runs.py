"""Reads results: from any paths to a list of `Run`, and a list of `Problem` for everything that is odd about them.

    runs, problems = read_runs(["bench/first", "theirs/ippo.json"])

A path may be a run directory of covey, a parent of some at any depth (`seed_N/`, a benchmark), a folder of other
libraries' files, or a file in MARL-eval's schema, of one run or merged of many. BenchMARL, Mava and OG-MARL write that
schema with differences; all are read, and where something had to be decided, a `Problem` says what and why. Nothing is
left out without one. Only paths that do not exist or hold no results at all are errors (`UsageError`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from covey.errors import UsageError, nearest
from covey.experiment.mirror import disagreements, read_intact, results_from_records
from covey.experiment.run_directory import CHANGED, UNKNOWN_FAILURE, read_failure
from covey.files import CHECKSUM, check_regular, checksum_holds, read_text
from covey.metrics import MEAN_RETURN
from covey.registry import renamed
from covey.results import ABSOLUTE_METRICS, ELAPSED_TIME, STEP_COUNT, make_results
from covey.task_fields import SHARED_REWARD_NAMES

# What others call covey's metrics. All names are compared in lower case, as MARL-eval's loader does.
METRIC_NAMES: Mapping[str, str] = {
    "return": MEAN_RETURN,  # BenchMARL
    "mean_episode_return": MEAN_RETURN,  # Mava, OG-MARL
    "episode_return": MEAN_RETURN,
}
BENCHMARL_RETURN = "return"
MAVA_RATE = "steps_per_second"  # only Mava writes it; its win rates are in percent
OG_MARL_RETURN = "mean_episode_return"  # Mava's too
WIN_RATE = "win_rate"
LARGEST = 1e100  # of what is larger, squares and sums may be infinite
DEEPEST = 50  # levels in what describes a run: what shows it calls itself for each
TOO_DEEP = f"nested more than {DEEPEST} deep"


@dataclass(frozen=True, kw_only=True)
class Run:
    """One experiment's results. E evaluations, in order of frames; possibly none where there is an absolute metric.

    `algorithm` is the name as shown: where runs of one algorithm differ in model or in fields, it says so
    (`ippo (model=gru)`), and `task` likewise (`vmas/balance (time_limit=300)`).
    """

    task: str  # "suite/name"
    algorithm: str
    seed: str  # "0"
    frames: np.ndarray  # [E], ascending
    seconds: np.ndarray | None  # [E]; None where the file has no times
    episodes: dict[str, list[np.ndarray]]  # metric → per evaluation, its episodes' values (NaN where not finite)
    absolute: dict[str, np.ndarray]  # metric → episodes' values of the best parameters; empty if there is none
    folder: Path | None  # covey's run directory
    source: Path  # the file that this was read from
    system: str = ""  # "covey", "BenchMARL", "Mava", "OG-MARL"; "" where the file does not show it
    config: Mapping[str, Any] = field(default_factory=dict)  # config.yaml of `folder`
    environment: Mapping[str, Any] = field(default_factory=dict)  # environment.json of `folder`
    failure: str = ""  # why it stopped for good before its end; "" if it is done or still running


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Something odd, and what was done about it, each part a plain phrase for people: `where: what (why)`."""

    what: str  # "seed 2 is missing"
    where: str  # "mappo on vmas/balance", or a path
    why: str  # what it means or what was done: "intervals use the 2 seeds that are there"


def read_runs(paths: Iterable[str | os.PathLike[str]]) -> tuple[list[Run], list[Problem]]:
    """All runs found, sorted by task, algorithm and seed, each (task, algorithm, seed) once; and what was odd.

    UsageError for a path that does not exist, and where no path holds any results.
    """
    given = [Path(path) for path in paths]
    problems: list[Problem] = []
    files: dict[str, Path] = {}  # by where links lead, so that overlapping paths count once
    for path in given:
        try:
            for file in find_files(path, problems):
                files.setdefault(os.path.realpath(file), file)  # links in a circle too, where Path.resolve fails
        except OSError as error:
            raise UsageError(f"cannot read '{path}': {error.strerror or error}") from error
    found = [run for file in files.values() for run in read_file(file, problems)]
    if not found:
        first = f": {describe(problems[0])}" if problems else ""
        raise UsageError(f"no results in {', '.join(map(str, given)) or 'no paths'}{first}")
    runs = drop_duplicates(tell_apart(unify_case(found)), problems)
    runs.sort(key=lambda run: (run.task, run.algorithm, sort_key(run.seed)))
    return runs, list(dict.fromkeys(problems + find_gaps(runs)))


def describe(problem: Problem) -> str:
    """A problem in one line."""
    return f"{problem.where}: {problem.what} ({problem.why})"


def sort_key(seed: str) -> tuple[int, str]:
    """Seeds by number, other names after them."""
    return (int(seed), "") if seed.isdecimal() and len(seed) < 19 else (2**63, seed)


# ----------------------------------------------------------------------------------------------------- finding files


def find_files(path: Path, problems: list[Problem]) -> list[Path]:
    """The result files that a path stands for, sorted; JSON files found on the way that are not results come along."""
    if not path.exists():
        siblings = [str(other) for other in path.parent.glob("*")] if path.parent.is_dir() else []
        near = f"; nearest: {', '.join(nearest(str(path), siblings))}" if siblings else ""
        raise UsageError(f"no file or folder '{path}'{near}")
    return _walk(path, problems, set()) if path.is_dir() else [path]


def is_run_directory(folder: Path) -> bool:
    """covey's own; W&B and Hydra leave a config.yaml too, but not the other files."""
    return (folder / "config.yaml").is_file() and any(
        (folder / name).is_file() for name in ("environment.json", "results.json")
    )


def _walk(folder: Path, problems: list[Problem], seen: set[str]) -> list[Path]:
    place = os.path.realpath(folder)
    if place in seen:  # a link to a folder above
        return []
    seen.add(place)
    try:
        if is_run_directory(folder):
            if (folder / "results.json").is_file() or _has_evaluations(folder) or find_failure(folder):
                return [folder / "results.json"]
            problems.append(Problem(what="no evaluation yet", where=str(folder), why="left out"))
            return []
        children = sorted(child for child in folder.iterdir() if not child.name.startswith("."))
    except OSError as error:
        problems.append(Problem(what="cannot be read", where=str(folder), why=error.strerror or str(error)))
        return []
    files = []
    for child in children:
        if child.is_dir():
            files += _walk(child, problems, seen)
        elif child.suffix == ".json":
            files.append(child)
    return files


# ----------------------------------------------------------------------------------------------------- reading a file


def read_file(path: Path, problems: list[Problem]) -> list[Run]:
    """The runs in a file of MARL-eval's schema; none, and a problem, where it is another or cannot be read."""
    folder = path.parent if path.name == "results.json" and is_run_directory(path.parent) else None
    try:
        data = json.loads(read_text(path))
        damage = None
    except OSError as error:
        damage = Problem(what="cannot be read", where=str(path), why=error.strerror or str(error))
    except (ValueError, RecursionError) as error:
        damage = Problem(what="damaged or no JSON, left out", where=str(path), why=_one_line(error))
    entries = list(_entries(data)) if damage is None else []
    if not entries and folder is not None and _has_evaluations(folder):
        rebuilt = _rebuild(folder, problems)
        entries = list(_entries(rebuilt)) if rebuilt is not None else []
    elif folder is not None and not path.exists():  # it failed, or it would not have been looked for
        return [run] if (run := _failed_before_its_first_evaluation(folder, problems)) else []
    elif damage is not None:
        problems.append(damage)
        return []
    elif folder is not None:
        _compare_with_metrics(data, folder, problems)
    if not entries:
        why = "MARL-eval's are environment → task → algorithm → run → step"
        problems.append(Problem(what="holds no results, left out", where=str(path), why=why))
    config = _read_config(folder, problems) if folder else {}
    environment = _read_mapping(folder / "environment.json", json.loads, problems) if folder else {}
    runs = []
    for names, steps in entries:
        run = _make_run(names, steps, path, problems)
        if run is not None:
            system = "covey" if folder else run.system
            run = dataclasses.replace(run, folder=folder, config=config, environment=environment, system=system)
            failure = find_failure(folder) if folder and is_unfinished(run) else ""
            runs.append(dataclasses.replace(run, failure=failure))
    return runs


def _failed_before_its_first_evaluation(folder: Path, problems: list[Problem]) -> Run | None:
    """A run without results: what it was is in its configuration."""
    config = _read_config(folder, problems)
    task, algorithm = (_name(config.get(kind)) for kind in ("task", "algorithm"))
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
        environment=_read_mapping(folder / "environment.json", json.loads, problems),
        failure=find_failure(folder),
    )


def _name(choice: Any) -> str:
    """As covey's result files call it: `mappo`, or `mappo+ippo` where a group has another."""
    if not isinstance(choice, dict) or not choice.get("name"):
        return ""
    groups = choice.get("groups")
    others = [_name(own) for own in groups.values()] if isinstance(groups, dict) else []
    return "+".join(dict.fromkeys(filter(None, [str(choice["name"]), *others])))


def find_failure(folder: Path) -> str:
    """Why the run in a run directory failed, in one line; "" where nothing says that it did.

    A run says so itself (failure.json). A process that was killed could not: of a benchmark's, its status does.
    """
    status = read_status(folder.parent.parent / "status" / f"{folder.parent.name}-{folder.name}.json")
    if status.get("state") == "running":  # tried again
        return ""
    if status.get("state") == "failed":
        return str(status.get("error") or UNKNOWN_FAILURE)
    return read_failure(folder)


def read_status(path: Path) -> dict[str, Any]:
    """What a benchmark recorded of one experiment; empty where there is nothing that can be read."""
    try:
        status = json.loads(read_text(path))
    except (OSError, ValueError, RecursionError):
        return {}
    return status if isinstance(status, dict) else {}


def _has_evaluations(folder: Path) -> bool:
    """Whether a run directory's metrics.jsonl has evaluations, which then belong into its results.json."""
    try:
        check_regular(_metrics(folder))
        with open(_metrics(folder), "rb") as file:  # the first line is the evaluation at frame 0
            return b'"kind": "evaluation"' in file.read(4096)
    except OSError:
        return False


def _rebuild(folder: Path, problems: list[Problem]) -> Any:
    """What results.json would hold, as far as metrics.jsonl tells; None where nothing can be made of it."""
    config = _read_mapping(folder / "config.yaml", _load_yaml, [])
    try:
        chosen = [config["algorithm"], *config["algorithm"].get("groups", {}).values()]
        algorithm = "+".join(dict.fromkeys(choice["name"] for choice in chosen))
        empty = make_results(config["task"]["name"], algorithm, config["seed"])
        results = results_from_records(empty, read_intact(_metrics(folder))[0])
    except (KeyError, TypeError, AttributeError, OSError, ValueError):
        return None
    why = "rebuilt from metrics.jsonl: means of evaluations, no single episodes"
    problems.append(Problem(what="is missing or damaged", where=str(folder / "results.json"), why=why))
    return results


def _compare_with_metrics(results: Any, folder: Path, problems: list[Problem]) -> None:
    """results.json and metrics.jsonl hold the same evaluations: what one has and the other denies is damage."""
    try:
        # A run that was copied without its checkpoints may well have been copied without its metrics.
        if not _metrics(folder).exists() and any(folder.glob("checkpoints/*/index.json")):
            why = "what each iteration gave is lost"
            problems.append(Problem(what="is missing", where=str(_metrics(folder)), why=why))
        records, damaged = read_intact(_metrics(folder))
        differing = disagreements(results, records)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        problems.append(Problem(what="has odd names in it", where=str(folder / "results.json"), why=_one_line(error)))
        return
    if damaged:
        lines = f"line {damaged[0]}" if len(damaged) == 1 else f"{len(damaged)} lines, the first being {damaged[0]}"
        problems.append(Problem(what=f"{lines} damaged", where=str(_metrics(folder)), why="left out"))
    if differing:
        more = f", and {len(differing) - 1} more" if len(differing) > 1 else ""
        why = "metrics.jsonl says otherwise: one of them is edited or damaged"
        problems.append(Problem(what=differing[0] + more, where=str(folder / "results.json"), why=why))


def _metrics(folder: Path) -> Path:
    return folder / "metrics.jsonl"


def _entries(data: Any, names: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """(environment, task, algorithm, run) and the steps of every run, wherever the nesting is right."""
    if not isinstance(data, dict):
        return
    if len(names) < 4:
        for name, inner in data.items():
            yield from _entries(inner, (*names, name))
        return
    steps = {name.lower(): _lower(step) for name, step in data.items() if isinstance(step, dict)}
    if ABSOLUTE_METRICS in steps or any(STEP_COUNT in step for step in steps.values()):
        yield names, steps


def _make_run(names: tuple[str, ...], steps: dict[str, Any], source: Path, problems: list[Problem]) -> Run | None:
    suite, name, algorithm, seed = names
    task = name if suite == name else f"{suite}/{name}"
    seed = re.sub(r"^seed[_ ]?", "", seed, flags=re.IGNORECASE) or seed
    where = f"{algorithm} on {task}, seed {seed} ({source})"

    def note(what: str, why: str) -> None:
        problems.append(Problem(what=what, where=where, why=why))

    absolute = {metric: _values(value, metric, note) for metric, value in steps.pop(ABSOLUTE_METRICS, {}).items()}
    evaluations = _evaluations(steps, note)
    if not evaluations and not any(values.size for values in absolute.values()):
        note("no evaluation in it", "left out")
        return None
    metrics = {name: None for step in evaluations.values() for name in step if name not in (STEP_COUNT, ELAPSED_TIME)}
    episodes = {
        metric: [_values(step.get(metric, []), metric, note) for step in evaluations.values()] for metric in metrics
    }
    if BENCHMARL_RETURN in metrics and absolute:
        note("its absolute metric is BenchMARL's, the luckiest single episode", "not used")
        absolute = {}
    if MAVA_RATE in metrics and WIN_RATE in metrics:
        note("its win rate is in percent, as Mava writes it", "divided by 100")
        episodes[WIN_RATE] = [values / 100 for values in episodes[WIN_RATE]]
        absolute |= {WIN_RATE: absolute[WIN_RATE] / 100} if WIN_RATE in absolute else {}
    return Run(
        task=task,
        algorithm=algorithm,
        seed=seed,
        frames=np.array(list(evaluations), np.float64),
        seconds=_seconds(list(evaluations.values()), note),
        episodes=_canonical(episodes),
        absolute=_canonical(absolute),
        folder=None,
        source=source,
        system=_system(metrics),
    )


def _system(metrics: Iterable[str]) -> str:
    """Who wrote a file, by metrics that nobody else writes."""
    signs = {BENCHMARL_RETURN: "BenchMARL", MAVA_RATE: "Mava", OG_MARL_RETURN: "OG-MARL"}
    return next((system for metric, system in signs.items() if metric in metrics), "")


Note = Callable[[str, str], None]


def _evaluations(steps: Mapping[str, dict[str, Any]], note: Note) -> dict[float, dict[str, Any]]:
    """By frames, ascending: what a step is called says nothing about when it was."""
    found: dict[float, dict[str, Any]] = {}
    for name, step in steps.items():
        frames = as_number(step.get(STEP_COUNT))
        if frames is None or frames < 0:
            note(f"{name} has no step_count from 0 on", "left out")
            continue
        if frames in found:
            note(f"two evaluations at {frames:,.0f} frames", "the later in the file counts")
        found[frames] = step
    return dict(sorted(found.items()))


def _seconds(evaluations: Sequence[dict[str, Any]], note: Note) -> np.ndarray | None:
    times = [as_number(step.get(ELAPSED_TIME)) for step in evaluations]
    if not times or all(time is None for time in times):
        return None
    seconds = np.array([np.nan if time is None else time for time in times])
    if np.isnan(seconds).any() or (np.diff(seconds) < 0).any():
        note("times are missing or do not ascend", "left out of curves by seconds")
        return None
    return seconds


def _values(value: Any, metric: str, note: Note) -> np.ndarray:
    """One value per episode, from a list or a single number; NaN where it is null, not finite or too large."""
    try:
        values = np.asarray(value, np.float64).reshape(-1)
    except (TypeError, ValueError, OverflowError):
        note(f"{metric} holds something that is no number", "these values are left out")
        return np.empty(0)
    return np.where(np.abs(values) <= LARGEST, values, np.nan)


def as_number(value: Any) -> float | None:
    """A number that can be computed with, or the only one in a list; else None."""
    if isinstance(value, list) and len(value) == 1:
        [value] = value
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:  # an integer of hundreds of digits
        return None
    return number if abs(number) <= LARGEST else None


def _canonical(by_metric: dict[str, Any]) -> dict[str, Any]:
    """By covey's names; where a file has both, covey's counts."""
    return {METRIC_NAMES.get(name, name): values for name, values in by_metric.items()} | {
        name: values for name, values in by_metric.items() if name not in METRIC_NAMES
    }


def _read_config(folder: Path, problems: list[Problem]) -> dict[str, Any]:
    """config.yaml; older ones have VMAS's names for who receives which reward."""
    config = _read_mapping(folder / "config.yaml", _load_yaml, problems)
    task = config.get("task")
    if isinstance(task, dict) and str(task.get("base") or task.get("name")).startswith("vmas/"):
        with contextlib.suppress(UsageError):
            return {**config, "task": renamed(SHARED_REWARD_NAMES, task, "task")}
    return config


def _read_mapping(path: Path, load: Callable[[str], Any], problems: list[Problem]) -> dict[str, Any]:
    """Empty where the file is missing or bad: results can be shown without it."""
    try:
        text = read_text(path)
        raw, content = text.encode(), load(text)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        problems.append(Problem(what="cannot be read", where=str(path), why=_one_line(error)))
        return {}
    if _is_deeper(content, DEEPEST):
        problems.append(Problem(what="cannot be read", where=str(path), why=TOO_DEEP))
        return {}
    if checksum_holds(raw) is False:
        problems.append(Problem(what=CHANGED, where=str(path), why="used as it is"))
    return {name: value for name, value in content.items() if name != CHECKSUM} if isinstance(content, dict) else {}


def _is_deeper(value: Any, depth: int) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return any(depth == 0 or _is_deeper(item, depth - 1) for item in inner)


def _load_yaml(text: str) -> Any:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # much faster where there is the C library
    depth = 0
    for event in yaml.parse(text, loader):  # by events first: nested deep enough, loading ends the process
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST + 1:
            raise ValueError(TOO_DEEP)
    return yaml.load(text, loader)


def _lower(step: dict[str, Any]) -> dict[str, Any]:
    return {name.lower(): value for name, value in step.items()}


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


# ------------------------------------------------------------------------------------------------ telling runs apart


def unify_case(runs: Sequence[Run]) -> list[Run]:
    """Tasks and algorithms that differ only in case, which MARL-eval's loader drops, get one spelling: covey's if it
    is there, else the first."""
    spelling: dict[str, str] = {}
    for run in sorted(runs, key=lambda run: run.system != "covey"):
        for name in (run.task, run.algorithm):
            spelling.setdefault(name.lower(), name)
    return [
        dataclasses.replace(
            run,
            task=spelling[run.task.lower()],
            algorithm=spelling[run.algorithm.lower()],
        )
        for run in runs
    ]


# Fields of a task that change how agents act in it or learn it, and not what is to be done nor what it is worth: runs
# that differ in them are compared, discrete actions with continuous ones for example.
HOW_TO_PLAY = ("task.continuous_actions", "task.shaping")
# Fields of an experiment that change nothing in what is learned, but only where, how long, and how it is looked at.
NOT_LEARNING = re.compile(
    r"experiment\.(frames|platform|devices|seeds_at_once|loggers|logger_options|checkpoint_.*|evaluation_.*|absolute_metric|"
    r"best_by|buffer\.place|buffer\.in_checkpoints)(\.|$)"
)
SYSTEM = "system"  # stands among a run's fields, for telling apart


def tell_apart(runs: Sequence[Run]) -> list[Run]:
    """Gives other names to what has one name and differs: tasks by their fields, algorithms by all else that counts.

    What a run was compared on must not depend on its folder's name; so two models under one algorithm become
    `ippo (model=gru)` and `ippo (model=mlp)`, on every task, and two numbers of environments `ippo (num_envs=64)` and
    so on; a run that went on for longer is no other. The same algorithm of two systems becomes `mappo (covey)` and
    `mappo (BenchMARL)`. Of files without a config.yaml nothing else is known.
    """

    def of_task(field_name: str) -> bool:
        return field_name.startswith("task.") and field_name not in HOW_TO_PLAY

    def of_algorithm(field_name: str) -> bool:
        if field_name in (SYSTEM, "init_from", *HOW_TO_PLAY):
            return True
        return field_name.startswith(("algorithm.", "model.", "critic_model.")) or (
            field_name.startswith("experiment.") and not NOT_LEARNING.match(field_name)
        )

    tasks = _suffixes(runs, "task", of_task, lambda run: run.task)
    runs = [dataclasses.replace(run, task=run.task + suffix) for run, suffix in zip(runs, tasks, strict=True)]
    algorithms = _suffixes(runs, "algorithm", of_algorithm, lambda run: (run.algorithm, run.task))
    return [
        dataclasses.replace(run, algorithm=run.algorithm + suffix) for run, suffix in zip(runs, algorithms, strict=True)
    ]


def _suffixes(
    runs: Sequence[Run], attribute: str, counts: Callable[[str], bool], cell: Callable[[Run], Any]
) -> Iterator[str]:
    """Per run, ` (field=value, …)` with the fewest fields that tell apart what differs within a cell; "" mostly."""
    fields = [{name: value for name, value in _fields(run).items() if counts(name)} for run in runs]
    chosen: dict[str, list[str]] = {}
    for name in {getattr(run, attribute) for run in runs}:
        cells = defaultdict(list)
        for run, values in zip(runs, fields, strict=True):
            if values and getattr(run, attribute) == name:
                cells[cell(run)].append(values)
        chosen[name] = _distinguishing(list(cells.values()))
    for run, values in zip(runs, fields, strict=True):
        parts = [
            values[name] if name == SYSTEM else f"{_short(name)}={values.get(name)}"
            for name in chosen[getattr(run, attribute)]
            if name in values or run.config
        ]
        yield f" ({', '.join(parts)})" if parts else ""


def _fields(run: Run) -> dict[str, str]:
    return ({SYSTEM: run.system} if run.system else {}) | _flatten(run.config)


def _distinguishing(cells: Sequence[Sequence[dict[str, str]]]) -> list[str]:
    """Fields that split each cell as far as all fields together do; the system and names before other fields."""
    candidates = {name for cell in cells for values in cell for name in values if len({v.get(name) for v in cell}) > 1}
    chosen: list[str] = []
    parts = len(cells)

    def order(name: str) -> tuple[bool, bool, bool, bool, str]:
        return name != SYSTEM, not name.endswith(".name"), name.startswith("critic"), name.startswith("exp"), name

    for name in sorted(candidates, key=order):
        split = sum(len({tuple(v.get(n) for n in [*chosen, name]) for v in cell}) for cell in cells)
        if split > parts:
            chosen.append(name)
            parts = split
    return chosen


def _flatten(values: Any, prefix: str = "") -> dict[str, str]:
    if isinstance(values, dict):
        return {k: v for name, inner in values.items() for k, v in _flatten(inner, f"{prefix}.{name}").items()}
    return {prefix.removeprefix("."): str(values)}


def _short(field_name: str) -> str:
    """`model=` for model.name, `lr=` for algorithm.lr, `num_envs=` for experiment's, `model.layers=` as it is."""
    return re.sub(r"^(task|algorithm|experiment)\.", "", field_name).removesuffix(".name")


def drop_duplicates(runs: Iterable[Run], problems: list[Problem]) -> list[Run]:
    """Of runs with one task, algorithm and seed, the first; the others are named."""
    kept: dict[tuple[str, str, str], Run] = {}
    for run in runs:
        first = kept.setdefault((run.task, run.algorithm, run.seed), run)
        if first is not run:
            what = f"seed {run.seed} of {run.algorithm} on {run.task} again"
            problems.append(Problem(what=what, where=str(run.source), why=f"left out; {first.source} counts"))
    return list(kept.values())


# ---------------------------------------------------------------------------------------------------- what is missing


def find_gaps(runs: Sequence[Run]) -> list[Problem]:
    """Where runs do not form a rectangle: cells without runs, with fewer seeds, with other evaluation steps, …"""
    cells: dict[tuple[str, str], list[Run]] = defaultdict(list)
    for run in runs:
        cells[run.task, run.algorithm].append(run)
    tasks, algorithms = (sorted({cell[i] for cell in cells}) for i in (0, 1))
    problems = []
    for algorithm in algorithms:
        without = [task for task in tasks if (task, algorithm) not in cells]
        if without:
            why = "these tasks are left out of aggregates; pairs that both have them are compared on them"
            problems.append(Problem(what=f"no runs on {', '.join(without)}", where=algorithm, why=why))
    most = max((len(cell) for cell in cells.values()), default=0)
    all_seeds = {run.seed for run in runs}
    for (task, algorithm), cell in cells.items():
        where = f"{algorithm} on {task}"
        if len(cell) < most:
            problems.append(_too_few(where, cell, most, all_seeds))
        problems += [Problem(what=what, where=where, why=why) for what, why in _incomplete(cell)]
        problems += _unequal_steps(where, cell)
    return problems


def split_unfinished(cell: Sequence[Run]) -> tuple[list[Run], list[Run]]:
    """A cell's runs that count, and those still running or cut short beside finished ones.

    A run on its way says nothing about where it will end, and means end where the shortest of their runs does. A run
    that failed counts: an algorithm must not gain by failing. Where no run of a cell is finished, all count as far as
    they are.
    """
    if all(is_unfinished(run) for run in cell):
        return list(cell), []
    on_their_way = [run for run in cell if is_unfinished(run) and not run.failure]
    return [run for run in cell if not is_unfinished(run) or run.failure], on_their_way


def is_unfinished(run: Run) -> bool:
    return bool(run.failure or _what_is_missing(run))


def _what_is_missing(run: Run) -> str:
    """Of what its configuration asks for; "" where that is nothing, or not known."""
    experiment = run.config.get("experiment")
    if not isinstance(experiment, dict) or not run.frames.size:
        return ""
    wanted = as_number(experiment.get("frames"))
    if wanted is not None and run.frames[-1] < wanted:
        return f"stopped at {run.frames[-1]:,.0f} of {wanted:,.0f} frames"
    return (
        "stopped before its absolute metric" if experiment.get("absolute_metric") is True and not run.absolute else ""
    )


def _too_few(where: str, cell: Sequence[Run], most: int, all_seeds: set[str]) -> Problem:
    seeds = [run.seed for run in cell]
    missing = sorted(all_seeds.difference(seeds), key=sort_key)
    names = f"; seed {', '.join(missing)} missing" if len(missing) == most - len(seeds) else ""
    why = "intervals use the seeds that are there" if len(seeds) > 1 else "there is no interval for one seed"
    return Problem(what=f"{len(seeds)} of {most} seeds{names}", where=where, why=why)


def _incomplete(cell: Sequence[Run]) -> Iterator[tuple[str, str]]:
    counting, left_out = split_unfinished(cell)
    for run in (run for run in cell if run.failure):
        how = "by its last evaluations" if run.frames.size else "by the worst value on this task: it has no evaluation"
        missing = _what_is_missing(run)
        yield f"seed {run.seed} failed{f', {missing}' if missing else ''}: {run.failure}", f"counts {how}"
    why = "left out of scores until it is done" if left_out else "shown as far as it is"
    yield from (
        (f"seed {run.seed} {_what_is_missing(run)}", why) for run in cell if is_unfinished(run) and not run.failure
    )
    without = [run.seed for run in counting if not run.absolute and not run.failure]
    if without:
        why = "on this task, every algorithm's final value is that of its last evaluations"
        yield f"no absolute metric for seed {', '.join(without)}", why
    none = [run.seed for run in cell if not run.frames.size and not run.failure]
    if none:
        yield f"no evaluation during training for seed {', '.join(none)}", "not in the curves"


def _unequal_steps(where: str, cell: Sequence[Run]) -> Iterator[Problem]:
    """Within a cell, whose runs make one curve; algorithms and tasks have curves of their own."""
    evaluated = [run for run in split_unfinished(cell)[0] if run.frames.size and not run.failure]
    if len({tuple(run.frames) for run in evaluated}) < 2:
        return
    [(usual, _)] = Counter(tuple(run.frames) for run in evaluated).most_common(1)
    others = [run.seed for run in evaluated if tuple(run.frames) != usual]
    named = ", ".join(others[:6]) + (f" and {len(others) - 6} more" if len(others) > 6 else "")
    yield Problem(
        what=f"evaluated at other frames than the rest: seed {named}",
        where=where,
        why="its curve is interpolated to common points",
    )
