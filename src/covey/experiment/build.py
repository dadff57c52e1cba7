"""From a configuration to compiled parts: environment, algorithm, loop, evaluator. Nothing runs here yet."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from jax.stages import Wrapped

from covey import metrics as names
from covey import registry
from covey.algorithms.base import Context, Hooks, make_group, make_team
from covey.data.buffer import Place
from covey.data.replay import make_replay
from covey.envs.base import Env, make_env_from_config
from covey.envs.batch import episode_values
from covey.envs.wrappers import AgentIds
from covey.errors import UsageError, unknown_name
from covey.experiment.config import BY_GROUP, CollectingConfig, Config, HooksConfig, ReplayConfig
from covey.experiment.devices import available_bytes, available_host_bytes
from covey.loops.evaluate import play_episodes
from covey.loops.online import DEVICE_AXIS, Learning, OnlineLoop, TrainState, make_online_loop
from covey.networks.network import Model
from covey.types import Algorithm, Array, Continuous, EnvSpec, Key, PyTree


@dataclasses.dataclass(frozen=True, kw_only=True)
class Parts:
    """What an experiment is made of. `evaluate(learner, key)`, compiled, gives per-episode values by metric name.

    With `num_seeds` > 1, loop and evaluation are of so many seeds at once (loops/online.py), each with a key.
    """

    env: Env
    algorithm: Algorithm
    loop: OnlineLoop
    evaluate: Wrapped
    deterministic: bool
    num_seeds: int = 1
    buffer_bytes: int = 0  # what a replay buffer takes


@dataclasses.dataclass(frozen=True, kw_only=True)
class Programs:
    """The compiled functions of an experiment, the same for every seed, and the seconds that compiling them took."""

    init: Callable[..., TrainState]
    run_chunk: Callable[..., tuple[TrainState, dict[str, Array]]]
    evaluate: Callable[..., dict[str, Array]]
    seconds: float


COMPILED_QUICKLY: dict[str, Any] = {  # on CPUs, for what runs once: compiling would take longer than it saves
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    "xla_cpu_use_fusion_emitters": False,
}


def compile_parts(parts: Parts, compiling: Callable[[str], AbstractContextManager[None]]) -> Programs:
    """Compiles ahead of any run, so that the time is known and not mixed with training's; `compiling` says what."""
    start = time.monotonic()
    key = example_key(parts.num_seeds)
    shapes = jax.eval_shape(parts.loop.init, key)
    state = jax.tree.map(
        lambda sharding, part: jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), part
        ),
        parts.loop.shardings,
        shapes,
        is_leaf=lambda x: isinstance(x, jax.sharding.Sharding),
    )
    with compiling("reset"):
        quickly = COMPILED_QUICKLY if jax.default_backend() == "cpu" else None
        init = parts.loop.init.lower(key).compile(compiler_options=quickly)
    with compiling("training"):
        compiled_chunk = parts.loop.run_chunk.lower(state, jnp.int32(1)).compile()

    def run_chunk(train_state: TrainState, num_iterations: Array) -> tuple[TrainState, dict[str, Array]]:
        # JAX forgets how empty arrays are split over devices, and compiled programs insist on it.
        fitting = jax.tree.map(
            lambda leaf, wanted: leaf if leaf.size else jax.device_put(leaf, wanted.sharding), train_state, state
        )
        return compiled_chunk(fitting, num_iterations)

    with compiling("evaluation"):
        evaluate = parts.evaluate.lower(state.learner, key).compile()
    return Programs(init=init, run_chunk=run_chunk, evaluate=evaluate, seconds=time.monotonic() - start)


def example_key(num_seeds: int) -> Key:
    """What starts one seed, or several at once, in type and shape."""
    return jax.random.key(0) if num_seeds == 1 else jax.random.split(jax.random.key(0), num_seeds)


def uncompiled(parts: Parts) -> Programs:
    """For `jit=false`."""
    return Programs(init=parts.loop.init, run_chunk=parts.loop.run_chunk, evaluate=parts.evaluate, seconds=0.0)


