"""What a replay buffer is to be: its fields, without JAX, since configurations are read before it starts."""

from __future__ import annotations

import dataclasses
import enum

from covey.checks import at_least, between_0_and_1


class Place(enum.Enum):
    """Where a buffer's contents are. On a CPU both are the same memory."""

    device = "beside the networks"
    host = "in the host's memory, for buffers that an accelerator cannot hold"


@dataclasses.dataclass(frozen=True, kw_only=True)
class BufferConfig:
    """Fields of `buffer`."""

    size: int = 100_000  # frames
    batch_size: int = 128  # sequences in a sample
    place: Place = Place.device
    in_checkpoints: bool = True  # without it checkpoints are small, and a resumed run fills its buffer anew
    prioritised: bool = False
    priority_exponent: float = 0.6
    importance_exponent: float = 0.4  # of the weights that make up for sampling some more often; 1: fully

    def __post_init__(self) -> None:
        at_least(self, 1, "size", "batch_size")
        between_0_and_1(self, "priority_exponent", "importance_exponent")
