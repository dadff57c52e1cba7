"""An episode that ends without `truncated` and without `terminated` has one meaning for every algorithm: it was cut."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import MakeTeam

from covey.envs.base import first_step, next_step
from covey.envs.probes import GROUP, Probe, ProbeConfig
from covey.types import TimeStep

GAMMA = 0.8


class Unexplained(Probe):
    """Episodes of one step. Those that begin at 1 pay 1 and terminate; those at -1 pay nothing, lead to 1, and end
    without a word: worth γ, which is the value of where they lead. Episodes after them begin at either, worth less."""

    def reset(self, key: jax.Array) -> tuple[Any, TimeStep]:
        place = jax.random.rademacher(key, (), jnp.float32)
        return place, first_step({GROUP: jnp.full((self.agents, 1), place)})

    def step(self, state: Any, action: dict[str, jax.Array], key: jax.Array) -> tuple[Any, TimeStep]:
        timestep = next_step(
            {GROUP: jnp.ones((self.agents, 1))},
            {GROUP: jnp.maximum(state, 0.0)},
            terminated={GROUP: jnp.full(self.agents, state > 0)},
            last=jnp.ones((), bool),
        )
        return state, timestep


FIELDS = (f"algorithm.gamma={GAMMA}", "algorithm.agent_ids=false")


@pytest.mark.parametrize("model", ["mlp", pytest.param("gru", marks=pytest.mark.slow)])
def test_ppo_bootstraps_from_where_the_episode_led(fresh: MakeTeam, model: str) -> None:
    team = fresh("probe/copy", *FIELDS, model=model, iterations=80, env=Unexplained(ProbeConfig()))
    seen, values = team.values()
    np.testing.assert_allclose(values[seen > 0], 1.0, atol=0.05)
    np.testing.assert_allclose(values[seen < 0], GAMMA, atol=0.05)  # across the border it would be 0.67


@pytest.mark.parametrize(
    "algorithm", ["pqn", "iql", *(pytest.param(name, marks=pytest.mark.slow) for name in ("vdn", "qmix", "isac"))]
)
def test_the_others_agree(fresh: MakeTeam, algorithm: str) -> None:
    fields = (*FIELDS, *(["algorithm.mixer=none"] if algorithm == "pqn" else []))
    fields += ("algorithm.alpha=1e-6", "algorithm.learn_alpha=false") if algorithm == "isac" else ()
    team = fresh("probe/copy", *fields, algorithm=algorithm, iterations=120, env=Unexplained(ProbeConfig()))
    assert team.metrics["agents/q_value"][-20:].mean() == pytest.approx((1 + GAMMA) / 2, abs=0.04)
