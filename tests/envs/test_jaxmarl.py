"""Facts of the JaxMARL adapters. What holds for every environment is in test_contract.py."""

from __future__ import annotations

import functools
import importlib.util
import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from covey import registry
from covey.envs.base import Env, make_env
from covey.envs.jaxmarl.core import SuiteEnv
from covey.envs.jaxmarl.mabrax import limb_segments
from covey.errors import UsageError
from covey.types import Continuous, Discrete, PyTree, TimeStep

COMPILE_FAST = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
jit = functools.partial(jax.jit, compiler_options=COMPILE_FAST)

NUM_TASKS = {
    "mpe": 13,
    "smax": 11,
    "overcooked": 5,
    "overcooked_v2": 12,
    "hanabi": 4,
    "storm": 3,
    "coin_game": 1,
    "switch_riddle": 3,
    "jaxnav": 2,
    "mabrax": 5,
}


@functools.cache
def made(name: str, **fields: Any) -> Env:
    return make_env(name, **fields)


def inner(env: Any) -> SuiteEnv:
    """The adapter under covey's wrappers."""
    while not isinstance(env, SuiteEnv):
        env = env.env
    return env


def random_actions(env: Env, timestep: TimeStep, key: jax.Array) -> dict[str, jax.Array]:
    actions = {}
    for name, group in env.spec.groups.items():
        key, key_group = jax.random.split(key)
        if isinstance(group.action, Continuous):
            shape = (group.num_agents, group.action.size)
            low, high = jnp.array(group.action.low), jnp.array(group.action.high)
            actions[name] = jax.random.uniform(key_group, shape, minval=low, maxval=high)
        else:
            mask = timestep.groups[name].action_mask
            mask = jnp.ones((group.num_agents, group.action.num_actions), bool) if mask is None else mask
            actions[name] = jax.random.categorical(key_group, jnp.where(mask, 0.0, -jnp.inf))
    return actions


def play(env: Env, num_steps: int, seed: int = 0) -> Any:
    """States and time steps `[T]` of random legal play from one reset, going on after an ending."""

    def step(carry: tuple[PyTree, TimeStep], key: jax.Array) -> tuple[tuple[PyTree, TimeStep], Any]:
        state, timestep = carry
        key_act, key_env = jax.random.split(key)
        carry = env.step(state, random_actions(env, timestep, key_act), key_env)
        return carry, carry

    def run(key: jax.Array) -> Any:
        return jax.lax.scan(step, env.reset(key), jax.random.split(key, num_steps))[1]

    return jit(run)(jax.random.key(seed))


# ------------------------------------------------------------------------------------------------------------- catalog


@pytest.mark.parametrize("suite", NUM_TASKS)
def test_number_of_tasks(suite: str) -> None:
    assert sum(entry.name.startswith(f"{suite}/") for entry in registry.tasks) == NUM_TASKS[suite]


@pytest.mark.skipif(importlib.util.find_spec("brax") is not None, reason="the extra is installed")
def test_mabrax_names_its_extra() -> None:
    with pytest.raises(UsageError, match=r"^task 'mabrax/ant_4x2' needs the extra: pip install 'covey\[mabrax\]'$"):
        make_env("mabrax/ant_4x2")


def test_limbs_are_where_the_links_and_their_shapes_say() -> None:
    """A capsule lies along its own z axis: turned by a quarter about y, along x; the link then turns that to y."""
    quarter_y, quarter_z = ([np.sqrt(0.5), *axis] for axis in ([0, np.sqrt(0.5), 0], [0, 0, np.sqrt(0.5)]))
    system = types.SimpleNamespace(
        geom_type=[0, 3, 2],  # the ground, a capsule, a sphere
        geom_bodyid=[0, 1, 2],
        geom_size=[[9, 9, 9], [0.1, 0.5, 0], [0.2, 0, 0]],
        geom_pos=[[0, 0, 0], [1, 0, 0], [0, 0, 1]],
        geom_quat=[[1, 0, 0, 0], quarter_y, [1, 0, 0, 0]],
    )
    links = types.SimpleNamespace(pos=[[0, 0, 3], [5, 0, 0]], rot=[quarter_z, [1, 0, 0, 0]])
    capsule, sphere = limb_segments(system, links)
    np.testing.assert_allclose(capsule[:2], [[0, 0.5, 3], [0, 1.5, 3]], atol=1e-12)
    np.testing.assert_allclose(sphere[:2], [[5, 0, 1], [5, 0, 1]], atol=1e-12)
    assert (capsule[2], sphere[2]) == (0.1, 0.2)


