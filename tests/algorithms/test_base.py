"""What algorithms are made of: Adam's step, delayed updates, means over the living, and what is published to actors."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from stubs import GROUP, context, transitions

from covey import registry
from covey.algorithms.base import (
    Hooks,
    adam_step,
    add_users_loss,
    batch_of,
    check_parts_fit,
    descend,
    every_n_updates,
    init_coefficients,
    make_algorithm,
    make_optimiser,
    mean_over_living,
)
from covey.algorithms.ppo import IPPO
from covey.envs.base import first_step
from covey.types import (
    Algorithm,
    Batch,
    Continuous,
    Discrete,
    EnvSpec,
    GroupSpec,
    JointLearning,
    Key,
    PyTree,
    Transition,
    pytree,
)


def adam(grads: list[np.ndarray], lr: float, max_norm: float, eps: float) -> np.ndarray:
    """The sum of Adam's steps on these gradients (Kingma and Ba, 2015), each clipped by its norm."""
    mean = variance = total = np.zeros_like(grads[0])
    for t, grad in enumerate(grads, start=1):
        grad = grad * min(1.0, max_norm / np.linalg.norm(grad))
        mean, variance = 0.9 * mean + 0.1 * grad, 0.999 * variance + 0.001 * grad**2
        total = total - lr * (mean / (1 - 0.9**t)) / (np.sqrt(variance / (1 - 0.999**t)) + eps)
    return total


def test_steps_of_adam_equal_numpy() -> None:
    config = dataclasses.replace(IPPO, max_grad_norm=1.0, adam_eps=1e-5)
    optimiser = make_optimiser(config)
    grads = [np.array([3.0, 4.0]), np.array([0.1, -0.2]), np.array([-0.3, 0.0])]
    params = jnp.array([1.0, 2.0])
    state = optimiser.init(params)
    for grad in grads:
        params, state = adam_step(optimiser, params, state, jnp.asarray(grad, jnp.float32), jnp.float32(0.1))
    np.testing.assert_allclose(params - np.array([1.0, 2.0]), adam(grads, 0.1, 1.0, 1e-5), rtol=1e-5)


@pytree
class State:
    params: dict[str, Any]
    optimiser: dict[str, Any]


def test_only_the_named_parts_descend() -> None:
    optimiser = make_optimiser(IPPO)
    params = {"actor": jnp.ones(2), "critic": jnp.ones(3)}
    state = State(params=params, optimiser={name: optimiser.init(part) for name, part in params.items()})
    after = descend(optimiser, state, {"actor": jnp.array([5.0, -5.0])}, jnp.float32(0.1))
    np.testing.assert_allclose(after.params["actor"], [0.9, 1.1], rtol=1e-3)  # the first step is as long as lr
    np.testing.assert_array_equal(after.params["critic"], 1.0)
    assert after.optimiser["critic"] is state.optimiser["critic"]


@pytest.mark.parametrize(("updates", "expected"), [(1, 0.0), (2, 7.0), (3, 0.0), (4, 7.0)])
def test_every_second_update(updates: int, expected: float) -> None:
    assert every_n_updates(jnp.int32(updates), 2, lambda: jnp.float32(7.0)) == expected
    other = every_n_updates(jnp.int32(updates), 2, lambda: jnp.float32(7.0), otherwise=lambda: jnp.float32(3.0))
    assert other == (expected or 3.0)
    assert every_n_updates(jnp.int32(updates), 1, lambda: jnp.float32(7.0)) == 7.0


def test_means_over_the_living_by_hand() -> None:
    """Of four agents one lives and has 8: the mean over all, in which the dead count zero, is 2."""
    alive = jnp.array([[True, False], [False, False]])
    assert mean_over_living({"x": jnp.float32(2.0)}, alive, None)["x"] == pytest.approx(8.0)
    assert mean_over_living(jnp.float32(0.0), jnp.zeros((2, 2), bool), None) == 0.0


def test_means_over_the_living_of_two_devices() -> None:
    """The first device has one living agent of two, with 8, the second two, with 2 and 5: (8 + 2 + 5) / 3 = 5."""
    alive = jnp.array([[True, False], [True, True]])
    means = jnp.array([4.0, 3.5])
    together = jax.vmap(lambda x, living: mean_over_living(x, living, "devices"), axis_name="devices")(means, alive)
    np.testing.assert_allclose(together, 5.0, rtol=1e-6)


def test_coefficients_are_single_floats() -> None:
    coefficients = init_coefficients(IPPO, "lr", "gamma")
    assert coefficients == {"lr": jnp.float32(1e-3), "gamma": jnp.float32(0.99)}
    assert all(value.shape == () and value.dtype == jnp.float32 for value in coefficients.values())


# ---------------------------------------------------------------------------------------------------------- acting

NAMES = [entry.name for entry in registry.algorithms]
PRIVATE = ("optimiser", "target", "updates", "coefficients")  # what stays with the learner
MARK = -777


