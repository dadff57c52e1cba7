"""Python's garbage collector while a command starts.

Importing JAX and tracing programs make millions of objects that stay. Looking through them again and again takes a
fifth of that time and finds nothing.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

_paused = False


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """No collection inside, until `resume`; afterwards as before."""
    global _paused
    was_enabled = gc.isenabled()
    gc.disable()
    _paused = True
    try:
        yield
    finally:
        _paused = False
        (gc.enable if was_enabled else gc.disable)()


def resume() -> None:
    """Collects again in a command that has started; what exists by now is taken to stay, and is not looked at again.

    Elsewhere and later this does nothing: frozen, the cycles of an experiment that is over could never be freed.
    """
    global _paused
    if _paused:
        _paused = False
        gc.freeze()
        gc.enable()
