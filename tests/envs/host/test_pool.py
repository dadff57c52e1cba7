"""Pools of real processes: what they show, and what happens when one of them crashes, hangs or cannot start."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from simulators import Clock, ClockConfig

from covey import registry
from covey.envs.host.make import source_of
from covey.envs.host.pool import Pool, Worker, check_workers, deal, describe, half_sizes
from covey.envs.host.simulator import SimulatorError, Source
from covey.envs.host.worker import Assignment
from covey.errors import UsageError


def source(**fields: Any) -> Source:
    return Source(name="toy/clock", make=Clock, config=ClockConfig(**fields))


def play(pool: Pool, num_steps: int, choose: Callable[[int], Any] = lambda step: step % 3) -> list[dict[str, Any]]:
    """Steps all copies; what each step showed, of both halves joined."""
    shown = []
    for number in range(num_steps + 1):
        answers = []
        for half in range(pool.num_halves):
            answers.append(pool.receive(half))
            if number < num_steps:
                size = pool.halves[half].stop - pool.halves[half].start
                pool.send(half, {"agents": np.full((size, 2), choose(number))})
        groups = [answer.timestep.groups["agents"] for answer in answers]
        joined = {
            name: np.concatenate([getattr(group, name) for group in groups])
            for name in ("observation", "next_observation", "reward", "alive", "terminated")
        }
        joined["last"] = np.concatenate([answer.timestep.last for answer in answers])
        joined["dropped"] = np.concatenate([answer.dropped for answer in answers])
        shown.append(joined)
    return shown


def test_copies_step_side_by_side_with_seeds_of_their_own() -> None:
    with Pool(source(time_limit=3), 4, num_workers=2) as pool:
        assert pool.num_halves == 2
        pool.begin(seed=5)
        shown = play(pool, 4)
    assert len(set(shown[0]["observation"][:, 0, 0])) == 4
    np.testing.assert_array_equal(shown[2]["next_observation"][:, :, 1:], np.full((4, 2, 2), [2, 0 + 1]))
    np.testing.assert_array_equal(shown[2]["reward"], np.full((4, 2), 1))
    assert shown[3]["last"].all() and not shown[2]["last"].any()
    assert (shown[3]["observation"][:, :, 1] == 0).all() and (shown[3]["next_observation"][:, :, 1] == 3).all()


@pytest.mark.parametrize("num_workers", [1, 2])
def test_what_is_shown_does_not_depend_on_the_number_of_processes(num_workers: int) -> None:
    with Pool(source(time_limit=5), 6, num_workers=3, stagger=True) as pool:
        pool.begin(seed=1)
        expected = play(pool, 12)
    with Pool(source(time_limit=5), 6, num_workers=num_workers, stagger=True) as pool:
        pool.begin(seed=1)
        found = play(pool, 12)
    for one, other in zip(found, expected, strict=True):
        for name in one:
            np.testing.assert_array_equal(one[name], other[name])


def test_stagger_cuts_first_episodes_at_different_times() -> None:
    with Pool(source(time_limit=4), 4, num_workers=1, stagger=True) as pool:
        pool.begin(seed=0)
        shown = play(pool, 4)
    first_end = np.argmax([step["last"] for step in shown], axis=0)
    np.testing.assert_array_equal(first_end, [4, 3, 2, 1])


def test_saved_episodes_are_played_again_in_another_pool() -> None:
    with Pool(source(time_limit=7), 4, num_workers=2, stagger=True) as pool:
        pool.begin(seed=3)
        play(pool, 9)
        saved = {name: part for name, part in pool.saved().items()}
        saved = _copy(saved)
        for half in range(pool.num_halves):
            pool.send(half, {"agents": np.ones((2, 2))})
        expected = [pool.receive(half).timestep.groups["agents"].observation for half in range(2)]
    with Pool(source(time_limit=7), 4, num_workers=1) as other:
        assert other.replay(saved)
        for half in range(2):
            other.send(half, {"agents": np.ones((2, 2))})
        found = [other.receive(half).timestep.groups["agents"].observation for half in range(2)]
    np.testing.assert_array_equal(found, expected)


def test_replay_notices_a_simulator_that_does_something_else() -> None:
    with Pool(source(time_limit=7), 2, num_workers=1) as pool:
        pool.begin(seed=3)
        play(pool, 4)
        saved = _copy(pool.saved())
        saved["step"]["groups"]["agents"]["observation"][1, 0, 2] += 1
        assert not pool.replay(saved)


def _copy(tree: Any) -> Any:
    return {name: _copy(part) for name, part in tree.items()} if isinstance(tree, dict) else np.copy(tree)


def test_a_killed_process_is_replaced_and_its_episodes_dropped() -> None:
    warnings: list[str] = []
    with Pool(source(time_limit=50), 8, num_workers=2, warn=warnings.append) as pool:
        pool.begin(seed=0)
        before = play(pool, 3)[-1]
        victim = pool.pids[0]
        os.kill(victim, signal.SIGKILL)
        for half in range(2):
            pool.send(half, {"agents": np.ones((4, 2))})
        answers = [pool.receive(half) for half in range(2)]
        dropped = np.concatenate([answer.dropped for answer in answers])
        np.testing.assert_array_equal(dropped, [True, True, False, False] * 2)
        observation = np.concatenate([answer.timestep.groups["agents"].observation for answer in answers])
        assert (observation[dropped][:, :, 1] == 0).all(), "new episodes"
        assert (observation[dropped][:, 0, 0] != before["observation"][dropped][:, 0, 0]).all(), "with new seeds"
        assert (observation[~dropped][:, :, 1] == 4).all(), "the others went on"
        assert (pool.restarts, pool.dropped_episodes) == (1, 4)
        assert victim not in pool.pids
        for half in range(2):
            pool.send(half, {"agents": np.ones((4, 2))})
        again = [pool.receive(half) for half in range(2)]
        assert not any(answer.dropped.any() for answer in again)
    assert "ended by signal 9; it is replaced, and 4 episodes are dropped" in warnings[0]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signals_to_the_whole_process_group_are_for_the_owner(number: signal.Signals) -> None:
    """As from `timeout` and batch schedulers: processes that step copies go on, also while they start."""
    with Pool(source(time_limit=9), 2, num_workers=2) as pool:
        starting = Worker(source(), Assignment())
        for pid in (starting.pid, *pool.pids):
            os.kill(pid, number)
        assert starting.introduce(60.0).spec.time_limit == 10
        starting.close()
        pool.begin(seed=0)
        play(pool, 3)
        assert pool.restarts == 0


def test_a_pool_that_nobody_closed_does_not_keep_python_from_ending(tmp_path: Path) -> None:
    script = tmp_path / "leave.py"
    script.write_text(
        "from simulators import Clock, ClockConfig\n"
        "from covey.envs.host.pool import Pool\n"
        "from covey.envs.host.simulator import Source\n"
        "if __name__ == '__main__':\n"
        "    pool = Pool(Source(name='toy/clock', make=Clock, config=ClockConfig()), 1, num_workers=1)\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run([sys.executable, str(script)], env=environment, timeout=120).returncode == 0


def test_a_script_without_the_guard_is_told_of_it(tmp_path: Path) -> None:
    """Each process imports the script that starts it, and would start processes too."""
    script = tmp_path / "unguarded.py"
    script.write_text(
        "import covey\n"
        "from simulators import Clock, ClockConfig\n"
        "covey.register_task('toy/clock', Clock, config=ClockConfig, description='counts', host=True)\n"
        "covey.make_env('toy/clock')\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run([sys.executable, str(script)], env=environment, timeout=120, capture_output=True, text=True)
    assert ended.returncode == 1
    assert 'must be under `if __name__ == "__main__":`' in ended.stderr.splitlines()[-1]


def test_an_action_for_a_lost_episode_is_not_taken_in_the_new_one() -> None:
    with Pool(source(time_limit=50), 4, num_workers=1) as pool:
        pool.begin(seed=0)
        first = pool.receive(0)
        pool.receive(1)
        os.kill(pool.pids[0], signal.SIGKILL)
        pool.send(1, {"agents": np.ones((2, 2))})
        assert pool.receive(1).dropped.all()  # here the process was replaced, after half 0 was shown
        pool.send(0, {"agents": np.ones((2, 2))})  # chosen for what `first` showed
        answer = pool.receive(0)
        assert answer.dropped.all() and not first.dropped.any()
        assert (answer.timestep.groups["agents"].observation[:, :, 1] == 0).all()
        pool.send(0, {"agents": np.ones((2, 2))})
        assert (pool.receive(0).timestep.groups["agents"].observation[:, :, 1] == 1).all()


def test_a_process_that_hangs_is_replaced() -> None:
    with Pool(source(hang_at=2), 2, num_workers=1, seconds=1.0) as pool:
        pool.begin(seed=0)
        shown = play(pool, 40)
        assert pool.restarts > 0
    assert any(step["dropped"].any() for step in shown)


def test_a_simulator_that_always_fails_ends_with_its_own_message() -> None:
    message = r"toy/clock: the process of copies 0 to 1 failed: copy 0, step 2 of episode \d+: observations of group"
    with Pool(source(fails="nan"), 2, num_workers=1) as pool, pytest.raises(SimulatorError, match=message):
        pool.begin(seed=0)
        play(pool, 50)


def test_an_action_outside_its_space_is_refused() -> None:
    name = "pettingzoo/simple_spread"
    spread = source_of(name, registry.tasks[name].defaults())
    message = r"copy 3, step 2 of episode 0: the action of agent 1 of group agents is outside its space: \[0. *0. *7"
    with Pool(spread, 4, num_workers=1) as pool:
        pool.begin(seed=0)
        play_still = np.zeros((2, 3, 5), np.float32)
        for half in range(2):
            pool.receive(half)
            pool.send(half, {"agents": play_still})
            pool.receive(half)
        play_still[1, 1, 2] = 7
        pool.arrays["step"]["groups"]["agents"]["alive"][1, 1] = False
        pool.send(0, {"agents": play_still})  # of an agent that is not alive, it means nothing
        with pytest.raises(SimulatorError, match=message):
            pool.send(1, {"agents": play_still})


def test_a_simulator_that_fails_at_start_is_bad_input() -> None:
    with pytest.raises(UsageError, match="toy/clock cannot be made: FileNotFoundError: no such map: desert"):
        describe(source(fails="start"))


def test_what_a_failing_process_printed_is_said() -> None:
    warnings: list[str] = []
    with Pool(source(crash_at=2, time_limit=4), 2, num_workers=1, warn=warnings.append) as pool:
        pool.begin(seed=0)
        play(pool, 12)
    assert warnings and "ended with exit code 3; it printed: out of memory, it seems" in warnings[0]


def test_no_process_and_no_file_is_left() -> None:
    files = set(Path("/dev/shm").iterdir()) if Path("/dev/shm").exists() else set()
    pool = Pool(source(), 4, num_workers=2)
    pids = pool.pids
    assert len(pids) == 2
    pool.begin(seed=0)
    pool.close()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert not {f for f in (Path("/dev/shm").iterdir() if files else []) if f.name.startswith("pym-")} - files


def test_more_processes_than_cores_are_refused() -> None:
    cores = len(os.sched_getaffinity(0))
    with pytest.raises(UsageError, match=f"actors.num={cores + 1} processes are more than this machine's {cores} core"):
        check_workers(cores + 1)
    check_workers(cores)


@pytest.mark.parametrize(
    ("copies", "workers", "sizes"), [(8, 2, [4, 4]), (4, 2, [2, 2]), (3, 1, [3]), (2, 2, [2]), (6, 2, [3, 3])]
)
def test_halves_are_equal_and_every_process_has_a_share_in_both(copies: int, workers: int, sizes: list[int]) -> None:
    assert half_sizes(copies, workers) == sizes


@pytest.mark.parametrize(("copies", "workers", "most"), [(10, 2, 5), (8, 2, 4), (8, 3, 3), (22, 3, 8)])
def test_processes_have_equally_many_copies_over_both_halves(copies: int, workers: int, most: int) -> None:
    half = copies // 2
    shares = deal([slice(0, half), slice(half, copies)], workers)
    assert sorted(copy for halves in shares for own in halves for copy in own) == list(range(copies))
    assert all(max(first) < half <= min(second) for first, second in shares)
    assert max(len(first) + len(second) for first, second in shares) == most
    assert deal([slice(0, 3)], 2) == [[[0, 1]], [[2]]]


def kill_when_started(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next process that the pool starts is killed at once."""
    start = pool._start

    def start_and_kill(number: int) -> Worker:
        worker = start(number)
        os.kill(worker.pid, signal.SIGKILL)
        monkeypatch.undo()
        return worker

    monkeypatch.setattr(pool, "_start", start_and_kill)


