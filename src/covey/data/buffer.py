"""The fields of a replay buffer. This file does not import JAX: configurations are read before it starts."""

from __future__ import annotations

import dataclasses
import enum

from covey.checks import at_least, between_0_and_1
from covey.fields import field


class Place(enum.Enum):
    """Where a buffer's contents are. On a CPU both are the same memory."""

    device = "on the device, beside the networks"
    host = "in the host's memory, for buffers that an accelerator cannot hold"


@dataclasses.dataclass(frozen=True, kw_only=True)
class BufferConfig:
    """Fields of `buffer`."""

    size: int = 100_000  # frames that the buffer holds; newer ones replace the oldest
    batch_size: int = field(128, changeable=True)  # sequences in each sample that an update learns from
    # where the buffer's contents are; on a CPU both are the same memory
    place: Place = field(Place.device, compared=False)
    # save the buffer with each checkpoint; false: small checkpoints, and a resumed run updates less often until its
    # buffer is filled again
    in_checkpoints: bool = field(True, compared=False)
    prioritised: bool = False  # sample sequences with a large temporal-difference error more often; false: all alike
    priority_exponent: float = 0.6  # how much errors matter in prioritised sampling: 0 not at all, 1 in proportion
    # how far losses are weighted to make up for prioritised sampling: 0 not at all, 1 fully
    importance_exponent: float = 0.4

    def __post_init__(self) -> None:
        at_least(self, 1, "size", "batch_size")
        between_0_and_1(self, "priority_exponent", "importance_exponent")
