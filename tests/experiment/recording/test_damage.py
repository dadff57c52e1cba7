"""A run directory that was damaged, or whose disk is full: the same outcome, or one line that says so; no traceback.

One small program is compiled; runs are copied, damaged and continued in this process.
"""

from __future__ import annotations

import dataclasses
import json
import random
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from conftest import SameBits

import covey
from covey import metrics as names
from covey import results as marl_eval
from covey.cli import main
from covey.errors import CoveyError, UsageError
from covey.experiment.configuration.compose import compose
from covey.experiment.configuration.config import Config, from_dict, to_dict
from covey.experiment.loading.evaluation import evaluate_run
from covey.experiment.recording.checkpoint import Checkpoints
from covey.experiment.recording.loggers import LoggerTeam
from covey.experiment.recording.run_directory import RunDirectory
from covey.experiment.running.build import Parts, build
from covey.experiment.running.console import Console
from covey.experiment.running.experiment import describe, get_programs, prepare, run_together
from covey.experiment.running.programs import Programs
from covey.metrics import MEAN_RETURN
from covey.process import one_line_warnings
from covey.report.report import ReportOptions, report
from covey.report.runs import Run, read_runs
from covey.report.summary.records import read_records

ITERATIONS, FRAMES = 12, 64
ARGUMENTS = [
    "task=probe/copy",
    "algorithm=ippo",
    "model.layers=[8]",
    "algorithm.num_minibatches=2",
    "experiment.num_envs=8",
    "experiment.rollout_length=8",
    "experiment.devices=1",
    f"experiment.frames={ITERATIONS * FRAMES}",
    f"experiment.evaluation_interval={3 * FRAMES}",
    f"experiment.checkpoint_interval={4 * FRAMES}",
    "experiment.evaluation_episodes=4",
    "experiment.checkpoint_keep=9",
    "experiment.loggers=[]",
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Compiled:
    """What all runs of this file share."""

    config: Config
    parts: Parts
    programs: Programs

    def start(self, path: Path) -> None:
        self.go_on(RunDirectory.create(path, to_dict(self.config), describe(self.config, self.parts)))

    def go_on(self, run: RunDirectory) -> None:
        run_together([(from_dict(run.config), run)], self.parts, self.programs, (), None)


@pytest.fixture(scope="module")
def compiled() -> Compiled:
    config, devices = prepare(compose(ARGUMENTS))
    parts = build(config, devices)
    return Compiled(config=config, parts=parts, programs=get_programs(config, parts))


@pytest.fixture(scope="module")
def finished(compiled: Compiled, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "run"
    compiled.start(path)
    return path


@pytest.fixture(scope="module")
def stopped(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run, killed before its last checkpoint."""
    path = tmp_path_factory.mktemp("stopped") / "run"
    shutil.copytree(finished, path)
    shutil.rmtree(path / "checkpoints" / f"{ITERATIONS:08d}")
    return path


@pytest.fixture
def warnings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """All that covey warns of."""
    monkeypatch.setattr(Console, "warn", lambda self, text: found.append(text))
    found: list[str] = []
    monkeypatch.setattr("covey.experiment.recording.run_directory._warn", found.append)
    return found


def left_behind(path: Path) -> dict[str, Any]:
    """All that a run leaves, without what the clock gives."""
    run = RunDirectory.open(path)
    results = run.read_results()
    assert results is not None
    return {
        "metrics": [{k: v for k, v in r.items() if k not in names.WALL_CLOCK} for r in run.metrics.read()],
        "results": {
            step: {k: v for k, v in values.items() if k != "elapsed_time"}
            for step, values in marl_eval.only_run(results).items()
        },
        "state": {part: Checkpoints(run.checkpoints).restore_part(part) for part in ("learner", "actor", "clock")},
    }


def assert_equal_runs(path: Path, other: Path, same_bits: Any) -> None:
    left, wanted = left_behind(path), left_behind(other)
    assert left["metrics"] == wanted["metrics"]
    assert left["results"] == wanted["results"]
    same_bits(left["state"], wanted["state"])


# ------------------------------------------------------------------------------------------------------ single bits


def flip(path: Path, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


def choose_bits(path: Path, number: int, seed: int, files: str = "**/*") -> list[tuple[Path, int]]:
    """File after file, a bit of each at random."""
    rng = random.Random(seed)
    found = sorted(file.relative_to(path) for file in path.glob(files) if file.is_file() and file.stat().st_size)
    rng.shuffle(found)
    chosen = [found[i % len(found)] for i in range(number)]
    return [(file, rng.randrange(8 * (path / file).stat().st_size)) for file in chosen]


def read_report(path: Path) -> tuple[list[Run], Mapping[str, float], list[str]]:
    runs, problems = read_runs([path])
    seconds = read_records(runs[0], MEAN_RETURN, problems).seconds
    return runs, seconds, [problem.what for problem in problems]


def same_report(run: Run, other: Run) -> bool:
    def numbers(run: Run) -> list[Any]:
        episodes = {name: [values.tolist() for values in steps] for name, steps in run.episodes.items()}
        absolute = {name: values.tolist() for name, values in run.absolute.items()}
        known = [run.task, run.algorithm, run.seed, run.frames.tolist(), None, episodes, absolute]
        return [*known, None if run.seconds is None else run.seconds.tolist(), run.config, run.environment]

    return json.dumps(numbers(run), sort_keys=True) == json.dumps(numbers(other), sort_keys=True)


def check_resume(compiled: Compiled, path: Path, whole: Path, warnings: list[str], same_bits: Any) -> str:
    """Loads and continues a run of which a bit was flipped; says how that ended."""
    try:
        run = RunDirectory.open(path)
        config = from_dict(run.config)
        if config != compiled.config:
            assert warnings, "another configuration, and nobody was told"
            return "said"
        learner = jax.eval_shape(compiled.parts.algorithm.init, jax.random.key(0))
        restored = Checkpoints(run.checkpoints, warn=warnings.append).restore({"learner": learner})
        assert restored is not None
        if not warnings:
            wanted = Checkpoints(whole / "checkpoints").restore_at(restored.iteration, {"learner": learner})
            assert wanted is not None
            same_bits(restored.tree, wanted.tree)
        compiled.go_on(run)
    except CoveyError as error:
        assert "\n" not in str(error)
        return "refused"
    if warnings:
        return "said"
    assert_equal_runs(path, whole, same_bits)
    return "equal"


def check_flips(
    number: int,
    seed: int,
    compiled: Compiled,
    stopped: Path,
    finished: Path,
    tmp_path: Path,
    warnings: list[str],
    same_bits: SameBits,
) -> None:
    ends: dict[str, int] = {}
    for i, (file, bit) in enumerate(choose_bits(stopped, number, seed)):
        path = tmp_path / "run"
        shutil.copytree(stopped, path)
        flip(path / file, bit)
        warnings.clear()
        try:
            end = check_resume(compiled, path, finished, warnings, same_bits)
        except Exception as error:
            raise AssertionError(f"bit {bit} of {file} (flip {i}, seed {seed}): {error!r}") from error
        if file.parts[0] != "checkpoints" and file.name != "config.yaml" and end == "equal":
            # After the checkpoint they are made again; the others only say that nobody trains, and that it is done.
            derived = ("results.json", "metrics.jsonl", "finished.json", ".lease-1")
            assert file.name in derived, (file, bit)
        ends[end] = ends.get(end, 0) + 1
        shutil.rmtree(path)
    print(ends)
    assert ends.get("said", 0) + ends.get("refused", 0) > number // 4


def check_reported_flips(number: int, seed: int, finished: Path, tmp_path: Path) -> None:
    [wanted], wanted_seconds, problems = read_report(finished)
    assert not problems
    for file, bit in choose_bits(finished, number, seed, "*"):
        path = tmp_path / "run"
        shutil.copytree(finished, path)
        flip(path / file, bit)
        try:
            [run], seconds, problems = read_report(path)
        except UsageError:
            problems = ["refused"]
        if not problems:
            assert same_report(dataclasses.replace(run, source=wanted.source), wanted), (file, bit)
            assert seconds == wanted_seconds, (file, bit)
        shutil.rmtree(path)


def test_a_flipped_bit_is_noticed_or_harmless(
    compiled: Compiled, stopped: Path, finished: Path, tmp_path: Path, warnings: list[str], same_bits: SameBits
) -> None:
    check_flips(10, 7, compiled, stopped, finished, tmp_path, warnings, same_bits)
    check_reported_flips(20, 8, finished, tmp_path)


@pytest.mark.slow
def test_300_flipped_bits_are_noticed_or_harmless(
    compiled: Compiled, stopped: Path, finished: Path, tmp_path: Path, warnings: list[str], same_bits: SameBits
) -> None:
    check_flips(300, 1, compiled, stopped, finished, tmp_path, warnings, same_bits)
    check_reported_flips(400, 2, finished, tmp_path)


# ------------------------------------------------------------------------------- a flipped checkpoint, as users see it


def test_loading_falls_back_with_a_warning(
    compiled: Compiled, finished: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "run"
    shutil.copytree(finished, path)
    wanted = covey.load(path)
    index = path / "checkpoints" / f"{ITERATIONS:08d}" / "index.json"
    index.write_text(index.read_text().replace('"offset": 0', '"offset": 8', 1))
    for parameters in ("final", "best"):
        policy = covey.load(path, parameters=parameters)
        assert len(caplog.messages) == 1 and str(index.parent) in caplog.messages[0]
        caplog.clear()
    earlier = Checkpoints(path / "checkpoints").restore_at(8, {"best": policy.learner})
    assert earlier is not None
    np.testing.assert_array_equal(
        jax.tree.leaves(earlier.tree["best"])[0], np.asarray(jax.tree.leaves(policy.learner)[0])
    )
    assert wanted.config == policy.config


# ------------------------------------------------------------------------------------- metrics.jsonl and results.json


@pytest.mark.parametrize("damage", ["missing", "no JSON", "a value", "a step"])
def test_results_are_restored_from_the_checkpoint(
    compiled: Compiled,
    stopped: Path,
    finished: Path,
    tmp_path: Path,
    warnings: list[str],
    same_bits: SameBits,
    damage: str,
) -> None:
    path = tmp_path / "run"
    shutil.copytree(stopped, path)
    file = path / "results.json"
    content = file.read_text()
    if damage == "missing":
        file.unlink()
    else:
        old, new = {
            "no JSON": ("{", "["),
            "a value": ('"step_count": 0, ', '"step_count": 0, "extra": [1.0], '),
            "a step": ('"step_count": 192', '"step_cout": 192'),
        }[damage]
        file.write_text(content.replace(old, new, 1))
    compiled.go_on(RunDirectory.open(path))
    [warning] = warnings
    assert "results.json" in warning and "checkpoint" in warning
    assert (path / "results.json.damaged").exists() == (damage != "missing")
    assert_equal_runs(path, finished, same_bits)


def test_without_a_copy_results_are_rebuilt_from_metrics(
    compiled: Compiled, stopped: Path, tmp_path: Path, warnings: list[str]
) -> None:
    """As for runs of earlier versions."""
    path = tmp_path / "run"
    shutil.copytree(stopped, path)
    for index in path.glob("checkpoints/*/index.json"):
        content = json.loads(index.read_text())
        del content["meta"]["results"], content["meta"]["metrics_checksum"], content["format"], content["crc32"]
        index.write_text(json.dumps(content))
    wanted = marl_eval.steps(marl_eval.read_results(path / "results.json"))
    (path / "results.json").unlink()
    compiled.go_on(RunDirectory.open(path))
    [warning] = warnings
    assert "results.json is missing" in warning and "metrics.jsonl" in warning
    got = marl_eval.steps(marl_eval.read_results(path / "results.json"))
    assert list(got) == list(wanted)
    for name in ("step_0", "step_1", "step_2"):
        np.testing.assert_allclose(got[name]["mean_return"], [np.mean(wanted[name]["mean_return"])], rtol=1e-6)
    assert got["step_4"]["mean_return"] == wanted["step_4"]["mean_return"]


@pytest.mark.parametrize(("damage", "lost"), [("missing", 8), ("two lines", 1), ("short", 5)])
def test_metrics_are_rebuilt_as_far_as_they_can(
    compiled: Compiled, stopped: Path, finished: Path, tmp_path: Path, warnings: list[str], damage: str, lost: int
) -> None:
    path = tmp_path / "run"
    shutil.copytree(stopped, path)
    file = path / "metrics.jsonl"
    if damage == "missing":
        file.unlink()
    elif damage == "short":
        file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[:4]))
    else:
        lines = file.read_text().splitlines(keepends=True)
        lines[0] = lines[0].replace("mean_return", "mean_reward", 1)  # an evaluation
        lines[2] = lines[2][:40] + lines[2][41:]
        file.write_text("".join(lines))
    compiled.go_on(RunDirectory.open(path))
    [warning] = warnings
    assert f"the records of {lost} of 8 iterations are lost" in warning and "metrics.jsonl" in warning
    got, wanted = left_behind(path)["metrics"], left_behind(finished)["metrics"]
    evaluations = [record for record in wanted if record["kind"] == "evaluation"]
    assert [record for record in got if record["kind"] == "evaluation"] == evaluations
    assert len(got) == len(wanted) - lost and all(record in wanted for record in got)
    _, _, problems = read_report(path)
    assert not problems


def damage_a_line(path: Path) -> None:
    lines = (path / "metrics.jsonl").read_text().splitlines(keepends=True)
    lines[2] = lines[2][:40] + lines[2][41:]
    (path / "metrics.jsonl").write_text("".join(lines))


def test_killed_while_metrics_are_rebuilt_nothing_more_is_lost(
    compiled: Compiled, stopped: Path, tmp_path: Path, warnings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run"
    shutil.copytree(stopped, path)
    damage_a_line(path)

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("covey.experiment.recording.run_directory.MetricsFile.rewrite", killed)
        compiled.go_on(RunDirectory.open(path))
    compiled.go_on(RunDirectory.open(path))
    assert len(warnings) == 1 and "the records of 1 of 8 iterations are lost" in warnings[0]


def test_rebuilt_metrics_have_the_absolute_metric_once(
    compiled: Compiled, finished: Path, tmp_path: Path, warnings: list[str]
) -> None:
    path = tmp_path / "run"
    shutil.copytree(finished, path)
    damage_a_line(path)
    compiled.go_on(RunDirectory.open(path))
    assert len(warnings) == 1
    kinds = [record["kind"] for record in left_behind(path)["metrics"]]
    assert kinds.count("absolute") == 1 and kinds[-1] == "absolute"


@pytest.mark.parametrize("damage", ["missing", "no JSON"])
def test_reports_rebuild_results_and_say_so(finished: Path, tmp_path: Path, damage: str) -> None:
    path = tmp_path / "run"
    shutil.copytree(finished, path)
    wanted = marl_eval.steps(marl_eval.read_results(path / "results.json"))
    (path / "results.json").unlink() if damage == "missing" else (path / "results.json").write_text("{")
    [run], _, problems = read_report(path)
    assert problems == ["is missing or damaged"]
    assert (run.task, run.algorithm, run.seed) == ("probe/copy", "ippo", "0")
    means = [np.mean(step["mean_return"]) for step in wanted.values()]
    np.testing.assert_allclose(np.concatenate(run.episodes["mean_return"]), means, rtol=1e-6)
    assert set(run.absolute) == set(run.episodes) and run.absolute["mean_return"].shape == (1,)
    (path / "metrics.jsonl").unlink()
    shutil.copy(finished / "results.json", path)
    assert read_report(path)[2] == ["is missing"]


def test_a_divergence_does_not_point_to_a_checkpoint_that_is_not_there(
    compiled: Compiled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from covey.experiment.recording.recorder import Recorder

    run = RunDirectory.create(tmp_path / "run", to_dict(compiled.config), {})
    recorder = Recorder(compiled.config, run, compiled.parts.env.spec, FRAMES, 0.0, print)
    with pytest.raises(CoveyError, match=r"iteration 3: loss is nan.*no checkpoint yet"):
        recorder.check_finite({"loss": np.array([1.0, 2.0, np.nan])}, 0)
    recorder.save({"learner": np.ones(3)}, 1)
    with pytest.raises(CoveyError, match="the last good checkpoint is in"):
        recorder.check_finite({"loss": np.array([np.nan])}, 1)


# ------------------------------------------------------------------------------------------------------- full disks

PAGE = 4096
FULL = "No space left on device"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of a megabyte."""
    path = tmp_path / "disk"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(path)]
    try:
        mounted = subprocess.run(mount, capture_output=True).returncode == 0
    except OSError:
        mounted = False
    if not mounted:
        pytest.skip("mounting a file system is not permitted here")
    yield path
    subprocess.run(["umount", "--lazy", str(path)], check=True)


def leave_free(disk: Path, pages: int) -> None:
    """Fills the disk but for some pages."""
    shutil.rmtree(disk / "run", ignore_errors=True)
    (disk / "filler").unlink(missing_ok=True)
    free = shutil.disk_usage(disk).free
    (disk / "filler").write_bytes(b"\0" * max(0, free - pages * PAGE))


def test_a_full_disk_is_one_line_wherever_training_meets_it(
    compiled: Compiled, disk: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    refused = 0
    for pages in (0, 1, 2, 3, 4, 5, 6, 8, 12, 20, 30, 45):
        leave_free(disk, pages)
        try:
            compiled.start(disk / "run")
        except CoveyError as error:
            refused += 1
            assert not isinstance(error, UsageError)
            assert str(error).endswith("No space left on device") and "\n" not in str(error)
            assert not list(disk.glob("run/checkpoints/.*"))
        written = capfd.readouterr()
        assert "Traceback" not in written.err + written.out, pages
    assert refused > 8
    leave_free(disk, 200)
    compiled.start(disk / "run")


def test_a_full_disk_is_one_line_for_evaluations_and_reports(
    compiled: Compiled, finished: Path, disk: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    leave_free(disk, 0)
    outputs: list[dict[str, Any]] = [{"output": str(disk / "eval.json")}, {"render": str(disk / "team.png")}]
    for fields in outputs:
        with pytest.raises(CoveyError, match="No space left on device") as caught:
            evaluate_run(finished, episodes=2, **fields)
        assert not isinstance(caught.value, UsageError) and "\n" not in str(caught.value)
    for pages in (0, 2, 20):
        leave_free(disk, pages)
        with pytest.raises(CoveyError, match=r"cannot write to .*: No space left on device") as caught:
            report([str(finished)], ReportOptions(output=str(disk / "report"), formats=("png",)))
        assert not isinstance(caught.value, UsageError)
    assert "Traceback" not in capfd.readouterr().err


def test_a_full_disk_leaves_the_configuration_as_it_was(compiled: Compiled, disk: Path) -> None:
    leave_free(disk, 4)
    run = RunDirectory.create(disk / "run", to_dict(compiled.config), {})
    leave = shutil.disk_usage(disk).free
    (disk / "rest").write_bytes(b"\0" * leave)
    before = (disk / "run" / "config.yaml").read_bytes()
    with pytest.raises(CoveyError, match=r"cannot write .*config\.yaml: No space left on device"):
        run.rewrite_config({**run.config, "seed": 1})
    assert (disk / "run" / "config.yaml").read_bytes() == before
    assert sorted(path.name for path in run.path.iterdir()) == ["config.yaml", "environment.json"]


def test_a_full_disk_ends_a_logger_with_a_warning(
    compiled: Compiled, disk: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tensorboardX")
    leave_free(disk, 6)
    run = RunDirectory.create(disk / "run", to_dict(compiled.config), {})
    (run.path / "tensorboard").mkdir()
    (disk / "rest").write_bytes(b"\0" * shutil.disk_usage(disk).free)
    warnings: list[str] = []
    team = LoggerTeam(["tensorboard"], warn=warnings.append)
    started = time.monotonic()
    with one_line_warnings():
        team.start(run, {})
        for frames in range(50):
            team.log("train", {"loss": 1.0}, frames)
            time.sleep(0.01)
        assert team.finish(20.0)
    assert time.monotonic() - started < 10
    [warning] = warnings
    assert "logger 'tensorboard' failed and is left out" in warning
    assert "Traceback" not in capfd.readouterr().err


def test_a_full_disk_under_the_command_is_one_line(
    compiled: Compiled, disk: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    leave_free(disk, 10)  # Orbax meets it, on threads of its own
    fields = [*ARGUMENTS[:-1], "experiment.checkpoint_interval=64"]
    assert main(["train", f"run_dir={disk / 'run'}", *fields]) == 1
    assert capfd.readouterr().err == f"covey: cannot write checkpoint in {disk}/run/checkpoints: {FULL}\n"
