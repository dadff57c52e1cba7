"""The sections of the report's page, each a function from the summary to markup; None where there is nothing to show.

Tables and text are complete without the script, which only draws the charts and makes the toolbar work.
"""

from __future__ import annotations

import base64
import contextlib
import math
import shlex
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from covey.experiment.console import format_seconds
from covey.report import text
from covey.report.benchmarks import STATES, Attempt, Benchmark
from covey.report.document import last
from covey.report.markup import Html, join, tag
from covey.report.pieces import (
    algorithm_cell,
    chart,
    command_box,
    estimate_cell,
    estimate_text,
    interval_picture,
    note,
    shaded_cell,
    swatch,
    table,
)
from covey.report.runs import Run
from covey.report.speeds import Speed, SpeedTable, speed_tables
from covey.report.statistics import Estimate
from covey.report.summary import Comparison, Cost, Curve, Final, Normalisation, Profile, ReportSummary, Scale
from covey.report.tables import (
    AGGREGATES,
    FAILED,
    SCORE_PLACES,
    describe_teams,
    failures,
    likely_ranks,
    mean_rank,
)

LARGEST_PICTURE = 4_000_000  # bytes
LARGEST_PICTURES = 40_000_000  # of all pictures
PROBLEMS_SHOWN = 8
NO_BREAK = "\u00a0"  # a space at which no line ends
SHOWN_PACKAGES = ("covey", "jax", "jaxlib", "numpy", "flax", "optax")


# ---------------------------------------------------------------------------------------------------- what was run


def overview(summary: ReportSummary | None, benchmarks: Sequence[Benchmark]) -> Html:
    attempts = [attempt for benchmark in benchmarks for attempt in benchmark.attempts]
    facts = [*(_facts(summary) if summary else []), *(_attempt_facts(attempts) if attempts else [])]
    boxes = [tag("div", tag("dt", name), tag("dd", value)) for name, value in facts]
    return join(
        tag("dl", boxes, class_="facts") if boxes else None,
        _failures(attempts),
        (_problems(summary), _machines(summary.runs)) if summary else None,
        [command_box(command, "The benchmark's command") for b in benchmarks for command in b.commands],
        _how_to_read(summary) if summary else None,
    )


def _facts(summary: ReportSummary) -> list[tuple[str, Html]]:
    runs = summary.runs
    seconds = [value for run in runs if (value := last(run.seconds)) is not None]
    frames = [value for run in runs if (value := last(run.frames)) is not None]
    seeds = [len(final.seeds) for final in summary.finals]
    facts = [
        ("Runs", _fact(f"{len(runs):,}", f"{text.span(seeds)} per algorithm and task")),
        ("Algorithms", _fact(str(len(summary.algorithms)), text.name_list(summary.algorithms, 4))),
        ("Tasks", _fact(str(len(summary.tasks)), text.name_list(summary.tasks, 3))),
    ]
    if frames:
        facts.append(("Frames per run", _fact(text.span(frames), f"{sum(frames):,.0f} in all")))
    if seconds:
        missing = len(runs) - len(seconds)
        without = f"; {text.count(missing, 'run')} without times" if missing else ""
        facts.append(("Time per run", _fact(_time_span(seconds), f"{format_seconds(sum(seconds))} in all{without}")))
    return facts


def _time_span(seconds: Sequence[float]) -> str:
    low, high = (format_seconds(value).replace(" ", NO_BREAK) for value in (min(seconds), max(seconds)))
    return low if low == high else f"{low} to {high}"


def _fact(value: str, detail: str) -> Html:
    return join(value, tag("small", detail))


def _attempt_facts(attempts: Sequence[Attempt]) -> list[tuple[str, Html]]:
    states = Counter(attempt.state for attempt in attempts)
    others = ", ".join(f"{states[state]} {state}" for state in STATES if states[state] and state != "done")
    return [("Planned experiments", _fact(f"{states['done']} of {len(attempts)} done", others or "all of them"))]


def _failures(attempts: Sequence[Attempt]) -> Html | None:
    failed = [attempt for attempt in attempts if attempt.state == "failed"]
    if not failed:
        return None
    items = [
        tag(
            "li",
            tag("b", f"{a.algorithm} on {a.task}, seed {a.seed}"),
            f": {a.error or 'no error recorded'} ",
            tag("code", a.log),
        )
        for a in failed
    ]
    return join(tag("h3", f"{len(failed)} failed", class_="bad"), tag("ul", items, class_="problems"))


