"""From a command line to a `Config`: the one module that imports Hydra.

What sets a field, the later the stronger:

1. the dataclass of the chosen task, model or algorithm, and of the loop that the algorithm runs in;
2. with `settings=tuned`, the settings known to learn that task with that algorithm (settings.py);
3. the preset (`experiment=benchmarl`), after the one that it derives from;
4. the preset's file for that algorithm (`benchmarl_mappo.yaml`), where there is one;
5. for a task, model or algorithm from a file of the user's own, the fields in that file;
6. the command line.

A preset is a file `GROUP/NAME.yaml`, shipped beside this module or in the user's `config_dir`. It derives from another
by `base: NAME`, which may be a registered name, a shipped preset or another file:

    my_conf/task/my/navigation_5.yaml       my_conf/experiment/long.yaml
        base: vmas/navigation                   base: benchmarl
        n_agents: 5                             experiment: {frames: 1e7}
                                                model: {name: mlp, layers: [512, 512]}

Files of `experiment` may set any part of the configuration. A section with a `name` also makes that choice. If the
command line makes another, the section is skipped. A name with a star (`vmas/*`) chooses nothing: the section
holds for all names that fit. `critic_model=` takes the files of `model`. What a preset or the command line sets for
`model` holds for the critic too, unless the critic's model is named or its field is set.

A group of agents may have an algorithm or models of its own: `algorithm.groups.adversary=ippo` names another, with its
own defaults, and `algorithm.groups.adversary.lr=1e-4` changes a field; a group that names none has what the team has.

Names and keys are looked up before Hydra sees them, so that errors are ours; Hydra reads the values and puts them in.
"""

from __future__ import annotations

import dataclasses
import io
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import hydra
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from covey import registry
from covey.aliases import fields_called
from covey.errors import UsageError, nearest, unknown_name
from covey.experiment.configuration.config import (
    BY_GROUP,
    CHOICES,
    Config,
    HooksConfig,
    add_to_path,
    check_overruled,
    choice_defaults,
    from_dict,
    import_modules,
    loop_defaults,
    plain,
    roles_in,
    to_dict,
    wanted_imports,
)
from covey.experiment.configuration.partners import flatten_partners, is_partner_key, read_partners
from covey.experiment.configuration.settings import NONE, TUNED, Settings, find_settings, settings_in
from covey.fields import default_of
from covey.files import UNREADABLE, read_text, why_unreadable

SHIPPED = Path(__file__).parent / "presets"
DEFAULTS = {"experiment": "default", "algorithm": "mappo", "task": "vmas/navigation", "model": "mlp"}
PATHS = ("run_dir", "code_dir", "config_dir", "init_from")  # taken as they are, whatever characters they hold
OF_GROUP = re.compile(rf"({'|'.join(BY_GROUP)})\.groups\.([^.]+)(?:\.(.+))?")  # kind, group of agents, field
TOP_LEVEL = tuple(field.name for field in dataclasses.fields(Config))


def compose(overrides: Sequence[str]) -> Config:
    """The checked configuration that `key=value` overrides describe, e.g. `["algorithm=ippo", "seed=1"]`."""
    assignments = [parse_override(text) for text in overrides]
    chosen = {item.key: item.choice() for item in assignments if _is_choice(item.key)}
    partners = {item.key: item.partner() for item in assignments if is_partner_key(item.key)}
    values = [item for item in assignments if item.key not in chosen and item.key not in partners]
    _check_given_once("imports", values)
    config_dir = _last_value(values, "config_dir")
    _check_config_dir(config_dir)
    add_to_path(_last_value(values, "code_dir"))
    import_modules(_as_list(_last_value(values, "imports")))

    presets = _preset_chain("experiment", chosen.get("experiment", DEFAULTS["experiment"]), config_dir)
    import_modules(_imports(presets))
    layers = _with_algorithm_presets(presets, chosen, config_dir)
    import_modules(_imports(layers))
    settings = _chosen_settings(layers, chosen, config_dir)
    if settings:
        layers = [Preset(name=TUNED, fields=dict(settings.sections), path=settings.path), *layers]
    copies: list[Assignment] = []
    if _critic_follows(layers, chosen):
        model = _choice_of("model", layers, chosen)  # a layer may name another, which the command line replaces
        layers = _with_critics_layers(layers)
        copies = _copies_for_critic(values, chosen)
        groups = {f"critic_{key}": name for key, name in chosen.items() if key.startswith("model.")}
        chosen = groups | chosen | {"critic_model": model}
    loop = _last_value(values, "experiment.loop") or _loop_of(layers)
    scopes, tree = _assemble(layers, chosen, [item.key for item in (*copies, *values)], config_dir, loop)
    values = _with_own_names(values, scopes)
    for item in values:  # not the copies: an error names what was typed
        check_key(item.key, scopes)
    composed = _apply(tree, [*copies, *values])
    composed["imports"] = list(dict.fromkeys(_imports(layers) + _as_list(composed.get("imports"))))
    composed["partners"] = read_partners(partners, flatten_partners(composed["partners"]))
    composed["callbacks"] = _as_list(composed.get("callbacks"))
    keys = [item.key for item in values]
    config = from_dict(composed)
    check_overruled(keys, composed, config)
    config = _with_discrete_actions(config, keys, layers)
    own_code = wanted_imports(to_dict(config))
    return config if config.code_dir or not own_code else dataclasses.replace(config, code_dir=os.getcwd())


