"""Whole runs in small: same seed, same bits; callbacks steer; signals save; NaN stops and is named."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from signal import Signals
from typing import Any

import jax
import numpy as np
import pytest
from conftest import SameBits

from covey import metrics as names
from covey import results as marl_eval
from covey.errors import CoveyError, Interrupted, UsageError
from covey.experiment.recording.checkpoint import Checkpoints
from covey.experiment.recording.recorder import rate
from covey.experiment.recording.run_directory import RunDirectory, read_failure
from covey.experiment.running.callbacks import split_callbacks
from covey.experiment.running.console import Summary
from covey.experiment.running.experiment import Experiment, resume
from covey.experiment.running.training import Training
from covey.types import EnvSpec, MetricSpec

FIELDS = {
    "experiment.frames": 512,  # eight iterations of 64 frames
    "experiment.num_envs": 8,
    "experiment.rollout_length": 8,
    "experiment.devices": 1,
    "experiment.evaluation_interval": 128,
    "experiment.evaluation_episodes": 4,
    "experiment.checkpoint_interval": 256,
    "experiment.loggers": [],
    "model.layers": [8],
    "algorithm.num_minibatches": 2,
    "algorithm.epochs": 1,
}


def train(
    path: Path,
    *,
    callbacks: Sequence[Any] = (),
    fields: dict[str, Any] | None = None,
    task: str = "probe/copy",
    algorithm: str = "ippo",
    **choices: Any,
) -> RunDirectory:
    fields = {**FIELDS, **(fields or {})}
    Experiment(task=task, algorithm=algorithm, run_dir=str(path), fields=fields, callbacks=callbacks, **choices).run()
    return RunDirectory.open(path)


def records(run: RunDirectory) -> list[dict[str, Any]]:
    """metrics.jsonl without what the clock gives."""
    return [{k: v for k, v in record.items() if k not in names.WALL_CLOCK} for record in run.metrics.read()]


def results(run: RunDirectory) -> dict[str, Any]:
    found = run.read_results()
    assert found is not None
    only = marl_eval.only_run(found)
    return {step: {k: v for k, v in values.items() if k != "elapsed_time"} for step, values in only.items()}


def state(run: RunDirectory) -> dict[str, Any]:
    checkpoints = Checkpoints(run.checkpoints)
    return {part: checkpoints.restore_part(part) for part in ("learner", "actor", "clock", "best")}


def params(run: RunDirectory) -> Any:
    return state(run)["learner"]["agents"]["params"]


def assert_equal_leaves(one: Any, other: Any, atol: float = 0.0) -> None:
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(a, b, rtol=0.0, atol=atol)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    return train(tmp_path_factory.mktemp("runs") / "plain")


def test_what_a_run_leaves(plain: RunDirectory) -> None:
    steps = results(plain)
    assert list(steps) == ["step_0", "step_1", "step_2", "step_3", "step_4", "absolute_metrics"]
    assert [steps[f"step_{i}"]["step_count"] for i in range(5)] == [0, 128, 256, 384, 512]
    assert all(len(steps[f"step_{i}"]["mean_return"]) == 4 for i in range(5))
    assert len(steps["absolute_metrics"]["mean_return"]) == 40
    kinds = [(record[names.KIND], record[names.FRAMES]) for record in records(plain)]
    assert [frames for kind, frames in kinds if kind == names.TRAIN] == [64 * i for i in range(1, 9)]
    assert [frames for kind, frames in kinds if kind == names.EVALUATION] == [0, 128, 256, 384, 512]
    assert [frames for kind, frames in kinds if kind == names.ABSOLUTE] == [512]
    assert Checkpoints(plain.checkpoints).iterations() == [4, 8]


def test_same_seed_same_bits(plain: RunDirectory, tmp_path: Path, same_bits: SameBits) -> None:
    again = train(tmp_path / "again")
    assert records(again) == records(plain)
    assert results(again) == results(plain)
    same_bits(state(again), state(plain))


def test_seeds_in_one_go_equal_seeds_alone(plain: RunDirectory, tmp_path: Path, same_bits: SameBits) -> None:
    train_both = tmp_path / "both"
    with pytest.raises(UsageError):  # the parent is no run directory of its own
        train(train_both, seeds=[0, 1])
    members = [RunDirectory.open(train_both / f"seed_{seed}") for seed in (0, 1)]
    alone = [plain, train(tmp_path / "alone", seed=1)]
    for member, single in zip(members, alone, strict=True):
        assert records(member) == records(single)
        assert results(member) == results(single)
        same_bits(state(member), state(single))
    assert records(members[0]) != records(members[1])
    assert [member.config["seed"] for member in members] == [0, 1]


def test_what_jit_false_compiles_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's code sees values; covey's own steps and evaluations are not run operation by operation."""
    from covey.envs.probes import CopyAction

    seen: list[Any] = []
    calls: list[int] = []
    step = CopyAction.step

    def counted(*arguments: Any) -> Any:
        calls.append(1)
        return step(*arguments)

    def batch(group: str, transitions: Any) -> Any:
        seen.append(transitions.reward)
        return transitions

    monkeypatch.setattr(CopyAction, "step", counted)
    module: Any = types.ModuleType("my_hooks")
    module.batch = batch
    monkeypatch.setitem(sys.modules, "my_hooks", module)
    fields = {"hooks.batch": "my_hooks:batch", "experiment.frames": 64, "experiment.num_envs": 4}
    fields |= {"experiment.rollout_length": 16, "experiment.evaluation_episodes": 2, "algorithm.epochs": 1}
    train(tmp_path / "run", fields=fields, jit=False)
    assert any(not isinstance(leaf, jax.core.Tracer) for leaf in seen)
    assert 0 < len(calls) < 16


