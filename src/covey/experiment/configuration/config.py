"""What an experiment is: frozen dataclasses that hold each default once, and the checks that need no environment.

`compose` makes a `Config` from a command line; `to_yaml` and `from_yaml` write and read the one in a run directory.
Nothing here imports Hydra or JAX. The dataclasses of tasks, models and algorithms live beside their code and are found
through the registries.
"""

from __future__ import annotations

import dataclasses
import enum
import importlib
import os
import sys
import typing
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import yaml

from covey import registry
from covey.checks import LARGEST_INT, Large, at_least, out_of_range
from covey.data.buffer import BufferConfig
from covey.errors import UsageError, unknown_name
from covey.experiment.configuration.partners import flatten_partners
from covey.fields import FieldRole, field, roles, roles_of, without

CHOICES = {
    "algorithm": registry.algorithms,
    "task": registry.tasks,
    "model": registry.models,
    "critic_model": registry.models,
}
BY_GROUP = ("algorithm", "model", "critic_model")  # what may differ between a task's groups of agents
MOST_SEEDS = 10_000  # of one command
LOGGERS = ("console", "json", "mlflow", "tensorboard", "wandb")


@dataclasses.dataclass(frozen=True)
class Choice:
    """A task, model or algorithm: its name, its fields, and the registered name where the name is a user's preset.

    A model or algorithm may be another, or have other fields, in some of the task's groups of agents.
    """

    name: str
    config: Any
    base: str | None = None
    groups: Mapping[str, Choice] = dataclasses.field(default_factory=dict)

    @property
    def registered(self) -> str:
        """The name to look up in the registry."""
        return self.base or self.name

    @property
    def label(self) -> str:
        """The names of all, for people: `mappo`, or `mappo+ippo` where a group has another."""
        return "+".join(dict.fromkeys([self.name, *(choice.name for choice in self.groups.values())]))

    def of(self, group: str) -> Choice:
        """What a group of agents has."""
        return self.groups.get(group, self)


class Platform(enum.Enum):
    """What computes. `auto` takes an accelerator where there is one."""

    auto = "auto"  # an accelerator where there is one, else the CPU
    cpu = "cpu"  # the CPU, whatever else there is
    gpu = "gpu"  # a GPU; refused where there is none
    tpu = "tpu"  # a TPU; refused where there is none


# The role of fields that decide how an experiment is watched and saved.
OF_WATCHING = {"identity": False, "resumable": True, "compared": False, "compiled": False}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExperimentConfig:
    """Fields of every loop. Intervals are in frames; they and `frames` round up to whole iterations."""

    # environment steps to train for, over all environments; a step counts once, whatever the number of agents
    frames: Large = field(2_000_000, resumable=True, compared=False, compiled=False)
    # frames over which schedules (of the learning rate, of exploration) run; null: `frames`
    schedule_frames: Large | None = field(None, resumable=True)
    # what computes
    platform: Platform = field(Platform.auto, identity=False, resumable=True, compared=False)
    # devices to split the environments over; null: as many as there are and fit; the number used is stored with the run
    devices: int | None = field(None, identity=False, resumable=True, compared=False)
    # seeds trained in one program, each as if alone except for rounding; null: on accelerators as many as fit, else one
    # after another
    seeds_at_once: int | None = field(None, identity=False, resumable=True, compared=False)
    # frames between evaluations; 0: at the start and at the end only
    evaluation_interval: Large = field(100_000, resumable=True, compared=False, compiled=False)
    evaluation_episodes: int = field(32, resumable=True, compared=False)  # episodes in each evaluation
    # whether evaluation takes the most likely action; null: yes, except policies over discrete actions, which sample
    evaluation_deterministic: bool | None = field(None, compared=False)
    # at the end, evaluate the best parameters over ten times the episodes
    absolute_metric: bool = field(True, resumable=True, compared=False, compiled=False)
    # metric of an evaluation by which the best parameters are chosen: mean_return, a group's return or a metric of the
    # task
    best_by: str = field("mean_return", compared=False, compiled=False)
    # frames between checkpoints; 0: at the end only
    checkpoint_interval: Large = field(500_000, **OF_WATCHING)
    checkpoint_keep: int = field(3, **OF_WATCHING)  # checkpoints to keep, the newest ones
    # where metrics go besides the run directory: console, json, mlflow, tensorboard, wandb
    loggers: tuple[str, ...] = field(("console",), **OF_WATCHING)
    # options passed on to each logger, by its name: {wandb: {project: mine, mode: offline}}
    logger_options: dict[str, Any] = field(default_factory=dict, **OF_WATCHING)

    def __post_init__(self) -> None:
        at_least(self, 1, "frames", "schedule_frames", "devices", "seeds_at_once")
        at_least(self, 1, "evaluation_episodes", "checkpoint_keep")
        at_least(self, 0, "evaluation_interval", "checkpoint_interval")
        for logger in (*self.loggers, *self.logger_options):
            if logger not in LOGGERS:
                raise ValueError(f"unknown logger '{logger}'; there are {', '.join(LOGGERS)}")
        for logger, options in self.logger_options.items():
            if not isinstance(options or {}, Mapping):
                example = f"{{{logger}: {{OPTION: VALUE}}}}"
                raise ValueError(f"logger_options takes a mapping for each logger, as in {example}, not {options!r}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class CollectingConfig(ExperimentConfig):
    """Loops that act in environments: an iteration steps `num_envs` of them `rollout_length` times, then learns."""

    num_envs: int = 64  # environments stepped side by side, over all devices
    rollout_length: int = 32  # steps taken in each environment in an iteration
    stagger: bool = True  # cut the first episodes at different times, so that batches hold all phases of episodes
    shaping_frames: Large | None = None  # frames over which a task's shaping reward falls to zero; null: it stays

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 1, "num_envs", "rollout_length", "shaping_frames")
        if self.frames > LARGEST_INT * self.frames_per_iteration:
            raise ValueError(
                f"frames={self.frames:,} are more than {LARGEST_INT:,} iterations, "
                f"of {self.frames_per_iteration:,} frames each"
            )
        if self.devices and self.num_envs % self.devices:
            near = self.num_envs // self.devices * self.devices
            fits = f"{near} or {near + self.devices}" if near else f"{self.devices}"
            raise ValueError(f"num_envs={self.num_envs} does not split over devices={self.devices}; {fits} would")

    @property
    def frames_per_iteration(self) -> int:
        return self.num_envs * self.rollout_length