def _with_discrete_actions(config: Config, keys: Sequence[str], layers: Sequence[Preset]) -> Config:
    """Sets discrete actions for algorithms that have no others, on tasks with a choice that nobody has made."""
    from covey.envs.base import TaskConfig  # imports JAX, as the task's own dataclass has by now

    fields = config.task.config
    capabilities = registry.algorithms[config.algorithm.registered].capabilities
    if registry.ActionKind.continuous in capabilities.actions or not isinstance(fields, TaskConfig):
        return config
    discrete = fields.with_discrete_actions
    changed = [name for name, value in vars(fields).items() if vars(discrete)[name] != value]
    if any(f"task.{name}" in keys or any(name in p.section("task")[1] for p in layers) for name in changed):
        return config
    return dataclasses.replace(config, task=dataclasses.replace(config.task, config=discrete))


def _is_choice(key: str) -> bool:
    """Whether the value of `key` is the name of something: `algorithm`, `algorithm.groups.adversary`, …"""
    of_group = OF_GROUP.fullmatch(key)
    return key in (*CHOICES, "experiment", "settings") or (of_group is not None and of_group[3] is None)


# The critic's model follows the actor's. Whatever sets `model` (a preset or the command line) sets `critic_model` too,
# before what it sets for `critic_model` itself. Naming a critic's model cuts this off, for the layer that names it and
# for those before it; another model than the actor's never follows.


def _critic_follows(layers: Sequence[Preset], chosen: Mapping[str, str]) -> bool:
    same = _choice_of("critic_model", layers, chosen) == _choice_of("model", layers, chosen)
    return same and "critic_model" not in chosen


def _with_critics_layers(layers: Sequence[Preset]) -> list[Preset]:
    """`layers`, with what each sets for the model set for the critic just before it."""
    naming = [number for number, layer in enumerate(layers) if _names_choice(layer, "critic_model")]
    first = naming[-1] + 1 if naming else 0
    result: list[Preset] = []
    for number, layer in enumerate(layers):
        if number >= first and "model" in layer.fields:
            result.append(dataclasses.replace(layer, fields={"critic_model": layer.fields["model"]}))
        result.append(layer)
    return result


def _names_choice(layer: Preset, kind: str) -> bool:
    name, _ = layer.section(kind)
    return name is not None and not _is_pattern(name)


def _copies_for_critic(values: Sequence[Assignment], chosen: Mapping[str, str]) -> list[Assignment]:
    """The command line's fields of `model` as the critic's, except in groups of agents whose critic it names."""
    named = tuple(f"{key.removeprefix('critic_')}." for key in chosen if key.startswith("critic_model.groups."))
    return [
        parse_override(f"~critic_{item.key}" if item.delete else f"critic_{item.key}={item.text}")
        for item in values
        if item.key.startswith("model.") and not item.key.startswith(named)
    ]


def resume_config(config: Config, overrides: Sequence[str]) -> Config:
    """A stored configuration with the overrides of `covey resume`, which may set only fields that are `resumable`."""
    assignments = [parse_override(text) for text in overrides]
    allowed = [path for path, role, _ in roles_in(config) if role.resumable]
    for item in assignments:
        if not item.key.startswith(tuple(allowed)):
            near = _list(nearest_fields(item.key, allowed))
            raise UsageError(f"'{item.key}' cannot change when a run is resumed; nearest that can: {near}")
        check_key(item.key, {"experiment": config.experiment})
    return from_dict(_apply(to_dict(config), assignments))