def test_a_process_that_is_killed_while_it_starts_is_replaced_too(monkeypatch: pytest.MonkeyPatch) -> None:
    warnings: list[str] = []
    with Pool(source(time_limit=3), 4, num_workers=2, warn=warnings.append) as pool:
        pool.begin(seed=0)
        play(pool, 5)
        kill_when_started(pool, monkeypatch)
        os.kill(pool.pids[1], signal.SIGKILL)
        pool.send(0, {"agents": np.ones((2, 2))})
        assert pool.receive(0).dropped.tolist() == [False, True]
        assert (pool.restarts, pool.dropped_episodes) == (2, 2)
    assert [warning.rpartition(" and ")[2] for warning in warnings] == [
        "2 episodes are dropped",
        "0 episodes are dropped",
    ]


def test_a_process_is_killed_more_often_than_it_may_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("covey.envs.host.pool.MOST_KILLS", 5)
    message = "ended by signal 9; it was killed 5 times without ending an episode"
    with Pool(source(time_limit=50), 2, num_workers=1, warn=lambda line: None) as pool:
        pool.begin(seed=0)
        play(pool, 1)
        with pytest.raises(SimulatorError, match=message):
            for _ in range(5):
                os.kill(pool.pids[0], signal.SIGKILL)
                pool.send(0, {"agents": np.ones((1, 2))})
                pool.receive(0)
        assert pool.restarts == 4


