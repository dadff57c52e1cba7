"""What each trick of ARCHITECTURE.md's table "CPU tricks" gains, measured against the plain code in one run.

Both compute the same, up to rounding, in the shapes of a small update: 6,000 frames of 3 agents in minibatches of 400,
observations of 18, actions of 2 numbers or one of 5 choices, layers of 64 or 256. Each is repeated inside one compiled
program, in which every round needs the one before, so that nothing is left out or computed once for all. They run in
turn, and the best time of each counts.

  gain   time of the plain code / time of the trick: above 1, the trick is faster

Devices have one thread each. Two rows of the table have no plain code left to compare with, and are not here: VMAS's
vectors (benchmarks/compare_vmas.py times the simulator) and the paused garbage collector (benchmarks/start.py).
The machine must be idle: `uptime` should show a load below 1.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from functools import partial
from typing import Any

import common
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from covey.networks.layers import matmul_fast_backward
from covey.networks.network import make_model, make_network
from covey.ops.blocks import mean_over_blocks
from covey.ops.devices import mean_over_devices
from covey.ops.distributions import categorical_entropy, categorical_log_prob, tanh_normal_log_prob
from covey.ops.random import inverse_error_function, unrolled
from covey.ops.shuffle import random_order
from covey.types import Array, PyTree

FRAMES, MINIBATCH, AGENTS = 6000, 400, 3
OBSERVATION, CHOICES, NUMBERS = 18, 5, 2
AXIS = "devices"
SMALL = 1e-9  # what a round adds to the next one's inputs: too little to change them, and unknown to the compiler


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trick:
    """`trick` and `plain` are functions of a round's inputs that give the next round's; `start` are the first's."""

    name: str
    instead_of: str
    trick: Callable[[PyTree], PyTree]
    plain: Callable[[PyTree], PyTree]
    start: PyTree


def main(arguments: list[str] | None = None) -> None:
    parser = common.make_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=9, help="repetitions, of which the best counts")
    parser.add_argument("--seconds", type=float, default=0.2, help="for each program, each round")
    options = parser.parse_args(arguments)
    devices = common.start(2)
    tricks = [
        blocks(),
        *collectives(devices),
        shuffles(),
        generators(),
        error_functions(),
        *products(),
        choices(),
        densities(),
    ]
    rows = []
    for trick in tricks:
        programs = {name: repeated(getattr(trick, name), trick.start) for name in ("plain", "trick")}
        timing = common.measure(programs, seconds=options.seconds, rounds=options.rounds)
        seconds = {name: timing[name].wall for name in programs}
        rows.append(
            {
                "trick": trick.name,
                "instead_of": trick.instead_of,
                **{f"{name}_microseconds": value * 1e6 for name, value in seconds.items()},
                "gain": seconds["plain"] / seconds["trick"],
            }
        )
    print(table(rows))
    print(f"load of the machine: {os.getloadavg()[0]:.2f}")
    common.write_figures(options.output, {"tricks": rows, "rounds": options.rounds, "seconds": options.seconds})


def repeated(function: Callable[[PyTree], PyTree], start: PyTree) -> common.Program:
    run = jax.jit(lambda number, start: jax.lax.fori_loop(0, number, lambda _, x: function(x), start))
    return common.Program(run=lambda number: run(jnp.int32(number), start))


def table(rows: list[dict[str, Any]]) -> str:
    lines = ["| trick | instead of | plain, µs | trick, µs | gain |", "| --- | --- | --- | --- | --- |"]
    for row in rows:
        plain, trick = row["plain_microseconds"], row["trick_microseconds"]
        lines.append(f"| {row['trick']} | {row['instead_of']} | {plain:,.1f} | {trick:,.1f} | {row['gain']:.2f} |")
    return "\n".join(lines)


def descend(function: Callable[[PyTree], Array]) -> Callable[[PyTree], PyTree]:
    """A round that needs the whole gradient of `function`, and leaves its inputs as they were."""
    gradient = jax.grad(function)
    return lambda x: jax.tree.map(lambda leaf, slope: leaf - SMALL * slope, x, gradient(x))


