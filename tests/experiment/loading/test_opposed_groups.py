"""Groups that oppose each other: every place shows each group's return, and `mean_return` is that of the first team."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import covey
from covey import metrics, registry
from covey.envs.base import next_step
from covey.envs.batch import Episodes, episode_values
from covey.envs.probes import TwoGroups
from covey.experiment.loading.evaluation import evaluate_run
from covey.experiment.running.console import Returns, describe_returns, summary_rows
from covey.experiment.running.experiment import Experiment, describe_opposition
from covey.launch.overview import Running, running_text
from covey.launch.progress import read_opposed_groups
from covey.report.anchors import read_opposed_tasks
from covey.types import Discrete, EnvSpec, GroupSpec, TimeStep

TASK = "probe/opposed"
ONE = GroupSpec(num_agents=1, observation_shape=(1,), action=Discrete(2))
FIELDS = {
    "experiment.frames": 64,
    "experiment.num_envs": 4,
    "experiment.rollout_length": 8,
    "experiment.devices": 1,
    "experiment.evaluation_interval": 0,
    "experiment.evaluation_episodes": 8,
    "model.layers": [8],
    "algorithm.num_minibatches": 1,
    "algorithm.epochs": 1,
}


class Opposed(TwoGroups):
    """What copiers win, guessers lose: the mean over groups is always 0."""

    @property
    def spec(self) -> EnvSpec:
        return dataclasses.replace(super().spec, teams=(("copiers",), ("guessers",)))

    def step(self, state: Any, action: dict[str, jax.Array], key: jax.Array) -> tuple[Any, TimeStep]:
        won = jnp.mean(action["copiers"] == state[:-1])
        observations = {"copiers": state[:-1, None], "guessers": jnp.zeros((1, 3))}
        return state, next_step(observations, {"copiers": won, "guessers": -won}, terminated=jnp.ones((), bool))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Any, str]]:
    """A run directory, its summary, and what was printed."""
    path, printed = tmp_path_factory.mktemp("runs") / "opposed", io.StringIO()
    registry.register_task(TASK, Opposed, config=type(registry.tasks["probe/groups"].defaults()), description="")
    try:
        with contextlib.redirect_stdout(printed):
            [summary] = Experiment(task=TASK, algorithm="ippo", run_dir=str(path), fields=FIELDS).run()
        yield path, summary, printed.getvalue()
    finally:
        registry.tasks._entries.pop(TASK)


def test_teams_must_name_every_group_once() -> None:
    groups = {"a": ONE, "b": ONE}
    assert EnvSpec(groups=groups, time_limit=1).cooperating == (("a", "b"),)
    assert EnvSpec(groups=groups, time_limit=1, teams=(("b",), ("a",))).cooperating == (("b",), ("a",))
    for teams in ((("a",),), (("a", "b"), ("b",)), (("a",), ("c",))):
        with pytest.raises(ValueError, match="teams"):
            EnvSpec(groups=groups, time_limit=1, teams=teams)


@pytest.mark.parametrize(
    ("task", "fields", "teams"),
    [
        ("vmas/simple_tag", {}, (("adversary",), ("agent",))),
        ("vmas/simple_adversary", {}, (("agent",), ("adversary",))),
        ("vmas/simple_push", {}, (("agent",), ("adversary",))),
        ("vmas/simple_crypto", {}, (("alice", "bob"), ("eve",))),
        ("vmas/simple_world_comm", {}, (("lead_adversary", "adversary"), ("agent",))),
        ("vmas/simple_world_comm", {"num_adversaries": 1}, (("lead_adversary",), ("agent",))),
        ("vmas/football", {}, ()),
        ("vmas/football", {"ai_red_agents": False}, (("agent_blue",), ("agent_red",))),
        ("vmas/navigation", {}, ()),
        ("mpe/simple_tag", {}, (("adversary",), ("agent",))),
        ("mpe/simple_adversary", {}, (("agent",), ("adversary",))),
        ("mpe/simple_push", {}, (("agent",), ("adversary",))),
        ("mpe/simple_crypto", {}, (("alice", "bob"), ("eve",))),
        ("mpe/simple_world_comm", {}, (("leader", "adversary"), ("agent",))),
        ("mpe/simple_speaker_listener", {}, ()),
    ],
)
def test_tasks_say_who_opposes_whom(task: str, fields: dict[str, Any], teams: tuple[tuple[str, ...], ...]) -> None:
    assert covey.make_env(task, **fields).spec.teams == teams
    if not fields:
        assert read_opposed_tasks().get(task, ()) == teams  # as reports know them


def test_which_groups_are_scored() -> None:
    teams = (("leader", "adversary"), ("agent",))
    assert metrics.scored_groups(teams) == ("leader", "adversary")
    assert metrics.scored_groups(teams, ["leader"]) == ("adversary",)
    assert metrics.scored_groups(teams, ["leader", "adversary"]) == ("agent",)
    assert metrics.shown_groups(teams) == ("leader", "adversary", "agent")
    assert metrics.shown_groups((("a", "b"),)) == ()
    assert metrics.shown_groups((("a", "b"),), ["b"]) == ("a", "b")


def test_mean_return_is_of_the_scored_groups() -> None:
    returns = {"a": jnp.array([1.0]), "b": jnp.array([3.0]), "c": jnp.array([-4.0])}
    episodes = Episodes(returns=returns, length=jnp.array([1]), metrics={})
    assert episode_values(episodes)["mean_return"] == 0.0
    assert episode_values(episodes, ("a", "b"))["mean_return"] == 2.0


def test_training_records_and_sums_up_each_group(run: tuple[Path, Any, str]) -> None:
    path, summary, _ = run
    step = json.loads((path / "results.json").read_text())["probe"]["opposed"]["ippo"]["seed_0"]["step_1"]
    np.testing.assert_array_equal(step["mean_return"], step["copiers_return"])
    np.testing.assert_array_equal(step["copiers_return"], np.negative(step["guessers_return"]))
    assert summary.by_group.keys() == {"copiers", "guessers"}
    assert summary.by_group["guessers"] == Returns(
        before=summary.by_group["guessers"].before,
        after=step["guessers_return"],
        absolute=[-value for value in summary.returns_absolute],
    )
    rows = dict(summary_rows(summary))
    assert {"copiers return before training", "guessers return after training"} <= rows.keys()
    assert "return before training" not in rows
    records = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    train = [record for record in records if record["kind"] == "train"]
    assert all(record["collection/mean_return"] == record["collection/copiers_return"] for record in train)
    assert json.loads((path / "environment.json").read_text())["teams"] == [["copiers"], ["guessers"]]
    assert read_opposed_groups(path) == ("copiers", "guessers")


def test_progress_and_the_line_at_the_start_name_the_groups(run: tuple[Path, Any, str]) -> None:
    _, _, printed = run
    assert "copiers against guessers: mean_return is the return of copiers" in printed
    assert "return: copiers 0." in printed and "guessers -0." in printed
    assert "return 0 " not in printed


def test_the_best_parameters_follow_a_group() -> None:
    spec = Opposed(registry.tasks["probe/groups"].defaults()).spec
    assert "experiment.best_by=guessers_return" in describe_opposition(spec, "mean_return")
    assert describe_opposition(spec, "guessers_return").endswith("the best parameters are chosen by guessers_return")


def test_evaluate_shows_groups_and_leaves_opponents_out_of_the_mean(
    run: tuple[Path, Any, str], capsys: pytest.CaptureFixture[str]
) -> None:
    path, _, _ = run
    report = evaluate_run(path, episodes=8)
    assert report["mean_return"] == pytest.approx(report["means"]["copiers_return"])
    assert report["mean_return_of"] == ["copiers"]
    printed = capsys.readouterr().out
    assert "copiers_return" in printed and "guessers_return" in printed and "mean_return" not in printed
    report = evaluate_run(path, episodes=8, opponents={"copiers": "random"})
    assert report["mean_return"] == pytest.approx(report["means"]["guessers_return"])
    assert report["mean_return_of"] == ["guessers"]


def test_texts_by_group() -> None:
    assert describe_returns({"": 0.51239}) == "return 0.5124"
    assert describe_returns({"adversary": 6.7188, "agent": -6.7188}) == "return: adversary 6.719, agent -6.719"
    running = Running(title="", seconds=1.0, share=0.5, mean_return=1.0, by_group={"a": 1.0, "b": -1.0})
    assert "return: a 1, b -1" in running_text(running)
