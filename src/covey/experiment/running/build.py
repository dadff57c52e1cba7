"""From a configuration to the parts of an experiment: environment, algorithm, loop, evaluator. Nothing runs here."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from jax.stages import Wrapped

from covey import metrics as names
from covey import registry
from covey.algorithms.base import Context, Hooks, make_group, make_team
from covey.algorithms.seats import Seating, seat_partners, taken_groups
from covey.envs.base import Env, make_env_from_config
from covey.envs.batch import episode_values
from covey.envs.host.env import simulator_of
from covey.envs.host.pool import Pool
from covey.envs.wrappers import AgentIds
from covey.errors import CoveyError, UnfitInput, UsageError, unknown_name
from covey.experiment.configuration.config import (
    BY_GROUP,
    CHOICES,
    Choice,
    Config,
    HooksConfig,
    from_dict,
    own_modules,
    to_dict,
)
from covey.experiment.configuration.partners import taken_whole
from covey.experiment.running.devices import available_bytes, available_host_bytes, start_jax
from covey.loops.actor_learner import acting_device, workers_of
from covey.loops.base import DEVICE_AXIS, Elsewhere, Loop, LoopInputs, num_bytes, state_shapes
from covey.loops.config import ActorsConfig
from covey.loops.evaluate import play_episodes
from covey.loops.pool_evaluation import PoolEvaluation
from covey.networks.network import Model
from covey.ops.random import host_key
from covey.types import Algorithm, Array, Continuous, EnvSpec, Key, PyTree

# evaluate(learner, key) -> per-episode values by metric name: compiled, or where simulators play, a Future of them
Evaluate = Wrapped | PoolEvaluation


@dataclasses.dataclass(frozen=True, kw_only=True)
class Parts:
    """What an experiment is made of: see `Evaluate` and `Loop`.

    With `num_seeds` > 1, the loop and the evaluation run this many seeds in one program (loops/online.py), each with a
    key of its own.
    """

    env: Env
    algorithm: Algorithm
    loop: Loop
    evaluate: Evaluate
    deterministic: bool
    devices: list[Any]
    num_seeds: int = 1
    stored_bytes: int = 0  # what stored experience takes, such as a replay buffer
    seating: Seating | None = None  # partners, who play and do not learn

    @property
    def partners(self) -> PyTree:
        """What partners act with."""
        return () if self.seating is None else self.seating.acting

    @property
    def opponents(self) -> tuple[str, ...]:
        """The groups that partners play as a whole."""
        return taken_groups(self.algorithm, self.env.spec)

    def close(self) -> None:
        """Ends the processes that loop and evaluation started; they start others if they are used again."""
        self.loop.close()
        if isinstance(self.evaluate, PoolEvaluation):
            self.evaluate.close()


def example_key(num_seeds: int) -> Key:
    """A key, or several, of the type and shape that start one seed or several at once."""
    return host_key(0) if num_seeds == 1 else jax.random.split(jax.random.key(0), num_seeds)


def build_env(config: Config) -> Env:
    """The environment as the algorithms see it."""
    env = make_env_from_config(config.task.registered, config.task.config)
    groups = groups_with_ids(config, env)
    return AgentIds(env, groups) if groups else env


def groups_with_ids(config: Config, env: Env) -> list[str]:
    """The groups whose agents are told who they are."""
    return [group for group in env.spec.groups if config.algorithm.of(group).config.agent_ids]


def build_algorithm(config: Config, env: Env, *, device_axis: str | None = None) -> Algorithm:
    """The team's algorithm: one for each group of agents, except groups that partners play as a whole."""
    groups, hooks = env.spec.groups, build_hooks(config.hooks)
    for kind in BY_GROUP:
        for name in getattr(config, kind).groups:
            if name not in groups:
                raise unknown_name(f"group in {kind}.groups", name, groups, see=f"task {config.task.name}")
            if name in taken_whole(config.partners, groups):
                raise UsageError(f"{kind}.groups.{name} has no effect: partners.{name} plays the whole group")

    with _unfit(config):
        own = learning_groups(config, env.spec)
        spec = apart_from(env.spec, set(env.spec.groups) - set(own))
        return make_team({group: build_group(config, spec, group, hooks, device_axis) for group in own}, hooks)