def _problems(summary: ReportSummary) -> Html:
    items = [tag("li", tag("b", p.where), f": {p.what} ({p.why})") for p in summary.problems]
    if not items:
        return note("No problems found in the results.")
    shown = tag("ul", items[:PROBLEMS_SHOWN], class_="problems")
    rest = items[PROBLEMS_SHOWN:]
    more = tag("details", tag("summary", f"{len(rest)} more"), tag("ul", rest, class_="problems")) if rest else None
    return join(tag("h3", f"{text.count(len(items), 'thing')} to know about these results"), shown, more)


def _machines(runs: Sequence[Run]) -> Html | None:
    """Each distinct machine and its software with the commits and the number of runs."""
    commits: dict[tuple[str, ...], Counter[str]] = defaultdict(Counter)
    for environment in (run.environment for run in runs if run.environment):
        commits[_describe_machine(environment)][_describe_commit(environment)] += 1
    if not commits:
        return None
    columns = ("Device", "Cores", "System", "Python", "Packages", "Commits", "Runs")
    rows = [[*machine, "; ".join(filter(None, found)), found.total()] for machine, found in commits.items()]
    return join(tag("h3", "Where"), table(columns, rows, numbers=(1, 6)), _started(runs))


def _started(runs: Sequence[Run]) -> Html | None:
    dates = sorted({str(run.environment["started"]) for run in runs if run.environment.get("started")})
    if not dates:
        return None
    return note(f"Started between {dates[0]} and {dates[-1]}." if len(dates) > 1 else f"Started {dates[0]}.")


def _describe_machine(environment: Mapping[str, Any]) -> tuple[str, ...]:
    device, packages = _mapping(environment.get("device")), _mapping(environment.get("packages"))
    return (
        f"{device.get('number', '?')} × {device.get('kind', 'unknown')}",
        str(environment.get("cpu_count", "")),
        str(environment.get("platform", "")),
        str(environment.get("python", "")),
        ", ".join(f"{name} {packages[name]}" for name in SHOWN_PACKAGES if name in packages),
    )


def _describe_commit(environment: Mapping[str, Any]) -> str:
    commit = str(environment.get("git_commit") or "")[:10]
    return f"{commit}, modified" if commit and environment.get("git_dirty") else commit


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _how_to_read(summary: ReportSummary) -> Html:
    texts = (summary.final_text, summary.normalisation_text, summary.interval_text)
    body = [note(sentences) for sentences in (*texts, summary.curve_text, summary.test_text)]
    return tag("details", tag("summary", "How the numbers were made"), body)


# ---------------------------------------------------------------------------------------------- over all the tasks


def leaderboard(summary: ReportSummary) -> Html:
    if not summary.aggregates:
        return note("No task has runs of every algorithm, so there are no scores over tasks. See each task.")
    scale = [x for a in summary.aggregates for x in (a.iqm.value, a.iqm.low, a.iqm.high) if math.isfinite(x)]
    order = summary.ranking.algorithms if summary.ranking else summary.algorithms
    by_name = {aggregate.algorithm: aggregate for aggregate in summary.aggregates}
    rows = [
        [
            algorithm_cell(summary, name),
            *(estimate_cell(getattr(by_name[name], field), SCORE_PLACES, data_field=field) for _, field in AGGREGATES),
            interval_picture(summary, name, by_name[name].iqm, scale),
            _rank_cell(summary, name),
            by_name[name].num_runs,
        ]
        for name in order
        if name in by_name
    ]
    columns = ("Algorithm", *(name for name, _ in AGGREGATES), "IQM and interval", "Rank", "Runs")
    tasks = text.count(len(summary.aggregate_tasks), "task")
    return join(
        note(f"Over {tasks}: {text.name_list(summary.aggregate_tasks)}. {summary.normalisation_text}"),
        table(columns, rows, numbers=(1, 2, 3, 4, 6, 7), id_="scores"),
        note(
            "IQM is the mean of the middle half of all runs; the optimality gap is what is missing to a score of 1 "
            "(smaller is better). In brackets, 95% intervals. Ranks are those in 95% of the "
            "bootstrap's repetitions, with the mean over all of them."
        ),
        _few_seeds(summary),
        _failed_runs(summary),
        _rank_matrix(summary),
    )


