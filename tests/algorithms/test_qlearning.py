"""Q-learning on the probes, each with its number; mixers; and targets that respect masks, borders and the dead."""

from __future__ import annotations

import dataclasses
import types
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import MakeTeam, Team
from hypothesis import given, settings
from hypothesis import strategies as st
from stubs import GROUP, constant_network, context, transitions

from covey.algorithms.base import make_optimiser
from covey.algorithms.qlearning import (
    IQL,
    QMIX,
    VDN,
    QLearning,
    QLearningConfig,
    QState,
    agents_values,
    best_values,
    join_groups,
    make_mixer,
    mix,
    mix_successors,
    q_loss,
    q_targets,
    step,
    update_together,
    warm_up,
)
from covey.loops.offline import make_offline_loop
from covey.networks.mixing import make_monotonic_mixer
from covey.networks.network import make_model, make_network
from covey.types import Batch, Discrete, EnvSpec, GroupSpec

slow = pytest.mark.slow
algorithms = pytest.mark.parametrize("algorithm", ["vdn", *(pytest.param(n, marks=slow) for n in ("iql", "qmix"))])
GAMMA = 0.8
DISCOUNT = f"algorithm.gamma={GAMMA}"


def q_value(team: Team) -> float:
    """The mean of the values learned, at the end of training."""
    return float(team.metrics["agents/q_value"][-1])


@pytest.mark.parametrize(
    ("algorithm", "model"),
    [("qmix", "mlp"), *(pytest.param(*pair, marks=slow) for pair in (("iql", "gru"), ("iql", "mlp"), ("vdn", "gru")))],
)
def test_a_time_limit_is_no_end(trained: MakeTeam, algorithm: str, model: str) -> None:
    """Worth 1 / (1 − γ); taking the cut for a termination would give at most 3.4 with five steps left."""
    team = trained("probe/truncation", DISCOUNT, "task.time_limit=5", algorithm=algorithm, model=model, iterations=120)
    assert q_value(team) == pytest.approx(1 / (1 - GAMMA), rel=0.03)


@pytest.mark.parametrize("n_step", [3, pytest.param(1, marks=slow)])
def test_a_delayed_reward_is_discounted(trained: MakeTeam, n_step: int) -> None:
    """Half of the steps are worth γ, half 1."""
    team = trained("probe/delayed", DISCOUNT, f"algorithm.n_step={n_step}", algorithm="iql", iterations=80)
    assert q_value(team) == pytest.approx((1 + GAMMA) / 2, abs=0.05)


@algorithms
def test_the_best_action_is_found(trained: MakeTeam, algorithm: str) -> None:
    returns = trained("probe/copy", DISCOUNT, algorithm=algorithm, iterations=60).returns()
    assert returns["agents"] == pytest.approx(1.0, abs=0.01)


def test_illegal_actions_are_never_taken_nor_believed(trained: MakeTeam) -> None:
    team = trained("probe/masked", DISCOUNT, algorithm="iql", iterations=60)
    played = team.transitions()["agents"]
    legal = np.take_along_axis(played.action_mask, played.action[..., None], -1)
    assert legal.all()
    assert team.returns()["agents"] == pytest.approx(1.0, abs=0.01)


def test_the_dead_earn_nothing(trained: MakeTeam) -> None:
    """Of two agents one earns 1 in two steps and one in four: the team 1, 1, ½, ½, as it is reported."""
    team = trained("probe/death", DISCOUNT, "task.num_agents=2", algorithm="vdn", iterations=80)
    values = [0.5]
    for reward in (0.5, 1.0, 1.0):
        values.append(reward + GAMMA * values[-1])
    assert q_value(team) == pytest.approx(np.mean(values), abs=0.05)
    assert team.returns()["agents"] == pytest.approx(3.0)


@slow
def test_memory_is_needed_and_used(trained: MakeTeam) -> None:
    team = trained("probe/memory", algorithm="iql", model="gru", iterations=400)
    assert team.returns()["agents"] == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize(
    "extra", [("buffer.prioritised=true",), pytest.param(("algorithm.target_interval=20",), marks=slow)]
)
def test_variants_learn_too(trained: MakeTeam, extra: tuple[str]) -> None:
    assert trained("probe/copy", DISCOUNT, *extra, algorithm="iql", iterations=60).returns()["agents"] > 0.98


