"""Sequences of models: features flow through all stages, memory is kept, and bad stages are refused."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from covey.errors import UsageError
from covey.networks.network import make_model, make_network
from covey.types import Network

STEPS, ENVS, AGENTS, FEATURES = 4, 2, 3, 5
STAGES = {
    "plain": {"see": {"model": "mlp", "layers": [8]}, "think": {"model": "mlp", "layers": [6]}},
    "talking": {"see": {"model": "mlp", "layers": [8]}, "talk": {"model": "gnn", "layers": [8], "hidden_size": 8}},
    "remembering": {
        "see": {"model": "mlp", "layers": [8]},
        "talk": {"model": "attention", "hidden_size": 8},
        "keep": {"model": "gru", "layers": [8], "hidden_size": 6},
    },
}


def make(kind: str) -> tuple[Network, Any]:
    model = make_model("sequence", stages=STAGES[kind])
    network = make_network(model, input_shape=(FEATURES,), num_outputs=2, num_agents=AGENTS, head_gain=1.0)
    return network, jax.jit(network.init)(jax.random.key(0))


@pytest.mark.parametrize("kind", list(STAGES))
def test_every_parameter_learns(kind: str) -> None:
    network, params = make(kind)
    x = jax.random.normal(jax.random.key(1), (STEPS, ENVS, AGENTS, FEATURES))
    reset = jnp.zeros((STEPS, ENVS), bool)

    def loss(params: Any) -> jax.Array:
        outputs, _ = jax.jit(network.apply)(params, x, network.initial_carry(ENVS), reset)
        assert outputs.shape == (STEPS, ENVS, AGENTS, 2)
        return jnp.square(outputs).sum()

    grads = jax.jit(jax.grad(loss))(params)
    assert all(jnp.abs(leaf).max() > 0 for leaf in jax.tree.leaves(grads))


def test_agents_hear_each_other_only_where_a_stage_lets_them() -> None:
    x = jax.random.normal(jax.random.key(1), (1, 1, AGENTS, FEATURES))
    for kind, hears in (("plain", False), ("talking", True)):
        network, params = make(kind)

        def outputs(x: jax.Array, network: Network = network, params: Any = params) -> Any:
            return jax.jit(network.apply)(params, x, (), jnp.zeros((1, 1), bool))[0]

        changed = np.asarray(outputs(x.at[0, 0, 0].add(1.0)) != outputs(x)).any(axis=(0, 1, 3))
        np.testing.assert_array_equal(changed, [True, hears, hears])


def test_memory_goes_on_with_its_carry_and_is_reset() -> None:
    network, params = make("remembering")
    x = jax.random.normal(jax.random.key(1), (STEPS, ENVS, AGENTS, FEATURES))
    reset = jnp.zeros((STEPS, ENVS), bool).at[3].set(True)
    start = network.initial_carry(ENVS)
    whole, _ = jax.jit(network.apply)(params, x, start, reset)
    first, carry = jax.jit(network.apply)(params, x[:2], start, reset[:2])
    second, _ = jax.jit(network.apply)(params, x[2:], carry, reset[2:])
    np.testing.assert_allclose(jnp.concatenate([first, second]), whole, atol=1e-6)
    afresh, _ = jax.jit(network.apply)(params, x[3:], start, reset[3:])
    np.testing.assert_allclose(whole[3:], afresh, atol=1e-6)


def test_no_stages_are_refused() -> None:
    with pytest.raises(UsageError, match="needs stages"):
        make_network(make_model("sequence"), input_shape=(3,), num_outputs=2, num_agents=2, head_gain=1.0)


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ({"a": {"layers": [3]}}, "takes a mapping with a `model`"),
        ({"a": {"model": "mpl"}}, "unknown model 'mpl'"),
        ({"a": {"model": "mlp", "layer": [3]}}, "layer"),
        ({"a": {"model": "sequence"}}, "cannot be a stage"),
    ],
)
def test_bad_stages_are_refused(stages: dict[str, dict[str, list[int] | str]], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make_model("sequence", stages=stages)
