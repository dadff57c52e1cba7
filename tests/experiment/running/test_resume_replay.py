"""A run that learns from replay goes on to the bit, buffer included; without the buffer it fills another."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from conftest import SameBits

from covey import metrics as names
from covey.errors import CoveyError
from covey.experiment.recording.checkpoint import Checkpoints
from covey.experiment.recording.run_directory import RunDirectory
from covey.experiment.running.experiment import Experiment, resume

FRAMES, ITERATIONS = 32, 12
FIELDS: dict[str, Any] = {
    "experiment.frames": ITERATIONS * FRAMES,
    "experiment.num_envs": 8,
    "experiment.rollout_length": 4,
    "experiment.devices": 1,
    "experiment.updates": 3,
    "experiment.random_frames": 2 * FRAMES,
    "experiment.evaluation_interval": 3 * FRAMES,
    "experiment.evaluation_episodes": 4,
    "experiment.checkpoint_interval": 4 * FRAMES,
    "experiment.loggers": [],
    "experiment.buffer.size": 6 * FRAMES,  # it wraps
    "experiment.buffer.batch_size": 8,
    "experiment.buffer.prioritised": True,
    "model.layers": [8],
}


def train(path: Path, **buffer: Any) -> Path:
    changes = {f"experiment.buffer.{name}": value for name, value in buffer.items()}
    Experiment(task="probe/memory", algorithm="qmix", run_dir=str(path), fields=FIELDS | changes).run()
    return path


def left_behind(path: Path, *parts: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    run = RunDirectory.open(path)
    lines = [{k: v for k, v in line.items() if k not in names.WALL_CLOCK} for line in run.metrics.read()]
    return lines, {part: Checkpoints(run.checkpoints).restore_part(part) for part in ("learner", "actor", *parts)}


def without_newest_checkpoint(path: Path, copy: Path) -> Path:
    shutil.copytree(path, copy)
    *_, newest = sorted((copy / "checkpoints").iterdir())
    shutil.rmtree(newest)
    return copy


def test_to_the_bit_in_the_middle(tmp_path: Path, same_bits: SameBits) -> None:
    whole = train(tmp_path / "whole")
    cut = without_newest_checkpoint(whole, tmp_path / "cut")
    resume(cut, ["experiment.loggers=[]"])
    (lines, state), (wanted_lines, wanted) = left_behind(cut, "buffer"), left_behind(whole, "buffer")
    assert lines == wanted_lines
    same_bits(state, wanted)


@pytest.mark.slow
def test_without_the_buffer_it_is_filled_anew(tmp_path: Path) -> None:
    whole = train(tmp_path / "whole", in_checkpoints=False)
    cut = without_newest_checkpoint(whole, tmp_path / "cut")
    with pytest.raises(CoveyError, match="no 'buffer'"):
        left_behind(cut, "buffer")
    resume(cut, ["experiment.loggers=[]"])
    lines, wanted = left_behind(cut)[0], left_behind(whole)[0]
    assert [(line["kind"], line["frames"]) for line in lines] == [(line["kind"], line["frames"]) for line in wanted]
    assert lines[:8] == wanted[:8]
