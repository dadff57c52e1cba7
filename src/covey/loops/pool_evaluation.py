"""Evaluation in simulators: a thread plays episodes in a separate pool while training continues."""

from __future__ import annotations

import dataclasses
import math
import threading
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

import jax
import numpy as np

from covey.algorithms.seats import played_by_team
from covey.envs.base import Env
from covey.envs.batch import add_step, episode_values, restart_episodes, score_played
from covey.envs.host.pool import Answer, Pool
from covey.loops.collectors import Chosen, Collecting, Half, act_in_half, seed_from, seen_by_algorithm, show_first
from covey.metrics import scored_groups
from covey.types import Algorithm, Array, Key, PyTree


class PoolEvaluation:
    """`evaluate(learner, key)` starts exactly `num_episodes` and returns a Future of their values by metric name.

    Each copy of the pool plays the same number of episodes, so short ones are not played more often than long ones.
    """

    def __init__(
        self,
        env: Env,
        algorithm: Algorithm,
        make_pool: Callable[[int], Pool],
        *,
        num_episodes: int,
        num_copies: int,
        deterministic: bool,
        device: Any,
        opponents: Collection[str] = (),
    ):
        self._env, self._algorithm, self._make_pool = env, algorithm, make_pool
        self._num_episodes, self._num_copies = num_episodes, min(num_copies, num_episodes)
        self._device = device
        collecting = Collecting(
            env=env,
            algorithm=algorithm,
            act_with=lambda at_random: algorithm,
            num_envs=self._num_copies,
            rollout_length=1,
            stagger=False,
            replay=True,
            device=device,
            explore=not deterministic,
        )
        scored = scored_groups(env.spec.cooperating, opponents)
        self._show = jax.jit(partial(show_first, collecting))
        self._act = jax.jit(partial(act_in_half, collecting))
        self._follow = jax.jit(partial(follow_episodes, env, scored))
        self._pool: Pool | None = None
        self._playing = threading.Lock()  # an evaluation may be requested while another is played

    def __call__(self, learner: PyTree, key: Key) -> Any:
        future: Future[dict[str, np.ndarray]] = Future()

        def run() -> None:
            try:
                with self._playing:
                    values = self.play(learner, key)
                future.set_result(values)
            except BaseException as error:
                future.set_exception(error)

        threading.Thread(target=run, name="covey evaluation", daemon=True).start()
        return future

    def play(self, learner: PyTree, key: Key) -> dict[str, np.ndarray]:
        """The values of all episodes, each `[num_episodes]`."""
        if self._pool is None:
            self._pool = self._make_pool(self._num_copies)
        pool, rounds = self._pool, math.ceil(self._num_episodes / self._num_copies)
        acting = jax.device_put(self._algorithm.acting(learner), self._device)
        key_seed, key_act = jax.device_put(jax.random.split(key), self._device)
        pool.begin(seed_from(key_seed))
        halves = [self._show(pool.receive(number).timestep) for number in range(pool.num_halves)]
        found: dict[str, np.ndarray] = {}
        played = np.zeros(self._num_copies, int)  # episodes that each copy has ended
        place = 0
        while (played < rounds).any():
            chosen: list[Chosen | None] = [None] * pool.num_halves
            for number, part in enumerate(pool.halves):
                if (played[part] < rounds).any():
                    halves[number], chosen[number] = self._act(
                        acting, halves[number], key_act, np.int32(place), np.bool_(False)
                    )
                    pool.send(number, jax.tree.map(np.asarray, chosen[number].actions))  # type: ignore[union-attr]
                place += 1
            for number, part in enumerate(pool.halves):
                if chosen[number] is None:
                    continue
                halves[number], values = self._follow(halves[number], chosen[number], pool.receive(number))
                ended = np.asarray(values.pop("ended")) & (played[part] < rounds)
                for copy in np.flatnonzero(ended):
                    for name, value in values.items():
                        row = found.setdefault(name, np.zeros((rounds, self._num_copies), value.dtype))
                        row[played[part.start + copy], part.start + copy] = value[copy]
                played[part] += ended
                pool.arrays["active"][part] = played[part] < rounds
        return {name: value.reshape(-1)[: self._num_episodes] for name, value in found.items()}

    def close(self) -> None:
        """Ends the pool's processes."""
        if self._pool is not None:
            self._pool.close()
        self._pool = None


def follow_episodes(
    env: Env, scored: Sequence[str], half: Half, chosen: Chosen, answer: Answer
) -> tuple[Half, dict[str, Array]]:
    """A half after a step, and the values of its episodes `[b]`. `ended`: where an episode is complete."""
    after = seen_by_algorithm(env, answer.timestep)
    episodes = add_step(half.episodes, score_played(after, played_by_team(chosen.extras)), env.spec)
    values = episode_values(episodes, scored) | {"ended": after.last}
    begun = after.last | answer.dropped
    half = Half(
        timestep=dataclasses.replace(after, last=begun),  # networks forget where an episode begins
        carry=half.carry,
        episodes=restart_episodes(episodes, begun, env.spec),
    )
    return half, values


def draw_episode(
    env: Env, algorithm: Algorithm, pool: Pool, learner: PyTree, key: Key, *, deterministic: bool
) -> list[np.ndarray]:
    """Pictures of one episode in a pool of one copy, one before each of its steps."""
    collecting = Collecting(
        env=env,
        algorithm=algorithm,
        act_with=lambda at_random: algorithm,
        num_envs=1,
        rollout_length=1,
        stagger=False,
        replay=True,
        device=jax.devices()[0],
        explore=not deterministic,
    )
    act = jax.jit(partial(act_in_half, collecting))
    acting = algorithm.acting(learner)
    key_seed, key_act = jax.random.split(key)
    pool.begin(seed_from(key_seed))
    half, pictures = show_first(collecting, pool.receive(0).timestep), list[np.ndarray]()
    ended = False
    while not ended:
        pictures.append(pool.render())
        half, chosen = act(acting, half, key_act, np.int32(len(pictures)), np.bool_(False))
        pool.send(0, jax.tree.map(np.asarray, chosen.actions))
        answer = pool.receive(0)
        ended = bool(answer.timestep.last[0]) or bool(answer.dropped[0])
        half = dataclasses.replace(half, timestep=seen_by_algorithm(env, answer.timestep))
    return pictures
