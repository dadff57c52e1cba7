"""The process that a command runs in: its output, whose reader may have gone, and the signals that end it.

- `lasting_output`: `covey train | head -n 2` trains to the end. What cannot be written is dropped.
- `stopping_on_signals`: SIGINT, SIGTERM and SIGHUP end a command at once with one line, whatever it is doing.
- `collected_signals`: within that, for work that saves first.
- `leave`: ends the process of a command even while a program is still compiling.
"""

from __future__ import annotations

import contextlib
import errno
import io
import logging
import os
import select
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from typing import IO, Any

from covey.files import is_disk_error

STARTED = time.time()  # roughly when this process began
COMPILING = "compiling"  # the name of threads that compile
_HUNG_UP = {errno.EPIPE, errno.EIO}  # the other end of a pipe, or the terminal, is gone


# ---------------------------------------------------------------------------------------------------------- output


class Outlet(io.RawIOBase):
    """A file descriptor that drops what cannot be written; `error` says why."""

    def __init__(self, descriptor: int):
        self._descriptor = descriptor
        self.error: OSError | None = None

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def write(self, data: Any) -> int:
        while True:
            try:
                return os.write(self._descriptor, data)
            except BlockingIOError:  # the reader is slow, and another program made the pipe non-blocking
                select.select([], [self._descriptor], [])
            except OSError as error:
                self.error = error
                return len(data)

    @property
    def failed(self) -> bool:
        """Whether output was lost that somebody may still want: on a full disk, but not in a closed pipe."""
        return self.error is not None and self.error.errno not in _HUNG_UP


@contextlib.contextmanager
def lasting_output() -> Iterator[Outlet]:
    """`sys.stdout` and `sys.stderr` that never fail; yields the outlet of the first."""
    open_standard_descriptors()
    before = sys.stdout, sys.stderr
    sys.stdout, outlet = make_lasting(sys.stdout)
    sys.stderr, _ = make_lasting(sys.stderr)
    try:
        yield outlet
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        sys.stdout, sys.stderr = before