@slow
def test_burn_in_is_not_learned_from(trained: MakeTeam) -> None:
    """With burn-in, stored carries only start the memory; the probe is still worth 1 / (1 − γ)."""
    team = trained(
        "probe/truncation",
        DISCOUNT,
        "task.time_limit=5",
        "algorithm.burn_in=4",
        "algorithm.sequence_length=4",
        algorithm="iql",
        model="gru",
        iterations=120,
    )
    assert q_value(team) == pytest.approx(1 / (1 - GAMMA), rel=0.03)
    assert team.algorithm.sequence_length == 8


def joint_values(team: Team, config: QLearningConfig) -> np.ndarray:
    """Q_tot of the two-step game `[place, action of the first agent, of the second]`, by the networks learned."""
    spec, params = team.env.spec, team.learner["agents"].params
    network = make_network(
        make_model("mlp", layers=(32,)),
        input_shape=spec.groups["agents"].observation_shape,
        num_outputs=2,
        num_agents=2,
        head_gain=0.01,
    )
    place = jnp.eye(3)
    seen = jnp.concatenate([jnp.repeat(place[:, None], 2, 1), jnp.tile(jnp.eye(2), (3, 1, 1))], -1)[None]
    values = network.apply(params["network"], seen, (), jnp.zeros((1, 3), bool))[0][0]  # [place, agent, action]
    pairs = jnp.stack([values[:, 0][:, [0, 0, 1, 1]], values[:, 1][:, [0, 1, 0, 1]]], -1)  # [place, pair, agent]
    mixer = make_mixer(config, spec, "agents")
    assert mixer is not None
    mixed = mixer.apply(params["mixer"], pairs, jnp.repeat(place[:, None], 4, 1))
    return np.asarray(mixed).reshape(3, 2, 2)


TWO_STEP = ("algorithm.gamma=1.0", "algorithm.epsilon_end=1.0", "experiment.updates=16")  # every action alike, always


def test_qmix_finds_that_agreeing_is_worth_8(trained: MakeTeam) -> None:
    team = trained("probe/two_step", *TWO_STEP, algorithm="qmix", iterations=250)
    assert team.returns()["agents"] == pytest.approx(8.0)
    values = joint_values(team, QMIX)
    np.testing.assert_allclose(values[2], [[0, 1], [1, 8]], atol=0.5)
    np.testing.assert_allclose(values[1], 7, atol=0.3)
    np.testing.assert_allclose(values[0].max(axis=1), [7, 8], atol=0.3)


def test_qmix_finds_the_same_in_a_fixed_set_of_transitions(fresh: MakeTeam) -> None:
    """Recorded once at random; then nothing acts any more, and the algorithm does not know."""
    team = fresh("probe/two_step", *TWO_STEP, algorithm="qmix", iterations=0)
    recorded = team.transitions(num_envs=32, num_steps=64)  # with ε = 1: at random

    loop = make_offline_loop(team.algorithm, recorded, batch_size=64, updates=16, num_iterations=250)
    state = loop.init(jax.random.key(0))
    for _ in range(10):
        state, _ = loop.advance(state, jnp.int32(25))
    learned = dataclasses.replace(team, state=dataclasses.replace(team.state, learner=loop.learner(state)))
    assert learned.returns()["agents"] == pytest.approx(8.0)
    np.testing.assert_allclose(joint_values(learned, QMIX)[2], [[0, 1], [1, 8]], atol=0.5)


def test_a_sum_of_values_settles_for_7(trained: MakeTeam) -> None:
    """The best sum for ((0, 1), (1, 8)) by least squares is ((−1.5, 2.5), (2.5, 6.5)), so that 7 looks better."""
    team = trained("probe/two_step", *TWO_STEP, algorithm="vdn", iterations=250)
    assert team.returns()["agents"] == pytest.approx(7.0)
    np.testing.assert_allclose(joint_values(team, VDN)[2], [[-1.5, 2.5], [2.5, 6.5]], atol=0.5)


