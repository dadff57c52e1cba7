"""Running a benchmark: real worker processes, real kills. The experiments are as small as possible."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from covey import cli
from covey.experiment.configuration.config import to_dict
from covey.experiment.recording.lease import hold
from covey.experiment.recording.run_directory import RunDirectory
from covey.launch import pool
from covey.launch.benchmark import Benchmark, BenchmarkExperiment, make_benchmark
from covey.launch.benchmark_files import is_done, read_status
from covey.launch.devices import Slot, make_slots
from covey.launch.overview import Overview
from covey.launch.pool import choose_next
from covey.launch.progress import read_progress
from covey.launch.worker_process import describe_death

TINY = (
    "model.layers=[8]",
    "ippo:algorithm.epochs=1",
    "ippo:algorithm.num_minibatches=1",
    "experiment.num_envs=4",
    "experiment.rollout_length=8",
    "experiment.frames=256",
    "experiment.evaluation_interval=128",
    "experiment.evaluation_episodes=4",
    "experiment.checkpoint_interval=64",
    "experiment.platform=cpu",
)


def words(folder: Path, *more: str) -> list[str]:
    return ["algorithms=[ippo]", "tasks=[probe/copy]", f"run_dir={folder}", *TINY, *more]


def run(folder: Path, *more: str) -> int:
    return cli.main(["benchmark", *words(folder, *more)])


def experiments(folder: Path, *more: str) -> tuple[BenchmarkExperiment, ...]:
    return make_benchmark(words(folder, *more)).experiments


def evaluations(experiment: BenchmarkExperiment) -> list[Any]:
    """The results of a run's evaluations, without times."""
    results = RunDirectory.open(experiment.run_directory).read_results()
    assert results is not None
    [task] = results.values()
    return [
        {name: values for name, values in step.items() if name != "elapsed_time"}
        for algorithms in task.values()
        for seeds in algorithms.values()
        for steps in seeds.values()
        for step in steps.values()
    ]


# MADDPG needs continuous actions, and fails when it is built.
BOTH = ("algorithms=[maddpg,ippo]", "seeds=2")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, int, str]]:
    """A benchmark in which one algorithm failed: its folder, the exit code, and the output."""
    folder = tmp_path_factory.mktemp("bench")
    command = [sys.executable, "-m", "covey.cli", "benchmark", *words(folder, *BOTH)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    yield folder, done.returncode, done.stdout + done.stderr


def test_a_failure_is_recorded_and_the_others_continue(finished: tuple[Path, int, str]) -> None:
    folder, code, printed = finished
    assert code == 1, printed
    assert "Traceback" not in printed
    *failed, first, second = experiments(folder, *BOTH)
    for experiment in failed:
        status = read_status(experiment)
        assert status["state"] == "failed" and "continuous" in status["error"], status
        assert not experiment.run_directory.exists()
        assert status["error"] in printed
    for experiment in (first, second):
        assert is_done(experiment)
        assert len(evaluations(experiment)) == 4  # at 0, 128 and 256 frames, and the absolute metric
        assert (experiment.run_directory / "team.gif").read_bytes().startswith(b"GIF8")
        assert read_progress(experiment)["share"] == 1.0
        log = experiment.log_file.read_text()
        assert "256/256 frames" in log
        assert RunDirectory.open(experiment.run_directory).environment["command"] == experiment.command
    assert "2 of 4 done, 2 failed" in printed and "2 of 4 experiments failed" in printed


def test_a_second_command_runs_only_new_and_failed_experiments(
    finished: tuple[Path, int, str], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, _, _ = finished
    more = ("algorithms=[maddpg,ippo]", "seeds=3")
    *failed, first, second, third = experiments(folder, *more)
    times = [(e.run_directory / "config.yaml").stat().st_mtime_ns for e in (first, second)]
    statuses = [e.status_file.read_bytes() for e in (first, second)]
    assert run(folder, *more) == 1
    out = capsys.readouterr().out
    assert "2 of 6 done before, 4 to run" in out and "probe/copy, ippo, seed 2: done" in out
    assert is_done(third) and evaluations(third) != evaluations(first)
    assert [(e.run_directory / "config.yaml").stat().st_mtime_ns for e in (first, second)] == times
    assert [e.status_file.read_bytes() for e in (first, second)] == statuses
    assert all(read_status(e)["state"] == "failed" for e in failed)
    assert run(folder, *more, "only=3") == 0
    assert "everything is already done" in capsys.readouterr().out


def test_force_runs_again(finished: tuple[Path, int, str]) -> None:
    folder, _, _ = finished
    first, second = experiments(folder, "seeds=2")
    made, values = (first.run_directory / "config.yaml").stat().st_mtime_ns, evaluations(first)
    status = second.status_file.read_bytes()
    assert run(folder, "seeds=2", "only=0", "force=true", "render=false") == 0
    assert (first.run_directory / "config.yaml").stat().st_mtime_ns > made
    assert not (first.run_directory / "team.gif").exists()
    assert evaluations(first) == values  # the same experiment has the same results
    assert second.status_file.read_bytes() == status


LONGER = ("experiment.frames=16_384", "experiment.evaluation_interval=4096", "experiment.checkpoint_interval=1024")


def wait_for(condition: Any, seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def share(experiment: BenchmarkExperiment) -> float:
    return float(read_progress(experiment).get("share", 0.0))


def test_an_interrupted_or_killed_benchmark_continues(tmp_path: Path) -> None:
    """SIGTERM saves; SIGKILL loses little; the same command continues."""
    command = [sys.executable, "-m", "covey.cli", "benchmark", *words(tmp_path, *LONGER)]
    [experiment] = experiments(tmp_path, *LONGER)

    def start() -> subprocess.Popen[str]:
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )

    process = start()
    wait_for(lambda: share(experiment) > 0.1)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 143, err
    assert "saved" in err and "Traceback" not in out + err
    assert read_status(experiment)["state"] == "interrupted"
    reached = share(experiment)
    assert 0.1 < reached < 1.0

    process = start()
    wait_for(lambda: share(experiment) > reached + 0.1)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)
    assert read_status(experiment)["state"] == "running"

    assert run(tmp_path, *LONGER) == 0
    assert is_done(experiment)
    assert experiment.log_file.read_text().count("resumed at") == 2
    assert len(evaluations(experiment)) == 6


DEADLY = """
import os, signal
from covey.envs.probes import CopyAction, ProbeConfig
from covey.registry import register_task

def make(config):
    print("about to die", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

def broken(config):
    raise RuntimeError("a mistake\\nof two lines")

for name, function in {"deadly": make, "broken": broken}.items():
    register_task(f"mine/{name}", function, config=ProbeConfig, description="")
"""


def test_a_worker_that_dies_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "deadly_tasks.py").write_text(DEADLY)
    tasks = ("tasks=[mine/deadly,mine/broken]", "imports=[deadly_tasks]", "workers=1")
    assert run(tmp_path / "bench", *tasks) == 1
    output = capsys.readouterr()
    assert "2 of 2 experiments failed" in output.err and "Traceback" not in output.out + output.err
    deadly, broken = experiments(tmp_path / "bench", *tasks)
    assert read_status(deadly)["error"] == "the process died of SIGKILL (out of memory?)"
    assert "about to die" in deadly.log_file.read_text()
    assert "making it raises RuntimeError: a mistake" in read_status(broken)["error"]
    assert "(deadly_tasks.py, line " in broken.log_file.read_text()


