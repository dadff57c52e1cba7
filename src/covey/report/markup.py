"""HTML from Python values. All text is escaped unless it is already `Html`, so names cannot become markup.

tag("td", "a < b", class_="number")   →   <td class="number">a &lt; b</td>
"""

from __future__ import annotations

import html
from collections.abc import Iterable

from covey.files import to_json

EMPTY = frozenset({"img", "input", "line"})  # elements without content, which SVG requires to be closed

Child = object  # Html, text, a number, None, or an iterable of these


class Html(str):
    """Text that is already markup."""


def tag(name: str, /, *children: Child, **attributes: object) -> Html:
    """An element. Attributes: `_` becomes `-`, a final `_` is dropped, and None and False omit the attribute."""
    opening = f"<{name}{''.join(_attribute(key, value) for key, value in attributes.items())}"
    return Html(f"{opening}/>" if name in EMPTY else f"{opening}>{join(*children)}</{name}>")


def join(*children: Child) -> Html:
    """Children one after another: text is escaped, iterables are joined, None is omitted."""
    return Html("".join(_markup(child) for child in children))


def json_script(identifier: str, value: object) -> Html:
    """Data for a script. `<` is escaped in JSON's way, so that nothing can end the element early."""
    safe = to_json(value).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    return Html(f'<script type="application/json" id="{html.escape(identifier)}">{safe}</script>')


def _markup(child: Child) -> str:
    if child is None:
        return ""
    if isinstance(child, Html):
        return child
    if isinstance(child, str):
        return html.escape(child)
    if isinstance(child, Iterable):
        return "".join(_markup(item) for item in child)
    return html.escape(str(child))


def _attribute(key: str, value: object) -> str:
    name = key.rstrip("_").replace("_", "-")
    if value is None or value is False:
        return ""
    return f" {name}" if value is True else f' {name}="{html.escape(str(value))}"'
