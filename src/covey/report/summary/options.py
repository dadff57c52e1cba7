"""What a user can choose about a summary, and the random generators that follow from it."""

from __future__ import annotations

import enum
import zlib
from dataclasses import dataclass

import numpy as np

from covey.metrics import MEAN_RETURN


class Normalisation(enum.Enum):
    """What 0 and 1 mean on a task's scale."""

    anchors = "fixed: a random team and the best published result"
    minmax = "the worst and the best value in these runs"
    none = "values as they are"


@dataclass(frozen=True, kw_only=True)
class SummaryOptions:
    """`pairs` and `order` name algorithms as the report shows them (`Run.algorithm`)."""

    metric: str = MEAN_RETURN
    normalisation: Normalisation = Normalisation.anchors
    pairs: tuple[tuple[str, str], ...] | None = None  # algorithms to compare; None: every pair
    order: tuple[str, ...] = ()  # algorithms to list first; the others follow by name
    repetitions: int = 50_000  # of the bootstrap, for aggregates and ranks
    curve_repetitions: int = 5_000
    improvement_repetitions: int = 2_000  # also for profiles
    seed: int = 0  # of the bootstrap: the same runs and options give the same summary

    def __post_init__(self) -> None:
        for name in ("repetitions", "curve_repetitions", "improvement_repetitions"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.seed < 0:
            raise ValueError(f"seed must be at least 0, not {self.seed}")


def make_generator(options: SummaryOptions, *names: str) -> np.random.Generator:
    """A generator for one number of the report.

    It depends on the seed and on `names` only, so a number does not change with the other algorithms in the report.
    """
    return np.random.default_rng([options.seed, *(zlib.crc32(name.encode()) for name in names)])
