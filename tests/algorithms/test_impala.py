"""IMPALA on the probes, each with its number; old batches; PopArt; and its functions by hand."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import MakeTeam
from stubs import context, told_policy, transitions

from covey.algorithms.base import Hooks, make_algorithm, make_optimiser
from covey.algorithms.critics import CriticSees
from covey.algorithms.impala import (
    IMPALA,
    Impala,
    Samples,
    Trajectories,
    impala_loss,
    init,
    make_samples,
    make_trajectories,
    move_moments,
    normalise_advantages,
    to_value,
    update_minibatch,
)
from covey.algorithms.on_policy import AdvantageNormalisation, observe_steps
from covey.envs.base import make_env, next_step
from covey.envs.batch import BatchedEnv
from covey.envs.probes import GROUP, CopyAction, ProbeConfig
from covey.envs.wrappers import AgentIds, TimeLimit
from covey.errors import UsageError
from covey.loops.evaluate import play_episodes
from covey.loops.rollout import collect, init_actor
from covey.networks.network import make_model
from covey.ops.normalisation import Moments, batch_moments
from covey.ops.schedules import Schedule
from covey.types import Batch, Discrete, EnvSpec, GroupSpec, Key, TimeStep

GAMMA = 0.9
DISCOUNT = f"algorithm.gamma={GAMMA}"
NO_IDS = "algorithm.agent_ids=false"
slow = pytest.mark.slow
# One combination of critic and network meets the hardest probes before every change, the others in the slow tier.
CASES = [("own", "mlp"), ("auto", "gru")]
OTHERS = [pytest.param("auto", "mlp", marks=slow), pytest.param("own", "gru", marks=slow)]
cases = pytest.mark.parametrize(("sees", "model"), [*CASES, *OTHERS])
mostly_slow = pytest.mark.parametrize(
    ("sees", "model"), [("own", "mlp"), pytest.param("auto", "gru", marks=slow), *OTHERS]
)


def bundle_of(team: Any) -> Impala:
    """What `make_impala` bound the functions to."""
    bundle = team.algorithm.groups[GROUP].update.args[0]
    assert isinstance(bundle, Impala)
    return bundle


def values_of(team: Any, **options: Any) -> tuple[Any, np.ndarray]:
    """Fresh transitions, and what the learner's critic says that their observations are worth, `[T, B, A]`."""
    played = jax.tree.map(jnp.asarray, team.transitions(**options))
    impala, state = bundle_of(team), team.learner[GROUP]
    num_envs = played[GROUP].last.shape[1]

    @jax.jit
    def rate() -> jax.Array:
        steps = played[GROUP]
        inputs = observe_steps(impala, state, played, steps.state, steps.reset)
        output = impala.policy.evaluate_critic(state.params, inputs, impala.policy.initial_carry(num_envs))
        return to_value(impala.config, state.value_moments, output)

    return jax.device_get(played[GROUP]), np.asarray(rate())


# --------------------------------------------------------------------------------------------------- values by probe


def test_constant_reward_is_worth_one(trained: MakeTeam) -> None:
    _, values = values_of(trained("probe/constant", DISCOUNT, algorithm="impala", iterations=30))
    np.testing.assert_allclose(values, 1.0, atol=0.02)


@mostly_slow
def test_an_observed_reward_is_worth_what_is_seen(trained: MakeTeam, sees: str, model: str) -> None:
    see = f"algorithm.critic_sees={sees}"
    played, values = values_of(trained("probe/observed", DISCOUNT, see, algorithm="impala", model=model, iterations=80))
    np.testing.assert_allclose(values, played.observation[..., 0], atol=0.1)


@mostly_slow
def test_a_delayed_reward_is_discounted(trained: MakeTeam, sees: str, model: str) -> None:
    see = f"algorithm.critic_sees={sees}"
    played, values = values_of(trained("probe/delayed", DISCOUNT, see, algorithm="impala", model=model, iterations=80))
    seen = played.observation[..., 0]
    np.testing.assert_allclose(values[seen == 0], GAMMA, atol=0.03)
    np.testing.assert_allclose(values[seen == 1], 1.0, atol=0.03)