def _rank_cell(summary: ReportSummary, name: str) -> Html:
    """`1 to 2`, and the mean beside it: that need not be between them."""
    ranks, mean = likely_ranks(summary, name), mean_rank(summary, name)
    if mean is None:
        return tag("td")
    value = text.number(mean.value, 2)
    shown = join(ranks, " ", tag("span", f"mean {value}", class_="range")) if ranks else join(value)
    return tag("td", shown, class_="number")


def _rank_matrix(summary: ReportSummary) -> Html | None:
    ranking = summary.ranking
    if ranking is None or ranking.probabilities is None or len(ranking.algorithms) < 2:
        return None
    rows = [
        [
            algorithm_cell(summary, name),
            *(shaded_cell(float(p), f"{p:.0%}", half=False) for p in ranking.probabilities[row]),
        ]
        for row, name in enumerate(ranking.algorithms)
    ]
    columns = ("Chance of rank", *(str(1 + rank) for rank in range(len(ranking.algorithms))))
    return tag(
        "details",
        tag("summary", "How certain the ranks are"),
        _few_seeds(summary),
        table(columns, rows, class_="matrix"),
    )


def _few_seeds(summary: ReportSummary) -> Html | None:
    return tag("p", summary.seeds_text, class_="note warning") if summary.seeds_text else None


def _failed_runs(summary: ReportSummary) -> Html | None:
    """Which runs failed, and how they count."""
    failed = failures(summary)
    if not failed:
        return None
    rule = "A run that failed counts by its last evaluations, or by the worst value on its task where it has none."
    return tag("p", f"{'. '.join(failed)}. {rule}", class_="note warning")


def curves(summary: ReportSummary) -> Html:
    task_curves = [curve for task in summary.task_curves for curve in (*task.by_frames, *task.by_seconds)]
    if not task_curves and not summary.curves_by_frames:
        return note("No run was evaluated during training: there are no curves.")
    if not summary.curves_by_frames:
        return note("No curve over all tasks can be drawn; each task has its own below.")
    label = f"IQM of normalised scores over training. At the end: {_ends(summary.curves_by_frames, SCORE_PLACES)}."
    return join(
        chart("efficiency", label),
        note(
            f"IQM of scores over {text.count(len(summary.aggregate_tasks), 'task')} and all seeds, with 95% "
            f"intervals of a stratified bootstrap. {summary.scale_text} Point at the chart, or "
            "select it and use the arrow keys, for values."
        ),
    )


def toolbar(summary: ReportSummary) -> Html:
    """What the charts show: the script makes it work, for all charts at once."""
    chips = [
        tag("button", swatch(index), name, type="button", class_="chip", data_algorithm=index, aria_pressed="true")
        for index, name in enumerate(summary.algorithms)
    ]
    axes = tag("fieldset", tag("legend", "over"), [_switch("x", unit, unit) for unit in ("frames", "seconds")])
    switches = [("logX", "log x"), ("logY", "log y"), ("seeds", "seeds"), ("references", "references")]
    if any(task.collected_by_frames for task in summary.task_curves):
        switches.append(("collected", "collected"))
    return tag(
        "div",
        tag("div", chips, class_="chips"),
        tag("div", axes, [_switch(name, label) for name, label in switches], class_="switches"),
        class_="toolbar",
        role="group",
        aria_label="What the charts show",
    )


def _switch(name: str, label: str, value: str | None = None) -> Html:
    kind = {"type": "radio", "name": name, "value": value} if value else {"type": "checkbox"}
    return tag("label", tag("input", **kind, data_switch=name), label)


def _ends(curves: Iterable[Curve], digits: int) -> str:
    """Where each curve ends, in words: the text alternative of a chart."""
    return "; ".join(
        f"{curve.algorithm} {text.number(float(curve.y.value[-1]), digits)} at {float(curve.x[-1]):,.0f}"
        for curve in curves
        if len(curve.x)
    )


def profiles(summary: ReportSummary) -> Html | None:
    if not summary.profiles:
        return None
    halves = "; ".join(f"{profile.algorithm} {_half_above(profile)}" for profile in summary.profiles)
    label = f"Share of runs above each score. Half of the runs come at least to: {halves}."
    return join(
        chart("profiles", label),
        note(
            "The share of runs with a score above τ: a curve further to the right and up is better. "
            f"{summary.scale_text}"
        ),
        _few_seeds(summary),
    )


def _half_above(profile: Profile) -> str:
    """The highest score that half of the runs are above."""
    reached = profile.thresholds[profile.share.value >= 0.5]
    return text.number(float(reached.max()), 2) if reached.size else text.UNDEFINED


