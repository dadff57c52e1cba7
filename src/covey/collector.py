"""Python's garbage collector while training starts.

Importing JAX and tracing programs make millions of objects that stay. Looking through them again and again takes a
fifth of that time and finds nothing.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

_is_paused = False


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """No collection inside, until `resume`; afterwards as before. Only for what calls that once it has started."""
    global _is_paused
    if not gc.isenabled():  # whoever disabled it wants it so
        yield
        return
    frozen_before = gc.get_freeze_count()
    gc.disable()
    _is_paused = True
    try:
        yield
    finally:
        _is_paused = False
        if not frozen_before:
            gc.unfreeze()
        gc.enable()


def resume() -> None:
    """Collects again; what was made since `paused` is taken to stay, and is not looked at again. Elsewhere, in a script
    or a worker, which makes one experiment after another, nothing: what is frozen is never freed."""
    global _is_paused
    if _is_paused:
        _is_paused = False
        gc.freeze()
        gc.enable()
