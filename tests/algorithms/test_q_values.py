"""Acting by values by hand: which actions are best, which are explored, and how often."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from stubs import GROUP, constant_network, context

from covey.algorithms.q_values import QActing, act_by_values, annealed_epsilon, make_q_network, num_actions
from covey.envs.base import first_step
from covey.networks.network import make_model
from covey.types import Discrete, EnvSpec, GroupSpec, TimeStep

SPEC = EnvSpec(groups={GROUP: GroupSpec(num_agents=2, observation_shape=(2,), action=Discrete(3))}, time_limit=5)
VALUES = jnp.array([[1.0, 3.0, 2.0], [9.0, 5.0, 7.0]])  # of each agent's three actions


def shown(num_envs: int, mask: list[list[bool]] | None = None) -> TimeStep:
    """A time step `[B]` in which agents see nothing and may take the actions of `mask`."""
    timestep = jax.vmap(lambda o: first_step({GROUP: o}))(jnp.zeros((num_envs, 2, 2)))
    legal = None if mask is None else jnp.broadcast_to(jnp.asarray(mask), (num_envs, 2, 3))
    groups = {GROUP: dataclasses.replace(timestep.groups[GROUP], action_mask=legal)}
    return dataclasses.replace(timestep, groups=groups)


def act(timestep: TimeStep, *, epsilon: float, explore: bool) -> np.ndarray:
    acting = QActing(params=VALUES, epsilon=jnp.float32(epsilon))
    action, carry = act_by_values(constant_network(2), GROUP, acting, timestep, (), jax.random.key(0), explore)
    assert carry == () and action.dtype == jnp.int32
    return np.asarray(action)


def test_the_number_of_actions_is_the_groups() -> None:
    assert num_actions(SPEC, GROUP) == 3


def test_best_actions_are_the_largest_legal_values() -> None:
    np.testing.assert_array_equal(act(shown(2), epsilon=0.0, explore=True), [[1, 0]] * 2)
    masked = shown(1, [[True, False, True], [False, True, False]])
    np.testing.assert_array_equal(act(masked, epsilon=0.0, explore=True), [[2, 1]])


def test_who_does_not_explore_takes_the_best_whatever_epsilon_is() -> None:
    np.testing.assert_array_equal(act(shown(50), epsilon=1.0, explore=False), [[1, 0]] * 50)


def test_exploring_draws_every_legal_action_alike() -> None:
    """With ε = 0.6, the first agent takes the worse of two legal actions in 0.3 of the cases; the second has one."""
    masked = shown(4000, [[True, True, False], [False, False, True]])
    actions = act(masked, epsilon=0.6, explore=True)
    assert set(np.unique(actions[:, 0])) == {0, 1} and (actions[:, 1] == 2).all()
    assert (actions[:, 0] == 0).mean() == pytest.approx(0.3, abs=0.03)


def test_the_network_gives_each_agent_a_value_for_each_action() -> None:
    """Without hidden layers it is x W + b. Both agents share W and b, and each is rated by what it sees itself."""
    plain = context()
    plain = dataclasses.replace(plain, model=make_model("mlp", layers=()))
    network = make_q_network(SPEC, GROUP, plain, share_parameters=True)
    shapes = jax.eval_shape(network.init, jax.random.key(0))
    assert shapes["head"]["kernel"].shape == (2, 3)
    params = {"head": {"kernel": jnp.array([[1.0, 0.0, -1.0], [0.0, 2.0, 1.0]]), "bias": jnp.array([0.5, 0.0, 0.0])}}
    params = {**jax.tree.map(lambda x: jnp.zeros(x.shape), shapes), **params}
    observation = jnp.array([[[[1.0, 0.0], [3.0, 4.0]]]])  # [T, B, A, 2]
    values, _ = network.apply(params, observation, (), jnp.zeros((1, 1), bool))
    np.testing.assert_allclose(values, [[[[1.5, 0.0, -1.0], [3.5, 8.0, 1.0]]]])
    apart = make_q_network(SPEC, GROUP, plain, share_parameters=False)
    assert jax.eval_shape(apart.init, jax.random.key(0))["head"]["kernel"].shape == (2, 2, 3)  # one for each agent


@pytest.mark.parametrize(("progress", "expected"), [(0.0, 1.0), (0.25, 0.6), (0.5, 0.2), (0.75, 0.2), (1.0, 0.2)])
def test_epsilon_falls_over_a_share_of_training(progress: float, expected: float) -> None:
    """From 1 to 0.2 over half of training, so 0.6 after a quarter, and it stays."""
    coefficients = {"epsilon_start": jnp.float32(1.0), "epsilon_end": jnp.float32(0.2)}
    assert float(annealed_epsilon(coefficients, 0.5, jnp.float32(progress))) == pytest.approx(expected)
