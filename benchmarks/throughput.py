"""Frames per second of IPPO, and where they go.

64 environments, rollouts of 128, 4 epochs of 2 minibatches, two layers of 128. Per task:

  simulation the task alone, on request: actions drawn beforehand, no episode ends, nothing is counted
  stepping   environments as algorithms see them: uniform legal actions, auto-reset and statistics included
  acting     stepping with the networks acting, everything kept that an update needs: rate a
  updating   updates alone, over and over on one batch: rate b
  gradients  on request: the networks' gradients on as many rows as an update reads, written out plainly; no other work
  training   the compiled loop as `covey train` runs it
  ratio      training / (1 / (1/a + 1/b)): 1 if no time is lost between collecting and updating

`--scaling environments` and `--scaling agents` repeat this over numbers of environments or of agents (for tasks with a
field `num_agents`). `--jaxmarl` compares with JaxMARL on MPE at its own settings (4 minibatches, two layers of 64 with
tanh; agents are not told who they are, and episodes begin together): covey's training on two devices over the rate at
which JaxMARL's environment is stepped with random actions and nothing else is done, by one thread on one core and with
the threads that JAX starts by itself (as JaxMARL's users run it; handing work to and fro makes it slower). JaxMARL's
own loop reaches 0.16. Each runs in a separate process, in turn. Beside it is the rate of an
update that only computes its networks' gradients, as XLA does by itself.
"""

from __future__ import annotations

import dataclasses
import itertools
import sys
from argparse import Namespace
from collections.abc import Callable
from typing import Any

import common
import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from covey.algorithms.random import make_random_team
from covey.envs.base import Env, make_env_from_config
from covey.envs.batch import BatchedEnv
from covey.errors import CoveyError
from covey.experiment.configuration.compose import compose
from covey.experiment.configuration.config import Config
from covey.experiment.running.build import Parts, build
from covey.loops.base import DEVICE_AXIS
from covey.loops.config import OnlineConfig
from covey.loops.online import TrainState, add_device_axis, drop_device_axis
from covey.loops.rollout import collect
from covey.observations import flat_size
from covey.ops.blocks import MAX_ROWS_PER_BLOCK
from covey.types import Array, Batch, Discrete, Key, PyTree, TimeStep

TASKS = ("rware/tiny-4ag", "lbf/8x8-2p-2f-coop", "mpe/simple_spread", "smax/2s3z")
PARTS = ("stepping", "acting", "updating", "training")
ON_REQUEST = ("simulation", "gradients")
NUM_ACTIONS = 10  # sets of actions that `simulation` takes in turn
TARGET, JAXMARL_TARGET = 0.70, 0.40
NUM_ENVIRONMENTS = (1, 16, 64, 256, 1024, 4096)
NUM_AGENTS = (2, 4, 8, 16)
JAXMARL_SETTINGS = (
    *("--task", "mpe/simple_spread", "--minibatches", "4", "--layers", "64", "64", "--activation", "tanh"),
    *("--overrides", "algorithm.agent_ids=false", "experiment.stagger=false"),
)


def main(arguments: list[str] | None = None) -> None:
    options = parse(arguments)
    if options.jaxmarl:
        return compare_with_jaxmarl(options)
    if options.jaxmarl_stepping:
        return report_jaxmarl_stepping(options)
    devices = common.start(options.devices, options.cores)
    rows = []
    for task in options.task or default_tasks(options):
        for overrides in variants(options, task):
            rows.append(measure_task(options, task, overrides, devices))
            print_row(rows[-1])
    common.write_figures(options.output, {"settings": settings(options), "rows": rows, "target": TARGET})


