"""Actors in a Ray cluster: two real nodes on loopback, of which one is killed, and what is refused before any start."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import jax
import numpy as np
import pytest

from covey import registry
from covey.errors import MissingExtra, UsageError
from covey.experiment.configuration.compose import compose
from covey.experiment.running.build import Parts, build
from covey.experiment.running.experiment import train
from covey.experiment.running.training import Callback
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
        # The shell ends it when its input ends, so that it does not outlive a test that was killed.
        command = ["sh", "-c", 'exec 3<&0; "$@" & pid=$!; (read _ <&3; kill $pid) & wait $pid', "sh"]
        command += [str(Path(sys.executable).with_name("ray")), "start", *arguments, "--block", "--num-cpus=1"]
        command += [f"--node-ip-address={address}", "--object-store-memory=100000000", "--include-log-monitor=false"]
        environment = os.environ | {
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_AUTH_MODE": "disabled",
            "RAY_health_check_period_ms": "500",  # so that a dead node is noticed within seconds
            "RAY_memory_monitor_refresh_ms": "0",  # what else runs on this machine is not the actors' fault
            "PYTHONPATH": str(Path(ray_actors.__file__).parents[2]),
        }
        with open(self._output, "w") as output:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                cwd=folder,
                env=environment,
                start_new_session=True,
            )

    @classmethod
    def started(cls, *arguments: Any) -> Node:
        """A node that runs. On a busy machine, Ray gives up after 30 seconds, and another attempt may do."""
        for _ in range(3):
            node = cls(*arguments)
            if wait_until(node.has_started_or_failed, 120) and node.process.poll() is None:
                return node
            node.kill()
        raise AssertionError(node._output.read_text()[-2_000:])

    def has_started_or_failed(self) -> bool:
        return "Ray runtime started" in self._output.read_text() or self.process.poll() is not None

    def pids(self) -> list[int]:
        """All processes of the node."""
        return descendants(self.process.pid)

    def kill(self) -> None:
        """As if the machine lost its power: nothing of the node says goodbye."""
        for pid in [self.process.pid, *self.pids()[::-1]]:  # parents first
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.communicate()


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
    temporary = Path(f"/tmp/ray-{os.getpid()}")  # of a short name, for sockets
    nodes: list[Node] = []
    try:
        of_head = ("--head", f"--port={port}", f"--temp-dir={temporary}", "--include-dashboard=false", "--no-monitor")
        nodes.append(Node.started(folder, f"{network}.2", *of_head))
        nodes.append(Node.started(folder, f"{network}.3", f"--address={network}.2:{port}"))
        yield nodes[0], nodes[1], f"{network}.2:{port}"
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


def test_two_nodes(tmp_path: Path, same_bits: Any, capfd: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """One test, since workers of the suite would each start a cluster of their own."""
    monkeypatch.setattr(ray_actors, "SHARE_SECONDS", 5.0)
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
    local = build_parts("task=probe/copy", "actors=local")
    here, metrics_here = advance(local, 3)
    local.close()
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
    err = capfd.readouterr().err
    lost = r"warning: actor 1 on 127.[\d.]+ [a-z ]+; it is started again, and 2 episodes are dropped\n"
    assert re.fullmatch(lost, err), err
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


# ------------------------------------------------------------------------------------------------- commands, to the end

COMMAND = (*TINY, "task=probe/copy", "actors=ray", "actors.num=1", "experiment.evaluation_episodes=4")
FOREVER = ("experiment.frames=1e9", "experiment.evaluation_interval=0", "experiment.checkpoint_interval=0")


def start_command(*overrides: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "covey.cli", "train", *overrides]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)


@pytest.mark.slow
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_command_with_a_ray_of_its_own_leaves_nothing(sent: signal.Signals, tmp_path: Path) -> None:
    run, home = tmp_path / "run", set(Path.home().glob(".ray/*"))
    command = start_command(*COMMAND, *FOREVER, f"run_dir={run}")
    if not wait_until(lambda: (run / "metrics.jsonl").exists() and is_training(run), 300):
        command.kill()
        pytest.fail("it did not start to train")
    processes = descendants(command.pid)
    assert len(processes) > 4, "Ray's, and the actor's"
    lines = "".join(Path(f"/proc/{pid}/cmdline").read_text() for pid in processes if is_alive(pid))
    [folder] = set(re.findall(r"/tmp/covey-\w+", lines))
    assert Path(folder).exists()
    os.killpg(command.pid, sent)
    _, err = command.communicate(timeout=120)
    assert command.returncode == (-9 if sent == signal.SIGKILL else 128 + sent)
    assert [line for line in err.splitlines() if "interrupted" not in line] == []
    assert wait_until(lambda: not any(map(is_alive, processes)), 120)
    assert wait_until(lambda: not Path(folder).exists())
    assert set(Path.home().glob(".ray/*")) == home


def is_training(run: Path) -> bool:
    return (run / "metrics.jsonl").read_text().count('"train"') > 2


@pytest.mark.slow
def test_a_failing_learner_ends_the_actors(tmp_path: Path) -> None:
    """And so does a run that ends as it should."""
    seen: list[int] = []

    class Failing:
        def on_iteration(self, training: Any, metrics: Any) -> None:
            collector = collector_of(training.parts)
            seen.extend([*map(pid_of, collector._actors), *descendants(os.getpid())])  # the actors are among Ray's
            if metrics["actors/parameter_age"] == 1:
                raise MemoryError("no memory left for anything")

    settings = [*COMMAND, "experiment.frames=96", "experiment.evaluation_interval=0", "experiment.loggers=[]"]
    with pytest.raises(MemoryError):
        train(compose([*settings, "actors.lag=1", f"run_dir={tmp_path / 'failing'}"]), [cast(Callback, Failing())])
    assert len(seen) > 5 and wait_until(lambda: not any(map(is_alive, seen)))
    seen.clear()
    [summary] = train(compose([*settings, f"run_dir={tmp_path / 'whole'}"]), [cast(Callback, Failing())])
    assert summary.frames == 96
    assert len(seen) > 5 and wait_until(lambda: not any(map(is_alive, seen)))


@pytest.mark.slow
def test_an_actor_that_always_dies_ends_the_run(tmp_path: Path) -> None:
    (tmp_path / "deadly.py").write_text(
        "import os, sys\nif sys.argv[0].endswith('default_worker.py'):  # of Ray\n    os._exit(3)\n"
    )
    code = ("imports=[deadly]", f"code_dir={tmp_path}")
    command = start_command(*COMMAND, *FOREVER, *code, f"run_dir={tmp_path / 'run'}")
    _, err = command.communicate(timeout=500)
    *warnings, last = err.splitlines()
    assert command.returncode == 1
    assert len(warnings) == 2 and all(line.endswith("was lost with its process; it is made again") for line in warnings)
    assert last.startswith("covey: actor 0") and last.endswith("it was lost 3 times without collecting a batch")


@pytest.mark.slow
def test_what_fails_on_a_node_is_one_line(tmp_path: Path) -> None:
    """A module that only this process has, as it is not where commands look for it."""
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / "only_here.py").write_text("")
    path = {"PYTHONPATH": f"{tmp_path / 'hidden'}:{os.environ.get('PYTHONPATH', '')}"}
    source = Path(ray_actors.__file__).parents[2]
    starts = f"import os, sys; os.environ['PYTHONPATH'] = '{source}'\n"
    starts += "from covey.cli import main; sys.exit(main(sys.argv[1:]))"
    arguments = ("train", *COMMAND, *FOREVER, "imports=[only_here]", f"run_dir={tmp_path / 'run'}")
    done = subprocess.run(
        [sys.executable, "-c", starts, *arguments], env=os.environ | path, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert re.fullmatch(r"covey: actor 0 on [\d.]+: imports: no module 'only_here' .*", line), line


# -------------------------------------------------------------------------------------------------- before any start


def test_what_is_sent_is_what_is_received(same_bits: Any) -> None:
    tree = {
        "key": jax.random.key(3),
        "keys": jax.random.split(jax.random.key(4), 3),
        "rows": np.arange(3.0),
        "none": None,
    }
    sent = to_send(tree)
    assert not any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(sent))
    same_bits(received(sent), tree)


def test_shares_are_joined_along_the_environments() -> None:
    def share(size: int, value: float) -> Batch:
        rows = np.full((5, size, 2), value)
        return Batch(
            transitions={"agents": rows},  # type: ignore[dict-item]
            carries={"h": rows[:1]},
            final=rows[0],
            final_carry=rows[0],
        )

    joined = join_shares([share(1, 0.0), share(3, 1.0)])
    assert [leaf.shape for leaf in jax.tree.leaves(joined)] == [(5, 4, 2), (1, 4, 2), (4, 2), (4, 2)]
    np.testing.assert_array_equal(joined.transitions["agents"][2, :, 1], [0, 1, 1, 1])  # type: ignore[index]
    alone = Batch(transitions={"agents": np.zeros((5, 2))})  # type: ignore[dict-item]
    assert join_shares([alone, alone]).final is None, "out of replay"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("actors.address=10.0.0.1:6379",), r"actors: address=10.0.0.1:6379 has no effect without where=ray"),
        (("actors.processes=2",), r"actors: processes=2 has no effect without where=ray"),
        (("actors=ray", "actors.connect_seconds=2"), r"actors: connect_seconds=2.* has no effect without an address"),
        (("actors=ray", "actors.address=head"), r"actors: address takes HOST:PORT, as in 10.0.0.1:6379, not 'head'"),
        (("actors=ray", "actors.address=head:66666"), "takes HOST:PORT"),
        (("actors=ray", "actors.num=5"), r"actors\.num=5 actors are more than num_envs=4 environments"),
        (("actors=slurm",), "where 'slurm'; nearest: .*; it takes local, ray"),
    ],
)
def test_fields_that_do_not_fit_are_refused(overrides: tuple[str, ...], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        compose([*TINY, "task=probe/copy", *overrides])


def test_more_actors_than_cores_are_refused() -> None:
    cores = len(os.sched_getaffinity(0))
    many = ("task=probe/copy", "actors=ray", f"experiment.num_envs={cores + 1}", f"actors.num={cores + 1}")
    with pytest.raises(
        UsageError, match=f"actors.num={cores + 1} actors are more than the {cores} CPUs of this machine"
    ):
        build_parts(*many, "algorithm.num_minibatches=1")
    with pytest.raises(UsageError, match=r"actors.processes has no effect: .* of a compiled task"):
        build_parts("task=probe/copy", "actors=ray", "actors.num=1", "actors.processes=1")


def test_without_the_package_a_line_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "covey.loops.ray_actors")
    with pytest.raises(MissingExtra, match=r"actors=ray needs the extra: pip install 'covey\[ray\]'"):
        build_parts("task=probe/copy", "actors=ray", "actors.num=1")


def test_an_address_where_nothing_is_is_one_line() -> None:
    address = f"127.0.0.1:{free_port('127.0.0.1')}"
    begun = time.monotonic()
    with pytest.raises(
        UsageError, match=f"no Ray cluster at actors.address={address} within 0.5 seconds: Connection ref"
    ):
        build_parts("task=probe/copy", "actors=ray", f"actors.address={address}", "actors.connect_seconds=0.5")
    assert time.monotonic() - begun < 30
    with pytest.raises(UsageError, match=r"no Ray cluster at actors.address=nowhere.invalid:6379 .*not known"):
        wait_for_server("nowhere.invalid:6379", 0.1)


@pytest.mark.parametrize(("answer", "problem"), [(b"", "no answer"), (b"HTTP/1.1 400 Bad Request\r\n", "as Ray does")])
def test_a_server_that_is_not_ray_is_one_line(answer: bytes, problem: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    client, _ = server.accept()
                    clients.append(client)
                    if answer:
                        client.sendall(answer)

        clients: list[socket.socket] = []
        threading.Thread(target=serve, daemon=True).start()
        begun = time.monotonic()
        with pytest.raises(UsageError, match=problem):
            wait_for_server(f"127.0.0.1:{server.getsockname()[1]}", 0.5)
        assert time.monotonic() - begun < 20
        server.shutdown(socket.SHUT_RDWR)
        for client in clients:
            client.close()
