"""From the arguments of a command line to named, numbered experiments. Nothing is run here."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from covey import cli, registry
from covey.experiment.configuration.compose import benchmark_presets, compose, list_presets
from covey.experiment.configuration.config import identity_fields, to_dict
from covey.launch.benchmark import (
    Benchmark,
    identity,
    make_benchmark,
    read_preset,
)
from covey.launch.benchmark_files import is_done, write_description, write_status
from covey.loops.config import ActorReplayConfig
from covey.networks.relational import Over

SMALL = ("algorithms=[ippo,iql]", "tasks=[probe/copy]", "seeds=2", "run_dir=bench")


def make(*words: str) -> Benchmark:
    return make_benchmark([*SMALL, *words])


def names(benchmark: Benchmark) -> list[str]:
    return list(dict.fromkeys(experiment.name for experiment in benchmark.experiments))


# ------------------------------------------------------------------------------------------------------ experiments


def test_all_combinations_are_numbered() -> None:
    experiments = make("tasks=[probe/copy,probe/masked]", "algorithms=[iql]", "models=[mlp,gru]").experiments
    assert [experiment.index for experiment in experiments] == list(range(8))
    crossed = [(e.config.task.name, e.config.algorithm.name, e.config.model.name, e.config.seed) for e in experiments]
    assert crossed[:5] == [
        ("probe/copy", "iql", "mlp", 0),
        ("probe/copy", "iql", "mlp", 1),
        ("probe/copy", "iql", "gru", 0),
        ("probe/copy", "iql", "gru", 1),
        ("probe/masked", "iql", "mlp", 0),
    ]
    assert len(set(crossed)) == 8
    first, third = experiments[0], experiments[2]
    assert first.name == f"probe-copy-iql-{identity(first.config)}"
    assert third.name == f"probe-copy-iql-gru-{identity(third.config)}"
    assert first.run_directory == Path("bench") / first.name / "seed_0"
    assert first.config.run_dir == str(first.run_directory) and first.config.experiment.devices == 1
    assert first.title == "probe/copy, iql, seed 0" and third.title == "probe/copy, iql, gru, seed 0"


def test_an_experiment_is_named_by_what_it_computes() -> None:
    def name(*more: str) -> str:
        [found] = names(make("algorithms=[iql]", "tasks=[probe/copy]", *more))
        return found

    plain = name()
    for word in ("experiment.loggers=[]", "experiment.platform=cpu", "seeds=[5,6]", "run_dir=elsewhere"):
        assert name(word) == plain, word
    others = [name(word) for word in ("experiment.frames=9", "algorithm.lr=0.1", "task.time_limit=9", "model=gru")]
    assert len({plain, *others}) == 5
    assert plain in names(make("models=[gru,mlp]"))


def test_overrides_for_some() -> None:
    benchmark = make(
        "tasks=[probe/copy,probe/masked]",
        "experiment.frames=100",
        "iql:experiment.frames=200",
        "probe/masked:task.time_limit=7",
        "ippo,iql:probe/copy:algorithm.lr=0.25",
    )
    by_name = {(e.config.task.name, e.config.algorithm.name): e for e in benchmark.experiments}
    frames = {key: e.config.experiment.frames for key, e in by_name.items()}
    assert {key[1]: value for key, value in frames.items()} == {"ippo": 100, "iql": 200}
    limits = {key[0]: e.config.task.config.time_limit for key, e in by_name.items()}
    assert limits["probe/masked"] == 7 != limits["probe/copy"]
    rates = {key[0]: e.config.algorithm.config.lr for key, e in by_name.items()}
    assert rates["probe/copy"] == 0.25 != rates["probe/masked"]
    assert "algorithm.lr=0.25" in by_name["probe/copy", "iql"].words


def test_algorithms_for_discrete_actions_have_them() -> None:
    words = ["algorithms=[ippo,qmix]", "tasks=[vmas/navigation]", "run_dir=bench"]
    ippo, qmix = make_benchmark(words).experiments
    assert ippo.config.task.config.continuous_actions and not qmix.config.task.config.continuous_actions
    asked = make_benchmark([*words, "task.continuous_actions=true"]).experiments
    assert all(e.config.task.config.continuous_actions for e in asked)  # QMIX will refuse them when it is built


def test_words_and_command_make_the_same_experiment() -> None:
    for experiment in make("iql:experiment.frames=200").experiments:
        config = compose(experiment.command[2:])
        assert identity(config) == identity(experiment.config)
        assert (config.seed, config.run_dir) == (experiment.seed, str(experiment.run_directory))


def test_callbacks_are_part_of_the_identity_if_there_are_any() -> None:
    """Without callbacks, folders from before the field existed are still found."""
    [without, *_], [with_one, *_] = make().experiments, make("callbacks=[json:JSONDecoder]").experiments
    assert "callbacks" not in identity_fields(without.config)
    values = identity_fields(with_one.config)
    assert values.pop("callbacks") == ["json:JSONDecoder"] and values == identity_fields(without.config)
    assert identity(without.config) == hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:8]
    assert identity(with_one.config) != identity(without.config)


def test_what_makes_an_identity_is_known() -> None:
    """These are the fields that were left out when the first benchmarks were run: their folders are still found."""
    config = compose(["algorithm=qmix", "task=smax/2s3z"])
    everything, identifying = to_dict(config), identity_fields(config)
    top = {"seed", "seeds", "run_dir", "code_dir", "config_dir", "jit", "callbacks", "partners"}
    watching = {"platform", "devices", "seeds_at_once", "loggers", "logger_options"}
    watching |= {"checkpoint_interval", "checkpoint_keep"}
    watching |= {"loop"}  # newer, and the algorithm's first here
    assert set(everything) - set(identifying) == top
    assert set(everything["experiment"]) - set(identifying["experiment"]) == watching
    assert identifying["experiment"]["buffer"] == everything["experiment"]["buffer"]


@pytest.mark.parametrize(
    ("words", "pinned"),
    [
        ("algorithm=mappo task=vmas/navigation", "91c4b66d"),
        ("algorithm=mappo task=vmas/navigation seed=3 run_dir=x jit=false experiment.checkpoint_keep=9", "91c4b66d"),
        ("algorithm=qmix task=smax/2s3z model=gru buffer.place=host experiment.platform=cpu", "b567929f"),
        ("algorithm=ippo task=lbf/8x8-2p-2f-coop callbacks=[json:JSONDecoder]", "2cef6cec"),
    ],
)
def test_identities_stay_what_they_were(words: str, pinned: str) -> None:
    """Else a benchmark would not find its folders again. Only another default may change these numbers: a new field is
    `field(…, newer=True)`."""
    assert identity(compose(words.split())) == pinned


# ------------------------------------------------------------------------------------------------------------ presets


@pytest.mark.parametrize("name", list_presets("benchmark"))
def test_shipped_presets_compose(name: str) -> None:
    """Composes every algorithm on the first task, and checks that the other tasks exist."""
    tasks = read_preset(name, [])["tasks"]
    assert list_presets("benchmark")[name]
    assert all(task in registry.tasks for task in tasks)
    first = tasks[0]
    benchmark = make_benchmark([f"benchmark={name}", f"tasks=[{first}]"])
    assert benchmark.folder == Path("bench") / name
    assert len({e.run_directory for e in benchmark.experiments}) == len(benchmark.experiments)
    on_simulators = all(registry.tasks[task].host for task in tasks)
    assert len(benchmark.experiments) * len(tasks) >= (10 if on_simulators else 45)


def test_kaz_has_vectors_three_ways_and_images() -> None:
    """And a policy for each group."""
    experiments = make_benchmark(["benchmark=kaz", "seeds=1"]).experiments
    seen = {e.config.model.name: e.config.task.config.observation.name for e in experiments}
    assert seen == {"mlp": "vector", "deepsets": "vector", "attention": "vector", "cnn": "image"}
    for experiment in experiments:
        fields = experiment.config.model.config
        assert getattr(fields, "flatten", True) and getattr(fields, "over", Over.rows) is Over.rows
        assert experiment.config.critic_model == experiment.config.model


def test_multiwalker_has_both_rewards_and_the_mamujoco_preset_both_ways_of_learning() -> None:
    walkers = make_benchmark(["benchmark=multiwalker", "seeds=1"]).experiments
    assert {(e.config.algorithm.name, e.config.task.config.reward.name) for e in walkers} == {
        (algorithm, reward) for algorithm in ("ippo", "mappo") for reward in ("individual", "shared")
    }
    ants = {e.config.algorithm.name: e.config.experiment for e in make_benchmark(["benchmark=mamujoco"]).experiments}
    masac = ants["masac"]
    assert ants["mappo"].loop == "actor_learner" and isinstance(masac, ActorReplayConfig)
    assert masac.updates * 4 == masac.frames_per_iteration


@pytest.mark.slow
@pytest.mark.parametrize("name", list_presets("benchmark"))
def test_shipped_presets_can_be_built(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever memory this machine has free: the largest buffer, of smax/27m_vs_30m, takes 17 GB."""
    import jax

    from covey.experiment.running import build as building
    from covey.experiment.running.build import build

    monkeypatch.setattr(building, "available_bytes", lambda devices: None)

    for experiment in make_benchmark([f"benchmark={name}", "seeds=1"]).experiments:
        build(experiment.config, jax.devices()[:1])