def test_kills_between_beginnings_are_no_failures_without_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where evaluations begin again and again in the same pool."""
    monkeypatch.setattr("covey.envs.host.pool.MOST_KILLS", 3)
    with Pool(source(time_limit=2), 2, num_workers=1, warn=lambda line: None) as pool:
        for number in range(4):
            pool.begin(seed=number)
            play(pool, 5)
            os.kill(pool.pids[0], signal.SIGKILL)
        pool.begin(seed=4)
        play(pool, 1)
        assert pool.restarts == 4


def test_copies_that_rest_go_on_resting_in_a_new_process() -> None:
    with Pool(source(time_limit=50), 4, num_workers=1, warn=lambda line: None) as pool:
        pool.begin(seed=0)
        play(pool, 2)
        pool.arrays["active"][0] = False
        os.kill(pool.pids[0], signal.SIGKILL)
        for _ in range(2):
            for half in range(2):
                pool.send(half, {"agents": np.ones((2, 2))})
            shown = [pool.receive(half).timestep.groups["agents"].observation for half in range(2)]
        assert pool.dropped_episodes == 3
        np.testing.assert_array_equal(np.concatenate(shown)[:, 0, 1], [0, 1, 1, 1])


def test_a_process_that_is_killed_while_another_is_renewed_loses_its_own_episodes_only() -> None:
    with Pool(source(time_limit=9, episodes_per_process=3), 4, num_workers=2, warn=lambda line: None) as pool:
        pool.begin(seed=1)
        play(pool, 4)
        pool._episodes[...] = [3, 0]
        os.kill(pool.pids[1], signal.SIGKILL)
        pool.renew()
        assert (pool.restarts, pool.dropped_episodes) == (1, 2)
        for expected in ([5, 0], [6, 1]):
            for half in range(2):
                pool.send(half, {"agents": np.ones((2, 2))})
            for half in range(2):
                answer = pool.receive(half)
                assert answer.dropped.tolist() == [False, expected[1] == 0]
                np.testing.assert_array_equal(answer.timestep.groups["agents"].observation[:, 0, 1], expected)


def test_a_worn_out_process_is_replaced_and_its_episodes_go_on() -> None:
    with Pool(source(time_limit=5, episodes_per_process=3), 4, num_workers=2, stagger=True) as pool:
        pool.begin(seed=1)
        first = pool.pids
        play(pool, 8)
        before = layout_copy(pool)
        pool.renew()
        assert set(pool.pids).isdisjoint(first) and (pool.restarts, pool.dropped_episodes) == (0, 0)
        for name, then in before["groups"]["agents"].items():
            if name in ("observation", "alive"):
                np.testing.assert_array_equal(pool.arrays["step"]["groups"]["agents"][name], then)
        found = continue_play(pool)
    with Pool(source(time_limit=5), 4, num_workers=1, stagger=True) as pool:
        pool.begin(seed=1)
        play(pool, 8)
        expected = continue_play(pool)
    np.testing.assert_array_equal(found, expected)


def layout_copy(pool: Pool) -> Any:
    return _copy(pool.arrays["step"])


def continue_play(pool: Pool) -> np.ndarray:
    """Four more steps, after `play` has received all; what agents see at the end."""
    for _ in range(4):
        for half in range(pool.num_halves):
            pool.send(half, {"agents": np.full((2, 2), 2)})
        answers = [pool.receive(half) for half in range(pool.num_halves)]
    return np.concatenate([answer.timestep.groups["agents"].observation for answer in answers])


def test_a_simulator_that_no_process_can_be_given_says_why() -> None:
    made = Source(name="toy/local", make=lambda config: Clock(config), config=ClockConfig())
    with pytest.raises(UsageError, match=r"toy/local cannot be sent to a process \(.*\); define it at the top level"):
        describe(made)


def test_a_replaced_process_is_said_by_default(capsys: pytest.CaptureFixture[str]) -> None:
    with Pool(source(time_limit=50), 2, num_workers=1) as pool:
        pool.begin(seed=0)
        play(pool, 1)
        os.kill(pool.pids[0], signal.SIGKILL)
        pool.send(0, {"agents": np.ones((1, 2))})
        pool.receive(0)
    assert "warning: toy/clock: the process of copies 0 to 1 ended by signal 9" in capsys.readouterr().err