def improvement(summary: ReportSummary) -> Html:
    if not summary.improvements:
        return note("There is no pair of algorithms to compare.")
    known = {(c.first, c.second): c.probability for c in summary.improvements}
    known |= {(c.second, c.first): _mirrored(c.probability) for c in summary.improvements}
    names = [name for name in summary.algorithms if any(name in pair for pair in known)]
    rows = [
        [algorithm_cell(summary, row), *(_improvement_cell(row, column, known) for column in names)] for row in names
    ]
    tests = [
        [
            c.first,
            c.second,
            len(c.tasks),
            estimate_cell(c.probability, 2),
            text.probability(c.p_value),
            text.probability(c.p_corrected),
        ]
        for c in summary.improvements
    ]
    columns = ("First", "Second", "Tasks", "P(first beats second)", "p", "p, corrected")
    return join(
        note(
            "How likely a run of the row's algorithm beats one of the column's on the same task, mean over the tasks "
            "that both have; 0.5 is a tie. In brackets, 95% intervals."
        ),
        table(("beats →", *names), rows, class_="matrix", id_="improvement-matrix"),
        _few_seeds(summary),
        tag(
            "details",
            tag("summary", "Tests of every pair"),
            note(summary.test_text),
            table(columns, tests, numbers=(2, 3, 4, 5)),
        ),
    )


def _improvement_cell(row: str, column: str, known: Mapping[tuple[str, str], Estimate]) -> Html:
    if (row, column) not in known:
        return tag("td", "–" if row == column else "not compared", class_="empty")
    estimate = known[row, column]
    return shaded_cell(estimate.value, estimate_text(estimate, 2), half=True)


def _mirrored(estimate: Estimate) -> Estimate:
    return Estimate(value=1 - estimate.value, low=1 - estimate.high, high=1 - estimate.low)


# ----------------------------------------------------------------------------------------------------- task by task


def tasks(summary: ReportSummary) -> Html:
    pictures = find_pictures(summary.runs)
    return join(_task(summary, index, pictures) for index in range(len(summary.tasks)))


def _task(summary: ReportSummary, index: int, pictures: Mapping[tuple[str, str], bytes | Path]) -> Html:
    task, scale, curves = summary.tasks[index], summary.scales[index], summary.task_curves[index]
    finals = [final for final in summary.finals if final.task == task]
    digits = text.places([final.mean.value for final in finals])
    label = f"{summary.metric} on {task} over training. At the end: {_ends(curves.by_frames, digits)}."
    return join(
        tag("h3", task, id=f"task-{index}"),
        _about_task(summary, scale),
        chart("task", label, index) if curves.by_frames or curves.by_seconds else note("No curves."),
        note(
            "These runs have few evaluations. The switch “collected” shows instead what they earned while they "
            "learned, at every iteration: with exploration, so mostly less."
        )
        if curves.collected_by_frames
        else None,
        _finals(summary, finals, digits),
        _groups(summary, task),
        _references(scale),
        _comparisons([c for c in summary.task_comparisons if c.tasks == (task,)]),
        _teams(summary, task, pictures),
    )


def _about_task(summary: ReportSummary, scale: Scale) -> Html | None:
    parts = []
    if scale.returns and summary.metric.endswith("return"):
        parts.append(f"Return: {scale.returns}.")
    if summary.options.normalisation is not Normalisation.none:
        parts.append(f"Score: {scale.text}.")
    return note(" ".join(parts)) if parts else None


def _finals(summary: ReportSummary, finals: Sequence[Final], digits: int) -> Html:
    values = [final.mean.value if summary.higher_is_better else -final.mean.value for final in finals]
    rows = [
        [
            algorithm_cell(summary, final.algorithm),
            estimate_cell(final.mean, digits, data_field="mean", best=len(finals) > 1 and value == max(values)),
            text.number(float(final.scores.mean()), SCORE_PLACES),
            ", ".join(
                f"{seed}:{NO_BREAK}{text.number(float(v), digits)}{FAILED if seed in final.failed else ''}"
                for seed, v in zip(final.seeds, final.values, strict=True)
            ),
            f"{final.episodes} ({'absolute metric' if final.of == 'absolute' else 'last evaluations'})",
        ]
        for final, value in zip(finals, values, strict=True)
    ]
    columns = ("Algorithm", summary.metric, "Score", "By seed", "Episodes per seed")
    failed = any(final.failed for final in finals)
    return join(
        table(columns, rows, numbers=(1, 2), class_="finals"),
        note(f"{FAILED} failed: by its last evaluations, or the worst value here where it has none.")
        if failed
        else None,
    )


