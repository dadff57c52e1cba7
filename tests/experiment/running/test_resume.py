"""Killed at any moment and resumed, a run leaves what it would have left: real processes, real kills.

One fixture trains without interruption; every test ends in the same files, to the bit (wall-clock fields aside).
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from signal import Signals
from typing import Any

import numpy as np
import pytest
from conftest import SameBits

from covey import metrics as names
from covey import results as marl_eval
from covey.errors import CoveyError, UsageError
from covey.experiment.configuration.compose import compose
from covey.experiment.loading.evaluation import evaluate_run
from covey.experiment.recording.checkpoint import Checkpoints
from covey.experiment.recording.finished import finished_frames
from covey.experiment.recording.lease import living_holder, take
from covey.experiment.recording.run_directory import RunDirectory
from covey.experiment.running.experiment import train
from covey.experiment.running.training import Training

ITERATIONS, FRAMES = 96, 64
ARGUMENTS = [
    "task=probe/memory",
    "algorithm=mappo",
    "model=gru",
    "model.layers=[8]",
    "model.hidden_size=8",
    "model.layers_after=[]",
    "algorithm.epochs=2",
    "algorithm.num_minibatches=2",
    "algorithm.sequence_length=4",
    "algorithm.observation_normalisation=true",
    "experiment.num_envs=8",
    "experiment.rollout_length=8",
    "experiment.devices=1",
    f"experiment.frames={ITERATIONS * FRAMES}",
    f"experiment.evaluation_interval={6 * FRAMES}",
    f"experiment.checkpoint_interval={4 * FRAMES}",
    "experiment.evaluation_episodes=4",
    "experiment.checkpoint_keep=2",
]
LINES = ITERATIONS + ITERATIONS // 6 + 2  # trainings, evaluations and the one at frame 0, the absolute metric


def covey(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "covey.cli", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(os.environ))


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=240)
    return process.returncode, out, err


def complete(*arguments: str) -> str:
    code, out, err = finish(covey(*arguments))
    assert code == 0, err
    return out + err


def lines(path: Path) -> int:
    file = path / "metrics.jsonl"
    return file.read_bytes().count(b"\n") if file.exists() else 0


def stop_at(process: subprocess.Popen[str], path: Path, line: int, number: int, delay: float = 0.0) -> None:
    """Sends a signal a moment after metrics.jsonl has that many lines; one that was done by then ends by itself."""
    deadline = time.monotonic() + 240
    while process.poll() is None and lines(path) < line:
        assert time.monotonic() < deadline
        time.sleep(0.002)
    time.sleep(delay)
    if process.poll() is None:
        process.send_signal(number)


def left_behind(path: Path) -> dict[str, Any]:
    """All that a run leaves, without what the clock gives."""
    run = RunDirectory.open(path)
    found = run.read_results()
    assert found is not None
    checkpoints = Checkpoints(run.checkpoints)
    return {
        "metrics": [{k: v for k, v in r.items() if k not in names.WALL_CLOCK} for r in run.metrics.read()],
        "results": {
            step: {k: v for k, v in values.items() if k != "elapsed_time"}
            for step, values in marl_eval.only_run(found).items()
        },
        "state": {part: checkpoints.restore_part(part) for part in ("learner", "actor", "clock", "best")},
        "iterations": checkpoints.iterations(),
    }


def assert_equal_runs(path: Path, wanted: dict[str, Any], same_bits: Any) -> None:
    got = left_behind(path)
    assert [(r["kind"], r["frames"]) for r in got["metrics"]] == [(r["kind"], r["frames"]) for r in wanted["metrics"]]
    assert got["metrics"] == wanted["metrics"]
    assert got["results"] == wanted["results"]
    assert got["iterations"] == wanted["iterations"]
    same_bits(got["state"], wanted["state"])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing interrupted."""
    path = tmp_path_factory.mktemp("whole") / "run"
    complete("train", f"run_dir={path}", *ARGUMENTS)
    return path


