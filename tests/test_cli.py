"""The command line: what it prints, and which exit code and line every bad input gets."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import types
from pathlib import Path
from typing import Any

import pytest

from covey import cli, registry
from covey.errors import CoveyError, Interrupted


def run(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "covey.cli", *arguments], cwd=cwd, capture_output=True, text=True, timeout=120
    )
    print(f"covey {' '.join(arguments)}: {time.perf_counter() - start:.2f} s")
    return done


def fails(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 2) -> str:
    """The one line that a command fails with."""
    assert cli.main(arguments) == code
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("covey: ")
    assert output.err.count("\n") == 1
    return output.err


# ------------------------------------------------------------------------------------------------- help and lists


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"], *([verb, "--help"] for verb in cli.VERBS)])
def test_help(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    assert cli.main(arguments) == 0
    output = capsys.readouterr()
    assert output.out.startswith("covey")
    assert max(map(len, output.out.splitlines())) <= 120
    assert all(verb in output.out for verb in cli.VERBS if len(arguments) < 2)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("covey 0.")


@pytest.mark.parametrize("kind", ["tasks", "algorithms", "models"])
def test_lists_show_every_name_with_its_description(capsys: pytest.CaptureFixture[str], kind: str) -> None:
    assert cli.main(["list", kind]) == 0
    lines = capsys.readouterr().out.splitlines()
    for entry in getattr(registry, kind):
        assert any(line.split()[:1] == [entry.name] and entry.description in line for line in lines)


def test_list_filters_and_summary(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list", "tasks", "jaxnav"]) == 0
    assert {line.split("/")[0].strip() for line in capsys.readouterr().out.splitlines()} == {"jaxnav"}
    assert cli.main(["list", "presets", "seconds"]) == 0
    assert capsys.readouterr().out.split()[0] == "debug"
    assert cli.main(["list"]) == 0
    assert "covey list tasks" in capsys.readouterr().out


def test_list_shows_the_users_own(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "conf" / "task" / "my").mkdir(parents=True)
    (tmp_path / "conf" / "task" / "my" / "five.yaml").write_text("# five of them\nbase: lbf/8x8-2p-2f-coop\n")
    assert cli.main(["list", "tasks", "my/", "config_dir=conf"]) == 0
    assert capsys.readouterr().out.split() == ["my", "my/five", "five", "of", "them"]


@pytest.mark.parametrize("arguments", [["--help"], ["list", "tasks"], ["list", "presets"]])
def test_nothing_heavy_is_imported_for_help_and_lists(arguments: list[str]) -> None:
    code = (
        "import sys; from covey.cli import main; code = main(sys.argv[1:]); "
        "heavy = {'jax', 'flax', 'numpy', 'jumanji'} & set(sys.modules); sys.exit(str(heavy) if heavy else code)"
    )
    start = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=60)
    print(f"covey {' '.join(arguments)}: {time.perf_counter() - start:.2f} s")
    assert done.returncode == 0, done.stderr


# ------------------------------------------------------------------------------------------------------ bad input


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("algorithm=mapo", "unknown algorithm 'mapo'; nearest: mappo, maddpg, ippo (`covey list` shows all)"),
        ("task=8x8-2p-2f-coop", "unknown task '8x8-2p-2f-coop'; nearest: foraging/8x8-2p-2f-coop, lbf/8x8-2p-2f-coop"),
        ("model=mpl", "unknown model 'mpl'; nearest: mlp"),
        ("critic_model=gruu", "unknown model 'gruu'; nearest: gru"),
        ("experiment=debugg", "unknown preset 'debugg'; nearest: debug"),
        ("algorithm=", "'algorithm=' has no value; some are"),
        ("algorithm=ippo,mappo", "algorithm= takes one name, not 'ippo,mappo'"),
        ("task=[a,b]", "task= takes one name, not '[a,b]'"),
        ("~algorithm", "algorithm= takes one name"),
        ("algorithm.lrr=1", "unknown field 'algorithm.lrr'; nearest: algorithm.lr"),
        ("algorithm.lr=abc", "algorithm.lr takes float, not 'abc'"),
        ("algorithm.lr=-1", "algorithm: lr must be above 0"),
        ("algorithm.lr.x=1", "unknown field 'algorithm.lr.x'; nearest: algorithm.lr"),
        ("algorithm.lr=${nothing}", "cannot compose: Interpolation key 'nothing' not found"),
        ("algorithm.lr=(", "cannot read the value in 'algorithm.lr=('"),
        ("algorithm.name=ippo", "unknown field 'algorithm.name'"),
        ("algorithm.minibatch_size=1e6", "algorithm: minibatch_size 1000000 is larger than the batch of 2048 frames"),
        ("algorithm.sequence_length=20", "is not a multiple of algorithm.sequence_length=20; 16 or 32 would"),
        ("experiment.frames=1.5", "experiment.frames takes int, not 1.5"),
        ("experiment.frames=-1", "experiment: frames must be at least 1, not -1"),
        ("experiment.devices=7", "num_envs=64 does not split over devices=7; 63 or 70 would"),
        ("experiment.loggers=wandb", "experiment.loggers takes a list, not 'wandb'"),
        ("experiment.loggers=console,wandb", "a list is in brackets: experiment.loggers=[a,b]"),
        ("experiment.platform=cuda", "unknown value for experiment.platform 'cuda'; nearest: "),
        ("task.reward=team", "unknown value for task.reward 'team'; nearest: team_sum, team_mean"),
        ("task.reward=team", "; it takes individual, shared, team_sum, team_mean (`covey help task.reward`)"),
        ("algorithm.lr_schedule=Linear", "unknown value for algorithm.lr_schedule 'Linear'; nearest: linear"),
        ("algorithm=MAPPO", "unknown algorithm 'MAPPO'; nearest: mappo"),
        ("task=Navigation", "unknown task 'Navigation'; nearest: vmas/navigation"),
        ("Seed=3", "unknown key 'Seed'; nearest: seed"),
        ("algorithm.LR=3", "unknown field 'algorithm.LR'; nearest: algorithm.lr ("),
        ("model.hidden=64", "unknown field 'model.hidden'; nearest: model.layers ("),
        ("learning_rate=1", "unknown key 'learning_rate'; nearest: algorithm.lr ("),
        ("algorithm.learning_rate=1", "unknown field 'algorithm.learning_rate'; nearest: algorithm.lr ("),
        ("n_envs=3", "nearest: experiment.num_envs ("),
        ("num_environments=3", "nearest: experiment.num_envs ("),
        ("algorithm.num_envs=3", "unknown field 'algorithm.num_envs'; nearest: experiment.num_envs ("),
        ("total_timesteps=3", "nearest: experiment.frames ("),
        ("max_n_frames=3", "nearest: experiment.frames ("),
        ("batch_size=3", "nearest: algorithm.minibatch_size ("),
        ("hidden_size=3", "nearest: model.layers ("),
        ("num_agents=3", "unknown key 'num_agents'; nearest: task.n_agents ("),
        ("discount=0.9", "nearest: algorithm.gamma ("),
        ("env=vmas", "unknown key 'env'; nearest: task ("),
        ("frames=3", "unknown key 'frames'; nearest: experiment.frames"),
        ("hydra.verbose=true", "unknown key 'hydra.verbose'"),
        ("foo", "cannot read 'foo': everything here is key=value"),
        ("=3", "cannot read '=3'"),
        ("model@critic_model=gru", "cannot read 'model@critic_model=gru'"),
        ("--lr=3", "unknown option '--lr=3'; covey takes key=value"),
        ("seed=range(3)", "'seed' takes one value, not 'range(3)'; seeds=3 trains several"),
        ("seed=-1", "seeds start at 0, not at -1"),
        ("seeds=[1,1]", "seeds=[1, 1] names a seed twice"),
        ("seeds=99999999999999999999", "seeds=99999999999999999999 are too many"),
        (f"seed={'9' * 5000}", "cannot read the value in 'seed=9999"),
        ("seeds=0", "seeds is empty; seeds=3 means 0, 1 and 2"),
        ("jit=maybe", "jit takes bool, not 'maybe'"),
        ("hooks.loss=my_loss", "hooks: loss takes module:function, not 'my_loss'"),
        ("imports=[no_such_module]", "imports: no module 'no_such_module' in the working directory or installed"),
        ("imports=[json.py]", "did you mean imports=[json]?"),
        ("experiment.frames=1e30", "experiment.frames takes a whole number up to 9,007,199,254,740,992, not 1000"),
        ("experiment.frames=1e15", "is more than 2,147,483,647 iterations of 2,048 frames each"),
        ("experiment.evaluation_episodes=1e30", "evaluation_episodes takes a whole number up to 2,147,483,647"),
        ("experiment.num_envs=4294967296", "experiment.num_envs takes a whole number up to 2,147,483,647"),
        ("algorithm.lr=inf", "algorithm.lr takes a finite number"),
        ("algorithm.lr=1e39", "algorithm.lr takes a finite number, at most 3.4e+38"),
        (f"algorithm.lr={'9' * 400}", "algorithm.lr takes a finite number"),
        ("task.n_agents=1e6", "task: n_agents must be at most 256, not 1,000,000"),
        (f"algorithm.lr={'[' * 3000}{']' * 3000}", "cannot read the value in 'algorithm.lr=[[["),
        (f"algorithm={'x' * 5000}", "unknown algorithm 'xxx"),
        (f"experiment={'x' * 5000}", "unknown preset 'xxx"),
        ("experiment.logger_options={wandb:1}", "logger_options takes a mapping for each logger, as in {wandb: {"),
        ("a\0b=3", "an argument holds a NUL character"),
        ("config_dir=no_such_folder", "config_dir: no folder 'no_such_folder'"),
        ("config_dir=.", "config_dir: '.' has none of the folders experiment, algorithm, task, model"),
    ],
)
def test_bad_overrides(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, override: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert message in fails(capsys, "train", override)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["batch_size=3", "algorithm=qmix"], "unknown key 'batch_size'; nearest: experiment.buffer.batch_size ("),
        (["hidden_size=3", "model=gru"], "nearest: model.hidden_size, model.layers ("),
        (["n_agents=3", "task=rware/tiny-2ag"], "nearest: task.num_agents ("),
        (["n_agents=3", "task=vmas/simple_tag"], "nearest: task.num_good_agents, task.num_adversaries ("),
    ],
)
def test_suggestions_fit_what_was_chosen(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert message in fails(capsys, "show", *arguments)


def test_a_list_that_the_shell_split(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    common = ("tasks=[vmas/navigation]", f"run_dir={tmp_path / 'bench'}", "list=true")
    message = fails(capsys, "benchmark", "algorithms=[ippo,", "mappo]", *common)
    assert "cannot read the value in 'algorithms=[ippo,'; its bracket is not closed" in message
    assert "put quotes around the whole word: 'algorithms=[a, b]'" in message
    # Which is what works.
    assert cli.main(["benchmark", "algorithms=[ippo, mappo]", *common]) == 0
    assert capsys.readouterr().out.count("\n") == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trian"], "unknown verb 'trian'; nearest: train"),
        (["--verison"], "unknown verb '--verison'"),
        (["list", "task"], "cannot list 'task'; nearest: tasks"),
        (["list", "tasks", "no-such"], "nothing matches 'no-such'; nearest: "),
        (["list", "tasks", "imprts=[os]"], "unknown key of list 'imprts'; nearest: imports"),
        (["resume"], "resume needs a run directory first: covey resume RUN"),
        (["resume", "experiment.frames=3"], "resume needs a run directory first"),
        (["resume", "runs/frist"], "no run directory 'runs/frist'; nearest: runs/first"),
        (["resume", "x" * 300], "no run directory 'xxx"),
        (["resume", f"{'x' * 300}=3"], "resume needs a run directory first"),
        (["evaluate", "elsewhere/run"], "no run directory 'elsewhere/run'"),
        (["evaluate", "runs/first", "episode=3"], "unknown key of evaluate 'episode'; nearest: episodes"),
        (["evaluate", "runs/first", "episodes=few"], "evaluate.episodes takes int, not 'few'"),
        (["evaluate", "runs/first", "episodes=0"], "evaluate: episodes must be at least 1, not 0"),
        (["evaluate", "runs/first", "100"], "cannot read '100'"),
        (["evaluate", "runs/first", "parameters=last"], "unknown value for evaluate.parameters 'last'; nearest: "),
    ],
)
def test_bad_commands(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    message: str,
) -> None:
    (tmp_path / "runs" / "first").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert message in fails(capsys, *arguments)


def test_a_module_that_fails_is_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "broken_module.py").write_text("raise RuntimeError('two\\nlines')\n")
    (tmp_path / "needy_module.py").write_text("import no_such_dependency\n")
    assert "'broken_module' failed with RuntimeError: two lines" in fails(capsys, "show", "imports=[broken_module]")
    assert "'needy_module' needs the module 'no_such_dependency'" in fails(capsys, "show", "imports=[needy_module]")


def test_bad_input_in_a_process_of_its_own(tmp_path: Path) -> None:
    done = run("train", "algorithm=mapo", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "covey: unknown algorithm 'mapo'; nearest: mappo, maddpg, ippo (`covey list` shows all)\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["seed=1", "seeds=2"], "'seed' has no effect beside seeds=2; leave one out, or set seeds=null"),
        (
            ["algorithm.minibatch_size=64", "algorithm.num_minibatches=2"],
            "'algorithm.num_minibatches' has no effect beside algorithm.minibatch_size=64",
        ),
        (
            ["experiment=mine", "config_dir=conf", "algorithm.num_minibatches=2"],  # the other one is in the file
            "'algorithm.num_minibatches' has no effect beside algorithm.minibatch_size=128",
        ),
    ],
)
def test_fields_without_effect_beside_another_are_refused(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    message: str,
) -> None:
    (tmp_path / "conf" / "experiment").mkdir(parents=True)
    (tmp_path / "conf" / "experiment" / "mine.yaml").write_text("algorithm: {name: mappo, minibatch_size: 128}\n")
    monkeypatch.chdir(tmp_path)
    assert message in fails(capsys, "show", *words)
    assert cli.main(["show", *words, "seeds=null", "algorithm.minibatch_size=null"]) == 0
    capsys.readouterr()


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("model.layers=[1e9]", "training takes at least"),
        ("experiment.evaluation_episodes=1e9", "an evaluation"),
        ("experiment.rollout_length=1e9", "a rollout"),
        ("task.agent_radius=1e9", "task: 6 places at least 2e+09 apart do not fit into 2 x 2"),
        ("task.agent_radius=0.6", "task: 6 places at least 1.25 apart do not fit into 2 x 2"),
    ],
)
def test_sizes_that_cannot_be_are_refused_before_anything_compiles(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, word: str, message: str
) -> None:
    import covey.experiment.running.experiment as experiment

    monkeypatch.setattr(experiment, "get_programs", lambda *_: pytest.fail("it compiles"))
    monkeypatch.chdir(tmp_path)
    divides = ["algorithm.num_minibatches=1", "algorithm.critic_sees=own", "experiment.devices=1"]
    assert message in fails(capsys, "train", word, *divides)
    assert list(tmp_path.iterdir()) == []


def test_a_gpu_that_is_not_there(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    line = fails(capsys, "train", "experiment=gpu")
    assert (
        "experiment.platform=gpu is not available on this machine: JAX finds cpu; "
        "experiment.platform=cpu trains on the cores" in line
    )
    assert "pip install 'jax[cuda12]'" in line
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["binary", "fifo", "folder", "loop", "nested", "unreadable"])
def test_odd_files_among_the_presets(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """They are named where they are chosen, and keep nobody from choosing another."""
    reasons = {
        "binary": "it is not UTF-8 text",
        "fifo": "not a regular file",
        "folder": "not a regular file",
        "loop": "Too many levels of symbolic links",
        "nested": "it is nested too deeply",
        "unreadable": "Permission denied",
    }
    folder = tmp_path / "conf" / "experiment"
    folder.mkdir(parents=True)
    (folder / "good.yaml").write_text("# good\nexperiment: {frames: 77}\n")
    odd = folder / "odd.yaml"
    if kind == "fifo":
        os.mkfifo(odd)
    elif kind == "folder":
        odd.mkdir()
    elif kind == "loop":
        odd.symlink_to(odd)
    else:
        odd.write_bytes({"binary": bytes(range(256)), "nested": b"[" * 20_000}.get(kind, b"a: 1\n"))
    if kind == "unreadable":
        odd.chmod(0)
        if os.access(odd, os.R_OK):
            pytest.skip("this user may read everything")
    monkeypatch.chdir(tmp_path)
    assert cli.main(["list", "presets", "config_dir=conf"]) == 0
    listed = capsys.readouterr().out
    assert "good" in listed and (f"odd          cannot be read: {reasons[kind]}" in listed or kind == "nested")
    assert cli.main(["show", "config_dir=conf", "experiment=good"]) == 0
    assert "frames: 77" in capsys.readouterr().out
    line = fails(capsys, "show", "config_dir=conf", "experiment=odd")
    assert reasons[kind] in line or "unknown preset 'odd'" in line


def test_names_in_files_must_be_names(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "conf" / "experiment").mkdir(parents=True)
    (tmp_path / "conf" / "experiment" / "odd.yaml").write_text("algorithm: {name: 3}\n")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text("algorithm: {name: 3}\n")
    monkeypatch.chdir(tmp_path)
    assert "odd.yaml: algorithm.name takes one name, not 3" in fails(
        capsys, "show", "config_dir=conf", "experiment=odd"
    )
    (tmp_path / "run/environment.json").write_text("{}")
    assert "algorithm.name takes one name, not 3" in fails(capsys, "evaluate", "run")


# ------------------------------------------------------------------------------------------------ standard streams


@pytest.mark.parametrize("words", [("--help",), ("show",), ("list", "tasks")])
@pytest.mark.parametrize(("output", "code"), [("closed", 0), ("full", 1), ("ascii", 0), ("gone", 0)])
def test_odd_standard_outputs(words: tuple[str, ...], output: str, code: int) -> None:
    from fuzz import Command, run_in_process

    found, errors, problem = run_in_process(Command(words, output))
    assert (found, problem) == (code, None)
    assert errors == ("covey: cannot write to standard output: No space left on device\n" if output == "full" else "")


# ---------------------------------------------------------------------------------------------- what the verbs call


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the verbs call, recorded instead of run; an error put in `calls` is raised."""
    recorded: list[Any] = []

    def record(*arguments: Any, **options: Any) -> None:
        if recorded:
            raise recorded[0]
        recorded.append((*arguments, options))

    modules = {"running.experiment": ("train", "resume"), "loading.evaluation": ("evaluate_run",)}
    for name, functions in modules.items():
        module = types.ModuleType(f"covey.experiment.{name}")
        for function in functions:
            setattr(module, function, record)
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return recorded


