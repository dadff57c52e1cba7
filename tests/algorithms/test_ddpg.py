"""Deterministic policy gradients on the probes, each with its number."""

from __future__ import annotations

import dataclasses
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import MakeTeam
from stubs import constant_network, context, transitions
from test_off_policy import adding_critics, told_critics

from covey.algorithms.base import make_optimiser
from covey.algorithms.ddpg import (
    IDDPG,
    ITD3,
    MATD3,
    Ddpg,
    DdpgState,
    actor_loss,
    make_targets,
    saturation,
    to_action,
    update,
    with_noise,
)
from covey.algorithms.off_policy import ActorCritic, make_samples
from covey.algorithms.replay_critics import Critics
from covey.envs.base import next_step
from covey.envs.probes import GROUP, ContinuousTarget, ProbeConfig
from covey.envs.wrappers import AgentIds, TimeLimit
from covey.types import Batch, Continuous, Key, TimeStep

slow = pytest.mark.slow
GAMMA = 0.8


class Ceaseless(ContinuousTarget):
    """Reward 1 whatever is done, until the time limit cuts."""

    def step(self, state: Any, action: dict[str, jax.Array], key: jax.Array) -> tuple[Any, TimeStep]:
        return state, next_step({GROUP: state}, {GROUP: jnp.ones(())}, terminated=jnp.zeros((), bool))


@slow
@pytest.mark.parametrize(
    ("algorithm", "model", "n_step"),
    [("matd3", "mlp", 1), ("matd3", "mlp", 3), ("matd3", "gru", 1), ("iddpg", "mlp", 1)],
)
def test_a_time_limit_is_no_end(fresh: MakeTeam, algorithm: str, model: str, n_step: int) -> None:
    """Worth 1 / (1 − γ); taking the cut for a termination would give at most 3.4 with five steps left."""
    env = AgentIds(TimeLimit(Ceaseless(ProbeConfig(time_limit=5)), 5))
    fields = (f"algorithm.gamma={GAMMA}", f"algorithm.n_step={n_step}")
    team = fresh("probe/target", *fields, algorithm=algorithm, model=model, iterations=120, env=env)
    assert team.metrics["agents/q_value"][-1] == pytest.approx(1 / (1 - GAMMA), rel=0.03)


@pytest.mark.parametrize(
    "algorithm", ["maddpg", *(pytest.param(name, marks=slow) for name in ("iddpg", "itd3", "matd3"))]
)
def test_the_best_action_is_found(trained: MakeTeam, algorithm: str) -> None:
    assert trained("probe/target", algorithm=algorithm, iterations=100).returns()["agents"] > 0.97


@slow
def test_the_gradient_of_all_actions_learns_too(trained: MakeTeam) -> None:
    team = trained("probe/target", "algorithm.actor_gradient=all", algorithm="maddpg", iterations=100)
    assert team.returns()["agents"] > 0.97


def test_actions_stay_within_bounds(trained: MakeTeam) -> None:
    team = trained("probe/target", "algorithm.noise_start=5", algorithm="iddpg", iterations=1)
    actions = team.transitions()["agents"].action
    assert actions.min() >= -2.0 and actions.max() <= 2.0
    assert np.mean(np.abs(actions) == 2.0) > 0.3


def test_saturation_by_hand() -> None:
    outputs = jnp.array([[0.0, 2.9], [5.0, -4.0]])
    np.testing.assert_allclose(saturation(outputs), [0.0, 2.0**2 + 1.0**2])


@pytest.mark.parametrize(("coef", "escapes"), [(0.1, True), (0.0, False)])
def test_a_saturated_actor_comes_back(fresh: MakeTeam, coef: float, escapes: bool) -> None:
    """Every output is 10, where tanh is 1 to the last bit: its gradient is zero, and only the penalty leads back."""
    team = fresh("probe/target", f"algorithm.saturation_coef={coef}", algorithm="iddpg", iterations=100)
    assert team.returns()["agents"] > 0.95
    state = team.loop.init(jax.random.key(0))
    saturated = dataclasses.replace(state.learner["agents"], params=with_bias(state.learner["agents"].params, 10.0))
    state, _ = team.loop.advance(dataclasses.replace(state, learner={"agents": saturated}), jnp.int32(100))
    returns = dataclasses.replace(team, state=state).returns()["agents"]
    assert returns > 0.9 if escapes else returns < -2.0  # at the bound: 1 − E[(2 − o)²] = −3.3


