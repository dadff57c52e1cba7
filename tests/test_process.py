"""The process of a command: output that nobody reads any more, and signals at any moment."""

from __future__ import annotations

import io
import logging
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from signal import Signals
from typing import Any

import pytest

from covey.errors import Interrupted
from covey.experiment.recording.checkpoint import Checkpoints
from covey.experiment.running.experiment import Experiment
from covey.process import Outlet, Stopped, collected_signals, ending_signals, one_line_warnings

SMALL = {
    "task": "probe/copy",
    "algorithm": "ippo",
    "model.layers": "[8]",
    "algorithm.num_minibatches": 2,
    "experiment.num_envs": 8,
    "experiment.rollout_length": 8,
    "experiment.devices": 1,
    "experiment.frames": 256,
    "experiment.evaluation_interval": 0,
    "experiment.evaluation_episodes": 4,
}


def covey(*arguments: str, **options: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "covey.cli", *arguments]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, **options)


def train(path: Path, fields: dict[str, Any] = SMALL, **options: Any) -> subprocess.Popen[str]:
    return covey("train", f"run_dir={path}", *(f"{name}={value}" for name, value in fields.items()), **options)


# ---------------------------------------------------------------------------------------------------------- output


def test_a_closed_output_does_not_end_training(tmp_path: Path) -> None:
    process = train(tmp_path / "run", stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()  # as `head -n 1` does
    _, err = process.communicate(timeout=240)
    assert (process.returncode, err) == (0, "")
    assert Checkpoints(tmp_path / "run" / "checkpoints").iterations() == [4]


def test_lists_end_quietly_where_nobody_reads(tmp_path: Path) -> None:
    with covey("list", "tasks", stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert (process.wait(60), process.stderr.read()) == (0, "")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no full device")
def test_a_full_output_is_one_line_at_the_end() -> None:
    with open("/dev/full", "w") as full, covey("list", "tasks", stdout=full) as process:
        assert process.wait(60) == 1 and process.stderr is not None
        assert process.stderr.read() == "covey: cannot write to standard output: No space left on device\n"


def test_a_slow_reader_of_a_non_blocking_pipe_gets_everything() -> None:
    """Such pipes are what a parent leaves that itself writes to them without blocking."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    text = "".join(f"{number}\n" for number in range(100_000))
    received: list[str] = []

    def read() -> None:
        with open(reader) as file:
            received.append(file.read())

    thread = threading.Thread(target=read)
    stream = io.TextIOWrapper(io.BufferedWriter(Outlet(writer)))
    threading.Timer(0.2, thread.start).start()
    print(text, end="", file=stream, flush=True)
    os.close(writer)
    thread.join(10)
    assert received == [text]


def test_closed_streams_leave_their_numbers_to_nobody(tmp_path: Path) -> None:
    script = """
        import sys
        from covey.process import lasting_output
        with lasting_output(), open(sys.argv[1], "w") as file:
            file.write(str(file.fileno()))
    """
    command = [sys.executable, "-c", textwrap.dedent(script), str(tmp_path / "file")]
    subprocess.run(["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *command], check=True, timeout=60)
    assert int((tmp_path / "file").read_text()) > 2


def test_a_warning_is_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    with one_line_warnings():
        for _ in range(2):
            logging.getLogger("covey").warning("config.yaml was edited")
    assert capsys.readouterr().err == "warning: config.yaml was edited\n"


# --------------------------------------------------------------------------------------------------------- signals


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_end_what_is_busy_in_compiled_code(number: Signals) -> None:
    script = """
        import hashlib
        from covey.process import stopping_on_signals
        with stopping_on_signals(b"covey: interrupted\\n"):
            print("begun", flush=True)
            hashlib.pbkdf2_hmac("sha256", b"minutes in one call", b"", 10**9)
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            process.send_signal(number)
            _, err = process.communicate(timeout=10)
        finally:
            process.kill()  # else leaving the block would wait until the call is over
    assert (process.returncode, err) == (128 + number, "covey: interrupted\n")


def test_a_signal_while_compiling_leaves_one_line(tmp_path: Path) -> None:
    environment = {**os.environ, "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "cache")}
    process = train(tmp_path / "run", stdout=subprocess.PIPE, env=environment)
    assert process.stdout is not None
    while "compiling training" not in (line := process.stdout.readline()):
        assert line
    process.send_signal(signal.SIGTERM)
    started = time.monotonic()
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (143, "covey: interrupted\n")
    assert time.monotonic() - started < 5


def test_hanging_up_is_collected_unless_it_is_ignored() -> None:
    with collected_signals() as received:
        os.kill(os.getpid(), signal.SIGHUP)
        assert received == [signal.SIGHUP]
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        assert signal.SIGHUP not in ending_signals()
        with collected_signals() as received:
            os.kill(os.getpid(), signal.SIGHUP)
            assert received == []
    finally:
        signal.signal(signal.SIGHUP, before)


def test_what_may_be_left_in_the_middle_is_left() -> None:
    with collected_signals() as received:
        with pytest.raises(Stopped), received.raised():
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(10)
        with pytest.raises(Stopped), received.raised():  # it had come before
            raise AssertionError("begun")
        with received.raised(False):
            pass
        assert received == [signal.SIGTERM]


def test_a_signal_that_the_garbage_collector_swallows_comes_again() -> None:
    class Dies:
        def __del__(self) -> None:
            os.kill(os.getpid(), signal.SIGTERM)

    with collected_signals() as received, pytest.raises(Stopped), received.raised():
        Dies()
        time.sleep(10)


@pytest.mark.parametrize(("rollout_length", "saved"), [pytest.param(2, True, marks=pytest.mark.slow), (100_000, False)])
def test_uncompiled_training_ends_in_seconds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], rollout_length: int, saved: bool
) -> None:
    """In the middle of an iteration, which may take minutes."""
    path = tmp_path / "run"
    fields = {**SMALL, "experiment.rollout_length": rollout_length, "experiment.frames": 8_000_000}
    fields |= {"experiment.num_envs": 2, "algorithm.epochs": 1, "algorithm.num_minibatches": 1}
    enough = 2 if saved else 1  # lines: the evaluation at frame 0, and the first iteration
    sent: list[float] = []
    over = threading.Event()

    def num_lines() -> int:
        return (path / "metrics.jsonl").read_bytes().count(b"\n") if (path / "metrics.jsonl").exists() else 0

    def interrupt() -> None:
        deadline = time.monotonic() + 120  # then the signal comes all the same: better to fail than to wait for hours
        while num_lines() < enough and time.monotonic() < deadline:
            if over.wait(0.01):
                return
        time.sleep(0.05)
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGTERM)

    watcher = threading.Thread(target=interrupt, daemon=True)
    watcher.start()
    try:
        with pytest.raises(Interrupted) as caught:
            Experiment(run_dir=str(path), jit=False, fields=fields).run()
    finally:
        over.set()
    assert num_lines() >= enough
    assert time.monotonic() - sent[0] < 10
    assert caught.value.signal == signal.SIGTERM
    iterations = Checkpoints(path / "checkpoints").iterations()
    said = capsys.readouterr().out
    if saved:
        assert iterations == [num_lines() - 1] and "interrupted: saved at" in said
    else:
        assert iterations == [] and "interrupted before the first checkpoint" in said


