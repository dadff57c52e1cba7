"""The actor-learner loop: in step with the online loop to the bit, ahead of the learner by a known lag, and resumed."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from simulators import Clock, ClockConfig

import covey
from covey import registry
from covey.errors import CoveyError, UsageError
from covey.experiment.configuration.compose import compose
from covey.experiment.running.build import Parts, build
from covey.experiment.running.experiment import resume, train
from covey.experiment.running.programs import values_of
from covey.loops.actor_learner import Actors
from covey.loops.collectors import Collected

TASK = "toy/clock"


@pytest.fixture(scope="module", autouse=True)
def registered() -> Iterator[None]:
    """The clock is a task while these tests run."""
    covey.register_task(TASK, Clock, config=ClockConfig, description="counts its steps", host=True)
    yield
    registry.tasks._entries.pop(TASK)


TINY = ("model.layers=[16]", "experiment.num_envs=4", "experiment.devices=1", "experiment.evaluation_interval=0")
ON_POLICY = ("algorithm=ippo", "experiment.rollout_length=8", "algorithm.num_minibatches=2", "algorithm.epochs=2")
REPLAY = (
    "algorithm=iql",
    "experiment.rollout_length=4",
    "experiment.updates=4",
    "experiment.random_frames=16",
    "buffer.size=256",
    "buffer.batch_size=16",
)
RUNS = ("experiment.loggers=[]", "experiment.evaluation_episodes=4", "experiment.absolute_metric=false")


@pytest.fixture
def make_parts() -> Iterator[Callable[..., Parts]]:
    """Builds experiments, and ends their processes."""
    made: list[Parts] = []

    def make(*overrides: str) -> Parts:
        config = compose([*TINY, *overrides])
        made.append(build(config, jax.devices()[: config.experiment.devices or 1]))
        return made[-1]

    yield make
    for parts in made:
        parts.close()


def advance(parts: Parts, *sizes: int, state: Any = None) -> tuple[Any, dict[str, np.ndarray]]:
    """The state after chunks of some sizes, and their metrics in one."""
    state = parts.loop.init(jax.random.key(4)) if state is None else state
    chunks = []
    for size in sizes:
        state, metrics = parts.loop.advance(state, np.int32(size))
        chunks.append({name: np.asarray(value)[:size] for name, value in metrics.items()})
    return state, {name: np.concatenate([chunk[name] for chunk in chunks]) for name in chunks[0]}


@pytest.mark.parametrize(
    ("settings", "task"),
    [
        (ON_POLICY, "probe/copy"),
        ((*ON_POLICY, "model=gru", "model.hidden_size=8"), "probe/memory"),
        (REPLAY, "probe/copy"),
    ],
    ids=["ippo", "memory", "iql"],
)
def test_without_lag_it_is_the_online_loop_to_the_bit(
    settings: tuple[str, ...], task: str, make_parts: Any, same_bits: Any
) -> None:
    online, online_metrics = advance(make_parts(f"task={task}", *settings), 3)
    actors, metrics = advance(make_parts(f"task={task}", *settings, "actors=local"), 1, 2)
    if "model=gru" in settings:  # XLA orders sums over time differently in the larger program
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), actors.learner, online.learner)
        return
    same_bits(actors.learner, online.learner)
    same_bits(actors.buffer, online.buffer)
    for name, values in online_metrics.items():
        np.testing.assert_array_equal(metrics[name], values, err_msg=name)
    assert set(metrics) - set(online_metrics) == {
        "actors/parameter_age",
        "actors/restarts",
        "actors/dropped_episodes",
    }


def test_a_simulators_shaping_is_learned_from_and_counts_in_no_return(make_parts: Any) -> None:
    settings = (f"task={TASK}", *ON_POLICY, "algorithm.gamma=0.0")  # so that targets are the rewards of one step
    (plain, before), (shaped, after) = (advance(make_parts(*settings, f"task.shaping={w}"), 2) for w in (0, 1000))
    np.testing.assert_array_equal(after["collection/mean_return"][:1], before["collection/mean_return"][:1])
    rewards = [float(state.learner["agents"].value_moments.mean) for state in (plain, shaped)]
    assert 0 < rewards[0] < 2 and 1000 < rewards[1] < 1002


def test_two_devices_learn_from_batches_of_actors(make_parts: Any) -> None:
    one, _ = advance(make_parts("task=probe/copy", *ON_POLICY, "actors=local"), 2)
    two, _ = advance(make_parts("task=probe/copy", *ON_POLICY, "actors=local", "experiment.devices=2"), 2)
    for a, b in zip(
        jax.tree.leaves(one.learner["agents"].params), jax.tree.leaves(two.learner["agents"].params), strict=True
    ):
        assert a.shape == b.shape
        assert np.isfinite(b).all()


@pytest.mark.parametrize("lag", [1, 2])
def test_batches_are_acted_with_parameters_of_a_known_age(lag: int, make_parts: Any, same_bits: Any) -> None:
    settings = ("task=probe/copy", *ON_POLICY, f"actors.lag={lag}")
    state, metrics = advance(make_parts(*settings), 2, 3)
    np.testing.assert_array_equal(metrics["actors/parameter_age"], np.minimum(np.arange(5), lag))
    again, _ = advance(make_parts(*settings), 5)
    same_bits(again.learner, state.learner)  # whatever the timing


def test_lag_shows_in_the_ratio_of_probabilities(make_parts: Any) -> None:
    """Of the first pass over a batch, the ratio of new to old probabilities is 1 only where nothing has moved since."""
    once = ("algorithm.epochs=1", "algorithm.num_minibatches=1", "algorithm.lr=0.05")
    kl = {}
    for lag in (0, 2):
        _, metrics = advance(make_parts("task=probe/copy", *ON_POLICY[:2], *once, f"actors.lag={lag}"), 6)
        kl[lag] = metrics["agents/kl"]
    np.testing.assert_allclose(kl[0], 0.0, atol=1e-6)
    assert kl[2][0] < 1e-6 and kl[2][3:].max() > 1e-4


@pytest.mark.parametrize("settings", [ON_POLICY, REPLAY], ids=["ippo", "iql"])
def test_a_simulator_is_learned_in_lockstep_to_the_bit(
    settings: tuple[str, ...], make_parts: Any, same_bits: Any
) -> None:
    one, metrics = advance(make_parts("task=toy/clock", *settings, "actors.num=1"), 5)
    other, again = advance(make_parts("task=toy/clock", *settings, "actors.num=2"), 2, 3)
    same_bits(one.learner, other.learner)
    np.testing.assert_array_equal(metrics["collection/episodes"], again["collection/episodes"])
    assert metrics["collection/episodes"].sum() > 0
    lengths = metrics["collection/episode_length"]
    assert np.nanmax(lengths) == 10, "the clock's time limit"


def test_what_is_collected_is_what_the_simulator_did(make_parts: Any) -> None:
    """The clock shows the sum of each agent's actions: the batch must agree with it, across the two halves."""
    parts = make_parts("task=toy/clock", *ON_POLICY, "actors.num=1", "algorithm.agent_ids=false")
    from covey.loops.actor_learner import ActorLearner

    loop: ActorLearner = parts.loop.advance.__self__
    collector = loop._parts.make_collector()
    try:
        state = parts.loop.init(jax.random.key(0))
        collector.begin(jax.random.key(1))
        batch = collector.collect(loop._acting(state), jax.random.key(2), False).batch
    finally:
        collector.close()
    steps = jax.device_get(batch.transitions["agents"])
    assert steps.action.shape == (8, 4, 2)
    np.testing.assert_array_equal(steps.next_observation[..., 2] - steps.observation[..., 2], steps.action)
    np.testing.assert_array_equal(steps.reward, steps.action)
    np.testing.assert_array_equal(steps.next_observation[..., 1] - steps.observation[..., 1], np.ones((8, 4, 2)))
    inside = ~steps.last[:-1]
    np.testing.assert_array_equal(steps.observation[1:][inside], steps.next_observation[:-1][inside])
    np.testing.assert_array_equal(steps.truncated, steps.last)
    final: Any = batch.final
    np.testing.assert_array_equal(
        final.groups["agents"].observation[~steps.last[-1]], steps.next_observation[-1][~steps.last[-1]]
    )