def with_bias(params: Any, bias: float) -> Any:
    head = params["actor"]["head"] | {"bias": jnp.full_like(params["actor"]["head"]["bias"], bias)}
    return params | {"actor": params["actor"] | {"head": head}}


def test_td3_is_three_fields() -> None:
    changed = {f.name for f in dataclasses.fields(IDDPG) if getattr(IDDPG, f.name) != getattr(ITD3, f.name)}
    assert changed == {"num_critics", "policy_delay", "target_noise"}
    assert MATD3.critic_sees is not ITD3.critic_sees


@pytest.mark.parametrize(
    "fields", [{"lr": 0}, {"noise_start": -1}, {"saturation_coef": -1}, {"num_critics": 0}, {"tau": 2.0}]
)
def test_impossible_fields_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        dataclasses.replace(IDDPG, **fields)


def test_discrete_actions_are_refused(fresh: MakeTeam) -> None:
    with pytest.raises(ValueError, match="continuous actions"):
        fresh("probe/copy", algorithm="iddpg", iterations=0)


# ------------------------------------------------------------------------------------------------- functions by name

BOUNDS = Continuous(low=(-2.0,), high=(4.0,))  # in the middle 1, half of the range 3
NO_KEY = cast(Key, None)  # without noise on the next actions, nothing is drawn


def told(critics: Critics, **fields: Any) -> Ddpg:
    """Two agents whose actor's outputs are its parameters."""
    config = dataclasses.replace(IDDPG, **fields)
    ac = ActorCritic(
        config=config,
        group=GROUP,
        context=context(),
        action=BOUNDS,
        actor=constant_network(2),
        critics=critics,
        optimiser=make_optimiser(config),
        own_actions_only=False,
    )
    return Ddpg(config=config, ac=ac, action=BOUNDS)


def test_actions_by_hand() -> None:
    np.testing.assert_allclose(to_action(BOUNDS, jnp.array([[0.0], [100.0], [-100.0]])), [[1.0], [4.0], [-2.0]])
    np.testing.assert_allclose(to_action(BOUNDS, jnp.arctanh(jnp.array([0.5]))), [1.0 + 1.5], rtol=1e-6)
    noisy = with_noise(BOUNDS, jnp.array([1.0, 1.0, 1.0]), jnp.array([0.5, 2.0, -2.0]))
    np.testing.assert_allclose(noisy, [2.5, 4.0, -2.0])


def test_targets_take_the_smaller_value() -> None:
    critics = {"critic_0": jnp.array([[[[5.0], [6.0]]]]), "critic_1": jnp.array([[[[7.0], [2.0]]]])}
    networks = {"actor": jnp.zeros((2, 1)), "critic": critics}
    state = DdpgState(
        params=networks,
        target=networks,
        optimiser={},
        noise=jnp.zeros(()),
        updates=jnp.zeros((), jnp.int32),
        coefficients={"gamma": jnp.float32(0.5)},
    )
    steps = transitions([[[1.0, 3.0]]])
    target = make_targets(told(told_critics(), num_critics=2), state, steps, NO_KEY)
    np.testing.assert_allclose(target, [[[1.0 + 0.5 * 5.0, 3.0 + 0.5 * 2.0]]])


@pytest.mark.parametrize(("target_actor", "expected"), [(True, 4.0 + 4.0), (False, 1.0 + 1.0)])
def test_whose_next_action_targets_take(target_actor: bool, expected: float) -> None:
    """Values are the sum of actions: those of the target actor are at the upper bound, the actor's in the middle."""
    values = adding_critics()
    critics = dataclasses.replace(
        values,
        evaluate_successors=lambda params, inputs, next_inputs, reset: values.evaluate(params, next_inputs, reset, 0),
    )
    state = DdpgState(
        params={"actor": jnp.zeros((2, 1)), "critic": {}},
        target={"actor": jnp.full((2, 1), 100.0), "critic": {}},
        optimiser={},
        noise=jnp.zeros(()),
        updates=jnp.zeros((), jnp.int32),
        coefficients={"gamma": jnp.float32(1.0)},
    )
    steps = transitions([[[0.0, 0.0]]], action=jnp.zeros((1, 1, 2, 1)))
    target = make_targets(told(critics, target_actor=target_actor), state, steps, NO_KEY)
    np.testing.assert_allclose(target, [[[expected, expected]]])


