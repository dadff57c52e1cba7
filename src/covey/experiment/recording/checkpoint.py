"""Checkpoints: the whole state of a run, equal to the bit when read back. Orbax writes the arrays; nothing is pickled.

    checkpoints/00000042/       the state after iteration 42 (00000042.1 if that iteration was saved again)
        index.json              meta, and for each leaf its part, path, shape, type and place in the arrays; stamped
        arrays/                 an Orbax checkpoint of byte arrays

The tree is a dict of parts ("learner", "best", …), which can be restored together or alone. Orbax spends most of its
time per array, so leaves travel as bytes: small ones packed one after another, large ones on their own. That also
carries what Orbax refuses (arrays without elements) and keeps every type's bits. A part can be read without a template
as nested dicts, because the index knows each leaf's path.

A checkpoint is built under a temporary name and renamed when complete. Every byte that is loaded is verified: the index
against its own checksum (covey.files), each array that comes out of Orbax against the one in the index. Indices of
format 1, which earlier versions wrote, have no checksum; anything odd in one of them counts as damage.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import errno
import json
import logging
import os
import re
import shutil
import time
import zlib
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from covey.errors import CoveyError
from covey.files import checksum_holds, read_bytes, stamp_json, sync_folder, write_atomically
from covey.types import PyTree

FORMAT = 2  # of index.json: 2 has a checksum
_PACK_BELOW_BYTES = 1 << 20
_CHUNK_BYTES = 1 << 24  # Orbax compresses the chunks of an array side by side

# Orbax warns at every save that it has no OCDBT files to merge; covey uses none. What fails in its threads it logs with
# a traceback, and raises as well.
_ORBAX_NOISE = re.compile(r"Skipping merge of OCDBT|_SignalingThread\.run\(\) raised an exception")


Template = Mapping[str, PyTree]


class Restored(NamedTuple):
    tree: dict[str, PyTree]
    meta: dict[str, Any]
    iteration: int


@dataclasses.dataclass(frozen=True)
class HostKey:
    """A typed PRNG key taken off the device; a leaf of the trees that `host_copy` makes."""

    data: np.ndarray
    implementation: str


def host_copy(tree: PyTree) -> PyTree:
    """`tree` with every array copied to the host, so that the next step may donate the originals."""

    def copy(leaf: Any) -> Any:
        if _is_key(leaf):
            return HostKey(np.array(jax.random.key_data(leaf)), str(jax.random.key_impl(leaf)))
        return np.array(leaf) if isinstance(leaf, jax.Array) else leaf

    return jax.tree.map(copy, tree)


class Checkpoints:
    """The checkpoints of one run. One process saves; any number may read meanwhile."""

    def __init__(
        self,
        directory: str | os.PathLike[str],
        keep: int = 2,
        warn: Callable[[str], None] | None = None,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """`keep`: how many of the newest stay (0: all). `check` raises where this process may no longer save."""
        self.directory = Path(directory)
        self.keep = keep
        self._check = check
        self._warn = warn or logging.getLogger("covey").warning
        self._worker = concurrent.futures.ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._pending: concurrent.futures.Future[None] | None = None

    def save(self, iteration: int, tree: Mapping[str, PyTree], meta: Mapping[str, Any]) -> None:
        """Waits for the previous save, raising its errors here, then starts writing and returns.

        `tree`'s leaves belong to the checkpoint from now on (pass `host_copy`); `meta` is anything JSON can hold.
        Afterwards this is the newest: later iterations, left by a run that was resumed from before them, are removed.
        """
        self.wait()
        self._pending = self._worker.submit(self._write, iteration, dict(tree), dict(meta))

    def wait(self) -> None:
        """Returns when nothing is being written; raises CoveyError if the last save failed."""
        pending, self._pending = self._pending, None
        if pending is None:
            return
        try:
            pending.result()
        except CoveyError:  # `check` says why
            raise
        except Exception as error:
            raise CoveyError(f"cannot write checkpoint in {self.directory}: {_reason(error)}") from error

    def iterations(self) -> list[int]:
        """The iterations that have a checkpoint, in order."""
        return sorted({entry.iteration for entry in self._entries()})

    def restore(self, template: Template | Callable[[dict[str, Any]], Template]) -> Restored | None:
        """The newest intact checkpoint's parts that `template` names, or None where nothing was saved yet.

        `template` has the tree's structure, with arrays or `jax.ShapeDtypeStruct`s for leaves, or is a function of the
        checkpoint's meta that gives it. Leaves come back as NumPy arrays, keys as typed keys, and what is a Python
        number in the template as a Python number.
        """
        entries = self._entries()
        for entry in reversed(entries):
            if (restored := self._restore_entry(entry, template)) is not None:
                return restored
        if entries:
            raise CoveyError(f"every checkpoint in {self.directory} is damaged")
        return None

    def restore_at(
        self,
        iteration: int,
        template: Template | Callable[[dict[str, Any]], Template],
        optional: Collection[str] = (),
    ) -> Restored | None:
        """`restore` of one iteration; None, with a warning, where that is damaged. Parts that are `optional` are left
        out where they are not there, or do not fit."""
        entries = [entry for entry in self._entries() if entry.iteration == iteration]
        attempts = (self._restore_entry(entry, template, optional) for entry in reversed(entries))
        return next((restored for restored in attempts if restored is not None), None)

    def _restore_entry(
        self,
        entry: _Entry,
        template: Template | Callable[[dict[str, Any]], Template],
        optional: Collection[str] = (),
    ) -> Restored | None:
        def wanted_by(meta: dict[str, Any]) -> Template:
            return template(meta) if callable(template) else template

        read = self._read(entry, lambda meta: list(wanted_by(meta)), optional)
        if read is None:
            return None
        index, leaves = read
        wanted, tree = wanted_by(index["meta"]), {}
        for part in leaves:
            try:
                tree[part] = _fill(wanted[part], leaves[part], part)
            except CoveyError as error:
                if part in optional:
                    continue
                self._judge(entry, index, error)
                return None
        return Restored(tree, index["meta"], index["iteration"])

    def restore_part(self, part: str) -> PyTree:
        """A part of the newest intact checkpoint without a template: nested dicts, whatever its containers were.

        Dataclass fields and attributes become keys by their names, elements of lists and tuples by their indices.
        """
        entries = self._entries()
        for entry in reversed(entries):
            if (read := self._read(entry, lambda meta: [part])) is not None:
                return _nest(read[1][part])
        raise CoveyError(
            f"{'every' if entries else 'no'} checkpoint in {self.directory}{' is damaged' if entries else ''}"
        )

    # ------------------------------------------------------------------------------------------------------ writing

    def _write(self, iteration: int, tree: dict[str, PyTree], meta: dict[str, Any]) -> None:
        self._check()  # what is removed below may belong to another process by now
        self.directory.mkdir(parents=True, exist_ok=True)
        self._remove_leftovers()
        temporary = self.directory / f".{iteration:08d}.tmp"
        temporary.mkdir()
        try:
            _write_files(temporary, iteration, tree, meta)
        except BaseException:
            _discard(temporary)  # the disk may be full
            raise
        self._check()
        before = self._entries()
        repeats = [entry.repeat for entry in before if entry.iteration == iteration]
        target = self.directory / (f"{iteration:08d}.{max(repeats) + 1}" if repeats else f"{iteration:08d}")
        os.rename(temporary, target)
        sync_folder(self.directory)
        self._retain(iteration, before)

    def _retain(self, iteration: int, before: list[_Entry]) -> None:
        """Removes what the checkpoint of `iteration` replaces, and the oldest beyond `keep`."""
        earlier = [entry for entry in before if entry.iteration < iteration]
        kept = earlier[-(self.keep - 1) :] if self.keep > 1 else earlier if self.keep == 0 else []
        for entry in before:
            if entry not in kept:
                # Renamed first, so that a half-removed checkpoint never has a valid name.
                rubbish = self.directory / f".{entry.path.name}.removed"
                os.rename(entry.path, rubbish)
                shutil.rmtree(rubbish, ignore_errors=True)

    def _remove_leftovers(self) -> None:
        """What a killed process left half written or half removed."""
        for path in self.directory.glob(".*"):
            if path.name.endswith((".tmp", ".removed")):
                shutil.rmtree(path)

    # ------------------------------------------------------------------------------------------------------ reading

    def _entries(self) -> list[_Entry]:
        """The checkpoints there are, oldest first."""
        names = os.listdir(self.directory) if self.directory.is_dir() else []
        matches = [match for name in names if (match := re.fullmatch(r"(\d{8,})(?:\.(\d+))?", name))]
        return sorted(_Entry(int(match[1]), int(match[2] or 0), self.directory / match[0]) for match in matches)

    def _read(
        self, entry: _Entry, wanted: Callable[[dict[str, Any]], list[str]], optional: Collection[str] = ()
    ) -> tuple[dict[str, Any], dict[str, list[_Leaf]]] | None:
        """A checkpoint's index, and the leaves of the parts that are `wanted` by its meta; None if it is damaged."""
        try:
            index = _read_index(entry.path)
            parts = wanted(index["meta"])
            present = [part for part in parts if part in index["parts"]]
            leaves = _read_leaves(entry.path, index, present)
        except Exception as error:  # whatever Orbax, JSON or the file system make of a damaged file
            self._warn(f"checkpoint {entry.path} is damaged, trying the one before: {_one_line(error)}")
            return None
        for part in parts:
            if part not in present and part not in optional:
                lacking = CoveyError(f"checkpoint {entry.path} has no '{part}', only {', '.join(index['parts'])}")
                self._judge(entry, index, lacking)
                return None
        return index, leaves

    def _judge(self, entry: _Entry, index: dict[str, Any], error: CoveyError) -> None:
        """Raises `error` if the index was verified: then the checkpoint is intact and this run differs from it. Without
        a checksum, a flipped bit looks the same, so it counts as damage."""
        if index.get("format", 1) >= FORMAT:
            raise error
        self._warn(f"checkpoint {entry.path} is damaged or of another run, trying the one before: {_one_line(error)}")


