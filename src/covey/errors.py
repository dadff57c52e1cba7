"""The errors that a user's input can cause; the command line turns them into one line and an exit code."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class CoveyError(Exception):
    """Something failed while running (exit code 1)."""


class UsageError(CoveyError):
    """Bad input; nothing was started (exit code 2)."""


class MissingExtra(UsageError):
    """Something asked for needs a package that is not installed."""

    def __init__(self, what: str, extra: str):
        super().__init__(f"{what} needs the extra: pip install 'covey[{extra}]'")


class Interrupted(CoveyError):
    """A signal stopped the run after it was saved (exit code 128 + signal)."""

    def __init__(self, signal: int, message: str = "interrupted"):
        super().__init__(message)
        self.signal = signal


def unknown_name(kind: str, name: str, choices: Iterable[str], see: str | None = None) -> UsageError:
    """The error for a name that is not registered, with the nearest ones that are; `see` says where all are."""
    if see is None:
        see = "`covey show` prints all" if kind.startswith(("field", "value")) else "`covey list` shows all"
    near = nearest(name, choices)
    if not near:
        return UsageError(f"unknown {kind} '{name}'; there is none yet")
    return UsageError(f"unknown {kind} '{name}'; nearest: {', '.join(near)} ({see})")


def nearest(name: str, choices: Iterable[str]) -> list[str]:
    """Up to three of `choices` that look like `name`: first those that end in it (`navigation`, `vmas/navigation`)."""
    choices = sorted(choices)
    same_ending = [choice for choice in choices if choice.endswith((f"/{name}", f".{name}"))]
    similar = difflib.get_close_matches(name, choices, n=3, cutoff=0.4)
    return list(dict.fromkeys(same_ending + similar))[:3] or choices[:3]