# ---------------------------------------------------------------------------------------------------------- pieces


@jax.jit
def slopes_of_a_mixer(key: jax.Array) -> Any:
    """By each agent's value, with parameters, values and states drawn."""
    mixer = make_monotonic_mixer(num_agents=3, state_shape=(4,), hidden_size=8, hyper_size=8)
    key_params, key_values, key_state = jax.random.split(key, 3)
    params = mixer.init(key_params)
    values, state = 10 * jax.random.normal(key_values, (5, 3)), jax.random.normal(key_state, (5, 4))
    return jax.grad(lambda q: mixer.apply(params, q, state).sum())(values)


@settings(deadline=None, max_examples=100)
@given(st.integers(0, 2**31 - 1))
def test_the_mixer_rises_in_every_agents_value(seed: int) -> None:
    slopes = slopes_of_a_mixer(jax.random.key(seed))
    assert (slopes >= 0).all()
    assert jnp.abs(slopes).sum() > 0


def test_at_first_the_mixer_leaves_it_to_the_agents() -> None:
    """Where their values are nothing, the team's is nothing, whatever the state; and theirs count."""
    mixer = make_monotonic_mixer(num_agents=3, state_shape=(4,), bias_gain=0.01)
    params, states = mixer.init(jax.random.key(0)), jax.random.normal(jax.random.key(1), (100, 4))
    assert jnp.abs(mixer.apply(params, jnp.zeros((100, 3)), states)).max() < 0.05
    assert (mixer.apply(params, jnp.ones((100, 3)), states) > 0.3).all()


@pytest.mark.parametrize(
    "fields", [{"lr": 0}, {"gamma": 1.5}, {"n_step": 0}, {"burn_in": -1}, {"epsilon_fraction": 2.0}]
)
def test_impossible_fields_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        dataclasses.replace(IQL, **fields)


def test_continuous_actions_are_refused(fresh: MakeTeam) -> None:
    with pytest.raises(ValueError, match="continuous_actions=false"):
        fresh("vmas/navigation", "task.continuous_actions=true", algorithm="iql", iterations=0)


# ------------------------------------------------------------------------------------------------- functions by name


def told(config: QLearningConfig, **fields: Any) -> QLearning:
    """Two agents with two actions each, whose values are the network's parameters."""
    config = dataclasses.replace(config, **fields)
    spec = EnvSpec(
        groups={GROUP: GroupSpec(num_agents=2, observation_shape=(1,), action=Discrete(2))},
        time_limit=10,
        state_shape=(3,),
    )
    return QLearning(
        config=config,
        group=GROUP,
        context=context(),
        network=constant_network(2),
        mixer=make_mixer(config, spec, GROUP),
        optimiser=make_optimiser(config),
    )


NEXT = jnp.array([[[[1.0, 2.0], [5.0, 4.0]]]])  # by the network: the second action is best, then the first
NEXT_TARGET = jnp.array([[[[10.0, 20.0], [30.0, 40.0]]]])  # by the target network


def targets_of(q: QLearning, mixer_params: Any = None, **fields: Any) -> tuple[jax.Array, jax.Array]:
    steps = transitions([[[1.0, 3.0]]], **fields)
    return q_targets(q, mixer_params, steps, steps, best_values(q, steps, NEXT, NEXT_TARGET), 0.5)


def test_targets_of_each_agent_by_hand() -> None:
    y, counts = targets_of(told(IQL), alive=[[[True, False]]])
    np.testing.assert_allclose(y, [[[1.0 + 0.5 * 20.0, 3.0 + 0.5 * 30.0]]])
    np.testing.assert_array_equal(counts, [[[True, False]]])
    single, _ = targets_of(told(IQL, double_q=False))
    np.testing.assert_allclose(single, [[[1.0 + 0.5 * 20.0, 3.0 + 0.5 * 40.0]]])
    masked, _ = targets_of(told(IQL), next_action_mask=[[[[True, False], [False, True]]]])
    np.testing.assert_allclose(masked, [[[1.0 + 0.5 * 10.0, 3.0 + 0.5 * 40.0]]])
    terminated, _ = targets_of(told(IQL), terminated=[[[True, False]]])
    np.testing.assert_allclose(terminated, [[[1.0, 3.0 + 0.5 * 30.0]]])


