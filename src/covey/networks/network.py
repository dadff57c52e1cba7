"""The border between nnx modules and the rest of covey: `make_network` gives pure functions over a plain dict.

A network is a model with a linear head. It reads each agent's observation, or one input for the whole group
(`centralised`). Agents share its parameters, or each has its own set. Models that read the whole team
(`config.reads_team`) see all agents' observations and give each agent its own features, in actors and critics alike. An
input is an array, or a dictionary of arrays if the model takes those.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from covey import registry
from covey.errors import UnfitInput, UsageError
from covey.networks.inputs import make_module
from covey.networks.layers import Initialiser, make_linear
from covey.observations import describe_shape, leading_shape
from covey.types import Array, Key, Network, Observation, ObservationShape, PyTree


@dataclasses.dataclass(frozen=True)
class Model:
    """A registered model's name and its configuration."""

    name: str
    config: Any


def make_model(name: str, **fields: Any) -> Model:
    """The registered model `name`, e.g. `make_model("mlp", layers=(256, 256), activation="tanh")`."""
    return Model(name, registry.build_config(registry.models[name].defaults(), fields, "model"))


class ModelWithHead(nnx.Module):
    """A model, and the dense layer from its features `[T, B, A, F]` to what an actor, critic or Q-function outputs."""

    def __init__(self, model: Any, num_outputs: int, gain: float, initialiser: Initialiser, rngs: nnx.Rngs):
        self.model = model  # an nnx module with `num_features`, and with `initial_carry` where it has memory
        self.head = make_linear(model.num_features, num_outputs, initialiser, rngs, gain=gain)

    def __call__(self, x: Observation, carry: PyTree, reset: Array) -> tuple[Array, PyTree]:
        x = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), x)
        if hasattr(self.model, "initial_carry"):
            features, carry = self.model(x, carry, reset)
        else:  # without memory, all leading axes become one
            features = self.model(jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[reset.ndim :]), x))
            if features.shape[:1] == (reset.size,):
                features = features.reshape(*reset.shape, *features.shape[1:])
        if features.shape[:-1] != reset.shape:
            raise UsageError(
                f"model {type(self.model).__name__} gave features {features.shape} for inputs {_shapes(x)}; "
                f"it must return one vector for each of {reset.shape}"
            )
        return self.head(features), carry


def _shapes(x: Observation) -> Any:
    return {name: leaf.shape for name, leaf in x.items()} if isinstance(x, dict) else x.shape


_captured: contextvars.ContextVar[dict[str, Any] | None] = contextvars.ContextVar("captured", default=None)


@contextlib.contextmanager
def captured_activations() -> Iterator[dict[str, Any]]:
    """Collects the output of every module of every network that is applied, uncompiled, inside the context."""
    captured: dict[str, Any] = {}
    token = _captured.set(captured)
    try:
        yield captured
    finally:
        _captured.reset(token)


def _call(name: str, module: ModelWithHead, inputs: Observation, carry: PyTree, reset: Array) -> tuple[Array, PyTree]:
    captured = _captured.get()
    if captured is None:
        return module(inputs, carry, reset)
    result, intermediates = nnx.capture(module, nnx.Intermediate, method_outputs=nnx.Intermediate)(inputs, carry, reset)
    captured[name] = nnx.to_pure_dict(intermediates)
    return result


