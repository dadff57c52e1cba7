"""Auto-reset from the pool: every episode begins in a state of its own, and the true last observation stays."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from covey.envs.base import first_step, make_env, next_step
from covey.envs.batch import BatchedEnv, settle_endings
from covey.types import Discrete, EnvSpec, GroupSpec, MetricSpec, TimeStep

ENVS, AGENTS, STEPS = 6, 2, 40
GROUP = "agents"


class Numbered:
    """Each episode draws a name and a length of 1 to `longest` steps; observations are (name, elapsed).

    Staggered: lengths differ. Lockstep: all have `longest`. Metrics reduce the elapsed steps in all three ways.
    """

    render: Any  # `Env` has it, and no test here draws

    def __init__(self, longest: int, staggered: bool):
        self.longest, self.staggered = longest, staggered

    @property
    def spec(self) -> EnvSpec:
        group = GroupSpec(num_agents=AGENTS, observation_shape=(2,), action=Discrete(2))
        metrics = {reduction: MetricSpec(reduction=reduction) for reduction in ("sum", "last", "max")}
        return EnvSpec(groups={GROUP: group}, time_limit=self.longest, state_shape=(1,), metrics=metrics)

    def _observe(self, state: Any) -> dict[str, jax.Array]:
        name, _, elapsed = state
        return {GROUP: jnp.tile(jnp.stack([name, elapsed.astype(jnp.float32)]), (AGENTS, 1))}

    def _metrics(self, elapsed: jax.Array) -> dict[str, jax.Array]:
        value = jnp.where(elapsed == 2, 50.0, elapsed.astype(jnp.float32))  # the largest is not the last
        return {name: value for name in self.spec.metrics}

    def reset(self, key: jax.Array) -> tuple[Any, TimeStep]:
        key_name, key_length = jax.random.split(key)
        length = jax.random.randint(key_length, (), 1, self.longest + 1) if self.staggered else self.longest
        state = (jax.random.uniform(key_name), jnp.asarray(length), jnp.zeros((), jnp.int32))
        mask = {GROUP: jnp.ones((AGENTS, 2), bool)}
        first = first_step(
            self._observe(state), action_masks=mask, state=state[0][None], metrics=self._metrics(state[2])
        )
        return state, first

    def step(self, state: Any, action: dict[str, jax.Array], key: jax.Array) -> tuple[Any, TimeStep]:
        state = (state[0], state[1], state[2] + 1)
        ended = state[2] >= state[1]
        timestep = next_step(
            self._observe(state),
            {GROUP: jnp.arange(1.0, AGENTS + 1)},  # agent 0 earns 1 a step, agent 1 earns 2
            terminated=ended,
            alive={GROUP: jnp.broadcast_to(~ended, AGENTS)},
            action_masks={GROUP: jnp.zeros((AGENTS, 2), bool).at[:, 0].set(True)},
            state=state[0][None],
            metrics=self._metrics(state[2]),
        )
        return state, timestep


@pytest.fixture(scope="module", params=["staggered", "lockstep", "every step"])
def played(request: pytest.FixtureRequest) -> Any:
    """All time steps `[STEPS, ENVS]`, the first ones, the episodes' statistics, and how much of the pool was used."""
    env = {
        "staggered": Numbered(5, staggered=True),
        "lockstep": Numbered(4, staggered=False),
        "every step": Numbered(1, staggered=False),
    }[request.param]
    batched = BatchedEnv(env=env, num_envs=ENVS)

    @jax.jit
    def play(key: jax.Array) -> Any:
        state, first = batched.reset(key)

        def step(state: Any, key: jax.Array) -> tuple[Any, Any]:
            state, timestep, episodes = batched.step(state, {GROUP: jnp.zeros((ENVS, AGENTS), jnp.int32)}, key)
            return state, (timestep, episodes, state.used, state.pool_first.groups[GROUP].observation)

        return first, jax.lax.scan(step, state, jax.random.split(key, STEPS))[1]

    first, (timesteps, episodes, used, pool) = jax.device_get(play(jax.random.key(0)))
    return first, timesteps, episodes, used, pool