def test_vmas_quick_has_its_algorithms_and_tasks() -> None:
    [preset] = benchmark_presets("vmas_quick", None)
    assert sorted(preset.fields["algorithms"]) == ["ippo", "iql", "mappo", "masac", "qmix"]
    assert sorted(preset.fields["tasks"]) == ["vmas/balance", "vmas/dispersion", "vmas/navigation"]
    assert preset.fields["seeds"] == 3
    smaller = make_benchmark(["benchmark=vmas_quick", "algorithms=[ippo]", "tasks=[vmas/balance]", "run_dir=other"])
    assert len(smaller.experiments) == 3 and smaller.folder == Path("other")


def test_a_users_own_preset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "conf" / "benchmark").mkdir(parents=True)
    (tmp_path / "conf" / "benchmark" / "base.yaml").write_text(
        "algorithms: [ippo, iql]\ntasks: [probe/copy]\nseeds: [3]\noverrides: [experiment.frames=100]\n"
    )
    (tmp_path / "conf" / "benchmark" / "mine.yaml").write_text(
        "# mine\nbase: base\nalgorithms: [iql, vdn]\noverrides:\n  - iql:experiment.frames=200 # more\n"
    )
    benchmark = make_benchmark(["benchmark=mine", "config_dir=conf", "vdn:algorithm.lr=0.5"])
    iql, vdn = benchmark.experiments
    assert (iql.config.algorithm.name, iql.config.experiment.frames, iql.seed) == ("iql", 200, 3)
    assert (vdn.config.experiment.frames, vdn.config.algorithm.config.lr) == (100, 0.5)
    assert cli.main(["list", "benchmarks", "mine", "config_dir=conf"]) == 0


