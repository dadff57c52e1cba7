"""Writes docs/generated/: a page for every suite, task, algorithm, model, preset and verb, out of the registries.

What is registered has a page, so none can be missing. What a page says is read where the program reads it: names and
descriptions from the registries, fields from the dataclasses and their comments (`covey.fields`), spaces from a task's
spec, random and published returns from anchors.json, covey's own results from results/, text from module docstrings.

    tasks/SUITE/NAME.md   algorithms/NAME.md   models/NAME.md   reference/{experiment,presets,command-line,metrics}.md
    lists/{changeable,resumable}.md   parts of written pages, which include them
"""

from __future__ import annotations

import dataclasses
import functools
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml
from docstrings import markdown_inline, to_markdown
from specs import recorded_specs

import covey
from covey import cli, metrics, registry
from covey.errors import CoveyError, MissingExtra
from covey.experiment.configuration.compose import compose, list_presets, list_settings
from covey.experiment.configuration.config import Config, HooksConfig, plain, roles_in, yaml_text
from covey.experiment.configuration.explain import top_fields
from covey.fields import Field, fields_of
from covey.types import ActionSpec, Continuous, Discrete, EnvSpec, MultiDiscrete, ObservationShape

HERE = Path(__file__).parents[1]
ROOT = HERE.parent
Page = tuple[str, str]  # its path below docs/generated, and its text


def make_pages() -> Iterator[Page]:
    yield from task_pages()
    yield from algorithm_pages()
    yield from model_pages()
    yield "reference/experiment.md", experiment_page()
    yield "reference/presets.md", presets_page()
    yield "reference/command-line.md", command_line_page()
    yield "reference/metrics.md", metrics_page()
    yield "lists/changeable.md", changeable_list()
    yield "lists/resumable.md", resumable_list()


# ----------------------------------------------------------------------------------------------------------- tasks


def task_pages() -> Iterator[Page]:
    suites: dict[str, list[registry.Entry]] = {}
    for entry in registry.tasks:
        suites.setdefault(entry.name.partition("/")[0], []).append(entry)
    about = yaml.safe_load((HERE / "suites.yaml").read_text(encoding="utf-8"))
    for suite in suites:
        if suite not in about:
            raise CoveyError(f"docs/suites.yaml says nothing about the suite '{suite}'")
    suites = {suite: suites[suite] for suite in about if suite in suites}  # in the order of that file
    yield "tasks/index.md", tasks_index(suites, about)
    for suite, entries in suites.items():
        yield f"tasks/{suite}/index.md", suite_page(suite, entries, about[suite])
        for entry in entries:
            yield f"tasks/{entry.name}.md", task_page(entry)


def tasks_index(suites: dict[str, list[registry.Entry]], about: dict[str, Any]) -> str:
    number = sum(map(len, suites.values()))
    compiled = sum(not entry.host for entries in suites.values() for entry in entries)
    text = f"# Tasks\n\n{number} tasks in {len(suites)} suites, {compiled} of them compiled. The others are simulators "
    text += "that [covey steps in processes](../../how-to/simulators.md). A task is named `SUITE/NAME`; "
    text += "`covey list tasks` prints the names, and `covey list tasks rware` those that match.\n\n"
    text += "::::{grid} 2 2 3 4\n:gutter: 2\n\n"
    for suite, entries in suites.items():
        text += f":::{{grid-item-card}} {about[suite]['title']}\n:link: {suite}/index\n:link-type: doc\n"
        text += ":class-card: gallery\n"
        drawn = [entry.name for entry in entries if picture(entry.name)]
        if drawn:
            text += f":img-top: {picture(preferred(drawn, about[suite]), depth=2)}\n"
        text += f"\n`{suite}/`: {count(len(entries), 'task')}. {about[suite]['short']}\n:::\n\n"
    return text + "::::\n\n" + toctree((f"{suite}/index" for suite in suites), hidden=True)


def preferred(drawn: Sequence[str], about: dict[str, Any]) -> str:
    return about.get("picture", drawn[0])