def spec_for(name: str) -> EnvSpec:
    """A task whose actions the algorithm can choose."""
    discrete = registry.ActionKind.discrete in registry.algorithms[name].capabilities.actions
    action = Discrete(3) if discrete else Continuous(low=(-1.0,), high=(1.0,))
    return EnvSpec(groups={"agents": GroupSpec(num_agents=2, observation_shape=(3,), action=action)}, time_limit=10)


@pytest.mark.parametrize("name", NAMES)
def test_actors_are_sent_no_optimiser_and_no_targets(name: str) -> None:
    algorithm = make_algorithm(name, spec_for(name))
    state = jax.jit(algorithm.init)(jax.random.key(0))["agents"]
    private = {
        field: jax.tree.map(lambda x: jnp.full_like(x, MARK), getattr(state, field))
        for field in PRIVATE
        if hasattr(state, field)
    }
    assert {"optimiser", "coefficients"} <= private.keys()
    acting = algorithm.acting({"agents": dataclasses.replace(state, **private)})
    assert jax.tree.leaves(acting)
    assert not any((leaf == MARK).any() for leaf in jax.tree.leaves(acting))


@pytest.mark.parametrize("name", NAMES)
def test_the_critics_of_replay_stay_with_the_learner(name: str) -> None:
    """Only on-policy algorithms act with values: those from replay publish one network."""
    algorithm = make_algorithm(name, spec_for(name))
    state = jax.eval_shape(algorithm.init, jax.random.key(0))
    sent = sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(algorithm.acting, state)))
    params = sum(leaf.size for leaf in jax.tree.leaves(state["agents"].params))
    if name in ("isac", "masac", "iddpg", "maddpg", "itd3", "matd3"):
        assert sent < 0.6 * params
    else:
        assert sent <= params + 20  # moments, and how much to explore


# ---------------------------------------------------------------------------------------------------- coefficients

FAMILIES = {
    "mappo": {"lr", "entropy_coef", "value_coef", "clip", "gamma", "gae_lambda"},
    "impala": {"lr", "entropy_coef", "value_coef", "gamma", "vtrace_lambda", "rho_bar", "c_bar"},
    "qmix": {"lr", "gamma", "tau", "epsilon_start", "epsilon_end"},
    "masac": {"lr", "alpha_lr", "gamma", "tau"},
    "matd3": {"lr", "gamma", "tau", "noise_start", "noise_end"},
    "pqn": {"lr", "gamma", "q_lambda", "epsilon_start", "epsilon_end"},
}


def random_batch(algorithm: Algorithm, state: PyTree, spec: EnvSpec, length: int) -> Batch:
    """What six environments might give; as collected, with what acting leaves for an update."""
    keys = iter(jax.random.split(jax.random.key(1), 8))
    shape = (length, 6, 2)
    shown = first_step({GROUP: jnp.zeros((2, 3))})
    final = jax.tree.map(lambda x: jnp.broadcast_to(x, (6, *x.shape)), shown)
    action, extras, carry = algorithm.act(
        algorithm.acting(state), final, algorithm.initial_carry(6), jax.random.key(3), True
    )
    steps = transitions(
        jax.random.normal(next(keys), shape),
        observation=jax.random.normal(next(keys), (*shape, 3)),
        next_observation=jax.random.normal(next(keys), (*shape, 3)),
        action=jnp.broadcast_to(action[GROUP], (length, *action[GROUP].shape)),
        extras=jax.tree.map(lambda x: jnp.broadcast_to(x, (length, *x.shape)), extras[GROUP]),
    )
    return Batch(transitions={GROUP: steps}, carries=carry, final=final, final_carry=carry)


@pytest.mark.parametrize("name", FAMILIES)
def test_every_coefficient_is_read_from_the_state(name: str) -> None:
    """Halving any one of them changes what the same program learns from the same batch."""
    spec, online = spec_for(name), registry.algorithms[name].loop == "online"
    fields: dict[str, Any] = {"policy_delay": 1} if name == "matd3" else {}
    algorithm = make_algorithm(name, spec, **fields | ({"num_minibatches": 2, "epochs": 2} if online else {}))
    state = jax.jit(algorithm.init)(jax.random.key(0))
    batch = random_batch(algorithm, state, spec, 4 if online else 1)
    if not online:
        batch = Batch(transitions=batch.transitions)
    assert state[GROUP].coefficients.keys() == FAMILIES[name]
    update = jax.jit(lambda state: algorithm.update(state, batch, jax.random.key(2), jnp.float32(0.1))[0][GROUP])

    def learned(coefficients: dict[str, jax.Array]) -> list[jax.Array]:
        changed = dataclasses.replace(state[GROUP], coefficients=coefficients)
        return jax.tree.leaves(dataclasses.replace(update({GROUP: changed}), coefficients={}))

    before = state[GROUP].coefficients
    plain = learned(before)
    for coefficient, value in before.items():
        smaller = 1e-4 if coefficient == "clip" else 0.5  # so far, nothing moved: only a narrow clip is felt
        leaves = learned(before | {coefficient: value * smaller})
        assert any((a != b).any() for a, b in zip(plain, leaves, strict=True)), coefficient


