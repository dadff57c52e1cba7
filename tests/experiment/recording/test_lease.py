"""One process at a time trains a run: leases that are held, free, left by the dead, copied, and fought over."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from covey import files
from covey.errors import CoveyError
from covey.experiment.recording import lease as module
from covey.experiment.recording.lease import (
    Held,
    Lease,
    LeaseLost,
    Verdict,
    find,
    hold,
    judge,
    living_holder,
    take,
    this_process,
)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SECONDS_BETWEEN_BEATS", 0.1)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def put(folder: Path, *, seconds_ago: float = 0.0, **changes: Any) -> Path:
    """A lease of this process, with some fields changed and a heartbeat in the past."""
    path = folder / ".lease-1"
    path.touch()
    holder = dataclasses.replace(this_process(path.stat().st_ino), **changes)
    path.write_text(json.dumps(dataclasses.asdict(holder)))
    os.utime(path, (time.time() - seconds_ago,) * 2)
    return path


def verdict(folder: Path) -> Verdict:
    return judge(find(folder), time.time())


def dead_process() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_the_second_is_refused_by_name_until_the_first_releases(tmp_path: Path) -> None:
    first = take(tmp_path)
    with pytest.raises(Held, match=rf"is being trained by process {os.getpid()} on \S+, since 20\d\d-") as caught:
        take(tmp_path)
    assert "\n" not in str(caught.value)
    assert names(tmp_path) == [".lease-1"]
    holder = living_holder(tmp_path)
    assert holder is not None and holder.process == os.getpid()
    first.release()
    assert living_holder(tmp_path) is None
    second = take(tmp_path)
    assert names(tmp_path) == [".lease-2"]
    first.release()  # has no power over the second
    assert living_holder(tmp_path) is not None
    second.release()


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(CoveyError, match="cannot train in"):
        take(tmp_path / "missing")


def test_a_killed_process_leaves_nothing_in_the_way(tmp_path: Path) -> None:
    code = "import sys, time; from pathlib import Path; from covey.experiment.recording.lease import take\n"
    code += "take(Path(sys.argv[1])); print('taken', flush=True); time.sleep(60)"
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "taken\n"
        with pytest.raises(Held, match=f"process {process.pid} on"):
            take(tmp_path)
        process.send_signal(signal.SIGKILL)
        deadline = time.monotonic() + 10
        while verdict(tmp_path) is Verdict.held and time.monotonic() < deadline:
            time.sleep(0.01)
        # Nobody has waited for the process yet: a zombie is dead too.
        started = time.monotonic()
        take(tmp_path).release()
        assert time.monotonic() - started < 1.0


def test_who_is_dead_on_this_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path)
    assert verdict(tmp_path) is Verdict.held
    put(tmp_path, seconds_ago=3600)  # stopped by Ctrl-Z, say
    assert verdict(tmp_path) is Verdict.held
    put(tmp_path, process=dead_process())
    assert verdict(tmp_path) is Verdict.dead
    put(tmp_path, process_started=1)  # the id is another process's by now
    assert verdict(tmp_path) is Verdict.dead
    monkeypatch.setattr(module, "_seconds_since_boot", lambda: 100.0)
    put(tmp_path, boot="another", seconds_ago=200)
    assert verdict(tmp_path) is Verdict.dead
    put(tmp_path, boot="another", seconds_ago=5)  # beaten since this host started: it has a namesake
    assert verdict(tmp_path) is Verdict.held
    put(tmp_path, namespace="a container", process=dead_process(), seconds_ago=5)
    assert verdict(tmp_path) is Verdict.held


def test_other_hosts_are_judged_by_their_heartbeats(tmp_path: Path) -> None:
    process = dead_process()
    put(tmp_path, host="elsewhere", process=process, seconds_ago=30)
    assert verdict(tmp_path) is Verdict.held
    with pytest.raises(Held, match=f"process {process} on elsewhere, since .* 60 s after its last heartbeat"):
        take(tmp_path)
    put(tmp_path, host="elsewhere", process=process, seconds_ago=90)
    assert verdict(tmp_path) is Verdict.silent
    take(tmp_path).release()


@pytest.mark.parametrize("seconds_ago", [90, -3600])
def test_a_clock_that_is_wrong_does_not_take_a_lease_that_beats(tmp_path: Path, seconds_ago: float) -> None:
    path = put(tmp_path, host="elsewhere", seconds_ago=seconds_ago)
    stop = threading.Event()

    def beat() -> None:
        times = path.stat().st_mtime
        while not stop.wait(0.02):
            times += 0.02
            os.utime(path, (times, times))

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        assert verdict(tmp_path) is Verdict.silent
        with pytest.raises(Held):
            take(tmp_path)
    finally:
        stop.set()
        thread.join()


def test_a_copied_run_directory_is_not_being_trained(tmp_path: Path) -> None:
    put(tmp_path, file=1)  # the inode of another file
    assert verdict(tmp_path) is Verdict.silent
    take(tmp_path).release()


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b"\xff", b'{"process": -1}', b"[" * 4000])
def test_a_lease_that_cannot_be_read_is_one_until_it_is_old(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / ".lease-3"
    path.write_bytes(content)
    with pytest.raises(Held, match="cannot be read"):
        take(tmp_path)
    os.utime(path, (time.time() - 90,) * 2)
    take(tmp_path).release()
    assert names(tmp_path) == [".lease-4"]


@pytest.mark.parametrize("name", [".lease-007", ".lease-٣", ".lease-0", ".lease-x"])
def test_odd_names_are_no_leases(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("")
    assert find(tmp_path).number == 0


def test_odd_files_do_not_hang(tmp_path: Path) -> None:
    (tmp_path / ".lease-1").symlink_to(tmp_path / "nowhere")
    with pytest.raises(CoveyError):
        take(tmp_path)
    os.mkfifo(tmp_path / ".lease-2")
    with pytest.raises(Held):
        take(tmp_path)


# ------------------------------------------------------------------------------------------------------------- races


@pytest.mark.parametrize("left", ["nothing", "free", "dead"])
def test_of_many_takers_one_wins(tmp_path: Path, left: str) -> None:
    process = dead_process()
    for number in range(20):
        folder = tmp_path / str(number)
        folder.mkdir()
        if left == "free":
            take(folder).release()
        elif left == "dead":
            put(folder, process=process)
        barrier = threading.Barrier(8)
        won: list[Any] = []

        def race(folder: Path = folder, barrier: threading.Barrier = barrier, won: list[Lease] = won) -> None:
            barrier.wait()
            with contextlib.suppress(Held):
                won.append(take(folder))

        threads = [threading.Thread(target=race) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(won) == 1
        won[0].check()
        assert [name for name in names(folder) if not name.endswith(".tmp")] == [won[0].path.name]


def test_a_slow_taker_does_not_win_with_an_old_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It saw the first lease free, and meanwhile the second was taken, released and replaced by a third."""
    take(tmp_path).release()
    link = files.link_exclusively
    holders: list[Lease] = []

    def slow(source: Path, target: Path) -> bool:
        if not holders:
            monkeypatch.setattr(module, "link_exclusively", link)
            take(tmp_path).release()
            holders.append(take(tmp_path))
        return link(source, target)

    monkeypatch.setattr(module, "link_exclusively", slow)
    with pytest.raises(Held):
        take(tmp_path)
    holders[0].beat()
    holders[0].check()
    assert names(tmp_path) == [".lease-3"]