@pytest.mark.parametrize("num_envs", [3, 4], ids=["one half", "two halves"])
def test_memories_are_kept_before_each_sequence(num_envs: int, make_parts: Any) -> None:
    """The first of a batch are those after the batch before."""
    memory = ("model=gru", "critic_model=gru", "model.hidden_size=8", "algorithm.sequence_length=4")
    sizes = (f"experiment.num_envs={num_envs}", "algorithm.num_minibatches=1", "algorithm.epochs=1", "actors.num=1")
    parts = make_parts("task=toy/clock", *ON_POLICY, *memory, *sizes, "task.time_limit=6")
    loop = parts.loop.advance.__self__
    collector = loop._parts.make_collector()
    try:
        acting = loop._acting(parts.loop.init(jax.random.key(0)))
        collector.begin(jax.random.key(1))
        first, second = (collector.collect(acting, jax.random.key(seed), False) for seed in (2, 3))
    finally:
        collector.close()
    assert not any(leaf.any() for leaf in jax.tree.leaves(sequences(first)[0]))
    jax.tree.map(np.testing.assert_array_equal, sequences(second)[0], first.batch.final_carry)
    steps = jax.device_get(second.batch.transitions["agents"])
    assert steps.observation.shape == (8, num_envs, 2, 5) and steps.reset.any()
    before, between = (jax.tree.leaves(sequence) for sequence in sequences(second))
    assert not all(np.array_equal(one, other) for one, other in zip(before, between, strict=True))
    np.testing.assert_array_equal(steps.observation[0], jax.device_get(first.batch.final.groups["agents"].observation))