def test_targets_of_a_sum_by_hand() -> None:
    y, counts = targets_of(told(VDN), {})
    np.testing.assert_allclose(y, [[2.0 + 0.5 * (20.0 + 30.0)]])
    np.testing.assert_array_equal(counts, [[True]])
    one_is_out, _ = targets_of(told(VDN), {}, terminated=[[[True, False]]])
    np.testing.assert_allclose(one_is_out, [[2.0 + 0.5 * 30.0]])
    one_was_dead, _ = targets_of(told(VDN), {}, alive=[[[True, False]]])
    np.testing.assert_allclose(one_was_dead, [[0.5 + 0.5 * 20.0]])  # of two agents, one earned 1
    all_are_out, _ = targets_of(told(VDN), {}, terminated=[[[True, True]]])
    np.testing.assert_allclose(all_are_out, [[2.0]])


def mixed_by_numpy(params: Any, values: np.ndarray, state: np.ndarray) -> float:
    """|w2|ᵀ elu(|W1|ᵀ q + b1) + b2, each a small network of the state."""

    def run(layers: Any, x: np.ndarray) -> np.ndarray:
        numbers = sorted(layers)
        for number in numbers:
            x = x @ np.asarray(layers[number]["kernel"]) + np.asarray(layers[number]["bias"])
            x = np.maximum(x, 0.0) if number != numbers[-1] else x
        return x

    weight_1 = np.abs(run(params["weight_1"], state)).reshape(len(values), -1)
    weight_2 = np.abs(run(params["weight_2"], state))
    hidden = values @ weight_1 + run({0: params["bias_1"]}, state)
    hidden = np.where(hidden > 0, hidden, np.expm1(hidden))
    return float(hidden @ weight_2 + run(params["bias_2"], state)[0])


def test_targets_of_qmix_equal_numpy() -> None:
    q = told(QMIX, mixer_size=4)
    assert q.mixer is not None
    params = q.mixer.init(jax.random.key(0))
    state = np.array([0.3, -1.0, 2.0], np.float32)
    y, _ = targets_of(q, params, next_state=jnp.asarray(state)[None, None], state=jnp.zeros((1, 1, 3)))
    expected = 2.0 + 0.5 * mixed_by_numpy(params, np.array([20.0, 30.0]), state)
    np.testing.assert_allclose(y, [[expected]], rtol=1e-5)
    steps = transitions([[[0.0, 0.0]]], alive=[[[True, False]]], state=jnp.asarray(state)[None, None])
    mixed = mix(q.mixer, params, jnp.array([[[7.0, 9.0]]]), steps)
    np.testing.assert_allclose(mixed, [[mixed_by_numpy(params, np.array([7.0, 0.0]), state)]], rtol=1e-5)


def test_q_loss_by_hand() -> None:
    """Agents took actions worth 2 and 5; without values to come, targets are the rewards of 1 and 3. The second of two
    sequences counts half. The team's value is 7, and its reward 2."""
    params = {"network": jnp.array([[1.0, 2.0], [5.0, 4.0]]), "mixer": {}}
    steps = transitions([[[1.0, 3.0]] * 2], action=[[[1, 0]] * 2], terminated=[[[True, True]] * 2])
    carries, weight = {"online": (), "target": ()}, jnp.array([1.0, 0.5])
    for config, squares, errors, value in ((IQL, (1.0 + 4.0) / 2, 1.5, 3.5), (VDN, 25.0, 5.0, 7.0)):
        by_group = ({GROUP: value} for value in (params, told(config), params, steps, carries))
        arguments: list[Any] = [*by_group, weight, jnp.float32(0.9)]
        loss, found = q_loss(*arguments)
        assert float(loss) == pytest.approx(0.75 * squares)
        assert float(found["metrics"]["q_value"]) == pytest.approx(0.75 * value)
        np.testing.assert_allclose(found["td_error"], [errors, errors])  # importance is not in it
        assert found["counts"].all()


