"""The collecting loops, `online` and `replay`: collect, learn, repeat, compiled in chunks of iterations.

    train_state = init(key)
    train_state, metrics = advance(train_state, num_iterations)

A chunk is one compiled program for any number of iterations, because that number is a traced argument. So it does not
matter how the host splits training into chunks: results are equal to the bit, and nothing is compiled again. Every key
is derived from the seed and the iteration's number, so there is no stream of random numbers to lose.

In `online`, learning is one update from what was just collected. In `replay`, that is added to a buffer, followed by
several updates from samples. `update` does not know the difference.

Several devices: the environments are split over them, the learner is replicated, and gradients and statistics are
averaged. Each leaf of `actor` and `buffer` has a leading axis of devices.

Several seeds in one program (`together`), which is fast on accelerators: each leaf of a train state has an axis of
seeds, before all axes but that of devices. Only the iteration has none, because all seeds share it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from covey.algorithms.base import Hooks
from covey.algorithms.random import make_random_team
from covey.algorithms.seats import learned_part, played_by_team, select, taken_groups, with_learned_part
from covey.data.replay import HOST_PART
from covey.envs.base import Env
from covey.envs.batch import BatchedEnv
from covey.loops.base import DEVICE_AXIS, Loop, LoopInputs, Sizes, StatePart, num_bytes, repeat
from covey.loops.config import CollectingConfig
from covey.loops.learning import ReplayLearning, learn_from, make_learning, updates_due
from covey.loops.rollout import Actor, EpisodeSums, collect, episode_means, init_actor, unroll
from covey.metrics import UPDATES, scored_groups
from covey.ops.devices import mean_over_devices, sum_over_devices
from covey.ops.seeds import any_seed, least_of_seeds
from covey.types import Algorithm, Array, Batch, EnvSpec, Key, PyTree, TimeStep, pytree


@pytree
class TrainState:
    """Everything that training needs to continue: equal states continue equally, to the bit."""

    learner: PyTree
    actor: Actor
    key: Key
    iteration: Array
    buffer: PyTree = ()


SEED_AXES = TrainState(learner=0, actor=0, key=0, iteration=None, buffer=0)  # type: ignore[arg-type]
_SPECS: Any = {"learner": P(), "actor": P(DEVICE_AXIS), "key": P(), "iteration": P(), "buffer": P(DEVICE_AXIS)}
PLACES = TrainState(**_SPECS)  # what is split over the devices, and what each of them has


@dataclasses.dataclass(frozen=True, kw_only=True)
class OnlineTraining:
    """What an iteration is made of. The functions below take it first; nothing in it changes while training.

    env               the environments of one device
    rollout_length    steps that each of them takes in an iteration
    schedule_frames   frames over which schedules run, from `progress` 0 to 1
    shaping_frames    frames over which a task's shaping reward falls to zero; None: it stays
    replay_learning   how to learn from replay; None: on-policy, one update from what the iteration collected
    together          several seeds train in one program
    max_iterations    the most that one call of `advance` can do
    """

    env: BatchedEnv
    algorithm: Algorithm
    rollout_length: int
    schedule_frames: int
    shaping_frames: int | None = None
    replay_learning: ReplayLearning | None = None
    hooks: Hooks = Hooks()
    devices: list[Any]
    together: bool = False
    max_iterations: int = 32

    @property
    def frames_per_iteration(self) -> int:
        """Counted on the host: numbers of frames overflow on a device."""
        return self.env.num_envs * len(self.devices) * self.rollout_length

    @property
    def random_iterations(self) -> int:
        """Iterations at the start in which agents act at random."""
        learning = self.replay_learning
        return 0 if learning is None else math.ceil(learning.random_frames / self.frames_per_iteration)

    @property
    def axis(self) -> str | None:
        """The name of the axis over devices; None if there is one device."""
        return DEVICE_AXIS if len(self.devices) > 1 else None

    @property
    def each_seed(self) -> Callable[..., Callable[..., Any]]:
        """`jax.vmap` if several seeds train in one program; otherwise a function that returns its argument."""
        return jax.vmap if self.together else _for_one_seed

    def device_key(self, key: Key) -> Key:
        """A different key on each device."""
        return jax.random.fold_in(key, jax.lax.axis_index(self.axis)) if self.axis else key

    def over_devices(self, function: Callable[..., Any], in_specs: Any, out_specs: Any) -> Callable[..., Any]:
        """`function` on every device at once; with one device, `function` itself."""
        if self.axis is None:
            return function
        mesh = Mesh(self.devices, (DEVICE_AXIS,))
        return jax.shard_map(function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)


def make_online_loop(
    env: Env,
    algorithm: Algorithm,
    *,
    num_envs: int,
    rollout_length: int,
    schedule_frames: int,
    shaping_frames: int | None = None,
    stagger: bool = False,
    replay_learning: ReplayLearning | None = None,
    hooks: Hooks = Hooks(),
    devices: list[Any] | None = None,
    together: bool = False,
    compile_steps: bool = False,
    max_iterations: int = 32,
) -> Loop:
    """`algorithm` must have been made with `device_axis=DEVICE_AXIS` where there are several `devices`.

    Without `replay_learning` it is on-policy: each iteration updates once, from what it collected. `compile_steps`
    compiles the environments' steps even under `jax.disable_jit`.
    """
    devices = devices or jax.devices()[:1]
    if num_envs % len(devices):
        raise ValueError(f"num_envs {num_envs} does not split over {len(devices)} devices")
    training = OnlineTraining(
        env=BatchedEnv(env=env, num_envs=num_envs // len(devices), stagger=stagger, compile_steps=compile_steps),
        algorithm=algorithm,
        rollout_length=rollout_length,
        schedule_frames=schedule_frames,
        shaping_frames=shaping_frames,
        replay_learning=replay_learning,
        hooks=hooks,
        devices=devices,
        together=together,
        max_iterations=max_iterations,
    )
    chunk = training.over_devices(partial(advance, training), in_specs=(PLACES, P()), out_specs=(PLACES, P()))
    timed = training.over_devices(
        partial(collect_only, training), in_specs=(PLACES,), out_specs=(PLACES, P(DEVICE_AXIS))
    )
    shardings = state_shardings(devices, replay_learning is not None and replay_learning.replay.in_host)
    parts = state_parts(replay_learning)
    return Loop(
        init=jax.jit(partial(init_state, training), out_shardings=shardings),
        advance=jax.jit(chunk, donate_argnums=0),
        learner=lambda state: state.learner,
        with_learner=lambda state, learner: dataclasses.replace(state, learner=learner),
        saved=partial(saved_parts, parts=parts),
        restored=restored_state,
        parts=parts,
        shardings=shardings,
        max_iterations=max_iterations,
        frames_per_iteration=training.frames_per_iteration,
        sizes=partial(state_sizes, num_envs=num_envs, rollout_length=rollout_length, replay_learning=replay_learning),
        collect=jax.jit(timed),
    )


# ----------------------------------------------------------------------------------------------------- an iteration


def collect_batch(training: OnlineTraining, state: TrainState, key: Key) -> tuple[Actor, Batch, EpisodeSums]:
    """Steps the environments; returns the actor afterwards, what to learn from, and the episodes that ended."""
    env, algorithm, num_steps = training.env, training.algorithm, training.rollout_length
    acting = algorithm.acting(state.learner)
    if training.replay_learning is None:  # on-policy
        return collect(env, algorithm, acting, state.actor, key, num_steps)
    if training.random_iterations:
        algorithm = at_random_while(state.iteration < training.random_iterations, algorithm, env.spec)
    actor, transitions, sums = unroll(env, algorithm, acting, state.actor, key, num_steps)
    return actor, Batch(transitions=transitions), sums


def learn(
    training: OnlineTraining, state: TrainState, batch: Batch, key: Key, progress: Array
) -> tuple[PyTree, PyTree, dict[str, Array]]:
    """Updates from what was collected, or puts it into the buffer and updates from that: learner, buffer, metrics.

    With replay, the metrics of updates are NaN in an iteration that makes none.
    """
    algorithm, learning = training.algorithm, training.replay_learning
    if learning is None:  # on-policy
        learner, metrics, _ = algorithm.update(state.learner, batch, key, progress)
        return learner, state.buffer, metrics
    replay, done = learning.replay, state.iteration + 1
    buffer = replay.add(state.buffer, batch.transitions)
    ready = replay.can_sample(buffer) & (done >= training.random_iterations)
    num_updates = updates_due(learning, replay.held(buffer), done * training.rollout_length, done)
    rounds = jnp.where(any_seed(ready), least_of_seeds(num_updates), 0)
    learner, buffer, metrics = learn_from(replay, algorithm, state.learner, buffer, key, progress, rounds)
    return learner, buffer, metrics | {UPDATES: rounds.astype(jnp.float32)}


def iterate(training: OnlineTraining, state: TrainState) -> tuple[TrainState, dict[str, Array]]:
    """One iteration of one seed, on each device: collect, learn, and the metrics of both."""
    key_collect, key_update = iteration_keys(training, state)
    actor, batch, sums = collect_batch(training, state, key_collect)
    state, metrics = learn_iteration(training, dataclasses.replace(state, actor=actor), batch, key_update)
    metrics |= collection_metrics(training, sum_over_devices(sums, training.axis))
    return state, hook_metrics(training, metrics)


def hook_metrics(training: OnlineTraining, metrics: dict[str, Array]) -> dict[str, Array]:
    """An iteration's metrics as the user's hook leaves them; the host needs the number of updates."""
    if not training.hooks.metrics:
        return metrics
    counted = {UPDATES: metrics[UPDATES]} if UPDATES in metrics else {}
    return training.hooks.metrics(metrics) | counted


def iteration_keys(training: OnlineTraining, state: TrainState) -> tuple[Key, Key]:
    """The keys of an iteration's two halves: collecting and updating."""
    key_iteration = jax.random.fold_in(state.key, state.iteration)
    key_collect, key_update = jax.random.split(training.device_key(key_iteration))
    return key_collect, key_update


