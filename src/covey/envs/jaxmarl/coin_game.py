"""The coin game: two players on a 3×3 torus; taking the other's coin pays, and costs the other twice as much.

The suite plays several inner episodes in one, for meta-learning. Here an episode is one game, cut by the time limit.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

from covey.envs.base import SuiteConfig
from covey.envs.jaxmarl.core import NEVER, SuiteEnv, import_suite
from covey.types import Array, MetricSpec, PyTree


@dataclasses.dataclass(frozen=True, kw_only=True)
class CoinGameConfig(SuiteConfig):
    time_limit: int = 100
    egocentric: bool = False  # each player sees itself in the middle; false: the same grid for both
    own_coin: float = 1.0  # reward for taking a coin of its own colour
    other_coin: float = 1.0  # reward for taking a coin of the other's colour
    coin_lost: float = -2.0  # reward of the player whose coin the other took


def make_coin_game(config: CoinGameConfig) -> SuiteEnv:
    # The suite's matrix: for red its own coin, blue's coin, its coin lost; for blue red's coin, its own, its coin lost.
    payoffs = [
        [config.own_coin, config.other_coin, config.coin_lost],
        [config.other_coin, config.own_coin, config.coin_lost],
    ]
    suite = import_suite("coin_game").CoinGame(
        num_inner_steps=NEVER, num_outer_steps=1, cnn=True, egocentric=config.egocentric, payoff_matrix=payoffs
    )
    return CoinGameEnv(
        suite, returns="the player's own: 1 for each coin it took, -2 for each of its coins the other took"
    )


class CoinGameEnv(SuiteEnv):
    metrics: ClassVar = {
        "own_coins": MetricSpec(reduction="sum", unit="coins"),
        "other_coins": MetricSpec(reduction="sum", unit="coins", higher_is_better=False),
    }

    def measure(self, before: PyTree, after: PyTree, rewards: Any) -> dict[str, Array]:
        own = after.red_coop - before.red_coop + after.blue_coop - before.blue_coop
        other = after.red_defect - before.red_defect + after.blue_defect - before.blue_defect
        return {"own_coins": own.sum(), "other_coins": other.sum()}

    def draw(self, axes: Any, state: PyTree) -> None:
        axes.set(xlim=(-0.5, 2.5), ylim=(-0.5, 2.5), title=f"step {state.step}")
        for colour, player, coin in (
            ("tab:red", state.red_pos, state.red_coin_pos),
            ("tab:blue", state.blue_pos, state.blue_coin_pos),
        ):
            offset = -0.2 if colour == "tab:red" else 0.2  # players and coins may share a cell
            axes.plot(player[1] + offset, player[0] + 0.15, marker="s", markersize=24, color=colour)
            axes.plot(coin[1] + offset, coin[0] - 0.25, marker="o", markersize=14, color=colour, markeredgecolor="gold")