def suite_page(suite: str, entries: Sequence[registry.Entry], about: dict[str, Any]) -> str:
    text = f"# {about['title']}\n\n{about['about'].strip()}\n\n"
    rows = []
    for entry in entries:
        name = entry.name.partition("/")[2]
        image = f"![]({picture(entry.name, depth=3)}){{height=80px}}" if picture(entry.name) else ""
        rows.append([f"[`{entry.name}`]({name}.md)", markdown_inline(entry.description), image])
    head = ["task", "what it is about"] + (["picture"] if any(row[2] for row in rows) else [])
    text += table(head, [row[: len(head)] for row in rows])
    return text + toctree((entry.name.partition("/")[2] for entry in entries), hidden=True)


def task_page(entry: registry.Entry) -> str:
    text = f"# {entry.name}\n\n{sentence(markdown_inline(entry.description))}\n\n"
    if picture(entry.name):
        text += f"```{{image}} {picture(entry.name, depth=3)}\n:alt: {entry.name} after some steps at random\n"
        text += ":class: task\n```\n\n"
    text += f"```sh\ncovey train task={entry.name} algorithm=mappo\n```\n\n"
    text += tuned_settings(entry.name)
    config = entry.defaults()
    text += about_task(entry, config)
    spec = read_spec(entry)
    if isinstance(spec, EnvSpec):
        text += spaces(spec)
    else:
        text += (
            f"## Spaces\n\nNot known where this page was built: {sentence(markdown_inline(spec), capital=False)}\n\n"
        )
    text += returns_section(entry.name, spec if isinstance(spec, EnvSpec) else None)
    text += f"## Fields\n\nSet as `task.FIELD=value`.\n\n{fields_table(fields_of(config, ''))}"
    return text


def tuned_settings(task: str) -> str:
    """Which algorithms have settings that are known to learn this task."""
    found = [settings.algorithm for settings in known_settings() if settings.task == task]
    if not found:
        return ""
    names = ", ".join(f"`algorithm={name}`" for name in found)
    return f"There are [settings that learn it](../../../how-to/presets.md), `settings=tuned`, for {names}.\n\n"


def about_task(entry: registry.Entry, config: Any) -> str:
    """The docstring of the module that the task comes from; a probe's own docstring."""
    make = entry.make_function()
    if isinstance(make, type) and make.__module__ == "covey.envs.probes":
        return to_markdown(make.__doc__)
    return to_markdown(sys.modules[type(config).__module__].__doc__) + to_markdown(own_docstring(config))


def own_docstring(config: Any) -> str:
    """That of a configuration's class, unless dataclasses made it or it only lists names."""
    docstring = type(config).__doc__ or ""
    written = docstring[:1].isupper() and not docstring.startswith(f"{type(config).__name__}(")
    return docstring if written else ""


def read_spec(entry: registry.Entry) -> EnvSpec | str:
    """Of a task whose package is not installed, the recorded one, or what to install."""
    try:
        return (covey.make_simulator if entry.host else covey.make_env)(entry.name).spec
    except MissingExtra as missing:
        return recorded_specs().get(entry.name, str(missing))
    except CoveyError as error:  # a task that needs a field, such as which environment it is
        return str(error)


def spaces(spec: EnvSpec) -> str:
    rows = [
        [
            f"`{name}`",
            str(group.num_agents),
            shapes(group.observation_shape),
            describe_action(group.action),
            "shared" if group.shared_reward else "individual",
        ]
        for name, group in spec.groups.items()
    ]
    text = "## Spaces\n\n" + table(["group", "agents", "observation of each", "action of each", "reward"], rows)
    state = describe_state(spec.state_shape)
    text += f"Global state: {state}. An episode has at most {spec.time_limit:,} steps.\n\n"
    if len(spec.cooperating) > 1:
        teams = " against ".join(" and ".join(f"`{group}`" for group in team) for team in spec.cooperating)
        text += f"Teams: {teams}. `mean_return` is that of the first.\n\n"
    return text


def shapes(observation: ObservationShape) -> str:
    """Of an array, or of each entry of a dictionary."""
    if isinstance(observation, Mapping):
        return ", ".join(f"`{name}`: `{shape(observation[name])}`" for name in sorted(observation))
    return f"`{shape(observation)}`"


