"""Compiled programs are kept, found without tracing, and never used where something about them has changed."""

from __future__ import annotations

import dataclasses
import errno
import importlib
import math
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from conftest import SameBits
from jax.experimental.compilation_cache import compilation_cache

from covey.errors import CoveyError
from covey.experiment.configuration.compose import compose
from covey.experiment.configuration.config import Config
from covey.experiment.recording.checkpoint import Checkpoints
from covey.experiment.recording.run_directory import read_metrics
from covey.experiment.running import program_store
from covey.experiment.running.build import build, has_own_code
from covey.experiment.running.changes import Variant
from covey.experiment.running.experiment import get_programs, prepare, train
from covey.experiment.running.program_store import (
    ProgramStore,
    Shelf,
    experiment_name,
    is_private,
    sources_digest,
)
from covey.experiment.running.programs import Programs
from covey.metrics import WALL_CLOCK
from covey.ops.random import host_key

TINY = ("task=probe/copy", "algorithm=ippo", "experiment.num_envs=4", "experiment.rollout_length=4", "model.layers=[8]")


@pytest.fixture(scope="module")
def config() -> Config:
    config, _ = prepare(compose([*TINY, "experiment.devices=1"]))
    return config


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ProgramStore:
    monkeypatch.setattr(program_store, "STARTED", math.inf)  # other tests of this process import files that they wrote
    for name in ("programs", "experiments"):
        (tmp_path / "store" / name).mkdir(parents=True)
    return ProgramStore(tmp_path / "store")


@pytest.fixture
def no_jax_cache() -> Iterator[None]:
    """What came out of JAX's cache cannot be written out again, so the command switches it off, and so does this."""
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()
    yield
    jax.config.update("jax_enable_compilation_cache", True)
    compilation_cache.reset_cache()


def keep(store: ProgramStore, config: Config, devices: list[Any]) -> tuple[Shelf, Programs]:
    shelf = Shelf.of(store, config, devices, 1)
    parts = build(config, devices, trace=shelf.kept is None)
    programs = get_programs(config, parts, shelf)
    programs.evaluation()
    for thread in threading.enumerate():
        if "_save" in thread.name:
            thread.join()
    return shelf, programs


