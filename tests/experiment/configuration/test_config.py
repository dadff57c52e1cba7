"""Configurations: validation, round trips, the order of presets, a user's own folder."""

from __future__ import annotations

import dataclasses
import enum
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from covey import registry
from covey.algorithms.base import AlgorithmConfig
from covey.errors import UsageError
from covey.experiment.configuration import compose as compose_module
from covey.experiment.configuration.compose import compose, list_presets, resume_config
from covey.experiment.configuration.config import (
    Choice,
    Config,
    check,
    choice_defaults,
    from_dict,
    from_yaml,
    num_cores,
    to_dict,
    to_yaml,
    with_devices,
)
from covey.experiment.recording import loggers
from covey.loops.config import LOGGERS, OnlineConfig, Platform, ReplayConfig
from covey.networks.layers import ModelConfig


class Colour(enum.Enum):
    red = 1
    blue = 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class Optimiser:
    momentum: float = 0.9


@dataclasses.dataclass(frozen=True, kw_only=True)
class FakeAlgorithm(AlgorithmConfig):
    lr: float = 1e-3
    epochs: int = 4
    minibatch_size: int | None = None
    sequence_length: int | None = None
    optimiser: Optimiser = Optimiser()

    def check(self, experiment: Any) -> None:
        if self.minibatch_size and self.minibatch_size > experiment.frames_per_iteration:
            raise ValueError(f"minibatch_size {self.minibatch_size} is larger than the batch")