def describe_state(state: ObservationShape | None) -> str:
    if not state:
        return "none"
    return shapes(state) if isinstance(state, Mapping) else f"a vector of {shape(state)}"


def describe_action(action: ActionSpec) -> str:
    match action:
        case Discrete():
            return f"one of {action.num_actions}"
        case MultiDiscrete():
            return " × ".join(f"one of {number}" for number in action.num_actions)
        case Continuous():
            low, high = min(action.low), max(action.high)
            return f"{count(action.size, 'number')} in [{low:g}, {high:g}]"


def returns_section(name: str, spec: EnvSpec | None) -> str:
    anchor = anchors()["tasks"].get(name)
    text = "## Returns\n\n"
    if spec is not None and spec.returns:
        text += f"An agent's return: {sentence(markdown_inline(spec.returns), capital=False)}\n\n"
    if spec is not None and spec.metrics:
        text += "The task measures episodes in other ways too:\n\n"
        text += table(
            ["metric", "of an episode", "unit", "better"],
            [
                [f"`{name}`", metric.reduction, metric.unit, "higher" if metric.higher_is_better else "lower"]
                for name, metric in spec.metrics.items()
            ],
        )
    if anchor is None:
        text += "No random or published returns are recorded for this task.\n\n"
    else:
        text += random_return(anchor["random"]) + published_table(anchor["published"])
    return text + own_results(name)


def random_return(random: dict[str, Any] | None) -> str:
    if not random:
        return ""
    mean, interval = random["mean_return"], random["interval_95"]
    text = f"A team that acts at random earns a `mean_return` of **{mean:.4g} ± {interval:.2g}** "
    text += f"(95% interval over {random['episodes']:,} episodes)"
    others = [f"`{name}` {value:.4g}" for name, value in random.get("others", {}).items()]
    return f"{text}; {', '.join(others)}.\n\n" if others else f"{text}.\n\n"


def published_table(published: Sequence[dict[str, Any]]) -> str:
    shown = [entry for entry in published if entry["algorithm"] != "random"]
    if not shown:
        return ""
    sources = anchors()["sources"]
    rows, used = [], {}
    for entry in sorted(shown, key=lambda entry: (entry["metric"], -entry["value"])):
        source = sources[entry["source"]]
        number = used.setdefault(entry["source"], len(used) + 1)
        frames = entry.get("frames", source["frames"])
        note = entry.get("note", "") if entry.get("comparable", True) else f"not comparable: {entry.get('note', '')}"
        rows.append(
            [
                markdown_inline(entry["algorithm"]),
                f"`{entry['metric']}`",
                f"{entry['value']:g}",
                f"{frames:,}" if frames else "",
                str(number),
                markdown_inline(note.removesuffix(": ")),
            ]
        )
    text = "Published results and known bounds:\n\n"
    text += table(["algorithm", "metric", "value", "frames", "source", "note"], rows)
    for name, number in used.items():
        source = sources[name]
        text += f"{number}. {markdown_inline(source['title'])}: {markdown_inline(source['definition'])}\n"
    return text + "\n"


def own_results(task: str) -> str:
    found = [result for result in results() if result["task"] == task]
    if not found:
        return ""
    rows = [
        [
            f"{result['algorithm']}, {result['model']}" + (f", {result['label']}" if result.get("label") else ""),
            f"`{result['metric']}`",
            f"{result['mean']:.4g} ± {result['interval_95']:.2g}",
            f"{result['frames']:,}",
            str(len(result["seeds"])),
        ]
        for result in found
    ]
    text = "covey's own results, absolute metric with its 95% interval over seeds:\n\n"
    text += table(["algorithm, model", "metric", "mean", "frames", "seeds"], rows)
    text += ":::{dropdown} Commands\n```sh\n" + "\n".join(result["command"] for result in found) + "\n```\n:::\n\n"
    return text


@functools.cache
def known_settings() -> tuple[Any, ...]:
    """Read once: reading takes a tenth of a second, and every task's page asks."""
    return tuple(list_settings())


