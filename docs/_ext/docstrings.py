"""covey's docstrings are plain text with Markdown's backticks. This makes reStructuredText of them for autodoc, and
Markdown for the pages of `registry_pages`.

Both read a docstring as blocks: paragraphs, lists, and what is kept line by line: indented blocks, and columns such as

    observation       [A, …]    what to act on
    init(key) -> state
"""

from __future__ import annotations

import ast
import dataclasses
import enum
import inspect
import re
from collections.abc import Iterator, Sequence
from typing import Any

from flax import nnx
from sphinx.util.inspect import signature as sphinx_signature
from sphinx.util.inspect import stringify_signature

from covey.fields import meanings

COLUMNS = re.compile(r"\S {2,}\S|^\w+\(.*\) -> ")  # two or more spaces inside a line, or what a function returns
ITEM = re.compile(r"- ")


@dataclasses.dataclass(frozen=True)
class Block:
    kind: str  # "paragraph", "list" or "verbatim"
    lines: tuple[str, ...]

    @property
    def text(self) -> str:
        return " ".join(line.strip() for line in self.lines)

    @property
    def items(self) -> list[str]:
        """The items of a list, each on one line."""
        items: list[str] = []
        for line in self.lines:
            if ITEM.match(line):
                items.append(line[2:].strip())
            else:
                items[-1] += f" {line.strip()}"
        return items


def read_blocks(docstring: str | None) -> Iterator[Block]:
    paragraph: list[str] = []
    for line in [*inspect.cleandoc(docstring or "").splitlines(), ""]:
        if line.strip() and not (ITEM.match(line) and paragraph and kind_of(paragraph) == "paragraph"):
            paragraph.append(line)
            continue
        if paragraph:
            yield Block(kind_of(paragraph), tuple(paragraph))
        paragraph = [line] if line.strip() else []


def kind_of(lines: Sequence[str]) -> str:
    if ITEM.match(lines[0]):
        return "list"
    if lines[0].startswith("  ") or sum(bool(COLUMNS.search(line.strip())) for line in lines) > len(lines) / 2:
        return "verbatim"
    return "paragraph"


def dedented(lines: Sequence[str]) -> list[str]:
    return inspect.cleandoc("\n" + "\n".join(lines)).splitlines()


# ------------------------------------------------------------------------------------------------ reStructuredText


def to_rst(docstring: str) -> list[str]:
    lines: list[str] = []
    for block in read_blocks(docstring):
        if block.kind == "verbatim":
            lines += [".. code-block:: text", "", *(f"   {line}" for line in dedented(block.lines)), ""]
        elif block.kind == "list":
            lines += [f"- {rst_inline(item)}" for item in block.items] + [""]
        else:
            lines += [rst_inline(block.text), ""]
    return lines


def rst_inline(text: str) -> str:
    parts = re.split(r"`([^`]+)`", text)
    result = ""
    for number, part in enumerate(parts):
        if number % 2:  # a literal may not touch a word
            before = "\\ " if re.search(r"\w$", parts[number - 1]) else ""
            after = "\\ " if re.match(r"\w", parts[number + 1]) else ""
            result += f"{before}``{part}``{after}"
        else:
            result += re.sub(r"([*_|\\])", r"\\\1", part)
    return result


# Their module docstrings are equations, which the pages of the algorithms have typeset.
WITH_PAGES_OF_THEIR_OWN = {f"covey.algorithms.{name}" for name in ("ppo", "impala", "pqn", "qlearning", "sac", "ddpg")}


