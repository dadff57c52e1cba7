"""The lease of a run directory: one process at a time trains a run.

    .lease-7    host, process and boot of whoever trains; its modification time is the holder's heartbeat. When the
                holder ends, `free` replaces the content.

The lease with the highest number counts. Once it is free or its holder is dead, a process takes the lease by making the
next number exclusively (a hard link, or O_EXCL where the file system has no links). The highest number never disappears
before there is a higher one. So two takers ask for the same name, and only one succeeds; and a holder that was
suspended and replaced sees a higher number and stops. No `flock`: it is unreliable on cluster file systems.

A holder on this host is dead if its process is. One on another host is dead if it misses its heartbeats. Clocks of
hosts differ, so the age of a heartbeat is measured against a file that was just written in the same folder. Clocks of
file systems can be wrong too, so a lease of another host is watched for longer than a heartbeat before it is taken.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import enum
import json
import os
import re
import socket
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from covey import registry
from covey.errors import CoveyError, UsageError
from covey.files import link_exclusively

if TYPE_CHECKING:
    from covey.experiment.recording.run_directory import RunDirectory

SECONDS_BETWEEN_BEATS = 10.0
SECONDS_UNTIL_STALE = 60.0  # without a heartbeat; tolerates a holder that is slow or a server that does not answer
FREE = b"free\n"
NAME = re.compile(r"\.lease-([1-9][0-9]*)")
MOST_BYTES = 4096  # of a lease


class Held(UsageError):
    """Another process trains the run."""


class LeaseLost(CoveyError):
    """Another process took the run over."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Holder:
    """A process that trains a run, as its lease describes it."""

    host: str
    boot: str | None  # None where the system does not tell, as with all fields that may be None
    namespace: str | None  # of process ids: containers on one host have their own
    process: int
    process_started: int | None  # clock ticks after the boot: another process with the same id started at another time
    since: str  # UTC
    file: int  # inode of the lease: a copied run directory has a copy of the lease, which nobody holds

    def __str__(self) -> str:
        return f"process {self.process} on {self.host}, since {self.since}"


class Found(NamedTuple):
    """The lease that counts in a folder: number 0 where there is none."""

    number: int = 0
    free: bool = True
    holder: Holder | None = None  # None also where the file cannot be read
    beat: float = 0.0  # modification time, by the clock of the file system
    is_copy: bool = False


class Lease:
    """A lease that this process took. `check` before writing into the folder; `release` at the end."""

    def __init__(self, folder: Path, number: int):
        self.folder = folder
        self.number = number
        self._lost = False
        self._last_beat = _seconds_awake_or_asleep()

    @property
    def path(self) -> Path:
        return _path(self.folder, self.number)

    def beat(self) -> None:
        """A heartbeat, unless the lease is lost. A file system that does not answer is asked again next time."""
        try:
            if _highest(self.folder) != self.number:
                self._lost = True
                return
            os.utime(self.path)
        except FileNotFoundError:  # the folder or the lease was removed
            self._lost = True
        except OSError:
            return
        self._last_beat = _seconds_awake_or_asleep()

    def check(self) -> None:
        """Raises LeaseLost where another process took the lease. A process that was suspended looks at once."""
        if _seconds_awake_or_asleep() - self._last_beat > 2 * SECONDS_BETWEEN_BEATS:
            self.beat()
        if self._lost:
            holder = living_holder(self.folder)
            reason = "lost its lease, which was removed" if holder is None else f"was taken over by {holder}"
            raise LeaseLost(f"{self.folder} {reason}; this process stopped writing")

    def release(self) -> None:
        """Lets another process take the run at once. Where that fails, the lease ends with this process."""
        with contextlib.suppress(OSError):
            if _highest(self.folder) == self.number:
                temporary = _temporary(self.folder)
                temporary.write_bytes(FREE)
                os.replace(temporary, self.path)


@contextlib.contextmanager
def hold(runs: Sequence[RunDirectory]) -> Iterator[None]:
    """Holds the leases of all `runs`, or raises Held and none. Heartbeats come from a thread."""
    taken: list[Lease] = []
    stopped = threading.Event()

    def keep_beating() -> None:
        while not stopped.wait(SECONDS_BETWEEN_BEATS):
            for lease in taken:
                lease.beat()

    try:
        for run in runs:
            run.lease = take(run.path)
            taken.append(run.lease)
        threading.Thread(target=keep_beating, name="heartbeat", daemon=True).start()
        yield
    finally:
        stopped.set()
        for run in runs:
            run.lease = None
        for lease in taken:
            lease.release()


def take(folder: Path) -> Lease:
    """The lease of `folder`, or Held where a living process has it."""
    own = _temporary(folder)
    try:
        now = _write_own(own)
        while True:
            found = find(folder)
            verdict = judge(found, now)
            if verdict is Verdict.held or (verdict is Verdict.silent and _is_beating(folder, found)):
                raise Held(f"{folder} is being trained by {_describe(found)}")
            number = found.number + 1
            if not link_exclusively(own, _path(folder, number)):
                continue
            if _highest(folder) == number:  # else a taker that was slow made a number that others had already used
                _remove_older(folder, number, now)
                return Lease(folder, number)
            _path(folder, number).unlink(missing_ok=True)
    except OSError as error:
        raise CoveyError(f"cannot train in {folder}: {error.strerror or error}") from error
    finally:
        with contextlib.suppress(OSError):
            own.unlink(missing_ok=True)


def living_holder(folder: Path) -> Holder | None:
    """Who trains in `folder`, for those who only look: nothing is written, so this host's clock must do."""
    try:
        found = find(folder)
    except OSError:
        return None
    return found.holder if judge(found, time.time()) is Verdict.held else None


# ---------------------------------------------------------------------------------------------------------- judging


