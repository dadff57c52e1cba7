"""The machine's cores and accelerators, divided among workers so that none is used twice.

A worker has its own cores or, on GPUs, its own GPUs and a share of the cores. If workers leave cores free, they are not
bound to cores: otherwise parallel commands, such as the jobs of an array, would all use the first ones. A TPU host has
one worker, because processes are assigned chips, and a chip can be several devices. JAX reserves most of a GPU's memory
when it starts, so a short-lived process looks for accelerators instead of this one.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence

from covey.errors import UsageError
from covey.experiment.configuration.config import no_platform

LOOK_SCRIPT = """
import json, jax
devices = jax.local_devices()
version = getattr(devices[0].client, "platform_version", "").lower()
kind = "rocm" if "rocm" in version else devices[0].platform
print(json.dumps({"kind": kind, "number": len(devices)}))
"""
VISIBLE = {"gpu": "CUDA_VISIBLE_DEVICES", "rocm": "ROCR_VISIBLE_DEVICES"}
KINDS = {
    "auto": ("gpu", "rocm", "tpu"),
    "gpu": ("gpu", "rocm"),
    "tpu": ("tpu",),
}  # of accelerators, by `experiment.platform`


@dataclasses.dataclass(frozen=True, kw_only=True)
class Accelerators:
    """The kind (gpu, rocm, tpu) and number of accelerators of this machine."""

    kind: str
    number: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Slot:
    """What one worker may use. The variables in `environment` hide other workers' accelerators from it."""

    cores: tuple[int, ...]
    platform: str
    devices: int
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)


def make_slots(
    platform: str,
    devices: int,
    *,
    cores: Sequence[int],
    accelerators: Accelerators | None = None,
    most: int,
    workers: int | None = None,
) -> list[Slot]:
    """Slots for experiments with `devices` devices each: as many as fit, but at most `most`, and at most `workers`."""
    units = accelerators.number if accelerators else len(cores)
    what = f"{units} {accelerators.kind if accelerators else 'core'}{'' if units == 1 else 's'}"
    if devices > units:
        raise UsageError(f"experiment.devices={devices}, but this machine has {what}")
    places = 1 if accelerators and accelerators.kind == "tpu" else units // devices
    if workers is not None and workers > places:
        raise UsageError(f"workers={workers}, but {what} have room for {places} of experiment.devices={devices}")
    number = max(1, min(places, most, workers or places))
    per_worker = max(1, len(cores) // number) if accelerators else devices
    leaves_cores_free = not accelerators and number * devices < len(cores)
    slots = []
    for i in range(number):
        own = [cores[core % len(cores)] for core in range(i * per_worker, (i + 1) * per_worker)]
        own = list(cores) if leaves_cores_free else own
        seen = visible(accelerators.kind, range(i * devices, (i + 1) * devices), os.environ) if accelerators else {}
        slots.append(Slot(cores=tuple(own), platform=platform, devices=devices, environment=seen))
    return slots


def available_cores() -> list[int]:
    """The cores that this process may use."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def visible(kind: str, indices: Sequence[int], environment: Mapping[str, str]) -> dict[str, str]:
    """The variable that lets a process see only the GPUs at `indices` among those that this process sees."""
    if kind not in VISIBLE:
        return {}
    given = [item for item in environment.get(VISIBLE[kind], "").split(",") if item]
    return {VISIBLE[kind]: ",".join(given[index] if given else str(index) for index in indices)}


def find_accelerators(platform: str) -> Accelerators | None:
    """The accelerators that `experiment.platform` means on this machine; None if it means the CPU."""
    if platform == "cpu":
        return None
    found = look() if _has_plugin() else Accelerators(kind="cpu", number=1)
    if found.kind in KINDS[platform]:
        return found
    if platform == "auto":
        return None
    raise UsageError(no_platform(platform, found.kind))


def look() -> Accelerators:
    """Asks JAX, in another process, for the devices of this machine."""
    settings = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    looked = subprocess.run(
        [sys.executable, "-c", LOOK_SCRIPT], capture_output=True, text=True, env=settings, check=False
    )
    try:
        return Accelerators(**json.loads(looked.stdout.splitlines()[-1]))
    except (IndexError, ValueError) as error:
        last = (looked.stderr.strip().splitlines() or ["no answer"])[-1]
        raise UsageError(f"JAX cannot tell what accelerators there are: {last}") from error


def _has_plugin() -> bool:
    """Whether JAX has a plugin for accelerators; without one, it cannot find any."""
    if os.environ.get("JAX_PLATFORMS") == "cpu":
        return False
    plugins = importlib.metadata.entry_points(group="jax_plugins")
    return bool(plugins) or any(importlib.util.find_spec(name) for name in ("libtpu", "jax_plugins"))