# ------------------------------------------------------------------------------------------------------- overrides


@dataclasses.dataclass(frozen=True, kw_only=True)
class Assignment:
    """One `key=value` of the command line, read and not yet applied."""

    key: str
    text: str  # the value as typed
    override: Override
    delete: bool = False

    def choice(self) -> str:
        """The value as the name of a task, model, algorithm or preset."""
        if self.delete or not re.fullmatch(r"[\w./+-]+", self.text):
            raise UsageError(f"{self.key}= takes one name, not '{self.text}'")
        return self.text

    def partner(self) -> str:
        """The value as typed, where the key is about partners."""
        if self.delete:
            raise UsageError(f"'~{self.key}': a partner cannot be removed; partners=null leaves out those of a preset")
        return self.text


def parse_override(text: str) -> Assignment:
    """Reads `key=value`, by Hydra's grammar for the value; its prefixes `+`, `++` and `~` are understood.

    `buffer.size=…` is short for `experiment.buffer.size=…`, `actors.num=…` for `experiment.actors.num=…`, and
    `actors=ray` for `experiment.actors.where=ray`.
    """
    left, equals, value = text.partition("=")
    left = re.sub(r"^([+~]*)(buffer|actors)\.", r"\1experiment.\2.", left)
    left = re.sub(r"^([+~]*)actors$", r"\1experiment.actors.where", left)
    key, delete = left.lstrip("+~").strip(), left.startswith("~")
    if not delete and (not equals or not re.fullmatch(r"[A-Za-z_][\w.-]*", key)):
        raise UsageError(f"cannot read '{text}': everything here is key=value, as in algorithm.lr=3e-4")
    if not delete and not value.strip():
        raise UsageError(f"'{key}=' has no value{_some_names(key)}")
    is_text = key in PATHS or is_partner_key(key)  # paths may hold any characters
    hydra_text = f"~{key}" if delete else f"++{key}={_quoted(value) if is_text else value}"
    try:
        override = OverridesParser.create().parse_override(hydra_text)
    except (HydraException, ValueError, RecursionError) as error:  # thousands of digits, thousands of brackets
        raise UsageError(f"cannot read the value in '{text[:200]}'; {_repair(key, value)}") from error
    if override.is_sweep_override() and not _is_choice(key):
        right = "seeds=3 trains several" if key == "seed" else f"a list is in brackets: {key}=[a,b]"
        raise UsageError(f"'{key}' takes one value, not '{value}'; {right}")
    return Assignment(key=key, text=value.strip(), override=override, delete=delete)


def _repair(key: str, value: str) -> str:
    """What to type instead of a value that cannot be read."""
    opened, closed = (sum(value.count(bracket) for bracket in brackets) for brackets in ("[{", "]}"))
    if opened <= closed:
        return f"put it in quotes: \"{key}='…'\""
    word = f"{key}=[a, b]" if "[" in value else f"{key}={{a: 1, b: 2}}"
    return f"its bracket is not closed: leave out the spaces within, or put quotes around the whole word: '{word}'"


def _some_names(key: str) -> str:
    """A few valid values, for a choice that was left empty."""
    if key == "settings":
        return f"; it takes {TUNED} or {NONE}"
    if key not in (*CHOICES, "experiment"):
        return f"; {key}=null means none"
    names = list_presets() if key == "experiment" else [entry.name for entry in CHOICES[key]]
    return f"; some are {_list(sorted(names)[:3])} (`covey list` shows all)"


def _with_own_names(values: Sequence[Assignment], scopes: Mapping[str, Any]) -> list[Assignment]:
    """Assignments to fields under their own names; those without effect are left out (`registry.with_own_names`)."""
    result = []
    for item in values:
        scope, _, name = item.key.partition(".")
        others = registry.other_names(scopes.get(scope))
        if name not in others:
            result.append(item)
            continue
        for field, value in registry.renamed(others, {name: item.override.value()}, scope).items():
            own, text = f"{scope}.{field}", value if isinstance(others[name], registry.Switch) else item.text
            if any(other.key == own for other in values):
                raise UsageError(f"{item.key} is another name for {own}: give only one of them")
            result.append(parse_override(f"{own}={text}"))
    return result


