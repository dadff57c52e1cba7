"""Actors in a Ray cluster: a collector whose copies are stepped, and acted for, on other machines.

Each actor is a process that Ray places on a node. It holds an ordinary collector over its share of the copies, and acts
there, on the CPU, with the parameters that were published for the batch. Batches come back as NumPy arrays, and the
shares are joined along the axis of environments. Everything else is as with actors on this machine.

The run survives the loss of an actor. If its process or its node dies, it is started again where there is room, begins
new episodes, and collects its share of the same batch with the same parameters. A failure in a simulator does not end
its actor. It ends the run, as it does on this machine.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import logging
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial, reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray reads it while it is imported

import ray
from ray._private.authentication.authentication_token_setup import enable_token_auth_by_default
from ray.exceptions import ActorUnavailableError, NodeDiedError, RayError

from covey.envs.host.env import simulator_of
from covey.envs.host.pool import num_cores, print_warning
from covey.envs.host.simulator import describe_error
from covey.errors import CoveyError, UsageError
from covey.loops import ray_head
from covey.loops.base import Elsewhere
from covey.loops.collectors import (
    Cancelled,
    Collected,
    Collecting,
    Collector,
    Collectors,
    example_saved,
    make_collector,
)
from covey.loops.config import ActorsConfig
from covey.types import Batch, Key, PyTree

CONNECT_SECONDS = 30.0  # in which a cluster must answer, unless `actors.connect_seconds` says otherwise
START_SECONDS = 300.0  # in which Ray must start its own processes, and those of all actors
SHARE_SECONDS = 20.0  # for which an actor that is started again waits for CPUs of its own
CLOSE_SECONDS = 3.0  # in which actors must end by themselves
POLL_SECONDS = 0.2  # between checks whether collecting was cancelled
MOST_FAILURES = 3  # of one actor, with no batch in between
END_SECONDS = 30.0  # that a Ray of its own has to end
LOOPBACK = "127.0.0.2" if sys.platform == "linux" else "127.0.0.1"  # Ray replaces 127.0.0.1 by another address on Linux


# ------------------------------------------------------------------------------------------------ in an actor's process


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answer:
    """What an actor answers. A failure is sent as a line of text, because an exception may not survive pickling."""

    value: Any = None
    failure: str | None = None
    warnings: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Place:
    """Where an actor is, and what is installed there."""

    node: str
    pid: int
    versions: Mapping[str, str]


class Share:
    """An actor: a collector of `num_envs` copies, made at the first request.

    A request may bring a key `begin`: then new episodes begin before it is answered."""

    def __init__(self, make: Callable[[], Collecting], num_envs: int, num_workers: int, step_seconds: float):
        self._make_collecting, self._num_envs, self._num_workers = make, num_envs, num_workers
        self._seconds = step_seconds
        self._collector: Collector | None = None
        self._device: Any = None
        self._warnings: list[str] = []

    def place(self) -> Place:
        return Place(node=ray.util.get_node_ip_address(), pid=os.getpid(), versions=own_versions())

    def begin(self, begin: SentKey | None, key: SentKey) -> Answer:
        return self._answer(None, lambda collector: collector.begin(received(key)))

    def collect(self, begin: SentKey | None, acting: PyTree, key: SentKey, at_random: bool) -> Answer:
        def collect(collector: Collector) -> Collected:
            here = jax.device_put(received(acting), self._device)
            collected = collector.collect(here, received(key), at_random)
            batch, sums = to_send((collected.batch, collected.sums))
            return dataclasses.replace(collected, batch=batch, sums=sums)

        return self._answer(begin, collect)

    def saved(self, begin: SentKey | None) -> Answer:
        return self._answer(begin, lambda collector: to_send(collector.saved()))

    def restore(self, begin: SentKey | None, saved: Mapping[str, Any]) -> Answer:
        return self._answer(None, lambda collector: collector.restore(received(saved)))

    def close(self) -> None:
        if self._collector is not None:
            self._collector.close()

    def _answer(self, begin: SentKey | None, request: Callable[[Collector], Any]) -> Answer:
        value, failure = None, None
        try:
            if self._collector is None:
                self._collector = self._make()
            if begin is not None:
                self._collector.begin(received(begin))
            value = request(self._collector)
        except CoveyError as error:
            failure = str(error)
        except Exception as error:
            failure = describe_error(error)
        warnings, self._warnings[:] = tuple(self._warnings), []
        return Answer(value=value, failure=failure, warnings=warnings)

    def _make(self) -> Collector:
        collecting = self._make_collecting()
        self._device = collecting.device
        share = dataclasses.replace(collecting, num_envs=self._num_envs, num_workers=self._num_workers)
        return make_collector(share, self._seconds, self._warnings.append)


def own_versions() -> dict[str, str]:
    """The versions that must be the same on all nodes."""
    return {"covey": importlib.metadata.version("covey"), "jax": jax.__version__}


# ------------------------------------------------------------------------------------------------------ what is sent


@dataclasses.dataclass(frozen=True)
class SentKey:
    """A typed key as an array."""

    data: np.ndarray
    implementation: str


def to_send(tree: PyTree) -> PyTree:
    """`tree` with NumPy arrays for leaves, which can be sent."""

    def send(leaf: Any) -> Any:
        if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return SentKey(np.asarray(jax.random.key_data(leaf)), str(jax.random.key_impl(leaf)))
        return np.asarray(leaf) if isinstance(leaf, jax.Array) else leaf

    return jax.tree.map(send, tree)


def received(tree: PyTree) -> Any:
    """The inverse of `to_send` for keys; other leaves stay arrays."""

    def receive(leaf: Any) -> Any:
        if not isinstance(leaf, SentKey):
            return leaf
        return jax.random.wrap_key_data(jnp.asarray(leaf.data), impl=leaf.implementation)

    return jax.tree.map(receive, tree)


def join_shares(batches: Sequence[Batch]) -> Batch:
    """The batch `[T, B, …]` of all shares, in their order. It is a copy, because Ray's arrays are in Ray's memory."""

    def join(name: str, axis: int) -> Any:
        return jax.tree.map(lambda *parts: np.concatenate(parts, axis), *(getattr(batch, name) for batch in batches))

    return Batch(
        transitions=join("transitions", 1),
        carries=join("carries", 1),
        final=join("final", 0),
        final_carry=join("final_carry", 0),
    )


# ------------------------------------------------------------------------------------------------------- the cluster


class Cluster:
    """This process's connection to a Ray cluster; without an address, to a Ray that it starts on this machine.

    A thread holds the connection from start to end. So waiting for it can be limited, and Ray does not change the
    handlers of signals.
    """

    def __init__(self, address: str | None, seconds: float, modules: Sequence[str] = ()):
        """`modules` are files and folders of code that are sent to every node."""
        self.address, self.modules = address, tuple(modules)
        self.users = 0  # collectors that use it
        self._ended = threading.Event()
        self._error = UsageError if address else CoveyError  # one of its own is started by a run that has begun
        connected: Future[None] = Future()
        if address is None:
            seconds = START_SECONDS
        else:
            wait_for_server(address, seconds)
        self._thread = threading.Thread(target=self._hold, args=(connected,), name="covey ray", daemon=True)
        self._thread.start()
        try:
            connected.result(timeout=seconds)
        except TimeoutError:
            self._ended.set()
            raise self._error(f"{self} could not be used within {seconds:g} seconds") from None
        except BaseException:
            self._ended.set()
            raise

    def __str__(self) -> str:
        return f"the Ray cluster at {self.address}" if self.address else "Ray on this machine"

    @property
    def cpus(self) -> int:
        """All CPUs of the cluster, free or not."""
        return int(ray.cluster_resources().get("CPU", 0))

    @property
    def free_cpus(self) -> int:
        return int(ray.available_resources().get("CPU", 0))

    def _hold(self, connected: Future[None]) -> None:
        logging.getLogger("ray").setLevel(logging.CRITICAL)
        with contextlib.ExitStack() as stack:
            try:
                address = self.address or stack.enter_context(ray_of_own())
                code = {"py_modules": list(self.modules)} if self.modules else None
                stack.callback(ray.shutdown)
                ray.init(address, runtime_env=code, log_to_driver=False, configure_logging=False)
            except BaseException as error:
                connected.set_exception(self._error(f"cannot use {self}: {describe_error(error)}"))
                return
            # Ray prints events such as an actor's death. covey reports those that matter in one line.
            ray._private.worker._worker_logs_enabled = False
            connected.set_result(None)
            self._ended.wait()

    def close(self) -> None:
        """Ends the connection, and everything that this process runs in the cluster."""
        self._ended.set()
        self._thread.join(END_SECONDS)


@contextlib.contextmanager
def ray_of_own() -> Iterator[str]:
    """Ray on this machine while the body runs; gives its address. A secret token is needed to use it.

    Without a token in the environment, Ray would write one into the home directory."""
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    enable_token_auth_by_default()
    with ray_head.started(num_cpus=num_cores(), include_dashboard=False, _node_ip_address=LOOPBACK) as address:
        yield address


def wait_for_server(address: str, seconds: float) -> None:
    """Returns when something at HOST:PORT answers as gRPC does; raises UsageError if nothing does within `seconds`.

    Ray itself would wait for minutes and print what it tries."""
    host, _, port = address.rpartition(":")
    preface, settings = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
    deadline = time.monotonic() + seconds
    while True:
        try:
            with socket.create_connection(
                (host, int(port)), timeout=max(POLL_SECONDS, deadline - time.monotonic())
            ) as at:
                at.sendall(preface + settings)
                if at.recv(4)[3:] == settings[3:4]:
                    return
            problem = "it does not answer as Ray does"
        except TimeoutError:
            problem = "no answer"
        except OSError as error:
            problem = error.strerror or str(error)
        if time.monotonic() > deadline:
            raise UsageError(
                f"no Ray cluster at actors.address={address} within {seconds:g} seconds: {problem}; "
                "`ray start --head` starts one"
            )
        time.sleep(POLL_SECONDS)


_cluster: Cluster | None = None


def connect(actors: ActorsConfig, modules: Sequence[str]) -> Cluster:
    """The connection of this process. It is made at the first call."""
    global _cluster
    if _cluster is not None and (_cluster.address, _cluster.modules) == (actors.address, tuple(modules)):
        return _cluster
    if _cluster is not None and not _cluster.users:
        disconnect()
    if ray.is_initialized():
        raise UsageError("this process uses Ray already, and can use it only once: end that first, with ray.shutdown()")
    _cluster = Cluster(actors.address, actors.connect_seconds or CONNECT_SECONDS, modules)
    return _cluster


def disconnect() -> None:
    """Ends the connection, unless a collector still uses it."""
    global _cluster
    if _cluster is not None and not _cluster.users:
        cluster, _cluster = _cluster, None
        cluster.close()


# ----------------------------------------------------------------------------------------------------- in the learner


def ray_collectors(collecting: Collecting, actors: ActorsConfig, elsewhere: Elsewhere) -> Collectors:
    """Collecting in a Ray cluster; `elsewhere` makes `collecting` in an actor's process."""
    if actors.processes is not None and simulator_of(collecting.env) is None:
        raise ValueError("actors.processes has no effect: actors step the environments of a compiled task themselves")
    processes = actors.processes or 1
    num = count_actors(actors, collecting.num_envs, elsewhere.modules)
    sizes = [len(part) for part in np.array_split(np.arange(collecting.num_envs), num)]
    shares = [dataclasses.replace(collecting, num_envs=size, num_workers=processes) for size in sizes]
    return Collectors(
        make=partial(RayCollector, elsewhere, sizes, actors), example_saved=partial(example_of_shares, shares)
    )


