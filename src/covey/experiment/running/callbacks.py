"""Callbacks by name: `callbacks=[module:Class]`, stored with the run and made again when it resumes.

From Python a callback may also be a class, which is stored by its name, or an object. An object cannot be stored, so a
resumed run does without it, and a warning says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from covey import registry
from covey.errors import UsageError


def split_callbacks(callbacks: Sequence[Any]) -> tuple[list[str], list[Any]]:
    """The names to store with a run, and the objects that have none."""
    named = [(callback if isinstance(callback, str) else _name_of(callback), callback) for callback in callbacks]
    objects = [callback for name, callback in named if name is None]
    made = [callback() if isinstance(callback, type) else callback for callback in objects]
    return [name for name, _ in named if name is not None], made


def _name_of(callback: Any) -> str | None:
    """`module:Class`, if the class can be imported by that name."""
    if not isinstance(callback, type) or callback.__module__ == "__main__":
        return None
    name = f"{callback.__module__}:{callback.__qualname__}"
    try:
        return name if registry.import_attribute(name) is callback else None
    except (ImportError, AttributeError):
        return None


def make_callbacks(names: Sequence[str]) -> list[Any]:
    """A new object for each name."""
    callbacks = []
    for name in names:
        try:
            callbacks.append(registry.import_attribute(name)())
        except (ImportError, AttributeError) as error:
            raise UsageError(f"callbacks: cannot import '{name}': {error}") from error
        except TypeError as error:
            raise UsageError(f"callbacks: '{name}' cannot be called without arguments: {error}") from error
    return callbacks


def warning_about_objects(objects: Sequence[Any]) -> str:
    """What the user of callbacks without a name must know."""
    kinds = ", ".join(dict.fromkeys(type(callback).__name__ for callback in objects))
    return f"{kinds}: `covey resume` cannot restore a callback that is an object; callbacks=['module:Class'] is stored"