def test_importing_jaxmarl_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    made("mpe/simple_spread")
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize(
    ("name", "field", "value"), [("smax/2s3z", "map", "2s3x"), ("overcooked/coord_ring", "layout", "coord_rings")]
)
def test_unknown_map_or_layout(name: str, field: str, value: str) -> None:
    with pytest.raises(UsageError, match="nearest"):
        make_env(name, **{field: value})


# -------------------------------------------------------------------------------------------------------------- groups


@pytest.mark.parametrize(
    ("name", "groups"),
    [
        ("mpe/simple_spread", {"agents": (3, 5)}),
        ("mpe/simple_reference", {"agents": (2, 50)}),
        ("mpe/simple_tag", {"adversary": (3, 5), "agent": (1, 5)}),
        ("mpe/simple_adversary", {"adversary": (1, 5), "agent": (2, 5)}),
        ("mpe/simple_push", {"adversary": (1, 5), "agent": (1, 5)}),
        ("mpe/simple_world_comm", {"leader": (1, 20), "adversary": (3, 5), "agent": (2, 5)}),
        ("mpe/simple_speaker_listener", {"speaker": (1, 3), "listener": (1, 5)}),
        ("mpe/simple_crypto", {"eve": (1, 4), "alice": (1, 4), "bob": (1, 4)}),
        ("switch_riddle/4-agent", {"agents": (4, 3)}),
    ],
)
def test_groups(name: str, groups: dict[str, tuple[int, int]]) -> None:
    spec = made(name).spec.groups
    assert {group: (part.num_agents, part.action) for group, part in spec.items()} == {
        group: (num_agents, Discrete(num_actions)) for group, (num_agents, num_actions) in groups.items()
    }


def test_facmac_learns_the_predators_only() -> None:
    assert {name: group.num_agents for name, group in made("mpe/simple_facmac_6a").spec.groups.items()} == {"agents": 6}


def test_continuous_actions_and_more_agents() -> None:
    group = made("mpe/simple_spread", actions="continuous", num_agents=4, num_landmarks=4).spec.groups["agents"]
    assert group.num_agents == 4
    assert group.action == Continuous((0.0,) * 5, (1.0,) * 5)


# ------------------------------------------------------------------------------------------------ equal to the suite


SAME_STEPS = {
    "mpe/simple_world_comm": {},
    "mpe/simple_facmac_3a": {},
    "smax/2s3z": {},
    "overcooked/cramped_room": {"shaping": 0.0},
    "overcooked_v2/cramped_room": {"shaping": 0.0},
    "coin_game/coin_game": {},
    "switch_riddle/3-agent": {},
}
SLOW_SAME_STEPS: dict[str, dict[str, Any]] = {
    "storm/2p": {},
    "hanabi/2-player": {},
    "jaxnav/2-robot": {},
    "storm/4p": {},
}


@pytest.mark.parametrize("name", SAME_STEPS)
def test_steps_equal_the_suites(name: str) -> None:
    check_same_steps(made(name, **SAME_STEPS[name]))


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW_SAME_STEPS)
def test_steps_equal_the_suites_slow(name: str) -> None:
    check_same_steps(made(name, **SLOW_SAME_STEPS[name]))


def check_same_steps(env: Env, num_steps: int = 3) -> None:
    """Observations and rewards are those of the bare `step_env`, agent by agent."""
    adapter, key = inner(env), jax.random.key(3)

    @jit
    def reset_both(key: jax.Array) -> tuple[Any, Any]:
        return adapter.reset(key), adapter.suite.reset(key)

    @jit
    def step_both(state: PyTree, actions: PyTree, key: jax.Array) -> tuple[Any, Any]:
        return adapter.step(state, actions, key), adapter.suite.step_env(key, state, adapter.unstack_actions(actions))

    (state, timestep), (suite_observations, _) = reset_both(key)
    check_observations(adapter, timestep, suite_observations)
    for index in range(num_steps):
        key_step = jax.random.fold_in(key, index)
        actions = random_actions(env, timestep, key_step)
        (state, timestep), (suite_observations, _, suite_rewards, *_) = step_both(state, actions, key_step)
        check_observations(adapter, timestep, suite_observations)
        for name, agents in adapter.groups.items():
            expected = [suite_rewards[agent] for agent in agents]
            np.testing.assert_allclose(timestep.groups[name].reward, expected, rtol=1e-5, atol=1e-6)