@dataclasses.dataclass(frozen=True, kw_only=True)
class OnlineConfig(CollectingConfig):
    """The online loop: an iteration learns from what it collected."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReplayConfig(CollectingConfig):
    """The online loop with replay: an iteration adds what it collected to a buffer and updates from samples of it."""

    rollout_length: int = 8
    updates: int = 32  # gradient updates in each iteration
    random_frames: Large = 2_000  # frames acted at random before learning starts
    buffer: BufferConfig = dataclasses.field(default_factory=BufferConfig)  # the replay buffer

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 1, "updates")
        at_least(self, 0, "random_frames")
        if self.devices and self.buffer.batch_size % self.devices:
            raise ValueError(f"buffer.batch_size={self.buffer.batch_size} does not split over devices={self.devices}")


LOOPS: dict[str, type[ExperimentConfig]] = {"online": OnlineConfig, "replay": ReplayConfig}


@dataclasses.dataclass(frozen=True, kw_only=True)
class HooksConfig:
    """A user's own pure functions in the compiled step, each as `module:function`."""

    # module:function called with (group, transitions) before each update; returns transitions, or those and metrics
    batch: str | None = None
    # module:function called with (group, params, minibatch); returns a loss to add to the algorithm's, and metrics
    loss: str | None = None
    # module:function called with the metrics of an iteration before they leave the device; returns metrics
    metrics: str | None = None

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            module, _, function = (value or "module:function").partition(":")
            if not module or not function:
                raise ValueError(f"{name} takes module:function, not '{value}'")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """One experiment, or one for each of `seeds`."""

    algorithm: Choice  # the algorithm that learns: `covey list algorithms`
    task: Choice  # the task to learn: `covey list tasks`
    model: Choice  # the network of the actors, or of the agents' values: `covey list models`
    critic_model: Choice  # the network of the critic; follows `model`, fields included, unless it is named or set
    # how long to train, on what, and how it is watched; experiment=NAME takes a preset: `covey list presets`
    experiment: ExperimentConfig
    # seed of everything random, from 0 to 2^32 - 1
    seed: Large = field(0, identity=False, compared=False, compiled=False)
    # seeds to train, each in its own run directory: a number (3: 0, 1, 2) or a list; null: only `seed`
    seeds: tuple[Large, ...] | None = field(None, identity=False, compared=False, compiled=False)
    # where the run is written; null: runs/TASK-ALGORITHM-SEED-TIME
    run_dir: str | None = field(None, identity=False, compared=False, compiled=False)
    # run directory to start from: what it learned is taken, optimiser and schedules start fresh; null: from scratch
    init_from: str | None = field(None, compiled=False)
    # who plays some seats in place of the team and does not learn: by seat, GROUP.INDEX or GROUP, one of random,
    # reference and a run directory, or a list of which one is drawn for each episode; rotate=true draws the places of
    # single agents for each episode
    partners: dict[str, Any] = field(default_factory=dict, newer=True)
    # modules of your own to import first, which register tasks, models or algorithms
    imports: tuple[str, ...] = field((), compared=False)
    # where `imports`, `hooks` and `callbacks` are looked for, besides the working directory; null: only there
    code_dir: str | None = field(None, identity=False, compared=False, compiled=False)
    # folder with presets of your own; null: only those that covey has
    config_dir: str | None = field(None, identity=False, compared=False, compiled=False)
    hooks: HooksConfig = field(HooksConfig(), compared=False)  # functions of your own inside the compiled step
    # your own code between chunks, each `module:Class`, called without arguments for an object with on_iteration, …
    callbacks: tuple[str, ...] = field((), newer=True, compared=False)
    # compile the program; false runs the same code step by step, for breakpoints
    jit: bool = field(True, identity=False, resumable=True, compared=False)


