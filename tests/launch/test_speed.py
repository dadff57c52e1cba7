"""`covey speed`: its rules on made-up rows, and one tiny real measurement."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from covey import cli
from covey.launch import speed, timing
from covey.launch.speed_rules import Row, choose_row, describe_rows, elasticity, find_limit, judge, recommend


def row(
    environments: int, seconds: float, device: str = "cpu x1", *, launch: float = 0.0, transfer: float = 0.0
) -> Row:
    """An iteration of ten steps: 10% of the time is simulation, 30% acting, 60% the update."""
    devices = int(device.rpartition("x")[2]) if "x" in device else 1
    return {
        "device": device,
        "devices": devices,
        "environments": environments,
        "frames_per_second": {"whole": 10 * environments / seconds},
        "seconds_per_iteration": {
            "simulation": 0.1 * seconds,
            "acting": 0.3 * seconds,
            "update": 0.6 * seconds,
            "whole": seconds,
        },
        "iterations_per_chunk": 10,
        "launch_seconds": launch,
        "transfer_seconds": transfer,
    }


def test_what_limits_the_speed() -> None:
    # Times grow by 1 from 1 to 8 environments, by 4 to 64, and by 8 to 512.
    rows = [row(1, 0.01), row(8, 0.01), row(64, 0.04), row(512, 0.32)]
    assert [elasticity(r, rows) for r in rows] == pytest.approx([0.0, 2 / 3, 1.0, 1.0])
    assert [r["limit"] for r in judge(rows)] == ["launch overhead", "too few environments", "compute", "compute"]
    assert {r["largest_part"] for r in judge(rows)} == {"update"}
    assert find_limit(rows[0], rows[:1]) is None


def test_launches_and_transfers_are_the_limit_from_a_fifth_of_the_time() -> None:
    # Ten iterations of 10 ms in a chunk: 25 ms are a fifth of 125.
    others = [row(8, 0.08)]
    for name, limit in {"launch": "launch overhead", "transfer": "transfers"}.items():
        more: dict[str, Any] = {name: 0.0251}
        less: dict[str, Any] = {name: 0.0249}
        slow, fast = row(1, 0.01, **more), row(1, 0.01, **less)
        assert find_limit(slow, [slow, *others]) == limit
        assert find_limit(fast, [fast, *others]) == "compute"


def test_the_recommendation_has_as_few_environments_as_possible() -> None:
    # 1000, 9100, 10000 frames per second on one core; 15000 at most on two.
    one = [row(1, 0.01), row(64, 640 / 9100), row(512, 5120 / 10000)]
    two = [row(64, 640 / 12000, "cpu x2"), row(512, 5120 / 15000, "cpu x2")]
    assert choose_row(one)["environments"] == 64
    assert recommend(one)["words"] == "experiment.platform=cpu experiment.devices=1 experiment.num_envs=64"
    best = recommend([*one, *two])
    assert (best["device"], best["environments"]) == ("cpu x2", 512)
    assert best["frames_per_second"] == pytest.approx(15000)
    assert "2 cores are 1.50 times as fast as one, at 512 environments" in describe_rows(judge([*one, *two]))


def test_why_the_gpu_is_slower_than_the_cpu() -> None:
    cpu = [row(8, 0.01), row(64, 0.08), row(512, 0.64)]  # 8000 frames per second throughout
    gpu = [row(8, 0.1, "gpu 0"), row(64, 0.1, "gpu 0"), row(512, 0.1, "gpu 0")]  # 800, 6400, 51200
    findings = describe_rows(judge([*cpu, *gpu]))
    assert (
        "gpu 0 is slower than the CPU at 64 environments (0.80 times as fast, limited by launch overhead); "
        "it is faster from 512 environments" in findings
    )
    assert recommend([*cpu, *gpu])["device"] == "gpu 0"
    never = describe_rows(judge([*cpu, *gpu[:2]]))
    assert any(text.endswith("(0.80 times as fast, limited by launch overhead)") for text in never)
    assert "gpu 0 is faster than the CPU at every number of environments" in describe_rows(judge([*cpu, gpu[2]]))


TINY = ["task=probe/copy", "algorithm=ippo", "model.layers=[8]", "experiment.rollout_length=8", "seconds=0.01"]


def test_sizes_that_fail_are_left_out_and_the_others_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def compile_setting(setting: timing.Setting) -> Any:
        if setting.environments == 2:
            raise MemoryError("out of memory\nwhile compiling")

    def time_setting(setting: timing.Setting, *others: Any) -> Row:
        if setting.environments == 4:
            raise RuntimeError("out of memory while running")
        times = row(setting.environments, 0.01, setting.device)
        return times | {"frames_per_second": dict.fromkeys(("simulation", "acting", "update", "whole"), 1.0)}

    monkeypatch.setattr(timing, "init_state", lambda setting: None)
    monkeypatch.setattr(timing, "compile_setting", compile_setting)
    monkeypatch.setattr(timing, "time_setting", time_setting)
    monkeypatch.setattr(speed, "available_cores", lambda: [0])
    sizes = ["algorithm.num_minibatches=1", "experiment.platform=cpu"]
    output = tmp_path / "speed.json"
    assert cli.main(["speed", *TINY, *sizes, "environments=[1,2,4,8]", f"output={output}"]) == 0
    report = json.loads(output.read_text())
    assert [r["environments"] for r in report["rows"]] == [1, 8]
    assert "left out: 2 environments on cpu x1: MemoryError: out of memory" in report["findings"]
    assert "left out: 4 environments on cpu x1: RuntimeError: out of memory while running" in report["findings"]
    capsys.readouterr()
    assert cli.main(["speed", *TINY, *sizes, "environments=[2,4]"]) == 2
    assert "nothing can be timed: 2 environments" in capsys.readouterr().err


def test_an_accelerator_whose_process_fails_is_left_out() -> None:
    options, config = speed.read_words([*TINY, "environments=[1]"])
    found = speed.measure_elsewhere(config, options, "gpu 0", {"JAX_PLATFORMS": "no-such"}, lambda text: None)
    assert found["rows"] == [] and found["kind"] == "gpu 0"
    [reason] = found["left_out"]
    assert reason.startswith("gpu 0: its process ended with exit code 1: ") and "no-such" in reason


@pytest.mark.slow
def test_an_accelerators_process_reports_its_rows() -> None:
    """Uses the CPU: the test is about what comes through the pipe."""
    options, config = speed.read_words([*TINY, "algorithm.num_minibatches=1", "environments=[1]"])
    said: list[str] = []
    found = speed.measure_elsewhere(config, options, "gpu 0", {"JAX_PLATFORMS": "cpu"}, said.append)
    assert [(r["device"], r["environments"]) for r in found["rows"]] == [("gpu 0", 1)] and found["left_out"] == []
    assert "gpu 0: timing 1 environments on cpu x1" in said


def test_wandb_receives_the_figures_and_the_hardware(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb")
    logged: list[dict[str, Any]] = []

    class Run:
        dir = str(tmp_path / "wandb" / "offline-run" / "files")

        def define_metric(self, *names: Any, **options: Any) -> None: ...
        def finish(self) -> None: ...
        def log(self, record: dict[str, Any]) -> None:
            logged.append(record)

    def init(**options: Any) -> Run:
        logged.append(options)
        return Run()

    monkeypatch.setattr(wandb, "init", init)
    monkeypatch.setattr(wandb, "login", lambda **options: False)
    found = dict.fromkeys(("simulation", "acting", "update"), 5.0)
    rows = [r | {"frames_per_second": r["frames_per_second"] | found} for r in (row(1, 0.01), row(8, 0.02))]
    options, config = speed.read_words([*TINY, "environments=[1,8]", "loggers=[wandb]", "name=mine"])
    measured = {"rows": rows, "left_out": [], "accelerators": []}
    speed.log(speed.make_report(config, options, ["loggers=[wandb]"], measured), config, tmp_path)
    started, first, second = logged
    assert (started["name"], started["mode"]) == ("speed of mine", "offline")
    assert started["config"]["machine"]["processor"] and started["config"]["machine"]["cores"] == os.cpu_count()
    assert started["config"]["recommendation"]["environments"] == 8
    assert (first["speed/cpu x1/environments"], first["speed/cpu x1/whole"]) == (1, 1000.0)
    assert (second["speed/cpu x1/environments"], second["speed/cpu x1/whole"]) == (8, 4000.0)


@pytest.mark.slow
def test_a_real_measurement(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "speed.json"
    words = ["task=probe/copy", "algorithm=ippo", "model.layers=[8]", "experiment.rollout_length=8"]
    sizes = ["algorithm.epochs=1", "algorithm.num_minibatches=1", "environments=[1,2]", "seconds=0.01", "name=mine"]
    assert cli.main(["speed", *words, *sizes, f"output={output}", "loggers=[tensorboard]"]) == 0
    printed = capsys.readouterr().out
    report: dict[str, Any] = json.loads(output.read_text())
    assert report["kind"] == "covey-speed" and report["machine"]["name"] == "mine"
    cores = report["machine"]["cores_used"]
    measured = {(r["device"], r["environments"]) for r in report["rows"]}
    assert measured == {("cpu x1", 1), ("cpu x1", 2)} | ({("cpu x2", 2)} if cores == 2 else set())
    assert any("left out: 1 environments" in finding for finding in report["findings"]) == (cores > 1)
    for r in report["rows"]:
        assert r["frames_per_iteration"] == 8 * r["environments"]
        assert r["frames_per_second"].keys() == {"simulation", "acting", "update", "whole"}
        assert all(value > 0 for value in r["frames_per_second"].values())
        seconds = r["seconds_per_iteration"]
        assert r["frames_per_second"]["whole"] == pytest.approx(r["frames_per_iteration"] / seconds["whole"])
    assert report["recommendation"]["words"] in " ".join(printed.split())
    assert list((tmp_path / "tensorboard").glob("events.*"))
    assert report["versions"]["jax"] and all(finding in printed for finding in report["findings"])


@pytest.mark.slow
def test_it_times_learning_from_replay(tmp_path: Path) -> None:
    words = ["task=probe/copy", "algorithm=iql", "model.layers=[8]", "buffer.size=1024", "buffer.batch_size=8"]
    output = tmp_path / "speed.json"
    assert cli.main(["speed", *words, "environments=[2]", "seconds=0.01", f"output={output}"]) == 0
    rows = json.loads(output.read_text())["rows"]
    assert all(r["seconds_per_iteration"]["update"] > 0 for r in rows)


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("environments=[0]", "environments takes numbers of at least 1, not [0]"),
        ("environments=8", "speed.environments takes a list, not 8"),
        ("seconds=0", "seconds must be above 0"),
        ("output=no/such/folder/speed.json", "there is no such folder"),
        ("task=nothing", "unknown task 'nothing'"),
        ("secnds=3", "unknown key 'secnds'"),
        ("loggers=[wandbb]", "unknown logger 'wandbb'"),
    ],
)
def test_bad_input(capsys: pytest.CaptureFixture[str], word: str, message: str) -> None:
    assert cli.main(["speed", word]) == 2
    output = capsys.readouterr()
    assert output.out == "" and message in output.err and output.err.count("\n") == 1