def sequences(collected: Collected) -> list[Any]:
    """The carries before each sequence."""
    carries = jax.device_get(collected.batch.carries)
    leaves, structure = jax.tree.flatten(carries)
    return [jax.tree.unflatten(structure, rows) for rows in zip(*leaves, strict=True)]


def test_steps_of_a_lost_episode_weigh_nothing(make_parts: Any) -> None:
    parts = make_parts("task=toy/clock", *ON_POLICY, "actors.num=1", "experiment.stagger=false", "task.time_limit=5")
    loop = parts.loop.advance.__self__
    collector = loop._parts.make_collector()
    try:
        state = parts.loop.init(jax.random.key(0))
        collector.begin(jax.random.key(1))
        pool, sends = collector._pool, 0
        send = pool.send

        def send_and_kill(half: int, actions: Any) -> None:
            nonlocal sends
            sends += 1
            if sends == 13:  # step 6 of the first half: the second step of the second episode
                os.kill(pool.pids[0], signal.SIGKILL)
            send(half, actions)

        pool.send = send_and_kill
        collected = collector.collect(loop._acting(state), jax.random.key(2), False)
    finally:
        collector.close()
    steps = jax.device_get(collected.batch.transitions["agents"])
    assert (collected.restarts, collected.dropped_episodes) == (1, 4)
    # In the first half, steps 0 to 4 are an episode; 5 and 6 are lost; 7 begins a new one.
    np.testing.assert_array_equal(steps.alive[:, 0].all(-1), [True] * 5 + [False] * 2 + [True])
    np.testing.assert_array_equal(steps.reset[:, 0], [False] * 5 + [True, False, True])
    np.testing.assert_array_equal(steps.last[:, 0], [False] * 4 + [True, False, True, False])
    assert steps.alive[:5].all() and float(collected.sums.count) == 4


def run(path: Path, *overrides: str) -> list[dict[str, Any]]:
    """Trains on the clock, and what metrics.jsonl says of it, without seconds."""
    settings = [*TINY, *RUNS, *ON_POLICY, "task=toy/clock", "actors.num=2", f"run_dir={path}", *overrides]
    train(compose(settings))
    return metrics_of(path)


