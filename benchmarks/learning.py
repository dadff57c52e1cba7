"""The learning results: named experiments, each with a threshold, and the table and picture made from them.

  python benchmarks/learning.py list                             names, commands and thresholds
  python benchmarks/learning.py run NAME [--seeds 3]             trains, then writes results/NAME.json
  python benchmarks/learning.py run NAME algorithm.lr=1e-3       further overrides become part of the command
  python benchmarks/learning.py table                            results/README.md, curves.png, docs/results.md

`run` calls `covey train` once for all seeds. Seeds that are finished in the run directory are kept, unfinished
ones continue where they stopped, and a run directory of another configuration is refused, not overwritten.

A result is judged by the absolute metric: each seed's best parameters on ten times an evaluation's episodes, all fresh.
Its mean over seeds comes with a 95% interval by Student's t over the seeds.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import json
import math
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import speeds

import covey
from covey import results as marl_eval
from covey.errors import CoveyError
from covey.experiment.recording.run_directory import RunDirectory, run_directories
from covey.files import to_json, write_atomically
from covey.results import describe_mean, mean_and_interval

ROOT = Path(__file__).parents[1]
ANCHORS = Path(covey.__file__).parent / "anchors.json"


@dataclasses.dataclass(frozen=True, kw_only=True)
class NamedExperiment:
    """`arguments` of `covey train`; `metric` is what counts, and `meaning` explains it unless it is a return.

    The mean must be at least `threshold`, if there is one, or with `at_most` not above it beyond its interval.
    `published` names the entry of anchors.json to compare with, by algorithm and source. `label` says what sets the
    experiment apart from others on its task. `besides` are metrics told beside the one that counts. `against` are
    arguments of `covey evaluate`, each a further score, against opponents that do not learn for example. What was tried
    to get here is said where the tuned settings are.
    """

    arguments: str = ""
    threshold: float | None = None
    metric: str = "mean_return"
    meaning: str = ""
    at_most: bool = False
    published: tuple[str, str] | None = None
    label: str = ""
    besides: tuple[str, ...] = ()
    against: tuple[str, ...] = ()

    @property
    def tuning(self) -> str:
        """What was tried to find its settings."""
        from covey.experiment.configuration.compose import settings_for

        settings = settings_for(shlex.split(self.arguments))
        return settings.tuning if settings else "none"


# How a task and an algorithm learn is in covey's own presets (`covey list settings`); how they are measured is here.
LBF = "task=lbf/8x8-2p-2f-coop settings=tuned"
LBF_2S = "task=lbf/2s-8x8-2p-2f-coop settings=tuned"
RWARE = "algorithm=mappo settings=tuned experiment.evaluation_interval=500_000"
MEMORY = (
    "algorithm=ippo task=probe/memory settings=tuned experiment.evaluation_interval=30_000 "
    "experiment.evaluation_episodes=256 experiment.evaluation_deterministic=true"
)
EXPERIMENTS: dict[str, NamedExperiment] = {
    "lbf-ippo": NamedExperiment(arguments=f"algorithm=ippo {LBF}", threshold=0.98, published=("ippo", "sable")),
    "lbf-mappo": NamedExperiment(arguments=f"algorithm=mappo {LBF}", threshold=0.98, published=("mappo", "sable")),
    "lbf-2s-rec-ippo": NamedExperiment(
        arguments=f"algorithm=ippo {LBF_2S}", threshold=0.95, published=("ippo", "sable")
    ),
    "lbf-2s-rec-mappo": NamedExperiment(
        arguments=f"algorithm=mappo {LBF_2S}", threshold=0.95, published=("mappo", "sable")
    ),
    "connector": NamedExperiment(
        arguments="algorithm=ippo task=connector/con-5x5x3a settings=tuned",
        threshold=0.83,
        published=("ippo", "sable"),
    ),
    "smax-2s3z": NamedExperiment(
        arguments="algorithm=mappo task=smax/2s3z settings=tuned",
        threshold=0.95,
        metric="win_rate",
        meaning="share of battles won",
        published=("ippo, recurrent", "jaxmarl"),
    ),
    "smax-2s3z-impala": NamedExperiment(
        arguments="algorithm=impala task=smax/2s3z settings=tuned",
        threshold=0.95,
        metric="win_rate",
        meaning="share of battles won",
    ),
    "rware-tiny-4ag": NamedExperiment(
        arguments=f"task=rware/tiny-4ag {RWARE}",
        threshold=22.0,
        published=("mappo", "sable"),
    ),
    "rware-tiny-2ag": NamedExperiment(
        arguments=f"task=rware/tiny-2ag {RWARE}",
        threshold=14.0,
        published=("mappo", "mava"),
    ),
    "rware-tiny-2ag-impala": NamedExperiment(
        arguments="task=rware/tiny-2ag algorithm=impala settings=tuned experiment.evaluation_interval=500_000",
        threshold=17.6,
        meaning="the number of requested shelves that the team delivered, given to every agent; MAPPO's mean is the "
        "threshold",
    ),
    "overcooked-cramped": NamedExperiment(
        arguments="algorithm=ippo task=overcooked/cramped_room settings=tuned",
        threshold=200.0,
        published=("best of several", "jaxmarl_figures"),
    ),
    "memory-gru": NamedExperiment(arguments=MEMORY, threshold=0.99),
    "memory-mlp": NamedExperiment(arguments=f"{MEMORY} model=mlp", threshold=0.5, at_most=True),
}

# ----------------------------------------------------------------------------------------------------------- replay

EXPERIMENTS |= {
    f"smax-2s3z-{algorithm}": NamedExperiment(
        arguments=f"algorithm={algorithm} task=smax/2s3z settings=tuned experiment.evaluation_interval=100_000 "
        "experiment.evaluation_episodes=128 experiment.checkpoint_interval=1_000_000",
        threshold=0.95,
        metric="win_rate",
        meaning="share of battles won",
    )
    for algorithm in ("qmix", "vdn")
}
EXPERIMENTS["mpe-spread-masac"] = NamedExperiment(
    arguments="algorithm=masac task=mpe/simple_spread settings=tuned experiment.evaluation_episodes=1024 "
    "experiment.checkpoint_interval=1_000_000",
    threshold=-6.0,
    meaning="sum of the agent's rewards, mean over agents; at random -25, by a tuned hand controller -5.9",
)
EXPERIMENTS["tag-ensemble"] = NamedExperiment(
    arguments="task=vmas/simple_tag algorithm=mappo settings=tuned algorithm.groups.adversary=ippo "
    "model.groups.agent.layers=[64,64]",
    metric="adversary_return",
    meaning="return of the adversaries, which learn by IPPO, against the agents, which learn by MAPPO",
    against=("opponents.adversary=random", "opponents.agent=random"),
    label="adversaries by IPPO",
)

# Agents that hear each other, beside agents that do not. Evaluated with more agents too.
EXPERIMENTS |= {
    f"discovery-{model}": NamedExperiment(
        arguments=f"algorithm=ippo task=vmas/discovery settings=tuned{fields} "
        "experiment.evaluation_interval=50_000 experiment.evaluation_episodes=64",
        against=("task.n_agents=8",),
        label=label,
    )
    for model, fields, label in (("mlp", " model=mlp", "each alone"), ("gnn", "", "with messages"))
}
EXPERIMENTS |= {
    f"compare-{model}": NamedExperiment(
        arguments=f"algorithm=ippo task=probe/compare settings=tuned{fields} "
        "experiment.evaluation_interval=20_000 experiment.evaluation_episodes=256 "
        "experiment.evaluation_deterministic=true",
        threshold=threshold,
        at_most=model == "mlp",
        meaning="share of agents that say rightly whether their number is above the mean of the team's",
        against=("task.num_agents=8", "task.num_agents=16"),
        label=label,
    )
    for model, fields, threshold, label in (
        ("mlp", " model=mlp", 0.55, "each alone"),
        ("gnn", "", 0.95, "with messages"),
    )
}

# ------------------------------------------------------------------------------------------------------------- VMAS

VMAS = {  # by scenario: what `covey train` gets besides its tuned settings, and what is to be reached
    "navigation": NamedExperiment(threshold=0.95),
    "balance": NamedExperiment(
        meaning="100 times the way that the package came nearer to its goal; in 100 steps, four agents at full force "
        "lift it by 0.58 at most, so about 60 is the ceiling",
    ),
    "balance-300-steps": NamedExperiment(
        arguments=" task.time_limit=300 experiment.frames=600_000",
        threshold=100.0,
        meaning="100 times the way that the package came nearer to its goal, in 300 steps instead of 100",
        label="300 steps",
    ),
    "transport": NamedExperiment(
        meaning="100 times the way that the package, fifty times as heavy as an agent, came nearer to its goal",
    ),
    "sampling": NamedExperiment(),
    "wheel": NamedExperiment(),
    "dispersion": NamedExperiment(
        threshold=3.6,
        meaning="pieces of food eaten, of 4",
    ),
    "flocking": NamedExperiment(),
    "give_way": NamedExperiment(),
    # Learnt against players that stand still, and then tried against others.
    "football": NamedExperiment(
        metric="blue_goals",
        meaning="goals in 500 steps, at most one, against players that stand still; at random none",
        against=("task.disable_ai_red=false", "task.ai_red_agents=false opponents.agent_red=random"),
    ),
    "simple_spread": NamedExperiment(),
    "simple_tag": NamedExperiment(
        metric="adversary_return",
        against=(
            "opponents.adversary=random",
            "opponents.adversary=reference",
            "opponents.agent=random",
            "opponents.agent=reference",
        ),
    ),
    "simple_adversary": NamedExperiment(
        metric="agent_return",
        against=(
            "opponents.adversary=random",
            "opponents.adversary=reference",
            "opponents.agent=random",
            "opponents.agent=reference",
        ),
    ),
    "passage": NamedExperiment(
        threshold=0.9,
        metric="success",
        meaning="share of episodes that end with all agents at their goals",
    ),
}
# Whether a task needs what tells agents with shared parameters apart.
VARIANTS = {
    "no-ids": ("algorithm.agent_ids=false", "without agent ids"),
    "unshared": ("algorithm.agent_ids=false algorithm.share_parameters=false", "unshared parameters, no ids"),
}


def add_vmas() -> None:
    for scenario, base in VMAS.items():
        task = scenario.partition("-")[0]
        for algorithm in ("ippo", "mappo"):
            arguments = f"algorithm={algorithm} task=vmas/{task} settings=tuned{base.arguments}"
            arguments += " experiment.evaluation_interval=50_000 experiment.evaluation_episodes=64"
            EXPERIMENTS[f"vmas-{scenario}-{algorithm}"] = dataclasses.replace(base, arguments=arguments)
    for scenario in ("dispersion", "passage"):
        plain = EXPERIMENTS[f"vmas-{scenario}-mappo"]
        for variant, (fields, label) in VARIANTS.items():
            EXPERIMENTS[f"vmas-{scenario}-mappo-{variant}"] = dataclasses.replace(
                plain, arguments=f"{plain.arguments} {fields}", threshold=None, label=label
            )
    for name, fields, label in (
        ("dispersion-mappo-dense", "model=mlp", "dense layers"),
        ("dispersion-mappo-unshaped", "task.shaping=0", "without shaping"),
        ("passage-mappo-unshaped", "task.shaping=0", "without shaping"),
    ):
        plain = EXPERIMENTS[f"vmas-{name.rpartition('-')[0]}"]
        EXPERIMENTS[f"vmas-{name}"] = dataclasses.replace(
            plain, arguments=f"{plain.arguments} {fields}", threshold=None, label=label
        )


add_vmas()


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="list|run|table")
    verbs.add_parser("list", help="names, commands and thresholds")
    run_parser = verbs.add_parser("run", help="train, and write results/NAME.json")
    run_parser.add_argument("name", choices=EXPERIMENTS, metavar="NAME", help=", ".join(EXPERIMENTS))
    run_parser.add_argument("--seeds", type=int, default=3)
    run_parser.add_argument("--devices", type=int, help="CPU devices; default: all cores")
    run_parser.add_argument("--runs", type=Path, default=Path("runs/learning"), help="where run directories go")
    table_parser = verbs.add_parser("table", help="write results/README.md and results/curves.png")
    for verb_parser in (run_parser, table_parser):
        verb_parser.add_argument("--results", type=Path, default=ROOT / "results", help="default: results/")
    options, overrides = parser.parse_known_args(arguments)
    wrong = [text for text in overrides if options.verb != "run" or text.startswith("-") or "=" not in text]
    if wrong:
        parser.error(f"unrecognised: {' '.join(wrong)}")
    try:
        if options.verb == "list":
            list_experiments()
        elif options.verb == "run":
            run(options, overrides)
        else:
            write_table(options.results)
    except CoveyError as error:
        sys.exit(f"{error}")


def list_experiments() -> None:
    for name, experiment in EXPERIMENTS.items():
        sign = "<=" if experiment.at_most else ">="
        target = "" if experiment.threshold is None else f" {sign} {experiment.threshold:g}"
        print(f"{name}: {experiment.metric}{target}\n  covey train {experiment.arguments}")


# ------------------------------------------------------------------------------------------------------------- run


def run(options: argparse.Namespace, overrides: list[str]) -> None:
    experiment = EXPERIMENTS[options.name]
    devices = [f"experiment.devices={options.devices}"] if options.devices else []
    arguments = [*shlex.split(experiment.arguments), *devices, *overrides]
    run_dir = options.runs / options.name
    seeds = list(range(options.seeds))
    there = existing_seeds(run_dir)
    for path in there.values():
        refuse_other(path, arguments)
    new = [seed for seed in seeds if seed not in there]
    for seed in (seed for seed in seeds if seed in there):
        if not is_finished(there[seed]):
            call_covey("resume", str(there[seed]))
    if new:
        whole = f"seeds={options.seeds}" if new == seeds else f"seeds=[{','.join(map(str, new))}]"
        call_covey("train", *arguments, whole, f"run_dir={run_dir}")
    command = shlex.join(["covey", "train", *arguments, f"seeds={options.seeds}", f"run_dir={run_dir}"])
    result = summarise(options.name, experiment, command, [run_dir / f"seed_{seed}" for seed in seeds])
    result["against"] = {text: score_against(run_dir, text) for text in experiment.against}
    options.results.mkdir(parents=True, exist_ok=True)
    path = options.results / f"{options.name}.json"
    write_atomically(path, compact_json(result))
    print(f"{options.name}: {describe_value(result)} {describe_threshold(result)}; wrote {path}")


def score_against(run_dir: Path, arguments: str) -> dict[str, Any]:
    """Means over the seeds, of 512 episodes each with the final parameters, of every group's return and metric."""
    output = run_dir / "against.json"
    call_covey("evaluate", str(run_dir), *shlex.split(arguments), "episodes=512", f"output={output}")
    report = json.loads(output.read_text(encoding="utf-8"))
    means = [seed["means"] for seed in report.get("seeds", [report])]
    return {name: mean_and_interval([mean[name] for mean in means]) for name in means[0]}