@pytest.mark.slow
def test_uncompiled_run(tmp_path: Path) -> None:
    """The same code step by step: equal but for rounding, as the compiler may fuse differently."""
    fields: dict[str, Any] = {"experiment.evaluation_interval": 0, "experiment.absolute_metric": False}
    fields |= {"experiment.checkpoint_interval": 0, "algorithm.lr_schedule": "constant"}
    fields |= {"experiment.num_envs": 2, "experiment.rollout_length": 4, "experiment.evaluation_episodes": 2}
    fields |= {"experiment.frames": 16}
    slow = train(tmp_path / "slow", fields=fields, jit=False)
    fast = train(tmp_path / "fast", fields=fields)
    for one, other in zip(records(slow), records(fast), strict=True):
        assert one.keys() == other.keys()
        for name in one:
            if name != names.KIND:
                assert one[name] == pytest.approx(other[name], rel=1e-3, abs=1e-5), name
    assert_equal_leaves(params(slow), params(fast), atol=1e-5)


def test_a_batch_of_seeds_must_be_new(plain: RunDirectory) -> None:
    with pytest.raises(UsageError, match="exists already"):
        train(plain.path)


# ---------------------------------------------------------------------------------------------------------- callbacks


class Recorder:
    def __init__(self) -> None:
        self.iterations: list[tuple[int, float]] = []
        self.evaluations: list[tuple[int, Any]] = []
        self.ends: list[Summary] = []

    def on_iteration(self, training: Training, metrics: Mapping[str, float]) -> None:
        self.iterations.append((training.iteration, metrics[names.ITERATION]))

    def on_evaluation(self, training: Training, values: Mapping[str, np.ndarray]) -> None:
        self.evaluations.append((training.frames, np.mean(values[names.MEAN_RETURN])))

    def on_end(self, training: Training, summary: Summary) -> None:
        self.ends.append(summary)


def test_callbacks_are_called_and_change_nothing_by_watching(
    plain: RunDirectory, tmp_path: Path, same_bits: SameBits
) -> None:
    recorder = Recorder()
    run = train(tmp_path / "run", callbacks=[recorder])
    assert recorder.iterations == [(i, i) for i in range(1, 9)]  # every iteration, once
    assert [frames for frames, _ in recorder.evaluations] == [0, 128, 256, 384, 512]
    assert len(recorder.ends) == 1 and recorder.ends[0].frames == 512
    steps = results(run)
    for i, (_, mean) in enumerate(recorder.evaluations):
        assert mean == pytest.approx(np.mean(steps[f"step_{i}"]["mean_return"]))
    same_bits(state(run), state(plain))
    assert records(run) == records(plain)