def _groups(summary: ReportSummary, task: str) -> Html | None:
    """Each group's return, where groups oppose each other."""
    if task not in summary.teams:
        return None
    groups = [group for team in summary.teams[task] for group in team]
    known = {(final.algorithm, final.group): final.mean for final in summary.group_finals if final.task == task}
    digits = text.places([mean.value for mean in known.values()])
    rows = [
        [algorithm_cell(summary, name), *(estimate_cell(known.get((name, group)), digits) for group in groups)]
        for name in summary.algorithms
        if any((name, group) in known for group in groups)
    ]
    return join(
        note(
            f"Groups oppose each other: {describe_teams(summary.teams[task])}. Groups that learned against different "
            "opponents are hard to compare; ",
            tag("code", f"covey evaluate RUN opponents.{groups[-1]}=random"),
            " plays a run against fixed ones.",
        ),
        table(("Return of", *groups), rows, numbers=range(1, 1 + len(groups)), class_="groups"),
    )


def _references(scale: Scale) -> Html | None:
    if not scale.references:
        return None
    rows = [
        [
            r.algorithm,
            f"{r.value:g}",
            "" if r.frames is None else f"{r.frames:,}",
            join(r.source, tag("div", f"{r.definition}{f'; {r.note}' if r.note else ''}", class_="note")),
        ]
        for r in scale.references
    ]
    columns = ("Result", "Value", "Frames", "Source")
    heading = f"{text.count(len(rows), 'result')} to compare with (dashed lines)"
    return tag("details", tag("summary", heading), table(columns, rows, numbers=(1, 2)))


def _comparisons(comparisons: Sequence[Comparison]) -> Html | None:
    if not comparisons:
        return None
    rows = [
        [
            c.first,
            c.second,
            text.number(c.probability.value, 2),
            text.probability(c.p_value),
            text.probability(c.p_corrected),
            text.probability(c.smallest_p),
        ]
        for c in comparisons
    ]
    columns = ("First", "Second", "P(first beats second)", "p", "p, corrected", "Smallest possible p")
    return tag(
        "details", tag("summary", "Tests of every pair on this task"), table(columns, rows, numbers=(2, 3, 4, 5))
    )


def find_pictures(runs: Sequence[Run]) -> dict[tuple[str, str], bytes | Path]:
    """By task and algorithm, the first run's team.gif; only its path where the page would become too large."""
    pictures: dict[tuple[str, str], bytes | Path] = {}
    left = LARGEST_PICTURES
    for run in runs:
        key = (run.task, run.algorithm)
        path = None if run.folder is None else run.folder / "team.gif"
        if path is None or key in pictures or not path.is_file():
            continue
        with contextlib.suppress(OSError):  # a picture that cannot be read is no reason to have no page
            if path.stat().st_size > min(LARGEST_PICTURE, left):
                pictures[key] = path
            elif (content := path.read_bytes())[:6] in (b"GIF87a", b"GIF89a"):
                pictures[key] = content
                left -= len(content)
    return pictures


def _teams(summary: ReportSummary, task: str, pictures: Mapping[tuple[str, str], bytes | Path]) -> Html | None:
    here = [(name, pictures[task, name]) for name in summary.algorithms if (task, name) in pictures]
    figures = [_team(summary, task, name, picture) for name, picture in here if isinstance(picture, bytes)]
    large = [str(picture) for _, picture in here if isinstance(picture, Path)]
    return join(
        tag("div", figures, class_="teams") if figures else None,
        note("Pictures of teams that are too large for this page: ", tag("code", ", ".join(large))) if large else None,
    )


def _team(summary: ReportSummary, task: str, name: str, picture: bytes) -> Html:
    source = f"data:image/gif;base64,{base64.b64encode(picture).decode()}"
    image = tag("img", src=source, alt=f"A team trained by {name} playing an episode of {task}")
    return tag("figure", image, tag("figcaption", tag("span", swatch(summary.algorithms.index(name)), name)))


# ------------------------------------------------------------------------------------------------ cost and machines