@functools.cache
def anchors() -> dict[str, Any]:
    return json.loads((files("covey") / "anchors.json").read_text(encoding="utf-8"))


@functools.cache
def results() -> tuple[dict[str, Any], ...]:
    read = [json.loads(path.read_text(encoding="utf-8")) for path in sorted((ROOT / "results").glob("*.json"))]
    return tuple(result for result in read if "curves" in result)


def picture(name: str, depth: int = 0) -> str | None:
    """Its path from a page `depth` folders below docs/, or None."""
    path = f"pictures/{name}.png"
    return "../" * depth + path if (HERE / path).exists() else None


# ------------------------------------------------------------------------------------------- algorithms and models


def algorithm_pages() -> Iterator[Page]:
    entries = list(registry.algorithms)
    rows = [[f"[`{entry.name}`]({entry.name}.md)", entry.loop, markdown_inline(entry.description)] for entry in entries]
    text = "# Algorithms\n\nEach page has the equations, every field, and the differences from the papers.\n\n"
    text += table(["algorithm", "loop", "what it is"], rows)
    text += "Algorithms of one file differ in the fields that their names set. A group of agents may have its own: "
    text += "`algorithm.groups.adversary=ippo`.\n\n"
    yield "algorithms/index.md", text + toctree((entry.name for entry in entries), hidden=True)
    for entry in entries:
        yield f"algorithms/{entry.name}.md", algorithm_page(entry)


def algorithm_page(entry: registry.Entry) -> str:
    config = entry.defaults()
    module = type(config).__module__
    text = f"# {entry.name}\n\n{sentence(markdown_inline(entry.description))}\n\n"
    text += f"```sh\ncovey train algorithm={entry.name} task={example_task(entry)}\n```\n\n"
    body = to_markdown(sys.modules[module].__doc__, equations=True)
    body = re.sub(r"^(Differences from the papers?):$", r"## \1", body, flags=re.MULTILINE)
    siblings = [other.name for other in registry.algorithms if type(other.defaults()) is type(config)]
    text += f"## Equations\n\n{body}## Fields\n\n"
    if len(siblings) > 1:
        text += (
            f"{', '.join(f'`{name}`' for name in siblings)} have the same fields; they differ in these defaults:\n\n"
        )
        text += table(["field", *(f"`{name}`" for name in siblings)], differing(siblings))
    text += f"Set as `algorithm.FIELD=value`.\n\n{fields_table(fields_of(config, ''))}"
    text += f"{supported(entry.capabilities)}\n\n"
    text += f"Trained by the `{entry.loop}` loop, whose fields are [the experiment's](../reference/experiment.md). "
    return text + f"The code is one file: `src/{module.replace('.', '/')}.py`.\n"


def supported(capabilities: registry.Capabilities) -> str:
    """What an algorithm declares, in sentences."""
    *others, last = (kind.value for kind in capabilities.actions)
    text = f"Agents choose {' or '.join([', '.join(others), last] if others else [last])}. "
    text += f"Models {'may have' if capabilities.memory else 'have no'} memory. "
    if capabilities.evaluates_greedily:
        return text + "Evaluations take the best actions."
    return text + "Evaluations sample actions, unless all are continuous."


def differing(names: Sequence[str]) -> list[list[str]]:
    configs = [plain(registry.algorithms[name].defaults()) for name in names]
    return [
        [f"`{field}`", *(f"`{in_yaml(config[field])}`" for config in configs)]
        for field in configs[0]
        if len({json.dumps(config[field]) for config in configs}) > 1
    ]


def example_task(entry: registry.Entry) -> str:
    """A task whose kind of actions the algorithm can choose, its own rather than VMAS's made discrete."""
    return "vmas/navigation" if registry.ActionKind.continuous in entry.capabilities.actions else "smax/2s3z"


