"""Every field of a configuration explains itself: comments on the dataclasses are read, and each field has one."""

from __future__ import annotations

import dataclasses
import enum
import typing
from collections.abc import Iterator
from typing import Any

import pytest

from covey import cli, registry
from covey.checks import above_zero, at_least, at_most, between_0_and_1, limits
from covey.experiment.configuration.compose import compose
from covey.experiment.configuration.config import Config, HooksConfig, not_compared, roles_in
from covey.fields import (
    FieldRole,
    comments_of_source,
    enum_in,
    explanations,
    field,
    fields_of,
    meanings,
    roles,
    roles_of,
    type_words,
    without,
)


class Colour(enum.Enum):
    red = "the colour of tomatoes"
    blue = "blue"  # the colour of the sky
    green = "green"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Inner:
    depth: int = 1  # how deep


@dataclasses.dataclass(frozen=True, kw_only=True)
class Base:
    width: int = 2  # how wide
    # a longer story about the colour,
    # in two lines
    colour: Colour = Colour.red
    plain: float = 0.0

    share: float | None = 0.5  # from nothing to all

    def __post_init__(self) -> None:
        at_least(self, 1, "width")
        between_0_and_1(self, "share")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Derived(Base):
    width: int = 3
    plain: float = 1.0  # said here
    inner: Inner = dataclasses.field(default_factory=Inner)
    sizes: tuple[int, ...] = (
        1,
        2,
    )  # over several lines

    def __post_init__(self) -> None:
        super().__post_init__()
        above_zero(self, "plain")


def test_comments_are_read_from_the_class_and_those_it_inherits_from() -> None:
    assert explanations(Base) == {
        "width": "how wide",
        "colour": "a longer story about the colour, in two lines",
        "share": "from nothing to all",
    }
    assert explanations(Derived) == explanations(Base) | {"plain": "said here", "sizes": "over several lines"}


def test_a_class_inside_a_function_and_one_without_a_source() -> None:
    @dataclasses.dataclass
    class Local:
        x: int = 1  # of here

    assert explanations(Local) == {"x": "of here"}
    assert explanations(dataclasses.make_dataclass("Made", [("x", int, 1)])) == {}


def test_comments_for_tools_and_between_classes_are_not_for_people() -> None:
    source = "class A:\n    x = 1  # noqa\n    # fmt: off\n    y = 2\n# of nothing\n\nz = 3  # neither\n"
    assert comments_of_source(source) == {"A": {}}


def test_values_with_names_have_meanings() -> None:
    assert meanings(Colour) == {"red": "the colour of tomatoes", "blue": "the colour of the sky", "green": ""}


def test_limits_are_those_that_are_checked() -> None:
    assert limits(Derived()) == {"width": "from 1 up", "share": "from 0 to 1", "plain": "above 0"}
    assert limits(Inner()) == {}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Counting:
    agents: int = 2  # how many

    def __post_init__(self) -> None:
        at_most(self, 2_000, "agents")
        at_least(self, 1, "agents")


def test_a_field_may_have_several_limits() -> None:
    assert limits(Counting()) == {"agents": "from 1 up, at most 2,000"}
    assert limits(registry.tasks["vmas/navigation"].defaults())["n_agents"].endswith("at most 256")


def test_fields_know_all_about_themselves() -> None:
    fields = {field.path: field for field in fields_of(Derived(), "task")}
    names = ["width", "colour", "plain", "share", "inner", "inner.depth", "sizes"]
    assert list(fields) == [f"task.{name}" for name in names]
    assert fields["task.share"].takes == "a number from 0 to 1, or null"
    assert fields["task.colour"].choices == meanings(Colour)
    assert (fields["task.inner.depth"].value, fields["task.inner.depth"].explanation) == (1, "how deep")


@pytest.mark.parametrize(
    ("hint", "words"),
    [
        (int, "a whole number"),
        (float | None, "a number, or null"),
        (bool, "true or false"),
        (tuple[int, ...], "a list of whole numbers"),
        (tuple[tuple[str, ...], ...] | None, "a list of a list of texts, or null"),
        (int | tuple[int, ...], "a whole number or a list of whole numbers"),
        (dict[str, Any], "a mapping"),
        (Colour, "one of red, blue, green"),
        (Any, "anything"),
    ],
)
def test_types_in_words(hint: Any, words: str) -> None:
    assert type_words(hint) == words


# ------------------------------------------------------------------------------------------------ every real field


def configurations() -> Iterator[tuple[str, Any]]:
    """Every dataclass that a user can set fields of, with a name to find it by."""
    yield "Config", Config
    yield "hooks", HooksConfig
    yield from ((f"loop {entry.name}", type(entry.defaults())) for entry in registry.loops)
    for verb, options in cli.OPTIONS.items():
        yield verb, registry.import_attribute(options) if isinstance(options, str) else options
    for kind in (registry.algorithms, registry.models, registry.tasks):
        yield from ((f"{kind.kind} {entry.name}", type(entry.defaults())) for entry in kind)


