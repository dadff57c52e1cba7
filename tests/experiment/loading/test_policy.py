"""`covey.load`: the trained team, for one observation or many, with its memory, its parameters and its insides."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from covey.errors import CoveyError, UsageError
from covey.experiment.loading.policy import load
from covey.experiment.recording.checkpoint import Checkpoints
from covey.experiment.running.experiment import Experiment

FIELDS = {
    "experiment.frames": 64,
    "experiment.num_envs": 8,
    "experiment.rollout_length": 8,
    "experiment.devices": 1,
    "experiment.evaluation_interval": 0,
    "experiment.evaluation_episodes": 4,
    "experiment.absolute_metric": False,
    "experiment.loggers": [],
    "model.layers": [8],
    "algorithm.num_minibatches": 2,
}


def train(path: Path, task: str, *, model: str = "mlp", algorithm: str = "ippo", **fields: Any) -> Any:
    more = {name.replace("__", "."): value for name, value in fields.items()}
    Experiment(task=task, model=model, algorithm=algorithm, run_dir=str(path), fields={**FIELDS, **more}).run()
    return load(path)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def copier(runs: Path) -> Any:
    fields: dict[str, Any] = {"experiment__frames": 4096, "algorithm__lr": 1e-2}
    return train(runs / "copy", "probe/copy", **fields)


@pytest.fixture(scope="module")
def recurrent(runs: Path) -> Any:
    return train(
        runs / "memory", "probe/memory", model="gru", algorithm="mappo", model__hidden_size=6, model__layers_after=[]
    )


def test_one_observation_and_many(copier: Any) -> None:
    observation = np.array([[0.0], [1.0]])
    actions, _ = copier.act(observation)
    np.testing.assert_array_equal(actions, [0, 1])
    many, _ = copier.act(np.array([[[0.0], [1.0]], [[1.0], [1.0]], [[0.0], [0.0]]]))
    np.testing.assert_array_equal(many, [[0, 1], [1, 1], [0, 0]])
    two, _ = copier.act(np.array([[[0.0], [1.0]], [[1.0], [0.0]]]))  # as many environments as agents
    np.testing.assert_array_equal(two, [[0, 1], [1, 0]])


def test_by_group(copier: Any) -> None:
    actions, _ = copier.act({"agents": np.array([[0.0], [1.0]])})
    np.testing.assert_array_equal(actions["agents"], [0, 1])


@pytest.mark.parametrize(
    ("observation", "mask", "line"),
    [
        (np.zeros((2, 3)), None, r"observation of group 'agents' is \[2, 3\]; it must be \[2, 1\], or \[B, 2, 1\]"),
        (np.zeros((5, 3, 1)), None, r"observation of group 'agents' is \[5, 3, 1\]; it must be \[2, 1\]"),
        (np.zeros(2), None, r"is \[2\]; it must be \[2, 1\]"),
        (np.float32(0), None, r"is \[\]; it must be \[2, 1\]"),
        ({"walkers": np.zeros((2, 1))}, None, r"group 'walkers'; the team's groups are agents|lacks group 'agents'"),
        (np.zeros((2, 1)), np.ones((2, 3), bool), r"mask of group 'agents' is \[2, 3\]; it must be \[2, 2\]"),
        (np.zeros((2, 1)), np.ones((4, 2, 2), bool), "observation is of a single environment, and mask of 4"),
    ],
)
def test_what_does_not_fit_is_said_in_one_line(
    copier: Any, observation: Any, mask: np.ndarray | None, line: str
) -> None:
    with pytest.raises(UsageError, match=line):
        copier.act(observation, mask)


def test_masks(copier: Any) -> None:
    observation = np.array([[0.0], [1.0]])
    mask = np.array([[False, True], [True, False]])
    np.testing.assert_array_equal(copier.act(observation, mask)[0], [1, 0])
    np.testing.assert_array_equal(copier.act(observation[None], mask[None])[0], [[1, 0]])


def test_masks_of_as_many_environments_as_agents_with_rows(runs: Path) -> None:
    """Observations [N, F]: a batch of two for two agents must not be taken for a single one."""
    policy = train(runs / "rows", "probe/rows")
    observation = np.zeros((2, 2, 4, 2), np.float32)
    mask = np.zeros((2, 2, 2), bool)
    mask[..., 1] = True
    actions, _ = policy.act(observation, mask)
    np.testing.assert_array_equal(actions, np.ones((2, 2)))
    single, _ = policy.act(observation[0], mask[0])
    np.testing.assert_array_equal(single, [1, 1])


def test_sampled_and_greedy(recurrent: Any) -> None:
    observation = np.zeros((64, 2, 1))
    greedy = [recurrent.act(observation)[0] for _ in range(2)]
    np.testing.assert_array_equal(*greedy)
    one, other = (recurrent.act(observation, key=jax.random.key(seed))[0] for seed in (0, 1))
    assert len(np.unique(one)) == 2 and not np.array_equal(one, other)
    kept = recurrent.act(observation, key=jax.random.key(0), deterministic=True)[0]
    np.testing.assert_array_equal(kept, greedy[0])


def test_the_carry_remembers(recurrent: Any) -> None:
    """Two steps with the carry passed on differ from two first steps, and equal the algorithm's own."""
    cue, nothing = np.array([[1.0], [-1.0]]), np.zeros((2, 1))
    _, carry = recurrent.act(cue)
    _, after_cue = recurrent.act(nothing, carry=carry)
    _, afresh = recurrent.act(nothing)
    leaves = [jax.tree.leaves(c) for c in (after_cue, afresh)]
    assert leaves[0] and not any(np.allclose(a, b) for a, b in zip(*leaves, strict=True))
    again, _ = recurrent.act(nothing, carry=recurrent.initial_carry(1)), None
    jax.tree.map(np.testing.assert_array_equal, again[1], afresh)


