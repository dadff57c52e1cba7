"""How near the compiled update comes to the machine's limit.

The update is MAPPO's at BenchMARL's base shapes: 10 environments x 600 steps in minibatches of 400 frames x 3 agents,
observations of 18, continuous actions of 2, two layers of 256 (tanh) for an actor that sees its own observation and for
a critic that sees all three, Adam. Nearly all of its arithmetic is in the matrix products of the two networks, forward
and backward. So its limit is the rate at which the machine does these products and nothing else.

  products   each product of a minibatch alone, over and over inside one compiled program; FLOP of all / time of all
  update     the same FLOP / time of `algorithm.update` per minibatch: advantages, shuffling, losses, gradients,
             clipping and Adam included
  NumPy      the same products by NumPy's BLAS, a second opinion on what the machine can do
  ratio      update / products: the share of the time that goes into products, if those run as fast as they can

One thread on one core. `--profile` prints where the update's time goes. Further arguments are overrides of the
configuration, e.g. `algorithm.advantage_normalisation=minibatch`.
"""

from __future__ import annotations

import collections
import glob
import gzip
import json
import os
import tempfile
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # read when NumPy is imported

import common
import jax
import jax.numpy as jnp
import numpy as np

from covey.algorithms.base import Context
from covey.algorithms.ppo import make_ppo
from covey.experiment.configuration.compose import compose
from covey.networks.network import Model
from covey.types import (
    Algorithm,
    Array,
    Batch,
    Continuous,
    EnvSpec,
    GroupSpec,
    GroupStep,
    PyTree,
    TimeStep,
    Transition,
)

TARGET = 0.80
GROUP = "agents"
NUM_AGENTS, OBSERVATION_SIZE, ACTION_SIZE = 3, 18, 2
NUM_ENVS, ROLLOUT_LENGTH, MINIBATCH_SIZE = 10, 600, 400


def main(arguments: list[str] | None = None) -> None:
    parser = common.make_parser(__doc__)
    parser.add_argument("--epochs", type=int, default=5, help="per update; BenchMARL's 45 only take longer")
    parser.add_argument("--rounds", type=int, default=7, help="repetitions, of which the best counts")
    parser.add_argument("--seconds", type=float, default=0.1, help="for each product, each round")
    parser.add_argument("--core", type=int, help="the core to run on; default: the last that this process may use")
    parser.add_argument("--no-pin", action="store_true", help="leave it to the system where to run")
    parser.add_argument("--width", type=int, default=256, help="of both layers")
    parser.add_argument("--profile", action="store_true", help="print what the update spends its time on")
    parser.add_argument("overrides", nargs="*", help="of the configuration")
    options = parser.parse_args(arguments)

    core = max(os.sched_getaffinity(0)) if options.core is None else options.core
    common.start(1, None if options.no_pin else [core])
    algorithm, state, batch = make_update(options.epochs, options.width, options.overrides)
    num_minibatches = options.epochs * NUM_ENVS * ROLLOUT_LENGTH // MINIBATCH_SIZE
    update = jax.jit(algorithm.update)

    def run_update(repetitions: int) -> Any:
        new = state
        for i in range(repetitions):
            new, _, _ = update(new, batch, jax.random.key(i), jnp.float32(0))
        return new

    jax.block_until_ready(run_update(1))
    if options.profile:
        profile(lambda: run_update(1), num_minibatches)
        return
    shapes = product_shapes(state.params)
    programs = {f"product_{i}": make_product(*shape) for i, shape in enumerate(shapes)}
    programs |= {f"numpy_{i}": make_numpy_product(*shape) for i, shape in enumerate(shapes)}
    programs["update"] = common.Program(run=run_update)
    timings = common.measure(programs, seconds=options.seconds, rounds=options.rounds)
    flop = sum(2 * rows * columns * inner for _, rows, inner, columns in shapes)
    report(options, flop, shapes, timings, num_minibatches)