@pytest.mark.parametrize("popart", ["true", pytest.param("false", marks=slow)])
@cases
def test_a_time_limit_is_no_end(trained: MakeTeam, sees: str, model: str, popart: str) -> None:
    """Worth 1 / (1 − γ), within 2%. Taking the cut for a termination would give at most 4.1 with five steps left."""
    team = trained(
        "probe/truncation",
        "algorithm.gamma=0.8",
        "task.time_limit=5",
        f"algorithm.popart={popart}",
        f"algorithm.critic_sees={sees}",
        "algorithm.value_coef=1.0",
        algorithm="impala",
        model=model,
        iterations=150,
    )
    _, values = values_of(team)
    assert values.mean() == pytest.approx(1 / (1 - 0.8), rel=0.02)
    np.testing.assert_allclose(values, 1 / (1 - 0.8), rtol=0.05)


@cases
def test_the_dead_leave_no_trace(trained: MakeTeam, sees: str, model: str) -> None:
    """Agents are worth their own steps left; the 100s that a dead agent is offered reach neither value nor policy."""
    see = f"algorithm.critic_sees={sees}"
    team = trained("probe/death", DISCOUNT, see, algorithm="impala", model=model, iterations=150)
    played, values = values_of(team, num_steps=4)
    assert played.reward[~played.alive].min() == 100.0
    worth = np.cumsum(GAMMA ** np.arange(4))  # of 1, 2, 3, 4 steps left
    np.testing.assert_allclose(values[:2, :, 0], np.tile(worth[[1, 0]][:, None], (1, 8)), rtol=0.06)
    np.testing.assert_allclose(values[:, :, 1], np.tile(worth[::-1][:, None], (1, 8)), rtol=0.06)
    assert np.abs(team.metrics[f"{GROUP}/value_loss"]).max() < 50


# -------------------------------------------------------------------------------------------------- returns by probe


@mostly_slow
def test_copy(trained: MakeTeam, sees: str, model: str) -> None:
    team = trained("probe/copy", f"algorithm.critic_sees={sees}", algorithm="impala", model=model, iterations=60)
    assert team.returns()[GROUP] >= 0.95
    assert team.returns(deterministic=False)[GROUP] >= 0.9


@slow
@pytest.mark.parametrize("fields", ["algorithm.popart=false", "algorithm.advantage_normalisation=none"])
def test_copy_as_in_the_paper(trained: MakeTeam, fields: str) -> None:
    team = trained("probe/copy", "algorithm.lr=1e-2", fields, algorithm="impala", iterations=100)
    assert team.returns()[GROUP] >= 0.95


@mostly_slow
def test_masked_actions_are_never_taken(trained: MakeTeam, sees: str, model: str) -> None:
    """In training neither: an episode is one step, so a single illegal action would show in a mean above 1."""
    team = trained("probe/masked", f"algorithm.critic_sees={sees}", algorithm="impala", model=model, iterations=60)
    assert team.returns()[GROUP] == 1.0
    assert 0.9 <= team.returns(deterministic=False)[GROUP] <= 1.0
    assert team.metrics["collection/mean_return"].max() <= 1.0


def test_many_choices(trained: MakeTeam) -> None:
    assert trained("probe/choices", algorithm="impala", iterations=120).returns()[GROUP] >= 0.95


def test_continuous_target(trained: MakeTeam) -> None:
    team = trained("probe/target", "algorithm.entropy_coef=0.0", algorithm="impala", iterations=150)
    assert team.returns()[GROUP] >= 0.9


@slow
@pytest.mark.parametrize("sees", ["own", "auto"])
def test_memory_needs_memory(trained: MakeTeam, sees: str) -> None:
    fields = ("algorithm.lr=1e-2", f"algorithm.critic_sees={sees}")
    options = {"algorithm": "impala", "rollout_length": 10, "num_envs": 64}
    with_memory = trained("probe/memory", *fields, model="gru", iterations=150, **options)
    assert with_memory.returns(num_episodes=1024)[GROUP] >= 0.95
    without = trained("probe/memory", *fields, iterations=60, **options)
    assert without.returns(num_episodes=1024)[GROUP] <= 0.6


def test_unlike_groups_learn_side_by_side(trained: MakeTeam) -> None:
    team = trained("probe/groups", algorithm="impala", iterations=60)
    returns = team.returns(num_episodes=2048)
    assert returns["copiers"] >= 0.95
    assert returns["guessers"] == pytest.approx(0.5, abs=0.06)