def learn_iteration(
    training: OnlineTraining, state: TrainState, batch: Batch, key: Key
) -> tuple[TrainState, dict[str, Array]]:
    """The second half of an iteration, on each device: learns from what was collected, and counts the iteration."""
    batch = add_shaping(batch, shaping_factor(training, state.iteration))
    progress = state.iteration * (training.frames_per_iteration / training.schedule_frames)
    learner, buffer, metrics = learn(training, state, batch, key, progress)
    state = dataclasses.replace(state, learner=learner, iteration=state.iteration + 1, buffer=buffer)
    return state, mean_over_devices(metrics, training.axis)


def collection_metrics(training: OnlineTraining, sums: EpisodeSums) -> dict[str, Array]:
    """Means over the episodes that ended on all devices, by the names of metrics."""
    spec = training.env.spec
    means = episode_means(sums, scored_groups(spec.cooperating, taken_groups(training.algorithm, spec)))
    return {f"collection/{name}": value for name, value in means.items()}


def shaping_factor(training: OnlineTraining, iteration: Array) -> Array:
    """The share of a task's shaping reward that is left in an iteration."""
    per_iteration = training.frames_per_iteration / training.shaping_frames if training.shaping_frames else 0.0
    return jnp.maximum(0.0, 1.0 - iteration * per_iteration)


