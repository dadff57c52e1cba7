"""`covey evaluate`: numbers that fit the run, as JSON, and an episode that can be looked at."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from covey.errors import UsageError
from covey.experiment.loading.evaluation import EPISODES_AT_ONCE, evaluate_run, write_video
from covey.experiment.running.experiment import Experiment

FIELDS = {
    "experiment.frames": 4096,
    "experiment.num_envs": 8,
    "experiment.rollout_length": 8,
    "experiment.devices": 1,
    "experiment.evaluation_interval": 0,
    "experiment.evaluation_episodes": 4,
    "experiment.absolute_metric": False,
    "experiment.loggers": [],
    "model.layers": [8],
    "algorithm.num_minibatches": 2,
    "algorithm.lr": 1e-2,
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "copy"
    Experiment(task="probe/copy", algorithm="ippo", run_dir=str(path), fields=FIELDS).run()
    return path


def test_report_and_json(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "deep" / "eval.json"
    output.parent.mkdir()
    report = evaluate_run(run, episodes=EPISODES_AT_ONCE + 3, output=str(output), deterministic=True)
    assert json.loads(output.read_text()) == report
    assert report["mean_return"] == report["means"]["agents_return"] == 1.0
    assert report["deterministic"] is True and report["task"] == "probe/copy"
    assert len(report["episodes"]["mean_return"]) == EPISODES_AT_ONCE + 3
    assert np.mean(report["episodes"]["mean_return"]) == pytest.approx(report["mean_return"])
    printed = capsys.readouterr().out
    assert "greedy" in printed and "mean_return" in printed and str(output) in printed


def test_discrete_policies_are_sampled_unless_asked(run: Path) -> None:
    sampled = evaluate_run(run, episodes=64)
    assert sampled["deterministic"] is False
    assert sampled["mean_return"] == pytest.approx(1.0, abs=0.1)
    assert evaluate_run(run, episodes=64)["episodes"] == sampled["episodes"]
    low, high = sampled["interval_95"]
    assert low <= sampled["mean_return"] <= high


def test_one_episode_has_no_interval(run: Path, tmp_path: Path) -> None:
    report = evaluate_run(run, episodes=1, output=str(tmp_path / "eval.json"))
    assert json.loads((tmp_path / "eval.json").read_text())["mean_return"] == report["mean_return"]


def test_gif_and_png_can_be_read(tmp_path: Path, run: Path) -> None:
    fields = {**FIELDS, "experiment.frames": 64}
    Experiment(task="probe/truncation", algorithm="ippo", run_dir=str(tmp_path / "run"), fields=fields).run()
    evaluate_run(tmp_path / "run", episodes=1, render=str(tmp_path / "team.gif"))
    gif: Any  # Pillow's types do not know the frames
    with Image.open(tmp_path / "team.gif") as gif:
        assert gif.n_frames == 11 and gif.size == (64, 64)  # ten steps, and the beginning
        shades = []
        for frame in range(gif.n_frames):
            gif.seek(frame)
            shades.append(np.asarray(gif.convert("RGB")).mean())
        assert np.all(np.diff(shades) > 0)
    evaluate_run(run, episodes=1, render=str(tmp_path / "team.png"))
    with Image.open(tmp_path / "team.png") as png:
        assert png.size == (64, 64)


def test_what_cannot_be_written_is_refused_first(run: Path) -> None:
    with pytest.raises(UsageError, match="must end in"):
        evaluate_run(run, render="team.bmp")
    with pytest.raises(UsageError, match="at least 1"):
        evaluate_run(run, episodes=0)


@pytest.mark.parametrize("name", ["output", "render"])
def test_where_nothing_can_be_written_nothing_is_played(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("played")

    monkeypatch.setattr("covey.experiment.loading.evaluation.play", refuse)

    def evaluate(path: Path) -> None:
        fields: dict[str, Any] = {name: str(path)}
        evaluate_run(run, **fields)

    (tmp_path / "file").write_text("")
    (tmp_path / "folder.gif").mkdir()
    with pytest.raises(UsageError, match=f"{name}=.*is a directory"):
        evaluate(tmp_path / "folder.gif")
    with pytest.raises(UsageError, match=f"cannot write {name}=.*: (Not a directory|File exists)"):
        evaluate(tmp_path / "file" / "team.gif")
    with pytest.raises(AssertionError, match="played"):
        evaluate(tmp_path / "deep" / "team.gif")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["deep", "file", "folder.gif"]
    assert not list((tmp_path / "deep").iterdir())  # a check leaves no empty file


@pytest.mark.parametrize("name", ["output", "render"])
def test_only_regular_files_are_written(run: Path, tmp_path: Path, name: str) -> None:
    """A pipe would wait for its reader for ever, and /dev/null would be replaced by a file."""
    path = tmp_path / "odd.gif"
    os.mkfifo(path)
    fields: dict[str, Any] = {name: str(path)}
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # else opening it would hang
    try:
        with pytest.raises(UsageError, match=f"{name}=.*not a regular file"):
            evaluate_run(run, episodes=1, **fields)
    finally:
        os.close(reader)
    assert stat.S_ISFIFO(path.stat().st_mode)


def test_a_file_that_is_empty_is_left_where_episodes_fail(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "eval.json").write_text("")
    monkeypatch.setattr("covey.experiment.loading.evaluation.load", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        evaluate_run(run, episodes=1, output=str(tmp_path / "eval.json"))
    assert (tmp_path / "eval.json").exists()


def test_several_seeds_are_averaged_over_seeds(tmp_path: Path) -> None:
    fields = {**FIELDS, "experiment.frames": 64}
    Experiment(task="probe/copy", algorithm="ippo", seeds=[0, 1], run_dir=str(tmp_path / "run"), fields=fields).run()
    report = evaluate_run(tmp_path / "run", episodes=8)
    means = [seed["mean_return"] for seed in report["seeds"]]
    assert len(means) == 2 and report["mean_return"] == pytest.approx(np.mean(means))
    # Still a random team: were a round's key used again, the second would repeat the first.
    rounds = evaluate_run(tmp_path / "run" / "seed_0", episodes=2 * EPISODES_AT_ONCE)["episodes"]["mean_return"]
    assert rounds[:EPISODES_AT_ONCE] != rounds[EPISODES_AT_ONCE:]


def test_frames_that_are_equal_are_all_written(tmp_path: Path) -> None:
    """Pillow drops frames that equal the one before: their time must not be lost."""
    frames = [np.full((8, 8, 3), shade, np.uint8) for shade in (10, 10, 10, 200)]
    write_video(frames, tmp_path / "still.gif")
    gif: Any
    with Image.open(tmp_path / "still.gif") as gif:
        duration = 0
        for frame in range(gif.n_frames):
            gif.seek(frame)
            duration += gif.info["duration"]
    assert duration == 400
