"""Tasks of one suite share their sidebar. Without this, half of the time to write a page goes into its sidebar.

Sphinx resolves the whole tree of pages again for each page. The sidebar shows suites and not their tasks, so it is the
same, links included, on all pages of a suite's folder except the suite's own.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any

TASKS = "generated/tasks"
BEFORE_THEME = 100  # the priority: the theme renders the sidebar in the same event, at 500

_sidebars: dict[tuple[Any, ...], str] = {}


def share_sidebar(app: Any, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """Replaces the function of the page's context that makes the sidebar by one that remembers."""
    path = PurePosixPath(page)
    if str(path.parent.parent) != TASKS or path.name == "index":
        return
    make = context["toctree"]

    def toctree(**options: Any) -> str:
        key = (path.parent, *sorted(options.items()))
        if key not in _sidebars:
            _sidebars[key] = make(**options)
        return _sidebars[key]

    context["toctree"] = toctree


def setup(app: Any) -> dict[str, Any]:
    app.connect("builder-inited", lambda app: _sidebars.clear())
    app.connect("html-page-context", share_sidebar, priority=BEFORE_THEME)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
