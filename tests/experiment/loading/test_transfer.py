"""`init_from`: what was learned comes along, the rest starts fresh, and what does not fit leaves nothing behind."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import MakeTeam

from covey import metrics as names
from covey.errors import UsageError
from covey.experiment.configuration.compose import compose
from covey.experiment.loading.transfer import Source, learned_fields, plan_transfer
from covey.experiment.recording.checkpoint import paths_and_leaves
from covey.experiment.recording.run_directory import RunDirectory
from covey.experiment.running.build import build_algorithm, build_env
from covey.experiment.running.experiment import Experiment
from covey.types import Algorithm, learned, pytree

FIELDS = {
    "experiment.frames": 128,
    "experiment.num_envs": 8,
    "experiment.rollout_length": 8,
    "experiment.devices": 1,
    "experiment.evaluation_interval": 0,
    "experiment.evaluation_episodes": 2,
    "experiment.checkpoint_interval": 0,
    "experiment.absolute_metric": False,
    "experiment.loggers": [],
    "model.layers": [8],
}
REPLAY = {"experiment.updates": 4, "experiment.random_frames": 0, "buffer.size": 2048, "buffer.batch_size": 32}


def train(
    path: Path,
    *,
    fields: dict[str, Any] | None = None,
    task: str = "probe/copy",
    algorithm: str = "ippo",
    **choices: Any,
) -> RunDirectory:
    fields = {**FIELDS, **(fields or {})}
    Experiment(task=task, algorithm=algorithm, run_dir=str(path), fields=fields, **choices).run()
    return RunDirectory.open(path)


def make_algorithm(name: str, task: str, *overrides: str) -> Algorithm:
    config = compose([f"task={task}", f"algorithm={name}", "model.layers=[8]", *overrides])
    return build_algorithm(config, build_env(config))


def make_source(algorithm: Algorithm, seed: int = 1, change: float = 0.5) -> Source:
    """A run whose targets lag behind its parameters, as after some updates."""
    learner = algorithm.init(jax.random.key(seed))
    arrays = {path: np.asarray(leaf) for path, leaf in paths_and_leaves(learner)}
    arrays = {path: leaf + (change if path[1] == "target" else 0) for path, leaf in arrays.items()}
    return Source(path="runs/other", arrays=arrays)


def started(algorithm: Algorithm, source: Source) -> tuple[dict[Any, np.ndarray], str]:
    """The learner that starts from `source`, by path, and what is said of it."""
    transfer = plan_transfer(source, algorithm)
    learner = transfer(algorithm.init(jax.random.key(0)))
    return {path: np.asarray(leaf) for path, leaf in paths_and_leaves(learner)}, transfer.description


FAMILIES = [
    ("mappo", "probe/copy", ["params", "observation_moments", "state_moments", "value_moments"]),
    ("pqn", "probe/copy", ["params"]),
    ("iql", "probe/copy", ["params", "target"]),
    ("qmix", "probe/copy", ["params", "target"]),
    ("masac", "probe/target", ["params", "target"]),
    ("maddpg", "probe/target", ["params", "target"]),
]


@pytest.mark.parametrize(("name", "task", "fields"), FAMILIES)
def test_every_family_takes_what_it_learned(name: str, task: str, fields: list[str]) -> None:
    algorithm = make_algorithm(name, task)
    source = make_source(algorithm)
    learner, said = started(algorithm, source)
    fresh = dict(paths_and_leaves(algorithm.init(jax.random.key(0))))
    for path, leaf in learner.items():
        expected = source.arrays[path] if path[1] in fields else fresh[path]
        np.testing.assert_array_equal(leaf, expected, err_msg=str(path))
    taken, rest = said.split("; fresh: ")
    for field in dict.fromkeys(path[1] for path in learner):
        assert field in (taken if field in fields else rest)


def test_every_algorithm_declares_what_it_learns() -> None:
    from covey import registry

    built_in = [entry.name for entry in registry.algorithms if str(entry.make).startswith("covey.")]
    assert len(built_in) > 10
    for name in built_in:
        try:
            learner = jax.eval_shape(make_algorithm(name, "probe/copy").init, jax.random.key(0))
        except UsageError:  # it needs continuous actions
            learner = jax.eval_shape(make_algorithm(name, "probe/target").init, jax.random.key(0))
        assert ("agents", "params") in learned_fields(learner), name


def test_a_target_that_the_source_does_not_have_equals_the_parameters() -> None:
    """From soft actor-critic, whose target has other names than DDPG's: both critics are the same networks."""
    source = make_source(make_algorithm("masac", "probe/target"))
    learner, said = started(make_algorithm("matd3", "probe/target"), source)
    critics = {path[2:]: leaf for path, leaf in learner.items() if path[1] == "params" and path[2] == "critic"}
    targets = {path[2:]: leaf for path, leaf in learner.items() if path[1] == "target" and path[2] == "critic"}
    assert critics.keys() == targets.keys() and critics
    for path, leaf in critics.items():
        np.testing.assert_array_equal(leaf, source.arrays[("agents", "params", *path)])
        np.testing.assert_array_equal(targets[path], leaf)
    assert "target (equal to params)" in said


