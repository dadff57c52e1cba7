"""Facts of the Jumanji adapters that the contract does not know: rules, rewards and endings, checked by hand."""

from __future__ import annotations

import collections
import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from covey import registry
from covey.envs.base import Env, make_env
from covey.envs.wrappers import Wrapper
from covey.errors import UsageError
from covey.types import Discrete, PyTree, TimeStep

GROUP = "agents"
KEY = jax.random.key(0)


compiled = functools.partial(
    jax.jit, compiler_options={"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
)


@functools.cache
def made(name: str, **fields: Any) -> Compiled:
    return Compiled(make_env(name, **fields))


class Compiled(Wrapper):
    """An environment made and compiled once for all tests that use it."""

    def __init__(self, env: Env):
        super().__init__(env)
        self.compiled_reset, self.compiled_step = compiled(env.reset), compiled(env.step)

    def reset(self, key: jax.Array) -> tuple[PyTree, TimeStep]:
        state, timestep = self.compiled_reset(key)
        return state, timestep

    def step(self, state: PyTree, action: dict[str, jax.Array], key: jax.Array) -> tuple[PyTree, TimeStep]:
        state, timestep = self.compiled_step(state, action, key)
        return state, timestep


def act(env: Env, state: PyTree, *actions: int) -> tuple[PyTree, TimeStep]:
    return env.step(state, {GROUP: jnp.array(actions, jnp.int32)}, KEY)


def change(state: PyTree, **fields: PyTree) -> PyTree:
    """The wrapped state `(inner, elapsed)` with fields of the inner one replaced."""
    inner, elapsed = state
    return dataclasses.replace(inner, **fields), elapsed


def test_number_of_tasks() -> None:
    counts = collections.Counter(entry.name.split("/")[0] for entry in registry.tasks)
    expected = {"rware": 16, "lbf": 7, "connector": 4, "cleaner": 5}
    assert {suite: counts[suite] for suite in expected} == expected


@pytest.mark.parametrize(
    ("name", "width"),
    [
        ("rware/tiny-2ag", 5),
        ("lbf/8x8-2p-2f-coop", 6),
        ("connector/con-5x5x3a", 5),
        ("cleaner/clean-5x5x5a", 4),
        ("multi_cvrp/2v-6c", 7),
        ("mmst/2a-12n", 12),
    ],
)
def test_number_of_actions(name: str, width: int) -> None:
    assert make_env(name).spec.groups[GROUP].action == Discrete(width)


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("rware/tiny-2ag", {"shelf_columns": 2}),
        ("lbf/8x8-2p-2f-coop", {"fov": 9}),
        ("lbf/8x8-2p-2f-coop", {"num_food": 7}),
        ("connector/con-5x5x3a", {"fov": 0}),
        ("multi_cvrp/2v-6c", {"num_customers": 7}),
        ("mmst/2a-12n", {"num_agents": 4}),
        ("cleaner/clean-5x5x5a", {"time_limit": 0}),
    ],
)
def test_bad_fields_fail_in_one_line(name: str, fields: dict[str, int]) -> None:
    with pytest.raises(UsageError) as error:
        make_env(name, **fields)
    assert "\n" not in str(error.value)


# ---------------------------------------------------------------------------------------------------------------- rware


def rware_with_agents_at(env: Env, rows: list[int], columns: list[int], directions: list[int]) -> PyTree:
    """Two empty-handed robots put down where a test wants them."""
    state, _ = env.reset(KEY)
    inner, _ = state
    position = inner.agents.position._replace(x=jnp.array(rows), y=jnp.array(columns))
    agents = inner.agents._replace(position=position, direction=jnp.array(directions), is_carrying=jnp.zeros(2, int))
    floor = jnp.zeros_like(inner.grid[0]).at[jnp.array(rows), jnp.array(columns)].set(jnp.array([1, 2]))
    # Jumanji keeps the shelves in one layer of the grid and the robots in the other.
    layer = int(np.argmin([np.count_nonzero(cells) for cells in inner.grid]))
    return change(state, agents=agents, grid=inner.grid.at[layer].set(floor))


def test_rware_collision_terminates() -> None:
    env = made("rware/tiny-2ag", time_limit=2)
    east, west = 1, 3
    state = rware_with_agents_at(env, rows=[0, 0], columns=[4, 5], directions=[east, west])
    _, timestep = act(env, state, 1, 0)  # forward, onto the other robot
    assert timestep.last and not timestep.truncated
    assert timestep.groups[GROUP].terminated.all()
    assert timestep.metrics["collision"] == 1
    np.testing.assert_array_equal(timestep.groups[GROUP].reward, [0, 0])


