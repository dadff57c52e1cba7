"""Shows a report on this machine while experiments run: `covey report … serve=true`.

A thread serves the report's own files on 127.0.0.1, never to other machines. The main thread watches the result files
and rebuilds the report when they change. The page polls its own date and reloads when it changes.
"""

from __future__ import annotations

import functools
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from covey.errors import CoveyError, UsageError

HOST = "127.0.0.1"
SECONDS_BETWEEN_LOOKS = 2.0
REST = 4.0  # seconds to wait after a build that took one second: experiments need the machine more
SERVED = {"index.html", "summary.json", "figures", "tables"}

Fingerprint = frozenset[tuple[str, int, int]]  # name, date and size of each file


def serve(
    server: ThreadingHTTPServer, folder: Path, paths: Sequence[Path], build: Callable[[], object], seen: Fingerprint
) -> None:
    """Serves the report in `folder`, and rebuilds it when files below `paths` change, until interrupted.

    `seen` is their fingerprint from before the first build, so files written during it cause another one.
    """
    for number in (signal.SIGINT, signal.SIGTERM):  # background processes of a script ignore SIGINT
        signal.signal(number, signal.default_int_handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(f"http://{HOST}:{server.server_address[1]}/  (Ctrl-C ends it)", flush=True)
    try:
        watch(folder, paths, build, seen)
    except KeyboardInterrupt:
        print("\nstopped; the report is kept")
    finally:
        server.shutdown()


def make_server(folder: Path, port: int) -> ThreadingHTTPServer:
    """A server of the report in `folder`; UsageError if the port is taken."""
    try:
        return ThreadingHTTPServer((HOST, port), functools.partial(Handler, directory=os.fspath(folder)))
    except OSError as error:
        raise UsageError(f"cannot listen on port {port}: {error.strerror}; port=0 takes a free one") from error


def watch(
    folder: Path, paths: Sequence[Path], build: Callable[[], object], seen: Fingerprint, looks: int | None = None
) -> None:
    """Rebuilds when files change, for `looks` looks or forever. A build that failed is repeated at the next change."""
    while looks is None or (looks := looks - 1) >= 0:
        time.sleep(SECONDS_BETWEEN_LOOKS)
        now = fingerprint(folder, paths)
        if now == seen:
            continue
        seen = now
        started = time.monotonic()
        try:
            build()
            print(f"{time.strftime('%H:%M:%S')} rebuilt", flush=True)
        except CoveyError as error:
            print(f"covey: {error}", flush=True)
        time.sleep(REST * (time.monotonic() - started))


def fingerprint(folder: Path, paths: Sequence[Path]) -> Fingerprint:
    """Name, date and size of every file that a report reads, without checkpoints and the report itself."""
    found = set()
    for path in paths:
        for name in _files(path, folder.resolve()):
            try:
                status = os.stat(name)
            except OSError:
                continue  # just replaced
            found.add((name, status.st_mtime_ns, status.st_size))
    return frozenset(found)


def _files(path: Path, report: Path) -> list[str]:
    if not os.path.isdir(path):
        return [os.fspath(path)]
    names = []
    for parent, folders, files in os.walk(path):
        if Path(parent).resolve() == report:
            folders.clear()
            continue
        folders[:] = [name for name in folders if name != "checkpoints" and not name.startswith(".")]
        names += [os.path.join(parent, name) for name in files if name.endswith((".json", ".yaml", ".gif"))]
    return names


class Handler(SimpleHTTPRequestHandler):
    """Serves the report's files and nothing else, to requests that name this machine."""

    def send_head(self):  # type: ignore[no-untyped-def]  # as in the base class
        # Another site could point its own name at this address and read the report through it.
        host = (self.headers.get("Host") or "").partition(":")[0]
        path = self.translate_path(self.path)
        first = Path(os.path.relpath(path, self.directory)).parts[:1]
        # The base class would fail to open a name with a NUL (`/figures/%00`).
        if host not in (HOST, "localhost") or not {*first} <= SERVED or "\0" in path:
            self.send_error(HTTPStatus.NOT_FOUND)
            return None
        return super().send_head()

    def list_directory(self, path):  # type: ignore[no-untyped-def]
        self.send_error(HTTPStatus.NOT_FOUND)
        return None

    def end_headers(self) -> None:
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        super().end_headers()

    def log_message(self, format: str, *arguments: object) -> None:
        pass