# ------------------------------------------------------------------------------------------------- groups of a team


def part(**fields: Any) -> Algorithm:
    """An algorithm of which only what `fields` say is asked."""
    options: dict[str, Any] = {"initial_carry": lambda num_envs: (), "act": None, "update": None, "init": None}
    return Algorithm(**options | fields)


def test_a_group_is_given_its_own_carries_and_the_next_actions_that_it_asks_for() -> None:
    """The hunters' critic rates the prey's actions, which their policy makes of the prey's own state and steps."""

    def next_actions(state: Any, steps: Transition, key: Key) -> Any:
        return state * steps.reward

    parts = {"hunters": part(rates_actions_of=("prey",), sequence_length=2), "prey": part(next_actions=next_actions)}
    batch = Batch(
        transitions={"hunters": transitions([[[1.0]]] * 3), "prey": transitions([[[2.0]], [[3.0]], [[4.0]]])},
        carries={"hunters": jnp.float32(5.0), "prey": jnp.float32(6.0)},
    )
    keys = {name: jax.random.key(0) for name in parts}
    own = batch_of("hunters", parts, {"hunters": None, "prey": 10.0}, batch, keys)
    np.testing.assert_array_equal(own.next_actions["prey"], [[[20.0]], [[30.0]]])  # two steps: the sequence's length
    assert own.carries == 5.0 and own.final_carry == ()
    assert [steps.reward.shape[0] for steps in own.transitions.values()] == [2, 2]
    other = batch_of("prey", parts, {}, batch, keys)
    assert other.next_actions == {} and other.carries == 6.0
    assert other.transitions["prey"].reward.shape[0] == 1  # without memory, single steps


def test_a_batch_that_was_collected_is_not_cut() -> None:
    final = first_step({GROUP: jnp.zeros((1, 1))})
    batch = Batch(transitions={GROUP: transitions([[[1.0]]] * 3)}, final=final, final_carry={GROUP: 7})
    own = batch_of(GROUP, {GROUP: part(sequence_length=1)}, {}, batch, {GROUP: jax.random.key(0)})
    assert own.transitions[GROUP].reward.shape[0] == 3 and own.final_carry == 7 and own.carries == ()


def test_a_critic_of_others_actions_needs_to_know_the_next_ones() -> None:
    def says(*_: Any) -> None:
        return None

    with pytest.raises(ValueError, match="whose algorithm cannot say what it would do next"):
        check_parts_fit({"hunters": part(rates_actions_of=("prey",)), "prey": part()})
    with pytest.raises(ValueError, match="must be the same for both"):
        looks_further = part(next_actions=says, sequence_length=3)
        check_parts_fit({"hunters": part(rates_actions_of=("prey",)), "prey": looks_further})
    check_parts_fit({"hunters": part(rates_actions_of=("prey",)), "prey": part(next_actions=says)})


def test_groups_that_learn_together_agree() -> None:
    def learns(group: str, other: str, length: int = 1, **agreed: Any) -> Algorithm:
        joint = JointLearning(groups=(group, other), bundle=None, agreed=agreed, update=lambda *_: ({}, {}, {}))
        return part(joint=joint, sequence_length=length)

    def check(one: Algorithm, other: Algorithm) -> None:
        check_parts_fit({"a": one, "b": other})

    check(learns("a", "b", gamma=0.9), learns("a", "b", gamma=0.9))
    with pytest.raises(
        ValueError, match=r"groups a and b learn one value for the team, so they must agree on algorithm\.gamma"
    ):
        check(learns("a", "b", gamma=0.9), learns("a", "b", gamma=0.8))
    with pytest.raises(ValueError, match=r"must agree on algorithm\.scope"):
        check(learns("a", "b"), part())
    with pytest.raises(ValueError, match=r"must agree on algorithm\.sequence_length"):
        check(learns("a", "b", length=2), learns("a", "b"))


def test_a_users_loss_adds_its_gradient() -> None:
    """Of 3 θ² at θ = 2 it is 12; without a hook, gradients stay as they are."""

    def loss(group: str, params: Any, batch: Any) -> tuple[jax.Array, dict[str, Any]]:
        assert group == GROUP
        return batch * params["w"] ** 2, {"weight": params["w"]}

    grads, params = {"w": jnp.float32(1.0)}, {"w": jnp.float32(2.0)}
    hooked = dataclasses.replace(context(), hooks=Hooks(loss=loss))
    added, metrics = add_users_loss(grads, hooked, GROUP, params, jnp.float32(3.0))
    assert float(added["w"]) == 13.0 and float(metrics["weight"]) == 2.0
    assert add_users_loss(grads, context(), GROUP, params, None) == (grads, {})
