"""How actors collect a batch: in a pool of simulators, or in compiled environments.

A collector is used by one thread and does not see the learner: it receives what to act with (`Algorithm.acting`) and
returns batches like those of the online loop's `collect`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
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

ActWith = Callable[[Array], Algorithm]  # from a flag, whether actions are random, the algorithm that acts


@dataclasses.dataclass(frozen=True, kw_only=True)
class Collected:
    """A batch and the episodes that ended in it.

    restarts          processes that were replaced while it was collected
    dropped_episodes  episodes that were lost with them
    """

    batch: Batch
    sums: EpisodeSums
    restarts: int = 0
    dropped_episodes: int = 0


class Collector(Protocol):
    """Collects one batch after another. Everything random is derived from `key`."""

    def begin(self, key: Key) -> None:
        """Starts new episodes in all environments."""

    def collect(self, acting: PyTree, key: Key, at_random: bool) -> Collected: ...

    def saved(self) -> dict[str, Any]:
        """Between two batches, arrays from which another collector continues all episodes; empty if none could."""

    def restore(self, saved: Mapping[str, Any]) -> bool:
        """Continues the saved episodes; returns whether they are equal to the bit."""

    def cancel(self) -> None:
        """Called from another thread: `collect` raises Cancelled as soon as it can."""

    def close(self) -> None: ...


class Cancelled(Exception):
    """A batch was abandoned. Call `begin` or `restore` before collecting again."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Collecting:
    """What collecting is made of, for both kinds of collectors.

    act_with   from a flag, whether actions are random, the algorithm that acts
    replay     batches are for a replay buffer, so they need neither carries nor the time step after the last one
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
    """A way to collect: a function that makes a collector, and one for an example of what it saves."""

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
        """Does nothing: a batch is one program, which cannot be interrupted."""

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
    """What one half of a pool's copies showed last, and the state of acting in them: `rollout.Actor` for a pool."""

    timestep: TimeStep
    carry: PyTree
    episodes: Episodes


@pytree
class Chosen:
    """The last actions in a half, and the extras that the algorithm's `act` returned with them."""

    actions: dict[str, Array]
    extras: dict[str, dict[str, PyTree]]


class Rows:
    """The rows of a batch `[T, N, …]`, in the host's memory. On a device, a program that writes one step would cost
    more than acting."""

    def __init__(self, num_steps: int, num_copies: int):
        self._size = num_steps, num_copies
        self._rows: list[np.ndarray] = []
        self._structure: Any = None

    def write(self, step: int, part: slice, tree: PyTree) -> None:
        """Writes a step of some copies."""
        leaves, structure = jax.tree.flatten(tree)
        if self._structure is None:
            self._structure = structure
            self._rows = [np.zeros((*self._size, *leaf.shape[1:]), leaf.dtype) for leaf in leaves]
        for row, leaf in zip(self._rows, leaves, strict=True):
            row[step, part] = leaf

    @property
    def tree(self) -> Any:
        """All rows, in the structure of what was written."""
        return jax.tree.unflatten(self._structure, self._rows)


