"""Fixed opponents: they take a group's place, the rest of the team stays, and bad names are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from simulators import Clock, ClockConfig

import covey
from covey import registry
from covey.algorithms.base import make_team
from covey.envs.batch import episode_values
from covey.errors import UsageError
from covey.experiment.loading.evaluation import evaluate_run
from covey.experiment.loading.partners import make_partner
from covey.experiment.running.experiment import Experiment
from covey.loops.evaluate import play_episodes

FIELDS = {
    "experiment.frames": 64,
    "experiment.num_envs": 4,
    "experiment.rollout_length": 16,
    "experiment.devices": 1,
    "experiment.evaluation_interval": 0,
    "experiment.evaluation_episodes": 2,
    "experiment.absolute_metric": False,
    "experiment.loggers": [],
    "model.layers": [8],
    "algorithm.num_minibatches": 1,
    "algorithm.epochs": 1,
    "task.time_limit": 30,
}
TAG = "vmas/simple_tag"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "tag"
    Experiment(task=TAG, algorithm="ippo", run_dir=str(path), fields=FIELDS).run()
    return path


def test_only_the_groups_named_are_replaced(run: Path) -> None:
    alone = evaluate_run(run, episodes=16)
    chased = evaluate_run(run, episodes=16, opponents={"adversary": "reference"})
    assert chased["means"]["agent_return"] < alone["means"]["agent_return"] - 10
    assert chased["opponents"] == {"adversary": "reference"}
    itself = evaluate_run(run, episodes=16, opponents={"adversary": str(run)})
    np.testing.assert_allclose(itself["episodes"]["agent_return"], alone["episodes"]["agent_return"], rtol=1e-4)


def test_partners_beside_the_team(run: Path) -> None:
    """Agent 1 of three is played by somebody else, and the group's return is that of the other two."""
    alone = evaluate_run(run, episodes=8)
    itself = evaluate_run(run, episodes=8, partners={"adversary.1": str(run)})
    assert itself["partners"] == {"adversary.1": str(run)} and itself["opponents"] == {}
    np.testing.assert_allclose(itself["episodes"]["agent_return"], alone["episodes"]["agent_return"], rtol=1e-4)
    mixed = evaluate_run(run, episodes=8, partners={"adversary.1": ["reference", "random"], "rotate": True})
    assert np.isfinite(mixed["mean_return"]) and mixed["mean_return_of"] == alone["mean_return_of"]


@pytest.mark.parametrize(
    ("partners", "message"),
    [
        ({"adversary.3": "random"}, "numbered 0 to 2"),
        ({"adversary.x": "random"}, "numbered 0 to 2"),
        ({"adversary": "random", "adversary.1": "random"}, "taken twice"),
        (
            {"adversary.0": "random", "adversary.1": "random", "adversary.2": "random"},
            "use partners.adversary=… instead",
        ),
        ({"adversary.1": []}, "or a list of these"),
        ({"adversary": "random", "rotate": True}, "needs the seat of a single agent"),
        ({"rotate": 3, "adversary.1": "random"}, "true or false"),
    ],
)
def test_bad_partners(run: Path, partners: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        evaluate_run(run, episodes=2, partners=partners)


def test_another_configuration_of_the_task(run: Path) -> None:
    report = evaluate_run(run, episodes=2, task={"time_limit": 7})
    assert report["means"]["episode_length"] == 7


def test_partners_opponents_and_changes_on_a_simulator(tmp_path: Path) -> None:
    """Nothing traces a simulator's reset, which only its process can compute."""
    name = "toy/clock"
    covey.register_task(name, Clock, config=ClockConfig, description="counts its steps", host=True)
    try:
        path = str(tmp_path / "clock")
        partners = {"partners.agents.0": "random"}
        Experiment(task=name, algorithm="ippo", run_dir=path, fields=FIELDS | {"task.time_limit": 6} | partners).run()
        report = evaluate_run(path, episodes=2, task={"time_limit": 4})
        assert report["partners"] == {"agents.0": "random"} and report["means"]["episode_length"] == 4
        itself = evaluate_run(path, episodes=2, partners={"agents.1": path})
        assert itself["partners"] == {"agents.1": path}
    finally:
        registry.tasks._entries.pop(name)


@pytest.mark.slow
def test_more_agents_than_were_trained(tmp_path: Path) -> None:
    """Networks that look at each agent alike serve any number of them; those that are told who they are do not."""
    fields = FIELDS | {"algorithm.agent_ids": False}
    del fields["model.layers"]
    alike, told = tmp_path / "alike", tmp_path / "told"
    Experiment(task="vmas/navigation", algorithm="mappo", model="deepsets", run_dir=str(alike), fields=fields).run()
    report = evaluate_run(alike, episodes=2, task={"n_agents": 5})
    assert report["changes"] == {"n_agents": 5} and np.isfinite(report["mean_return"])
    Experiment(task="vmas/navigation", algorithm="ippo", run_dir=str(told), fields=FIELDS).run()
    with pytest.raises(UsageError, match="trained for 3 agents"):
        evaluate_run(told, episodes=2, task={"n_agents": 5})


@pytest.mark.parametrize(
    ("opponents", "message"),
    [
        ({"adversaries": "random"}, "unknown group 'adversaries'; nearest: adversary"),
        ({"adversary": "best"}, "random, reference or a run directory"),
        ({"adversary": "random", "agent": "random"}, "none of the run's own agents would play"),
    ],
)
def test_bad_opponents(run: Path, opponents: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        evaluate_run(run, episodes=2, opponents=opponents)


def play(task: str, **sources: str) -> dict[str, float]:
    """Mean values of 32 episodes between opponents."""
    env = covey.make_env(task)
    team = make_team({group: make_partner(env, group, source)[0] for group, source in sources.items()})
    learner = dict.fromkeys(sources, ())

    @jax.jit
    def episodes(key: jax.Array) -> Any:
        return play_episodes(env, team, team.acting(learner), key, num_episodes=32, deterministic=True)

    return {name: float(value.mean()) for name, value in episode_values(episodes(jax.random.key(0))).items()}


@pytest.mark.slow
def test_the_references_of_tag_play_well() -> None:
    chased, fled = play(TAG, adversary="reference", agent="random"), play(TAG, adversary="random", agent="reference")
    assert chased["catches"] > 50  # of 300 chances; at random it is 0.7
    assert fled["catches"] < 0.2


@pytest.mark.slow
def test_the_references_of_adversary_play_well() -> None:
    task = "vmas/simple_adversary"
    assert play(task, adversary="random", agent="reference")["goal_covered"] > 0.95
    assert play(task, adversary="reference", agent="random")["goal_found"] > 0.3  # one of two landmarks, if it guesses


def test_a_task_without_a_reference_says_so() -> None:
    with pytest.raises(UsageError, match="no reference policy"):
        make_partner(covey.make_env("probe/groups"), "copiers", "reference")