class Freeze:
    """Sets the learning rate to zero after an iteration, and keeps the parameters that it then saw."""

    def __init__(self, after: int):
        self.after, self.frozen = after, None

    def on_iteration(self, training: Training, metrics: Mapping[str, float]) -> None:
        if metrics[names.ITERATION] == self.after:
            training.set_coefficient("lr", 0.0)
            assert training.coefficients["agents"]["lr"] == 0.0
            self.frozen = jax.device_get(training.state.learner["agents"].params)
        if metrics[names.ITERATION] > self.after:
            assert metrics["agents/lr"] == 0.0


@pytest.mark.parametrize(
    "after", [pytest.param(3, marks=pytest.mark.slow), 4], ids=["between checkpoints", "at a checkpoint"]
)
def test_a_callback_can_freeze_the_team_and_resume_keeps_it(
    tmp_path: Path, same_bits: SameBits, after: int, plain: RunDirectory
) -> None:
    freeze = Freeze(after)
    run = train(tmp_path / "run", callbacks=[freeze])
    assert_equal_leaves(params(run), freeze.frozen)
    with pytest.raises(AssertionError):
        assert_equal_leaves(params(run), params(plain))

    with pytest.raises(ZeroDivisionError):  # the newest checkpoint is then that of iteration 4
        train(tmp_path / "stopped", callbacks=[Freeze(after), Crash()])
    resume(tmp_path / "stopped")
    same_bits(state(RunDirectory.open(tmp_path / "stopped")), state(run))


CALLBACKS = """\
from covey import metrics

class FreezeAtFour:
    def on_iteration(self, training, values):
        if values[metrics.ITERATION] == 4:
            training.set_coefficient("lr", 0.0)

class NeedsWords:
    def __init__(self, words): ...
"""


def test_callbacks_by_name_are_restored_on_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, same_bits: SameBits, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "my_callbacks.py").write_text(CALLBACKS)
    named = "my_callbacks:FreezeAtFour"
    whole = train(tmp_path / "whole", callbacks=[named])
    assert whole.config["callbacks"] == [named] and whole.config["code_dir"] == str(tmp_path)
    assert "callback" not in capsys.readouterr().err

    def stop(training: Training, _: Any) -> None:
        if training.iteration == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    stopper = type("Stopper", (), {"on_iteration": staticmethod(stop)})
    with pytest.raises(Interrupted):
        train(tmp_path / "cut", callbacks=[named, stopper()])
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and "Stopper: `covey resume` cannot restore a callback that is an object" in err
    cut = RunDirectory.open(tmp_path / "cut")
    assert Checkpoints(cut.checkpoints).iterations()[-1] < 4
    resume(cut.path)
    assert records(cut) == records(whole)
    assert [r["agents/lr"] for r in records(whole) if r[names.KIND] == names.TRAIN][4:] == [0.0] * 4
    same_bits(state(cut), state(whole))


def test_classes_are_callbacks_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "my_other_callbacks.py").write_text(CALLBACKS)
    import my_other_callbacks as module

    class Local: ...

    names, objects = split_callbacks([module.FreezeAtFour, Local, "a:B", module.FreezeAtFour()])
    assert names == ["my_other_callbacks:FreezeAtFour", "a:B"]
    assert [type(callback) for callback in objects] == [Local, module.FreezeAtFour]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("no_such:Class", "cannot import 'no_such:Class'"),
        ("json:Nothing", "cannot import 'json:Nothing'"),
        ("my_third_callbacks:NeedsWords", "without arguments"),
        ("json", r"takes \[module:Class\], not 'json'"),
    ],
)
def test_callbacks_that_cannot_be_made_leave_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, reason: str
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "my_third_callbacks.py").write_text(CALLBACKS)
    with pytest.raises(UsageError, match=reason):
        train(tmp_path / "run", callbacks=[name])
    assert not (tmp_path / "run").exists()