def report(
    options: Any,
    flop: int,
    shapes: list[tuple[str, int, int, int]],
    timings: dict[str, common.Timing],
    num_minibatches: int,
) -> None:
    products = [timings[f"product_{i}"] for i in range(len(shapes))]
    numpy = [timings[f"numpy_{i}"] for i in range(len(shapes))]
    update = timings["update"]
    wall = {"products": sum(t.wall for t in products), "update": update.wall / num_minibatches}
    wall["numpy"] = sum(t.wall for t in numpy)
    cpu = {"products": sum(t.cpu for t in products), "update": update.cpu / num_minibatches}
    cpu["numpy"] = sum(t.cpu for t in numpy)
    rate = {name: flop / seconds / 1e9 for name, seconds in wall.items()}
    ratio, cpu_ratio = wall["products"] / wall["update"], cpu["products"] / cpu["update"]
    print(f"minibatch  {flop / 1e6:.1f} MFLOP in {len(shapes)} matrix products")
    for (kind, rows, inner, columns), timing in zip(shapes, products, strict=True):
        name = f"{kind} [{rows} x {inner}] [{inner} x {columns}]"
        print(f"  {name:<46} {2 * rows * inner * columns / timing.wall / 1e9:6.1f} GFLOP/s {timing.wall * 1e6:8.1f} us")
    print(f"products   {rate['products']:.1f} GFLOP/s, {wall['products'] * 1e3:.2f} ms per minibatch")
    print(f"NumPy      {rate['numpy']:.1f} GFLOP/s, {wall['numpy'] * 1e3:.2f} ms per minibatch")
    print(f"update     {rate['update']:.1f} GFLOP/s, {wall['update'] * 1e3:.2f} ms per minibatch")
    print(f"ratio      {common.verdict(ratio, TARGET)}; by CPU time {cpu_ratio:.3f}")
    figures = {
        "flop_per_minibatch": flop,
        "gflops": rate,
        "milliseconds_per_minibatch": {name: 1e3 * seconds for name, seconds in wall.items()},
        "cpu_milliseconds_per_minibatch": {name: 1e3 * seconds for name, seconds in cpu.items()},
        "ratio": ratio,
        "cpu_ratio": cpu_ratio,
        "target": TARGET,
        "epochs": options.epochs,
        "rounds": options.rounds,
        "overrides": options.overrides,
    }
    common.write_figures(options.output, figures)


# ------------------------------------------------------------------------------------------------------- the update


def make_update(epochs: int, width: int, overrides: list[str]) -> tuple[Algorithm, PyTree, Batch]:
    """MAPPO as the preset `benchmarl` has it, its state, and a batch of noise of the right shapes."""
    sizes = f"[{width},{width}]"
    config = compose(
        [
            "algorithm=mappo",
            "experiment=benchmarl",
            f"algorithm.epochs={epochs}",
            f"algorithm.minibatch_size={MINIBATCH_SIZE}",
            f"model.layers={sizes}",
            f"critic_model.layers={sizes}",
            *overrides,
        ]
    )
    group = GroupSpec(
        num_agents=NUM_AGENTS,
        observation_shape=(OBSERVATION_SIZE,),
        action=Continuous((-1.0,) * ACTION_SIZE, (1.0,) * ACTION_SIZE),
    )
    context = Context(
        model=Model(config.model.registered, config.model.config),
        critic_model=Model(config.critic_model.registered, config.critic_model.config),
    )
    spec = EnvSpec(groups={GROUP: group}, time_limit=100)
    algorithm = make_ppo(config.algorithm.config, spec, GROUP, context)
    return algorithm, algorithm.init(jax.random.key(0)), make_batch(algorithm)


def make_batch(algorithm: Algorithm) -> Batch:
    random = np.random.default_rng(0)
    steps, agents = (ROLLOUT_LENGTH, NUM_ENVS), (ROLLOUT_LENGTH, NUM_ENVS, NUM_AGENTS)

    def noise(*shape: int) -> Array:
        return jnp.asarray(random.normal(size=shape), jnp.float32)

    def no(*shape: int) -> Array:
        return jnp.zeros(shape, bool)

    transitions = Transition(
        observation=noise(*agents, OBSERVATION_SIZE),
        state=None,
        action_mask=None,
        alive=~no(*agents),
        reset=no(*steps),
        action=jnp.tanh(noise(*agents, ACTION_SIZE)),
        extras={
            "raw_action": noise(*agents, ACTION_SIZE),
            "log_prob": noise(*agents) - 2.0,
            "value": noise(*agents),
            "successor_value": noise(*agents),
        },
        reward=noise(*agents),
        terminated=no(*agents),
        truncated=no(*steps),
        last=no(*steps),
        next_observation=noise(*agents, OBSERVATION_SIZE),
        next_state=None,
    )
    final = GroupStep(
        observation=noise(NUM_ENVS, NUM_AGENTS, OBSERVATION_SIZE),
        next_observation=noise(NUM_ENVS, NUM_AGENTS, OBSERVATION_SIZE),
        reward=noise(NUM_ENVS, NUM_AGENTS),
        action_mask=None,
        alive=~no(NUM_ENVS, NUM_AGENTS),
        terminated=no(NUM_ENVS, NUM_AGENTS),
    )
    timestep = TimeStep(
        groups={GROUP: final}, truncated=no(NUM_ENVS), last=no(NUM_ENVS), state=None, next_state=None, metrics={}
    )
    carry = algorithm.initial_carry(NUM_ENVS)
    return Batch(transitions={GROUP: transitions}, carries=carry, final=timestep, final_carry=carry)


