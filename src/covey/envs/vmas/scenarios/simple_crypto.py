"""Crypto: Alice sends Bob a secret with a key that both have; Eve, who has no key, overhears and guesses it as well."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from covey.envs.vmas.particles import scatter
from covey.envs.vmas.scenario import Scenario, ScenarioState, VmasConfig
from covey.envs.vmas.world import BLUE, GREEN, RED, Agent, World
from covey.types import Array, Key, MetricSpec

COLOURS = {"eve_0": RED, "bob_0": BLUE, "alice_0": GREEN}
EVE, BOB, ALICE = range(3)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SimpleCryptoConfig(VmasConfig):
    dim_c: int = 4  # bits of the secret, of the key and of a message

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dim_c < 1:
            raise ValueError(f"dim_c must be at least 1, not {self.dim_c}")


class SimpleCrypto(Scenario):
    """Nobody moves: all act by what they say, and what Bob and Eve say is their guess of the secret.

    Reward: Eve loses the squared error of her guess; Alice and Bob get that error and lose Bob's. Saying nothing, all
    zeros, counts as no error.
    """

    metric_specs: ClassVar = {
        "bob_correct": MetricSpec(unit="share of bits"),
        "eve_correct": MetricSpec(unit="share of bits", higher_is_better=False),
    }
    opposed_groups: ClassVar = (("alice", "bob"), ("eve",))
    shared_rewards: ClassVar = (("alice", "bob"),)
    config: SimpleCryptoConfig

    def make_world(self) -> World:
        return World(
            agents=tuple(
                Agent(name=name, collide=False, movable=False, silent=False, colour=colour)
                for name, colour in COLOURS.items()
            ),
            dim_c=self.config.dim_c,
        )

    def reset(self, key: Key) -> ScenarioState:
        """The bits of `secret` and `key` are drawn too, `[dim_c]`."""
        key_place, key_bits = jax.random.split(key)
        secret, shared_key = jax.random.bernoulli(key_bits, shape=(2, self.config.dim_c)).astype(jnp.float32)
        return self.begin(scatter(self.world, key_place), secret=secret, key=shared_key)

    def reward(self, state: ScenarioState, key: Key) -> tuple[Array, ScenarioState]:
        said = state.world.communication
        error = jnp.sum(jnp.square(said - state.memory["secret"]), -1)
        error = jnp.where(jnp.all(said == 0, -1), 0.0, error)
        for_good = error[EVE] - error[BOB]
        return jnp.stack([-error[EVE], for_good, for_good]), state

    def observation(self, state: ScenarioState, key: Key) -> list[Array]:
        secret, shared_key = state.memory["secret"], state.memory["key"]
        heard = state.world.communication[ALICE]
        return [heard, jnp.concatenate([shared_key, heard]), jnp.concatenate([secret, shared_key])]

    def metrics(self, state: ScenarioState) -> dict[str, Array]:
        correct = jnp.mean((state.world.communication > 0.5) == (state.memory["secret"] > 0.5), -1)
        return {"bob_correct": correct[BOB], "eve_correct": correct[EVE]}