def existing_seeds(run_dir: Path) -> dict[int, Path]:
    if not run_dir.exists():
        return {}
    return {int(path.name.removeprefix("seed_")): path for path in run_directories(run_dir)}


def refuse_other(path: Path, arguments: list[str]) -> None:
    """Exits where the run in `path` is not of the experiment that `arguments` describe."""
    from covey.experiment.configuration.compose import compose
    from covey.experiment.configuration.config import roles_in, to_dict

    config = compose(arguments)
    wanted, stored = flatten(to_dict(config)), flatten(RunDirectory.open(path).config)
    ignored = {name for name, role, _ in roles_in(config) if not role.identity}
    ignored.add("experiment.schedule_frames")  # a run stores the number that it took for null
    # A field that is not stored did not exist then.
    differing = [
        f"{name}={stored[name]} there, {wanted.get(name)} asked for"
        for name in stored
        if name.partition(".logger_options")[0] not in ignored and wanted.get(name) != stored[name]
    ]
    if differing:
        sys.exit(f"{path} is a run of another configuration ({'; '.join(differing)}); move it away, or give --runs")


def flatten(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested dictionaries as one with dotted names."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= flatten(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return flat


def is_finished(path: Path) -> bool:
    known = RunDirectory.open(path).read_results()
    return known is not None and marl_eval.absolute_metrics(known) is not None


def call_covey(*arguments: str) -> None:
    print(f"$ covey {shlex.join(arguments)}", flush=True)
    code = subprocess.run([sys.executable, "-m", "covey.cli", *arguments], check=False).returncode
    if code:
        sys.exit(code)


# -------------------------------------------------------------------------------------------------------- summaries


def summarise(name: str, experiment: NamedExperiment, command: str, paths: list[Path]) -> dict[str, Any]:
    """What results/NAME.json holds, read from finished run directories."""
    runs = [RunDirectory.open(path) for path in paths]
    environment, config = runs[0].environment, runs[0].config
    by_seed = [summarise_seed(run, experiment.metric) for run in runs]
    absolute = [seed["absolute"] for seed in by_seed]
    mean, half_width = mean_and_interval(absolute)
    bound = mean - half_width if experiment.at_most and math.isfinite(half_width) else mean
    threshold = experiment.threshold
    reached = threshold is None or (bound <= threshold if experiment.at_most else mean >= threshold)
    others = {
        metric: mean_and_interval([seed["others"][metric] for seed in by_seed]) for metric in by_seed[0]["others"]
    }
    return {
        "name": name,
        "label": experiment.label,
        "command": command,
        "task": config["task"]["name"],
        "algorithm": config["algorithm"]["name"],
        "model": config["model"]["name"],
        "covey_version": environment.get("packages", {}).get("covey"),
        "commits": sorted({describe_commit(run.environment) for run in runs}),
        "devices": config["experiment"]["devices"],
        "metric": experiment.metric,
        "definition": experiment.meaning or environment.get("returns", ""),
        "evaluation": environment.get("evaluation"),
        "episodes": by_seed[0]["episodes"],
        "frames": by_seed[0]["curve"][-1][0],
        "minutes": [seed["minutes"] for seed in by_seed],
        "seeds": [run.config["seed"] for run in runs],
        "absolute": absolute,
        "mean": mean,
        "interval_95": half_width,
        "others": others,
        "besides": list(experiment.besides),
        "threshold": threshold,
        "at_most": experiment.at_most,
        "reached": reached,
        "anchors": find_anchors(experiment.metric, config["task"]["name"]),
        "published": find_published(experiment, config["task"]["name"]),
        "tuning": experiment.tuning,
        "curves": [seed["curve"] for seed in by_seed],
    }


def summarise_seed(run: RunDirectory, metric: str) -> dict[str, Any]:
    known = run.read_results()
    absolute = None if known is None else marl_eval.absolute_metrics(known)
    if known is None or absolute is None:
        sys.exit(f"{run.path} is not finished")
    steps = list(marl_eval.steps(known).values())
    return {
        "curve": [[step[marl_eval.STEP_COUNT], mean_of(step[metric])] for step in steps],
        "minutes": round(steps[-1][marl_eval.ELAPSED_TIME] / 60, 2),
        "absolute": mean_of(absolute[metric]),
        "others": {name: mean_of(values) for name, values in absolute.items() if name != metric},
        "episodes": len(absolute[metric]),
    }


def mean_of(values: list[float]) -> float:
    return float(f"{sum(values) / len(values):.6g}")


def describe_commit(environment: dict[str, Any]) -> str:
    return f"{environment.get('git_commit')}{' with changes' if environment.get('git_dirty') else ''}"


def find_published(experiment: NamedExperiment, task: str) -> dict[str, Any] | None:
    """The entry of anchors.json, with its source's title and budget."""
    if experiment.published is None:
        return None
    algorithm, source = experiment.published
    anchors = json.loads(ANCHORS.read_text(encoding="utf-8"))
    entries = anchors["tasks"].get(task, {}).get("published", [])
    for entry in entries:
        if (entry["algorithm"], entry["source"], entry["metric"]) == (algorithm, source, experiment.metric):
            about = anchors["sources"][source]
            frames = entry.get("frames", about["frames"])
            return {"value": entry["value"], "algorithm": algorithm, "source": about["title"], "frames": frames}
    sys.exit(f"anchors.json has no {experiment.metric} of {algorithm} by {source} on {task}")


def find_anchors(metric: str, task: str) -> dict[str, float]:
    """What acting at random gives, and a heuristic where one is known."""
    known = json.loads(ANCHORS.read_text(encoding="utf-8"))["tasks"].get(task, {})
    random = known.get("random") or {}
    anchors = {"random": random.get("mean_return" if metric == "mean_return" else "others")}
    if isinstance(anchors["random"], dict):
        anchors["random"] = anchors["random"].get(metric)
    for entry in known.get("published", []):
        if entry["algorithm"] == "heuristic" and entry["metric"] == metric:
            anchors["heuristic"] = entry["value"]
    return {name: value for name, value in anchors.items() if value is not None}


def compact_json(result: dict[str, Any]) -> str:
    """One line per field."""
    lines = [f"  {json.dumps(name)}: {to_json(value)}" for name, value in result.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


# ----------------------------------------------------------------------------------------------------------- table


TABLE_HEAD = """\
# Results

Made by `python benchmarks/learning.py table` from the files in this folder, each of which was made by `python
benchmarks/learning.py run NAME`. The mean is over seeds, of each seed's absolute metric: its best parameters on fresh
episodes, whose number is in the table. The interval is 95%, by Student's t over the seeds. Frames are steps of one
environment; minutes are of training and evaluating one seed, compiling left out.

![Learning curves](curves.png)

"""
SPEEDS_HEAD = """
Speeds, from `benchmark-NAME.json`, each with the commit and the machine that it was measured on, and written by a
script of `benchmarks/` with `--output results/benchmark-NAME.json`; PYTHON is that of the other system's environment:

"""
AGAINST_HEAD = """
Teams scored otherwise than they were trained, with the final parameters of each seed on 512 episodes: against opponents
that do not learn (random, or the task's hand-written reference), or with more agents. Groups that learn against
each other say little by their own returns alone.

| name | `covey evaluate RUN …` | means over the seeds |
| --- | --- | --- |
"""
REASONS = """
What passage and dispersion need, by the variants in the table:

- In passage, a step in touch with the wall or another agent costs what several steps at full speed earn, so that agents
  learn to stay away from the gap: without shaping none gets through. With shaping for the way through it
  (`task.shaping`, which no return counts) nearly all do, even without agent ids; with separate parameters they learn
  more slowly. It is not a matter of symmetry.
- In dispersion, most depends on how food is observed and rewarded: dense layers instead of a set eat a third as much,
  and without a reward for coming nearer to a piece (`task.shaping`) one in seven is eaten. Symmetry matters too, as
  agents start at one point: without ids they leave about one piece in four; with ids, or separate parameters, hardly
  any.
"""
COLUMNS = (
    "name", "what counts", "actions", "episodes", "frames", "minutes", "seeds", "mean", "threshold",
    "random, heuristic", "published", "tuning", "command",
)  # fmt: skip


def write_table(folder: Path) -> None:
    results = read_results(folder)
    if not results:
        sys.exit(f"no results in {folder}; `python benchmarks/learning.py run NAME` makes them")
    rows = [make_row(result) for result in results]
    lines = [" | ".join(COLUMNS), " | ".join("---" for _ in COLUMNS), *(" | ".join(row) for row in rows)]
    commits = sorted({commit for result in results for commit in result["commits"]})
    foot = f"{REASONS}{describe_against(results)}{SPEEDS_HEAD}{speeds.make_table(folder)}\nCommits of the learning "
    foot += f"results: {', '.join(commits)}.\n"
    write_atomically(folder / "README.md", TABLE_HEAD + "".join(f"| {line} |\n" for line in lines) + foot)
    draw_curves(results, folder / "curves.png")
    print(f"wrote {folder / 'README.md'} and {folder / 'curves.png'}")
    if folder.resolve() == ROOT / "results":
        write_docs(ROOT / "docs" / "results.md", results)


def describe_against(results: list[dict[str, Any]]) -> str:
    """A table of the teams that were also scored in other conditions."""
    rows = [
        f"| {result['name']} | `{text or 'as trained'}` | {describe_scores(scores)} |\n"
        for result in results
        for text, scores in result.get("against", {}).items()
    ]
    if not rows:
        return ""
    return AGAINST_HEAD + "".join(rows)


def describe_scores(scores: dict[str, list[float]]) -> str:
    """Every group's return and the task's own metrics, with their intervals over the seeds."""
    return ", ".join(f"{name} {describe_mean(*pair)}" for name, pair in scores.items() if name != "episode_length")


def write_docs(path: Path, results: list[dict[str, Any]]) -> None:
    """Puts short tables between the marks in the documentation's page of results."""
    columns = ("task", "algorithm, model", "metric", "mean", "frames", "minutes", "seeds")
    rows = [" | ".join(columns), " | ".join("---" for _ in columns)]
    for result in results:
        algorithm = ", ".join(filter(None, [result["algorithm"], result["model"], result.get("label")]))
        task = f"[{result['task']}](generated/tasks/{result['task']}.md)"
        minutes = f"{sum(result['minutes']) / len(result['minutes']):.1f}"
        mean, frames = describe_value(result).replace(" ", "\N{NO-BREAK SPACE}"), f"{result['frames']:,}"
        cells = [task, algorithm, f"`{result['metric']}`", mean, frames, minutes, str(len(result["seeds"]))]
        rows.append(" | ".join(cells))
    text = path.read_text(encoding="utf-8")
    text = put_between_marks(text, "results", "".join(f"| {row} |\n" for row in rows))
    text = put_between_marks(text, "nine algorithms", describe_benchmark(ROOT / "results" / "vmas_nine"))
    text = put_between_marks(text, "speeds", speeds.make_table(ROOT / "results", peers_only=True))
    write_atomically(path, text)
    print(f"wrote the tables in {path}")


def describe_benchmark(folder: Path) -> str:
    """The finals of a report: algorithms in rows, tasks in columns, with the minutes of a run."""
    finals, costs = (read_csv(folder / "tables" / name) for name in ("finals.csv", "costs.csv"))
    tasks = [row["Task"] for row in finals]
    seconds = {
        (row["Task"], row["Algorithm"]): sum(float(row[part]) for part in ("Train, s", "Evaluate, s")) for row in costs
    }
    rows = [" | ".join(["algorithm", *tasks]), " | ".join("---" for _ in ["", *tasks])]
    for algorithm in dict.fromkeys(row["Algorithm"] for row in costs):
        cells = []
        for row in finals:
            mean, low, high = (float(row[f"{algorithm}{end}"]) for end in ("", " low", " high"))
            minutes = seconds[row["Task"], algorithm] / 60
            cells.append(f"{describe_mean(mean, (high - low) / 2)} in {minutes:.1f} min")
        rows.append(" | ".join([algorithm, *cells]))
    return "".join(f"| {row} |\n" for row in rows)


def read_csv(path: Path) -> list[dict[str, str]]:
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def put_between_marks(text: str, name: str, table: str) -> str:
    first, last = f"<!-- {name} -->", f"<!-- end of {name} -->"
    before, _, rest = text.partition(first)
    _, mark, after = rest.partition(last)
    if not mark:
        sys.exit(f"no place for {name} in docs/results.md: {first} … {last}")
    return f"{before}{first}\n\n{table}\n{last}{after}"


def read_results(folder: Path) -> list[dict[str, Any]]:
    """In the order of the experiments above; files of other names come last."""
    found = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))}
    found = {name: result for name, result in found.items() if "curves" in result}
    return [found[name] for name in [*EXPERIMENTS, *(set(found) - set(EXPERIMENTS))] if name in found]


