"""What every registered environment must hold to, whatever its suite.

All tasks are evaluated abstractly. The first task of each suite also runs; the others run in the slow tier.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from covey import registry
from covey.envs.base import Env, make_env
from covey.envs.batch import BatchedEnv
from covey.envs.check import check_shapes
from covey.errors import MissingExtra
from covey.observations import dtypes, map_entries
from covey.types import (
    ActionSpec,
    Array,
    Continuous,
    Discrete,
    GroupSpec,
    GroupStep,
    Key,
    MultiDiscrete,
    PyTree,
    TimeStep,
)

NUM_ENVS = 16  # enough that random play of any task comes to all kinds of endings, and its resets differ
LIMIT = 5  # steps: short enough that an episode of random play reaches it
NUM_STEPS = 2 * LIMIT + 2

TASKS = [entry.name for entry in registry.tasks if not entry.host]  # simulators have tests of their own in host/
SLOW_SUITES = ("mmst", "jaxnav")  # random graphs and mazes take long to compile
FIRST_OF_SUITE = {name.split("/")[0]: name for name in reversed(TASKS)} | {"probe": "probe/truncation"}
RUN = [name for suite, name in FIRST_OF_SUITE.items() if suite not in SLOW_SUITES]
REST = [name for name in TASKS if name not in RUN]


# ------------------------------------------------------------------------------------------------- abstract evaluation


def make_or_skip(name: str, **fields: int) -> Env:
    try:
        return make_env(name, **fields)
    except MissingExtra as missing:
        pytest.skip(str(missing))


@pytest.mark.parametrize("name", TASKS)
def test_spec_matches_data(name: str) -> None:
    env = make_or_skip(name)
    state, first = jax.eval_shape(env.reset, jax.random.key(0))
    next_state, second = jax.eval_shape(env.step, state, abstract_actions(env), jax.random.key(0))

    check_against_spec(env, first)
    assert shapes(first) == shapes(second), "a time step must look the same after a reset and after a step"
    assert shapes(state) == shapes(next_state), "an environment's state must keep its structure, for lax.scan"
    assert env.spec.time_limit == registry.tasks[name].defaults().time_limit
    assert env.spec.returns, "a task says what an agent's return is"


@pytest.mark.parametrize("name", [*RUN, *(pytest.param(name, marks=pytest.mark.slow) for name in REST)])
def test_the_check_of_users_tasks_agrees(name: str) -> None:
    check_shapes(make_or_skip(name), name)


def check_against_spec(env: Env, timestep: TimeStep) -> None:
    spec = env.spec
    assert timestep.groups.keys() == spec.groups.keys()
    group: Any  # mypy believes that a dtype cannot equal `bool`
    for name, group in timestep.groups.items():
        expected = spec.groups[name]
        agents = (expected.num_agents,)
        for observation in (group.observation, group.next_observation):
            found = jax.tree.map(lambda x: x.shape, observation)
            assert found == map_entries(lambda shape, agents=agents: agents + shape, expected.observation_shape)
            assert jax.tree.map(lambda x: x.dtype, observation) == dtypes(expected)
        assert (group.reward.shape, group.reward.dtype) == (agents, jnp.float32)
        assert (group.alive.shape, group.alive.dtype) == (agents, bool)
        assert (group.terminated.shape, group.terminated.dtype) == (agents, bool)
        if group.action_mask is not None:
            assert group.action_mask.shape == (*agents, mask_width(expected.action))
            assert group.action_mask.dtype == bool
    for state in (timestep.state, timestep.next_state):
        assert (None if state is None else state.shape) == spec.state_shape
        assert state is None or state.dtype == jnp.float32
    flag: Any
    for flag in (timestep.truncated, timestep.last):
        assert (flag.shape, flag.dtype) == ((), bool)
    assert timestep.metrics.keys() == spec.metrics.keys()
    assert all(value.shape == () for value in timestep.metrics.values())
    assert all(metric.reduction in ("sum", "last", "max") for metric in spec.metrics.values())


def mask_width(action: ActionSpec) -> int:
    match action:
        case Discrete(num_actions=width):
            return width
        case MultiDiscrete(num_actions=widths):
            return sum(widths)
    raise AssertionError("continuous actions have no mask")


def abstract_actions(env: Env) -> dict[str, jax.ShapeDtypeStruct]:
    return {name: abstract_action(group) for name, group in env.spec.groups.items()}


def abstract_action(group: GroupSpec) -> jax.ShapeDtypeStruct:
    match group.action:
        case Discrete():
            return jax.ShapeDtypeStruct((group.num_agents,), jnp.int32)
        case MultiDiscrete(num_actions=widths):
            return jax.ShapeDtypeStruct((group.num_agents, len(widths)), jnp.int32)
        case Continuous() as action:
            return jax.ShapeDtypeStruct((group.num_agents, action.size), jnp.float32)


def shapes(tree: PyTree) -> tuple[Any, list[Any]]:
    leaves, structure = jax.tree.flatten(tree)
    return structure, [(leaf.shape, leaf.dtype) for leaf in leaves]


# ------------------------------------------------------------------------------------------------------------ real run


@pytest.mark.parametrize("name", RUN)
def test_run(name: str) -> None:
    check_run(make_or_skip(name, time_limit=LIMIT), reaches_limit(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", REST)
def test_run_of_every_task(name: str) -> None:
    check_run(make_or_skip(name, time_limit=LIMIT), reaches_limit(name))


def reaches_limit(name: str) -> bool:
    """Whether an episode of random play reaches LIMIT; most probes end before it by design."""
    return not name.startswith("probe/") or name == "probe/truncation"


def check_run(env: Env, reaches_limit: bool) -> None:
    run = jax.jit(functools.partial(play, BatchedEnv(env=env, num_envs=NUM_ENVS)))
    trajectory = run(jax.random.key(1))
    check_same(trajectory, run(jax.random.key(1)), "the same key must give the same trajectory")
    states, steps = trajectory
    check_actionable(steps)
    check_rewards(env, steps)
    check_auto_reset(steps)
    check_endings(steps, reaches_limit)
    check_deaths(steps)
    check_initial_states(states)


def play(batched: BatchedEnv, key: Key) -> tuple[dict[str, PyTree], dict[str, PyTree]]:
    """Random legal play. Beside each batched step, what the bare environment answers to the same action and key."""
    key_reset, key_steps = jax.random.split(key)
    first_state, first = batched.reset(key_reset)

    def step(carry: tuple[PyTree, TimeStep], key: Key) -> tuple[tuple[PyTree, TimeStep], dict[str, PyTree]]:
        state, timestep = carry
        key_act, key_env = jax.random.split(key)
        keys_act = jax.random.split(key_act, batched.num_envs)
        actions = jax.vmap(lambda timestep, key: sample_actions(batched.env, timestep, key))(timestep, keys_act)
        keys_env = jax.random.split(jax.random.split(key_env)[0], batched.num_envs)  # as BatchedEnv.step splits it
        _, bare = jax.vmap(batched.env.step)(state.env, actions, keys_env)
        acted_on = timestep
        state, timestep, episodes = batched.step(state, actions, key_env)
        return (state, timestep), {"acted_on": acted_on, "bare": bare, "batched": timestep, "episodes": episodes}

    (last_state, _), steps = jax.lax.scan(step, (first_state, first), jax.random.split(key_steps, NUM_STEPS))
    return {"env": first_state.env, "pool": first_state.pool, "last_pool": last_state.pool}, steps


def sample_actions(env: Env, timestep: TimeStep, key: Key) -> dict[str, Array]:
    """Legal actions of one environment, drawn uniformly."""
    keys = jax.random.split(key, len(env.spec.groups))
    return {
        name: sample_group(group.action, timestep.groups[name], group.num_agents, group_key)
        for (name, group), group_key in zip(env.spec.groups.items(), keys, strict=True)
    }


def sample_group(action: ActionSpec, group: GroupStep, num_agents: int, key: Key) -> Array:
    if isinstance(action, Continuous):
        low, high = jnp.array(action.low), jnp.array(action.high)
        return jax.random.uniform(key, (num_agents, action.size), minval=low, maxval=high)
    mask = group.action_mask
    if mask is None:
        mask = jnp.ones((num_agents, mask_width(action)), bool)
    logits = jnp.where(mask, 0.0, -jnp.inf)
    if isinstance(action, Discrete):
        return jax.random.categorical(key, logits).astype(jnp.int32)
    choices = jnp.split(logits, np.cumsum(action.num_actions)[:-1], axis=-1)
    keys = jax.random.split(key, len(choices))
    drawn = [jax.random.categorical(one, choice) for one, choice in zip(keys, choices, strict=True)]
    return jnp.stack(drawn, axis=-1).astype(jnp.int32)


def check_same(one: PyTree, other: PyTree, why: str) -> None:
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(plain(a), plain(b), err_msg=why), one, other)


def check_close(one: PyTree, other: PyTree, why: str) -> None:
    """Equal but for the last bits: the same step compiled twice may be fused, and so rounded, in two ways.

    Stiff joints (vmas/buzz_wire, vmas/ball_trajectory) make some millionths of a velocity of a position's last bit.
    """
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(plain(a), plain(b), rtol=1e-5, atol=1e-5, err_msg=why), one, other
    )


def plain(leaf: Array) -> np.ndarray:
    """A NumPy array, also of keys."""
    return np.asarray(jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf)


def check_rewards(env: Env, steps: dict[str, PyTree]) -> None:
    """Where the spec says that a group shares its reward, all of its agents get the same."""
    for name, group in steps["bare"].groups.items():
        if env.spec.groups[name].shared_reward:
            shared = np.broadcast_to(group.reward[..., :1], group.reward.shape)
            np.testing.assert_array_equal(group.reward, shared, err_msg=f"{name} share their reward")


def check_actionable(steps: dict[str, PyTree]) -> None:
    """Nothing is NaN, and every agent always has a legal action."""
    for leaf in jax.tree.leaves((steps["bare"], steps["batched"])):
        assert not np.isnan(plain(leaf)).any()
    for group in (*steps["acted_on"].groups.values(), *steps["batched"].groups.values()):
        if group.action_mask is not None:
            assert group.action_mask.any(axis=-1).all(), "an agent has no legal action"


def check_auto_reset(steps: dict[str, PyTree]) -> None:
    """What came of an action is what the bare environment says; what to act on is new where an episode ended."""
    bare, batched = steps["bare"], steps["batched"]
    going = ~np.asarray(batched.last)
    assert (~going).any()
    for name, group in batched.groups.items():
        truth = bare.groups[name]
        for field in ("next_observation", "reward", "terminated"):
            check_close(getattr(group, field), getattr(truth, field), f"{name}.{field} differs from the bare step")
        check_close(group.observation[going], truth.observation[going], f"{name}.observation")
        np.testing.assert_array_equal(group.alive[going], truth.alive[going])
        assert group.alive[~going].any(axis=-1).all(), "an episode starts with somebody alive"
    check_close((batched.truncated, batched.last, batched.metrics), (bare.truncated, bare.last, bare.metrics), "flags")
    if batched.state is not None:
        check_close(batched.next_state, bare.next_state, "next_state differs from the bare step")
        check_close(batched.state[going], bare.state[going], "state")


def check_endings(steps: dict[str, PyTree], reaches_limit: bool) -> None:
    """The limit truncates and terminates nobody by itself; any other ending terminates all who were alive."""
    step, length = steps["batched"], np.asarray(steps["episodes"].length)
    last, truncated = np.asarray(step.last), np.asarray(step.truncated)
    assert truncated.any() == reaches_limit, "episodes do not end as this task's should"
    assert (length <= LIMIT).all() and (length[truncated] == LIMIT).all() and last[truncated].all()
    alive = np.concatenate([group.alive for group in steps["acted_on"].groups.values()], axis=-1)
    terminated = np.concatenate([group.terminated for group in step.groups.values()], axis=-1)
    assert not (alive & ~terminated)[last & ~truncated].any(), "an ending that is no truncation terminates"
    assert not (terminated & ~alive).any(), "only who was alive can terminate"
    assert (alive & ~terminated)[truncated].any(axis=-1).all(), "a truncation leaves somebody to bootstrap"


def check_deaths(steps: dict[str, PyTree]) -> None:
    """While an episode runs, an agent stays alive until it terminates, and is dead from then on."""
    going = ~np.asarray(steps["bare"].last)
    for name, group in steps["bare"].groups.items():
        lives_on = steps["acted_on"].groups[name].alive & ~group.terminated
        np.testing.assert_array_equal(np.asarray(group.alive)[going], np.asarray(lives_on)[going])


def check_initial_states(states: dict[str, PyTree]) -> None:
    """Running, waiting and refilled states are drawn anew, unless the task always starts from the same one."""
    batches = [initial_states(batch) for batch in states.values()]
    if len(set().union(*batches)) > 1:
        assert all(len(set(batch)) > 1 for batch in batches), "a batch of resets gave one state"
        assert len({tuple(batch) for batch in batches}) == len(batches), "resets repeat themselves"


def initial_states(batch: PyTree) -> list[bytes]:
    leaves = [plain(leaf) for leaf in jax.tree.leaves(batch)]
    return [b"".join(leaf[index].tobytes() for leaf in leaves) for index in range(NUM_ENVS)]
