"""The routes in ARCHITECTURE.md name functions that exist, in the files given, and each calls what is below it."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ENTRY = re.compile(r"^(?P<lines>[ │├└]*)(?P<name>[\w.]+)  +.*?  +(?P<file>[\w/]+\.py)$")
# By the name of a field, or where a registered function is called.
CALLED = {"restored_state": "restored", "apply_shared": "apply", "make_ppo": "make", "build_online_loop": "make"}
Entry = tuple[str, str]  # name and file


def routes() -> list[list[tuple[int, Entry]]]:
    """Of each tree, the entries with their depth."""
    section = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8").split("\n## ")[1]
    assert section.startswith("The route\n")
    found = []
    for block in section.split("```")[1::2]:
        tree = []
        for line in block.strip().splitlines():
            entry = ENTRY.match(line)
            assert entry is not None, line
            tree.append((len(entry["lines"]) // 3, (entry["name"], entry["file"])))
        found.append(tree)
    return found


def calls() -> Iterator[tuple[Entry, Entry]]:
    """Each entry with the one above it."""
    for tree in routes():
        above: list[Entry] = []
        for depth, entry in tree:
            del above[depth:]
            if above:
                yield above[-1], entry
            above.append(entry)


@functools.cache
def parsed(file: str) -> ast.Module:
    return ast.parse((ROOT / "src" / "covey" / file).read_text(encoding="utf-8"))


def find(entry: Entry) -> ast.AST:
    """What an entry names: a function at the top of its file or, as `owner.name`, one inside a class or a function."""
    name, file = entry
    *owner, function = name.split(".")
    within: ast.AST = parsed(file)
    if owner and owner != [Path(file).stem]:
        [within] = [
            node
            for node in parsed(file).body
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == owner[0]
        ]
    found = [
        node for node in ast.iter_child_nodes(within) if isinstance(node, ast.FunctionDef) and node.name == function
    ]
    assert len(found) == 1, f"{file} has no {name}"
    return found[0]


def names_in(function: ast.AST) -> set[str]:
    """The names that a function uses, as variables or as attributes; not what its docstring says."""
    names = {node.id for node in ast.walk(function) if isinstance(node, ast.Name)}
    return names | {node.attr for node in ast.walk(function) if isinstance(node, ast.Attribute)}


def test_the_routes_begin_and_end_where_they_should() -> None:
    (host, device, resumed, replay) = [[entry for _, entry in tree] for tree in routes()]
    assert host[0] == ("cli._train", "cli.py") and host[-1] == device[0] == ("advance", "loops/online.py")
    assert device[-1] == ("adam_step", "algorithms/base.py")
    assert resumed[0] == ("cli._resume", "cli.py") and replay[0] in device


@pytest.mark.parametrize("entry", sorted({entry for tree in routes() for _, entry in tree}), ids=" in ".join)
def test_a_route_names_what_exists(entry: Entry) -> None:
    find(entry)


@pytest.mark.parametrize(("caller", "called"), list(calls()), ids=lambda entry: entry[0])
def test_what_is_below_is_called(caller: Entry, called: Entry) -> None:
    name = called[0].split(".")[-1]
    assert CALLED.get(name, name) in names_in(find(caller)), f"{caller[0]} does not call {called[0]}"


def test_a_wrong_route_is_noticed() -> None:
    train = names_in(find(("train", "experiment/running/experiment.py")))
    assert "build" in train and "compile_parts" not in train
    with pytest.raises(AssertionError, match="has no advance"):
        find(("advance", "loops/rollout.py"))
