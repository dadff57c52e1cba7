"""Checks of a configuration's numbers; each message names the field. None, which means a default, passes.

Every number must fit into what the machine computes with (`out_of_range`): floats into 32 bits; whole numbers into 32
bits or, for a field of type `Large`, into what a float on the host holds exactly.

`limits` finds out which checks a configuration makes, so that help can state them. A new check must note its limit too.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
from typing import Annotated, Any

LARGEST_INT = 2**31 - 1
LARGEST_FLOAT = 3.4028234663852886e38


@dataclasses.dataclass(frozen=True)
class Largest:
    """The largest whole number that a field takes, in its type: `Annotated[int, Largest(…)]`."""

    value: int


Large = Annotated[int, Largest(2**53)]  # for numbers that no device computes with, such as frames


def out_of_range(kind: type, value: Any, largest: int = LARGEST_INT) -> str | None:
    """None if `value` is in range for `kind` (int, float); otherwise what it must be, in words."""
    if kind is int:
        too_large = isinstance(value, int) and abs(value) > largest
        return f"a whole number up to {largest:,}" if too_large else None
    if not isinstance(value, (int, float)) or abs(value) <= LARGEST_FLOAT:
        return None
    return "a number" if value != value else f"a finite number, at most {LARGEST_FLOAT:.1e}"


# By field, its limits in words: the upper one under True, any other under False.
_noted: contextvars.ContextVar[dict[str, dict[bool, str]] | None] = contextvars.ContextVar("noted", default=None)


def above_zero(config: Any, *names: str) -> None:
    _note("above 0", names)
    for name in names:
        value = getattr(config, name)
        if value is not None and value <= 0:
            raise ValueError(f"{name} must be above 0, not {value}")


def at_least(config: Any, minimum: int, *names: str) -> None:
    _note(f"from {minimum} up", names)
    for name in names:
        value = getattr(config, name)
        if value is not None and value < minimum:
            raise ValueError(f"{name} must be at least {minimum}, not {value}")


def at_most(config: Any, maximum: int, *names: str) -> None:
    if maximum < LARGEST_INT:  # `LARGEST_INT` itself limits every whole number
        _note(f"at most {maximum:,}", names, above=True)
    for name in names:
        value = getattr(config, name)
        if value is not None and value > maximum:
            raise ValueError(f"{name} must be at most {maximum:,}, not {value:,}")


def between_0_and_1(config: Any, *names: str) -> None:
    _note("from 0 to 1", names)
    for name in names:
        value = getattr(config, name)
        if not 0 <= value <= 1:
            raise ValueError(f"{name} must be between 0 and 1, not {value}")


def check_divides(name: str, divisor: int | None, of: str, number: int) -> None:
    """Raises ValueError unless `divisor` divides `number`, and names the nearest divisors. None passes."""
    if divisor is None or number % divisor == 0:
        return
    fits = [length for length in range(1, number + 1) if number % length == 0]
    near = [n for n in fits if n < divisor][-1:] + [n for n in fits if n > divisor][:1]
    raise ValueError(
        f"{of}={number} is not a multiple of {name}={divisor}; {' or '.join(map(str, near))} would divide it"
    )


def limits(config: Any) -> dict[str, str]:
    """The limits that the checks above set for each field of a valid configuration: `{"lr": "above 0"}`."""
    noted: dict[str, dict[bool, str]] = {}
    token = _noted.set(noted)
    with contextlib.suppress(Exception):  # a user's own class may raise anything
        config.__post_init__()
    _noted.reset(token)
    return {name: ", ".join(said[above] for above in sorted(said)) for name, said in noted.items()}


def _note(limit: str, names: tuple[str, ...], *, above: bool = False) -> None:
    noted = _noted.get()
    if noted is not None:
        for name in names:
            noted.setdefault(name, {})[above] = limit
