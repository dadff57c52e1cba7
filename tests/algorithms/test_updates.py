"""Single updates of what learns from replay, on made-up transitions: what must change them, and what not."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import SameBits

from covey.algorithms.base import Context, Hooks, make_group, make_team
from covey.networks.network import make_model
from covey.registry import algorithms, build_config
from covey.types import (
    ActionSpec,
    Algorithm,
    Array,
    Batch,
    Continuous,
    Discrete,
    EnvSpec,
    GroupSpec,
    PyTree,
    Transition,
)

AGENTS, SEQUENCES, SIZE = 2, 4, 3
CONTINUOUS = Continuous(low=(-1.0,), high=(1.0,))
CASES: Mapping[str, ActionSpec] = {
    "iql": Discrete(3),
    "vdn": Discrete(3),
    "qmix": Discrete(3),
    "isac": CONTINUOUS,
    "masac": Discrete(3),
    "maddpg": CONTINUOUS,
}


def make(
    name: str, model: str = "mlp", critic_model: str | None = None, hooks: Hooks = Hooks(), **fields: Any
) -> Algorithm:
    memory = {"hidden_size": 8, "layers_after": ()}
    models = {"mlp": make_model("mlp", layers=(8,)), "gru": make_model("gru", layers=(8,), **memory)}
    spec = EnvSpec(
        groups={"agents": GroupSpec(num_agents=AGENTS, observation_shape=(SIZE,), action=CASES[name])}, time_limit=100
    )
    config = build_config(algorithms[name].defaults(), fields, "algorithm")
    context = Context(model=models[model], critic_model=models[critic_model or model], hooks=hooks)
    return make_team({"agents": make_group(name, config, spec, "agents", context)}, hooks)


def transitions(algorithm: Algorithm, action: ActionSpec, length: int) -> dict[str, Transition]:
    keys = jax.random.split(jax.random.key(0), 5)
    shape = (length, SEQUENCES, AGENTS)
    never = jnp.zeros(shape[:2], bool)
    acted = (
        jax.random.randint(keys[0], shape, 0, 3)
        if isinstance(action, Discrete)
        else jax.random.uniform(keys[0], (*shape, 1), minval=-1.0)
    )
    carry = algorithm.initial_carry(SEQUENCES)["agents"]
    stored = jax.tree.map(lambda x: jnp.broadcast_to(x, (length, *x.shape)), carry)
    step = Transition(
        observation=jax.random.normal(keys[1], (*shape, SIZE)),
        next_observation=jax.random.normal(keys[2], (*shape, SIZE)),
        state=None,
        next_state=None,
        action_mask=None,
        alive=jnp.ones(shape, bool),
        reset=never,
        action=acted,
        extras={"carry": stored} if jax.tree.leaves(carry) else {},
        reward=jax.random.normal(keys[3], shape),
        terminated=jnp.zeros(shape, bool),
        truncated=never,
        last=never,
    )
    return {"agents": step}


def updated(algorithm: Algorithm, batch: Batch) -> tuple[PyTree, dict[str, Array]]:
    state = algorithm.init(jax.random.key(1))
    state, metrics, _ = jax.jit(algorithm.update)(state, batch, jax.random.key(2), jnp.float32(0))
    return state["agents"], metrics


@pytest.mark.parametrize("name", CASES)
def test_steps_beyond_a_groups_own_sequence_change_nothing(name: str, same_bits: SameBits) -> None:
    """Another group of the team may need longer ones."""
    algorithm = make(name)
    assert algorithm.sequence_length == 1
    long = transitions(algorithm, CASES[name], 3)
    short = jax.tree.map(lambda x: x[:1], long)
    same_bits(
        updated(algorithm, Batch(transitions=short))[0].params, updated(algorithm, Batch(transitions=long))[0].params
    )


def rated(name: str, legal: list[bool]) -> Array:
    """Priorities where of the first agent's next actions those are legal, and of the others' the first alone.

    The reward is far above all values, so that the better the successor is, the larger an error is.
    """
    algorithm = make(name)
    step = transitions(algorithm, Discrete(3), 1)["agents"]
    mask = jnp.tile(jnp.array([True, False, False]), (*step.alive.shape, 1)).at[..., 0, :].set(jnp.array(legal))
    step = dataclasses.replace(step, reward=jnp.full_like(step.reward, 100.0), next_action_mask=mask)
    state = algorithm.init(jax.random.key(1))
    batch = Batch(transitions={"agents": step})
    found: Array = jax.jit(algorithm.update)(state, batch, jax.random.key(2), jnp.float32(0))[2]["agents"]
    return found


@pytest.mark.parametrize("name", ["iql", "vdn", "qmix", "masac"])
def test_only_legal_actions_count_in_a_target(name: str) -> None:
    """The best of two is the better of each alone; for SAC, which takes a mean over them, something between."""
    first, second, third = (rated(name, [i == k for i in range(3)]) for k in range(3))
    both = rated(name, [True, True, False])
    low, high = np.minimum(first, second), np.maximum(first, second)
    assert (np.abs(third - high) > 1e-3).any()  # the illegal one is worth something else
    if name == "masac":
        entropy = 0.1 * np.log(2)  # what the temperature adds at most
        assert (both >= low - 1e-4).all() and (both <= high + entropy).all()
    else:
        np.testing.assert_allclose(both, high, atol=1e-3)


@pytest.mark.parametrize("name", ["isac", "masac"])
def test_importance_is_nothing_to_the_temperature(name: str) -> None:
    algorithm = make(name)
    batch = transitions(algorithm, CASES[name], 1)
    _, plain = updated(algorithm, Batch(transitions=batch))
    _, weighted = updated(algorithm, Batch(transitions=batch, weight=jnp.full(SEQUENCES, 0.5)))
    for metric in ("agents/entropy", "agents/alpha"):
        np.testing.assert_allclose(plain[metric], weighted[metric], rtol=1e-5)
    np.testing.assert_allclose(weighted["agents/policy_loss"], plain["agents/policy_loss"] / 2, rtol=1e-5)


def test_the_temperature_follows_the_schedule() -> None:
    algorithm = make("isac", lr_schedule="linear")
    batch = Batch(transitions=transitions(algorithm, CASES["isac"], 1))
    state = algorithm.init(jax.random.key(1))
    temperatures = [
        float(jax.jit(algorithm.update)(state, batch, jax.random.key(2), jnp.float32(progress))[1]["agents/alpha"])
        for progress in (0.0, 1.0)
    ]
    assert abs(temperatures[0] - 0.1) > 1e-5 and temperatures[1] == pytest.approx(0.1, rel=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_a_users_loss_is_added(name: str) -> None:
    """By one that is steep in every parameter, each must take Adam's first step: as long as the learning rate."""

    def loss(group: str, params: PyTree, batch: Transition) -> tuple[Array, dict[str, Array]]:
        assert group == "agents" and batch.reward.shape == (1, SEQUENCES, AGENTS)
        size = sum((jnp.sum(leaf) for leaf in jax.tree.leaves(params)), jnp.float32(0))
        return 1e3 * size, {"mine": batch.reward.mean()}

    algorithm = make(name, hooks=Hooks(loss=loss), max_grad_norm=1e9)
    before = algorithm.init(jax.random.key(1))["agents"].params
    batch = transitions(algorithm, CASES[name], 1)
    after, metrics = updated(algorithm, Batch(transitions=batch))
    for part in (part for part in before if part != "log_alpha"):
        for old, new in zip(jax.tree.leaves(before[part]), jax.tree.leaves(after.params[part]), strict=True):
            np.testing.assert_allclose(old - new, metrics["agents/lr"], rtol=1e-3)
    np.testing.assert_allclose(metrics["agents/mine"], batch["agents"].reward.mean(), rtol=1e-6)


@pytest.mark.parametrize("name", ["isac", "maddpg"])
def test_memory_of_the_critic_alone_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="critic_model with memory needs a model with memory too"):
        make(name, "mlp", "gru")


def test_the_targets_actions_by_the_policy_as_it_is() -> None:
    """Where actor and target actor are still the same, it makes no difference; later it does."""
    losses = []
    for target_actor in (True, False):
        algorithm = make("maddpg", target_actor=target_actor, lr=0.1)
        batch = Batch(transitions=transitions(algorithm, CASES["maddpg"], 1))
        state = algorithm.init(jax.random.key(1))
        own = []
        for _ in range(2):
            state, metrics, _ = jax.jit(algorithm.update)(state, batch, jax.random.key(2), jnp.float32(0))
            own.append(float(metrics["agents/q_loss"]))
        losses.append(own)
    assert losses[0][0] == losses[1][0] and losses[0][1] != losses[1][1]
