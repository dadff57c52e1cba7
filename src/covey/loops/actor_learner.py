"""The actor-learner loop: actors collect batches beside the learner, which learns from them in order.

A thread collects one batch after another, in processes that step simulators or in compiled environments, and the
learner takes them from a queue. Batch n is collected with the parameters after n − lag updates, whatever the machine's
speed. With `lag=0` collecting and learning take turns, as in the online loop. With `lag=1` the next batch is collected
with the current parameters while the learner updates them. So the age of the acting parameters is constant, the replay
ratio is exact, and no run depends on timing.

Learning is the online loop's (`online.learn_iteration`). Only collecting differs.
"""

from __future__ import annotations

import dataclasses
import queue
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from covey.algorithms.seats import learned_part, with_learned_part
from covey.envs.batch import BatchedEnv
from covey.envs.host.env import simulator_of
from covey.envs.host.pool import check_workers, num_cores, print_warning
from covey.errors import MissingExtra
from covey.loops.base import DEVICE_AXIS, Elsewhere, Loop, LoopInputs, Sizes, StatePart, num_bytes
from covey.loops.collectors import (
    Cancelled,
    Collected,
    Collecting,
    Collector,
    Collectors,
    example_batch,
    example_saved,
    make_collector,
)
from covey.loops.config import ActorLearnerConfig, ActorReplayConfig, ActorsConfig, Where
from covey.loops.learning import make_learning
from covey.loops.online import (
    PLACES,
    OnlineTraining,
    TrainState,
    add_device_axis,
    at_random_while,
    collection_metrics,
    drop_device_axis,
    hook_metrics,
    iteration_keys,
    learn_iteration,
    state_parts,
    state_shardings,
)
from covey.types import Algorithm, Array, Batch, Key, PyTree

ACTOR_PLACES = dataclasses.replace(PLACES, actor=P())  # type: ignore[arg-type]
BATCH_PLACES = Batch(  # how a batch is split over devices: by environment
    transitions=P(None, DEVICE_AXIS),  # type: ignore[arg-type]
    carries=P(None, DEVICE_AXIS),
    final=P(DEVICE_AXIS),  # type: ignore[arg-type]
    final_carry=P(DEVICE_AXIS),
)
SIMULATORS = "simulators"  # the part of a saved state that continues episodes