def example_of_shares(shares: Sequence[Collecting]) -> dict[str, Any]:
    """An example of what a `RayCollector` saves, for its shapes."""
    saved = [example_saved(share) for share in shares]
    return {"shares": saved} if all(saved) else {}


def count_actors(actors: ActorsConfig, num_envs: int, modules: Sequence[str]) -> int:
    """The number of actors: `actors.num`, or as many as there are CPUs for. Raises UsageError if CPUs are too few."""
    processes, num = actors.processes or 1, actors.num
    if actors.address is None:  # the Ray that is started later has these
        cpus, where = num_cores(), "this machine"
    else:
        cluster = connect(actors, modules)
        deadline = time.monotonic() + (actors.connect_seconds or CONNECT_SECONDS)
        while cluster.cpus < (num or 1) * processes and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)  # nodes may still be starting
        cpus, where = cluster.cpus, str(cluster)
    if cpus < (num or 1) * processes:
        each = f" of {processes} processes each" if processes > 1 else ""
        raise UsageError(f"actors.num={num or 1} actors{each} are more than the {cpus} CPUs of {where}")
    return num or min(cpus // processes, num_envs)


@dataclasses.dataclass
class RemoteActor:
    """An actor as the learner sees it. It may be started again.

    placed     Ray's reference to the answer of `Share.place`
    node       the node where it runs, once that is known
    made       when it was started last
    claims     whether it claims CPUs of its own; otherwise it shares those of others
    begin      the key with which new episodes begin at the next request; None: they continue
    failures   how often it was lost since its last batch
    """

    number: int
    size: int
    handle: Any = None
    placed: Any = None
    node: str | None = None
    made: float = 0.0
    claims: bool = True
    begin: Key | None = None
    failures: int = 0

    def __str__(self) -> str:
        return f"actor {self.number}{f' on {self.node}' if self.node else ''}"


class RayCollector:
    """Collects in actors of a Ray cluster, each with its share of the copies."""

    def __init__(self, elsewhere: Elsewhere, sizes: Sequence[int], actors: ActorsConfig):
        self._make, self._config = elsewhere.make, actors
        self._processes = actors.processes or 1
        self._remote: Any = ray.remote(Share)
        self._actors = [RemoteActor(number=number, size=size) for number, size in enumerate(sizes)]
        self._key = to_send(jax.random.key(0))  # the latest; those of actors that are started again are derived from it
        self._restarts = self._told_restarts = 0
        self._dropped = self._told_dropped = 0
        self._cancelled = self._closed = False
        self._asking = False  # whether actors may be busy
        self._cluster = connect(actors, elsewhere.modules)
        self._cluster.users += 1
        try:
            for actor in self._actors:
                self._start(actor)
            self._wait_until_placed()
        except BaseException:
            self.close()
            raise

    # ---------------------------------------------------------------------------------------------------- collecting

    def begin(self, key: Key) -> None:
        self._cancelled, self._key = False, to_send(key)
        for actor in self._actors:
            actor.begin = None
        self._ask_all("begin", lambda actor: (to_send(self._own_key(key, actor)),), playing=False)

    def collect(self, acting: PyTree, key: Key, at_random: bool) -> Collected:
        self._key = to_send(key)
        published = ray.put(to_send(acting))
        shares: list[Collected] = self._ask_all(
            "collect", lambda actor: (published, to_send(self._own_key(key, actor)), bool(at_random)), playing=True
        )
        for actor in self._actors:
            actor.failures = 0
        restarts, self._told_restarts = self._restarts - self._told_restarts, self._restarts
        dropped, self._told_dropped = self._dropped - self._told_dropped, self._dropped
        return Collected(
            batch=join_shares([share.batch for share in shares]),
            sums=jax.tree.map(lambda *parts: reduce(np.add, parts), *(share.sums for share in shares)),
            restarts=restarts + sum(share.restarts for share in shares),
            dropped_episodes=dropped + sum(share.dropped_episodes for share in shares),
        )

    def saved(self) -> dict[str, Any]:
        try:
            shares = received(self._ask_all("saved", lambda actor: (), playing=True))
        except Cancelled:
            return {}
        return {"shares": shares} if all(shares) else {}

    def restore(self, saved: Mapping[str, Any]) -> bool:
        self._cancelled = False
        shares = saved.get("shares", ())
        if len(shares) != len(self._actors):
            return False
        for actor in self._actors:
            actor.begin = None
        return all(self._ask_all("restore", lambda actor: (to_send(shares[actor.number]),), playing=False))

    def cancel(self) -> None:
        self._cancelled = True

    def _own_key(self, key: Key, actor: RemoteActor) -> Key:
        """The key of an actor. A single actor has the key itself, so it collects what actors of this machine would."""
        return key if len(self._actors) == 1 else jax.random.fold_in(key, actor.number)

    def _ask_all(self, request: str, arguments: Callable[[RemoteActor], tuple[Any, ...]], playing: bool) -> list[Any]:
        """The answers of all actors to a request. An actor that dies meanwhile is started and asked again.

        `playing`: episodes are running, and those of a lost actor are dropped."""

        def ask(actor: RemoteActor) -> Any:
            begin = None if actor.begin is None else to_send(actor.begin)
            return getattr(actor.handle, request).remote(begin, *arguments(actor))

        self._asking = True
        answers: dict[int, Any] = {}
        asked = {ask(actor): actor for actor in self._actors}
        while asked:
            if self._cancelled:
                raise Cancelled
            ready, _ = ray.wait(list(asked), num_returns=1, timeout=POLL_SECONDS)
            for reference in ready:
                actor = asked.pop(reference)
                try:
                    answers[actor.number] = self._checked(actor, ray.get(reference))
                except RayError as error:
                    self._replace(actor, error, dropped=actor.size if playing else 0)
                    asked[ask(actor)] = actor
            for reference, actor in list(asked.items()):
                if self._lacks_room(actor):
                    del asked[reference]
                    print_warning(f"{actor} shares the CPUs of others; {self._room()}")
                    self._start(actor, claims=False)
                    asked[ask(actor)] = actor
        self._asking = False
        return [answers[actor.number] for actor in self._actors]

    def _checked(self, actor: RemoteActor, answer: Answer) -> Any:
        """The value of an actor's answer; raises CoveyError if it reports a failure."""
        for line in answer.warnings:
            print_warning(f"{actor}: {line}")
        if answer.failure is not None:
            raise CoveyError(f"{actor}: {answer.failure}")
        actor.begin = None
        return answer.value

    # ------------------------------------------------------------------------------------------------------- actors

    def _start(self, actor: RemoteActor, claims: bool = True) -> None:
        """Starts an actor, also in place of one that was lost."""
        if actor.handle is not None:
            ray.kill(actor.handle)
        options = self._remote.options(num_cpus=self._processes if claims else 0, scheduling_strategy="SPREAD")
        actor.handle = options.remote(self._make, actor.size, self._processes, self._config.step_seconds)
        actor.placed, actor.node = actor.handle.place.remote(), None
        actor.made, actor.claims = time.monotonic(), claims

    def _replace(self, actor: RemoteActor, error: RayError, dropped: int) -> None:
        """Starts an actor again that was lost, with `dropped` episodes; new episodes begin."""
        actor.failures += 1
        lost = f"{actor} {why_lost(error)}"
        if actor.failures >= MOST_FAILURES:
            raise CoveyError(f"{lost}; it was lost {MOST_FAILURES} times without collecting a batch")
        self._restarts += 1
        self._dropped += dropped
        print_warning(f"{lost}; it is started again" + (f", and {dropped} episodes are dropped" if dropped else ""))
        _, key = jax.random.split(self._own_key(received(self._key), actor))
        actor.begin = jax.random.fold_in(key, self._restarts)
        self._start(actor)

    def _is_placed(self, actor: RemoteActor) -> bool:
        """Whether a node runs the actor. Notes which one."""
        if actor.node is None and ray.wait([actor.placed], timeout=0)[0]:
            place: Place = ray.get(actor.placed)
            actor.node = place.node
            if place.versions != own_versions():
                there, here = (
                    ", ".join(f"{k} {v}" for k, v in own.items()) for own in (place.versions, own_versions())
                )
                raise CoveyError(f"{actor} has {there}, and the learner {here}: all nodes need the same")
        return actor.node is not None

    def _lacks_room(self, actor: RemoteActor) -> bool:
        """Whether an actor that was started again waits for CPUs that the cluster no longer has."""
        with contextlib.suppress(RayError):  # it died, which its request will report
            if self._is_placed(actor):
                return False
        waited = time.monotonic() - actor.made
        if waited > START_SECONDS:
            raise CoveyError(f"{actor} did not start within {START_SECONDS:g} seconds; {self._room()}")
        return actor.claims and waited > SHARE_SECONDS and self._cluster.free_cpus < self._processes

    def _room(self) -> str:
        return f"{self._cluster} has {self._cluster.cpus} CPUs, {self._cluster.free_cpus} of them free"

    def _wait_until_placed(self) -> None:
        """Waits until nodes run all actors."""
        deadline = time.monotonic() + START_SECONDS
        while waiting := [actor for actor in self._actors if not self._is_placed_or_made_again(actor)]:
            if time.monotonic() > deadline:
                raise CoveyError(
                    f"{len(waiting)} of {len(self._actors)} actors did not start within {START_SECONDS:g} seconds; "
                    f"{self._room()}"
                )
            ray.wait([actor.placed for actor in waiting], num_returns=1, timeout=POLL_SECONDS)

    def _is_placed_or_made_again(self, actor: RemoteActor) -> bool:
        try:
            return self._is_placed(actor)
        except RayError as error:
            self._replace(actor, error, dropped=0)
            return False

    def close(self) -> None:
        """Ends the actors, and the connection if no other collector uses it."""
        if self._closed:
            return
        self._closed = True
        with contextlib.suppress(Exception):  # the cluster may be gone
            handles = [actor.handle for actor in self._actors if actor.handle is not None]
            if not self._asking:
                ray.wait([handle.close.remote() for handle in handles], num_returns=len(handles), timeout=CLOSE_SECONDS)
            for handle in handles:
                ray.kill(handle)
        self._cluster.users -= 1
        disconnect()


def why_lost(error: RayError) -> str:
    """What happened to an actor, in a few words of Ray's long message."""
    text = " ".join(str(error).split())
    if "node has died" in text or "node was terminated" in text or isinstance(error, NodeDiedError):
        return "was lost with its node"
    if isinstance(error, ActorUnavailableError):
        return "cannot be reached"
    if "worker process has died" in text:
        return "was lost with its process"
    return f"failed: {text[:300]}"
