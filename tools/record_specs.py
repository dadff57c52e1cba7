"""Records the specs of tasks that need an extra, for pages that are built without it: docs/specs.json.

    python tools/record_specs.py mabrax     all tasks of a suite, whose extra must be installed

Specs of other suites stay in the file as they are.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import covey
from covey import registry

sys.path.insert(0, str(Path(__file__).parents[1] / "docs" / "_ext"))
from specs import FILE, to_plain


def main() -> None:
    suites = sys.argv[1:]
    names = [entry.name for entry in registry.tasks if entry.name.partition("/")[0] in suites]
    if not names:
        sys.exit(f"no tasks of {' or '.join(suites) or 'no suite'}")
    specs = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
    specs |= {name: to_plain(covey.make_env(name).spec) for name in names}
    FILE.write_text(json.dumps(specs, indent=1) + "\n", encoding="utf-8")
    print(f"{FILE.name}: {', '.join(names)}")


if __name__ == "__main__":
    main()
