"""What a benchmark is: algorithms × tasks × models × seeds, as a numbered list of experiments with fixed identities.

The arguments of `covey benchmark`, and of a preset's `overrides`:

    algorithms=[ippo,qmix] tasks=[vmas/navigation] models=[mlp,gru] seeds=5     all combinations of these
    experiment.frames=1e6                       for every experiment; anything that `covey train` takes
    qmix:experiment.frames=2e6                  for those with that algorithm, task or model
    iql,qmix:vmas/balance:algorithm.lr=1e-4     for those with either algorithm on that task

An experiment's name consists of its task, algorithm, model (unless it is the default) and a hash of the configuration
fields that make its identity. So an experiment has the same run directory whatever command asks for it, and is
continued or skipped there. `benchmark_files.py` describes the benchmark's folder.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from covey import registry
from covey.checks import Large, Largest, at_least
from covey.errors import UsageError, nearest, unknown_name
from covey.experiment.configuration.compose import DEFAULTS, benchmark_presets, compose, parse_override
from covey.experiment.configuration.config import MOST_SEEDS, Config, identity_fields

AnyCount = Annotated[int, Largest(10**100)]  # __post_init__ checks the number, with a better message
CROSSED = {"algorithm": "algorithms", "task": "tasks", "seed": "seeds"}  # names in `covey train`, and here
PRESET_FIELDS = ("algorithms", "tasks", "models", "seeds", "overrides")


@dataclasses.dataclass(frozen=True, kw_only=True)
class BenchmarkOptions:
    """The options of `covey benchmark` itself. All other arguments are for its experiments."""

    benchmark: str | None = None  # preset for what is not given: `covey list benchmarks`; null: none
    algorithms: tuple[str, ...] = ()  # algorithms to train on every task: `covey list algorithms`
    tasks: tuple[str, ...] = ()  # tasks to train every algorithm on: `covey list tasks`
    models: tuple[str, ...] = ()  # models to train every algorithm with: `covey list models`; empty: the default
    seeds: AnyCount | tuple[Large, ...] = 1  # seeds of each experiment: a number (3: 0, 1, 2) or a list
    run_dir: str | None = None  # the benchmark's folder; null: bench/PRESET
    only: int | None = None  # number of the only experiment to run, from 0, as list=true prints it; null: all
    # parallel processes; null: one per core or accelerator, fewer if an experiment needs several
    workers: int | None = None
    render: bool = True  # leave a team.gif in each run directory
    force: bool = False  # run again what is already done
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
    """`key=value` for the experiments that have a name in each of `selectors`; without selectors, for all."""

    selectors: tuple[tuple[str, ...], ...]
    word: str

    def applies(self, names: Iterable[str]) -> bool:
        """Whether it is for the experiment with these names of task, algorithm and model."""
        names = set(names)
        return all(names.intersection(selector) for selector in self.selectors)


@dataclasses.dataclass(frozen=True, kw_only=True)
class BenchmarkExperiment:
    """One experiment of a benchmark. `words` are its arguments of `covey train`, besides `seed` and `run_dir`."""

    index: int
    name: str
    config: Config
    words: tuple[str, ...]
    folder: Path  # the benchmark's

    @property
    def seed(self) -> int:
        """The seed that it trains."""
        return self.config.seed

    @property
    def run_directory(self) -> Path:
        """Where it is trained."""
        return self.folder / self.name / f"seed_{self.seed}"

    @property
    def status_file(self) -> Path:
        """The file that records its state."""
        return self.folder / "status" / f"{self.name}-seed_{self.seed}.json"

    @property
    def log_file(self) -> Path:
        """The file that takes its output."""
        return self.status_file.with_suffix(".log")

    @property
    def title(self) -> str:
        """`vmas/balance, ippo, seed 0`; the model is named unless it is the default."""
        model = "" if self.config.model.label == DEFAULTS["model"] else f", {self.config.model.label}"
        return f"{self.config.task.name}, {self.config.algorithm.label}{model}, seed {self.seed}"

    @property
    def command(self) -> list[str]:
        """The command that trains this experiment alone, in the same run directory."""
        return ["covey", "train", *self.words, f"seed={self.seed}", f"run_dir={self.run_directory}"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Benchmark:
    """A list of experiments, and the folder they are trained in."""

    folder: Path
    experiments: tuple[BenchmarkExperiment, ...]
    options: BenchmarkOptions
    command: str

    @property
    def chosen(self) -> tuple[BenchmarkExperiment, ...]:
        """The experiments to run: all, or the one that `only` selects."""
        return self.experiments if self.options.only is None else (self.experiments[self.options.only],)


def make_benchmark(words: Sequence[str]) -> Benchmark:
    """The benchmark that the arguments of the command line describe. It is checked, but nothing is built."""
    own, rest = split_words(words)
    preset = read_preset(own.get("benchmark"), rest)
    from_preset = [parse_word(word) for word in preset.pop("overrides", ())]
    options = registry.build_config(BenchmarkOptions(), {**preset, **own}, "benchmark")
    _check_crossed(options)
    typed = [parse_word(word) for word in rest]
    chosen = _names(dataclasses.asdict(options))
    _check_selectors(typed, chosen)
    _check_selectors(from_preset, [*chosen, *_names(preset)])  # the command may leave some of these out
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


def split_words(words: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """The values of the benchmark's own options, and the other arguments."""
    known = {field.name for field in dataclasses.fields(BenchmarkOptions)}
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