class Crash:
    def on_iteration(self, training: Training, metrics: Mapping[str, float]) -> float:
        return 1 / (metrics[names.ITERATION] - 5)


def test_unknown_coefficients_are_named(tmp_path: Path) -> None:
    class Wrong:
        def on_iteration(self, training: Training, metrics: Mapping[str, float]) -> None:
            training.set_coefficient("learning_rate", 0.0)

    with pytest.raises(CoveyError, match=r"no coefficient 'learning_rate'.*lr"):
        train(tmp_path / "run", callbacks=[Wrong()])


# ------------------------------------------------------------------------------------------------------------ signals


class Kill:
    """Sends this process a signal from a callback."""

    def __init__(self, iteration: int, number: int, when: str = "on_iteration"):
        self.iteration, self.number = iteration, number
        setattr(self, when, self._act)

    def _act(self, training: Training, _: Any) -> None:
        if training.iteration == self.iteration:
            os.kill(os.getpid(), self.number)


@pytest.mark.parametrize(
    ("when", "number"),
    [
        ("on_iteration", signal.SIGTERM),
        ("on_evaluation", signal.SIGINT),
        pytest.param("on_iteration", signal.SIGINT, marks=pytest.mark.slow),
        pytest.param("on_evaluation", signal.SIGTERM, marks=pytest.mark.slow),
    ],
)
def test_a_signal_saves_and_resume_goes_on(
    plain: RunDirectory, tmp_path: Path, same_bits: SameBits, when: str, number: Signals
) -> None:
    """Whenever it comes, also while an evaluation is awaited: what is said to be saved is there."""
    before = signal.getsignal(number)
    with pytest.raises(Interrupted) as caught:
        train(tmp_path / "run", callbacks=[Kill(2, number, when)])
    assert caught.value.signal == number
    assert signal.getsignal(number) is before
    run = RunDirectory.open(tmp_path / "run")
    saved = Checkpoints(run.checkpoints).iterations()
    assert saved and saved[-1] in (2, 3)  # at once, or with the iteration after
    resume(run.path)
    assert records(run) == records(plain)
    assert results(run) == results(plain)
    same_bits(state(run), state(plain))


def test_a_signal_among_seeds_stops_the_rest(tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        train(tmp_path / "run", seeds=[0, 1], callbacks=[Kill(8, signal.SIGTERM, "on_evaluation")])
    assert not Checkpoints(tmp_path / "run" / "seed_1" / "checkpoints").iterations()


def test_which_parameters_are_the_best() -> None:
    values = {"mean_return": np.array([1.0, 2.0]), "crashes": np.array([3.0, 5.0]), "wins": np.array([0.0, 1.0])}
    metrics = {"crashes": MetricSpec(higher_is_better=False), "wins": MetricSpec()}
    spec = EnvSpec(groups={}, time_limit=1, metrics=metrics)
    assert [rate(values, name, spec) for name in values] == [1.5, -4.0, 0.5]


def test_an_unknown_metric_cannot_say_which_are_the_best(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=r"best_by 'wins'; nearest: .*\(task probe/copy has mean_return, agents_return"
    ):
        train(tmp_path / "refused", fields={"experiment.best_by": "wins"})
    assert not (tmp_path / "refused").exists()


# ---------------------------------------------------------------------------------------------------------------- NaN


class Poison:
    def on_iteration(self, training: Training, metrics: Mapping[str, float]) -> None:
        if metrics[names.ITERATION] == 5:
            training.set_coefficient("entropy_coef", math.nan)


def test_nan_stops_with_its_name_and_keeps_the_last_good_checkpoint(plain: RunDirectory, tmp_path: Path) -> None:
    with pytest.raises(CoveyError, match=r"iteration 6: agents/\w+ is nan") as caught:
        train(tmp_path / "run", callbacks=[Poison()])
    assert not isinstance(caught.value, UsageError)
    run = RunDirectory.open(tmp_path / "run")
    assert Checkpoints(run.checkpoints).iterations() == [4]
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(params(run)))
    assert [r[names.ITERATION] for r in records(run) if r[names.KIND] == names.TRAIN] == [1, 2, 3, 4, 5]
    assert re.fullmatch(r"iteration 6: agents/\w+ is nan", read_failure(run.path))
    resume(run.path)  # without the poison it goes on from there
    assert records(run) == records(plain)
    assert read_failure(run.path) == ""


