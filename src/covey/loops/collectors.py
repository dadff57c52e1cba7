"""How actors collect a batch: in a pool of simulators, or in compiled environments.

A collector is used by one thread. It knows no learner: it is given what to act with (`Algorithm.acting`), and gives
batches as the online loop's `collect` does.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from covey.algorithms.seats import learned_carry, played_by_team
from covey.envs.base import Env
from covey.envs.batch import BatchedEnv, Episodes, add_step, init_episodes, restart_episodes, score_played
from covey.envs.host import layout
from covey.envs.host.env import simulator_of
from covey.envs.host.pool import Answer, Pool, as_timestep, describe, half_sizes, saved_episodes
from covey.envs.host.simulator import Source
from covey.loops.rollout import Actor, EpisodeSums, collect, init_actor, make_transition, sum_ended, unroll
from covey.types import Algorithm, Array, Batch, Key, PyTree, TimeStep, Transition, pytree

ActWith = Callable[[Array], Algorithm]  # the algorithm that acts, while a flag says that it acts at random


@dataclasses.dataclass(frozen=True, kw_only=True)
class Collected:
    """A batch and the episodes that ended in it.

    restarts, dropped_episodes    processes that were replaced meanwhile, and the episodes that were lost with them
    """

    batch: Batch
    sums: EpisodeSums
    restarts: int = 0
    dropped_episodes: int = 0


class Collector(Protocol):
    """Collects one batch after another. All that is random follows from `key`."""

    def begin(self, key: Key) -> None:
        """Starts new episodes in all environments."""

    def collect(self, acting: PyTree, key: Key, at_random: bool) -> Collected: ...

    def saved(self) -> dict[str, Any]:
        """What continues the episodes elsewhere, as arrays, between two batches; empty where nothing can."""

    def restore(self, saved: Mapping[str, Any]) -> bool:
        """Continues the saved episodes; whether they are the same to the bit."""

    def cancel(self) -> None:
        """From another thread: `collect` ends with Cancelled where it can."""

    def close(self) -> None: ...


class Cancelled(Exception):
    """A batch was given up; `begin` and `restore` start again."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Collecting:
    """What collecting is made of, for both kinds of collectors.

    act_with   the algorithm that acts, where a flag says whether it acts at random
    replay     batches are for a replay buffer: they need neither carries nor what follows the last step
    """

    env: Env
    algorithm: Algorithm
    act_with: ActWith
    num_envs: int
    rollout_length: int
    stagger: bool
    replay: bool
    device: Any
    num_workers: int = 1
    explore: bool = True

    @property
    def sequence_length(self) -> int:
        """Steps between the carries that a batch keeps."""
        return self.rollout_length if self.replay else self.algorithm.sequence_length or self.rollout_length


@dataclasses.dataclass(frozen=True, kw_only=True)
class Collectors:
    """A way to collect: what makes a collector, and what that one saves, for its shapes."""

    make: Callable[[], Collector]
    example_saved: Callable[[], PyTree]


# ---------------------------------------------------------------------------------------------- compiled environments


class CompiledCollector:
    """Collects in compiled environments, with one program for a batch."""

    def __init__(self, collecting: Collecting):
        self._collecting = collecting
        env = BatchedEnv(env=collecting.env, num_envs=collecting.num_envs, stagger=collecting.stagger)
        self._begin = jax.jit(partial(init_actor, env, collecting.algorithm))
        self._collect = jax.jit(partial(_collect_compiled, collecting, env), donate_argnums=1)
        self._actor: Actor | None = None

    def begin(self, key: Key) -> None:
        self._actor = self._begin(jax.device_put(key, self._collecting.device))

    def collect(self, acting: PyTree, key: Key, at_random: bool) -> Collected:
        assert self._actor is not None
        key = jax.device_put(key, self._collecting.device)
        self._actor, batch, sums = self._collect(acting, self._actor, key, np.bool_(at_random))
        return Collected(batch=batch, sums=sums)

    def saved(self) -> dict[str, Any]:
        return {"actor": self._actor}

    def restore(self, saved: Mapping[str, Any]) -> bool:
        self._actor = jax.device_put(saved["actor"], self._collecting.device)
        return True

    def cancel(self) -> None:
        """A batch is one program, which ends by itself."""

    def close(self) -> None:
        self._actor = None


