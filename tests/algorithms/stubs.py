"""Made-up transitions and networks, so that targets and losses can be worked out by hand."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from covey.algorithms.base import Context, Hooks
from covey.algorithms.policies import Evaluated, Inputs, Sampled, TeamPolicy
from covey.networks.network import make_model
from covey.types import Array, Key, Network, Transition

GROUP = "agents"


def context(**fields: Any) -> Context:
    model = make_model("mlp", layers=(4,))
    return Context(model=model, critic_model=model, hooks=Hooks(), **fields)


def transitions(reward: Any, **fields: Any) -> Transition:
    """Steps `[T, B, A]` with these rewards, of agents that live on; `fields` say what is different."""
    reward = jnp.asarray(reward, jnp.float32)
    no, never = jnp.zeros(reward.shape, bool), jnp.zeros(reward.shape[:2], bool)
    values: dict[str, Any] = {
        "observation": jnp.zeros((*reward.shape, 1)),
        "next_observation": jnp.zeros((*reward.shape, 1)),
        "state": None,
        "next_state": None,
        "action_mask": None,
        "next_action_mask": None,
        "alive": ~no,
        "reset": never,
        "action": jnp.zeros(reward.shape, jnp.int32),
        "extras": {},
        "terminated": no,
        "truncated": never,
        "last": never,
    }
    given = {name: jnp.asarray(value) if isinstance(value, list) else value for name, value in fields.items()}
    return Transition(reward=reward, **values | given)


def constant_network(num_agents: int) -> Network:
    """Its parameters `[A, n]` are its outputs, whatever it is shown."""

    def apply(params: Any, inputs: Any, carry: Any, reset: Any) -> tuple[Any, Any]:
        return jnp.broadcast_to(params, (*reset.shape, *params.shape)), carry

    return Network(
        init=lambda key: jnp.zeros((num_agents, 1)),
        apply=apply,
        initial_carry=lambda num_envs: (),
        recurrent=False,
    )


def told_policy() -> TeamPolicy:
    """Its parameters say what it answers: `log_prob`, `entropy` and `output`, and to an observation `w · o`."""

    def rate(params: Any, inputs: Inputs) -> Array:
        output: Array = inputs.critic_input[..., 0] * params["critic"]["output"]
        return output

    def evaluate(params: Any, inputs: Inputs, carry: Any, raw_action: Array, noise: Array | None) -> Evaluated:
        actor, critic = params["actor"], params["critic"]
        return Evaluated(log_prob=actor["log_prob"], entropy=actor["entropy"], output=critic["output"])

    def sample(params: Any, inputs: Inputs, carry: Any, key: Key, explore: bool) -> tuple[Sampled, Any]:
        output = rate(params, inputs)
        zeros = jnp.zeros_like(output)
        return Sampled(raw_action=zeros.astype(jnp.int32), log_prob=zeros, output=output), carry

    return TeamPolicy(
        init=lambda key: {"actor": {"log_prob": jnp.zeros(())}, "critic": {"output": jnp.ones(())}},
        initial_carry=lambda num_envs: (),
        sample=sample,
        evaluate=evaluate,
        evaluate_critic=lambda params, inputs, carry: rate(params, inputs),
        evaluate_with_successors=lambda params, inputs, successors, carry, cut: (
            rate(params, inputs),
            rate(params, successors),
        ),
        rescale_critic=lambda params, scale, shift: params,
        to_action=lambda raw: raw,
        noise_size=0,
        recurrent=False,
    )