def make_row(result: dict[str, Any]) -> list[str]:
    minutes = sum(result["minutes"]) / len(result["minutes"])
    return [
        result["name"],
        f"{result['metric']}: {result['definition']}",
        result["evaluation"],
        f"{result['episodes']:,}",
        f"{result['frames']:,}",
        f"{minutes:.1f} on {result['devices']} device{'s' if result['devices'] > 1 else ''}",
        str(len(result["seeds"])),
        describe_value(result),
        describe_threshold(result),
        ", ".join(f"{value:.3g}" for value in result.get("anchors", {}).values()),
        describe_published(result["published"]),
        result["tuning"],
        f"`{result['command']}`",
    ]


def describe_value(result: dict[str, Any]) -> str:
    """The mean, and those of the metrics told beside it."""
    besides = [f"{name} {describe_mean(*result['others'][name])}" for name in result.get("besides", ())]
    return "; ".join([describe_mean(result["mean"], result["interval_95"]), *besides])


def describe_threshold(result: dict[str, Any]) -> str:
    if result["threshold"] is None:
        return ""
    sign = "≤" if result["at_most"] else "≥"
    return f"{sign} {result['threshold']:g}: {'reached' if result['reached'] else '**not reached**'}"


def describe_published(published: dict[str, Any] | None) -> str:
    if published is None:
        return "none"
    budget = f", {published['frames']:,} frames" if published["frames"] else ""
    return f"{published['value']:g} ({published['algorithm']}; {published['source']}{budget})"


