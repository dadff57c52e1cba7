"""Fields that may change between chunks though programs are compiled from them, such as the size of minibatches.

They set shapes within an iteration and none of the train state, which passes from one program to the next as it is.
Fields say so themselves (`fields.FieldRole.changeable`), and shapes are compared before anything is compiled.
What a run has changed is in its checkpoints, beside the state that it holds for; config.yaml is how the run began.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from covey.errors import CoveyError, UsageError
from covey.experiment.configuration.config import (
    Config,
    check_overruled,
    from_dict,
    plain,
    roles_in,
    to_dict,
)
from covey.experiment.running.build import Parts, build_learning, check_update, example_key, init_shapes
from covey.experiment.running.programs import Programs, accept_empty_leaves, uncompiled
from covey.loops.base import Loop, state_shapes
from covey.types import PyTree

Changes = dict[str, Any]  # values by the path of their field, as JSON has them


def with_changes(config: Config, changes: Mapping[str, Any]) -> Config:
    """`config` with other values of some fields, checked like any configuration."""
    values = to_dict(config)
    for path, value in changes.items():
        *parents, name = path.split(".")
        section = values
        for parent in parents:
            section = section[parent]
        section[name] = plain(value)
    return from_dict(values)


def changes_with(start: Config, changes: Mapping[str, Any], path: str, value: Any) -> Changes:
    """`changes` of the configuration that a run began with, after one more: those that differ from it.

    Raises CoveyError, in one line, where the field cannot change or take the value."""
    path = re.sub(r"^buffer\.", "experiment.buffer.", path)  # as on the command line
    allowed = [known for known, role, _ in roles_in(start) if role.changeable]
    if path not in allowed:
        can = f"those that can: {', '.join(allowed) or 'none'}; set_coefficient sets coefficients, such as lr"
        raise CoveyError(f"set_field: '{path}' cannot change while training runs; {can}")
    try:
        config = with_changes(start, {**changes, path: value})
        changed = to_dict(config)
        check_overruled([path], changed, config)
    except UsageError as error:
        raise CoveyError(f"set_field: {path}={value}: {error}") from error
    before = to_dict(start)
    found = {known: (value_at(changed, known), value_at(before, known)) for known in sorted({*changes, path})}
    return {known: new for known, (new, old) in found.items() if new != old}


def value_at(values: Mapping[str, Any], path: str) -> Any:
    """What a configuration as a tree has at a path."""
    found: Any = values
    for name in path.split("."):
        found = found[name]
    return found


@dataclasses.dataclass(frozen=True, kw_only=True)
class Variant:
    """An experiment with some values of these fields, ready to continue what any of its other variants trained."""

    config: Config
    parts: Parts
    programs: Programs

    def is_compiled(self, changes: Mapping[str, Any]) -> bool:
        """Whether this variant, which a run began with, was changed in this way before."""
        return not changes or _key(changes) in self.programs.again

    def changed(self, changes: Mapping[str, Any]) -> Variant:
        """This variant, which a run began with, after `changes`; CoveyError where the train state would be another.

        Built and compiled once in a process, for all seeds."""
        if not changes:
            return self
        try:
            config, known = with_changes(self.config, changes), self.programs.again
            if not self.is_compiled(changes):
                known[_key(changes)] = _build_again(config, self.parts, self.programs)
        except UsageError as error:
            raise CoveyError(f"cannot continue with {describe_changes(changes)}: {error}") from error
        parts, advance = known[_key(changes)]
        return Variant(config=config, parts=parts, programs=dataclasses.replace(self.programs, advance=advance))


def _key(changes: Mapping[str, Any]) -> str:
    return json.dumps(changes, sort_keys=True)


def _build_again(config: Config, parts: Parts, programs: Programs) -> tuple[Parts, Callable[..., Any]]:
    """`parts` with the algorithm and the loop of `config`, and training's program; resets and evaluations stay."""
    algorithm, loop = build_learning(config, parts.env, parts.devices, parts.num_seeds, parts.seating)
    before, after = state_shapes(parts.loop, example_key(parts.num_seeds)), init_shapes(config, loop, parts.num_seeds)
    if difference := difference_in_state(parts.loop, loop, before, after):
        raise UsageError(difference)
    if loop.compiled is None:
        raise UsageError("fields that set shapes cannot change while actors step the environments")
    check_update(config, loop, after)
    parts = dataclasses.replace(parts, algorithm=algorithm, loop=loop)
    if not config.jit:
        return parts, uncompiled(parts).advance
    return parts, accept_empty_leaves(programs.compile_again(loop.compiled.lower(after, np.int32(1))))


def difference_in_state(old: Loop, new: Loop, before: PyTree, after: PyTree) -> str:
    """What keeps a state of the `old` loop, of shapes `before`, from continuing in the `new` one; empty if nothing."""
    if new.frames_per_iteration != old.frames_per_iteration:
        return "an iteration would have another number of frames"
    if new.max_iterations != old.max_iterations or new.parts != old.parts:
        return "the loop would keep other parts"
    leaves, others = _described_leaves(before), _described_leaves(after)
    structures: list[Any] = [jax.tree.structure(tree) for tree in (before, after)]
    if leaves == others and structures[0] == structures[1]:
        return ""
    differing = [path for path in leaves | others if leaves.get(path) != others.get(path)]
    return f"the train state would have other shapes ({', '.join(differing[:1])})"


def _described_leaves(tree: PyTree) -> dict[str, tuple[Any, ...]]:
    """The shape, type and place of each leaf by its path."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {jax.tree_util.keystr(path): (leaf.shape, leaf.dtype, leaf.sharding) for path, leaf in leaves}


def describe_changes(changes: Mapping[str, Any]) -> str:
    return ", ".join(f"{path}={'null' if value is None else value}" for path, value in changes.items())
