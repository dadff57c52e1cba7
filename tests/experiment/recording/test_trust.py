"""Nothing is imported from a run directory that this user neither made nor trusts, whoever reads it."""

from __future__ import annotations

import dataclasses
import errno
import os
import shutil
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
import yaml

from covey import cli, registry
from covey.errors import UsageError
from covey.experiment.configuration.compose import compose
from covey.experiment.configuration.config import Config, from_dict, to_dict, to_yaml, wanted_imports
from covey.experiment.loading.evaluation import evaluate_run
from covey.experiment.loading.partners import find_partners
from covey.experiment.loading.policy import load
from covey.experiment.recording import trust
from covey.experiment.recording.run_directory import RunDirectory, trust_runs
from covey.experiment.recording.trust import Untrusted, add_trust, is_trusted, key_file, read_or_make_key
from covey.experiment.running.experiment import Experiment, resume
from covey.fields import field, roles, whole

FIELDS = {
    "experiment.frames": 128,
    "experiment.num_envs": 8,
    "experiment.rollout_length": 8,
    "experiment.devices": 1,
    "experiment.evaluation_interval": 0,
    "experiment.evaluation_episodes": 4,
    "experiment.absolute_metric": False,
    "experiment.loggers": [],
    "model.layers": [8],
    "algorithm.num_minibatches": 2,
}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of this user's own for each test."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path / "home"


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that imports nothing."""
    path = tmp_path_factory.mktemp("runs") / "plain"
    Experiment(task="probe/copy", algorithm="ippo", run_dir=str(path), fields=FIELDS).run()
    return path


@pytest.fixture
def foreign(plain: Path, tmp_path: Path) -> Path:
    """Another's run: config.yaml wants a module that notes when it is imported."""
    path = tmp_path / "foreign"
    shutil.copytree(plain, path)
    (path / "code").mkdir()
    name = f"evil_{tmp_path.name}"
    (path / "code" / f"{name}.py").write_text(f"open({str(tmp_path / 'was here')!r}, 'w').close()\nclass Callback: ...")
    change(path, imports=[name], code_dir=str(path / "code"))
    return path


def change(path: Path, **fields: object) -> None:
    config = yaml.safe_load((path / "config.yaml").read_text())
    (path / "config.yaml").write_text(yaml.safe_dump(config | fields, sort_keys=False))


def was_imported(path: Path) -> bool:
    return (path.parent / "was here").exists()


# ------------------------------------------------------------------------------------------------------------ readers

READERS: dict[str, Callable[..., Any]] = {
    "load": lambda path, **options: load(path, **options),
    "resume": lambda path, **options: resume(path, ["experiment.frames=192"], **options),
    "evaluate": lambda path, **options: evaluate_run(path, episodes=2, **options),
}


@pytest.mark.parametrize("reader", READERS)
def test_every_reader_asks_first(foreign: Path, reader: str) -> None:
    before = {path: path.read_bytes() for path in foreign.rglob("*") if path.is_file()}
    with pytest.raises(Untrusted, match=r"wants to import evil_.* from .*code; .*trust=true or `covey trust") as caught:
        READERS[reader](foreign)
    assert "\n" not in str(caught.value)
    assert not was_imported(foreign)
    assert str(foreign / "code") not in sys.path
    assert {path: path.read_bytes() for path in foreign.rglob("*") if path.is_file()} == before
    READERS[reader](foreign, trust=True)
    assert was_imported(foreign)
    READERS[reader](foreign)  # it is trusted from now on


