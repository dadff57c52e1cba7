"""Models over agents: order and number do not matter, everybody can matter, and topologies say who is heard."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import MakeTeam

from covey.errors import UsageError
from covey.networks.network import Model, make_model, make_network
from covey.networks.relational import (
    Aggregation,
    AttentionConfig,
    DeepSetsConfig,
    GnnConfig,
    GraphLayer,
    Over,
    Topology,
    aggregate,
    split_rows,
)
from covey.types import Network

STEPS, ENVS, AGENTS, FEATURES, OUTPUTS = 2, 3, 4, 5, 2
SMALL: dict[str, Any] = {"layers": (8,), "hidden_size": 8, "layers_after": (8,)}
CONFIGS = {
    "gatv2": ("gnn", GnnConfig(**SMALL)),
    "graph_conv": ("gnn", GnnConfig(**SMALL, layer=GraphLayer.graph_conv)),
    "edges": ("gnn", GnnConfig(**SMALL, position=(0, 1), velocity=(2, 3))),
    "attention": ("attention", AttentionConfig(hidden_size=8, num_heads=2, layers_after=(8,))),
    "deepsets": ("deepsets", DeepSetsConfig(layers=(8,), layers_after=(8,))),
}
slow = pytest.mark.slow
kinds = pytest.mark.parametrize(
    "kind", ["edges", "attention", *(pytest.param(kind, marks=slow) for kind in ("gatv2", "graph_conv", "deepsets"))]
)


def make(
    kind: str,
    *,
    config: Any = None,
    num_agents: int = AGENTS,
    num_outputs: int = OUTPUTS,
    centralised: bool = False,
    share: bool = True,
) -> tuple[Network, Any]:
    name, default = CONFIGS[kind]
    network = make_network(
        Model(name, config or default),
        input_shape=(num_agents * FEATURES,) if centralised else (FEATURES,),
        num_outputs=num_outputs,
        num_agents=num_agents,
        head_gain=1.0,
        centralised=centralised,
        share_parameters=share,
    )
    return network, jax.jit(network.init)(jax.random.key(0))


def run(network: Network, params: Any, inputs: Any) -> Any:
    return jax.jit(network.apply)(params, inputs, (), jnp.zeros(inputs.shape[:2], bool))[0]


def observations(num_agents: int = AGENTS, seed: int = 1) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), (STEPS, ENVS, num_agents, FEATURES))


@kinds
def test_order_does_not_matter(kind: str) -> None:
    network, params = make(kind)
    x, order = observations(), np.array([2, 0, 3, 1])
    np.testing.assert_allclose(run(network, params, x)[:, :, order], run(network, params, x[:, :, order]), atol=1e-5)


@kinds
def test_parameters_fit_any_number_of_agents(kind: str) -> None:
    _, params = make(kind)
    larger, other_params = make(kind, num_agents=7)
    shapes, other_shapes = (jax.tree.map(jnp.shape, p) for p in (params, other_params))
    assert shapes == other_shapes
    assert run(larger, params, observations(7)).shape == (STEPS, ENVS, 7, OUTPUTS)


@kinds
def test_every_agent_hears_every_other_and_every_parameter_learns(kind: str) -> None:
    network, params = make(kind)
    x = observations()
    heard = jax.jacobian(lambda x: run(network, params, x)[0, 0].sum(-1))(x)[:, 0, 0]  # [listener, speaker, F]
    assert (jnp.abs(heard).max(-1) > 0).all()
    grads = jax.grad(lambda p: jnp.square(run(network, p, x)).sum())(params)
    assert all(jnp.abs(leaf).max() > 0 for leaf in jax.tree.leaves(grads))


def test_topologies_say_who_is_heard() -> None:
    def heard(config: Any) -> np.ndarray:
        network, params = make("gatv2", config=config)
        x = observations()[:1, :1].at[0, 0, :, 0].set(jnp.array([0.0, 1.0, 2.0, 10.0]))
        jacobian = jax.jacobian(lambda x: run(network, params, x)[0, 0].sum(-1))(x)[:, 0, 0]
        return np.asarray(jnp.abs(jacobian[..., 1:]).max(-1) > 0)  # what is not the position

    for layer in GraphLayer:
        base = GnnConfig(**SMALL, layer=layer)
        assert heard(base).all()
        np.testing.assert_array_equal(heard(dataclasses.replace(base, topology=Topology.empty)), np.eye(AGENTS) > 0)
        near = dataclasses.replace(base, topology=Topology.radius, edge_radius=1.5, position=(0,))
        expected = np.eye(AGENTS, dtype=bool)
        expected[0, 1] = expected[1, 0] = expected[1, 2] = expected[2, 1] = True
        np.testing.assert_array_equal(heard(near), expected)


@kinds
def test_a_centralised_critic_gives_each_agent_its_own_or_all_one(kind: str) -> None:
    joint = observations().reshape(STEPS, ENVS, -1)
    network, params = make(kind, centralised=True, num_outputs=AGENTS)
    values = run(network, params, joint)
    assert values.shape == (STEPS, ENVS, AGENTS)
    assert len(np.unique(np.asarray(values[0, 0]).round(5))) == AGENTS
    network, params = make(kind, centralised=True, num_outputs=1)
    assert run(network, params, joint).shape == (STEPS, ENVS, 1)


def test_unshared_parameters_are_each_agents_own() -> None:
    network, params = make("gatv2", share=False)
    x = observations()
    before = run(network, params, x)
    changed = jax.tree.map(lambda p: p.at[1].add(1.0), params)
    after = run(network, changed, x)
    np.testing.assert_array_equal((before != after).any(axis=(0, 1, 3)), [False, True, False, False])


@pytest.mark.parametrize(
    "config",
    [
        AttentionConfig(over=Over.rows, hidden_size=8, num_heads=2, layers_after=(8,)),
        DeepSetsConfig(over=Over.rows, layers=(8,), layers_after=(8,)),
    ],
)
def test_over_rows_agents_are_alone_and_order_does_not_matter(config: AttentionConfig | DeepSetsConfig) -> None:
    name = "attention" if isinstance(config, AttentionConfig) else "deepsets"
    network = make_network(
        Model(name, config), input_shape=(6, FEATURES), num_outputs=OUTPUTS, num_agents=AGENTS, head_gain=1.0
    )
    params = jax.jit(network.init)(jax.random.key(0))
    x = jax.random.normal(jax.random.key(1), (STEPS, ENVS, AGENTS, 6, FEATURES))
    outputs = run(network, params, x)
    np.testing.assert_allclose(outputs, run(network, params, x[:, :, :, ::-1]), atol=1e-5)
    changed = run(network, params, x.at[:, :, 0].add(1.0))
    np.testing.assert_array_equal((changed != outputs).any(axis=(0, 1, 3)), [True, False, False, False])


@pytest.mark.parametrize(("kind", "expected"), [("add", [3.0, 0.0]), ("mean", [1.5, 0.0]), ("max", [2.0, 0.0])])
def test_aggregation_by_hand(kind: str, expected: list[float]) -> None:
    x, mask = jnp.array([[1.0, 2.0, 9.0], [1.0, 2.0, 3.0]]), jnp.array([[True, True, False], [False] * 3])
    np.testing.assert_allclose(aggregate(Aggregation[kind], x, mask, 1), expected)


def test_bad_fields_and_inputs_are_refused() -> None:
    with pytest.raises(UsageError, match="needs edge_radius"):
        make_model("gnn", topology="radius")
    with pytest.raises(UsageError, match="does not split over num_heads"):
        make_model("attention", hidden_size=10)
    with pytest.raises(UsageError, match="critic_sees=joint"):
        make_network(make_model("gnn"), input_shape=(7,), num_outputs=4, num_agents=4, head_gain=1.0, centralised=True)
    with pytest.raises(UsageError, match="must be indices into observations of 5 numbers"):
        make("gatv2", config=GnnConfig(**SMALL, position=(5,)))


@pytest.mark.parametrize("model", ["gnn", pytest.param("attention", marks=slow), pytest.param("deepsets", marks=slow)])
@pytest.mark.parametrize("algorithm", ["mappo", pytest.param("ippo", marks=slow)])
def test_teams_learn_with_them(trained: MakeTeam, model: str, algorithm: str) -> None:
    assert trained("probe/copy", algorithm=algorithm, model=model, iterations=40).returns()["agents"] > 0.98


def test_rows_of_a_flat_observation_are_found_and_their_order_does_not_matter() -> None:
    x = jnp.arange(9.0)  # two entries, then two rows of three, then one entry
    np.testing.assert_array_equal(split_rows(x, (2, 2, 3)), [[2, 3, 4, 0, 1, 8], [5, 6, 7, 0, 1, 8]])
    for config in (
        DeepSetsConfig(over=Over.rows, rows=(2, 2, 3), layers=(8,), layers_after=(8,), aggregation=Aggregation.max),
        AttentionConfig(over=Over.rows, rows=(2, 2, 3), hidden_size=8, num_heads=2, layers_after=(8,)),
    ):
        name = "deepsets" if isinstance(config, DeepSetsConfig) else "attention"
        network = make_network(Model(name, config), input_shape=(9,), num_outputs=2, num_agents=1, head_gain=1.0)
        params = jax.jit(network.init)(jax.random.key(0))
        swapped = x[np.array([0, 1, 5, 6, 7, 2, 3, 4, 8])]
        changed = x.at[6].add(1.0)
        one, same, other = (run(network, params, y[None, None, None]) for y in (x, swapped, changed))
        np.testing.assert_allclose(one, same, rtol=1e-5)
        assert np.abs(one - other).max() > 1e-4


@pytest.mark.parametrize("fields", [{"rows": (0, 2, 3)}, {"over": Over.rows, "rows": (0, 2)}])
def test_rows_that_make_no_sense_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="rows"):
        DeepSetsConfig(**fields)


def test_rows_beyond_the_observation_are_refused() -> None:
    model = make_model("deepsets", over="rows", rows=[2, 3, 3])
    with pytest.raises(UsageError, match="beyond observations of 9"):
        make_network(model, input_shape=(9,), num_outputs=2, num_agents=1, head_gain=1.0)
