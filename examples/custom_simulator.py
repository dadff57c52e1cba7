"""A simulator of your own, in ordinary Python: one class, a dataclass of its fields, and one `register_task` call.

Two carts on a track push a block to the goal; it moves only if both push, and a cart may break down. covey steps copies
of the class in processes of their own, gives each episode a seed, cuts it at the time limit, and keeps the true last
observation. Run this file, or, in its folder,

    covey check task=mine/carts 'imports=[custom_simulator]'
    covey train task=mine/carts 'imports=[custom_simulator]' experiment.frames=50_000
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

import covey
from covey.specs import Discrete, EnvSpec, GroupSpec, MetricSpec


@dataclasses.dataclass(frozen=True, kw_only=True)
class CartsConfig(covey.SimulatorConfig):
    track: int = 4  # how far the goal is
    breakdown: float = 0.02  # the chance that a cart breaks down in a step, which ends its episode
    time_limit: int = 20


class Carts:
    """Actions: wait or push. Each cart sees where the block is, whether each cart works, and which one it is."""

    def __init__(self, config: CartsConfig) -> None:
        self.config = config
        self.spec = EnvSpec(
            groups={"carts": GroupSpec(num_agents=2, observation_shape=(4,), action=Discrete(2))},
            time_limit=config.time_limit,
            metrics={"distance": MetricSpec(unit="cells")},
            returns="the cells that the block was pushed while the cart worked",
        )

    def reset(self, seed: int) -> covey.SimulatorStep:
        self.random = np.random.default_rng(seed)
        self.block = 0
        self.works = np.ones(2, bool)
        return covey.SimulatorStep(observations={"carts": self.see()})

    def step(self, actions: Mapping[str, np.ndarray]) -> covey.SimulatorStep:
        moved = bool((actions["carts"][self.works] == 1).all())
        self.block += moved
        broken = self.works & (self.random.random(2) < self.config.breakdown)
        self.works &= ~broken
        arrived = self.block >= self.config.track
        return covey.SimulatorStep(
            observations={"carts": self.see()},
            rewards={"carts": np.full(2, float(moved))},
            terminated={"carts": broken | arrived},
            metrics={"distance": float(self.block)},
        )

    def see(self) -> np.ndarray:
        shared = np.array([self.block / self.config.track, *self.works], np.float32)
        return np.stack([np.append(shared, number) for number in range(2)])

    def render(self) -> np.ndarray:
        picture = np.full((16, 16 * (self.config.track + 1), 3), 255, np.uint8)
        picture[4:12, 16 * self.block : 16 * self.block + 8] = (200, 90, 40)
        return picture


covey.register_task("mine/carts", Carts, config=CartsConfig, description="two carts push a block together", host=True)


def main() -> None:
    experiment = covey.Experiment(
        task="mine/carts",
        algorithm="ippo",
        fields={
            "model.layers": [32],
            "actors.num": 1,  # processes
            "experiment.frames": 16_384,
            "experiment.evaluation_interval": 0,
            "experiment.absolute_metric": False,
        },
    )
    experiment.run()


if __name__ == "__main__":  # the processes that step the simulator import this file too, and must not train
    main()
