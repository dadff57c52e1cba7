"""Observations that are dictionaries of arrays: helpers by hand-worked numbers, and a task of the kind learned."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import MakeTeam, SameBits

from covey import cli
from covey.envs.base import make_env
from covey.envs.probes import GROUP
from covey.errors import UsageError
from covey.experiment.configuration.compose import compose
from covey.experiment.loading.policy import load
from covey.experiment.running.build import build
from covey.experiment.running.experiment import Experiment, resume
from covey.observations import describe, describe_shape, dtypes, flat_size, flatten, leading_shape, map_entries
from covey.ops.normalisation import init_moments, merge_entries, normalise_entries
from covey.types import Discrete, GroupSpec

TASK = "probe/image_and_vector"
SHAPES = {"vector": (2,), "image": (2, 2, 1)}
CNN = ("model.channels=[4]", "model.kernels=[3]", "model.strides=[1]", "model.layers=[32]")

# ----------------------------------------------------------------------------------------------------------- helpers


def test_entries_are_joined_in_the_order_of_their_names() -> None:
    value = {"vector": jnp.array([[8.0, 9.0]]), "image": jnp.arange(4, dtype=jnp.uint8).reshape(1, 2, 2, 1)}
    np.testing.assert_array_equal(flatten(value, 1), [[0, 1, 2, 3, 8, 9]])
    assert flat_size(SHAPES) == 6 and leading_shape(value, 1) == (1,)
    array = jnp.arange(12).reshape(2, 3, 2)
    np.testing.assert_array_equal(flatten(array, 1), array.reshape(2, 6))
    assert flat_size((3, 2)) == 6 and leading_shape(array, 2) == (2, 3)


def test_shapes_are_mapped_entry_by_entry() -> None:
    assert map_entries(len, SHAPES) == {"image": 3, "vector": 1}
    assert map_entries(len, (3, 2)) == 2
    assert map_entries(lambda shape, name: name * len(shape), SHAPES, {"image": "i", "vector": "v"}) == {
        "image": "iii",
        "vector": "v",
    }


def test_shapes_in_words() -> None:
    assert describe_shape((5, 3)) == "[5, 3]"
    assert describe_shape(SHAPES) == "{image: [2, 2, 1], vector: [2]}"
    spec = GroupSpec(num_agents=2, observation_shape=SHAPES, action=Discrete(2))
    assert dtypes(spec) == {"image": np.float32, "vector": np.float32}
    assert describe(spec) == "image [2, 2, 1] float32, vector [2] float32"
    assert describe(GroupSpec(num_agents=2, observation_shape=(4,), action=Discrete(2))) == "[4] float32"


def test_moments_of_each_entry() -> None:
    """Of 1, 3 and a 100 that does not count: mean 2, variance 1. Of 4, 4: mean 4, variance 0."""
    value = {"a": jnp.array([[1.0], [3.0], [100.0]]), "b": jnp.array([[4], [4], [0]], jnp.uint8)}
    mask = jnp.array([True, True, False])
    moments = merge_entries(map_entries(init_moments, {"a": (1,), "b": (1,)}), value, mask)
    np.testing.assert_allclose(moments["a"].mean, [2.0])
    np.testing.assert_allclose(moments["a"].variance, [1.0])
    np.testing.assert_allclose(moments["b"].mean, [4.0])
    np.testing.assert_allclose(moments["b"].variance, [0.0])
    normalised = normalise_entries(value, moments, clip=5.0)
    np.testing.assert_allclose(normalised["a"], [[-1.0], [1.0], [5.0]], rtol=1e-5)
    np.testing.assert_allclose(normalised["b"], [[0.0], [0.0], [-5.0]])


# ---------------------------------------------------------------------------------------------------------- learning


@pytest.mark.parametrize(
    ("algorithm", "model", "fields"),
    [
        ("ippo", "cnn", CNN),
        ("mappo", "mlp", ("algorithm.observation_normalisation=true",)),
        ("qmix", "mlp", ()),
        pytest.param("mappo", "cnn", (*CNN, "critic_model=mlp"), marks=pytest.mark.slow),
        pytest.param("iql", "cnn", CNN, marks=pytest.mark.slow),
        pytest.param("vdn", "gru", (), marks=pytest.mark.slow),
        pytest.param("masac", "mlp", (), marks=pytest.mark.slow),
        pytest.param("pqn", "lstm", (), marks=pytest.mark.slow),
    ],
)
def test_both_entries_are_used(trained: MakeTeam, algorithm: str, model: str, fields: tuple[str, ...]) -> None:
    """The best return is 1; 0.5 is all that either entry can earn alone."""
    team = trained(TASK, *fields, algorithm=algorithm, model=model, iterations=60)
    assert team.returns()[GROUP] > 0.99


def test_one_entry_alone_does_not_suffice() -> None:
    """Whatever is done for a mark's place, or for a rule, earns 0.5 on average over the other entry."""
    env = make_env(TASK, num_agents=64)
    reset, step = jax.jit(jax.vmap(env.reset)), jax.jit(jax.vmap(env.step))
    keys = jax.random.split(jax.random.key(0), 64)
    state, timestep = reset(keys)
    seen = timestep.groups[GROUP].observation
    by_image = (seen["image"][..., 2:, :].sum((-3, -2, -1)) > 0).astype(jnp.int32)
    by_vector = seen["vector"][..., 1].astype(jnp.int32)
    for action, earned in ((by_image, 0.5), (by_vector, 0.5), (by_image ^ by_vector, 1.0)):
        _, after = step(state, {GROUP: action}, keys)
        assert float(after.groups[GROUP].reward.mean()) == pytest.approx(earned, abs=0.03)


