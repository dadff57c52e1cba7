"""Times the parts of an experiment, for `covey speed`: simulation alone, collecting, and the whole loop.

Compiling takes most of the time, so there are only two programs for each size, and all are compiled in parallel before
any is timed: simulation, and training's own loop, in which iterations with negative numbers collect without learning.
The time of learning is the difference. Both programs loop on the device, so their launch hardly counts; it is timed
separately, as a chunk without iterations. Larger sizes start from copies of the smallest size's environments.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from covey.algorithms.random import make_random_team
from covey.envs.base import Env
from covey.envs.batch import BatchedEnv
from covey.errors import UsageError
from covey.experiment.configuration.config import Config, num_cores
from covey.experiment.running.build import build_algorithm, build_env, build_loop
from covey.experiment.running.devices import start_jax
from covey.loops.base import DEVICE_AXIS, Loop, state_shapes
from covey.loops.online import TrainState, add_device_axis, drop_device_axis
from covey.types import Algorithm, Array, Batch, Key, PyTree

ROUNDS = 3  # the best one counts, because other processes can only make it slower


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """One number of environments on some devices."""

    device: str  # the name of the devices: `cpu x2`
    environments: int
    config: Config
    devices: list[Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TimedPrograms:
    """The compiled programs of a setting. Each repeats its work a given number of times."""

    simulate: Callable[[PyTree, Key, Array], PyTree]
    advance: Callable[[TrainState, Array], tuple[TrainState, dict[str, Array]]]
    state: TrainState  # shapes and shardings
    largest: int  # most iterations in a chunk
    frames: int  # in an iteration


def time_devices(
    config: Config,
    platform: str,
    numbers: Sequence[int],
    environments: Iterable[int],
    seconds: float,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """`rows` for every number of devices and environments; `left_out` says which combinations failed, and why.

    `kind` is JAX's name of the device.
    """
    available = start_jax(platform, max(numbers))
    kind = available[0].platform
    settings = []
    left_out = []
    for number in numbers:
        device = f"{kind} x{number}"
        for count in environments:
            try:
                sized = with_size(config, count, number)
                settings.append(Setting(device=device, environments=count, config=sized, devices=available[:number]))
            except (UsageError, ValueError) as error:
                left_out.append(f"{count} environments on {device}: {error}")
    say(f"compiling {len(settings)} sizes on {' and '.join(dict.fromkeys(item.device for item in settings))}")
    with ThreadPoolExecutor(max_workers=num_cores()) as pool:
        first = pool.submit(init_state, settings[0]) if settings else None
        compiled = [pool.submit(compile_setting, setting) for setting in settings]
    rows = []
    for setting, programs in zip(settings, compiled, strict=True):
        assert first is not None
        say(f"timing {setting.environments} environments on {setting.device}")
        try:
            rows.append(time_setting(setting, programs.result(), first.result(), seconds))
        except Exception as error:  # mostly out of memory: the other sizes are still useful
            reason = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
            left_out.append(f"{setting.environments} environments on {setting.device}: {reason}")
    return {"kind": available[0].device_kind, "rows": rows, "left_out": left_out}


def with_size(config: Config, environments: int, devices: int) -> Config:
    """`config` with these numbers of environments and devices, learning from the first iteration."""
    collecting = config.experiment.collecting
    assert collecting is not None
    sized = dataclasses.replace(config, experiment=collecting.sized(environments, devices))
    config.algorithm.config.check(sized.experiment)
    return sized


# -------------------------------------------------------------------------------------------------------- programs


def make_parts(setting: Setting) -> tuple[Env, Loop]:
    """The environment and the loop of training, except that iterations with negative numbers do not learn."""
    config, devices = setting.config, setting.devices
    env = build_env(config)
    algorithm = build_algorithm(config, env, device_axis=DEVICE_AXIS if len(devices) > 1 else None)
    return env, build_loop(config, env, without_learning_before_0(algorithm), devices)


def without_learning_before_0(algorithm: Algorithm) -> Algorithm:
    """`algorithm`, whose update does nothing while progress is negative."""

    def update(learner: PyTree, batch: Batch, key: Key, progress: Array) -> tuple[PyTree, PyTree, PyTree]:
        shapes = jax.eval_shape(algorithm.update, learner, batch, key, progress)
        nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes[1:])
        updated: tuple[PyTree, PyTree, PyTree] = jax.lax.cond(
            progress < 0, lambda: (learner, *nothing), lambda: algorithm.update(learner, batch, key, progress)
        )
        return updated

    return dataclasses.replace(algorithm, update=update)


def init_state(setting: Setting) -> TrainState:
    """A fresh train state."""
    with jax.default_device(setting.devices[0]):
        state: TrainState = make_parts(setting)[1].init(jax.random.key(0))
    return state


def compile_setting(setting: Setting) -> TimedPrograms:
    """Compiles the two programs of a setting."""
    with jax.default_device(setting.devices[0]):
        env, loop = make_parts(setting)
        if loop.jitted is None:
            name = setting.config.task.name
            raise UsageError(f"covey speed times compiled loops, and {name} is stepped in processes")
        key, once = jax.random.key(0), jnp.int32(1)
        state = state_shapes(loop, key)
        return TimedPrograms(
            simulate=jax.jit(make_simulate(setting, env)).lower(state.actor, key, once).compile(),
            advance=loop.jitted.lower(state, once).compile(),
            state=state,
            largest=loop.max_iterations,
            frames=loop.frames_per_iteration,
        )


def make_simulate(setting: Setting, env: Env) -> Callable[[PyTree, Key, Array], PyTree]:
    """A function that repeats rollouts with random legal actions, starting from the actors' states."""
    experiment = setting.config.experiment.collecting
    assert experiment is not None
    batched = BatchedEnv(env=env, num_envs=experiment.num_envs // len(setting.devices))
    team = make_random_team(env.spec)

    def step(state: PyTree, key: Key) -> tuple[PyTree, None]:
        key_act, key_env = jax.random.split(key)
        env_state, timestep = state
        actions, _, _ = team.act((), timestep, (), key_act, True)
        env_state, timestep, _ = batched.step(env_state, actions, key_env)
        return (env_state, timestep), None

    def simulate(actor: PyTree, key: Key, repetitions: Array) -> PyTree:
        actor = drop_device_axis(actor)

        def rollout(i: Array, state: PyTree) -> PyTree:
            keys = jax.random.split(jax.random.fold_in(key, i), experiment.rollout_length)
            return jax.lax.scan(step, state, keys)[0]

        return add_device_axis(jax.lax.fori_loop(0, repetitions, rollout, (actor.env, actor.timestep)))

    if len(setting.devices) == 1:
        return simulate
    mesh = Mesh(setting.devices, (DEVICE_AXIS,))
    split, whole = P(DEVICE_AXIS), P()
    return jax.shard_map(simulate, mesh=mesh, in_specs=(split, whole, whole), out_specs=split, check_vma=False)


def put(state: TrainState, like: TrainState) -> TrainState:
    """`state` in the shapes and on the devices of `like`; axes that must be longer are repeated."""

    def fit(leaf: Any, wanted: Any) -> Any:
        values = np.asarray(jax.random.key_data(leaf)) if is_key(leaf) else np.asarray(leaf)
        for axis, (have, want) in enumerate(zip(leaf.shape, wanted.shape, strict=True)):
            values = values if have == want else np.take(values, np.arange(want) % have, axis=axis)
        return jax.device_put(
            jax.random.wrap_key_data(jnp.asarray(values)) if is_key(leaf) else values, wanted.sharding
        )

    fitted: TrainState = jax.tree.map(fit, state, like)
    return fitted


def is_key(leaf: Any) -> bool:
    """Whether an array holds random keys."""
    return bool(jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key))


