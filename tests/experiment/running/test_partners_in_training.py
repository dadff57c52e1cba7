"""Learning beside partners that do not: the right answer depends on who sits there, and partners never change."""

from __future__ import annotations

import dataclasses
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import SameBits

from covey import registry
from covey.envs.base import Actions, first_step, next_step
from covey.envs.probes import GROUP, Probe, ProbeConfig
from covey.errors import UsageError
from covey.experiment.configuration.compose import compose
from covey.experiment.loading.evaluation import evaluate_run
from covey.experiment.loading.policy import load
from covey.experiment.recording.checkpoint import Checkpoints
from covey.experiment.recording.run_directory import RunDirectory
from covey.experiment.running.build import build
from covey.experiment.running.experiment import Experiment, as_override, resume, train
from covey.experiment.running.program_store import experiment_name
from covey.types import ActionSpec, Continuous, Discrete, EnvSpec, Key, PyTree, TimeStep

MATCH, NEAR = "test/match", "test/near"
FRAMES = 64  # of an iteration


@dataclasses.dataclass(frozen=True, kw_only=True)
class MatchConfig(ProbeConfig):
    wanted: int | None = None  # the action that earns 1; null: the one that everybody takes
    constant: int = 2  # what the reference policy always does


class Match(Probe):
    """One step, three actions, reward 1 to all if all take the same one: what is best depends on who else plays."""

    config: MatchConfig
    action: ActionSpec = Discrete(3)

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
    for name, task in ((MATCH, Match), (NEAR, Near)):
        if name not in registry.tasks:
            registry.register_task(name, task, config=MatchConfig, description="")


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
    given: dict[str, Any] = {name.replace("__", "."): value for name, value in fields.items()}
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
    records = RunDirectory.open(path).metrics.read()
    return float([r for r in records if r["kind"] == "evaluation"][-1]["mean_return"])


def test_ppo_learns_what_suits_its_partner(partner: Path, tmp_path: Path) -> None:
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


def test_resumed_without_the_partners_run_to_the_bit(partner: Path, tmp_path: Path, same_bits: SameBits) -> None:
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


def test_checkpoints_hold_the_learner_alone(partner: Path, tmp_path: Path) -> None:
    path = run(tmp_path / "run", "ippo", 2, {"agents.1": str(partner)})
    assert set(saved(path)["learner"]) == {"agents"}
    assert sorted(child.name for child in (path / "partners").iterdir()) == ["agents.1-0"]


REPLAY = {"experiment__random_frames": 64, "experiment__updates": 8, "experiment__buffer__size": 4096}


@pytest.mark.parametrize("algorithm", ["iql", "qmix", "pqn"])
def test_algorithms_of_values_learn_what_suits_their_partner(partner: Path, tmp_path: Path, algorithm: str) -> None:
    own = {"algorithm__num_minibatches": 1, "algorithm__epochs": 4} if algorithm == "pqn" else REPLAY
    path = run(tmp_path / "run", algorithm, 40, {"agents.1": str(partner)}, algorithm__epsilon_fraction=0.2, **own)
    assert last_return(path) > 0.85
    assert load(path).act(np.zeros((2, 1)))[0][0] == 1


class Near(Match):
    """Continuous: 1 − (a − b)² + 2 b to both, where b is what agent 1 does.

    Beside one that acts at random, the best a is 0. Who could choose b as well would take 1 for both.
    """

    action: ActionSpec = Continuous(low=(-1.0,), high=(1.0,))

    @property
    def spec(self) -> EnvSpec:
        spec = super().spec
        shared = dataclasses.replace(spec.groups[GROUP], shared_reward=True)
        return dataclasses.replace(spec, groups={GROUP: shared})

    def step(self, state: PyTree, action: Actions, key: Key) -> tuple[PyTree, TimeStep]:
        first, second = action[GROUP][:, 0]
        reward = 1.0 - jnp.square(first - second) + 2.0 * second
        return state + 1, next_step({GROUP: self.zeros()}, {GROUP: reward}, terminated=state >= 1)


@pytest.mark.parametrize("algorithm", ["maddpg", "masac"])
def test_central_critics_see_what_the_partner_does(tmp_path: Path, algorithm: str) -> None:
    """The reward is shared, so actors follow a critic of everybody's actions (`actor_gradient=all`)."""
    path = run(tmp_path / "run", algorithm, 40, {"agents.1": "random"}, task=NEAR, **REPLAY)
    assert abs(float(load(path).act(np.zeros((2, 1)))[0][0, 0])) < 0.3


def test_the_seat_may_rotate(partner: Path, tmp_path: Path) -> None:
    """Then the learner plays both seats, and has to know what suits its partner in each."""
    path = run(tmp_path / "run", "ippo", 40, {"agents.0": str(partner), "rotate": True})
    assert load(path).act(np.zeros((2, 1)))[0].tolist() == [1, 1]
    assert last_return(path) > 0.85


