import functools
import json
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from covey.errors import UsageError
from covey.experiment.recording import loggers
from covey.experiment.recording.loggers import LoggerTeam, check_loggers
from covey.experiment.recording.run_directory import RunDirectory

CONFIG = {"seed": 3, "algorithm": {"name": "mappo", "lr": 3e-4, "layers": [64, 64]}, "task": {"name": "lbf/8x8"}}


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(tmp_path / "run", CONFIG, {})


def log_two_records(run: RunDirectory, names: list[str], options: dict[str, Any] | None = None) -> None:
    team = LoggerTeam(names, options, warn=pytest.fail)
    team.start(run, CONFIG)
    team.log("train", {"loss": 0.5, "agents/entropy": 1.5, "broken": float("nan")}, frames=100)
    team.log("evaluation", {"mean_return": 0.25}, frames=200)
    assert team.finish(timeout=60)


# -------------------------------------------------------------------------------------------- the services themselves


def test_tensorboard(run: RunDirectory) -> None:
    pytest.importorskip("tensorboardX")
    log_two_records(run, ["tensorboard"])
    scalars = read_tensorboard(run.path / "tensorboard")
    assert scalars == {
        ("train/loss", 100): 0.5,
        ("train/agents/entropy", 100): 1.5,
        ("evaluation/mean_return", 200): 0.25,
    }


def read_tensorboard(folder: Path) -> dict[tuple[str, int], Any]:
    """The scalars of TFRecord files: length, its checksum, an Event, its checksum."""
    from tensorboardX.proto.event_pb2 import Event

    scalars = {}
    for path in folder.iterdir():
        content = path.read_bytes()
        while content:
            (length,) = struct.unpack("<Q", content[:8])
            event = Event.FromString(content[12 : 12 + length])
            content = content[16 + length :]
            for value in event.summary.value:
                if value.WhichOneof("value") == "simple_value":
                    scalars[value.tag, event.step] = value.simple_value
    return scalars