def _collect_compiled(
    collecting: Collecting, env: BatchedEnv, acting: PyTree, actor: Actor, key: Key, at_random: Array
) -> tuple[Actor, Batch, EpisodeSums]:
    algorithm = collecting.act_with(at_random)
    if not collecting.replay:
        return collect(env, algorithm, acting, actor, key, collecting.rollout_length)
    actor, transitions, sums = unroll(env, algorithm, acting, actor, key, collecting.rollout_length)
    return actor, Batch(transitions=transitions), sums


# --------------------------------------------------------------------------------------------- simulators in processes


@pytree
class Half:
    """What one half of a pool's copies showed last, and where acting in them is. Like `rollout.Actor`, for a pool."""

    timestep: TimeStep
    carry: PyTree
    episodes: Episodes


@pytree
class Chosen:
    """What was done last in a half, and what the algorithm's `act` left with it."""

    actions: dict[str, Array]
    extras: dict[str, dict[str, PyTree]]


@pytree
class Rollout:
    """What a half has collected so far of a batch: `[T, b, …]`, later steps are empty.

    lost   the copy's episode was lost at this step: nothing of it is learned from
    """

    transitions: dict[str, Transition]
    lost: Array
    sums: EpisodeSums


class PoolCollector:
    """Collects in a pool of simulators: while one half steps, the other is acted on."""

    def __init__(self, collecting: Collecting, pool: Pool):
        self._collecting, self._pool = collecting, pool
        self._device = collecting.device
        self._show = jax.jit(partial(show_first, collecting))
        self._act = jax.jit(partial(act_in_half, collecting))
        self._record = jax.jit(partial(record_step, collecting), donate_argnums=(0, 2))
        self._join = jax.jit(partial(join_halves, collecting))
        self._halves: list[Half] = []
        self._rollouts: list[Rollout] = []
        self._counted = (0, 0)
        self._cancelled = False

    def begin(self, key: Key) -> None:
        self._cancelled = False
        self._pool.begin(seed_from(key))
        answers = [self._pool.receive(half) for half in range(self._pool.num_halves)]
        self._halves = [self._show(self._put(answer.timestep)) for answer in answers]

    def collect(self, acting: PyTree, key: Key, at_random: bool) -> Collected:
        collecting, pool = self._collecting, self._pool
        pool.renew()
        key, flag = self._put(key), np.bool_(at_random)
        carries: list[list[PyTree]] = [[] for _ in self._halves]
        chosen: list[Chosen | None] = [None] * pool.num_halves
        for step in range(collecting.rollout_length + 1):
            if self._cancelled:
                raise Cancelled
            for number in range(pool.num_halves):
                if step > 0:
                    self._receive(number, step - 1, chosen[number])
                if step == collecting.rollout_length:
                    continue
                if step % collecting.sequence_length == 0:
                    carries[number].append(self._halves[number].carry)
                place = np.int32(step * pool.num_halves + number)
                self._halves[number], chosen[number] = self._act(acting, self._halves[number], key, place, flag)
                pool.send(number, jax.tree.map(np.asarray, chosen[number].actions))  # type: ignore[union-attr]
        batch, sums = self._join(self._halves, self._rollouts, carries)
        self._rollouts = []  # with one half, the batch is made of the same arrays
        before, self._counted = self._counted, (pool.restarts, pool.dropped_episodes)
        restarts, dropped = (now - then for now, then in zip(self._counted, before, strict=True))
        return Collected(batch=batch, sums=sums, restarts=restarts, dropped_episodes=dropped)

    def _receive(self, number: int, step: int, chosen: Any) -> None:
        answer = self._put(self._pool.receive(number))
        if len(self._rollouts) <= number:
            shapes = jax.eval_shape(partial(empty_rollout, self._collecting), self._halves[number], chosen, answer)
            with jax.default_device(self._device):
                self._rollouts.append(self._put(jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)))
        self._halves[number], self._rollouts[number] = self._record(
            self._halves[number], chosen, self._rollouts[number], answer, np.int32(step)
        )

    def _put(self, tree: PyTree) -> Any:
        return jax.device_put(tree, self._device)

    def saved(self) -> dict[str, Any]:
        """Where acting is, and what plays the simulators' episodes again; empty where that takes too much memory."""
        episodes = self._pool.saved()
        return {"episodes": episodes, "halves": self._halves} if episodes else {}

    def restore(self, saved: Mapping[str, Any]) -> bool:
        self._cancelled = False
        if not saved or not self._pool.replay(jax.device_get(saved["episodes"])):
            return False
        self._halves = self._put(saved["halves"])
        return True

    def cancel(self) -> None:
        self._cancelled = True

    def close(self) -> None:
        self._pool.close()