def model_pages() -> Iterator[Page]:
    entries = list(registry.models)
    rows = [[f"[`{entry.name}`]({entry.name}.md)", markdown_inline(entry.description)] for entry in entries]
    text = "# Models\n\nA model turns observations into features; covey adds the head that an actor, a critic or a "
    text += "Q-function needs. The critic's model is the actor's unless `critic_model=` names another.\n\n"
    text += table(["model", "what it is"], rows)
    yield "models/index.md", text + toctree((entry.name for entry in entries), hidden=True)
    for entry in entries:
        yield f"models/{entry.name}.md", model_page(entry)


def model_page(entry: registry.Entry) -> str:
    config = entry.defaults()
    text = f"# {entry.name}\n\n{sentence(markdown_inline(entry.description))}\n\n"
    text += f"```sh\ncovey train model={entry.name}\n```\n\n"
    text += to_markdown(own_docstring(config))
    module = sys.modules[type(config).__module__]
    text += to_markdown(module.__doc__)
    takes = "may be" if entry.takes_dictionaries else "must not be"
    text += f"Observations {takes} [dictionaries of arrays](../../how-to/own-task.md#observations-as-dictionaries).\n\n"
    text += "## Fields\n\nSet as `model.FIELD=value`, for the critic alone as `critic_model.FIELD=value`.\n\n"
    text += fields_table(fields_of(config, ""))
    return text + f"The code is in `src/{module.__name__.replace('.', '/')}.py`.\n"


# ------------------------------------------------------------------------------------------------------- reference


def experiment_page() -> str:
    text = "# The experiment's fields\n\nWhat `covey train` takes besides the fields of the algorithm, task and model. "
    text += "`covey show` prints all of them with their values, `covey help FIELD` explains one.\n\n## Top level\n\n"
    text += fields_table(field for field in top_fields(default_config()) if field.name != "hooks")
    for loop in registry.loops:
        users = ", ".join(
            f"[`{entry.name}`](../algorithms/{entry.name}.md)"
            for entry in registry.algorithms
            if entry.loop == loop.name
        )
        config = loop.defaults()
        text += f"## The {loop.name} loop\n\n{to_markdown(type(config).__doc__)}"
        text += f"For {users}.\n\n" if users else f"Chosen by `experiment.loop={loop.name}`.\n\n"
        text += fields_table(fields_of(config, "experiment"))
    text += f"## Hooks\n\n{to_markdown(HooksConfig.__doc__)}{fields_table(fields_of(HooksConfig(), 'hooks'))}"
    return text


def default_config(*words: str) -> Config:
    return compose(words)


def presets_page() -> str:
    text = "# Presets\n\n## Experiments\n\nChosen as `experiment=NAME`; an algorithm's own file is applied on top.\n\n"
    for name, description in list_presets().items():
        text += preset("experiment", name, description)
    text += "## Settings that learn\n\nChosen as `settings=tuned`, found by task and algorithm.\n\n"
    rows = [[f"`{item.task}`", f"`{item.algorithm}`", item.tuning, f"`{item.result}`"] for item in known_settings()]
    text += table(["task", "algorithm", "tuning", "result"], rows)
    text += "## Benchmarks\n\nChosen as `covey benchmark benchmark=NAME`.\n\n"
    for name, description in list_presets("benchmark").items():
        text += preset("benchmark", name, description)
    return text


def preset(kind: str, name: str, description: str) -> str:
    folder = files("covey") / "experiment" / "configuration" / "presets" / kind
    own = [path.name for path in folder.iterdir() if path.name.startswith(f"{name}_")]
    others = [other for other in list_presets(kind) if other != name and other.startswith(f"{name}_")]
    shown = [f"{name}.yaml", *sorted(file for file in own if file.removesuffix(".yaml") not in others)]
    text = f"### {name}\n\n{sentence(markdown_inline(description))}\n\n:::{{dropdown}} {', '.join(shown)}\n"
    for file in shown:
        text += f"```yaml\n# {file}\n{(folder / file).read_text(encoding='utf-8').strip()}\n```\n\n"
    return text + ":::\n\n"


def command_line_page() -> str:
    text = f"# The command line\n\n```text\n{cli.HELP}```\n\n"
    text += "Brackets mean something to some shells, so quote them: `'algorithms=[ippo,mappo]'`.\n\n"
    for name, verb in cli.VERBS.items():
        text += f"## covey {name}\n\n```text\n{verb.help}```\n\n"
    return text