def _quoted(path: str) -> str:
    path = path.strip()
    if path == "null" or (len(path) > 1 and path[0] == path[-1] and path[0] in "'\""):
        return path
    return "'" + path.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _last_value(assignments: Sequence[Assignment], key: str) -> Any:
    return next((item.override.value() for item in reversed(assignments) if item.key == key), None)


def _check_given_once(key: str, assignments: Sequence[Assignment]) -> None:
    """Refuses a second list, which would take the place of the first."""
    given = [name for item in assignments if item.key == key for name in _as_list(item.override.value())]
    if sum(item.key == key for item in assignments) > 1:
        raise UsageError(f"{key} is given twice; give one list: '{key}=[{', '.join(dict.fromkeys(given))}]'")


def _as_list(value: Any) -> list[str]:
    if value is None:
        return []
    if not isinstance(value, list):
        value = [value]
    return [str(item) for item in value]


def check_key(key: str, scopes: Mapping[str, Any], where: str = "") -> None:
    """Raises UsageError unless `key` leads to a field; `scopes` holds the dataclass under each top-level key.

    Inside a field that is a mapping, such as `experiment.logger_options`, any key goes.
    """
    of_group = OF_GROUP.fullmatch(key)
    if of_group:
        kind, group, field = of_group.groups()
        return check_key(f"{kind}.{field}", {kind: scopes[f"{kind}.groups.{group}"]}, f"{where}in group '{group}': ")
    first, *parts = key.split(".")
    if first not in TOP_LEVEL:
        near = nearest_fields(key, [*TOP_LEVEL, *_paths(scopes)])
        raise UsageError(f"{where}unknown key '{key}'; nearest: {_list(near)} (`covey show` prints all)")
    value, path = scopes.get(first), first
    for part in parts:
        names = _field_names(value)
        if isinstance(value, Mapping) or (value is None and path not in TOP_LEVEL):
            return
        if part not in names:
            here = [f"{path}.{name}" for name in names] or [path]
            near = nearest_fields(key, _paths(scopes), here)
            raise UsageError(f"{where}unknown field '{key}'; nearest: {_list(near)} (`covey show` prints all)")
        value, path = getattr(value, part), f"{path}.{part}"


def nearest_fields(key: str, known: Sequence[str], here: Sequence[str] | None = None) -> list[str]:
    """Up to three fields that `key` may mean: those with its last name, and those that other libraries call by it. If
    there are none, similar names among those `here` (default: all `known`)."""
    section, _, last = key.lower().rpartition(".")
    called_so = [path for path in fields_called(last) if path in known]
    same_name = [path for path in known if path.rpartition(".")[2].lower() == last]
    found = sorted(dict.fromkeys([*same_name, *called_so]), key=lambda path: not path.startswith(f"{section}."))
    followers = [path for path in found if path.startswith("critic_") and path.removeprefix("critic_") in found]
    return [path for path in found if path not in followers][:3] or nearest(key, here or known)


def _paths(scopes: Mapping[str, Any]) -> list[str]:
    """Every field under the top-level keys, with those of nested dataclasses."""
    paths = []
    for scope, value in scopes.items():
        for name in _field_names(value):
            paths += [f"{scope}.{name}", *_paths({f"{scope}.{name}": getattr(value, name)})]
    return paths


def _field_names(value: Any) -> list[str]:
    return [field.name for field in dataclasses.fields(value)] if dataclasses.is_dataclass(value) else []


def _apply(tree: Mapping[str, Any], assignments: Sequence[Assignment]) -> dict[str, Any]:
    """`tree` with the assignments put in by Hydra, interpolations resolved."""
    ConfigStore.instance().store(name="covey", node=OmegaConf.create(dict(tree)))
    texts = [item.override.input_line or "" for item in assignments]
    try:
        with hydra.initialize(version_base="1.3", config_path=None):
            composed = hydra.compose("covey", overrides=texts)
        values = OmegaConf.to_container(composed, resolve=True)
    except (HydraException, OmegaConfBaseException) as error:
        raise UsageError(f"cannot compose: {str(error).splitlines()[0]}") from error
    assert isinstance(values, dict)
    whole: dict[str, Any] = _whole_numbers(values)
    return whole