class _Entry(NamedTuple):
    iteration: int
    repeat: int
    path: Path


@dataclasses.dataclass(frozen=True)
class _Leaf:
    path: tuple[str, ...]
    value: Any  # an array or a typed key


# ----------------------------------------------------------------------------------------------- trees to bytes


def _pack(tree: dict[str, PyTree]) -> tuple[dict[str, np.ndarray], list[dict[str, Any]]]:
    """Byte arrays by name, and for each leaf where in them it is."""
    arrays: dict[str, np.ndarray] = {}
    leaves: list[dict[str, Any]] = []
    for number, (part, subtree) in enumerate(tree.items()):
        packed: list[np.ndarray] = []
        packed_bytes = 0
        for path, leaf in paths_and_leaves(subtree):
            array, implementation = _as_array(leaf)
            content = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            if content.size >= _PACK_BELOW_BYTES:
                name, offset = f"{number}_{len(leaves)}", 0
                arrays[name] = content
            else:
                name, offset = f"{number}_packed", packed_bytes
                packed.append(content)
                packed_bytes += content.size
            leaves.append(
                {
                    "part": part,
                    "path": path,
                    "shape": array.shape,
                    "dtype": array.dtype.name,
                    "key": implementation,
                    "array": name,
                    "offset": offset,
                }
            )
        if packed_bytes:  # Orbax refuses an array without elements
            arrays[f"{number}_packed"] = np.concatenate(packed)
    return arrays, leaves


