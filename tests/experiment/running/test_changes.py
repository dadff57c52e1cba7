"""Fields that change while training runs: equal to the bit to going on with the new value from a checkpoint."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import pytest
from conftest import SameBits

from covey import metrics as names
from covey.algorithms.base import AlgorithmConfig
from covey.errors import CoveyError
from covey.experiment.configuration.compose import compose
from covey.experiment.configuration.config import Config, from_dict
from covey.experiment.recording.checkpoint import Checkpoints
from covey.experiment.recording.run_directory import RunDirectory
from covey.experiment.running import changes
from covey.experiment.running.build import build, build_learning, init_shapes
from covey.experiment.running.changes import changes_with, describe_changes, difference_in_state, with_changes
from covey.experiment.running.experiment import Experiment, resume
from covey.experiment.running.training import Training
from covey.fields import field, roles

FIELDS = {
    "experiment.frames": 512,  # eight iterations of 64 frames
    "experiment.schedule_frames": 512,
    "experiment.num_envs": 8,
    "experiment.rollout_length": 8,
    "experiment.devices": 1,
    "experiment.evaluation_interval": 256,
    "experiment.evaluation_episodes": 4,
    "experiment.checkpoint_interval": 256,
    "experiment.checkpoint_keep": 4,
    "experiment.loggers": [],
    "model.layers": [8],
}
PPO = {"algorithm.num_minibatches": 2, "algorithm.epochs": 1}
SMALL = ("experiment.devices=1", "model.layers=[8]", "buffer.size=512")
REPLAY = {"experiment.updates": 2, "experiment.random_frames": 0, "buffer.size": 512, "buffer.batch_size": 16}


class Setting:
    """Sets fields after some iterations."""

    def __init__(self, **at: dict[str, Any]):
        self.at = {int(name.removeprefix("after_")): fields for name, fields in at.items()}
        self.configs: list[Config] = []

    def on_iteration(self, training: Training, metrics: Mapping[str, float]) -> None:
        for path, value in self.at.get(training.iteration, {}).items():
            training.set_field(path, value)
            self.configs.append(training.config)


def train(
    path: Path, *, callback: Any = None, algorithm: str = "ippo", fields: dict[str, Any] | None = None
) -> RunDirectory:
    fields = {**FIELDS, **(PPO if algorithm == "ippo" else REPLAY), **(fields or {})}
    callbacks = [callback] if callback else []
    Experiment(task="probe/copy", algorithm=algorithm, run_dir=str(path), fields=fields, callbacks=callbacks).run()
    return RunDirectory.open(path)


def left(run: RunDirectory) -> tuple[Any, Any]:
    """The records of training and evaluation without the clock's, and the state at the end."""
    records = [{k: v for k, v in record.items() if k not in names.WALL_CLOCK} for record in run.metrics.read()]
    parts = ["learner", "actor", "clock", "best"] + (["buffer"] if "buffer" in run.config["experiment"] else [])
    return records, {part: Checkpoints(run.checkpoints).restore_part(part) for part in parts}


def with_another_value(path: str, value: Any, run: RunDirectory, frames: int) -> None:
    """Continues a run with another value, as if its configuration had always had it."""
    *parents, name = path.split(".")
    section = run.config
    for parent in parents:
        section = section[parent]
    section[name] = value
    run.rewrite_config(run.config)
    resume(run.path, [f"experiment.frames={frames}"])


def assert_same(one: RunDirectory, other: RunDirectory, same_bits: SameBits) -> None:
    (records, state), (others, other_state) = left(one), left(other)
    assert records == others
    same_bits(state, other_state)


CASES = {
    "num_minibatches": ("ippo", "algorithm.num_minibatches", "algorithm.num_minibatches", 4),
    "epochs": ("ippo", "algorithm.epochs", "algorithm.epochs", 3),
    "batch_size": ("iql", "buffer.batch_size", "experiment.buffer.batch_size", 32),
    "updates": ("iql", "experiment.updates", "experiment.updates", 5),
}