def sections(config: Config) -> Iterator[tuple[str, Any]]:
    """The dataclasses in a configuration, each with where it is."""
    for kind in CHOICES:
        choice: Choice = getattr(config, kind)
        yield kind, choice.config
        yield from ((f"{kind}.groups.{group}", own.config) for group, own in choice.groups.items())
    yield "experiment", config.experiment
    yield "hooks", config.hooks


def roles_in(config: Config) -> Iterator[tuple[str, FieldRole, bool]]:
    """Path (`seed`, `experiment.frames`, `algorithm.lr`), role, and whether it has its default, of every field."""
    yield from (found for found in roles_of(config, "") if "." not in found[0])
    for path, section in sections(config):
        yield from roles_of(section, path)


def identity_fields(config: Config) -> dict[str, Any]:
    """The fields that make an experiment's identity, as a tree: configurations with equal ones are one experiment."""
    left_out = {path for path, role, is_default in roles_in(config) if not role.identity or (role.newer and is_default)}
    return without(to_dict(config), left_out)


def not_compared() -> set[str]:
    """The paths that reports do not tell runs apart by, in the configurations of all loops."""
    found = {name for name, role in roles(Config).items() if not role.compared}
    loops = [roles_of(loop(), "experiment") for loop in LOOPS.values()]
    return found | {path for loop in loops for path, role, _ in loop if not role.compared}


# ------------------------------------------------------------------------------------------------ to and from text


def to_dict(config: Config) -> dict[str, Any]:
    """`config` as lists, dictionaries and scalars, complete: `from_dict` needs nothing else to rebuild it."""
    names = [own.name for own in dataclasses.fields(config)]
    values = {name: None if name in CHOICES else plain(getattr(config, name)) for name in names}
    return values | {kind: _choice_to_dict(getattr(config, kind)) for kind in CHOICES}


def _choice_to_dict(choice: Choice) -> dict[str, Any]:
    base = {"base": choice.base} if choice.base else {}
    groups = {group: _choice_to_dict(own) for group, own in choice.groups.items()}
    return {"name": choice.name, **base, **plain(choice.config), **({"groups": groups} if groups else {})}


def plain(value: Any) -> Any:
    """Dataclasses as dictionaries, tuples as lists, enums as their names."""
    if dataclasses.is_dataclass(value):
        return {own.name: plain(getattr(value, own.name)) for own in dataclasses.fields(value)}
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, (tuple, list)):
        return [plain(item) for item in value]
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    return value