def test_without_memory_there_is_nothing_to_warm_up() -> None:
    steps, nothing = transitions([[[1.0, 3.0]]]), cast(QState, None)  # the state is not read
    carries, rest = warm_up(told(IQL, burn_in=4), nothing, steps)
    assert carries == {"online": (), "target": ()} and rest is steps


def test_groups_are_joined_agent_by_agent() -> None:
    """Two agents who see one number, and one who sees two: their observations in one row, the rest side by side."""
    seen = {"observation": [[[[1.0], [2.0]]]], "next_observation": [[[[3.0], [4.0]]]]}
    pair = transitions([[[1.0, 2.0]]], **seen, action=[[[0, 1]]], alive=[[[True, False]]], extras={"own": 1})
    seen = {"observation": [[[[5.0, 6.0]]]], "next_observation": [[[[7.0, 8.0]]]]}
    single = transitions([[[3.0]]], **seen, action=[[[2]]], terminated=[[[True]]], action_mask=[[[[True]]]])
    joined = join_groups([pair, single])
    np.testing.assert_array_equal(joined.observation, [[[1.0, 2.0, 5.0, 6.0]]])
    np.testing.assert_array_equal(joined.next_observation, [[[3.0, 4.0, 7.0, 8.0]]])
    np.testing.assert_array_equal(joined.reward, [[[1.0, 2.0, 3.0]]])
    np.testing.assert_array_equal(joined.action, [[[0, 1, 2]]])
    np.testing.assert_array_equal(joined.alive, [[[True, False, True]]])
    np.testing.assert_array_equal(joined.terminated, [[[False, False, True]]])
    assert joined.action_mask is None and joined.extras == {}
    assert join_groups([single]) is single


def test_successors_are_mixed_without_those_who_terminated() -> None:
    """Of values 10, 20 and 40, the second agent terminates with the step and the third was dead before."""
    values = jnp.array([[[10.0, 20.0, 40.0]]])
    state = {"state": jnp.full((1, 1, 3), 5.0), "next_state": jnp.full((1, 1, 3), 7.0)}
    steps = transitions([[[0.0] * 3]], terminated=[[[False, True, False]]], alive=[[[True, True, False]]], **state)
    assert mix_successors(None, None, values, steps) is values

    def seen_and_summed(params: Any, values: jax.Array, seen: jax.Array) -> Any:
        return params * values.sum(-1) + seen.sum(-1)

    mixer: Any = types.SimpleNamespace(apply=seen_and_summed)
    np.testing.assert_allclose(mix_successors(mixer, 2.0, values, steps), [[2.0 * 10.0 + 3 * 7.0]])
    np.testing.assert_allclose(mix(mixer, 2.0, values, steps), [[2.0 * 30.0 + 3 * 5.0]])  # before the step, two live
    without_state = dataclasses.replace(steps, state=None, next_state=None, next_observation=jnp.ones((1, 1, 3, 1)))
    np.testing.assert_allclose(mix_successors(mixer, 2.0, values, without_state), [[2.0 * 10.0 + 3 * 1.0]])


def test_agents_values_are_those_taken_and_the_best_to_come() -> None:
    """The network that learns says which action is best, the target network what it is worth (double Q)."""
    online, target = jnp.array([[1.0, 2.0], [5.0, 4.0]]), jnp.array([[10.0, 20.0], [30.0, 40.0]])
    steps = transitions([[[0.0, 0.0]]], action=[[[0, 1]]])
    carries = {"online": (), "target": ()}
    taken, best = agents_values(told(IQL), online, target, steps, carries)
    np.testing.assert_allclose(taken, [[[1.0, 4.0]]])
    np.testing.assert_allclose(best, [[[20.0, 30.0]]])
    _, single = agents_values(told(IQL, double_q=False), online, target, steps, carries)
    np.testing.assert_allclose(single, [[[20.0, 40.0]]])
    masked = dataclasses.replace(steps, next_action_mask=jnp.array([[[[True, False], [False, True]]]]))
    _, legal = agents_values(told(IQL), online, target, masked, carries)
    np.testing.assert_allclose(legal, [[[10.0, 40.0]]])