def seed_from(key: Key) -> int:
    """A seed for simulators, 31 bits."""
    return int(jax.random.bits(key, dtype=jnp.uint32)) >> 1


def show_first(collecting: Collecting, timestep: TimeStep) -> Half:
    """A half `[b]` at the beginning of its episodes."""
    num_envs = timestep.last.shape[0]
    return Half(
        timestep=seen_by_algorithm(collecting.env, timestep),
        carry=collecting.algorithm.initial_carry(num_envs),
        episodes=init_episodes(collecting.env.spec, num_envs),
    )


def seen_by_algorithm(env: Env, timestep: TimeStep) -> TimeStep:
    """A pool's time step `[b]` through the wrappers of the environment: shared rewards, agent ids."""
    return jax.vmap(lambda answer: env.step((), answer, None)[1])(timestep)  # type: ignore[arg-type]


def act_in_half(
    collecting: Collecting, acting: PyTree, half: Half, key: Key, place: Array, at_random: Array
) -> tuple[Half, Chosen]:
    """Actions for a half; `place` is the number of this act in the batch."""
    algorithm = collecting.act_with(at_random)
    key_act = jax.random.fold_in(key, place)
    actions, extras, carry = algorithm.act(acting, half.timestep, half.carry, key_act, collecting.explore)
    return dataclasses.replace(half, carry=carry), Chosen(actions=actions, extras=extras)


def record_step(
    collecting: Collecting, half: Half, chosen: Chosen, rollout: Rollout, answer: Answer, step: Array
) -> tuple[Half, Rollout]:
    """Writes what came of the last actions as step number `step` of the batch."""
    spec = collecting.env.spec
    after = seen_by_algorithm(collecting.env, answer.timestep)
    episodes = add_step(half.episodes, score_played(after, played_by_team(chosen.extras)), spec)
    ended = sum_ended(episodes, after.last)
    # A new episode begins where the old one was lost, and no value reaches from one into the other.
    after = dataclasses.replace(after, last=after.last | answer.dropped, truncated=after.truncated | answer.dropped)
    transitions = {
        group: make_transition(group, half.timestep, action, chosen.extras[group], after)
        for group, action in chosen.actions.items()
    }
    written = jax.tree.map(
        lambda rows, row: jax.lax.dynamic_update_index_in_dim(rows, row, step, 0),
        (rollout.transitions, rollout.lost),
        (transitions, answer.dropped),
    )
    sums = jax.tree.map(jnp.add, rollout.sums, ended)
    half = Half(timestep=after, carry=half.carry, episodes=restart_episodes(episodes, after.last, spec))
    return half, Rollout(transitions=written[0], lost=written[1], sums=sums)


def empty_rollout(collecting: Collecting, half: Half, chosen: Chosen, answer: Answer) -> Rollout:
    """A rollout in which nothing is written."""
    after = seen_by_algorithm(collecting.env, answer.timestep)
    steps = {
        group: make_transition(group, half.timestep, action, chosen.extras[group], after)
        for group, action in chosen.actions.items()
    }

    def rows(x: Array) -> Array:
        return jnp.zeros((collecting.rollout_length, *x.shape), x.dtype)

    sums = sum_ended(half.episodes, after.last)
    return Rollout(transitions=jax.tree.map(rows, steps), lost=rows(answer.dropped), sums=sums)


