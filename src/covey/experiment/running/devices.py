"""Starting JAX: which devices, how many threads each, and where compiled programs are kept.

On a CPU every device is one core with one thread. So results depend, to the bit, only on the number of devices and not
on how many cores happen to be free, and data parallelism uses all of them.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import jax

from covey.errors import UsageError
from covey.experiment.configuration.config import no_platform, num_cores

ONE_THREAD = "--xla_cpu_multi_thread_eigen=false"
CACHE_BYTES = 2_000_000_000


def start_jax(platform: str, num_devices: int) -> list[Any]:
    """The devices to train on. If this is the first use of JAX in the process, which fixes its settings, sets them."""
    use_compilation_cache()
    if not _started():
        if ONE_THREAD not in os.environ.get("XLA_FLAGS", ""):
            os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {ONE_THREAD}".strip()
        os.environ.setdefault("PJRT_NPROC", str(num_devices))  # XLA also runs independent operations side by side
        if platform != "auto":
            jax.config.update("jax_platforms", {"gpu": "cuda"}.get(platform, platform))
        jax.config.update("jax_num_cpu_devices", num_devices)
    try:
        devices = jax.devices() if platform == "auto" else jax.devices(platform)
    except RuntimeError as error:
        reason = f"JAX cannot start: {' '.join(str(error).split())}"
        raise UsageError(reason if platform == "auto" else no_platform(platform)) from error
    if len(devices) < num_devices:
        raise UsageError(
            f"devices={num_devices}, but JAX has {len(devices)} in this process; "
            "set the number before anything else uses JAX, or ask for fewer"
        )
    return devices[:num_devices]


def num_available(platform: str) -> int:
    """How many devices could be used: cores, or what JAX has if it was started before."""
    if _started() or platform not in ("auto", "cpu"):
        return len(jax.devices())
    return num_cores()


def use_compilation_cache() -> None:
    """Keeps compiled programs between processes, so that a second start of an experiment begins at once."""
    if jax.config.values["jax_compilation_cache_dir"] is None:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        jax.config.update("jax_compilation_cache_dir", str(Path(base) / "covey" / "jax"))
        # Not for a folder that the user chose: entries that JAX wrote there without a limit make limited writes fail.
        jax.config.update("jax_compilation_cache_max_size", CACHE_BYTES)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)


def _started() -> bool:
    from jax._src import xla_bridge  # there is no public way to ask

    return xla_bridge.backends_are_initialized()


def available_bytes(devices: list[Any]) -> int | None:
    """The memory that is free for arrays, of all devices together; None where it cannot be known."""
    if devices[0].platform == "cpu":
        return available_host_bytes()
    statistics = [device.memory_stats() for device in devices]
    if not all(statistics):
        return None
    free: list[int] = [known["bytes_limit"] - known["bytes_in_use"] for known in statistics]
    return sum(free)


def available_host_bytes() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    free = next((line.split()[1] for line in lines if line.startswith("MemAvailable:")), None)
    return None if free is None else int(free) * 1024
