"""PPO on the probes, each with its number; and sequences, carries, critics, hooks and switches do what they say."""

from __future__ import annotations

import dataclasses
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import MakeTeam
from stubs import context, told_policy, transitions

from covey.algorithms.base import Hooks, make_optimiser
from covey.algorithms.critics import CriticSees
from covey.algorithms.on_policy import AdvantageNormalisation, observe
from covey.algorithms.policies import Inputs
from covey.algorithms.ppo import (
    IPPO,
    MAPPO,
    Ppo,
    Samples,
    fit_values,
    init,
    make_samples,
    next_values,
    ppo_loss,
    to_output,
    to_value,
    update,
    update_minibatch,
)
from covey.envs.base import Env, first_step, next_step
from covey.envs.probes import GROUP, CopyAction, ProbeConfig
from covey.envs.wrappers import AgentIds, TimeLimit
from covey.ops.normalisation import Moments
from covey.ops.sequences import cut, take
from covey.types import Batch, Discrete, EnvSpec, GroupSpec, Key, TimeStep, Transition

GAMMA = 0.9
DISCOUNT = f"algorithm.gamma={GAMMA}"
NO_IDS = "algorithm.agent_ids=false"
slow = pytest.mark.slow
algorithms = pytest.mark.parametrize("algorithm", ["ippo", pytest.param("mappo", marks=slow)])
# Both names and both kinds of network meet the probes that are hardest to get right before every change; all the other
# combinations are in the slow tier.
others = [pytest.param("mappo", "mlp", marks=slow), pytest.param("ippo", "gru", marks=slow)]
cases = pytest.mark.parametrize(("algorithm", "model"), [("ippo", "mlp"), ("mappo", "gru"), *others])
mostly_slow = pytest.mark.parametrize(
    ("algorithm", "model"), [("ippo", "mlp"), pytest.param("mappo", "gru", marks=slow), *others]
)


# --------------------------------------------------------------------------------------------------- values by probe


@algorithms
def test_constant_reward_is_worth_one(trained: MakeTeam, algorithm: str) -> None:
    _, values = trained("probe/constant", DISCOUNT, algorithm=algorithm, iterations=30).values()
    np.testing.assert_allclose(values, 1.0, atol=0.02)


@mostly_slow
def test_an_observed_reward_is_worth_what_is_seen(trained: MakeTeam, algorithm: str, model: str) -> None:
    team = trained("probe/observed", DISCOUNT, algorithm=algorithm, model=model, iterations=80)
    seen, values = team.values()
    assert set(np.unique(seen)) == {-1.0, 1.0}
    np.testing.assert_allclose(values, seen, atol=0.1)


@mostly_slow
def test_a_delayed_reward_is_discounted(trained: MakeTeam, algorithm: str, model: str) -> None:
    seen, values = trained("probe/delayed", DISCOUNT, algorithm=algorithm, model=model, iterations=80).values()
    np.testing.assert_allclose(values[seen == 0], GAMMA, atol=0.03)
    np.testing.assert_allclose(values[seen == 1], 1.0, atol=0.03)


@pytest.mark.parametrize(
    "normalised", ["true", pytest.param("false", marks=slow)], ids=["normalised values", "plain values"]
)
@cases
def test_a_time_limit_is_no_end(trained: MakeTeam, algorithm: str, model: str, normalised: str) -> None:
    """Worth 1 / (1 − γ), within 2%. Taking the cut for a termination would give at most 4.1 with five steps left."""
    team = trained(
        "probe/truncation",
        f"algorithm.gamma={0.8}",
        "task.time_limit=5",
        f"algorithm.value_normalisation={normalised}",
        "algorithm.value_coef=1.0",
        algorithm=algorithm,
        model=model,
        iterations=150,
    )
    _, values = team.values()
    assert values.mean() == pytest.approx(1 / (1 - 0.8), rel=0.02)
    np.testing.assert_allclose(values, 1 / (1 - 0.8), rtol=0.05)


@cases
def test_the_dead_leave_no_trace(trained: MakeTeam, algorithm: str, model: str) -> None:
    """Agents are worth their own steps left; the 100s that a dead agent is offered reach neither value nor policy."""
    team = trained("probe/death", DISCOUNT, algorithm=algorithm, model=model, iterations=150)
    played = team.transitions(num_steps=4)[GROUP]
    values, alive = played.extras["value"], played.alive
    np.testing.assert_array_equal(alive[:, 0], [[True, True], [True, True], [False, True], [False, True]])
    assert played.reward[~alive].min() == 100.0
    worth = np.cumsum(GAMMA ** np.arange(4))  # of 1, 2, 3, 4 steps left
    np.testing.assert_allclose(values[:2, :, 0], np.tile(worth[[1, 0]][:, None], (1, 8)), rtol=0.06)
    np.testing.assert_allclose(values[:, :, 1], np.tile(worth[::-1][:, None], (1, 8)), rtol=0.06)
    assert np.abs(team.metrics[f"{GROUP}/value_loss"]).max() < 50


# -------------------------------------------------------------------------------------------------- returns by probe


