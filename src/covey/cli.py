"""The command `covey`: reads the verb, calls the experiment, turns errors into one line and an exit code.

Everything heavy is imported inside the verb that needs it, so that help and lists answer at once.
"""

from __future__ import annotations

import contextlib
import enum
import importlib.metadata
import os
import shlex
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from covey import collector, registry
from covey.checks import at_least
from covey.errors import CoveyError, Interrupted, UsageError, nearest, unknown_name
from covey.process import lasting_output, leave, one_line_warnings, stopping_on_signals

if TYPE_CHECKING:
    from covey.registry import Entry

EXIT_DONE, EXIT_FAILED, EXIT_USAGE = 0, 1, 2
INTERRUPTED = b"covey: interrupted\n"
LONGEST_LINE = 1_000  # characters of an error

HELP = """\
covey trains, benchmarks and evaluates teams of learning agents.

  covey train     [key=value …]                      train a team
  covey resume    RUN [key=value …]                  continue a run where it stopped
  covey evaluate  RUN [key=value …]                  play episodes with a trained team
  covey benchmark [key=value …]                      algorithms × tasks × seeds; run again to continue
  covey report    RUNS… [key=value …]                figures, tables and a page over any number of runs
  covey trust     RUNS…                              let other people's runs import the code that they name
  covey speed     [key=value …]                      measure how fast this machine is, and what limits it
  covey list      tasks|algorithms|models|loops|…    list what there is to choose from
  covey show      [key=value …]                      print the resolved configuration, explained; run nothing
  covey help      FIELD|VERB [key=value …]           explain a field, such as algorithm.lr
  covey check     task=mine/thing [key=value …]      check a task of your own against its spec

  covey VERB --help, covey --version

A first team, in about two minutes on two cores:

  covey train run_dir=runs/first
  covey evaluate runs/first episodes=100 render=team.gif

Exit codes: 0 done; 1 failed; 2 bad input, nothing started; 129, 130 and 143 interrupted, saved.
"""

KEYS_HELP = """\
  algorithm=mappo                 covey list algorithms
  task=vmas/navigation            covey list tasks
  model=mlp  critic_model=mlp     covey list models; without critic_model, the critic has the actor's model and fields
  experiment=debug                covey list presets
  settings=tuned                  settings known to learn this task with this algorithm: covey list settings
  seed=0 or seeds=3               seeds=3 trains 0, 1 and 2, each in a run directory of its own:
                                  on a CPU one after another, on a GPU at once (experiment.seeds_at_once)
  run_dir=runs/first              default: runs/TASK-ALGORITHM-SEED-TIME
  init_from=runs/other            start from what another run learned, where shapes fit: parameters, target networks,
                                  moments; optimiser and schedules start fresh
  partners.GROUP.1=runs/other     who plays agent 1 of a group without learning: a run directory, random or reference;
                                  partners.GROUP=…, or opponents.GROUP=…, takes the whole group (covey help partners)
  callbacks=[my_module:MyClass]   your own code between iterations (examples/callbacks.py)
  jit=false                       acting and learning uncompiled, for breakpoints; evaluations and the steps of
                                  covey's own tasks stay compiled, those of your tasks do not
  imports=[my_module]             load your own tasks, models, algorithms and loops first
  config_dir=my_conf              your own presets, see below

A group of agents may have its own:  algorithm.groups.adversary=ippo  model.groups.adversary.layers=[64]

Every field of a choice can be set. `covey show` prints and explains them all, `covey help algorithm.lr` one of them:

  experiment.frames=1e6  algorithm.lr=3e-4  model.layers=[64,64]  experiment.loggers=[console,wandb]

A preset of your own is a file my_conf/experiment/NAME.yaml, my_conf/task/SUITE/NAME.yaml, my_conf/model/NAME.yaml or
my_conf/algorithm/NAME.yaml, chosen as experiment=NAME, task=SUITE/NAME and so on. `base:` names what it derives from:

  my_conf/task/my/foraging.yaml       base: lbf/8x8-2p-2f-coop
                                      time_limit: 50
  my_conf/experiment/long.yaml        base: benchmarl
                                      experiment: {frames: 1e7}
                                      model: {name: mlp, layers: [512, 512]}
"""


