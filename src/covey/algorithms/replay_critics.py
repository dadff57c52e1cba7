"""The critics Q of algorithms that learn from replay (SAC, DDPG): of the agents' actions, or of each choice.

What they see besides actions is settled in critics.py.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Sequence
from functools import partial

import jax
import jax.numpy as jnp

from covey.algorithms.critics import CriticOutputs, CriticSees, join_agents, seen_shape
from covey.networks.network import Model, apply_after, apply_with_successors, make_network
from covey.observations import flat_size, flatten
from covey.types import (
    ActionSpec,
    Array,
    Continuous,
    Discrete,
    EnvSpec,
    Key,
    MultiDiscrete,
    Network,
    Observation,
    PyTree,
)

# What a critic sees of other groups: for each, its observation `[T, B, A, …]`, and its encoded action or None.
Others = tuple[tuple[Observation, Array | None], ...]


class ActorGradient(enum.Enum):
    """Whose actions in the critic's input are the policies' new ones when the actor learns."""

    auto = "own where agents have rewards of their own, all where they share them"
    own = "the agent's own action is new, the others' are the ones they took"
    all = "all agents' actions are new"


def resolve_gradient(gradient: ActorGradient, spec: EnvSpec, group: str) -> ActorGradient:
    """Resolves `auto`. With a shared reward all agents have the same value, and `all` follows it at less cost.
    Otherwise `all` follows the sum of the agents' values, to which an agent may sacrifice its own."""
    if gradient is not ActorGradient.auto:
        return gradient
    group_spec = spec.groups[group]
    return ActorGradient.all if group_spec.shared_reward or group_spec.num_agents == 1 else ActorGradient.own


def encoded_size(action: ActionSpec) -> int:
    """How many numbers `encode_action` makes from one agent's action."""
    match action:
        case Continuous():
            return action.size
        case Discrete():
            return action.num_actions
        case MultiDiscrete():
            return sum(action.num_actions)


