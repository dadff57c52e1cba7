"""Python's garbage collector while a command starts.

Importing JAX and tracing programs make millions of objects that stay. Looking through them again and again takes a
fifth of that time and finds nothing.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """No collection inside, until `resume`; afterwards as before."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        (gc.enable if was_enabled else gc.disable)()


def resume() -> None:
    """Collects again; what exists by now is taken to stay, and is not looked at again."""
    gc.freeze()
    gc.enable()