def test_parameters_that_do_not_fit_keep_their_own_target() -> None:
    """The mixer is new in QMIX: network and its target come from IQL, the mixer's target is the mixer."""
    learner, said = started(make_algorithm("qmix", "probe/copy"), make_source(make_algorithm("iql", "probe/copy")))
    for path, leaf in learner.items():
        if path[1:3] == ("target", "mixer"):
            np.testing.assert_array_equal(leaf, learner[("agents", "params", *path[2:])])
    assert "params (4 of" in said and "target (4 of" in said


def test_what_does_not_fit_is_named() -> None:
    source = make_source(make_algorithm("iql", "probe/copy"))
    learner, said = started(make_algorithm("iql", "probe/masked"), source)  # three actions instead of two
    head = ("agents", "target", "network", "head", "kernel")
    np.testing.assert_array_equal(learner[head], learner[("agents", "params", *head[2:])])
    assert "params (2 of 4 arrays)" in said
    assert "did not fit: params/network/head/bias [2] into [3], params/network/head/kernel [8, 2] into [8, 3]" in said
    with pytest.raises(UsageError, match="none of its parameters fits"):
        plan_transfer(source, make_algorithm("iql", "probe/groups"))


def test_biases_scalars_and_moments_alone_are_no_transfer() -> None:
    """The heads' biases and the temperature fit every soft actor-critic, moments of observations fit every model."""
    source = make_source(make_algorithm("isac", "probe/target"))
    with pytest.raises(UsageError, match="none of its parameters fits"):
        plan_transfer(
            source, make_algorithm("isac", "probe/target", "model.layers=[3,5,7]", "algorithm.agent_ids=false")
        )
    source = make_source(make_algorithm("ippo", "probe/rows"))
    source = dataclasses.replace(source, arrays={p: a for p, a in source.arrays.items() if p[1] != "params"})
    with pytest.raises(UsageError, match="none of its parameters fits"):
        plan_transfer(source, make_algorithm("ippo", "probe/rows"))


def test_statistics_come_whole_or_not_at_all() -> None:
    """With more agents, ids make observations longer. The number of those seen before, which fits any run, would keep
    the fresh mean and variance as they are for a whole training."""
    source = make_source(make_algorithm("ippo", "probe/copy"))
    seen = {path: array + 1000.0 if "moments" in path[1] else array for path, array in source.arrays.items()}
    source = dataclasses.replace(source, arrays=seen)
    learner, said = started(make_algorithm("ippo", "probe/copy", "task.num_agents=3"), source)
    assert learner[("agents", "observation_moments", "weight")] == 0.0
    np.testing.assert_array_equal(learner[("agents", "observation_moments", "variance")], np.ones(4))
    assert learner[("agents", "value_moments", "weight")] == 1000.0
    taken, rest = said.split("; fresh: ")
    assert "observation_moments" in rest and "value_moments (3 arrays)" in taken


