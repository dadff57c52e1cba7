"""Several seeds in one program: each leaves what it would have left alone, up to the rounding of other operations."""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import types
from pathlib import Path
from typing import Any

import jax
import jax.extend
import numpy as np
import pytest
from conftest import SameBits

from covey import metrics as names
from covey.errors import CoveyError, Interrupted, UsageError
from covey.experiment.configuration.compose import compose
from covey.experiment.configuration.config import Config
from covey.experiment.recording.checkpoint import Checkpoints
from covey.experiment.recording.recorder import Recorder
from covey.experiment.recording.run_directory import RunDirectory, run_directories
from covey.experiment.running.build import build, example_key
from covey.experiment.running.experiment import (
    MOST_AT_ONCE,
    Experiment,
    num_fitting,
    resume,
    resumed_together,
    with_seeds_at_once,
)
from covey.types import Transition

FIELDS = {
    "experiment.frames": 256,  # four iterations of 64 frames
    "experiment.num_envs": 8,
    "experiment.rollout_length": 8,
    "experiment.devices": 1,
    "experiment.evaluation_interval": 64,
    "experiment.evaluation_episodes": 4,
    "experiment.checkpoint_interval": 128,
    "experiment.loggers": [],
    "model.layers": [8],
}
ON_POLICY = {"algorithm.num_minibatches": 2, "algorithm.epochs": 1}
REPLAY = {
    "experiment.random_frames": 64,
    "experiment.updates": 2,
    "experiment.buffer.size": 512,
    "experiment.buffer.batch_size": 8,
}


def train(path: Path, algorithm: str, **fields: Any) -> list[RunDirectory]:
    """Two seeds."""
    own = ON_POLICY if algorithm == "ippo" else REPLAY
    fields = {**FIELDS, **own, **{f"experiment.{name}": value for name, value in fields.items()}}
    Experiment(task="probe/copy", algorithm=algorithm, seeds=[0, 1], run_dir=str(path), fields=fields).run()
    return [RunDirectory.open(path / f"seed_{seed}") for seed in (0, 1)]


def records(run: RunDirectory) -> list[dict[str, Any]]:
    return [{k: v for k, v in record.items() if k not in names.WALL_CLOCK} for record in run.metrics.read()]


def numbers(record: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name != names.KIND}


def state(run: RunDirectory) -> dict[str, Any]:
    checkpoints = Checkpoints(run.checkpoints)
    parts = ["learner", "actor", "clock", "best", *(["buffer"] if "buffer" in run.config["experiment"] else [])]
    return {part: checkpoints.restore_part(part) for part in parts}


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> list[RunDirectory]:
    return train(tmp_path_factory.mktemp("runs") / "together", "ippo", seeds_at_once=2)


@pytest.mark.parametrize("algorithm", ["ippo", pytest.param("iql", marks=pytest.mark.slow)])
def test_each_seed_leaves_what_it_leaves_alone(algorithm: str, together: list[RunDirectory], tmp_path: Path) -> None:
    ours = together if algorithm == "ippo" else train(tmp_path / "together", algorithm, seeds_at_once=2)
    alone = train(tmp_path / "alone", algorithm, seeds_at_once=1)
    for one, other in zip(ours, alone, strict=True):
        assert [(r[names.KIND], r[names.FRAMES]) for r in records(one)] == [
            (r[names.KIND], r[names.FRAMES]) for r in records(other)
        ]
        for a, b in zip(records(one), records(other), strict=True):
            assert numbers(a) == pytest.approx(numbers(b), rel=1e-3, abs=1e-4)
        assert Checkpoints(one.checkpoints).iterations() == Checkpoints(other.checkpoints).iterations() == [2, 4]
        for a, b in zip(jax.tree.leaves(state(one)), jax.tree.leaves(state(other)), strict=True):
            assert np.shape(a) == np.shape(b)
        for a, b in zip(*(jax.tree.leaves(state(run)["learner"]) for run in (one, other)), strict=True):
            np.testing.assert_allclose(a, b, rtol=0.0, atol=1e-4)
    assert records(ours[0]) != records(ours[1])


