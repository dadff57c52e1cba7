"""Writing files so that a process killed at any instant leaves the old or the new content, never half of it.

What covey reads back carries a checksum of itself, so that a damaged bit is noticed: JSON objects in a last member
`crc32` (`stamp_json`), YAML in a comment on the last line (`stamp_yaml`). `checksum_holds` checks either.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import re
import stat
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from covey.errors import CoveyError, UsageError

CHECKSUM = "crc32"
# A byte of the mark itself may be damaged; the rest of the stamp still identifies it.
_JSON_STAMP = re.compile(rb',?\s*"(.{5})": (\d+)\s*\}\s*\Z', re.DOTALL)
_YAML_STAMP = re.compile(rb"(.) crc32 of the lines above: (\d+)\s*\Z", re.DOTALL)

# A full or failing disk: no other input would help.
_DISK_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}

# Why a file of text, JSON or YAML cannot be read: it is not there, not UTF-8, not JSON, or nested too deeply.
UNREADABLE = (OSError, ValueError, RecursionError)


def read_text(path: str | os.PathLike[str]) -> str:
    """The text of a regular file."""
    check_regular(path)
    return Path(path).read_text(encoding="utf-8")


def read_bytes(path: str | os.PathLike[str]) -> bytes:
    """The content of a regular file."""
    check_regular(path)
    return Path(path).read_bytes()


def check_regular(path: str | os.PathLike[str]) -> None:
    """Raises OSError unless `path` is a regular file: reading a pipe would wait for its writer for ever."""
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise OSError(errno.EINVAL, "not a regular file", os.fspath(path))


def why_unreadable(error: Exception) -> str:
    """One of `UNREADABLE`, in words."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, UnicodeDecodeError):
        return "it is not UTF-8 text"
    return (error.strerror if isinstance(error, OSError) else None) or " ".join(str(error).split())


def write_atomically(path: Path, text: str) -> None:
    """Puts `text` at `path` in one step: a temporary file in the same folder, forced to the disk, then renamed.

    The temporary name is fixed, so that leftovers of a killed process are overwritten. A file has one writer at a time.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync_folder(path.parent)
    except OSError as error:
        if is_disk_error(error):  # half a file would take up space
            temporary.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def writing(what: object, cannot: str = "cannot write") -> Iterator[None]:
    """Turns an OSError into one line: `cannot write runs/first/results.json: No space left on device`.

    A UsageError if another path or other permissions would help; a CoveyError if the disk is full or fails.
    """
    try:
        yield
    except OSError as error:
        kind = CoveyError if is_disk_error(error) else UsageError
        raise kind(f"{cannot} {what}: {error.strerror or error}") from error


def is_disk_error(error: BaseException) -> bool:
    """Whether the disk is full or fails; Pillow, for one, does not say which."""
    return isinstance(error, OSError) and (error.errno is None or error.errno in _DISK_ERRORS)


def stamp_json(text: str) -> str:
    """The text of a JSON object with a last member `crc32`: the checksum of everything before it."""
    body = text.rstrip().removesuffix("}").rstrip()
    pretty = "\n" in body
    joint = "" if body == "{" else ",\n  " if pretty else ", "
    return f'{body}{joint}"{CHECKSUM}": {zlib.crc32(body.encode())}' + ("\n}\n" if pretty else "}")


def stamp_yaml(text: str) -> str:
    """A YAML document with a last line that holds the checksum of those before it."""
    return f"{text}# crc32 of the lines above: {zlib.crc32(text.encode())}\n"


def checksum_holds(content: bytes) -> bool | None:
    """Whether stamped content is unchanged; None without a stamp, as in files of earlier versions."""
    tail = content[-100:]
    stamp, mark = _JSON_STAMP.search(tail), CHECKSUM.encode()
    if stamp is None:
        stamp, mark = _YAML_STAMP.search(tail), b"#"
    if stamp is None or sum(a != b for a, b in zip(stamp[1], mark, strict=True)) > 1:
        return None
    end = len(content) - len(tail) + stamp.start()
    return stamp[1] == mark and zlib.crc32(content[:end]) == int(stamp[2])


def link_exclusively(source: Path, target: Path) -> bool:
    """Puts the content of `source` at `target` in one step. Returns False if something is there already.

    On a file system without hard links the content arrives a moment after the name.
    """
    try:
        os.link(source, target)
    except FileExistsError:
        # If a network file system loses the server's answer it repeats the request, and is told that the file exists.
        return os.stat(source).st_nlink == 2
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS):
            raise
        try:
            mode = stat.S_IMODE(os.stat(source).st_mode)
            descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        except FileExistsError:
            return False
        with os.fdopen(descriptor, "wb") as file:
            file.write(source.read_bytes())
    return True


def sync_folder(path: Path) -> None:
    """Forces a folder's own entries (names made, renamed or removed in it) to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def to_json(value: Any, indent: int | None = None) -> str:
    """`value` as strict JSON: NumPy scalars and arrays as numbers and lists, NaN and infinities as null."""
    return json.dumps(_plain(value), indent=indent, allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float):  # before tolist: np.float64 is a float
        return float(value) if math.isfinite(value) else None
    if hasattr(value, "tolist"):  # arrays and scalars, NumPy's and JAX's
        return _plain(value.tolist())
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return value
