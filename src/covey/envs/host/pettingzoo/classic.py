"""PettingZoo's classic: games of turns. A step is one move, and players whose turn it is not can only wait."""

from __future__ import annotations

import dataclasses
import enum
from typing import ClassVar

from covey.checks import at_least
from covey.envs.host.pettingzoo.recipe import PettingZooConfig, Recipe
from covey.registry import OtherNames


@dataclasses.dataclass(frozen=True, kw_only=True)
class DuelConfig(PettingZooConfig):
    """Fields of games for two opponents, each a separate group."""

    time_limit: int = 100

    game: ClassVar[str]
    players: ClassVar[tuple[str, str]] = ("player_0", "player_1")
    outcome: ClassVar[str] = "1 for the winner of the game, -1 for the loser, 0 for a draw"

    def recipe(self) -> Recipe:
        return Recipe(
            module=self.game,
            arguments=self.arguments(),
            turns=True,
            groups={player: [player] for player in self.players},
            teams=[[player] for player in self.players],
            returns=self.outcome,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConnectFourConfig(DuelConfig):
    game: ClassVar[str] = "classic/connect_four-v3"


@dataclasses.dataclass(frozen=True, kw_only=True)
class TicTacToeConfig(DuelConfig):
    game: ClassVar[str] = "classic/tictactoe-v3"
    players: ClassVar[tuple[str, str]] = ("player_1", "player_2")


@dataclasses.dataclass(frozen=True, kw_only=True)
class LeducConfig(DuelConfig):
    game: ClassVar[str] = "classic/leduc_holdem-v4"
    outcome: ClassVar[str] = "half of the chips that the player won, or minus half of those that it lost"


class HanabiObservation(enum.Enum):
    """What a player of Hanabi knows."""

    minimal = "what it sees"
    card_knowledge = "what it sees, and what hints have said about cards"
    seer = "everything, its own cards too"


@dataclasses.dataclass(frozen=True, kw_only=True)
class HanabiConfig(PettingZooConfig):
    """Fields of hanabi; the defaults are the full game for two."""

    time_limit: int = 150
    num_players: int = 2  # number of players, from 2 to 5
    observation: HanabiObservation = HanabiObservation.card_knowledge  # what a player knows
    colors: int = 5  # colours of cards, from 2 to 5, at least as many as players
    ranks: int = 5  # ranks of cards, from 2 to 5
    hand_size: int = 5  # cards in a hand, from 2 to 5
    max_information_tokens: int = 8  # hints that can be given before a card must be discarded
    max_life_tokens: int = 3  # wrong cards after which the game is lost

    other_names: ClassVar[OtherNames] = {**PettingZooConfig.other_names, "players": "num_players"}

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 2, "num_players", "colors", "ranks", "hand_size")
        at_least(self, 1, "max_life_tokens")
        largest = {name: getattr(self, name) for name in ("num_players", "colors", "ranks", "hand_size")}
        for name, value in largest.items():
            if value > 5:
                raise ValueError(f"{name} must be at most 5, not {value}")
        if self.num_players > self.colors:
            raise ValueError(f"num_players={self.num_players} must not exceed colors={self.colors}")

    def recipe(self) -> Recipe:
        own = self.arguments(num_players="players", observation="observation_type")
        return Recipe(
            module="classic/hanabi-v5",
            # With a render mode, it draws every step.
            arguments={**own, "render_mode": None},
            turns=True,
            shared_reward=("agents",),
            returns="the cards that the team put on the fireworks, up to 25; 0 if it lost all its lives",
        )