def test_an_opponent_asks_too(foreign: Path, plain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from covey.experiment.loading.partners import make_partner

    env = load(plain).env
    with pytest.raises(Untrusted, match="foreign is not trusted"):
        make_partner(env, "agents", str(foreign), trust=False)
    assert not was_imported(foreign)
    make_partner(env, "agents", str(foreign), trust=True)
    assert was_imported(foreign)


def test_init_from_imports_nothing(foreign: Path, tmp_path: Path) -> None:
    Experiment(
        task="probe/copy", algorithm="ippo", run_dir=str(tmp_path / "new"), init_from=str(foreign), fields=FIELDS
    ).run()
    assert not was_imported(foreign)


def test_a_report_imports_nothing(foreign: Path, tmp_path: Path) -> None:
    assert cli.main(["report", str(foreign), f"output={tmp_path / 'report'}", "formats=[]"]) == 0
    assert not was_imported(foreign)


# ------------------------------------------------------------------------------------------- fields that name code


# As section, a registered name that has the field, and the field.
CODE_FIELDS = [
    ("", "", "imports"),
    ("", "", "hooks"),
    ("", "", "callbacks"),
    ("task", "pettingzoo/any", "module"),
    ("task", "gymnasium/any", "id"),
    ("task", "gymnasium/any", "kwargs"),
    ("task", "meltingpot/clean_up", "path"),
    ("task", "smacv2/terran_5_vs_5", "path"),
    ("task", "smaclite/2s3z", "path"),
    ("task", "gigastep/identical_5_vs_5", "path"),
]


@pytest.mark.parametrize(("section", "name", "field"), CODE_FIELDS)
def test_every_field_that_names_code_needs_trust(
    plain: Path, tmp_path: Path, section: str, name: str, field: str
) -> None:
    value: Any = ["evil:C"] if field == "callbacks" else {"metrics": "evil:f"} if field == "hooks" else "evil:F"
    value = {"deep": ["evil:F"]} if field == "kwargs" else value
    path = tmp_path / "run"
    shutil.copytree(plain, path)
    change(path, **({section: {"name": name, "loop": name, field: value}} if section else {field: value}))
    with pytest.raises(Untrusted, match="wants to import evil"):
        RunDirectory.open(path).load_config()


def test_a_cluster_that_a_stranger_names_needs_trust(plain: Path, tmp_path: Path) -> None:
    """What a Ray cluster answers is unpickled, so it must not even be asked."""
    path = tmp_path / "run"
    shutil.copytree(plain, path)
    change(path, experiment={"loop": "actor_learner", "actors": {"where": "ray", "address": "evil:6379"}})
    with pytest.raises(Untrusted, match="wants to import evil"):
        RunDirectory.open(path).load_config()


def test_fields_that_name_code_are_these() -> None:
    """A field that names code says so with its role, and is tested above."""
    registries = {"task": registry.tasks, "model": registry.models, "algorithm": registry.algorithms}
    found = {("", Config, name) for name, role in roles(Config).items() if role.code}
    for section, known in (registries | {"experiment": registry.loops}).items():
        for cls in {type(entry.defaults()) for entry in known}:
            declared = {name for name, role in roles(cls).items() if role.code}
            found |= {(section, cls, name) for name in declared}
            named_so = {own.name for own in dataclasses.fields(cls)} & {"module", "path", "id", "package", "imports"}
            assert named_so <= declared, f"does a field of {cls.__name__} name code?"
    tested = {
        (section, type(registries[section][name].defaults()) if section else Config, field)
        for section, name, field in CODE_FIELDS
    }
    assert found == tested


def test_a_gymnasium_name_with_a_module_needs_trust(foreign: Path) -> None:
    """Making the environment imports the module, so a stranger's name must not be looked up."""
    name = foreign.parent.name
    fields = ["task=gymnasium/any", f"task.id=evil_{name}:Foo-v0", f"code_dir={foreign / 'code'}"]
    (foreign / "config.yaml").write_text(to_yaml(compose(["algorithm=ippo", *fields])))
    (foreign / "config.trust").unlink(missing_ok=True)
    for reader in READERS.values():
        with pytest.raises(Untrusted, match=rf"wants to import evil_{name} from"):
            reader(foreign)
    assert not was_imported(foreign)
    with pytest.raises(UsageError, match="Gymnasium has no environment 'Foo-v0'"):
        load(foreign, trust=True)
    assert was_imported(foreign)


@pytest.mark.parametrize(("id", "wanted"), [("mine:Foo-v0", ["mine"]), ("a:b:Foo-v0", ["a:b"]), ("Foo-v0", [])])
def test_a_name_that_gymnasium_has_is_no_code(
    id: str, wanted: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = compose(["algorithm=ippo", "task=gymnasium/any", f"task.id='{id}'"])
    assert wanted_imports(to_dict(config)) == wanted
    assert config.code_dir == (str(tmp_path) if wanted else None)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Inner:
    plugin: str = field("", code=whole)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CodeConfig(registry.Configuration):
    other_names: ClassVar[Any] = {"backend": "plugin"}

    plugin: str = field("", code=whole)
    number: int = 3
    inner: Inner = Inner()


def test_code_is_found_wherever_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """In fields of users' own models, in groups, within fields, and under other names."""
    monkeypatch.setattr(registry.models, "_entries", dict(registry.models._entries))
    registry.models.register("test-code", "evil:make", config=CodeConfig, description="names code")
    registry.models._entries["test-code"] = dataclasses.replace(registry.models["test-code"], base=None)
    assert wanted_imports({"model": {"name": "test-code", "number": 4, "plugin": ""}}) == []
    for own in ({"plugin": "evil"}, {"inner": {"plugin": "evil"}}, {"backend": "evil"}):
        assert wanted_imports({"model": {"name": "test-code", **own}}) == ["evil"]
        assert wanted_imports({"model": {"name": "mine", "base": "test-code", **own}}) == ["evil"]
        assert wanted_imports({"critic_model": {"name": "test-code", "groups": {"red": own}}}) == ["evil"]
        assert wanted_imports({"model": {"name": "mlp", "groups": {"red": {"name": "test-code", **own}}}}) == ["evil"]


def test_wanted_imports_of_odd_values() -> None:
    assert wanted_imports({"imports": [], "hooks": {"loss": None}, "callbacks": [], "code_dir": "/x"}) == []
    assert wanted_imports({}) == wanted_imports({"imports": None, "hooks": None}) == []
    assert wanted_imports({"imports": 3, "hooks": ["a:b"], "callbacks": {1: "c:D"}}) == ["3", "a:b", "c:D"]
    odd: list[Any] = [None, 3, [], {"name": ["a"]}, {"name": "none/such", "module": "evil"}, {"name": {}, "groups": 3}]
    for task in odd:
        assert wanted_imports({"task": task, "experiment": task}) == []
    assert wanted_imports({"task": {"name": "pettingzoo/any", "module": ["evil", 3]}}) == ["evil", "3"]


def test_partners_copies_ask_too(
    foreign: Path, plain: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run directory may come with partners of its own, and each is trusted by itself."""
    path = tmp_path / "run"
    shutil.copytree(plain, path)
    shutil.copytree(foreign, path / "partners" / "agents.1-0")
    config = RunDirectory.open(path).load_config()
    config = dataclasses.replace(config, partners={"agents.1": str(tmp_path / "gone")})
    with pytest.raises(UsageError, match=r"agents\.1-0 is not trusted"):
        find_partners(config, path)
    assert not was_imported(foreign)
    assert cli.main(["trust", str(path)]) == 0
    assert "agents.1-0 may import evil_" in capsys.readouterr().out
    assert not was_imported(foreign)
    find_partners(config, path)
    assert was_imported(foreign)


def test_a_run_that_imports_nothing_searches_nowhere_new(
    plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither its code_dir nor the working directory, which may be the run directory itself."""
    path = tmp_path / "run"
    shutil.copytree(plain, path)
    change(path, code_dir=str(path))
    monkeypatch.chdir(path)
    load(path)
    assert str(path) not in sys.path


def test_the_line_holds_no_control_characters(foreign: Path) -> None:
    change(foreign, imports=["a\x1b[2Jb\nc", "x" * 5000])
    with pytest.raises(Untrusted) as caught:
        load(foreign)
    assert str(caught.value).isprintable() and len(str(caught.value)) < 1000


def test_stored_configurations_are_read_in_one_place() -> None:
    """`from_dict` imports code, so it may see a stored configuration in RunDirectory.load_config alone."""
    root = Path(trust.__file__).parents[2]
    users = {path.name: path.read_text() for path in root.rglob("*.py")}
    assert [name for name, text in users.items() if "from_dict(run.config" in text] == []
    assert [name for name, text in users.items() if "from_dict(self.config" in text] == ["run_directory.py"]


# --------------------------------------------------------------------------------------------------------- own runs


def own_run(folder: Path, name: str) -> Path:
    (folder / f"{name}.py").write_text("def count(metrics):\n    return metrics\n")
    fields = {**FIELDS, "hooks.metrics": f"{name}:count"}
    Experiment(task="probe/copy", algorithm="ippo", run_dir=str(folder / "run"), fields=fields).run()
    return folder / "run"


def test_own_runs_are_trusted_also_moved_and_extended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    path = own_run(tmp_path, "own_hooks_of_trust")
    assert stat.S_IMODE(key_file().stat().st_mode) == 0o600
    moved = tmp_path / "elsewhere" / "run"
    moved.parent.mkdir()
    shutil.move(path, moved)
    load(moved)
    resume(moved, ["experiment.frames=192"])  # rewrites config.yaml
    load(moved)
    home.rename(tmp_path / "another's home")
    with pytest.raises(Untrusted):
        load(moved)
    trust_runs(moved)  # both users trust it now
    load(moved)
    shutil.rmtree(home)
    (tmp_path / "another's home").rename(home)
    load(moved)
    change(moved, seed=1)
    with pytest.raises(Untrusted):
        load(moved)


def test_an_unwritable_home_does_not_break_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home.write_text("a file, where nobody can make a folder")
    monkeypatch.chdir(tmp_path)
    path = own_run(tmp_path, "own_hooks_without_home")
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and "cannot note that this run is yours" in err and "trust=true" in err
    with pytest.raises(Untrusted):
        load(path)
    load(path, trust=True)


def test_what_is_verified_is_what_is_parsed(foreign: Path, plain: Path) -> None:
    """A file that changes after it was opened changes nothing."""
    trust_runs(foreign)
    innocent = RunDirectory.open(plain)
    good = (foreign / "config.yaml").read_bytes()
    change(foreign, imports=["worse"])
    run = RunDirectory.open(foreign)
    (foreign / "config.yaml").write_bytes(good)
    with pytest.raises(Untrusted, match="worse"):
        run.load_config()
    assert to_dict(innocent.load_config()) == to_dict(from_dict(innocent.config))


# -------------------------------------------------------------------------------------------------------------- keys


def test_a_digest_needs_the_key_and_the_bytes(tmp_path: Path, home: Path) -> None:
    add_trust(tmp_path, b"one")
    assert is_trusted(tmp_path, b"one") and not is_trusted(tmp_path, b"two")
    add_trust(tmp_path, b"two")
    assert is_trusted(tmp_path, b"one") and is_trusted(tmp_path, b"two")
    for number in range(100):
        add_trust(tmp_path, b"%d" % number)
    assert len((tmp_path / trust.FILE).read_text().splitlines()) == trust.MOST_LINES
    (home / "covey" / "key").unlink()
    assert not is_trusted(tmp_path, b"99")


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"0" * 64, b"short\n"])
def test_odd_trust_files_trust_nothing(tmp_path: Path, content: bytes) -> None:
    read_or_make_key()
    (tmp_path / trust.FILE).write_bytes(content)
    assert not is_trusted(tmp_path, b"one")


def test_a_damaged_key_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    read_or_make_key()
    key_file().write_text("half")
    assert not is_trusted(tmp_path, b"one")
    with pytest.raises(OSError, match="is damaged"):
        add_trust(tmp_path, b"one")


@pytest.mark.parametrize("links", [True, False])
def test_processes_that_make_the_key_at_once_agree(monkeypatch: pytest.MonkeyPatch, home: Path, links: bool) -> None:
    def refuse(*arguments: object) -> None:
        raise OSError(errno.EPERM, "not permitted")

    if not links:
        monkeypatch.setattr(os, "link", refuse)
    for _ in range(10):
        barrier = threading.Barrier(8)
        keys: list[Any] = []

        def make(barrier: threading.Barrier = barrier, keys: list[Any] = keys) -> None:
            barrier.wait()
            keys.append(read_or_make_key())

        threads = [threading.Thread(target=make) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(keys) == 8 and len(set(keys)) == 1
        assert [path.name for path in (home / "covey").iterdir()] == ["key"]
        (home / "covey" / "key").unlink()


# -------------------------------------------------------------------------------------------------------- command line


def test_the_verb_and_the_word(foreign: Path, plain: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["evaluate", str(foreign), "episodes=2"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert cli.main(["resume", str(foreign)]) == 0  # it is finished, and nothing must be imported to say so
    assert cli.main(["resume", str(foreign), "experiment.frames=192"]) == 2
    assert not was_imported(foreign)
    assert cli.main(["resume", str(foreign), "trust=perhaps"]) == 2
    assert "trust takes true or false" in capsys.readouterr().err

    bench = tmp_path / "bench"
    shutil.copytree(foreign, bench / "name" / "seed_0")
    shutil.copytree(plain, bench / "name" / "seed_1")
    assert cli.main(["trust", str(bench)]) == 0
    out = capsys.readouterr().out
    assert "seed_0 may import evil_" in out and "seed_1 imports nothing" in out
    assert not was_imported(foreign)
    assert cli.main(["evaluate", str(bench / "name" / "seed_0"), "episodes=2"]) == 0
    assert cli.main(["evaluate", str(foreign), "episodes=2", "trust=true"]) == 0
    assert cli.main(["evaluate", str(foreign), "episodes=2"]) == 0
    assert cli.main(["trust"]) == cli.main(["trust", str(tmp_path / "home")]) == 2


def test_a_read_only_run_is_trusted_for_once(foreign: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr("covey.experiment.recording.run_directory.add_trust", refuse)
    load(foreign, trust=True)
    with pytest.raises(Untrusted):
        load(foreign)
    with pytest.raises(UsageError, match=r"cannot keep the trust in .* .Read-only file system"):
        trust_runs(foreign)


def test_no_file_of_a_run_is_pickled(plain: Path) -> None:
    """What is left is text, JSON, YAML and Zarr, whose compressors know no Python."""
    code = "import sys; from covey import load; load(sys.argv[1])"
    guard = "import pickle, sys\ndef refuse(*a, **k): raise SystemExit('unpickled')\n"
    guard += "pickle.load = pickle.loads = refuse\n"
    done = subprocess.run([sys.executable, "-c", guard + code, str(plain)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
