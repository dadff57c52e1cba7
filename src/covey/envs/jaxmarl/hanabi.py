"""Hanabi: a cooperative card game, in which each player sees all cards but its own.

One player moves per step; the mask leaves the others only the no-op. A game ends by itself within 100 steps, so the
time limit cuts nothing. No global state: the players' views together already hold every hand.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np

from covey.envs.base import SuiteConfig
from covey.envs.jaxmarl.core import SuiteEnv, import_suite
from covey.types import Array, MetricSpec, PyTree


@dataclasses.dataclass(frozen=True, kw_only=True)
class HanabiConfig(SuiteConfig):
    """The reward is shared by the suite itself."""

    time_limit: int = 100
    num_agents: int = 2  # players, from 2 to 5
    num_colors: int = 5  # colours of the cards
    num_ranks: int = 5  # ranks of the cards
    hand_size: int | None = None  # cards in a hand; null: 5 for two or three players, else 4
    max_info_tokens: int = 8  # most hint tokens that the team can hold
    max_life_tokens: int = 3  # wrong cards that lose the game

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 2 <= self.num_agents <= 5:
            raise ValueError(f"num_agents must be between 2 and 5, not {self.num_agents}")
        if not 2 <= self.num_ranks <= 5 or not 1 <= self.num_colors <= 6:
            raise ValueError("num_ranks must be between 2 and 5, and num_colors between 1 and 6")


def make_hanabi(config: HanabiConfig) -> SuiteEnv:
    copies = [3] + [2] * (config.num_ranks - 2) + [1]  # of each rank: three ones, a single highest card
    suite = import_suite("hanabi").Hanabi(
        num_agents=config.num_agents,
        num_colors=config.num_colors,
        num_ranks=config.num_ranks,
        hand_size=config.hand_size,
        max_info_tokens=config.max_info_tokens,
        max_life_tokens=config.max_life_tokens,
        num_cards_of_rank=np.array(copies),
    )
    return HanabiEnv(suite, returns="the team's final score, the same for all: cards in the fireworks, 0 without lives")


class HanabiEnv(SuiteEnv):
    shared_reward = True
    metrics: ClassVar = {"score": MetricSpec(reduction="last", unit="cards")}

    def action_masks(self, state: PyTree) -> dict[str, Array]:
        masks = self.suite.get_legal_moves(state)
        return {"agents": jnp.stack([masks[agent] for agent in self.suite.agents]).astype(bool)}

    def measure(self, before: PyTree, after: PyTree, rewards: Any) -> dict[str, Array]:
        return {"score": after.score}

    def draw(self, axes: Any, state: PyTree) -> None:
        """The table as text: the suite only prints it."""
        colours = self.suite.color_map
        fireworks = " ".join(f"{colours[i]}{int(height)}" for i, height in enumerate(state.fireworks.sum(-1)))
        lines = [f"step {state.step}   score {state.score}", f"fireworks  {fireworks}"]
        lines += [f"hints {int(state.info_tokens.sum())}   lives {int(state.life_tokens.sum())}", ""]
        for player, hand in enumerate(state.player_hands):
            cards = [f"{colours[c]}{r + 1}" for card in hand for c, r in zip(*card.nonzero(), strict=True)]
            lines.append(f"{'>' if state.cur_player_idx[player] else ' '} player {player}  {' '.join(cards)}")
        axes.set(xlim=(0, 1), ylim=(0, 1))
        axes.text(0.05, 0.95, "\n".join(lines), family="monospace", fontsize=10, va="top")