class PoolCollector:
    """Collects in a pool of simulators. While one half steps, actions are chosen for the other."""

    def __init__(self, collecting: Collecting, pool: Pool):
        self._collecting, self._pool = collecting, pool
        self._device = collecting.device
        self._show = jax.jit(partial(show_first, collecting))
        self._act = jax.jit(partial(act_in_half, collecting))
        self._act_on = jax.jit(partial(act_on_answer, collecting))
        self._finish = jax.jit(partial(finish_batch, collecting))
        self._halves: list[Half] = []
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
        answers, acts = (Rows(collecting.rollout_length, collecting.num_envs) for _ in range(2))
        key, flag = self._put(key), np.bool_(at_random)
        carries = [half.carry for half in self._halves]
        kept: list[list[PyTree]] = [[] for _ in self._halves]  # the carries before each sequence
        for step in range(collecting.rollout_length + 1):
            if self._cancelled:
                raise Cancelled
            for number, part in enumerate(pool.halves):
                if step:
                    answer = pool.receive(number)
                    answers.write(step - 1, part, answer)
                if step == collecting.rollout_length:
                    continue
                if step % collecting.sequence_length == 0:
                    kept[number].append(carries[number])
                draw = key, np.int32(step * pool.num_halves + number), flag
                if step:
                    carries[number], chosen = self._act_on(acting, answer, carries[number], *draw)
                else:
                    half, chosen = self._act(acting, self._halves[number], *draw)
                    carries[number] = half.carry
                pool.send(number, {name: np.asarray(action) for name, action in chosen.actions.items()})
                acts.write(step, part, chosen)
        self._halves, batch, sums = self._finish(self._halves, answers.tree, acts.tree, carries, kept)
        before, self._counted = self._counted, (pool.restarts, pool.dropped_episodes)
        restarts, dropped = (now - then for now, then in zip(self._counted, before, strict=True))
        return Collected(batch=batch, sums=sums, restarts=restarts, dropped_episodes=dropped)

    def _put(self, tree: PyTree) -> Any:
        return jax.device_put(tree, self._device)

    def saved(self) -> dict[str, Any]:
        """The state of acting, and what plays the simulators' episodes again; empty if that takes too much memory."""
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
    """A half `[b]` at the start of its episodes."""
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
    """Actions for a half. `place` counts the calls in a batch, so that each has its own key."""
    algorithm = collecting.act_with(at_random)
    key_act = jax.random.fold_in(key, place)
    actions, extras, carry = algorithm.act(acting, half.timestep, half.carry, key_act, collecting.explore)
    return dataclasses.replace(half, carry=carry), Chosen(actions=actions, extras=extras)


def shown_after(collecting: Collecting, answer: Answer) -> TimeStep:
    """What the algorithm is shown after a step `[b]`. Where an episode was lost a new one begins, and no value may be
    bootstrapped across that."""
    after = seen_by_algorithm(collecting.env, answer.timestep)
    return dataclasses.replace(after, last=after.last | answer.dropped, truncated=after.truncated | answer.dropped)


def act_on_answer(
    collecting: Collecting, acting: PyTree, answer: Answer, carry: PyTree, key: Key, place: Array, at_random: Array
) -> tuple[PyTree, Chosen]:
    """As `act_in_half`, on a pool's answer; returns the carry and the actions."""
    algorithm = collecting.act_with(at_random)
    key_act = jax.random.fold_in(key, place)
    actions, extras, carry = algorithm.act(acting, shown_after(collecting, answer), carry, key_act, collecting.explore)
    return carry, Chosen(actions=actions, extras=extras)


def finish_batch(
    collecting: Collecting,
    halves: list[Half],
    answers: Answer,
    acts: Chosen,
    carries: list[PyTree],
    kept: list[list[PyTree]],
) -> tuple[list[Half], Batch, EpisodeSums]:
    """The halves after a batch, the batch `[T, N, …]` in which lost episodes count nowhere, and the sums of those that
    ended.

    halves    before the batch
    carries   of each half, after the batch
    kept      the carries of each half, before each sequence
    """
    first = jax.tree.map(lambda *parts: jnp.concatenate(parts), *halves)
    after = jax.vmap(partial(shown_after, collecting))(answers)
    before = jax.tree.map(lambda start, later: jnp.concatenate([start[None], later[:-1]]), first.timestep, after)
    transitions = {
        group: make_transition(group, before, action, acts.extras[group], after)
        for group, action in acts.actions.items()
    }
    episodes, sums = follow_episodes(collecting, first.episodes, after, answers, acts)
    final: TimeStep = jax.tree.map(lambda rows: rows[-1], after)
    ends = np.cumsum([half.timestep.last.shape[0] for half in halves])[:-1].tolist()
    shown, played = (split_copies(tree, ends) for tree in (final, episodes))
    halves = [
        Half(timestep=timestep, carry=carry, episodes=own)
        for timestep, carry, own in zip(shown, carries, played, strict=True)
    ]
    transitions = without_lost(transitions, answers.dropped)
    if collecting.replay:
        return halves, Batch(transitions=transitions), sums
    batch = Batch(
        transitions=transitions,
        carries=jax.tree.map(
            lambda *sequences: jnp.stack(sequences), *(join_carries(sequence) for sequence in zip(*kept, strict=True))
        ),
        final=final,
        final_carry=join_carries(carries),
    )
    return halves, batch, sums