@slow
def test_it_learns_beside_ppo(trained: MakeTeam) -> None:
    """One group learns by IMPALA and the other by PPO, both with a memory of whole rollouts."""
    fields = ("algorithm.groups.guessers=ippo", "algorithm.num_minibatches=2")
    team = trained("probe/groups", *fields, algorithm="impala", model="gru", iterations=60)
    assert team.returns(num_episodes=512)["copiers"] >= 0.95


def test_an_end_without_a_word_is_a_cut(fresh: MakeTeam) -> None:
    """Episodes of one step: those from 1 pay 1 and terminate; those from −1 lead to 1, and end without a word."""

    class Unexplained(CopyAction):
        def reset(self, key: Key) -> tuple[Any, TimeStep]:
            seen, timestep = super().reset(key)
            return seen, timestep

        def step(self, state: Any, action: dict[str, jax.Array], key: Key) -> tuple[Any, TimeStep]:
            pays = state > 0
            timestep = next_step(
                {GROUP: jnp.ones((self.agents, 1))},
                {GROUP: pays.astype(jnp.float32)},
                terminated={GROUP: pays},
                last=jnp.ones((), bool),
            )
            return state, timestep

    team = fresh("probe/copy", DISCOUNT, NO_IDS, algorithm="impala", iterations=80, env=Unexplained(ProbeConfig()))
    played, values = values_of(team)
    seen = played.observation[..., 0]
    np.testing.assert_allclose(values[seen == 1], 1.0, atol=0.05)
    np.testing.assert_allclose(values[seen == 0], GAMMA, atol=0.05)  # across the border it would be less


def test_a_joint_critic_sees_the_others(fresh: MakeTeam) -> None:
    """The reward is what the other agent sees, which is independent of what one sees oneself."""

    class Others(CopyAction):
        def step(self, state: Any, action: dict[str, jax.Array], key: Key) -> tuple[Any, TimeStep]:
            return state, next_step({GROUP: state[:, None]}, {GROUP: state[::-1]}, terminated=jnp.ones((), bool))

    env = AgentIds(TimeLimit(Others(ProbeConfig()), 10))
    team = fresh("probe/copy", "algorithm.critic_sees=joint", algorithm="impala", iterations=100, env=env)
    assert team.metrics[f"{GROUP}/explained_variance"][-10:].mean() > 0.9


# -------------------------------------------------------------------------------------------- ratios and old batches


@pytest.mark.parametrize(
    ("model", "sees"),
    [
        ("mlp", "own"),
        ("gru", "own"),
        *(pytest.param("gru", "joint", marks=slow), pytest.param("lstm", "own", marks=slow)),
    ],
)
def test_what_was_just_collected_has_ratios_of_one(fresh: MakeTeam, model: str, sees: str) -> None:
    """In the second rollout too, whose sequences begin with carries from the first."""
    fields = ("algorithm.epochs=1", "algorithm.num_minibatches=1", f"algorithm.critic_sees={sees}")
    # Episodes of five steps do not line up with rollouts of eight.
    team = fresh("probe/memory", *fields, model=model, iterations=3, num_envs=8, algorithm="impala")
    np.testing.assert_allclose(team.metrics[f"{GROUP}/rho"], 1.0, atol=1e-5)
    assert np.abs(team.metrics[f"{GROUP}/kl"]).max() < 1e-6
    assert team.metrics[f"{GROUP}/clip_fraction"].max() == 0.0


def test_divergence_is_seen_once_there_is_some(fresh: MakeTeam) -> None:
    """The test above can fail: after a first minibatch there is a divergence."""
    team = fresh("probe/memory", "algorithm.epochs=2", model="gru", iterations=3, num_envs=8, algorithm="impala")
    assert team.metrics[f"{GROUP}/kl"].min() > 1e-6
    assert team.metrics[f"{GROUP}/clip_fraction"].max() > 0.0