COEFFICIENTS = {"lr": 0.1, "gamma": 0.9, "epsilon_start": 1.0, "epsilon_end": 0.2, "tau": 0.25}


def learner(q: QLearning, network: Any) -> QState:
    """Before its first update, with targets of zero."""
    params = {"network": jnp.asarray(network), "mixer": {}}
    return QState(
        params=params,
        target=jax.tree.map(jnp.zeros_like, params),
        optimiser=q.optimiser.init(params),
        epsilon=jnp.float32(1.0),
        updates=jnp.zeros((), jnp.int32),
        coefficients={name: jnp.float32(value) for name, value in COEFFICIENTS.items()},
    )


def test_step_by_hand() -> None:
    """Adam's first step is as long as the learning rate. ε is half way from 1 to 0.2 in the middle of its share."""
    q = told(IQL, epsilon_fraction=0.5)
    state = learner(q, [[1.0, 2.0], [5.0, 4.0]])
    grads = {"network": jnp.array([[0.0, 3.0], [-4.0, 0.0]]), "mixer": {}}
    after, metrics = step(q, state, grads, transitions([[[0.0, 0.0]]]), state.coefficients, jnp.float32(0.25))
    moved = np.array([[1.0, 1.9], [5.1, 4.0]])
    np.testing.assert_allclose(after.params["network"], moved, rtol=1e-5)
    np.testing.assert_allclose(after.target["network"], 0.25 * moved, rtol=1e-5)
    assert int(after.updates) == 1 and float(after.epsilon) == pytest.approx(0.6)
    assert {name: float(value) for name, value in metrics.items()} == pytest.approx(
        {"grad_norm": 5.0, "epsilon": 0.6, "lr": 0.1}
    )


def test_step_copies_the_target_now_and_then() -> None:
    q = told(IQL, target_interval=2)
    state, grads = learner(q, jnp.ones((2, 2))), {"network": jnp.ones((2, 2)), "mixer": {}}
    for copied in (False, True, False):
        before = state
        state, _ = step(q, state, grads, transitions([[[0.0, 0.0]]]), state.coefficients, jnp.float32(0.0))
        expected = state.params if copied else before.target
        np.testing.assert_array_equal(state.target["network"], expected["network"])


def test_update_together_by_hand() -> None:
    """Agents of two groups took actions worth 2 and 5, so 7 for the team, which earned 2 and terminated: an error of 5.
    Both groups' values of what was done fall by the learning rate."""
    groups = {name: GroupSpec(num_agents=1, observation_shape=(1,), action=Discrete(2)) for name in ("left", "right")}
    mixer = make_mixer(VDN, EnvSpec(groups=groups, time_limit=10), *groups)
    bundles = {
        name: dataclasses.replace(
            told(VDN), group=name, network=constant_network(1), mixer=mixer, mixed=("left", "right")
        )
        for name in groups
    }
    values = {"left": [[1.0, 2.0]], "right": [[5.0, 4.0]]}
    states = {name: learner(q, values[name]) for name, q in bundles.items()}
    over = {"terminated": [[[True]]]}
    steps = {
        "left": transitions([[[1.0]]], action=[[[1]]], **over),
        "right": transitions([[[3.0]]], action=[[[0]]], **over),
    }
    after, metrics, td_errors = update_together(
        bundles, states, Batch(transitions=steps), jax.random.key(0), jnp.float32(0.0)
    )
    np.testing.assert_allclose(after["left"].params["network"], [[1.0, 1.9]], rtol=1e-5)
    np.testing.assert_allclose(after["right"].params["network"], [[4.9, 4.0]], rtol=1e-5)
    for name in groups:
        np.testing.assert_allclose(td_errors[name], [5.0])
        found = {key: float(metrics[name][key]) for key in ("q_loss", "q_value", "grad_norm")}
        assert found == pytest.approx({"q_loss": 25.0, "q_value": 7.0, "grad_norm": 10.0})
