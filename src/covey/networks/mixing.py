"""Mixers: from the agents' values to the team's, as pure functions over a plain dict like any network."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

from covey.networks.layers import Initialiser, make_linear
from covey.observations import flat_size
from covey.types import Array, Key, ObservationShape, PyTree


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mixer:
    """`apply(params, values [..., A], state [..., S]) -> [...]`, where S counts all numbers of the state."""

    init: Callable[[Key], PyTree]
    apply: Callable[[PyTree, Array, Array], Array]


class MonotonicMixing(nnx.Module):
    """QMIX's mixer (Rashid et al., 2018): Q_tot = |W2(s)|ᵀ elu(|W1(s)|ᵀ q + b1(s)) + b2(s), so ∂Q_tot/∂q ≥ 0.

    `bias_gain` scales the initial b1 and b2. With the usual 1, each state starts with a random value of about 1,
    whatever the agents' values are. Values are learned from later values, so it takes long to unlearn these. With less,
    the team's value starts as a weighted sum of the agents'.
    """

    def __init__(
        self,
        num_agents: int,
        num_inputs: int,
        hidden_size: int,
        hyper_size: int | None,
        bias_gain: float,
        rngs: nnx.Rngs,
    ):
        self.num_agents, self.hidden_size = num_agents, hidden_size

        def linear(inputs: int, outputs: int) -> nnx.Linear:
            return make_linear(inputs, outputs, Initialiser.uniform, rngs)

        def hyper(outputs: int) -> nnx.List[nnx.Linear]:
            if hyper_size is None:
                return nnx.List([linear(num_inputs, outputs)])
            return nnx.List([linear(num_inputs, hyper_size), linear(hyper_size, outputs)])

        self.weight_1 = hyper(num_agents * hidden_size)
        self.weight_2 = hyper(hidden_size)
        self.bias_1 = linear(num_inputs, hidden_size)
        self.bias_2 = nnx.List([linear(num_inputs, hidden_size), linear(hidden_size, 1)])
        for last in (self.bias_1, self.bias_2[-1]):
            for parameter in (last.kernel, last.bias):
                assert parameter is not None
                parameter[...] *= bias_gain

    def __call__(self, values: Array, state: Array) -> Array:
        def run(layers: nnx.List[nnx.Linear], x: Array) -> Array:
            for layer in list(layers)[:-1]:
                x = jax.nn.relu(layer(x))
            return layers[-1](x)

        weight_1 = jnp.abs(run(self.weight_1, state)).reshape(-1, self.num_agents, self.hidden_size)
        weight_2 = jnp.abs(run(self.weight_2, state))
        hidden = jax.nn.elu(jnp.einsum("na,nah->nh", values, weight_1) + self.bias_1(state))
        return jnp.sum(hidden * weight_2, -1) + run(self.bias_2, state)[:, 0]


def make_monotonic_mixer(
    *,
    num_agents: int,
    state_shape: ObservationShape,
    hidden_size: int = 32,
    hyper_size: int | None = 64,
    bias_gain: float = 1.0,
) -> Mixer:
    """`hyper_size` is that of the hidden layers that compute the weights; None: weights are linear in the state."""
    num_inputs = flat_size(state_shape)

    def build(key: Key) -> MonotonicMixing:
        return MonotonicMixing(num_agents, num_inputs, hidden_size, hyper_size, bias_gain, nnx.Rngs(params=key))

    graph, abstract = nnx.split(nnx.eval_shape(lambda: build(jax.random.key(0))), nnx.Param)

    def init(key: Key) -> PyTree:
        return nnx.to_pure_dict(nnx.state(build(key), nnx.Param))

    def apply(params: PyTree, values: Array, state: Array) -> Array:
        leading = values.shape[:-1]
        filled = jax.tree.map(lambda leaf: leaf, abstract)
        nnx.replace_by_pure_dict(filled, params)
        mixed = nnx.merge(graph, filled)(values.reshape(-1, num_agents), state.reshape(-1, num_inputs))
        return mixed.reshape(leading)

    return Mixer(init=init, apply=apply)


def make_sum_mixer() -> Mixer:
    """VDN's mixer (Sunehag et al., 2018): Q_tot = Σ q."""
    return Mixer(init=lambda key: {}, apply=lambda params, values, state: values.sum(-1))
