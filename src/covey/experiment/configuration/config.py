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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import yaml

from covey import registry
from covey.checks import Large, out_of_range
from covey.errors import UsageError, unknown_name
from covey.experiment.configuration.partners import flatten_partners
from covey.fields import FieldRole, code_in, field, roles, roles_of, whole, without
from covey.loops.config import ExperimentConfig

CHOICES = {
    "algorithm": registry.algorithms,
    "task": registry.tasks,
    "model": registry.models,
    "critic_model": registry.models,
}
BY_GROUP = ("algorithm", "model", "critic_model")  # what may differ between a task's groups of agents
MOST_SEEDS = 10_000  # of one command


@dataclasses.dataclass(frozen=True)
class Choice:
    """A task, model or algorithm: its name, its fields, and the registered name where the name is a user's preset.

    Some of the task's groups of agents may have another model or algorithm, or other fields of the same one.
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
        """All names, to be shown: `mappo`, or `mappo+ippo` where a group has another."""
        return "+".join(dict.fromkeys([self.name, *(choice.name for choice in self.groups.values())]))

    def of(self, group: str) -> Choice:
        """What a group of agents has."""
        return self.groups.get(group, self)


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
    critic_model: Choice  # the network of the critic; follows `model` and its fields unless it is named or set
    # how long to train, on what, and how it is watched; experiment=NAME takes a preset: `covey list presets`
    experiment: ExperimentConfig
    # seed of everything random, from 0 to 2^32 - 1
    seed: Large = field(0, identity=False, compared=False, compiled=False, overruled_by="seeds")
    # seeds to train, each in its own run directory: a number (3: 0, 1, 2) or a list; null: only `seed`
    seeds: tuple[Large, ...] | None = field(None, identity=False, compared=False, compiled=False)
    # where the run is written; null: runs/TASK-ALGORITHM-SEED-TIME
    run_dir: str | None = field(None, identity=False, compared=False, compiled=False)
    # run directory to start from: what it learned is taken, optimiser and schedules start fresh; null: from scratch
    init_from: str | None = field(None, compiled=False)
    # partners play some seats in place of the team and do not learn: GROUP.INDEX=… takes one agent's seat, GROUP=… the
    # whole group; the value is random, reference, a run directory, or a list from which one is drawn for each episode;
    # rotate=true draws the places of single agents for each episode
    partners: dict[str, Any] = field(default_factory=dict, newer=True)
    # modules of your own to import first, which register tasks, models, algorithms or loops
    imports: tuple[str, ...] = field((), compared=False, code=whole)
    # where `imports`, `hooks` and `callbacks` are looked for, besides the working directory; null: only there
    code_dir: str | None = field(None, identity=False, compared=False, compiled=False)
    # folder with presets of your own; null: only those that covey has
    config_dir: str | None = field(None, identity=False, compared=False, compiled=False)
    # functions of your own inside the compiled step
    hooks: HooksConfig = field(HooksConfig(), compared=False, code=whole)
    # your own code between iterations: each `module:Class` is called without arguments and gives an object with
    # on_iteration, on_evaluation or on_end
    callbacks: tuple[str, ...] = field((), newer=True, compared=False, code=whole)
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
    """The path (`seed`, `experiment.frames`) and role of every field, and whether it has its default."""
    yield from (found for found in roles_of(config, "") if "." not in found[0])
    for path, section in sections(config):
        yield from roles_of(section, path)


def identity_fields(config: Config) -> dict[str, Any]:
    """The fields of an experiment's identity, as a tree: configurations that agree in them are one experiment."""
    left_out = {path for path, role, is_default in roles_in(config) if not role.identity or (role.newer and is_default)}
    return without(to_dict(config), left_out)


def not_compared() -> set[str]:
    """The paths that reports do not tell runs apart by, in the configurations of all loops."""
    found = {name for name, role in roles(Config).items() if not role.compared}
    loops = [roles_of(loop.defaults(), "experiment") for loop in registry.loops]
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
    given = rest.pop("experiment", {})
    named = given.get("loop") if isinstance(given, Mapping) else None
    loop = loop_defaults(choices["algorithm"].registered, named, choices["task"].registered)
    experiment = registry.coerce(type(loop), given, "experiment", loop)
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
        raise UsageError(f"{kind} '{name}': '{reserved.pop()}' cannot be a field: covey stores the choice there")
    return defaults


def loop_defaults(
    algorithm: str, loop: Any = None, task: str | None = None, *, actors: bool = False
) -> ExperimentConfig:
    """The experiment's fields: those of `loop`, or if that is None, of the first loop that the algorithm names, or of
    that loop's counterpart with `actors`, which simulators need.

    Refuses a loop in which the algorithm cannot learn, or that cannot step the registered `task`.
    """
    entry = registry.algorithms[algorithm]
    if loop is not None and not isinstance(loop, str):
        raise UsageError(f"experiment.loop takes one name, not {loop!r}")
    host = task is not None and registry.tasks[task].host
    if loop is None and (host or actors):
        loop = next((known.name for known in registry.loops if known.host and known.like == entry.loop), None)
    defaults: ExperimentConfig = registry.loops[loop or entry.loop].defaults()
    if host and not registry.loops[defaults.loop].host:
        able = ", ".join(known.name for known in registry.loops if known.host and entry.learns_in(known.name))
        raise UsageError(
            f"experiment.loop={defaults.loop} cannot step {task}, an ordinary Python simulator; {able or 'no loop'} can"
        )
    if not entry.learns_in(defaults.loop):
        fitting = [known.name for known in registry.loops if entry.learns_in(known.name)]
        raise UsageError(
            f"algorithm '{algorithm}' cannot learn in experiment.loop={defaults.loop}; "
            f"it learns in {', '.join(fitting)}"
        )
    return defaults


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
        raise UsageError(f"the configuration is not YAML: {error}") from error
    return from_dict(values)


