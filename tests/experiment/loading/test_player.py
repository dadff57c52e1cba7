"""A trained team in a PettingZoo loop acts as it does in covey's own evaluation."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import numpy as np
import pytest

import covey
from covey.errors import UsageError
from covey.experiment.configuration.compose import compose
from covey.experiment.loading.player import PettingZooPlayer, joined_mask
from covey.experiment.loading.policy import Policy
from covey.experiment.running.build import build_algorithm, build_env
from covey.experiment.running.experiment import Experiment

GRU = ("model.hidden_size=6", "model.layers_after=[]")


@functools.cache
def untrained(task: str, model: str = "mlp", *overrides: str) -> Policy:
    """A team with random networks, whose outputs are large enough that choices depend on what is seen."""
    memory = GRU if model == "gru" else ()
    config = compose([f"task={task}", "algorithm=ippo", f"model={model}", "model.layers=[8]", *memory, *overrides])
    env = build_env(config)
    algorithm = build_algorithm(config, env)
    learner = jax.jit(algorithm.init)(jax.random.key(3))
    for group, state in learner.items():
        learner[group] = dataclasses.replace(state, params=jax.tree.map(lambda x: 8 * x, state.params))
    return Policy(config, env, algorithm, learner)


@pytest.fixture(scope="module")
def copier(tmp_path_factory: pytest.TempPathFactory) -> Policy:
    """A trained team, by way of its run directory."""
    fields = {
        "experiment.frames": 4096,
        "experiment.num_envs": 8,
        "experiment.rollout_length": 8,
        "experiment.devices": 1,
        "experiment.evaluation_interval": 0,
        "experiment.absolute_metric": False,
        "experiment.loggers": [],
        "model.layers": [8],
        "algorithm.num_minibatches": 2,
        "algorithm.lr": 1e-2,
    }
    run = tmp_path_factory.mktemp("team") / "run"
    Experiment(task="probe/copy", algorithm="ippo", run_dir=str(run), fields=fields).run()
    return covey.load(run)


def play(env: Any, player: PettingZooPlayer, seed: int) -> list[tuple[dict[str, Any], dict[str, float]]]:
    """Actions and rewards of one episode."""
    observations, infos = env.reset(seed=seed)
    player.reset()
    steps = []
    while env.agents:
        actions = player(observations, infos)
        observations, rewards, _, _, infos = env.step(actions)
        steps.append((actions, rewards))
    return steps


def play_as_evaluation_does(policy: Policy, seed: int) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """By the algorithm itself, on full time steps `[1, A, …]` of the task as it was trained, agent ids included."""
    env, algorithm = policy.env, policy.algorithm
    reset, step = jax.jit(env.reset), jax.jit(env.step)
    act = jax.jit(algorithm.act, static_argnums=4)
    key, key_reset = jax.random.split(jax.random.key(seed))
    state, timestep = reset(key_reset)
    carry, steps, last = algorithm.initial_carry(1), [], False
    while not last:
        batched = jax.tree.map(lambda x: x[None], timestep)
        actions, _, carry = act(algorithm.acting(policy.learner), batched, carry, jax.random.key(0), False)
        actions = jax.tree.map(lambda x: x[0], actions)
        key, key_step = jax.random.split(key)
        state, timestep = step(state, actions, key_step)
        last = bool(timestep.last)
        rewards = {group: part.reward for group, part in timestep.groups.items()}
        steps.append((jax.device_get(actions), jax.device_get(rewards)))
    return steps


@pytest.mark.parametrize(
    ("task", "model"),
    [
        ("probe/death", "gru"),
        ("probe/memory", "gru"),
        ("probe/groups", "mlp"),
        ("probe/masked", "mlp"),
        ("probe/choices", "mlp"),
        ("probe/target", "mlp"),
        ("probe/two_step", "mlp"),
        ("vmas/navigation", "gru"),
        ("probe/image_and_vector", "mlp"),
        pytest.param("lbf/8x8-2p-2f-coop", "gru", marks=pytest.mark.slow),
        pytest.param("smax/2s3z", "gru", marks=pytest.mark.slow),
    ],
)
def test_greedy_play_is_that_of_an_evaluation(task: str, model: str) -> None:
    policy = untrained(task, model, "task.time_limit=6")
    env = covey.to_pettingzoo(task, time_limit=6)
    player = policy.for_pettingzoo(env)
    for seed in range(3):
        steps, wanted = play(env, player, seed), play_as_evaluation_does(policy, seed)
        assert len(steps) == len(wanted)
        for (actions, rewards), (by_group, earned) in zip(steps, wanted, strict=True):
            assert actions.keys() == rewards.keys()
            for agent, action in actions.items():
                group, _, index = agent.rpartition("_")
                assert env.action_space(agent).contains(action)
                np.testing.assert_allclose(action, by_group[group][int(index)], rtol=1e-6, atol=1e-6)
                np.testing.assert_allclose(rewards[agent], earned[group][int(index)], rtol=1e-5, atol=1e-5)


def test_a_trained_team_earns_what_it_learned(copier: Policy) -> None:
    env = covey.to_pettingzoo("probe/copy")
    player = copier.for_pettingzoo(env)
    assert all(
        rewards == {"agents_0": 1.0, "agents_1": 1.0} for seed in range(8) for _, rewards in play(env, player, seed)
    )
    assert repr(player) == f"PettingZooPlayer({copier!r})"


def test_actions_are_those_of_act_on_the_same_observations() -> None:
    policy = untrained("probe/memory", "gru")
    env = covey.to_pettingzoo("probe/memory")
    player = policy.for_pettingzoo(env)
    observations, infos = env.reset(seed=4)
    carry = None
    while env.agents:
        stacked = np.stack([observations["agents_0"], observations["agents_1"]])
        wanted, carry = policy.act(stacked, None, carry)
        actions = player(observations, infos)
        assert [actions["agents_0"], actions["agents_1"]] == np.asarray(wanted).tolist()
        observations, *_, infos = env.step(actions)


def test_memory_is_that_of_one_episode() -> None:
    """Nothing remains of the episodes before."""
    policy = untrained("probe/memory", "gru")
    env = covey.to_pettingzoo("probe/memory")
    player, fresh = policy.for_pettingzoo(env), policy.for_pettingzoo(env)
    play(env, player, 0)
    play(env, player, 1)
    play(env, fresh, 1)
    jax.tree.map(np.testing.assert_array_equal, player._carry, fresh._carry)
    play(env, fresh, 2)
    observations, infos = env.reset(seed=1)
    player(observations, infos)
    player.reset()
    jax.tree.map(np.testing.assert_array_equal, player._carry, policy.initial_carry(1))


def test_sampled_actions_follow_from_the_seed() -> None:
    policy = untrained("probe/truncation")
    env = covey.to_pettingzoo("probe/truncation")

    def sampled(seed: int | None) -> list[Any]:
        player = policy.for_pettingzoo(env, seed=seed)
        return [actions for _ in range(2) for actions, _ in play(env, player, 0)]

    one, again, other = sampled(1), sampled(1), sampled(2)
    assert one == again != other
    assert len(one) == 20 and {action for actions in one for action in actions.values()} == {0, 1}
    assert one[:10] != one[10:], "an episode does not repeat the draws of the one before"
    assert len({tuple(actions.values()) for actions in sampled(None)}) == 1, "greedy: the same is seen in every step"


def test_a_team_plays_in_the_simulators_own_loop() -> None:
    """There its agents have other names than in covey's, and it acts alike in both."""
    games = pytest.importorskip("pettingzoo.sisl.multiwalker_v9")
    task = "pettingzoo/multiwalker"
    policy = untrained(task, "mlp", "task.n_walkers=2")
    own, wrapped = games.parallel_env(n_walkers=2), covey.to_pettingzoo(task, n_walkers=2)
    observations, infos = own.reset(seed=1)
    actions = policy.for_pettingzoo(own)(observations, infos)
    assert list(actions) == ["walker_0", "walker_1"]
    assert all(own.action_space(agent).contains(action) for agent, action in actions.items())
    wrapped.reset(seed=1)
    renamed = {f"agents_{agent[-1]}": seen for agent, seen in observations.items()}
    alike = policy.for_pettingzoo(wrapped)(renamed, infos)
    np.testing.assert_array_equal(list(actions.values()), list(alike.values()))
    with pytest.raises(UsageError, match="trained as 2 agents, and the environment has walker_2 too"):
        policy.for_pettingzoo(games.parallel_env(n_walkers=3))


