"""One field says who receives which reward; VMAS's names for it are accepted, and texts follow it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import covey
from covey.envs.base import Reward
from covey.errors import UsageError
from covey.experiment.configuration.compose import compose
from covey.experiment.configuration.config import from_dict, to_dict
from covey.registry import renamed
from covey.report.runs import read_runs
from covey.task_fields import SHARED_REWARD_NAMES


@pytest.mark.parametrize(
    ("fields", "reward"),
    [
        ({}, None),
        ({"reward": "team_sum"}, "team_sum"),
        ({"shared_rew": True}, "shared"),
        ({"shared_reward": False}, "individual"),
        ({"reward": "individual", "shared_rew": True}, "shared"),  # as older configurations have it
        ({"reward": "shared", "shared_reward": False}, "individual"),
        ({"reward": Reward.shared, "shared_reward": False}, "individual"),
        ({"reward": "team_mean", "shared_rew": False}, "team_mean"),
    ],
)
def test_the_switch_is_a_value_of_reward(fields: dict[str, Any], reward: str | None) -> None:
    found = renamed(SHARED_REWARD_NAMES, {"n_agents": 3, **fields}, "task")
    assert found == {"n_agents": 3} | ({"reward": reward} if reward else {})


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"reward": "team_sum", "shared_rew": True}, "give only one of them"),
        ({"shared_rew": 1}, "true or false"),
    ],
)
def test_names_that_disagree_are_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        renamed(SHARED_REWARD_NAMES, fields, "task")


OWN = "sum of the agent's own rewards"


@pytest.mark.parametrize(
    ("task", "fields", "returns"),
    [
        ("vmas/navigation", {}, OWN),
        ("vmas/navigation", {"shared_rew": True}, f"{OWN}; every agent gets the sum of all progress"),
        ("vmas/navigation", {"reward": "shared"}, f"{OWN}; every agent gets the sum of all progress"),
        ("vmas/navigation", {"reward": "team_mean"}, f"{OWN}; every agent gets the mean over the team"),
        ("vmas/sampling", {"shared_rew": True}, f"{OWN}; every agent gets the sum over the team"),
        ("vmas/multi_give_way", {}, f"{OWN}; every agent gets the sum of all progress"),
        ("vmas/passage", {}, f"{OWN}; every agent gets the sum of all progress"),
        ("vmas/passage", {"shared_reward": False}, OWN),
        ("vmas/dispersion", {}, f"{OWN}; every agent gets 1 for each piece that is eaten"),
        ("vmas/dispersion", {"share_reward": False}, OWN),
        ("vmas/simple_tag", {}, f"{OWN}; adversaries get the sum over their team"),
        ("vmas/simple_tag", {"adversaries_share_rew": False}, OWN),
        ("vmas/simple_tag", {"reward": "team_mean"}, f"{OWN}; every agent gets the mean over the team"),
        ("vmas/discovery", {"reward": "team_sum"}, f"{OWN}; every agent gets the sum over the team"),
        ("probe/copy", {"reward": "team_sum"}, f"{OWN}; every agent gets the sum over the team"),
    ],
)
def test_texts_follow_the_field(task: str, fields: dict[str, Any], returns: str) -> None:
    assert covey.make_env(task, **fields).spec.returns == returns


def test_tasks_that_do_not_share_by_themselves_say_so() -> None:
    with pytest.raises(UsageError, match=r"reward=shared is only for tasks with their own way of sharing"):
        covey.make_env("vmas/balance", reward="shared")
    with pytest.raises(UsageError, match="unknown field of task 'shared_rew'"):
        covey.make_env("vmas/balance", shared_rew=True)


def test_rewards_are_shared_once() -> None:
    """simple_tag lets adversaries share by itself; with `reward`, all teams share, and not the sum of a sum."""
    still = {"adversary": jnp.zeros((3, 2)), "agent": jnp.zeros((1, 2))}

    def rewards(**fields: str | bool) -> list[float]:
        env = covey.make_env("vmas/simple_tag", bound=0.1, **fields)  # so small that most are in contact
        _, timestep = env.step(env.reset(jax.random.key(0))[0], still, jax.random.key(1))
        return timestep.groups["adversary"].reward.tolist()

    own = rewards(adversaries_share_rew=False)
    assert sum(own) > 0
    assert rewards() == rewards(reward="team_sum") == [sum(own)] * 3
    assert rewards(reward="team_mean") == pytest.approx([sum(own) / 3] * 3)


def test_the_command_line_and_older_configurations_take_both_names() -> None:
    config = compose(["task=vmas/passage", "task.shared_reward=false"])
    assert config.task.config.reward is Reward.individual
    stored = to_dict(config)
    assert "shared_reward" not in stored["task"]
    older = {**stored, "task": {**stored["task"], "reward": "individual", "shared_reward": True}}
    assert from_dict(older).task.config.reward is Reward.shared
    with pytest.raises(UsageError, match="give only one of them"):
        compose(["task=vmas/navigation", "task.shared_rew=true", "task.reward=individual"])


def test_reports_compare_older_runs_with_new_ones(tmp_path: Path) -> None:
    results = '{"vmas": {"passage": {"ippo": {"seed_%d": {"step_0": {"step_count": 0, "mean_return": [1.0]}}}}}}'
    tasks = ["{name: vmas/passage, reward: individual, shared_reward: true}", "{name: vmas/passage, reward: shared}"]
    for seed, task in enumerate(tasks):
        folder = tmp_path / str(seed)
        folder.mkdir()
        (folder / "config.yaml").write_text(f"task: {task}\nseed: {seed}\n")
        (folder / "results.json").write_text(results % seed)
    runs, _ = read_runs([tmp_path])
    assert [run.task for run in runs] == ["vmas/passage", "vmas/passage"]
    assert [run.config["task"]["reward"] for run in runs] == ["shared", "shared"]