def _whole_numbers(value: Any) -> Any:
    """1e6 as 1000000, so that it can be a number of frames; fields that take floats take whole numbers too."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {key: _whole_numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_whole_numbers(item) for item in value]
    return value


def _list(names: Iterable[str]) -> str:
    return ", ".join(names)


# --------------------------------------------------------------------------------------------------------- presets


@dataclasses.dataclass(frozen=True, kw_only=True)
class Preset:
    """A file `GROUP/NAME.yaml`, or a registered name as a preset without fields."""

    name: str
    fields: dict[str, Any]
    path: Path | None = None

    @property
    def where(self) -> str:
        return f"{self.path}: "

    def section(self, kind: str) -> tuple[str | None, dict[str, Any]]:
        """What the file says of a task, model or algorithm: the name that it is meant for, and the fields."""
        section = self._mapping(kind, self.fields.get(kind))
        apart = ("name", "base", "groups") if kind in BY_GROUP else ("name", "base")  # `covey show` writes a base
        return self._name(kind, section), {key: value for key, value in section.items() if key not in apart}

    def group_section(self, kind: str, group: str) -> tuple[str | None, dict[str, Any]]:
        """The same for a group of agents."""
        section = self._mapping(f"{kind}.groups.{group}", self.group_sections(kind).get(group))
        name = self._name(f"{kind}.groups.{group}", section)
        return name, {key: value for key, value in section.items() if key not in ("name", "base")}

    def group_sections(self, kind: str) -> dict[str, Any]:
        """What the file says of each group of agents."""
        return self._mapping(f"{kind}.groups", self._mapping(kind, self.fields.get(kind)).get("groups"))

    def _name(self, key: str, section: Mapping[str, Any]) -> str | None:
        name = section.get("name")
        if not isinstance(name, str | None):
            raise UsageError(f"{self.where}{key}.name takes one name, not {name!r}")
        return name

    def _mapping(self, key: str, section: Any) -> dict[str, Any]:
        if isinstance(section, str):
            section = {"name": section}
        if not isinstance(section or {}, dict):
            raise UsageError(f"{self.where}{key} takes a mapping, not {section!r}")
        return section or {}


def list_presets(kind: str = "experiment", config_dir: str | None = None) -> dict[str, str]:
    """The presets of a kind, each with its first line of comment."""
    folders = [SHIPPED / kind] + ([Path(config_dir) / kind] if config_dir else [])
    files = {
        path.relative_to(folder).with_suffix("").as_posix(): path
        for folder in folders
        for path in sorted(folder.rglob("*.yaml"))
    }
    algorithms = [entry.name for entry in registry.algorithms]
    completing = {f"{name}_{algorithm}" for name in files for algorithm in algorithms}
    return {name: _first_comment(path) for name, path in sorted(files.items()) if name not in completing}


def _first_comment(path: Path) -> str:
    try:
        lines = read_text(path).splitlines()
    except UNREADABLE as error:  # the other presets can be used all the same
        return f"cannot be read: {why_unreadable(error)}"
    return next((line.lstrip("# ").strip() for line in lines if line.startswith("#")), "")


def _check_config_dir(config_dir: str | None) -> None:
    if config_dir is None:
        return
    if not Path(config_dir).is_dir():
        raise UsageError(f"config_dir: no folder '{config_dir}'")
    folders = ("experiment", "algorithm", "task", "model", "benchmark", "settings")
    if not any((Path(config_dir) / folder).is_dir() for folder in folders):
        raise UsageError(f"config_dir: '{config_dir}' has none of the folders {_list(folders)}")


def list_settings(config_dir: str | None = None) -> list[Settings]:
    """All settings of files `settings/*.yaml`, the user's own first."""
    folders = ([Path(config_dir)] if config_dir else []) + [SHIPPED]
    files = [path for folder in folders for path in sorted((folder / "settings").glob("*.yaml"))]
    return [settings for path in files for settings in settings_in(path, _read(path))]


def settings_for(overrides: Sequence[str]) -> Settings | None:
    """The settings that `settings=tuned` among the overrides finds; None without it."""
    assignments = [parse_override(text) for text in overrides]
    chosen = {item.key: item.choice() for item in assignments if _is_choice(item.key)}
    config_dir = _last_value(assignments, "config_dir")
    return _chosen_settings(
        _preset_chain("experiment", chosen.get("experiment", DEFAULTS["experiment"]), config_dir), chosen, config_dir
    )