def test_a_state_without_a_declaration_takes_nothing() -> None:
    @pytree
    class Undeclared:
        params: Any

    @pytree
    class Declared:
        params: Any = learned()

    for state, fields in ((Undeclared, {}), (Declared, {("agents", "params")})):
        assert set(learned_fields({"agents": state(params=jnp.zeros(2))})) == set(fields)
    source = Source(path="runs/other", arrays={("agents", "params"): np.ones(2)})
    algorithm = make_algorithm("iql", "probe/copy")
    undeclared = dataclasses.replace(algorithm, init=lambda key: {"agents": Undeclared(params=jnp.zeros(2))})
    with pytest.raises(UsageError, match=r"declares no learned parameters; .* covey\.types\.learned\(\)"):
        plan_transfer(source, undeclared)


@pytest.mark.slow
def test_a_temperature_that_is_not_learned_stays_as_configured(fresh: MakeTeam) -> None:
    """The source learned another; what the user sets here holds."""
    fields = ("algorithm.learn_alpha=false", "algorithm.alpha=0.5")
    team = fresh("probe/target", *fields, algorithm="isac", iterations=1)
    learner = dict(team.learner)
    learner["agents"] = dataclasses.replace(
        learner["agents"], params=learner["agents"].params | {"log_alpha": jnp.float32(-3.0)}
    )
    _, metrics = team.loop.advance(dataclasses.replace(team.state, learner=learner), jnp.int32(1))
    assert metrics["agents/alpha"][0] == pytest.approx(0.5)


# ------------------------------------------------------------------------------------------------------------ runs


def test_a_converged_value_stays_where_it_is(tmp_path: Path) -> None:
    """1 / (1 − γ) = 10. With a fresh target network it fell to 4.8 within a few updates."""
    fields = {**REPLAY, "algorithm.gamma": 0.9, "algorithm.lr": 3e-3, "algorithm.tau": 0.05, "model.layers": [32]}
    long = {"experiment.frames": 20_000, "experiment.updates": 8}
    teacher = train(tmp_path / "teacher", task="probe/truncation", algorithm="iql", fields={**fields, **long})
    assert values(teacher)[-1] == pytest.approx(10.0, rel=0.02)
    slow = {**fields, "algorithm.tau": 0.005, "experiment.frames": 1280}
    pupil = train(
        tmp_path / "pupil", task="probe/truncation", algorithm="iql", fields=slow, init_from=str(teacher.path)
    )
    assert np.min(values(pupil)) > 9.5 and np.max(values(pupil)) < 10.5


def values(run: RunDirectory) -> list[float]:
    return [record["agents/q_value"] for record in run.metrics.read() if record[names.KIND] == names.TRAIN]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    return train(tmp_path_factory.mktemp("runs") / "source")


def test_what_does_not_fit_leaves_no_run_directory(
    source: RunDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UsageError, match="none of its parameters fits"):
        train(tmp_path / "run", init_from=str(source.path), task="probe/groups")
    damaged = tmp_path / "damaged"
    shutil.copytree(source.path, damaged)
    for arrays in (damaged / "checkpoints").glob("*/arrays"):
        shutil.rmtree(arrays)
    with pytest.raises(UsageError, match=r"init_from=.*damaged"):
        train(tmp_path / "run", init_from=str(damaged))
    shutil.rmtree(damaged / "checkpoints")
    with pytest.raises(UsageError, match=r"init_from=.*no checkpoint"):
        train(tmp_path / "run", init_from=str(damaged))
    with pytest.raises(UsageError, match=r"init_from=.*not a run directory"):
        train(tmp_path / "run", init_from=str(tmp_path / "missing"))
    assert [path.name for path in tmp_path.iterdir()] == ["damaged"]


def test_the_line_is_printed_once_for_all_seeds(
    source: RunDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fields = {**FIELDS, "experiment.frames": 64}
    Experiment(
        task="probe/copy", run_dir=str(tmp_path / "run"), fields=fields, init_from=str(source.path), seeds=[0, 1]
    ).run()
    lines = [line for line in capsys.readouterr().out.splitlines() if "init_from" in line]
    assert len(lines) == 1 and "took params" in lines[0] and "fresh: optimiser, coefficients" in lines[0]