@pytest.mark.parametrize("model", ["mlp", "gru"])
def test_true_successors_are_seen_with_the_memory_of_their_episode(fresh: MakeTeam, model: str) -> None:
    """Rollouts of eight steps, episodes cut after five: each successor is what acting on would have shown."""
    team = fresh("probe/truncation", "task.time_limit=5", algorithm="impala", model=model, iterations=2, num_envs=8)
    impala, state = bundle_of(team), team.learner[GROUP]
    env = BatchedEnv(env=team.env, num_envs=8)
    params, policy = state.params, impala.policy

    @jax.jit
    def rate(key: jax.Array) -> tuple[jax.Array, ...]:
        actor = init_actor(env, team.algorithm, key)
        _, batch, _ = collect(env, team.algorithm, team.algorithm.acting(team.learner), actor, key, 8)
        own = dataclasses.replace(batch, carries=batch.carries[GROUP] if batch.carries else ())
        steps = make_trajectories(impala, state, own, key)
        successors = dataclasses.replace(steps.inputs, critic_input=steps.next_critic_input)
        now, following = policy.evaluate_with_successors(
            params, steps.inputs, successors, steps.carry, steps.truncated.any()
        )
        # The first episode alone, with the step after it at its end.
        alone = jax.tree.map(lambda x, y: jnp.concatenate([x[:5], y[4:5]]), steps.inputs, successors)
        plain = policy.evaluate_critic(params, alone, steps.carry)
        return now, following, plain, steps.truncated, steps.last

    now, following, plain, truncated, last = rate(jax.random.key(1))
    np.testing.assert_array_equal(truncated[:, 0], np.arange(8) == 4)
    np.testing.assert_array_equal(last, truncated)
    np.testing.assert_allclose(following[:5], plain[1:], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(now[:5], plain[:5], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(following[5:7], now[6:], rtol=1e-5, atol=1e-6)


# ------------------------------------------------------------------------------------------------------------ PopArt


@pytest.mark.parametrize("sees", ["own", "joint"])
@pytest.mark.parametrize("shared", ["true", "false"])
def test_popart_keeps_every_value(fresh: MakeTeam, sees: str, shared: str) -> None:
    """Moments move far, the critic's outputs with them, and no value changes."""
    fields = (f"algorithm.critic_sees={sees}", f"algorithm.share_critic_parameters={shared}")
    team = fresh("probe/observed", *fields, algorithm="impala", iterations=3)
    impala, state = bundle_of(team), team.learner[GROUP]
    samples = told_samples(jnp.zeros((4, 6, 2)), target=500.0 + 90.0 * jax.random.normal(jax.random.key(0), (4, 6, 2)))
    moved = jax.jit(lambda state: move_moments(impala, state, samples))(state)
    assert moved.value_moments.variance > 4 * state.value_moments.variance
    assert abs(moved.value_moments.mean - state.value_moments.mean) > 1.0
    played = jax.tree.map(jnp.asarray, team.transitions())
    inputs = observe_steps(impala, state, played, None, played[GROUP].reset)
    carry = impala.policy.initial_carry(8)
    values = [
        to_value(impala.config, each.value_moments, impala.policy.evaluate_critic(each.params, inputs, carry))
        for each in (state, moved)
    ]
    outputs = [impala.policy.evaluate_critic(each.params, inputs, carry) for each in (state, moved)]
    assert not np.allclose(outputs[0], outputs[1], atol=0.01)
    np.testing.assert_allclose(values[0], values[1], rtol=1e-4, atol=1e-4)
    before, after = state.params, moved.params
    jax.tree.map(np.testing.assert_array_equal, before["critic"]["model"], after["critic"]["model"])
    jax.tree.map(np.testing.assert_array_equal, before["actor"], after["actor"])


def test_the_first_moments_are_adopted(fresh: MakeTeam) -> None:
    """A critic that has learned nothing starts around the mean of the first targets, with their deviation."""
    team = fresh("probe/observed", algorithm="impala", iterations=0)
    impala, state = bundle_of(team), team.learner[GROUP]
    samples = told_samples(jnp.zeros((4, 6, 2)), target=500.0 + 90.0 * jax.random.normal(jax.random.key(0), (4, 6, 2)))
    moved = move_moments(impala, state, samples)
    jax.tree.map(np.testing.assert_array_equal, state.params, moved.params)
    expected = batch_moments(samples.target, samples.weight > 0)
    jax.tree.map(np.testing.assert_array_equal, moved.value_moments, expected)


def test_rewards_of_any_size_are_learned(fresh: MakeTeam) -> None:
    hooks = Hooks(batch=lambda group, t: dataclasses.replace(t, reward=1e4 * t.reward - 3e4))
    team = fresh("probe/observed", DISCOUNT, algorithm="impala", iterations=80, hooks=hooks)
    played, values = values_of(team)
    np.testing.assert_allclose(values, 1e4 * played.observation[..., 0] - 3e4, atol=1.5e3)


# ------------------------------------------------------------------------------------------------- fields and switches


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("lr", 0.0),
        ("rho_bar", 0.0),
        ("c_bar", -1.0),
        ("gamma", 1.5),
        ("vtrace_lambda", -0.1),
        ("epochs", 0),
        ("num_minibatches", 0),
        ("advantage_normalisation", AdvantageNormalisation.batch),
    ],
)
def test_impossible_values_are_refused(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=field):
        dataclasses.replace(IMPALA, **{field: value})


