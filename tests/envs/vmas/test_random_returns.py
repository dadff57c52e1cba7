"""What agents earn that act at random: covey's `anchors.json` against VMAS itself under BenchMARL's defaults.

VMAS's numbers are means over 100 episodes, 30 where they have 500 steps, each the mean over agents (and over groups,
or by group where stated). Allowed are five standard errors of the difference of the two means, from the spread of an
episode's return, and half of the last digit that is stated. The spread of the mean return follows from the anchor's
interval; that of the groups' returns is stated here, as found in 1,024 episodes, and found again by a slow test.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from replay import COMPILE_FAST, NAMES

import covey
from covey.algorithms.base import make_team
from covey.algorithms.random import make_random_group
from covey.envs.base import make_env
from covey.envs.batch import episode_values
from covey.loops.evaluate import play_episodes
from covey.metrics import scored_groups

STANDARD_ERRORS = 5.0
LONG = ("ball_passage", "football", "joint_passage", "joint_passage_size", "passage")  # 500 steps
REPLAYED = ("balance", "dispersion", "navigation", "simple_crypto", "simple_tag", "simple_world_comm", "wheel")


@dataclasses.dataclass(frozen=True)
class Expected:
    stated: str  # as in VMAS's table, so that it says how exact it is
    metric: str = "mean_return"
    spread: float | None = None  # the standard deviation over episodes; None: from the anchor's interval

    @property
    def value(self) -> float:
        return float(self.stated)

    @property
    def rounding(self) -> float:
        return 0.5 * 10.0 ** -len(self.stated.partition(".")[2])


TABLE = {
    "navigation": [Expected("-0.41")],
    "balance": [Expected("-5.4")],
    "sampling": [Expected("2.7")],
    "transport": [Expected("0.00")],
    "wheel": [Expected("-4.97")],
    "discovery": [Expected("0.10")],
    "flocking": [Expected("-0.16")],
    "dispersion": [Expected("0.22")],
    "dropout": [Expected("-4.14")],
    "give_way": [Expected("-0.01")],
    "multi_give_way": [Expected("0.11")],
    "reverse_transport": [Expected("0.00")],
    "ball_trajectory": [Expected("0.03")],
    "buzz_wire": [Expected("-7.2")],
    "ball_passage": [Expected("-0.46")],
    "joint_passage": [Expected("0.02")],
    "joint_passage_size": [Expected("0.07")],
    "passage": [Expected("-444")],
    "wind_flocking": [Expected("-0.34")],
    "football": [Expected("-115")],
    "simple_spread": [Expected("-584")],
    "simple_reference": [Expected("-213")],
    "simple_speaker_listener": [Expected("-213")],
    "simple_adversary": [Expected("-108.5", "adversary_return", 48.7), Expected("38.0", "agent_return", 60.7)],
    "simple_push": [Expected("-1.1", "adversary_return", 67.1), Expected("-106.5", "agent_return", 51.0)],
    "simple_crypto": [
        Expected("-134", "eve_return", 5.8),
        Expected("0.7", "bob_return", 8.5),
        Expected("0.7", "alice_return", 8.5),
    ],
    "simple_world_comm": [Expected("16.5", "adversary_return", 16.8), Expected("-10.9", "agent_return", 9.1)],
    "simple_tag": [Expected("6.9", "adversary_return", 12.2), Expected("-6.9", "agent_return", 12.2)],
}


@functools.cache
def anchor(name: str) -> dict[str, Any]:
    path = Path(covey.__file__).parent / "anchors.json"
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["tasks"][f"vmas/{name}"]["random"]
    return found


def anchor_value(name: str, metric: str) -> float:
    found = anchor(name)
    return float(found["mean_return"] if metric == "mean_return" else found["others"][metric])


def anchor_spread(name: str) -> float:
    """Of the mean return. With so many episodes, Student's t is the normal's 1.96."""
    return float(anchor(name)["interval_95"]) / 1.96 * math.sqrt(anchor(name)["episodes"])


@pytest.mark.parametrize("name", NAMES)
def test_random_teams_earn_as_in_vmas(name: str) -> None:
    theirs, ours = 30 if name in LONG else 100, anchor(name)["episodes"]
    assert ours >= 250
    for expected in TABLE[name]:
        spread = expected.spread or anchor_spread(name)
        allowed = STANDARD_ERRORS * spread * math.sqrt(1 / theirs + 1 / ours) + expected.rounding
        assert anchor_value(name, expected.metric) == pytest.approx(expected.value, abs=allowed), expected.metric


@pytest.mark.slow
@pytest.mark.parametrize("name", REPLAYED)
def test_anchors_are_found_again(name: str) -> None:
    episodes = 256
    env = make_env(f"vmas/{name}")
    team = make_team({group: make_random_group(env.spec, group) for group in env.spec.groups})

    @functools.partial(jax.jit, compiler_options=COMPILE_FAST)
    def play(key: jax.Array) -> dict[str, jax.Array]:
        played = play_episodes(env, team, team.init(key), key, num_episodes=episodes, deterministic=False)
        return episode_values(played, scored_groups(env.spec.cooperating))

    values = {metric: np.asarray(value, np.float64) for metric, value in play(jax.random.key(1)).items()}
    for metric in ("mean_return", *anchor(name)["others"]):
        error = float(values[metric].std()) * math.sqrt(1 / episodes + 1 / anchor(name)["episodes"])
        allowed = STANDARD_ERRORS * error + 1e-4 * abs(anchor_value(name, metric))
        assert values[metric].mean() == pytest.approx(anchor_value(name, metric), abs=allowed), metric
    for expected in TABLE[name]:
        spread = expected.spread or anchor_spread(name)
        assert values[expected.metric].std() == pytest.approx(spread, rel=0.3), expected.metric
