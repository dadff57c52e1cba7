"""The skeleton of SAC and DDPG by hand: targets, critics' loss, and whose new actions are rated."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from stubs import GROUP, constant_network, context, transitions

from covey.algorithms.base import make_optimiser
from covey.algorithms.critics import Critics
from covey.algorithms.off_policy import (
    ActorCritic,
    OffPolicyConfig,
    compute_gradients,
    critic_loss,
    make_samples,
    rate_new_actions,
    td_targets,
)
from covey.types import Batch, Continuous, Discrete, pytree

CONTINUOUS = Continuous(low=(-1.0,), high=(1.0,))


def told_critics() -> Critics:
    """Their parameters `[L, N, A, n]` are their values, whatever they are shown."""

    def evaluate(params: Any, inputs: Any, reset: Any, burn_in: int) -> jax.Array:
        return jnp.stack([own[burn_in:] for own in params.values()])

    def inputs(observation: Any, state: Any, action: Any, others: Any = ()) -> Any:
        return observation

    return Critics(
        init=lambda key: {},
        evaluate=evaluate,
        evaluate_successors=lambda params, inputs, next_inputs, reset: jnp.stack(list(params.values())),
        inputs=inputs,
        recurrent=False,
    )


def adding_critics() -> Critics:
    """One critic, to which every agent is worth the sum of all agents' actions."""

    def evaluate(params: Any, inputs: Any, reset: Any, burn_in: int) -> jax.Array:
        return jnp.broadcast_to(inputs.sum(axis=2, keepdims=True), inputs.shape)[None]

    def inputs(observation: Any, state: Any, action: Any, others: Any = ()) -> Any:
        return action

    return dataclasses.replace(told_critics(), evaluate=evaluate, inputs=inputs)


def make(critics: Critics, action: Any = CONTINUOUS, own_actions_only: bool = False, **fields: Any) -> ActorCritic:
    config = OffPolicyConfig(**fields)
    return ActorCritic(
        config=config,
        group=GROUP,
        context=context(),
        action=action,
        actor=constant_network(2),
        critics=critics,
        optimiser=make_optimiser(config),
        own_actions_only=own_actions_only,
    )


def test_targets_by_hand() -> None:
    """One sequence of two steps, two agents; the second terminates at once."""
    steps = transitions([[[1.0, 2.0]], [[4.0, 8.0]]], terminated=[[[False, True]], [[False, False]]])
    one, two = make(told_critics(), n_step=1), make(told_critics(), n_step=2)
    first = jnp.array([[[10.0, 10.0]]])
    # Of single steps only the first is there.
    np.testing.assert_allclose(td_targets(one, jax.tree.map(lambda x: x[:1], steps), first, 0.5), [[[6.0, 2.0]]])
    np.testing.assert_allclose(td_targets(two, steps, first, 0.5), [[[1.0 + 0.5 * (4.0 + 5.0), 2.0]]])


def test_samples_count_the_living_by_their_importance() -> None:
    steps = transitions([[[1.0, 1.0], [1.0, 1.0]]], alive=[[[True, False], [True, True]]])
    batch = Batch(transitions={GROUP: steps}, weight=jnp.array([0.5, 1.0]))
    samples = make_samples(make(told_critics()), batch, jnp.zeros((1, 2, 2)))
    np.testing.assert_array_equal(samples.weight, [[[0.5, 0.0], [1.0, 1.0]]])
    np.testing.assert_array_equal(samples.alive, steps.alive)
    assert samples.carry == ()


def test_critic_loss_by_hand() -> None:
    """Two critics, two sequences of one step and two agents, of which the last is dead."""
    alive = jnp.array([[[True, True], [True, False]]])
    batch = Batch(transitions={GROUP: transitions(jnp.zeros((1, 2, 2)), alive=alive)})
    target = jnp.array([[[1.0, 2.0], [3.0, jnp.nan]]])
    ac = make(told_critics(), num_critics=2)
    params = {
        "critic_0": jnp.array([[[1.0, 4.0], [3.0, 0.0]]])[..., None],  # errors 0, 2, 0
        "critic_1": jnp.array([[[0.0, 2.0], [6.0, 0.0]]])[..., None],  # errors −1, 0, 3
    }
    loss, td_error = critic_loss(params, ac, make_samples(ac, batch, target))
    assert float(loss) == pytest.approx(4 / 4 + (1 + 9) / 4)  # means over all four, the dead with nothing
    # Of each agent the mean of both critics' errors, and of these the mean over agents.
    np.testing.assert_allclose(td_error, [((0 + 1) / 2 + (2 + 0) / 2) / 2, ((0 + 3) / 2 + 0) / 2])


def test_critic_loss_of_discrete_actions_is_that_of_the_action_taken() -> None:
    steps = transitions([[[0.0, 0.0]]], action=[[[2, 0]]])
    ac = make(told_critics(), action=Discrete(3))
    params = {"critic_0": jnp.array([[[[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]]])}
    samples = make_samples(ac, Batch(transitions={GROUP: steps}), jnp.zeros((1, 1, 2)))
    loss, td_error = critic_loss(params, ac, samples)
    assert float(loss) == pytest.approx((3.0**2 + 4.0**2) / 2)
    np.testing.assert_allclose(td_error, [3.5])


@pytest.mark.parametrize(("own_actions_only", "expected"), [(True, [1.0 + 20.0, 10.0 + 2.0]), (False, [3.0, 3.0])])
def test_whose_actions_are_new(own_actions_only: bool, expected: list[float]) -> None:
    steps = transitions([[[0.0, 0.0]]], action=[[[[10.0], [20.0]]]])
    ac = make(adding_critics(), own_actions_only=own_actions_only)
    np.testing.assert_allclose(rate_new_actions(ac, {}, steps, jnp.array([[[[1.0], [2.0]]]])), [[[expected]]])


@pytree
class State:
    params: dict[str, Any]


@pytest.mark.parametrize("updates", [1, 2])
def test_the_actor_waits_and_critics_do_not(updates: int) -> None:
    """With a delay of two: its gradient of 3 and its loss show in every second update, the loss twice as large."""
    ac = make(told_critics(), policy_delay=2)
    batch = Batch(transitions={GROUP: transitions([[[0.0, 0.0]]])})
    state = State(params={"actor": jnp.float32(5.0), "critic": {"critic_0": jnp.ones((1, 1, 2, 1))}})
    samples = make_samples(ac, batch, jnp.zeros((1, 1, 2)))
    computed = compute_gradients(
        ac, state, jnp.int32(updates), batch, samples, lambda params: (3.0 * params, {"entropy": jnp.float32(0.5)})
    )
    acts = updates == 2
    assert float(computed.grads["actor"]) == (3.0 if acts else 0.0)
    assert float(computed.metrics["policy_loss"]) == (30.0 if acts else 0.0)
    assert float(computed.found["entropy"]) == (0.5 if acts else 0.0)
    np.testing.assert_allclose(computed.grads["critic"]["critic_0"], 1.0)  # of the mean of two squares at 1
    assert float(computed.metrics["q_loss"]) == 1.0
