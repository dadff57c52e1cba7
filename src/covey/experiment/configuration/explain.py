"""`covey show` and `covey help`: configurations with what covey.fields knows about each field.

What is shown is YAML that can be used as a preset; explanations are its comments.
"""

from __future__ import annotations

import dataclasses
import textwrap
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from covey import registry
from covey.aliases import fields_called
from covey.errors import UsageError, nearest
from covey.experiment.configuration.compose import compose, list_presets
from covey.experiment.configuration.config import (
    CHOICES,
    Choice,
    Config,
    HooksConfig,
    choice_defaults,
    loop_defaults,
    plain,
    sections,
    to_dict,
    yaml_text,
)
from covey.fields import Field, default_of, explanations, fields_of, roles

WIDTH = 120
KINDS = {"algorithm": registry.algorithms, "model": registry.models, "task": registry.tasks}


# ------------------------------------------------------------------------------------------------------------- show


def commented_yaml(config: Config) -> str:
    """`to_yaml(config)` with each field's explanation, and the values that it takes, in comments above it.

    The fields of a class are explained once: the critic's model usually has the same fields as the actor's.
    """
    comments: dict[str, list[str]] = {}
    said: set[type] = set()
    for field in top_fields(config):
        if field.name not in CHOICES:
            comments[field.path] = comment_lines(field)
    for path, section in sections(config):
        if type(section) not in said:
            comments |= {field.path: comment_lines(field) for field in fields_of(section, path)}
            said.add(type(section))
    return "".join(_with_comments(to_dict(config), comments, ""))


def _with_comments(tree: Mapping[str, Any], comments: Mapping[str, list[str]], path: str) -> Iterator[str]:
    indent = "  " * path.count(".") + ("  " if path else "")
    for key, value in tree.items():
        here = f"{path}.{key}" if path else key
        for line in comments.get(here, ()):
            yield from (f"{part}\n" for part in _comment(line, indent))
        if isinstance(value, Mapping) and value and any(name.startswith(f"{here}.") for name in comments):
            yield f"{indent}{key}:\n"
            yield from _with_comments(value, comments, here)
        else:
            yield textwrap.indent(yaml_text({key: value}), indent)


def _comment(line: str, indent: str) -> list[str]:
    deeper = " " * (len(line) - len(line.lstrip()))
    return textwrap.wrap(
        line.strip(),
        WIDTH,
        initial_indent=f"{indent}# {deeper}",
        subsequent_indent=f"{indent}# {deeper}",
        break_long_words=False,
        break_on_hyphens=False,
    )


def comment_lines(field: Field) -> list[str]:
    """What a field means and takes: a line, and one more for each value where they have names."""
    if not field.explanation:
        return []
    choices = [f"  {name}: {meaning}" if meaning else f"  {name}" for name, meaning in field.choices.items()]
    limit = f" ({field.limit})" if field.limit and field.limit not in field.explanation else ""
    return [f"{field.explanation}{limit}", *choices]


def top_fields(config: Config) -> Iterator[Field]:
    """The fields of `Config` itself."""
    hints, explained = typing.get_type_hints(Config), explanations(Config)
    for name, role in roles(Config).items():
        value = getattr(config, name)
        yield Field(path=name, value=value, hint=hints[name], explanation=explained[name], limit="", role=role)


# ------------------------------------------------------------------------------------------------------------- help


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answer:
    """A field that `covey help` explains."""

    field: Field
    owner: str  # what has it: `algorithm=mappo`; empty where everything does
    default: Any


def explain(query: str, words: Sequence[str], verbs: Mapping[str, Any]) -> Iterator[str]:
    """The lines that answer `covey help QUERY [key=value …]`.

    `query` is a field (`algorithm.lr`, `lr`), a section (`algorithm`), or a registered name (`mappo`). `verbs` holds
    the options of the verbs that have some, as dataclasses or `module:attribute` of one.
    """
    config = compose(words)
    named = list(describe_names(query))
    answers = [] if named else find(query, config, verbs)
    if not named and not answers:
        raise UsageError(f"nothing is called '{query}'; nearest: {', '.join(_near(query, config, verbs))}")
    yield from named
    for number, answer in enumerate(answers):
        yield from [""] if number else []
        yield from describe(answer)