def encode_action(action: ActionSpec, taken: Array) -> Array:
    """Actions as a critic sees them, `[…, A, n]`: continuous ones as they are, choices one-hot, side by side."""
    match action:
        case Continuous():
            return taken
        case Discrete():
            return jax.nn.one_hot(taken, action.num_actions)
        case MultiDiscrete():
            choices = [jax.nn.one_hot(taken[..., i], number) for i, number in enumerate(action.num_actions)]
            return jnp.concatenate(choices, -1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Critics:
    """Several critics of the same shape, of which targets take the smallest value; all arrays are `[T, B, …]`.

    init(key) -> params
    evaluate(params, inputs, reset, burn_in) -> values [K, T − burn_in, B, A, n]; the first steps only fill the memory
    evaluate_successors(params, inputs, next_inputs, reset) -> values of the successors [K, T, B, A, n]
    inputs(observation, state, action or None, others) -> what the critics see; `others` holds the observation and the
        encoded action of each other group that they see
    """

    init: Callable[[Key], PyTree]
    evaluate: Callable[[PyTree, Observation, Array, int], Array]
    evaluate_successors: Callable[[PyTree, Observation, Observation, Array], Array]
    inputs: Callable[[Observation, Observation | None, Array | None, Others], Observation]
    recurrent: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class CriticNetworks:
    """What the functions below share. Each critic has its own parameters in a dict, and they run one after another:
    products of stacked matrices are slower on a CPU.

    network      of each critic
    sees         what they see, without `auto`
    num_outputs  for each agent
    one_network  one network gives all agents' values from what it sees of several
    """

    network: Network
    sees: CriticSees
    num_critics: int
    num_agents: int
    num_outputs: int
    one_network: bool


def init(critics: CriticNetworks, key: Key) -> dict[str, PyTree]:
    """Fresh parameters of each critic."""
    keys = jax.random.split(key, critics.num_critics)
    return {f"critic_{k}": critics.network.init(each) for k, each in enumerate(keys)}


def critic_inputs(
    critics: CriticNetworks,
    observation: Observation,
    state: Observation | None,
    action: Array | None,
    others: Others = (),
) -> Observation:
    """What the critics see, `[T, B, A, …]` or, of several agents, `[T, B, …]`.

    `action [T, B, A, n]` is encoded, or None if critics are shown none; `others` are the other groups that they see.
    """
    if critics.sees is CriticSees.own:
        if action is None:
            return observation
        return jnp.concatenate([flatten(observation, 3), action], -1)
    if critics.sees is CriticSees.joint:
        rest = [(seen, None if action is None else done) for seen, done in others]
        return join_agents((observation, action), *rest)
    assert state is not None
    if action is None:
        return state
    actions = join_agents((action,), *((done,) for _, done in others))
    return jnp.concatenate([flatten(state, 2), actions], -1)


def evaluate(critics: CriticNetworks, params: PyTree, inputs: Observation, reset: Array, burn_in: int) -> Array:
    """All K critics' values `[K, T − burn_in, B, A, n]`; the first steps only fill the memory."""
    carry = critics.network.initial_carry(reset.shape[1])
    values = [apply_after(critics.network, own, inputs, carry, reset, burn_in) for own in params.values()]
    return jnp.stack([by_agent(critics, value) for value in values])


def evaluate_successors(
    critics: CriticNetworks, params: PyTree, inputs: Observation, next_inputs: Observation, reset: Array
) -> Array:
    """All K critics' values of the steps' successors, `[K, T, B, A, n]`."""
    network = critics.network
    carry = network.initial_carry(reset.shape[1])
    values = [apply_with_successors(network, own, inputs, next_inputs, carry, reset)[1] for own in params.values()]
    return jnp.stack([by_agent(critics, value) for value in values])


def by_agent(critics: CriticNetworks, values: Array) -> Array:
    """A network's values as `[T, B, A, n]`."""
    if not critics.one_network:
        return values
    values = values.reshape(*values.shape[:2], -1, critics.num_outputs)
    return jnp.broadcast_to(values, (*values.shape[:2], critics.num_agents, critics.num_outputs))


def own_values(evaluate: Callable[[Array], Array], new: Array, old: Array) -> Array:
    """Each agent's value `[…, A]` of its own `new` action beside the others' `old` ones; actions are `[.., A, n]`.

    `evaluate(actions)` gives the values of all agents `[…, A]`.
    """
    num_agents = new.shape[-2]

    def own_value(agent: Array) -> Array:
        mine = (jnp.arange(num_agents) == agent)[:, None]
        return evaluate(jnp.where(mine, new, old))[..., agent]

    return jnp.moveaxis(jax.vmap(own_value)(jnp.arange(num_agents)), 0, -1)


def require_memory_of_both(actor: Network, critics: Critics) -> None:
    """Raises ValueError if only the critics have memory: the actor's memory sets the length of replayed sequences, and
    without it they are too short to fill the critics'."""
    if critics.recurrent and not actor.recurrent:
        raise ValueError("with replay, a critic_model with memory needs a model with memory too")


def make_critics(
    model: Model,
    spec: EnvSpec,
    group: str,
    *,
    sees: CriticSees,
    others: Sequence[str] = (),
    action_size: int,
    num_outputs: int,
    num_critics: int,
    outputs: CriticOutputs,
    share_parameters: bool,
) -> Critics:
    """Q(what is seen, actions), or with `action_size=0` Q(what is seen) with one output per action.

    A centralised critic has outputs for each agent, since rewards need not be shared, or one for all. `sees` and
    `others` are resolved. Critics that see actions also see those of the other groups.
    """
    centralised = sees is not CriticSees.own
    num_agents = spec.groups[group].num_agents
    shape = seen_shape(sees, spec, group, others)
    if action_size:
        others_size = sum(spec.groups[name].num_agents * encoded_size(spec.groups[name].action) for name in others)
        own_size = action_size * (num_agents if centralised else 1)
        shape = (flat_size(shape) + own_size + others_size,)
    one_network = centralised and share_parameters
    different = outputs is CriticOutputs.per_agent or action_size == 0  # agents differ in which action is best
    network = make_network(
        model,
        name=f"{group}/critic",
        input_shape=shape,
        num_outputs=num_outputs * num_agents if one_network and different else num_outputs,
        num_agents=num_agents,
        head_gain=1.0,
        centralised=centralised,
        share_parameters=share_parameters,
    )

    critics = CriticNetworks(
        network=network,
        sees=sees,
        num_critics=num_critics,
        num_agents=num_agents,
        num_outputs=num_outputs,
        one_network=one_network,
    )
    return Critics(
        init=partial(init, critics),
        evaluate=partial(evaluate, critics),
        evaluate_successors=partial(evaluate_successors, critics),
        inputs=partial(critic_inputs, critics),
        recurrent=network.recurrent,
    )