def test_a_run_that_diverges_at_once_keeps_its_first_evaluation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module: Any = types.ModuleType("my_nan_hooks")
    module.metrics = lambda metrics: {**metrics, "mine": metrics["agents/lr"] * math.nan}
    monkeypatch.setitem(sys.modules, "my_nan_hooks", module)
    with pytest.raises(CoveyError, match="iteration 1: mine is nan"):
        train(tmp_path / "run", fields={"hooks.metrics": "my_nan_hooks:metrics"})
    run = RunDirectory.open(tmp_path / "run")
    assert [(r[names.KIND], r[names.FRAMES]) for r in records(run)] == [(names.EVALUATION, 0)]
    assert list(results(run)) == ["step_0"] and read_failure(run.path) == "iteration 1: mine is nan"


class Mistake:
    def on_iteration(self, training: Training, metrics: Mapping[str, float]) -> None:
        raise RuntimeError("my own\nmistake")


def test_a_run_that_crashes_says_so(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError):
        train(tmp_path / "run", callbacks=[Mistake()])
    assert read_failure(tmp_path / "run") == "RuntimeError: my own mistake"


def test_a_run_that_fails_before_its_first_state_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the device has no room for the environments."""

    def refuse(self: Any, program: Any, *arguments: Any) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr(Training, "_compute", refuse)
    with pytest.raises(MemoryError, match="no room"):
        train(tmp_path / "run")
    assert read_failure(tmp_path / "run") == "MemoryError: no room"


def test_a_run_that_was_taken_over_is_not_said_to_have_failed(tmp_path: Path) -> None:
    """It may be doing well where it is trained now."""

    class TakeOver:
        def on_iteration(self, training: Training, metrics: Mapping[str, float]) -> None:
            (tmp_path / "run" / ".lease-2").write_text("{}")
            assert training.run_directory.lease is not None
            training.run_directory.lease.beat()
            raise RuntimeError("a mistake")

    with pytest.raises(RuntimeError):
        train(tmp_path / "run", callbacks=[TakeOver()])
    assert read_failure(tmp_path / "run") == ""


def test_parameters_that_overflow_are_not_saved_as_good(tmp_path: Path) -> None:
    """A step so large that the parameters are infinite after it, though every metric before it was finite."""
    fields = {"algorithm.lr": 1e39, "experiment.checkpoint_interval": 64, "algorithm.lr_schedule": "constant"}
    with pytest.raises((CoveyError, ValueError)):
        train(tmp_path / "run", fields=fields)
    if (tmp_path / "run" / "checkpoints").exists():
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(params(RunDirectory.open(tmp_path / "run"))))


# ---------------------------------------------------------------------------------------------------------- init_from


def test_init_from_starts_with_the_others_parameters(plain: RunDirectory, tmp_path: Path) -> None:
    class AtStart:
        def on_evaluation(self, training: Training, values: Mapping[str, np.ndarray]) -> None:
            if training.iteration == 0:
                self.params = jax.device_get(training.state.learner["agents"].params)

    seen = AtStart()
    run = train(tmp_path / "run", init_from=str(plain.path), seed=7, callbacks=[seen])
    assert_equal_leaves(seen.params, params(plain))
    assert records(run) != records(plain)


def test_init_from_where_shapes_do_not_fit(plain: RunDirectory, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="none of its parameters fits"):
        train(tmp_path / "run", init_from=str(plain.path), task="probe/groups")


def test_init_from_brings_what_the_parameters_were_trained_with(tmp_path: Path) -> None:
    """A policy that saw normalised observations is worth nothing without their moments."""
    fields = {
        "algorithm.observation_normalisation": True,
        "algorithm.agent_ids": False,
        "algorithm.lr": 1e-2,
        "experiment.frames": 6400,
        "experiment.evaluation_interval": 0,
        "experiment.evaluation_deterministic": True,
        "experiment.evaluation_episodes": 64,
        "experiment.checkpoint_interval": 0,
        "experiment.absolute_metric": False,
    }
    teacher = train(tmp_path / "teacher", fields=fields)
    pupil = train(tmp_path / "pupil", fields={**fields, "experiment.frames": 64}, init_from=str(teacher.path))
    assert np.mean(results(teacher)["step_1"]["mean_return"]) > 0.9
    assert np.mean(results(pupil)["step_0"]["mean_return"]) > 0.9


def test_a_run_that_began_from_another_resumes_without_it(
    plain: RunDirectory, tmp_path: Path, same_bits: SameBits
) -> None:
    """Its checkpoint holds everything: the other run may be gone by then."""
    import shutil

    source = tmp_path / "source"
    shutil.copytree(plain.path, source)
    whole = train(tmp_path / "whole", init_from=str(source))
    with pytest.raises(Interrupted):
        train(tmp_path / "run", init_from=str(source), callbacks=[Kill(4, signal.SIGTERM)])
    shutil.rmtree(source)
    resume(tmp_path / "run")
    same_bits(state(RunDirectory.open(tmp_path / "run")), state(whole))


# -------------------------------------------------------------------------------------------------------------- hooks


def test_hooks_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_hooks.py").write_text(
        "def count(metrics):\n    return metrics | {'one': metrics['agents/lr'] * 0 + 1}\n"
        "def only(metrics):\n    return {'lr': metrics['agents/lr']}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    run = train(tmp_path / "run", fields={"hooks.metrics": "my_hooks:count"})
    assert all(record["one"] == 1 for record in records(run) if record[names.KIND] == names.TRAIN)
    run = train(tmp_path / "few", fields={"hooks.metrics": "my_hooks:only"})
    assert all("lr" in record for record in records(run) if record[names.KIND] == names.TRAIN)
    with pytest.raises(UsageError, match="cannot import 'my_hooks:missing'"):
        train(tmp_path / "bad", fields={"hooks.metrics": "my_hooks:missing"})
    assert not (tmp_path / "bad").exists()


def test_impossible_minibatches_fail_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="divide"):
        train(tmp_path / "run", fields={"algorithm.num_minibatches": 3})
    with pytest.raises(UsageError, match="divide"):
        train(tmp_path / "run", task="probe/memory", model="gru", fields={"algorithm.num_minibatches": 16})
    assert not (tmp_path / "run").exists()


def test_a_large_seed(tmp_path: Path) -> None:
    """Either it works or it is bad input; nothing in between."""
    try:
        run = train(tmp_path / "run", seed=2**33, fields={"experiment.frames": 64})
    except UsageError:
        assert not (tmp_path / "run").exists()
    else:
        assert json.loads((run.path / "results.json").read_text())


@pytest.mark.slow
def test_a_world_with_empty_arrays_trains_on_two_devices(tmp_path: Path) -> None:
    """Worlds without joints and messages have arrays of no size, whose place JAX forgets. In a process of its own: the
    number of devices is settled when JAX starts."""
    fields = FIELDS | {"experiment.devices": 2, "experiment.frames": 128, "task.time_limit": 8, "task.n_lidar_rays": 2}
    words = [f"{name}={value}".replace(" ", "") for name, value in fields.items()]
    command = [sys.executable, "-m", "covey.cli", "train", "task=vmas/navigation", *words, f"run_dir={tmp_path}/run"]
    subprocess.run(command, check=True, capture_output=True)
    assert records(RunDirectory.open(tmp_path / "run"))[-1][names.FRAMES] == 128