def test_every_field_and_every_value_is_explained() -> None:
    checked: set[type] = set()
    problems = []
    for name, cls in configurations():
        if cls in checked:
            continue
        checked.add(cls)
        hints, explained = typing.get_type_hints(cls), explanations(cls)
        for own in dataclasses.fields(cls):
            text = explained.get(own.name, "")
            if not text or "None" in text:  # what a user types is null
                problems.append(f"{name}: {cls.__name__}.{own.name}")
            values = enum_in(hints[own.name])
            if values:
                problems += [f"{values.__name__}.{value}" for value, meaning in meanings(values).items() if not meaning]
    assert not problems
    assert len(checked) > 60


def test_nested_fields_are_explained_too() -> None:
    for loop in registry.loops:
        assert all(field.explanation for field in fields_of(loop.defaults(), "experiment"))


# ------------------------------------------------------------------------------------------------------------- roles


@dataclasses.dataclass(frozen=True)
class Nested:
    place: str = field("here", compared=False)


@dataclasses.dataclass(frozen=True)
class Whole:
    rate: float = 0.5
    frames: int = field(10, resumable=True)
    options: dict[str, Any] = field(default_factory=dict, identity=False)
    inner: Nested = dataclasses.field(default_factory=Nested)


@dataclasses.dataclass(frozen=True)
class Retimed(Whole):
    frames: int = 20


def test_roles_are_read_from_the_field_and_kept_by_subclasses() -> None:
    assert roles(Retimed) == {
        "rate": FieldRole(),
        "frames": FieldRole(resumable=True),
        "options": FieldRole(identity=False),
        "inner": FieldRole(),
    }
    found = {path: (role, is_default) for path, role, is_default in roles_of(Retimed(rate=0.25), "experiment")}
    assert found["experiment.rate"] == (FieldRole(), False) and found["experiment.options"] == (
        FieldRole(identity=False),
        True,
    )
    assert found["experiment.inner.place"] == (FieldRole(compared=False), True)
    assert {name.path: name.role for name in fields_of(Retimed(), "")}["frames"] == FieldRole(resumable=True)


@pytest.mark.parametrize(
    ("algorithm", "changeable"),
    [
        ("mappo", {"algorithm.epochs", "algorithm.num_minibatches", "algorithm.minibatch_size"}),
        ("pqn", {"algorithm.epochs", "algorithm.num_minibatches"}),
        ("impala", {"algorithm.epochs", "algorithm.num_minibatches"}),
        ("qmix", {"experiment.updates", "experiment.buffer.batch_size"}),
    ],
)
def test_what_may_change_while_training_runs(algorithm: str, changeable: set[str]) -> None:
    config = compose([f"algorithm={algorithm}"])
    assert {path for path, role, _ in roles_in(config) if role.changeable} == changeable


def test_a_role_that_there_is_not_is_refused() -> None:
    with pytest.raises(TypeError, match="resumeable"):
        field(1, resumeable=True)


def test_without_leaves_out_paths_at_any_depth() -> None:
    values = {"a": 1, "b": {"a": 2, "c": {"d": 3, "e": 4}}}
    assert without(values, {"a", "b.c.d"}) == {"b": {"a": 2, "c": {"e": 4}}}


def test_each_field_of_an_experiment_has_its_role() -> None:
    """What may change in a run, and what reports do not tell runs apart by."""
    config = compose(["algorithm=iql"])
    resumable = {path for path, role, _ in roles_in(config) if role.resumable}
    watching = {
        f"experiment.{name}" for name in ("checkpoint_interval", "checkpoint_keep", "loggers", "logger_options")
    }
    place = {f"experiment.{name}" for name in ("platform", "devices", "seeds_at_once")}
    evaluating = {f"experiment.{name}" for name in ("evaluation_interval", "evaluation_episodes", "absolute_metric")}
    length = {"experiment.frames", "experiment.schedule_frames"}
    assert resumable == watching | place | evaluating | length | {"jit"}
    of_experiment = {path for path in not_compared() if path.startswith("experiment.")}
    of_actors = ("where", "address", "num", "processes", "step_seconds", "connect_seconds", "evaluation_copies")
    actors = {f"experiment.actors.{name}" for name in of_actors}
    assert of_experiment == watching | place | evaluating | actors | {
        "experiment.frames",
        "experiment.best_by",
        "experiment.evaluation_deterministic",
        "experiment.buffer.place",
        "experiment.buffer.in_checkpoints",
    }
    compiled = {path for path, role, _ in roles_in(config) if not role.compiled}
    assert compiled == watching | {
        *("seed", "seeds", "run_dir", "init_from", "code_dir", "config_dir"),
        *("experiment.frames", "experiment.evaluation_interval", "experiment.absolute_metric", "experiment.best_by"),
    }
