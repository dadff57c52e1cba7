"""Networks: who depends on whose parameters, that all of them learn, and which shapes fit."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from covey import registry
from covey.errors import UsageError
from covey.networks.layers import Initialiser, Norm
from covey.networks.models import CnnConfig, MlpConfig, RecurrentConfig
from covey.networks.network import (
    Model,
    apply_after,
    apply_with_true_successors,
    make_model,
    make_network,
    rescale_outputs,
)
from covey.types import Network

STEPS, ENVS, AGENTS, OUTPUTS = 3, 2, 4, 5
CONFIGS = {
    "mlp": MlpConfig(layers=(8, 8)),
    "cnn": CnnConfig(channels=(3, 4), kernels=(3, 3), strides=(1, 2), layers=(8,)),
    "gru": RecurrentConfig(layers=(8,), hidden_size=6, layers_after=(8,)),
    "lstm": RecurrentConfig(layers=(8,), hidden_size=6, layers_after=(8,)),
}
SHAPES = {"mlp": (3,), "cnn": (5, 5, 2), "gru": (3,), "lstm": (3,)}
SHARING = [(False, True), (False, False), (True, True), (True, False)]  # centralised, share_parameters


def make(
    name: str,
    *,
    config: Any = None,
    input_shape: tuple[int, ...] | None = None,
    centralised: bool = False,
    share_parameters: bool = True,
) -> tuple[Network, Any, jax.Array]:
    input_shape = SHAPES[name] if input_shape is None else input_shape
    network = make_network(
        Model(name, config or CONFIGS[name]),
        input_shape=input_shape,
        num_outputs=OUTPUTS,
        num_agents=AGENTS,
        head_gain=1.0,
        centralised=centralised,
        share_parameters=share_parameters,
    )
    leading = (STEPS, ENVS) if centralised else (STEPS, ENVS, AGENTS)
    inputs = jax.random.normal(jax.random.key(1), (*leading, *input_shape))
    return network, jax.jit(network.init)(jax.random.key(0)), inputs


def run(network: Network, params: Any, inputs: Any, reset: jax.Array | None = None) -> tuple[jax.Array, Any]:
    reset = jnp.zeros((STEPS, ENVS), bool) if reset is None else reset
    return compiled(network)(params, inputs, network.initial_carry(ENVS), reset)


@functools.lru_cache(maxsize=4)
def compiled(network: Network) -> Callable[..., tuple[jax.Array, Any]]:
    return jax.jit(network.apply)


def test_every_built_in_model_is_covered() -> None:
    elsewhere = {"gnn", "attention", "deepsets", "sequence"}  # test_relational.py, test_sequence.py
    built_in = {entry.name for entry in registry.models if str(entry.make).startswith("covey.")}
    assert built_in == set(CONFIGS) | elsewhere


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize(("centralised", "share_parameters"), SHARING)
def test_shapes_and_gradients(name: str, centralised: bool, share_parameters: bool) -> None:
    """Every array of parameters, of every agent, gets a gradient: a layer that never learns fails here."""
    network, params, inputs = make(name, centralised=centralised, share_parameters=share_parameters)
    assert network.recurrent == (name in ("gru", "lstm"))

    def objective(params: Any) -> tuple[jax.Array, jax.Array]:
        outputs, _ = run(network, params, inputs)
        return jnp.sum(jnp.square(outputs - 1.0)), outputs

    gradients, outputs = jax.jit(jax.grad(objective, has_aux=True))(params)
    one_for_all = centralised and share_parameters
    assert outputs.shape == ((STEPS, ENVS, OUTPUTS) if one_for_all else (STEPS, ENVS, AGENTS, OUTPUTS))
    assert type(params) is dict
    for path, gradient in jax.tree_util.tree_leaves_with_path(gradients):
        per_agent = gradient[None] if share_parameters else gradient
        assert len(per_agent) == (1 if share_parameters else AGENTS)
        for own in per_agent:
            assert np.any(own != 0), jax.tree_util.keystr(path)


@pytest.mark.parametrize("name", CONFIGS)
def test_per_agent_parameters_differ_and_keep_to_their_agent(name: str) -> None:
    network, params, inputs = make(name, share_parameters=False)
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        if "kernel" in jax.tree_util.keystr(path):
            for agent in range(1, AGENTS):
                assert not np.allclose(leaf[0], leaf[agent]), jax.tree_util.keystr(path)
    before, _ = run(network, params, inputs)
    changed = jax.tree.map(lambda leaf: leaf.at[1].multiply(1.5).at[1].add(0.1), params)
    after, _ = run(network, changed, inputs)
    others = np.array([0, 2, 3])
    np.testing.assert_array_equal(before[:, :, others], after[:, :, others])
    assert not np.any(np.all(np.isclose(before[:, :, 1], after[:, :, 1]), axis=-1))


@pytest.mark.parametrize("share_parameters", [True, False])
@pytest.mark.parametrize("name", CONFIGS)
def test_an_agents_output_depends_on_its_own_input_only(name: str, share_parameters: bool) -> None:
    network, params, inputs = make(name, share_parameters=share_parameters)
    before, _ = run(network, params, inputs)
    after, _ = run(network, params, inputs.at[:, :, 2].add(1.0))
    others = np.array([0, 1, 3])
    np.testing.assert_allclose(before[:, :, others], after[:, :, others], atol=1e-6)
    assert not np.allclose(before[:, :, 2], after[:, :, 2])


def test_shared_parameters_treat_agents_alike() -> None:
    network, params, inputs = make("mlp")
    outputs, _ = run(network, params, jnp.broadcast_to(inputs[:, :, :1], inputs.shape))
    np.testing.assert_allclose(outputs, jnp.broadcast_to(outputs[:, :, :1], outputs.shape), atol=1e-6)


def test_per_agent_network_equals_each_agents_own() -> None:
    network, params, inputs = make("gru", share_parameters=False)
    together, _ = run(network, params, inputs)
    alone, _, _ = make("gru")
    for agent in range(AGENTS):
        own = jax.tree.map(lambda leaf, agent=agent: leaf[agent], params)
        outputs, _ = run(alone, own, inputs)
        np.testing.assert_allclose(outputs[:, :, agent], together[:, :, agent], atol=1e-5)


@pytest.mark.parametrize("name", ["gru", "lstm"])
@pytest.mark.parametrize(("centralised", "share_parameters"), SHARING)
def test_reset_in_the_middle_equals_two_unrolls(name: str, centralised: bool, share_parameters: bool) -> None:
    network, params, inputs = make(name, centralised=centralised, share_parameters=share_parameters)
    inputs = jnp.concatenate([inputs, inputs + 0.5])
    reset = jnp.zeros((2 * STEPS, ENVS), bool).at[STEPS].set(True)
    whole, end = run(network, params, inputs, reset)
    first, _ = run(network, params, inputs[:STEPS])
    second, second_end = run(network, params, inputs[STEPS:])
    np.testing.assert_allclose(whole, jnp.concatenate([first, second]), atol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), end, second_end)
    one_by_one, carry = [], network.initial_carry(ENVS)
    for t in range(2 * STEPS):
        outputs, carry = compiled(network)(params, inputs[t : t + 1], carry, reset[t : t + 1])
        one_by_one.append(outputs)
    np.testing.assert_allclose(whole, jnp.concatenate(one_by_one), atol=1e-5)


def test_the_burn_in_fills_the_memory_and_is_not_learned_from() -> None:
    network, params, inputs = make("gru")
    never, carry = jnp.zeros((STEPS, ENVS), bool), network.initial_carry(ENVS)

    def after_one(inputs: Any) -> Any:
        return apply_after(network, params, inputs, carry, never, 1)

    whole, _ = run(network, params, inputs)
    np.testing.assert_allclose(jax.jit(after_one)(inputs), whole[1:], atol=1e-6)
    slope = jax.jit(jax.grad(lambda inputs: after_one(inputs).sum()))(inputs)
    assert (slope[0] == 0).all() and (slope[1:] != 0).any(axis=(1, 2, 3)).all()


def test_feed_forward_networks_have_no_carry() -> None:
    network, params, inputs = make("mlp")
    assert network.initial_carry(7) == ()
    outputs, carry = run(network, params, inputs)
    assert carry == ()
    shuffled, _ = run(network, params, inputs[::-1])
    np.testing.assert_allclose(outputs, shuffled[::-1], atol=1e-6)


# ------------------------------------------------------------------------------------------------- observations [N, F]


def test_flattened_rows_see_their_order_and_averaged_rows_do_not() -> None:
    for flatten in (True, False):
        network, params, inputs = make("mlp", config=MlpConfig(layers=(8,), flatten=flatten), input_shape=(4, 3))
        outputs, _ = run(network, params, inputs)
        assert outputs.shape == (STEPS, ENVS, AGENTS, OUTPUTS)
        turned, _ = run(network, params, inputs[..., ::-1, :])
        assert np.allclose(outputs, turned, atol=1e-5) != flatten
        size = params["model"]["mlp"]["layers"][0]["kernel"].shape
        assert size == ((12, 8) if flatten else (3, 8))


def test_recurrent_models_flatten_rows() -> None:
    network, params, inputs = make("gru", input_shape=(4, 3))
    assert run(network, params, inputs)[0].shape == (STEPS, ENVS, AGENTS, OUTPUTS)


def test_cnn_sees_images_only() -> None:
    with pytest.raises(UsageError, match=r"needs observations \[H, W, C\].*model=mlp"):
        make("cnn", input_shape=(3,))
    with pytest.raises(ValueError, match="one entry per convolution"):
        CnnConfig(channels=(4,), kernels=(3, 3), strides=(1,))


def test_integer_observations() -> None:
    network, params, _ = make("mlp")
    inputs = jnp.arange(STEPS * ENVS * AGENTS * 3, dtype=jnp.int32).reshape(STEPS, ENVS, AGENTS, 3)
    outputs, _ = run(network, params, inputs)
    np.testing.assert_array_equal(outputs, run(network, params, inputs.astype(jnp.float32))[0])


def test_head_gain_scales_the_outputs() -> None:
    def head(config: Any) -> np.ndarray:
        network = make_network(Model("mlp", config), input_shape=(3,), num_outputs=2, num_agents=1, head_gain=0.01)
        return np.asarray(jax.jit(network.init)(jax.random.key(0))["head"]["kernel"])

    small = head(CONFIGS["mlp"])
    np.testing.assert_allclose(small.T @ small, 1e-4 * np.eye(2), atol=1e-8)
    # The gain is the orthogonal initialiser's; torch's has none.
    assert np.abs(head(dataclasses.replace(CONFIGS["mlp"], initialiser=Initialiser.uniform))).max() > 0.1


def test_layer_norm_has_parameters_that_learn() -> None:
    network, params, inputs = make("mlp", config=MlpConfig(layers=(8,), norm=Norm.layer))
    gradients = jax.grad(lambda params: jnp.sum(jnp.square(run(network, params, inputs)[0] - 1.0)))(params)
    assert np.any(gradients["model"]["mlp"]["norms"][0]["scale"] != 0)


class Averaging(nnx.Module):
    """A user's model that averages over its batch."""

    def __init__(self, config: Any, input_shape: tuple[int, ...], rngs: Any) -> None:
        self.num_features = input_shape[-1]

    def __call__(self, x: jax.Array) -> jax.Array:
        return x.mean(axis=0)


