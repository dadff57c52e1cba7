"""Names of tasks, models, algorithms and loops. Nothing heavy is imported until a name is used: listing is fast.

An entry is a name, a description, a frozen dataclass that holds every default, and the function that makes the thing
from such a dataclass. The last two may be given as `module:attribute`, imported on first use. The built-in names are in
`covey.catalog`, which is read the first time a registry is looked at.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import importlib
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

from covey.checks import LARGEST_INT, out_of_range
from covey.errors import UsageError, unknown_name, unknown_value


def import_attribute(path: str) -> Any:
    """The object that `module:attribute` names."""
    module, _, attribute = path.partition(":")
    return getattr(importlib.import_module(module), attribute)


class ActionKind(enum.Enum):
    """What agents choose in a step."""

    discrete = "one discrete choice per agent"
    multi_discrete = "several discrete choices per agent"
    continuous = "continuous actions"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Capabilities:
    """What an algorithm supports and relies on, declared where it is registered and checked where it is made."""

    actions: tuple[ActionKind, ...] = tuple(ActionKind)  # kinds of actions that it can choose
    memory: bool = True  # it learns with models that have memory
    # the loops that it can learn in; unless `experiment.loop` names another, the first one
    loops: tuple[str, ...] = ("online",)
    evaluates_greedily: bool = False  # evaluated by its best actions; false: sampled, unless all are continuous
    model_defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # a model's fields that it relies on


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entry:
    """A registered name: how to make what it names, and from which fields."""

    name: str
    description: str
    make: Callable[..., Any] | str
    config: Any  # a dataclass, an instance of one, or `module:attribute` of either
    fields: Mapping[str, Any]  # fields of the dataclass that this name changes
    capabilities: Capabilities = Capabilities()  # of an algorithm
    host: bool = False  # of a task: a simulator that is not JAX; of a loop: it can step such tasks
    like: str | None = None  # of a loop: another one, whose algorithms can learn in this one too
    takes_dictionaries: bool = False  # of a model: observations may be dictionaries of arrays
    base: str | None = None  # `module:attribute` of the class that its dataclass inherits from

    @property
    def loop(self) -> str:
        """The loop in which an algorithm learns unless another is named."""
        return self.capabilities.loops[0]

    def learns_in(self, loop: str) -> bool:
        """Whether an algorithm can learn in a registered loop: it names that one, or one that it is like."""
        name: str | None = loop
        while name is not None and name not in self.capabilities.loops:
            name = loops[name].like
        return name is not None

    def make_function(self) -> Callable[..., Any]:
        """What makes it, imported if it is given as `module:attribute`."""
        return import_attribute(self.make) if isinstance(self.make, str) else self.make

    @property
    def built_in(self) -> bool:
        """Whether it is covey's own, and not a user's."""
        make = self.make.func if isinstance(self.make, functools.partial) else self.make
        return (make if isinstance(make, str) else make.__module__).startswith("covey.")

    def defaults(self) -> Any:
        """The dataclass instance with this name's defaults."""
        config = import_attribute(self.config) if isinstance(self.config, str) else self.config
        if isinstance(config, type):
            config = config()
        if self.base is not None and not isinstance(config, base := import_attribute(self.base)):
            raise UsageError(
                f"'{self.name}': its configuration {type(config).__name__} must inherit from "
                f"{base.__module__}.{base.__name__}, which declares the fields that covey reads"
            )
        return build_config(config, self.fields, self.name)


