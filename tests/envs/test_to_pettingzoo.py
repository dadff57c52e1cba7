"""Tasks as PettingZoo environments: PettingZoo's own tests, and what they do not look at."""

from __future__ import annotations

import dataclasses
import sys
import warnings
from collections.abc import Mapping
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import test_contract as contract
from gymnasium import spaces
from pettingzoo import ParallelEnv

import covey
from covey.envs.base import TaskConfig, first_step, make_env, next_step
from covey.envs.parallel_env import check_action, idle_action, observation_space
from covey.errors import CoveyError, MissingExtra, UsageError
from covey.observations import dtypes
from covey.types import Continuous, Discrete, EnvSpec, GroupSpec, MetricSpec, MultiDiscrete

with warnings.catch_warnings():  # where pygame is installed, these import a game of PettingZoo's in a deprecated way
    warnings.simplefilter("ignore", DeprecationWarning)
    from pettingzoo.test import parallel_api_test, parallel_seed_test

# One for each kind; the groups of `team` are not in the order of their names.
PROBES = ("death", "masked", "choices", "target", "image_and_vector", "two_step", "groups", "team")
RUN = [*contract.RUN, *(f"probe/{probe}" for probe in PROBES)]
REST = [name for name in contract.TASKS if name not in RUN]
LIMIT = 4  # steps


# ------------------------------------------------------------------------------------------------------------ all tasks