def cost(summary: ReportSummary) -> Html | None:
    if not summary.costs:
        return None
    parts = ("compiling", "collecting", "updating", "training", "evaluating")
    known = [part for part in parts if any(getattr(cost, part) is not None for cost in summary.costs)]
    rows = [
        [
            cost.task,
            algorithm_cell(summary, cost.algorithm),
            *(_seconds(getattr(cost, part)) for part in known),
            *_rates(cost),
        ]
        for cost in summary.costs
    ]
    columns = ("Task", "Algorithm", *(part.capitalize() for part in known), "Frames", "Frames per second", "Device")
    unknown = [part for part in parts if part not in known]
    missing = f" These runs do not tell the time of {text.name_list(unknown)}." if unknown else ""
    return join(
        note(
            "Seconds of a run, mean over seeds. Training is collecting and updating, which are one compiled program; "
            f"frames per second are those of training.{missing}"
        ),
        table(columns, rows, numbers=range(2, 4 + len(known))),
    )


def _seconds(value: float | None) -> str:
    return "" if value is None else text.number(value, 1)


def _rates(cost: Cost) -> list[str]:
    rate = "" if cost.frames_per_second is None else text.number(cost.frames_per_second, 0)
    return [text.number(cost.frames, 0), rate, "; ".join(cost.devices)]


def speeds(speeds: Sequence[Speed]) -> Html | None:
    if not speeds:
        return None
    return join(
        note("Frames per second, as ", tag("code", "covey speed"), " measured them; in brackets what limits there."),
        [_speed_table(found) for found in speed_tables(speeds)],
        [_machine(speed) for speed in speeds],
    )


def _speed_table(speeds: SpeedTable) -> Html:
    return join(tag("h3", speeds.heading), table(speeds.columns, speeds.rows, numbers=range(1, len(speeds.columns))))


def _machine(speed: Speed) -> Html:
    return join(
        tag("h3", speed.name),
        note(f"{speed.about}. Measured with {speed.measured}."),
        tag("ul", [tag("li", finding) for finding in speed.findings], class_="problems"),
        command_box(f"covey train {speed.recommendation}", "Recommended") if speed.recommendation else None,
    )


# --------------------------------------------------------------------------------------------------------- reproduce


def reproduce(summary: ReportSummary, benchmarks: Sequence[Benchmark]) -> Html:
    """By task and algorithm: where its numbers were read, the commands, the configuration."""
    cells: dict[tuple[str, str], list[Run]] = {}
    for run in summary.runs:
        cells.setdefault((run.task, run.algorithm), []).append(run)
    return join(
        tag("details", tag("summary", f"{algorithm} on {task}"), _recipes(runs, benchmarks))
        for (task, algorithm), runs in sorted(cells.items(), key=lambda item: _place(summary, item[0]))
    )


def _place(summary: ReportSummary, cell: tuple[str, str]) -> tuple[int, int]:
    return summary.tasks.index(cell[0]), summary.algorithms.index(cell[1])


def _recipes(runs: Sequence[Run], benchmarks: Sequence[Benchmark]) -> Html:
    """Seeds with the same command and configuration stand together."""
    groups: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        groups.setdefault((train_command(run, benchmarks), _configuration(run)), []).append(run)
    parts = []
    for (command, configuration), members in groups.items():
        parts.append(tag("h4", f"Seed{'s' if len(members) > 1 else ''} {', '.join(run.seed for run in members)}"))
        parts.append(command_box(command) if command else note("The command is not recorded."))
        if configuration:
            parts.append(tag("details", tag("summary", "Configuration"), tag("pre", configuration)))
        sources = [tag("li", tag("code", str(run.source))) for run in members]
        parts.append(tag("details", tag("summary", "Files"), tag("ul", sources)))
    return join(parts)


def train_command(run: Run, benchmarks: Sequence[Benchmark]) -> str:
    """What to type to train this run again; "" where nothing tells.

    A benchmark's runs are started by its workers: there, benchmark.yaml has the command.
    """
    if run.folder is None:
        return ""
    name = run.folder.parent.name
    for benchmark in benchmarks:
        if name in benchmark.train_commands and run.folder.parent.parent.resolve() == benchmark.folder.resolve():
            return benchmark.train_commands[name]
    command = run.environment.get("command")
    if not isinstance(command, list) or len(command) < 2:
        return ""
    return shlex.join(["covey", *(str(word) for word in command[1:])])


def _configuration(run: Run) -> str:
    """config.yaml without what differs between seeds."""
    shared = {key: value for key, value in run.config.items() if key not in ("seed", "seeds", "run_dir")}
    return yaml.safe_dump(shared, sort_keys=False, allow_unicode=True) if shared else ""