# ------------------------------------------------------------------------------------------- threads that compile


def test_python_ends_while_a_program_is_compiled() -> None:
    """As after Ctrl-C in a script, or an error in another program: XLA would abort if Python ended meanwhile."""
    script = """
        import time, jax, jax.numpy as jnp
        from covey.experiment.running.programs import in_background
        def work(x):
            for _ in range(1000):
                x = jnp.tanh(x @ x) + jnp.sort(x, axis=0)
            return x
        lowered = jax.jit(work).lower(jnp.ones((8, 8)))
        compiled = in_background(lowered.compile)
        time.sleep(0.5)
        assert not compiled.done()
        raise SystemExit("leaving")
    """
    environment = {**os.environ, "JAX_ENABLE_COMPILATION_CACHE": "false", "XLA_FLAGS": ""}
    command = [sys.executable, "-c", textwrap.dedent(script)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (1, "leaving\n")


def test_a_command_that_is_done_does_not_wait_for_a_program() -> None:
    script = """
        import sys, time
        from covey import cli
        from covey.errors import CoveyError
        from covey.experiment.running.programs import in_background
        def work(arguments):
            in_background(lambda: time.sleep(600))
            print("begun")
            raise CoveyError("failed meanwhile")
        cli.VERBS["train"] = cli.Verb(work, "")
        sys.argv = ["covey", "train"]
        sys.exit(cli.main())
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (1, "begun\n", "covey: failed meanwhile\n")