# ---------------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "a benchmark needs algorithms=[…] or benchmark=NAME"),
        (["algorithms=[ippo]"], "a benchmark needs tasks=[…]"),
        (["algorithms=[ippo]", "tasks=[probe/copy]"], "a benchmark needs run_dir=…"),
        (["benchmark=vmas_quik"], "unknown benchmark 'vmas_quik'; nearest: vmas_quick"),
        ([*SMALL, "algorithms=[ipo]"], "ipo on probe/copy: unknown algorithm 'ipo'; nearest: ippo"),
        ([*SMALL, "algorithms=ippo,iql"], "a list is in brackets: algorithms=[a,b]"),
        ([*SMALL, "algorithms=[ippo,ippo]"], "algorithms has ippo twice"),
        ([*SMALL, "tasks=[copy]"], "unknown task 'copy'; nearest: probe/copy"),
        ([*SMALL, "models=[mpl]"], "unknown model 'mpl'; nearest: mlp"),
        ([*SMALL, "seeds=0"], "seeds is empty"),
        ([*SMALL, "seeds=[1,1]"], "names a seed twice"),
        ([*SMALL, "seeds=few"], "benchmark.seeds takes"),
        ([*SMALL, "seeds=99999999999999999999"], "seeds=99999999999999999999 are too many"),
        ([*SMALL, "algorithm=ippo"], "'algorithm=ippo': a benchmark takes algorithms=[…]"),
        ([*SMALL, "seed=3"], "'seed=3': a benchmark takes seeds=[…]"),
        ([*SMALL, "models=[mlp]", "model=gru"], "'model=gru': the models are given already"),
        ([*SMALL, "qmix:experiment.frames=3"], "'qmix' is not in this benchmark; nearest: "),
        ([*SMALL, "iql:seeds=3"], "'seeds=3' is for the whole benchmark"),
        ([*SMALL, "algorithm.epochs=3"], "iql on probe/copy: unknown field 'algorithm.epochs'"),
        ([*SMALL, "experiment.frames=-1"], "experiment: frames must be at least 1, not -1"),
        ([*SMALL, "frames=3"], "unknown key 'frames'; nearest: experiment.frames"),
        ([*SMALL, "only=4"], "only=4: there are 4 experiments, from 0"),
        ([*SMALL, "only=x"], "benchmark.only takes int, not 'x'"),
        ([*SMALL, "workers=0"], "workers must be at least 1, not 0"),
        ([*SMALL, "workers=999"], "workers=999, but "),
        ([*SMALL, "experiment.devices=64", "iql:buffer.batch_size=64"], "experiment.devices=64, but this machine has"),
        (
            [*SMALL, "iql:experiment.platform=cpu"],
            "all experiments of a benchmark run on one platform, not on auto and",
        ),
        (
            [*SMALL, "experiment.platform=gpu"],
            "experiment.platform=gpu is not available on this machine: JAX finds cpu",
        ),
        ([*SMALL, "foo"], "cannot read 'foo'"),
    ],
)
def test_bad_input_starts_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["benchmark", *words]) == 2
    output = capsys.readouterr()
    assert output.out == "" and output.err.startswith("covey: ") and output.err.count("\n") == 1
    assert message in output.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("algorithm: [ippo]", "unknown field of a benchmark 'algorithm'; nearest: algorithms"),
        ("overrides: experiment.frames=1", "overrides is a list of words"),
        ("overrides: [{experiment.frames: 1}]", "an override is a text like experiment.frames=1e6, not"),
        ("overrides: ['vdn:experiment.frames=1']\nalgorithms: [ippo]", "'vdn' is not in this benchmark"),
        ("base: nothing", "unknown benchmark 'nothing'"),
        ("[", "mine.yaml"),
    ],
)
def test_bad_presets(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "conf" / "benchmark").mkdir(parents=True)
    (tmp_path / "conf" / "benchmark" / "mine.yaml").write_text(text)
    assert cli.main(["benchmark", "benchmark=mine", "config_dir=conf", *SMALL]) == 2
    output = capsys.readouterr()
    assert message in output.err and output.err.count("\n") == 1