class Actors:
    """The thread that collects, and the queue of batches.

    `publish(n, acting)` says what to act with after n updates; `take(n)` waits for batch n, and raises what failed in
    the thread.
    """

    def __init__(self, collector: Collector, lag: int):
        self._collector, self._lag = collector, lag
        self._batches: queue.Queue[tuple[int, Collected | BaseException]] = queue.Queue()
        self._acting: dict[int, PyTree] = {}
        self._changed = threading.Condition()
        self._stopping = False
        self._thread: threading.Thread | None = None

    def start(self, first: int, keys: Callable[[int], tuple[Key, bool]]) -> None:
        """Collects from batch `first` on; `keys` gives a batch's key and whether its actions are random."""
        self._thread = threading.Thread(target=self._run, args=(first, keys), name="covey actors", daemon=True)
        self._thread.start()

    def publish(self, number: int, acting: PyTree) -> None:
        """What to act with after `number` updates."""
        with self._changed:
            self._acting[number] = acting
            self._changed.notify_all()

    def take(self, number: int) -> Collected:
        """Batch `number`, which must be the next one."""
        found, collected = self._batches.get()
        if isinstance(collected, BaseException):
            raise collected
        assert found == number, f"batch {found} came before batch {number}"
        return collected

    def stop(self) -> None:
        """Ends the thread, in the middle of a batch if the collector can be cancelled there."""
        self._collector.cancel()
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
        self._thread = None

    def _run(self, first: int, keys: Callable[[int], tuple[Key, bool]]) -> None:
        number = first
        try:
            while (acting := self._wait_for(max(first, number - self._lag))) is not None:
                key, at_random = keys(number)
                self._batches.put((number, self._collector.collect(acting, key, at_random)))
                number += 1
        except Cancelled:
            return
        except BaseException as error:
            self._batches.put((number, error))

    def _wait_for(self, number: int) -> PyTree | None:
        """What to act with after `number` updates; None if the thread should end."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopping or number in self._acting)
            if self._stopping:
                return None
            self._acting = {known: acting for known, acting in self._acting.items() if known >= number}
            return self._acting[number]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ActorTraining:
    """What the loop is made of."""

    training: OnlineTraining
    actors: ActorsConfig
    make_collector: Callable[[], Collector]
    example_saved: Callable[[], PyTree]  # an example of what the collector's `saved` returns, for its shapes
    saves_episodes: bool
    acting_device: Any


class ActorLearner:
    """The loop's functions, and the actors behind them.

    Actors continue from one call of `advance` to the next. If the state is not the one they left, for example a new
    seed's, they start with new episodes, or with those that were restored.
    """

    def __init__(self, parts: ActorTraining):
        self._parts = parts
        self._training = parts.training
        learn = self._training.over_devices(
            partial(learn_from_collected, self._training),
            in_specs=(ACTOR_PLACES, BATCH_PLACES),
            out_specs=(ACTOR_PLACES, P()),
        )
        self._learn = jax.jit(learn, donate_argnums=0)
        self._measure = jax.jit(partial(collection_metrics, self._training))
        self._collector: Collector | None = None
        self._actors: Actors | None = None
        self._position: tuple[bytes, int] | None = None  # the run's key and the iteration where the actors are
        self._restored: Mapping[str, Any] = {}

    def advance(self, state: TrainState, num_iterations: int) -> tuple[TrainState, dict[str, np.ndarray]]:
        """Learns from the next batches; metrics are `[num_iterations]`."""
        rows = []
        iteration = int(state.iteration)
        actors = self._started(state, iteration)
        for number in range(iteration, iteration + int(num_iterations)):
            actors.publish(number, self._acting(state))
            collected = actors.take(number)
            batch = self._on_learner(collected.batch)
            state, metrics = self._learn(state, batch)
            metrics |= self._measure(collected.sums) | {
                "actors/parameter_age": np.float32(min(self._parts.actors.lag, number - self._first)),
                "actors/restarts": np.float32(collected.restarts),
                "actors/dropped_episodes": np.float32(collected.dropped_episodes),
            }
            metrics = hook_metrics(self._training, metrics)
            rows.append({name: np.asarray(value) for name, value in metrics.items()})
        self._position = (key_bytes(state), iteration + int(num_iterations))
        return state, {name: np.stack([row[name] for row in rows]) for name in rows[0]}

    def _acting(self, state: TrainState) -> PyTree:
        """A copy of what to act with, because the next update reuses the state's memory."""
        acting = self._training.algorithm.acting(state.learner)
        return jax.tree.map(lambda leaf: jax.device_put(leaf, self._parts.acting_device, may_alias=False), acting)

    def _on_learner(self, batch: Batch) -> Batch:
        return batch_on_devices(batch, self._training.devices)

    def _started(self, state: TrainState, iteration: int) -> Actors:
        """The actors, at the iteration of `state`."""
        here = (key_bytes(state), iteration)
        if self._actors is not None and self._position == here:
            return self._actors
        self._stop()
        if self._collector is None:
            self._collector = self._parts.make_collector()
        restored, self._restored = dict(self._restored), {}
        if not restored.pop("there", False) or not self._collector.restore(restored):
            if iteration:
                print_warning("all episodes start again, and the bits will differ from an uninterrupted run")
            key_actor: Key = state.actor  # type: ignore[assignment]
            self._collector.begin(jax.random.fold_in(key_actor, iteration) if iteration else key_actor)
        self._first, key = iteration, jax.device_get(jax.random.key_data(state.key))
        self._actors = Actors(self._collector, self._parts.actors.lag)
        random_until = self._training.random_iterations
        self._actors.start(iteration, lambda number: (collecting_key(key, number), number < random_until))
        return self._actors

    def _stop(self) -> None:
        if self._actors is not None:
            self._actors.stop()
        self._actors = None

    def close(self) -> None:
        """Ends the actors and their processes."""
        self._stop()
        if self._collector is not None:
            self._collector.close()
        self._collector, self._position = None, None

    def saved(self, state: TrainState) -> dict[str, PyTree]:
        """What checkpoints hold: with `lag=0`, also the running episodes."""
        parts = {
            "learner": learned_part(state.learner),
            "clock": {"key": state.key, "iteration": state.iteration, "actor": state.actor},
        }
        if self._parts.saves_episodes:
            parts[SIMULATORS] = self._saved_episodes(state)
        if self._training.replay_learning is not None and self._training.replay_learning.in_checkpoints:
            parts["buffer"] = state.buffer
        return parts

    def _saved_episodes(self, state: TrainState) -> PyTree:
        """The running episodes after the iteration of `state`; all zeros if the actors are not there."""
        here = self._position == (key_bytes(state), int(state.iteration))
        example = self._parts.example_saved()
        found = self._collector.saved() if here and self._collector is not None else None
        saved = {"there": np.bool_(found is not None), **(found or example)}
        return jax.tree.map(lambda leaf: jax.device_put(leaf, self._parts.acting_device), saved)

    def restored(self, state: TrainState, trees: Mapping[str, PyTree]) -> TrainState:
        """`state` with those saved parts that `trees` has."""
        changes = {name: tree for name, tree in trees.items() if name not in ("clock", SIMULATORS)}
        if "learner" in changes:
            changes["learner"] = with_learned_part(state.learner, changes["learner"])
        self._restored = trees.get(SIMULATORS, {})
        self._stop()
        self._position = None
        return dataclasses.replace(state, **changes, **trees.get("clock", {}))