@pytest.mark.parametrize(
    ("case", "devices"),
    [
        ("num_minibatches", 1),
        ("batch_size", 1),
        *(pytest.param(*rest, marks=pytest.mark.slow) for rest in (("epochs", 1), ("updates", 1), ("epochs", 2))),
    ],
)
def test_a_change_equals_going_on_with_the_other_value(
    case: str, devices: int, tmp_path: Path, same_bits: SameBits
) -> None:
    algorithm, given, path, value = CASES[case]
    fields = {"experiment.absolute_metric": False, "experiment.devices": devices}
    changed = train(tmp_path / "changed", callback=Setting(after_4={given: value}), algorithm=algorithm, fields=fields)
    other = train(tmp_path / "other", algorithm=algorithm, fields={**fields, "experiment.frames": 256})
    with_another_value(path, value, other, frames=512)
    assert_same(changed, RunDirectory.open(other.path), same_bits)
    if case != "batch_size":
        plain = train(tmp_path / "plain", algorithm=algorithm, fields=fields)
        assert left(changed)[0] != left(plain)[0]


def test_killed_and_resumed_after_a_change(tmp_path: Path, same_bits: SameBits) -> None:
    """Resumed without the callback: what was changed is in the checkpoint, and config.yaml is as the run began."""
    values = {"algorithm.num_minibatches": 4, "algorithm.epochs": 2}
    whole = train(tmp_path / "whole", callback=Setting(after_2=values))
    assert whole.config["algorithm"]["num_minibatches"] == 2

    class Killed(Setting):
        def on_iteration(self, training: Training, metrics: Mapping[str, float]) -> None:
            super().on_iteration(training, metrics)
            if training.iteration == 6:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "killed", callback=Killed(after_2=values))
    assert Checkpoints(tmp_path / "killed" / "checkpoints").iterations() == [4]
    resume(tmp_path / "killed")
    assert_same(RunDirectory.open(tmp_path / "killed"), whole, same_bits)


def test_an_older_checkpoint_has_the_older_value(tmp_path: Path, same_bits: SameBits) -> None:
    """Changed after iteration 6, and resumed from the checkpoint of iteration 4: as if it had not been changed."""
    run = train(tmp_path / "run", callback=Setting(after_6={"algorithm.epochs": 3}))
    newest = max((run.path / "checkpoints").iterdir())
    for file in newest.rglob("*"):
        if file.is_file():
            file.write_bytes(b"damaged")
    (run.path / "finished.json").unlink(missing_ok=True)
    resume(run.path)
    assert_same(RunDirectory.open(run.path), train(tmp_path / "plain"), same_bits)


