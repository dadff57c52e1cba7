"""Who is central where several groups cooperate: what critics and mixers are given, and what they learn by it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import MakeTeam, SameBits
from stubs import context

from covey.algorithms.critics import CriticSees, Scope, join_agents, resolve_scope, seen_shape
from covey.algorithms.qlearning import VDN, mixed_groups
from covey.envs.base import make_env
from covey.envs.probes import ProbeConfig, Team, TwoStep
from covey.errors import UsageError
from covey.experiment.configuration.compose import compose
from covey.experiment.loading.policy import load
from covey.experiment.loading.transfer import Source, plan_transfer
from covey.experiment.recording.checkpoint import paths_and_leaves
from covey.experiment.running.build import apart_from, build, build_algorithm, build_env
from covey.experiment.running.experiment import train
from covey.networks.network import make_model
from covey.types import EnvSpec, GroupSpec

SPEAKER = "mpe/simple_speaker_listener"
MLP = make_model("mlp")
BRIEF = (
    "experiment.frames=128",
    "experiment.num_envs=8",
    "experiment.rollout_length=8",
    "experiment.evaluation_interval=0",
    "experiment.evaluation_episodes=2",
    "experiment.absolute_metric=false",
    "experiment.devices=1",
    "experiment.loggers=[]",
    "model.layers=[8]",
)


# ------------------------------------------------------------------------------------------------- who sees whom


def seen_by(task: str, group: str, scope: Scope = Scope.auto) -> tuple[str, ...]:
    return resolve_scope(scope, CriticSees.joint, make_env(task).spec, group, MLP)


def test_critics_see_the_groups_that_cooperate_and_never_opponents() -> None:
    assert seen_by(SPEAKER, "speaker") == ("listener",)
    assert seen_by(SPEAKER, "listener") == ("speaker",)
    assert seen_by(SPEAKER, "speaker", Scope.group) == ()
    assert seen_by("mpe/simple_adversary", "agent") == seen_by("mpe/simple_adversary", "adversary") == ()
    assert seen_by("mpe/simple_tag", "adversary", Scope.team) == ()
    assert seen_by("mpe/simple_crypto", "alice") == ("bob",) and seen_by("mpe/simple_crypto", "eve") == ()
    assert seen_by("mpe/simple_world_comm", "adversary") == ("leader",)


def test_models_over_agents_see_their_own_group() -> None:
    spec, gnn = make_env(SPEAKER).spec, make_model("gnn")
    assert resolve_scope(Scope.auto, CriticSees.joint, spec, "speaker", gnn) == ()
    with pytest.raises(ValueError, match=r"use algorithm.scope=group or auto"):
        resolve_scope(Scope.team, CriticSees.joint, spec, "speaker", gnn)


def test_values_are_mixed_where_the_reward_is_shared() -> None:
    def mixed(task: str, group: str) -> tuple[str, ...]:
        return mixed_groups(VDN, make_env(task).spec, group, context())

    assert mixed(SPEAKER, "listener") == ("speaker", "listener")
    assert mixed("mpe/simple_crypto", "bob") == ("alice", "bob") and mixed("mpe/simple_crypto", "eve") == ("eve",)
    assert mixed("mpe/simple_world_comm", "leader") == ("leader",)  # cooperates, with a reward of its own
    assert mixed("probe/groups", "copiers") == ("copiers",)


def test_the_joint_observation_by_hand() -> None:
    """Group by group, agent by agent: the own group first, its action beside each observation."""
    own, action = jnp.array([[[[1.0], [2.0]]]]), jnp.array([[[[-1.0], [-2.0]]]])
    other, done = jnp.array([[[[5.0, 6.0, 7.0]]]]), jnp.array([[[[0.0, 1.0]]]])
    np.testing.assert_array_equal(join_agents((own,), (other,)), [[[1, 2, 5, 6, 7]]])
    np.testing.assert_array_equal(join_agents((own, action), (other, done)), [[[1, -1, 2, -2, 5, 6, 7, 0, 1]]])
    spec = make_env("probe/team").spec
    assert seen_shape(CriticSees.joint, spec, "seers", ("blind",)) == (2 * 1 + 3,)
    assert seen_shape(CriticSees.joint, spec, "blind") == (3,)


def test_dictionaries_of_several_groups_by_hand() -> None:
    own = {"b": jnp.array([[[[3.0], [4.0]]]]), "a": jnp.array([[[[1.0], [2.0]]]])}
    other = {"image": jnp.arange(4.0).reshape(1, 1, 1, 2, 2)}
    np.testing.assert_array_equal(join_agents((own,), (other,)), [[[1, 3, 2, 4, 0, 1, 2, 3]]])


# ------------------------------------------------------------------------------------------------ MAPPO and IPPO


def test_mappo_differs_from_ippo_where_groups_cooperate(fresh: MakeTeam, same_bits: SameBits) -> None:
    options = {"iterations": 2, "num_envs": 4}
    independent = fresh(SPEAKER, algorithm="ippo", **options)
    alone = fresh(SPEAKER, "algorithm.scope=group", algorithm="mappo", **options)
    central = fresh(SPEAKER, algorithm="mappo", **options)
    same_bits(alone.learner["speaker"].params, independent.learner["speaker"].params)
    for group, size in (("speaker", 4 + 12), ("listener", 4 + 12)):  # with an id of one number for each
        kernel = central.learner[group].params["critic"]["model"]["mlp"]["layers"][0]["kernel"]
        assert kernel.shape[-2] == size
    actor = central.learner["speaker"].params["actor"], independent.learner["speaker"].params["actor"]
    assert any(not np.array_equal(a, b) for a, b in zip(*map(jax.tree.leaves, actor), strict=True))


# ------------------------------------------------------------------------------------------------------- learning


@pytest.mark.parametrize(("scope", "slope"), [("auto", 1.0), ("group", 0.0)])
def test_mappo_values_what_another_group_sees(fresh: MakeTeam, scope: str, slope: float) -> None:
    team = fresh("probe/team", f"algorithm.scope={scope}", "algorithm.gamma=0.9", algorithm="mappo", iterations=60)
    played = team.transitions(num_envs=64)
    seen = played["seers"].observation[..., 0].mean(-1)
    value = played["blind"].extras["value"][..., 0]
    assert np.polyfit(seen.ravel(), value.ravel(), 1)[0] == pytest.approx(slope, abs=0.15)
    assert team.returns()["blind"] == pytest.approx(1.0, abs=0.1)  # the numbers are 0 on average


@pytest.mark.parametrize("algorithm", ["vdn", "qmix"])
def test_a_mixer_over_groups_explains_the_shared_reward(fresh: MakeTeam, algorithm: str) -> None:
    """All actions are random. Values of one group alone leave the variance of what the other sees, which is 0.5."""
    fields = ("algorithm.epsilon_end=1", "algorithm.gamma=0.9")
    team = fresh("probe/team", *fields, algorithm=algorithm, iterations=100)
    assert team.metrics["blind/q_loss"][-1] < 0.02
    assert team.returns()["blind"] == pytest.approx(1.0, abs=0.1)
    alone = fresh("probe/team", "algorithm.scope=group", *fields, algorithm=algorithm, iterations=100)
    assert alone.metrics["blind/q_loss"][-1] > 0.3


@pytest.mark.parametrize(("algorithm", "scope", "earned"), [("qmix", "auto", 8.0), ("vdn", "auto", 7.0)])
def test_qmix_finds_the_action_on_which_groups_must_agree(
    fresh: MakeTeam, algorithm: str, scope: str, earned: float
) -> None:
    fields = ("algorithm.epsilon_end=1", "algorithm.gamma=0.99", f"algorithm.scope={scope}")
    team = fresh("probe/team_two_step", *fields, algorithm=algorithm, iterations=250)
    assert team.returns() == pytest.approx({"leader": earned, "follower": earned})


@pytest.mark.parametrize("algorithm", ["maddpg", "masac"])
def test_critics_of_everybody_s_actions(fresh: MakeTeam, algorithm: str) -> None:
    team = fresh("probe/team_target", algorithm=algorithm, iterations=150)
    assert team.returns()["far"] == pytest.approx(2.0, abs=0.1)
    assert team.metrics["far/q_loss"][-1] < 0.02


@pytest.mark.parametrize(
    ("algorithm", "task"), [("mappo", "probe/team"), ("qmix", "probe/team"), ("masac", "probe/team_target")]
)
def test_what_groups_learned_together_is_saved_and_goes_on_to_the_bit(
    fresh: MakeTeam, same_bits: SameBits, algorithm: str, task: str
) -> None:
    loop = fresh(task, algorithm=algorithm, iterations=7, num_envs=8).loop
    straight, _ = loop.advance(loop.init(jax.random.key(0)), jnp.int32(7))
    half, _ = loop.advance(loop.init(jax.random.key(0)), jnp.int32(3))
    saved = jax.device_get(loop.saved(half))
    resumed, _ = loop.advance(loop.restored(loop.init(jax.random.key(9)), saved), jnp.int32(4))
    same_bits(loop.saved(straight), loop.saved(resumed))


@pytest.mark.parametrize(
    ("algorithm", "task"), [("mappo", "probe/team"), ("qmix", "probe/team"), ("masac", "probe/team_target")]
)
def test_what_groups_learned_together_comes_along_with_init_from(algorithm: str, task: str) -> None:
    """Critics and mixers over groups, and their targets, which lag behind, are taken as they are."""
    config = compose([f"task={task}", f"algorithm={algorithm}", "model.layers=[8]"])
    team = build_algorithm(config, build_env(config))
    other = {
        path: np.asarray(leaf) + 0.5
        for path, leaf in paths_and_leaves(team.init(jax.random.key(1)))
        if leaf.dtype == jnp.float32
    }
    arrays = {path: np.asarray(leaf) for path, leaf in paths_and_leaves(team.init(jax.random.key(1)))} | other
    start = plan_transfer(Source(path="runs/other", arrays=arrays), team)(team.init(jax.random.key(0)))
    taken = [path for path, leaf in paths_and_leaves(start) if path in other and np.array_equal(leaf, other[path])]
    kept = [path for path, _ in paths_and_leaves(start) if path[1] in ("params", "target")]
    assert kept and set(kept) <= set(taken)


class NamedTeam(Team):
    """`Team` whose groups see dictionaries, unlike each other."""

    def group_specs(self) -> dict[str, GroupSpec]:
        plain = super().group_specs()
        shapes = {"seers": {"number": (1,), "zeros": (2,)}, "blind": {"zeros": (3,)}}
        return {name: dataclasses.replace(spec, observation_shape=shapes[name]) for name, spec in plain.items()}

    def _see(self, seen: Any) -> dict[str, Any]:
        seers = {"number": seen[:, None], "zeros": jnp.zeros((self.agents, 2))}
        return {"seers": seers, "blind": {"zeros": jnp.zeros((1, 3))}}


def test_one_critic_over_dictionaries_of_several_groups(fresh: MakeTeam) -> None:
    env = NamedTeam(ProbeConfig())
    team = fresh("probe/team", "algorithm.gamma=0.9", algorithm="mappo", iterations=60, env=env)
    played = team.transitions(num_envs=64)
    seen = played["seers"].observation["number"][..., 0].mean(-1)
    value = played["blind"].extras["value"][..., 0]
    assert np.polyfit(seen.ravel(), value.ravel(), 1)[0] == pytest.approx(1.0, abs=0.15)


class NamedState(TwoStep):
    """`TwoStep` whose global state is a dictionary."""

    @property
    def spec(self) -> EnvSpec:
        return dataclasses.replace(super().spec, state_shape={"start": (1,), "second": (2,)})

    def _see(self, place: jax.Array) -> tuple[dict[str, jax.Array], Any]:
        observation, state = super()._see(place)
        return observation, {"start": state[:1], "second": state[1:]}


def test_a_mixer_that_reads_a_dictionary_as_the_state(fresh: MakeTeam) -> None:
    fields = ("algorithm.gamma=1.0", "algorithm.epsilon_end=1.0", "experiment.updates=16")
    team = fresh("probe/two_step", *fields, algorithm="qmix", iterations=250, env=NamedState(ProbeConfig()))
    assert team.returns()["agents"] == pytest.approx(8.0)


def test_a_critic_that_reads_a_dictionary_as_the_state(fresh: MakeTeam) -> None:
    """The team learns to agree, so the second step is worth 8."""
    fields = ("algorithm.critic_sees=state", "algorithm.gamma=1.0")
    team = fresh("probe/two_step", *fields, algorithm="mappo", iterations=60, env=NamedState(ProbeConfig()))
    played = team.transitions(num_envs=64)["agents"]
    second = played.state["second"][..., 1] == 1
    assert second.any()
    np.testing.assert_allclose(played.extras["value"][second], 8.0, atol=0.5)


# ------------------------------------------------------------------------------------------- groups that are taken


def test_groups_that_partners_take_are_in_no_critic_and_no_mixer() -> None:
    spec = apart_from(make_env(SPEAKER).spec, ["speaker"])
    assert spec.team_of("listener") == ("listener",) and spec.shared_rewards == ()
    crypto = apart_from(make_env("mpe/simple_crypto").spec, ["eve"])
    assert crypto.team_of("alice") == ("alice", "bob") and crypto.shared_rewards == (("alice", "bob"),)


@pytest.mark.parametrize("algorithm", ["mappo", "qmix", "maddpg"])
def test_the_listener_learns_beside_a_random_speaker(algorithm: str) -> None:
    words = ["task.actions=continuous"] if algorithm == "maddpg" else []
    config = compose([f"task={SPEAKER}", f"algorithm={algorithm}", "partners.speaker=random", *words])
    team = build_algorithm(config, build_env(config))
    assert list(team.groups) == ["listener"]
    assert team.groups["listener"].joint is None and team.groups["listener"].rates_actions_of == ()


@pytest.mark.parametrize("algorithm", ["mappo", "qmix", "maddpg"])
def test_a_run_beside_a_partner_that_takes_a_group(algorithm: str, tmp_path: Path) -> None:
    """The critic sees the listener's 11 numbers and its id, and rates its 5 actions; of the speaker it sees nothing."""
    words = ["task.actions=continuous"] if algorithm == "maddpg" else []
    replay = ["experiment.updates=2", "experiment.random_frames=0", "buffer.size=1024"] if algorithm != "mappo" else []
    config = compose([f"task={SPEAKER}", f"algorithm={algorithm}", *BRIEF, *words, *replay, "partners.speaker=random"])
    config = dataclasses.replace(config, run_dir=str(tmp_path / "run"))
    (summary,) = train(config)
    assert summary.frames == 128
    learner = load(tmp_path / "run").learner
    assert list(learner) == ["listener"]
    kernels = [leaf.shape for path, leaf in paths_and_leaves(learner) if "critic" in path and "kernel" in path]
    wanted = {"mappo": {(12, 8), (8, 1)}, "maddpg": {(12 + 5, 8), (8, 1)}, "qmix": set()}
    assert set(kernels) == wanted[algorithm]


@pytest.mark.parametrize("field", ["algorithm.groups.speaker=ippo", "model.groups.speaker.layers=[8]"])
def test_fields_of_a_group_that_a_partner_plays_are_refused(field: str) -> None:
    config = compose([f"task={SPEAKER}", "algorithm=mappo", "partners.speaker=random", field])
    with pytest.raises(UsageError, match=r"groups.speaker has no effect: partners.speaker plays the whole group"):
        build(config, jax.devices()[:1])


# ----------------------------------------------------------------------------------------------------------- presets


@pytest.mark.parametrize("algorithm", ["mappo", "maddpg", "masac", "vdn", "qmix"])
def test_the_preset_of_benchmarl_keeps_to_the_group(algorithm: str) -> None:
    config = compose(["task=vmas/simple_speaker_listener", f"algorithm={algorithm}", "experiment=benchmarl"])
    assert config.algorithm.config.scope is Scope.group
    assert compose([f"algorithm={algorithm}"]).algorithm.config.scope is Scope.auto