def learn_from_collected(
    training: OnlineTraining, state: TrainState, batch: Batch
) -> tuple[TrainState, dict[str, Array]]:
    """One iteration's update, on each device."""
    state = dataclasses.replace(state, buffer=drop_device_axis(state.buffer))
    _, key_update = iteration_keys(training, state)
    state, metrics = learn_iteration(training, state, batch, key_update)
    return dataclasses.replace(state, buffer=add_device_axis(state.buffer)), metrics


def collecting_key(key_data: np.ndarray, iteration: int) -> Key:
    """The key for collecting in an iteration, the same as in the online loop."""
    key = jax.random.fold_in(jax.random.wrap_key_data(jnp.asarray(key_data)), iteration)
    return jax.random.split(key)[0]


def key_bytes(state: TrainState) -> bytes:
    """A run's key as bytes, which identify the run."""
    return bytes(np.asarray(jax.random.key_data(state.key)).tobytes())


def batch_on_devices(batch: Batch, devices: list[Any]) -> Batch:
    """A batch on the learner's devices, split over them by environment."""
    if len(devices) == 1:
        moved: Batch = jax.device_put(batch, devices[0])
        return moved
    mesh = jax.sharding.Mesh(devices, (DEVICE_AXIS,))

    def put(spec: P, part: PyTree) -> PyTree:
        return jax.device_put(part, jax.sharding.NamedSharding(mesh, spec))

    return dataclasses.replace(
        batch,
        **{
            name: put(getattr(BATCH_PLACES, name), getattr(batch, name))
            for name in ("transitions", "carries", "final", "final_carry")
        },
    )


# -------------------------------------------------------------------------------------------------- registered loops


def build_actor_learner(inputs: LoopInputs) -> Loop:
    """The registered loop: an iteration updates once, from a batch. `inputs.config` is `ActorLearnerConfig`."""
    return _from_inputs(inputs, replay=False)


def build_actor_replay(inputs: LoopInputs) -> Loop:
    """The registered loop that learns from replay. `inputs.config` is `ActorReplayConfig`."""
    return _from_inputs(inputs, replay=True)