def find(query: str, config: Config, verbs: Mapping[str, Any]) -> list[Answer]:
    """The fields that `query` names, from the first place that has any: this configuration, then other choices."""
    places: list[Callable[[], Iterable[Answer]]] = [
        lambda: in_config(config),
        lambda: in_loops(config),
        lambda: in_registry("algorithm"),
        lambda: in_registry("model"),
        lambda: in_verbs(verbs),
        lambda: in_registry("task"),
    ]
    for place in places:
        found = matching(query, list(place()))
        if found:
            return found
    return []


def matching(query: str, answers: Sequence[Answer]) -> list[Answer]:
    """The fields with that path, or else those whose path ends in it. If only the owner differs, the first counts."""
    wanted = query.lower()
    exact = [answer for answer in answers if answer.field.path.lower() == wanted]
    ending = [answer for answer in answers if answer.field.path.lower().endswith(f".{wanted}")]
    first: dict[str, Answer] = {}
    for answer in exact or ending:
        first.setdefault(answer.field.path.removeprefix("critic_"), answer)
    return list(first.values())


def in_config(config: Config) -> Iterator[Answer]:
    without = {field.name: default_of(field) for field in dataclasses.fields(Config)}
    for field in top_fields(config):
        yield Answer(field=field, owner="", default=without[field.name])
    for path, section in sections(config):
        default = _default_section(config, path)
        owner = f"{path}={getattr(config, path).name}" if path in CHOICES else ""
        values = {field.path: field.value for field in fields_of(default, path)}
        for field in fields_of(section, path):
            yield Answer(field=field, owner=owner, default=values[field.path])


def _default_section(config: Config, path: str) -> Any:
    if path == "experiment":
        return loop_defaults(config.algorithm.registered, config.experiment.loop)
    if path == "hooks":
        return HooksConfig()
    kind, _, group = path.partition(".groups.")
    return choice_defaults(kind, getattr(config, kind).of(group).registered)


def in_loops(config: Config) -> Iterator[Answer]:
    """Fields of `experiment` in the other loops."""
    for entry in registry.loops:
        if entry.name != config.experiment.loop:
            yield from _answers(entry.defaults(), "experiment", f"experiment.loop={entry.name}")


def in_registry(kind: str) -> Iterator[Answer]:
    for entry in KINDS[kind]:
        defaults = _defaults_of(entry)
        if defaults is not None:
            yield from _answers(defaults, kind, f"{kind}={entry.name}")


def in_verbs(verbs: Mapping[str, Any]) -> Iterator[Answer]:
    for verb, options in verbs.items():
        cls = registry.import_attribute(options) if isinstance(options, str) else options
        yield from _answers(cls(), verb, f"covey {verb}")


def _answers(defaults: Any, path: str, owner: str) -> Iterator[Answer]:
    for field in fields_of(defaults, path):
        yield Answer(field=field, owner=owner, default=field.value)


def _defaults_of(entry: registry.Entry) -> Any:
    """None where a package that it needs is not installed."""
    try:
        return entry.defaults()
    except ImportError:
        return None


def describe(answer: Answer) -> Iterator[str]:
    field = answer.field
    yield f"{field.path}{f'  ({answer.owner})' if answer.owner else ''}"
    if field.explanation:
        yield from _indented(field.explanation)
    if dataclasses.is_dataclass(field.value):
        yield from _describe_section(field)
        return
    width = max(map(len, field.choices), default=0)
    for name, meaning in field.choices.items():
        yield from _indented(meaning, f"  {name:{width}}  ")
    for label, text in _facts(answer):
        yield from _indented(text, f"{label:9} ")
    yield from _also_in(answer)


def _facts(answer: Answer) -> Iterator[tuple[str, str]]:
    field = answer.field
    optional = ", or null" if type(None) in typing.get_args(field.hint) else ""
    yield "takes", f"one of these{optional}" if field.choices else field.takes
    yield "default", _in_yaml(answer.default)
    if field.value != answer.default:
        yield "here", _in_yaml(field.value)
    section, _, rest = field.path.partition(".")
    if field.role.resumable:
        yield "resume", "may change it"
    if field.role.changeable:
        yield "training", "callbacks may change it while it runs (set_field)"
    if section == "experiment" and (only := _loops_with(rest)):
        yield "only for", only