class Registry:
    """The registered names of one kind ("task", "model", "algorithm", "loop")."""

    def __init__(self, kind: str, base: str | None = None):
        self.kind = kind
        self.base = base  # of their dataclasses
        self._entries: dict[str, Entry] = {}

    def register(
        self,
        name: str,
        make: Callable[..., Any] | str,
        *,
        config: Any,
        description: str,
        fields: Mapping[str, Any] | None = None,
        capabilities: Capabilities = Capabilities(),
        host: bool = False,
        like: str | None = None,
        takes_dictionaries: bool = False,
    ) -> None:
        """Adds a name, or replaces it; `register_task` and its like below say what each kind takes.

        `make` and `config` may be `module:attribute`, imported on first use. `fields` are what this name changes in
        `config`, as in a YAML file.
        """
        if not isinstance(config, str) and not dataclasses.is_dataclass(config):
            raise UsageError(f"{self.kind} '{name}': config must be a dataclass or an instance of one, not {config!r}")
        self._entries[name] = Entry(
            name=name,
            description=description,
            make=make,
            config=config,
            fields=fields or {},
            capabilities=capabilities,
            host=host,
            like=like,
            takes_dictionaries=takes_dictionaries,
            base=self.base,
        )

    def __getitem__(self, name: str) -> Entry:
        _load_catalog()
        if name not in self._entries:
            raise unknown_name(self.kind, name, self._entries)
        return self._entries[name]

    def __iter__(self) -> Iterator[Entry]:
        _load_catalog()
        return iter(self._entries.values())

    def __contains__(self, name: str) -> bool:
        _load_catalog()
        return name in self._entries


tasks = Registry("task")
models = Registry("model", base="covey.networks.layers:ModelConfig")
algorithms = Registry("algorithm", base="covey.algorithms.base:AlgorithmConfig")
loops = Registry("loop", base="covey.loops.config:ExperimentConfig")


def _load_catalog() -> None:
    importlib.import_module("covey.catalog")


def register_task(
    name: str,
    make: Callable[..., Any] | str,
    *,
    config: Any,
    description: str,
    fields: Mapping[str, Any] | None = None,
    host: bool = False,
) -> None:
    """Registers the task `suite/name`: `make(config)` returns an `Env`, and `config` is a `TaskConfig` of your own.

    With `host`, the task is an ordinary Python simulator: `make(config)` returns a `Simulator` (envs/host/simulator.py)
    and `config` is a `SimulatorConfig` of your own. covey steps copies of it in processes.
    """
    tasks.register(name, make, config=config, description=description, fields=fields, host=host)


def register_model(
    name: str, make: Callable[..., Any] | str, *, config: Any, description: str, takes_dictionaries: bool = False
) -> None:
    """Registers a model: `make(config, input_shape, rngs)` returns an nnx module, `config` is a `ModelConfig` of yours.

    With `takes_dictionaries`, `input_shape` is a dictionary of shapes where observations are dictionaries of arrays,
    and the module is called with such a dictionary. Otherwise covey refuses the model there, in one line.
    """
    models.register(name, make, config=config, description=description, takes_dictionaries=takes_dictionaries)


def register_algorithm(
    name: str,
    make: Callable[..., Any] | str,
    *,
    config: Any,
    description: str,
    capabilities: Capabilities = Capabilities(),
) -> None:
    """Registers an algorithm: `make(config, spec, group, context)` returns an `Algorithm` for that group, and `config`
    is an `AlgorithmConfig` of your own.

    `capabilities` says what it supports. covey refuses everything else in one line.
    """
    algorithms.register(name, make, config=config, description=description, capabilities=capabilities)


def register_loop(
    name: str,
    make: Callable[..., Any] | str,
    *,
    config: Any,
    description: str,
    like: str | None = None,
    host: bool = False,
) -> None:
    """Registers a loop: `make(inputs)` returns a `Loop`, and `config` is an `ExperimentConfig` of your own.

    Algorithms that can learn in the loop `like` can learn in this one too; others name it in their `Capabilities`.
    `host` says that it can step simulators in processes.
    """
    loops.register(name, make, config=config, description=description, fields={"loop": name}, like=like, host=host)


def build_config(config: Any, values: Mapping[str, Any], where: str) -> Any:
    """`config` with `values` put in, each checked against its field's type; bad ones raise UsageError in one line.

    Enums take their names, tuples take lists, floats take whole numbers. Nested dataclasses take mappings.
    """
    hints = typing.get_type_hints(type(config), include_extras=True)
    values = with_own_names(config, values, where)
    fields = {field.name for field in dataclasses.fields(config)}
    changes = {}
    for name, value in values.items():
        if name not in fields:
            raise unknown_name(f"field of {where}", name, fields)
        changes[name] = coerce(hints[name], value, f"{where}.{name}", getattr(config, name))
    try:
        return dataclasses.replace(config, **changes)
    except ValueError as error:  # a dataclass's own __post_init__ check
        raise UsageError(f"{where}: {error}") from error