def from_dict(values: Mapping[str, Any]) -> Config:
    """The checked `Config` that `values` describe, after its `imports`; what is left out takes its default."""
    if not isinstance(values, Mapping):
        raise UsageError(f"a configuration is a mapping, not {values!r}")
    rest = dict(values)
    if wanted_imports(values):
        add_to_path(rest.get("code_dir"))
    import_modules(registry.coerce(tuple[str, ...], rest.get("imports", ()), "imports"))
    choices: dict[str, Any] = {kind: _choice(kind, rest.pop(kind, None)) for kind in CHOICES}
    loop = loop_defaults(choices["algorithm"].registered)
    experiment = registry.coerce(type(loop), rest.pop("experiment", {}), "experiment", loop)
    if isinstance(rest.get("seeds"), int) and not isinstance(rest["seeds"], bool):
        if rest["seeds"] > MOST_SEEDS:
            raise UsageError(f"seeds={rest['seeds']} are too many; one command trains up to {MOST_SEEDS:,}")
        rest["seeds"] = list(range(rest["seeds"]))
    rest["partners"] = flatten_partners(rest.get("partners"))
    defaults = Config(**choices, experiment=experiment)
    hints = typing.get_type_hints(Config, include_extras=True)
    for name in rest:
        if name not in hints:
            raise unknown_name("field", name, hints)
    changes = {name: registry.coerce(hints[name], value, name, getattr(defaults, name)) for name, value in rest.items()}
    config = dataclasses.replace(defaults, **changes)
    check(config)
    return config


def _choice(kind: str, values: Any) -> Choice:
    if not isinstance(values, Mapping) or "name" not in values:
        raise UsageError(f"the configuration names no {kind}; `covey list` shows all")
    fields = dict(values)
    groups = fields.pop("groups", {}) if kind in BY_GROUP else {}
    if not isinstance(groups, Mapping) or not all(isinstance(own, Mapping) for own in groups.values()):
        raise UsageError(f"{kind}.groups takes a mapping from groups to their own {kind}, not {groups!r}")
    by_group = {group: _choice(kind, own if "name" in own else {**fields, **own}) for group, own in groups.items()}
    name, base = fields.pop("name"), fields.pop("base", None)
    if not isinstance(base or name, str):
        raise UsageError(f"{kind}.name takes one name, not {base or name!r}")
    config = registry.build_config(choice_defaults(kind, base or name), fields, kind)
    return Choice(name, config, base if base != name else None, by_group)


def choice_defaults(kind: str, name: str) -> Any:
    """The dataclass of a registered name, with that name's defaults."""
    defaults = CHOICES[kind][name].defaults()
    reserved = {"name", "base", "groups"} & {own.name for own in dataclasses.fields(defaults)}
    if reserved:
        raise UsageError(f"{kind} '{name}': '{reserved.pop()}' cannot be a field, covey writes the choice there")
    return defaults


def loop_defaults(algorithm: str) -> ExperimentConfig:
    """The experiment's fields for a registered algorithm: those of the loop that runs it."""
    loop = registry.algorithms[algorithm].loop
    if loop not in LOOPS:
        raise unknown_name(f"loop of algorithm '{algorithm}'", loop, LOOPS)
    return LOOPS[loop]()


class _Dumper(yaml.SafeDumper):
    """Mappings over several lines, lists on one."""

    def represent_list(self, data: Iterable[Any]) -> yaml.SequenceNode:
        return self.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=True)


_Dumper.add_representer(list, _Dumper.represent_list)


def to_yaml(config: Config) -> str:
    return yaml_text(to_dict(config))


def yaml_text(values: Any) -> str:
    return yaml.dump(values, Dumper=_Dumper, sort_keys=False, default_flow_style=False, allow_unicode=True)


def from_yaml(text: str) -> Config:
    try:
        values = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UsageError(f"the configuration is no YAML: {error}") from error
    return from_dict(values)


def wanted_imports(values: Mapping[str, Any]) -> list[str]:
    """The user's own code that a configuration wants to import: this list decides what needs trust (trust.py).

    Every field that names code belongs here, whatever type a stranger's file gives it.
    """
    hooks = values.get("hooks")
    fields = [values.get("imports"), hooks.values() if isinstance(hooks, Mapping) else hooks, values.get("callbacks")]
    names = [name for value in fields for name in ([value] if isinstance(value, str) else _items(value))]
    return [str(name) for name in names if name is not None]


def _items(value: Any) -> Iterable[Any]:
    return value if isinstance(value, Iterable) else [value]


def add_to_path(code_dir: Any) -> None:
    """Lets a user's modules be found in the working directory and in `code_dir`, if that is still there."""
    for folder in (code_dir, os.getcwd()):
        if isinstance(folder, str) and os.path.isdir(folder) and folder not in sys.path:
            sys.path.insert(0, folder)


def import_modules(names: Iterable[str]) -> None:
    """Imports a user's modules, which register names as they load. The working directory is searched too."""
    for name in names:
        add_to_path(None)
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise UsageError(f"imports: '{name}' needs the module '{error.name}', which is not there") from error
            hint = f"; imports=[{name[:-3]}] is meant?" if name.endswith(".py") else ""
            raise UsageError(f"imports: no module '{name}' here or among the installed ones{hint}") from error
        except Exception as error:
            raise UsageError(f"imports: '{name}' failed with {type(error).__name__}: {error}") from error