def build_env(config: Config) -> Env:
    """The environment as the algorithms see it."""
    env = make_env_from_config(config.task.registered, config.task.config)
    groups = groups_with_ids(config, env)
    return AgentIds(env, groups) if groups else env


def groups_with_ids(config: Config, env: Env) -> list[str]:
    """The groups whose agents are told who they are."""
    return [group for group in env.spec.groups if getattr(config.algorithm.of(group).config, "agent_ids", False)]


def build_algorithm(config: Config, env: Env, *, device_axis: str | None = None) -> Algorithm:
    """The team's: an algorithm for each group of agents."""
    groups, hooks = env.spec.groups, build_hooks(config.hooks)
    for kind in BY_GROUP:
        for name in getattr(config, kind).groups:
            if name not in groups:
                raise unknown_name(f"group in {kind}.groups", name, groups, see=f"task {config.task.name}")

    try:
        return make_team({group: build_group(config, env.spec, group, hooks, device_axis) for group in groups}, hooks)
    except ValueError as error:
        raise UsageError(f"algorithm '{config.algorithm.label}' on task '{config.task.name}': {error}") from error


def build_group(
    config: Config, spec: EnvSpec, group: str, hooks: Hooks = Hooks(), device_axis: str | None = None
) -> Algorithm:
    algorithm, model, critic = (getattr(config, kind).of(group) for kind in BY_GROUP)
    context = Context(
        model=Model(model.registered, model.config),
        critic_model=Model(critic.registered, critic.config),
        hooks=hooks,
        device_axis=device_axis,
    )
    return make_group(algorithm.registered, algorithm.config, spec, group, context)


def build_hooks(hooks: HooksConfig) -> Hooks:
    def find(name: str, path: str | None) -> Callable[..., Any] | None:
        if path is None:
            return None
        try:
            return registry.import_attribute(path)
        except (ImportError, AttributeError) as error:
            raise UsageError(f"hooks.{name}: cannot import '{path}': {error}") from error

    return Hooks(**{field.name: find(field.name, getattr(hooks, field.name)) for field in dataclasses.fields(hooks)})


def build(config: Config, devices: list[Any], num_seeds: int = 1) -> Parts:
    env = build_env(config)
    algorithm = build_algorithm(config, env, device_axis=DEVICE_AXIS if len(devices) > 1 else None)
    experiment = config.experiment
    assert isinstance(experiment, CollectingConfig)
    loop = make_online_loop(
        env,
        algorithm,
        num_envs=experiment.num_envs,
        rollout_length=experiment.rollout_length,
        schedule_frames=experiment.schedule_frames or experiment.frames,
        shaping_frames=experiment.shaping_frames,
        stagger=experiment.stagger,
        learning=build_learning(config, algorithm, len(devices)),
        hooks=build_hooks(config.hooks),
        devices=devices,
        together=num_seeds > 1,
    )
    check_best_by(config, env.spec)
    check_update(config, loop, num_seeds)
    buffer_bytes = check_buffer(config, loop, devices, num_seeds)
    deterministic = is_deterministic(config, env)
    evaluate = make_evaluate(
        env, algorithm, experiment.evaluation_episodes, deterministic, devices, together=num_seeds > 1
    )
    return Parts(
        env=env,
        algorithm=algorithm,
        loop=loop,
        evaluate=evaluate,
        deterministic=deterministic,
        num_seeds=num_seeds,
        buffer_bytes=buffer_bytes,
    )