@dataclasses.dataclass(frozen=True, kw_only=True)
class Switch:
    """Another system's switch, which chooses between two values of a field."""

    field: str
    off: str
    on: str


OtherNames = Mapping[str, str | Switch | None]


class Configuration:
    """What the dataclasses of tasks, models, algorithms and loops may say besides their fields. `TaskConfig`,
    `ModelConfig`, `AlgorithmConfig` and `ExperimentConfig` inherit from this.

    other_names   names that are accepted in place of fields, those of another system for example: each leads to a
                  field, to a switch for one, or to None if it is accepted and has no effect
    """

    other_names: ClassVar[OtherNames] = {}


def with_own_names(config: Any, values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """`values` under the names of `config`'s fields.

    A dataclass may take other names too, as its `other_names` say (`Configuration`).
    """
    return renamed(other_names(config), values, where)


def other_names(config: Any) -> OtherNames:
    """The other names that a dataclass's fields have; those within a field have none."""
    return config.other_names if isinstance(config, Configuration) else {}


def renamed(others: OtherNames, values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """`values` with `others` replaced by the fields that they mean; UsageError if such a field is given too."""
    result = {name: value for name, value in values.items() if name not in others}
    for name, own in others.items():
        if name not in values or own is None:
            continue
        field = own.field if isinstance(own, Switch) else own
        value = _switched(own, values, name, where) if isinstance(own, Switch) else values[name]
        if field in values and not isinstance(own, Switch):
            raise UsageError(f"{where}.{name} is another name for {where}.{field}: give only one of them")
        result[field] = value
    return result


def _switched(switch: Switch, values: Mapping[str, Any], name: str, where: str) -> Any:
    """The value of a switch's field.

    Older configurations hold both. There the switch chooses between its two values; any other value of the field is
    kept if the switch is off.
    """
    if not isinstance(values[name], bool):
        raise UsageError(f"{where}.{name} takes true or false, not {values[name]!r}")
    given = values.get(switch.field, switch.off)
    if (given.name if isinstance(given, enum.Enum) else given) in (switch.off, switch.on):
        return switch.on if values[name] else switch.off
    if values[name]:
        raise UsageError(f"{where}.{name} is another name for {where}.{switch.field}: give only one of them")
    return given


def coerce(hint: Any, value: Any, where: str, default: Any = None, largest: int = LARGEST_INT) -> Any:
    """`value` as the type `hint`, or UsageError. Whole numbers go up to `largest`."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return value
    if origin is typing.Annotated:
        return coerce(args[0], value, where, default, largest=args[1].value)
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in args:
            return None
        inner = [arg for arg in args if arg is not type(None)]
        for arg in inner[:-1]:
            try:
                return coerce(arg, value, where, default)
            except UsageError:
                continue
        return coerce(inner[-1], value, where, default)
    if origin in (tuple, list):
        if not isinstance(value, (list, tuple)):
            raise UsageError(f"{where} takes a list, not {value!r}")
        item = args[0] if args else Any
        return origin(coerce(item, element, where) for element in value)
    if origin is dict or hint is dict:
        if not isinstance(value, dict):
            raise UsageError(f"{where} takes a mapping, not {value!r}")
        return dict(value)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        if isinstance(value, hint):
            return value
        names = [member.name for member in hint]
        if value not in names:
            raise unknown_value(where, str(value), names)
        return hint[value]
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        if isinstance(value, hint):
            return value
        if not isinstance(value, dict):
            raise UsageError(f"{where} takes a mapping, not {value!r}")
        return build_config(default if default is not None else hint(), value, where)
    if hint in (int, float) and (wanted := out_of_range(hint, value, largest)):
        raise UsageError(f"{where} takes {wanted}, not {value}")
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if (isinstance(value, bool) and hint is not bool) or not isinstance(value, hint):
        allowed = "; true or false" if hint is bool else ""
        raise UsageError(f"{where} takes {hint.__name__}, not {value!r}{allowed}")
    return value
