"""What a configuration's fields mean, read from the dataclasses themselves: the comments there are the only source.

    lr: float = 1e-3  # step size of Adam

A field's explanation is the comment at its end, or, where that is too long for a line, the comment lines right above
it. A subclass that only changes a field's default keeps the explanation of its parent. Members of an enum are explained
by their value, if that is a text, or by a comment in the same way.

    class Schedule(enum.Enum):
        linear = "falls linearly to zero"

`covey show`, `covey help` and the tests read them here. Sources are read on demand.

The role of a field in an experiment is metadata on the field. Most fields have the default role and state none:

    frames: int = field(2_000_000, resumable=True, compared=False, compiled=False)

`roles_of` reads it. A subclass that only changes a field's default keeps the role, as it keeps the explanation.
"""

from __future__ import annotations

import ast
import dataclasses
import enum
import functools
import inspect
import io
import sys
import textwrap
import tokenize
import types
import typing
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from covey.checks import limits

FOR_TOOLS = ("# type:", "# noqa", "# fmt:")  # comments that are not for people
TYPE_WORDS = {int: "a whole number", float: "a number", str: "a text", bool: "true or false", dict: "a mapping"}


ROLE = "covey_role"  # the key of a field's metadata


@dataclasses.dataclass(frozen=True, kw_only=True)
class FieldRole:
    """The role of a field in an experiment. The defaults are those of a hyperparameter."""

    identity: bool = True  # another value makes another experiment of a benchmark, in another folder
    # added after benchmarks whose folders must still be found: in the identity only where it is not at its default
    newer: bool = False
    resumable: bool = False  # `covey resume` may change it
    # `Training.set_field` may change it between chunks: it sets shapes within an iteration, and none of the train state
    changeable: bool = False
    compared: bool = True  # reports tell runs apart by it; false for where, how long or under what watch a run trains
    compiled: bool = True  # the compiled programs depend on it
    overruled_by: str | None = None  # another field of its dataclass, which makes it have no effect unless that is None
    # what of its value names code: modules to import, or folders to find them in. A stored configuration that names
    # code is read only if its run is trusted (trust.py)
    code: Callable[[Any], Any] | None = None


def whole(value: Any) -> Any:
    """For fields whose value is the name of code: `field("", code=whole)`."""
    return value