def make_network(
    model: Model,
    *,
    name: str = "network",
    input_shape: ObservationShape,
    num_outputs: int,
    num_agents: int,
    head_gain: float,
    centralised: bool = False,
    share_parameters: bool = True,
) -> Network:
    """A network for a group of `num_agents`; its activations are captured under `name`.

    decentralised:         inputs `[T, B, A, *input_shape]` -> `[T, B, A, num_outputs]`
    centralised, shared:   inputs `[T, B, *input_shape]`    -> `[T, B, num_outputs]`
    centralised, separate: inputs `[T, B, *input_shape]`    -> `[T, B, A, num_outputs]`

    Where `input_shape` is a dictionary, so are inputs, and each entry has these axes before its own. A model that reads
    the team takes a centralised input to be the agents' own inputs, side by side.
    """
    shape = GroupShape(num_agents=num_agents, centralised=centralised, share_parameters=share_parameters)
    if model.config.reads_team:
        return _make_team_network(model, shape, name, input_shape, num_outputs, head_gain)
    module = trace_module(model, name, input_shape, num_outputs, head_gain, centralised)
    if module.has_state:
        raise UsageError(f"model '{model.name}' has state besides its parameters; covey's models must be pure")

    def initial_carry(num_envs: int) -> PyTree:
        leading = (num_envs,) if centralised and share_parameters else (num_envs, num_agents)
        return module.initial_carry(leading)

    def init_each(key: Key) -> PyTree:
        return jax.vmap(module.init)(jax.random.split(key, num_agents))

    return Network(
        init=module.init if share_parameters else init_each,
        apply=partial(apply_shared if share_parameters else apply_each, module, shape),
        initial_carry=initial_carry,
        recurrent=module.recurrent,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class GroupShape:
    """The group that a network serves: how many agents, whether one input is for all, whether they share parameters."""

    num_agents: int
    centralised: bool
    share_parameters: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class Traced:
    """A model with its head as pure functions over its parameters, without an axis of agents.

    init(key) -> parameters
    merge(parameters) -> module
    initial_carry(leading axes) -> carry   `()` without memory
    """

    name: str
    init: Callable[[Key], PyTree]
    merge: Callable[[PyTree], ModelWithHead]
    initial_carry: Callable[[tuple[int, ...]], PyTree]
    recurrent: bool
    has_state: bool  # besides its parameters

    def apply(
        self, params: PyTree, inputs: Observation, carry: PyTree, reset: Array, name: str | None = None
    ) -> tuple[Array, PyTree]:
        """Outputs and carry; activations are captured under `name`, by default the network's."""
        return _call(name or self.name, self.merge(params), inputs, carry, reset)


def trace_module(
    model: Model, name: str, input_shape: ObservationShape, num_outputs: int, head_gain: float, centralised: bool
) -> Traced:
    """Builds the module once, with abstract shapes; parameters are put into it whenever it is used."""

    def build(key: Key) -> ModelWithHead:
        rngs = nnx.Rngs(params=key)
        body = _make_body(model, name, input_shape, centralised, rngs)
        return ModelWithHead(body, num_outputs, head_gain, model.config.initialiser, rngs)

    abstract = nnx.eval_shape(lambda: build(jax.random.key(0)))
    graph, abstract_params, *rest = nnx.split(abstract, nnx.Param, ...)
    recurrent = hasattr(abstract.model, "initial_carry")

    def init(key: Key) -> PyTree:
        return nnx.to_pure_dict(nnx.state(build(key), nnx.Param))

    def merge(params: PyTree) -> ModelWithHead:
        state = jax.tree.map(lambda leaf: leaf, abstract_params)
        nnx.replace_by_pure_dict(state, params)
        return nnx.merge(graph, state)

    return Traced(
        name=name,
        init=init,
        merge=merge,
        initial_carry=lambda leading: abstract.model.initial_carry(leading) if recurrent else (),
        recurrent=recurrent,
        has_state=any(nnx.to_pure_dict(state) for state in rest),
    )


def apply_shared(
    module: Traced, shape: GroupShape, params: PyTree, inputs: Observation, carry: PyTree, reset: Array
) -> tuple[Array, PyTree]:
    """One set of parameters, applied to each agent's input or to one input for all."""
    if not shape.centralised:
        reset = jnp.broadcast_to(reset[..., None], leading_shape(inputs, 3))
    return module.apply(params, inputs, carry, reset)


def apply_each(
    module: Traced, shape: GroupShape, params: PyTree, inputs: Observation, carry: PyTree, reset: Array
) -> tuple[Array, PyTree]:
    """Parameters `[A, …]`, one set for each agent."""
    if _captured.get() is not None:  # inside vmap there are no values to collect
        return apply_one_by_one(module, shape, params, inputs, carry, reset)
    in_axes = (0, None if shape.centralised else 2, 1, None)
    over_agents = jax.vmap(module.apply, in_axes=in_axes, out_axes=(2, 1), axis_size=shape.num_agents)
    return over_agents(params, inputs, carry, reset)


def apply_one_by_one(
    module: Traced, shape: GroupShape, params: PyTree, inputs: Observation, carry: PyTree, reset: Array
) -> tuple[Array, PyTree]:
    """What `apply_each` does, agent after agent."""
    outputs, carries = [], []
    for i in range(shape.num_agents):
        own_params = jax.tree.map(lambda p, i=i: p[i], params)
        own_carry = jax.tree.map(lambda h, i=i: h[:, i], carry)
        own_inputs = inputs if shape.centralised else jax.tree.map(lambda x, i=i: x[:, :, i], inputs)
        output, own_carry = module.apply(own_params, own_inputs, own_carry, reset, name=f"{module.name}/{i}")
        outputs.append(output)
        carries.append(own_carry)
    return jnp.stack(outputs, axis=2), jax.tree.map(lambda *h: jnp.stack(h, axis=1), *carries)


def _make_body(model: Model, name: str, input_shape: ObservationShape, centralised: bool, rngs: nnx.Rngs) -> nnx.Module:
    """The model's module. If it cannot take this input, the error says whether it is the critic's."""
    try:
        body: nnx.Module = make_module(model.name, model.config, input_shape, rngs)
        return body
    except UnfitInput as error:
        if name.rpartition("/")[2] != "critic":
            raise
        note = ", which is what a central critic sees of all agents, in one row" if centralised else ""
        raise error.replace(section=f"critic_{error.section}", note=note) from error


def _make_team_network(
    model: Model, shape: GroupShape, name: str, input_shape: ObservationShape, num_outputs: int, head_gain: float
) -> Network:
    """The network of a model that reads the team. The model itself takes inputs `[T, B, A, F]`."""
    num_agents, centralised, share_parameters = shape.num_agents, shape.centralised, shape.share_parameters
    pooled = centralised and share_parameters and num_outputs % num_agents != 0  # one output for the team
    own_outputs = num_outputs // num_agents if centralised and share_parameters and not pooled else num_outputs
    if centralised:
        if isinstance(input_shape, Mapping) or len(input_shape) != 1 or input_shape[0] % num_agents:
            seen = describe_shape(input_shape)
            raise UsageError(
                f"model '{model.name}' reads the agents' observations, not a global state {seen}; "
                "use algorithm.critic_sees=joint, or another critic_model"
            )
        input_shape = (input_shape[0] // num_agents,)
    module = trace_module(model, name, input_shape, own_outputs, head_gain, centralised)
    if module.recurrent and not share_parameters:
        raise UsageError(f"model '{model.name}' reads the team and has memory: its parameters must be shared")
    apply_one = partial(apply_to_team, module, pooled)

    def apply(params: PyTree, inputs: Observation, carry: PyTree, reset: Array) -> tuple[Array, PyTree]:
        if centralised:
            inputs = inputs.reshape(*inputs.shape[:2], num_agents, -1)
        if not share_parameters:  # each agent's own network over everyone's observations
            each, _ = jax.vmap(apply_one, in_axes=(0, None, None, None))(params, inputs, carry, reset)
            return jnp.stack([each[i, :, :, i] for i in range(num_agents)], axis=2), carry
        outputs, carry = apply_one(params, inputs, carry, reset)
        return (outputs.reshape(*outputs.shape[:2], -1) if centralised else outputs), carry

    def init(key: Key) -> PyTree:
        return module.init(key) if share_parameters else jax.vmap(module.init)(jax.random.split(key, num_agents))

    return Network(
        init=init,
        apply=apply,
        initial_carry=lambda num_envs: module.initial_carry((num_envs, num_agents)),
        recurrent=module.recurrent,
    )


def apply_to_team(
    traced: Traced, pooled: bool, params: PyTree, inputs: Observation, carry: PyTree, reset: Array
) -> tuple[Array, PyTree]:
    """`[T, B, A, F]` to `[T, B, A, outputs]`; `pooled`, to one output for the team, `[T, B, 1, outputs]`."""
    module = traced.merge(params)
    inputs = jax.tree.map(lambda x: x.astype(jnp.float32), inputs)
    if traced.recurrent:
        over_agents = jnp.broadcast_to(reset[..., None], leading_shape(inputs, 3))
        features, carry = module.model(inputs, carry, over_agents)
    else:
        features = module.model(inputs)
    return module.head(features.mean(axis=-2, keepdims=True) if pooled else features), carry


def apply_after(
    network: Network, params: PyTree, inputs: Observation, carry: PyTree, reset: Array, burn_in: int
) -> Array:
    """Outputs `[T − burn_in, …]` for a sequence, whose first steps only bring the memory up to date."""
    if burn_in:
        _, carry = network.apply(params, jax.tree.map(lambda x: x[:burn_in], inputs), carry, reset[:burn_in])
        carry = jax.lax.stop_gradient(carry)
    return network.apply(params, jax.tree.map(lambda x: x[burn_in:], inputs), carry, reset[burn_in:])[0]


def apply_with_successors(
    network: Network, params: PyTree, inputs: Observation, next_inputs: Observation, carry: PyTree, reset: Array
) -> tuple[Array, Array]:
    """Outputs `[T, …]` for a sequence and for the true successor of each of its steps.

    A successor is evaluated with the memory after its step, even where the episode ended there and the sequence
    continues with another.
    """
    never = jnp.zeros_like(reset)
    if not network.recurrent:
        return network.apply(params, inputs, carry, reset)[0], network.apply(params, next_inputs, carry, never)[0]

    def step(carry: PyTree, now: tuple[Observation, Observation, Array]) -> tuple[PyTree, tuple[Array, Array]]:
        x, next_x, starts = jax.tree.map(lambda leaf: leaf[None], now)  # one step of time
        output, carry = network.apply(params, x, carry, starts)
        next_output, _ = network.apply(params, next_x, carry, jnp.zeros_like(starts))
        return carry, (output[0], next_output[0])

    _, outputs = jax.lax.scan(step, carry, (inputs, next_inputs, reset))
    return outputs
