"""Seeds that train at once decide together."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from covey.ops.seeds import any_seed, least_of_seeds


@pytest.mark.parametrize(("flags", "expected"), [([False, True, False], True), ([False, False, False], False)])
def test_any_of_several_and_one_answer_for_all(flags: list[bool], expected: bool) -> None:
    answer = jax.vmap(any_seed, out_axes=None)(jnp.array(flags))  # without an axis: it is the same for all
    assert answer.shape == () and bool(answer) is expected


def test_the_least_of_several_is_one_number_for_all() -> None:
    assert jax.vmap(least_of_seeds, out_axes=None)(jnp.array([3, 1, 2])) == 1
    assert least_of_seeds(jnp.array(3)) == 3


def test_one_seed_decides_alone() -> None:
    assert bool(any_seed(jnp.array(True))) and not bool(any_seed(jnp.array(False)))


def test_a_branch_stays_a_branch() -> None:
    def absolute(x: jax.Array) -> Any:
        return jax.lax.cond(any_seed(x < 0), jnp.abs, lambda y: y, x)

    program = str(jax.make_jaxpr(jax.vmap(absolute))(jnp.array([1.0, -2.0, 3.0])))
    assert "cond[" in program and "select_n" not in program
    assert jax.vmap(absolute)(jnp.array([1.0, -2.0, 3.0])).tolist() == [1.0, 2.0, 3.0]
