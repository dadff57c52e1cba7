"""The errors that a user's input can cause; the command line turns them into one line and an exit code."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class CoveyError(Exception):
    """Something failed while running (exit code 1)."""


class UsageError(CoveyError):
    """Bad input; nothing was started (exit code 2)."""


def unknown_name(kind: str, name: str, choices: Iterable[str]) -> UsageError:
    """The error for a name that is not registered, with the nearest ones that are."""
    choices = sorted(choices)
    near = difflib.get_close_matches(name, choices, n=3, cutoff=0.4) or choices[:3]
    return UsageError(f"unknown {kind} '{name}'; nearest: {', '.join(near)} (`covey list` shows all)")