def advance(training: OnlineTraining, state: TrainState, num_iterations: Array) -> tuple[TrainState, dict[str, Array]]:
    """`num_iterations` of all seeds, on each device."""
    each = training.each_seed(partial(iterate, training), in_axes=(SEED_AXES,), out_axes=(SEED_AXES, 0))
    state, history = repeat(each, without_device_axis(state), num_iterations, training.max_iterations)
    return with_device_axis(state), history


def collect_only(training: OnlineTraining, state: TrainState) -> tuple[TrainState, Array]:
    """Collection alone, to time it, with a checksum of all that updates read."""

    def collect_one(state: TrainState) -> tuple[Actor, Array]:
        actor, batch, sums = collect_batch(training, state, training.device_key(state.key))
        # Everything that updates read goes into an output: otherwise the compiler would remove the work to be timed.
        read = [
            (part.observation, part.state, part.extras, part.reward, part.last) for part in batch.transitions.values()
        ]
        checksum = sum(jnp.sum(leaf, dtype=jnp.float32) for leaf in jax.tree.leaves((read, sums)))
        return actor, jnp.asarray(checksum)

    state = without_device_axis(state)
    actor, checksum = training.each_seed(collect_one, in_axes=(SEED_AXES,))(state)
    return with_device_axis(dataclasses.replace(state, actor=actor)), checksum[None]