def follow_episodes(
    collecting: Collecting, episodes: Episodes, after: TimeStep, answers: Answer, acts: Chosen
) -> tuple[Episodes, EpisodeSums]:
    """The statistics of running episodes `[N]` after the steps `[T, N]`, and the sums of those that ended, without lost
    episodes."""
    spec = collecting.env.spec

    def step(episodes: Episodes, inputs: tuple[TimeStep, Array, Chosen]) -> tuple[Episodes, EpisodeSums]:
        timestep, ended, chosen = inputs
        episodes = add_step(episodes, score_played(timestep, played_by_team(chosen.extras)), spec)
        return restart_episodes(episodes, timestep.last, spec), sum_ended(episodes, ended)

    episodes, sums = jax.lax.scan(step, episodes, (after, answers.timestep.last, acts))
    return episodes, jax.tree.map(lambda x: x.sum(axis=0), sums)


def join_carries(carries: Sequence[PyTree]) -> PyTree:
    """The carries of all halves joined, for the networks that learn."""
    return jax.tree.map(lambda *parts: jnp.concatenate(parts), *map(learned_carry, carries))


def split_copies(tree: PyTree, ends: list[int]) -> list[Any]:
    """Splits joined halves at the copies `ends`."""
    leaves, structure = jax.tree.flatten(tree)
    parts = [jnp.split(leaf, ends) for leaf in leaves]
    return [jax.tree.unflatten(structure, [part[number] for part in parts]) for number in range(len(ends) + 1)]


def without_lost(transitions: dict[str, Transition], dropped: Array) -> dict[str, Transition]:
    """The transitions, with nobody alive in the steps of episodes that were `dropped [T, N]`, so that these have no
    weight in any loss."""
    first = next(iter(transitions.values()))

    def back(lost_later: Array, step: tuple[Array, Array]) -> tuple[Array, Array]:
        lost, last = step
        lost = lost | (lost_later & ~last)
        return lost, lost

    _, lost = jax.lax.scan(back, jnp.zeros_like(dropped[0]), (dropped, first.last), reverse=True)
    return {
        group: dataclasses.replace(part, alive=part.alive & ~lost[..., None]) for group, part in transitions.items()
    }


def make_collector(collecting: Collecting, step_seconds: float, warn: Callable[[str], None] | None = None) -> Collector:
    """Collects in a pool of simulators or in compiled environments. `warn` is called when a process is replaced."""
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
    """An example of what a collector returns, for its shapes."""
    acting, key = collecting.algorithm.acting(learner), jax.random.key(0)
    if (source := simulator_of(collecting.env)) is None:
        env = BatchedEnv(env=collecting.env, num_envs=collecting.num_envs, stagger=collecting.stagger)
        actor = init_actor(env, collecting.algorithm, key)
        return _collect_compiled(collecting, env, acting, actor, key, jnp.zeros((), bool))[1:]
    answer = example_answer(source, collecting.num_envs)
    half = show_first(collecting, answer.timestep)
    carry, chosen = act_on_answer(
        collecting, acting, answer, half.carry, key, jnp.zeros((), jnp.int32), jnp.zeros((), bool)
    )
    length = collecting.rollout_length
    answers, acts = jax.tree.map(lambda x: jnp.broadcast_to(x, (length, *x.shape)), (answer, chosen))
    kept = [[half.carry] * (length // collecting.sequence_length)]
    return finish_batch(collecting, [half], answers, acts, [carry], kept)[1:]


def example_saved(collecting: Collecting) -> dict[str, Any]:
    """An example of what a collector saves, for its shapes."""
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