def _chosen_settings(layers: Sequence[Preset], chosen: Mapping[str, str], config_dir: str | None) -> Settings | None:
    name = chosen.get("settings", NONE)
    if name == NONE:
        return None
    if name != TUNED:
        raise unknown_name("settings", name, [TUNED, NONE], see="`covey list settings`")
    tasks, algorithms = (
        [preset.name for preset in _preset_chain(kind, _choice_of(kind, layers, chosen), config_dir)]
        for kind in ("task", "algorithm")
    )
    return find_settings(list_settings(config_dir), tasks, algorithms)


def benchmark_presets(name: str, config_dir: str | None) -> list[Preset]:
    """The preset `benchmark/NAME.yaml`, after those that it derives from."""
    return _preset_chain("benchmark", name, config_dir)


def _preset_chain(kind: str, name: str, config_dir: str | None) -> list[Preset]:
    """The presets from the first one, which derives from nothing, to `name`."""
    kind = "model" if kind == "critic_model" else kind
    chain: list[Preset] = []
    seen: list[Path] = []
    while True:
        path = _find(kind, name, config_dir, seen)
        if path is None:
            chain += _first_of_chain(kind, name, config_dir, chain)
            break
        fields = _read(path)
        base = fields.pop("base", None)
        chain.append(Preset(name=name, fields=fields, path=path))
        seen.append(path)
        if base is None and kind not in CHOICES:
            break
        if not isinstance(base, str):
            raise UsageError(f"{path}: a {kind} derives from another; add a line `base: NAME`")
        name = base
    return chain[::-1]


def _first_of_chain(kind: str, name: str, config_dir: str | None, derived: Sequence[Preset]) -> list[Preset]:
    known = set(list_presets(kind, config_dir))
    if kind in CHOICES:
        known |= {entry.name for entry in CHOICES[kind]}
        if name in CHOICES[kind]:
            return [Preset(name=name, fields={})]
    where = derived[-1].where if derived else ""
    what = "preset" if kind == "experiment" else kind
    if any(preset.name == name for preset in derived):
        raise UsageError(f"{where}base '{name}' leads back to itself")
    raise UsageError(f"{where}{unknown_name(what, name, known)}")


def _find(kind: str, name: str, config_dir: str | None, skip: Sequence[Path]) -> Path | None:
    """The file of a preset, the user's own first; a file may derive from a shipped one of its own name."""
    folders = ([Path(config_dir)] if config_dir else []) + [SHIPPED]
    paths = [folder / kind / f"{name}.yaml" for folder in folders]
    return next((path for path in paths if os.path.isfile(path) and path not in skip), None)


def _read(path: Path) -> dict[str, Any]:
    try:
        fields = OmegaConf.to_container(OmegaConf.load(io.StringIO(read_text(path))), resolve=False)
    except (YAMLError, OmegaConfBaseException, *UNREADABLE) as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        raise UsageError(f"{path}{line}: {getattr(error, 'problem', None) or why_unreadable(error)}") from error
    if not isinstance(fields, dict):
        raise UsageError(f"{path}: a preset is a mapping, not {type(fields).__name__}")
    if "defaults" in fields:
        raise UsageError(f"{path}: a preset derives from another by `base: NAME`, not by a defaults list")
    return {str(key): value for key, value in fields.items()}


def _with_algorithm_presets(
    presets: Sequence[Preset], chosen: Mapping[str, str], config_dir: str | None
) -> list[Preset]:
    """Each preset, followed by its file for the algorithm (and before that, for the one that it derives from)."""
    layers = []
    team = _preset_chain("algorithm", _choice_of("algorithm", presets, chosen), config_dir)
    in_files = [
        preset.group_section("algorithm", group)[0]
        for preset in presets
        for group in preset.group_sections("algorithm")
    ]
    named = [name for key, name in chosen.items() if key.startswith("algorithm.groups.")]
    of_groups = [own for name in (*in_files, *named) if name for own in _preset_chain("algorithm", name, config_dir)]
    for preset in presets:
        layers.append(preset)
        for algorithm in team:
            layers += _files_for(algorithm.name, preset, config_dir)
        for algorithm in of_groups:  # only files for the team's algorithm set the rest of the experiment
            files = _files_for(algorithm.name, preset, config_dir)
            layers += [dataclasses.replace(file, fields={"algorithm": file.fields["algorithm"]}) for file in files]
    return layers


