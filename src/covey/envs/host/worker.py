"""A process that steps several copies of a simulator. It imports no JAX.

It is started with an `Assignment`, which says which copies it steps and in which memory, and first sends a description
of the simulator. Commands are two bytes each. After each one it writes into shared memory and answers DONE, or it
answers FAILED with a message, and ends. It also ends when the pool closes the connection or dies.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
from collections.abc import Sequence
from multiprocessing import reduction
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from covey.envs.host import layout
from covey.envs.host.episodes import Episodes, check_first
from covey.envs.host.layout import Description
from covey.envs.host.simulator import Simulator, SimulatorError, Source, describe_error
from covey.errors import CoveyError

STEP, BEGIN, RENDER = b"s", b"b", b"r"  # a command is one of these and the number of a half
DONE, FAILED = b"d", b"f"
# Ctrl-C, `timeout` and batch schedulers signal all processes of a run. The one that owns the pool saves the run, for
# which it needs the workers. They end when it closes their pipes.
SIGNALS_OF_OWNER = (signal.SIGINT, signal.SIGHUP, signal.SIGTERM)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Assignment:
    """Which copies a worker steps, by half, and the memory that it shares, with room for all `num_copies` of the pool.

    Without `memory` it only describes its simulator.
    """

    halves: Sequence[Sequence[int]] = ()
    num_copies: int = 0
    memory: Any = None  # a `multiprocessing` array of bytes


class Output:
    """An open file for what another process prints. It has no name, so nothing remains of it on disk."""

    def __init__(self, file: int):
        self.file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return _received, (reduction.DupFd(self.file),)


def _received(duplicate: Any) -> Output:
    return Output(duplicate.detach())


def work(source: Source, connection: Connection, assignment: Assignment, output: Output) -> None:
    """What the process runs."""
    for number in SIGNALS_OF_OWNER:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS_OF_OWNER)  # the pool blocked them while this process started
    for stream in (1, 2):  # what simulators print is shown only if they fail
        os.dup2(output.file, stream)
    try:
        serve(source, connection, assignment)
    except (EOFError, ConnectionError):  # the pool has closed the connection or died
        return
    except BaseException as error:
        message = str(error) if isinstance(error, CoveyError) else describe_error(error)
        with contextlib.suppress(OSError):
            connection.send_bytes(FAILED)
            connection.send(message)


def serve(source: Source, connection: Connection, assignment: Assignment) -> None:
    """Describes the simulator, then carries out commands."""
    first = source.simulator()
    description = describe(source, first)
    connection.send_bytes(DONE)
    connection.send(description)
    if assignment.memory is None:
        return
    tree = layout.layout(description)
    arrays = layout.arrays(tree, assignment.num_copies, assignment.memory)
    halves: list[list[Episodes]] = []
    for numbers in assignment.halves:
        halves.append([])
        for number in numbers:
            simulator = source.simulator() if first is None else first
            first = None  # type: ignore[assignment]
            halves[-1].append(Episodes(simulator, source.config, layout.rows(arrays, number), number))
    while True:
        command = connection.recv_bytes()
        if command[:1] == RENDER:
            picture = draw(halves[command[1]][0].simulator, source.name)
            connection.send_bytes(DONE)
            connection.send(picture)
            continue
        run(command[:1], [copy for copy in halves[command[1]] if arrays["active"][copy.number]])
        connection.send_bytes(DONE)


def run(command: bytes, copies: Sequence[Episodes]) -> None:
    """Carries out one command for some copies. Errors name the copy, the episode and the step."""
    for copy in copies:
        try:
            if command == STEP:
                copy.advance()
            else:
                copy.begin()
        except CoveyError as error:
            raise SimulatorError(f"{copy.place()}: {error}") from error


def draw(simulator: Simulator, name: str) -> np.ndarray:
    """A picture of a simulator as it is now, uint8 [H, W, 3]."""
    render = getattr(simulator, "render", None)
    picture = None if render is None else render()
    if picture is None:
        raise SimulatorError(f"{name} draws no pictures")
    return np.asarray(picture, np.uint8)


def describe(source: Source, simulator: Simulator) -> Description:
    """The spec with the configuration's time limit, and what a first reset shows."""
    try:
        answer = simulator.reset(0)
    except CoveyError:
        raise
    except Exception as error:
        raise SimulatorError(f"{source.name}: its first reset failed: {describe_error(error)}") from error
    try:
        check_first(answer, simulator.spec)
    except SimulatorError as error:
        raise SimulatorError(f"{source.name}: {error}") from error
    masks, shaping = answer.action_masks, answer.shaping
    own = getattr(simulator, "episodes_per_process", None)
    return Description(
        spec=dataclasses.replace(simulator.spec, time_limit=source.config.time_limit, keeps_lifetimes=True),
        masked=tuple(masks) if masks is not None else (),
        shaped=tuple(shaping) if shaping is not None else (),
        episodes_per_process=source.config.episodes_per_process or own,
        agents=dict(getattr(simulator, "agent_names", {})),
    )