def _unpack(leaf: dict[str, Any], arrays: Mapping[str, np.ndarray]) -> Any:
    dtype = np.dtype(leaf["dtype"])  # ml_dtypes, which JAX imports, registers bfloat16 and the like by name
    shape = tuple(leaf["shape"])
    size = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
    content = arrays[leaf["array"]][leaf["offset"] : leaf["offset"] + size] if size else np.zeros(0, np.uint8)
    # The copy gives the array memory of its own, aligned for its type.
    array = np.frombuffer(content.tobytes(), dtype=dtype).reshape(shape).copy()
    return jax.random.wrap_key_data(jnp.asarray(array), impl=leaf["key"]) if leaf["key"] else array


def _as_array(leaf: Any) -> tuple[np.ndarray, str | None]:
    """A leaf's array, and the name of its key implementation if it is a typed key."""
    if isinstance(leaf, HostKey):
        return leaf.data, leaf.implementation
    if _is_key(leaf):
        return np.asarray(jax.random.key_data(leaf)), str(jax.random.key_impl(leaf))
    array = np.asarray(leaf)
    if array.dtype.kind in "OSUMm":  # objects, text, times
        raise TypeError(f"a checkpoint holds arrays and numbers, not {type(leaf).__name__}")
    return array, None


def _is_key(leaf: Any) -> bool:
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def paths_and_leaves(tree: PyTree) -> list[tuple[tuple[str, ...], Any]]:
    """Every leaf with its path by name, as checkpoints know it."""
    flat, _ = jax.tree_util.tree_flatten_with_path(tree)
    return [(tuple(_key_name(key) for key in path), leaf) for path, leaf in flat]


