"""What critics see, by hand: choices settled, actions encoded, and several critics side by side."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from covey.algorithms.critics import CriticOutputs, CriticSees, resolve
from covey.algorithms.replay_critics import (
    Critics,
    encode_action,
    encoded_size,
    make_critics,
    require_memory_of_both,
)
from covey.networks.network import Model, make_model, make_network
from covey.types import ActionSpec, Continuous, Discrete, EnvSpec, GroupSpec, MultiDiscrete, Network

PLAIN, OVER_AGENTS = make_model("mlp", layers=()), make_model("gnn")


def spec(state_shape: tuple[int, ...] | None = None) -> EnvSpec:
    group = GroupSpec(num_agents=2, observation_shape=(2,), action=Discrete(3))
    return EnvSpec(groups={"agents": group}, time_limit=5, state_shape=state_shape)


def test_auto_sees_the_state_and_without_one_all_observations() -> None:
    assert resolve(CriticSees.auto, spec(state_shape=(4,)), PLAIN) is CriticSees.state
    assert resolve(CriticSees.auto, spec(), PLAIN) is CriticSees.joint
    assert resolve(CriticSees.auto, spec(state_shape=(4,)), OVER_AGENTS) is CriticSees.joint  # 4 = 2 agents × 2 numbers
    for chosen in (CriticSees.own, CriticSees.joint):
        assert resolve(chosen, spec(state_shape=(4,)), PLAIN) is chosen


def test_a_state_that_cannot_be_seen_is_refused() -> None:
    with pytest.raises(ValueError, match="the task has no global state"):
        resolve(CriticSees.state, spec(), PLAIN)
    with pytest.raises(ValueError, match="'gnn' reads the agents' observations, not a global state"):
        resolve(CriticSees.state, spec(state_shape=(4,)), OVER_AGENTS)


def test_choices_are_encoded_one_hot_and_numbers_stay() -> None:
    np.testing.assert_array_equal(encode_action(Discrete(3), jnp.array([2, 0])), [[0, 0, 1], [1, 0, 0]])
    several = encode_action(MultiDiscrete((2, 3)), jnp.array([[1, 2], [0, 1]]))
    np.testing.assert_array_equal(several, [[0, 1, 0, 0, 1], [1, 0, 0, 1, 0]])
    numbers = jnp.array([[0.5, -0.5]])
    assert encode_action(Continuous(low=(-1.0, -1.0), high=(1.0, 1.0)), numbers) is numbers


@pytest.mark.parametrize(
    ("action", "size"), [(Discrete(3), 3), (MultiDiscrete((2, 3)), 5), (Continuous(low=(0.0,), high=(1.0,)), 1)]
)
def test_the_size_of_an_encoded_action(action: ActionSpec, size: int) -> None:
    assert encoded_size(action) == size


def made(sees: CriticSees, outputs: CriticOutputs, **fields: Any) -> Critics:
    options: dict[str, Any] = {"action_size": 1, "num_outputs": 1, "num_critics": 2, "share_parameters": True, **fields}
    return make_critics(PLAIN, spec(), "agents", sees=sees, outputs=outputs, **options)


OBSERVATION = jnp.array([[[[1.0, 2.0], [3.0, 4.0]]]])  # [T, B, A, 2]
ACTION = jnp.array([[[[10.0], [20.0]]]])


def test_own_critics_rate_each_agents_observation_and_action() -> None:
    """Two critics: the sum of what is seen and done, and twice its negative plus one."""
    critics = made(CriticSees.own, CriticOutputs.per_agent)
    shapes = jax.eval_shape(critics.init, jax.random.key(0))
    assert shapes["critic_0"]["head"]["kernel"].shape == (3, 1)
    inputs = critics.inputs(OBSERVATION, None, ACTION, ())
    np.testing.assert_array_equal(inputs, [[[[1.0, 2.0, 10.0], [3.0, 4.0, 20.0]]]])
    params = {
        "critic_0": filled(shapes["critic_0"], kernel=1.0, bias=0.0),
        "critic_1": filled(shapes["critic_1"], kernel=-2.0, bias=1.0),
    }
    values = critics.evaluate(params, inputs, jnp.zeros((1, 1), bool), 0)
    np.testing.assert_allclose(values[..., 0], [[[[13.0, 27.0]]], [[[-25.0, -53.0]]]])


def filled(shapes: Any, *, kernel: float, bias: float) -> Any:
    """A network's parameters, all zero but the head's."""
    head = {"kernel": kernel, "bias": bias}
    return {
        **jax.tree.map(lambda x: jnp.zeros(x.shape), shapes),
        "head": {name: jnp.full(shapes["head"][name].shape, value) for name, value in head.items()},
    }


@pytest.mark.parametrize(("outputs", "width"), [(CriticOutputs.per_agent, 2), (CriticOutputs.one, 1)])
def test_a_joint_critic_sees_all_and_values_all(outputs: CriticOutputs, width: int) -> None:
    """Agent by agent, observation and then action; one output counts for both agents."""
    critics = made(CriticSees.joint, outputs, num_critics=1)
    inputs = critics.inputs(OBSERVATION, None, ACTION, ())
    np.testing.assert_array_equal(inputs, [[[1.0, 2.0, 10.0, 3.0, 4.0, 20.0]]])
    shapes = jax.eval_shape(critics.init, jax.random.key(0))["critic_0"]
    assert shapes["head"]["kernel"].shape == (6, width)
    params = {"critic_0": filled(shapes, kernel=1.0, bias=0.0)}
    next_inputs = inputs + 1.0
    reset = jnp.zeros((1, 1), bool)
    np.testing.assert_allclose(critics.evaluate(params, inputs, reset, 0)[..., 0], [[[[40.0, 40.0]]]])
    after = critics.evaluate_successors(params, inputs, next_inputs, reset)
    np.testing.assert_allclose(after[..., 0], [[[[46.0, 46.0]]]])


def test_only_a_critic_with_memory_is_refused() -> None:
    def network(model: Model) -> Network:
        return make_network(model, input_shape=(2,), num_outputs=1, num_agents=2, head_gain=1.0)

    actor = {name: network(make_model(name)) for name in ("mlp", "gru")}
    options: dict[str, Any] = {"action_size": 1, "num_outputs": 1, "num_critics": 1, "share_parameters": True}
    critics = {
        name: make_critics(
            make_model(name), spec(), "agents", sees=CriticSees.own, outputs=CriticOutputs.per_agent, **options
        )
        for name in ("mlp", "gru")
    }
    with pytest.raises(ValueError, match="a critic_model with memory needs a model with memory"):
        require_memory_of_both(actor["mlp"], critics["gru"])
    for own, rating in (("mlp", "mlp"), ("gru", "mlp"), ("gru", "gru")):
        require_memory_of_both(actor[own], critics[rating])
