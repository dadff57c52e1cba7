"""The online loop: collect, learn, repeat, compiled in chunks of iterations.

    train_state = init(key)
    train_state, metrics = advance(train_state, num_iterations)

A chunk is one compiled program whatever its number of iterations, which is a traced argument; how the host partitions
training into chunks therefore changes neither bits nor compiles anything again. Every key is derived from the seed and
the iteration's number, so there is no stream of randomness to lose.

To learn is to update once from what was just collected, or, with a replay buffer, to add it to the buffer and update
several times from samples of it. `update` does not know the difference.

Several devices: the environments are split over them, the learner is replicated, and gradients and statistics are
averaged. Each leaf of `actor` and `buffer` has a leading axis of devices.

Several seeds in one program (`together`), which accelerators are fast with: each leaf of a train state has an axis of
seeds before all others but that of devices. The iteration has none: they share it.
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
from covey.data.replay import HOST_PART, Replay
from covey.envs.base import Env
from covey.envs.batch import BatchedEnv
from covey.loops.base import Loop, StatePart
from covey.loops.rollout import Actor, collect, episode_means, init_actor, unroll
from covey.metrics import scored_groups
from covey.ops.devices import mean_over_devices, sum_over_devices
from covey.ops.random import unrolled
from covey.ops.seeds import any_seed, least_of_seeds
from covey.types import Algorithm, Array, Batch, EnvSpec, Key, PyTree, TimeStep, pytree

DEVICE_AXIS = "devices"


@pytree
class TrainState:
    """All that training needs to go on: equal states continue equally, to the bit."""

    learner: PyTree
    actor: Actor
    key: Key
    iteration: Array
    buffer: PyTree = ()


SEED_AXES = TrainState(learner=0, actor=0, key=0, iteration=None, buffer=0)  # type: ignore[arg-type]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Learning:
    """Learning from replay: how often in an iteration, and for how many frames agents act at random before."""

    replay: Replay
    num_updates: int
    random_frames: int
    in_checkpoints: bool = True  # whether checkpoints hold the buffer


def make_online_loop(
    env: Env,
    algorithm: Algorithm,
    *,
    num_envs: int,
    rollout_length: int,
    schedule_frames: int,
    shaping_frames: int | None = None,
    stagger: bool = False,
    learning: Learning | None = None,
    hooks: Hooks = Hooks(),
    devices: list[Any] | None = None,
    together: bool = False,
    compile_steps: bool = False,
    max_iterations: int = 32,
) -> Loop:
    """`algorithm` must have been made with `device_axis=DEVICE_AXIS` where there are several `devices`.

    Without `learning`, each iteration updates once, from what it collected. `compile_steps` compiles the environments'
    steps even under `jax.disable_jit`.
    """
    devices = devices or jax.devices()[:1]
    each_seed = jax.vmap if together else _as_it_is
    batched = BatchedEnv(env=env, num_envs=num_envs // len(devices), stagger=stagger, compile_steps=compile_steps)
    frames_per_iteration = num_envs * rollout_length  # numbers of frames are not computed on the device: they overflow
    random_iterations = math.ceil(learning.random_frames / frames_per_iteration) if learning else 0
    axis = DEVICE_AXIS if len(devices) > 1 else None

    def device_key(key: Key) -> Key:
        return jax.random.fold_in(key, jax.lax.axis_index(axis)) if axis else key

    def collect_batch(state: TrainState, key: Key) -> tuple[Actor, Batch, PyTree]:
        acting = algorithm.acting(state.learner)
        if learning is None:
            return collect(batched, algorithm, acting, state.actor, key, rollout_length)
        still_random = state.iteration < random_iterations
        explorer = at_random_while(still_random, algorithm, env.spec) if random_iterations else algorithm
        actor, transitions, sums = unroll(batched, explorer, acting, state.actor, key, rollout_length)
        return actor, Batch(transitions=transitions), sums

    def learn(state: TrainState, batch: Batch, key: Key, progress: Array) -> tuple[PyTree, PyTree, dict[str, Array]]:
        """The learner, the buffer and metrics."""
        if learning is None:
            learner, metrics, _ = algorithm.update(state.learner, batch, key, progress)
            return learner, state.buffer, metrics
        buffer = learning.replay.add(state.buffer, batch.transitions)
        ready = learning.replay.can_sample(buffer) & (state.iteration + 1 >= random_iterations)
        collected = (state.iteration + 1) * rollout_length
        num_updates = updates_due(learning, learning.replay.held(buffer), collected, state.iteration + 1)
        rounds = jnp.where(any_seed(ready), least_of_seeds(num_updates), 0)
        return learn_from_replay(algorithm, learning, state.learner, buffer, key, progress, rounds)

    def iterate(state: TrainState) -> tuple[TrainState, dict[str, Array]]:
        """One iteration of one seed, on each device."""
        key_iteration = jax.random.fold_in(state.key, state.iteration)
        key_collect, key_update = jax.random.split(device_key(key_iteration))
        actor, batch, sums = collect_batch(state, key_collect)
        shaped = state.iteration * (frames_per_iteration / shaping_frames) if shaping_frames else 0.0
        batch = add_shaping(batch, jnp.maximum(0.0, 1.0 - shaped))
        progress = state.iteration * (frames_per_iteration / schedule_frames)
        learner, buffer, metrics = learn(state, batch, key_update, progress)
        sums, metrics = sum_over_devices(sums, axis), mean_over_devices(metrics, axis)
        means = episode_means(sums, scored_groups(env.spec.cooperating, taken_groups(algorithm, env.spec)))
        metrics = metrics | {f"collection/{name}": value for name, value in means.items()}
        if hooks.metrics:
            metrics = hooks.metrics(metrics)
        state = TrainState(learner=learner, actor=actor, key=state.key, iteration=state.iteration + 1, buffer=buffer)
        return state, metrics

    def chunk(state: TrainState, num_iterations: Array) -> tuple[TrainState, dict[str, Array]]:
        state = without_device_axis(state)
        # Jitted, so that it is traced once for its shapes and its body; `inline` leaves the program as it is.
        iterate_all = jax.jit(each_seed(iterate, in_axes=(SEED_AXES,), out_axes=(SEED_AXES, 0)), inline=True)
        with jax.disable_jit(False):  # with `jit=false`, loops would be traced round by round for their shapes alone
            shapes = jax.eval_shape(iterate_all, state)[1]
        empty = jax.tree.map(lambda x: jnp.full((max_iterations, *x.shape), jnp.nan, x.dtype), shapes)

        def body(i: Array, loop: tuple[TrainState, dict[str, Array]]) -> tuple[TrainState, dict[str, Array]]:
            state, history = loop
            state, metrics = iterate_all(state)
            # By slices: a scatter takes ten times as long to compile.
            written = jax.tree.map(lambda h, x: jax.lax.dynamic_update_index_in_dim(h, x, i, 0), history, metrics)
            return state, written

        state, history = jax.lax.fori_loop(0, num_iterations, body, (state, empty))
        return with_device_axis(state), history

    def collect_one(state: TrainState) -> tuple[Actor, Array]:
        actor, batch, sums = collect_batch(state, device_key(state.key))
        # Everything that updates read goes into an output, or the compiler would drop the work that is to be timed.
        read = [
            (part.observation, part.state, part.extras, part.reward, part.last) for part in batch.transitions.values()
        ]
        checksum = sum(jnp.sum(leaf, dtype=jnp.float32) for leaf in jax.tree.leaves((read, sums)))
        return actor, jnp.asarray(checksum)

    def collect_only(state: TrainState) -> tuple[TrainState, Array]:
        state = without_device_axis(state)
        actor, checksum = each_seed(collect_one, in_axes=(SEED_AXES,))(state)
        return with_device_axis(dataclasses.replace(state, actor=actor)), checksum[None]

    over_devices = partial(_over_devices, devices=devices)
    specs = {"learner": P(), "actor": P(DEVICE_AXIS), "key": P(), "iteration": P(), "buffer": P(DEVICE_AXIS)}
    state_specs = TrainState(**specs)  # type: ignore[arg-type]

    def init_actors(key: Key) -> Actor:
        return init_actor(batched, algorithm, device_key(key))

    def init_buffers(learner: PyTree, actor: Actor, key: Key) -> PyTree:
        """Empty; what is stored is known from one step."""
        if learning is None:
            return ()
        one_step = partial(unroll, batched, algorithm, num_steps=1)
        _, step, _ = jax.eval_shape(one_step, algorithm.acting(learner), actor, key)
        example = jax.tree.map(lambda x: jnp.zeros(x.shape[1:], x.dtype), step)
        return learning.replay.init(example)

    def init_on_device(learner: PyTree, key_actor: Key, key_train: Key) -> tuple[Actor, PyTree]:
        actor = each_seed(init_actors)(key_actor)
        return add_device_axis((actor, each_seed(init_buffers)(learner, actor, key_train)))

    def init(key: Key) -> TrainState:
        key_learner, key_actor, key_train = jnp.moveaxis(each_seed(partial(jax.random.split, num=3))(key), -1, 0)
        learner = each_seed(algorithm.init)(key_learner)
        start = over_devices(init_on_device, in_specs=(P(), P(), P()), out_specs=P(DEVICE_AXIS))
        actor, buffer = start(learner, key_actor, key_train)
        iteration = jnp.zeros((), jnp.int32)
        return TrainState(learner=learner, actor=actor, key=key_train, iteration=iteration, buffer=buffer)

    chunk_over_devices = over_devices(chunk, in_specs=(state_specs, P()), out_specs=(state_specs, P()))
    collect_over_devices = over_devices(collect_only, in_specs=(state_specs,), out_specs=(state_specs, P(DEVICE_AXIS)))
    shardings = state_shardings(devices, learning is not None and learning.replay.in_host)
    parts = state_parts(learning)
    return Loop(
        init=jax.jit(init, out_shardings=shardings),
        advance=jax.jit(chunk_over_devices, donate_argnums=0),
        learner=lambda state: state.learner,
        with_learner=lambda state, learner: dataclasses.replace(state, learner=learner),
        saved=partial(saved_parts, parts=parts),
        restored=restored_state,
        parts=parts,
        shardings=shardings,
        max_iterations=max_iterations,
        frames_per_iteration=frames_per_iteration,
        collect=jax.jit(collect_over_devices),
    )


def state_parts(learning: Learning | None) -> dict[str, StatePart]:
    """What a train state is saved as. The axis of devices is before that of seeds; the iteration is everybody's."""
    parts = {
        "learner": StatePart(label="learner"),
        "actor": StatePart(label="environments", seed_axis=1, by_device=True),
        "clock": StatePart(label="clock", seed_axis={"key": 0, "iteration": None}),
    }
    if learning is not None:
        left_out = (
            None
            if learning.in_checkpoints
            else "the buffer was left out of checkpoints: updates come less often until it is filled again, "
            "and the bits will differ"
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
    """`state` with the saved parts that there are."""
    changes = {name: tree for name, tree in trees.items() if name != "clock"}
    if "learner" in changes:
        changes["learner"] = with_learned_part(state.learner, changes["learner"])
    return dataclasses.replace(state, **changes, **trees.get("clock", {}))


def updates_due(learning: Learning, held: Array, collected: Array, number: Array | int = 0) -> Array:
    """How many updates iteration `number` makes, when each environment has `collected` steps, `held` in the buffer.

    All of them, except after a resume without the buffer. Then it is the share of what the buffer would hold that it
    holds, so that each stored step is sampled as often as in a full buffer. At the full rate, a trained network would
    fit the first few steps hundreds of times over. Where that is less than one update, it is one every few iterations:
    with `updates=1`, rounding alone would learn nothing until half of the buffer is filled.
    """
    # Timing starts at negative iterations, with nothing `collected` yet: never more than all updates.
    share = jnp.minimum(1.0, held / jnp.clip(collected, 1, learning.replay.length))
    due = learning.num_updates * share
    interval = jnp.ceil(1.0 / due).astype(jnp.int32)
    whole = jnp.round(due).astype(jnp.int32)
    return jnp.where(whole > 0, whole, ((number + 1) % interval == 0).astype(jnp.int32))


def learn_from_replay(
    algorithm: Algorithm, learning: Learning, learner: PyTree, buffer: PyTree, key: Key, progress: Array, rounds: Array
) -> tuple[PyTree, PyTree, dict[str, Array]]:
    """`rounds` samples and updates, and the means of their metrics; without any, metrics are zero.

    None is a loop of no rounds and no branch: a branch would copy the buffer, which may be most of the memory.
    """
    replay = learning.replay

    def update(learner: PyTree, buffer: PyTree, key: Key) -> tuple[PyTree, PyTree, dict[str, Array]]:
        key_sample, key_update = jax.random.split(key)
        sample = replay.sample(buffer, unrolled(key_sample))
        learner, metrics, by_group = algorithm.update(learner, sample.batch, key_update, progress)
        priorities = sum(by_group.values()) / len(by_group)
        return learner, replay.set_priorities(buffer, sample, priorities), metrics

    def body(i: Array, state: tuple[PyTree, PyTree, dict[str, Array]]) -> tuple[PyTree, PyTree, dict[str, Array]]:
        learner, buffer, sums = state
        learner, buffer, metrics = update(learner, buffer, jax.random.fold_in(key, i))
        return learner, buffer, jax.tree.map(jnp.add, sums, metrics)

    shapes = jax.eval_shape(update, learner, buffer, key)[2]
    sums = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    learner, buffer, sums = jax.lax.fori_loop(0, rounds, body, (learner, buffer, sums))
    return learner, buffer, jax.tree.map(lambda x: x / jnp.maximum(rounds, 1), sums)


def at_random_while(condition: Array, algorithm: Algorithm, spec: EnvSpec) -> Algorithm:
    """`algorithm`, with random actions instead of its own while `condition` holds; partners act as they do."""
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
    """The batch with `factor` of the tasks' shaping, where they have one, in its rewards."""
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
    return TrainState(**places)  # type: ignore[arg-type]


def _over_devices(function: Callable, *, devices: list[Any], in_specs: Any, out_specs: Any) -> Callable:
    """`function` on every device at once; with one device, as it is."""
    if len(devices) == 1:
        return function
    mesh = Mesh(devices, (DEVICE_AXIS,))
    return jax.shard_map(function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)


def _as_it_is(function: Callable, in_axes: Any = 0, out_axes: Any = 0) -> Callable:
    """For one seed, what `jax.vmap` is for several."""
    return function


def with_device_axis(state: TrainState) -> TrainState:
    return dataclasses.replace(state, actor=add_device_axis(state.actor), buffer=add_device_axis(state.buffer))


def without_device_axis(state: TrainState) -> TrainState:
    return dataclasses.replace(state, actor=drop_device_axis(state.actor), buffer=drop_device_axis(state.buffer))


def add_device_axis(tree: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf: leaf[None], tree)


def drop_device_axis(tree: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf: leaf[0], tree)