def parse(arguments: list[str] | None) -> Namespace:
    parser = common.make_parser(__doc__)
    parser.add_argument("--task", nargs="+", help=f"default: {' '.join(TASKS)}")
    parser.add_argument("--devices", type=int, default=1, help="CPU devices, one thread each (default 1)")
    parser.add_argument("--cores", type=int, nargs="+", help="the cores to run on; default: the system chooses")
    parser.add_argument("--parts", nargs="+", choices=ON_REQUEST + PARTS, default=PARTS, help="what to time")
    parser.add_argument("--environments", type=int, default=64)
    parser.add_argument("--rollout", type=int, default=128)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--minibatches", type=int, default=2)
    parser.add_argument("--layers", type=int, nargs="+", default=[128, 128])
    parser.add_argument("--activation", default="relu")
    parser.add_argument("--overrides", nargs="+", default=[], help="further ones, as of `covey train`")
    parser.add_argument("--scaling", choices=("environments", "agents"), help="repeat over numbers of these")
    parser.add_argument("--numbers", type=int, nargs="+", help=f"for --scaling: {NUM_ENVIRONMENTS} or {NUM_AGENTS}")
    parser.add_argument("--jaxmarl", action="store_true", help="the comparison with JaxMARL")
    parser.add_argument("--jaxmarl-stepping", action="store_true", help="only how fast JaxMARL's environment steps")
    parser.add_argument("--rounds", type=int, default=5, help="repetitions, of which the best counts")
    parser.add_argument("--seconds", type=float, default=1.0, help="for each part, each round")
    return parser.parse_args(arguments)


def settings(options: Namespace) -> dict[str, Any]:
    return {name: value for name, value in vars(options).items() if name != "output"}


def default_tasks(options: Namespace) -> tuple[str, ...]:
    return ("mpe/simple_spread",) if options.scaling == "agents" else TASKS


def variants(options: Namespace, task: str) -> list[list[str]]:
    """The overrides of each measurement of a task: one, or one for each number that scaling asks for."""
    if options.scaling == "environments":
        numbers = [n for n in options.numbers or NUM_ENVIRONMENTS if n % options.devices == 0]
        return [[f"experiment.num_envs={n}"] for n in numbers]
    if options.scaling == "agents":
        # Spreading over landmarks needs as many landmarks as agents.
        with_landmarks = task == "mpe/simple_spread"
        return [
            [f"task.num_agents={n}", *([f"task.num_landmarks={n}"] if with_landmarks else [])]
            for n in options.numbers or NUM_AGENTS
        ]
    return [[]]


# ----------------------------------------------------------------------------------------------------------- covey


def measure_task(options: Namespace, task: str, overrides: list[str], devices: list[Any]) -> dict[str, Any]:
    config = make_config(options, task, overrides)
    parts = build(config, devices)
    makers: dict[str, Callable[[Config, Parts, list[Any]], common.Program]] = {
        "simulation": make_simulation,
        "stepping": make_stepping,
        "acting": make_acting,
        "updating": make_updating,
        "gradients": make_gradients,
        "training": make_training,
    }
    programs = {name: makers[name](config, parts, devices) for name in options.parts}
    timings = common.measure(programs, seconds=options.seconds, rounds=options.rounds)
    frames = parts.loop.frames_per_iteration
    rates = {name: frames / timing.wall for name, timing in timings.items()}
    row: dict[str, Any] = {"task": task, "overrides": overrides, "devices": len(devices), "frames_per_second": rates}
    row["frames_per_cpu_second"] = {name: frames / timing.cpu for name, timing in timings.items()}
    if {"acting", "updating", "training"} <= rates.keys():
        row["without_loss"] = 1 / (1 / rates["acting"] + 1 / rates["updating"])
        row["ratio"] = rates["training"] / row["without_loss"]
    if "stepping" in rates and "acting" in rates:
        microseconds = {name: 1e6 / rates[name] for name in rates}
        row["microseconds_per_frame"] = microseconds | {"acting": microseconds["acting"] - microseconds["stepping"]}
    return row


