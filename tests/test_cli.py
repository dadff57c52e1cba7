"""The command line: what it prints, and which exit code and line every bad input gets."""

from __future__ import annotations

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
    assert cli.main(["list", "tasks", "lbf"]) == 0
    assert {line.split("/")[0].strip() for line in capsys.readouterr().out.splitlines()} == {"lbf"}
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
        ("task=8x8-2p-2f-coop", "unknown task '8x8-2p-2f-coop'; nearest: lbf/8x8-2p-2f-coop"),
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
        ("algorithm.sequence_length=20", "is no multiple of algorithm.sequence_length=20; 16 or 32 would"),
        ("experiment.frames=1.5", "experiment.frames takes int, not 1.5"),
        ("experiment.frames=-1", "experiment: frames must be at least 1, not -1"),
        ("experiment.devices=7", "num_envs=64 does not split over devices=7; 63 or 70 would"),
        ("experiment.loggers=wandb", "experiment.loggers takes a list, not 'wandb'"),
        ("experiment.loggers=console,wandb", "a list is in brackets: experiment.loggers=[a,b]"),
        ("experiment.platform=cuda", "unknown value for experiment.platform 'cuda'; nearest: "),
        ("task.reward=team", "unknown value for task.reward 'team'; nearest: team_sum, team_mean"),
        ("frames=3", "unknown key 'frames'; nearest: experiment.frames"),
        ("hydra.verbose=true", "unknown key 'hydra.verbose'"),
        ("foo", "cannot read 'foo': everything here is key=value"),
        ("=3", "cannot read '=3'"),
        ("model@critic_model=gru", "cannot read 'model@critic_model=gru'"),
        ("--lr=3", "unknown option '--lr=3'; covey takes key=value"),
        ("seed=range(3)", "'seed' takes one value, not 'range(3)'; seeds=3 trains several"),
        ("seed=-1", "seeds start at 0, not at -1"),
        ("seeds=[1,1]", "seeds=[1, 1] has one twice"),
        ("seeds=99999999999999999999", "seeds=99999999999999999999 are too many"),
        (f"seed={'9' * 5000}", "cannot read the value in 'seed=9999"),
        ("seeds=0", "seeds is empty; seeds=3 means 0, 1 and 2"),
        ("jit=maybe", "jit takes bool, not 'maybe'"),
        ("hooks.loss=my_loss", "hooks: loss takes module:function, not 'my_loss'"),
        ("imports=[no_such_module]", "imports: no module 'no_such_module' here or among the installed ones"),
        ("imports=[json.py]", "imports=[json] is meant?"),
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


# ---------------------------------------------------------------------------------------------- what the verbs call


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the verbs call, recorded instead of run; an error put in `calls` is raised."""
    recorded: list[Any] = []

    def record(*arguments: Any, **options: Any) -> None:
        if recorded:
            raise recorded[0]
        recorded.append((*arguments, options))

    for name, functions in {"experiment": ("train", "resume"), "evaluation": ("evaluate_run",)}.items():
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


def test_resume_and_evaluate_get_the_run_directory(calls: list[Any], tmp_path: Path) -> None:
    assert cli.main(["resume", str(tmp_path), "experiment.frames=9"]) == 0
    assert calls.pop() == (tmp_path, ["experiment.frames=9"], {})
    assert cli.main(["evaluate", str(tmp_path), "episodes=1e2", "output=7", "deterministic=true"]) == 0
    options = {"episodes": 100, "output": "7", "render": None, "deterministic": True, "parameters": "final"}
    assert calls.pop() == (tmp_path, options | {"opponents": {}, "task": {}})
    assert cli.main(["evaluate", str(tmp_path), "opponents.red=random", "task.n_agents=5"]) == 0
    _, options = calls.pop()
    assert (options["opponents"], options["task"]) == ({"red": "random"}, {"n_agents": 5})


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
    read = "from covey.experiment.config import from_yaml; print(from_yaml(open('../config.yaml').read()).task.name)"
    again = subprocess.run(
        [sys.executable, "-c", read], cwd=tmp_path / "elsewhere", capture_output=True, text=True, check=False
    )
    assert again.stdout == "mine/thing\n", again.stderr
