"""What a run was made with: enough to tell, years later, why two runs differ."""

from __future__ import annotations

import datetime
import functools
import os
import platform
import subprocess
import sys
from typing import Any


def describe_environment() -> dict[str, Any]:
    """The content of environment.json. It starts JAX, so flags must be set before."""
    import jax

    devices = jax.devices()
    commit, dirty = git_commit()
    return {
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": sys.argv,
        "git_commit": commit,
        "git_dirty": dirty,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu_count": os.cpu_count(),
        "device": {"platform": devices[0].platform, "kind": devices[0].device_kind, "number": len(devices)},
        "processes": jax.process_count(),
        "flags": {name: value for name, value in sorted(os.environ.items()) if name.startswith(("XLA_", "JAX_"))},
        "packages": package_versions(),
    }


@functools.cache
def package_versions() -> dict[str, str]:
    """Every installed distribution and its version, from the names of their folders: reading their metadata takes
    longer than everything else that is written at a start."""
    versions: dict[str, str] = {}
    for folder in filter(os.path.isdir, sys.path):
        for entry in sorted(os.listdir(folder)):
            stem, suffix = os.path.splitext(entry)
            name, _, version = stem.partition("-")
            if suffix in (".dist-info", ".egg-info") and version:
                versions.setdefault(name.replace("_", "-"), version)
    return dict(sorted(versions.items(), key=lambda item: item[0].lower()))


def git_commit() -> tuple[str | None, bool | None]:
    """The working directory's commit and whether tracked files differ from it; (None, None) outside a repository.

    Files that git does not track, run directories among them, do not count as changes.
    """
    commit = _git("rev-parse", "HEAD")
    changes = _git("status", "--porcelain", "--untracked-files=no")
    if commit is None or changes is None:
        return None, None
    return commit, bool(changes)


def _git(*arguments: str) -> str | None:
    try:
        answer = subprocess.run(["git", *arguments], capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip()