def _describe_section(field: Field) -> Iterator[str]:
    """The fields under a section, as `covey show` prints them."""
    section = field.value
    if isinstance(field.value, Choice):
        section = field.value.config
        yield from _indented(next(describe_names(field.value.registered, kinds=(field.name,)), ""))
    comments = {own.path: comment_lines(own) for own in fields_of(section, field.path)}
    yield from "".join(_with_comments(plain(section), comments, field.path)).splitlines()


def _also_in(answer: Answer) -> Iterator[str]:
    """Which other choices have a field of this name, with their defaults."""
    section, _, name = answer.field.path.partition(".")
    kind = section.removeprefix("critic_")
    if kind not in KINDS or not name:
        return
    by_default: dict[str, list[str]] = {}
    for entry in KINDS[kind]:
        defaults = _defaults_of(entry)
        if hasattr(defaults, name):
            by_default.setdefault(_in_yaml(getattr(defaults, name)), []).append(entry.name)
    own = answer.owner.partition("=")[2]
    groups = []
    for default, names in by_default.items():
        others = [entry.name for entry in KINDS[kind] if entry.name not in names]
        if shown := [shown for shown in _suites(names, others) if shown != own]:
            groups.append(f"{', '.join(shown)} ({default})")
    if groups:
        yield from _indented("; ".join(groups), f"{'also in':9} ")


def _loops_with(name: str) -> str:
    """The algorithms whose first loop has this field of `experiment`, or if there are none, the loops that have it.

    Empty if all algorithms have it.
    """
    first = name.partition(".")[0]
    having = [loop.name for loop in registry.loops if hasattr(loop.defaults(), first)]
    names = [entry.name for entry in registry.algorithms if entry.loop in having]
    if len(names) == len(list(registry.algorithms)):
        return ""
    return ", ".join(names or [f"experiment.loop={loop}" for loop in having])


def _suites(names: Sequence[str], others: Sequence[str]) -> list[str]:
    """`names`, with `suite/*` where all of a suite are among them; `others` are the names that are not."""
    result: dict[str, None] = {}
    for name in names:
        suite, slash, _ = name.partition("/")
        in_suite = [other for other in names if other.startswith(f"{suite}/")]
        whole = slash and len(in_suite) > 2 and not any(other.startswith(f"{suite}/") for other in others)
        result[f"{suite}/*" if whole else name] = None
    return list(result)


def describe_names(query: str, kinds: Sequence[str] = ("algorithm", "model", "task", "experiment")) -> Iterator[str]:
    """A line for each thing that is registered under a name, or is a preset of that name."""
    for kind in kinds:
        kind = kind.removeprefix("critic_")
        if kind in KINDS and query in KINDS[kind]:
            yield f"{kind}={query}: {KINDS[kind][query].description} (`covey show {kind}={query}` prints its fields)"
        elif kind == "experiment" and query in list_presets():
            yield f"experiment={query}: {list_presets()[query]} (`covey show experiment={query}` prints it)"


def _near(query: str, config: Config, verbs: Mapping[str, Any]) -> list[str]:
    paths = [answer.field.path for answer in [*in_config(config), *in_verbs(verbs)]]
    called_so = fields_called(query.rpartition(".")[2])
    names = [entry.name for kind in KINDS.values() for entry in kind]
    here = [path for path in called_so if path in paths]
    return here or list(called_so) or nearest(query, [*paths, *names, *verbs])


def _in_yaml(value: Any) -> str:
    if value is dataclasses.MISSING:
        return "none"
    text = yaml_text([plain(value)]).strip()
    return text.removeprefix("[").removesuffix("]")


def _indented(text: str, first: str = "") -> list[str]:
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=f"  {first}",
        subsequent_indent="  " + " " * len(first),
        break_long_words=False,
        break_on_hyphens=False,
    )