# ---------------------------------------------------------------------------------------------- blocks and devices


def small_network() -> tuple[PyTree, Callable[[PyTree, Array], Array]]:
    """Parameters of two layers of 64, and a loss on observations `[N, A, F]`."""
    network = make_network(
        make_model("mlp", layers=(64, 64), activation="tanh"),
        input_shape=(OBSERVATION,),
        num_outputs=2 * NUMBERS,
        num_agents=AGENTS,
        head_gain=0.01,
    )

    def loss(params: PyTree, observation: Array) -> Array:
        outputs, _ = network.apply(params, observation[None], (), jnp.zeros((1, len(observation)), bool))
        return jnp.square(outputs - 1.0).mean()

    return jax.jit(network.init)(jax.random.key(0)), loss


def blocks() -> Trick:
    params, loss = small_network()
    observation = jax.random.normal(jax.random.key(1), (FRAMES, AGENTS, OBSERVATION))
    indices = jax.random.permutation(jax.random.key(2), FRAMES)[: 5 * MINIBATCH]

    def step(mean: Callable[..., PyTree], params: PyTree) -> PyTree:
        grads = mean(lambda block: jax.grad(loss)(params, observation[block]), indices)
        return jax.tree.map(lambda leaf, slope: leaf - SMALL * slope, params, grads)

    return Trick(
        name="ops.blocks.mean_over_blocks",
        instead_of=f"one gradient of a minibatch of {5 * MINIBATCH:,} frames",
        trick=partial(step, partial(mean_over_blocks, rows_per_index=AGENTS)),
        plain=partial(step, lambda function, indices: function(indices)),
        start=params,
    )


def collectives(devices: list[Any]) -> list[Trick]:
    """A gradient on each of two devices, and its mean."""
    params, loss = small_network()
    observation = jax.random.normal(jax.random.key(1), (MINIBATCH, AGENTS, OBSERVATION))

    def concatenated(grads: PyTree) -> PyTree:
        vector, unpack = ravel_pytree(grads)
        return unpack(jax.lax.pmean(vector, AXIS))

    def step(mean: Callable[[PyTree], PyTree], params: PyTree) -> PyTree:
        def on_each(params: PyTree, observation: Array) -> PyTree:
            grads = mean(jax.grad(loss)(params, observation))
            return jax.tree.map(lambda leaf, slope: leaf - SMALL * slope, params, grads)

        mesh = Mesh(devices[:2], (AXIS,))
        each = jax.shard_map(on_each, mesh=mesh, in_specs=(P(), P(AXIS)), out_specs=P(), check_vma=False)
        return each(params, observation)

    plain = {
        "one collective for each array": lambda grads: jax.tree.map(partial(jax.lax.pmean, axis_name=AXIS), grads),
        "concatenation": concatenated,
    }
    trick = partial(step, partial(mean_over_devices, axis_name=AXIS))
    return [
        Trick(name="ops.devices.pack", instead_of=name, trick=trick, plain=partial(step, mean), start=params)
        for name, mean in plain.items()
    ]


# ------------------------------------------------------------------------------------------------ random numbers


def shuffles() -> Trick:
    def step(order: Callable[[Array], Array], words: Array) -> Array:
        shuffled = order(jax.random.wrap_key_data(words)).astype(jnp.uint32)
        return words + jnp.stack([shuffled[0], (shuffled * jnp.arange(FRAMES, dtype=jnp.uint32)).sum()])

    return Trick(
        name="ops.shuffle.random_order",
        instead_of=f"`jax.random.permutation` of {FRAMES:,}",
        trick=partial(step, lambda key: random_order(key, FRAMES)),
        plain=partial(step, lambda key: jax.random.permutation(key, FRAMES)),
        start=jnp.zeros(2, jnp.uint32),
    )