def check_observations(adapter: SuiteEnv, timestep: TimeStep, suite_observations: Any) -> None:
    for name, agents in adapter.groups.items():
        for index, agent in enumerate(agents):
            expected = suite_observation(suite_observations, agent)
            np.testing.assert_allclose(timestep.groups[name].observation[index], expected, rtol=1e-5, atol=1e-5)


def suite_observation(observations: Any, agent: Any) -> np.ndarray:
    if isinstance(observations, tuple):  # storm's two players
        parts = observations[agent]["observation"], observations[agent]["inventory"]
    elif "inventory" in observations:  # storm's many, stacked
        parts = observations["observations"][agent], observations["inventory"][:, agent]
    else:
        return np.asarray(observations[agent])
    return np.concatenate([np.ravel(part) for part in parts])


# --------------------------------------------------------------------------------------------------------- time limits


@pytest.mark.parametrize("name", ["mpe/simple", "overcooked/cramped_room", "coin_game/coin_game"])
def test_time_limit_truncates_and_terminates_nobody(name: str) -> None:
    _, steps = play(made(name, time_limit=4), 4)
    assert steps.last.tolist() == steps.truncated.tolist() == [False, False, False, True]
    assert not any(group.terminated.any() for group in steps.groups.values())


@pytest.mark.parametrize(("name", "length"), [("mpe/simple", 25), ("overcooked/cramped_room", 400)])
def test_the_suites_own_limit_is_gone(name: str, length: int) -> None:
    env = inner(made(name))
    _, steps = play(env, length + 5)
    assert not steps.last.any()


def test_switch_riddle_terminates_at_its_deadline() -> None:
    env = made("switch_riddle/3-agent")
    state, _ = env.reset(jax.random.key(0))
    step = jit(env.step)
    for day in range(1, 7):
        state, timestep = step(state, {"agents": jnp.zeros(3, jnp.int32)}, jax.random.key(day))
        assert bool(timestep.last) == (day == 6)
    assert not timestep.truncated
    assert timestep.groups["agents"].terminated.all()


# ---------------------------------------------------------------------------------------------------------------- SMAX


@pytest.fixture(scope="module")
def battle() -> tuple[SuiteEnv, PyTree]:
    env = inner(made("smax/2s3z"))
    return env, jit(env.reset)(jax.random.key(0))[0]


@pytest.fixture(scope="module")
def fight(battle: tuple[SuiteEnv, PyTree]) -> Any:
    """A step in which no ally acts, after some units have fallen."""
    env, state = battle
    stop = {"agents": jnp.full(env.suite.num_allies, env.suite.num_movement_actions - 1)}
    step = jit(env.step)

    def fight(fallen: slice) -> Any:
        health = state.state.unit_health.at[fallen].set(0.0)
        units = state.state.replace(unit_health=health, unit_alive=health > 0)
        return step(state.replace(state=units), stop, jax.random.key(1))[1]

    return fight


def test_fallen_units_have_one_legal_action_and_stay_alive_to_the_learner(fight: Any) -> None:
    timestep = fight(slice(0, 2))
    group = timestep.groups["agents"]
    assert group.action_mask[:2].sum(axis=-1).tolist() == [1, 1]
    assert (group.action_mask[2:].sum(axis=-1) > 1).all()
    assert group.alive.all() and not group.terminated.any() and not timestep.last


@pytest.mark.parametrize(("fallen", "won"), [(slice(5, None), 1.0), (slice(0, 5), 0.0), (slice(0, None), 0.0)])
def test_win_rate(fight: Any, fallen: slice, won: float) -> None:
    timestep = fight(fallen)
    assert timestep.metrics["win_rate"] == won
    assert timestep.last and timestep.groups["agents"].terminated.all()
    assert timestep.groups["agents"].reward.tolist() == [won] * 5