# ---------------------------------------------------------------------------------------------------------------- files


def test_the_list_is_numbered_from_0_and_shows_states(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    experiments = make().experiments
    (tmp_path / "bench" / "status").mkdir(parents=True)
    write_status(experiments[1], state="failed", error="no")
    assert cli.main(["benchmark", *SMALL, "list=true"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert lines[0] == f"0  probe/copy, ippo, seed 0  ({experiments[0].run_directory}, not started)"
    assert lines[1].endswith("failed)")


def test_done_needs_a_status_and_a_run(tmp_path: Path) -> None:
    experiment = dataclasses.replace(make().experiments[0], folder=tmp_path)
    assert not is_done(experiment)
    (tmp_path / "status").mkdir()
    write_status(experiment, state="done", seconds=1.5)
    assert not is_done(experiment)
    experiment.run_directory.mkdir(parents=True)
    (experiment.run_directory / "config.yaml").write_text("")
    assert is_done(experiment)
    status: dict[str, Any] = json.loads(experiment.status_file.read_text())
    assert status["kind"] == "covey-status" and status["run_directory"] == f"{experiment.name}/seed_0"
    assert (status["state"], status["seconds"], status["error"]) == ("done", 1.5, None)
    experiment.status_file.write_text("{torn")
    assert not is_done(experiment)


def test_the_description_accumulates(tmp_path: Path) -> None:
    run_dir = f"run_dir={tmp_path}"
    write_description(make(run_dir, "only=0"))
    before = (tmp_path / "benchmark.yaml").read_text()
    write_description(make(run_dir, "only=1"))
    assert (tmp_path / "benchmark.yaml").read_text() == before  # the jobs of an array write the same
    write_description(make(run_dir, "algorithms=[vdn]", "seeds=[1,4]"))
    write_description(make(run_dir, "algorithms=[ippo]", "seeds=[4]"))
    description = yaml.safe_load((tmp_path / "benchmark.yaml").read_text())
    assert description["kind"] == "covey-benchmark" and len(description["commands"]) == 3
    seeds = {(e["task"], e["algorithm"]): e["seeds"] for e in description["experiments"]}
    assert seeds["probe/copy", "ippo"] == [0, 1, 4] and seeds["probe/copy", "iql"] == [0, 1]
    assert seeds["probe/copy", "vdn"] == [1, 4]
    assert [path.name for path in tmp_path.iterdir()] == ["benchmark.yaml"]
    (tmp_path / "benchmark.yaml").write_text("something: else")
    assert cli.main(["benchmark", *SMALL, run_dir]) == 2
