"""Checks of a configuration's numbers; each message names the field. None, which stands for a default, passes."""

from __future__ import annotations

from typing import Any


def above_zero(config: Any, *names: str) -> None:
    for name in names:
        value = getattr(config, name)
        if value is not None and value <= 0:
            raise ValueError(f"{name} must be above 0, not {value}")


def at_least(config: Any, minimum: int, *names: str) -> None:
    for name in names:
        value = getattr(config, name)
        if value is not None and value < minimum:
            raise ValueError(f"{name} must be at least {minimum}, not {value}")


def between_0_and_1(config: Any, *names: str) -> None:
    for name in names:
        value = getattr(config, name)
        if not 0 <= value <= 1:
            raise ValueError(f"{name} must be between 0 and 1, not {value}")