def test_world_state_is_not_tiled(battle: tuple[SuiteEnv, PyTree]) -> None:
    env, _ = battle
    assert env.spec.state_shape == (env.suite.state_size,)


def test_positions_in_the_world_state_are_shares_of_the_map(battle: tuple[SuiteEnv, PyTree]) -> None:
    env, _ = battle
    state, timestep = jit(env.reset)(jax.random.key(0))
    units = timestep.state[:-20].reshape(10, -1)  # then come the teams and the types of ten units
    np.testing.assert_allclose(units[:, 1:3], state.state.unit_positions / 32, rtol=1e-6)
    assert (units[:, 0] == 1).all()  # health


# ---------------------------------------------------------------------------------------------------------- Overcooked


def facing(state: PyTree, *, held: str, position: tuple[int, int], direction: int) -> PyTree:
    """The first cook, holding something, at `position` (x, y), turned to `direction` (north, south, east, west)."""
    from jaxmarl.environments.overcooked.common import DIR_TO_VEC, OBJECT_TO_INDEX

    return state.replace(
        agent_pos=state.agent_pos.at[0].set(jnp.array(position, jnp.uint32)),
        agent_dir_idx=state.agent_dir_idx.at[0].set(direction),
        agent_dir=state.agent_dir.at[0].set(DIR_TO_VEC[direction]),
        agent_inv=state.agent_inv.at[0].set(OBJECT_TO_INDEX[held]),
    )


@pytest.mark.parametrize("shaping", [0.0, 0.5])
def test_overcooked_rewards(shaping: float) -> None:
    """A delivery pays both cooks 20; an onion in the pot pays nothing and shapes its cook's learning by 3 `shaping`."""
    env = inner(made("overcooked/cramped_room", shaping=shaping))
    step = jit(env.step)
    state, _ = env.reset(jax.random.key(0))
    interact = {"agents": jnp.array([5, 4])}

    deliver = facing(state, held="dish", position=(3, 2), direction=1)
    _, timestep = step(deliver, interact, jax.random.key(0))
    assert timestep.groups["agents"].reward.tolist() == [20.0, 20.0]
    assert timestep.metrics["deliveries"] == 1.0

    fill = facing(state, held="onion", position=(2, 1), direction=0)
    _, timestep = step(fill, interact, jax.random.key(0))
    assert timestep.groups["agents"].reward.tolist() == [0.0, 0.0]
    assert timestep.groups["agents"].shaping.tolist() == [3.0 * shaping, 0.0]
    assert timestep.metrics["deliveries"] == 0.0


# -------------------------------------------------------------------------------------------------------- other suites


@pytest.mark.slow
def test_hanabi_leaves_the_waiting_player_the_no_op() -> None:
    env = made("hanabi/2-player")
    _, steps = play(env, 10)
    masks = steps.groups["agents"].action_mask  # [T, 2, 21]
    assert masks is not None
    waiting = masks.sum(axis=-1) == 1
    assert waiting.sum(axis=-1).tolist() == [1] * 10
    assert masks[..., -1].tolist() == waiting.tolist()


def test_coin_game_counts_coins() -> None:
    _, steps = play(inner(made("coin_game/coin_game")), 40)
    total = steps.groups["agents"].reward.sum()
    taken = {name: value.sum() for name, value in steps.metrics.items()}
    # Each coin pays 1; each taken from the other costs it 2.
    assert total == taken["own_coins"] + taken["other_coins"] - 2 * taken["other_coins"]


# ------------------------------------------------------------------------------------------------------------ pictures


@pytest.mark.parametrize("name", ["mpe/simple_crypto", "overcooked/cramped_room", "coin_game/coin_game"])
def test_render(name: str) -> None:
    check_render(made(name))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["smax/2s3z", "overcooked_v2/cramped_room", "hanabi/2-player", "storm/2p", "storm/4p", "jaxnav/2-robot"]
)
def test_render_slow(name: str) -> None:
    check_render(made(name))


def check_render(env: Env) -> None:
    states = [jit(env.reset)(jax.random.key(seed))[0] for seed in range(2)]
    pictures = env.render(states)
    assert len(pictures) == 2
    for picture in pictures:
        assert picture.dtype == np.uint8 and picture.ndim == 3 and picture.shape[-1] == 3
        assert picture.std() > 0