@mostly_slow
def test_copy(trained: MakeTeam, algorithm: str, model: str) -> None:
    team = trained("probe/copy", algorithm=algorithm, model=model, iterations=60)
    assert team.returns()[GROUP] >= 0.95
    assert team.returns(deterministic=False)[GROUP] >= 0.9


@mostly_slow
def test_masked_actions_are_never_taken(trained: MakeTeam, algorithm: str, model: str) -> None:
    """In training neither: an episode is one step, so a single illegal action would show in a mean above 1."""
    team = trained("probe/masked", algorithm=algorithm, model=model, iterations=60)
    assert team.returns()[GROUP] == 1.0
    assert 0.9 <= team.returns(deterministic=False)[GROUP] <= 1.0
    assert team.metrics["collection/mean_return"].max() <= 1.0


@algorithms
def test_many_choices(trained: MakeTeam, algorithm: str) -> None:
    assert trained("probe/choices", algorithm=algorithm, iterations=120).returns()[GROUP] >= 0.95


@algorithms
def test_continuous_target(trained: MakeTeam, algorithm: str) -> None:
    team = trained("probe/target", "algorithm.entropy_coef=0.0", algorithm=algorithm, iterations=150)
    assert team.returns()[GROUP] >= 0.9


@pytest.mark.parametrize("flatten", ["false", pytest.param("true", marks=slow)])
def test_observations_of_rows(trained: MakeTeam, flatten: str) -> None:
    """Averaging rows keeps which number is marked: the product is formed within a row."""
    team = trained("probe/rows", f"model.flatten={flatten}", "algorithm.lr=1e-2", NO_IDS, iterations=200)
    assert team.returns()[GROUP] >= 0.95


@slow
@pytest.mark.parametrize("algorithm", ["mappo", "ippo"])
def test_memory_needs_memory(trained: MakeTeam, algorithm: str) -> None:
    overrides = ("algorithm.lr=1e-2", "algorithm.gamma=0.99")
    options = {"algorithm": algorithm, "rollout_length": 10, "num_envs": 64}
    with_memory = trained(
        "probe/memory", *overrides, "algorithm.sequence_length=5", model="gru", iterations=150, **options
    )
    assert with_memory.returns(num_episodes=1024)[GROUP] >= 0.95
    without = trained("probe/memory", *overrides, iterations=60, **options)
    assert without.returns(num_episodes=1024)[GROUP] <= 0.6


@algorithms
def test_unlike_groups_learn_side_by_side(trained: MakeTeam, algorithm: str) -> None:
    team = trained("probe/groups", algorithm=algorithm, iterations=60)
    returns = team.returns(num_episodes=2048)
    assert returns["copiers"] >= 0.95
    assert returns["guessers"] == pytest.approx(0.5, abs=0.06)
    actors = {group: part.params["actor"] for group, part in team.learner.items()}
    assert actors["copiers"]["head"]["kernel"].shape[-1] == 2
    assert actors["guessers"]["head"]["kernel"].shape[-1] == 4


@slow
def test_lstm_remembers(trained: MakeTeam) -> None:
    team = trained("probe/memory", "algorithm.lr=1e-2", model="lstm", iterations=150, rollout_length=10, num_envs=64)
    assert team.returns(num_episodes=1024)[GROUP] >= 0.95


# --------------------------------------------------------------------------------------- sequences, carries, first step


@pytest.mark.parametrize(
    ("model", "sequence_length", "critic_sees"),
    [
        ("mlp", None, "own"),
        ("gru", 4, "own"),
        pytest.param("gru", None, "joint", marks=slow),
        pytest.param("gru", 1, "own", marks=slow),
        pytest.param("lstm", 2, "joint", marks=slow),
        pytest.param("gru", 1, "joint", marks=slow),
        pytest.param("mlp", None, "joint", marks=slow),
    ],
)
def test_the_first_minibatch_sees_the_policy_that_acted(
    fresh: MakeTeam, model: str, sequence_length: int | None, critic_sees: str
) -> None:
    """Before any step the ratio is 1 and the divergence 0, in the second rollout too, whose sequences begin with
    carries from the first: only if each sequence is learnt with the carry, resets and masks that it was acted with."""
    overrides = ["algorithm.epochs=1", "algorithm.num_minibatches=1", f"algorithm.critic_sees={critic_sees}"]
    if sequence_length:
        overrides.append(f"algorithm.sequence_length={sequence_length}")
    # Episodes of five steps do not line up with rollouts of eight.
    team = fresh("probe/memory", *overrides, model=model, iterations=3, num_envs=8, algorithm="ippo")
    assert np.abs(team.metrics[f"{GROUP}/kl"]).max() < 1e-6
    assert team.metrics[f"{GROUP}/clip_fraction"].max() == 0.0


def test_divergence_is_seen_once_there_is_some(fresh: MakeTeam) -> None:
    """The test above can fail: after a first minibatch there is a divergence."""
    team = fresh("probe/memory", "algorithm.epochs=2", model="gru", iterations=3, num_envs=8)
    assert team.metrics[f"{GROUP}/kl"].min() > 1e-6


