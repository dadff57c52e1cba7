"""The garbage collector pauses while training starts, and only there."""

from __future__ import annotations

import gc
import weakref

import pytest

from covey import cli, collector


class Cycle:
    """Only the collector can free it."""

    def __init__(self) -> None:
        self.itself = self


def test_it_pauses_until_training_begins() -> None:
    frozen = gc.get_freeze_count()
    with collector.paused():
        assert not gc.isenabled()
        collector.resume()
        assert gc.isenabled() and gc.get_freeze_count() > 0
    assert gc.isenabled() and gc.get_freeze_count() >= frozen


def test_what_the_seed_before_leaves_behind_is_freed() -> None:
    with collector.paused():
        collector.resume()
        cycle = Cycle()
        gone = weakref.ref(cycle)
        del cycle
        collector.resume()  # the next seed
        gc.collect()
        assert gone() is None


def test_whoever_disabled_it_keeps_it_so() -> None:
    gc.disable()
    try:
        with collector.paused():
            collector.resume()
            assert not gc.isenabled()
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_what_scripts_and_workers_leave_behind_is_freed() -> None:
    """They train one experiment after another, and never paused it: what is frozen would stay for ever."""
    cycle = Cycle()
    gone = weakref.ref(cycle)
    del cycle
    collector.resume()
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("verb", sorted(cli.VERBS.keys() - {"train", "resume"}))
def test_commands_that_may_run_for_days_collect(verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`covey report serve=true` and benchmarks do; training collects as soon as it has started."""
    seen = []
    monkeypatch.setitem(cli.VERBS, verb, cli.Verb(lambda arguments: seen.append(gc.isenabled()), ""))
    assert cli.main([verb, "x"]) == 0
    assert seen == [True]