def test_rware_limit_truncates() -> None:
    env = made("rware/tiny-2ag", time_limit=2)
    east, west = 1, 3
    state = rware_with_agents_at(env, rows=[0, 0], columns=[4, 5], directions=[east, west])
    state, timestep = act(env, state, 2, 3)
    assert not timestep.last
    _, timestep = act(env, state, 0, 0)
    assert timestep.last and timestep.truncated
    assert not timestep.groups[GROUP].terminated.any()
    assert timestep.metrics["collision"] == 0


# ------------------------------------------------------------------------------------------------------------------ lbf


def lbf_at_the_table(env: Env) -> PyTree:
    """Agent 0 next to food 0, agent 1 next to both foods; all of level 1, the foods of level 1 and 2."""
    state, _ = env.reset(KEY)
    inner, _ = state
    agents = dataclasses.replace(inner.agents, position=jnp.array([[1, 2], [3, 2]]), level=jnp.array([1, 1]))
    food = dataclasses.replace(inner.food_items, position=jnp.array([[2, 2], [3, 3]]), level=jnp.array([2, 1]))
    return change(state, agents=agents, food_items=food)


def test_lbf_team_that_eats_all_gets_one_each() -> None:
    env = made("lbf/8x8-2p-2f-coop")
    load, noop = 5, 0
    _, first = act(env, lbf_at_the_table(env), load, load)  # both foods: agent 1 loads whatever it is next to
    np.testing.assert_allclose(first.groups[GROUP].reward, [1.0, 1.0])
    assert first.last and first.groups[GROUP].terminated.all() and not first.truncated
    assert first.metrics["food_eaten"] == 1

    _, alone = act(env, lbf_at_the_table(env), noop, load)  # only the food of level 1, a third of all levels
    np.testing.assert_allclose(alone.groups[GROUP].reward, [1 / 3, 1 / 3], rtol=1e-6)
    assert not alone.last and alone.metrics["food_eaten"] == 0.5


def test_lbf_individual_reward_is_the_agents_part() -> None:
    env = made("lbf/8x8-2p-2f-coop", reward="individual")
    _, timestep = act(env, lbf_at_the_table(env), 5, 5)
    np.testing.assert_allclose(timestep.groups[GROUP].reward, [1 / 3, 2 / 3], rtol=1e-6)


def test_lbf_has_a_state_where_the_view_is_limited() -> None:
    env = made("lbf/2s-8x8-2p-2f-coop")
    assert make_env("lbf/8x8-2p-2f-coop").spec.state_shape is None
    _, timestep = act(env, lbf_at_the_table(env), 0, 5)
    np.testing.assert_array_equal(timestep.state, [2, 2, 2, -1, -1, 0, 1, 2, 1, 3, 2, 1])


def test_lbf_grid_observation_has_channels_last() -> None:
    env = made("lbf/2s-8x8-2p-2f-coop", observation="grid")
    assert env.spec.groups[GROUP].observation_shape == (5, 5, 3)
    _, timestep = act(env, lbf_at_the_table(env), 0, 0)
    np.testing.assert_array_equal(timestep.groups[GROUP].observation[0, 2, 2], [1, 0, 0])  # itself, level 1
    np.testing.assert_array_equal(timestep.groups[GROUP].observation[0, 3, 2], [0, 2, 0])  # the food of level 2


# ------------------------------------------------------------------------------------------------------------ connector

UP, RIGHT, DOWN, LEFT = 1, 2, 3, 4


def connector_board(env: Env) -> PyTree:
    """Each agent three cells left of its target, on rows 0, 2 and 4; a cell holds 3 × agent + (2 head, 3 target)."""
    state, _ = env.reset(KEY)
    inner, _ = state
    rows = jnp.array([0, 2, 4])
    heads, targets = jnp.column_stack([rows, jnp.zeros(3, int)]), jnp.column_stack([rows, jnp.full(3, 3)])
    grid = jnp.zeros((5, 5), jnp.int32).at[rows, 0].set(jnp.array([2, 5, 8])).at[rows, 3].set(jnp.array([3, 6, 9]))
    agents = dataclasses.replace(inner.agents, start=heads, position=heads, target=targets)
    return change(state, agents=agents, grid=grid, action_mask=jnp.ones((3, 5), bool))


def test_connector_connecting_ends_only_ones_own_return() -> None:
    env = made("connector/con-5x5x3a")
    state = connector_board(env)
    for _ in range(2):
        state, timestep = act(env, state, RIGHT, 0, 0)
        np.testing.assert_allclose(timestep.groups[GROUP].reward, [-0.03] * 3)
        assert timestep.groups[GROUP].alive.all()
    state, timestep = act(env, state, RIGHT, 0, 0)
    group = timestep.groups[GROUP]
    np.testing.assert_allclose(group.reward, [0.97, -0.03, -0.03], rtol=1e-6)
    np.testing.assert_array_equal(group.terminated, [True, False, False])
    np.testing.assert_array_equal(group.alive, [False, True, True])
    assert not timestep.last
    np.testing.assert_allclose(timestep.metrics["connected"], 1 / 3, rtol=1e-6)
    _, timestep = act(env, state, 0, 0, 0)
    np.testing.assert_allclose(timestep.groups[GROUP].reward, [0, -0.03, -0.03])
    np.testing.assert_array_equal(timestep.groups[GROUP].terminated, [False] * 3)