def process(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    lines[:] = [] if name in WITH_PAGES_OF_THEIR_OWN else to_rst("\n".join(lines))
    if isinstance(obj, type) and issubclass(obj, enum.Enum):
        said = meanings(obj).items()
        lines += [f"- ``{member}``{f': {rst_inline(meaning)}' if meaning else ''}" for member, meaning in said] + [""]


def shorten_signature(
    app: Any, what: str, name: str, obj: Any, options: Any, signature: str | None, returns: str | None
) -> tuple[str | None, str | None]:
    """Nobody calls an enum; and that covey's dataclasses take keywords alone is said once, on the API's first page.

    A module of nnx hides its arguments behind the class that makes it, so those of `__init__` are shown.
    """
    if isinstance(obj, type) and issubclass(obj, enum.Enum):
        return "", None
    if isinstance(obj, type) and issubclass(obj, nnx.Module):
        return stringify_signature(sphinx_signature(obj.__init__, bound_method=True), unqualified_typehints=True), None
    if dataclasses.is_dataclass(obj) and signature:
        signature = re.sub(r"<factory>|<function [^,)]*", "...", signature)
        shorter = signature.replace("(*, ", "(", 1)
        return (shorter if is_readable(shorter) else signature), returns
    return signature, returns


def is_readable(signature: str) -> bool:
    """Whether Python can read it: not if a field with a default comes before one without."""
    try:
        ast.parse(f"def f{signature.replace('~', '')}: pass")
    except SyntaxError:
        return False
    return True


def setup(app: Any) -> dict[str, Any]:
    app.connect("autodoc-process-docstring", process)
    app.connect("autodoc-process-signature", shorten_signature)
    return {"parallel_read_safe": True}


# -------------------------------------------------------------------------------------------------------- Markdown


def to_markdown(docstring: str | None, *, equations: bool = False) -> str:
    """With `equations`, indented blocks are typeset as mathematics."""
    return "".join(f"{markdown_of(block, equations)}\n\n" for block in read_blocks(docstring))


def markdown_of(block: Block, equations: bool) -> str:
    inline = with_symbols if equations else markdown_inline
    if block.kind == "list":
        return "\n".join(f"- {inline(item)}" for item in block.items)
    if block.kind == "paragraph":
        return inline(block.text)
    if equations:
        return f"$$\n{typeset(dedented(block.lines))}\n$$"
    return "```text\n" + "\n".join(dedented(block.lines)) + "\n```"


def markdown_inline(text: str) -> str:
    parts = re.split(r"`([^`]+)`", text)
    return "".join(f"`{part}`" if i % 2 else re.sub(r"([*|<$])", r"\\\1", part) for i, part in enumerate(parts))


# ------------------------------------------------------------------------------------------------------- equations

SYMBOL = re.compile(r"(?<![\w`])([A-Zπμ]'?_[A-Za-zα-ω]+(?:\([^()]*\))?)")  # π_θ(a | o) in a sentence
LETTERS = {
    "ρ̄": r"\bar{\rho}", "c̄": r"\bar{c}", "⋯": r"\cdots",
    "α": r"\alpha", "γ": r"\gamma", "ε": r"\epsilon", "θ": r"\theta", "λ": r"\lambda", "μ": r"\mu", "π": r"\pi",
    "ρ": r"\rho", "φ": r"\phi", "∇": r"\nabla", "Σ": r"\sum", "∂": r"\partial", "H̄": r"\bar{H}", "ã": r"\tilde{a}",
    "−": "-", "·": r"\cdot", "≥": r"\ge", "≤": r"\le", "~": r"\sim", "²": "^2", "…": r"\dots", "×": r"\times",
}  # fmt: skip
OPERATORS = {"argmax": r"\arg\max", "log": r"\log", "max": r"\max", "min": r"\min"}


def with_symbols(text: str) -> str:
    parts = SYMBOL.split(text)
    return "".join(f"${typeset_line(part)}$" if i % 2 else markdown_inline(part) for i, part in enumerate(parts))


def typeset(lines: Sequence[str]) -> str:
    """Equations as docstrings write them, `L(θ) = −E[min(ρ A, …)]`, for MathJax."""
    parts = [part for line in lines for part in re.split(r" {3,}", line.strip())]  # one equation a row
    rows = [typeset_line(part) for part in parts]
    return "\\begin{gathered}\n" + " \\\\\n".join(rows) + "\n\\end{gathered}"


def typeset_line(line: str) -> str:
    line = line.replace(" | ", r" \mid ")
    line = re.sub(r"\bE\[", r"\\mathbb{E}[", line)
    line = re.sub(r"(?<!\\)\b(argmax|log|max|min)(?=\b|_)", lambda match: OPERATORS[match[1]] + " ", line)
    line = re.sub(r"(?<![\\a-z{])\b([a-z]{3,})(?=\()", r"\\operatorname{\1}", line)  # clip(…)
    line = re.sub(r"_([A-Za-z]{2,})", lambda match: rf"_{{\text{{{match[1]}}}}}", line)  # V_target
    line = re.sub(r"([_^])([A-Za-zα-ω]'?)", r"\1{\2}", line)
    for letter, command in LETTERS.items():
        line = line.replace(letter, command + (" " if command[-1:].isalpha() else ""))
    return line
