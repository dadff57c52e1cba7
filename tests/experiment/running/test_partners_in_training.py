"""Learning beside partners that do not: the right answer depends on who sits there, and nothing of them ever changes."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from covey import registry
from covey.envs.base import Actions, first_step, next_step
from covey.envs.probes import GROUP, Probe, ProbeConfig
from covey.experiment.loading.evaluation import evaluate_run
from covey.experiment.loading.policy import load
from covey.experiment.recording.checkpoint import Checkpoints
from covey.experiment.recording.run_directory import RunDirectory
from covey.experiment.running.experiment import Experiment, resume
from covey.types import Discrete, Key, PyTree, TimeStep

MATCH = "test/match"
FRAMES = 64  # of an iteration


@dataclasses.dataclass(frozen=True, kw_only=True)
class MatchConfig(ProbeConfig):
    wanted: int | None = None  # the action that earns 1; null: the one that everybody takes
    constant: int = 2  # what the reference policy always does


class Match(Probe):
    """One step, three actions, reward 1 to all if all take the same one: what is best depends on who else plays."""

    action = Discrete(3)

    @property
    def reference_policies(self) -> dict[str, Any]:
        return {GROUP: lambda observation: jnp.full(observation.shape[0], self.config.constant, jnp.int32)}

    def reset(self, key: Key) -> tuple[PyTree, TimeStep]:
        return jnp.zeros(()), first_step({GROUP: self.zeros()})

    def step(self, state: PyTree, action: Actions, key: Key) -> tuple[PyTree, TimeStep]:
        taken = action[GROUP]
        same = jnp.all(taken == taken[0]) & jnp.ones(self.agents, bool)
        reward = (same if self.config.wanted is None else taken == self.config.wanted).astype(jnp.float32)
        return state, next_step({GROUP: self.zeros()}, {GROUP: reward}, terminated=jnp.ones((), bool))


@pytest.fixture(scope="module", autouse=True)
def match() -> None:
    if MATCH not in registry.tasks:
        registry.register_task(MATCH, Match, config=MatchConfig, description="")


FIELDS: dict[str, Any] = {
    "experiment.num_envs": 16,
    "experiment.rollout_length": 4,
    "experiment.devices": 1,
    "experiment.evaluation_interval": 0,
    "experiment.evaluation_episodes": 64,
    "experiment.absolute_metric": False,
    "experiment.loggers": [],
    "model.layers": [16],
    "algorithm.lr": 1e-2,
}
ON_POLICY = {"algorithm.epochs": 2, "algorithm.num_minibatches": 1}


def run(path: Path, algorithm: str, iterations: int, partners: dict[str, Any] | None = None, **fields: Any) -> Path:
    own = {f"partners.{seat}": value for seat, value in (partners or {}).items()}
    online = ON_POLICY if algorithm in ("ippo", "mappo") else {}
    frames = {"experiment.frames": iterations * FRAMES}
    given = {name.replace("__", "."): value for name, value in fields.items()}
    task = given.pop("task", MATCH)
    Experiment(task=task, algorithm=algorithm, run_dir=str(path), fields=FIELDS | online | frames | own | given).run()
    return path


@pytest.fixture(scope="module")
def partner(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Has learned to take action 1, whatever the others do."""
    path = run(tmp_path_factory.mktemp("runs") / "partner", "ippo", 40, task__wanted=1)
    assert evaluate_run(path, episodes=64)["mean_return"] > 0.9
    return path


def last_return(path: Path) -> float:
    """The mean return of the last evaluation in training."""
    return [r for r in RunDirectory.open(path).metrics.read() if r["kind"] == "evaluation"][-1]["mean_return"]


def test_ppo_learns_what_suits_its_partner(partner, tmp_path):
    path = run(tmp_path / "run", "ippo", 30, {"agents.1": str(partner)})
    assert last_return(path) > 0.85
    policy = load(path)
    taken, _ = policy.act(np.zeros((2, 1)))
    assert taken[0] == 1  # the learner's seat
    beside = evaluate_run(path, episodes=64)
    assert beside["mean_return"] > 0.85 and beside["partners"] == {"agents.1": str(partner)}
    other = evaluate_run(path, episodes=64, partners={"agents.1": "reference"})  # always takes action 2
    assert other["mean_return"] < 0.2


def saved(path: Path) -> dict[str, Any]:
    checkpoints = Checkpoints(path / "checkpoints")
    return {part: checkpoints.restore_part(part) for part in ("learner", "actor", "clock", "best")}


def test_resumed_without_the_partners_run_to_the_bit(partner, tmp_path, same_bits):
    """A run keeps a copy of its partner, so what becomes of the partner's own run does not matter."""
    passing = tmp_path / "passing"
    shutil.copytree(partner, passing)
    fields = {"experiment__schedule_frames": 12 * FRAMES}
    whole = run(tmp_path / "whole", "ippo", 12, {"agents.1": str(passing)}, **fields)
    halved = run(tmp_path / "halved", "ippo", 5, {"agents.1": str(passing)}, **fields)
    shutil.rmtree(passing)
    resume(halved, [f"experiment.frames={12 * FRAMES}"])
    same_bits(saved(halved), saved(whole))
    assert last_return(halved) == last_return(whole)
    assert evaluate_run(halved, episodes=8)["episodes"] == evaluate_run(whole, episodes=8)["episodes"]


def test_checkpoints_hold_the_learner_alone(partner, tmp_path):
    path = run(tmp_path / "run", "ippo", 2, {"agents.1": str(partner)})
    assert set(saved(path)["learner"]) == {"agents"}
    assert sorted(child.name for child in (path / "partners").iterdir()) == ["agents.1-0"]