@dataclass(frozen=True)
class Verb:
    run: Callable[[list[str]], None]
    help: str


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    # Called from Python, an interrupt is Python's own.
    signals = stopping_on_signals(INTERRUPTED) if argv is None else contextlib.nullcontext()
    with lasting_output() as output, one_line_warnings(), signals:
        code = _run(arguments)
        sys.stdout.flush()
        if output.failed and code == EXIT_DONE:
            code = _fail(f"cannot write to standard output: {output.error and output.error.strerror}", EXIT_FAILED)
    return leave(code) if argv is None else code


def _run(arguments: list[str]) -> int:
    try:
        _dispatch(arguments)
    except UsageError as error:
        return _fail(error, EXIT_USAGE)
    except Interrupted as error:
        return _fail(error, 128 + error.signal)
    except CoveyError as error:
        return _fail(error, EXIT_FAILED)
    except KeyboardInterrupt:
        return _fail("interrupted", 128 + signal.SIGINT)
    except OSError as error:  # a full disk or an unreadable folder, where nothing else handled it
        return _fail(f"{error.filename or 'cannot read or write'}: {error.strerror or error}", EXIT_FAILED)
    except RecursionError:  # YAML, JSON and Hydra's grammar are read recursively
        return _fail("a value or a file is nested too deeply to be read", EXIT_USAGE)
    return EXIT_DONE


def _dispatch(arguments: list[str]) -> None:
    verb, *rest = arguments or ["--help"]
    if any("\0" in argument for argument in arguments):  # only from Python: a shell cannot pass it
        raise UsageError("an argument holds a NUL character, which no name or path can contain")
    if verb in ("--help", "-h"):
        print(HELP, end="")
    elif verb in ("--version", "-V"):
        print(f"covey {importlib.metadata.version('covey')}")
    elif verb not in VERBS:
        raise UsageError(f"unknown verb '{verb}'; nearest: {', '.join(nearest(verb, VERBS))} (`covey --help`)")
    elif "--help" in rest or "-h" in rest:
        print(VERBS[verb].help, end="")
    else:
        _refuse_options(verb, rest)
        VERBS[verb].run(rest)


def _refuse_options(verb: str, arguments: Iterable[str]) -> None:
    for argument in arguments:
        if argument.startswith("-"):
            raise UsageError(f"unknown option '{argument}'; covey takes key=value (`covey {verb} --help`)")


def _fail(reason: object, code: int) -> int:
    line = " ".join(str(reason).split())
    if len(line) > LONGEST_LINE:  # a name of thousands of characters
        line = f"{line[: LONGEST_LINE - 200]} … {line[-200:]}"
    print(f"covey: {line}", file=sys.stderr)
    return code


# ----------------------------------------------------------------------------------------------------------- verbs


@collector.paused()
def _train(arguments: list[str]) -> None:
    from covey.experiment.configuration.compose import compose, settings_for

    config = compose(arguments)
    settings = settings_for(arguments)
    if settings:
        print(settings.line, flush=True)
    from covey.experiment.running.experiment import train
    from covey.experiment.running.program_store import ProgramStore

    train(config, store=ProgramStore.default())


@collector.paused()
def _resume(arguments: list[str]) -> None:
    path, rest = _run_directory("resume", arguments)
    trust = _trust_word("resume", [text for text in rest if text.startswith("trust=")])
    overrides = [text for text in rest if not text.startswith("trust=")]
    if not overrides and _say_finished(path):
        return
    from covey.experiment.running.experiment import resume
    from covey.experiment.running.program_store import ProgramStore

    resume(path, overrides, trust=trust, store=ProgramStore.default())