def build_learning(config: Config, algorithm: Algorithm, num_devices: int) -> Learning | None:
    """Learning from replay, for algorithms that do."""
    experiment = config.experiment
    if not isinstance(experiment, ReplayConfig):
        return None
    rows = experiment.buffer.size // experiment.num_envs
    if rows < experiment.rollout_length:
        raise UsageError(
            f"buffer.size={experiment.buffer.size} over num_envs={experiment.num_envs} leaves {rows} steps for each "
            f"environment, fewer than rollout_length={experiment.rollout_length}"
        )
    try:
        replay = make_replay(
            experiment.buffer,
            num_envs=experiment.num_envs // num_devices,
            sequence_length=algorithm.sequence_length,
            num_devices=num_devices,
            device_axis=DEVICE_AXIS if num_devices > 1 else None,
        )
    except ValueError as error:
        raise UsageError(f"experiment: {error}") from error
    return Learning(replay=replay, num_updates=experiment.updates, random_frames=experiment.random_frames)


def check_buffer(config: Config, loop: OnlineLoop, devices: list[Any], num_seeds: int) -> int:
    """The bytes of the replay buffer, of all seeds that train at once; raises where the memory cannot hold them."""
    if not isinstance(config.experiment, ReplayConfig):
        return 0
    buffer = jax.eval_shape(loop.init, example_key(num_seeds)).buffer
    needed = sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(buffer))
    in_host = config.experiment.buffer.place is Place.host
    available = available_host_bytes() if in_host else available_bytes(devices)
    if available is not None and needed > available:
        size = config.experiment.buffer.size
        at_once = f" for {num_seeds} seeds at once" if num_seeds > 1 else ""
        fewer = ", or fewer seeds at once (experiment.seeds_at_once)" if num_seeds > 1 else ""
        raise UsageError(
            f"buffer.size={size:,}{at_once} takes {needed / 1e6:,.0f} MB and {available / 1e6:,.0f} MB are free; "
            f"{int(size * available / needed * 0.8):,} would fit{fewer}"
        )
    return needed


def check_best_by(config: Config, spec: EnvSpec) -> None:
    known = [names.MEAN_RETURN, *map(names.group_return, spec.groups), *spec.metrics]
    if config.experiment.best_by not in known:
        see = f"task {config.task.name} has {', '.join(known)}"
        raise unknown_name("metric in experiment.best_by", config.experiment.best_by, known, see)


def check_update(config: Config, loop: OnlineLoop, num_seeds: int) -> None:
    """Traces an iteration without compiling it: what cannot fit together is found here, before anything starts."""
    try:
        jax.eval_shape(loop.run_chunk, jax.eval_shape(loop.init, example_key(num_seeds)), 1)
    except ValueError as error:
        raise UsageError(f"algorithm '{config.algorithm.label}' on task '{config.task.name}': {error}") from error


def is_deterministic(config: Config, env: Env) -> bool:
    """Whether evaluation is greedy: as asked for, or for Q-learning, or where all actions are continuous."""
    asked = config.experiment.evaluation_deterministic
    if asked is not None:
        return asked
    return all(
        isinstance(spec.action, Continuous) or getattr(config.algorithm.of(group).config, "evaluates_greedily", False)
        for group, spec in env.spec.groups.items()
    )


def make_evaluate(
    env: Env,
    algorithm: Algorithm,
    num_episodes: int,
    deterministic: bool,
    devices: list[Any],
    together: bool = False,
) -> Wrapped:
    """Plays exactly `num_episodes`, split over the devices; of several seeds `together`, so many each: `[S, …]`."""
    per_device = math.ceil(num_episodes / len(devices))

    def play(learner: PyTree, key: Key) -> dict[str, Array]:
        if len(devices) > 1:
            key = jax.random.fold_in(key, jax.lax.axis_index(DEVICE_AXIS))
        episodes = play_episodes(env, algorithm, learner, key, num_episodes=per_device, deterministic=deterministic)
        return episode_values(episodes)

    if together:
        play = jax.vmap(play)
    if len(devices) > 1:
        mesh = Mesh(devices, (DEVICE_AXIS,))
        split = P(None, DEVICE_AXIS) if together else P(DEVICE_AXIS)
        play = jax.shard_map(play, mesh=mesh, in_specs=(P(), P()), out_specs=split, check_vma=False)
    return jax.jit(lambda learner, key: jax.tree.map(lambda x: x[..., :num_episodes], play(learner, key)))
