"""Search and rescue: searchers steer over a torus and find drifting targets.

A target is worth less the later it is found, and nothing at the time limit. So the limit is part of the reward, and
agents see how much of the time has passed. The episode is still truncated there, not terminated.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
from jumanji.environments.swarms.search_and_rescue.env import SearchAndRescue as JumanjiSearchAndRescue
from jumanji.environments.swarms.search_and_rescue.generator import RandomGenerator
from jumanji.environments.swarms.search_and_rescue.observations import AgentAndTargetObservationFn
from jumanji.environments.swarms.search_and_rescue.reward import IndividualRewardFn

from covey.envs.base import SuiteConfig
from covey.envs.jumanji.core import NEVER, JumanjiEnv
from covey.types import Array, Continuous, Key, MetricSpec, PyTree, TimeStep


@dataclasses.dataclass(frozen=True, kw_only=True)
class SearchAndRescueConfig(SuiteConfig):
    num_searchers: int = 2  # searchers
    num_targets: int = 40  # targets to find
    num_vision: int = 128  # rays of a searcher's view
    searcher_vision_range: float = 0.4  # how far a searcher sees others, as a share of the side of the square
    target_vision_range: float = 0.1  # how far a searcher sees targets, as a share of the side of the square
    view_angle: float = 0.4  # angle of view to each side, in units of π
    contact_range: float = 0.02  # distance from which a target is found, as a share of the side of the square
    # the reward for a target falls from 1 at the start to 0 at the time limit; false: it stays 1
    reward_decays: bool = True
    time_limit: int = 400


class RewardUntil(IndividualRewardFn):
    """Jumanji's reward, scaled by covey's time limit instead of Jumanji's own, which is never reached."""

    def __init__(self, time_limit: int, *, decays: bool):
        super().__init__(scale_rewards=decays)
        self.time_limit = time_limit

    def __call__(self, found_targets: Array, step: int, time_limit: int) -> Array:
        reward: Array = super().__call__(found_targets, step, self.time_limit)
        return reward


class SearchAndRescue(JumanjiEnv):
    def __init__(self, config: SearchAndRescueConfig):
        generator = RandomGenerator(num_searchers=config.num_searchers, num_targets=config.num_targets)
        env = JumanjiSearchAndRescue(
            target_contact_range=config.contact_range,
            time_limit=NEVER,
            generator=generator,
            reward_fn=RewardUntil(config.time_limit, decays=config.reward_decays),
            observation=AgentAndTargetObservationFn(
                num_vision=config.num_vision,
                searcher_vision_range=config.searcher_vision_range,
                target_vision_range=config.target_vision_range,
                view_angle=config.view_angle,
                agent_radius=config.contact_range,
                env_size=generator.env_size,
            ),
        )
        super().__init__(
            env,
            config,
            action=Continuous(low=(-1.0, -1.0), high=(1.0, 1.0)),
            metrics={"found": MetricSpec(reduction="last", unit="share")},
            returns="1 for each target the agent found, split between those that found it at once, less if late",
        )

    def reset(self, key: Key) -> tuple[PyTree, TimeStep]:
        state, timestep = super().reset(key)
        return dataclasses.replace(state, step=jnp.zeros((), jnp.int32)), timestep  # Jumanji's is a Python int

    def observe(self, state: PyTree, observation: Any) -> Array:
        """The view, the agent's place, the share of targets left, and the share of the time that has passed."""
        views = observation.searcher_views.reshape(observation.positions.shape[0], -1)
        elapsed = observation.step / self._config.time_limit
        shared = jnp.broadcast_to(jnp.stack([observation.targets_remaining, elapsed]), (views.shape[0], 2))
        return jnp.concatenate([views, observation.positions, shared], axis=-1)

    def action_mask(self, state: PyTree, observation: Any) -> None:
        return None

    def global_state(self, state: PyTree) -> Array:
        """Each searcher's place, heading and speed, each target's place and whether it is found, and the time gone."""
        searchers, targets = state.searchers, state.targets
        speed = searchers.speed / self._env.searcher_params.max_speed
        heading = [jnp.cos(searchers.heading), jnp.sin(searchers.heading)]
        searcher_rows = jnp.column_stack([searchers.pos, *heading, speed])
        target_rows = jnp.column_stack([targets.pos, targets.found])
        elapsed = jnp.asarray(state.step / self._config.time_limit, jnp.float32)
        return jnp.concatenate([searcher_rows.ravel(), target_rows.ravel(), elapsed[None]])

    def measure(self, state: PyTree, timestep: Any) -> dict[str, Array]:
        return {"found": state.targets.found.mean()}