def test_actor_loss_by_hand() -> None:
    """Actions 1 and, almost, 4 are worth 5 to either agent; outputs of 5 are 2 beyond where tanh is flat. The second
    sequence is of dead agents."""
    alive = jnp.array([[[True, True], [False, False]]])
    steps = transitions(jnp.zeros((1, 2, 2)), alive=alive, action=jnp.zeros((1, 2, 2, 1)))
    ddpg = told(adding_critics(), saturation_coef=0.1)
    samples = make_samples(ddpg.ac, Batch(transitions={GROUP: steps}), jnp.zeros((1, 2, 2)))
    outputs = jnp.array([[0.0], [5.0]])
    loss, found = actor_loss(outputs, ddpg, {"critic_0": ()}, samples)
    actions = 1.0 + 3.0 * np.tanh([0.0, 5.0])
    assert float(loss) == pytest.approx(-actions.sum() / 2 + 0.1 * 2.0**2 / 4, rel=1e-5)
    assert found == {}
    slope = jax.grad(lambda outputs: actor_loss(outputs, ddpg, {"critic_0": ()}, samples)[0])(outputs)
    assert float(slope[0, 0]) == pytest.approx(-1.5, rel=1e-5)  # two values of four rise by three


def scaling_critics() -> Critics:
    """Each critic's only parameter says how much an agent's own action is worth to it."""

    def evaluate(params: Any, inputs: Any, reset: Any, burn_in: int) -> jax.Array:
        return jnp.stack([own * inputs[burn_in:] for own in params.values()])

    return dataclasses.replace(
        adding_critics(),
        evaluate=evaluate,
        evaluate_successors=lambda params, inputs, next_inputs, reset: evaluate(params, next_inputs, reset, 0),
    )


@pytest.mark.parametrize("delay", [1, 2])
def test_update_by_hand(delay: int) -> None:
    """Actions 2 and 3 are worth as much to the critic, and the rewards that ended the episode are 1 and 3: errors of 1
    and 0. Adam's first step is as long as the learning rate. With a delay of two, actor and targets wait."""
    ddpg = told(scaling_critics(), policy_delay=delay, noise_fraction=0.5)
    params = {"actor": jnp.zeros((2, 1)), "critic": {"critic_0": jnp.ones(())}}
    coefficients = {"lr": 0.1, "gamma": 0.5, "tau": 0.25, "noise_start": 0.5, "noise_end": 0.1}
    state = DdpgState(
        params=params,
        target=jax.tree.map(jnp.zeros_like, params),
        optimiser={name: ddpg.ac.optimiser.init(part) for name, part in params.items()},
        noise=jnp.float32(0.5),
        updates=jnp.zeros((), jnp.int32),
        coefficients={name: jnp.float32(value) for name, value in coefficients.items()},
    )
    steps = transitions([[[1.0, 3.0]]], action=jnp.array([[[[2.0], [3.0]]]]), terminated=[[[True, True]]])
    batch = Batch(transitions={GROUP: steps})
    key = jax.random.key(0)
    after, metrics, td_error = jax.jit(lambda state: update(ddpg, state, batch, key, jnp.float32(0.25)))(state)
    acts = delay == 1
    assert float(after.params["critic"]["critic_0"]) == pytest.approx(0.9, rel=1e-5)
    np.testing.assert_allclose(after.params["actor"], np.full((2, 1), 0.1 if acts else 0.0), rtol=1e-4)
    assert float(after.target["critic"]["critic_0"]) == pytest.approx(0.25 * 0.9 if acts else 0.0, rel=1e-5)
    np.testing.assert_allclose(after.target["actor"], np.full((2, 1), 0.025 if acts else 0.0), rtol=1e-4)
    np.testing.assert_allclose(td_error, [0.5])
    assert float(after.noise) == float(metrics["noise"]) == pytest.approx(0.3)  # half way in half of training
    assert float(metrics["q_loss"]) == pytest.approx(0.5) and float(metrics["q_value"]) == pytest.approx(2.0)
    assert float(metrics["policy_loss"]) == pytest.approx(-1.0 if acts else 0.0)  # outputs of 0 are the action 1
    assert int(after.updates) == 1