# --------------------------------------------------------------------------------------------------------- the state


def init_state(training: OnlineTraining, key: Key) -> TrainState:
    """The state before the first iteration, of one seed or of several; the learner is the same on all devices."""
    each_seed = training.each_seed

    def init_on_device(learner: PyTree, key_actor: Key, key_train: Key) -> tuple[Actor, PyTree]:
        actor = each_seed(partial(init_actors, training))(key_actor)
        buffer = each_seed(partial(init_buffer, training))(learner, actor, key_train)
        return add_device_axis(actor), add_device_axis(buffer)

    key_learner, key_actor, key_train = jnp.moveaxis(each_seed(partial(jax.random.split, num=3))(key), -1, 0)
    learner = each_seed(training.algorithm.init)(key_learner)
    start = training.over_devices(init_on_device, in_specs=(P(), P(), P()), out_specs=P(DEVICE_AXIS))
    actor, buffer = start(learner, key_actor, key_train)
    iteration = jnp.zeros((), jnp.int32)
    return TrainState(learner=learner, actor=actor, key=key_train, iteration=iteration, buffer=buffer)


def init_actors(training: OnlineTraining, key: Key) -> Actor:
    """The environments of one device at the beginning of an episode."""
    return init_actor(training.env, training.algorithm, training.device_key(key))


def init_buffer(training: OnlineTraining, learner: PyTree, actor: Actor, key: Key) -> PyTree:
    """An empty buffer; what it will store is known from the shapes of one step."""
    if training.replay_learning is None:
        return ()
    one_step = partial(unroll, training.env, training.algorithm, num_steps=1)
    _, step, _ = jax.eval_shape(one_step, training.algorithm.acting(learner), actor, key)
    example = jax.tree.map(lambda x: jnp.zeros(x.shape[1:], x.dtype), step)
    return training.replay_learning.replay.init(example)


# -------------------------------------------------------------------------------------------------- registered loops


def build_online_loop(inputs: LoopInputs) -> Loop:
    """The registered loop: an iteration updates once, from what it collected. `inputs.config` is `OnlineConfig`."""
    return _from_inputs(inputs, None)


def build_replay_loop(inputs: LoopInputs) -> Loop:
    """The registered loop that learns from replay. `inputs.config` is `ReplayConfig`."""
    return _from_inputs(inputs, make_learning(inputs.config, inputs.algorithm, len(inputs.devices)))


def _from_inputs(inputs: LoopInputs, replay_learning: ReplayLearning | None) -> Loop:
    config: CollectingConfig = inputs.config
    return make_online_loop(
        inputs.env,
        inputs.algorithm,
        num_envs=config.num_envs,
        rollout_length=config.rollout_length,
        schedule_frames=config.schedule_frames or config.frames,
        shaping_frames=config.shaping_frames,
        stagger=config.stagger,
        replay_learning=replay_learning,
        hooks=inputs.hooks,
        devices=inputs.devices,
        together=inputs.num_seeds > 1,
        compile_steps=inputs.compile_steps,
    )


def state_sizes(state: TrainState, num_envs: int, rollout_length: int, replay_learning: ReplayLearning | None) -> Sizes:
    """The memory of environments, a rollout and the buffer. A rollout's step counts as what the environments show."""
    actor = state.actor
    return Sizes(
        held={"environments": num_bytes(actor), "a rollout": num_bytes(actor.timestep) * rollout_length},
        held_by=("num_envs", "rollout_length"),
        environment=num_bytes((actor.env.env, actor.timestep, actor.carry)) / num_envs,
        stored=num_bytes(state.buffer),
        stored_by="buffer.size",
        stored_in_host=replay_learning is not None and replay_learning.replay.in_host,
    )