def generators() -> Trick:
    def step(prepare: Callable[[Array], Array], words: Array) -> Array:
        bits = jax.random.bits(prepare(jax.random.wrap_key_data(words)), (AGENTS * 64,))
        return words + jnp.stack([bits.sum(dtype=jnp.uint32), bits.max()])

    return Trick(
        name="ops.random.unrolled",
        instead_of=f"JAX's generator, for {AGENTS * 64} numbers",
        trick=partial(step, unrolled),
        plain=partial(step, lambda key: key),
        start=jnp.zeros(2, jnp.uint32),
    )


def error_functions() -> Trick:
    numbers = jnp.linspace(-0.999, 0.999, MINIBATCH * AGENTS * NUMBERS)
    return Trick(
        name="ops.random.inverse_error_function",
        instead_of=f"`jax.lax.erf_inv` of {len(numbers):,} numbers",
        trick=lambda x: x + SMALL * inverse_error_function(x),
        plain=lambda x: x + SMALL * jax.lax.erf_inv(x),
        start=numbers,
    )


# ---------------------------------------------------------------------------------------- products and short axes


def products() -> list[Trick]:
    """Forward and backward, of a hidden layer and of a head with few outputs."""
    rows = MINIBATCH * AGENTS

    def trick(inputs: int, outputs: int) -> Trick:
        key_x, key_kernel = jax.random.split(jax.random.key(0))
        start = jax.random.normal(key_x, (rows, inputs)), jax.random.normal(key_kernel, (inputs, outputs))
        return Trick(
            name="networks.layers.matmul_fast_backward",
            instead_of=f"the gradient of `x @ kernel`, {rows:,} x {inputs} @ {inputs} x {outputs}",
            trick=descend(lambda pair: jnp.square(matmul_fast_backward(*pair)).mean()),
            plain=descend(lambda pair: jnp.square(pair[0] @ pair[1]).mean()),
            start=start,
        )

    return [trick(256, 256), trick(64, 64), trick(256, 2 * NUMBERS)]


def choices() -> Trick:
    """The gradient of a policy's loss over a few choices."""
    rows = MINIBATCH * AGENTS
    logits = jax.random.normal(jax.random.key(0), (rows, CHOICES))
    action = jax.random.randint(jax.random.key(1), (rows,), 0, CHOICES)

    def plain(logits: Array) -> Array:
        log_probs = jax.nn.log_softmax(logits)
        taken = jnp.where(jnp.arange(CHOICES) == action[:, None], log_probs, 0.0).sum(-1)
        return (taken - (jnp.exp(log_probs) * log_probs).sum(-1)).mean()

    return Trick(
        name="ops.distributions.log_probabilities",
        instead_of=f"a last axis of {CHOICES} choices, {rows:,} rows",
        trick=descend(lambda logits: (categorical_log_prob(logits, action) + categorical_entropy(logits)).mean()),
        plain=descend(plain),
        start=logits,
    )


def densities() -> Trick:
    """The gradient of the density of continuous actions."""
    rows = MINIBATCH * AGENTS
    keys = jax.random.split(jax.random.key(0), 2)
    start = jax.random.normal(keys[0], (rows, NUMBERS)), jnp.ones((rows, NUMBERS))
    raw, half_range = jax.random.normal(keys[1], (rows, NUMBERS)), np.ones(NUMBERS, np.float32)

    def plain(pair: tuple[Array, Array]) -> Array:
        location, scale = pair
        normal = -0.5 * jnp.square((raw - location) / scale) - jnp.log(scale) - 0.5 * np.log(2.0 * np.pi)
        squash = 2.0 * (np.log(2.0) - raw - jax.nn.softplus(-2.0 * raw))
        return ((normal - squash).sum(-1) - np.sum(np.log(half_range))).mean()

    return Trick(
        name="ops.distributions.tanh_normal_log_prob",
        instead_of=f"a last axis of {NUMBERS} numbers, {rows:,} rows",
        trick=descend(lambda pair: tanh_normal_log_prob(*pair, raw, half_range).mean()),
        plain=descend(plain),
        start=start,
    )


if __name__ == "__main__":
    main()