def _check_crossed(options: BenchmarkOptions) -> None:
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


def _check_keys(overrides: Sequence[Override], options: BenchmarkOptions) -> None:
    for override in overrides:
        key = override.word.partition("=")[0]
        if key in CROSSED:
            raise UsageError(f"'{override.word}': a benchmark takes {CROSSED[key]}=[…]")
        if key == "model" and options.models:
            raise UsageError(f"'{override.word}': the models are given already, as models=[…]")
        if override.selectors and key in [field.name for field in dataclasses.fields(BenchmarkOptions)]:
            raise UsageError(f"'{override.word}' is for the whole benchmark, not for some of its experiments")


def _names(fields: Mapping[str, Any]) -> list[str]:
    return [name for key in ("algorithms", "tasks", "models") for name in fields.get(key, ())]


def read_preset(name: str | None, words: Sequence[str]) -> dict[str, Any]:
    """The fields of a preset and of the presets that it derives from; overrides accumulate."""
    if name is None:
        return {}
    folders = [str(parse_override(word).override.value()) for word in words if word.startswith("config_dir=")]
    config_dir = folders[-1] if folders else None
    fields: dict[str, Any] = {"overrides": []}
    for preset in benchmark_presets(str(name), config_dir):
        for key in preset.fields:
            if key not in PRESET_FIELDS:
                raise UsageError(f"{preset.where}{unknown_name('field of a benchmark', key, PRESET_FIELDS, see='')}")
        overrides = preset.fields.get("overrides") or []
        if not isinstance(overrides, list):
            raise UsageError(f"{preset.where}overrides is a list of words like experiment.frames=1e6")
        fields = {**fields, **preset.fields, "overrides": [*fields["overrides"], *overrides]}
    return fields


def compose_experiments(
    options: BenchmarkOptions, overrides: Sequence[Override], folder: Path
) -> tuple[BenchmarkExperiment, ...]:
    """All experiments of a benchmark, numbered by task, algorithm, model and seed, in this order."""
    seeds = list(options.seeds) if isinstance(options.seeds, tuple) else list(range(options.seeds))
    experiments: list[BenchmarkExperiment] = []
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
                    single = dataclasses.replace(config, seed=seed, seeds=None, run_dir=str(path))
                    experiments.append(
                        BenchmarkExperiment(
                            index=len(experiments), name=name, config=single, words=tuple(words), folder=folder
                        )
                    )
    return tuple(experiments)


def compose_one(words: list[str], seeds: Sequence[int]) -> tuple[Config, list[str]]:
    """The configuration that `words` describe, and the words with the default of a benchmark added.

    The default is one device, because experiments that run in parallel do not share cores.
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
    """`vmas-navigation-mappo-1f2e3d4c`: the folder with an experiment's seeds."""
    names = [config.task.name, config.algorithm.label]
    if config.model.label != DEFAULTS["model"]:
        names.append(config.model.label)
    return "-".join(re.sub(r"[^\w.+-]", "-", name) for name in [*names, identity(config)])


def identity(config: Config) -> str:
    """Eight hexadecimal digits: a hash of the fields that make an experiment's identity."""
    return hashlib.sha256(json.dumps(identity_fields(config), sort_keys=True).encode()).hexdigest()[:8]