def test_minibatches_must_divide_the_environments(fresh: MakeTeam) -> None:
    with pytest.raises(UsageError, match="num_envs=8 is not a multiple of num_minibatches=3; 2 or 4 would divide it"):
        fresh("probe/copy", "algorithm.num_minibatches=3", algorithm="impala", iterations=1, num_envs=8)
    with pytest.raises(ValueError, match="8 minibatches do not divide 4 environments"):
        fresh("probe/copy", "algorithm.num_minibatches=8", algorithm="impala", iterations=1, num_envs=8, num_devices=2)


def test_schedules_reach_the_optimiser(fresh: MakeTeam) -> None:
    fields = ("algorithm.lr_schedule=linear", "algorithm.lr=1e-2")
    linear = fresh("probe/copy", *fields, algorithm="impala", iterations=4)
    np.testing.assert_allclose(linear.metrics[f"{GROUP}/lr"], [1e-2, 7.5e-3, 5e-3, 2.5e-3], rtol=1e-5)


def test_a_loss_hook_is_part_of_the_gradient(fresh: MakeTeam) -> None:
    """A strong pull of all parameters to zero leaves none of them far from it, and its metric is reported."""

    def pull(group: str, params: Any, samples: Any) -> tuple[jax.Array, dict[str, jax.Array]]:
        assert group == GROUP and samples.reset.ndim == 2
        size = sum((jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(params)), jnp.float32(0))
        return 100.0 * size, {"size": size}

    fields = ("algorithm.lr=1e-2", "algorithm.popart=false")
    team = fresh("probe/copy", *fields, algorithm="impala", iterations=60, hooks=Hooks(loss=pull))
    sizes = team.metrics[f"{GROUP}/size"]
    assert sizes[-1] < 0.01 * sizes[0]


@slow
def test_two_devices_keep_one_learner(fresh: MakeTeam) -> None:
    """Gradients and moments are those of both: moments of one device alone would drift apart, and values with them."""
    team = fresh("probe/death", DISCOUNT, algorithm="impala", iterations=100, num_devices=2)
    for leaf in jax.tree.leaves(team.learner[GROUP]):
        copies = [np.asarray(shard.data) for shard in leaf.addressable_shards]
        assert len(copies) == 2
        np.testing.assert_array_equal(copies[0], copies[1])
    _, values = values_of(team, num_steps=4)
    np.testing.assert_allclose(values[0, :, 1], np.sum(GAMMA ** np.arange(4)), rtol=0.06)


# ------------------------------------------------------------------------------------------------- functions by hand


def told_impala(num_agents: int, **fields: Any) -> Impala:
    config = dataclasses.replace(IMPALA, **fields)
    groups = {GROUP: GroupSpec(num_agents=num_agents, observation_shape=(1,), action=Discrete(2))}
    return Impala(
        config=config,
        spec=EnvSpec(groups=groups, time_limit=10),
        group=GROUP,
        context=context(),
        policy=told_policy(),
        optimiser=make_optimiser(config),
        sees=CriticSees.own,
    )


def told_samples(log_prob: Any, **fields: Any) -> Samples:
    """Steps `[T, B, A]` with these log-probabilities when they were acted; `fields` say what is different."""
    log_prob = jnp.asarray(log_prob, jnp.float32)
    given = {name: jnp.asarray(value, jnp.float32) for name, value in fields.items()}
    zeros, nothing = jnp.zeros_like(log_prob), jnp.zeros((*log_prob.shape, 1))
    values = {"weight": zeros + 1, "value": zeros, "advantage": zeros, "target": zeros, "rho": zeros + 1}
    return Samples(
        observation=nothing,
        critic_input=nothing,
        reset=jnp.zeros(log_prob.shape[:2], bool),
        action_mask=None,
        raw_action=jnp.zeros(log_prob.shape, jnp.int32),
        log_prob=log_prob,
        noise=None,
        carry=(),
        **values | given,
    )


