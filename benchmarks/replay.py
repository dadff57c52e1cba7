"""What adding to and sampling from a replay buffer cost, as a share of an iteration, by the buffer's size.

The same experiment trains twice: unchanged, and with a replay that keeps nothing and hands out one constant sample. The
difference is the cost of replay. By default it is MASAC with covey's own settings on vmas/navigation, on one core.

  python benchmarks/replay.py --output results/benchmark-replay.json
"""

from __future__ import annotations

import dataclasses
from typing import Any

import common
import jax
import jax.numpy as jnp

TARGET = 0.10
SIZES = (10_000, 100_000, 1_000_000)


def main(arguments: list[str] | None = None) -> None:
    parser = common.make_parser(__doc__)
    parser.add_argument("--task", default="vmas/navigation")
    parser.add_argument("--algorithm", default="masac")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="frames")
    parser.add_argument("--rounds", type=int, default=5, help="repetitions, of which the best counts")
    parser.add_argument("--seconds", type=float, default=3.0, help="for each round")
    parser.add_argument("--overrides", nargs="*", default=[], help="further ones, as for covey train")
    options = parser.parse_args(arguments)
    devices = common.start(1)
    rows = []
    for size in options.sizes:
        programs = {
            "with": make_program(options, size, True, devices),
            "without": make_program(options, size, False, devices),
        }
        timings = common.measure(programs, seconds=options.seconds, rounds=options.rounds)
        share = 1.0 - timings["without"].wall / timings["with"].wall
        reached = "reached" if share < TARGET else "not reached"
        print(
            f"{options.algorithm}, {size:9,} frames: {1e3 * timings['with'].wall:7.1f} ms an iteration, "
            f"replay {100 * share:4.1f}% (target below {100 * TARGET:.0f}%: {reached})",
            flush=True,
        )
        rows.append({"size": size, "seconds": {name: timing.wall for name, timing in timings.items()}, "share": share})
    common.write_figures(options.output, {"rows": rows, "target": TARGET, "algorithm": options.algorithm})


def make_program(options: Any, size: int, with_replay: bool, devices: list[Any]) -> common.Program:
    from covey.experiment.configuration.compose import compose
    from covey.experiment.running.build import build_algorithm, build_env
    from covey.loops.learning import make_learning
    from covey.loops.online import make_online_loop

    overrides = [f"algorithm={options.algorithm}", f"task={options.task}", f"buffer.size={size}", *options.overrides]
    config = compose([*overrides, "experiment.devices=1"])
    env = build_env(config)
    algorithm = build_algorithm(config, env)
    experiment: Any = config.experiment
    learning: Any = make_learning(experiment, algorithm, 1)
    if not with_replay:
        learning = dataclasses.replace(learning, replay=make_constant(learning.replay))
    loop = make_online_loop(
        env,
        algorithm,
        num_envs=experiment.num_envs,
        rollout_length=experiment.rollout_length,
        schedule_frames=experiment.frames,
        replay_learning=dataclasses.replace(learning, random_frames=0),
        devices=devices,
    )
    state: Any = loop.init(jax.random.key(0))

    def run(repetitions: int) -> Any:
        nonlocal state
        state, metrics = loop.advance(state, jnp.int32(repetitions))
        return state.iteration, metrics

    return common.Program(run=run, largest=loop.max_iterations)


def make_constant(replay: Any) -> Any:
    """A replay that holds one sample and gives it again and again."""
    from covey.data.replay import Replay

    def init(transitions: Any) -> Any:
        shapes = jax.eval_shape(lambda: replay.sample(replay.init(transitions), jax.random.key(0)))
        return jax.tree.map(lambda x: jnp.ones(x.shape, x.dtype), shapes)

    return Replay(
        init=init,
        add=lambda state, transitions: state,
        can_sample=lambda state: jnp.ones((), bool),
        sample=lambda state, key: state,
        set_priorities=lambda state, sample, priorities: state,
    )


if __name__ == "__main__":
    main()