@pytest.mark.parametrize("length", [1, 3, 6])
def test_cut_gives_contiguous_sequences_and_take_turns_them(length: int) -> None:
    steps, envs = 6, 4
    x = jnp.arange(steps)[:, None] * 100 + jnp.arange(envs)[None]  # 100 t + b
    sequences = np.asarray(cut(x, length))
    assert sequences.shape == (steps // length * envs, length)
    np.testing.assert_array_equal(np.diff(sequences, axis=1), 100)
    # In the order of carries `[S, B]` flattened: all environments of the first sequence, then of the second.
    starts = [100 * length * s + b for s in range(steps // length) for b in range(envs)]
    np.testing.assert_array_equal(sequences[:, 0], starts)
    assert cut(jnp.zeros((steps, envs, 2, 3)), length).shape == (steps // length * envs, length, 2, 3)

    @jax.tree_util.register_dataclass
    @dataclasses.dataclass
    class Both:
        steps: jax.Array
        carry: jax.Array | None

    taken = take(Both(steps=jnp.array(sequences), carry=jnp.array(sequences[:, 0])), jnp.array([2, 0]))
    np.testing.assert_array_equal(taken.steps, sequences[[2, 0]].T)
    np.testing.assert_array_equal(taken.carry, sequences[[2, 0], 0])


def test_next_values_are_the_successors() -> None:
    """Steps 0..2 of one environment that ends with step 1; the extras of step 3 come from acting on the final step."""
    extras = {"value": jnp.array([10.0, 11.0, 12.0]), "value_before_reset": jnp.array([20.0, 21.0, 22.0])}
    extras = {name: value[:, None, None] for name, value in extras.items()}
    final = {"value": jnp.full((1, 1), 13.0), "value_before_reset": jnp.full((1, 1), 23.0)}
    fields: dict[str, Any] = {field.name: None for field in dataclasses.fields(Transition)}
    for last, wanted in (((0, 1, 0), (11.0, 22.0, 13.0)), ((0, 0, 1), (11.0, 12.0, 23.0))):
        transitions = Transition(**fields | {"extras": extras, "last": jnp.array(last, bool)[:, None]})
        np.testing.assert_array_equal(next_values(transitions, final)[:, 0, 0], wanted)


def test_a_cut_episode_is_worth_its_true_last_observation(fresh: MakeTeam) -> None:
    """`value_before_reset` is the critic's word on `next_observation`, with the memory of the episode that was cut."""
    team = fresh("probe/observed", NO_IDS, model="gru", iterations=2, env=_cut_after_one_step())
    step = team.state.actor.timestep.groups[GROUP]
    timestep = jax.tree.map(lambda x: x[0], team.state.actor.timestep)
    carry = jax.tree.map(lambda x: x[0], team.state.actor.carry)
    assert np.all(team.state.actor.timestep.truncated)
    assert not np.allclose(step.observation, step.next_observation)
    acting = team.algorithm.acting(team.learner)
    _, extras, _ = team.algorithm.act(acting, timestep, carry, jax.random.key(0), False)
    group = timestep.groups[GROUP]
    no = jnp.zeros_like(timestep.last)
    went_on = dataclasses.replace(
        timestep,
        groups={GROUP: dataclasses.replace(group, observation=group.next_observation)},
        last=no,
        truncated=no,
    )
    _, as_if, _ = team.algorithm.act(acting, went_on, carry, jax.random.key(0), False)
    np.testing.assert_allclose(extras[GROUP]["value_before_reset"], as_if[GROUP]["value"], rtol=1e-5)
    assert not np.allclose(extras[GROUP]["value_before_reset"], extras[GROUP]["value"])


def _cut_after_one_step() -> Env:
    class Wandering(CopyAction):
        """Shows its number and never ends by itself."""

        def step(self, state: Any, action: dict[str, jax.Array], key: jax.Array) -> tuple[Any, TimeStep]:
            state = state + 1.0
            return state, next_step({GROUP: state[:, None]}, {GROUP: state}, terminated=jnp.zeros((), bool))

    return TimeLimit(Wandering(ProbeConfig()), 1)


# ------------------------------------------------------------------------------------------------------------ critics


class WithState(CopyAction):
    """As `copy`, but only the global state tells what the reward will be: the sum of what all agents see."""

    @property
    def spec(self) -> EnvSpec:
        return dataclasses.replace(super().spec, state_shape=(3,))

    def _state(self, seen: jax.Array) -> jax.Array:
        return jnp.concatenate([seen, seen.sum(keepdims=True)])

    def reset(self, key: jax.Array) -> tuple[Any, TimeStep]:
        seen = jax.random.rademacher(key, (self.agents,), jnp.float32)
        return seen, first_step({GROUP: jnp.zeros((self.agents, 1))}, state=self._state(seen))

    def step(self, state: Any, action: dict[str, jax.Array], key: jax.Array) -> tuple[Any, TimeStep]:
        timestep = next_step(
            {GROUP: jnp.zeros((self.agents, 1))},
            {GROUP: state.sum()},
            terminated=jnp.ones((), bool),
            state=self._state(state),
        )
        return state, timestep


@pytest.mark.parametrize("normalised", ["true", pytest.param("false", marks=slow)])
def test_a_critic_sees_the_state(fresh: MakeTeam, normalised: str) -> None:
    """Observations are zeros, so nothing else could explain the returns."""
    env = AgentIds(TimeLimit(WithState(ProbeConfig()), 10))
    normalise = f"algorithm.observation_normalisation={normalised}"
    team = fresh("probe/copy", normalise, iterations=80, algorithm="mappo", env=env)
    assert team.metrics[f"{GROUP}/explained_variance"][-10:].mean() > 0.95


def test_a_joint_critic_sees_the_others(fresh: MakeTeam) -> None:
    """The reward is what the other agent sees, which is independent of what one sees oneself."""

    class Others(CopyAction):
        def step(self, state: Any, action: dict[str, jax.Array], key: jax.Array) -> tuple[Any, TimeStep]:
            return state, next_step({GROUP: state[:, None]}, {GROUP: state[::-1]}, terminated=jnp.ones((), bool))

    env = AgentIds(TimeLimit(Others(ProbeConfig()), 10))
    team = fresh("probe/copy", "algorithm.critic_sees=joint", iterations=100, env=env)
    assert team.metrics[f"{GROUP}/explained_variance"][-10:].mean() > 0.9


def test_a_critic_with_one_output_gives_all_agents_the_same(fresh: MakeTeam) -> None:
    for outputs, same in (("one", True), ("per_agent", False)):
        team = fresh("probe/copy", f"algorithm.critic_outputs={outputs}", algorithm="mappo", iterations=0)
        _, values = team.values(num_steps=2)
        assert np.array_equal(values[..., 0], values[..., 1]) == same


def test_critic_sees_state_needs_one(fresh: MakeTeam) -> None:
    with pytest.raises(ValueError, match="no global state"):
        fresh("probe/copy", "algorithm.critic_sees=state", iterations=0)


def test_the_two_names_differ_in_one_field() -> None:
    assert dataclasses.replace(IPPO, critic_sees=CriticSees.auto) == MAPPO


@algorithms
def test_separate_parameters(fresh: MakeTeam, algorithm: str) -> None:
    """All agents see the same and earn by different actions: parameters that are shared could earn 0.5."""

    class Roles(CopyAction):
        def reset(self, key: jax.Array) -> tuple[Any, TimeStep]:
            return super().reset(key)[0], first_step({GROUP: jnp.zeros((self.agents, 1))})

        def step(self, state: Any, action: dict[str, jax.Array], key: jax.Array) -> tuple[Any, TimeStep]:
            reward = (action[GROUP] == jnp.arange(self.agents)).astype(jnp.float32)
            return state, next_step(
                {GROUP: jnp.zeros((self.agents, 1))}, {GROUP: reward}, terminated=jnp.ones((), bool)
            )

    env = TimeLimit(Roles(ProbeConfig()), 10)
    separate = ("algorithm.share_parameters=false", "algorithm.share_critic_parameters=false")
    team = fresh("probe/copy", *separate, NO_IDS, env=env, iterations=60, algorithm=algorithm)
    assert team.returns()[GROUP] >= 0.95
    kernel = team.learner[GROUP].params["actor"]["head"]["kernel"]
    assert kernel.shape[0] == 2 and not np.allclose(kernel[0], kernel[1])
    assert team.learner[GROUP].params["critic"]["head"]["kernel"].shape[0] == 2


def test_agent_ids_let_shared_parameters_play_roles(trained: MakeTeam) -> None:
    team = trained("probe/copy", iterations=0)
    assert team.env.spec.groups[GROUP].observation_shape == (3,)
    without = trained("probe/copy", NO_IDS, iterations=0)
    assert without.env.spec.groups[GROUP].observation_shape == (1,)


# ------------------------------------------------------------------------------------------------ switches and hooks


def test_observation_normalisation_learns_from_awkward_scales(fresh: MakeTeam) -> None:
    """Observations around 1000 with a spread of 0.25."""

    class Awkward(CopyAction):
        def reset(self, key: jax.Array) -> tuple[Any, TimeStep]:
            seen, _ = super().reset(key)
            return seen, first_step({GROUP: 1000.0 + 0.5 * seen[:, None]})

    env = TimeLimit(Awkward(ProbeConfig()), 10)
    on = fresh("probe/copy", "algorithm.observation_normalisation=true", NO_IDS, env=env, iterations=100)
    assert on.returns()[GROUP] >= 0.95
    moments = on.learner[GROUP].observation_moments
    np.testing.assert_allclose(moments.mean, 1000.25, atol=0.02)
    np.testing.assert_allclose(np.sqrt(moments.variance), 0.25, atol=0.02)
    assert float(moments.weight) == 100 * 32 * 8 * 2
    off = fresh("probe/copy", NO_IDS, env=env, iterations=2)
    assert float(off.learner[GROUP].observation_moments.weight) == 0


@slow
def test_normalised_observations_keep_the_first_minibatch_in_step(fresh: MakeTeam) -> None:
    """The moments change after the update, so an iteration learns with those that it acted with."""
    overrides = ("algorithm.epochs=1", "algorithm.num_minibatches=1", "algorithm.observation_normalisation=true")
    team = fresh("probe/memory", *overrides, model="gru", iterations=4, num_envs=8)
    assert np.abs(team.metrics[f"{GROUP}/kl"]).max() < 1e-6


@slow
@pytest.mark.parametrize("kind", [kind.name for kind in AdvantageNormalisation])
def test_advantage_normalisations_learn(fresh: MakeTeam, kind: str) -> None:
    assert fresh("probe/copy", f"algorithm.advantage_normalisation={kind}", iterations=100).returns()[GROUP] >= 0.95


@slow
def test_advantage_normalisation_takes_out_the_rewards_scale(fresh: MakeTeam) -> None:
    """Whole batches, one step: rewards a thousand times as large give the same policy, and without it they do not."""
    big = Hooks(batch=lambda group, t: dataclasses.replace(t, reward=t.reward * 1000.0))
    options = ("algorithm.epochs=1", "algorithm.num_minibatches=1", "algorithm.gae_lambda=0.0", "algorithm.gamma=0.0")
    norms = {}
    for kind in ("batch", "none"):
        overrides = (*options, f"algorithm.advantage_normalisation={kind}", "algorithm.value_normalisation=false")
        norms[kind] = [
            fresh("probe/copy", *overrides, iterations=1, hooks=hooks).metrics[f"{GROUP}/actor_grad_norm"][0]
            for hooks in (None, big)
        ]
    assert norms["none"][1] > 100 * norms["none"][0]
    assert norms["batch"][1] < 5 * norms["batch"][0]


def test_clipped_value_loss_learns_values(fresh: MakeTeam) -> None:
    team = fresh("probe/observed", "algorithm.value_clip=0.2", DISCOUNT, iterations=80)
    seen, values = team.values()
    np.testing.assert_allclose(values, seen, atol=0.15)


class Jackpot(CopyAction):
    """One step. One agent in 250 sees a 1, and earns 1,000; the others see a 0 and earn nothing."""

    def reset(self, key: jax.Array) -> tuple[Any, TimeStep]:
        seen = jax.random.bernoulli(key, 0.004, (self.agents,)).astype(jnp.float32)
        return seen, first_step({GROUP: seen[:, None]})

    def step(self, state: Any, action: dict[str, jax.Array], key: jax.Array) -> tuple[Any, TimeStep]:
        return state, next_step({GROUP: state[:, None]}, {GROUP: 1000.0 * state}, terminated=jnp.ones((), bool))


def test_a_rare_reward_is_worth_what_it_is(fresh: MakeTeam) -> None:
    """Sixteen deviations above the mean: clipped at ten, as observations are, it was learned as 630."""
    env = TimeLimit(Jackpot(ProbeConfig(num_agents=2)), 10)
    fields = (NO_IDS, "algorithm.advantage_normalisation=none", "algorithm.max_grad_norm=10")
    team = fresh("probe/copy", *fields, env=env, iterations=150)
    seen, values = team.values(num_envs=512)
    assert (seen == 1).sum() > 10
    np.testing.assert_allclose(values[seen == 1], 1000.0, rtol=0.03)


def test_clipped_values_by_hand() -> None:
    """Acting gave an output of 0.3, and the target is 0. At 0.3 nothing is clipped: the loss is 0.3². An output of
    −0.05 moved by more than the 0.2 that are allowed: it counts as 0.1, and has no gradient."""
    weight, target = jnp.ones(1), jnp.zeros(1)

    def loss(output: float, clip: float | None = 0.2) -> jax.Array:
        return fit_values(jnp.array([output]), jnp.array([0.3]), target, weight, clip=clip)

    for output, clip, expected, slope in ((0.3, 0.2, 0.09, 0.6), (-0.05, 0.2, 0.01, 0.0), (0.8, None, 0.64, 1.6)):
        assert float(loss(output, clip)) == pytest.approx(expected)
        assert float(jax.grad(loss)(output, clip)) == pytest.approx(slope)


def test_clipped_values_learn_from_the_first_iteration(fresh: MakeTeam) -> None:
    """Normalised values: the first targets move the moments far from where they were when acting."""
    fields = ("algorithm.value_clip=0.2", "algorithm.gamma=0.99", "algorithm.epochs=1", "algorithm.num_minibatches=1")
    team = fresh("probe/truncation", *fields, iterations=1)
    plain = fresh("probe/truncation", *fields[1:], iterations=1)
    # In the first minibatch nothing has moved yet, so that nothing is clipped.
    for name in ("value_loss", "critic_grad_norm"):
        assert team.metrics[f"agents/{name}"][0] == pytest.approx(plain.metrics[f"agents/{name}"][0], rel=1e-5)
    assert team.metrics["agents/critic_grad_norm"][0] > 0.01


def test_schedules_reach_the_optimiser(fresh: MakeTeam) -> None:
    linear = fresh("probe/copy", "algorithm.lr_schedule=linear", "algorithm.lr=1e-2", iterations=4)
    np.testing.assert_allclose(linear.metrics[f"{GROUP}/lr"], [1e-2, 7.5e-3, 5e-3, 2.5e-3], rtol=1e-5)


def test_minibatch_size_sets_their_number(fresh: MakeTeam) -> None:
    """64 frames in minibatches of 16: four updates of Adam in an epoch."""
    for size, updates in ((16, 4),):
        team = fresh(
            "probe/copy",
            f"algorithm.minibatch_size={size}",
            "algorithm.epochs=3",
            iterations=1,
            num_envs=32,
            rollout_length=2,
        )
        counts = [leaf for leaf in jax.tree.leaves(team.learner[GROUP].optimiser["actor"]) if leaf.dtype == jnp.int32]
        assert [int(count) for count in counts] == [3 * updates]


def test_minibatches_must_divide_the_sequences(fresh: MakeTeam) -> None:
    with pytest.raises(ValueError, match="do not divide"):
        fresh("probe/memory", "algorithm.num_minibatches=16", model="gru", iterations=1, num_envs=8)


def test_a_batch_hook_changes_what_is_learnt(fresh: MakeTeam) -> None:
    """A hook that turns rewards around teaches to name the other number."""
    hooks = Hooks(batch=lambda group, t: dataclasses.replace(t, reward=-t.reward))
    team = fresh("probe/copy", iterations=60, hooks=hooks)
    assert team.returns()[GROUP] <= 0.05


def test_a_loss_hook_is_part_of_the_gradient(fresh: MakeTeam) -> None:
    """A strong pull of all parameters to zero leaves none of them far from it, and its metric is reported."""

    def pull(group: str, params: Any, samples: Any) -> tuple[jax.Array, dict[str, jax.Array]]:
        assert group == GROUP and samples.reset.ndim == 2
        size = sum((jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(params)), jnp.float32(0))
        return 100.0 * size, {"size": size}

    team = fresh("probe/copy", "algorithm.lr=1e-2", iterations=60, hooks=Hooks(loss=pull))
    sizes = team.metrics[f"{GROUP}/size"]
    assert sizes[-1] < 0.01 * sizes[0]


def test_a_metrics_hook_sees_and_changes_the_metrics(fresh: MakeTeam) -> None:
    hooks = Hooks(metrics=lambda metrics: metrics | {"double": 2.0 * metrics[f"{GROUP}/entropy"]})
    team = fresh("probe/copy", iterations=3, hooks=hooks)
    np.testing.assert_allclose(team.metrics["double"], 2 * team.metrics[f"{GROUP}/entropy"], rtol=1e-6)


def test_entropy_coefficient_keeps_the_policy_random(trained: MakeTeam, fresh: MakeTeam) -> None:
    keen = trained("probe/copy", iterations=60)
    shy = fresh("probe/copy", "algorithm.entropy_coef=10.0", iterations=60)
    assert keen.metrics[f"{GROUP}/entropy"][-1] < 0.4
    assert shy.metrics[f"{GROUP}/entropy"][-1] > 0.65  # log 2 = 0.69


@pytest.mark.parametrize(
    ("field", "value"),
    [("lr", 0.0), ("clip", -1.0), ("gamma", 1.5), ("gae_lambda", -0.1), ("epochs", 0), ("num_minibatches", 0)],
)
def test_impossible_values_are_refused(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=field):
        dataclasses.replace(IPPO, **{field: value})


# ------------------------------------------------------------------------------------------------- functions by name


def told_ppo(num_agents: int, sees: CriticSees = CriticSees.own, **fields: Any) -> Ppo:
    config = dataclasses.replace(IPPO, **fields)
    groups = {GROUP: GroupSpec(num_agents=num_agents, observation_shape=(1,), action=Discrete(2))}
    return Ppo(
        config=config,
        spec=EnvSpec(groups=groups, time_limit=10),
        group=GROUP,
        context=context(),
        policy=told_policy(),
        optimiser=make_optimiser(config),
        sees=sees,
    )


def told_samples(log_prob: Any, advantage: Any, target: Any, weight: Any) -> Samples:
    """`[L, N, A]` of each, as a loss takes them, or `[N, L, A]`, as minibatches are taken from."""
    log_prob, advantage, target, weight = (jnp.asarray(x, jnp.float32) for x in (log_prob, advantage, target, weight))
    nothing = jnp.zeros((*log_prob.shape, 1))
    return Samples(
        observation=nothing,
        critic_input=nothing,
        reset=jnp.zeros(log_prob.shape[:2], bool),
        action_mask=None,
        weight=weight,
        raw_action=jnp.zeros(log_prob.shape, jnp.int32),
        log_prob=log_prob,
        value=jnp.zeros_like(target),
        output=None,
        advantage=advantage,
        target=target,
        noise=None,
        carry=(),
    )


COEFFICIENTS = {name: jnp.float32(x) for name, x in {"clip": 0.2, "entropy_coef": 0.1, "value_coef": 0.5}.items()}
# Three agents, of which the last is dead: ratios of 1.5 and 0.5 to probabilities of 1, both beyond the clip.
NEW = {
    "actor": {"log_prob": jnp.log(jnp.array([[[1.5, 0.5, 1.0]]])), "entropy": jnp.array([[[0.6, 0.2, 9.0]]])},
    "critic": {"output": jnp.array([[[1.0, 3.0, 9.0]]])},
}


def loss_by_hand(params: Any, coefficients: Any = COEFFICIENTS) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Targets of 4 and 2 are 1 and 0 under moments of mean 2 and deviation 2."""
    samples = told_samples([[[0.0, 0.0, 0.0]]], [[[1.0, -1.0, 99.0]]], [[[4.0, 2.0, 9.0]]], [[[1.5, 1.5, 0.0]]])
    moments = Moments(weight=jnp.ones(()), mean=jnp.float32(2.0), variance=jnp.float32(4.0))
    return ppo_loss(params, told_ppo(3), samples, moments, coefficients)


def test_ppo_loss_by_hand() -> None:
    loss, metrics = loss_by_hand(NEW)
    assert float(metrics["policy_loss"]) == pytest.approx(-(1.2 - 0.8) / 2)
    assert float(metrics["entropy"]) == pytest.approx(0.4)
    assert float(metrics["value_loss"]) == pytest.approx((0.0 + 3.0**2) / 2)
    assert float(metrics["clip_fraction"]) == pytest.approx(1.0)
    assert float(metrics["kl"]) == pytest.approx(((0.5 - np.log(1.5)) + (-0.5 - np.log(0.5))) / 2, rel=1e-5)
    assert float(loss) == pytest.approx(-0.2 - 0.1 * 0.4 + 0.5 * 4.5)


def test_the_slope_of_the_ppo_loss_by_hand() -> None:
    grads = jax.grad(lambda params: loss_by_hand(params)[0])(NEW)
    np.testing.assert_array_equal(grads["actor"]["log_prob"], 0.0)  # both are clipped
    np.testing.assert_allclose(grads["actor"]["entropy"][0, 0], [-0.05, -0.05, 0.0], rtol=1e-6)
    np.testing.assert_allclose(grads["critic"]["output"][0, 0], [0.0, 0.5 * 2 * 3.0 / 2, 0.0], atol=1e-6)
    wide = jax.grad(lambda params: loss_by_hand(params, COEFFICIENTS | {"clip": jnp.float32(0.9)})[0])(NEW)
    np.testing.assert_allclose(wide["actor"]["log_prob"][0, 0], [-1.5 / 2, 0.5 / 2, 0.0], rtol=1e-5)


def test_samples_have_advantages_by_hand() -> None:
    """γ = λ = ½: values 1 and 2, then 3 for what comes after; rewards of 1. The second agent terminates at once."""
    ppo = told_ppo(2, gamma=0.5, gae_lambda=0.5)
    values = jnp.array([[[1.0, 1.0]], [[2.0, 2.0]]])
    steps = transitions(
        jnp.ones((2, 1, 2)),
        terminated=[[[False, True]], [[False, False]]],
        alive=[[[True, True]], [[True, False]]],
        extras={name: values for name in ("value", "value_before_reset", "raw_action", "log_prob")},
    )
    final = jax.tree.map(lambda x: x[None], first_step({GROUP: jnp.full((2, 1), 3.0)}))
    batch, no_key = Batch(transitions={GROUP: steps}, final=final), cast(Key, None)  # there is nothing to draw
    samples = make_samples(ppo, init(ppo, jax.random.key(0)), batch, no_key)
    assert samples.advantage.shape == (2, 1, 2)  # two sequences of one step
    second = 1.0 + 0.5 * 3.0 - 2.0
    np.testing.assert_allclose(samples.advantage[:, 0, 0], [1.0 + 0.5 * 2.0 - 1.0 + 0.25 * second, second])
    np.testing.assert_allclose(samples.target[:, 0, 0], [2.125, 2.5])
    np.testing.assert_allclose(samples.advantage[0, 0, 1], 0.0)
    np.testing.assert_allclose(samples.weight[:, 0], [[4 / 3, 4 / 3], [4 / 3, 0.0]], rtol=1e-6)


def test_a_minibatch_is_its_samples_and_no_others() -> None:
    """Advantages of 1 and 3 become −1 and 1, and with ratios of 1 their mean is nothing. Adam's first step is as long
    as the learning rate, against the slope: the critic gives 1 for targets of 0."""
    ppo = told_ppo(1, value_normalisation=False)
    state = init(ppo, jax.random.key(0))
    params = {"actor": {"log_prob": jnp.zeros(()), "entropy": jnp.zeros(())}, "critic": {"output": jnp.ones(())}}
    state = dataclasses.replace(
        state, params=params, optimiser={name: ppo.optimiser.init(part) for name, part in params.items()}
    )
    nan = jnp.nan
    samples = told_samples([[[0.0]], [[nan]], [[0.0]]], [[[1.0]], [[nan]], [[3.0]]], [[[0.0]]] * 3, [[[1.0]]] * 3)
    coefficients = COEFFICIENTS | {"lr": jnp.float32(0.1)}
    after, metrics = jax.jit(lambda state: update_minibatch(ppo, state, samples, jnp.array([0, 2]), coefficients))(
        state
    )
    assert float(metrics["policy_loss"]) == pytest.approx(0.0, abs=1e-6)
    assert float(metrics["value_loss"]) == pytest.approx(1.0)
    assert float(metrics["critic_grad_norm"]) == pytest.approx(0.5 * 2.0)
    assert float(after.params["critic"]["output"]) == pytest.approx(0.9, rel=1e-3)
    assert float(after.params["actor"]["entropy"]) == pytest.approx(0.1, rel=1e-3)  # more of it is better


@pytest.mark.parametrize("normalised", [True, False])
def test_what_critics_are_shown_by_hand(normalised: bool) -> None:
    """One step of one environment with two agents, seen in deviations of 2 from 1, and a state in those of 1 from 0."""
    observation, state = jnp.array([[[[3.0], [5.0]]]]), jnp.array([[[7.0, 30.0]]])
    for sees, plain, in_deviations in (
        (CriticSees.own, [[3.0], [5.0]], [[1.0], [2.0]]),
        (CriticSees.joint, [3.0, 5.0], [1.0, 2.0]),
        (CriticSees.state, [7.0, 30.0], [7.0, 10.0]),  # at most ten
    ):
        ppo = told_ppo(2, sees, observation_normalisation=normalised)
        one = jnp.ones(())
        acting: Any = dataclasses.replace(
            init(ppo, jax.random.key(0)),
            observation_moments=Moments(weight=one, mean=jnp.ones(1), variance=jnp.full(1, 4.0)),
            state_moments=Moments(weight=one, mean=jnp.zeros(2), variance=jnp.ones(2)),
        )
        inputs = observe(ppo, acting, observation, state, None, jnp.zeros((1, 1), bool))
        assert isinstance(inputs, Inputs)
        np.testing.assert_allclose(inputs.critic_input[0, 0], in_deviations if normalised else plain, rtol=1e-6)


def test_values_and_outputs_are_each_others_inverse() -> None:
    """Returns around 10 with a deviation of 2: an output of 1.5 is a return of 13."""
    moments = Moments(weight=jnp.float32(5.0), mean=jnp.float32(10.0), variance=jnp.float32(4.0))
    assert float(to_value(IPPO, moments, jnp.float32(1.5))) == pytest.approx(13.0)
    assert float(to_output(IPPO, moments, jnp.float32(13.0))) == pytest.approx(1.5)
    plain = dataclasses.replace(IPPO, value_normalisation=False)
    assert to_value(plain, moments, jnp.float32(1.5)) == to_output(plain, moments, jnp.float32(1.5)) == 1.5


def adam(values: list[float], gradient: Any, *, lr: float, eps: float) -> list[float]:
    """A number after each of Adam's steps, in plain Python; `gradient(number)`."""
    value, mean, square = values[0], 0.0, 0.0
    for number in range(1, len(values)):
        slope = gradient(value)
        mean, square = 0.9 * mean + 0.1 * slope, 0.999 * square + 0.001 * slope**2
        value -= lr * (mean / (1 - 0.9**number)) / (np.sqrt(square / (1 - 0.999**number)) + eps)
        values[number] = value
    return values


def test_update_is_epochs_of_steps_by_hand() -> None:
    """Two epochs over one minibatch. The critic says 1, the return is 3 and the episode over, so the advantage is 2.
    The slopes are −2ρ for the log-probability, −c_H for the entropy, and 2 c_V (V − 3) for the value."""
    ppo = told_ppo(
        1,
        epochs=2,
        num_minibatches=1,
        lr=0.1,
        entropy_coef=0.1,
        value_normalisation=False,
        advantage_normalisation=AdvantageNormalisation.none,
        max_grad_norm=1e6,
    )
    params = {"actor": {"log_prob": jnp.zeros(()), "entropy": jnp.zeros(())}, "critic": {"output": jnp.ones(())}}
    optimiser = {name: ppo.optimiser.init(part) for name, part in params.items()}
    state = dataclasses.replace(init(ppo, jax.random.key(0)), params=params, optimiser=optimiser)
    done = jnp.ones((2, 1), bool)
    steps = transitions(
        jnp.full((2, 1, 1), 3.0),
        terminated=done[..., None],
        last=done,
        extras={
            "value": jnp.ones((2, 1, 1)),
            "value_before_reset": jnp.full((2, 1, 1), 99.0),
            "raw_action": jnp.zeros((2, 1, 1), jnp.int32),
            "log_prob": jnp.zeros((2, 1, 1)),
        },
    )
    final = jax.tree.map(lambda x: x[None], first_step({GROUP: jnp.full((1, 1), 99.0)}))
    batch = Batch(transitions={GROUP: steps}, final=final)
    key = jax.random.key(0)
    after, metrics, priorities = jax.jit(lambda state: update(ppo, state, batch, key, jnp.float32(0.5)))(state)
    settings: Any = {"lr": 0.05, "eps": ppo.config.adam_eps}  # half of the schedule has passed
    log_prob = adam([0.0] * 3, lambda value: -2.0 * np.exp(value), **settings)
    entropy = adam([0.0] * 3, lambda value: -0.1, **settings)
    value = adam([1.0] * 3, lambda value: 2 * 0.5 * (value - 3.0), **settings)
    assert float(after.params["actor"]["log_prob"]) == pytest.approx(log_prob[-1], rel=1e-4)
    assert float(after.params["actor"]["entropy"]) == pytest.approx(entropy[-1], rel=1e-4)
    assert float(after.params["critic"]["output"]) == pytest.approx(value[-1], rel=1e-4)
    assert float(metrics["policy_loss"]) == pytest.approx(np.mean([-2 * np.exp(x) for x in log_prob[:2]]), rel=1e-4)
    assert float(metrics["value_loss"]) == pytest.approx(np.mean([(x - 3.0) ** 2 for x in value[:2]]), rel=1e-4)
    assert float(metrics["lr"]) == pytest.approx(0.05) and priorities is None
