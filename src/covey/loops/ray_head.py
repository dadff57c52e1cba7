"""A process that runs Ray on this machine for as long as another needs it: `python -m covey.loops.ray_head '{…}'`.

Ray forks the process that starts it. A process with JAX's threads must not fork, and this one has none. It writes a
line when Ray runs, and ends Ray when its input closes. The input closes however the process that started it ends, so
nothing is left behind.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import IO, Any

READY = "ready"
TAIL = 2_000  # bytes read from the end of what it printed, if it fails


def run(options: dict[str, Any]) -> None:
    """Starts Ray with options of `ray.init`, and ends it when the input closes."""
    import ray

    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what Ray prints must not mix with this process's own output
    try:
        ray.init(address="local", log_to_driver=False, logging_level=logging.ERROR, **options)
        print(READY, ray.get_runtime_context().gcs_address, file=output, flush=True)
        sys.stdin.read()
    finally:
        ray.shutdown()
        shutil.rmtree(options["_temp_dir"], ignore_errors=True)


@contextlib.contextmanager
def started(**options: Any) -> Iterator[str]:
    """Runs Ray in a process of its own, with options of `ray.init`; gives its address."""
    folder = tempfile.mkdtemp(prefix="covey-", dir="/tmp")  # a longer path is too long for Ray's sockets
    command = [sys.executable, "-m", "covey.loops.ray_head", json.dumps({**options, "_temp_dir": folder})]
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    with tempfile.TemporaryFile() as printed:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=printed,
            text=True,
            env=environment,
            start_new_session=True,  # so that Ctrl-C does not reach it
        )
        with process:
            assert process.stdin is not None and process.stdout is not None
            said, _, address = process.stdout.readline().strip().partition(" ")
            if said != READY:
                process.wait()
                raise RuntimeError(f"it did not start: {last_line(printed)}")
            yield address


def last_line(printed: IO[bytes]) -> str:
    """The last line that something printed into a file."""
    printed.seek(max(0, printed.seek(0, os.SEEK_END) - TAIL))
    lines = printed.read().decode(errors="replace").strip().splitlines()
    return lines[-1].strip() if lines else "it printed nothing"


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))
    run(json.loads(sys.argv[1]))