def test_train_gets_the_configuration(calls: list[Any]) -> None:
    assert cli.main(["train", "seed=4"]) == 0
    [(config, _)] = calls
    assert (config.algorithm.name, config.task.name, config.model.name) == ("mappo", "vmas/navigation", "mlp")
    assert config.seed == 4


def test_train_says_which_settings_it_found(calls: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", "task=rware/tiny-4ag", "algorithm=mappo", "settings=tuned"]) == 0
    [(config, _)] = calls
    assert config.experiment.frames == 20_000_000
    assert capsys.readouterr().out == (
        "tuned settings for rware/tiny-4ag, mappo (tuning: two trials of 4M frames; result: 20,000,000 frames, "
        "3 seeds, results/rware-tiny-4ag.json)\n"
    )


def test_resume_and_evaluate_get_the_run_directory(calls: list[Any], tmp_path: Path) -> None:
    assert cli.main(["resume", str(tmp_path), "experiment.frames=9"]) == 0
    assert calls.pop() == (tmp_path, ["experiment.frames=9"], {"trust": False, "store": None})
    assert cli.main(["resume", str(tmp_path), "trust=true", "experiment.frames=9"]) == 0
    assert calls.pop() == (tmp_path, ["experiment.frames=9"], {"trust": True, "store": None})
    assert cli.main(["evaluate", str(tmp_path), "episodes=1e2", "output=7", "deterministic=true"]) == 0
    options = {"episodes": 100, "output": "7", "render": None, "deterministic": True, "parameters": "final"}
    assert calls.pop() == (tmp_path, options | {"partners": {}, "opponents": {}, "task": {}, "trust": False})
    assert cli.main(["evaluate", str(tmp_path), "opponents.red=random", "task.n_agents=5"]) == 0
    _, options = calls.pop()
    assert (options["opponents"], options["task"]) == ({"red": "random"}, {"n_agents": 5})
    assert cli.main(["evaluate", str(tmp_path), "partners.red.1=[random,runs/b]", "partners.rotate=true"]) == 0
    assert calls.pop()[1]["partners"] == {"red.1": ["random", "runs/b"], "rotate": True}


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (CoveyError("the loss is\nnot finite"), 1, "the loss is not finite"),
        (Interrupted(15, "saved to runs/first"), 143, "saved to runs/first"),
        (Interrupted(2), 130, "interrupted"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_exit_codes(
    calls: list[Any], capsys: pytest.CaptureFixture[str], error: BaseException, code: int, message: str
) -> None:
    calls.append(error)
    assert fails(capsys, "train", code=code) == f"covey: {message}\n"


def test_show_prints_the_resolved_configuration(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["show", "task.time_limit=77", "experiment=debug"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("algorithm:\n  name: mappo\n")
    assert "  time_limit: 77\n" in text
    assert "  loggers: [console]\n" in text


def test_a_users_own_task_in_a_process_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "my_tasks.py").write_text(
        "import dataclasses\n"
        "from covey.registry import register_task\n\n"
        "@dataclasses.dataclass(frozen=True)\n"
        "class Fields:\n    width: int = 2\n\n"
        "register_task('mine/thing', 'my_tasks:Thing', config=Fields, description='my own')\n"
    )
    done = run("show", "imports=[my_tasks]", "task=mine/thing", "task.width=5", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "task:\n  name: mine/thing\n  width: 5\n" in done.stdout
    assert "imports: [my_tasks]\n" in done.stdout
    listed = run("list", "tasks", "mine", "imports=[my_tasks]", cwd=tmp_path)
    assert listed.stdout == "mine\n  mine/thing  my own\n"

    # From another folder, the stored configuration still finds the module.
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "config.yaml").write_text(done.stdout)
    read = (
        "from covey.experiment.configuration.config import from_yaml; "
        "print(from_yaml(open('../config.yaml').read()).task.name)"
    )
    again = subprocess.run(
        [sys.executable, "-c", read], cwd=tmp_path / "elsewhere", capture_output=True, text=True, check=False
    )
    assert again.stdout == "mine/thing\n", again.stderr
