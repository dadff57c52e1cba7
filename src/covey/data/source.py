"""Sources give batches to learn from. A replay buffer is a source that grows, a dataset one that does not.

What belongs to an environment as a whole (global state, `last`, `reset`, …) is stored once, not once per group.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from covey.types import Array, Batch, Key, PyTree, Transition, pytree

SHARED = ("state", "next_state", "reset", "truncated", "last")  # of the environment, the same for all groups
Transitions = dict[str, Transition]


@pytree
class Sample:
    """A batch of N sequences, and where they are in the source, if it needs to know."""

    batch: Batch
    indices: Array | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """Stored experience as pure functions of a state, which holds the data.

    sample(state, key) -> Sample
    set_priorities(state, sample, priorities [N]) -> state
    """

    sample: Callable[[PyTree, Key], Sample]
    set_priorities: Callable[[PyTree, Sample, Array], PyTree]


def pack(transitions: Transitions) -> dict[str, Any]:
    """What is stored: each group's own fields, and the shared ones only once."""
    first = next(iter(transitions.values()))
    own = {
        group: {field.name: getattr(part, field.name) for field in dataclasses.fields(part) if field.name not in SHARED}
        for group, part in transitions.items()
    }
    return {"shared": {name: getattr(first, name) for name in SHARED}, "groups": own}


def unpack(packed: dict[str, Any]) -> Transitions:
    """The inverse of `pack`."""
    return {group: Transition(**own, **packed["shared"]) for group, own in packed["groups"].items()}