def print_row(row: dict[str, Any]) -> None:
    where = f"{row['task']} {' '.join(row['overrides'])}".strip()
    print(f"{where}, {row['devices']} device{'s' if row['devices'] > 1 else ''}")
    for name, rate in row["frames_per_second"].items():
        print(f"  {name:<9} {rate:12,.0f} frames/s")
    if "microseconds_per_frame" in row:
        split = [f"{name} {us:.2f}" for name, us in row["microseconds_per_frame"].items() if name != "training"]
        print(f"  split     {', '.join(split)} us per frame")
    if "ratio" in row:
        ratio, without_loss = common.verdict(row["ratio"], TARGET), row["without_loss"]
        print(f"  ratio     {ratio}, of {without_loss:,.0f} frames/s without loss")
    sys.stdout.flush()


def make_config(options: Namespace, task: str, overrides: list[str]) -> Config:
    layers = f"[{','.join(map(str, options.layers))}]"
    try:
        return compose(
            [
                "algorithm=ippo",
                f"task={task}",
                *(f"{model}=mlp" for model in ("model", "critic_model")),
                *(f"{model}.layers={layers}" for model in ("model", "critic_model")),
                *(f"{model}.activation={options.activation}" for model in ("model", "critic_model")),
                f"algorithm.epochs={options.epochs}",
                f"algorithm.num_minibatches={options.minibatches}",
                f"experiment.num_envs={options.environments}",
                f"experiment.rollout_length={options.rollout}",
                f"experiment.devices={options.devices}",
                "experiment.platform=cpu",
                *options.overrides,
                *overrides,
            ]
        )
    except CoveyError as error:
        sys.exit(str(error))