def test_one_of_a_list_is_drawn_for_each_episode(partner: Path, tmp_path: Path) -> None:
    """Beside one that takes action 1 and one that takes action 2, the best is to match every other episode."""
    path = run(tmp_path / "run", "ippo", 30, {"agents.1": [str(partner), "reference"]})
    assert 0.3 < last_return(path) < 0.7
    assert load(path).act(np.zeros((2, 1)))[0][0] in (1, 2)
    records = [r for r in RunDirectory.open(path).metrics.read() if r["kind"] == "train"]
    assert 0.3 < np.mean([r["collection/mean_return"] for r in records[-10:]]) < 0.7
    assert sorted(child.name for child in (path / "partners").iterdir()) == ["agents.1-0"]


def test_beside_a_random_partner(tmp_path: Path) -> None:
    path = run(tmp_path / "run", "ippo", 3, {"agents.1": "random"})
    assert 0.1 < last_return(path) < 0.6  # a third
    assert not (path / "partners").exists()
    assert RunDirectory.open(path).environment["partners"] == {"agents.1": "random"}


@pytest.mark.slow
def test_a_partner_with_memory_beside_a_learner_without(tmp_path: Path, same_bits: SameBits) -> None:
    """The partner's memory is kept between steps and iterations, also over a resume."""
    memory: dict[str, Any] = {"task": "probe/memory", "experiment__schedule_frames": 8 * FRAMES}
    gru: dict[str, Any] = {"model": "gru", "model__layers": [8], "model__hidden_size": 8, "model__layers_after": []}
    partner = run(tmp_path / "partner", "ippo", 2, **memory, **gru)
    whole = run(tmp_path / "whole", "ippo", 8, {"agents.1": str(partner)}, **memory)
    halved = run(tmp_path / "halved", "ippo", 3, {"agents.1": str(partner)}, **memory)
    resume(halved, [f"experiment.frames={8 * FRAMES}"])
    same_bits(saved(halved), saved(whole))
    replayed = run(tmp_path / "replayed", "iql", 4, {"agents.1": str(partner)}, **memory, **REPLAY)
    assert np.isfinite(last_return(replayed))


def test_a_learner_with_memory_beside_a_partner_without(partner: Path, tmp_path: Path) -> None:
    gru: dict[str, Any] = {"model": "gru", "model__layers": [8], "model__hidden_size": 8, "model__layers_after": []}
    path = run(tmp_path / "run", "mappo", 30, {"agents.1": str(partner)}, **gru)
    assert last_return(path) > 0.85


def test_seeds_at_once_have_the_same_partner(partner: Path, tmp_path: Path) -> None:
    fields = {"seeds": 2, "experiment__seeds_at_once": 2}
    path = run(tmp_path / "runs", "ippo", 30, {"agents.1": str(partner)}, **fields)
    assert all(last_return(path / f"seed_{seed}") > 0.85 for seed in (0, 1))
    resume(path, [f"experiment.frames={32 * FRAMES}"])


def test_init_from_takes_what_a_run_learned_beside_its_partner(partner: Path, tmp_path: Path) -> None:
    first = run(tmp_path / "first", "ippo", 30, {"agents.1": str(partner)})
    second = run(tmp_path / "second", "ippo", 1, {"agents.1": str(partner)}, init_from=str(first))
    records = [r for r in RunDirectory.open(second).metrics.read() if r["kind"] == "evaluation"]
    assert records[0]["mean_return"] > 0.85  # before anything was learned here


class SetLr:
    """A callback that sets a coefficient of those who learn."""

    def on_iteration(self, training: Any, metrics: Any) -> None:
        assert set(training.coefficients) == {"agents"}
        training.set_coefficient("lr", 0.0)


def test_callbacks_see_the_learner_alone(partner: Path, tmp_path: Path) -> None:
    set_lr: Any = SetLr()
    experiment = Experiment(
        task=MATCH,
        algorithm="ippo",
        run_dir=str(tmp_path / "run"),
        callbacks=[set_lr],
        fields=FIELDS | ON_POLICY | {"experiment.frames": 3 * FRAMES, "partners.agents.1": str(partner)},
    )
    experiment.run()
    assert load(tmp_path / "run").learner["agents"].coefficients["lr"] == 0.0