@pytest.mark.parametrize("name", RUN)
def test_task(name: str) -> None:
    check_task(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", REST)
def test_every_task(name: str) -> None:
    check_task(name)


def check_task(name: str) -> None:
    contract.make_or_skip(name, time_limit=LIMIT)
    made: list[Any] = [covey.to_pettingzoo(name, time_limit=LIMIT) for _ in range(2)]
    made[1]._reset, made[1]._step = made[0]._reset, made[0]._step  # compiled once
    parallel_api_test(made[0], num_cycles=LIMIT + 1)
    remaining = list(made)
    parallel_seed_test(lambda: remaining.pop(), num_cycles=LIMIT + 1)  # it looks at a single step
    one, other = (check_play(env) for env in made)
    jax.tree.map(np.testing.assert_array_equal, one, other)
    assert made[0]._reset._cache_size() == made[0]._step._cache_size() == 1, "something was compiled twice"


def check_play(env: Any) -> list[Any]:
    """Two episodes of legal random play: all that is shown is in its space and of its type, and endings are right.

    Returns all that was shown.
    """
    played: list[Any] = []
    for seed, agent in enumerate(env.possible_agents):
        env.action_space(agent).seed(seed)
    for episode in range(2):
        observations, infos = env.reset(seed=episode)
        assert env.agents == env.possible_agents
        played.append(check_shown(env, observations, env.agents))
        for _ in range(LIMIT):
            acted = list(env.agents)
            actions = {agent: env.action_space(agent).sample(infos[agent].get("action_mask")) for agent in acted}
            observations, rewards, terminations, truncations, infos = env.step(actions)
            played.append((check_shown(env, observations, acted), rewards, terminations, truncations, infos))
            for given in (rewards, terminations, truncations, infos):
                assert list(given) == acted
            assert {type(reward) for reward in rewards.values()} == {float}
            assert {type(flag) for flag in (*terminations.values(), *truncations.values())} == {bool}
            assert not any(terminations[agent] and truncations[agent] for agent in acted)
            assert env.agents == [agent for agent in acted if not (terminations[agent] or truncations[agent])]
            assert not any(truncations.values()) or env.agents == []
            if not env.agents:
                break
        assert env.agents == []
    return played


def check_shown(env: Any, observations: dict[str, Any], agents: list[str]) -> Any:
    """A copy of what was seen and of the state."""
    assert list(observations) == agents
    seen_and_state = [jax.tree.map(np.copy, observations)]
    for agent in agents:
        space, seen = env.observation_space(agent), observations[agent]
        assert space.contains(seen), f"{agent} sees {seen}, which is not in {space}"
        for part in seen.values() if isinstance(seen, dict) else [seen]:
            part[...] = 0  # the caller's own
    if hasattr(env, "state_space"):
        seen_and_state.append(env.state())
        assert env.state_space.contains(env.state())
    else:
        with pytest.raises(NotImplementedError):
            env.state()
    return seen_and_state


@pytest.mark.parametrize("name", contract.TASKS)
def test_spaces_say_what_the_spec_does(name: str) -> None:
    task = contract.make_or_skip(name)
    env = covey.to_pettingzoo(task)
    agents = iter(env.possible_agents)
    for group, spec in task.spec.groups.items():
        for index in range(spec.num_agents):
            agent = next(agents)
            assert agent == f"{group}_{index}"
            assert env.observation_space(agent) is env.observation_space(agent)
            space = env.observation_space(agent)
            if isinstance(space, spaces.Dict):
                assert {name: part.shape for name, part in space.items()} == dict(
                    cast(Mapping[str, Any], spec.observation_shape)
                )
                assert {name: part.dtype for name, part in space.items()} == dtypes(spec)
            else:
                assert (space.shape, space.dtype) == (spec.observation_shape, spec.observation_dtype)
            assert space.contains(space.sample())
            check_action(agent, spec.action, env.action_space(agent).sample())
    assert next(agents, None) is None
    assert env.max_num_agents == sum(spec.num_agents for spec in task.spec.groups.values())


@pytest.mark.parametrize(
    "name", ["pettingzoo/multiwalker", "pettingzoo/simple_spread", "pettingzoo/knights_archers_zombies"]
)
def test_a_simulator_is_stepped_in_this_process(name: str) -> None:
    contract.make_or_skip(name)
    made: list[Any] = [covey.to_pettingzoo(name, time_limit=LIMIT) for _ in range(2)]
    parallel_api_test(made[0], num_cycles=LIMIT + 1)
    one, other = (check_play(env) for env in made)
    jax.tree.map(np.testing.assert_array_equal, one, other)


def test_episodes_of_a_simulator_follow_the_seed() -> None:
    env = covey.to_pettingzoo("pettingzoo/simple_spread", time_limit=2, reward="team_sum", render_mode="rgb_array")
    agent = env.possible_agents[0]

    def firsts(seed: int) -> list[Any]:
        shown = [env.reset(seed=seed)[0][agent]]
        shown += [env.reset()[0][agent] for _ in range(2)]
        while env.agents:
            last, rewards, *_ = env.step({name: env.action_space(name).sample() for name in env.agents})
            assert len(set(rewards.values())) == 1, "the reward is shared"
        shown.append(env.reset()[0][agent])
        assert not np.array_equal(last[agent], shown[-1]), "what the last action led to"
        return shown

    one, same, other = firsts(3), firsts(3), firsts(4)
    np.testing.assert_array_equal(one, same)
    assert len({array.tobytes() for array in (*one, *other)}) == 8
    assert env.render().dtype == np.uint8
    env.close()


# ------------------------------------------------------------------------------------------- equal to covey's own steps


@pytest.mark.parametrize("name", ["vmas/navigation", "probe/groups", "probe/death"])
def test_steps_are_covey_s_own(name: str) -> None:
    env, task = covey.to_pettingzoo(name, time_limit=LIMIT), make_env(name, time_limit=LIMIT)
    key, key_reset = jax.random.split(jax.random.key(5))
    state, timestep = jax.jit(task.reset)(key_reset)
    step = jax.jit(task.step)
    shown, _ = env.reset(seed=5)
    while env.agents:
        actions = {agent: env.action_space(agent).sample() for agent in env.agents}
        by_group = {}
        for group, spec in task.spec.groups.items():
            for index in range(spec.num_agents):
                agent = f"{group}_{index}"
                if agent in shown:
                    np.testing.assert_array_equal(shown[agent], timestep.groups[group].observation[index])
            names = [f"{group}_{index}" for index in range(spec.num_agents)]
            by_group[group] = np.stack([actions.get(agent, np.zeros_like(actions[env.agents[0]])) for agent in names])
        key, key_step = jax.random.split(key)
        state, timestep = step(state, by_group, key_step)
        shown, rewards, terminations, truncations, _ = env.step(actions)
        for agent in rewards:
            group, _, number = agent.rpartition("_")
            part = timestep.groups[group]
            assert rewards[agent] == float(part.reward[int(number)])
            assert terminations[agent] == bool(part.terminated[int(number)])
            assert truncations[agent] == bool(timestep.last & ~part.terminated[int(number)])
    assert bool(timestep.last)


# --------------------------------------------------------------------------------------------------- lives and endings


def play_zeros(env: Any) -> list[tuple[dict[str, float], dict[str, bool], dict[str, bool], list[str]]]:
    env.reset(seed=0)
    steps = []
    while env.agents:
        _, rewards, terminations, truncations, _ = env.step({agent: 0 for agent in env.agents})
        steps.append((rewards, terminations, truncations, list(env.agents)))
    return steps


def test_agents_leave_when_they_terminate() -> None:
    """Agent 0 dies with its second step, the others with their fourth; each step earns 1."""
    first, second, third, fourth = play_zeros(covey.to_pettingzoo("probe/death", num_agents=3))
    everybody, others = ["agents_0", "agents_1", "agents_2"], ["agents_1", "agents_2"]
    assert [step[3] for step in (first, second, third, fourth)] == [everybody, others, others, []]
    assert second[1] == {"agents_0": True, "agents_1": False, "agents_2": False}
    assert fourth[1] == dict.fromkeys(others, True)
    assert not any(any(step[2].values()) for step in (first, second, third, fourth))
    assert second[0] == dict.fromkeys(everybody, 1.0) and third[0] == dict.fromkeys(others, 1.0)


@pytest.mark.parametrize(
    ("limit", "terminated", "truncated"), [(1, [], [0, 1, 2]), (2, [0], [1, 2]), (3, [], [1, 2]), (4, [1, 2], [])]
)
def test_the_time_limit_truncates_who_has_not_terminated(
    limit: int, terminated: list[int], truncated: list[int]
) -> None:
    steps = play_zeros(covey.to_pettingzoo("probe/death", num_agents=3, time_limit=limit))
    _, terminations, truncations, left = steps[-1]
    assert len(steps) == limit and left == []
    assert [agent for agent, flag in terminations.items() if flag] == [f"agents_{index}" for index in terminated]
    assert [agent for agent, flag in truncations.items() if flag] == [f"agents_{index}" for index in truncated]


def test_a_time_limit_that_terminates_truncates_nobody() -> None:
    steps = play_zeros(covey.to_pettingzoo("probe/truncation", time_limit=2, time_limit_terminates=True))
    assert steps[-1][1] == {"agents_0": True, "agents_1": True} and not any(steps[-1][2].values())


# ------------------------------------------------------------------------------------------------------ an unusual task


@dataclasses.dataclass(frozen=True, kw_only=True)
class OddConfig(TaskConfig):
    time_limit: int = 3


class Odd:
    """Masked multi-discrete actions, a flag among the observations, a dictionary as global state, a metric. Agent 1 is
    no longer alive after a step, which the task does not call a termination."""

    action = MultiDiscrete((2, 3))

    def __init__(self, config: OddConfig):
        self.config = config

    @property
    def spec(self) -> EnvSpec:
        walkers = GroupSpec(
            num_agents=2,
            observation_shape={"flag": (1,), "place": (2,)},
            observation_dtype={"flag": np.bool_, "place": np.int32},
            action=self.action,
        )
        return EnvSpec(
            groups={"walkers": walkers},
            time_limit=self.config.time_limit,
            state_shape={"sum": (1,)},
            metrics={"chosen": MetricSpec()},
        )

    def _show(self, elapsed: Any) -> dict[str, Any]:
        seen = {"flag": jnp.ones((2, 1), bool), "place": jnp.full((2, 2), elapsed, jnp.int32)}
        mask = jnp.array([[True, False, False, True, True], [False, True, True, False, False]])
        return {"observations": {"walkers": seen}, "action_masks": {"walkers": mask}, "state": {"sum": elapsed[None]}}

    def reset(self, key: Any) -> tuple[Any, Any]:
        shown = self._show(jnp.zeros(()))
        return jnp.zeros(()), first_step(shown.pop("observations"), metrics={"chosen": jnp.zeros(())}, **shown)

    def step(self, state: Any, action: Any, key: Any) -> tuple[Any, Any]:
        shown = self._show(state + 1)
        no = jnp.zeros(2, bool)
        return state + 1, next_step(
            shown.pop("observations"),
            {"walkers": jnp.array([1.0, 5.0])},
            terminated={"walkers": no},
            alive={"walkers": jnp.array([True, False])},
            last=jnp.zeros((), bool),
            metrics={"chosen": action["walkers"].sum().astype(jnp.float32)},
            **shown,
        )

    def render(self, states: Any) -> list[np.ndarray]:
        return [np.full((2, 2, 3), int(state), np.uint8) for state in states]


def test_masks_metrics_state_and_dictionaries() -> None:
    env = covey.to_pettingzoo(Odd(OddConfig()), render_mode="rgb_array")
    assert isinstance(env, ParallelEnv) and str(env) == "Odd" and env.metadata["name"] == "Odd"
    observations, infos = env.reset(seed=1)
    np.testing.assert_array_equal(infos["walkers_0"]["action_mask"][0], [1, 0])
    np.testing.assert_array_equal(infos["walkers_0"]["action_mask"][1], [0, 1, 1])
    for _ in range(20):
        drawn = env.action_space("walkers_1").sample(infos["walkers_1"]["action_mask"])
        np.testing.assert_array_equal(drawn, [1, 0])
    assert infos["walkers_0"]["chosen"] == 0.0
    assert all(env.observation_space(agent).contains(seen) for agent, seen in observations.items())
    assert observations["walkers_0"]["flag"].dtype == bool and observations["walkers_0"]["place"].dtype == np.int32

    observations, rewards, terminations, truncations, infos = env.step({"walkers_0": [0, 2], "walkers_1": (1, 0)})
    assert terminations == {"walkers_0": False, "walkers_1": True} and not any(truncations.values())
    assert rewards == {"walkers_0": 1.0, "walkers_1": 5.0} and env.agents == ["walkers_0"]
    assert infos["walkers_1"]["chosen"] == 3.0
    np.testing.assert_array_equal(env.state()["sum"], [1.0])
    assert env.state_space.contains(env.state())
    np.testing.assert_array_equal(env.render(), np.ones((2, 2, 3)))

    *_, infos = env.step({"walkers_0": np.array([0, 1])})
    assert list(infos) == ["walkers_0"]
    assert infos["walkers_0"]["chosen"] == 2.0, "walker 1, who has left, takes its first legal choices: 1 and 0"
    _, _, terminations, truncations, _ = env.step({"walkers_0": np.array([0, 1])})
    assert (terminations, truncations) == ({"walkers_0": False}, {"walkers_0": True}), "the spec's limit of 3 steps"
    env.close()


@pytest.mark.parametrize(
    ("action", "mask", "idle"),
    [
        (Discrete(3), None, 0),
        (Discrete(3), [[True, True, True], [False, False, True]], 2),
        (MultiDiscrete((2, 3)), None, [0, 0]),
        (MultiDiscrete((2, 2)), [[True] * 4, [False, True, True, False]], [1, 0]),
        (Continuous(low=(-1.0, 0.5, -3.0), high=(1.0, 2.0, -2.0)), None, [0.0, 0.5, -2.0]),
    ],
)
def test_who_has_left_takes_a_legal_action(action: Any, mask: Any, idle: Any) -> None:
    spec = GroupSpec(num_agents=2, observation_shape=(1,), action=action)
    found = idle_action(spec, None if mask is None else jnp.array(mask), 1)
    np.testing.assert_array_equal(found, idle)
    check_action("agents_1", action, found)


# -------------------------------------------------------------------------------------------------------- what is wrong

BOX = Continuous(low=(-1.0, 0.0), high=(1.0, 4.0))


@pytest.mark.parametrize(
    ("action", "given", "array"),
    [
        (Discrete(3), 2, np.int32(2)),
        (Discrete(3), np.int64(0), np.int32(0)),
        (Discrete(3), jnp.int32(1), np.int32(1)),
        (MultiDiscrete((2, 3)), [1, 2], np.array([1, 2], np.int32)),
        (BOX, [0.5, 4], np.array([0.5, 4.0], np.float32)),
        (BOX, np.array([1.0 + 1e-7, 4.0 + 2e-6]), np.array([1.0, 4.0], np.float32)),  # rounding
    ],
)
def test_actions_are_taken_as_users_give_them(action: Any, given: Any, array: np.ndarray) -> None:
    found = check_action("a_0", action, given)
    np.testing.assert_array_equal(found, array)
    assert found.dtype == array.dtype


@pytest.mark.parametrize(
    ("action", "given"),
    [
        *((Discrete(3), bad) for bad in (3, -1, 1.0, None, "1", [1], np.zeros(1, int))),
        *((MultiDiscrete((2, 3)), bad) for bad in ([2, 0], [0, 3], [0, -1], [0], 1, [0.0, 1.0], [[0], [0, 1]])),
        *((BOX, bad) for bad in ([1.1, 1], [0, 4.1], [np.nan, 1], [np.inf, 1], [1e300, 1], [0.0], 0.5, None, "x")),
    ],
)
def test_actions_outside_their_space_are_refused(action: Any, given: Any) -> None:
    with pytest.raises(UsageError, match=r"action of a_0 is .*, which is not in its space") as error:
        check_action("a_0", action, given)
    assert "\n" not in str(error.value) and len(str(error.value)) < 200


def test_what_is_wrong_is_said_in_one_line() -> None:
    env = covey.to_pettingzoo("probe/death", num_agents=3)
    for call in (lambda: env.step({}), env.state):
        with pytest.raises(CoveyError, match="probe/death: call reset first"):
            call()
    env.reset(seed=0)
    right = dict.fromkeys(env.agents, 0)
    wrong: list[tuple[Any, str]] = [
        ({"agents_0": 0, "agents_1": 0}, r"no action for agents_2"),
        ({}, "no action for agents_0, agents_1, agents_2"),
        (right | {"agent_3": 0}, "unknown agent 'agent_3'; nearest: agents_"),
        (right | {"agents_1": 7}, "action of agents_1 is 7, which is not in its space"),
        ([0, 0, 0], "actions must be a dictionary by agent name"),
    ]
    for actions, line in wrong:
        with pytest.raises(UsageError, match=line):
            env.step(actions)
    for _ in range(2):
        env.step(right)
    with pytest.raises(UsageError, match="action for agents_0, which has left; still there: agents_1, agents_2"):
        env.step(right)
    for _ in range(2):
        env.step({"agents_1": 0, "agents_2": 0})
    with pytest.raises(CoveyError, match="the episode is over; call reset first"):
        env.step({})
    bad_seeds: tuple[Any, ...] = (-1, 0.5, "a")
    for seed in bad_seeds:
        with pytest.raises(UsageError, match="seed must be a whole number"):
            env.reset(seed=seed)
    with pytest.raises(UsageError, match="unknown agent 'agents_9'"):
        env.action_space("agents_9")
    with pytest.raises(UsageError, match="render_mode='rgb_array'"):
        env.render()


def test_what_cannot_be_made_is_said_in_one_line() -> None:
    with pytest.raises(UsageError, match="render_mode='human': it must be None or one of rgb_array"):
        covey.to_pettingzoo("probe/copy", render_mode="human")
    with pytest.raises(UsageError, match="unknown task"):
        covey.to_pettingzoo("vmas/navigatoin")
    with pytest.raises(UsageError, match="n_walkers"):
        covey.to_pettingzoo("vmas/navigation", n_walkers=3)
    with pytest.raises(UsageError, match="num_agents: fields go with a task's name"):
        covey.to_pettingzoo(make_env("probe/copy"), num_agents=3)


def test_pettingzoo_is_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pettingzoo", None)
    monkeypatch.delitem(sys.modules, "covey.envs.parallel_env")
    with pytest.raises(MissingExtra, match=r"pip install 'covey\[pettingzoo\]'"):
        covey.to_pettingzoo("probe/copy")


# ----------------------------------------------------------------------------------------------------- seeds, pictures


def first_seen(env: Any, **options: Any) -> bytes:
    observations, _ = env.reset(**options)
    return b"".join(np.ascontiguousarray(seen).tobytes() for seen in observations.values())


def test_episodes_follow_from_the_seed() -> None:
    one, other = (covey.to_pettingzoo("probe/target", num_agents=3) for _ in range(2))
    assert first_seen(one) != first_seen(other), "without a seed, environments differ"
    sequences = [[first_seen(env, seed=7), *(first_seen(env) for _ in range(3))] for env in (one, other)]
    assert sequences[0] == sequences[1] and len(set(sequences[0])) == 4
    assert first_seen(one, seed=8) != sequences[0][0] == first_seen(one, seed=7, options={"anything": 1})


def test_pictures_need_no_display() -> None:
    env = covey.to_pettingzoo("vmas/navigation", render_mode="rgb_array", n_agents=2)
    env.reset(seed=0)
    before = env.render()
    assert before.dtype == np.uint8 and before.ndim == 3 and before.shape[-1] == 3
    for _ in range(3):
        env.step({agent: np.ones(2, np.float32) for agent in env.agents})
    assert (env.render() != before).any()


def test_unsigned_and_flags_have_the_bounds_of_their_types() -> None:
    made: list[Any] = [observation_space((2,), dtype) for dtype in (np.uint8, np.bool_, np.float32)]
    image, flag, vector = made
    assert (image.low.tolist(), image.high.tolist()) == ([0, 0], [255, 255])
    assert flag.contains(np.array([True, False])) and flag.dtype == bool
    assert np.isneginf(vector.low).all() and np.isposinf(vector.high).all()