COEFFICIENTS = {
    name: jnp.float32(x)
    for name, x in {
        "entropy_coef": 0.1,
        "value_coef": 0.5,
        "gamma": 0.5,
        "vtrace_lambda": 1.0,
        "rho_bar": 1.0,
        "c_bar": 1.0,
        "lr": 0.1,
    }.items()
}
# Three agents, of which the last is dead: ratios of 1.5 and 0.5 to probabilities of 1.
NEW = {
    "actor": {"log_prob": jnp.log(jnp.array([[[1.5, 0.5, 1.0]]])), "entropy": jnp.array([[[0.6, 0.2, 9.0]]])},
    "critic": {"output": jnp.array([[[1.0, 3.0, 9.0]]])},
}


def loss_by_hand(params: Any) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Targets of 4 and 2 are 1 and 0 under moments of mean 2 and deviation 2."""
    samples = told_samples(
        [[[0.0, 0.0, 0.0]]],
        advantage=[[[2.0, -3.0, 99.0]]],
        target=[[[4.0, 2.0, 9.0]]],
        rho=[[[1.0, 0.5, 1.0]]],
        weight=[[[1.5, 1.5, 0.0]]],
    )
    moments = Moments(weight=jnp.ones(()), mean=jnp.float32(2.0), variance=jnp.float32(4.0))
    return impala_loss(params, told_impala(3), samples, moments, COEFFICIENTS)


def test_impala_loss_by_hand() -> None:
    loss, metrics = loss_by_hand(NEW)
    policy_loss = -(1.0 * 2.0 * np.log(1.5) + 0.5 * -3.0 * np.log(0.5)) / 2
    assert float(metrics["policy_loss"]) == pytest.approx(policy_loss, rel=1e-5)
    assert float(metrics["entropy"]) == pytest.approx(0.4)
    assert float(metrics["value_loss"]) == pytest.approx((0.0 + 3.0**2) / 2)
    assert float(metrics["rho"]) == pytest.approx(1.0)
    assert float(metrics["clip_fraction"]) == pytest.approx(0.5)
    assert float(metrics["kl"]) == pytest.approx(((0.5 - np.log(1.5)) + (-0.5 - np.log(0.5))) / 2, rel=1e-5)
    assert float(loss) == pytest.approx(policy_loss - 0.1 * 0.4 + 0.5 * 4.5, rel=1e-5)


def test_the_slope_of_the_impala_loss_by_hand() -> None:
    """The policy's is ρ A, and no more: the weight itself has no gradient."""
    grads = jax.grad(lambda params: loss_by_hand(params)[0])(NEW)
    np.testing.assert_allclose(grads["actor"]["log_prob"][0, 0], [-2.0 / 2, 1.5 / 2, 0.0], rtol=1e-6)
    np.testing.assert_allclose(grads["actor"]["entropy"][0, 0], [-0.05, -0.05, 0.0], rtol=1e-6)
    np.testing.assert_allclose(grads["critic"]["output"][0, 0], [0.0, 0.5 * 2 * 3.0 / 2, 0.0], atol=1e-6)


def told_batch() -> Batch:
    """Three steps of one environment with two agents, cut after the second: observations are 1, 2, 5, and 3 where it
    was cut, 4 after the last. Rewards are 1. The second agent terminates with the first step."""
    observation = jnp.array([1.0, 2.0, 5.0])[:, None, None, None] * jnp.ones((3, 1, 2, 1))
    next_observation = jnp.array([2.0, 3.0, 4.0])[:, None, None, None] * jnp.ones((3, 1, 2, 1))
    cut = jnp.array([False, True, False])[:, None]
    steps = transitions(
        jnp.ones((3, 1, 2)),
        observation=observation,
        next_observation=next_observation,
        terminated=[[[False, True]], [[False, False]], [[False, False]]],
        alive=[[[True, True]], [[True, False]], [[True, True]]],
        last=cut,
        truncated=cut,
        # Half as likely as by the policy that learns, whose log-probability is 0, twice as likely, and as likely.
        extras={
            "log_prob": jnp.log(jnp.array([0.5, 2.0, 1.0]))[:, None, None] * jnp.ones((3, 1, 2)),
            "raw_action": jnp.zeros((3, 1, 2), jnp.int32),
        },
    )
    return Batch(transitions={GROUP: steps})