def test_parameters_are_a_plain_dict_equal_to_the_checkpoint(runs: Path, copier: Any) -> None:
    parameters = copier.parameters

    def check(node: Any) -> None:
        assert type(node) in (dict, np.ndarray)
        if isinstance(node, dict):
            for child in node.values():
                check(child)

    check(parameters)
    assert set(parameters["agents"]) == {"actor", "critic"}
    stored = Checkpoints(runs / "copy" / "checkpoints").restore_part("learner")["agents"]["params"]
    flat = jax.tree.leaves(parameters["agents"])
    assert len(flat) == len(jax.tree.leaves(stored)) >= 8
    for a, b in zip(flat, jax.tree.leaves(stored), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("kind", ["feed-forward", "recurrent", "separate"])
def test_activations_are_the_networks_own(kind: str, copier: Any, recurrent: Any, runs: Path) -> None:
    if kind == "separate":
        policy = train(runs / "separate", "probe/copy", algorithm__share_parameters=False)
    else:
        policy = {"feed-forward": copier, "recurrent": recurrent}[kind]
    observation = np.array([[0.0], [1.0]], np.float32)
    captured = policy.activations(observation)
    leaves = jax.tree_util.tree_leaves_with_path(captured)
    assert leaves
    for path, leaf in leaves:
        assert np.isfinite(np.asarray(leaf)).all(), jax.tree_util.keystr(path)  # values, not tracers
    if kind == "feed-forward":
        hidden = policy.parameters["agents"]["actor"]["model"]["mlp"]["layers"][0]
        with_ids = np.concatenate([observation, np.eye(2)], -1)
        wanted = with_ids @ hidden["kernel"] + hidden["bias"]
        assert any(
            leaf.size == wanted.size and np.allclose(np.ravel(leaf), wanted.ravel(), atol=1e-5) for _, leaf in leaves
        )


def test_best_and_final_parameters(runs: Path, copier: Any) -> None:
    best = load(runs / "copy", parameters="best")
    structures: list[Any] = [jax.tree.structure(policy.parameters) for policy in (best, copier)]
    assert structures[0] == structures[1]


def test_a_team_of_several_groups_takes_a_dict(runs: Path) -> None:
    policy = train(runs / "groups", "probe/groups")
    actions, _ = policy.act({"copiers": np.zeros((2, 1)), "guessers": np.zeros((1, 3))})
    assert actions["copiers"].shape == (2,) and actions["guessers"].shape == (1,)
    with pytest.raises(CoveyError, match="copiers, guessers"):
        policy.act(np.zeros((2, 1)))


def test_no_checkpoint_yet(runs: Path, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(runs / "copy", tmp_path / "run") if (runs / "copy").exists() else train(
        tmp_path / "run", "probe/copy"
    )
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    with pytest.raises(CoveyError, match="no checkpoint"):
        load(tmp_path / "run")


def test_actions_are_what_evaluation_plays(copier: Any) -> None:
    """Through the environment: naming what is seen earns everything."""
    env = copier.env.env  # without the ids, which the policy appends itself
    earned = []
    for seed in range(8):
        state, timestep = env.reset(jax.random.key(seed))
        action, _ = copier.act(timestep.groups["agents"].observation)
        _, timestep = env.step(state, {"agents": jnp.asarray(action)}, jax.random.key(0))
        earned.append(float(timestep.groups["agents"].reward.mean()))
    assert np.mean(earned) == 1.0