def _say_finished(path: Path) -> bool:
    """True if all runs are finished, after printing a line for each. Imports nothing heavy."""
    from covey.experiment.recording.finished import describe_finished, finished_frames
    from covey.experiment.recording.run_directory import RunDirectory, run_directories

    runs = [RunDirectory.open(directory) for directory in run_directories(path)]
    finished = [(run, frames) for run in runs if (frames := finished_frames(run)) is not None]
    if len(finished) < len(runs):
        return False
    for run, frames in finished:
        print(describe_finished(run, frames))
    return True


def _trust_word(verb: str, words: Sequence[str]) -> bool:
    values = _key_values(verb, words, ["trust"])
    value = _scalar(values.get("trust", "false"))
    if not isinstance(value, bool):
        raise UsageError(f"trust takes true or false, not '{values['trust']}'")
    return value


def _trust(arguments: list[str]) -> None:
    if not arguments:
        raise UsageError("trust needs run directories: covey trust RUN")
    from covey.experiment.recording.run_directory import trust_runs

    for argument in arguments:
        path, _ = _run_directory("trust", [argument])
        for line in trust_runs(path):
            print(line)


def _benchmark(arguments: list[str]) -> None:
    from covey.launch.benchmark import make_benchmark

    benchmark = make_benchmark(arguments)
    from covey.launch.local import print_list, run_benchmark

    print_list(benchmark) if benchmark.options.list else run_benchmark(benchmark)


def _report(arguments: list[str]) -> None:
    from covey.report.report import ReportOptions, parse_value, report

    paths = [text for text in arguments if "=" not in text or os.path.exists(text)]  # Path.exists fails on long words
    words = [text for text in arguments if text not in paths]
    values = _key_values("report", words, [field.name for field in fields(ReportOptions)])
    parsed = {name: parse_value(name, value) for name, value in values.items()}
    options = registry.build_config(ReportOptions(), parsed, "report")
    report(paths, options, shlex.join(["covey", "report", *arguments]))


def _speed(arguments: list[str]) -> None:
    from covey.launch.speed import report_speed

    report_speed(arguments)


def _show(arguments: list[str]) -> None:
    from covey.experiment.configuration.compose import compose
    from covey.experiment.configuration.explain import commented_yaml

    print(commented_yaml(compose(arguments)), end="")


def _help(arguments: list[str]) -> None:
    """Help on a verb or on a field; without either, on everything."""
    queries = [text for text in arguments if "=" not in text] or ["covey"]
    if len(queries) > 1:
        raise UsageError(f"help explains one thing at a time, not {', '.join(queries)} (`covey help --help`)")
    if queries == ["covey"]:
        print(HELP, end="")
    elif queries[0] in VERBS:
        print(VERBS[queries[0]].help, end="")
    else:
        from covey.experiment.configuration.explain import explain

        for line in explain(queries[0], [text for text in arguments if "=" in text], OPTIONS):
            print(line, flush=True)  # finding out which others have the field can take seconds


def _check(arguments: list[str]) -> None:
    if not any(argument.startswith("task=") for argument in arguments):
        raise UsageError("check needs a task: covey check task=mine/thing imports=[my_module]")
    from covey.experiment.configuration.compose import compose

    config = compose(arguments)
    from covey.experiment.loading.check import check_task

    print(check_task(config))


class Parameters(enum.Enum):
    """Which of a run's parameters to evaluate."""

    final = "those at the end of training"
    best = "those of the best evaluation"


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions:
    episodes: int = 100  # episodes to play
    # JSON file to write: mean_return, the values of each group and of each episode; null: only print
    output: str | None = None
    render: str | None = None  # file to draw an episode into: .gif, .mp4, or .png for its last state; null: none
    # whether to take the most likely action; null: yes, except policies over discrete actions, which sample
    deterministic: bool | None = None
    parameters: Parameters = Parameters.final  # which of the run's parameters to play with
    trust: bool = False  # whether to let someone else's run import the code that it names

    def __post_init__(self) -> None:
        at_least(self, 1, "episodes")


