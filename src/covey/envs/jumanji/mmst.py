"""Multi minimum spanning tree: each agent walks a graph to all nodes of its kind. A free node serves one agent only."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
from jumanji.environments.routing.mmst.constants import EMPTY_NODE, UTILITY_NODE
from jumanji.environments.routing.mmst.env import MMST
from jumanji.environments.routing.mmst.generator import SplitRandomGenerator
from jumanji.environments.routing.mmst.reward import DenseRewardFn

from covey.envs.base import Reward, SuiteConfig
from covey.envs.jumanji.core import NEVER, JumanjiEnv
from covey.types import Array, Discrete, MetricSpec, PyTree


@dataclasses.dataclass(frozen=True, kw_only=True)
class MmstConfig(SuiteConfig):
    num_agents: int = 3  # agents
    num_nodes: int = 36  # nodes of the graph
    num_edges: int = 72  # edges of the graph
    max_degree: int = 5  # largest number of edges at a node
    num_nodes_per_agent: int = 4  # nodes that each agent must connect; at most 80% of all nodes over all agents
    connect_reward: float = 10.0  # reward for each node connected
    step_penalty: float = 1.0  # penalty for a step that connects nothing
    invalid_penalty: float = 1.0  # penalty for a step that is not allowed, besides the penalty for the step
    reward: Reward = Reward.team_sum
    time_limit: int = 70

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_nodes_per_agent * self.num_agents > 0.8 * self.num_nodes:
            raise ValueError("at most 80% of num_nodes may be nodes to connect (num_agents × num_nodes_per_agent)")


class IndividualReward(DenseRewardFn):
    """Jumanji's reward, before it sums over the agents."""

    def __call__(self, state: PyTree, actions: Array, nodes_to_connect: Array) -> Array:
        reward_of_one: Callable[..., Array] = self.reward_fun
        rewards = jax.vmap(reward_of_one)(nodes_to_connect, actions, state.positions)
        while_connecting: Array = rewards * ~state.finished_agents
        return while_connecting


class Mmst(JumanjiEnv):
    def __init__(self, config: MmstConfig):
        generator = SplitRandomGenerator(
            num_nodes=config.num_nodes,
            num_edges=config.num_edges,
            max_degree=config.max_degree,
            num_agents=config.num_agents,
            num_nodes_per_agent=config.num_nodes_per_agent,
            max_step=config.time_limit + 1,  # room for an agent's whole walk: its first node, and one per step
        )
        rewards = (config.connect_reward, -config.step_penalty, -config.invalid_penalty)
        env = MMST(generator, IndividualReward(rewards), time_limit=NEVER)
        self._individual = config.reward is Reward.individual
        super().__init__(
            env,
            config,
            action=Discrete(config.num_nodes),
            metrics={"connected": MetricSpec(reduction="last", unit="share")},
            returns=f"{config.connect_reward} for each node it connects, less {config.step_penalty} for other steps",
        )

    def observe(self, state: PyTree, observation: Any) -> Array:
        """Per node: own, others', own path, others' path, here, reachable; then the graph's edges."""
        num_agents, num_nodes = state.action_mask.shape
        wanted = state.node_types == jnp.arange(num_agents)[:, None]
        walked = state.connected_nodes_index != EMPTY_NODE
        other_wanted = (state.node_types != UTILITY_NODE) & ~wanted
        other_walked = walked.any(axis=0) & ~walked
        here = state.positions[:, None] == jnp.arange(num_nodes)
        edges = jnp.broadcast_to(state.adj_matrix.ravel(), (num_agents, num_nodes**2))
        layers = [wanted, other_wanted, walked, other_walked, here, state.action_mask, edges]
        return jnp.concatenate([layer.astype(jnp.float32) for layer in layers], axis=-1)

    def action_mask(self, state: PyTree, observation: Any) -> Array:
        """An agent with no way left may stay, which Jumanji's mask leaves out."""
        mask = state.action_mask
        here = state.positions[:, None] == jnp.arange(mask.shape[1])
        return jnp.where(mask.any(axis=-1, keepdims=True), mask, here)

    def finished(self, state: PyTree) -> Array | None:
        return state.finished_agents if self._individual else None

    def draw(self, state: PyTree) -> None:
        super().draw(state)
        plt.gca().set(xlim=(0, 1), ylim=(0, 1))  # Jumanji leaves the scale to autoscaling, which misses its artists

    def measure(self, state: PyTree, timestep: Any) -> dict[str, Array]:
        return {"connected": timestep.extras["ratio_connections"]}