def join_halves(
    collecting: Collecting, halves: list[Half], rollouts: list[Rollout], carries: list[list[PyTree]]
) -> tuple[Batch, EpisodeSums]:
    """The batch `[T, B, …]` of all copies, without the episodes that were lost."""
    transitions = [without_lost(rollout) for rollout in rollouts]
    joined = jax.tree.map(lambda *parts: jnp.concatenate(parts, axis=1), *transitions)
    sums = jax.tree.map(lambda *parts: sum(parts), *(rollout.sums for rollout in rollouts))
    if collecting.replay:
        return Batch(transitions=joined), sums

    def join(*parts: Array) -> Array:
        return jnp.concatenate(parts, axis=0)

    of_sequences = [
        jax.tree.map(join, *(learned_carry(own[sequence]) for own in carries)) for sequence in range(len(carries[0]))
    ]
    batch = Batch(
        transitions=joined,
        carries=jax.tree.map(lambda *sequences: jnp.stack(sequences), *of_sequences),
        final=jax.tree.map(join, *(half.timestep for half in halves)),
        final_carry=jax.tree.map(join, *(learned_carry(half.carry) for half in halves)),
    )
    return batch, sums


def without_lost(rollout: Rollout) -> dict[str, Transition]:
    """The transitions, in which nobody is alive in the steps of lost episodes: they weigh nothing in any loss."""
    first = next(iter(rollout.transitions.values()))

    def back(lost_later: Array, step: tuple[Array, Array]) -> tuple[Array, Array]:
        lost, last = step
        lost = lost | (lost_later & ~last)
        return lost, lost

    _, lost = jax.lax.scan(back, jnp.zeros_like(rollout.lost[0]), (rollout.lost, first.last), reverse=True)
    return {
        group: dataclasses.replace(part, alive=part.alive & ~lost[..., None])
        for group, part in rollout.transitions.items()
    }


def make_collector(collecting: Collecting, step_seconds: float, warn: Callable[[str], None] | None = None) -> Collector:
    """Collects in a pool of simulators, or in compiled environments. `warn` is told of processes that are replaced."""
    source = simulator_of(collecting.env)
    if source is None:
        return CompiledCollector(collecting)
    pool = Pool(
        source,
        num_copies=collecting.num_envs,
        num_workers=collecting.num_workers,
        stagger=collecting.stagger,
        seconds=step_seconds,
        warn=warn,
    )
    return PoolCollector(collecting, pool)


# ------------------------------------------------------------------------------------------------------------- shapes


def example_batch(collecting: Collecting, learner: PyTree) -> tuple[Batch, EpisodeSums]:
    """What a collector gives, for its shapes."""
    acting, key = collecting.algorithm.acting(learner), jax.random.key(0)
    if (source := simulator_of(collecting.env)) is None:
        env = BatchedEnv(env=collecting.env, num_envs=collecting.num_envs, stagger=collecting.stagger)
        actor = init_actor(env, collecting.algorithm, key)
        return _collect_compiled(collecting, env, acting, actor, key, jnp.zeros((), bool))[1:]
    answer = example_answer(source, collecting.num_envs)
    half = show_first(collecting, answer.timestep)
    before = half.carry
    half, chosen = act_in_half(collecting, acting, half, key, jnp.zeros((), jnp.int32), jnp.zeros((), bool))
    rollout = empty_rollout(collecting, half, chosen, answer)
    half, rollout = record_step(collecting, half, chosen, rollout, answer, jnp.zeros((), jnp.int32))
    num_sequences = collecting.rollout_length // collecting.sequence_length
    return join_halves(collecting, [half], [rollout], [[before] * num_sequences])


def example_saved(collecting: Collecting) -> dict[str, Any]:
    """What a collector saves, for its shapes."""
    key = jax.random.key(0)
    if (source := simulator_of(collecting.env)) is None:
        env = BatchedEnv(env=collecting.env, num_envs=collecting.num_envs, stagger=collecting.stagger)
        return {"actor": init_actor(env, collecting.algorithm, key)}
    episodes = saved_episodes(describe(source), collecting.num_envs)
    sizes = half_sizes(collecting.num_envs, collecting.num_workers)
    halves = [show_first(collecting, example_answer(source, size).timestep) for size in sizes]
    return {"episodes": episodes, "halves": halves} if episodes else {}


def example_answer(source: Source, num_copies: int) -> Answer:
    """An answer of a pool's copies, all zeros."""
    tree = layout.layout(describe(source))["step"]
    zeros = layout.map_leaves(lambda leaf: np.zeros((num_copies, *leaf.shape), leaf.dtype), tree)
    return Answer(timestep=as_timestep(zeros), dropped=np.zeros(num_copies, bool))  # type: ignore[arg-type]
