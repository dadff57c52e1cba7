"""The compiled programs of an experiment: reset, training and evaluation.

Training's program takes longest, so it comes first, with the reset beside it: XLA leaves a core idle for a quarter of
the time. Evaluation's is compiled while the first iterations are trained.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import jax
import numpy as np
from jax.stages import Compiled, Lowered, Wrapped

from covey.experiment.running.build import Parts, example_key
from covey.loops.base import state_shapes
from covey.process import COMPILING
from covey.types import Array, PyTree

_T = TypeVar("_T")
EvaluateProgram = Callable[..., dict[str, Array] | Future[dict[str, np.ndarray]]]
Compile = Callable[[str, Lowered, Mapping[str, Any] | None], Compiled]  # compiles one of the three, with XLA's options
NUM_PROGRAMS = 3  # init, advance, evaluate

COMPILED_QUICKLY: dict[str, Any] = {  # on CPUs, for what runs once: compiling would take longer than it saves
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    "xla_cpu_use_fusion_emitters": False,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Programs:
    """The compiled functions of an experiment, the same for every seed.

    evaluation() -> evaluate     waits while it is still being compiled
    seconds                      what compiling took before training could begin
    compile_again                compiles, or finds where programs are kept, a later program of the same experiment
    again                        what was compiled again, by what had changed (changes.py)
    """

    init: Callable[..., PyTree]
    advance: Callable[..., tuple[PyTree, dict[str, Array]]]
    evaluation: Callable[[], EvaluateProgram]
    seconds: float
    compile_again: Callable[[Lowered], Compiled] = lambda lowered: compile_lowered(lowered)
    again: dict[str, Any] = dataclasses.field(default_factory=dict)


def values_of(outputs: dict[str, Array] | Future[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """An evaluation's values, once they are there."""
    found: Any = outputs.result() if isinstance(outputs, Future) else outputs
    return {name: np.asarray(value) for name, value in found.items()}


def compile_lowered(lowered: Lowered, options: Mapping[str, Any] | None = None) -> Compiled:
    return lowered.compile(compiler_options=dict(options) if options else None)


def compile_parts(
    parts: Parts, compiling: Callable[[str], AbstractContextManager[None]], compile_one: Compile | None = None
) -> Programs:
    """Compiles before any run, so that the time is measured apart from training's; `compiling` shows what.

    `compile_one` compiles a program, or loads it from where it is kept (covey.experiment.running.program_store).
    """
    start = time.monotonic()
    key = example_key(parts.num_seeds)
    quickly = COMPILED_QUICKLY if jax.default_backend() == "cpu" else None

    def compiled(part: str, lowered: Lowered, options: Mapping[str, Any] | None = None) -> Future[Compiled]:
        if compile_one is None:
            return in_background(lambda: compile_lowered(lowered, options))
        return in_background(lambda: compile_one(part, lowered, options))

    if parts.loop.jitted is None or not isinstance(parts.evaluate, Wrapped):
        return as_they_are(parts)
    with compiling("training"):
        state = state_shapes(parts.loop, key)
        advance = compiled("advance", parts.loop.jitted.lower(state, np.int32(1)))
        init = compiled("init", parts.loop.init.lower(key), quickly)
        lowered = parts.evaluate.lower(parts.loop.learner(state), key)
        training = accept_empty_leaves(advance.result())
        evaluate = compiled("evaluate", lowered)  # not beside training's program, which would take longer
        return Programs(
            init=init.result(), advance=training, evaluation=evaluate.result, seconds=time.monotonic() - start
        )


def in_background(function: Callable[[], _T]) -> Future[_T]:
    """Computes `function()` in a thread of its own. A signal can interrupt waiting for the result."""
    future: Future[_T] = Future()

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    # Not a daemon: if Python ended while XLA compiles, the process would abort.
    threading.Thread(target=run, name=COMPILING).start()
    return future


def accept_empty_leaves(compiled: Compiled) -> Callable[..., tuple[PyTree, dict[str, Array]]]:
    """`advance` for every state: programs insist on how empty arrays are split over devices, and JAX forgets that."""
    shardings = compiled.input_shardings[0][0]

    def advance(state: PyTree, num_iterations: Any) -> tuple[PyTree, dict[str, Array]]:
        state = jax.tree.map(
            lambda leaf, sharding: leaf if leaf.size else jax.device_put(leaf, sharding), state, shardings
        )
        state, metrics = compiled(state, num_iterations)
        return state, metrics

    return advance


def as_programs(*, init: Compiled, advance: Compiled, evaluate: Compiled, seconds: float) -> Programs:
    """Programs that were compiled before; `seconds` is what loading them took."""
    return Programs(init=init, advance=accept_empty_leaves(advance), evaluation=lambda: evaluate, seconds=seconds)


def as_they_are(parts: Parts) -> Programs:
    """For loops that act outside of compiled programs: they compile what they call when they first call it."""
    return Programs(init=parts.loop.init, advance=parts.loop.advance, evaluation=lambda: parts.evaluate, seconds=0.0)


def uncompiled(parts: Parts) -> Programs:
    """For `jit=false`: acting and learning run operation by operation, so that breakpoints see values.

    Nobody steps through resets and evaluations, so they stay compiled, and so do steps of covey's own tasks.
    """

    def advance(state: PyTree, num_iterations: Any) -> tuple[PyTree, dict[str, Array]]:
        with jax.disable_jit():
            state, metrics = parts.loop.advance(state, num_iterations)
            return state, metrics

    return Programs(init=parts.loop.init, advance=advance, evaluation=lambda: parts.evaluate, seconds=0.0)