def _evaluate(arguments: list[str]) -> None:
    path, rest = _run_directory("evaluate", arguments)
    partners, rest = _with_prefix("partners.", rest)
    opponents, rest = _with_prefix("opponents.", rest)
    task, rest = _with_prefix("task.", rest)
    values: dict[str, Any] = dict(_key_values("evaluate", rest, [field.name for field in fields(EvaluateOptions)]))
    for name in values.keys() - {"output", "render"}:
        values[name] = _scalar(values[name])
    options = registry.build_config(EvaluateOptions(), values, "evaluate")
    from covey.experiment.configuration.partners import partner_value
    from covey.experiment.loading.evaluation import evaluate_run

    evaluate_run(
        path,
        episodes=options.episodes,
        output=options.output,
        render=options.render,
        deterministic=options.deterministic,
        parameters=options.parameters.name,
        partners={seat: partner_value(seat, text) for seat, text in partners.items()},
        opponents={seat: partner_value(seat, text) for seat, text in opponents.items()},
        task={name: _scalar(value) for name, value in task.items()},
        trust=options.trust,
    )


def _with_prefix(prefix: str, arguments: list[str]) -> tuple[dict[str, str], list[str]]:
    """The values of `prefixNAME=value` by name, and the other arguments."""
    own = [text for text in arguments if text.startswith(prefix)]
    values = {}
    for text in own:
        name, equals, value = text.removeprefix(prefix).partition("=")
        if not (name and equals and value):
            raise UsageError(f"cannot read '{text}': everything here is key=value (`covey evaluate --help`)")
        values[name] = value
    return values, [text for text in arguments if text not in own]


def _run_directory(verb: str, arguments: list[str]) -> tuple[Path, list[str]]:
    """The run directory, which comes first, and the rest."""
    if not arguments or ("=" in arguments[0] and not os.path.exists(arguments[0])):
        raise UsageError(f"{verb} needs a run directory first: covey {verb} RUN")
    path = Path(arguments[0])
    if not os.path.isdir(path):
        siblings = [str(other) for other in path.parent.glob("*") if other.is_dir()]
        near = f"; nearest: {', '.join(nearest(str(path), siblings))}" if siblings else ""
        raise UsageError(f"no run directory '{path}'{near}")
    return path, arguments[1:]


def _key_values(verb: str, arguments: Iterable[str], known: Sequence[str]) -> dict[str, str]:
    """The `key=value` arguments, as typed, of a verb that does not take an experiment."""
    values = {}
    for text in arguments:
        key, equals, value = text.partition("=")
        if not equals or not value:
            raise UsageError(f"cannot read '{text}': everything here is key=value (`covey {verb} --help`)")
        if key not in known:
            raise unknown_name(f"key of {verb}", key, known, see=f"`covey {verb} --help`")
        values[key] = value
    return values


def _scalar(text: str) -> Any:
    constants = {"true": True, "false": False, "null": None}
    if text.lower() in constants:
        return constants[text.lower()]
    try:
        number = float(text)
    except ValueError:
        return text
    return int(number) if number.is_integer() else number


# ----------------------------------------------------------------------------------------------------------- lists


def _list(arguments: list[str]) -> None:
    options = _key_values("list", [text for text in arguments if "=" in text], ["config_dir", "imports"])
    kind, *words = [text for text in arguments if "=" not in text] or ["summary"]
    if "imports" in options:
        from covey.experiment.configuration.config import import_modules

        import_modules(module.strip() for module in options["imports"].strip("[]").split(","))
    if kind not in LISTS:
        raise UsageError(f"cannot list '{kind}'; nearest: {', '.join(nearest(kind, KINDS))} (`covey list --help`)")
    LISTS[kind]([word.lower() for word in words], options.get("config_dir"))


def _summary(words: list[str], config_dir: str | None) -> None:
    rows = [
        (f"covey list {kind}", f"{len(list(entries))}: {_examples(entries)}") for kind, entries in REGISTRIES.items()
    ]
    others = {"presets": "experiment=", "settings": "settings=tuned", "benchmarks": "benchmark="}
    _print_columns([*rows, *((f"covey list {kind}", f"for {key}") for kind, key in others.items())])


