"""`settings=tuned`: settings that learn, found by task and algorithm, beneath presets and the command line."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from covey import cli, registry
from covey.errors import UsageError
from covey.experiment.configuration.compose import compose, list_settings, settings_for
from covey.experiment.configuration.config import Config, identity_fields
from covey.experiment.configuration.settings import settings_in
from covey.launch.benchmark import name_of
from covey.loops.config import OnlineConfig

ROOT = Path(__file__).parents[3]
RESULTS = ROOT / "results"
RWARE = ("task=rware/tiny-4ag", "algorithm=mappo", "settings=tuned")


def online(*words: str) -> OnlineConfig:
    experiment = compose(words).experiment
    assert isinstance(experiment, OnlineConfig)
    return experiment


def test_settings_are_found_by_task_and_algorithm() -> None:
    config = compose(RWARE)
    assert (config.algorithm.config.lr, config.algorithm.config.num_minibatches) == (5e-4, 2)
    assert (online(*RWARE).rollout_length, online(*RWARE).frames) == (128, 20_000_000)
    recurrent = compose(["task=lbf/2s-8x8-2p-2f-coop", "algorithm=ippo", "settings=tuned"])
    assert recurrent.model.name == recurrent.critic_model.name == "gru"
    assert recurrent.critic_model.config.hidden_size == 64


def test_none_is_the_default() -> None:
    assert compose(["task=rware/tiny-4ag", "settings=none"]) == compose(["task=rware/tiny-4ag"]) != compose(RWARE)


def test_presets_and_the_command_line_come_after_them() -> None:
    experiment = online(*RWARE, "experiment=gpu")
    assert (experiment.num_envs, experiment.platform.name) == (1024, "gpu")  # the preset's, in place of 64
    assert (experiment.rollout_length, experiment.frames) == (128, 20_000_000)  # which the preset leaves alone
    assert online(*RWARE, "experiment=gpu", "experiment.num_envs=32").num_envs == 32
    assert compose([*RWARE, "algorithm.lr=1e-4"]).algorithm.config.lr == 1e-4


def test_another_model_replaces_theirs_for_the_critic_too() -> None:
    config = compose(["task=vmas/dispersion", "algorithm=mappo", "settings=tuned", "model=mlp"])
    assert config.model == config.critic_model == compose([]).model
    assert config.task.config.shaping == 1.0


def test_all_settings_compose_and_have_a_result() -> None:
    found = list_settings()
    assert len({(item.task, item.algorithm) for item in found}) == len(found) > 60
    for item in found:
        assert item.task in registry.tasks and item.algorithm in registry.algorithms
        config = compose([f"task={item.task}", f"algorithm={item.algorithm}", "settings=tuned"])
        report = json.loads((RESULTS / f"{item.result}.json").read_text(encoding="utf-8"))
        result = cell(report, item.task, item.algorithm) if "finals" in report else report
        assert (result["task"], result["algorithm"]) == (item.task, item.algorithm)
        assert (len(result["seeds"]), result["tuning"]) == (item.seeds, item.tuning)
        assert 0 <= result["frames"] - config.experiment.frames < 0.05 * result["frames"]


def cell(report: dict[str, Any], task: str, algorithm: str) -> dict[str, Any]:
    """A benchmark's final values for a task and an algorithm. Its runs take the preset's fields: nothing is tuned."""
    (found,) = (own for own in report["finals"] if (own["task"], own["algorithm"]) == (task, algorithm))
    (frames,) = {run["frames"] for run in report["runs"] if (run["task"], run["algorithm"]) == (task, algorithm)}
    return {**found, "frames": frames, "tuning": "none"}


def variants() -> dict[str, list[str]]:
    """The rows of results/ that have no settings of their own, and the words that the documentation says they add."""
    text = (ROOT / "docs/how-to/presets.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([\w-]+)` \| `([^|]+=[^|]+)` \| \S[^|]+ \|$", text, flags=re.MULTILINE)
    return {name: shlex.split(words) for name, words in rows}


def learning_rows() -> Iterator[tuple[str, dict[str, Any]]]:
    for path in sorted(RESULTS.glob("*.json")):
        row = json.loads(path.read_text(encoding="utf-8"))
        if "curves" in row:
            yield path.stem, row


def what_learns(config: Config) -> dict[str, Any]:
    """The identity of an experiment, without how it is evaluated."""
    tree = identity_fields(config)
    return tree | {"experiment": {k: v for k, v in tree["experiment"].items() if not k.startswith("evaluation_")}}


def test_every_learning_result_has_settings_which_are_those_of_its_command() -> None:
    plain, other = set[str](), set[str]()
    for name, row in learning_rows():
        words = [f"task={row['task']}", f"algorithm={row['algorithm']}", "settings=tuned"]
        settings = settings_for(words)
        assert settings is not None
        own = settings.result == name
        (plain if own else other).add(name)
        command = [word for word in shlex.split(row["command"])[2:] if not word.startswith(("run_dir=", "seeds="))]
        added = [] if own else variants()[name]
        assert what_learns(compose([*words, *added])) == what_learns(compose(command)), name
    assert len(plain) > 35 and other == variants().keys()


# Cells that did not learn: about 0.6 of 4 pieces of food, where a random team eats 0.2.
WITHOUT_SETTINGS = {("vmas/dispersion", name) for name in ("iql", "qmix", "masac")}


@pytest.mark.parametrize("benchmark", sorted(path.parent.name for path in RESULTS.glob("*/summary.json")))
def test_every_cell_of_a_benchmark_has_settings(benchmark: str) -> None:
    report = json.loads((RESULTS / benchmark / "summary.json").read_text(encoding="utf-8"))
    folders = {(run["task"], run["algorithm"]): Path(run["source"]).parts[-3] for run in report["runs"]}
    assert len(folders) >= 15
    refused = set()
    for (task, algorithm), folder in folders.items():
        words = [f"task={task}", f"algorithm={algorithm}", "settings=tuned"]
        try:
            settings = settings_for(words)
        except UsageError:
            refused.add((task, algorithm))
            continue
        if settings is not None and settings.result == f"{benchmark}/summary":  # then the folder's hash is today's
            assert name_of(compose([*words, "experiment.evaluation_interval=20_000"])) == folder
    assert refused == (WITHOUT_SETTINGS & folders.keys())
    assert benchmark != "vmas_quick" or refused == WITHOUT_SETTINGS


def test_one_line_says_what_was_found() -> None:
    assert settings_for(["task=rware/tiny-4ag"]) is None
    found = settings_for(["task=vmas/football", "algorithm=ippo", "settings=tuned"])
    assert found is not None
    assert found.line == (
        "tuned settings for vmas/football, ippo (tuning: four trials; result: 3,000,000 frames, 3 seeds, "
        "results/vmas-football-ippo.json); they set task.disable_ai_red=true, task.shaping=10.0"
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("task=vmas/balance", "algorithm=pqn", "settings=tuned"),
            "no tuned settings for vmas/balance with pqn; for vmas/balance: iddpg, ippo, iql, isac, maddpg, mappo, "
            "masac, qmix, vdn; for pqn: none",
        ),
        (("task=probe/copy", "algorithm=pqn", "settings=tuned"), "for probe/copy: none; for pqn: none"),
        (("settings=tunde",), "unknown settings 'tunde'; nearest: tuned"),
        (("settings=",), "'settings=' has no value; it takes tuned or none"),
    ],
)
def test_what_there_is_not_is_one_line(
    words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["train", *words]) == cli.EXIT_USAGE
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and message in error


def test_own_tasks_take_those_of_what_they_derive_from_and_own_files_come_first(tmp_path: Path) -> None:
    (tmp_path / "task/my").mkdir(parents=True)
    (tmp_path / "task/my/warehouse.yaml").write_text("base: rware/tiny-4ag\ntime_limit: 50\n")
    words = [f"config_dir={tmp_path}", "task=my/warehouse", "algorithm=mappo", "settings=tuned"]
    config = compose(words)
    assert config.algorithm.config.num_minibatches == 2 and config.task.config.time_limit == 50
    (tmp_path / "settings").mkdir()
    own = "rware/tiny-4ag:\n- {algorithms: [mappo], algorithm: {lr: 0.25}}\n"
    (tmp_path / "settings/mine.yaml").write_text(own)
    assert compose(words).algorithm.config.lr == 0.25
    (tmp_path / "settings/mine.yaml").write_text(own.replace("lr:", "rl:"))
    with pytest.raises(UsageError, match=r"mine.yaml: unknown field 'algorithm.rl'"):
        compose(words)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"algorithm": {"lr": 1}}, "takes a list of settings, each with algorithms"),
        ({"algorithms": ["mappo"], "trails": 3}, "unknown field of settings 'trails'; .* .it takes algorithms, result"),
        ({"algorithms": ["mappo"], "model": "gru"}, "model takes a mapping, not 'gru'"),
        ("mappo", "takes a list of settings"),
    ],
)
def test_a_wrong_entry_is_named(entry: object, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        settings_in(Path("mine.yaml"), {"my/task": [entry]})


def test_they_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list", "settings", "rware"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3 and "two trials of 4M frames" in lines[0] and "results/rware-tiny-4ag.json" in lines[0]
