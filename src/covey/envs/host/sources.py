"""Packages that no registry has: found in a folder of the user's, or installed by the user."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from covey.envs.host.simulator import describe_error
from covey.errors import MissingPackage, UsageError


def import_from(package: str, module: str, *, path: str | None, variable: str, what: str, how: str) -> ModuleType:
    """A module of `package`: from the folder `path`, else from the folder in the environment variable `variable`, else
    as it is installed.

    The package is in the folder itself, or in its only subfolder with that package, as in unpacked archives. Errors
    name `what` needs the package and `how` to get it.
    """
    put_on_path(package, path=path, variable=variable)
    try:
        return importlib.import_module(module)
    except ImportError as error:
        missing = (getattr(error, "name", None) or "").partition(".")[0]
        if missing == package and importlib.util.find_spec(package) is None:
            raise MissingPackage(
                f"{what} needs {package}, which is not installed: {how}; name a folder that holds it with task.path or "
                f"{variable}"
            ) from None
        raise UsageError(f"{what}: {package} cannot be imported: {describe_error(error)}") from None


def put_on_path(package: str, *, path: str | None, variable: str) -> None:
    """Puts the folder that the user named on Python's path, if one was named."""
    named = path or os.environ.get(variable)
    if not named:
        return
    place = "task.path" if path else variable
    folder = holder(Path(named).expanduser(), package)
    if folder is None:
        raise UsageError(f"{place}={named}: there is no package {package} in it")
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
        importlib.invalidate_caches()


def holder(folder: Path, package: str) -> Path | None:
    """The folder that holds a package: `folder`, or the only subfolder of it that does; None if there is none."""
    if (folder / package / "__init__.py").is_file():
        return folder
    inner = [each.parents[1] for each in folder.glob(f"*/{package}/__init__.py")]
    return inner[0] if len(inner) == 1 else None


class Randomness:
    """One copy's own states of Python's and NumPy's global generators, in use inside `with randomness:`.

    Without them, what a copy draws would depend on how many copies its process steps.
    """

    def __init__(self) -> None:
        self._state: tuple[Any, Any] = (random.getstate(), np.random.get_state())

    def seed(self, seed: int) -> None:
        with self:
            random.seed(seed)
            np.random.seed(seed)

    def __enter__(self) -> None:
        self._outside = (random.getstate(), np.random.get_state())
        self._restore(self._state)

    def __exit__(self, *error: Any) -> None:
        self._state = (random.getstate(), np.random.get_state())
        self._restore(self._outside)

    def _restore(self, state: tuple[Any, Any]) -> None:
        random.setstate(state[0])
        np.random.set_state(state[1])


@contextlib.contextmanager
def standing_in(name: str, module: ModuleType) -> Iterator[None]:
    """While others are imported, `module` stands in for one that is not installed. An installed one is left alone."""
    if name in sys.modules or importlib.util.find_spec(name) is not None:
        yield
        return
    sys.modules[name] = module
    try:
        yield
    finally:
        sys.modules.pop(name, None)