def metrics_page() -> str:
    rows = [[f"`{name}`", markdown_inline(meaning)] for name, meaning in metrics.DESCRIPTIONS.items()]
    text = "# Metrics\n\nThe names that all runs have in `metrics.jsonl` and in every logger. What an update gives is "
    text += "under its group: `agents/entropy`. A task declares its own metrics beside these.\n\n"
    return text + table(["name", "meaning"], rows)


# ------------------------------------------------------------------------------------------- parts of written pages


def changeable_list() -> str:
    """The fields that callbacks may change though they set shapes, with the algorithms that have them."""
    owners: dict[tuple[str, ...], list[str]] = {}
    for entry in registry.algorithms:
        config = default_config(f"algorithm={entry.name}")
        names = tuple(as_typed(path) for path, role, _ in roles_in(config) if role.changeable)
        owners.setdefault(names, []).append(entry.name)
    rows = [[code_list(names), code_list(algorithms)] for names, algorithms in owners.items() if names]
    return table(["fields", "of"], rows)


def resumable_list() -> str:
    """The fields that `covey resume` may change, of all loops, with their meaning."""
    fields = {field.path: field for field in top_fields(default_config())}
    for loop in registry.loops:
        fields |= {field.path: field for field in fields_of(loop.defaults(), "experiment")}
    rows = [
        [f"`{as_typed(path)}`", markdown_inline(field.explanation)]
        for path, field in fields.items()
        if field.role.resumable
    ]
    return table(["field", "meaning"], rows)


def as_typed(path: str) -> str:
    """A field's path as the command line takes it."""
    return re.sub(r"^experiment\.(buffer|actors)\.", r"\1.", path)


def code_list(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


# ---------------------------------------------------------------------------------------------------------- pieces


def fields_table(fields: Iterable[Field]) -> str:
    rows = []
    for field in fields:
        if dataclasses.is_dataclass(field.value):
            value = f"`{field.value.name}`" if hasattr(field.value, "name") else ""
        else:
            value = f"`{in_yaml(field.value)}`"
        rows.append([f"`{field.path}`", value, explain(field)])
    return table(["field", "default", "meaning"], rows) if rows else "None.\n\n"


def explain(field: Field) -> str:
    said = markdown_inline(field.explanation)
    if field.choices:
        choices = [f"`{name}`" + (f": {markdown_inline(text)}" if text else "") for name, text in field.choices.items()]
        return "<br>".join(filter(None, [said, *choices]))
    limit = f" ({markdown_inline(field.limit)})" if field.limit and field.limit not in field.explanation else ""
    return f"{said or sentence(field.takes)}{limit}"


def in_yaml(value: Any) -> str:
    return yaml_text([plain(value)]).strip().removeprefix("[").removesuffix("]")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(cell.replace(chr(10), ' ') for cell in line)} |\n" for line in lines) + "\n"


def toctree(pages: Iterable[str], *, hidden: bool = False) -> str:
    return "```{toctree}\n" + (":hidden:\n" if hidden else "") + "\n" + "\n".join(pages) + "\n```\n"


def sentence(text: str, *, capital: bool = True) -> str:
    text = text[:1].upper() + text[1:] if capital else text
    return text if text.endswith((".", "!", "?")) else f"{text}."


def count(number: int, word: str) -> str:
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def shape(sizes: Sequence[int]) -> str:
    return " × ".join(map(str, sizes))


# ---------------------------------------------------------------------------------------------------------- Sphinx


def write_pages(app: Any) -> None:
    """Leaves a page alone where it would not change, so that a second build reads only what did."""
    folder = Path(app.srcdir) / "generated"
    written = set()
    for name, text in make_pages():
        path = folder / name
        written.add(path)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    for path in set(folder.rglob("*.md")) - written:
        path.unlink()


def setup(app: Any) -> dict[str, Any]:
    app.connect("builder-inited", write_pages)
    return {"parallel_read_safe": True}
