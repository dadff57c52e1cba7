"""`Run`, one experiment's results, and `Problem`, something odd about them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

LARGEST = 1e100  # sums and squares of larger numbers may be infinite


@dataclass(frozen=True, kw_only=True)
class Run:
    """One experiment's results. E evaluations, in order of frames; E may be 0 if there is an absolute metric.

    `algorithm` is the name that the report shows. If runs of one algorithm differ in model or in fields, it says so
    (`ippo (model=gru)`), and so does `task` (`vmas/balance (time_limit=300)`).
    """

    task: str  # "suite/name"
    algorithm: str
    seed: str  # "0"
    frames: np.ndarray  # [E], ascending
    seconds: np.ndarray | None  # [E]; None if the file has no times
    episodes: dict[str, list[np.ndarray]]  # by metric, for each evaluation its episodes' values; NaN if not finite
    absolute: dict[str, np.ndarray]  # by metric, the episodes' values of the best parameters; empty if there are none
    folder: Path | None  # covey's run directory
    source: Path  # the file that this was read from
    system: str = ""  # "covey", "BenchMARL", "Mava", "OG-MARL"; "" if the file does not show it
    config: Mapping[str, Any] = field(default_factory=dict)  # config.yaml of `folder`
    environment: Mapping[str, Any] = field(default_factory=dict)  # environment.json of `folder`
    failure: str = ""  # why it stopped for good before its end; "" if it is done or still running

    @property
    def title(self) -> str:
        """`mappo on vmas/balance, seed 0`."""
        return f"{self.algorithm} on {self.task}, seed {self.seed}"

    @property
    def task_config(self) -> Mapping[str, Any]:
        """The task's fields in config.yaml; empty if they are not known."""
        fields = self.config.get("task")
        return fields if isinstance(fields, Mapping) else {}


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Something odd, and what was done about it, in plain words: `where: what (why)`."""

    what: str  # "seed 2 is missing"
    where: str  # "mappo on vmas/balance", or a path
    why: str  # what it means or what was done: "intervals use the available seeds"


def describe(problem: Problem) -> str:
    """A problem in one line."""
    return f"{problem.where}: {problem.what} ({problem.why})"


def sort_key(seed: str) -> tuple[int, str]:
    """Sorts seeds by number, and other names after them."""
    return (int(seed), "") if seed.isdecimal() and len(seed) < 19 else (2**63, seed)


def as_number(value: Any) -> float | None:
    """A number that can be computed with, or the only number in a list; otherwise None."""
    if isinstance(value, list) and len(value) == 1:
        [value] = value
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:  # an integer of hundreds of digits
        return None
    return number if abs(number) <= LARGEST else None