def _files_for(algorithm: str, preset: Preset, config_dir: str | None) -> list[Preset]:
    name = f"{preset.name}_{algorithm}"
    if not _find("experiment", name, config_dir, ()):
        return []
    return [_meant_for(algorithm, layer) for layer in _preset_chain("experiment", name, config_dir)]


def _meant_for(algorithm: str, preset: Preset) -> Preset:
    """`preset` with its section on the algorithm under that algorithm's name."""
    name, section = preset.section("algorithm")
    return dataclasses.replace(preset, fields={**preset.fields, "algorithm": {"name": name or algorithm, **section}})


def _imports(presets: Sequence[Preset]) -> list[str]:
    return [module for preset in presets for module in _as_list(preset.fields.get("imports"))]


def _choice_of(kind: str, presets: Sequence[Preset], chosen: Mapping[str, str]) -> str:
    """The name of a task, model or algorithm: the command line's, the last preset's that names one, or the default."""
    if kind in chosen:
        return chosen[kind]
    named = [name for preset in presets for name, _ in [preset.section(kind)] if name and not _is_pattern(name)]
    if named:
        return named[-1]
    return _choice_of("model", presets, chosen) if kind == "critic_model" else DEFAULTS[kind]


def _loop_of(layers: Sequence[Preset]) -> Any:
    """The loop in the last preset that names one."""
    sections = [layer.fields.get("experiment") for layer in layers]
    named = [section["loop"] for section in sections if isinstance(section, Mapping) and "loop" in section]
    return named[-1] if named else None


def _is_pattern(name: str) -> bool:
    return "*" in name


