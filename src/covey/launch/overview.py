"""What the user watches while a benchmark runs: a live overview on a terminal, plain lines elsewhere.

The time left is what the finished and the running experiments took, carried over to those that wait.
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

from covey.experiment.console import describe_returns, format_seconds


@dataclasses.dataclass(frozen=True, kw_only=True)
class Running:
    """An experiment that is being run; `share` of its frames are done, None before training begins."""

    title: str
    seconds: float
    share: float | None = None
    mean_return: float | None = None
    by_group: Mapping[str, float] | None = None  # returns where groups oppose each other, shown in its place
    frames_per_second: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Snapshot:
    """Where a benchmark stands. The numbers are of experiments; `done` counts those that were done before, too."""

    total: int
    done: int
    failed: int
    running: tuple[Running, ...]
    seconds_left: float | None = None

    @property
    def waiting(self) -> int:
        return self.total - self.done - self.failed - len(self.running)


class Overview:
    """Prints, as a context manager. Nothing happens between calls: there is no thread behind it."""

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
        """A line that stays."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def update(self, snapshot: Snapshot) -> None:
        """Draws the overview anew, or now and then prints its first line."""
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
    if running.share is None:
        return f"compiling, {format_seconds(running.seconds)}"
    parts = [f"{running.share:4.0%}"]
    if running.by_group or running.mean_return is not None:
        parts.append(describe_returns(running.by_group or {"": running.mean_return or 0.0}))
    if running.frames_per_second is not None:
        parts.append(f"{running.frames_per_second:,.0f} frames/s")
    return "  ".join(parts)


def draw(snapshot: Snapshot) -> Group:
    """The overview as rich draws it: all, then a bar for each experiment that runs."""
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
    """How long an experiment took, or will have taken."""

    name: str
    algorithm: str
    seconds: float


def expected_seconds(name: str, algorithm: str, known: Sequence[Known]) -> float | None:
    """The mean over the same experiment's other seeds, or over the same algorithm's, or over all that is known."""
    alike = (
        [item.seconds for item in known if item.name == name],
        [item.seconds for item in known if item.algorithm == algorithm],
        [item.seconds for item in known],
    )
    found = next((seconds for seconds in alike if seconds), None)
    return None if found is None else math.fsum(found) / len(found)


def time_left(remaining: Iterable[float | None], workers: int) -> float | None:
    """How long until all are done, by so many workers; None where that of one is not known."""
    seconds = list(remaining)
    known = [value for value in seconds if value is not None]
    if not known or len(known) < len(seconds):
        return None
    return max(math.fsum(known) / workers, *known)