def test_programs_of_values_used_before_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """There and back, twice: one more program, one line for each change, and one that says that it compiles."""
    built = []
    original = changes._build_again

    def counted(*arguments: Any) -> Any:
        built.append(1)
        return original(*arguments)

    monkeypatch.setattr(changes, "_build_again", counted)
    there, back, same = ({"algorithm.epochs": epochs} for epochs in (3, 1, 1))
    callback = Setting(after_2=there, after_3=back, after_4=same, after_5=there, after_6=back)
    run = train(tmp_path / "run", callback=callback)
    assert built == [1]
    assert [config.algorithm.config.epochs for config in callback.configs] == [3, 1, 1, 3, 1]
    said = [line for line in capsys.readouterr().out.splitlines() if "frames on" in line]
    assert said == [
        "from 128 frames on: algorithm.epochs=3; compiling training again",
        "from 192 frames on: algorithm.epochs=1",
        "from 320 frames on: algorithm.epochs=3",
        "from 384 frames on: algorithm.epochs=1",
    ]
    restored = Checkpoints(run.checkpoints).restore(lambda meta: {})
    assert restored is not None and restored.meta["changes"] == {}  # as it began


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("model.layers", [16], "'model.layers' cannot change while training runs; those that can: algorithm.epochs"),
        ("algorithm.lr", 0.1, "set_coefficient sets coefficients, such as lr"),
        ("experiment.num_envs", 16, "'experiment.num_envs' cannot change"),
        ("algorithm.epochz", 2, "'algorithm.epochz' cannot change"),
        ("algorithm.epochs", 0, "epochs must be at least 1"),
        ("algorithm.epochs", "two", "algorithm.epochs takes int"),
        ("algorithm.num_minibatches", 3, "num_minibatches 3 does not divide the batch of 2048 frames"),
    ],
)
def test_what_is_refused(path: str, value: Any, message: str) -> None:
    config = compose(["task=probe/copy", "algorithm=ippo"])
    with pytest.raises(CoveyError) as caught:
        changes_with(config, {}, path, value)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_minibatches_have_no_effect_beside_their_size() -> None:
    config = compose(["task=probe/copy", "algorithm=ippo", "algorithm.minibatch_size=64"])
    with pytest.raises(CoveyError, match=r"no effect beside algorithm\.minibatch_size=64"):
        changes_with(config, {}, "algorithm.num_minibatches", 4)
    freed = changes_with(config, {}, "algorithm.minibatch_size", None)
    assert freed == {"algorithm.minibatch_size": None}
    both = changes_with(config, freed, "algorithm.num_minibatches", 4)
    assert both == {"algorithm.minibatch_size": None, "algorithm.num_minibatches": 4}
    assert with_changes(config, both).algorithm.config.num_minibatches == 4
    assert changes_with(config, both, "algorithm.minibatch_size", 64) == {"algorithm.num_minibatches": 4}
    assert describe_changes(both) == "algorithm.minibatch_size=null, algorithm.num_minibatches=4"


def test_a_group_of_agents_has_its_own() -> None:
    config = compose(["task=probe/groups", "algorithm=ippo", "algorithm.groups.guessers.lr=0.1"])
    found = changes_with(config, {}, "algorithm.groups.guessers.epochs", 5)
    assert found == {"algorithm.groups.guessers.epochs": 5}
    changed = with_changes(config, found)
    assert changed.algorithm.of("guessers").config.epochs == 5
    assert changed.algorithm.config.epochs == config.algorithm.config.epochs


def test_another_state_is_refused() -> None:
    """Whatever fields declare, shapes are compared: another layer, another row of a buffer, longer iterations."""
    config = compose(
        ["task=probe/copy", "algorithm=iql", "experiment.devices=1", "model.layers=[8]", "buffer.size=512"]
    )
    parts = build(config, jax.devices()[:1], trace=False)
    before = init_shapes(config, parts.loop, 1)

    def difference(**given: Any) -> str:
        other = from_dict(with_dotted(config, given))
        _, loop = build_learning(other, parts.env, parts.devices, 1, None)
        return difference_in_state(parts.loop, loop, before, init_shapes(other, loop, 1))

    assert difference(experiment__updates=7) == ""
    assert difference(experiment__buffer__batch_size=64) == ""
    assert "the train state would have other shapes (.learner['agents']" in difference(model__layers=[16])
    assert "the train state would have other shapes" in difference(model__layers=[8, 8])
    assert "other shapes (.buffer" in difference(experiment__buffer__size=1024)
    assert difference(experiment__rollout_length=4) == "an iteration would have another number of frames"
    assert difference(experiment__buffer__in_checkpoints=False) == "the loop would keep other parts"


def with_dotted(config: Any, given: dict[str, Any]) -> dict[str, Any]:
    from covey.experiment.configuration.config import to_dict

    values = to_dict(config)
    for path, value in given.items():
        *parents, name = path.split("__")
        section = values
        for parent in parents:
            section = section[parent]
        section[name] = value
    return values


def test_a_field_of_ones_own_declares_it() -> None:
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class MyConfig(AlgorithmConfig):
        num_minibatches: int = field(4, changeable=True)
        layers: int = 2

    assert {name for name, role in roles(MyConfig).items() if role.changeable} == {"num_minibatches"}