def _assemble(
    layers: Sequence[Preset], chosen: Mapping[str, str], keys: Sequence[str], config_dir: str | None, loop: Any = None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The dataclass under each top-level key, and the whole configuration as a tree, before the command line.

    `keys` are those that the command line sets; `loop` is the chosen one, None for the algorithm's first.
    """
    scopes: dict[str, Any] = {"hooks": HooksConfig()}
    tree: dict[str, Any] = {field.name: plain(default_of(field)) for field in dataclasses.fields(Config)}
    for kind in CHOICES:
        chain = _preset_chain(kind, _choice_of(kind, layers, chosen), config_dir)
        scopes[kind] = choice_defaults(kind, chain[0].name)
        if kind == "model":
            scopes[kind] = with_model_defaults(scopes[kind], _algorithm_of(tree))
        tree[kind] = _choice_tree(kind, chain, layers, scopes)
        for group in _groups_with_own(kind, layers, [*chosen, *keys]):
            _add_group(kind, group, layers, chosen, config_dir, scopes, tree)
        if kind == "model":
            tree[kind] = _with_groups_defaults(tree, layers, keys, scopes)
    scopes["experiment"] = loop_defaults(
        _registered_name(tree["algorithm"]),
        loop,
        _registered_name(tree["task"]),
        actors=any(key.startswith("experiment.actors.") for key in keys),
    )
    tree["experiment"] = plain(scopes["experiment"])
    for layer in layers:
        rest = {key: value for key, value in layer.fields.items() if key not in CHOICES}
        _check_fields(rest, scopes, layer.where)
        tree = _merged(tree, rest)
    return scopes, tree


def with_model_defaults(model: Any, algorithm: str) -> Any:
    """A model's defaults as the registered algorithm wants them (`model_defaults`), as far as it has such fields."""
    return registry.build_config(model, _wanted_defaults(model, algorithm), "model")


def _wanted_defaults(model: Any, algorithm: str) -> dict[str, Any]:
    wanted = registry.algorithms[algorithm].capabilities.model_defaults
    return {name: value for name, value in wanted.items() if name in _field_names(model)}


def _with_groups_defaults(
    tree: Mapping[str, Any], layers: Sequence[Preset], keys: Sequence[str], scopes: Mapping[str, Any]
) -> dict[str, Any]:
    """The model of `tree`. A group with its own algorithm but the team's model has the model defaults that its
    algorithm wants, unless the user set those fields for the team."""
    said = {name for layer in layers for name in layer.section("model")[1]}
    said |= {key.removeprefix("model.") for key in keys if key.startswith("model.")}
    model = tree["model"]
    groups = dict(model.get("groups", {}))
    for key in scopes:
        kind, _, group = key.partition(".groups.")
        if kind != "algorithm" or not group or "name" in groups.get(group, {}):
            continue
        wanted = _wanted_defaults(scopes["model"], _algorithm_of(tree, group))
        own = {name: value for name, value in wanted.items() if name not in said}
        if own:
            groups[group] = own | groups.get(group, {})
    return {**model, "groups": groups} if groups else dict(model)


def _groups_with_own(kind: str, layers: Sequence[Preset], keys: Iterable[str]) -> list[str]:
    """The groups of agents that have an algorithm, a model or a field of their own."""
    if kind not in BY_GROUP:
        return []
    in_files = [group for layer in layers for group in layer.group_sections(kind)]
    set_here = [found[2] for found in map(OF_GROUP.fullmatch, keys) if found and found[1] == kind]
    return list(dict.fromkeys([*in_files, *set_here]))


def _add_group(
    kind: str,
    group: str,
    layers: Sequence[Preset],
    chosen: Mapping[str, str],
    config_dir: str | None,
    scopes: dict[str, Any],
    tree: dict[str, Any],
) -> None:
    """Adds what a group of agents has of its own: a named choice with all its fields, or only the fields set for the
    group. `from_dict` then takes the rest from the team."""
    in_files = [name for layer in layers for name, _ in [layer.group_section(kind, group)] if name]
    name = chosen.get(f"{kind}.groups.{group}") or (in_files[-1] if in_files else None)
    scope, own = scopes[kind], {}
    if name:
        chain = _preset_chain(kind, name, config_dir)
        scope = choice_defaults(kind, chain[0].name)
        if kind == "model":
            scope = with_model_defaults(scope, _algorithm_of(tree, group))
        own = _choice_tree(kind, chain, layers, {kind: scope})
    for layer in layers:
        meant_for, section = layer.group_section(kind, group)
        if meant_for in (None, name):
            _check_fields({kind: section}, {kind: scope}, layer.where)
            own = _merged(own, section)
    scopes[f"{kind}.groups.{group}"] = scope
    tree[kind] = _merged(tree[kind], {"groups": {group: own}})


def _algorithm_of(tree: Mapping[str, Any], group: str | None = None) -> str:
    """The registered name of the team's algorithm, or of that of a group of agents."""
    own = tree["algorithm"].get("groups", {}).get(group, {})
    return _registered_name(own if "name" in own else tree["algorithm"])


def _registered_name(choice: Mapping[str, Any]) -> str:
    """The registered name of a choice in a configuration tree."""
    name: str = choice.get("base") or choice["name"]
    return name


def _choice_tree(
    kind: str, chain: Sequence[Preset], layers: Sequence[Preset], scopes: Mapping[str, Any]
) -> dict[str, Any]:
    """The fields of a task, model or algorithm.

    A layer's section that names a preset of the chain comes right after that preset; one without a name, or with a
    pattern that the registered name fits, comes first.
    """
    fields = plain(scopes[kind])
    for preset in chain:
        sections = [(preset.where, preset.fields)]
        for layer in layers:
            name, section = layer.section(kind)
            first = preset is chain[0] and (name is None or (_is_pattern(name) and fnmatchcase(preset.name, name)))
            if name == preset.name or first:
                sections.append((layer.where, section))
        for where, section in sections:
            section = registry.with_own_names(scopes[kind], section, f"{where}{kind}")
            _check_fields({kind: section}, scopes, where)
            fields = _merged(fields, section)
    base = {"base": chain[0].name} if chain[-1].name != chain[0].name else {}
    return {"name": chain[-1].name, **base, **fields}


def _check_fields(fields: Mapping[str, Any], scopes: Mapping[str, Any], where: str) -> None:
    for key, value in fields.items():
        if key in scopes and not isinstance(value, dict):
            raise UsageError(f"{where}{key} takes a mapping, not {value!r}")
        if key in scopes:
            for name in value:
                check_key(f"{key}.{name}", scopes, where)
        else:
            check_key(key, scopes, where)


def _merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with `changes` put in, mapping by mapping."""
    result = dict(base)
    for key, value in changes.items():
        both = isinstance(value, Mapping) and isinstance(result.get(key), Mapping)
        result[key] = _merged(result[key], value) if both else value
    return result
