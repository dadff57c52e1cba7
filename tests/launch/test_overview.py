"""What the user sees while a benchmark runs, and how the time left is estimated."""

from __future__ import annotations

import io

import pytest

from covey.launch.overview import (
    Known,
    Overview,
    Running,
    Snapshot,
    draw,
    expected_seconds,
    running_text,
    summary_text,
    time_left,
)

STARTING = Running(title="vmas/balance, qmix, seed 1", seconds=3.0)
HALF = Running(
    title="vmas/balance, ippo, seed 0", seconds=60.0, share=0.5, mean_return=12.3456, frames_per_second=10_000.0
)
SNAPSHOT = Snapshot(total=45, done=12, failed=1, running=(HALF, STARTING), seconds_left=1080.0)


def test_the_lines() -> None:
    assert summary_text(SNAPSHOT) == "12 of 45 done, 1 failed, 2 running, 30 waiting, about 18 min 00 s left"
    assert summary_text(Snapshot(total=3, done=3, failed=0, running=())) == "3 of 3 done"
    assert running_text(STARTING) == "compiling, 3.0 s"
    assert running_text(HALF) == " 50%  return 12.35  10,000 frames/s"


def test_plain_output_has_lines_and_a_summary_at_intervals() -> None:
    stream = io.StringIO()
    with Overview(stream, seconds_between_lines=0.0) as overview:
        overview.line("[1/45] a name with [brackets]: done")
        overview.update(SNAPSHOT)
    first, second, *rest = stream.getvalue().splitlines()
    assert first == "[1/45] a name with [brackets]: done"
    assert second.startswith("12 of 45 done")
    assert rest == [
        "  vmas/balance, ippo, seed 0:  50%  return 12.35  10,000 frames/s",
        "  vmas/balance, qmix, seed 1: compiling, 3.0 s",
    ]
    stream = io.StringIO()
    with Overview(stream, seconds_between_lines=1e9) as overview:
        overview.update(SNAPSHOT)
    assert stream.getvalue() == ""


def test_the_drawing_names_all_running_experiments() -> None:
    from rich.console import Console

    console = Console(file=io.StringIO(), width=120, record=True)
    console.print(draw(SNAPSHOT))
    text = console.export_text()
    assert "12 of 45 done" in text and HALF.title in text and STARTING.title in text and "50%" in text


def test_the_time_left() -> None:
    known = [
        Known(name="a", algorithm="ippo", seconds=10.0),
        Known(name="a", algorithm="ippo", seconds=20.0),
        Known(name="b", algorithm="ippo", seconds=60.0),
        Known(name="c", algorithm="qmix", seconds=110.0),
    ]
    assert expected_seconds("a", "ippo", known) == 15.0  # its own seeds
    assert expected_seconds("d", "ippo", known) == 30.0  # its algorithm's
    assert expected_seconds("d", "masac", known) == 50.0  # all
    assert expected_seconds("d", "masac", []) is None
    assert time_left([10.0, 20.0, 30.0], workers=2) == 30.0  # 60 / 2, and the longest
    assert time_left([10.0, 20.0, 70.0], workers=2) == 70.0  # the longest alone
    assert time_left([10.0, None], workers=2) is None
    assert time_left([], workers=2) is None
    assert time_left([4.0], workers=2) == pytest.approx(4.0)