def test_a_model_that_loses_axes_is_named() -> None:
    registry.register_model("averaging", Averaging, config=MlpConfig, description="test")
    try:
        network, params, inputs = make("averaging", config=MlpConfig(), input_shape=(3,))
        with pytest.raises(UsageError, match="Averaging"):
            run(network, params, inputs)
    finally:
        registry.models._entries.pop("averaging")


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize(("centralised", "share_parameters"), SHARING)
def test_rescaled_outputs(name: str, centralised: bool, share_parameters: bool) -> None:
    """Only the head differs, and outputs of any size are what was asked for."""
    network, params, inputs = make(name, centralised=centralised, share_parameters=share_parameters)
    rescaled = rescale_outputs(params, jnp.float32(3.0), jnp.float32(-70.0))
    jax.tree.map(np.testing.assert_array_equal, params["model"], rescaled["model"])
    before, _ = run(network, params, inputs)
    after, _ = run(network, rescaled, inputs)
    np.testing.assert_allclose(after, 3.0 * before - 70.0, rtol=1e-5)


@pytest.mark.parametrize("centralised", [False, True])
@pytest.mark.parametrize("share_parameters", [False, True])
def test_rescaled_outputs_of_a_model_that_reads_the_team(centralised: bool, share_parameters: bool) -> None:
    network = make_network(
        make_model("deepsets", layers=(8,), layers_after=(8,)),
        input_shape=(3 * AGENTS,) if centralised else (3,),
        num_outputs=1 if centralised else OUTPUTS,
        num_agents=AGENTS,
        head_gain=1.0,
        centralised=centralised,
        share_parameters=share_parameters,
    )
    params = network.init(jax.random.key(0))
    inputs = jax.random.normal(
        jax.random.key(1), (STEPS, ENVS, 3 * AGENTS) if centralised else (STEPS, ENVS, AGENTS, 3)
    )
    before, _ = run(network, params, inputs)
    after, _ = run(network, rescale_outputs(params, jnp.float32(0.2), jnp.float32(5.0)), inputs)
    np.testing.assert_allclose(after, 0.2 * before + 5.0, rtol=1e-5)


