"""What every loop offers to the host."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from conftest import MakeTeam, SameBits

from covey.loops.base import join_seeds, of_seed, state_shapes

AXES = {"learner": 0, "actor": 1, "clock": {"key": 0, "iteration": None}}


def test_seeds_are_taken_apart_and_joined() -> None:
    trees = {
        "learner": {"w": np.arange(6.0).reshape(3, 2)},  # [S, 2]
        "actor": np.arange(12.0).reshape(2, 3, 2),  # [devices, S, 2]
        "clock": {"key": np.arange(3), "iteration": np.int32(7)},
    }
    seeds = [jax.device_get(of_seed(AXES, trees, index)) for index in range(3)]
    np.testing.assert_array_equal(seeds[1]["learner"]["w"], [2.0, 3.0])
    np.testing.assert_array_equal(seeds[2]["actor"], [[4.0, 5.0], [10.0, 11.0]])
    assert seeds[0]["clock"]["iteration"] == 7
    jax.tree.map(np.testing.assert_array_equal, join_seeds(AXES, seeds), trees)


@pytest.mark.parametrize("algorithm", ["ippo", "iql"])
def test_a_state_is_restored_from_what_was_saved(trained: MakeTeam, same_bits: SameBits, algorithm: str) -> None:
    team = trained("probe/constant", algorithm=algorithm, iterations=2)
    fresh = team.loop.init(jax.random.key(1))
    saved = team.loop.saved(team.state)
    wanted = {"learner", "actor", "clock"} | ({"buffer"} if algorithm == "iql" else set())
    assert set(saved) == set(team.loop.parts) == wanted
    restored = team.loop.restored(fresh, saved)
    same_bits(team.loop.saved(restored), saved)
    without = team.loop.restored(fresh, {"learner": saved["learner"]})  # the rest stays as it is
    np.testing.assert_array_equal(without.iteration, fresh.iteration)
    same_bits(team.loop.learner(without), saved["learner"])


def test_the_learner_can_be_exchanged(trained: MakeTeam) -> None:
    team = trained("probe/constant", iterations=1)
    changed = jax.tree.map(lambda leaf: leaf + 1, team.learner)
    state = team.loop.with_learner(team.state, changed)
    assert team.loop.learner(state) is changed
    assert state.iteration == team.state.iteration


def test_a_buffer_left_out_of_checkpoints_is_said(trained: MakeTeam) -> None:
    team = trained("probe/constant", "buffer.in_checkpoints=false", algorithm="iql", iterations=0)
    assert "buffer" not in team.loop.saved(team.state)
    assert "left out" in team.loop.parts["buffer"].left_out


def test_shapes_are_those_of_a_state(trained: MakeTeam) -> None:
    team = trained("probe/constant", iterations=0)
    shapes = state_shapes(team.loop, jax.random.key(0))
    assert jax.tree.map(np.shape, team.state) == jax.tree.map(lambda leaf: leaf.shape, shapes)