def _examples(entries: Iterable[Entry]) -> str:
    """The names, or the suites where names have one."""
    return ", ".join(dict.fromkeys(entry.name.partition("/")[0] for entry in entries))


def _list_tasks(words: list[str], config_dir: str | None) -> None:
    rows = _rows(registry.tasks) + _own("task", config_dir)
    found = _matching(rows, words)
    suites = dict.fromkeys(name.partition("/")[0] for name, _ in found)
    width = max((len(name) for name, _ in found), default=0)
    for number, suite in enumerate(suites):
        print(f"\n{suite}" if number else suite)
        _print_columns([row for row in found if row[0].partition("/")[0] == suite], width=width, indent=2)


def _list_algorithms(words: list[str], config_dir: str | None) -> None:
    _print_columns(_matching(_rows(registry.algorithms) + _own("algorithm", config_dir), words))


def _list_models(words: list[str], config_dir: str | None) -> None:
    _print_columns(_matching(_rows(registry.models) + _own("model", config_dir), words))


def _list_loops(words: list[str], config_dir: str | None) -> None:
    _print_columns(_matching(_rows(registry.loops), words))


def _list_presets(words: list[str], config_dir: str | None) -> None:
    from covey.experiment.configuration.compose import list_presets

    _print_columns(_matching(list(list_presets("experiment", config_dir).items()), words))


def _list_settings(words: list[str], config_dir: str | None) -> None:
    from covey.experiment.configuration.compose import list_settings

    found = list_settings(config_dir)
    _print_columns(_matching([(f"{item.task}, {item.algorithm}", item.budget) for item in found], words))


def _list_benchmarks(words: list[str], config_dir: str | None) -> None:
    from covey.experiment.configuration.compose import list_presets

    _print_columns(_matching(list(list_presets("benchmark", config_dir).items()), words))


def _rows(entries: Iterable[Entry]) -> list[tuple[str, str]]:
    return [(entry.name, entry.description) for entry in entries]


def _own(kind: str, config_dir: str | None) -> list[tuple[str, str]]:
    """The user's own presets of a kind: tasks, algorithms or models."""
    if config_dir is None:
        return []
    from covey.experiment.configuration.compose import list_presets

    return list(list_presets(kind, config_dir).items())


def _matching(rows: list[tuple[str, str]], words: list[str]) -> list[tuple[str, str]]:
    found = [row for row in rows if all(word in " ".join(row).lower() for word in words)]
    if not found and words:
        near = nearest(words[0], [name for name, _ in rows])
        raise UsageError(f"nothing matches '{' '.join(words)}'; nearest: {', '.join(near)}")
    return found


def _print_columns(rows: Sequence[tuple[str, str]], *, width: int | None = None, indent: int = 0) -> None:
    width = max((len(name) for name, _ in rows), default=0) if width is None else width
    for name, description in rows:
        print(f"{'':{indent}}{name:{width}}  {description}".rstrip())


REGISTRIES = {
    "tasks": registry.tasks,
    "algorithms": registry.algorithms,
    "models": registry.models,
    "loops": registry.loops,
}
LISTS: dict[str, Callable[[list[str], str | None], None]] = {
    "summary": _summary,
    "tasks": _list_tasks,
    "algorithms": _list_algorithms,
    "models": _list_models,
    "loops": _list_loops,
    "presets": _list_presets,
    "settings": _list_settings,
    "benchmarks": _list_benchmarks,
}
KINDS = [kind for kind in LISTS if kind != "summary"]

OPTIONS = {  # the options of verbs that have options of their own
    "evaluate": EvaluateOptions,
    "benchmark": "covey.launch.benchmark:BenchmarkOptions",
    "report": "covey.report.report:ReportOptions",
    "speed": "covey.launch.speed:SpeedOptions",
}

