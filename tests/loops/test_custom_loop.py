"""A user's own loop, `examples/custom_loop.py`, does what every loop does, and its formula by hand."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import SameBits

from covey import cli, registry
from covey import metrics as names
from covey.errors import UsageError
from covey.experiment.configuration.compose import compose
from covey.experiment.configuration.config import with_devices
from covey.experiment.recording.checkpoint import Checkpoints
from covey.experiment.recording.run_directory import RunDirectory
from covey.experiment.running.build import has_own_code
from covey.loops.base import repeat
from covey.loops.config import ExperimentConfig
from covey.registry import Registry

EXAMPLES = Path(__file__).parents[2] / "examples"
WORDS = ["imports=[custom_loop]", "experiment.loop=evolution", "algorithm=ippo", "task=probe/copy", "model.layers=[16]"]
FAST = ["experiment.rollout_length=8", "experiment.devices=1", "experiment.loggers=[]"]
ITERATION = 2 * 32 * 4 * 8  # frames


@pytest.fixture(autouse=True)
def in_examples(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """In the examples' folder, where `imports` finds them; what they register is forgotten afterwards."""
    monkeypatch.chdir(EXAMPLES)
    monkeypatch.setattr(sys, "path", [str(EXAMPLES), *sys.path])
    list(registry.loops)
    monkeypatch.setattr(registry.loops, "_entries", dict(registry.loops._entries))
    yield
    sys.modules.pop("custom_loop", None)


def run(*words: str) -> None:
    assert cli.main(list(words)) == 0


def train(run_dir: Path, *words: str) -> RunDirectory:
    run("train", *WORDS, *FAST, f"run_dir={run_dir}", *words)
    return RunDirectory.open(run_dir)


def saved(run: RunDirectory) -> dict[str, Any]:
    """All parts of the newest checkpoint."""
    return {part: Checkpoints(run.checkpoints).restore_part(part) for part in ("learner", "clock", "best")}


def records(run: RunDirectory) -> list[dict[str, Any]]:
    """metrics.jsonl without what the clock gives."""
    return [{k: v for k, v in record.items() if k not in names.WALL_CLOCK} for record in run.metrics.read()]


def test_it_learns_resumes_to_the_bit_evaluates_and_reports(tmp_path: Path, same_bits: SameBits) -> None:
    frames = 60 * ITERATION
    watched = [f"experiment.evaluation_interval={frames // 2}", f"experiment.checkpoint_interval={frames // 2}"]
    whole = train(tmp_path / "whole", f"experiment.frames={frames}", *watched)
    cut = train(tmp_path / "cut", f"experiment.frames={frames // 2}", *watched)
    run("resume", str(cut.path), f"experiment.frames={frames}")
    same_bits(saved(cut), saved(whole))
    assert records(cut) == records(whole)

    output = tmp_path / "eval.json"
    run("evaluate", str(whole.path), "episodes=64", f"output={output}")
    assert json.loads(output.read_text())["mean_return"] > 0.9  # chance is 0.5, the best is 1

    run("report", str(tmp_path / "whole"), str(tmp_path / "cut"), f"output={tmp_path / 'report'}")
    assert "probe/copy" in (tmp_path / "report" / "index.html").read_text()


def test_it_is_listed_and_explained(capsys: pytest.CaptureFixture[str]) -> None:
    run("list", "loops", "imports=[custom_loop]")
    shown = capsys.readouterr().out
    assert all(name in shown for name in ("online", "replay"))
    assert re.search(r"evolution +evolution strategies", shown)
    run("help", "experiment.sigma", "imports=[custom_loop]")
    shown = capsys.readouterr().out
    assert "standard deviation of the disturbances" in shown and "experiment.loop=evolution" in shown


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["algorithm=iql"], "'iql' cannot learn in experiment.loop=evolution"),
        (["experiment.num_pairs=0"], "num_pairs must be at least 1"),
        (["experiment.stagger=true"], "unknown field 'experiment.stagger'"),
    ],
)
def test_bad_input_is_refused_in_one_line(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", *WORDS, *words]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_speed_has_nothing_to_time(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["speed", *WORDS]) == 2
    assert "experiment.loop=evolution" in capsys.readouterr().err


def test_algorithms_are_not_held_to_rollouts_that_it_does_not_give_them() -> None:
    compose([*WORDS, "experiment.num_envs=3", "experiment.rollout_length=5", "algorithm.num_minibatches=4"])


def test_its_code_is_the_users() -> None:
    import custom_loop  # noqa: F401  (registered from Python, without `imports`)

    assert has_own_code(compose(["experiment.loop=evolution"]))
    assert not has_own_code(compose([]))


def test_pairs_are_split_over_devices() -> None:
    assert with_devices(compose([*WORDS, "experiment.num_pairs=6"]), available=4).experiment.devices == 3


def test_a_loop_that_splits_nothing_computes_on_one_device(monkeypatch: pytest.MonkeyPatch) -> None:
    registry.register_loop("alone", print, config=ExperimentConfig, description="test", like="online")
    assert with_devices(compose(["experiment.loop=alone"]), available=4).experiment.devices == 1


@pytest.mark.parametrize(
    ("kind", "base"),
    [(registry.models, "ModelConfig"), (registry.algorithms, "AlgorithmConfig"), (registry.loops, "ExperimentConfig")],
    ids=lambda value: getattr(value, "kind", ""),
)
def test_a_configuration_without_the_base_class_is_refused(
    kind: Registry, base: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    list(kind)
    monkeypatch.setattr(kind, "_entries", dict(kind._entries))
    kind.register("plain", print, config=registry.Capabilities, description="test")
    with pytest.raises(UsageError, match=f"'plain': its configuration Capabilities must inherit from .*{base}"):
        kind["plain"].defaults()


def test_ascent_direction_by_hand() -> None:
    """Two pairs earn (3, 1) and (1, 3): mean 2, deviation 1, so their weights are 1 and −1."""
    from custom_loop import ascent_direction, draw_noise

    keys, like = jax.random.split(jax.random.key(0), 2), {"w": jnp.zeros(3)}
    noise = [draw_noise(like, key)["w"] for key in keys]
    found = ascent_direction(like, jnp.asarray([[3.0, 1.0], [1.0, 3.0]]), keys)["w"]
    np.testing.assert_allclose(found, (noise[0] - noise[1]) / 2, rtol=1e-6)
    nothing = ascent_direction(like, jnp.ones((2, 2)), keys)["w"]  # equal rewards say nothing
    np.testing.assert_array_equal(nothing, np.zeros(3))


def test_chunks_of_any_length_are_one_program() -> None:
    def double(state: Any, num_iterations: Any) -> Any:
        return repeat(lambda state: (state + 1, {"double": 2.0 * state}), state, num_iterations, max_iterations=4)

    advance: Any = jax.jit(double)  # JAX's types leave out how many programs it holds

    state, metrics = advance(jnp.float32(1.0), 3)
    assert state == 4.0
    np.testing.assert_array_equal(metrics["double"], [2.0, 4.0, 6.0, np.nan])
    again, _ = advance(state, 1)
    assert again == 5.0 and advance._cache_size() == 1