# --------------------------------------------------------------------------------------------------------- picture


COLOURS = ("#0b6e99", "#d1611b", "#3b8c4b", "#8a4f9e")
GREY = "#777777"


def draw_curves(results: list[dict[str, Any]], path: Path) -> None:
    """One panel per task: each experiment's mean over seeds and its interval, the threshold and what was published."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    panels: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for result in results:
        panels.setdefault((result["task"], result["metric"]), []).append(result)
    columns = min(3, len(panels))
    rows = math.ceil(len(panels) / columns)
    style: dict[Any, Any] = {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "axes.titlesize": 10}
    with plt.rc_context(style):
        figure, grid = plt.subplots(rows, columns, figsize=(3.9 * columns, 2.9 * rows), squeeze=False)
        for axes in grid.flat[len(panels) :]:
            axes.axis("off")
        for axes, ((task, metric), shown) in zip(grid.flat, panels.items(), strict=False):
            draw_panel(axes, task, metric, shown)
        figure.tight_layout(h_pad=2.0, w_pad=2.0)
        figure.savefig(path, dpi=130)
        plt.close(figure)


def draw_panel(axes: Any, task: str, metric: str, shown: list[dict[str, Any]]) -> None:
    scale, unit = (1e6, "million frames") if shown[0]["frames"] >= 1e6 else (1e3, "thousand frames")
    for curve, colour in zip(shown, COLOURS, strict=False):
        frames, mean, half_width = mean_curve(curve["curves"])
        x = [frame / scale for frame in frames]
        label = ", ".join(filter(None, [curve["algorithm"], curve["model"], curve.get("label")]))
        axes.plot(x, mean, color=colour, linewidth=1.6, label=label)
        low, high = ([m + sign * h for m, h in zip(mean, half_width, strict=True)] for sign in (-1, 1))
        axes.fill_between(x, low, high, color=colour, alpha=0.18, linewidth=0)
    draw_anchors(axes, shown)
    axes.set_title(task, loc="left")
    axes.set_xlabel(unit)
    axes.set_ylabel(metric.replace("_", " "))
    axes.set_xlim(left=0)
    axes.margins(y=0.1)
    if len(shown) > 1:
        axes.legend(frameon=False, fontsize=8, loc="best")


def draw_anchors(axes: Any, shown: list[dict[str, Any]]) -> None:
    """Dashed: the threshold. Dotted: the published value. Each value once, named at the left of its line."""
    lines: dict[float, list[str]] = {}
    for curve in shown:
        if curve["threshold"] is not None:
            lines.setdefault(curve["threshold"], []).append("at most" if curve["at_most"] else "threshold")
        for kind, value in curve.get("anchors", {}).items():
            lines.setdefault(value, []).append(kind)
        if curve["published"]:
            lines.setdefault(curve["published"]["value"], []).append("published")
    for value, kinds in lines.items():
        style = (0, (1, 2)) if set(kinds) == {"published"} else (0, (5, 3))
        axes.axhline(value, color=GREY, linewidth=1.0, linestyle=style, zorder=0)
        # Above the highest line and below the others, so that two near each other do not collide.
        above = value == max(lines)
        axes.annotate(
            f"{' and '.join(dict.fromkeys(kinds))} {value:g}",
            (0.01, value),
            xycoords=("axes fraction", "data"),
            xytext=(0, 2 if above else -2),
            textcoords="offset points",
            va="bottom" if above else "top",
            color=GREY,
            fontsize=7.5,
        )


def mean_curve(curves: list[list[list[float]]]) -> tuple[list[float], list[float], list[float]]:
    """Frames, mean over seeds and half the interval's width (0 for a single seed) where all seeds were evaluated."""
    by_seed = [{frames: value for frames, value in curve} for curve in curves]
    frames = sorted(set.intersection(*(set(seed) for seed in by_seed)))
    statistics = [mean_and_interval([seed[frame] for seed in by_seed]) for frame in frames]
    half_width = [half if math.isfinite(half) else 0.0 for _, half in statistics]
    return frames, [mean for mean, _ in statistics], half_width


if __name__ == "__main__":
    main()