class Verdict(enum.Enum):
    """What is known of a lease."""

    free = "nobody holds it"
    dead = "its holder's process has ended"
    silent = "its holder cannot be seen from here, and has sent no heartbeat for too long"
    held = "its holder is alive"


def find(folder: Path) -> Found:
    """The lease that counts in `folder`."""
    while number := _highest(folder):
        try:
            content, status = _read(_path(folder, number))
        except FileNotFoundError:  # there is a higher one by now
            continue
        holder = _parse(content)
        is_copy = holder is not None and holder.file != status.st_ino
        return Found(number, content == FREE, holder, status.st_mtime, is_copy)
    return Found()


def judge(found: Found, now: float) -> Verdict:
    """Whether a living process has the lease; `now` is by the clock of the file system."""
    if found.free:
        return Verdict.free
    age, holder = now - found.beat, found.holder
    if holder is not None and holder.host == socket.gethostname():
        if holder.boot != _boot() and age > _seconds_since_boot():  # younger: another host of the same name
            return Verdict.dead
        if (holder.boot, holder.namespace) == (_boot(), _namespace()):
            alive = is_alive(holder)
            if alive is False:
                return Verdict.dead
            if alive:  # perhaps stopped by Ctrl-Z, and without heartbeats
                return Verdict.silent if found.is_copy else Verdict.held
    return Verdict.held if abs(age) < SECONDS_UNTIL_STALE else Verdict.silent


def is_alive(holder: Holder) -> bool | None:
    """Whether the holder's process is running, among those that this process can see; None where nobody can tell."""
    try:
        os.kill(holder.process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # it is there, and belongs to another user
        pass
    state = _process_state(holder.process)
    if state is None or holder.process_started is None:
        return None
    letter, started = state
    return letter not in "ZX" and started == holder.process_started  # a zombie has ended


def _is_beating(folder: Path, found: Found) -> bool:
    """Watches a lease for longer than the time between heartbeats."""
    time.sleep(1.2 * SECONDS_BETWEEN_BEATS)
    later = find(folder)
    return not later.free and (later.number, later.beat) != (found.number, found.beat)


def _describe(found: Found) -> str:
    holder = "another process, whose lease cannot be read" if found.holder is None else str(found.holder)
    if found.holder is not None and found.holder.host == socket.gethostname():
        return holder
    return f"{holder} (if that host failed, the run is free {SECONDS_UNTIL_STALE:.0f} s after its last heartbeat)"


# ------------------------------------------------------------------------------------------------------------ files


def _path(folder: Path, number: int) -> Path:
    return folder / f".lease-{number}"


def _temporary(folder: Path) -> Path:
    return folder / f".lease-{uuid.uuid4().hex}.tmp"


def _highest(folder: Path) -> int:
    """The number of the lease that counts; 0 where there is none."""
    matches = [NAME.fullmatch(name) for name in os.listdir(folder)]
    return max((int(match[1]) for match in matches if match), default=0)


def _read(path: Path) -> tuple[bytes, os.stat_result]:
    """A lease's content and status. It is opened before its time is read: so a network file system asks the server."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)  # whatever a downloaded run has there
    try:
        return os.read(descriptor, MOST_BYTES), os.fstat(descriptor)
    finally:
        os.close(descriptor)


def _write_own(path: Path) -> float:
    """Writes this process as a holder; returns the time, by the clock of the file system."""
    with open(path, "xb") as file:
        holder = this_process(os.fstat(file.fileno()).st_ino)
        file.write(json.dumps(dataclasses.asdict(holder)).encode())
        file.flush()
        os.fsync(file.fileno())  # also sends it to the server, which then sets the time
        return os.fstat(file.fileno()).st_mtime


def _remove_older(folder: Path, number: int, now: float) -> None:
    """Removes leases that no longer count, and files that killed takers left."""
    for name in os.listdir(folder):
        path = folder / name
        with contextlib.suppress(OSError):
            match = NAME.fullmatch(name)
            older = match is not None and int(match[1]) < number
            left = re.fullmatch(r"\.lease-\w+\.tmp", name) and now - path.stat().st_mtime > SECONDS_UNTIL_STALE
            if older or left:
                path.unlink()


def _parse(content: bytes) -> Holder | None:
    """The holder that a lease describes; None if no process can have written it."""
    try:
        values = json.loads(content)
        complete = values.keys() == {field.name for field in dataclasses.fields(Holder)}
        holder = registry.build_config(this_process(0), values, "lease")
    except (ValueError, TypeError, AttributeError, RecursionError, UsageError):
        return None
    valid = complete and 0 < holder.process < 2**31 and f"{holder.host}{holder.since}".isprintable()
    return holder if valid else None


# -------------------------------------------------------------------------------------------------------- processes


def this_process(file: int) -> Holder:
    state = _process_state(os.getpid())
    return Holder(
        host=socket.gethostname(),
        boot=_boot(),
        namespace=_namespace(),
        process=os.getpid(),
        process_started=state[1] if state else None,
        since=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        file=file,
    )


def _boot() -> str | None:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None


def _namespace() -> str | None:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return None


def _process_state(process: int) -> tuple[str, int] | None:
    """A process's state as a letter and its start in clock ticks after the boot; None where they cannot be read."""
    try:
        text = Path(f"/proc/{process}/stat").read_text(errors="replace")
        fields = text.rpartition(")")[2].split()  # the name before it may hold anything
        return fields[0], int(fields[19])
    except (OSError, ValueError, IndexError):
        return None


def _seconds_since_boot() -> float:
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return 0.0 if clock is None else time.clock_gettime(clock)


def _seconds_awake_or_asleep() -> float:
    """A clock that keeps running while the host is suspended, where there is one."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)
