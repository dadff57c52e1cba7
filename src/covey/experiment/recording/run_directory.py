"""The run directory: all that an experiment leaves behind, readable and resumable whenever the process is killed.

    config.yaml       the resolved configuration; its presence is what makes a folder a run directory
    config.trust      where config.yaml names code to import: who trusts it (trust.py)
    environment.json  versions, device, git commit, command, and the run's id
    metrics.jsonl     append-only, one JSON object a line; NaN and infinities are null
    results.json      every evaluation, episode by episode (covey.results)
    checkpoints/      covey.experiment.recording.checkpoint
    partners/         copies of other runs that played beside it (covey.experiment.loading.partners)
    finished.json     at the end: how far the run went, and checksums of what a resume would read (finished.py)
    .lease-N          which process trains it (lease.py)
    failure.json      only in a run that failed, until it is resumed: kind, frames, and the error in one line

All carry checksums: config.yaml, environment.json and each line of metrics.jsonl their own (covey.files). The schema of
results.json has no room for one, so that of each evaluation is in metrics.jsonl (covey.experiment.recording.mirror).

Several seeds of one experiment share a parent that holds nothing but `seed_N/`, each a whole run directory.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import re
import shutil
import sys
import uuid
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from covey.errors import CoveyError, UsageError
from covey.experiment.configuration.config import Config, from_dict, wanted_imports
from covey.experiment.recording.lease import Lease
from covey.experiment.recording.trust import Untrusted, add_trust, is_trusted
from covey.files import (
    CHECKSUM,
    UNREADABLE,
    check_regular,
    checksum_holds,
    read_bytes,
    read_text,
    stamp_json,
    stamp_yaml,
    sync_folder,
    to_json,
    why_unreadable,
    write_atomically,
    writing,
)
from covey.results import Results, read_results, write_results

CHANGED = "is not as covey wrote it: edited or damaged"
FAILURE_FILE = "failure.json"
PARTNERS = "partners"  # the folder of partners that come from other runs
UNKNOWN_FAILURE = "no error recorded"
_warn = logging.getLogger("covey").warning


class RunDirectory:
    """An existing run directory; make one with `create`, find one with `open`."""

    def __init__(self, path: Path, config: dict[str, Any], environment: dict[str, Any], content: bytes = b""):
        """`config` is parsed from `content`, the bytes of config.yaml; nothing in it was imported or checked."""
        self.path = path
        self.config = config
        self.lease: Lease | None = None  # held while this process trains the run
        self._content = content
        self.environment = environment
        self.metrics = MetricsFile(path / "metrics.jsonl")

    @classmethod
    def create(
        cls, path: str | os.PathLike[str], config: Mapping[str, Any], environment: Mapping[str, Any]
    ) -> RunDirectory:
        """Makes the directory in one step, by renaming a sibling that already holds its first files."""
        target = Path(path)
        refuse_existing(target)
        # The id names the run for services that keep runs by name, so that a resumed run is the same run there.
        environment = {"run_id": uuid.uuid4().hex[:12], **environment}
        with writing(f"run directory {target}", cannot="cannot make"):
            target.parent.mkdir(parents=True, exist_ok=True)
            temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}.tmp")
            temporary.mkdir()
            try:
                _write_config(temporary, config)
                write_atomically(temporary / "environment.json", stamp_json(to_json(environment, indent=2)))
                os.rename(temporary, target)
            except BaseException:
                shutil.rmtree(temporary, ignore_errors=True)
                raise
            sync_folder(target.parent)
        return cls.open(target)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> RunDirectory:
        target = Path(path)
        if not (target / "config.yaml").is_file():
            raise UsageError(f"{target} is not a run directory: it has no config.yaml")
        try:
            content = (target / "config.yaml").read_bytes()
            config = yaml.safe_load(content.decode("utf-8"))
        except (yaml.YAMLError, *UNREADABLE) as error:
            raise UsageError(f"cannot read {target / 'config.yaml'}: {why_unreadable(error)}") from error
        if not isinstance(config, dict):
            raise UsageError(f"cannot read {target / 'config.yaml'}: it is not a mapping")
        if checksum_holds(content) is False:
            _warn(f"{target / 'config.yaml'} {CHANGED}; used as it is (delete its last line to stop this warning)")
        return cls(target, config, _read_environment(target / "environment.json"), content)

    def load_config(self, *, trust: bool = False) -> Config:
        """The checked configuration, after its imports: the one place where a run directory can import code.

        Raises Untrusted where it wants to and this user does not trust it; `trust` trusts it from now on.
        """
        wanted = wanted_imports(self.config)
        if wanted and not is_trusted(self.path, self._content):
            if not trust:
                raise Untrusted(
                    f"{self.path} is not trusted and wants to import {self.describe_imports()}; if you know that code, "
                    f"allow it with trust=true or `covey trust {self.path}`"
                )
            with contextlib.suppress(OSError):  # another's run may be read-only: trusted this once
                self.trust()
        return from_dict(self.config)

    def trust(self) -> None:
        """Lets the configuration import what it wants to, from now on. Raises OSError where that cannot be kept."""
        add_trust(self.path, self._content)

    def describe_imports(self) -> str:
        """`my_tasks, my_hooks:loss from /home/me/code`, or nothing. The text may be a stranger's."""
        wanted, code_dir = wanted_imports(self.config), self.config.get("code_dir")
        text = ", ".join(wanted) + (f" from {code_dir}" if wanted and code_dir else "")
        return "".join(character if character.isprintable() else "?" for character in text)[:300]

    def rewrite_config(self, config: Mapping[str, Any]) -> None:
        """For a run that continues with more frames or other loggers."""
        self.check_lease()
        with writing(self.path / "config.yaml"):
            self._content = _write_config(self.path, config)
        self.config = dict(config)

    def is_current(self) -> bool:
        """Whether config.yaml still is what was read."""
        try:
            return (self.path / "config.yaml").read_bytes() == self._content
        except OSError:
            return False

    def check_lease(self) -> None:
        """Raises LeaseLost where another process trains the run by now: this one must not write any more."""
        if self.lease is not None:
            self.lease.check()

    @property
    def run_id(self) -> str:
        run_id: str = self.environment["run_id"]
        return run_id

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    def read_results(self) -> Results | None:
        """None before the first evaluation."""
        path = self.path / "results.json"
        return read_results(path) if path.exists() else None

    def write_results(self, results: Results) -> None:
        self.check_lease()
        with writing(self.path / "results.json"):
            write_results(self.path / "results.json", results)

    def write_failure(self, error: str, frames: int) -> None:
        """Says that training ended here, for a report to count."""
        self.check_lease()
        failure = {"kind": "covey-failure", "frames": frames, "error": " ".join(error.split())}
        write_atomically(self.path / FAILURE_FILE, to_json(failure, indent=2) + "\n")

    def clear_failure(self) -> None:
        """For a run that starts or resumes."""
        (self.path / FAILURE_FILE).unlink(missing_ok=True)


