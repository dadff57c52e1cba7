"""Packages that the user put somewhere."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from battles import write_package

from covey.envs.host.sources import Randomness, import_from, standing_in
from covey.errors import MissingPackage, UsageError

VARIABLE = "COVEY_HEDGEHOG"


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.delitem(sys.modules, "hedgehog", raising=False)


def hedgehog(path: Path | None = None) -> ModuleType:
    named = None if path is None else str(path)
    return import_from("hedgehog", "hedgehog", path=named, variable=VARIABLE, what="task 'x/y'", how="catch one")


def test_a_folder_with_the_package_or_one_with_such_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_package(tmp_path / "hedgehog-1.2", "hedgehog", "spines = 5000")
    assert hedgehog(tmp_path / "hedgehog-1.2").spines == 5000
    del sys.modules["hedgehog"]
    monkeypatch.setattr(sys, "path", sys.path[1:])
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    assert hedgehog().spines == 5000


def test_what_cannot_be_found_or_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        MissingPackage, match=f"task 'x/y' needs hedgehog, .*: catch one; .* with task.path or {VARIABLE}"
    ):
        hedgehog()
    with pytest.raises(UsageError, match=f"task.path={tmp_path}: there is no package hedgehog in it"):
        hedgehog(tmp_path)
    monkeypatch.setenv(VARIABLE, "/nowhere")
    with pytest.raises(UsageError, match=f"{VARIABLE}=/nowhere: there is no package"):
        hedgehog()
    write_package(tmp_path, "hedgehog", "import no_such_beetle")
    with pytest.raises(
        UsageError, match="hedgehog cannot be imported: ModuleNotFoundError: No module named 'no_such_b"
    ):
        hedgehog(tmp_path)


def test_global_generators_of_ones_own() -> None:
    random.seed(1), np.random.seed(1)
    expected = random.random(), np.random.random()
    random.seed(1), np.random.seed(1)
    one, other = Randomness(), Randomness()
    one.seed(7)
    other.seed(7)
    with one:
        first = [random.random(), np.random.random()]
    with other:
        second = [random.random(), np.random.random()]
    with one:
        third = random.random()
    with other:
        assert random.random() == third
    assert first == second and third != first[0]
    assert (random.random(), np.random.random()) == expected, "outside nothing has changed"


def test_a_stand_in_goes_again_and_never_hides_what_is_there() -> None:
    with standing_in("hedgehog", ModuleType("hedgehog")):
        assert "hedgehog" in sys.modules
    assert "hedgehog" not in sys.modules
    with standing_in("json", ModuleType("json")):
        import json
    assert json.loads("1") == 1
