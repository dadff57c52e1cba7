import io
import os
import pty
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from covey.experiment.running.console import Console, Summary, format_returns, format_seconds
from covey.experiment.running.experiment import describe_rounding
from covey.loops.config import ExperimentConfig

SUMMARY = Summary(
    title="mappo on lbf/8x8-2p-2f-coop",
    returns_before=[0.0, 0.2],
    returns_after=[0.9, 1.0],
    returns_absolute=[1.0] * 20,
    frames=600_000,
    frames_per_second=12_345.6,
    seconds={"compiling": 6.25, "collecting": 30.0, "updating": 75.0, "evaluating": 4000.0},
    run_directory=Path("runs") / ("a-long-name-" * 10),
)


def make_console(**arguments: Any) -> tuple[Console, io.StringIO, io.StringIO]:
    out, error = io.StringIO(), io.StringIO()
    return Console(1000, stream=out, error_stream=error, **arguments), out, error


def test_plain_lines_where_there_is_no_terminal() -> None:
    console, out, error = make_console(seconds_between_lines=0.0)
    with console:
        with console.compiling("the training loop"):
            pass
        console.progress(0, mean_return=None, frames_per_second=0.0)
        console.progress(400, mean_return=0.51239, frames_per_second=20.0)
        console.line("saved [checkpoint]")
        console.warn("first\nsecond [bold]")
        console.progress(1000, mean_return=1.0, frames_per_second=20.0)
    assert out.getvalue().splitlines() == [
        "compiling the training loop",
        "0/1,000 frames (0%)  0 frames/s",
        "400/1,000 frames (40%)  return 0.5124  20 frames/s  30 s left",
        "saved [checkpoint]",
        "1,000/1,000 frames (100%)  return 1  20 frames/s",
    ]
    assert error.getvalue() == "warning: first second [bold]\n"


def test_the_latest_evaluation_stands_beside_what_was_collected() -> None:
    console, out, _ = make_console(seconds_between_lines=0.0)
    with console:
        console.progress(0, mean_return=0.5, evaluated={"": 0.75}, frames_per_second=20.0)
        groups, evaluated = {"prey": -2.0, "hunter": 2.0}, {"": 3.0, "prey": -3.0, "hunter": 3.0}
        console.progress(10, mean_return=2.0, by_group=groups, evaluated=evaluated, frames_per_second=20.0)
    first, second = out.getvalue().splitlines()
    assert "return 0.5  evaluated 0.75  20 frames/s" in first
    assert "return: prey -2, hunter 2  evaluated: prey -3, hunter 3  20 frames/s" in second


def test_rounding_is_told_where_it_matters() -> None:
    fields: dict[str, Any] = {"frames": 2_000_000, "evaluation_interval": 100_000, "checkpoint_interval": 500_000}
    assert describe_rounding(ExperimentConfig(**fields), 2_048) == ""  # 0.1% and less
    assert describe_rounding(ExperimentConfig(**fields, evaluation_episodes=1), 1_000_000) == (
        "rounded up to whole iterations of 1,000,000 frames: evaluation_interval 100,000 to 1,000,000, "
        "checkpoint_interval 500,000 to 1,000,000"
    )
    assert describe_rounding(ExperimentConfig(frames=100, evaluation_interval=0, checkpoint_interval=150), 101) == ""
    assert describe_rounding(ExperimentConfig(frames=100, evaluation_interval=0, checkpoint_interval=0), 51) == (
        "rounded up to whole iterations of 51 frames: frames 100 to 102"
    )


def test_plain_lines_come_at_most_every_few_seconds() -> None:
    console, out, _ = make_console(seconds_between_lines=60.0)
    with console:
        for frames in range(0, 1001, 10):
            console.progress(frames, mean_return=0.0, frames_per_second=1.0)
    assert [line.split("/")[0] for line in out.getvalue().splitlines()] == ["0", "1,000"]


def test_without_the_console_logger_only_warnings_and_lines_remain() -> None:
    console, out, error = make_console(show=False)
    with console:
        with console.compiling("x"):
            console.progress(10, mean_return=None, frames_per_second=1.0)
        console.summary(SUMMARY)
        console.line("interrupted; saved")
        console.warn("careful")
    assert out.getvalue() == "interrupted; saved\n"
    assert error.getvalue() == "warning: careful\n"


def test_summary() -> None:
    console, out, _ = make_console()
    console.summary(SUMMARY)
    text = out.getvalue()
    for words in (
        "mappo on lbf/8x8-2p-2f-coop",
        "0.1 ± 1.3 (2 episodes)",
        "0.95 ± 0.64 (2 episodes)",
        "1 ± 0 (20 episodes)",
        "600,000",
        "12,346",
        "time compiling",
        "6.2 s",
        "1 min 15 s",
        "1 h 06 min",
    ):
        assert words in text
    assert f"run directory: {SUMMARY.run_directory}\n" in text  # on one line, however long


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0 s"), (9.94, "9.9 s"), (59.6, "1 min 00 s"), (61, "1 min 01 s"), (3599.7, "1 h 00 min")],
)
def test_format_seconds(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


def test_format_returns() -> None:
    assert format_returns([]) == "no episodes"
    assert format_returns([0.5]) == "0.5 (1 episode)"


def test_live_bar_on_a_real_terminal() -> None:
    code = textwrap.dedent(
        """
        import time
        from covey.experiment.running.console import Console
        with Console(1000) as console:
            with console.compiling("evaluation"):
                time.sleep(0.3)
            console.progress(400, mean_return=0.5, frames_per_second=20.0)
            console.warn("something odd")
            time.sleep(0.3)
        """
    )
    leader, follower = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "140"}
    process = subprocess.Popen([sys.executable, "-c", code], stdout=follower, stderr=follower, env=environment)
    os.close(follower)
    shown = b""
    while True:
        try:
            part = os.read(leader, 65536)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        shown += part
    os.close(leader)
    assert process.wait() == 0
    text = shown.decode()
    assert "compiling evaluation" in text
    assert "400/1,000 frames (40%)  return 0.5  20 frames/s  30 s left" in text
    assert "warning: something odd" in text
    assert text.count("Traceback") == 0
