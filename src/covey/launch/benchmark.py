"""What a benchmark is: algorithms × tasks × models × seeds, as a numbered list of experiments with fixed identities.

The words of `covey benchmark`, and of a preset's `overrides`:

    algorithms=[ippo,qmix] tasks=[vmas/navigation] models=[mlp,gru] seeds=5     what is crossed
    experiment.frames=1e6                       every experiment; anything that `covey train` takes
    qmix:experiment.frames=2e6                  those with that algorithm, task or model
    iql,qmix:vmas/balance:algorithm.lr=1e-4     those with either algorithm on that task

An experiment's name is its task, algorithm and model (unless that is the default), and a hash of its configuration
without the seed and without what only says where it runs and how it is watched. So the same experiment has the same
run directory whatever command asks for it, and is continued or skipped there. A benchmark's folder holds

    benchmark.yaml               kind: covey-benchmark; `commands` that wrote here; `experiments`, each with name, task,
                                 algorithm, model, seeds, and a `command` that trains it by itself
    NAME/seed_N/                 run directories, with team.gif
    status/NAME-seed_N.json      kind: covey-status; experiment (the NAME), seed, task, algorithm, model, run_directory
                                 and log (relative to the folder), state (running, done, failed or interrupted), error
                                 (one line or null), started and finished (UTC), seconds (of the last attempt)
    status/NAME-seed_N.log       what the run printed, tracebacks included

An experiment without a status was not started. A command that was killed leaves its experiments' state at `running`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
import shlex
import uuid
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import yaml

from covey import registry
from covey.checks import Large, Largest, at_least
from covey.errors import UsageError, nearest, unknown_name
from covey.experiment.compose import DEFAULTS, benchmark_presets, compose, parse_override
from covey.experiment.config import MOST_SEEDS, Config, to_dict
from covey.files import read_text, to_json, write_atomically

# What another value of does not make another experiment: where it runs, and how it is watched.
NOT_IDENTITY = ("seed", "seeds", "run_dir", "code_dir", "config_dir", "jit")
NOT_IDENTITY_EXPERIMENT = (
    "platform",
    "devices",
    "seeds_at_once",
    "loggers",
    "logger_options",
    "checkpoint_interval",
    "checkpoint_keep",
)
AnyCount = Annotated[int, Largest(10**100)]  # how many are too many is said below, in better words
CROSSED = {"algorithm": "algorithms", "task": "tasks", "seed": "seeds"}  # what `covey train` calls them, and we
FIELDS_OF_PRESET = ("algorithms", "tasks", "models", "seeds", "overrides")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """The words that are the benchmark's own."""

    benchmark: str | None = None  # preset that fills in what is not given: `covey list benchmarks`; null: none
    algorithms: tuple[str, ...] = ()  # algorithms to train on every task: `covey list algorithms`
    tasks: tuple[str, ...] = ()  # tasks to train every algorithm on: `covey list tasks`
    models: tuple[str, ...] = ()  # models to train every algorithm with: `covey list models`; empty: the default
    seeds: AnyCount | tuple[Large, ...] = 1  # seeds of each experiment: a number (3: 0, 1, 2) or a list
    run_dir: str | None = None  # the benchmark's folder; null: bench/PRESET
    only: int | None = None  # number of the one experiment to run, from 0, as list=true prints them; null: all
    # processes side by side; null: one for each core or accelerator, fewer where each experiment needs several
    workers: int | None = None
    render: bool = True  # leave a team.gif in each run directory
    force: bool = False  # run again what is done
    list: bool = False  # print the experiments and run nothing

    def __post_init__(self) -> None:
        at_least(self, 1, "workers")
        if isinstance(self.seeds, int) and self.seeds > MOST_SEEDS:
            raise ValueError(f"seeds={self.seeds} are too many; a benchmark takes up to {MOST_SEEDS:,}")
        for name in ("algorithms", "tasks", "models"):
            values = getattr(self, name)
            twice = next((value for value in values if values.count(value) > 1), None)
            if twice is not None:
                raise ValueError(f"{name} has {twice} twice")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Override:
    """`key=value` for the experiments that have one name of each of `selectors`; without any, for all."""

    selectors: tuple[tuple[str, ...], ...]
    word: str

    def applies(self, names: Iterable[str]) -> bool:
        names = set(names)
        return all(names.intersection(selector) for selector in self.selectors)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Experiment:
    """One experiment of a benchmark. `words` are what `covey train` takes for it, besides the seed and `run_dir`."""

    index: int
    name: str
    config: Config
    words: tuple[str, ...]
    folder: Path  # the benchmark's

    @property
    def seed(self) -> int:
        return self.config.seed

    @property
    def run_directory(self) -> Path:
        return self.folder / self.name / f"seed_{self.seed}"

    @property
    def status_file(self) -> Path:
        return self.folder / "status" / f"{self.name}-seed_{self.seed}.json"

    @property
    def log_file(self) -> Path:
        return self.status_file.with_suffix(".log")

    @property
    def title(self) -> str:
        model = "" if self.config.model.label == DEFAULTS["model"] else f", {self.config.model.label}"
        return f"{self.config.task.name}, {self.config.algorithm.label}{model}, seed {self.seed}"

    @property
    def command(self) -> list[str]:
        """What trains this experiment by itself, in the same run directory."""
        return ["covey", "train", *self.words, f"seed={self.seed}", f"run_dir={self.run_directory}"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Benchmark:
    folder: Path
    experiments: tuple[Experiment, ...]
    options: Options
    command: str

    @property
    def chosen(self) -> tuple[Experiment, ...]:
        """The experiments to run: all, or the one that `only` names."""
        return self.experiments if self.options.only is None else (self.experiments[self.options.only],)


def make_benchmark(words: Sequence[str]) -> Benchmark:
    """The checked benchmark that the words of the command line describe; nothing of it is built."""
    own, rest = split_words(words)
    preset = read_preset(own.get("benchmark"), rest)
    from_preset = [parse_word(word) for word in preset.pop("overrides", ())]
    options = registry.build_config(Options(), {**preset, **own}, "benchmark")
    _check_crossed(options)
    typed = [parse_word(word) for word in rest]
    chosen = _names(dataclasses.asdict(options))
    _check_selectors(typed, chosen)
    _check_selectors(from_preset, [*chosen, *_names(preset)])  # some of these may be left out here
    overrides = [*from_preset, *typed]
    _check_keys(overrides, options)
    folder = Path(options.run_dir or f"bench/{options.benchmark}")
    experiments = compose_experiments(options, overrides, folder)
    if options.only is not None and not 0 <= options.only < len(experiments):
        raise UsageError(f"only={options.only}: there are {len(experiments)} experiments, from 0")
    lasting = [word for word in words if word.partition("=")[0] not in ("only", "force", "list", "workers")]
    return Benchmark(
        folder=folder, experiments=experiments, options=options, command=shlex.join(["covey", "benchmark", *lasting])
    )


# ----------------------------------------------------------------------------------------------------------- words


def split_words(words: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """The values of the benchmark's own keys, and the other words."""
    known = {field.name for field in dataclasses.fields(Options)}
    own = [word for word in words if word.partition("=")[0] in known]
    values = {item.key: item.override.value() for item in map(parse_override, own)}
    for name in ("algorithms", "tasks", "models"):
        if isinstance(values.get(name), str):
            values[name] = [values[name]]
    return values, [word for word in words if word not in own]


def parse_word(text: Any) -> Override:
    """Reads `key=value` or `NAME[,NAME…]:…:key=value`."""
    if not isinstance(text, str):
        raise UsageError(f"overrides: an override is a text like experiment.frames=1e6, not {text!r}")
    left, equals, value = text.partition("=")
    *selectors, key = left.split(":")
    parse_override(f"{key}{equals}{value}")
    names = tuple(tuple(name.strip() for name in selector.split(",")) for selector in selectors)
    return Override(selectors=names, word=f"{key}{equals}{value}")


def _check_crossed(options: Options) -> None:
    for name in ("algorithms", "tasks"):
        if not getattr(options, name):
            raise UsageError(f"a benchmark needs {name}=[…] or benchmark=NAME (`covey list benchmarks`)")
    if options.run_dir is None and options.benchmark is None:
        raise UsageError("a benchmark needs run_dir=…, where the same command finds it again")


def _check_selectors(overrides: Sequence[Override], names: Sequence[str]) -> None:
    for override in overrides:
        for name in (name for selector in override.selectors for name in selector):
            if name not in names:
                near = ", ".join(nearest(name, names))
                raise UsageError(f"'{name}:{override.word}': '{name}' is not in this benchmark; nearest: {near}")


def _check_keys(overrides: Sequence[Override], options: Options) -> None:
    for override in overrides:
        key = override.word.partition("=")[0]
        if key in CROSSED:
            raise UsageError(f"'{override.word}': a benchmark takes {CROSSED[key]}=[…]")
        if key == "model" and options.models:
            raise UsageError(f"'{override.word}': the models are given already, as models=[…]")
        if override.selectors and key in [field.name for field in dataclasses.fields(Options)]:
            raise UsageError(f"'{override.word}' is for the whole benchmark, not for some of its experiments")


def _names(fields: Mapping[str, Any]) -> list[str]:
    return [name for group in ("algorithms", "tasks", "models") for name in fields.get(group, ())]


def read_preset(name: str | None, words: Sequence[str]) -> dict[str, Any]:
    """The fields of a preset, after those of the presets that it derives from; overrides add up."""
    if name is None:
        return {}
    folders = [str(parse_override(word).override.value()) for word in words if word.startswith("config_dir=")]
    config_dir = folders[-1] if folders else None
    fields: dict[str, Any] = {"overrides": []}
    for preset in benchmark_presets(str(name), config_dir):
        for key in preset.fields:
            if key not in FIELDS_OF_PRESET:
                raise UsageError(f"{preset.where}{unknown_name('field of a benchmark', key, FIELDS_OF_PRESET, see='')}")
        overrides = preset.fields.get("overrides") or []
        if not isinstance(overrides, list):
            raise UsageError(f"{preset.where}overrides is a list of words like experiment.frames=1e6")
        fields = {**fields, **preset.fields, "overrides": [*fields["overrides"], *overrides]}
    return fields


# ----------------------------------------------------------------------------------------------------- experiments


def compose_experiments(options: Options, overrides: Sequence[Override], folder: Path) -> tuple[Experiment, ...]:
    """Task by task, algorithm by algorithm, model by model, seed by seed."""
    seeds = list(options.seeds) if isinstance(options.seeds, tuple) else list(range(options.seeds))
    experiments: list[Experiment] = []
    for task in options.tasks:
        for algorithm in options.algorithms:
            for model in options.models or (None,):
                names = [task, algorithm, *([model] if model else [])]
                words = [f"task={task}", f"algorithm={algorithm}", *([f"model={model}"] if model else [])]
                words += [override.word for override in overrides if override.applies(names)]
                config, words = compose_one(words, seeds)
                name = name_of(config)
                for seed in config.seeds or ():
                    path = folder / name / f"seed_{seed}"
                    member = dataclasses.replace(config, seed=seed, seeds=None, run_dir=str(path))
                    experiments.append(
                        Experiment(index=len(experiments), name=name, config=member, words=tuple(words), folder=folder)
                    )
    return tuple(experiments)


def compose_one(words: list[str], seeds: Sequence[int]) -> tuple[Config, list[str]]:
    """The configuration that `words` describe, and the words with what a benchmark adds to them.

    That is one device each, unless another number is asked for: experiments side by side do not share cores.
    """
    try:
        config = compose([*words, f"seeds=[{','.join(map(str, seeds))}]"])
    except UsageError as error:
        task, algorithm = (word.partition("=")[2] for word in words[:2])
        raise UsageError(f"{algorithm} on {task}: {error}") from error
    if config.experiment.seeds_at_once not in (None, 1):
        raise UsageError("experiment.seeds_at_once is for `covey train`; a benchmark's workers train seed after seed")
    if config.experiment.devices is None:
        experiment = dataclasses.replace(config.experiment, devices=1)
        config, words = dataclasses.replace(config, experiment=experiment), [*words, "experiment.devices=1"]
    return config, words


def name_of(config: Config) -> str:
    """`vmas-navigation-mappo-1f2e3d4c`: the folder of an experiment's seeds."""
    names = [config.task.name, config.algorithm.label]
    if config.model.label != DEFAULTS["model"]:
        names.append(config.model.label)
    return "-".join(re.sub(r"[^\w.+-]", "-", name) for name in [*names, identity(config)])


def identity(config: Config) -> str:
    """Eight digits that are the same for the same experiment."""
    values = {name: value for name, value in to_dict(config).items() if name not in NOT_IDENTITY}
    if not config.callbacks:  # younger than the identities of experiments that have none
        del values["callbacks"]
    values["experiment"] = {
        name: value for name, value in values["experiment"].items() if name not in NOT_IDENTITY_EXPERIMENT
    }
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:8]


# ----------------------------------------------------------------------------------------------------------- files


def is_done(experiment: Experiment) -> bool:
    status = read_status(experiment)
    return status.get("state") == "done" and (experiment.run_directory / "config.yaml").is_file()


def read_status(experiment: Experiment) -> dict[str, Any]:
    """Empty where there is none that can be read: the experiment is then continued, which is right in any case."""
    try:
        status = json.loads(read_text(experiment.status_file))
    except (OSError, ValueError):
        return {}
    return status if isinstance(status, dict) else {}


def write_status(experiment: Experiment, *, state: str, **fields: Any) -> None:
    """`fields` are error, started, finished and seconds; what is left out is null."""
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
    """benchmark.yaml: what was asked for here, by this command and those before it."""
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
    # The jobs of an array write this at the same moment, each by way of a file of its own.
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
        raise UsageError(f"{path} is no benchmark of covey's; choose another run_dir")
    return known
