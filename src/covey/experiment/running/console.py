"""What the user watches: a live progress bar on a terminal, plain lines elsewhere, and the summary at the end."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from rich.console import Console as RichConsole
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table

from covey.results import describe_mean, mean_and_interval


@dataclasses.dataclass(frozen=True, kw_only=True)
class Returns:
    """Returns per episode at the start and at the end of training, and of the best parameters."""

    before: Sequence[float]
    after: Sequence[float]
    absolute: Sequence[float] | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Summary:
    """The result of a finished run. Returns are per episode; `seconds` has the parts of the time by name.

    Where groups oppose each other, `by_group` has the returns of each group. They are shown instead of the other
    returns, which are those of `mean_return`.
    """

    title: str
    returns_before: Sequence[float]
    returns_after: Sequence[float]
    returns_absolute: Sequence[float] | None
    frames: int
    frames_per_second: float
    seconds: Mapping[str, float]
    run_directory: Path
    by_group: Mapping[str, Returns] = dataclasses.field(default_factory=dict)

    def __repr__(self) -> str:
        returns = f"mean return {sum(self.returns_after) / max(1, len(self.returns_after)):.4g}"
        return f"Summary({self.title}: {self.frames:,} frames, {returns}, {self.run_directory})"


class Console:
    """Progress of one run, as a context manager.

    `show=False` (no `console` among the loggers) leaves only warnings and lines. Safe to call from any thread.
    """

    def __init__(
        self,
        total_frames: int,
        *,
        show: bool = True,
        stream: IO[str] | None = None,
        error_stream: IO[str] | None = None,
        seconds_between_lines: float = 5.0,
    ):
        self._total_frames = total_frames
        self._show = show
        self._stream = stream if stream is not None else sys.stdout
        self._error_stream = error_stream if error_stream is not None else sys.stderr
        self._seconds_between_lines = seconds_between_lines
        self._last_line = -math.inf
        self._lock = threading.Lock()
        self._rich = RichConsole(file=self._stream)
        live = show and self._rich.is_terminal and not self._rich.is_dumb_terminal
        self._bar = _make_bar(self._rich) if live else None
        self._task = self._bar.add_task("", total=total_frames, text="") if self._bar else None

    def __enter__(self) -> Console:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._bar:
            self._bar.stop()

    @contextlib.contextmanager
    def compiling(self, what: str) -> Iterator[None]:
        """Says that `what` is being compiled while the body runs."""
        if self._bar and self._task is not None:
            self._bar.update(self._task, description=f"compiling {what}", refresh=True)
        elif self._show:
            self._plain(f"compiling {what}")
        try:
            yield
        finally:
            if self._bar and self._task is not None:
                self._bar.update(self._task, description="")

    def progress(
        self,
        frames: int,
        *,
        mean_return: float | None,
        frames_per_second: float,
        by_group: Mapping[str, float] | None = None,
        evaluated: Mapping[str, float] | None = None,
    ) -> None:
        """Shows how far training is. `mean_return` is the latest known, or None; returns `by_group` replace it.

        Both are of the episodes that training collects. `evaluated` has the returns of the latest evaluation by group,
        with `mean_return` under "".
        """
        returns = by_group or ({} if mean_return is None else {"": mean_return})
        evaluated = {group: value for group, value in (evaluated or {}).items() if group} or evaluated or {}
        text = self._progress_text(frames, returns, evaluated, frames_per_second)
        if self._bar and self._task is not None:
            self._bar.update(self._task, completed=frames, text=text)
        elif self._show:
            now = time.monotonic()
            if now - self._last_line >= self._seconds_between_lines or frames >= self._total_frames:
                self._last_line = now
                self._plain(text)

    def line(self, text: str) -> None:
        """A line of its own, above the bar."""
        if self._bar:
            self._bar.console.print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            self._plain(text)

    def warn(self, text: str) -> None:
        """A warning in one line: above the bar, or on stderr where there is none."""
        text = " ".join(f"warning: {text}".split())
        if self._bar:
            self._bar.console.print(escape(text), style="yellow", highlight=False, soft_wrap=True)
        else:
            with self._lock:
                print(text, file=self._error_stream, flush=True)

    def summary(self, summary: Summary) -> None:
        """The table at the end. The run directory is printed below it, on a line that can be copied whole."""
        if not self._show:
            return
        table = Table(title=escape(summary.title), show_header=False, title_justify="left")
        for name, value in summary_rows(summary):
            table.add_row(name, value)
        with self._lock:
            self._rich.print(table)
            self._rich.print(f"run directory: {summary.run_directory}", markup=False, highlight=False, soft_wrap=True)

    def _progress_text(
        self, frames: int, returns: Mapping[str, float], evaluated: Mapping[str, float], frames_per_second: float
    ) -> str:
        share = frames / self._total_frames if self._total_frames else 1.0
        parts = [f"{frames:,}/{self._total_frames:,} frames ({share:.0%})"]
        if returns:
            parts.append(describe_returns(returns))
        if evaluated:
            parts.append(describe_returns(evaluated, "evaluated"))
        parts.append(f"{frames_per_second:,.0f} frames/s")
        if frames < self._total_frames and frames_per_second > 0:
            parts.append(f"{format_seconds((self._total_frames - frames) / frames_per_second)} left")
        return "  ".join(parts)

    def _plain(self, text: str) -> None:
        with self._lock:
            print(text, file=self._stream, flush=True)


def summary_rows(summary: Summary) -> list[tuple[str, str]]:
    """The summary's lines: what, and how much."""
    whole = Returns(before=summary.returns_before, after=summary.returns_after, absolute=summary.returns_absolute)
    rows = []
    for group, returns in (summary.by_group or {"": whole}).items():
        of = f"{group} " if group else ""
        rows.append((f"{of}return before training", format_returns(returns.before)))
        rows.append((f"{of}return after training", format_returns(returns.after)))
        if returns.absolute is not None:
            rows.append((f"{of}absolute metric (best parameters)", format_returns(returns.absolute)))
    rows.append(("frames", f"{summary.frames:,}"))
    rows.append(("frames per second", f"{summary.frames_per_second:,.0f}"))
    rows.extend((f"time {name}", format_seconds(seconds)) for name, seconds in summary.seconds.items())
    return rows


def describe_returns(returns: Mapping[str, float], what: str = "return") -> str:
    """`return 0.9`, or, by group, `return: adversary 6.7, agent -6.7`; `what` they are comes first."""
    if list(returns) == [""]:
        return f"{what} {returns['']:.4g}"
    return f"{what}: {', '.join(f'{group} {value:.4g}' for group, value in returns.items())}"


def format_returns(returns: Sequence[float]) -> str:
    """Mean and 95% interval over episodes."""
    if len(returns) == 0:
        return "no episodes"
    return f"{describe_mean(*mean_and_interval(returns))} ({len(returns)} episode{'s' if len(returns) > 1 else ''})"


def format_seconds(seconds: float) -> str:
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, whole = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {whole:02d} s" if minutes else f"{whole} s"


def _make_bar(console: RichConsole) -> Progress:
    columns = (
        BarColumn(bar_width=24),
        TextColumn("{task.fields[text]}", markup=False),
        TextColumn("{task.description}", style="cyan", markup=False),
    )
    return Progress(*columns, console=console, refresh_per_second=4)
