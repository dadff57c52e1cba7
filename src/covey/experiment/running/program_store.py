"""Compiled programs kept between commands, found again without tracing training and evaluation.

JAX keeps compiled programs too, but finds them by their code, and tracing that code takes longer than all else that a
second start does. Here a program has two names. One is a digest of its code, as in JAX. The other, of an experiment's
programs together, is a digest of all that the code is made from: the configuration, covey's own sources, the versions
of all packages, JAX's settings and the devices. Packages may also be edited where they are installed, so an experiment
remembers the files of all modules that were loaded, and is traced again where one has changed. Experiments with a
user's own code are always traced, and found by their code.

    programs/DIGEST      one program
    experiments/DIGEST   the digests of an experiment's programs, and the names of what they give

Each file begins with a checksum, and a damaged one counts as missing. Loading a program runs it, so folders and files
must belong to the user and be closed to others, or nothing is kept or loaded. What cannot be written is not kept.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import importlib.util
import json
import os
import re
import stat
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental import serialize_executable
from jax.experimental.compilation_cache import compilation_cache
from jax.stages import Compiled, Lowered
from jax.tree_util import PyTreeDef

from covey.experiment.configuration.config import Config, roles_in, to_dict
from covey.experiment.recording.environment import package_versions
from covey.experiment.running.build import Parts, example_key, has_own_code
from covey.experiment.running.programs import (
    NUM_PROGRAMS,
    Compile,
    Programs,
    as_programs,
    compile_lowered,
    compile_parts,
)
from covey.fields import without
from covey.loops.base import state_shapes
from covey.process import STARTED

MOST_BYTES = 1_000_000_000
CALLBACK = re.compile(r'custom_call_target="[^"]*callback')


@dataclasses.dataclass(frozen=True, kw_only=True)
class KeptExperiment:
    """The digests of an experiment's programs, the names of the outputs of training and evaluation, and the modules
    that all this was made from."""

    digests: dict[str, str]
    metrics: list[str]
    values: list[str]
    modules: dict[str, list[Any]]  # the files of loaded modules, as `describe_file` gives them

    def signatures(self, parts: Parts) -> dict[str, tuple[tuple[Any, ...], Any]]:
        """The arguments and outputs of each program, as trees. Their leaves do not matter."""
        key = example_key(parts.num_seeds)
        state = state_shapes(parts.loop, key)
        return {
            "init": ((key,), state),
            "advance": ((state, 0), (state, dict.fromkeys(self.metrics, 0))),
            "evaluate": ((parts.loop.learner(state), key), dict.fromkeys(self.values, 0)),
        }


class ProgramStore:
    """A folder of compiled programs: the most recently used, up to a number of bytes."""

    def __init__(self, folder: Path, most_bytes: int = MOST_BYTES):
        self.folder = folder
        self.most_bytes = most_bytes

    @classmethod
    @functools.cache
    def default(cls) -> ProgramStore | None:
        """The user's own; None where JAX's cache is configured, or where nothing can be kept safely.

        Decided once: after `replace_jax_cache` it would seem that the user had switched JAX's cache off.
        """
        if os.environ.get("JAX_COMPILATION_CACHE_DIR") or not jax.config.values["jax_enable_compilation_cache"]:
            return None
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "covey" / "compiled"
        folders = (folder, folder / "programs", folder / "experiments")
        try:
            for path in folders:
                path.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not all(map(is_private, folders)):
                return None
        except OSError:  # a home that cannot be written to
            return None
        return cls(folder)

    def replace_jax_cache(self) -> None:
        """Switches JAX's cache off for the process: a program that came out of it cannot be written out again."""
        if jax.config.values["jax_enable_compilation_cache"]:
            jax.config.update("jax_enable_compilation_cache", False)
            compilation_cache.reset_cache()  # else it remembers that it is on

    def compile(
        self, lowered: Lowered, options: Mapping[str, Any] | None, devices: Sequence[Any]
    ) -> tuple[Compiled, str]:
        """The program, compiled for `devices`, and its digest: loaded if it was compiled before."""
        # The text leaves out arguments that the program does not read, but the program insists on their shapes.
        signature = str((lowered.args_info, lowered.out_info))
        name = digest([lowered.as_text(), signature, dict(options or {}), _describe(devices), surroundings()])
        compiled = self.load(name, devices, lowered.in_tree, lowered.out_tree)
        if compiled is None:
            compiled = compile_lowered(lowered, options)
            # Training begins meanwhile. Not a daemon: the process ends only after the program is written.
            threading.Thread(target=self._save, args=(name, compiled)).start()
        return compiled, name

    def load(self, name: str, devices: Sequence[Any], in_tree: PyTreeDef, out_tree: PyTreeDef) -> Compiled | None:
        """The program with that digest; None where it is missing or damaged."""
        path = self.folder / "programs" / name
        try:
            program = self._read(path)
            start_libraries()
            compiled: Compiled = serialize_executable.deserialize_and_load(
                program, in_tree, out_tree, execution_devices=tuple(devices)
            )
            return compiled
        except FileNotFoundError:
            return None
        except Exception:  # damaged, or not for this version after all
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
            return None

    def _save(self, name: str, compiled: Compiled) -> None:
        """Keeps a program if possible; nothing depends on it."""
        try:
            if CALLBACK.search(compiled.as_text() or ""):  # the address of a function of this process is in the code
                return
            program, _, _ = serialize_executable.serialize(compiled)
        except Exception:  # a backend that cannot write programs out
            return
        self._write(self.folder / "programs" / name, program)
        self._prune()

    def write_experiment(self, name: str, kept: KeptExperiment) -> None:
        self._write(self.folder / "experiments" / name, json.dumps(dataclasses.asdict(kept)).encode())

    def read_experiment(self, name: str) -> KeptExperiment | None:
        """What is known of an experiment's programs; None where one is missing, or made from other code."""
        path = self.folder / "experiments" / name
        try:
            kept = KeptExperiment(**json.loads(self._read(path)))
        except (OSError, ValueError, TypeError):
            return None
        there = all((self.folder / "programs" / program).exists() for program in kept.digests.values())
        return kept if there and are_unchanged(kept.modules) else None

    def _read(self, path: Path) -> bytes:
        """The content of a file that this user wrote, whole; ValueError where it is not."""
        with open(path, "rb") as file:
            if not is_private(file.fileno()):
                raise ValueError(f"{path}: another user could have written this")
            checksum, content = file.read(32), file.read()
        if hashlib.sha256(content).digest() != checksum:
            raise ValueError(f"{path}: damaged")
        with contextlib.suppress(OSError):  # a file system that may only be read
            os.utime(path)  # used now, so `_prune` takes others first
        return content

    def _write(self, path: Path, content: bytes) -> None:
        temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
        try:
            with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(hashlib.sha256(content).digest() + content)
            os.replace(temporary, path)
        except OSError:  # a full disk
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)

    def _prune(self) -> None:
        """Removes the least recently used files beyond `most_bytes`. Other processes may write and remove meanwhile."""
        entries = []
        for parent, _, names in os.walk(self.folder):
            for name in names:
                with contextlib.suppress(OSError):
                    entries.append((Path(parent, name), os.stat(os.path.join(parent, name))))
        kept = 0
        for path, status in sorted(entries, key=lambda entry: entry[1].st_mtime, reverse=True):
            kept += status.st_size
            if kept > self.most_bytes:
                with contextlib.suppress(OSError):
                    path.unlink(missing_ok=True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shelf:
    """The place of one experiment's programs in a store, and what is kept there. Without a store, empty."""

    store: ProgramStore | None = None
    devices: Sequence[Any] = ()
    name: str | None = None  # of the experiment; None where its code is not covey's alone
    kept: KeptExperiment | None = None

    @classmethod
    def of(
        cls,
        store: ProgramStore | None,
        config: Config,
        devices: Sequence[Any],
        num_seeds: int,
        partners: Sequence[Config] = (),
    ) -> Shelf:
        """`partners` are the configurations of other runs that play beside the team."""
        # jit=false and actors compile many small pieces, which JAX's cache keeps.
        if store is None or not config.jit or config.experiment.actors_config is not None:
            return cls()
        store.replace_jax_cache()
        name = experiment_name(config, devices, num_seeds, partners)
        return cls(store=store, devices=devices, name=name, kept=store.read_experiment(name) if name else None)

    def programs(self, parts: Parts, compiling: Callable[[str], AbstractContextManager[None]]) -> Programs:
        """What is kept, or what is compiled now and kept for the next time."""
        programs = self.load(parts) or compile_parts(parts, compiling, self._compile())
        return dataclasses.replace(programs, compile_again=self.compile_again)

    def compile_again(self, lowered: Lowered) -> Compiled:
        """Compiles a program that comes after the experiment's own; it is found by its code the next time."""
        return compile_lowered(lowered) if self.store is None else self.store.compile(lowered, None, self.devices)[0]

    def load(self, parts: Parts) -> Programs | None:
        """The programs that are kept; None where one of them is missing or damaged."""
        if self.store is None or self.kept is None:
            return None
        started = time.monotonic()
        found: dict[str, Any] = {}
        for part, (arguments, outputs) in self.kept.signatures(parts).items():
            trees = jax.tree.structure((arguments, {})), jax.tree.structure(outputs)
            found[part] = self.store.load(self.kept.digests[part], self.devices, *trees)
        if any(program is None for program in found.values()):
            return None
        return as_programs(**found, seconds=time.monotonic() - started)

    def _compile(self) -> Compile:
        """A function that compiles and keeps a program, and after the last one notes the experiment."""
        if self.store is None:
            return lambda part, lowered, options: compile_lowered(lowered, options)
        store, name, digests, outputs = self.store, self.name, dict[str, str](), dict[str, Any]()

        def compile_and_keep(part: str, lowered: Lowered, options: Mapping[str, Any] | None) -> Compiled:
            compiled, digests[part] = store.compile(lowered, options, self.devices)
            outputs[part] = lowered.out_info
            if name and len(outputs) == NUM_PROGRAMS:
                _, metrics = outputs["advance"]
                modules = loaded_modules()
                if modules is not None:
                    kept = KeptExperiment(
                        digests=digests, metrics=list(metrics), values=list(outputs["evaluate"]), modules=modules
                    )
                    store.write_experiment(name, kept)
            return compiled

        return compile_and_keep


def is_private(place: Path | int) -> bool:
    """Whether a folder, or an open file, is this user's and nobody else can write to it."""
    status = os.stat(place)
    return status.st_uid == os.getuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def start_libraries() -> None:
    """Starts LAPACK, as JAX does when it lowers a program that calls it; a loaded program would crash without it."""
    from jaxlib import lapack

    lapack.prepare_lapack_call("geqrf_ffi", np.float32)


# -------------------------------------------------------------------------------------------------------- digests


def experiment_name(
    config: Config, devices: Sequence[Any], num_seeds: int, partners: Sequence[Config] = ()
) -> str | None:
    """A digest of all that an experiment's programs are made from; None where a user's own code is part of that."""
    if not config.jit or any(map(has_own_code, (config, *partners))):
        return None
    values = [
        without(to_dict(own), {path for path, role, _ in roles_in(own) if not role.compiled})
        for own in (config, *partners)
    ]
    return digest([values, num_seeds, _describe(devices), package_versions(), sources_digest(), surroundings()])


def _describe(devices: Sequence[Any]) -> list[list[Any]]:
    return [[device.platform, device.device_kind, device.id] for device in devices]


def digest(ingredients: Any) -> str:
    return hashlib.sha256(json.dumps(ingredients, sort_keys=True, default=str).encode()).hexdigest()


def surroundings() -> dict[str, Any]:
    """What a compiled program depends on besides its code."""
    from jaxlib.version import __version__ as jaxlib_version

    return {
        "versions": [jax.__version__, jaxlib_version, jax.devices()[0].client.platform_version, sys.version],
        "devices": _describe(jax.devices()),
        "processor": processor(),
        "settings": {name: str(value) for name, value in sorted(jax.config.values.items())},
        "flags": {
            name: value for name, value in sorted(os.environ.items()) if name.startswith(("XLA_", "JAX_", "PJRT_"))
        },
    }


def processor() -> list[str]:
    """What this machine's processor can do: code that was compiled for another may not run here."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return list(os.uname())
    names = ("model name", "flags", "CPU implementer", "CPU part", "Features")  # of x86, then of ARM
    return [next((line for line in lines if line.startswith(name)), "") for name in names]


@functools.cache
def sources_digest() -> str:
    """A digest of covey's own modules, which programs are made from.

    It is computed once in a process: a worker keeps the code that it has loaded, whatever happens to the files.
    """
    folder = Path(__file__).parents[2]
    content = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        content.update(f"{path.relative_to(folder)}\n".encode())
        content.update(path.read_bytes())
    return content.hexdigest()


def loaded_modules() -> dict[str, list[Any]] | None:
    """The file of each loaded module, except those of Python itself and of covey, which `sources_digest` covers.

    None where a file, of covey or another package, has changed since this process began: the loaded code may then
    differ from the file.
    """
    found: dict[str, list[Any]] = {}
    for name, module in list(sys.modules.items()):
        package, file = name.partition(".")[0], getattr(module, "__dict__", {}).get("__file__")
        if package in sys.stdlib_module_names or not isinstance(file, str):
            continue
        with contextlib.suppress(OSError):  # in an archive
            if os.stat(file).st_ctime > STARTED:
                return None
        if package not in ("covey", "__main__", "__mp_main__"):
            found[name] = describe_file(file)
    return found


def describe_file(path: str) -> list[Any]:
    """A file's path, its size and when it was last changed."""
    try:
        status = os.stat(path)
    except OSError:
        return [path, None, None]
    return [path, status.st_size, status.st_mtime_ns]


def are_unchanged(modules: Mapping[str, Sequence[Any]]) -> bool:
    """Whether the modules would be loaded from the same files again, and the files are as they were."""
    for name, (path, *known) in modules.items():
        if describe_file(path) != [path, *known]:
            return False
        if "." not in name and find_file(name) not in (path, None):
            return False
    return True


def find_file(package: str) -> str | None:
    """Where a package would be imported from: a folder of that name in the working directory comes first."""
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return None
    return spec.origin if spec else None
