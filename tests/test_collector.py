"""Python's garbage collector while a command starts, and afterwards."""

from __future__ import annotations

import gc
import weakref

from covey import collector


class Node:
    """Garbage that only the collector finds."""

    def __init__(self) -> None:
        self.itself = self


def test_from_python_nothing_is_kept_for_ever() -> None:
    """As between the experiments of a worker, or of a loop in a notebook: the memory of the one before is freed."""
    node = Node()
    found = weakref.ref(node)
    collector.resume()
    del node
    gc.collect()
    assert found() is None


def test_a_command_collects_nothing_until_it_trains() -> None:
    assert gc.isenabled()
    frozen = gc.get_freeze_count()
    try:
        with collector.paused():
            assert not gc.isenabled()
            collector.resume()
            assert gc.isenabled() and gc.get_freeze_count() > frozen
            frozen = gc.get_freeze_count()
            node = Node()
            found = weakref.ref(node)
            collector.resume()  # the next seed
            del node
            gc.collect()
            assert found() is None
        assert gc.isenabled()
    finally:
        gc.enable()


def test_a_collector_that_the_user_stopped_stays_so() -> None:
    gc.disable()
    try:
        collector.resume()
        assert not gc.isenabled()
        with collector.paused():
            collector.resume()
        assert not gc.isenabled()
    finally:
        gc.enable()