def test_connector_with_shared_reward_keeps_all_alive() -> None:
    env = made("connector/con-5x5x3a", reward="team_mean")
    state = connector_board(env)
    for _ in range(3):
        state, timestep = act(env, state, RIGHT, 0, 0)
    np.testing.assert_allclose(timestep.groups[GROUP].reward, [0.91 / 3] * 3, rtol=1e-5)
    assert timestep.groups[GROUP].alive.all() and not timestep.groups[GROUP].terminated.any()


def test_connector_all_connected_terminates() -> None:
    env = made("connector/con-5x5x3a")
    state = connector_board(env)
    for _ in range(3):
        state, timestep = act(env, state, RIGHT, RIGHT, RIGHT)
    assert timestep.last and not timestep.truncated and timestep.groups[GROUP].terminated.all()


def test_connector_vector_observation() -> None:
    env = made("connector/con-5x5x3a", fov=1)
    _, timestep = act(env, connector_board(env), 0, RIGHT, UP)  # agent 2 goes to row 3, agent 1 one to the right
    observation = timestep.groups[GROUP].observation[2]
    blocked, own_target, heads, targets = observation[:36].reshape(4, 3, 3)
    np.testing.assert_array_equal(blocked, [[1, 1, 1], [1, 1, 0], [1, 1, 0]])  # outside, paths and heads
    np.testing.assert_array_equal(heads, [[0, 0, 1], [0, 0, 0], [0, 0, 0]])
    assert own_target.sum() == targets.sum() == 0
    np.testing.assert_allclose(observation[36:], [3 / 4, 0, 1 / 4, 3 / 4])  # place, and the way to the target


def test_connector_grid_observation() -> None:
    env = made("connector/con-5x5x3a", observation="grid")
    assert env.spec.groups[GROUP].observation_shape == (5, 5, 5)
    _, timestep = act(env, connector_board(env), RIGHT, 0, 0)
    own_head, own_target, heads, targets, paths = jnp.moveaxis(timestep.groups[GROUP].observation[0], -1, 0)
    assert np.argwhere(own_head).tolist() == [[0, 1]] and np.argwhere(own_target).tolist() == [[0, 3]]
    assert np.argwhere(heads).tolist() == [[2, 0], [4, 0]] and np.argwhere(targets).tolist() == [[2, 3], [4, 3]]
    assert np.argwhere(paths).tolist() == [[0, 0]]


# -------------------------------------------------------------------------------------------------------------- cleaner


def cleaner_corridor(env: Env, *dirty: int) -> PyTree:
    """An empty 5×5 room, dirty only at the given columns of the first row; all agents in the corner."""
    state, _ = env.reset(KEY)
    grid = jnp.ones((5, 5), jnp.int8).at[0, jnp.array(dirty)].set(0)
    mask = jnp.tile(jnp.array([False, True, True, False]), (5, 1))
    return change(state, grid=grid, action_mask=mask)


def test_cleaner_pays_for_tiles() -> None:
    env = made("cleaner/clean-5x5x5a")
    state, timestep = act(env, cleaner_corridor(env, 1, 2), 1, 1, 1, 1, 2)
    np.testing.assert_allclose(timestep.groups[GROUP].reward, [0.5] * 5)  # one tile, less the step's 0.5
    assert not timestep.last
    _, timestep = act(env, state, 1, 1, 1, 1, 0)
    assert timestep.last and timestep.groups[GROUP].terminated.all()
    assert timestep.metrics["cleaned"] == 1


def test_cleaner_invalid_move_terminates() -> None:
    env = made("cleaner/clean-5x5x5a")
    _, timestep = act(env, cleaner_corridor(env, 3, 4), 0, 1, 1, 1, 1)
    assert timestep.last and not timestep.truncated and timestep.groups[GROUP].terminated.all()