def _key_name(key: Any) -> str:
    for attribute in ("key", "name", "idx"):  # of a dict, of a dataclass or named tuple, of a sequence
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)


# ----------------------------------------------------------------------------------------------- bytes to trees


def _fill(template: PyTree, leaves: list[_Leaf], part: str) -> PyTree:
    """`template` with the stored leaves, which must fit it one by one.

    A coefficient that was not stored has the template's value: earlier versions kept most of them in the configuration.
    """
    wanted = paths_and_leaves(template)
    leaves = _with_new_coefficients(wanted, leaves)
    if [path for path, _ in wanted] != [leaf.path for leaf in leaves]:
        missing = {path for path, _ in wanted} - {leaf.path for leaf in leaves}
        extra = {leaf.path for leaf in leaves} - {path for path, _ in wanted}
        odd = "/".join(min(missing or extra or {("order",)}))
        raise CoveyError(
            f"the checkpoint's '{part}' does not fit this run: {len(leaves)} leaves, expected {len(wanted)} "
            f"(first difference: {odd})"
        )
    values = []
    for (path, expected), leaf in zip(wanted, leaves, strict=True):
        stored = _shape_and_type(leaf.value)
        if stored != _shape_and_type(expected):
            raise CoveyError(
                f"the checkpoint's '{part}' does not fit this run: {'/'.join(path)} is {_words(stored)}, "
                f"expected {_words(_shape_and_type(expected))}"
            )
        values.append(leaf.value.item() if isinstance(expected, (bool, int, float)) else leaf.value)
    return jax.tree.unflatten(jax.tree.structure(template), values)


def _with_new_coefficients(wanted: list[tuple[tuple[str, ...], Any]], leaves: list[_Leaf]) -> list[_Leaf]:
    """`leaves`, with the coefficients that only the template has, where it has values and not just shapes."""
    stored = {leaf.path for leaf in leaves}
    added = [
        _Leaf(path, np.asarray(value))
        for path, value in wanted
        if path not in stored and "coefficients" in path and not isinstance(value, jax.ShapeDtypeStruct)
    ]
    if not added:
        return leaves
    order = {path: number for number, (path, _) in enumerate(wanted)}
    return sorted([*leaves, *added], key=lambda leaf: order.get(leaf.path, -1))


def _shape_and_type(leaf: Any) -> tuple[tuple[int, ...], str]:
    if isinstance(leaf, HostKey):
        leaf = jax.random.wrap_key_data(jnp.asarray(leaf.data), impl=leaf.implementation)
    if not hasattr(leaf, "dtype"):
        leaf = np.asarray(leaf)
    return tuple(leaf.shape), str(leaf.dtype)


def _words(shape_and_type: tuple[tuple[int, ...], str]) -> str:
    shape, name = shape_and_type
    return f"{name}[{','.join(map(str, shape))}]"


def _nest(leaves: list[_Leaf]) -> PyTree:
    if len(leaves) == 1 and not leaves[0].path:
        return leaves[0].value
    tree: dict[str, Any] = {}
    for leaf in leaves:
        node = tree
        for name in leaf.path[:-1]:
            node = node.setdefault(name, {})
        node[leaf.path[-1]] = leaf.value
    return tree


# -------------------------------------------------------------------------------------------------------- files