# ---------------------------------------------------------------------------------------------------------- checks


def check(config: Config) -> None:
    """Raises UsageError for values that are fine one by one and impossible together."""
    _check_seeds(config)
    _check_numbers(to_dict(config))
    _check_loops(config.algorithm)
    _check_callbacks(config.callbacks)
    for algorithm in (config.algorithm, *config.algorithm.groups.values()):
        _check_sequences(algorithm.config, config.experiment)
        own_check = getattr(algorithm.config, "check", None)
        if own_check is not None:
            try:
                own_check(config.experiment)
            except ValueError as error:
                raise UsageError(f"algorithm: {error}") from error


def _check_loops(team: Choice) -> None:
    """Groups learn side by side in one loop, so they must be of one kind."""
    kinds = {"online": "from what was just collected", "replay": "from replay"}
    loop = registry.algorithms[team.registered].loop
    for group, own in team.groups.items():
        other = registry.algorithms[own.registered].loop
        if other != loop:
            raise UsageError(
                f"algorithm.groups.{group}={own.name} learns {kinds.get(other, other)}, {team.name} "
                f"{kinds.get(loop, loop)}: the groups of a team learn alike"
            )


def _check_callbacks(callbacks: Iterable[str]) -> None:
    for path in callbacks:
        module, _, name = path.partition(":")
        if not module or not name:
            raise UsageError(f"callbacks takes [module:Class], not '{path}'")


def _check_seeds(config: Config) -> None:
    seeds = (config.seed,) if config.seeds is None else config.seeds
    if not seeds:
        raise UsageError("seeds is empty; seeds=3 means 0, 1 and 2")
    if len(set(seeds)) < len(seeds):
        raise UsageError(f"seeds={list(seeds)} has one twice")
    if min(seeds) < 0:
        raise UsageError(f"seeds start at 0, not at {min(seeds)}")
    if max(seeds) >= 2**32:  # JAX would take it modulo 2**32, and it would be another seed
        raise UsageError(f"seeds go up to {2**32 - 1}, not to {max(seeds)}")


def _check_numbers(values: Mapping[str, Any], where: str = "") -> None:
    for name, value in values.items():
        if isinstance(value, Mapping):
            _check_numbers(value, f"{where}{name}.")
        elif isinstance(value, float) and (wanted := out_of_range(float, value)):
            raise UsageError(f"{where}{name} takes {wanted}, not {value}")


def _check_sequences(algorithm: Any, experiment: ExperimentConfig) -> None:
    sequence_length = getattr(algorithm, "sequence_length", None)
    if sequence_length is None or not isinstance(experiment, OnlineConfig):
        return
    rollout_length = experiment.rollout_length
    if sequence_length < 1:
        raise UsageError(f"algorithm.sequence_length must be at least 1, not {sequence_length}")
    if rollout_length % sequence_length:
        fits = [length for length in range(1, rollout_length + 1) if rollout_length % length == 0]
        below, above = [n for n in fits if n < sequence_length][-1:], [n for n in fits if n > sequence_length][:1]
        raise UsageError(
            f"experiment.rollout_length={rollout_length} is no multiple of algorithm.sequence_length={sequence_length};"
            f" {' or '.join(map(str, below + above))} would divide it"
        )


# --------------------------------------------------------------------------------------------------------- devices


def num_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def no_platform(platform: str, found: str = "cpu") -> str:
    """What to do on a machine without `platform`."""
    package = {"gpu": "jax[cuda12]", "tpu": "jax[tpu]"}.get(platform)
    install = f"; where there is one, JAX needs its plugin: pip install '{package}'" if package else ""
    return (
        f"experiment.platform={platform}, but what JAX finds here is {found}; experiment.platform=cpu trains on the "
        f"cores{install}"
    )


def with_devices(config: Config, available: int) -> Config:
    """`config` with `devices` settled: as given, or the most of `available` over which the environments split."""
    experiment = config.experiment
    if experiment.devices is not None or not isinstance(experiment, CollectingConfig):
        return config
    split = [experiment.num_envs, *([experiment.buffer.batch_size] if isinstance(experiment, ReplayConfig) else [])]
    devices = max(number for number in range(1, available + 1) if not any(count % number for count in split))
    return dataclasses.replace(config, experiment=dataclasses.replace(experiment, devices=devices))
