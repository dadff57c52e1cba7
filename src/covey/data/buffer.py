"""What a replay buffer is to be: its fields, without JAX, since configurations are read before it starts."""

from __future__ import annotations

import dataclasses

from covey.checks import at_least, between_0_and_1


@dataclasses.dataclass(frozen=True, kw_only=True)
class BufferConfig:
    """Fields of `buffer`."""

    size: int = 100_000  # frames
    batch_size: int = 128  # sequences in a sample
    in_checkpoints: bool = True  # without it checkpoints are small, and a resumed run fills its buffer anew
    prioritised: bool = False
    priority_exponent: float = 0.6
    importance_exponent: float = 0.4  # of the weights that make up for sampling some more often; 1: fully

    def __post_init__(self) -> None:
        at_least(self, 1, "size", "batch_size")
        between_0_and_1(self, "priority_exponent", "importance_exponent")
