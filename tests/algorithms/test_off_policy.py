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
from covey.algorithms.off_policy import (
    ActorCritic,
    OffPolicyConfig,
    compute_gradients,
    critic_loss,
    make_samples,
    rate,
    rate_new_actions,
    rate_successors,
    rated_groups,
    run_actor_on_successors,
    scale_delayed,
    see_others,
    stored_carry,
    td_targets,
)
from covey.algorithms.replay_critics import Critics
from covey.algorithms.seats import NEXT_ACTION, OWN
from covey.types import Batch, Continuous, Discrete, Network, pytree

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


def summing_critics() -> Critics:
    """One critic of own observations and actions: values are the sum of what it is shown, successors' ten times it."""

    def shown(observation: Any, state: Any, action: Any, others: Any = ()) -> Any:
        seen = observation if action is None else jnp.concatenate([observation, action], -1)
        return seen + sum(other.sum() + (0.0 if done is None else done.sum()) for other, done in others)

    def evaluate(params: Any, inputs: Any, reset: Any, burn_in: int) -> Any:
        return params * inputs.sum(-1, keepdims=True)[None, burn_in:]

    def evaluate_successors(params: Any, inputs: Any, next_inputs: Any, reset: Any) -> Any:
        return 10 * params * next_inputs.sum(-1, keepdims=True)[None]

    return Critics(
        init=lambda key: {},
        evaluate=evaluate,
        evaluate_successors=evaluate_successors,
        inputs=shown,
        recurrent=False,
    )


def test_actions_are_rated_beside_what_was_seen() -> None:
    """Two agents see 1 and 2 and do 10 and 20; the critic's parameter is 3. Another group adds 5 + 7 to each input."""
    steps = transitions([[[0.0, 0.0]]], observation=[[[[1.0], [2.0]]]])
    ac, action = make(summing_critics()), jnp.array([[[[10.0], [20.0]]]])
    np.testing.assert_allclose(rate(ac, 3.0, steps, action), [[[[[33.0], [66.0]]]]])
    others = ((jnp.array([[[[5.0]]]]), jnp.array([[[[7.0]]]])),)
    np.testing.assert_allclose(rate(ac, 3.0, steps, action, others), [[[[[33.0 + 72.0], [66.0 + 72.0]]]]])
    np.testing.assert_allclose(rate(ac, 3.0, steps, None), [[[[[3.0], [6.0]]]]])  # of all actions: what is seen alone


def test_the_first_steps_of_a_sequence_are_not_rated_while_memory_fills() -> None:
    steps = transitions(jnp.zeros((3, 1, 2)), observation=jnp.arange(3.0)[:, None, None, None] * jnp.ones((3, 1, 2, 1)))
    ac = make(summing_critics(), burn_in=2)
    remembering = dataclasses.replace(ac, actor=dataclasses.replace(ac.actor, recurrent=True))
    assert rate(ac, 1.0, steps, None).shape == (1, 3, 1, 2, 1)
    np.testing.assert_allclose(rate(remembering, 1.0, steps, None), [[[[[2.0], [2.0]]]]])


def test_successors_are_rated_by_what_comes_next() -> None:
    """Next, the agents see 3 and 4 and do 30 and 40: ten times the sums; not what they saw and did before."""
    steps = transitions([[[0.0, 0.0]]], observation=[[[[1.0], [2.0]]]], next_observation=[[[[3.0], [4.0]]]])
    steps = dataclasses.replace(steps, action=jnp.array([[[[10.0], [20.0]]]]))
    ac, action = make(summing_critics()), jnp.array([[[[30.0], [40.0]]]])
    np.testing.assert_allclose(rate_successors(ac, 1.0, steps, steps, action), [[[[[330.0], [440.0]]]]])
    others = ((), ((jnp.array([[[[5.0]]]]), jnp.array([[[[7.0]]]])),))  # 12 more for observation and action each
    np.testing.assert_allclose(rate_successors(ac, 1.0, steps, steps, action, others), [[[[[570.0], [680.0]]]]])
    partners = {OWN: jnp.array([[[True, False]]]), NEXT_ACTION: jnp.array([[[[-1.0], [-2.0]]]])}
    beside = dataclasses.replace(steps, extras=partners)  # the second agent is a partner, who does −2 next
    np.testing.assert_allclose(rate_successors(ac, 1.0, beside, beside, action), [[[[[330.0], [20.0]]]]])
    discrete = make(summing_critics(), action=Discrete(3))
    np.testing.assert_allclose(rate_successors(discrete, 1.0, steps, steps, None), [[[[[30.0], [40.0]]]]])