def test_programs_are_found_again_and_compute_the_same(
    config: Config, store: ProgramStore, no_jax_cache: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    devices = jax.devices()[:1]
    first, compiled = keep(store, config, devices)
    assert first.kept is None
    monkeypatch.setattr(program_store, "compile_lowered", lambda *_: pytest.fail("compiled again"))
    second, loaded = keep(store, config, devices)
    assert second.kept is not None and set(second.kept.digests) == {"init", "advance", "evaluate"}

    def learn(programs: Programs) -> Any:
        state, metrics = programs.advance(programs.init(host_key(3)), np.int32(2))
        return jax.device_get((state.learner, metrics, programs.evaluation()(state.learner, host_key(4))))

    jax.tree.map(np.testing.assert_array_equal, learn(compiled), learn(loaded))


def test_a_program_that_is_compiled_again_is_found_by_its_code(
    config: Config, store: ProgramStore, no_jax_cache: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a field was changed; what is known of the experiment's own programs stays as it was."""
    devices, changes = jax.devices()[:1], {"algorithm.epochs": 3}
    parts = build(config, devices)
    for _ in range(2):
        shelf, programs = keep(store, config, devices)
        changed = Variant(config=config, parts=parts, programs=programs).changed(changes)
        assert changed.config.algorithm.config.epochs == 3 and changed.programs.evaluation is programs.evaluation
        for thread in threading.enumerate():
            if "_save" in thread.name:
                thread.join()
        monkeypatch.setattr(program_store, "compile_lowered", lambda *_: pytest.fail("compiled again"))
    assert len(list((store.folder / "programs").iterdir())) == 4
    assert shelf.kept is not None and set(shelf.kept.digests) == {"init", "advance", "evaluate"}
    with pytest.raises(CoveyError, match=r"cannot continue with model.layers=\[16\]: the train state would have other"):
        Variant(config=config, parts=parts, programs=programs).changed({"model.layers": [16]})


def test_programs_that_differ_only_in_what_they_do_not_read_are_told_apart(
    store: ProgramStore, no_jax_cache: None
) -> None:
    """Evaluating MASAC and ISAC is the same code, over critics of other shapes that it never reads."""
    devices, key = jax.devices()[:1], host_key(0)
    act = jax.jit(lambda learner, key: learner["actor"] + jax.random.uniform(key))
    for size in (3, 1):
        learner = {"actor": np.ones(2, np.float32), "critic": np.ones(size, np.float32)}
        compiled, _ = store.compile(act.lower(learner, key), None, devices)
        assert compiled(learner, key).shape == (2,)
        for thread in threading.enumerate():
            if "_save" in thread.name:
                thread.join()


def test_a_damaged_program_is_compiled_again(config: Config, store: ProgramStore, no_jax_cache: None) -> None:
    devices = jax.devices()[:1]
    keep(store, config, devices)
    for path in (store.folder / "programs").iterdir():
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    shelf, _ = keep(store, config, devices)
    assert shelf.load(build(config, devices)) is not None  # compiled again, and kept again


def test_the_least_recently_used_programs_go(store: ProgramStore) -> None:
    store.most_bytes = 250
    for number in range(4):
        path = store.folder / "programs" / str(number)
        path.write_bytes(b"x" * 100)
        os.utime(path, (number, number))
    store._prune()
    assert {path.name for path in (store.folder / "programs").iterdir()} == {"2", "3"}


def test_a_name_covers_all_that_programs_are_made_from(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    devices = jax.devices()[:1]
    name = experiment_name(config, devices, 1)
    assert experiment_name(dataclasses.replace(config, seed=5, run_dir="elsewhere"), devices, 1) == name
    watched = dataclasses.replace(config.experiment, loggers=("json",), evaluation_interval=7)
    assert experiment_name(dataclasses.replace(config, experiment=watched), devices, 1) == name
    others = [
        experiment_name(prepare(compose([*TINY, "experiment.devices=1", *more]))[0], devices, 1)
        for more in (["algorithm.lr=0.5"], ["task.time_limit=9"], ["experiment.num_envs=8"], ["experiment.frames=9e6"])
    ]
    others += [experiment_name(config, jax.devices()[:2], 1), experiment_name(config, devices, 2)]
    for part in ("sources_digest", "package_versions", "processor"):
        with monkeypatch.context() as patch:
            patch.setattr(program_store, part, lambda: "changed")
            others.append(experiment_name(config, devices, 1))
    with monkeypatch.context() as patch:
        patch.setenv("XLA_FLAGS", os.environ["XLA_FLAGS"] + " --xla_cpu_enable_fast_math=true")
        others.append(experiment_name(config, devices, 1))
    assert len({name, *others}) == 1 + len(others)


def test_a_damaged_record_of_an_experiment_counts_as_missing(
    config: Config, store: ProgramStore, no_jax_cache: None
) -> None:
    devices = jax.devices()[:1]
    keep(store, config, devices)
    [path] = (store.folder / "experiments").iterdir()
    content = path.read_bytes()
    at = content.index(b'"collection/')  # the name of a metric: what is damaged is still JSON
    path.write_bytes(content[:at] + b'"sollection/' + content[at + len(b'"collection/') :])
    assert Shelf.of(store, config, devices, 1).kept is None


def test_programs_of_a_folder_that_may_only_be_read_are_used(
    config: Config, store: ProgramStore, no_jax_cache: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    devices = jax.devices()[:1]
    keep(store, config, devices)

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    with monkeypatch.context() as patch:
        for name in ("utime", "unlink", "replace", "open"):
            patch.setattr(os, name, refuse)
        patch.setattr(threading, "excepthook", lambda failure: pytest.fail(str(failure.exc_value)))
        shelf = Shelf.of(store, config, devices, 1)
        assert shelf.load(build(config, devices)) is not None and shelf.kept is not None
        damaged = store.folder / "programs" / shelf.kept.digests["init"]
        damaged.write_bytes(b"damaged")
        assert shelf.load(build(config, devices)) is None  # it cannot be removed either
        store._write(damaged, b"content")
        store.most_bytes = 0
        store._prune()
    assert damaged.read_bytes() == b"damaged"


def test_what_another_user_could_have_written_is_not_loaded(
    config: Config, store: ProgramStore, no_jax_cache: None
) -> None:
    devices = jax.devices()[:1]
    shelf, _ = keep(store, config, devices)
    shelf = Shelf.of(store, config, devices, 1)
    assert shelf.kept is not None and shelf.name is not None
    assert all(path.stat().st_mode & 0o077 == 0 for path in (store.folder / "programs").iterdir())
    (store.folder / "programs" / shelf.kept.digests["init"]).chmod(0o666)
    assert shelf.load(build(config, devices)) is None
    (store.folder / "experiments" / shelf.name).chmod(0o666)
    assert Shelf.of(store, config, devices, 1).kept is None


def test_files_that_vanish_meanwhile_do_not_disturb(store: ProgramStore, monkeypatch: pytest.MonkeyPatch) -> None:
    (store.folder / "programs" / "gone").write_bytes(b"x")
    stat = os.stat

    def vanished(path: Any, *arguments: Any, **options: Any) -> Any:
        if str(path).endswith("gone"):
            raise FileNotFoundError(path)
        return stat(path, *arguments, **options)

    monkeypatch.setattr(os, "stat", vanished)
    store._prune()


@pytest.fixture
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """`ProgramStore.default` as a process has it that was just started, with a home of its own."""
    cached: Any = ProgramStore.default  # mypy sees no function in a cached class method
    cached.__func__.cache_clear()
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    yield tmp_path / "cache" / "covey" / "compiled"
    cached.__func__.cache_clear()
    jax.config.update("jax_enable_compilation_cache", True)
    compilation_cache.reset_cache()


def test_every_experiment_of_a_worker_has_the_store(own_home: Path) -> None:
    """Using it switches JAX's cache off, which must not look like a wish of the user's."""
    first = ProgramStore.default()
    assert first is not None
    first.replace_jax_cache()
    second = ProgramStore.default()
    assert first is not None and first is second and first.folder == own_home


def test_without_jit_jax_keeps_its_cache(config: Config, own_home: Path) -> None:
    """Hundreds of small programs are compiled there, and none of them is the store's."""
    store = ProgramStore.default()
    assert Shelf.of(store, dataclasses.replace(config, jit=False), jax.devices()[:1], 1) == Shelf()
    assert jax.config.values["jax_enable_compilation_cache"]
    Shelf.of(store, config, jax.devices()[:1], 1)
    assert not jax.config.values["jax_enable_compilation_cache"]


def test_folders_that_others_can_write_to_are_not_used(own_home: Path) -> None:
    for name in ("programs", "experiments"):
        (own_home / name).mkdir(parents=True)
    (own_home / "programs").chmod(0o777)
    assert ProgramStore.default() is None


@pytest.fixture
def simulator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package that is neither covey's nor the user's own code, as tasks of the suites have one."""
    path = tmp_path / "installed" / "some_simulator.py"
    path.parent.mkdir()
    path.write_text("SPEED = 1\n")
    monkeypatch.syspath_prepend(str(path.parent))
    importlib.import_module("some_simulator")
    yield path
    sys.modules.pop("some_simulator", None)


def test_a_package_that_was_edited_is_traced_again(
    config: Config, store: ProgramStore, no_jax_cache: None, simulator: Path
) -> None:
    devices = jax.devices()[:1]
    keep(store, config, devices)
    assert Shelf.of(store, config, devices, 1).kept is not None
    simulator.write_text("SPEED = 2\n")
    os.utime(simulator, (1, 1))
    assert Shelf.of(store, config, devices, 1).kept is None


def test_a_package_that_is_found_elsewhere_now_is_traced_again(
    config: Config,
    store: ProgramStore,
    no_jax_cache: None,
    simulator: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    devices = jax.devices()[:1]
    keep(store, config, devices)
    del sys.modules["some_simulator"]  # as in a new process
    assert Shelf.of(store, config, devices, 1).kept is not None
    (tmp_path / "clone").mkdir()
    (tmp_path / "clone" / "some_simulator.py").write_text("SPEED = 2\n")
    monkeypatch.syspath_prepend(str(tmp_path / "clone"))
    assert Shelf.of(store, config, devices, 1).kept is None


def test_files_that_changed_while_this_process_runs_are_not_named(
    config: Config, store: ProgramStore, no_jax_cache: None, simulator: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is loaded is then older than what the files say, and would be found for the new ones."""
    monkeypatch.setattr(program_store, "STARTED", simulator.stat().st_ctime - 1)
    keep(store, config, jax.devices()[:1])
    assert list((store.folder / "experiments").iterdir()) == []
    assert len(list((store.folder / "programs").iterdir())) == 3  # found by their code


def test_sources_are_those_that_this_process_began_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = sources_digest()
    monkeypatch.setattr(
        program_store, "__file__", str(tmp_path / "covey" / "experiment" / "running" / "program_store.py")
    )
    assert sources_digest() == before


def test_a_users_code_is_never_found_without_tracing(config: Config) -> None:
    assert not has_own_code(config)
    own: list[dict[str, Any]] = [{"imports": ("mine",)}, {"callbacks": ("mine:Watch",)}]
    for changes in own:
        changed = dataclasses.replace(config, **changes)
        assert has_own_code(changed) and experiment_name(changed, jax.devices()[:1], 1) is None
    hooks = dataclasses.replace(config.hooks, loss="mine:loss")
    assert has_own_code(dataclasses.replace(config, hooks=hooks))


def test_only_a_folder_of_ones_own_is_used(tmp_path: Path) -> None:
    assert is_private(tmp_path)
    tmp_path.chmod(0o777)
    assert not is_private(tmp_path)


def test_a_second_command_loads_what_the_first_compiled(tmp_path: Path) -> None:
    """In processes of their own: a loaded program must find all that it calls, LAPACK among it, ready."""

    def train(name: str) -> list[dict[str, Any]]:
        environment = {
            key: value for key, value in os.environ.items() if not key.startswith("JAX_COMPILATION_CACHE")
        } | {"XDG_CACHE_HOME": str(tmp_path / "cache")}
        words = [*TINY, "experiment.frames=16", "experiment.evaluation_episodes=2", f"run_dir={tmp_path / name}"]
        command = [sys.executable, "-m", "covey.cli", "train", *words]
        answer = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert answer.returncode == 0, answer.stderr
        assert ("compiling training" in answer.stdout) == (name == "first")
        wall_clock = {*WALL_CLOCK, "crc32", "results_crc32"}
        records = read_metrics(tmp_path / name)
        return [{key: value for key, value in record.items() if key not in wall_clock} for record in records]

    assert train("first") == train("second")
    compiled = tmp_path / "cache" / "covey" / "compiled"
    assert len(list((compiled / "programs").iterdir())) == 3
    assert compiled.stat().st_mode & 0o077 == 0


@pytest.mark.slow
def test_a_kept_program_takes_other_parameters_of_a_partner(
    store: ProgramStore, no_jax_cache: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, same_bits: SameBits
) -> None:
    """A partner's parameters are no constants of the program: trained further, it plays as it does now."""
    words = [*TINY, "task=probe/two_step", "experiment.devices=1", "experiment.loggers=[]", "experiment.frames=128"]
    words += ["algorithm.num_minibatches=2", "experiment.evaluation_episodes=4", "experiment.absolute_metric=false"]
    partner, earlier = tmp_path / "partner", tmp_path / "earlier"
    train(compose([*words, f"run_dir={partner}"]))
    beside = [*words, f"partners.agents.1={partner}"]

    def learner(name: str, **options: Any) -> Any:
        train(compose([*beside, f"run_dir={tmp_path / name}"]), **options)
        for thread in threading.enumerate():
            if "_save" in thread.name:
                thread.join()
        return Checkpoints(tmp_path / name / "checkpoints").restore_part("learner")

    first = learner("first", store=store)
    partner.rename(earlier)
    train(compose([*words, f"run_dir={partner}", "seed=7"]))
    with monkeypatch.context() as context:
        context.setattr(program_store, "compile_lowered", lambda *_: pytest.fail("compiled again"))
        kept = learner("kept", store=store)
    same_bits(kept, learner("traced"))
    different = jax.tree.map(lambda a, b: bool((a != b).any()), first, kept)
    assert any(jax.tree.leaves(different))