def apart_from(spec: EnvSpec, taken: Collection[str]) -> EnvSpec:
    """`spec` for algorithms to learn in where partners play the groups in `taken`.

    These groups do not learn, so no critic or mixer of another group sees them: each is made a team of its own.
    """
    if not taken:
        return spec

    def rest(groups: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(group for group in groups if group not in taken)

    teams = [team for team in map(rest, spec.cooperating) if team] + [(group,) for group in taken]
    shared = [sharing for sharing in map(rest, spec.shared_rewards) if len(sharing) > 1]
    return dataclasses.replace(spec, teams=tuple(teams), shared_rewards=tuple(shared))


def learning_groups(config: Config, spec: EnvSpec) -> list[str]:
    """The groups with agents that learn."""
    taken = taken_whole(config.partners, spec.groups)
    return [group for group in spec.groups if group not in taken]


def build_group(
    config: Config, spec: EnvSpec, group: str, hooks: Hooks = Hooks(), device_axis: str | None = None
) -> Algorithm:
    algorithm, model, critic = (getattr(config, kind).of(group) for kind in BY_GROUP)
    context = Context(
        model=Model(model.registered, model.config),
        critic_model=Model(critic.registered, critic.config),
        hooks=hooks,
        device_axis=device_axis,
        same_algorithm=tuple(
            name for name in spec.groups if config.algorithm.of(name).registered == algorithm.registered
        ),
    )
    try:
        return make_group(algorithm.registered, algorithm.config, spec, group, context)
    except UnfitInput as error:
        has_entries = isinstance(spec.groups[group].observation_shape, Mapping)  # ids are then an entry of their own
        if error.note or has_entries or not algorithm.config.agent_ids:
            raise
        ids = f" ({spec.groups[group].num_agents} of the last axis are agent ids; algorithm.agent_ids=false omits them)"
        raise error.replace(note=ids) from error


def build_hooks(hooks: HooksConfig) -> Hooks:
    def find(name: str, path: str | None) -> Callable[..., Any] | None:
        if path is None:
            return None
        try:
            function: Callable[..., Any] = registry.import_attribute(path)
            return function
        except (ImportError, AttributeError) as error:
            raise UsageError(f"hooks.{name}: cannot import '{path}': {error}") from error

    return Hooks(**{field.name: find(field.name, getattr(hooks, field.name)) for field in dataclasses.fields(hooks)})


def build(
    config: Config, devices: list[Any], num_seeds: int = 1, *, trace: bool = True, seating: Seating | None = None
) -> Parts:
    """The parts, checked, with the partners of `seating` in their seats.

    An iteration is traced to check that everything fits together. Without `trace` it is not: a program that was
    compiled before has shown that.
    """
    env = build_env(config)
    experiment = config.experiment
    algorithm, loop = build_learning(config, env, devices, num_seeds, seating)
    check_best_by(config, env.spec)
    shapes = init_shapes(config, loop, num_seeds)
    check_memory(config, loop, shapes, devices)
    if trace:
        check_update(config, loop, shapes)
    stored_bytes = check_stored(config, loop, shapes, devices, num_seeds)
    deterministic = is_deterministic(config, env)
    evaluate = make_evaluate(
        env,
        algorithm,
        experiment.evaluation_episodes,
        deterministic,
        devices,
        together=num_seeds > 1,
        opponents=taken_groups(algorithm, env.spec),
        actors=experiment.actors_config,
    )
    return Parts(
        env=env,
        algorithm=algorithm,
        loop=loop,
        evaluate=evaluate,
        deterministic=deterministic,
        devices=devices,
        num_seeds=num_seeds,
        stored_bytes=stored_bytes,
        seating=seating,
    )


def build_learning(
    config: Config, env: Env, devices: list[Any], num_seeds: int, seating: Seating | None
) -> tuple[Algorithm, Loop]:
    """The team's algorithm, with partners in their seats, and the loop that it learns in."""
    algorithm = seated(
        build_algorithm(config, env, device_axis=DEVICE_AXIS if len(devices) > 1 else None), env, seating
    )
    return algorithm, build_loop(config, env, algorithm, devices, num_seeds, seating)


def seated(algorithm: Algorithm, env: Env, seating: Seating | None) -> Algorithm:
    """The team's algorithm with the partners of `seating`, if there are any."""
    return seat_partners(algorithm, seating.seats, env.spec, rotate=seating.rotate) if seating else algorithm


def build_loop(
    config: Config,
    env: Env,
    algorithm: Algorithm,
    devices: list[Any],
    num_seeds: int = 1,
    seating: Seating | None = None,
) -> Loop:
    """The registered loop that `experiment.loop` names."""
    make = registry.loops[config.experiment.loop].make_function()
    inputs = loop_inputs(config, env, algorithm, devices, num_seeds, seating)
    try:
        loop: Loop = make(inputs)
    except ValueError as error:
        raise UsageError(f"experiment: {error}") from error
    return loop


def loop_inputs(
    config: Config,
    env: Env,
    algorithm: Algorithm,
    devices: list[Any],
    num_seeds: int = 1,
    seating: Seating | None = None,
) -> LoopInputs:
    """What the loop is made from."""
    return LoopInputs(
        config=config.experiment,
        env=env,
        algorithm=algorithm,
        hooks=build_hooks(config.hooks),
        devices=devices,
        num_seeds=num_seeds,
        compile_steps=registry.tasks[config.task.registered].built_in,
        elsewhere=Elsewhere(
            make=functools.partial(loop_inputs_elsewhere, to_dict(config), seating.elsewhere if seating else None),
            modules=own_modules(config),
        ),
    )


def loop_inputs_elsewhere(values: Mapping[str, Any], seating: Callable[[], Seating] | None) -> LoopInputs:
    """`loop_inputs` in another process, of a configuration's plain form, for one device of its CPU.

    The user's code is imported there."""
    config = from_dict(values)
    devices = start_jax("cpu", 1)
    env = build_env(config)
    return loop_inputs(config, env, seated(build_algorithm(config, env), env, seating() if seating else None), devices)


def check_stored(config: Config, loop: Loop, state: PyTree, devices: list[Any], num_seeds: int) -> int:
    """The bytes of stored experience, of all seeds that train at once; raises where the memory cannot hold them."""
    sizes = loop.sizes(state)
    if not sizes.stored:
        return 0
    available = available_host_bytes() if sizes.stored_in_host else available_bytes(devices)
    if available is not None and sizes.stored > available:
        frames = config.experiment.stored_frames
        at_once = f" for {num_seeds} seeds at once" if num_seeds > 1 else ""
        fewer = ", or fewer seeds at once (experiment.seeds_at_once)" if num_seeds > 1 else ""
        raise UsageError(
            f"{sizes.stored_by}={frames:,}{at_once} takes {sizes.stored / 1e6:,.0f} MB and {available / 1e6:,.0f} MB "
            f"are free; {int(frames * available / sizes.stored * 0.8):,} would fit{fewer}"
        )
    return sizes.stored


def check_memory(config: Config, loop: Loop, state: PyTree, devices: list[Any]) -> None:
    """Raises UsageError where training cannot fit into the memory, whatever the compiler makes of it.

    It counts what certainly exists at the same time: the learner and the best one so far on each device, what the loop
    says that it holds, and the episodes of an evaluation.
    """
    sizes = loop.sizes(state)
    needed = {
        "networks and optimisers": 2 * num_bytes(loop.learner(state)) * len(devices),
        **sizes.held,
        "an evaluation": sizes.environment * config.experiment.evaluation_episodes,
    }
    available = available_bytes(devices)
    if available is not None and sum(needed.values()) > available:
        parts = ", ".join(f"{name} {size / 1e6:,.0f}" for name, size in needed.items())
        fields = ["model.layers", *(f"experiment.{name}" for name in sizes.held_by)]
        raise UsageError(
            f"training takes at least {sum(needed.values()) / 1e6:,.0f} MB ({parts}) and {available / 1e6:,.0f} MB are "
            f"free; {', '.join(fields)} and experiment.evaluation_episodes set these sizes"
        )


def init_shapes(config: Config, loop: Loop, num_seeds: int) -> PyTree:
    """The shapes of a loop's state."""
    with _unfit(config):
        return state_shapes(loop, example_key(num_seeds))


def check_best_by(config: Config, spec: EnvSpec) -> None:
    known = [names.MEAN_RETURN, *map(names.group_return, spec.groups), *spec.metrics]
    if config.experiment.best_by not in known:
        see = f"task {config.task.name} has {', '.join(known)}"
        raise unknown_name("metric in experiment.best_by", config.experiment.best_by, known, see)


def check_update(config: Config, loop: Loop, shapes: PyTree) -> None:
    """Traces an iteration without compiling it: what cannot fit together is found here, before anything starts."""
    with _unfit(config):
        if loop.check is not None:
            loop.check(shapes)
        elif loop.jitted is not None:
            loop.jitted.trace(shapes, np.int32(1))


@contextlib.contextmanager
def _unfit(config: Config) -> Iterator[None]:
    """Turns errors of tracing into UsageErrors: all errors if all code is covey's, otherwise only ValueErrors."""
    try:
        yield
    except CoveyError:
        raise
    except Exception as error:
        if has_own_code(config) and not isinstance(error, ValueError):
            raise
        what = f"algorithm '{config.algorithm.label}' on task '{config.task.name}'"
        raise UsageError(f"{what}: {str(error) or type(error).__name__}") from error


def has_own_code(config: Config) -> bool:
    """Whether a part of the experiment is not covey's: a user's task, model, algorithm, loop, hook or callback."""
    if config.imports or config.callbacks or any(vars(config.hooks).values()):
        return True
    if not registry.loops[config.experiment.loop].built_in:
        return True
    chosen = [(kind, choice) for kind in CHOICES for choice in _all_choices(kind, getattr(config, kind))]
    return not all(
        CHOICES[kind][choice.registered].built_in and type(choice.config).__module__.startswith("covey.")
        for kind, choice in chosen
    )


def _all_choices(kind: str, choice: Choice) -> Iterator[Choice]:
    yield choice
    if kind in BY_GROUP:
        yield from choice.groups.values()


def is_deterministic(config: Config, env: Env) -> bool:
    """Whether evaluation is greedy: as asked for, or for Q-learning, or where all actions are continuous."""
    asked = config.experiment.evaluation_deterministic
    if asked is not None:
        return asked

    def is_greedy(group: str) -> bool:
        return registry.algorithms[config.algorithm.of(group).registered].capabilities.evaluates_greedily

    groups = env.spec.groups
    own = learning_groups(config, env.spec)
    return all(isinstance(groups[group].action, Continuous) or is_greedy(group) for group in own)


def make_evaluate(
    env: Env,
    algorithm: Algorithm,
    num_episodes: int,
    deterministic: bool,
    devices: list[Any],
    together: bool = False,
    opponents: Collection[str] = (),
    actors: ActorsConfig | None = None,
) -> Evaluate:
    """Plays exactly `num_episodes`, split over the devices. With several seeds `together`, each plays them: `[S, …]`.

    Groups that `opponents` play are not in `mean_return`. Simulators are stepped in processes, as `actors` says."""
    source = simulator_of(env)
    if source is not None:
        actors = actors or ActorsConfig()
        return PoolEvaluation(
            env,
            algorithm,
            functools.partial(Pool, source, num_workers=workers_of(actors), seconds=actors.step_seconds),
            num_episodes=num_episodes,
            num_copies=actors.evaluation_copies,
            deterministic=deterministic,
            device=acting_device(devices),
            opponents=opponents,
        )
    per_device = math.ceil(num_episodes / len(devices))
    scored = names.scored_groups(env.spec.cooperating, opponents)

    def play(learner: PyTree, key: Key) -> dict[str, Array]:
        if len(devices) > 1:
            key = jax.random.fold_in(key, jax.lax.axis_index(DEVICE_AXIS))
        acting = algorithm.acting(learner)
        episodes = play_episodes(env, algorithm, acting, key, num_episodes=per_device, deterministic=deterministic)
        return episode_values(episodes, scored)

    if together:
        play = jax.vmap(play)
    if len(devices) > 1:
        mesh = Mesh(devices, (DEVICE_AXIS,))
        split = P(None, DEVICE_AXIS) if together else P(DEVICE_AXIS)
        play = jax.shard_map(play, mesh=mesh, in_specs=(P(), P()), out_specs=split, check_vma=False)
    return jax.jit(lambda learner, key: jax.tree.map(lambda x: x[..., :num_episodes], play(learner, key)))
