"""STORM: players gather coins of two kinds and meet; a meeting pays by a matrix game in the shares of coins they hold.

An observation is what a player sees (5×5 cells) and the inventories it knows of, flattened into one vector. The suite
can play several inner episodes in one, for meta-learning; here an episode is one game, cut by the time limit. JaxMARL's
third variant, `storm`, takes 70 ms per step and is left out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from covey.envs.base import Actions, SuiteConfig
from covey.envs.jaxmarl.core import NEVER, SuiteEnv, import_suite
from covey.types import Array, PyTree

RETURNS = "the player's own: its payoffs of the matrix game, summed over its meetings"


@dataclasses.dataclass(frozen=True, kw_only=True)
class StormConfig(SuiteConfig):
    """The default payoffs are a prisoner's dilemma."""

    time_limit: int = 152
    # payoffs to the row player of the matrix game: CC, CD, DC, DD (cooperate or defect)
    payoffs: tuple[float, ...] = (3.0, 0.0, 5.0, 1.0)
    freeze_penalty: int = 5  # steps for which players cannot move after a meeting
    fixed_coin_location: bool = True  # coins always start in the same places; false: anywhere

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.payoffs) != 4:
            raise ValueError(f"payoffs takes four numbers, not {len(self.payoffs)}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class StormNpConfig(StormConfig):
    num_agents: int = 4  # players, from 2 to 8

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 2 <= self.num_agents <= 8:
            raise ValueError(f"num_agents must be between 2 and 8, not {self.num_agents}")


def make_storm_2p(config: StormConfig) -> SuiteEnv:
    return Storm2pEnv(import_suite("storm").InTheGrid_2p(**suite_arguments(config)), returns=RETURNS)


def make_storm_np(config: StormNpConfig) -> SuiteEnv:
    suite = import_suite("storm").InTheGrid(num_agents=config.num_agents, **suite_arguments(config))
    return StormNpEnv(suite, returns=RETURNS)


def suite_arguments(config: StormConfig) -> dict[str, Any]:
    row = jnp.array(config.payoffs).reshape(2, 2)
    return {
        "num_inner_steps": NEVER,
        "num_outer_steps": 1,
        "payoff_matrix": jnp.stack([row, row.T]),
        "freeze_penalty": config.freeze_penalty,
        "fixed_coin_location": config.fixed_coin_location,
    }


def flatten_views(views: Array, inventories: Array) -> dict[str, Array]:
    """`[A, 5, 5, C]` and `[A, I]` to `[A, 25 C + I]`."""
    flat = views.reshape(views.shape[0], -1)
    return {"agents": jnp.concatenate([flat, inventories], axis=-1).astype(jnp.float32)}


class Storm2pEnv(SuiteEnv):
    """The suite takes and gives tuples."""

    coin_codes: ClassVar = {"tab:red": 3, "tab:cyan": 4}  # in the suite's grid

    def poses(self, state: PyTree) -> Sequence[Sequence[int]]:
        return state.red_pos, state.blue_pos

    def stack_observations(self, observations: Any) -> dict[str, Array]:
        stacked = jax.tree.map(lambda *players: jnp.stack(players), *observations)
        return flatten_views(stacked["observation"], stacked["inventory"])

    def unstack_actions(self, action: Actions) -> tuple[Array, ...]:
        return tuple(action["agents"])

    def draw(self, axes: Any, state: PyTree) -> None:
        """Players as triangles, coins as dots. The suite's own viewer fails with NumPy 2."""
        axes.set(xlim=(-0.5, state.grid.shape[0] - 0.5), ylim=(-0.5, state.grid.shape[1] - 0.5))
        axes.set_title(f"step {state.step}")
        for colour, code in self.coin_codes.items():
            axes.plot(*(state.grid == code).nonzero(), marker="o", linestyle="none", markersize=10, color=colour)
        for index, (x, y, direction) in enumerate(self.poses(state)):
            axes.plot(x, y, marker="^>v<"[direction], markersize=18, color=f"C{index}")


class StormNpEnv(Storm2pEnv):
    """The suite's arrays are stacked already, except for the inventories, which have the player's axis last."""

    coin_codes: ClassVar = {"tab:green": 9, "tab:red": 10}  # cooperation, defection

    def poses(self, state: PyTree) -> Sequence[Sequence[int]]:
        positions: Sequence[Sequence[int]] = state.agent_positions
        return positions

    def stack_observations(self, observations: Any) -> dict[str, Array]:
        return flatten_views(observations["observations"], observations["inventory"].T)
