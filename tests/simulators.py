"""Small simulators for tests: each shows in its observations what happened to it."""

from __future__ import annotations

import ast
import dataclasses
import os
import time
from collections.abc import Mapping

import numpy as np

from covey.envs.host.simulator import SimulatorConfig, SimulatorStep
from covey.specs import Discrete, EnvSpec, GroupSpec, MetricSpec


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClockConfig(SimulatorConfig):
    """Fields of the clock."""

    time_limit: int = 10
    num_agents: int = 2
    dies_at: int | None = None  # step at which agent 0 terminates
    joins_at: int | None = None  # step at which agent 1 joins
    crash_at: int | None = None  # step of every third episode at which the process ends
    hang_at: int | None = None  # ... at which it sleeps
    fails: str = ""  # what goes wrong, by name; FIELD=VALUE: what the answer has at step 2 instead
    shaping: float = 0.0  # for learning only, at every step


class Clock:
    """Agents see the episode's seed, the step, and the sum of their own actions, which is also their reward's rate."""

    def __init__(self, config: ClockConfig):
        self.config = config
        if config.fails == "start":
            raise FileNotFoundError("no such map: desert")
        self.spec = EnvSpec(
            groups={"agents": GroupSpec(num_agents=config.num_agents, observation_shape=(3,), action=Discrete(3))},
            time_limit=config.time_limit,
            state_shape=(2,),
            metrics={"caught": MetricSpec()} if config.fails.startswith("metrics") else {},
        )
        self.episodes = 0

    def reset(self, seed: int) -> SimulatorStep:
        self.seed, self.elapsed, self.episodes = seed, 0, self.episodes + 1
        self.sums = np.zeros(self.config.num_agents)
        return self.answer()

    def step(self, actions: Mapping[str, np.ndarray]) -> SimulatorStep:
        self.elapsed += 1
        self.sums += actions["agents"]
        if self.config.fails == "exits" and self.elapsed == 2:
            raise SystemExit(4)
        if self.config.fails == "raises" and self.elapsed == 2:
            raise ZeroDivisionError("division by zero")
        if self.elapsed == self.config.crash_at and self.episodes % 3 == 0:
            print("out of memory, it seems")
            os._exit(3)
        if self.elapsed == self.config.hang_at and self.episodes % 3 == 0:
            time.sleep(60)
        return self.answer(actions["agents"].astype(float))

    def shape(self) -> dict[str, np.ndarray] | None:
        if not self.config.shaping or (self.config.fails == "unshaped" and self.elapsed == 2):
            return None
        return {"agents": np.full(self.config.num_agents, self.config.shaping * bool(self.elapsed))}

    def answer(self, rewards: np.ndarray | None = None) -> SimulatorStep:
        step = np.full(self.config.num_agents, float(self.elapsed))
        seen = np.stack([np.full_like(step, self.seed % 1000), step, self.sums], axis=-1)
        if self.config.fails == "nan" and self.elapsed == 2:
            seen[1, 2] = np.nan
        if self.config.fails == "large" and self.elapsed == 2:
            seen[:] = np.finfo(np.float32).max
        if self.config.fails == "shape" and self.elapsed == 2:
            seen = seen[:, :2]
        if self.config.fails == "nan reward" and self.elapsed == 2 and rewards is not None:
            rewards[1] = np.inf
        state = np.array([self.seed % 1000, self.elapsed], float)
        if self.config.fails == "nan state" and self.elapsed == 0 and self.episodes == 3:
            state[0] = np.nan
        terminated = np.zeros(self.config.num_agents, bool)
        terminated[0] = self.config.dies_at is not None and self.elapsed >= self.config.dies_at
        alive = None
        if self.config.joins_at is not None:
            alive = {"agents": np.array([True, self.elapsed >= self.config.joins_at])}
        answer = SimulatorStep(
            metrics={"caught": 1.0} if self.spec.metrics else {},
            alive=alive,
            observations={"agents": seen},
            rewards=None if rewards is None else {"agents": rewards},
            shaping=self.shape(),
            terminated={"agents": terminated},
            state=state,
        )
        field, _, value = self.config.fails.partition("=")
        if value and self.elapsed == 2:
            setattr(answer, field, ast.literal_eval(value))
        return answer