@dataclasses.dataclass(frozen=True, kw_only=True)
class FakeTask:
    n_agents: int = 3
    colour: Colour = Colour.red
    size: tuple[int, ...] = (2, 2)
    options: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FakeModel(ModelConfig):
    layers: tuple[int, ...] = (8,)
    activation: str = "relu"


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A world of two names of each kind, and the first of each as the default choice."""
    for kind in (registry.tasks, registry.models, registry.algorithms):
        list(kind)  # reads the catalogue
        monkeypatch.setattr(kind, "_entries", {})
    for name in ("alpha", "beta"):
        registry.register_algorithm(name, print, config=FakeAlgorithm, description=f"{name} learns")
    registry.register_task("toy/plain", print, config=FakeTask, description="a toy")
    registry.register_task("toy/blue", print, config=FakeTask, description="in blue", fields={"colour": Colour.blue})
    for name in ("small", "large"):
        registry.register_model(name, print, config=FakeModel, description=f"a {name} one")
    defaults = {"experiment": "default", "algorithm": "alpha", "task": "toy/plain", "model": "small"}
    monkeypatch.setattr(compose_module, "DEFAULTS", defaults)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with an empty `my_conf`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "my_conf").mkdir()
    return tmp_path


def write(folder: Path, path: str, text: str) -> None:
    file = folder / "my_conf" / f"{path}.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


# ------------------------------------------------------------------------------------------------------ the values


@pytest.mark.usefixtures("fakes")
def test_defaults_come_from_the_dataclasses() -> None:
    config = compose([])
    assert config.algorithm == Choice("alpha", FakeAlgorithm())
    assert config.task == Choice("toy/plain", FakeTask())
    assert config.critic_model.name == config.model.name == "small"
    assert config.experiment == OnlineConfig()


@pytest.mark.usefixtures("fakes")
def test_overrides_reach_every_kind_of_field() -> None:
    config = compose(
        [
            *("algorithm=beta", "task=toy/blue", "model=large", "critic_model=small", "seeds=3", "jit=false"),
            *("algorithm.lr=3e-4", "algorithm.optimiser.momentum=0", "task.size=[4,5]", "task.options.depth=2"),
            *("experiment.frames=600_000", "experiment.evaluation_interval=1e6", "experiment.platform=cpu"),
            *("experiment.loggers=[console,wandb]", "experiment.logger_options.wandb.mode=offline"),
            *("run_dir=runs/lr=3, it's here", "hooks.loss=my_module:my_loss", "+experiment.checkpoint_keep=5"),
        ]
    )
    assert (config.algorithm.name, config.task.name) == ("beta", "toy/blue")
    assert (config.model.name, config.critic_model.name) == ("large", "small")
    assert config.algorithm.config == FakeAlgorithm(lr=3e-4, optimiser=Optimiser(momentum=0.0))
    assert config.task.config == FakeTask(colour=Colour.blue, size=(4, 5), options={"depth": 2})
    assert isinstance(config.experiment, OnlineConfig)
    assert config.experiment.frames == 600_000
    assert config.experiment.evaluation_interval == 1_000_000
    assert isinstance(config.experiment.evaluation_interval, int)
    assert config.experiment.platform is Platform.cpu
    assert config.experiment.loggers == ("console", "wandb")
    assert config.experiment.logger_options == {"wandb": {"mode": "offline"}}
    assert config.experiment.checkpoint_keep == 5
    assert (config.seeds, config.jit, config.run_dir) == ((0, 1, 2), False, "runs/lr=3, it's here")
    assert config.hooks.loss == "my_module:my_loss"


@pytest.mark.usefixtures("fakes")
def test_critic_model_follows_model_unless_it_is_chosen() -> None:
    config = compose(["model=large", "model.layers=[1]"])
    assert config.critic_model == config.model == Choice("large", FakeModel(layers=(1,)))
    own = compose(["model=large", "critic_model.layers=[2]", "model.layers=[1]"])
    assert own.critic_model == Choice("large", FakeModel(layers=(2,)))
    assert compose(["critic_model=small", "model.layers=[1]"]).critic_model == Choice("small", FakeModel())


@pytest.mark.usefixtures("fakes")
def test_last_of_two_overrides_wins_and_a_deleted_one_takes_its_default() -> None:
    assert compose(["seed=1", "seed=2"]).seed == 2
    assert compose(["algorithm=alpha", "algorithm=beta"]).algorithm.name == "beta"
    assert compose(["algorithm.lr=1", "~algorithm.lr"]).algorithm.config.lr == FakeAlgorithm().lr


@pytest.mark.usefixtures("fakes")
def test_round_trip_is_exact() -> None:
    config = compose(["task=toy/blue", "algorithm.lr=1e-7", "seeds=[3,1]", "task.options={a: [1, x], b: 0.5}"])
    assert from_dict(to_dict(config)) == config
    assert from_yaml(to_yaml(config)) == config
    assert yaml.safe_load(to_yaml(config)) == to_dict(config)
    assert to_dict(config)["task"]["name"] == "toy/blue"


@pytest.mark.usefixtures("fakes")
@pytest.mark.parametrize(
    ("experiment", "message"),
    [
        ({"frames": 0}, "experiment: frames must be at least 1, not 0"),
        ({"evaluation_interval": -1}, "experiment: evaluation_interval must be at least 0, not -1"),
        ({"num_envs": 10, "devices": 4}, "num_envs=10 does not split over devices=4; 8 or 12 would"),
        ({"num_envs": 2, "devices": 4}, "num_envs=2 does not split over devices=4; 4 would"),
        ({"loggers": ["wand"]}, "unknown logger 'wand'; there are console, json, mlflow, tensorboard, wandb"),
        (3, "experiment takes a mapping, not 3"),
    ],
)
def test_impossible_experiments(experiment: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        from_dict({**to_dict(compose([])), "experiment": experiment})


def test_the_loggers_that_a_configuration_may_name_are_those_that_there_are() -> None:
    assert set(LOGGERS) == set(loggers.LOGGERS)


@pytest.mark.usefixtures("fakes")
def test_check_asks_the_algorithm() -> None:
    config = compose([])
    cases: list[tuple[dict[str, Any], str]] = [
        ({"minibatch_size": 10**6}, "algorithm: minibatch_size 1000000 is larger than the batch"),
        ({"sequence_length": 20}, "rollout_length=32 is not a multiple of .*=20; 16 or 32 would"),
        ({"sequence_length": 0}, "sequence_length must be at least 1"),
        ({"lr": float("nan")}, "algorithm.lr takes a number, not nan"),
    ]
    for change, message in cases:
        algorithm = Choice("alpha", dataclasses.replace(FakeAlgorithm(), **change))
        with pytest.raises(UsageError, match=message):
            check(dataclasses.replace(config, algorithm=algorithm))


@pytest.mark.usefixtures("fakes")
def test_a_field_called_name_is_refused() -> None:
    @dataclasses.dataclass(frozen=True)
    class Clash:
        name: str = "x"

    registry.register_task("toy/clash", print, config=Clash, description="its field hides the choice")
    with pytest.raises(UsageError, match="'name' cannot be a field"):
        compose(["task=toy/clash"])


@pytest.mark.usefixtures("fakes")
def test_devices_divide_the_environments() -> None:
    config = compose(["experiment.num_envs=12"])
    found = [with_devices(config, available).experiment.devices for available in (1, 2, 5, 8, 100)]
    assert found == [1, 2, 4, 6, 12]
    assert with_devices(compose(["experiment.devices=2"]), 8).experiment.devices == 2
    assert 1 <= num_cores() <= (os.cpu_count() or 1)


@pytest.mark.usefixtures("fakes")
def test_resume_changes_only_how_long_and_how_it_is_watched() -> None:
    config = compose(["algorithm.lr=0.5"])
    longer = resume_config(config, ["experiment.frames=1e7", "experiment.logger_options.wandb.mode=offline"])
    assert longer.experiment.frames == 10_000_000
    assert longer.algorithm == config.algorithm
    for override in ("algorithm.lr=1", "seed=3", "experiment.num_envs=8", "task=toy/blue"):
        with pytest.raises(UsageError, match="cannot change when a run is resumed"):
            resume_config(config, [override])


# --------------------------------------------------------------------------------------------------------- presets


@pytest.mark.usefixtures("fakes")
def test_order_of_configuration(folder: Path) -> None:
    write(folder, "experiment/first", "algorithm: {lr: 2, epochs: 2, sequence_length: 2, minibatch_size: 2}")
    write(folder, "experiment/first_alpha", "algorithm: {epochs: 3, sequence_length: 4, minibatch_size: 3}")
    write(folder, "experiment/second", "base: first\nalgorithm: {sequence_length: 8, minibatch_size: 4}")
    overrides = ["config_dir=my_conf", "experiment=second", "algorithm.minibatch_size=5"]
    alpha = FakeAlgorithm(lr=2.0, epochs=3, sequence_length=8, minibatch_size=5)
    assert compose(overrides).algorithm.config == alpha
    assert compose([*overrides, "algorithm=beta"]).algorithm.config == dataclasses.replace(alpha, epochs=2)


@pytest.mark.usefixtures("fakes")
def test_a_preset_chooses_unless_the_command_line_does(folder: Path) -> None:
    write(folder, "experiment/mine", "task: toy/blue\nmodel: {name: large, layers: [7]}\nalgorithm: {lr: 7}")
    config = compose(["config_dir=my_conf", "experiment=mine"])
    assert (config.task.name, config.model) == ("toy/blue", Choice("large", FakeModel(layers=(7,))))
    assert config.algorithm.config.lr == 7.0
    other = compose(["config_dir=my_conf", "experiment=mine", "model=small"])
    assert other.model == Choice("small", FakeModel())


@pytest.mark.usefixtures("fakes")
def test_a_presets_model_reaches_the_critic_as_the_command_lines_does(folder: Path) -> None:
    write(folder, "experiment/mine", "model: {name: large, layers: [7]}")
    write(folder, "experiment/longer", "base: mine\nmodel: {activation: tanh}")
    mine = ["config_dir=my_conf", "experiment=mine"]
    assert compose(mine).critic_model == Choice("large", FakeModel(layers=(7,)))
    assert compose([*mine, "model.layers=[8]"]).critic_model == Choice("large", FakeModel(layers=(8,)))
    longer = compose(["config_dir=my_conf", "experiment=longer"])
    assert longer.critic_model == longer.model == Choice("large", FakeModel(layers=(7,), activation="tanh"))
    # One that is named, here or there, has its own fields.
    assert compose([*mine, "critic_model=large"]).critic_model == Choice("large", FakeModel())
    assert compose([*mine, "critic_model=small"]).critic_model == Choice("small", FakeModel())
    assert compose([*mine, "model=small"]).critic_model == compose([*mine, "model=small"]).model
    write(folder, "experiment/own", "base: mine\ncritic_model: {name: large, activation: tanh}")
    own = compose(["config_dir=my_conf", "experiment=own"])
    assert own.model == Choice("large", FakeModel(layers=(7,)))
    assert own.critic_model == Choice("large", FakeModel(activation="tanh"))
    # A field of the critic's own comes after the model's.
    write(folder, "experiment/field", "base: mine\ncritic_model: {layers: [9]}\nmodel: {activation: tanh}")
    field = compose(["config_dir=my_conf", "experiment=field"])
    assert field.critic_model == Choice("large", FakeModel(layers=(9,), activation="tanh"))


def test_a_presets_groups_of_models_reach_the_critic(tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    text = "model: {layers: [32], groups: {agent: {name: gru, hidden_size: 16}}}\n"
    (tmp_path / "experiment" / "mixed.yaml").write_text(text)
    mixed = [*TAG, f"config_dir={tmp_path}", "experiment=mixed"]
    assert compose(mixed).critic_model == compose(mixed).model
    named = compose([*mixed, "critic_model.groups.agent=mlp", "model.groups.agent.hidden_size=8"])
    assert named.model.of("agent").config.hidden_size == 8
    assert named.critic_model.of("agent").name == "mlp"


@pytest.mark.usefixtures("fakes")
def test_a_wrong_field_of_the_model_is_named_as_typed(folder: Path) -> None:
    with pytest.raises(UsageError, match=r"unknown field 'model\.hidden'"):
        compose(["model.hidden=64"])
    with pytest.raises(UsageError, match=r"^model\.layers takes"):
        compose(["model.layers=64"])
    write(folder, "experiment/mine", "model: {hidden: 64}")
    with pytest.raises(UsageError, match=r"unknown field 'model\.hidden'"):
        compose(["config_dir=my_conf", "experiment=mine"])


@pytest.mark.usefixtures("fakes")
def test_choices_derive_from_files_and_registered_names(folder: Path) -> None:
    write(folder, "task/my/five", "# five of them\nbase: toy/blue\nn_agents: 5\noptions: {a: 1}")
    write(folder, "task/my/deep/six", "base: my/five\nn_agents: 6\noptions: {b: 2}")
    write(folder, "model/wide", "base: large\nlayers: [512]")
    write(folder, "algorithm/fast", "base: alpha\nlr: 1")
    write(folder, "experiment/mine", "algorithm: {lr: 3, epochs: 9}\nmodel: {name: wide, activation: tanh}")
    write(folder, "experiment/mine_fast", "algorithm: {minibatch_size: 16}")
    config = compose(["config_dir=my_conf", "task=my/deep/six", "algorithm=fast", "experiment=mine"])
    assert config.task == Choice(
        "my/deep/six", FakeTask(colour=Colour.blue, n_agents=6, options={"a": 1, "b": 2}), "toy/blue"
    )
    assert config.task.registered == "toy/blue"
    assert config.model == Choice("wide", FakeModel(layers=(512,), activation="tanh"), "large")
    assert config.critic_model == config.model
    # The algorithm's own file is stronger than what an experiment says of algorithms at large.
    assert config.algorithm == Choice("fast", FakeAlgorithm(lr=1.0, epochs=9, minibatch_size=16), "alpha")
    assert list_presets("task", "my_conf") == {"my/deep/six": "", "my/five": "five of them"}

    (folder / "my_conf").rename(folder / "gone")
    assert from_yaml(to_yaml(config)) == config


@pytest.mark.usefixtures("fakes")
def test_a_file_may_extend_its_own_name(folder: Path) -> None:
    write(folder, "task/toy/plain", "base: toy/plain\nn_agents: 9")
    write(folder, "experiment/debug", "base: debug\nexperiment: {frames: 77}")
    config = compose(["config_dir=my_conf", "experiment=debug"])
    assert config.task == Choice("toy/plain", FakeTask(n_agents=9))
    assert (config.experiment.frames, config.experiment.devices) == (77, 1)


@pytest.mark.usefixtures("fakes")
@pytest.mark.parametrize(
    ("path", "text", "message"),
    [
        ("task/my/x", "n_agents: 5", "x.yaml: a task derives from another; add a line `base: NAME`"),
        ("task/my/x", "base: toy/plane", "x.yaml: unknown task 'toy/plane'; nearest: toy/plain"),
        ("task/my/x", "base: my/x", "x.yaml: base 'my/x' leads back to itself"),
        ("task/my/x", "base: toy/plain\nagents: 3", "x.yaml: unknown field 'task.agents'; nearest: task.n_agents"),
        ("task/my/x", "base: toy/plain\nn_agents: many", "task.n_agents takes int, not 'many'"),
        ("task/my/x", "defaults: [toy/plain]", "x.yaml: a preset derives from another by `base: NAME`"),
        ("task/my/x", "a: [1", "x.yaml:1: "),
        ("task/my/x", "- a", "x.yaml: a preset is a mapping"),
        ("experiment/x", "frames: 3", "x.yaml: unknown key 'frames'; nearest: experiment.frames"),
        ("experiment/x", "experiment: {frame: 3}", "x.yaml: unknown field 'experiment.frame'"),
        ("experiment/x", "experiment: 3", "x.yaml: experiment takes a mapping, not 3"),
        ("experiment/x", "algorithm: {rate: 3}", "x.yaml: unknown field 'algorithm.rate'"),
        ("experiment/x", "algorithm: 3", "x.yaml: algorithm takes a mapping, not 3"),
        ("experiment/x", "task: toy/plane", "unknown task 'toy/plane'; nearest: toy/plain"),
    ],
)
def test_bad_files_are_named(folder: Path, path: str, text: str, message: str) -> None:
    write(folder, path, text)
    choice = "task=my/x" if path.startswith("task") else "experiment=x"
    with pytest.raises(UsageError) as caught:
        compose(["config_dir=my_conf", choice])
    assert message in str(caught.value)


@pytest.mark.usefixtures("fakes")
def test_imports_given_twice_are_refused() -> None:
    with pytest.raises(UsageError, match=r"imports is given twice; give one list: 'imports=\[json, math, cmath\]'"):
        compose(["imports=[json]", "task=probe/copy", "imports=[math,cmath]"])


def test_imports_register_from_the_working_directory(folder: Path) -> None:
    (folder / "my_toys_for_config.py").write_text(
        "import dataclasses\n"
        "import covey.registry\n\n"
        "@dataclasses.dataclass(frozen=True)\n"
        "class Fields:\n    width: int = 2\n\n"
        "covey.registry.register_task('mine/thing', print, config=Fields, description='mine')\n"
    )
    config = compose(["imports=my_toys_for_config", "task=mine/thing", "task.width=5"])
    assert (config.task.config.width, config.imports) == (5, ("my_toys_for_config",))
    write(folder, "experiment/mine", "imports: [my_toys_for_config]\ntask: mine/thing")
    config = compose(["config_dir=my_conf", "experiment=mine", "imports=[math]"])
    assert (config.task.name, config.imports) == ("mine/thing", ("my_toys_for_config", "math"))


# ------------------------------------------------------------------------------------- everything that is registered


def assert_composes(*overrides: str) -> Config:
    config = compose(overrides)
    assert from_yaml(to_yaml(config)) == config
    return config


@pytest.mark.parametrize("name", [entry.name for entry in registry.tasks])
def test_every_task_composes(name: str) -> None:
    assert assert_composes(f"task={name}").task.name == name


@pytest.mark.parametrize("name", [entry.name for entry in registry.models])
def test_every_model_composes(name: str) -> None:
    assert assert_composes(f"model={name}").critic_model.name == name


@pytest.mark.parametrize("preset", list_presets())
@pytest.mark.parametrize("algorithm", [entry.name for entry in registry.algorithms])
def test_every_preset_composes_with_every_algorithm(algorithm: str, preset: str) -> None:
    assert assert_composes(f"algorithm={algorithm}", f"experiment={preset}").algorithm.name == algorithm


def test_presets_are_described_and_list_no_files_that_complete_another() -> None:
    presets = list_presets()
    assert {"benchmarl", "debug", "default", "gpu", "gpu_offline"} <= set(presets)
    assert "benchmarl_mappo" not in presets
    assert all(presets.values())


def test_benchmarl_preset() -> None:
    config = compose(["experiment=benchmarl", "algorithm=mappo"])
    assert isinstance(config.experiment, OnlineConfig)
    assert config.experiment.frames_per_iteration == 6000
    assert config.algorithm.config.lr == 5e-5
    assert config.model.config == config.critic_model.config
    assert config.model.config.layers == (256, 256)
    assert compose(["experiment=benchmarl", "model=gru"]).model.name == "gru"


def test_a_section_may_hold_for_names_that_fit() -> None:
    """TorchRL takes the time limit of VMAS for a termination, and of nothing else."""
    assert compose(["experiment=benchmarl"]).task.config.time_limit_terminates  # which chooses no task
    assert compose(["experiment=benchmarl", "task=vmas/balance"]).task.config.time_limit_terminates
    other = compose(["experiment=benchmarl", "task=rware/tiny-2ag"]).task
    assert other.name == "rware/tiny-2ag" and not other.config.time_limit_terminates


@pytest.mark.parametrize("algorithm", ["iql", "vdn", "qmix", "isac", "masac", "iddpg", "maddpg"])
def test_benchmarl_preset_of_what_learns_from_replay(algorithm: str) -> None:
    config = compose(["experiment=benchmarl", f"algorithm={algorithm}", "task=vmas/navigation"])
    experiment, fields = config.experiment, config.algorithm.config
    assert isinstance(experiment, ReplayConfig)
    assert (experiment.frames_per_iteration, experiment.updates, experiment.random_frames) == (6000, 1000, 0)
    assert (experiment.buffer.size, experiment.buffer.batch_size) == (1_000_000, 128)
    assert (fields.lr, fields.adam_eps, fields.max_grad_norm, fields.gamma, fields.tau) == (
        5e-5,
        1e-6,
        5.0,
        0.99,
        0.005,
    )
    assert fields.lr_schedule.name == "constant" and not fields.agent_ids
    assert config.task.config.continuous_actions == (algorithm not in ("iql", "vdn", "qmix"))
    if algorithm.endswith("sac"):
        assert (fields.alpha, fields.target_entropy, fields.discrete_entropy) == (1.0, -1.0, 0.2)
    elif algorithm.endswith("ddpg"):
        assert (fields.noise_start, fields.noise_end, fields.target_actor) == (0.8, 0.01, False)
    else:
        assert (fields.epsilon_start, fields.epsilon_end, fields.double_q) == (0.8, 0.01, False)


def test_algorithms_without_continuous_actions_get_discrete_ones() -> None:
    """Where the task has both and nobody chose."""
    assert not compose(["algorithm=iql", "task=vmas/balance"]).task.config.continuous_actions
    assert compose(["algorithm=ippo", "task=vmas/balance"]).task.config.continuous_actions
    assert compose(
        ["algorithm=iql", "task=vmas/balance", "task.continuous_actions=true"]
    ).task.config.continuous_actions


def test_a_task_says_what_its_discrete_actions_are() -> None:
    task = compose(["task=vmas/balance"]).task.config
    assert task.continuous_actions and task.with_discrete_actions == dataclasses.replace(task, continuous_actions=False)
    other = compose(["task=lbf/8x8-2p-2f-coop"]).task.config
    assert other.with_discrete_actions is other


def test_other_names_are_those_of_the_dataclass() -> None:
    task, model = (getattr(compose(["task=vmas/balance"]), kind).config for kind in ("task", "model"))
    assert registry.other_names(task)["max_steps"] == "time_limit"
    assert registry.other_names(model) == {}
    assert registry.other_names(FakeTask()) == {}  # a dataclass that inherits from none of covey's


# --------------------------------------------------------------------------------------------- groups of their own

TAG = ("task=vmas/simple_tag", "algorithm=mappo")


def test_a_group_may_have_another_algorithm_or_other_fields() -> None:
    own = ("algorithm.groups.adversary=ippo", "algorithm.groups.adversary.epochs=3", "algorithm.groups.agent.gamma=0.9")
    team = compose([*TAG, "algorithm.lr=2e-4", *own]).algorithm
    assert (team.name, team.of("adversary").name, team.of("agent").name) == ("mappo", "ippo", "mappo")
    assert team.of("adversary").config == dataclasses.replace(choice_defaults("algorithm", "ippo"), epochs=3)
    assert team.of("agent").config == dataclasses.replace(team.config, gamma=0.9)
    assert team.of("agent").config.lr == 2e-4  # what is set for the team holds where a group names nothing else
    assert team.label == "mappo+ippo"


def test_a_groups_critic_follows_its_model() -> None:
    own = ("model.groups.agent=gru", "model.groups.agent.hidden_size=32", "critic_model.groups.agent.hidden_size=64")
    config = compose([*TAG, "model.layers=[16]", *own])
    assert config.critic_model.of("adversary").config.layers == (16,)
    assert config.model.of("agent").name == config.critic_model.of("agent").name == "gru"
    assert config.model.of("agent").config.hidden_size == 32
    assert config.critic_model.of("agent").config.hidden_size == 64
    chosen = compose([*TAG, "critic_model=mlp", "model.groups.agent=gru"])
    assert chosen.critic_model.of("agent").name == "mlp"


def test_groups_go_through_text() -> None:
    config = compose([*TAG, "algorithm.groups.adversary=ippo", "model.groups.agent.layers=[8]"])
    assert from_yaml(to_yaml(config)) == config


def test_a_preset_may_set_groups(tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    text = "base: benchmarl\nalgorithm: {groups: {adversary: {name: ippo, epochs: 2}, agent: {lr: 1e-4}}}\n"
    (tmp_path / "experiment" / "mixed.yaml").write_text(text)
    team = compose([*TAG, f"config_dir={tmp_path}", "experiment=mixed"]).algorithm
    benchmarl = compose(["experiment=benchmarl", "algorithm=ippo"]).algorithm.config
    assert team.of("adversary").config == dataclasses.replace(benchmarl, epochs=2)
    assert team.of("agent").config.lr == 1e-4


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["algorithm.groups.adversary=ipo"], "unknown algorithm 'ipo'; nearest: ippo"),
        (["algorithm.groups.adversary.lrr=1"], "in group 'adversary': unknown field 'algorithm.lrr'"),
        (["algorithm.groups.adversary=iql"], "learns from replay, mappo from what was just collected"),
        (["algorithm.groups.adversary=[ippo]"], "takes one name"),
        (["task.groups.adversary=lbf"], "unknown field 'task.groups.adversary'"),
        (["algorithm.groups=ippo"], "unknown field 'algorithm.groups'"),
    ],
)
def test_bad_groups(overrides: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        compose([*TAG, *overrides])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["algorithm=mappo", "experiment.loop=replay"], "'mappo' cannot learn in experiment.loop=replay; .* online"),
        (["algorithm=qmix", "experiment.loop=onlin"], "unknown loop 'onlin'"),
        (["algorithm=qmix", "experiment.loop=[a]"], "experiment.loop takes one name"),
    ],
)
def test_a_loop_that_does_not_fit_is_refused(words: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        compose(words)


def test_the_first_loop_of_an_algorithm_is_its_default() -> None:
    assert compose(["algorithm=mappo"]).experiment.loop == "online"
    assert compose(["algorithm=qmix"]).experiment == compose(["algorithm=qmix", "experiment.loop=replay"]).experiment