def field(default: Any = dataclasses.MISSING, *, default_factory: Any = dataclasses.MISSING, **role: Any) -> Any:
    """A dataclass field with a role of its own; `role` are fields of `FieldRole`."""
    metadata = {ROLE: FieldRole(**role)}
    if default_factory is not dataclasses.MISSING:
        return dataclasses.field(default_factory=default_factory, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def roles(cls: type) -> dict[str, FieldRole]:
    """The role of each field of a dataclass: what its class says, or the nearest that it inherits from."""
    found = {own.name: FieldRole() for own in dataclasses.fields(cls)}
    for base in reversed(cls.__mro__):
        if dataclasses.is_dataclass(base):
            found |= {own.name: own.metadata[ROLE] for own in dataclasses.fields(base) if ROLE in own.metadata}
    return found


def roles_of(config: Any, path: str) -> Iterator[tuple[str, FieldRole, bool]]:
    """The path and role of each field of a dataclass instance, and whether it has its default. A field that is a
    dataclass itself is followed by its own fields. Reads no sources."""
    known = roles(type(config))
    for own in dataclasses.fields(config):
        value, here = getattr(config, own.name), f"{path}.{own.name}" if path else own.name
        yield here, known[own.name], value == default_of(own)
        if dataclasses.is_dataclass(value):
            yield from roles_of(value, here)


def code_in(cls: type, values: Mapping[str, Any]) -> Iterator[str]:
    """The names of code in `values`, which are the stored fields of a dataclass.

    A stranger may have stored them, so they may have any types.
    """
    known = roles(cls)
    for own in dataclasses.fields(cls):
        value, name_code = values.get(own.name), known[own.name].code
        if name_code is not None:
            yield from _texts(name_code(value))
        elif isinstance(value, Mapping) and dataclasses.is_dataclass(nested := default_of(own)):
            yield from code_in(type(nested), value)


def _texts(value: Any) -> Iterator[str]:
    """What is in nested lists and mappings, as texts."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple, set)):
        for item in value:
            yield from _texts(item)
    elif value is not None and value != "":
        yield str(value)


def default_of(own: dataclasses.Field[Any]) -> Any:
    """A field's default, `MISSING` where it has none."""
    return own.default if own.default_factory is dataclasses.MISSING else own.default_factory()


def without(values: Mapping[str, Any], paths: Collection[str], prefix: str = "") -> dict[str, Any]:
    """Nested mappings without what is under one of the dotted `paths`."""
    return {
        name: without(value, paths, f"{prefix}{name}.") if isinstance(value, Mapping) else value
        for name, value in values.items()
        if f"{prefix}{name}" not in paths
    }


@dataclasses.dataclass(frozen=True, kw_only=True)
class Field:
    """A field of a configuration: value, type, meaning and limits."""

    path: str  # `algorithm.lr`
    value: Any
    hint: Any  # its type
    explanation: str  # empty where its class says nothing
    limit: str  # `above 0`; empty where nothing is checked
    role: FieldRole = FieldRole()

    @property
    def name(self) -> str:
        return self.path.rpartition(".")[2]

    @property
    def takes(self) -> str:
        """What values are allowed: `a number above 0, or null`."""
        words = type_words(self.hint)
        if not self.limit:
            return words
        return f"{words.removesuffix(', or null')} {self.limit}{', or null' if words.endswith(', or null') else ''}"

    @property
    def choices(self) -> dict[str, str]:
        """For a field of named values: each name with its meaning."""
        found = enum_in(self.hint)
        return meanings(found) if found else {}


def fields_of(config: Any, path: str) -> Iterator[Field]:
    """The fields of a dataclass instance. A field that is a dataclass itself is followed by its own fields."""
    hints, explained, limited = typing.get_type_hints(type(config)), explanations(type(config)), limits(config)
    known = roles(type(config))
    for own in dataclasses.fields(config):
        value, here = getattr(config, own.name), f"{path}.{own.name}" if path else own.name
        yield Field(
            path=here,
            value=value,
            hint=hints[own.name],
            explanation=explained.get(own.name, ""),
            limit=limited.get(own.name, ""),
            role=known[own.name],
        )
        if dataclasses.is_dataclass(value) and enum_in(hints[own.name]) is None:
            yield from fields_of(value, here)


def explanations(cls: type) -> dict[str, str]:
    """The explanation of each field of a dataclass that has one; a class's own comes before those it inherits."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        found |= _comments_in(base)
    return found


def meanings(cls: type[enum.Enum]) -> dict[str, str]:
    """The meaning of each member of an enum; empty for one that says nothing beyond its name."""
    comments = _comments_in(cls)
    described = {member.name: member.value for member in cls if isinstance(member.value, str)}
    said = {name: text for name, text in described.items() if text != name}
    return {member.name: comments.get(member.name) or said.get(member.name, "") for member in cls}


def enum_in(hint: Any) -> type[enum.Enum] | None:
    """The enum that a type is, or may be."""
    for candidate in (hint, *typing.get_args(hint)):
        if isinstance(candidate, type) and issubclass(candidate, enum.Enum):
            return candidate
    return None


def type_words(hint: Any) -> str:
    """A type in words: `a list of whole numbers, or null`."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        words = [type_words(argument) for argument in arguments if argument is not type(None)]
        return " or ".join(words) + (", or null" if type(None) in arguments else "")
    if origin in (tuple, list):
        items = dict.fromkeys(type_words(argument) for argument in arguments if argument is not Ellipsis)
        return f"a list of {' or '.join(_plural(item) for item in items)}" if items else "a list"
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        names = [member.name for member in hint]
        return f"one of {', '.join(names)}"
    if dataclasses.is_dataclass(hint):
        return "a mapping of fields"
    return TYPE_WORDS.get(origin or hint, "anything")


def _plural(words: str) -> str:
    return words if words.startswith("a list") else words.removeprefix("a ") + "s"


# --------------------------------------------------------------------------------------------------------- comments


def _comments_in(cls: type) -> Mapping[str, str]:
    """The comments in the body of one class, by the name that is set beside them."""
    return _comments_of_module(cls.__module__).get(cls.__qualname__, {})


@functools.cache
def _comments_of_module(module: str) -> dict[str, dict[str, str]]:
    """The comments of all classes of a module by their qualified names; empty where there is no source to read."""
    try:
        return comments_of_source(inspect.getsource(sys.modules[module]))
    except (KeyError, OSError, TypeError, SyntaxError, tokenize.TokenError):
        return {}


def comments_of_source(source: str) -> dict[str, dict[str, str]]:
    lines = source.splitlines(keepends=True)
    found: dict[str, dict[str, str]] = {}

    def visit(node: ast.AST, path: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef):
                found[f"{path}{child.name}"] = _comments_of_class(child, lines)
                visit(child, f"{path}{child.name}.")
            elif isinstance(child, ast.FunctionDef):
                visit(child, f"{path}{child.name}.<locals>.")
            elif isinstance(child, ast.stmt):  # an `if`, for example
                visit(child, path)

    visit(ast.parse(source), "")
    return found


def _comments_of_class(node: ast.ClassDef, lines: Sequence[str]) -> dict[str, str]:
    named = [(name, statement) for statement in node.body if (name := _name_set_by(statement))]
    if not named:
        return {}
    # Only these lines: tokenising takes longer than everything else here.
    comments = _comments_by_line(lines, node.lineno, named[-1][1].end_lineno or node.lineno)

    def comment_of(statement: ast.stmt) -> str:
        first = statement.lineno
        while first - 1 in comments and lines[first - 2].lstrip().startswith("#"):
            first -= 1
        above = [comments[number] for number in range(first, statement.lineno)]
        return " ".join([*above, comments.get(statement.end_lineno or statement.lineno, "")]).strip()

    return {name: text for name, statement in named if (text := comment_of(statement))}


def _comments_by_line(lines: Sequence[str], first: int, last: int) -> dict[int, str]:
    """The comments in lines `first` to `last`, which are counted from 1."""
    part = io.StringIO(textwrap.dedent("".join(lines[first - 1 : last])))
    return {
        first + token.start[0] - 1: token.string.lstrip("# ").strip()
        for token in tokenize.generate_tokens(part.readline)
        if token.type == tokenize.COMMENT and not token.string.startswith(FOR_TOOLS)
    }


def _name_set_by(statement: ast.stmt) -> str | None:
    """The field or member that a statement of a class's body defines."""
    match statement:
        case ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]):
            return name
        case _:
            return None
