import json
import math
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest

from covey.errors import CoveyError, UsageError
from covey.experiment.recording.environment import describe_environment, git_commit
from covey.experiment.recording.run_directory import RunDirectory, read_metrics, refuse_existing, run_directories
from covey.results import add_step, make_results

CONFIG = {"seed": 0, "algorithm": {"name": "mappo", "lr": 3e-4, "layers": [64, 64]}, "tiny": 1e-12, "none": None}


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(tmp_path / "runs" / "first", CONFIG, {"python": "3.11"})


def test_create_and_open(run: RunDirectory) -> None:
    assert sorted(path.name for path in run.path.iterdir()) == ["config.yaml", "environment.json"]
    assert [path.name for path in run.path.parent.iterdir()] == ["first"]
    again = RunDirectory.open(run.path)
    assert again.config == CONFIG
    assert again.environment["python"] == "3.11"
    assert again.run_id == run.run_id


def test_runs_have_ids_of_their_own(run: RunDirectory) -> None:
    assert RunDirectory.create(run.path.parent / "second", CONFIG, {}).run_id != run.run_id


def test_an_existing_path_is_refused(run: RunDirectory, tmp_path: Path) -> None:
    for path in (run.path, tmp_path):
        with pytest.raises(UsageError, match="exists already") as caught:
            RunDirectory.create(path, CONFIG, {})
        assert "\n" not in str(caught.value)


def test_only_a_run_is_said_to_be_resumable(run: RunDirectory, tmp_path: Path) -> None:
    (tmp_path / "afile").write_text("")
    (tmp_path / "empty").mkdir()
    RunDirectory.create(tmp_path / "parent" / "seed_0", CONFIG, {})
    messages = {}
    for path in (run.path, tmp_path / "parent", tmp_path / "afile", tmp_path / "afile" / "seed_0", tmp_path / "empty"):
        with pytest.raises(UsageError) as caught:
            refuse_existing(path)
        messages[path.name] = str(caught.value)
    assert ["resume" in message for message in messages.values()] == [True, True, False, False, False]
    assert "afile is a file; choose another run_dir" in messages["afile"]
    assert "afile is a file; choose another run_dir" in messages["seed_0"]
    assert "is not a run directory; choose another run_dir" in messages["empty"]
    refuse_existing(tmp_path / "new")


def test_a_parent_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot make run directory"):
        RunDirectory.create(tmp_path / "file" / "run", CONFIG, {})


@pytest.mark.parametrize("content", [None, "a: [1", "just words", ""])
def test_what_is_not_a_run_directory(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "config.yaml").write_text(content)
    with pytest.raises(UsageError) as caught:
        RunDirectory.open(tmp_path)
    assert "\n" not in str(caught.value)


def test_seeds(tmp_path: Path) -> None:
    for seed in (10, 2, 0):
        RunDirectory.create(tmp_path / "parent" / f"seed_{seed}", CONFIG, {})
    (tmp_path / "parent" / "seed_3").mkdir()
    names = [path.name for path in run_directories(tmp_path / "parent")]
    assert names == ["seed_0", "seed_2", "seed_10"]
    assert run_directories(tmp_path / "parent" / "seed_2") == [tmp_path / "parent" / "seed_2"]
    for nothing in (tmp_path, tmp_path / "missing"):
        with pytest.raises(UsageError, match="not a run directory"):
            run_directories(nothing)


def test_metrics_are_strict_json_lines(run: RunDirectory) -> None:
    run.metrics.append({"frames": 1, "loss": np.float32(0.5), "kl": math.nan, "top": math.inf})
    run.metrics.append({"frames": np.int64(2), "values": np.arange(2), "ok": np.bool_(True)})
    lines = (run.path / "metrics.jsonl").read_text().splitlines()
    raw = [json.loads(line, parse_constant=pytest.fail) for line in lines]
    assert all(list(record)[-1] == "crc32" for record in raw)
    assert [{name: value for name, value in record.items() if name != "crc32"} for record in raw] == read_metrics(
        run.path
    )
    assert read_metrics(run.path) == [
        {"frames": 1, "loss": 0.5, "kl": None, "top": None},
        {"frames": 2, "values": [0, 1], "ok": True},
    ]


def test_metrics_cut(run: RunDirectory) -> None:
    assert run.metrics.sync() == 0
    run.metrics.cut(0)
    assert read_metrics(run.path) == []
    run.metrics.append({"frames": 1})
    offset = run.metrics.sync()
    run.metrics.append({"frames": 2})
    run.metrics.cut(offset)
    run.metrics.append({"frames": 3})
    assert [record["frames"] for record in run.metrics.read()] == [1, 3]


@pytest.mark.parametrize("torn", [b'{"frames": 2', b"\x00\x00", b"\xc3"])
def test_a_torn_last_line(run: RunDirectory, torn: bytes) -> None:
    run.metrics.append({"frames": 1})
    with open(run.path / "metrics.jsonl", "ab") as file:
        file.write(torn)
    assert read_metrics(run.path) == [{"frames": 1}]
    run.metrics.cut(10**6)  # beyond the end: must not grow the file
    run.metrics.append({"frames": 3})
    assert [record["frames"] for record in read_metrics(run.path)] == [1, 3]


def test_a_bad_line_in_the_middle_is_an_error(run: RunDirectory) -> None:
    (run.path / "metrics.jsonl").write_text('{"a": 1}\n{"a":\n{"a": 2}\n')
    with pytest.raises(CoveyError, match="line 2"):
        read_metrics(run.path)