def test_two_commands_do_not_train_the_same_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    [experiment] = experiments(tmp_path)
    run_directory = RunDirectory.create(experiment.run_directory, to_dict(experiment.config), {})
    with hold([run_directory]):
        assert run(tmp_path, "force=true") == 2
        assert f"is being trained by process {os.getpid()} on" in capsys.readouterr().err
        assert run(tmp_path) == 1  # the worker notices before it builds anything, and does not touch the run
        output = capsys.readouterr()
        assert f"busy: {experiment.run_directory} is being trained by process {os.getpid()} on" in output.out
        assert not (experiment.run_directory / "metrics.jsonl").exists()


# ------------------------------------------------------------------------------------------------------- pure parts


def make(*more: str) -> Benchmark:
    return make_benchmark(["algorithms=[ippo,iql]", "tasks=[probe/copy]", "seeds=2", "run_dir=bench", *more])


def test_which_experiment_a_worker_runs_next() -> None:
    ippo_0, ippo_1, iql_0, iql_1 = make().experiments
    pending = [ippo_0, ippo_1, iql_0, iql_1]
    assert choose_next(pending, None, set()) is ippo_0
    assert choose_next(pending[1:], None, {ippo_0.name}) is iql_0  # no worker has compiled it
    assert choose_next([ippo_1, iql_1], iql_0.name, {ippo_0.name}) is iql_1  # its own
    assert choose_next([ippo_1], iql_0.name, {ippo_0.name}) is ippo_1  # rather than idle


def test_equal_slots_have_a_worker_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[BenchmarkExperiment] = []

    class FakeProcess(SimpleNamespace):
        """Stands in for a worker process."""

        def __init__(self, slot: Slot, log: Path):
            super().__init__(slot=slot, stdout=None, compiled=None, experiment=None, started_at="")

        def give(self, experiment: BenchmarkExperiment, render: bool) -> None:
            self.experiment = experiment
            given.append(experiment)

    monkeypatch.setattr(pool, "WorkerProcess", FakeProcess)
    selector = SimpleNamespace(register=lambda *arguments: None)
    monkeypatch.setattr("selectors.DefaultSelector", lambda: selector)
    (tmp_path / "status").mkdir()
    slots = make_slots("cpu", 1, cores=range(4), most=3)
    assert slots[0] == slots[1] == slots[2]
    pool.Pool(make(f"run_dir={tmp_path}"), slots, Overview(), [])._hand_out()
    assert len(given) == 3


def test_why_a_worker_died() -> None:
    assert describe_death(-11, ["…", "Fatal Python error: Segmentation fault", "", "Thread …"]) == (
        "the process died of SIGSEGV: Fatal Python error: Segmentation fault"
    )
    assert describe_death(3, ["ValueError: an error", "more"]) == (
        "the process ended with exit code 3: ValueError: an error"
    )
    assert describe_death(-9, []) == "the process died of SIGKILL (out of memory?)"


def test_progress_is_read_from_the_end(tmp_path: Path) -> None:
    [experiment] = experiments(tmp_path)
    assert read_progress(experiment) == {}
    experiment.run_directory.mkdir(parents=True)
    records = [
        {"kind": "evaluation", "frames": 0, "mean_return": 0.25},
        {"kind": "train", "frames": 32, "frames_per_second": 10.0},
        {"kind": "train", "frames": 64, "frames_per_second": 20.0},
    ]
    text = "".join(json.dumps(record) + "\n" for record in records) + '{"kind": "tra'
    (experiment.run_directory / "metrics.jsonl").write_text(text)
    assert read_progress(experiment) == {"share": 0.25, "frames_per_second": 20.0, "mean_return": 0.25}
