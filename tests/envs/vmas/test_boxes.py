"""Boxes that collide: many operations in many substeps, which must not be compiled once for each."""

from __future__ import annotations

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest

from covey.envs.base import make_env
from covey.envs.vmas import geometry, physics
from covey.envs.vmas.geometry import Rectangle
from covey.envs.vmas.vectors import Vector


def random_boxes(key: jax.Array, number: int) -> Rectangle:
    place, angle, size = jax.random.split(key, 3)
    x, y = jax.random.uniform(place, (2, number), minval=-1.0)
    length, width = jax.random.uniform(size, (2, number), minval=0.1)
    turned = jnp.where(jnp.arange(number) % 2, jax.random.uniform(angle, (number,), maxval=6.0), 0.0)
    return Rectangle(centre=Vector(x=x, y=y), angle=turned, length=length, width=width)


def test_nearest_points_of_boxes_are_those_of_their_sides_one_by_one() -> None:
    one, other = (random_boxes(jax.random.key(seed), 200) for seed in (0, 1))
    sides, other_sides = geometry.box_sides(one), geometry.box_sides(other)

    def side(segments: geometry.Segment, index: int) -> geometry.Segment:
        chosen: geometry.Segment = jax.tree.map(lambda x: x[index], segments)
        return chosen

    candidates = []
    for i in range(4):
        for j in range(4):
            on_other, on_one = geometry.nearest_of_segments(side(other_sides, j), side(sides, i))
            candidates.append((on_one, on_other))
    for i in range(4):
        for j in range(4):
            candidates.append(geometry.nearest_of_segments(side(sides, j), side(other_sides, i)))
    wanted = geometry._nearest_pair(candidates)
    found = geometry.nearest_of_boxes(one, other)
    jax.tree.map(np.testing.assert_array_equal, found, wanted)


def count_operations(jaxpr: jax.extend.core.Jaxpr) -> int:
    inner = [sub for eqn in jaxpr.eqns for sub in jax.extend.core.jaxprs_in_params(eqn.params)]
    return len(jaxpr.eqns) + sum(map(count_operations, inner))


@pytest.mark.parametrize("task", ["give_way", "multi_give_way"])
def test_a_step_with_box_agents_is_not_much_larger_than_with_discs(task: str) -> None:
    sizes = []
    for box_agents in (False, True):
        env = make_env(f"vmas/{task}", box_agents=box_agents)
        state, _ = jax.eval_shape(env.reset, jax.random.key(0))
        group = env.spec.groups["agents"]
        action = {"agents": jax.ShapeDtypeStruct((group.num_agents, 2), jnp.float32)}
        sizes.append(count_operations(jax.make_jaxpr(env.step)(state, action, jax.random.key(0)).jaxpr))
    assert sizes[1] < 2 * sizes[0], f"{sizes[1]} operations, {sizes[0]} with discs"


def test_substeps_in_a_loop_are_those_one_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = []
    for most in (0, 100):
        monkeypatch.setattr(physics, "MOST_UNROLLED", most)
        env = make_env("vmas/simple_tag")  # with drag, which is in the first substep alone
        state, _ = env.reset(jax.random.key(0))
        actions = {name: jnp.ones((group.num_agents, 2)) for name, group in env.spec.groups.items()}
        step = jax.jit(env.step)
        for number in range(5):
            state, _ = step(state, actions, jax.random.key(number))
        ends.append(state)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), *ends)
    assert np.abs(np.asarray(ends[0][0].world.velocity)).max() > 0.1