@pytest.mark.parametrize("old, new", [(b"0.125", b"0.175"), (b"frames", b"framez"), (b'"crc32": ', b'"crc32": 1')])
def test_a_changed_line_is_an_error(run: RunDirectory, old: bytes, new: bytes) -> None:
    for frames in (1, 2):
        run.metrics.append({"frames": frames, "loss": 0.125})
    content = (run.path / "metrics.jsonl").read_bytes()
    (run.path / "metrics.jsonl").write_bytes(content.replace(old, new, 1))
    with pytest.raises(CoveyError, match="line 1: does not match its checksum"):
        read_metrics(run.path)


def test_an_edited_configuration_is_used_and_said(run: RunDirectory, caplog: pytest.LogCaptureFixture) -> None:
    path = run.path / "config.yaml"
    written = path.read_text()
    path.write_text(written.replace("mappo", "ippo"))
    assert RunDirectory.open(run.path).config["algorithm"]["name"] == "ippo"
    [warning] = caplog.messages
    assert f"{path} is not as covey wrote it" in warning and "\n" not in warning
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))  # as the warning advises
    assert RunDirectory.open(run.path).config["algorithm"]["name"] == "ippo"
    run.rewrite_config(CONFIG)
    assert path.read_text() == written
    RunDirectory.open(run.path)
    assert len(caplog.messages) == 1


def test_a_changed_or_missing_environment_is_said(run: RunDirectory, caplog: pytest.LogCaptureFixture) -> None:
    path = run.path / "environment.json"
    path.write_text(path.read_text().replace("3.11", "3.15"))
    assert RunDirectory.open(run.path).environment == {"run_id": run.run_id, "python": "3.15"}
    assert "environment.json is not as covey wrote it" in caplog.messages[0]
    path.unlink()
    assert RunDirectory.open(run.path).run_id == "first"
    assert "cannot read" in caplog.messages[1] and len(caplog.messages) == 2


def test_results(run: RunDirectory) -> None:
    assert run.read_results() is None
    results = add_step(make_results("a/b", "c", 0), frames=0, elapsed_seconds=0.0, metrics={"mean_return": [1.0]})
    run.write_results(results)
    assert run.read_results() == results


def test_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")
    environment = describe_environment()
    assert environment["packages"]["numpy"] == np.__version__
    assert environment["device"]["number"] >= 1
    assert environment["flags"]["XLA_FLAGS"] == "--xla_cpu_multi_thread_eigen=false"
    assert environment["command"] == sys.argv
    json.dumps(environment)


def test_git_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert git_commit() == (None, None)
    identity = ["-c", "user.name=n", "-c", "user.email=e@example.org"]
    (tmp_path / "file").write_text("one")
    for command in (["init", "-q"], ["add", "."], [*identity, "commit", "-q", "-m", "first"]):
        subprocess.run(["git", *command], check=True)
    (tmp_path / "untracked").write_text("")
    commit, dirty = git_commit()
    assert commit is not None and len(commit) == 40 and dirty is False
    (tmp_path / "file").write_text("two")
    assert git_commit() == (commit, True)
    monkeypatch.setenv("PATH", "")
    assert git_commit() == (None, None)


WRITER = textwrap.dedent(
    """
    import pathlib, sys
    from covey.experiment.recording.run_directory import RunDirectory
    from covey.results import add_step, make_results

    number = 0
    while True:
        run = RunDirectory.create(pathlib.Path(sys.argv[1]) / f"{sys.argv[2]}_{number}", {"a": list(range(200))}, {})
        print("made", flush=True)
        results = make_results("suite/task", "algorithm", 0)
        for frames in range(20):
            run.metrics.append({"frames": frames, "text": "x" * 500})
            results = add_step(results, frames=frames, elapsed_seconds=0.0, metrics={"mean_return": [0.1] * 100})
            run.write_results(results)
        number += 1
    """
)


def test_killed_at_any_moment_it_is_readable(tmp_path: Path) -> None:
    delays = random.Random(0)
    for attempt in range(6):
        command = [sys.executable, "-c", WRITER, str(tmp_path), str(attempt)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(delays.uniform(0, 0.1))
            os.kill(process.pid, signal.SIGKILL)
    runs = [path for path in tmp_path.iterdir() if not path.name.startswith(".")]
    assert len(runs) >= 6
    for path in runs:
        run = RunDirectory.open(path)
        assert run.config == {"a": list(range(200))}
        assert [record["frames"] for record in run.metrics.read()] == list(range(len(run.metrics.read())))
        run.read_results()


PIPES = """
import os, sys
from covey.errors import CoveyError
from covey.experiment.recording import finished, mirror, trust
from covey.experiment.recording.run_directory import RunDirectory, read_failure
from covey.report.runs import read_runs

run = RunDirectory.create(sys.argv[1], {"seed": 0}, {})
for name in ("metrics.jsonl", "results.json", "finished.json", "failure.json", "config.trust"):
    os.mkfifo(run.path / name)
assert finished.finished_frames(run) is None
assert trust._read_lines(run.path) == []
assert read_failure(run.path) == "no error recorded"
for read in (run.metrics.read, run.read_results, lambda: mirror.read_intact(run.metrics.path),
             lambda: run.metrics.cut(0), lambda: run.metrics.is_intact(1, None), lambda: read_runs([run.path])):
    try:
        read()
    except (OSError, CoveyError) as error:
        print(error)
"""


def test_pipes_in_a_run_directory_do_not_hang(tmp_path: Path) -> None:
    """An archive can hold them, and whoever opens one waits for its writer."""
    done = subprocess.run(
        [sys.executable, "-c", PIPES, str(tmp_path / "run")], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 6 and sum("not a regular file" in line for line in lines[:5]) == 5
    assert "no evaluation" in lines[5] or "no results" in lines[5]