@pytest.mark.parametrize("kind", ["vector", "grid"])
def test_cleaner_observation(kind: str) -> None:
    env = made("cleaner/clean-5x5x5a", observation=kind, fov=1)
    _, timestep = act(env, cleaner_corridor(env, 2, 3), 1, 2, 2, 2, 2)
    observation = np.asarray(timestep.groups[GROUP].observation[0])  # at row 0, column 1
    if kind == "vector":
        dirty, wall, others = observation[:27].reshape(3, 3, 3)
        np.testing.assert_array_equal(dirty, [[0, 0, 0], [0, 0, 1], [0, 0, 0]])
        np.testing.assert_array_equal(wall, [[1, 1, 1], [0, 0, 0], [0, 0, 0]])
        np.testing.assert_array_equal(others, [[0, 0, 0], [0, 0, 0], [1, 0, 0]])
        np.testing.assert_allclose(observation[27:], [0, 1 / 4])
    else:
        dirty, wall, agents, itself = np.moveaxis(observation, -1, 0)
        assert np.argwhere(dirty).tolist() == [[0, 2], [0, 3]] and not wall.any()
        assert np.argwhere(agents).tolist() == [[0, 1], [1, 0]] and np.argwhere(itself).tolist() == [[0, 1]]


# --------------------------------------------------------------------------------- routing, searching, spanning trees


def test_multi_cvrp_step() -> None:
    env = made("multi_cvrp/2v-6c")
    state, first = env.reset(KEY)
    nodes = state[0].nodes
    customer = int(jnp.argmax(nodes.demands))
    state, timestep = act(env, state, customer, 0)
    distance = jnp.linalg.norm(nodes.coordinates[customer] - nodes.coordinates[0])
    reward = timestep.groups[GROUP].reward
    assert reward[0] == reward[1] and reward[0] <= -distance + 1e-4  # the way, and perhaps a penalty for the time
    before, after = first.groups[GROUP].action_mask, timestep.groups[GROUP].action_mask
    assert before is not None and after is not None
    assert not after[:, customer].any() and before[0, customer]
    np.testing.assert_allclose(reward[0], -distance - state[0].vehicles.time_penalties.sum(), rtol=1e-5)


def test_multi_cvrp_ends_by_itself_at_two_steps_per_customer() -> None:
    env = made("multi_cvrp/2v-6c")
    state, timestep = env.reset(KEY)
    for _ in range(12):
        assert not timestep.last
        state, timestep = env.step(state, {GROUP: jnp.zeros(2, jnp.int32)}, KEY)
    assert timestep.last and not timestep.truncated and timestep.groups[GROUP].terminated.all()


def test_search_and_rescue_reward_decays_with_the_tasks_own_limit() -> None:
    env = made("search_and_rescue/2s-20t", time_limit=10)
    state, _ = env.reset(KEY)
    inner, _ = state
    targets = dataclasses.replace(inner.targets, pos=jnp.full((20, 2), 0.9).at[0].set(jnp.array([0.5, 0.51])))
    searchers = dataclasses.replace(
        inner.searchers, pos=jnp.array([[0.49, 0.51], [0.1, 0.1]]), heading=jnp.zeros(2), speed=jnp.full(2, 0.005)
    )
    state = change(state, targets=targets, searchers=searchers, step=jnp.array(4, jnp.int32))
    state, timestep = env.step(state, {GROUP: jnp.zeros((2, 2))}, KEY)
    np.testing.assert_allclose(timestep.groups[GROUP].reward, [0.6, 0.0], rtol=1e-6)
    np.testing.assert_allclose(timestep.metrics["found"], 1 / 20)
    np.testing.assert_allclose(timestep.groups[GROUP].observation[:, -2:], [[0.95, 0.5]] * 2)


def test_mmst_rewards_the_agent_that_connects() -> None:
    env = made("mmst/2a-12n", reward="individual")
    state, timestep = env.reset(KEY)
    for _ in range(20):
        mask = np.asarray(timestep.groups[GROUP].action_mask)
        before = np.asarray(state[0].connected_nodes_index)
        state, timestep = env.step(state, {GROUP: jnp.array(mask.argmax(axis=-1), jnp.int32)}, KEY)
        new = np.asarray(state[0].connected_nodes_index) != before
        wanted = np.asarray(state[0].node_types) == np.arange(2)[:, None]
        np.testing.assert_array_equal(np.asarray(timestep.groups[GROUP].reward) == 10, (new & wanted).any(axis=-1))


# --------------------------------------------------------------------------------------------------------------- render


@pytest.mark.parametrize(
    "name",
    [
        "rware/tiny-2ag",
        "lbf/8x8-2p-2f-coop",
        "connector/con-5x5x3a",
        "cleaner/clean-5x5x5a",
        "multi_cvrp/2v-6c",
        "search_and_rescue/2s-20t",
        "mmst/2a-12n",
    ],
)
def test_render(name: str) -> None:
    env = made(name)
    state, _ = env.reset(KEY)
    (picture,) = env.render([state])
    assert picture.dtype == np.uint8 and picture.ndim == 3 and picture.shape[-1] == 3
    _, counts = np.unique(picture.reshape(-1, 3), axis=0, return_counts=True)
    assert counts.sum() - counts.max() > 500, "next to nothing is drawn on the background"