def trajectories_by_hand(impala: Impala) -> tuple[Any, Trajectories]:
    state = init(impala, jax.random.key(0))
    params = {"actor": {"log_prob": jnp.zeros((3, 1, 2)), "entropy": jnp.zeros(())}, "critic": {"output": jnp.ones(())}}
    state = dataclasses.replace(state, params=params)
    return state, make_trajectories(impala, state, told_batch(), jax.random.key(0))


@pytest.mark.parametrize("worth", [1.0, 2.0])
def test_samples_by_hand(worth: float) -> None:
    """A critic that says `worth` times what is seen; γ = ½. Ratios are 2, ½ and 1, so that ρ = c = 1, ½ and 1."""
    impala = told_impala(2, popart=False)
    state, trajectories = trajectories_by_hand(impala)
    state = dataclasses.replace(state, params=state.params | {"critic": {"output": jnp.float32(worth)}})
    samples = make_samples(impala, state, trajectories, COEFFICIENTS)
    np.testing.assert_allclose(samples.rho[:, 0, 0], [1.0, 0.5, 1.0], rtol=1e-6)
    value = worth * np.array([1.0, 2.0, 5.0])
    after_one = 1.0 + 0.5 * worth * np.array([2.0, 3.0, 4.0]) - value  # the second bootstraps from 3, where it was cut
    errors = np.array([after_one[0] + 0.5 * 0.5 * after_one[1], 0.5 * after_one[1], after_one[2]])
    np.testing.assert_allclose(samples.value[:, 0, 0], value, rtol=1e-6)
    np.testing.assert_allclose(samples.target[:, 0, 0], value + errors, rtol=1e-6)
    np.testing.assert_allclose(
        samples.advantage[:, 0, 0], [after_one[0] + 0.5 * errors[1], after_one[1], after_one[2]], rtol=1e-6
    )
    np.testing.assert_allclose(samples.advantage[0, 0, 1], 1.0 - value[0], rtol=1e-6)  # terminated
    np.testing.assert_allclose(samples.weight[:, 0], [[1.2, 1.2], [1.2, 0.0], [1.2, 1.2]], rtol=1e-6)


def test_samples_are_in_units_of_the_return() -> None:
    impala = told_impala(2)
    state, trajectories = trajectories_by_hand(impala)
    moments = Moments(weight=jnp.ones(()), mean=jnp.float32(10.0), variance=jnp.float32(4.0))
    samples = make_samples(impala, dataclasses.replace(state, value_moments=moments), trajectories, COEFFICIENTS)
    np.testing.assert_allclose(samples.value[:, 0, 0], [12.0, 14.0, 20.0], rtol=1e-6)
    np.testing.assert_allclose(samples.target[2, 0, 0], 1.0 + 0.5 * 18.0, rtol=1e-6)


def test_advantages_are_normalised_by_hand() -> None:
    samples = told_samples([[[0.0, 0.0, 0.0]]], advantage=[[[1.0, 3.0, 99.0]]], weight=[[[1.5, 1.5, 0.0]]])
    moments = Moments(weight=jnp.ones(()), mean=jnp.float32(10.0), variance=jnp.float32(4.0))
    none = AdvantageNormalisation.none
    for fields, expected in (
        ({}, [-1.0, 1.0]),
        ({"advantage_normalisation": none}, [0.5, 1.5]),
        ({"advantage_normalisation": none, "popart": False}, [1.0, 3.0]),
    ):
        impala = told_impala(3, **fields)
        state = dataclasses.replace(init(impala, jax.random.key(0)), value_moments=moments)
        normalised = normalise_advantages(impala, state, samples)
        np.testing.assert_allclose(normalised.advantage[0, 0, :2], expected, rtol=1e-5)