def test_a_whole_group_of_opponents(tmp_path: Path) -> None:
    path = run(tmp_path / "run", "ippo", 2, {"copiers": "random"}, task="probe/groups")
    record = RunDirectory.open(path).metrics.read()[-1]
    assert record["mean_return"] == record["guessers_return"]
    assert set(saved(path)["learner"]) == {"guessers"}
    report = evaluate_run(path, episodes=8)
    assert report["opponents"] == {"copiers": "random"} and report["mean_return_of"] == ["guessers"]
    assert "copiers/entropy" not in RunDirectory.open(path).metrics.read()[1]
    with pytest.raises(UsageError, match="group 'copiers' did not learn in this run"):
        evaluate_run(path, episodes=8, partners={"copiers": "team"})
    assert set(load(path).parameters) == {"guessers"}


def test_the_team_may_take_its_partners_seat_in_an_evaluation(tmp_path: Path) -> None:
    path = run(tmp_path / "run", "ippo", 2, {"agents.1": "reference"})
    assert evaluate_run(path, episodes=8, partners={"agents.1": "team"})["partners"] == {}


@pytest.mark.parametrize(
    ("partners", "message"),
    [
        ({"agent": "random"}, "unknown group 'agent'"),
        ({"agents.2": "random"}, "numbered 0 to 1"),
        ({"agents.1": "runs/none"}, "partners.agents.1=runs/none: give random, reference or a run directory"),
        ({"agents": "random"}, "none of the run's own agents would play"),
        ({"agents.0": "random", "agents.1": "random"}, "partners take every agent of group 'agents'"),
        ({"agents.1": "random", "rotate": "maybe"}, "true or false"),
        ({"rotate": True}, "needs the seat of a single agent"),
    ],
)
def test_bad_partners(tmp_path: Path, partners: dict[str, bool | str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        run(tmp_path / "run", "ippo", 1, partners)
    assert not (tmp_path / "run").exists()


def test_a_partner_of_another_task(partner: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"acts by .* here, but by"):
        run(tmp_path / "run", "ippo", 1, {"agents.1": str(partner)}, task="probe/copy")
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(UsageError, match=f"partners.agents.1={empty}: .* is not a run directory"):
        run(tmp_path / "run", "ippo", 1, {"agents.1": str(empty)})


def test_killed_and_resumed_to_the_bit(tmp_path: Path, same_bits: SameBits) -> None:
    """A real process and a real kill: learning from replay beside one of two partners, of which one has memory."""
    memory: dict[str, Any] = {"task": "probe/memory"}
    gru: dict[str, Any] = {"model": "gru", "model__layers": [8], "model__hidden_size": 8, "model__layers_after": []}
    partner = run(tmp_path / "partner", "ippo", 2, **memory, **gru)
    iterations = 60
    fields = FIELDS | {
        "task": "probe/memory",
        "algorithm": "iql",
        "experiment.frames": iterations * FRAMES,
        "experiment.checkpoint_interval": 4 * FRAMES,
        "experiment.random_frames": 64,
        "experiment.updates": 2,
        "experiment.buffer.size": 1024,
        "partners.agents.0": [str(partner), "random"],
        "partners.rotate": True,
    }
    words = [f"{name}={as_override(value)}" for name, value in fields.items()]
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    train(compose([*words, f"run_dir={whole}"]))
    process = subprocess.Popen([sys.executable, "-m", "covey.cli", "train", *words, f"run_dir={killed}"])
    metrics = killed / "metrics.jsonl"
    deadline = time.monotonic() + 200
    while process.poll() is None and not (metrics.exists() and metrics.read_bytes().count(b"\n") > iterations // 2):
        assert time.monotonic() < deadline
        time.sleep(0.005)
    process.kill()
    assert process.wait() in (0, -signal.SIGKILL)
    shutil.rmtree(partner)
    resume(killed)
    same_bits(saved(killed), saved(whole))
    assert last_return(killed) == last_return(whole)


def test_programs_are_told_apart_by_what_partners_are(partner: Path, tmp_path: Path) -> None:
    """The same words name another program where the partner's own run has another network."""
    config = compose(["task=probe/copy", f"partners.agents.1={partner}"])
    devices = jax.devices()[:1]
    own = compose(["task=probe/copy"])
    names = [
        experiment_name(config, devices, 1, [own]),
        experiment_name(config, devices, 1, [compose(["task=probe/copy", "model.layers=[3]"])]),
        experiment_name(config, devices, 1),
    ]
    assert len(set(names)) == 3 and None not in names
    assert experiment_name(config, devices, 1, [own]) == names[0]


def test_without_partners_nothing_is_wrapped() -> None:
    parts = build(compose(["task=probe/copy", "algorithm=ippo", "experiment.devices=1"]), jax.devices()[:1])
    assert parts.partners == () and parts.opponents == ()
    assert set(jax.eval_shape(parts.algorithm.init, jax.random.key(0))) == {"agents"}
    assert jax.tree.leaves(parts.algorithm.initial_carry(2)) == []