def batched(config: Config, env: Env, devices: list[Any]) -> BatchedEnv:
    assert isinstance(config.experiment, OnlineConfig)
    return BatchedEnv(env=env, num_envs=config.experiment.num_envs // len(devices))


def rollout_length(config: Config) -> int:
    assert isinstance(config.experiment, OnlineConfig)
    return config.experiment.rollout_length


def over_devices(function: Callable[..., Any], devices: list[Any], in_specs: Any, out_specs: Any) -> Callable[..., Any]:
    """`function` compiled, on every device at once; what is split over devices has a leading axis of them."""
    mesh = Mesh(devices, (DEVICE_AXIS,))
    return jax.jit(jax.shard_map(function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False))


SPLIT, EVERYWHERE = P(DEVICE_AXIS), P()


def make_simulation(config: Config, parts: Parts, devices: list[Any]) -> common.Program:
    """All that a task computes in a step: next state, observations, rewards, whether it ended, its own metrics."""
    env = make_env_from_config(config.task.registered, config.task.config)
    num_envs = batched(config, env, devices).num_envs
    team = make_random_team(env.spec)

    def init(key: Key) -> tuple[PyTree, PyTree]:
        key_reset, key_act = jax.random.split(jax.random.fold_in(key, jax.lax.axis_index(DEVICE_AXIS)))
        state, timestep = jax.vmap(env.reset)(jax.random.split(key_reset, num_envs))
        keys = jax.random.split(key_act, NUM_ACTIONS)
        actions = jax.lax.map(lambda key: team.act((), timestep, (), key, True)[0], keys)
        return add_device_axis(((state, what_is_seen(timestep)), actions))

    def play(repetitions: Array, state: PyTree, actions: PyTree, key: Key) -> PyTree:
        actions = drop_device_axis(actions)

        def step(state: PyTree, inputs: tuple[Array, Key]) -> tuple[PyTree, None]:
            i, key_step = inputs
            action = jax.tree.map(lambda x: x[i % NUM_ACTIONS], actions)
            env_state, timestep = jax.vmap(env.step)(state[0], action, jax.random.split(key_step, num_envs))
            return (env_state, what_is_seen(timestep)), None

        def rollout(i: Array, state: PyTree) -> PyTree:
            length = rollout_length(config)
            keys = jax.random.split(jax.random.fold_in(key, i), length)
            return jax.lax.scan(step, state, (jnp.arange(length), keys))[0]

        return add_device_axis(jax.lax.fori_loop(0, repetitions, rollout, drop_device_axis(state)))

    state, actions = over_devices(init, devices, (EVERYWHERE,), SPLIT)(jax.random.key(0))
    run = over_devices(play, devices, (EVERYWHERE, SPLIT, SPLIT, EVERYWHERE), SPLIT)
    return common.Program(run=lambda n: run(jnp.int32(n), state, actions, jax.random.key(1)))


def what_is_seen(timestep: TimeStep) -> PyTree:
    """A time step without what a task returns twice: until an episode ends, the next observation is the observation."""
    groups = {
        name: (group.observation, group.reward, group.terminated, group.alive)
        for name, group in timestep.groups.items()
    }
    return groups, timestep.last, timestep.metrics


def make_stepping(config: Config, parts: Parts, devices: list[Any]) -> common.Program:
    env = batched(config, parts.env, devices)
    team = make_random_team(env.spec)

    def init(key: Key) -> PyTree:
        return add_device_axis(env.reset(jax.random.fold_in(key, jax.lax.axis_index(DEVICE_AXIS))))

    def play(repetitions: Array, state: PyTree, key: Key) -> PyTree:
        def step(state: PyTree, key_step: Key) -> tuple[PyTree, None]:
            key_act, key_env = jax.random.split(key_step)
            env_state, timestep = state
            actions, _, _ = team.act((), timestep, (), key_act, True)
            env_state, timestep, _ = env.step(env_state, actions, key_env)
            return (env_state, timestep), None

        def rollout(i: Array, state: PyTree) -> PyTree:
            return jax.lax.scan(step, state, jax.random.split(jax.random.fold_in(key, i), rollout_length(config)))[0]

        return add_device_axis(jax.lax.fori_loop(0, repetitions, rollout, drop_device_axis(state)))

    state = over_devices(init, devices, (EVERYWHERE,), SPLIT)(jax.random.key(0))
    run = over_devices(play, devices, (EVERYWHERE, SPLIT, EVERYWHERE), SPLIT)
    return common.Program(run=lambda n: run(jnp.int32(n), state, jax.random.key(1)))


def make_acting(config: Config, parts: Parts, devices: list[Any]) -> common.Program:
    env = batched(config, parts.env, devices)

    def play(repetitions: Array, learner: PyTree, actor: PyTree, key: Key) -> tuple[PyTree, Array]:
        acting = parts.algorithm.acting(learner)

        def rollout(i: Array, loop: tuple[PyTree, Array]) -> tuple[PyTree, Array]:
            actor, total = loop
            key_rollout = jax.random.fold_in(key, i)
            actor, batch, sums = collect(env, parts.algorithm, acting, actor, key_rollout, rollout_length(config))
            return actor, total + checksum((what_updates_read(batch), sums))

        loop = jax.lax.fori_loop(0, repetitions, rollout, (drop_device_axis(actor), jnp.zeros(())))
        return add_device_axis(loop)

    state = parts.loop.init(jax.random.key(0))
    run = over_devices(play, devices, (EVERYWHERE, EVERYWHERE, SPLIT, EVERYWHERE), SPLIT)
    return common.Program(run=lambda n: run(jnp.int32(n), state.learner, state.actor, jax.random.key(1)))


def what_updates_read(batch: Batch) -> PyTree:
    """A batch without what PPO never reads, and the compiler therefore never stores in training."""
    return [
        dataclasses.replace(transitions, action=jnp.zeros(()), next_observation=jnp.zeros(()), next_state=None)
        for transitions in batch.transitions.values()
    ]


def checksum(tree: PyTree) -> Array:
    """Makes the compiler compute all of `tree`."""
    return jnp.asarray(sum(jnp.sum(leaf, dtype=jnp.float32) for leaf in jax.tree.leaves(tree)))


def make_updating(config: Config, parts: Parts, devices: list[Any]) -> common.Program:
    env = batched(config, parts.env, devices)

    def collect_batch(learner: PyTree, actor: PyTree, key: Key) -> Batch:
        key = jax.random.fold_in(key, jax.lax.axis_index(DEVICE_AXIS))
        actor = drop_device_axis(actor)
        acting = parts.algorithm.acting(learner)
        return add_device_axis(collect(env, parts.algorithm, acting, actor, key, rollout_length(config))[1])

    def learn(repetitions: Array, learner: PyTree, batch: Batch, key: Key) -> PyTree:
        key = jax.random.fold_in(key, jax.lax.axis_index(DEVICE_AXIS))

        def update(i: Array, loop: tuple[PyTree, Array]) -> tuple[PyTree, Array]:
            learner, total = loop
            learner, metrics, _ = parts.algorithm.update(
                learner, drop_device_axis(batch), jax.random.fold_in(key, i), jnp.float32(0)
            )
            return learner, total + checksum(metrics)

        return jax.lax.fori_loop(0, repetitions, update, (learner, jnp.zeros(())))

    state = parts.loop.init(jax.random.key(0))
    make_batch = over_devices(collect_batch, devices, (EVERYWHERE, SPLIT, EVERYWHERE), SPLIT)
    batch = make_batch(state.learner, state.actor, jax.random.key(1))
    run = over_devices(learn, devices, (EVERYWHERE, EVERYWHERE, SPLIT, EVERYWHERE), EVERYWHERE)
    return common.Program(run=lambda n: run(jnp.int32(n), state.learner, batch, jax.random.key(2)))


def make_gradients(config: Config, parts: Parts, devices: list[Any]) -> common.Program:
    """Of an actor and a critic for each agent's own observation, a block at a time, followed by plain descent."""
    assert isinstance(config.experiment, OnlineConfig)
    [spec] = parts.env.spec.groups.values()
    assert isinstance(spec.action, Discrete)
    hidden, size = list(config.model.config.layers), flat_size(spec.observation_shape)
    rows = config.experiment.num_envs * rollout_length(config) * spec.num_agents // len(devices)
    num_blocks = -(-rows // MAX_ROWS_PER_BLOCK) * config.algorithm.config.epochs
    activation = {"tanh": jnp.tanh, "relu": jax.nn.relu}[config.model.config.activation.name]

    def init(key: Key) -> PyTree:
        def layers(outputs: int) -> PyTree:
            sizes = [size, *hidden, outputs]
            return [(jax.random.normal(key, shape) / 8, jnp.zeros(shape[1])) for shape in itertools.pairwise(sizes)]

        return [layers(spec.action.num_actions), layers(1)], jax.random.normal(key, (16, MAX_ROWS_PER_BLOCK, size))

    def loss(networks: PyTree, x: Array) -> Array:
        total = jnp.zeros(())
        for *inner, (kernel, bias) in networks:
            h = x
            for inner_kernel, inner_bias in inner:
                h = activation(h @ inner_kernel + inner_bias)
            total += jnp.mean(jnp.square(h @ kernel + bias))
        return total

    def learn(repetitions: Array, networks: PyTree, blocks: Array) -> PyTree:
        def step(i: Array, networks: PyTree) -> PyTree:
            return jax.tree.map(lambda p, slope: p - 1e-3 * slope, networks, jax.grad(loss)(networks, blocks[i % 16]))

        return add_device_axis(jax.lax.fori_loop(0, repetitions * num_blocks, step, networks))

    networks, blocks = jax.jit(init)(jax.random.key(0))
    run = over_devices(learn, devices, (EVERYWHERE, EVERYWHERE, EVERYWHERE), SPLIT)
    return common.Program(run=lambda n: run(jnp.int32(n), networks, blocks))


def make_training(config: Config, parts: Parts, devices: list[Any]) -> common.Program:
    state: TrainState = parts.loop.init(jax.random.key(0))

    def run(repetitions: int) -> Any:
        nonlocal state
        state, metrics = parts.loop.advance(state, jnp.int32(repetitions))
        return state, metrics

    return common.Program(run=run, largest=parts.loop.max_iterations)


# --------------------------------------------------------------------------------------------------------- JaxMARL


def compare_with_jaxmarl(options: Namespace) -> None:
    shared = ["--rounds", str(max(1, options.rounds // 2)), "--seconds", str(options.seconds)]
    stepping: dict[str, list[float]] = {"one thread": [], "JAX's own threads": []}
    cores = {"one thread": ["--cores", str((options.cores or [0])[0])], "JAX's own threads": []}
    training, limits = [], []
    for _ in range(3):
        for threads, rates in stepping.items():
            figures = common.run_script("throughput.py", "--jaxmarl-stepping", *cores[threads], *shared)
            rates.append(figures["frames_per_second"])
        covey = ["--devices", "2", "--parts", "acting", "gradients", "training", *JAXMARL_SETTINGS, *shared]
        rate = common.run_script("throughput.py", *covey)["rows"][0]["frames_per_second"]
        training.append(rate["training"])
        limits.append(1 / (1 / rate["acting"] + 1 / rate["gradients"]))
    print(f"covey trains IPPO on simple_spread, two devices                     {max(training):12,.0f} frames/s")
    print(f"  if updates were plain gradients of its networks alone             {max(limits):12,.0f} frames/s")
    ratios = {}
    for threads, rates in stepping.items():
        ratios[threads] = max(training) / max(rates)
        print(f"JaxMARL's environment alone, random actions, {threads:<17}      {max(rates):12,.0f} frames/s")
        verdict, limit = common.verdict(ratios[threads], JAXMARL_TARGET), max(limits) / max(rates)
        print(f"  ratio {verdict}; with plain gradients alone {limit:.3f}; JaxMARL's own loop: 0.16")
    figures = {
        "jaxmarl_stepping": stepping,
        "covey_training": training,
        "covey_with_plain_gradients_alone": limits,
        "ratios": ratios,
        "target": JAXMARL_TARGET,
    }
    common.write_figures(options.output, figures)


def report_jaxmarl_stepping(options: Namespace) -> None:
    if options.cores:  # otherwise with as many threads as JAX starts by itself
        common.start(1, options.cores)
    frames = options.environments * options.rollout
    program = make_jaxmarl_stepping(options.environments, options.rollout)
    timing = common.measure({"stepping": program}, seconds=options.seconds, rounds=options.rounds)["stepping"]
    print(f"stepping {frames / timing.wall:,.0f} frames/s")
    figures = {"frames_per_second": frames / timing.wall, "frames_per_cpu_second": frames / timing.cpu}
    common.write_figures(options.output, figures)


def make_jaxmarl_stepping(num_envs: int, num_steps: int) -> common.Program:
    """JaxMARL's environment as its baselines step it: vmapped, resetting itself, one random action per agent."""
    from covey.envs.jaxmarl.core import import_suite

    env = import_suite("mpe").SimpleSpreadMPE()

    def step(state: PyTree, key: Key) -> tuple[PyTree, Array]:
        key_act, key_env = jax.random.split(key)
        agent_keys = jax.random.split(key_act, env.num_agents)
        actions = {
            agent: jax.random.randint(key_agent, (num_envs,), 0, env.action_space(agent).n)
            for agent, key_agent in zip(env.agents, agent_keys, strict=True)
        }
        _, env_state = state
        keys = jax.random.split(key_env, num_envs)
        observation, env_state, reward, done, _ = jax.vmap(env.step)(keys, env_state, actions)
        return (observation, env_state), checksum((reward, done))

    @jax.jit
    def run(repetitions: Array, state: PyTree, key: Key) -> PyTree:
        def rollout(i: Array, loop: tuple[PyTree, Array]) -> tuple[PyTree, Array]:
            state, total = loop
            state, sums = jax.lax.scan(step, state, jax.random.split(jax.random.fold_in(key, i), num_steps))
            return state, total + sums.sum()

        return jax.lax.fori_loop(0, repetitions, rollout, (state, jnp.zeros(())))

    state = jax.jit(jax.vmap(env.reset))(jax.random.split(jax.random.key(0), num_envs))
    return common.Program(run=lambda n: run(jnp.int32(n), state, jax.random.key(1)))


if __name__ == "__main__":
    main()