def test_a_minibatch_is_its_environments_and_no_others() -> None:
    """Adam's first step is as long as the learning rate, against the slope: the critic's values are above their
    targets, and more entropy is better. The environment that is left out would make everything NaN."""
    impala = told_impala(1, popart=False)
    state = init(impala, jax.random.key(0))
    params = {"actor": {"log_prob": jnp.zeros(()), "entropy": jnp.zeros(())}, "critic": {"output": jnp.ones(())}}
    optimiser = {name: impala.optimiser.init(part) for name, part in params.items()}
    state = dataclasses.replace(state, params=params, optimiser=optimiser)
    nan = jnp.nan
    observation = jnp.array([[1.0, nan, 1.0]])[..., None, None]
    steps = transitions(
        [[[0.0], [nan], [0.0]]],
        observation=observation,
        next_observation=observation,
        terminated=jnp.ones((1, 3, 1), bool),
        last=jnp.ones((1, 3), bool),
        extras={"log_prob": jnp.zeros((1, 3, 1)), "raw_action": jnp.zeros((1, 3, 1), jnp.int32)},
    )
    trajectories = make_trajectories(impala, state, Batch(transitions={GROUP: steps}), jax.random.key(0))
    after, metrics = jax.jit(
        lambda state: update_minibatch(impala, state, trajectories, jnp.array([0, 2]), COEFFICIENTS)
    )(state)
    assert float(metrics["value_loss"]) == pytest.approx(1.0)
    assert float(metrics["critic_grad_norm"]) == pytest.approx(0.5 * 2.0)
    assert float(after.params["critic"]["output"]) == pytest.approx(0.9, rel=1e-3)
    assert float(after.params["actor"]["entropy"]) == pytest.approx(0.1, rel=1e-3)


# ----------------------------------------------------------------------------------------------------- old parameters


def learn_with_lag(name: str, lag: int, iterations: int) -> tuple[float, float]:
    """On `probe/copy`, acting with parameters that are `lag` updates old: the mean return of the policy as it is at the
    end, and the mean of the value targets, a running one."""
    env = make_env("probe/copy")
    model = make_model("mlp", layers=(32,))
    fields: dict[str, Any] = {"lr": 1e-2, "lr_schedule": Schedule.constant, "epochs": 4, "num_minibatches": 2}
    algorithm = make_algorithm(name, env.spec, model=model, **fields)
    batched = BatchedEnv(env=env, num_envs=32)

    def iteration(carry: Any, key: jax.Array) -> tuple[Any, None]:
        state, published, actor = carry
        oldest = jax.tree.map(lambda x: x[0], published)
        key_collect, key_update = jax.random.split(key)
        actor, batch, _ = collect(batched, algorithm, oldest, actor, key_collect, 8)
        state, _, _ = algorithm.update(state, batch, key_update, jnp.float32(0))
        published = jax.tree.map(
            lambda old, new: jnp.concatenate([old[1:], new[None]]), published, algorithm.acting(state)
        )
        return (state, published, actor), None

    @jax.jit
    def learn(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        key_init, key_actor, key_learn, key_play = jax.random.split(key, 4)
        state = algorithm.init(key_init)
        published = jax.tree.map(lambda x: jnp.broadcast_to(x, (lag + 1, *x.shape)), algorithm.acting(state))
        actor = init_actor(batched, algorithm, key_actor)
        (state, _, _), _ = jax.lax.scan(iteration, (state, published, actor), jax.random.split(key_learn, iterations))
        played = play_episodes(env, algorithm, algorithm.acting(state), key_play, num_episodes=512, deterministic=False)
        return played.returns[GROUP].mean(), state[GROUP].value_moments.mean

    return tuple(map(float, learn(jax.random.key(0))))  # type: ignore[return-value]


def test_old_batches_teach_impala_what_they_do_not_teach_ppo() -> None:
    """All thirty batches are by the first policy, which acts at random. V-trace learns the best one from them, and what
    that is worth. PPO may not go farther from it than its clip allows, and learns what the old one is worth."""
    returns, worth = learn_with_lag("impala", 30, 30)
    assert returns >= 0.95
    assert worth >= 0.8
    returns, worth = learn_with_lag("ippo", 30, 30)
    assert 0.55 <= returns <= 0.75
    assert worth == pytest.approx(0.5, abs=0.05)


@slow
def test_ppo_learns_from_new_batches_what_old_ones_did_not_teach_it() -> None:
    returns, _ = learn_with_lag("ippo", 0, 30)
    assert returns >= 0.95