class MetricsFile:
    """metrics.jsonl: grows by whole lines, and is cut back to a checkpoint's length when a run resumes."""

    def __init__(self, path: Path):
        self.path = path
        self._checksum: int | None = None  # of the whole file; None before it is looked at

    @property
    def checksum(self) -> int:
        """Of all that is in the file, for a checkpoint to store."""
        if self._checksum is None:
            self._checksum = zlib.crc32(read_bytes(self.path)) if self.path.exists() else 0
        return self._checksum

    def append(self, record: Mapping[str, Any]) -> None:
        # One write of one line: a kill before or after it, or at worst a torn last line, which readers leave out.
        line = _record_line(record)
        checksum = zlib.crc32(line, self.checksum)
        with writing(self.path), open(self.path, "ab", buffering=0) as file:
            if file.write(line) < len(line):  # a full disk takes what fits and does not complain
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._checksum = checksum

    def sync(self) -> int:
        """Forces what was appended to the disk and returns the length in bytes, for a checkpoint to store."""
        if not self.path.exists():
            return 0
        with writing(self.path), open(self.path, "ab") as file:
            os.fsync(file.fileno())
            return file.tell()

    def cut(self, offset: int) -> None:
        """Forgets everything after the first `offset` bytes; a line torn by them goes too."""
        self._checksum = None
        if not self.path.exists():
            return
        check_regular(self.path)
        with open(self.path, "r+b") as file:
            # Shorter than the checkpoint says where a machine lost its last writes; growing would fill with zeros.
            kept = file.read(offset)
            whole = kept[: kept.rfind(b"\n") + 1]
            file.truncate(len(whole))
            os.fsync(file.fileno())
        self._checksum = zlib.crc32(whole)

    def is_intact(self, offset: int, checksum: int | None) -> bool:
        """Whether the first `offset` bytes are there, and are those that had this checksum (None: not known)."""
        if not self.path.exists():
            return offset == 0
        check_regular(self.path)
        with open(self.path, "rb") as file:
            content = file.read(offset)
        return len(content) == offset and checksum in (None, zlib.crc32(content))

    def rewrite(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Replaces all records by these."""
        with writing(self.path):
            write_atomically(self.path, b"".join(map(_record_line, records)).decode())
        self._checksum = None

    def read(self) -> list[dict[str, Any]]:
        return read_metrics(self.path.parent)


def read_metrics(run_directory: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The records of metrics.jsonl in order; a torn last line is left out, a bad one before it is an error."""
    path = Path(run_directory) / "metrics.jsonl"
    if not path.exists():
        return []
    records = []
    for number, line in enumerate(metrics_lines(read_bytes(path)), start=1):
        try:
            records.append(parse_record(line))
        except ValueError as error:
            raise CoveyError(f"{path}, line {number}: {error}") from error
    return records


def read_failure(run_directory: str | os.PathLike[str]) -> str:
    """Why the run failed, in one line; "" where it did not, or where its file says nothing."""
    try:
        failure = json.loads(read_text(Path(run_directory) / FAILURE_FILE))
    except FileNotFoundError:
        return ""
    except (OSError, ValueError, RecursionError):
        failure = {}
    return str(failure.get("error") or UNKNOWN_FAILURE) if isinstance(failure, dict) else UNKNOWN_FAILURE


def _record_line(record: Mapping[str, Any]) -> bytes:
    return (stamp_json(to_json(dict(record))) + "\n").encode()


def metrics_lines(content: bytes) -> list[bytes]:
    """The whole lines of metrics.jsonl; what follows the last newline is empty or torn."""
    return content.split(b"\n")[:-1]


def parse_record(line: bytes) -> Any:
    """What a line of metrics.jsonl holds, without its checksum; ValueError where it is damaged."""
    try:
        record = json.loads(line)
    except ValueError as error:
        raise ValueError(f"not JSON ({error})") from error
    if checksum_holds(line) is False:
        raise ValueError("does not match its checksum")
    return {name: value for name, value in record.items() if name != CHECKSUM} if isinstance(record, dict) else record


def run_directories(path: str | os.PathLike[str]) -> list[Path]:
    """The run directories that `path` stands for: itself, or those of its seeds in order."""
    parent = Path(path)
    if (parent / "config.yaml").is_file():
        return [parent]
    seeds = {
        int(match[1]): child
        for child in (parent.iterdir() if parent.is_dir() else ())
        if (match := re.fullmatch(r"seed_(\d+)", child.name)) and (child / "config.yaml").is_file()
    }
    if not seeds:
        raise UsageError(f"{parent} is not a run directory: it has no config.yaml and no seed_N/ that has one")
    return [seeds[seed] for seed in sorted(seeds)]


def refuse_existing(path: Path) -> None:
    """Raises UsageError where something is in the place of a new run directory, and says what can be done about it."""
    file = next((place for place in (path, *path.parents) if place.exists() and not place.is_dir()), None)
    if file is not None:
        raise UsageError(f"cannot make run directory {path}: {file} is a file; choose another run_dir")
    if not path.exists() and not path.is_symlink():
        return
    try:
        run_directories(path)
    except UsageError as error:
        raise UsageError(f"run_dir={path} exists already and is not a run directory; choose another run_dir") from error
    raise UsageError(f"run directory {path} exists already; `covey resume {path}` continues it")


def trust_runs(path: Path) -> list[str]:
    """Trusts every run directory at or below `path`; returns a line for each, with what it may import now."""
    lines = []
    for directory in _find_runs(path):
        run = RunDirectory.open(directory)
        wanted = run.describe_imports()
        if wanted:
            try:
                run.trust()
            except OSError as error:
                raise UsageError(
                    f"cannot keep the trust in {directory} ({error.strerror or error}); add trust=true to a command to "
                    "trust it once"
                ) from error
        lines.append(f"{directory} may import {wanted}" if wanted else f"{directory} imports nothing")
    return lines


def _find_runs(path: Path) -> list[Path]:
    """The run directories at or below `path`: seeds, benchmarks, and the partners that runs have copies of."""
    found = []
    for folder, names, files in os.walk(path):
        if "config.yaml" in files:
            found.append(Path(folder))
            names[:] = [name for name in names if name == PARTNERS]
        names.sort()
    if not found:
        raise UsageError(f"no run directory at or below {path}: nothing has a config.yaml")
    return found


def _write_config(folder: Path, config: Mapping[str, Any]) -> bytes:
    """Writes config.yaml, which its maker trusts; returns its content."""
    text = stamp_yaml(yaml.safe_dump(dict(config), sort_keys=False))
    if wanted_imports(config):
        try:
            # Before config.yaml: killed in between, the old one is still there, and still trusted.
            add_trust(folder, text.encode("utf-8"))
        except OSError as error:
            print(
                f"warning: cannot note that this run is yours ({error.strerror or error}): resume and evaluate will "
                "need trust=true",
                file=sys.stderr,
            )
    write_atomically(folder / "config.yaml", text)
    return text.encode("utf-8")


def _read_environment(path: Path) -> dict[str, Any]:
    """Only an id where the file is missing or unreadable: learning does not depend on it."""
    environment: Any = None
    try:
        content = read_text(path).encode()
        environment = json.loads(content)
        if checksum_holds(content) is False:
            _warn(f"{path} {CHANGED}; it is used as it is")
    except UNREADABLE as error:
        _warn(f"cannot read {path}, which says how the run was made: {why_unreadable(error)}")
    if not isinstance(environment, dict):
        environment = {}
    environment.pop(CHECKSUM, None)
    return {"run_id": path.parent.name, **environment}
