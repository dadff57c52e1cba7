"""The documentation builds without a warning, has a page for all that is registered, and needs no network."""

from __future__ import annotations

import ast
import dataclasses
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest
import yaml

import covey
from covey import registry
from covey.cli import VERBS
from covey.envs.base import make_env
from covey.errors import MissingExtra, UsageError
from covey.experiment.configuration.compose import compose
from covey.experiment.configuration.config import roles_in
from covey.launch.benchmark import make_benchmark
from covey.types import Continuous, Discrete

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "docs" / "_ext"))
from registry_pages import example_task, supported  # noqa: E402
from specs import from_plain, recorded_specs, to_plain  # noqa: E402


def test_site(tmp_path: Path) -> None:
    """One test, since workers of the suite would each build a site of their own."""
    site = build(tmp_path)
    check_all_that_is_registered_has_a_page(site)
    check_pages_load_nothing_from_elsewhere(site)
    check_what_pages_point_to_is_there(site)
    check_equations_are_typeset_by_a_copy_of_our_own(site)
    check_a_task_page_says_what_the_task_is(site)
    check_a_task_page_has_spaces_without_the_tasks_extra(site)
    check_pages_list_the_fields_that_may_change(site)
    check_sidebars_show_where_a_task_is(site)


def build(folder: Path) -> Path:
    """The site, from a copy of the sources, so that no page of an earlier build can stand in for a missing one."""
    shutil.copytree(ROOT / "docs", folder / "docs", ignore=shutil.ignore_patterns("generated", "__pycache__"))
    for name in ("results", "examples"):
        (folder / name).symlink_to(ROOT / name)
    command = [sys.executable, "-m", "sphinx", "-b", "html", "-W", "--keep-going", "-q", "-d", "cache", "docs", "site"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=560, env=os.environ)
    assert done.returncode == 0, done.stderr[-3_000:]
    return folder / "site"