def test_each_agent_with_parameters_of_its_own(fresh: MakeTeam) -> None:
    fields = ("algorithm.share_parameters=false", "algorithm.share_critic_parameters=false")
    team = fresh(TASK, *fields, iterations=1, num_envs=8)
    assert team.learner[GROUP].params["actor"]["model"]["mlp"]["layers"][0]["kernel"].shape == (2, 20, 32)


def test_several_devices_and_the_host_s_memory(fresh: MakeTeam, same_bits: SameBits) -> None:
    """Steps in the host's memory are the same steps, of two devices too."""
    options = {"algorithm": "iql", "iterations": 4, "num_envs": 8, "num_devices": 2}
    here = fresh(TASK, **options)
    host = fresh(TASK, "buffer.place=host", **options)
    same_bits(here.learner, host.learner)
    stored = host.state.buffer["steps"]["groups"][GROUP]["observation"]
    assert stored["image"].dtype == jnp.uint8 and set(stored) == {"agent_id", "image", "vector"}


# -------------------------------------------------------------------------------------------------------- experiments

FIELDS = {
    "experiment.num_envs": 8,
    "experiment.rollout_length": 8,
    "experiment.devices": 1,
    "experiment.evaluation_interval": 0,
    "experiment.evaluation_episodes": 4,
    "experiment.absolute_metric": False,
    "experiment.loggers": [],
    "model.layers": [8],
    "algorithm.num_minibatches": 2,
    "algorithm.observation_normalisation": True,
}


def run(path: Path, frames: int) -> Path:
    fields = {**FIELDS, "experiment.frames": frames, "experiment.schedule_frames": 256}
    Experiment(task=TASK, algorithm="mappo", run_dir=str(path), fields=fields).run()
    return path


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(tmp_path_factory.mktemp("runs") / "whole", 256)


def test_resumed_equals_uninterrupted(finished: Path, tmp_path: Path, same_bits: SameBits) -> None:
    part = run(tmp_path / "part", 128)
    resume(part, ["experiment.frames=256"])
    same_bits(load(part).learner, load(finished).learner)


def test_evaluated(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["evaluate", str(finished), "episodes=8"]) == 0
    assert "mean_return" in capsys.readouterr().out


def test_init_from_takes_the_moments_too(finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fields = {**FIELDS, "experiment.frames": 64, "init_from": str(finished)}
    Experiment(task=TASK, algorithm="mappo", run_dir=str(tmp_path / "new"), fields=fields).run()
    assert "observation_moments (9 arrays)" in capsys.readouterr().out


def test_a_loaded_team_takes_dictionaries(finished: Path) -> None:
    policy = load(finished)
    one = {"image": np.zeros((2, 4, 4, 1)), "vector": np.ones((2, 2))}
    actions, _ = policy.act(one)
    assert actions.shape == (2,)
    by_group, _ = policy.act({GROUP: one})
    np.testing.assert_array_equal(by_group[GROUP], actions)
    many, _ = policy.act({name: np.stack([value] * 3) for name, value in one.items()})
    np.testing.assert_array_equal(many, np.stack([actions] * 3))
    with pytest.raises(UsageError, match=r"observation lacks group 'agents.vector'"):
        policy.act({"image": one["image"]})
    with pytest.raises(UsageError, match=r"of group 'agents.vector' is \[2, 3\]; it must be \[2, 2\]"):
        policy.act({**one, "vector": np.ones((2, 3))})


# ----------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (["model=gnn"], "model 'gnn' needs observations that are one array, not the dictionary {agent_id: "),
        (["model=deepsets"], r"\(cnn, gru, lstm, sequence take it too\)"),
        (["critic_model=attention"], "the critic's model 'attention' needs"),
        (["model.flatten=false"], "flatten=false reads the rows of one array"),
        (["algorithm=mappo", "model=cnn"], "the critic's model 'cnn' needs observations .* try critic_model=mlp"),
    ],
)
def test_models_that_cannot_take_dictionaries_are_refused(fields: list[str], message: str) -> None:
    algorithm = [] if any(text.startswith("algorithm=") for text in fields) else ["algorithm=ippo"]
    config = compose([f"task={TASK}", "experiment.devices=1", *algorithm, *fields])
    with pytest.raises(UsageError, match=message):
        build(config, jax.devices()[:1])


def test_models_one_after_another(fresh: MakeTeam) -> None:
    """The first stage takes the dictionary, the second messages between agents."""
    stages = "model.stages={see:{model:cnn,channels:[4],kernels:[3],strides:[1]},talk:{model:gnn},keep:{model:gru}}"
    team = fresh(TASK, stages, "critic_model=mlp", model="sequence", iterations=1, num_envs=8)
    assert np.isfinite(team.metrics[f"{GROUP}/policy_loss"]).all()