def open_standard_descriptors() -> None:
    """Opens the null device in place of a closed stdin, stdout or stderr.

    Otherwise the next file to be opened would take its number, and XLA's messages would end up in a checkpoint.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # takes the lowest number that is free


def make_lasting(stream: Any) -> tuple[IO[str], Outlet]:
    """`stream` over an `Outlet`. A stream of a test stays unchanged; a closed one becomes the null device."""
    if stream is None:
        return open(os.devnull, "w", encoding="utf-8"), Outlet(-1)
    if stream not in (sys.__stdout__, sys.__stderr__):
        return stream, Outlet(-1)
    stream.flush()
    outlet = Outlet(stream.fileno())
    lasting = io.TextIOWrapper(
        io.BufferedWriter(outlet),
        encoding=stream.encoding,
        errors="replace" if stream.errors == "strict" else stream.errors,
        line_buffering=stream.line_buffering or stream is sys.__stderr__,
    )
    return lasting, outlet


@contextlib.contextmanager
def one_line_warnings() -> Iterator[None]:
    """Prints Python's warnings, covey's logged warnings and disk errors of threads on stderr, one line each."""
    shown: set[str] = set()
    logger, handler = logging.getLogger("covey"), _WarningHandler()
    thread_hook, unraisable_hook = threading.excepthook, sys.unraisablehook

    def show(message: Any, category: Any, *where: Any, **more: Any) -> None:
        text = " ".join(str(message).split())
        if text[:40] not in shown:  # JAX repeats a problem with its cache for every program
            shown.add(text[:40])
            print(f"warning: {text}", file=sys.stderr)

    def report(failure: threading.ExceptHookArgs) -> None:
        if failure.exc_value is not None and is_disk_error(failure.exc_value):
            show(f"{failure.thread.name if failure.thread else 'a thread'}: {failure.exc_value}", None)
        else:
            thread_hook(failure)

    def drop_late(lost: sys.UnraisableHookArgs) -> None:
        """If Orbax cannot write several arrays, the first closes the event loop that the others would report to."""
        if str(lost.exc_value) != "Event loop is closed":
            unraisable_hook(lost)

    logger.addHandler(handler)
    logger.propagate = False
    threading.excepthook, sys.unraisablehook = report, drop_late
    with warnings.catch_warnings():
        warnings.showwarning = show
        try:
            yield
        finally:
            threading.excepthook, sys.unraisablehook = thread_hook, unraisable_hook
            logger.propagate = True
            logger.removeHandler(handler)


class _WarningHandler(logging.Handler):
    """Each warning once: a command may open a run directory several times."""

    def __init__(self) -> None:
        super().__init__()
        self._shown: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        text = " ".join(record.getMessage().split())
        if text not in self._shown:
            self._shown.add(text)
            print(f"warning: {text}", file=sys.stderr, flush=True)


# --------------------------------------------------------------------------------------------------------- signals


def ending_signals() -> list[int]:
    """The signals that ask a command to end: SIGHUP only if it is not ignored, as under `nohup`."""
    hang_up = [] if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else [signal.SIGHUP]
    return [signal.SIGINT, signal.SIGTERM, *hang_up]


class Stop:
    """The handler of `stopping_on_signals`. It does nothing itself: a thread ends the process."""

    def __init__(self) -> None:
        self.before: dict[int, Any] = {}

    def __call__(self, number: int, frame: Any) -> None:
        pass


@contextlib.contextmanager
def stopping_on_signals(last_words: bytes) -> Iterator[None]:
    """Ends the process with `last_words` and exit code 128 + signal. That is safe: files are whole at any instant.

    Python runs handlers between its own instructions, and one call of a compiler takes many seconds. An exception from
    a handler may land in an import or in the garbage collector, which print and lose it. So a thread reads signals from
    a file descriptor, and ends the process.
    """
    if threading.current_thread() is not threading.main_thread():  # other threads cannot handle signals
        yield
        return
    receiver, sender = os.pipe()
    os.set_blocking(sender, False)
    stop = Stop()
    for number in ending_signals():
        stop.before[number] = signal.signal(number, stop)
    wakeup = signal.set_wakeup_fd(sender, warn_on_full_buffer=False)
    threading.Thread(target=_watch, args=(receiver, stop, last_words), name="signals", daemon=True).start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(wakeup)
        for number, handler in stop.before.items():
            signal.signal(number, handler)
        os.close(sender)


def _watch(receiver: int, stop: Stop, last_words: bytes) -> None:
    with open(receiver, "rb", buffering=0) as signals:
        while received := signals.read(1):
            if signal.getsignal(received[0]) is stop:  # otherwise `collected_signals` handles it
                with contextlib.suppress(OSError):
                    if os.isatty(1):
                        os.write(1, b"\x1b[?25h\n")  # the cursor, which a progress bar hides
                    os.write(2, last_words)
                os._exit(128 + received[0])


SECONDS_TO_LEAVE = 0.2  # after a signal, until it is raised again


class Stopped(KeyboardInterrupt):
    """A signal interrupted work that may be abandoned. Not an `Exception`, which could be caught as a failure."""

    def __init__(self, number: int):
        super().__init__("interrupted")
        self.signal = number


class Received(list[int]):
    """The signals received, in order."""

    raising = False

    @contextlib.contextmanager
    def raised(self, wanted: bool = True) -> Iterator[None]:
        """Signals raise `Stopped` in the body, if `wanted`."""
        if wanted and self:
            raise Stopped(self[0])
        self.raising = wanted
        try:
            yield
        finally:
            self.raising = False


@contextlib.contextmanager
def collected_signals() -> Iterator[Received]:
    """Collects the signals that end a command instead of ending. A second signal has its usual effect."""
    received = Received()
    previous: dict[int, Any] = {}
    unraisable = sys.unraisablehook

    def note(number: int, frame: Any) -> None:
        if number not in received or not received.raising:
            received.append(number)
        if received.raising:
            threading.Timer(SECONDS_TO_LEAVE, insist, [number]).start()
            raise Stopped(number)
        handler = previous[number]
        signal.signal(number, handler.before[number] if isinstance(handler, Stop) else handler)

    def drop(lost: sys.UnraisableHookArgs) -> None:
        if not isinstance(lost.exc_value, Stopped):
            unraisable(lost)

    def insist(number: int) -> None:
        """Destructors and callbacks from C lose exceptions, so the signal is sent again."""
        main_thread = threading.main_thread().ident
        if received.raising and main_thread is not None:
            signal.pthread_kill(main_thread, number)

    try:
        for caught in ending_signals():
            previous[caught] = signal.getsignal(caught)
            signal.signal(caught, note)
        sys.unraisablehook = drop
    except ValueError:  # not in the main thread, which alone can handle signals
        pass
    try:
        yield received
    finally:
        sys.unraisablehook = unraisable
        for number, handler in previous.items():
            with contextlib.suppress(ValueError):
                signal.signal(number, handler)


# ------------------------------------------------------------------------------------------------------------- ending


def leave(code: int) -> int:
    """Returns the exit code of a finished command, for `sys.exit`.

    If a thread is still compiling a program that is no longer needed, Python would wait for it: the process ends here.
    """
    if any(thread.name == COMPILING for thread in threading.enumerate()):
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or none
                stream.flush()
        os._exit(code)
    return code