def test_a_file_system_without_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any) -> None:
        raise OSError(errno.EPERM, "not permitted")

    monkeypatch.setattr(os, "link", refuse)
    stop = threading.Event()
    first = take(tmp_path)

    def beat() -> None:
        while not stop.wait(0.02):
            first.beat()

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        with pytest.raises(Held):
            take(tmp_path)
    finally:
        stop.set()
        thread.join()
    first.release()
    take(tmp_path).release()


# -------------------------------------------------------------------------------------------------- holding and losing


def a_run(folder: Path) -> Any:
    folder.mkdir()
    return SimpleNamespace(path=folder, lease=None)


def test_holding_several_beats_and_releases(tmp_path: Path) -> None:
    runs = [a_run(tmp_path / name) for name in ("a", "b")]
    with pytest.raises(ZeroDivisionError), hold(runs):
        beats = [find(run.path).beat for run in runs]
        deadline = time.monotonic() + 10
        while [find(run.path).beat for run in runs] == beats and time.monotonic() < deadline:
            time.sleep(0.02)
        assert all(find(run.path).beat > beat for run, beat in zip(runs, beats, strict=True))
        raise ZeroDivisionError
    assert all(find(run.path).free and run.lease is None for run in runs)


def test_all_or_none_are_held(tmp_path: Path) -> None:
    runs = [a_run(tmp_path / name) for name in ("a", "b")]
    take(runs[1].path)
    with pytest.raises(Held), hold(runs):
        raise AssertionError
    assert find(runs[0].path).free


def test_a_process_that_was_suspended_notices_that_it_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lease = take(tmp_path)
    lease.check()
    with monkeypatch.context() as patch:
        patch.setattr(module, "is_alive", lambda holder: False)  # as another host would find it after a minute
        other = take(tmp_path)
    time.sleep(0.25)  # longer than two heartbeats: the next check looks before it trusts
    with pytest.raises(LeaseLost, match=f"was taken over by process {os.getpid()} on"):
        lease.check()
    lease.release()
    other.check()
    assert not find(tmp_path).free


def test_a_removed_lease_is_lost(tmp_path: Path) -> None:
    lease = take(tmp_path)
    lease.path.unlink()
    lease.beat()
    with pytest.raises(LeaseLost):
        lease.check()