# ----------------------------------------------------------------------------------------------------- the products


def product_shapes(params: PyTree) -> list[tuple[str, int, int, int]]:
    """Every matrix product of a minibatch, forward and backward: its kind, rows, inner size and columns."""
    inputs = {"actor": OBSERVATION_SIZE, "critic": NUM_AGENTS * OBSERVATION_SIZE}
    batch = {"actor": MINIBATCH_SIZE * NUM_AGENTS, "critic": MINIBATCH_SIZE}
    shapes = []
    for name, rows in batch.items():
        for kernel in (leaf for leaf in jax.tree.leaves(params[name]) if leaf.ndim == 2):
            before, after = kernel.shape
            shapes.append((f"{name} forward", rows, before, after))
            # Either operand may come first; the smaller side first is up to ten times as fast.
            shapes.append((f"{name} weights", min(before, after), rows, max(before, after)))
            if before != inputs[name]:  # nobody needs the gradient of what the network was shown
                shapes.append((f"{name} inputs", rows, after, before))
    return shapes


def make_operands(kind: str, rows: int, inner: int, columns: int) -> tuple[np.ndarray, np.ndarray, tuple[int, int]]:
    """The two matrices as they lie in memory, and the axes that the product sums over."""
    contract = {"forward": (1, 0), "weights": (0, 0), "inputs": (1, 1)}[kind.split()[-1]]
    random = np.random.default_rng(0)
    left_shape = (inner, rows) if contract[0] == 0 else (rows, inner)
    right_shape = (columns, inner) if contract[1] == 1 else (inner, columns)
    left, right = (random.normal(size=shape).astype(np.float32) for shape in (left_shape, right_shape))
    return left, right, contract


def make_numpy_product(kind: str, rows: int, inner: int, columns: int) -> common.Program:
    left, right, contract = make_operands(kind, rows, inner, columns)
    left, right = (left.T if contract[0] == 0 else left), (right.T if contract[1] == 1 else right)
    result = np.empty((rows, columns), np.float32)

    def run(repetitions: int) -> np.ndarray:
        for _ in range(repetitions):
            np.matmul(left, right, out=result)
        return result

    return common.Program(run=run)


def make_product(kind: str, rows: int, inner: int, columns: int) -> common.Program:
    """One product as the gradient computes it: without transposing its operands in memory."""
    left, right, contract = make_operands(kind, rows, inner, columns)

    @jax.jit
    def repeat(repetitions: Array, left: Array, right: Array) -> Array:
        def product(_: Array, loop: tuple[Array, Array]) -> tuple[Array, Array]:
            # One element of the operand comes from the last result, or the compiler would multiply only once.
            operand, result = loop
            operand = operand.at[0, 0].set(jnp.clip(result[0, 0], -1.0, 1.0))
            dimensions = (((contract[0],), (contract[1],)), ((), ()))
            return operand, jax.lax.dot_general(operand, right, dimensions)

        return jax.lax.fori_loop(0, repetitions, product, (left, jnp.zeros((rows, columns))))[1]

    return common.Program(run=lambda repetitions: repeat(jnp.int32(repetitions), jnp.asarray(left), jnp.asarray(right)))


# ---------------------------------------------------------------------------------------------------------- profile


def profile(run: Any, num_minibatches: int, lines: int = 40) -> None:
    """The compiled operations that take the most time, by JAX's own trace."""
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            jax.block_until_ready(run())
        [path] = glob.glob(f"{folder}/**/*.trace.json.gz", recursive=True)
        with gzip.open(path) as file:
            events = json.load(file)["traceEvents"]
    duration: collections.Counter[str] = collections.Counter()
    calls: collections.Counter[str] = collections.Counter()
    for event in events:
        if event.get("ph") == "X":
            duration[event["name"]] += event["dur"]
            calls[event["name"]] += 1
    print(f"{'us per minibatch':>16} {'calls':>7}  operation (a caller's time includes what it calls)")
    for name, microseconds in duration.most_common(lines):
        print(f"{microseconds / num_minibatches:16.1f} {calls[name]:7d}  {name[:90]}")


if __name__ == "__main__":
    main()
