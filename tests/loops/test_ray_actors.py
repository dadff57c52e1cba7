"""Actors in a Ray cluster: two real nodes on loopback, of which one is killed, and what is refused before any start."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from covey import registry
from covey.errors import CoveyError, MissingExtra, UsageError
from covey.experiment.configuration.compose import compose
from covey.experiment.running.build import Parts, build
from covey.loops import ray_actors
from covey.loops.ray_actors import RayCollector, join_shares, received, to_send, wait_for_server
from covey.types import Batch

TINY = (
    "model.layers=[16]",
    "experiment.num_envs=4",
    "experiment.devices=1",
    "algorithm=ippo",
    "experiment.rollout_length=8",
    "algorithm.num_minibatches=2",
    "algorithm.epochs=2",
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="nodes need addresses of their own on loopback")


# ----------------------------------------------------------------------------------------------------- a real cluster


class Node:
    """`ray start --block` in a process of its own, on a loopback address."""

    def __init__(self, folder: Path, address: str, *arguments: str):
        self.address = address
        self._output = folder / f"{address}.log"
        command = [str(Path(sys.executable).with_name("ray")), "start", *arguments, "--block", "--num-cpus=1"]
        command += [f"--node-ip-address={address}", "--object-store-memory=100000000"]
        environment = os.environ | {
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_AUTH_MODE": "disabled",
            "RAY_health_check_period_ms": "500",  # so that a dead node is noticed within seconds
            "PYTHONPATH": str(Path(ray_actors.__file__).parents[2]),
        }
        with open(self._output, "w") as output:
            self.process = subprocess.Popen(
                command, stdout=output, stderr=output, cwd=folder, env=environment, start_new_session=True
            )

    def wait(self) -> None:
        deadline = time.monotonic() + 300
        while "Ray runtime started" not in self._output.read_text():
            assert self.process.poll() is None and time.monotonic() < deadline, self._output.read_text()[-2_000:]
            time.sleep(0.1)

    def pids(self) -> list[int]:
        """All processes of the node."""
        return descendants(self.process.pid)

    def kill(self) -> None:
        """As if the machine lost its power: nothing of the node says goodbye."""
        for pid in [*self.pids(), self.process.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()


def descendants(pid: int) -> list[int]:
    """The processes below one, its children last."""
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, task.read_text().split()):
                found += [*descendants(child), child]
    return found


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that nobody has waited for yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until(condition: Callable[[], bool], seconds: float = 60.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def free_port(address: str) -> int:
    with socket.socket() as listener:
        listener.bind((address, 0))
        port: int = listener.getsockname()[1]
        return port


@contextlib.contextmanager
def two_nodes(folder: Path) -> Iterator[tuple[Node, Node, str]]:
    """A head and another node with one CPU each, and the address of their cluster."""
    network = f"127.{os.getpid() // 250 % 250 + 1}.{os.getpid() % 250}"
    port = free_port(f"{network}.2")
    temporary = Path(f"/tmp/covey-test-{os.getpid()}")  # of a short name, for sockets
    head = Node(folder, f"{network}.2", "--head", f"--port={port}", "--include-dashboard=false", f"--temp-dir={temporary}")
    nodes = [head]
    try:
        head.wait()
        nodes.append(Node(folder, f"{network}.3", f"--address={network}.2:{port}"))
        nodes[1].wait()
        yield head, nodes[1], f"{network}.2:{port}"
    finally:
        for node in nodes[::-1]:
            node.kill()
        subprocess.run(["rm", "-rf", str(temporary)], check=True)


def collector_of(parts: Parts) -> RayCollector:
    collector: RayCollector = parts.loop.advance.__self__._collector  # type: ignore[attr-defined]
    return collector


def advance(parts: Parts, *sizes: int, state: Any = None) -> tuple[Any, dict[str, np.ndarray]]:
    """The state after chunks of some sizes, and their metrics in one."""
    state = parts.loop.init(jax.random.key(4)) if state is None else state
    chunks = []
    for size in sizes:
        state, metrics = parts.loop.advance(state, np.int32(size))
        chunks.append(metrics)
    return state, {name: np.concatenate([chunk[name] for chunk in chunks]) for name in chunks[0]}


def build_parts(*overrides: str) -> Parts:
    config = compose([*TINY, *overrides])
    return build(config, jax.devices()[:1])


def write_users_code(folder: Path) -> None:
    """A module that registers the clock, and one beside it that it needs."""
    folder.mkdir()
    clock = (Path(__file__).parents[1] / "simulators.py").read_text()
    (folder / "users_clocks.py").write_text(clock)
    (folder / "users_task.py").write_text(
        "import covey\nfrom users_clocks import Clock, ClockConfig\n"
        "covey.register_task('users/clock', Clock, config=ClockConfig, description='counts', host=True)\n"
    )


def test_two_nodes(tmp_path: Path, same_bits: Any, capfd: Any) -> None:
    """One test, since workers of the suite would each start a cluster of their own."""
    write_users_code(tmp_path / "code")
    with two_nodes(tmp_path) as (_, second, address):
        try:
            ray_and = ("actors=ray", f"actors.address={address}")
            check_one_actor_collects_what_local_actors_do(ray_and, same_bits)
            simulator = ("task=users/clock", "imports=[users_task]", f"code_dir={tmp_path / 'code'}")
            parts = build_parts(*simulator, *ray_and)
            (tmp_path / "code").rename(tmp_path / "gone")  # as on another machine
            check_lockstep_is_reproducible_and_resumes(parts, same_bits)
            assert capfd.readouterr().err == ""
            check_a_killed_actor_is_made_again(parts, capfd)
            check_a_killed_node_is_survived(parts, second, capfd)
            check_nothing_is_left(parts)
        finally:
            registry.tasks._entries.pop("users/clock", None)
            sys.path[:] = [place for place in sys.path if place != str(tmp_path / "code")]


def check_one_actor_collects_what_local_actors_do(ray_and: tuple[str, ...], same_bits: Any) -> None:
    parts = build_parts("task=probe/copy", *ray_and, "actors.num=1")
    here, metrics_here = advance(build_parts("task=probe/copy", "actors=local"), 3)
    there, metrics = advance(parts, 1, 2)
    parts.close()
    same_bits(there.learner, here.learner)
    for name, values in metrics_here.items():
        np.testing.assert_array_equal(metrics[name], values, err_msg=name)


def check_lockstep_is_reproducible_and_resumes(parts: Parts, same_bits: Any) -> None:
    """The same actors begin again for a state that is not theirs, and continue saved episodes."""
    whole, metrics = advance(parts, 4)
    assert [actor.node for actor in collector_of(parts)._actors] != [None, None]
    assert len({actor.node for actor in collector_of(parts)._actors}) == 2, "each node has an actor"
    again, _ = advance(parts, 4)
    same_bits(again.learner, whole.learner)
    half, _ = advance(parts, 2)
    saved = jax.device_get(parts.loop.saved(half)["simulators"])
    assert saved["there"] and len(saved["shares"]) == 2
    trees = parts.loop.saved(half)
    fresh = parts.loop.restored(parts.loop.init(jax.random.key(5)), trees)
    resumed, _ = advance(parts, 2, state=fresh)
    same_bits(resumed.learner, whole.learner)
    assert metrics["actors/restarts"].sum() == 0 and metrics["collection/episodes"].sum() > 0


def check_a_killed_actor_is_made_again(parts: Parts, capfd: Any) -> None:
    state, _ = advance(parts, 1)
    victim = collector_of(parts)._actors[1]
    os.kill(pid_of(victim), signal.SIGKILL)
    state, metrics = advance(parts, 2, state=state)
    assert metrics["actors/restarts"].tolist() == [1, 0]
    assert metrics["actors/dropped_episodes"].tolist() == [2, 0]
    [line] = capfd.readouterr().err.splitlines()
    assert line.startswith("warning: actor 1 on 127.") and line.endswith("it is made again, and 2 episodes are dropped")
    assert int(state.iteration) == 3


def check_a_killed_node_is_survived(parts: Parts, node: Node, capfd: Any) -> None:
    """The other node has no CPU left: its two actors share one."""
    state, _ = advance(parts, 1)
    threading.Timer(0.0, node.kill).start()
    state, metrics = advance(parts, 60, state=state)
    state, more = advance(parts, 2, state=state)
    assert metrics["actors/restarts"].sum() + more["actors/restarts"].sum() >= 1
    assert int(state.iteration) == 63
    err = capfd.readouterr().err
    assert node.address in err and "shares the CPUs of others" in err
    assert len({actor.node for actor in collector_of(parts)._actors}) == 1
    steps = collector_of(parts).collect(parts.loop.advance.__self__._acting(state), jax.random.key(2), False)  # type: ignore[attr-defined]
    assert steps.batch.transitions["agents"].action.shape == (8, 4, 2)


def check_nothing_is_left(parts: Parts) -> None:
    actors = [pid_of(actor) for actor in collector_of(parts)._actors]
    simulators = [child for pid in actors for child in descendants(pid)]
    assert all(map(is_alive, actors)) and simulators
    parts.close()
    assert wait_until(lambda: not any(map(is_alive, [*actors, *simulators])))
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("covey")]


def pid_of(actor: Any) -> int:
    import ray

    pid: int = ray.get(actor.placed).pid
    return pid