def state_parts(replay_learning: ReplayLearning | None) -> dict[str, StatePart]:
    """What a train state is saved as. The axis of devices comes before that of seeds; all seeds share the iteration."""
    parts = {
        "learner": StatePart(label="learner"),
        "actor": StatePart(label="environments", seed_axis=1, by_device=True),
        "clock": StatePart(label="clock", seed_axis={"key": 0, "iteration": None}),
    }
    if replay_learning is not None:
        left_out = (
            None
            if replay_learning.in_checkpoints
            else "the buffer was left out of checkpoints: there are fewer updates until it is filled again, "
            "and results will not be equal to the bit"
        )
        parts["buffer"] = StatePart(label="buffer", seed_axis=1, by_device=True, left_out=left_out)
    return parts


def saved_parts(state: TrainState, parts: Mapping[str, StatePart]) -> dict[str, PyTree]:
    """The parts of a train state that checkpoints hold."""
    clock = {"key": state.key, "iteration": state.iteration}
    learner = learned_part(state.learner)  # partners are stored once, with the run
    trees = {"learner": learner, "actor": state.actor, "clock": clock, "buffer": state.buffer}
    return {name: trees[name] for name, part in parts.items() if part.left_out is None}


def restored_state(state: TrainState, trees: Mapping[str, PyTree]) -> TrainState:
    """`state` with the saved parts in `trees`."""
    changes = {name: tree for name, tree in trees.items() if name != "clock"}
    if "learner" in changes:
        changes["learner"] = with_learned_part(state.learner, changes["learner"])
    return dataclasses.replace(state, **changes, **trees.get("clock", {}))


def at_random_while(condition: Array, algorithm: Algorithm, spec: EnvSpec) -> Algorithm:
    """`algorithm`, with random actions instead of its own while `condition` holds; partners act as usual."""
    random_team = make_random_team(spec)

    def act(
        acting: PyTree, timestep: TimeStep, carry: PyTree, key: Key, explore: bool
    ) -> tuple[PyTree, PyTree, PyTree]:
        key_own, key_random = jax.random.split(key)
        actions, extras, carry = algorithm.act(acting, timestep, carry, key_own, explore)
        drawn, _, _ = random_team.act((), timestep, (), key_random, explore)
        own = played_by_team(extras)
        chosen = {
            group: select(condition & own[group] if group in own else condition, drawn[group], action)
            for group, action in actions.items()
        }
        return chosen, extras, carry

    return dataclasses.replace(algorithm, act=act)


def add_shaping(batch: Batch, factor: Array) -> Batch:
    """The batch with `factor` times the task's shaping, if it has one, added to its rewards."""
    transitions = {
        group: part if part.shaping is None else dataclasses.replace(part, reward=part.reward + factor * part.shaping)
        for group, part in batch.transitions.items()
    }
    return dataclasses.replace(batch, transitions=transitions)


def state_shardings(devices: list[Any], buffer_in_host: bool) -> TrainState:
    """Where a train state lives: actor and buffer split over the devices, the rest on each of them."""
    mesh = Mesh(devices, (DEVICE_AXIS,))
    everywhere, split = NamedSharding(mesh, P()), NamedSharding(mesh, P(DEVICE_AXIS))
    buffer: Any = split
    if buffer_in_host:
        buffer = {"buffer": split, HOST_PART: split.with_memory_kind("pinned_host")}
    places = {"learner": everywhere, "actor": split, "key": everywhere, "iteration": everywhere, "buffer": buffer}
    return TrainState(**places)


def _for_one_seed(function: Callable[..., Any], in_axes: Any = 0, out_axes: Any = 0) -> Callable[..., Any]:
    """In place of `jax.vmap` where there is one seed: `function` itself."""
    return function


def with_device_axis(state: TrainState) -> TrainState:
    """`state` with an axis over devices in the parts that are split over them."""
    return dataclasses.replace(state, actor=add_device_axis(state.actor), buffer=add_device_axis(state.buffer))


def without_device_axis(state: TrainState) -> TrainState:
    """The inverse of `with_device_axis`, inside one device's program."""
    return dataclasses.replace(state, actor=drop_device_axis(state.actor), buffer=drop_device_axis(state.buffer))


def add_device_axis(tree: PyTree) -> PyTree:
    """An axis of length 1 in front of every leaf, along which `shard_map` joins the devices."""
    return jax.tree.map(lambda leaf: leaf[None], tree)


def drop_device_axis(tree: PyTree) -> PyTree:
    """The inverse of `add_device_axis`."""
    return jax.tree.map(lambda leaf: leaf[0], tree)
