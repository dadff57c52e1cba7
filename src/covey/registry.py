"""Names of tasks, models and algorithms. Nothing heavy is imported until a name is used, so that listing is fast.

An entry is a name, a description, a frozen dataclass that holds every default, and what to call to make the thing from
such a dataclass. Both may be given as `module:attribute`, imported on first use. The built-in names are in
`covey.catalog`, which is read the first time a registry is looked at.
"""

from __future__ import annotations

import dataclasses
import enum
import importlib
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from covey.errors import UsageError, unknown_name


def import_attribute(path: str) -> Any:
    """The object that `module:attribute` names."""
    module, _, attribute = path.partition(":")
    return getattr(importlib.import_module(module), attribute)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entry:
    name: str
    description: str
    make: Callable[..., Any] | str
    config: Any  # a dataclass, an instance of one, or `module:attribute` of either
    fields: Mapping[str, Any]  # what this name changes in it
    loop: str = "online"  # algorithms: the loop that runs them

    def make_function(self) -> Callable[..., Any]:
        return import_attribute(self.make) if isinstance(self.make, str) else self.make

    def defaults(self) -> Any:
        """The dataclass instance with this name's defaults."""
        config = import_attribute(self.config) if isinstance(self.config, str) else self.config
        if isinstance(config, type):
            config = config()
        return build_config(config, self.fields, self.name)


class Registry:
    """The registered names of one kind ("task", "model", "algorithm")."""

    def __init__(self, kind: str):
        self.kind = kind
        self._entries: dict[str, Entry] = {}

    def register(
        self,
        name: str,
        make: Callable[..., Any] | str,
        *,
        config: Any,
        description: str,
        fields: Mapping[str, Any] | None = None,
        loop: str = "online",
    ) -> None:
        if not isinstance(config, str) and not dataclasses.is_dataclass(config):
            raise UsageError(f"{self.kind} '{name}': config must be a dataclass or an instance of one, not {config!r}")
        self._entries[name] = Entry(
            name=name, description=description, make=make, config=config, fields=fields or {}, loop=loop
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
models = Registry("model")
algorithms = Registry("algorithm")


def _load_catalog() -> None:
    importlib.import_module("covey.catalog")


def register_task(
    name: str, make: Callable[..., Any] | str, *, config: Any, description: str, fields: Mapping[str, Any] | None = None
) -> None:
    """Registers the task `suite/name`: `make(config)` returns an `Env`, and `config` is a `TaskConfig` of your own."""
    tasks.register(name, make, config=config, description=description, fields=fields)


def register_model(name: str, make: Callable[..., Any] | str, *, config: Any, description: str) -> None:
    """Registers a model: `make(config, input_shape, rngs)` returns an nnx module."""
    models.register(name, make, config=config, description=description)


def register_algorithm(
    name: str, make: Callable[..., Any] | str, *, config: Any, description: str, loop: str = "online"
) -> None:
    """Registers an algorithm: `make(config, spec, group, context)` returns an `Algorithm` for that group."""
    algorithms.register(name, make, config=config, description=description, loop=loop)


def build_config(config: Any, values: Mapping[str, Any], where: str) -> Any:
    """`config` with `values` put in, each checked against its field's type; bad ones raise UsageError in one line.

    Enums take their names, tuples take lists, floats take whole numbers. Nested dataclasses take mappings.
    """
    hints = typing.get_type_hints(type(config))
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


def coerce(hint: Any, value: Any, where: str, default: Any = None) -> Any:
    """`value` as the type `hint`, or UsageError."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return value
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
            raise unknown_name(f"value for {where}", str(value), names)
        return hint[value]
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        if isinstance(value, hint):
            return value
        if not isinstance(value, dict):
            raise UsageError(f"{where} takes a mapping, not {value!r}")
        return build_config(default if default is not None else hint(), value, where)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if (isinstance(value, bool) and hint is not bool) or not isinstance(value, hint):
        raise UsageError(f"{where} takes {hint.__name__}, not {value!r}")
    return value
