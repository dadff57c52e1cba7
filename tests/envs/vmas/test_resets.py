"""Episodes start as in VMAS: 10,000 resets of covey against 10,000 of VMAS (tools/record_vmas_resets.py).

Both are samples, so they differ by chance. What is allowed is five standard errors of the difference of two samples of
N draws each, one in two million by chance:

- means: 5·σ·√(2/N); standard deviations: 5·√((μ4 − σ⁴) / 4σ²)·√(2/N), with the fourth central moment μ4;
- quantiles: of covey's draws, the share below VMAS's p-quantile is p within 5·√(2p(1 − p)/N), which holds for any
  distribution; draws equal to the quantile count as either side, for what takes few values.

The distances between any two entities, too, have the same quantiles. Where VMAS places entities apart, its smallest
distance is one that independent draws would have come below often: at least 20 times in N, so that none at all is
chance e⁻²⁰. There, covey's smallest may be below VMAS's by half of what lies between VMAS's smallest and 1% quantile:
the smallest of N draws scatters by a hundredth of that, by a tenth where distances thin out towards their bound.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from replay import COMPILE_FAST, NAMES, make_scenario_env

PATH = Path(__file__).parents[2] / "data" / "vmas_resets.npz"
GATING = ("balance", "navigation", "passage", "simple_tag", "transport", "wind_flocking")
CASES = [pytest.param(name, marks=() if name in GATING else pytest.mark.slow) for name in NAMES]
APART = ("discovery", "dropout", "flocking", "navigation", "transport")  # scenarios that place entities apart
STANDARD_ERRORS = 5.0
ROUNDING = 2e-5


@functools.cache
def recorded() -> dict[str, Any]:
    with np.load(PATH) as file:
        return {key: json.loads(str(file[key])) if key == "meta" else file[key] for key in file.files}


@functools.cache
def draws(name: str) -> np.ndarray:
    """x, y and angle of every entity at each reset, `[N, E, 3]`, entities in the recording's order."""
    meta = recorded()["meta"]
    env = make_scenario_env(name, meta["scenarios"][name]["parameters"])

    @functools.partial(jax.jit, compiler_options=COMPILE_FAST)
    @jax.vmap
    def reset(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        world = env.scenario.reset(key).world
        return world.position, world.rotation

    position, rotation = reset(jax.random.split(jax.random.key(0), meta["num_resets"]))
    entities = meta["scenarios"][name]["entities"]
    rows = np.array([env.world.index(entity) for entity in entities])
    poses = np.concatenate([position, np.asarray(rotation)[..., None]], -1)[:, rows].astype(np.float64)
    rods = [i for i, entity in enumerate(entities) if entity.startswith("joint ")]
    poses[:, rods, 2] = nearest_turn(poses[:, rods, 2], recorded()[f"{name}/quantiles"][:, rods, 2])
    return poses


def nearest_turn(angles: np.ndarray, quantiles: np.ndarray) -> np.ndarray:
    """Angles by whole turns nearer to the middle of VMAS's: a rod's angle is found anew, where VMAS may add to one."""
    middle = (quantiles[0] + quantiles[-1]) / 2
    return np.asarray(angles - 2 * np.pi * np.round((angles - middle) / (2 * np.pi)))


def distances(poses: np.ndarray, shuffled: bool = False) -> np.ndarray:
    """Between every two entities, `[N, P]`; shuffled: as if each had been placed without regard to the other."""
    first, second = np.triu_indices(poses.shape[1], 1)
    other = poses[np.random.default_rng(0).permutation(len(poses))] if shuffled else poses
    return np.asarray(np.linalg.norm(poses[:, first, :2] - other[:, second, :2], axis=-1))


def assert_same_quantiles(values: np.ndarray, quantiles: np.ndarray, shares: tuple[float, ...], what: str) -> None:
    for share, quantile in zip(shares, quantiles, strict=True):
        allowed = STANDARD_ERRORS * np.sqrt(2 * share * (1 - share) / len(values))
        below = np.mean(values < quantile - ROUNDING, 0)
        up_to = np.mean(values <= quantile + ROUNDING, 0)
        wrong = (below > share + allowed) | (up_to < share - allowed)
        assert not wrong.any(), f"{what}: {share:.0%} quantile at {np.argwhere(wrong).tolist()}"


@pytest.mark.parametrize("name", CASES)
def test_places_and_angles(name: str) -> None:
    poses, ours = recorded(), draws(name)
    expected = {key: poses[f"{name}/{key}"] for key in ("mean", "deviation", "quantiles")}
    mean, deviation = ours.mean(0), ours.std(0)
    error = STANDARD_ERRORS * np.sqrt(2 / len(ours))
    fourth = np.mean((ours - mean) ** 4, 0)
    spread_error = np.sqrt(np.maximum(fourth - deviation**4, 0)) / (2 * np.maximum(deviation, ROUNDING))
    assert np.all(np.abs(mean - expected["mean"]) <= error * deviation + ROUNDING)
    assert np.all(np.abs(deviation - expected["deviation"]) <= error * spread_error + ROUNDING)
    assert_same_quantiles(ours, expected["quantiles"], poses["meta"]["quantiles"], "place or angle")


@pytest.mark.parametrize("name", CASES)
def test_distances(name: str) -> None:
    shares, quantiles = recorded()["meta"]["distance_quantiles"], recorded()[f"{name}/distance_quantiles"]
    assert_same_quantiles(distances(draws(name)), quantiles, shares, "distance")


@pytest.mark.parametrize("name", CASES)
def test_nothing_starts_closer_than_in_vmas(name: str) -> None:
    smallest, quantiles = recorded()[f"{name}/smallest_distance"], recorded()[f"{name}/distance_quantiles"]
    kept_apart = np.sum(distances(draws(name), shuffled=True) < smallest - ROUNDING, 0) >= 20
    bound = smallest - 0.5 * (quantiles[0] - smallest) - ROUNDING
    assert np.all(distances(draws(name)).min(0)[kept_apart] >= bound[kept_apart])
    assert kept_apart.any() or name not in APART, "the check finds no distance that is kept"


def test_every_scenario_is_recorded() -> None:
    assert set(recorded()["meta"]["scenarios"]) == set(NAMES)