def test_every_episode_begins_in_a_state_of_its_own(played: Any) -> None:
    first, timesteps, _, _, _ = played
    observation = timesteps.groups[GROUP].observation[..., 0, :]
    names = [*first.groups[GROUP].observation[:, 0, 0], *observation[timesteps.last][:, 0]]
    assert len(names) == ENVS + timesteps.last.sum() > ENVS + 20
    assert len(set(names)) == len(names)
    assert np.all(observation[timesteps.last][:, 1] == 0)  # and at its beginning


def test_between_ends_nothing_is_reset(played: Any) -> None:
    first, timesteps, _, _, _ = played
    name, elapsed = first.groups[GROUP].observation[:, 0].T
    for t in range(STEPS):
        group = timesteps.groups[GROUP]
        np.testing.assert_array_equal(group.next_observation[t, :, 0], np.stack([name, elapsed + 1], -1))
        ended = timesteps.last[t]
        np.testing.assert_array_equal(group.observation[t][~ended], group.next_observation[t][~ended])
        name, elapsed = group.observation[t, :, 0].T


def test_what_is_acted_on_is_new_and_what_came_of_the_action_stays(played: Any) -> None:
    _, timesteps, _, _, _ = played
    group, last = timesteps.groups[GROUP], timesteps.last
    np.testing.assert_array_equal(timesteps.state[..., 0], group.observation[..., 0, 0])
    np.testing.assert_array_equal(timesteps.next_state[..., 0], group.next_observation[..., 0, 0])
    assert group.alive.all()  # the new episode's, though everybody dies at the end
    np.testing.assert_array_equal(group.action_mask[..., 1], np.broadcast_to(last[..., None], group.alive.shape))
    np.testing.assert_array_equal(group.terminated, np.broadcast_to(last[..., None], group.alive.shape))
    assert np.all(group.reward == [1.0, 2.0])


def test_statistics_of_episodes(played: Any) -> None:
    _, timesteps, episodes, _, _ = played
    last = timesteps.last
    length = timesteps.groups[GROUP].next_observation[..., 0, 1][last]
    np.testing.assert_array_equal(episodes.length[last], length)
    np.testing.assert_allclose(episodes.returns[GROUP][last], 1.5 * length)  # the mean over agents
    values = [np.where(np.arange(1, n + 1) == 2, 50.0, np.arange(1, n + 1)) for n in length.astype(int)]
    np.testing.assert_allclose(episodes.metrics["sum"][last], [v.sum() for v in values])
    np.testing.assert_allclose(episodes.metrics["max"][last], [v.max() for v in values])
    np.testing.assert_allclose(episodes.metrics["last"][last], [v[-1] for v in values])


def test_the_pool_is_filled_only_when_it_is_used_up(played: Any) -> None:
    """A fill makes as many states as there are environments, so fills stay near one per that many episodes."""
    _, timesteps, _, used, pool = played
    ended = timesteps.last.sum(axis=1)
    filled = np.any(pool[1:] != pool[:-1], axis=(1, 2, 3))
    before = used[:-1]
    np.testing.assert_array_equal(filled, before + ended[1:] > ENVS)
    np.testing.assert_array_equal(used[1:], np.where(filled, 0, before) + ended[1:])
    assert used.max() <= ENVS


def test_resets_are_counted_at_run_time() -> None:
    """One real reset per finished episode in lockstep, seen from inside the compiled program."""
    resets = []

    class Counted(Numbered):
        def reset(self, key: jax.Array) -> tuple[Any, TimeStep]:
            jax.debug.callback(lambda _: resets.append(1), key)
            return super().reset(key)

    batched = BatchedEnv(env=Counted(4, staggered=False), num_envs=ENVS)
    step = jax.jit(batched.step)
    state, _ = jax.jit(batched.reset)(jax.random.key(0))
    jax.effects_barrier()
    assert len(resets) == 2 * ENVS  # the first states and the pool
    episodes = 0
    for t in range(24):
        actions = {GROUP: jnp.zeros((ENVS, AGENTS), jnp.int32)}
        state, timestep, _ = step(state, actions, jax.random.key(t))
        episodes += int(timestep.last.sum())
    jax.effects_barrier()
    assert episodes == 6 * ENVS
    assert len(resets) - ENVS == episodes  # the pool was there before, and is used up after