class Links(HTMLParser):
    """What a page points to: links of readers, and what the browser loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.followed: list[str] = []
        self.loaded: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value for name, value in attrs if value}
        if "id" in values:
            self.anchors.add(values["id"])
        if tag == "a" and "href" in values:
            self.followed.append(values["href"])
        elif tag == "link" and values.get("rel") in ("stylesheet", "icon", "preload", "shortcut icon"):
            self.loaded.append(values["href"])
        elif "src" in values:
            self.loaded.append(values["src"])


def pages(site: Path) -> Iterator[tuple[Path, Links]]:
    for path in sorted(site.rglob("*.html")):
        if "_static" not in path.parts:
            yield path, Links(path.read_text(encoding="utf-8"))


def check_all_that_is_registered_has_a_page(site: Path) -> None:
    kinds = {"tasks": registry.tasks, "algorithms": registry.algorithms, "models": registry.models}
    wanted = [
        f"generated/{kind}/{entry.name}.html"
        for kind, entries in kinds.items()
        for entry in entries
        if entry.built_in  # other tests register things of their own
    ]
    assert len(wanted) > 150
    assert [name for name in wanted if not (site / name).is_file()] == []
    command_line = (site / "generated" / "reference" / "command-line.html").read_text(encoding="utf-8")
    assert all(f"covey {verb}" in command_line for verb in VERBS)


def check_pages_load_nothing_from_elsewhere(site: Path) -> None:
    elsewhere = {link for _, links in pages(site) for link in links.loaded if re.match(r"(https?:)?//", link)}
    assert elsewhere == set()
    styles = [path.read_text(encoding="utf-8") for path in (site / "_static").rglob("*.css")]
    assert not [style for style in styles if re.search(r"(@import|url\()\s*['\"]?(https?:)?//", style)]


def check_what_pages_point_to_is_there(site: Path) -> None:
    found = {path.resolve(): links for path, links in pages(site)}
    missing = set()
    for path, links in found.items():
        for link in [*links.followed, *links.loaded]:
            target, anchor = urldefrag(link)
            if re.match(r"\w+:|//", link):
                continue
            file = (path.parent / unquote(target.partition("?")[0])).resolve() if target else path
            if not file.exists() or (anchor and file in found and unquote(anchor) not in found[file].anchors):
                missing.add(f"{path.relative_to(site)}: {link}")
    assert missing == set()


def check_equations_are_typeset_by_a_copy_of_our_own(site: Path) -> None:
    page = (site / "generated" / "algorithms" / "mappo.html").read_text(encoding="utf-8")
    assert "\\mathbb{E}" in page and "_static/mathjax.js" in page
    assert (site / "_static" / "mathjax.js").stat().st_size > 1_000_000


def check_a_task_page_says_what_the_task_is(site: Path) -> None:
    page = (site / "generated" / "tasks" / "vmas" / "navigation.html").read_text(encoding="utf-8")
    for text in ("lidar_range", "3", "18", "acts at random", "navigation.png", "sum of the agent"):
        assert text in page


def check_a_task_page_has_spaces_without_the_tasks_extra(site: Path) -> None:
    page = (site / "generated" / "tasks" / "mabrax" / "hopper_3x1.html").read_text(encoding="utf-8")
    for text in ("1 number in [-1, 1]", "at most 1,000 steps", "the extra", "acts at random", "hopper_3x1.png"):
        assert text in page


def check_pages_list_the_fields_that_may_change(site: Path) -> None:
    """While a run trains, and when it is resumed; the names as the command line takes them."""
    changeable, resumable = set[str](), set[str]()
    for words in (*([f"algorithm={entry.name}"] for entry in registry.algorithms if entry.built_in), ["actors=local"]):
        for path, role, _ in roles_in(compose(words)):
            typed = re.sub(r"^experiment\.(buffer|actors)\.", r"\1.", path)
            changeable |= {typed} if role.changeable else set()
            resumable |= {typed} if role.resumable else set()
    assert {"algorithm.minibatch_size", "buffer.batch_size"} <= changeable
    assert {"experiment.frames", "actors.num", "jit"} <= resumable
    for page, fields in {"hooks-and-callbacks": changeable, "resuming": resumable}.items():
        text = (site / "how-to" / f"{page}.html").read_text(encoding="utf-8")
        assert [field for field in fields if f">{field}<" not in text] == []


def check_sidebars_show_where_a_task_is(site: Path) -> None:
    """They are shared by the tasks of a suite (docs/_ext/sidebars.py)."""
    for suite, title in titles(short=False).items():
        pages = sorted(path for path in (site / "generated" / "tasks" / suite).glob("*.html") if path.stem != "index")
        here = f'<li class="toctree-l2 current active"><a class="reference internal" href="index.html">{title}</a>'
        assert pages and [path.name for path in pages if here not in path.read_text(encoding="utf-8")] == []


def test_an_algorithms_page_says_what_it_declares() -> None:
    """The example's actions are the task's own, which the algorithm can choose, whatever its description says."""
    kinds = {"vmas/navigation": registry.ActionKind.continuous, "smax/2s3z": registry.ActionKind.discrete}
    for name, kind in kinds.items():
        actions = {type(group.action) for group in make_env(name).spec.groups.values()}
        assert actions == {Continuous if kind is registry.ActionKind.continuous else Discrete}
    for entry in registry.algorithms:
        assert kinds[example_task(dataclasses.replace(entry, description=""))] in entry.capabilities.actions
    assert supported(registry.algorithms["pqn"].capabilities) == (
        "Agents choose one discrete choice per agent. Models may have memory. Evaluations take the best actions."
    )
    assert supported(registry.Capabilities(memory=False)) == (
        "Agents choose one discrete choice per agent, several discrete choices per agent or continuous actions. "
        "Models have no memory. Evaluations sample actions, unless all are continuous."
    )


def test_recorded_specs_are_of_all_tasks_that_need_an_extra() -> None:
    mabrax = {entry.name for entry in registry.tasks if entry.name.startswith("mabrax/")}
    specs = recorded_specs()
    assert specs.keys() == mabrax
    ant = specs["mabrax/ant_4x2"].groups["agents"]  # four legs with a hip and an ankle each
    assert (ant.num_agents, ant.action.size) == (4, 2)
    assert all(from_plain(to_plain(spec)) == spec for spec in specs.values())
    if importlib.util.find_spec("brax") is None:
        with pytest.raises(MissingExtra):
            make_env("mabrax/ant_4x2")


@pytest.mark.skipif(importlib.util.find_spec("brax") is None, reason="needs the extra 'mabrax'")
def test_recorded_specs_are_those_of_the_tasks() -> None:
    for name, recorded in recorded_specs().items():
        assert to_plain(make_env(name).spec) == to_plain(recorded)


TEXTS = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "how-to").glob("*.md")]


def commands() -> Iterator[tuple[str, str]]:
    """Every line of the documents that a shell would run, with lines that go on joined, and its file."""
    for path in sorted(TEXTS):
        for block in re.findall(r"```sh\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL):
            yield from ((path.name, line) for line in re.sub(r"\\\n\s*", "", block).splitlines())


def test_brackets_are_quoted_in_commands() -> None:
    """zsh would take them for patterns."""
    bare = [(name, re.sub(r"'[^']*'|\"[^\"]*\"|#.*", "", line)) for name, line in commands()]
    assert [(name, line) for name, line in bare if "[" in line or "{" in line] == []


OWN = re.compile(r"my_|mine/|custom_|\$|=runs/|…")  # needs files of its reader's, or those of tests/test_examples.py


def api_reference() -> set[str]:
    """What the pages of the API document, by its full name."""
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "api").glob("*.md")]
    return {name for text in texts for name in re.findall(r"^\.\. auto\w+:: ([\w.]+)$", text, re.MULTILINE)}


DOCUMENTED = ("algorithms", "data", "loops", "networks", "ops")  # all of their modules are in the API reference
MODULES = sorted(
    path for folder in DOCUMENTED for path in (ROOT / "src" / "covey" / folder).glob("*.py") if path.stem != "__init__"
)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: f"{path.parent.name}.{path.stem}")
def test_a_module_is_in_the_api_reference_with_all_that_is_public(path: Path) -> None:
    """A function or class without a docstring would be left out of the page."""
    assert f"covey.{path.parent.name}.{path.stem}" in api_reference()
    public = [
        node
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_")
    ]
    assert [node.name for node in public if not ast.get_docstring(node)] == []


@pytest.mark.parametrize("name", sorted({*covey.__all__} - {"__version__"}))
def test_what_the_package_offers_is_in_the_api_reference(name: str) -> None:
    elsewhere = {"report": "covey.report.from_python.report"}  # `covey.report` itself is a package
    assert elsewhere.get(name, f"covey.{name}") in api_reference()


def test_commands_are_what_covey_takes() -> None:
    checked = 0
    for name, line in commands():
        words = shlex.split(line, comments=True)
        if words[:2] not in (["covey", "train"], ["covey", "benchmark"]) or OWN.search(line.partition("run_dir")[0]):
            continue
        try:
            compose(words[2:]) if words[1] == "train" else make_benchmark(words[2:])
        except UsageError as error:
            pytest.fail(f"{name}: {line}: {error}")
        checked += 1
    assert checked > 25


README = (ROOT / "README.md").read_text(encoding="utf-8")
DENIALS = re.compile(r"\b(?:not|no|never|without|lacks?)\b")


def titles(*, short: bool = True) -> dict[str, str]:
    """What each suite is called, such as `Melting Pot`, by the suite; `short`: without what is in parentheses."""
    about = yaml.safe_load((ROOT / "docs" / "suites.yaml").read_text(encoding="utf-8"))
    suites = {entry.name.partition("/")[0] for entry in registry.tasks if entry.built_in}
    found = {suite: about[suite]["title"] for suite in sorted(suites)}
    return {suite: re.sub(r" \(.*\)$", "", title) if short else title for suite, title in found.items()}


def denied(text: str) -> list[str]:
    """The suites in sentences of a text that deny something."""
    sentences = re.split(r"(?<=[.:;])\s+", " ".join(text.split()))
    return [title for title in titles().values() for part in sentences if title in part and DENIALS.search(part)]


def test_the_readme_names_what_is_registered() -> None:
    algorithms = [entry.name for entry in registry.algorithms if entry.built_in]
    assert len(algorithms) > 10
    assert [name for name in algorithms if not re.search(rf"\b{name}\b", README, re.IGNORECASE)] == []
    assert [name for name in titles().values() if name.lower() not in README.lower()] == []


def test_the_readme_denies_no_suite() -> None:
    assert denied("It has more simulators, among them SMACv2 and\nMelting Pot, which covey does not run.") == [
        "Melting Pot",
        "SMACv2",
    ]
    assert denied(README) == []


def test_the_readme_is_short_and_its_links_are_there() -> None:
    text = README
    assert len(text.encode()) < 8_500
    links = [link for link in re.findall(r"\]\(([^)]+)\)", text) if "://" not in link]
    assert links and [link for link in links if not (ROOT / link).exists()] == []
