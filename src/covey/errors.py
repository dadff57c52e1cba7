"""The errors that a user's input can cause; the command line turns them into one line and an exit code."""

from __future__ import annotations

import difflib
import sysconfig
import traceback
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any


class CoveyError(Exception):
    """Something failed while running (exit code 1)."""


class UsageError(CoveyError):
    """Bad input; nothing was started (exit code 2)."""


class MissingExtra(UsageError):
    """Something asked for needs a package that is not installed."""

    def __init__(self, what: str, extra: str):
        super().__init__(f"{what} needs the extra: pip install 'covey[{extra}]'")


class MissingPackage(MissingExtra):
    """Something asked for needs a package that no extra installs, because no registry has it; `message` says how to."""

    def __init__(self, message: str):
        UsageError.__init__(self, message)


class UnfitInput(UsageError):
    """A model cannot take the inputs of its network.

    `needs` names the inputs that it takes (`observations [F]`), and `instead` a field with which it would take these
    (`over=rows`); `others` are further models that take them, and `hint` is for the author of a model. `shape` is that
    of the inputs, or words for it. Callers add what they know with `replace`: that this is the critic's model, or where
    the shape comes from.
    """

    def __init__(
        self,
        model: str,
        needs: str,
        shape: Sequence[int] | str,
        *,
        instead: str = "",
        section: str = "model",
        note: str = "",
        others: Sequence[str] = (),
        hint: str = "",
    ):
        self.details = {
            "model": model,
            "needs": needs,
            "shape": shape,
            "instead": instead,
            "others": others,
            "hint": hint,
        }
        who = "the critic's model" if section.startswith("critic_model") else "model"
        found = shape if isinstance(shape, str) else list(shape)
        try_this = f"{section}.{instead}, or " if instead else ""
        choice = section.partition(".")[0]
        super().__init__(
            f"{who} '{model}' needs {needs}, not {found}{note}; try {try_this}{choice}=mlp, which takes any shape"
            + (f" ({', '.join(others)} take it too)" if others else "")
            + (f"; {hint}" if hint else "")
        )
        self.section, self.note = section, note

    def replace(self, **details: Any) -> UnfitInput:
        """The same error with other details."""
        return UnfitInput(**{**self.details, "section": self.section, "note": self.note, **details})


class Interrupted(CoveyError):
    """A signal stopped the run after it was saved (exit code 128 + signal)."""

    def __init__(self, signal: int, message: str = "interrupted"):
        super().__init__(message)
        self.signal = signal


def unknown_name(kind: str, name: str, choices: Iterable[str], see: str | None = None) -> UsageError:
    """The error for an unregistered name, with the nearest registered ones; `see` says where all of them are."""
    if see is None:
        see = "`covey show` prints all" if kind.startswith("field") else "`covey list` shows all"
    near = nearest(name, choices)
    if not near:
        return UsageError(f"unknown {kind} '{name}'; there is none yet")
    return UsageError(f"unknown {kind} '{name}'; nearest: {', '.join(near)} ({see})")


def unknown_value(field: str, value: str, choices: Sequence[str]) -> UsageError:
    """The error for a value that a field does not accept, with all values that it does."""
    near = ", ".join(nearest(value, choices))
    return UsageError(
        f"unknown value for {field} '{value}'; nearest: {near}; it takes {', '.join(choices)} (`covey help {field}`)"
    )


def nearest(name: str, choices: Iterable[str]) -> list[str]:
    """Up to three of `choices` that look like `name`: first those that end in it (`navigation`, `vmas/navigation`).

    The case of letters does not matter.
    """
    lowered = {choice.lower(): choice for choice in sorted(choices)}
    name = name.lower()
    same_ending = [choice for choice in lowered if choice.endswith((f"/{name}", f".{name}"))]
    similar = difflib.get_close_matches(name, lowered, n=3, cutoff=0.4)
    found = list(dict.fromkeys(same_ending + similar)) or list(lowered)
    return [lowered[choice] for choice in found[:3]]


def place_in_users_code(error: BaseException) -> str | None:
    """The last line of a traceback that is neither in covey nor in an installed package: `task.py, line 3`."""
    others = (str(Path(__file__).parent), *(sysconfig.get_path(kind) for kind in ("stdlib", "purelib", "platlib")))
    own = [
        frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith((*others, "<"))
    ]
    return f"{Path(own[-1].filename).name}, line {own[-1].lineno}" if own else None