VERBS = {
    "train": Verb(
        _train,
        f"covey train [key=value …]\n\nTrains a team; by default, MAPPO on vmas/navigation.\n\n{KEYS_HELP}",
    ),
    "resume": Verb(
        _resume,
        """\
covey resume RUN [key=value …]

Continues a run where it stopped. The result is equal, to the bit, to a run that never stopped. RUN is a run directory,
or the folder that holds those of several seeds. A larger number of frames extends a finished run, and the same number
of schedule_frames its schedules, which may have reached 0. These may change too: `experiment.` followed by
evaluation_interval, evaluation_episodes, absolute_metric, checkpoint_interval, checkpoint_keep, loggers,
logger_options, devices, seeds_at_once, platform; and jit.

  trust=true                  let someone else's run import the code that it names (covey trust --help)

A damaged checkpoint is skipped, and damaged or missing metrics and results are rebuilt where possible, with a warning.

  covey resume runs/first experiment.frames=4e6 experiment.schedule_frames=4e6
""",
    ),
    "evaluate": Verb(
        _evaluate,
        """\
covey evaluate RUN [key=value …]

Plays episodes with a trained team and prints its returns.

  episodes=100                number of episodes
  output=eval.json            write mean_return, per-group and per-episode values; where groups oppose each other,
                              mean_return is that of the task's first team, and opponents are never in it
  render=team.gif             draw an episode
  deterministic=true          greedy, or sampled if false; default: greedy, except policies over discrete actions
  parameters=final            or best
  partners.GROUP.1=random     who plays agent 1 of a group instead of the team; only the team's own agents are scored;
                              a list ([random,runs/other]) draws one for each episode; default: as in training, and
                              `team` gives the seat back to the run itself
  partners.rotate=true        draw for each episode which agents of the group such partners play
  partners.GROUP=random       the same for a whole group; opponents.GROUP is another name for it
  opponents.GROUP=random      who plays a group instead of the team: random, reference (the task's own hand-written
                              policy, where it has one), or another run directory
  task.FIELD=value            play another configuration of the task
  trust=true                  let someone else's run import the code that it names (covey trust --help)
""",
    ),
    "trust": Verb(
        _trust,
        """\
covey trust RUNS…

A run may name code to import: imports=, hooks, callbacks. covey imports it for runs that you made, and for other
people's runs only after this command. RUNS are run directories, folders of them, or benchmarks. Prints what each may
import from now on. Look at that code first: it can do whatever you can. A change of config.yaml ends the trust.
covey recognises the runs that you made or trust by a key in ~/.config/covey; machines that share your home share it.

  covey trust downloads/their_run
""",
    ),
    "benchmark": Verb(
        _benchmark,
        """\
covey benchmark algorithms=[…] tasks=[…] run_dir=DIR [key=value …]
covey benchmark benchmark=NAME [key=value …]

Trains every algorithm on every task with every seed, side by side on this machine's cores or accelerators. Given
again, the same command continues what is unfinished and skips what is done; with more seeds, it runs only the new ones.

  algorithms=[ippo,qmix]      covey list algorithms
  tasks=[vmas/navigation]     covey list tasks
  models=[mlp,gru]            covey list models; default: mlp
  seeds=5                     0 to 4; or seeds=[7,8]; default: one
  benchmark=vmas_quick        all of the above from a preset (covey list benchmarks); what is given beside it wins
  run_dir=bench/first         default: bench/NAME
  force=true                  redo what is done
  list=true                   print the experiments, numbered from 0, and run nothing
  only=3                      run experiment 3 alone, for the jobs of an array
  workers=2                   processes at most; default: one for each core or each GPU
  render=false                leave no team.gif in the run directories

What `covey train` takes applies to every experiment, or, after names and colons, to those with these names:

  experiment.frames=1e6                       every experiment
  qmix:experiment.frames=2e6                  those of an algorithm, task or model
  iql,qmix:vmas/balance:algorithm.lr=1e-4     those of either algorithm on one task

Each experiment has one device unless experiment.devices=N says otherwise. Exit code 1: some experiments failed; the
others were trained.

A benchmark of your own is a file my_conf/benchmark/NAME.yaml (config_dir=my_conf) with any of the fields algorithms,
tasks, models, seeds, overrides (a list of the above), and base, the benchmark that it derives from.
""",
    ),
    "report": Verb(
        _report,
        """\
covey report RUNS… [key=value …]

Writes a page (index.html, which opens without a network), figures and tables over any number of runs. RUNS are run
directories, folders of them, benchmarks, result files in MARL-eval's schema (BenchMARL's, Mava's and OG-MARL's too),
and files of `covey speed`, to be put side by side.

  output=report                where to write
  metric=mean_return           or any other that the runs have, such as win_rate
  normalisation=anchors        0 is a random team, 1 the best published or possible; or minmax of these runs, or none
  legend='{mappo: MAPPO}'      what to call algorithms
  order=[mappo,ippo]           algorithms that come first; the others follow by name
  pairs=[[mappo,ippo]]         which to compare; default: all
  title='Three tasks'          of the page
  formats=[png,svg,pdf]        of the figures; [] draws none
  serve=true  port=8000        show the page on this machine, and update it while experiments run

A run that failed (diverged, crashed) counts by its last evaluations, or by the worst value on its task where it has
none. A run that is still training counts only where none of its kind has finished. Where groups oppose each other,
mean_return is that of the task's first team, and metric=GROUP_return compares by another.

  covey report bench/first output=report/
""",
    ),
    "speed": Verb(
        _speed,
        """\
covey speed [key=value …]

Times simulation, acting, updating and the whole loop on this machine: on one core, on all, on each accelerator, with
few and many environments. Prints what limits the speed, and recommends a device and a number of environments. It takes
one to two minutes.

  output=speed.json           write the figures; `covey report` puts those of several machines side by side
  name=my-machine             what to call this machine; default: its host name
  environments=[1,64,4096]    numbers of environments; default: 1, 64, 512, 4096
  seconds=0.5                 time to spend on each figure, about
  loggers=[wandb]             log the figures too

All that `covey train` takes changes what is timed: task=, algorithm=, model=, experiment.rollout_length=, …
""",
    ),
    "list": Verb(
        _list,
        """\
covey list tasks|algorithms|models|loops|presets|settings|benchmarks [word …]

What there is to choose from; words narrow it down. imports=[my_module] and config_dir=my_conf add your own.

  covey list tasks lbf
""",
    ),
    "show": Verb(
        _show,
        f"""\
covey show [key=value …]

Prints the resolved configuration and runs nothing. Comments say what each field means and takes. What is printed can be
saved as a preset, my_conf/experiment/NAME.yaml.

{KEYS_HELP}""",
    ),
    "help": Verb(
        _help,
        """\
covey help FIELD [key=value …]
covey help VERB

Explains a field: its meaning, the values it takes, its default, and what else has it. The last part of its name is
enough. Choose another algorithm, task or model as for `covey train`.

  covey help algorithm.lr
  covey help best_by
  covey help task.n_agents task=vmas/balance
  covey help algorithm algorithm=qmix        all fields of a section
  covey help mappo                           an algorithm, task, model or preset
  covey help evaluate.episodes               an option of a verb
""",
    ),
    "check": Verb(
        _check,
        """\
covey check task=mine/thing [imports=[my_module]] [key=value …]

Compares a task of your own with its spec, then plays a few hundred random steps. Checks the names of groups; shapes
and types of observations, rewards, masks, state and metrics; that a reset and a step have the same structure; endings;
that actions are legal and numbers finite. Prints what it checked, or one line that names the wrong field. Every start
checks shapes and types too, before anything compiles. From Python: covey.check_env(env).

  covey check task=mine/meet imports=[custom_task] task.num_agents=3
""",
    ),
}


if __name__ == "__main__":
    sys.exit(main())