def wanted_imports(values: Mapping[str, Any]) -> list[str]:
    """The user's own code that a stored configuration wants to import: this list decides what needs trust (trust.py).

    Fields say that they name code (`FieldRole.code`). Nothing is imported that the configuration names.
    """
    found = list(code_in(Config, values))
    for kind in CHOICES:
        choice = values.get(kind)
        groups = choice.get("groups") if isinstance(choice, Mapping) else None
        registered = _registered_name(choice)
        for own in (choice, *(groups.values() if isinstance(groups, Mapping) else ())):
            found += _code_of(CHOICES[kind], _registered_name(own) or registered, own)
    experiment = values.get("experiment")
    loop = experiment.get("loop") if isinstance(experiment, Mapping) else None
    for name in [entry.name for entry in registry.loops] if loop is None else [loop]:
        found += _code_of(registry.loops, name, experiment)
    return list(dict.fromkeys(found))


def _registered_name(choice: Any) -> Any:
    """The name to look up in the registry, of a stored choice."""
    return choice.get("base") or choice.get("name") if isinstance(choice, Mapping) else None


def _code_of(known: registry.Registry, name: Any, values: Any) -> list[str]:
    """The code that the stored fields of a registered name want to import."""
    if not isinstance(values, Mapping) or not isinstance(name, str) or name not in known:
        return []  # nothing can be made of it
    defaults = known[name].defaults()
    return list(code_in(type(defaults), registry.with_own_names(defaults, values, name)))


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
                raise UsageError(f"imports: '{name}' needs the module '{error.name}', which cannot be found") from error
            hint = f"; did you mean imports=[{name[:-3]}]?" if name.endswith(".py") else ""
            raise UsageError(f"imports: no module '{name}' in the working directory or installed{hint}") from error
        except Exception as error:
            raise UsageError(f"imports: '{name}' failed with {type(error).__name__}: {error}") from error


def own_modules(config: Config) -> list[str]:
    """The files and folders of the user's modules that are loaded, for other machines: those at the top of `code_dir`
    or of the working directory."""
    if not wanted_imports(to_dict(config)):
        return []
    folders = {os.path.realpath(folder) for folder in (config.code_dir, os.getcwd()) if folder}
    found = set()
    for name, module in list(sys.modules.items()):
        places = [*getattr(module, "__path__", []), getattr(module, "__file__", None)]
        if "." not in name and name != "__main__" and isinstance(places[0], str):
            place = os.path.realpath(places[0])
            if os.path.dirname(place) in folders:
                found.add(place)
    return sorted(found)


# ---------------------------------------------------------------------------------------------------------- checks


def check(config: Config) -> None:
    """Raises UsageError for values that are valid one by one but not together."""
    _check_seeds(config)
    _check_numbers(to_dict(config))
    _check_loops(config.algorithm, config.experiment)
    _check_callbacks(config.callbacks)
    for algorithm in (config.algorithm, *config.algorithm.groups.values()):
        try:
            config.experiment.check_algorithm(algorithm.config)
        except ValueError as error:
            raise UsageError(str(error)) from error


def check_overruled(keys: Sequence[str], values: Mapping[str, Any], config: Config) -> None:
    """Refuses a field of `keys` that has no effect because of another, wherever that was set.

    `config` was made of `values`, which it is said in.
    """
    overruled_by = {path: role.overruled_by for path, role, _ in roles_in(config)}
    for key in keys:
        other = overruled_by.get(key)
        if other is None:
            continue
        *parents, _ = key.split(".")
        section: Any = values
        for parent in parents:
            section = section.get(parent) if isinstance(section, Mapping) else None
        value = section.get(other) if isinstance(section, Mapping) else None
        if value is not None:
            path = ".".join([*parents, other])
            raise UsageError(f"'{key}' has no effect beside {path}={value}; leave one out, or set {path}=null")


def _check_loops(team: Choice, experiment: ExperimentConfig) -> None:
    """Groups learn side by side in one loop."""
    for group, own in team.groups.items():
        entry = registry.algorithms[own.registered]
        if not entry.learns_in(experiment.loop):
            other: ExperimentConfig = registry.loops[entry.loop].defaults()
            raise UsageError(
                f"algorithm.groups.{group}={own.name} learns from {other.learns_from}, {team.name} from "
                f"{experiment.learns_from}: all groups of a team must learn in the same way"
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
        raise UsageError(f"seeds={list(seeds)} names a seed twice")
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


# --------------------------------------------------------------------------------------------------------- devices


def num_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def no_platform(platform: str, found: str = "cpu") -> str:
    """What to do on a machine without `platform`."""
    package = {"gpu": "jax[cuda12]", "tpu": "jax[tpu]"}.get(platform)
    install = f"; if the machine has one, JAX needs its plugin: pip install '{package}'" if package else ""
    return (
        f"experiment.platform={platform} is not available on this machine: JAX finds {found}; "
        f"experiment.platform=cpu trains on the cores{install}"
    )


def with_devices(config: Config, available: int) -> Config:
    """`config` with `devices` settled: as given, or as many of the `available` as divide the environments evenly."""
    experiment = config.experiment
    split = experiment.split_over_devices.values()
    if experiment.devices is not None:
        return config
    fitting = range(1, available + 1) if split else [1]
    devices = max(number for number in fitting if not any(count % number for count in split))
    return dataclasses.replace(config, experiment=dataclasses.replace(experiment, devices=devices))