@pytest.mark.parametrize("algorithm", ["ippo", pytest.param("iql", marks=pytest.mark.slow)])
def test_interrupted_and_resumed_to_the_bit(
    algorithm: str, together: list[RunDirectory], tmp_path: Path, same_bits: SameBits, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = together if algorithm == "ippo" else train(tmp_path / "whole", algorithm, seeds_at_once=2)
    record_chunk = Recorder.record_chunk

    def interrupt(recorder: Recorder, chunk: Any, iteration: int, rate: float) -> dict[str, float]:
        if iteration == 1 and recorder.config.seed == 0:  # once: a second signal ends the process
            os.kill(os.getpid(), signal.SIGTERM)
        return record_chunk(recorder, chunk, iteration, rate)

    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        patch.setattr(Recorder, "record_chunk", interrupt)
        train(tmp_path / "cut", algorithm, seeds_at_once=2)
    cut = [RunDirectory.open(tmp_path / "cut" / f"seed_{seed}") for seed in (0, 1)]
    assert all(max(Checkpoints(run.checkpoints).iterations()) < 4 for run in cut)
    resume(tmp_path / "cut")
    for one, other in zip(cut, whole, strict=True):
        same_bits(state(one), state(other))
        assert records(one) == records(other)


def test_a_checkpoint_that_one_seed_has_damaged(
    together: list[RunDirectory], tmp_path: Path, same_bits: SameBits
) -> None:
    """Both go back to the one before; of the damaged one no part is used, though only the environments' is broken."""
    copy = tmp_path / "copy"
    shutil.copytree(together[0].path.parent, copy)
    (actor,) = {file for file in (copy / "seed_1" / "checkpoints" / "00000004" / "arrays").glob("1_packed")}
    shutil.rmtree(actor)
    resume(copy)
    for one, other in zip([RunDirectory.open(copy / f"seed_{seed}") for seed in (0, 1)], together, strict=True):
        same_bits(state(one), state(other))
        assert records(one) == records(other)


def test_seeds_that_share_no_checkpoint_go_on_alone(together: list[RunDirectory], tmp_path: Path) -> None:
    configs = [compose(["task=probe/copy", "experiment.seeds_at_once=2", f"seed={seed}"]) for seed in (0, 1, 2)]

    def batches(*runs: Any, configs: list[Config] = configs) -> list[int]:
        return [len(batch) for batch in resumed_together(list(zip(configs, runs, strict=False)), ())]

    def with_iterations(name: str, *iterations: int) -> types.SimpleNamespace:
        for iteration in iterations:
            (tmp_path / name / f"{iteration:08d}").mkdir(parents=True)
        return types.SimpleNamespace(checkpoints=tmp_path / name)

    new, behind, old = (with_iterations(*args) for args in (("new",), ("behind", 1, 2), ("old", 1)))
    assert batches(*together) == [2]
    assert batches(*together, behind) == [2, 1]
    assert batches(together[0], behind) == [2]  # at 2, from which both can go on
    assert batches(together[0], old) == batches(together[0], new) == [1, 1]
    assert batches(new, new) == [2] and batches(together[0], new, behind) == [2, 1]
    alone = [dataclasses.replace(c, experiment=dataclasses.replace(c.experiment, seeds_at_once=1)) for c in configs]
    assert batches(*together, configs=alone) == [1, 1]


@pytest.mark.slow
def test_init_from(together: list[RunDirectory], tmp_path: Path, same_bits: SameBits) -> None:
    fields = {**FIELDS, **ON_POLICY, "experiment.seeds_at_once": 2, "experiment.frames": 64, "algorithm.lr": 1e-30}
    start = str(together[1].path)
    Experiment(
        task="probe/copy", algorithm="ippo", seeds=2, run_dir=str(tmp_path / "r"), init_from=start, fields=fields
    ).run()
    for path in run_directories(tmp_path / "r"):
        for a, b in zip(
            *(
                jax.tree.leaves(state(run)["learner"]["agents"]["params"])
                for run in (RunDirectory.open(path), together[1])
            ),
            strict=True,
        ):
            np.testing.assert_allclose(a, b, rtol=0.0, atol=1e-6)


def test_how_many_at_once() -> None:
    gpu, cpu = [types.SimpleNamespace(platform="gpu")], [types.SimpleNamespace(platform="cpu")]

    def settled(*words: str, devices: Any = gpu, callbacks: Any = ()) -> int | None:
        config = compose(["task=probe/copy", "seeds=3", *words])
        return with_seeds_at_once(config, devices, callbacks).experiment.seeds_at_once

    assert settled() == 3 and settled(devices=cpu) == 1
    assert settled("experiment.seeds_at_once=2") == settled("experiment.seeds_at_once=2", devices=cpu) == 2
    assert settled("jit=false") == settled("algorithm=iql", "buffer.place=host") == settled(callbacks=[object()]) == 1
    assert settled("jit=false", "experiment.seeds_at_once=2") == 1 and settled("seeds=100") == MOST_AT_ONCE
    with pytest.raises(UsageError, match="callbacks see one seed"):
        settled("experiment.seeds_at_once=2", callbacks=[object()])
    with pytest.raises(UsageError, match="place=host"):
        settled("algorithm=iql", "experiment.seeds_at_once=2", "buffer.place=host")


def test_no_more_at_once_than_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    config = compose(["task=probe/copy", "algorithm=iql", "seeds=3", "experiment.devices=1"])
    needed = build(config, jax.devices()[:1]).stored_bytes
    for free, expected in ((0.5, 1), (2.6, 2), (1e9, 10**9)):
        monkeypatch.setattr(
            "covey.experiment.running.experiment.available_bytes", lambda devices, free=free: free * needed
        )
        assert num_fitting(config, jax.devices()[:1]) == pytest.approx(expected, rel=0.3)


@pytest.mark.slow
def test_what_is_left_over_is_a_smaller_batch(tmp_path: Path) -> None:
    fields = {**FIELDS, **ON_POLICY, "experiment.seeds_at_once": 2, "experiment.frames": 64}
    fields |= {"experiment.evaluation_interval": 0, "experiment.absolute_metric": False}
    summaries = Experiment(
        task="probe/copy", algorithm="ippo", seeds=3, run_dir=str(tmp_path / "r"), fields=fields
    ).run()
    assert [summary.run_directory.name for summary in summaries] == ["seed_0", "seed_1", "seed_2"]
    assert all(Checkpoints(path / "checkpoints").iterations() == [1] for path in run_directories(tmp_path / "r"))


@pytest.mark.slow
def test_a_seed_that_diverges_is_named(tmp_path: Path) -> None:
    with pytest.raises(CoveyError, match=r"iteration 1: .* is nan.*seed_0"):
        fields = {**FIELDS, **ON_POLICY, "experiment.seeds_at_once": 2, "algorithm.gamma": 1.0}
        fields |= {"hooks.batch": "tests.experiment.test_seeds_at_once:spoil"}
        Experiment(task="probe/copy", algorithm="ippo", seeds=2, run_dir=str(tmp_path / "r"), fields=fields).run()


def spoil(group: str, transitions: Transition) -> Transition:
    return dataclasses.replace(transitions, reward=transitions.reward * np.nan)


def count(jaxpr: Any, name: str) -> int:
    """How often a primitive stands in a program, whatever it is nested in."""
    inner = [sub for eqn in jaxpr.eqns for sub in jax.extend.core.jaxprs_in_params(eqn.params)]
    return sum(bool(eqn.primitive.name == name) for eqn in jaxpr.eqns) + sum(count(sub, name) for sub in inner)


@pytest.mark.parametrize("algorithm", ["ippo", "masac", pytest.param("qmix", marks=pytest.mark.slow)])
def test_branches_stay_branches(algorithm: str) -> None:
    """Under `vmap` a branch on what differs between seeds would become two branches and a choice."""
    delay = ["algorithm.policy_delay=2"] if algorithm == "masac" else []
    words = [f"{name}={str(value).replace(' ', '')}" for name, value in FIELDS.items() if name != "experiment.loggers"]
    task = "probe/copy" if algorithm != "masac" else "vmas/navigation"
    config = compose([f"task={task}", f"algorithm={algorithm}", *words, *delay])
    found = []
    for num_seeds in (1, 2):
        loop = build(config, jax.devices()[:1], num_seeds).loop
        program = jax.make_jaxpr(loop.advance)(jax.eval_shape(loop.init, example_key(num_seeds)), 1).jaxpr
        found.append([count(program, name) for name in ("cond", "while", "select_n")])
    assert found[0] == found[1] and min(found[0]) > 0


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["ippo", "iql"])
def test_on_two_devices(algorithm: str, tmp_path: Path) -> None:
    """Devices split the environments, and seeds are one more axis: as far as the rounding goes, the same."""
    ours = train(tmp_path / "together", algorithm, seeds_at_once=2, devices=2)
    alone = train(tmp_path / "alone", algorithm, seeds_at_once=1, devices=2)
    for one, other in zip(ours, alone, strict=True):
        for a, b in zip(records(one), records(other), strict=True):
            assert numbers(a) == pytest.approx(numbers(b), rel=1e-3, abs=1e-4)
