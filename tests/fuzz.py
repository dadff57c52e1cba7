"""A seeded fuzzer of covey's command line: odd words, odd files and odd outputs for every verb.

    python tests/fuzz.py --seed 0 --number 1000        prints what went wrong, one JSON object a line
    python tests/fuzz.py --seed 0 --only 17            runs command 17 of that seed alone, with its traceback

A command passes if it ends in time with exit code 0, 1 or 2, and where that is not 0, with one line on stderr that
begins with "covey: ". Commands run in this process, and what is valid stops just before anything compiles (`seams`);
those with an odd standard output run in processes of their own. One that hangs outside Python ends this process, which
prints the command first.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import faulthandler
import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import traceback
import typing
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

SECONDS = 60  # for one command; a trace of a large task takes ten on a busy machine
VERBS = ("train", "resume", "evaluate", "benchmark", "report", "speed", "list", "show", "help", "check", "trust")
OUTPUTS = ("closed", "full", "ascii", "gone")

Words = list[str]  # the generator has a method `list`

ODD_NUMBERS = (
    "1e30", "-1e30", "1e400", "inf", "-inf", "nan", "-1", "0", "-0.0", "1e9", "1e6", "2147483648", "4294967296", "1.5",
    "9223372036854775808", "99999999999999999999", "9" * 400, "9" * 5000, "1e-400", "1e38", "1e39", "0x10", "1_000",
    "١",
)  # fmt: skip
ODD_TEXTS = (
    "true", "null", "None", "''", "' '", '"', "'open", "\\", "\\'", "a b", "a=b", "=", "==", ",", "a,b", "a:b", ":",
    "~x", "range(3)", "glob(*)", "choice(a,b)", "sort(3,1)", "int(a)", "${x}", "${seed}", "${task}", "${oc.env:NO}",
    "${", "$(ls)", "`ls`", "%s", "{0}", "<b>", "[red]x[/red]", "!!python/object:os.system", "&a [*a]", "ü", "日本語",
    "𝔘", "a\u0301", "\u202e", "\x00", "\x01", "\x1b[31m", "\udc80", "a\nb", "\t", "x" * 300, "x" * 5000, "../..", "/",
    ".", "~", "-", "*", "mlp", "mappo", "vmas/navigation", "no/such/name", "None.None",
)  # fmt: skip
ODD_COLLECTIONS = (
    "[]", "[1,2]", "[a,a]", "[[]]", "[null]", "[1e9]", "[-1]", "[1.5]", "{}", "{a:1}", "{a:{b:[c]}}", "{1:2}", "[1",
    "{a", "{wandb:1}", "{wandb:{mode:3}}", "{wandb:[a]}", "{console:{}}", "[console,console]", "[wandb,no_such]",
    "[" * 50 + "]" * 50, "[" * 3000 + "]" * 3000, "{a:" * 500 + "1" + "}" * 500, "[" + "1," * 3000 + "1]",
)  # fmt: skip
LIKELY = {  # values of the right type, by a part of its name: with these, commands come as far as being traced
    "tuple[int": ("[]", "[0]", "[1]", "[3,3]", "[-1]", "[1e5,1e5]", "[1e9]", "[64,64,64]"),
    "bool": ("true", "false"),
    "int": ("0", "1", "2", "3", "7", "16", "1000", "1e5", "1e6", "1e8", "2147483647", "-1"),
    "float": ("0", "1", "0.5", "-1", "2", "1e-30", "1e30", "1000"),
}
ODD_VALUES = (*ODD_NUMBERS, *ODD_TEXTS, *ODD_COLLECTIONS)
TASKS = (
    "probe/constant",
    "probe/target",
    "vmas/navigation",
    "vmas/simple_tag",
    "lbf/8x8-2p-2f-coop",
    "mpe/simple_spread",
)


class Stopped(BaseException):
    """A valid command came to the point where it would compile."""


class TooLong(BaseException):
    """A command took longer than SECONDS."""


@dataclasses.dataclass(frozen=True)
class Command:
    words: tuple[str, ...]
    output: str = "text"  # or one of OUTPUTS


# ------------------------------------------------------------------------------------------------------- odd files


def write_unreadable(path: Path) -> None:
    path.write_text("a: 1\n")
    path.chmod(0)


def make_files(folder: Path, run: Path) -> dict[str, list[str]]:
    """Odd configuration folders, run directories and result files in `folder`; paths by kind. `run` is a good run."""
    contents: dict[str, Callable[[Path], object]] = {
        "binary": lambda path: path.write_bytes(bytes(range(256)) * 20),
        "empty": lambda path: path.write_text(""),
        "null": lambda path: path.write_text("null\n"),
        "list": lambda path: path.write_text("[1, 2]\n"),
        "text": lambda path: path.write_text("just words\n"),
        "broken": lambda path: path.write_text("a: [1\nb: }\n"),
        "nested": lambda path: path.write_text("[" * 20_000),
        "closed": lambda path: path.write_text("[" * 2_000 + "]" * 2_000),
        "deep": lambda path: path.write_text("{a: " * 2_000 + "1" + "}" * 2_000),
        "names": lambda path: path.write_text("algorithm: {name: 3}\ntask: {name: [a]}\nmodel: {name: {}}\nbase: 7\n"),
        "numbers": lambda path: path.write_text(f"experiment: {{frames: {'9' * 5000}}}\n"),
        "infinite": lambda path: path.write_text("experiment: {frames: .inf}\nalgorithm: {lr: .nan}\n"),
        "keys": lambda path: path.write_text("1: 2\nnull: 3\n? [a]\n: b\n"),
        "tags": lambda path: path.write_text("a: !!python/object/apply:os.getcwd []\n"),
        "dates": lambda path: path.write_text("experiment: {frames: 2001-01-01}\nseed: 12:30:45\n"),
        "itself": lambda path: path.write_text("a: &a [*a]\n"),
        "interpolated": lambda path: path.write_text("experiment: {frames: '${experiment.frames}'}\nseed: ${\n"),
        "fifo": os.mkfifo,
        "folder": os.mkdir,
        "loop": lambda path: path.symlink_to(path),
        "dangling": lambda path: path.symlink_to("nowhere"),
        "unreadable": write_unreadable,
    }
    files: dict[str, list[str]] = {"config_dir": [], "preset": [], "run": [str(run)], "result": []}
    for kind, make in contents.items():
        configs = folder / f"conf_{kind}"
        for group in ("experiment", "task/my", "algorithm", "model", "benchmark"):
            (configs / group).mkdir(parents=True)
            make(configs / group / f"{kind}.yaml")
        files["config_dir"].append(str(configs))
        files["preset"].append(kind)
        for name in ("config.yaml", "results.json", "environment.json"):
            copied = folder / f"run_{kind}_{name.partition('.')[0]}"
            shutil.copytree(run, copied)
            (copied / name).unlink(missing_ok=True)
            make(copied / name)
            files["run"].append(str(copied))
        make(folder / f"{kind}.json")
        files["result"].append(str(folder / f"{kind}.json"))
    (folder / "closed_folder").mkdir(mode=0)
    (folder / "looping").symlink_to("looping")
    odd = [str(folder / name) for name in ("closed_folder", "looping", "not_there")]
    return {kind: [*paths, *(odd if kind != "preset" else [])] for kind, paths in files.items()}


# ---------------------------------------------------------------------------------------------------- command lines


class Generator:
    """Odd commands, the same for the same seed and the same registries."""

    def __init__(self, seed: int, files: dict[str, list[str]]):
        self.random = random.Random(seed)
        self.files = files
        self.fields = known_fields()
        self.chosen = {kind: next(iter(names)) for kind, names in self.fields.items()}

    def command(self, number: int) -> Command:
        verb = (
            self.random.choice((*VERBS, "train", "train"))
            if self.random.random() < 0.95
            else self.mutated(self.random.choice(VERBS))
        )
        maker = getattr(self, verb, self.words)
        words = [verb, *maker()]
        if self.random.random() < 0.05:
            self.random.shuffle(words)
        return Command(tuple(words))

    def train(self) -> list[str]:
        choices = self.choices()
        if self.random.random() < 0.5:
            kinds = [f"{kind}={name}" for kind, name in self.chosen.items() if kind]
            return [*kinds, "run_dir=new", *(self.likely_word() for _ in range(self.random.choice([1, 1, 2])))]
        run_dir = self.path() if self.random.random() < 0.1 else "new"
        return [*choices, f"run_dir={run_dir}", *self.words()]

    def show(self) -> list[str]:
        return [*self.choices(), *self.words()]

    def help(self) -> list[str]:
        kind = self.random.choice(list(self.chosen))
        name = self.random.choice(list(self.fields[kind][self.chosen[kind]]))
        names = [f"{kind}.{name}".removeprefix("."), name, kind, self.chosen[kind], *VERBS, self.value()]
        query = self.maybe_mutated(self.random.choice(names))
        return [query, *self.some([*self.choices(), *self.words()])]

    def check(self) -> list[str]:
        return [*self.choices(), *self.some([self.word(), self.likely_word()])]

    def trust(self) -> list[str]:
        return [self.random.choice([*self.files["run"], self.value()]) for _ in range(self.random.choice([0, 1, 1, 2]))]

    def speed(self) -> list[str]:
        own = [f"{key}={self.value()}" for key in self.some(["output", "name", "environments", "seconds", "loggers"])]
        return [*own, *self.choices(), *self.some(self.words())]

    def resume(self) -> list[str]:
        keys = ["experiment.frames", "experiment.loggers", "experiment.logger_options", "experiment.devices", "jit"]
        return [self.random.choice(self.files["run"]), *(f"{key}={self.value()}" for key in self.some(keys))]

    def evaluate(self) -> list[str]:
        keys = ["episodes", "output", "render", "deterministic", "parameters", "opponents.agents", "task.time_limit"]
        words = [f"{self.maybe_mutated(key)}={self.value()}" for key in self.some(keys)]
        return [self.random.choice(self.files["run"]), *words]

    def benchmark(self) -> list[str]:
        values = {
            "algorithms": "[ippo]",
            "tasks": "[probe/constant]",
            "run_dir": "bench",
            "models": "[mlp]",
            "seeds": "2",
            "benchmark": "vmas_quick",
            "only": "0",
            "workers": "1",
            "list": "true",
        }
        needed = [key for key in ("algorithms", "tasks", "run_dir") if self.random.random() < 0.9]
        given = dict.fromkeys([*needed, *self.some(list(values))])
        odd = self.some(list(given))
        words = [f"{self.maybe_mutated(key)}={self.value() if key in odd else values[key]}" for key in given]
        selected = [
            f"{self.random.choice(['ippo:', 'no:', '', 'ippo,iql:a:'])}{word}" for word in self.some(self.words())
        ]
        return [*words, *selected]

    def report(self) -> list[str]:
        keys = ["metric", "normalisation", "legend", "order", "pairs", "title", "formats", "serve", "port"]
        paths = [
            self.random.choice([*self.files["run"], *self.files["result"]])
            for _ in range(self.random.choice([1, 1, 2]))
        ]
        words = [f"{self.maybe_mutated(key)}={self.value()}" for key in self.some(keys)]
        return [*paths, "formats=[]", "output=" + self.random.choice(["page", "page", self.path()]), *words]

    def list(self) -> list[str]:
        kind = self.random.choice(["tasks", "algorithms", "models", "presets", "benchmarks", self.value()])
        words = self.some([self.value(), f"imports={self.value()}", f"config_dir={self.config_dir()}"])
        return [kind, *words]

    # ----------------------------------------------------------------------------------------------------- words

    def choices(self) -> Words:
        """What the experiment is made of; `word` then sets fields of it."""
        self.chosen = {kind: self.random.choice(list(names)) for kind, names in self.fields.items()}
        words = [f"{kind}={name}" for kind, name in self.chosen.items() if kind]
        if self.random.random() < 0.2:
            words.append("config_dir=" + self.config_dir())
            words.append(f"{self.random.choice(['experiment', 'algorithm', 'model', 'task'])}={self.preset()}")
        return words

    def words(self) -> Words:
        return [self.word() for _ in range(self.random.choice([1, 1, 1, 2, 3]))]

    def word(self) -> str:
        """Mostly an odd value for a field that there is; for a number, mostly a number."""
        kind = self.random.choice(list(self.chosen))
        fields = self.fields[kind][self.chosen[kind]]
        name = self.random.choice(list(fields))
        is_number = "int" in fields[name] or "float" in fields[name]
        value = self.random.choice(ODD_NUMBERS) if is_number and self.random.random() < 0.6 else self.value()
        key = self.maybe_mutated(name if kind == "" else f"{kind}.{name}")
        if self.random.random() < 0.95:
            return f"{key}={value}"
        return self.random.choice(
            [key, value, f"+{key}={value}", f"~{key}", f"--{key}={value}", f"={value}", f"{key}="]
        )

    def likely_word(self) -> str:
        """A value of the right type for a field that there is, which may yet be absurd or unfit for the others."""
        fields = [
            (f"{kind}.{name}".removeprefix("."), LIKELY[part])
            for kind, choice in self.chosen.items()
            for name, hint in self.fields[kind][choice].items()
            for part in [part for part in LIKELY if part in hint][:1]
        ]
        key, values = self.random.choice(fields)
        return f"{key}={self.random.choice(values)}"

    def value(self) -> str:
        paths = [*self.files["run"], *self.files["config_dir"], *self.files["result"]]
        return self.random.choice(ODD_VALUES if self.random.random() < 0.95 else paths)

    def path(self) -> str:
        """Below the working folder, or nowhere: nothing else may be written to."""
        return self.random.choice(
            ["a/b/c", "x" * 300, "x" * 5000, "ü", "\udc80", "a\x00b", "a\nb", "null", "/proc/no/such", "''"]
        )

    def config_dir(self) -> str:
        return self.random.choice(self.files["config_dir"])

    def preset(self) -> str:
        return self.random.choice(["", "my/"]) + self.random.choice(self.files["preset"])

    def some(self, words: Sequence[str]) -> Words:
        return self.random.sample(words, min(len(words), self.random.choice([0, 1, 1, 2])))

    def maybe_mutated(self, text: str) -> str:
        return self.mutated(text) if self.random.random() < 0.05 else text

    def mutated(self, text: str) -> str:
        at = self.random.randrange(len(text) + 1)
        new = self.random.choice(["", "x", ".", "..", "_", " ", "é", "\x00", "=", "[0]", "@", "\udc80", "groups."])
        return text[:at] + new + text[at + self.random.choice([0, 1, 3]) :]


def known_fields() -> dict[str, dict[str, dict[str, str]]]:
    """By kind of choice and name: the fields that there are, each with its type as text. "" is the top level."""
    from covey import registry
    from covey.experiment.configuration.config import Config

    def fields(config: Any) -> dict[str, str]:
        return {field.name: str(field.type) for field in dataclasses.fields(config)}

    tasks = [registry.tasks[name] for name in TASKS]
    kinds: dict[str, Iterable[Any]] = {"algorithm": registry.algorithms, "model": registry.models, "task": tasks}
    known = {kind: {entry.name: fields(entry.defaults()) for entry in entries} for kind, entries in kinds.items()}
    experiment = {name: kind for loop in registry.loops for name, kind in fields(loop.defaults()).items()}
    experiment |= {"buffer.size": "int", "buffer.batch_size": "int", "buffer.place": "Place"}
    groups = {"algorithm.groups.agents": "Choice", "model.groups.agents.layers": "tuple[int, ...]"}
    return {**known, "experiment": {"debug": experiment, "default": experiment}, "": {"": fields(Config) | groups}}


def make_commands(seed: int, number: int, files: dict[str, list[str]]) -> list[Command]:
    """Every twentieth command that prints has an odd output."""
    generator = Generator(seed, files)
    commands = [generator.command(index) for index in range(number)]
    printing = (
        ("show",),
        ("list", "tasks"),
        ("--help",),
        ("train", "--help"),
        ("report", files["run"][0], "formats=[]"),
    )
    for index in range(0, number, 20):
        words = printing[index // 20 % len(printing)]
        commands[index] = Command(words, generator.random.choice(OUTPUTS))
    return commands


# ---------------------------------------------------------------------------------------------------------- running


@contextlib.contextmanager
def seams() -> Iterator[None]:
    """While this is open, valid commands stop where they would compile, start processes or serve for ever."""
    from unittest import mock

    def stop(*arguments: Any, **options: Any) -> typing.NoReturn:
        raise Stopped

    from covey.experiment.running.build import make_evaluate

    def traced(*arguments: Any, **options: Any) -> Callable[..., Any]:
        import jax
        import numpy as np

        program = make_evaluate(*arguments, **options)

        def evaluate(*inputs: Any) -> Any:
            return jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), jax.eval_shape(program, *inputs))

        return evaluate

    with contextlib.ExitStack() as stack:
        for place, replacement in {
            "covey.experiment.running.experiment.get_programs": stop,
            "covey.experiment.loading.evaluation.make_evaluate": traced,
            "covey.experiment.loading.evaluation.episode_states": stop,
            "covey.envs.check.play": stop,
            "covey.launch.timing.time_devices": stop,
            "covey.launch.local.run_benchmark": stop,
            "covey.report.serve.serve": stop,
        }.items():
            stack.enter_context(mock.patch(place, replacement))
        yield


def run(command: Command) -> str | None:
    """What went wrong, if anything did."""
    code, errors, problem = run_in_process(command) if command.output in OUTPUTS else run_here(command)
    if problem:
        return problem
    if code not in (0, 1, 2):
        return f"exit code {code}: {errors[-500:]}"
    # Progress and warnings may come first; the reason is the last line, and one line.
    lines = errors.splitlines()
    reasons = [line for line in lines if line.startswith("covey: ")]
    if code and (len(reasons) != 1 or lines[-1] != reasons[0]):
        return f"exit code {code} with {len(reasons)} reasons: {errors[-500:]}"
    return f"traceback: {errors[-1000:]}" if "Traceback" in errors else None


def run_here(command: Command) -> tuple[int, str, str | None]:
    """The exit code, what is on stderr, and what went wrong."""
    from covey import cli

    def end(*_: Any) -> typing.NoReturn:
        raise TooLong

    path, errors = list(sys.path), io.StringIO()
    signal.signal(signal.SIGALRM, end)
    signal.alarm(SECONDS)
    faulthandler.dump_traceback_later(2 * SECONDS, exit=True, file=sys.__stderr__ or sys.stderr)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(errors):
            code = cli.main(command.words)
    except Stopped:
        code = 0
    except TooLong:
        return 0, "", f"took longer than {SECONDS} s: {''.join(traceback.format_exc().splitlines(True)[-8:])}"
    except BaseException as error:
        return 0, "", f"{type(error).__name__}: {''.join(traceback.format_exc().splitlines(True)[-12:])}"
    finally:
        signal.alarm(0)
        faulthandler.cancel_dump_traceback_later()
        sys.path[:] = path
    return code, errors.getvalue(), None


def run_in_process(command: Command) -> tuple[int, str, str | None]:
    with contextlib.ExitStack() as stack:
        settings = dict(os.environ)
        output: Any = subprocess.PIPE
        start: list[str] = []
        if command.output == "full":
            output = stack.enter_context(open("/dev/full", "w"))
        elif command.output == "gone":  # a pipe whose reader has left
            reader, output = os.pipe()
            os.close(reader)
            stack.callback(os.close, output)
        elif command.output == "closed":
            start = ["sh", "-c", 'exec "$@" >&-', "sh"]
        else:
            settings |= {"PYTHONIOENCODING": "ascii", "LC_ALL": "C", "PYTHONUTF8": "0"}
        try:
            done = subprocess.run(
                [*start, sys.executable, "-m", "covey.cli", *command.words],
                stdout=output,
                stderr=subprocess.PIPE,
                env=settings,
                timeout=SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return 0, "", f"took longer than {SECONDS} s"
    return done.returncode, done.stderr.decode("utf-8", "replace"), None


def make_run(folder: Path) -> Path:
    """A small trained team."""
    from covey import cli

    words = ["task=probe/constant", "experiment=debug", "experiment.frames=64", "experiment.rollout_length=8"]
    words += ["model.layers=[8]", "algorithm.epochs=1", "algorithm.num_minibatches=1", "experiment.loggers=[json]"]
    assert cli.main(["train", *words, f"run_dir={folder / 'run'}"]) == 0
    return folder / "run"


def fuzz(seed: int, number: int, only: int | None = None, say: Callable[[str], None] = print) -> int:
    """Runs the commands, says what failed, and returns how many did."""
    failed = 0
    with tempfile.TemporaryDirectory() as name:
        base = Path(name)
        files = make_files(base, make_run(base))
        commands = make_commands(seed, number if only is None else max(number, only + 1), files)
        work = base / "work"
        with seams():
            for index, command in enumerate(commands):
                if only is not None and index != only:
                    continue
                shutil.rmtree(work, ignore_errors=True)
                work.mkdir()
                os.chdir(work)
                print(index, [word[:200] for word in command.words], command.output, file=sys.__stderr__, flush=True)
                problem = run(command)
                if problem is not None:
                    failed += 1
                    shown = {"index": index, "output": command.output, "words": command.words, "problem": problem}
                    say(json.dumps(shown))
        os.chdir(base.parent)
    return failed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--number", type=int, default=100)
    parser.add_argument("--only", type=int)
    options = parser.parse_args()
    sys.exit(1 if fuzz(options.seed, options.number, options.only) else 0)


if __name__ == "__main__":
    main()