def _write_files(path: Path, iteration: int, tree: dict[str, PyTree], meta: dict[str, Any]) -> None:
    arrays, leaves = _pack(tree)
    if arrays:
        _save_arrays(path / "arrays", arrays)
    index = {
        "format": FORMAT,
        "iteration": iteration,
        "meta": meta,
        "parts": list(tree),
        "arrays": {name: {"bytes": array.size, "crc32": zlib.crc32(array.data)} for name, array in arrays.items()},
        "leaves": leaves,
    }
    # Not strict JSON: a best return may still be -inf, and must come back as that.
    write_atomically(path / "index.json", stamp_json(json.dumps(index, default=lambda value: value.tolist())))
    _sync_tree(path)


def _read_index(path: Path) -> dict[str, Any]:
    content = read_bytes(path / "index.json")
    intact = checksum_holds(content)
    index = {} if intact is False else json.loads(content)
    if intact is False or (intact is None and index.get("format", 1) >= FORMAT):
        raise ValueError("index.json does not match its checksum")
    return index


def _read_leaves(path: Path, index: dict[str, Any], parts: list[str]) -> dict[str, list[_Leaf]]:
    chosen = [leaf for leaf in index["leaves"] if leaf["part"] in parts]
    names = {leaf["array"] for leaf in chosen} & set(index["arrays"])
    arrays = _load_arrays(path / "arrays", {name: index["arrays"][name]["bytes"] for name in sorted(names)})
    for name, array in arrays.items():
        if zlib.crc32(array.data) != index["arrays"][name]["crc32"]:
            raise ValueError(f"array {name} does not match its checksum")
    leaves: dict[str, list[_Leaf]] = {part: [] for part in parts}
    for leaf in chosen:
        leaves[leaf["part"]].append(_Leaf(tuple(leaf["path"]), _unpack(leaf, arrays)))
    return leaves


def _save_arrays(path: Path, arrays: dict[str, np.ndarray]) -> None:
    import orbax.checkpoint as ocp

    save_args = {name: ocp.SaveArgs(chunk_byte_size=_CHUNK_BYTES) for name in arrays}
    with _checkpointer() as checkpointer:
        checkpointer.save(path.absolute(), args=ocp.args.PyTreeSave(arrays, save_args=save_args))


def _load_arrays(path: Path, sizes: dict[str, int]) -> dict[str, np.ndarray]:
    """Loads arrays one by one: if one of several is damaged, Orbax lets the others fail noisily in the background."""
    if not sizes:
        return {}
    with _checkpointer() as checkpointer:
        return {name: _load_array(checkpointer, path, name, size) for name, size in sizes.items()}


def _load_array(checkpointer: Any, path: Path, name: str, size: int) -> np.ndarray:
    import orbax.checkpoint as ocp

    arguments = ocp.args.PyTreeRestore(
        item={name: np.empty(size, np.uint8)},
        restore_args={name: ocp.RestoreArgs(restore_type=np.ndarray)},
        partial_restore=True,
    )
    content: np.ndarray = checkpointer.restore(path.absolute(), args=arguments)[name]
    return content


def _checkpointer() -> Any:
    """Plain Zarr files: with few arrays they are twice as fast as Orbax's database format."""
    import orbax.checkpoint as ocp

    logger = logging.getLogger("absl")
    if not any(isinstance(known, _NoiseFilter) for known in logger.filters):
        logger.addFilter(_NoiseFilter())
    return ocp.Checkpointer(ocp.PyTreeCheckpointHandler(use_ocdbt=False))


class _NoiseFilter(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        return not _ORBAX_NOISE.search(record.getMessage())


def _discard(path: Path, seconds: float = 0.3) -> None:
    """Removes a folder that threads of Orbax may still write into, or make again, after one of them has failed."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        shutil.rmtree(path, ignore_errors=True)
        time.sleep(0.02)


def _sync_tree(path: Path) -> None:
    """Forces all files and folders below `path` to the disk."""
    for folder, _, names in os.walk(path):
        for name in names:
            with open(Path(folder) / name, "rb") as file:
                os.fsync(file.fileno())
        sync_folder(Path(folder))


def _reason(error: BaseException) -> str:
    """Why a checkpoint cannot be written; Orbax buries the reason in several lines of its own."""
    full = os.strerror(errno.ENOSPC)
    return full if full in str(error) else _one_line(error)


def _one_line(error: BaseException) -> str:
    return (" ".join(str(error).split()) or type(error).__name__)[:200]