def test_other_groups_are_seen_with_what_they_did_and_will_do() -> None:
    """A scout took the second of two actions and would take the first next; of nobody's next action nothing is said."""
    scout = transitions([[[0.0]]], observation=[[[[4.0]]]], next_observation=[[[[6.0]]]], action=[[[1]]])
    batch = Batch(transitions={GROUP: transitions([[[0.0, 0.0]]]), "scout": scout})
    ac = dataclasses.replace(make(told_critics()), others={"scout": Discrete(2)})
    now, after = see_others(ac, dataclasses.replace(batch, next_actions={"scout": jnp.array([[[0]]])}))
    np.testing.assert_array_equal(now[0][0], [[[[4.0]]]])
    np.testing.assert_array_equal(now[0][1], [[[[0.0, 1.0]]]])
    np.testing.assert_array_equal(after[0][0], [[[[6.0]]]])
    np.testing.assert_array_equal(after[0][1], [[[[1.0, 0.0]]]])
    assert see_others(ac, batch)[1][0][1] is None
    assert see_others(make(told_critics()), batch) == ((), ())
    assert rated_groups(ac) == ("scout",)
    assert rated_groups(dataclasses.replace(ac, action=Discrete(3))) == ()


def test_a_delayed_metric_has_the_mean_of_its_updates() -> None:
    """With a delay of 3, values 6, 0, 0 in three updates have the mean of 6."""
    config = OffPolicyConfig(policy_delay=3)
    assert np.mean([float(scale_delayed(config, jnp.float32(value))) for value in (6.0, 0.0, 0.0)]) == 6.0


def adding_network() -> Network:
    """It remembers the sum of what it saw since the episode began, and answers that times its parameter."""

    def apply(params: Any, inputs: Any, carry: Any, reset: Any) -> tuple[Any, Any]:
        outputs = []
        for seen, starts in zip(inputs, reset, strict=True):
            carry = jnp.where(starts[:, None, None], 0.0, carry) + seen
            outputs.append(params * carry)
        return jnp.stack(outputs), carry

    return Network(
        init=lambda key: jnp.ones(()),
        apply=apply,
        initial_carry=lambda num_envs: jnp.zeros((num_envs, 2, 1)),
        recurrent=True,
    )


def test_the_actor_on_successors_by_hand() -> None:
    """The memory holds 10 and 20. An episode ends after the first of two steps, whose successor still remembers it."""
    seen = jnp.array([[[[1.0], [2.0]]], [[[3.0], [4.0]]]])
    steps = transitions(
        jnp.zeros((2, 1, 2)),
        observation=seen,
        next_observation=seen + 100.0,
        last=[[True], [False]],
        reset=[[False], [True]],
        extras={"carry": jnp.array([[[[10.0], [20.0]]], [[[-1.0], [-1.0]]]])},
    )
    ac = dataclasses.replace(make(told_critics()), actor=adding_network())
    np.testing.assert_array_equal(stored_carry(ac, steps), [[[10.0], [20.0]]])
    outputs = run_actor_on_successors(ac, 2.0, steps, steps)
    after_first, after_second = [10 + 1 + 101, 20 + 2 + 102], [3 + 103, 4 + 104]
    np.testing.assert_allclose(outputs[..., 0], 2.0 * np.array([[after_first], [after_second]]))


def test_an_actor_without_memory_sees_successors_alone() -> None:
    ac = make(told_critics())
    assert stored_carry(ac, transitions([[[0.0, 0.0]]])) == ()
    summing = dataclasses.replace(ac.actor, apply=lambda params, inputs, carry, reset: (params * inputs, carry))
    steps = transitions([[[0.0, 0.0]]], next_observation=[[[[3.0], [4.0]]]])
    outputs = run_actor_on_successors(dataclasses.replace(ac, actor=summing), 2.0, steps, steps)
    np.testing.assert_allclose(outputs, [[[[6.0], [8.0]]]])