def test_offline_wandb_has_the_whole_configuration(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")  # nothing listens there
    options = {"wandb": {"project": "birds", "mode": "offline", "tags": ["test"]}}
    log_two_records(run, ["wandb"], options)
    log_two_records(run, ["wandb"], options)  # as a resumed run would
    folders = sorted((run.path / "wandb").glob("offline-run-*"))
    for folder in folders:
        records = read_finished_wandb(next(folder.glob("*.wandb")))
        (started,) = (record.run for record in records if record.WhichOneof("record_type") == "run")
        assert (started.project, started.run_id, started.display_name) == ("birds", run.run_id, "run")
        config = {item.key: json.loads(item.value_json) for item in started.config.update}
        assert {name: config[name] for name in CONFIG} == CONFIG
        history = [record.history for record in records if record.WhichOneof("record_type") == "history"]
        rows = [
            {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in row.item} for row in history
        ]
        assert [row["frames"] for row in rows] == [100, 200]
        assert (rows[0]["train/loss"], rows[0]["train/agents/entropy"]) == (0.5, 1.5)
        assert rows[1]["evaluation/mean_return"] == 0.25
    assert len(folders) == 2


def test_wandb_without_a_login_says_that_it_is_offline(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("wandb")
    for name in ("WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "no_netrc"))
    said: list[str] = []
    team = LoggerTeam(["wandb"], warn=said.append)
    team.start(run, CONFIG)
    team.finish()
    (folder,) = (run.path / "wandb").glob("offline-run-*")
    assert said == [f"W&B has no login here and logs offline; upload it later: wandb login && wandb sync {folder}"]


def test_wandb_runs_of_seeds_that_train_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    runs = [RunDirectory.create(tmp_path / f"seed_{seed}", CONFIG, {}) for seed in (0, 1)]
    teams = [LoggerTeam(["wandb"], {"wandb": {"mode": "offline"}}, warn=pytest.fail) for _ in runs]
    for number, (team, run) in enumerate(zip(teams, runs, strict=True)):
        team.start(run, CONFIG)
        team.log("train", {"loss": float(number)}, frames=100)
        wait_for(functools.partial(has_wandb_file, run))  # the other begins only now
    assert all([team.finish(timeout=60) for team in teams])
    for number, run in enumerate(runs):
        records = read_finished_wandb(next(run.path.glob("wandb/offline-run-*/*.wandb")))
        rows = [record.history for record in records if record.WhichOneof("record_type") == "history"]
        losses = [json.loads(item.value_json) for row in rows for item in row.item if "loss" in str(item)]
        assert losses == [number]


def has_wandb_file(run: RunDirectory) -> bool:
    return any(run.path.glob("wandb/offline-run-*/*.wandb"))


def wait_for(condition: Callable[[], object], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def read_finished_wandb(path: Path) -> list[Any]:
    """W&B's service writes the last records a moment after its client said that it finished."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        records = read_wandb(path)
        if records and records[-1].WhichOneof("record_type") == "exit":
            return records
        time.sleep(0.02)
    pytest.fail(f"{path} has no end")


def read_wandb(path: Path) -> list[Any]:
    """The records of a .wandb file: LevelDB's log format after a header of 7 bytes, with W&B's own messages in it."""
    from wandb.proto import wandb_internal_pb2

    messages: Any = wandb_internal_pb2  # made from another module when it is imported

    content, position, block = path.read_bytes(), 7, 32768
    records, parts = [], b""
    full, last = 1, 4
    while position + 7 <= len(content):
        if block - position % block < 7:
            position += block - position % block
            continue
        _, length, kind = struct.unpack("<IHB", content[position : position + 7])
        parts += content[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (full, last):
            records.append(messages.Record.FromString(parts))
            parts = b""
    return records


def test_mlflow(run: RunDirectory) -> None:
    mlflow = pytest.importorskip("mlflow")
    log_two_records(run, ["mlflow"])
    log_two_records(run, ["mlflow"])  # as a resumed run would
    client = mlflow.MlflowClient(tracking_uri=(run.path / "mlflow").absolute().as_uri())
    experiment = client.get_experiment_by_name("covey")
    (found,) = client.search_runs([experiment.experiment_id])
    assert found.data.metrics == {"train/loss": 0.5, "train/agents/entropy": 1.5, "evaluation/mean_return": 0.25}
    assert found.data.params["algorithm.lr"] == "0.0003"
    assert found.info.run_name == "run" and found.info.status == "FINISHED"
    assert {metric.step for metric in client.get_metric_history(found.info.run_id, "train/loss")} == {100}


# ------------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("names", "options", "message"),
    [
        (["wandbb"], {}, "unknown logger 'wandbb'; nearest: wandb"),
        (["csv"], {}, "unknown logger 'csv'"),
        (["console"], {"neptune": {}}, "unknown logger with options 'neptune'"),
        (["wandb"], {"wandb": {"projct": "x"}}, "nearest: project"),
        (["wandb"], {"wandb": {"mode": "ofline"}}, "nearest: offline"),
    ],
)
def test_bad_names_and_options(
    names: list[str], options: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    with pytest.raises(UsageError, match=message) as caught:
        check_loggers(names, options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "mlflow"])
def test_a_missing_extra_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    check_loggers(["console", "json"])
    with pytest.raises(UsageError, match=rf"pip install 'covey\[{name}\]'"):
        LoggerTeam(["console", name], warn=pytest.fail)


def test_nothing_is_imported_before_it_is_asked_for() -> None:
    code = (
        "import sys, covey.experiment.recording.loggers as loggers; loggers.check_loggers(['console', 'json']);"
        "print([name for name in ('wandb', 'mlflow', 'tensorboardX', 'jax') if name in sys.modules])"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout == "[]\n"


# ------------------------------------------------------------------------------------- loggers that do not do their job


Action = Callable[[], None]


class FakeLogger:
    """Does as told at each of its moments; remembers the records it got."""

    def __init__(self, start: Action | None = None, log: Action | None = None, finish: Action | None = None) -> None:
        self.actions = {"start": start, "log": log, "finish": finish}
        self.records: list[Any] = []

    def _act(self, moment: str) -> None:
        if (action := self.actions[moment]) is not None:
            action()

    def start(self, run_directory: RunDirectory, config: Mapping[str, Any], frames: int) -> None:
        self._act("start")

    def log(self, kind: str, record: Mapping[str, float], frames: int) -> None:
        self._act("log")
        self.records.append((kind, record, frames))

    def finish(self) -> None:
        self._act("finish")


def fail() -> None:
    raise ConnectionError("no route\nto host")


def leave() -> None:
    sys.exit(3)


def make_team(
    monkeypatch: pytest.MonkeyPatch, *fakes: FakeLogger, capacity: int = 1000
) -> tuple[LoggerTeam, list[str]]:
    warnings: list[str] = []
    names = [f"fake_{number}" for number in range(len(fakes))]
    extras = {
        name: loggers._Extra(make=lambda fake=fake: fake, module="json", options=frozenset())
        for name, fake in zip(names, fakes, strict=True)
    }
    monkeypatch.setattr(loggers, "_EXTRAS", extras)
    monkeypatch.setattr(loggers, "LOGGERS", tuple(names))
    return LoggerTeam(names, warn=warnings.append, capacity=capacity), warnings


@pytest.mark.parametrize("moment", ["start", "log", "finish"])
@pytest.mark.parametrize("failure", [fail, leave])
def test_a_failing_logger_warns_once_and_the_others_go_on(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch, moment: str, failure: Callable[..., Any]
) -> None:
    good = FakeLogger()
    team, warnings = make_team(monkeypatch, FakeLogger(**{moment: failure}), good)
    team.start(run, CONFIG)
    for frames in range(50):
        team.log("train", {"loss": 1.0}, frames)
    team.finish(timeout=5)
    assert [frames for _, _, frames in good.records] == list(range(50))
    assert len(warnings) == 1 and "fake_0" in warnings[0] and "\n" not in warnings[0]


@pytest.mark.parametrize("moment", ["start", "log", "finish"])
def test_a_hanging_logger_costs_nothing_but_the_time_given_at_the_end(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    release = threading.Event()
    hanging: dict[str, Any] = {moment: release.wait}
    team, warnings = make_team(monkeypatch, FakeLogger(**hanging), FakeLogger())
    start = time.monotonic()
    team.start(run, CONFIG)
    for frames in range(100):
        team.log("train", {"loss": 1.0}, frames)
    assert time.monotonic() - start < 0.3
    assert not team.finish(timeout=0.3)
    assert time.monotonic() - start < 1.0
    assert any("fake_0" in warning and "did not finish" in warning for warning in warnings)
    release.set()


def test_a_slow_logger_loses_records_and_says_so_once(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = FakeLogger(log=lambda: time.sleep(0.01))
    team, warnings = make_team(monkeypatch, slow, capacity=5)
    team.start(run, CONFIG)
    for frames in range(100):
        team.log("train", {"loss": 1.0}, frames)
    team.finish(timeout=5)
    assert 5 <= len(slow.records) < 100
    assert len(warnings) == 1 and "falls behind" in warnings[0]


def test_values_that_are_not_finite_are_left_out(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeLogger()
    team, _ = make_team(monkeypatch, fake)
    team.start(run, CONFIG)
    team.log("train", {"a": 1, "b": float("inf"), "c": float("nan")}, frames=7)
    team.finish()
    assert fake.records == [("train", {"a": 1.0}, 7)]


def test_flatten() -> None:
    assert loggers.flatten({"a": {"b": {"c": 1}, "d": [2]}, "e": None}) == {"a.b.c": 1, "a.d": [2], "e": None}