def test_keys_decide_everything() -> None:
    batched = BatchedEnv(env=Numbered(3, staggered=True), num_envs=ENVS)
    reset = jax.jit(batched.reset)
    one, again, other = (reset(jax.random.key(seed))[1].groups[GROUP].observation for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, again)
    assert not np.any(one[..., 0] == other[..., 0])
    assert dataclasses.is_dataclass(batched)


def test_staggered_episodes_end_at_different_times() -> None:
    env = make_env("probe/truncation", time_limit=2 * ENVS)
    batched = BatchedEnv(env=env, num_envs=ENVS, stagger=True)
    state, _ = batched.reset(jax.random.key(0))
    group = next(iter(env.spec.groups))
    action = {group: jnp.zeros((ENVS, env.spec.groups[group].num_agents), jnp.int32)}
    ends = []
    for number in range(4 * ENVS):
        state, timestep, _ = jax.jit(batched.step)(state, action, jax.random.key(number))
        ends.append(np.asarray(timestep.last))
    ended = np.stack(ends)
    assert ended.sum(1).max() == 1  # never two at once, in the first episodes and in those after them
    np.testing.assert_array_equal(ended.sum(0)[1:], 2)
    first, second = (np.argsort(~ended, axis=0, kind="stable")[i] for i in (0, 1))
    np.testing.assert_array_equal(second[1:] - first[1:], 2 * ENVS)  # only the first were cut short


def endings(last: bool, truncated: bool, terminated: list[bool], alive: list[bool]) -> bool:
    """One environment's flags after `settle_endings`: `[A]` and two numbers."""
    timestep = next_step(
        {GROUP: jnp.zeros((AGENTS, 1))},
        {GROUP: jnp.zeros(AGENTS)},
        terminated={GROUP: jnp.array(terminated)},
        alive={GROUP: jnp.array(alive)},
        last=jnp.array(last),
    )
    timestep = dataclasses.replace(timestep, truncated=jnp.array(truncated))
    return bool(settle_endings(jax.tree.map(lambda x: x[None], timestep)).truncated[0])


def test_an_ending_that_nobody_explains_is_a_truncation_for_those_it_cuts_off() -> None:
    nobody, both = [False, False], [True, True]
    assert endings(last=True, truncated=False, terminated=nobody, alive=both)
    assert endings(last=True, truncated=False, terminated=[True, False], alive=[False, True])
    assert endings(last=True, truncated=True, terminated=nobody, alive=both)
    assert not endings(last=True, truncated=False, terminated=both, alive=both)
    assert not endings(last=True, truncated=False, terminated=[False, True], alive=nobody)  # the first died earlier
    assert not endings(last=False, truncated=False, terminated=nobody, alive=both)
    assert not endings(last=False, truncated=True, terminated=nobody, alive=both)  # only an ending cuts off


def test_seeds_at_once_draw_what_each_draws_alone() -> None:
    """The pools of seeds that run at once are refilled at once; each keeps what it would have had."""
    batched = BatchedEnv(env=Numbered(5, staggered=True), num_envs=ENVS)

    def play(key: jax.Array) -> Any:
        state, first = batched.reset(key)

        def step(state: Any, key: jax.Array) -> tuple[Any, Any]:
            state, timestep, _ = batched.step(state, {GROUP: jnp.zeros((ENVS, AGENTS), jnp.int32)}, key)
            return state, (timestep.groups[GROUP].observation, state.used)

        return first, jax.lax.scan(step, state, jax.random.split(key, STEPS))[1]

    keys = jax.random.split(jax.random.key(7), 3)
    alone = jax.device_get([jax.jit(play)(key) for key in keys])
    for seeds in ([0, 1], [0, 2], [2, 1, 0]):
        together = jax.device_get(jax.jit(jax.vmap(play))(keys[jnp.array(seeds)]))
        for index, seed in enumerate(seeds):
            jax.tree.map(lambda a, b, i=index: np.testing.assert_array_equal(a[i], b), together, alone[seed])
    used = [used for _, (_, used) in alone]
    assert not np.array_equal(used[0], used[1])  # else nothing was shared that could go wrong
