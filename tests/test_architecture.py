"""The route in ARCHITECTURE.md names functions that exist, in the files that it gives."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
ENTRY = re.compile(r"^[ │├└]*(?P<name>[\w.]+)  .*?(?P<file>[\w/]+\.py)?$")


def route() -> list[tuple[str, str]]:
    """Each name of the route and its file, which is that of the line above where none is given."""
    block = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8").split("```")[1]
    found: list[tuple[str, str]] = []
    for line in block.strip().splitlines():
        entry = ENTRY.match(line)
        assert entry is not None, line
        found.append((entry["name"], entry["file"] or found[-1][1]))
    return found


def test_the_route_names_what_exists() -> None:
    names = route()
    assert len(names) > 10 and names[0] == ("cli._train", "cli.py") and names[-1] == ("ppo_loss", "algorithms/ppo.py")
    for name, file in names:
        source = (ROOT / "src" / "covey" / file).read_text(encoding="utf-8")
        *owner, function = name.split(".")
        assert re.search(rf"^ *def {function}\(", source, re.MULTILINE), f"{file} has no function {function}"
        if owner and owner[0] != Path(file).stem:
            assert re.search(rf"^(class|def) {owner[0]}\b", source, re.MULTILINE), f"{file} has no {owner[0]}"