def metrics_of(path: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if "second" not in k and "crc" not in k} for row in rows]


def test_a_resumed_run_plays_the_same_episodes_to_the_bit(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole", "experiment.frames=192")
    run(tmp_path / "parts", "experiment.frames=96", "experiment.schedule_frames=192")
    resume(tmp_path / "parts", ["experiment.frames=192"])
    trained = [row for row in metrics_of(tmp_path / "parts") if row["kind"] == "train"]
    assert len(trained) == 6
    assert trained == [row for row in whole if row["kind"] == "train"]
    assert metrics_of(tmp_path / "parts")[-1] == whole[-1]


def test_loops_that_cannot_step_simulators_are_refused() -> None:
    with pytest.raises(UsageError, match=r"experiment.loop=online cannot step toy/clock.*actor_learner"):
        compose(["task=toy/clock", "experiment.loop=online"])
    assert compose(["task=toy/clock"]).experiment.loop == "actor_learner"
    assert compose(["task=toy/clock", "algorithm=iql"]).experiment.loop == "actor_replay"
    assert compose(["task=probe/copy", "actors=local"]).experiment.loop == "actor_learner"
    assert registry.loops["actor_learner"].host


def test_evaluations_asked_for_at_once_are_played_one_after_another(make_parts: Any) -> None:
    parts = make_parts("task=toy/clock", "actors.num=2", *ON_POLICY, "experiment.evaluation_episodes=4")
    learner = parts.loop.learner(parts.loop.init(jax.random.key(0)))
    keys = jax.random.split(jax.random.key(1), 3)
    alone = [values_of(parts.evaluate(learner, key)) for key in keys]
    for values, expected in zip([parts.evaluate(learner, key) for key in keys], alone, strict=True):
        assert {name: value.tolist() for name, value in values_of(values).items()} == {
            name: value.tolist() for name, value in expected.items()
        }


def test_seconds_of_training_beside_an_evaluation_are_those_of_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take = Actors.take

    def take_slowly(actors: Actors, number: int) -> Collected:
        time.sleep(0.2)
        return take(actors, number)

    monkeypatch.setattr(Actors, "take", take_slowly)
    started = time.monotonic()
    run(tmp_path / "run", "experiment.frames=128", "experiment.evaluation_interval=32")
    wall = time.monotonic() - started
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert max(row["frames_per_second"] for row in rows if row["kind"] == "train") < 32 / 0.2
    assert rows[-1]["elapsed_seconds"] < wall


class Failing:
    """A collector that fails at a batch."""

    def __init__(self, at: int):
        self.at, self.collected = at, 0

    def collect(self, acting: Any, key: Any, at_random: bool) -> Collected:
        self.collected += 1
        if self.collected == self.at:
            raise CoveyError("the simulator is on fire")
        return Collected(batch=acting, sums=None)  # type: ignore[arg-type]

    def cancel(self) -> None:
        pass


def test_what_fails_in_the_thread_is_raised_where_its_batch_is_taken() -> None:
    actors = Actors(Failing(3), lag=2)  # type: ignore[arg-type]
    actors.start(0, lambda number: (jax.random.key(number), False))
    actors.publish(0, "parameters 0")
    assert actors.take(0).batch == "parameters 0"  # type: ignore[comparison-overlap]
    actors.publish(1, "parameters 1")
    assert actors.take(1).batch == "parameters 0"  # type: ignore[comparison-overlap]
    with pytest.raises(CoveyError, match="the simulator is on fire"):
        actors.take(2)
    actors.stop()


def test_stopping_ends_the_thread_while_it_waits() -> None:
    before = threading.active_count()
    actors = Actors(Failing(0), lag=0)  # type: ignore[arg-type]
    actors.start(0, lambda number: (jax.random.key(number), False))
    assert threading.active_count() == before + 1
    actors.stop()
    assert threading.active_count() == before
