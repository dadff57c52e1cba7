"""What the user sees while a benchmark runs: a live overview on a terminal, plain lines elsewhere.

The time left is estimated from the times of finished and running experiments.
"""

from __future__ import annotations

import dataclasses
import math
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import IO

from rich.console import Console as RichConsole
from rich.console import Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from covey.experiment.running.console import describe_returns, format_seconds


@dataclasses.dataclass(frozen=True, kw_only=True)
class Running:
    """A running experiment. `share` is the share of its frames that are done; None before training begins."""

    title: str
    seconds: float
    share: float | None = None
    mean_return: float | None = None
    by_group: Mapping[str, float] | None = None  # returns, shown instead if groups oppose each other
    frames_per_second: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Snapshot:
    """The state of a benchmark, in numbers of experiments. `done` includes those that an earlier command ran."""

    total: int
    done: int
    failed: int
    running: tuple[Running, ...]
    seconds_left: float | None = None

    @property
    def waiting(self) -> int:
        """Experiments that have not been started."""
        return self.total - self.done - self.failed - len(self.running)


class Overview:
    """Prints the overview, as a context manager. It has no thread: nothing changes between calls."""

    def __init__(self, stream: IO[str] | None = None, *, seconds_between_lines: float = 60.0):
        self._console = RichConsole(file=stream if stream is not None else sys.stdout)
        self._seconds_between_lines = seconds_between_lines
        self._last_line = time.monotonic()
        live = self._console.is_terminal and not self._console.is_dumb_terminal
        self._live = Live(console=self._console, auto_refresh=False, transient=True) if live else None

    def __enter__(self) -> Overview:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._live:
            self._live.stop()

    def line(self, text: str) -> None:
        """Prints a line above the live overview."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def update(self, snapshot: Snapshot) -> None:
        """Redraws the overview; where there is no terminal, prints it at intervals."""
        if self._live:
            self._live.update(draw(snapshot), refresh=True)
        elif time.monotonic() - self._last_line >= self._seconds_between_lines:
            self._last_line = time.monotonic()
            self.line(summary_text(snapshot))
            for running in snapshot.running:
                self.line(f"  {running.title}: {running_text(running)}")


def summary_text(snapshot: Snapshot) -> str:
    """`12 of 45 done, 1 failed, 2 running, 30 waiting, about 18 min 00 s left`."""
    parts = [f"{snapshot.done} of {snapshot.total} done"]
    counts = {"failed": snapshot.failed, "running": len(snapshot.running), "waiting": snapshot.waiting}
    parts += [f"{count} {name}" for name, count in counts.items() if count]
    if snapshot.seconds_left is not None:
        parts.append(f"about {format_seconds(snapshot.seconds_left)} left")
    return ", ".join(parts)


def running_text(running: Running) -> str:
    """` 50%  return 12.35  10,000 frames/s`."""
    if running.share is None:
        return f"compiling, {format_seconds(running.seconds)}"
    parts = [f"{running.share:4.0%}"]
    if running.by_group or running.mean_return is not None:
        parts.append(describe_returns(running.by_group or {"": running.mean_return or 0.0}))
    if running.frames_per_second is not None:
        parts.append(f"{running.frames_per_second:,.0f} frames/s")
    return "  ".join(parts)


def draw(snapshot: Snapshot) -> Group:
    """The overview for rich: a bar for all experiments, then one for each running experiment."""
    table = Table.grid(padding=(0, 1))
    for _ in range(3):
        table.add_column(no_wrap=True)
    finished = snapshot.done + snapshot.failed
    table.add_row(ProgressBar(total=max(snapshot.total, 1), completed=finished, width=24), Text("all experiments"))
    for running in snapshot.running:
        bar = ProgressBar(total=1.0, completed=running.share or 0.0, width=24)
        table.add_row(bar, Text(running.title), Text(running_text(running), style="cyan"))
    return Group(Text(summary_text(snapshot), style="red" if snapshot.failed else ""), table)


# -------------------------------------------------------------------------------------------------------- time left


@dataclasses.dataclass(frozen=True, kw_only=True)
class Known:
    """How long an experiment took, or is expected to take."""

    name: str
    algorithm: str
    seconds: float


def expected_seconds(name: str, algorithm: str, known: Sequence[Known]) -> float | None:
    """The mean time of the experiment's other seeds; without any, of its algorithm; without any, of all experiments."""
    alike = (
        [item.seconds for item in known if item.name == name],
        [item.seconds for item in known if item.algorithm == algorithm],
        [item.seconds for item in known],
    )
    found = next((seconds for seconds in alike if seconds), None)
    return None if found is None else math.fsum(found) / len(found)


def time_left(remaining: Iterable[float | None], workers: int) -> float | None:
    """Seconds until all experiments are done by `workers` workers; None if the time of one is unknown."""
    seconds = list(remaining)
    known = [value for value in seconds if value is not None]
    if not known or len(known) < len(seconds):
        return None
    return max(math.fsum(known) / workers, *known)