def _from_inputs(inputs: LoopInputs, replay: bool) -> Loop:
    elsewhere = inputs.elsewhere
    if elsewhere is not None:
        elsewhere = dataclasses.replace(elsewhere, make=partial(collecting_elsewhere, elsewhere.make, replay))
    return make_actor_loop(training_from(inputs, replay), inputs.config, elsewhere)


def training_from(inputs: LoopInputs, replay: bool) -> OnlineTraining:
    """What an iteration is made of, from the inputs of the loop; with `replay`, it learns from a buffer."""
    config: ActorLearnerConfig | ActorReplayConfig = inputs.config
    return OnlineTraining(
        env=BatchedEnv(env=inputs.env, num_envs=config.num_envs // len(inputs.devices)),
        algorithm=inputs.algorithm,
        rollout_length=config.rollout_length,
        schedule_frames=config.schedule_frames or config.frames,
        shaping_frames=config.shaping_frames,
        replay_learning=make_learning(config, inputs.algorithm, len(inputs.devices)) if replay else None,  # type: ignore[arg-type]
        hooks=inputs.hooks,
        devices=inputs.devices,
    )


def collecting_for(training: OnlineTraining, config: ActorLearnerConfig | ActorReplayConfig) -> Collecting:
    """How the batches of a training are collected."""
    return Collecting(
        env=training.env.env,
        algorithm=training.algorithm,
        act_with=_act_with(training),
        num_envs=config.num_envs,
        rollout_length=config.rollout_length,
        stagger=config.stagger,
        replay=training.replay_learning is not None,
        device=acting_device(training.devices),
        num_workers=workers_of(config.actors),
    )


def collecting_elsewhere(make: Callable[[], LoopInputs], replay: bool) -> Collecting:
    """The same in another process, where `make` returns the inputs."""
    inputs = make()
    return collecting_for(training_from(inputs, replay), inputs.config)


def make_actor_loop(
    training: OnlineTraining,
    config: ActorLearnerConfig | ActorReplayConfig,
    elsewhere: Elsewhere | None = None,
) -> Loop:
    """The loop of a training whose batches are collected by actors; `elsewhere` makes its `Collecting` for others."""
    collecting = collecting_for(training, config)
    collectors = find_collectors(collecting, config.actors, elsewhere)
    parts = ActorTraining(
        training=training,
        actors=config.actors,
        make_collector=collectors.make,
        example_saved=partial(zeros_of, collectors.example_saved),
        # With a lag, actors are ahead of the learner, so their episodes are not those of its iteration.
        saves_episodes=config.actors.lag == 0 and bool(jax.eval_shape(collectors.example_saved)),
        acting_device=collecting.device,
    )
    loop = ActorLearner(parts)
    in_host = training.replay_learning is not None and training.replay_learning.replay.in_host
    shardings = state_shardings(training.devices, in_host)
    shardings = dataclasses.replace(shardings, actor=shardings.key)  # type: ignore[arg-type]
    saved = {name: part for name, part in state_parts(training.replay_learning).items() if name != "actor"}
    saved["clock"] = StatePart(label="clock", seed_axis={"key": 0, "iteration": None, "actor": 0})
    if parts.saves_episodes:
        saved[SIMULATORS] = StatePart(label="episodes", may_differ=True)
    return Loop(
        init=jax.jit(partial(init_state, training, collecting), out_shardings=shardings),
        advance=loop.advance,
        check=partial(check_learning, training, collecting),
        close=loop.close,
        learner=lambda state: state.learner,
        with_learner=lambda state, learner: dataclasses.replace(state, learner=learner),
        saved=loop.saved,
        restored=loop.restored,
        parts=saved,
        shardings=shardings,
        max_iterations=training.max_iterations,
        frames_per_iteration=training.frames_per_iteration,
        sizes=partial(state_sizes, collecting, training),
    )


def find_collectors(collecting: Collecting, actors: ActorsConfig, elsewhere: Elsewhere | None) -> Collectors:
    """Collectors on this machine or in a Ray cluster, as `actors` says."""
    if actors.where is Where.local:
        if simulator_of(collecting.env) is not None:
            check_workers(workers_of(actors))
        make = partial(make_collector, collecting, actors.step_seconds)
        return Collectors(make=make, example_saved=partial(example_saved, collecting))
    if elsewhere is None:
        raise ValueError("actors=ray is not possible: this loop does not say how to make its actors elsewhere")
    try:
        from covey.loops.ray_actors import ray_collectors
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise MissingExtra("actors=ray", "ray") from error
    return ray_collectors(collecting, actors, elsewhere)


def zeros_of(make: Callable[[], PyTree]) -> PyTree:
    """Zeros in the shapes of what `make` returns."""

    def zeros(leaf: jax.ShapeDtypeStruct) -> Array:
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jnp.broadcast_to(jax.random.key(0), leaf.shape)
        return jnp.zeros(leaf.shape, leaf.dtype)

    return jax.tree.map(zeros, jax.eval_shape(make))


def _act_with(training: OnlineTraining) -> Callable[[Array], Algorithm]:
    if not training.random_iterations:
        return lambda at_random: training.algorithm
    return lambda at_random: at_random_while(at_random, training.algorithm, training.env.spec)


def workers_of(actors: ActorsConfig) -> int:
    """The number of processes that step simulators on this machine."""
    return num_cores() if actors.num is None or actors.where is not Where.local else actors.num


def acting_device(devices: list[Any]) -> Any:
    """Where actors act: on CPUs, a device that does not learn, if there is one; else the learner's first device."""
    if devices[0].platform != "cpu":
        return devices[0]
    return next((device for device in jax.devices("cpu") if device not in devices), devices[0])


def init_state(training: OnlineTraining, collecting: Collecting, key: Key) -> TrainState:
    """The state before the first iteration, as in the online loop, but with a key that starts actors as its `actor`."""
    key_learner, key_actor, key_train = jax.random.split(key, 3)
    learner = training.algorithm.init(key_learner)
    buffer: PyTree = ()
    if training.replay_learning is not None:
        shapes, _ = jax.eval_shape(partial(example_batch, collecting), learner)
        num_envs = training.env.num_envs  # of a device
        first = jax.tree.map(lambda x: jnp.zeros((num_envs, *x.shape[2:]), x.dtype), shapes.transitions)
        start = training.over_devices(
            lambda: add_device_axis(training.replay_learning.replay.init(first)),  # type: ignore[union-attr]
            in_specs=(),
            out_specs=P(DEVICE_AXIS),
        )
        buffer = start()
    iteration = jnp.zeros((), jnp.int32)
    return TrainState(
        learner=learner,
        actor=key_actor,
        key=key_train,
        iteration=iteration,
        buffer=buffer,
    )


def check_learning(training: OnlineTraining, collecting: Collecting, state: PyTree) -> None:
    """Traces collecting and learning without compiling, which finds shapes that do not fit together."""
    batch, _ = jax.eval_shape(partial(example_batch, collecting), state.learner)
    learn = training.over_devices(
        partial(learn_from_collected, training), in_specs=(ACTOR_PLACES, BATCH_PLACES), out_specs=(ACTOR_PLACES, P())
    )
    jax.eval_shape(learn, state, batch)


def state_sizes(collecting: Collecting, training: OnlineTraining, state: TrainState) -> Sizes:
    """The memory of a rollout and of the buffer."""
    batch, _ = jax.eval_shape(partial(example_batch, collecting), state.learner)
    return Sizes(
        held={"a rollout": num_bytes(batch.transitions)},
        held_by=("num_envs", "rollout_length"),
        stored=num_bytes(state.buffer),
        stored_by="buffer.size",
        stored_in_host=training.replay_learning is not None and training.replay_learning.replay.in_host,
    )
