"""The benchmarks run on tiny sizes and say what they promise to say. Their figures mean nothing here."""

from __future__ import annotations

import importlib
import json
import shlex
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import covey
from covey import registry
from covey.experiment.configuration.compose import compose
from covey.results import add_step, make_results, write_results

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
ANCHORS = Path(covey.__file__).parent / "anchors.json"
QUICK = ("--rounds", "1", "--seconds", "0.001")
SMALL = ("--environments", "4", "--rollout", "8", "--layers", "8", *QUICK)


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Imports a benchmark by name, as if it were run from its folder."""
    jax.devices()  # starts JAX as the suite wants it, before a benchmark starts it otherwise
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield importlib.import_module
    for path in BENCHMARKS.glob("*.py"):
        sys.modules.pop(path.stem, None)


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", [path.stem for path in sorted(BENCHMARKS.glob("*.py")) if path.stem != "common"])
def test_help_explains(name: str, script: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        script(name).main(["--help"])
    assert stopped.value.code == 0
    assert len(capsys.readouterr().out) > 300


@pytest.mark.slow
def test_update_limit(script: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "limit.json"
    script("update_limit").main(["--no-pin", "--epochs", "1", "--width", "8", "--output", str(output), *QUICK])
    figures = read(output)
    assert figures["ratio"] > 0 and figures["gflops"]["products"] > 0
    # Actor: 1200 rows of 18-8-8-4; critic: 400 rows of 54-8-8-1. Three products a layer, two for the first.
    actor, critic = 1200 * (3 * (18 + 8 + 4) - 18) * 8, 400 * (3 * (54 + 8 + 1) - 54) * 8
    assert figures["flop_per_minibatch"] == 2 * (actor + critic)
    assert "ratio" in capsys.readouterr().out


@pytest.mark.slow
def test_rates(script: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A checkout against itself, so that the table can be made of what the script wrote."""
    case = "task=probe/constant algorithm=ippo experiment.num_envs=4 experiment.rollout_length=8 model.layers=[8]"
    output = tmp_path / "benchmark-rates.json"
    arguments = ["--before", str(BENCHMARKS.parent), "--rounds", "1", "--cases", case, "--output", str(output)]
    script("rates").main(arguments)
    (row,) = read(output)["rows"]
    assert row["ratio"] > 0 and "before" in capsys.readouterr().out
    assert f"training `{case}`" in script("speeds").make_table(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("devices", [1, 2])
def test_throughput(script: Any, tmp_path: Path, devices: int) -> None:
    output = tmp_path / "throughput.json"
    arguments = ["--task", "probe/masked", "--devices", str(devices), "--output", str(output), *SMALL]
    script("throughput").main(arguments)
    [row] = read(output)["rows"]
    assert row["devices"] == devices
    assert row["frames_per_second"].keys() == {"stepping", "acting", "updating", "training"}
    rates = row["frames_per_second"]
    without_loss = 1 / (1 / rates["acting"] + 1 / rates["updating"])
    assert row["ratio"] == pytest.approx(rates["training"] / without_loss)


@pytest.mark.slow
def test_throughput_scales_over_environments(script: Any, tmp_path: Path) -> None:
    output = tmp_path / "scaling.json"
    scaling = ["--scaling", "environments", "--numbers", "2", "4", "--parts", "training"]
    script("throughput").main(["--task", "probe/copy", *scaling, "--output", str(output), *SMALL])
    assert [row["overrides"] for row in read(output)["rows"]] == [["experiment.num_envs=2"], ["experiment.num_envs=4"]]


@pytest.mark.slow
def test_two_devices_against_one(script: Any, tmp_path: Path) -> None:
    output = tmp_path / "devices.json"
    small = ["--environments", "4", "--rollout", "8", "--repeats", "1", *QUICK]
    script("devices").main(["--task", "probe/copy", "--output", str(output), *small])
    figures = read(output)
    assert figures["ratio"] == pytest.approx(
        figures["frames_per_second"]["2"][0] / figures["frames_per_second"]["1"][0]
    )


@pytest.mark.slow
def test_jaxmarl_stepping(script: Any, tmp_path: Path) -> None:
    output = tmp_path / "stepping.json"
    script("throughput").main(["--jaxmarl-stepping", "--output", str(output), *SMALL])
    assert read(output)["frames_per_second"] > 0


def test_report(script: Any, tmp_path: Path) -> None:
    output = tmp_path / "report.json"
    sizes = {
        "algorithms": 3,
        "tasks": 2,
        "seeds": 3,
        "evaluations": 4,
        "aggregates": 90,
        "curves": 60,
        "improvement": 30,
    }
    small = [text for name, number in sizes.items() for text in (f"--{name}", str(number))]
    script("report").main([*small, "--rounds", "1", "--fraction", "0.1", "--output", str(output)])
    figures = read(output)
    assert figures["sizes"] == sizes and figures["whole"]["seconds"] > 0
    for part in ("aggregates", "curves", "improvement"):
        assert figures["rliable_seconds"][part] == pytest.approx(10 * figures["rliable_measured_seconds"][part])
    assert figures["ratio"] == pytest.approx(
        sum(figures["rliable_seconds"].values()) / sum(figures["covey_seconds"].values())
    )


@pytest.mark.slow
def test_benchmark_overhead(script: Any, tmp_path: Path) -> None:
    output = tmp_path / "overhead.json"
    tiny = ["tasks=[probe/copy]", "algorithms=[ippo]", "seeds=2", "experiment.frames=4096", "model.layers=[8]"]
    script("benchmark_overhead").main(["--kinds", "short", "--output", str(output), "--overrides", *tiny])
    figures = read(output)["short"]
    assert len(figures["alone"]) == 2
    alone = sum(one["seconds"] for one in figures["alone"])
    assert figures["ratio"] == pytest.approx(figures["together"]["seconds"] / alone)


def test_random_returns_change_nothing_else(script: Any, tmp_path: Path) -> None:
    anchors = tmp_path / "anchors.json"
    published = [{"algorithm": "ippo", "value": 1.0}]
    known = {"returns": "", "random": None, "published": published}
    anchors.write_text(json.dumps({"sources": {"a": 1}, "tasks": {"probe/copy": known}}))
    script("random_returns").main(["probe/copy", "--episodes", "200", "--at-once", "128", "--anchors", str(anchors)])
    written = read(anchors)
    assert written["sources"] == {"a": 1} and written["tasks"]["probe/copy"]["published"] == published
    random = written["tasks"]["probe/copy"]["random"]
    assert random["episodes"] == 200
    assert random["mean_return"] == pytest.approx(0.5, abs=3 * random["interval_95"])


def test_random_returns_of_a_simulator(script: Any, tmp_path: Path) -> None:
    """The walkers fall soon, and nobody stands at the end."""
    pytest.importorskip("pettingzoo")
    anchors = tmp_path / "anchors.json"
    script("random_returns").main(["pettingzoo/multiwalker", "--episodes", "8", "--anchors", str(anchors)])
    random = read(anchors)["tasks"]["pettingzoo/multiwalker"]["random"]
    assert random["episodes"] == 8
    assert -130 < random["mean_return"] < -60
    assert random["others"]["episode_length"] < 200 and 1 <= random["others"]["falls"] <= 3


def test_missing_random_returns_are_those_of_installed_tasks_without_one(
    script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    returns = script("random_returns")
    anchors = tmp_path / "anchors.json"
    names = [entry.name for entry in registry.tasks if entry.built_in]
    known = {name: {"random": {"mean_return": 0.0}} for name in names} | {"storm/2p": {"random": None}}
    del known["vmas/balance"], known["probe/copy"], known["mabrax/ant_4x2"], known["pettingzoo/multiwalker"]
    anchors.write_text(json.dumps({"tasks": known}))
    monkeypatch.setattr(returns, "is_installed", lambda task: not task.startswith("mabrax/"))
    assert sorted(returns.missing_tasks(anchors)) == ["storm/2p", "vmas/balance"]


def test_learning_runs_tabulates_and_refuses(
    script: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    learning = script("learning")
    folders = ["--runs", str(tmp_path / "runs"), "--results", str(tmp_path / "results")]
    small = [
        "experiment.frames=256",
        "experiment.num_envs=8",
        "experiment.rollout_length=8",
        "experiment.evaluation_interval=128",
        "experiment.evaluation_episodes=8",
        "model.layers=[8]",
    ]
    arguments = ["run", "memory-mlp", "--seeds", "2", "--devices", "1", *folders, *small]
    learning.main(arguments)
    result = read(tmp_path / "results" / "memory-mlp.json")
    assert result["seeds"] == [0, 1] and result["episodes"] == 80 and result["evaluation"] == "greedy"
    assert [frames for frames, _ in result["curves"][0]] == [0, 128, 256]
    assert result["mean"] == pytest.approx(sum(result["absolute"]) / 2)
    assert "model.layers=[8]" in result["command"] and "seeds=2" in result["command"]

    monkeypatch.setattr(learning, "call_covey", lambda *_: pytest.fail("trained what was there"))
    learning.main(arguments)
    with pytest.raises(SystemExit, match="another configuration"):
        learning.main([*arguments, "algorithm.lr=1e-3"])

    learning.main(["table", *folders[2:]])
    table = (tmp_path / "results" / "README.md").read_text(encoding="utf-8")
    assert "| memory-mlp |" in table and (tmp_path / "results" / "curves.png").stat().st_size > 1000
    assert "wrote" in capsys.readouterr().out


def test_metrics_are_told_beside_the_one_that_counts(script: Any) -> None:
    others = {"falls": [0.25, None], "displacement": [5.5, 0.41], "standing": [2.75, None]}
    result = {"mean": 21.0, "interval_95": None, "others": others, "besides": ["displacement", "falls"]}
    assert script("learning").describe_value(result) == "21; displacement 5.5 ± 0.41; falls 0.25"


@pytest.mark.slow
def test_every_experiment_is_one_that_covey_can_run(script: Any) -> None:
    from covey.experiment.configuration.compose import compose
    from covey.experiment.running.build import build_env

    learning = script("learning")
    for experiment in learning.EXPERIMENTS.values():
        config = compose(experiment.arguments.split())
        if experiment.metric != "mean_return":
            spec = build_env(config).spec
            assert experiment.metric in (*(f"{group}_return" for group in spec.groups), *spec.metrics)
        learning.find_published(experiment, config.task.name)  # exits where anchors.json has no such entry


def test_anchors_are_whole() -> None:
    anchors = read(ANCHORS)
    for task, entry in anchors["tasks"].items():
        assert entry.keys() - {"earlier_returns", "teams"} == {"returns", "random", "published"}, task
        for published in entry["published"]:
            assert published["source"] in anchors["sources"], task
            assert {"algorithm", "value", "metric"} <= published.keys(), task


def test_every_speed_is_in_the_table(script: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    speeds = script("speeds")
    written = {path.stem.removeprefix("benchmark-") for path in speeds.RESULTS.glob("benchmark-*.json")}
    assert written <= set(speeds.FILES)
    speeds.main([])
    assert capsys.readouterr().out.count("\n") > 2 + len(written)
    (tmp_path / "benchmark-devices.json").write_text(json.dumps({"ratio": 1.5, "target": 1.7}), encoding="utf-8")
    speeds.main(["--results", str(tmp_path)])
    lines = capsys.readouterr().out.splitlines()
    assert lines[2:] == ["| two CPU devices over one | 1.50 | ≥ 1.7: not reached | `devices.py --repeats 4` |"]


def test_multiwalker_beside_benchmarl_is_in_the_table(script: Any, tmp_path: Path) -> None:
    rates = {"covey": [900.0, 1000.0], "benchmarl": [200.0, 250.0]}
    row = {"algorithm": "ippo", "cores": 2, "frames_per_second": rates, "ratio": 4.0, "benchmarl_collection": "serial"}
    targets = json.loads(json.dumps(script("compare_benchmarl").TARGETS))["pettingzoo/multiwalker"]
    figures = {"task": "pettingzoo/multiwalker", "rows": [row], "targets": targets}
    (tmp_path / "benchmark-benchmarl-multiwalker.json").write_text(json.dumps(figures), encoding="utf-8")
    (line,) = script("speeds").make_table(tmp_path, peers_only=True).splitlines()[2:]
    assert line == (
        "| training IPPO on multiwalker, BenchMARL's settings, 2 cores | 4.0 times BenchMARL (1,000 against 250 "
        "frames/s), which collects faster in its serial way |"
    )
    assert "≥ 3: reached" in script("speeds").make_table(tmp_path)


@pytest.mark.slow
def test_learning_experiments_are_those_of_their_results(script: Any) -> None:
    """What a result's command made is what its experiment makes with the settings by name."""
    from covey.experiment.configuration.compose import compose
    from covey.launch.benchmark import identity

    learning = script("learning")
    for name, experiment in learning.EXPERIMENTS.items():
        result = read(learning.ROOT / "results" / f"{name}.json")
        words = [word for word in shlex.split(result["command"]) if "=" in word]
        if name == "mpe-spread-masac":  # its command may be older than this field, and meant this value
            words.append("algorithm.actor_gradient=all")
        stored = compose(words)
        now = compose(shlex.split(experiment.arguments))
        assert identity(stored) == identity(now), name
        assert result["tuning"] == experiment.tuning, name


@pytest.mark.slow
def test_cpu_tricks(script: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each row is a ratio, and what is compared computes the same."""
    module, output = script("cpu_tricks"), tmp_path / "tricks.json"
    module.main([*QUICK, "--output", str(output)])
    rows = read(output)["tricks"]
    for row in rows:
        assert (
            row["gain"] == pytest.approx(row["plain_microseconds"] / row["trick_microseconds"], rel=1e-3)
            and row["gain"] > 0
        )
    out = capsys.readouterr().out
    assert all(row["trick"] in out for row in rows) and "load of the machine" in out
    for trick in (module.blocks(), module.generators(), module.error_functions(), *module.products()):
        for one, other in zip(*(jax.tree.leaves(f(trick.start)) for f in (trick.trick, trick.plain)), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, err_msg=trick.name)


SPREAD = "pettingzoo/simple_spread"


@pytest.mark.slow
def test_stepping(script: Any, tmp_path: Path) -> None:
    output = tmp_path / "benchmark-stepping.json"
    arguments = ["--tasks", SPREAD, "--rounds", "1", "--steps", "6", "--copies", "4", "--output", str(output)]
    script("stepping").main(arguments)
    (row,) = read(output)["rows"]
    rates, ratios = row["steps_per_second"], row["ratios"]
    assert ratios["of_raw"] == pytest.approx(rates["pool, 2 processes"][0] / rates["raw, 2 processes"][0])
    assert ratios["over_pipes"] == pytest.approx(rates["pool, 2 processes"][0] / rates["pipes, 2 processes"][0])
    cpu = row["cpu_seconds_per_step"]
    assert 0 < ratios["cpu_of_raw"] == pytest.approx(cpu["pool, 2 processes"][0] / cpu["raw, 1 process"][0])
    assert "times Gymnasium-style pipes | ≥ 1.7" in script("speeds").make_table(tmp_path)


@pytest.mark.slow
def test_overlap(script: Any, tmp_path: Path) -> None:
    output = tmp_path / "benchmark-overlap.json"
    small = ["--environments", "4", "--rollout", "8", "--rounds", "1", "--seconds", "0.1", "--cases", "1"]
    overrides = ["--overrides", "model.layers=[8]", "algorithm.num_minibatches=1"]
    script("overlap").main(["--task", SPREAD, *small, "--output", str(output), *overrides])
    (row,) = read(output)["rows"]
    rates = {name: max(values) for name, values in row["frames_per_second"].items()}
    assert rates.keys() == {"stepping", "collecting", "updating", "training"} and min(rates.values()) > 0
    assert row["ratio"] == pytest.approx(rates["training"] / min(rates["stepping"], rates["updating"]))
    assert "of the slower part" in script("speeds").make_table(tmp_path)


SOAKED = (
    *("experiment.num_envs=4", "experiment.evaluation_episodes=4", "actors.evaluation_copies=2", "model.layers=[8]"),
    *("experiment.rollout_length=32", "algorithm.num_minibatches=1", "algorithm.epochs=1", "actors.num=2"),
    "task.time_limit=16",  # an episode ends in every iteration: a process that ends none three times is given up
)


def soak(script: Any, tmp_path: Path, *arguments: str) -> dict[str, Any]:
    """What the script says of a run whose processes are killed, if it ends well."""
    output = tmp_path / "benchmark-soak.json"
    script("soak").main(["--output", str(output), *arguments])
    (row,) = read(output)["rows"]
    assert all(row["checks"].values()) and row["kills"]
    assert row["frames_learned"] >= row["frames_asked"] > 0
    assert sum(row["restarts"].values()) == len(row["kills"])
    assert row["dropped_episodes"] == row["restarts"]["training"] * row["episodes_in_a_process"]
    assert output.with_suffix(".png").stat().st_size > 1000
    assert "nothing lost or leaked: reached" in script("speeds").make_table(tmp_path)
    return dict(row)


def test_soak(script: Any, tmp_path: Path) -> None:
    soak(
        script, tmp_path, "--task", SPREAD, "--every", "1", "--lags", "0", "--frames", "20_000", "--overrides", *SOAKED
    )


@pytest.mark.slow
@pytest.mark.parametrize("lag", [0, 1])
def test_soak_for_two_minutes(script: Any, tmp_path: Path, lag: int) -> None:
    settings = ["--minutes", "2", "--every", "6", "--evaluate-every", "15", "--lags", str(lag)]
    row = soak(script, tmp_path, *settings)
    assert len(row["kills"]) > 10 and row["minutes"] > 1


def test_soak_finds_what_grows(script: Any) -> None:
    module = script("soak")

    def samples(**a_second: float) -> list[Any]:
        at = {"memory": 1e8, "threads": 20.0, "files": 10.0, "processes": 5.0, "memory_below": 0.0}
        return [
            module.Sample(
                seconds=5.0 + second,
                **{name: int(value + second * a_second.get(name, 0)) for name, value in at.items()},
            )
            for second in range(100)
        ]

    assert set(module.growth_of(samples()).values()) == {0}
    for name in ("memory", "threads", "files", "processes"):
        grown = module.growth_of(samples(**{name: 2.0}))
        assert grown.pop(name) == pytest.approx(100, abs=2) and set(grown.values()) == {0}
    assert module.slope_of(samples(memory=3000.0)) == pytest.approx(3000, rel=1e-3)


def test_soak_says_what_was_lost(script: Any, tmp_path: Path) -> None:
    """A run that lacks an iteration, has an evaluation too short, and replaced a process too few."""
    module = script("soak")
    run = module.Run(words=[], path=tmp_path)
    lost = {"actors/restarts": 1.0, "actors/dropped_episodes": 1.0}
    rows = [{"kind": "train", "iteration": number, "frames": 32 * number, **lost} for number in (1, 2, 4)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    results = make_results("toy/clock", "ippo", 0)
    for frames, episodes in ((0, 4), (128, 3)):
        results = add_step(results, frames=frames, elapsed_seconds=1.0, metrics={"mean_return": np.zeros(episodes)})
    write_results(tmp_path / "results.json", results)
    run.exit_code, run.training = 1, (0.0, 99.0)
    run.kills = [module.Kill(seconds=1.0, pid=1)]
    run.samples = [
        module.Sample(seconds=float(s), memory=10**6 * s, threads=s, files=s, processes=s, memory_below=0)
        for s in range(100)
    ]
    experiment = compose(["task=probe/copy", "actors=local", *SOAKED[:2], "experiment.rollout_length=8"]).experiment
    checks, _ = module.examine(run, experiment, 128)
    assert not any(value for name, value in checks.items() if name not in ("killed", "shared memory")), checks
