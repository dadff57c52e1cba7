"""What algorithms that learn a value for each discrete action share: mixing, exploring and acting by values."""

from __future__ import annotations

import enum

import jax
import jax.numpy as jnp

from covey.algorithms.base import Context
from covey.networks.network import make_network
from covey.ops.exploration import anneal, epsilon_greedy
from covey.ops.targets import masked_argmax
from covey.types import Array, Discrete, EnvSpec, Key, Network, PyTree, TimeStep, pytree


class Mixing(enum.Enum):
    """How the values of agents make the value of their team."""

    none = "each agent learns its own value"
    sum = "the team's value is the sum of the agents'"
    monotonic = "the team's value increases with each agent's, by weights computed from the global state"


@pytree
class QActing:
    """What acting needs of the state: the parameters of the agents' network, and how often to explore."""

    params: PyTree
    epsilon: Array


def make_q_network(spec: EnvSpec, group: str, context: Context, *, share_parameters: bool) -> Network:
    """Q(o, ·): observations `[T, B, A, …]` to a value for each action `[T, B, A, n]`."""
    group_spec = spec.groups[group]
    return make_network(
        context.model,
        name=f"{group}/q",
        input_shape=group_spec.observation_shape,
        num_outputs=num_actions(spec, group),
        num_agents=group_spec.num_agents,
        head_gain=0.01,
        share_parameters=share_parameters,
    )


def num_actions(spec: EnvSpec, group: str) -> int:
    """The number of actions of each agent. They are discrete: the registration says so, and `make_group` checks it."""
    action = spec.groups[group].action
    assert isinstance(action, Discrete)
    return action.num_actions


def act_by_values(
    network: Network, group: str, acting: QActing, timestep: TimeStep, carry: PyTree, key: Key, explore: bool
) -> tuple[Array, PyTree]:
    """The best legal actions `[B, A]` by the network, ε-greedily where agents `explore`, and the next carry."""
    step = timestep.groups[group]
    observation = jax.tree.map(lambda x: x[None], step.observation)  # one step of time: [1, B, …]
    values, carry = network.apply(acting.params, observation, carry, timestep.last[None])
    action = masked_argmax(values[0], step.action_mask)
    if explore:
        action = epsilon_greedy(action, step.action_mask, values.shape[-1], acting.epsilon, key)
    return action.astype(jnp.int32), carry


def annealed_epsilon(coefficients: dict[str, Array], fraction: float, progress: Array) -> Array:
    """ε at `progress`: linearly from `epsilon_start` to `epsilon_end` over a `fraction` of training."""
    return anneal(coefficients["epsilon_start"], coefficients["epsilon_end"], fraction, progress)
