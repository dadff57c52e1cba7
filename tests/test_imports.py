"""The import arrows of ARCHITECTURE.md, read from the source; and what starting covey must not import."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import covey

ROOT = Path(covey.__file__).parent

# An entry may import what stands in a later row, and what stands at the bottom; in the bottom row, each the others.
LAYERS = [
    {"covey"},  # the package itself, `covey/__init__.py`
    {"cli"},
    {"launch", "report"},
    {"experiment"},
    {"social", "loops"},
    {"algorithms"},
    {"networks", "data", "envs"},
    {"ops"},
    {"types", "registry", "errors", "aliases", "checks", "collector", "fields", "files", "metrics", "observations"}
    | {"catalog", "process", "results", "specs", "task_fields"},
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
BOTTOM = len(LAYERS) - 1

SOURCES = sorted(ROOT.rglob("*.py"))


def name_of(path: Path) -> str:
    """`envs.batch` for covey/envs/batch.py, `envs` for covey/envs/__init__.py, `covey` for covey/__init__.py."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts[:-1] if parts[-1] == "__init__" else parts
    return ".".join(parts) or "covey"


def part_of(module: str) -> str:
    return module.split(".")[0]


def imports_of(path: Path) -> Iterator[str]:
    """Every module imported anywhere in a file, inside functions too, absolute and with covey's prefix."""
    package = ["covey", *path.relative_to(ROOT).parent.parts]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            # `from covey import registry` imports a module of that name; `from covey.types import Array` does not.
            yield from (f"covey.{alias.name}" for alias in node.names) if module == "covey" else [module]


def own_imports(path: Path) -> Iterator[str]:
    for module in imports_of(path):
        if module.split(".")[0] == "covey":
            yield module.removeprefix("covey").removeprefix(".") or "covey"


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_imports_point_downward(path: Path) -> None:
    importer = part_of(name_of(path))
    assert importer in LEVEL, f"{importer} has no place among the arrows"
    for module in own_imports(path):
        imported = part_of(module)
        assert imported in LEVEL, f"{importer} imports {imported}, which has no place among the arrows"
        allowed = (
            imported == importer or LEVEL[imported] > LEVEL[importer] or LEVEL[importer] == BOTTOM == LEVEL[imported]
        )
        assert allowed, f"{name_of(path)} imports covey.{module}"


def test_the_check_sees_what_it_should() -> None:
    assert "envs.batch" in set(own_imports(ROOT / "loops" / "rollout.py"))
    assert "registry" in set(own_imports(ROOT / "cli.py"))
    assert "experiment.configuration.compose" in set(own_imports(ROOT / "cli.py"))  # inside a function
    assert len(SOURCES) > 40


@pytest.mark.parametrize(
    ("library", "owners"),
    [
        ("flax", ("networks.",)),
        ("hydra", ("experiment.configuration.compose",)),
        ("omegaconf", ("experiment.configuration.compose",)),
        ("orbax", ("experiment.recording.checkpoint",)),
        ("jumanji", ("envs.jumanji.",)),
        ("jaxmarl", ("envs.jaxmarl.",)),
        ("pettingzoo", ("envs.parallel_env.", "envs.host.pettingzoo.")),
        ("gymnasium", ("envs.parallel_env.", "envs.host.")),
        ("ray", ("loops.ray_actors.", "loops.ray_head.")),
    ],
)
def test_a_library_is_imported_in_one_place(library: str, owners: tuple[str]) -> None:
    importers = {name_of(p) for p in SOURCES if any(m.split(".")[0] == library for m in imports_of(p))}
    assert importers, f"nothing imports {library} any more"
    assert all(f"{importer}.".startswith(owners) for importer in importers), importers


@pytest.mark.parametrize("library", ["torch", "distrax", "rlax", "marl_eval", "pickle", "cloudpickle"])
def test_a_library_is_imported_nowhere(library: str) -> None:
    assert not [name_of(p) for p in SOURCES if any(m.split(".")[0] == library for m in imports_of(p))]


def test_algorithms_do_not_import_each_other() -> None:
    for path in (ROOT / "algorithms").glob("*.py"):
        # No algorithms, but what these are made of.
        parts = ("base", "critics", "off_policy", "on_policy", "policies", "q_values", "replay_critics", "seats")
        shared = {f"algorithms.{name}" for name in parts}
        others = {m for m in own_imports(path) if m.startswith("algorithms.")} - shared
        assert not others, f"{name_of(path)} imports {others}"


HEAVY = ["jax", "flashbax", "flax", "optax", "orbax", "hydra", "jumanji", "jaxmarl", "matplotlib", "scipy"]
HEAVY += ["pettingzoo", "gymnasium", "ray"]


@pytest.mark.parametrize(
    "code",
    [
        "import covey",
        "import covey.cli",
        "from covey import cli; cli.main(['list', 'tasks']); cli.main(['list', 'algorithms']); cli.main(['--help'])",
        "import covey.results, covey.metrics, covey.experiment.configuration.config",
    ],
)
def test_starting_imports_nothing_heavy(code: str) -> None:
    check = f"import sys; {code}; print([name for name in {HEAVY} if name in sys.modules], file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stderr.strip() == "[]"