def test_groups_that_partners_play_are_left_to_others() -> None:
    policy = untrained("probe/groups", "mlp", "partners.guessers=random")
    env = covey.to_pettingzoo("probe/groups")
    player = policy.for_pettingzoo(env)
    observations, infos = env.reset(seed=0)
    actions = player(observations, infos)
    assert list(actions) == ["copiers_0", "copiers_1"]
    env.step(actions | {"guessers_0": env.action_space("guessers_0").sample()})
    assert env.agents == []


def test_what_does_not_fit_is_said_in_one_line() -> None:
    policy = untrained("probe/masked")
    for number, line in (
        (3, "the team was trained as 2 agents, and the environment has agents_2 too"),
        (1, "the team was trained as 2 agents, and the environment lacks agents_1"),
    ):
        with pytest.raises(UsageError, match=line):
            policy.for_pettingzoo(covey.to_pettingzoo("probe/masked", num_agents=number))
    env = covey.to_pettingzoo("probe/masked")
    player = policy.for_pettingzoo(env)
    observations, infos = env.reset(seed=0)
    for given, also, line in (
        ({"agents_0": np.zeros(1)}, infos, "observations lack agents_1, which is still there"),
        (observations | {"agents_1": np.zeros(2)}, infos, r"observation of agents_1 is \[2\], and .* trained on \[1\]"),
        (observations, {}, "infos lack the action_mask of agents_0"),
    ):
        with pytest.raises(UsageError, match=line):
            player(given, also)
    assert player(observations, infos).keys() == {"agents_0", "agents_1"}


def test_dictionaries_that_do_not_fit() -> None:
    env = covey.to_pettingzoo("probe/image_and_vector")
    player = untrained("probe/image_and_vector").for_pettingzoo(env)
    observations, infos = env.reset(seed=0)
    with pytest.raises(UsageError, match="observation of agents_1 must be a dictionary of image, vector"):
        player(observations | {"agents_1": observations["agents_1"]["image"]}, infos)
    short = observations["agents_0"] | {"vector": np.zeros(3)}
    with pytest.raises(UsageError, match=r"observation of agents_0.vector is \[3\], and the team was trained on \[2\]"):
        player(observations | {"agents_0": short}, infos)


def test_each_agent_keeps_to_its_own_mask() -> None:
    env = covey.to_pettingzoo("probe/masked")
    player = untrained("probe/masked").for_pettingzoo(env)
    observations, infos = env.reset(seed=0)
    for own in range(3):
        for other in range(3):
            legal = {"agents_0": own, "agents_1": other}
            infos = {agent: {"action_mask": np.eye(3, dtype=np.int8)[action]} for agent, action in legal.items()}
            assert player(observations, infos) == legal


def test_masks_of_several_choices_are_joined() -> None:
    joined = joined_mask((np.array([1, 0], np.int8), np.array([0, 1, 1], np.int8)))
    np.testing.assert_array_equal(joined, [1, 0, 0, 1, 1])