@pytest.mark.parametrize("name", ["mlp", "gru"])
def test_successors_are_the_next_steps_unless_an_episode_was_cut(name: str) -> None:
    """Both ways give the same where episodes go on or terminate. Where one is cut, only one of them sees its end."""
    network, params, inputs = make(name)
    following = jax.random.normal(jax.random.key(2), inputs.shape[1:])
    next_inputs = jnp.concatenate([inputs[1:], following[None]])
    reset = jnp.zeros((STEPS, ENVS), bool)
    carry = network.initial_carry(ENVS)
    rate = jax.jit(functools.partial(apply_with_true_successors, network))
    outputs, quick = rate(params, inputs, next_inputs, carry, reset, jnp.bool_(False))
    same, thorough = rate(params, inputs, next_inputs, carry, reset, jnp.bool_(True))
    np.testing.assert_allclose(outputs, same, atol=1e-5)
    np.testing.assert_allclose(quick, thorough, atol=1e-5)
    np.testing.assert_allclose(quick[:-1], outputs[1:], atol=1e-5)
    # The first environment's episode is cut after its first step.
    next_inputs, reset = next_inputs.at[0, 0].add(1.0), reset.at[1, 0].set(True)
    outputs, thorough = rate(params, inputs, next_inputs, carry, reset, jnp.bool_(True))
    np.testing.assert_allclose(thorough[0, 1], outputs[1, 1], atol=1e-5)
    assert not np.allclose(thorough[0, 0], outputs[1, 0], atol=1e-3)
    alone, _ = network.apply(params, jnp.stack([inputs[0], next_inputs[0]]), carry, jnp.zeros((2, ENVS), bool))
    np.testing.assert_allclose(thorough[0, 0], alone[1, 0], atol=1e-5)
