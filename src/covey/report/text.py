"""Names and numbers as text, the same way in figures, tables and on the page.

Names come from files that anyone may have written, so each passes through `clean` once, before anything shows it.
All numbers of a column have the same number of digits behind the point, which `places` derives from the largest.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable

from covey.report.statistics import Estimate

UNDEFINED = "n/a"
SCORE_PLACES = 3  # digits behind the point of a score


def clean(text: str) -> str:
    """Removes control characters and lone surrogates, which XML or UTF-8 cannot hold."""
    printable = "".join(" " if ord(c) < 32 or 0x7F <= ord(c) < 0xA0 or 0xD800 <= ord(c) < 0xE000 else c for c in text)
    return " ".join(printable.split()) or "(no name)"


def shorten(text: str, length: int) -> str:
    """At most `length` characters; an ellipsis marks what was cut."""
    return text if len(text) <= length else f"{text[: length - 1].rstrip()}…"


def shorten_all(names: Collection[str], length: int) -> dict[str, str]:
    """Each name and its shortened form, no two the same. Names that begin alike keep their ends or are numbered."""
    beginnings = Counter(shorten(name, length) for name in names)
    short: dict[str, str] = {}
    for name in names:
        wanted = shorten(name, length)
        if wanted != name and beginnings[wanted] > 1:
            wanted = f"{name[: length // 2]}…{name[length // 2 + 1 - length :]}"
        number, unique = 2, wanted
        while unique in short.values():
            number, unique = number + 1, f"{shorten(wanted, length - 5)} ({number})"
        short[name] = unique
    return short


def file_stem(text: str, taken: Collection[str] = ()) -> str:
    """`text` as the stem of a file name that is not in `taken`: vmas/balance → vmas-balance."""
    stem = re.sub(r"[^A-Za-z0-9._]+", "-", text).strip("-._")[:80] or "unnamed"
    number, unique = 2, stem
    while unique in taken:
        number, unique = number + 1, f"{stem}-{number}"
    return unique


def places(values: Iterable[float]) -> int:
    """Digits behind the point: so that the largest value has four significant digits; at most three above 0.01."""
    largest = max((abs(value) for value in values if math.isfinite(value)), default=0.0)
    if largest == 0.0:
        return 2
    digits = 3 - math.floor(math.log10(largest))
    return min(max(digits, 0), 3 if largest >= 0.01 else 9)


def number(value: float | None, digits: int) -> str:
    """A number with separated thousands; zero has no sign."""
    if value is None or not math.isfinite(value):
        return UNDEFINED
    text = f"{value:,.{digits}f}"
    return text.lstrip("-") if not text.strip("-0.,") else text


def estimate(value: Estimate, digits: int) -> str:
    """`0.51 [0.42, 0.60]`, or the number alone if it has no interval."""
    middle = number(value.value, digits)
    if not (math.isfinite(value.low) and math.isfinite(value.high)):
        return middle
    return f"{middle} [{number(value.low, digits)}, {number(value.high, digits)}]"


def probability(value: float) -> str:
    """A p-value, or `< 0.001`."""
    if not math.isfinite(value):
        return UNDEFINED
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def count(amount: int, thing: str) -> str:
    """`1 run`, `3 runs`."""
    return f"{amount:,} {thing}{'' if amount == 1 else 's'}"


def span(values: Collection[float], digits: int = 0) -> str:
    """`3`, or `3 to 5` if they differ."""
    if not values:
        return UNDEFINED
    low, high = number(min(values), digits), number(max(values), digits)
    return low if low == high else f"{low} to {high}"


def name_list(names: Iterable[str], most: int = 12) -> str:
    """At most `most` names, separated by commas, and the number of the others."""
    names = list(names)
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