@pytest.fixture(scope="module")
def wanted(whole: Path) -> dict[str, Any]:
    left = left_behind(whole)
    assert len(left["metrics"]) == LINES
    assert len(left["results"]) == ITERATIONS // 6 + 2
    assert left["iterations"] == [ITERATIONS - 4, ITERATIONS]
    return left


def kill_and_resume(path: Path, moments: list[tuple[int, float]]) -> int:
    """Kills the run at each moment (line, seconds after it) and resumes; returns how many kills met a live run."""
    met = 0
    for number, (line, delay) in enumerate(moments):
        process = covey("train", f"run_dir={path}", *ARGUMENTS) if number == 0 else covey("resume", str(path))
        stop_at(process, path, line, signal.SIGKILL, delay)
        code, _, err = finish(process)
        met += code == -signal.SIGKILL
        assert code in (0, -signal.SIGKILL), err
    complete("resume", str(path))
    return met


def test_killed_at_random_moments(wanted: dict[str, Any], tmp_path: Path, same_bits: SameBits) -> None:
    seed = random.randrange(10**6)
    rng = random.Random(seed)
    moments = [(int(rng.uniform(low, low + 0.25) * LINES), rng.uniform(0, 0.1)) for low in (0.02, 0.3, 0.6)]
    print(f"seed {seed}: {moments}")
    assert kill_and_resume(tmp_path / "run", moments) >= 2
    assert_equal_runs(tmp_path / "run", wanted, same_bits)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_killed_at_many_moments(wanted: dict[str, Any], tmp_path: Path, same_bits: SameBits, seed: int) -> None:
    rng = random.Random(seed)
    moments = sorted((rng.randrange(LINES), rng.uniform(0, 0.3)) for _ in range(8))
    kill_and_resume(tmp_path / "run", moments)
    assert_equal_runs(tmp_path / "run", wanted, same_bits)


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGTERM, 143),
        pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow),
        pytest.param(signal.SIGHUP, 129, marks=pytest.mark.slow),
    ],
)
def test_signals_save_say_so_and_exit(
    wanted: dict[str, Any], tmp_path: Path, same_bits: SameBits, number: Signals, code: int
) -> None:
    path = tmp_path / "run"
    process = covey("train", f"run_dir={path}", *ARGUMENTS)
    stop_at(process, path, LINES // 3, number)
    returned, out, err = finish(process)
    assert returned == code, err
    assert "Traceback" not in err
    assert "saved" in out + err and f"covey resume {path}" in " ".join((out + err).split())
    saved = Checkpoints(path / "checkpoints").iterations()
    trained = [r[names.ITERATION] for r in RunDirectory.open(path).metrics.read() if r[names.KIND] == names.TRAIN]
    assert saved[-1] == trained[-1] < ITERATIONS
    if number == signal.SIGTERM:
        complete("resume", str(path))
        got = left_behind(path)
        assert got["metrics"] == wanted["metrics"] and got["results"] == wanted["results"]
        same_bits(got["state"], wanted["state"])


# ---------------------------------------------------------------------------- in this process: faster, and equal


def resume(path: Path, *overrides: str) -> None:
    from covey.experiment.running.experiment import resume as go_on

    go_on(path, ["experiment.loggers=[]", *overrides])


def cut_back(whole: Path, path: Path) -> list[Path]:
    """A copy of the finished run, and its checkpoints, oldest first."""
    shutil.copytree(whole, path)
    return sorted((path / "checkpoints").iterdir())


def test_resuming_a_finished_run_changes_nothing(
    whole: Path, wanted: dict[str, Any], tmp_path: Path, same_bits: SameBits
) -> None:
    cut_back(whole, tmp_path / "run")
    for _ in range(2):
        resume(tmp_path / "run")
        got = left_behind(tmp_path / "run")
        assert got["metrics"] == wanted["metrics"]
        assert got["results"] == wanted["results"]
        same_bits(got["state"], wanted["state"])


def test_a_damaged_newest_checkpoint_falls_back(
    whole: Path, wanted: dict[str, Any], tmp_path: Path, same_bits: SameBits, capsys: pytest.CaptureFixture[str]
) -> None:
    *_, newest = cut_back(whole, tmp_path / "run")
    data = [file for file in (newest / "arrays").rglob("*") if file.is_file() and file.stat().st_size > 500]
    assert data
    for file in data:
        content = bytearray(file.read_bytes())
        content[len(content) // 2 :] = b"\0" * (len(content) - len(content) // 2)
        file.write_bytes(content)
    resume(tmp_path / "run")
    output = capsys.readouterr()
    assert "damaged" in output.out + output.err
    assert_equal_runs(tmp_path / "run", wanted, same_bits)


def test_a_torn_last_line_is_made_again(
    whole: Path, wanted: dict[str, Any], tmp_path: Path, same_bits: SameBits
) -> None:
    *_, newest = cut_back(whole, tmp_path / "run")
    shutil.rmtree(newest)
    with open(tmp_path / "run" / "metrics.jsonl", "ab") as file:
        file.write(b'{"kind": "train", "fra')
    resume(tmp_path / "run")
    assert_equal_runs(tmp_path / "run", wanted, same_bits)


def test_without_a_checkpoint_it_starts_again(
    whole: Path, wanted: dict[str, Any], tmp_path: Path, same_bits: SameBits
) -> None:
    cut_back(whole, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    resume(tmp_path / "run")
    assert_equal_runs(tmp_path / "run", wanted, same_bits)


def test_a_finished_run_is_extended(whole: Path, wanted: dict[str, Any], tmp_path: Path) -> None:
    cut_back(whole, tmp_path / "run")
    resume(tmp_path / "run", f"experiment.frames={(ITERATIONS + 6) * FRAMES}")
    got = left_behind(tmp_path / "run")
    trained = [r["frames"] for r in got["metrics"] if r["kind"] == names.TRAIN]
    assert trained == [FRAMES * i for i in range(1, ITERATIONS + 7)]
    assert [r["frames"] for r in got["metrics"] if r["kind"] == names.ABSOLUTE] == [(ITERATIONS + 6) * FRAMES]
    steps = [step for step in got["results"] if step != "absolute_metrics"]
    assert len(steps) == ITERATIONS // 6 + 2
    assert got["results"]["step_3"] == wanted["results"]["step_3"]
    # The schedule's horizon stays that of the first run: there the learning rate had reached zero.
    lr = [r["agents/lr"] for r in got["metrics"] if r["kind"] == names.TRAIN]
    np.testing.assert_allclose(lr[-6:], 0.0, atol=1e-12)


def contents(path: Path) -> dict[Path, tuple[bytes, int]]:
    """Every file with its time of modification."""
    return {file: (file.read_bytes(), file.stat().st_mtime_ns) for file in path.rglob("*") if file.is_file()}


def test_a_finished_run_says_so_without_jax(whole: Path, tmp_path: Path) -> None:
    cut_back(whole, tmp_path / "run")
    before = contents(tmp_path / "run")
    code = (
        "import sys; from covey import cli; code = cli.main(sys.argv[1:]); print('jax' in sys.modules); sys.exit(code)"
    )
    for words, without_jax in (([], True), (["experiment.loggers=[]"], False)):
        done = subprocess.run(
            [sys.executable, "-c", code, "resume", str(tmp_path / "run"), *words], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        line, jax_imported = done.stdout.splitlines()
        assert f"run is finished at {ITERATIONS * FRAMES:,} frames; `covey resume" in line
        assert (jax_imported == "False") == without_jax
    assert contents(tmp_path / "run") == before


@pytest.mark.parametrize("name", ["metrics.jsonl", "results.json", "checkpoints", "finished.json"])
def test_a_run_with_a_damaged_file_is_not_finished(whole: Path, tmp_path: Path, name: str) -> None:
    *_, newest = cut_back(whole, tmp_path / "run")
    run = RunDirectory.open(tmp_path / "run")
    assert finished_frames(run) == ITERATIONS * FRAMES
    file = newest / "index.json" if name == "checkpoints" else run.path / name
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    assert finished_frames(run) is None
    file.unlink()
    assert finished_frames(run) is None


def test_fewer_frames_than_were_trained_are_refused(whole: Path, tmp_path: Path) -> None:
    path = tmp_path / "run"
    cut_back(whole, path)
    before = contents(path)
    for frames in (1, 1000, (ITERATIONS - 1) * FRAMES):
        with pytest.raises(UsageError, match=f"has trained for {ITERATIONS * FRAMES:,} frames") as caught:
            resume(path, f"experiment.frames={frames}")
        assert "\n" not in str(caught.value)
    resume(path, f"experiment.frames={(ITERATIONS - 1) * FRAMES + 1}")  # rounds up to the same iterations
    assert contents(path) == before


def test_what_fails_before_training_leaves_the_configuration(whole: Path, tmp_path: Path) -> None:
    path = tmp_path / "run"
    cut_back(whole, path)
    config = (path / "config.yaml").read_bytes()
    with pytest.raises(UsageError, match="devices"):
        resume(path, f"experiment.frames={(ITERATIONS + 6) * FRAMES}", "experiment.devices=8")
    assert (path / "config.yaml").read_bytes() == config


# ------------------------------------------------------------------------------------------------- two at the same time


def test_a_second_process_is_refused(wanted: dict[str, Any], tmp_path: Path, same_bits: SameBits) -> None:
    path = tmp_path / "run"
    process = covey("train", f"run_dir={path}", *ARGUMENTS)
    stop_at(process, path, LINES // 8, signal.SIGSTOP)  # alive, and silent
    try:
        code, out, err = finish(covey("resume", str(path)))
        assert code == 2 and err.count("\n") == 1, out + err
        assert f"{path} is being trained by process {process.pid} on " in err
        assert "compiling" not in out
        found = living_holder(path)
        assert found is not None and found.process == process.pid
    finally:
        process.send_signal(signal.SIGCONT)
    code, _, err = finish(process)
    assert code == 0, err
    assert living_holder(path) is None
    assert_equal_runs(path, wanted, same_bits)


def test_a_run_that_is_taken_over_stops_writing(tmp_path: Path) -> None:
    """As after a night in which the host was suspended, and another host went on."""
    path = tmp_path / "run"

    class TakeOver:
        def on_iteration(self, training: Training, metrics: Mapping[str, float]) -> None:
            if training.iteration == 5:
                training._recorders[0].checkpoints.wait()
                (path / ".lease-2").write_text("{}")
                assert training.run_directory.lease is not None
                training.run_directory.lease.beat()
                self.before = contents(path)

    take_over: Any = TakeOver()
    config = compose([*ARGUMENTS, f"run_dir={path}", "experiment.loggers=[]"])
    with pytest.raises(CoveyError, match=r"lost its lease, .*this process stopped writing"):
        train(config, [take_over])
    assert contents(path) == take_over.before


def test_evaluating_a_running_run_says_so(whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run"
    cut_back(whole, path)
    lease = take(path)
    evaluate_run(path, episodes=2)
    out = capsys.readouterr().out
    assert f"is still training (process {os.getpid()} on" in out
    assert f"checkpoint at {ITERATIONS * FRAMES:,} frames" in out
    lease.release()
    evaluate_run(path, episodes=2)
    assert "still training" not in capsys.readouterr().out
    shutil.rmtree(path / "checkpoints")
    lease = take(path)
    with pytest.raises(CoveyError, match="no checkpoint yet; it is being trained by process"):
        evaluate_run(path, episodes=2)


@pytest.mark.slow
def test_another_number_of_devices_goes_on_with_a_warning(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cut_back(whole, tmp_path / "run")
    resume(tmp_path / "run", "experiment.devices=2", f"experiment.frames={(ITERATIONS + 2) * FRAMES}")
    output = capsys.readouterr()
    assert "another number of devices" in output.out + output.err
    got = left_behind(tmp_path / "run")
    assert got["metrics"][-1]["frames"] == (ITERATIONS + 2) * FRAMES