# ---------------------------------------------------------------------------------------------------------- timing


def time_setting(setting: Setting, programs: TimedPrograms, first: TrainState, seconds: float) -> dict[str, Any]:
    """The row of a setting (speed.py has the schema). `first` is the state of the smallest setting."""
    with jax.default_device(setting.devices[0]):
        state = put(first, programs.state)
        actor, key = state.actor, jax.random.key(1)
        simulation = best_seconds(lambda n: programs.simulate(actor, key, jnp.int32(n)), seconds)
        loop = TimedLoop(programs, state)
        if setting.config.experiment.stored_frames:
            loop.run(1)  # fills the buffer, so that the next iteration can sample
        whole = best_seconds(loop.run, seconds, largest=programs.largest)
        collecting = best_seconds(loop.collect, seconds, largest=programs.largest)
        launch = min(elapsed(lambda: wait_for(loop.run(0))) for _ in range(ROUNDS))
        transfer = min(elapsed(loop.fetch_new) for _ in range(ROUNDS))
    parts = {
        "simulation": simulation,
        "acting": max(0.0, collecting - simulation),
        "update": max(0.0, whole - collecting),
        "whole": whole,
    }
    frames = programs.frames
    return {
        "device": setting.device,
        "devices": len(setting.devices),
        "environments": setting.environments,
        "frames_per_iteration": frames,
        "frames_per_second": {
            "simulation": frames / simulation,
            "acting": frames / collecting,
            "update": frames / max(parts["update"], 1e-9),
            "whole": frames / whole,
        },
        "seconds_per_iteration": parts,
        "iterations_per_chunk": max(1, min(programs.largest, int(1.0 / whole))),
        "launch_seconds": launch,
        "transfer_seconds": max(0.0, transfer - launch),
    }


class TimedLoop:
    """Training's loop, without anything between chunks."""

    def __init__(self, programs: TimedPrograms, state: TrainState):
        self._programs = programs
        self._state = state
        self._metrics: dict[str, Array] = {}

    def run(self, iterations: int) -> Any:
        """Runs iterations that collect and learn."""
        return self._run(0, iterations)

    def collect(self, iterations: int) -> Any:
        """Runs iterations that only collect."""
        return self._run(-iterations, iterations)

    def fetch_new(self) -> list[np.ndarray]:
        """Runs a chunk without iterations and fetches its metrics to the host."""
        self.run(0)
        return [np.asarray(values) for values in self._metrics.values()]

    def _run(self, start: int, iterations: int) -> Any:
        # JAX forgets how empty arrays are split over devices.
        state = jax.tree.map(
            lambda leaf, wanted: leaf if leaf.size else jax.device_put(leaf, wanted.sharding),
            self._state,
            self._programs.state,
        )
        number = jax.device_put(np.int32(start), self._programs.state.iteration.sharding)
        self._state, self._metrics = self._programs.advance(
            dataclasses.replace(state, iteration=number), jnp.int32(iterations)
        )
        return self._state, self._metrics


def best_seconds(run: Callable[[int], Any], seconds: float, largest: int = 1_000_000) -> float:
    """Seconds per repetition of `run`, which takes the number of repetitions. Spends about `seconds` in total."""
    first = elapsed(lambda: wait_for(run(1)))
    if first > 2 * seconds:
        return first
    repetitions = max(1, min(largest, int(seconds / ROUNDS / max(first, 1e-6))))
    return min(elapsed(lambda: wait_for(run(repetitions))) for _ in range(ROUNDS)) / repetitions


def wait_for(arrays: Any) -> None:
    """Waits until the device has computed all arrays of a tree."""
    jax.block_until_ready(arrays)


def elapsed(function: Callable[[], Any]) -> float:
    """Seconds that a call takes."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start
