"""`covey show` and `covey help`: YAML with comments, and answers about single fields."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import yaml

from covey import cli, registry
from covey.aliases import ALIASES
from covey.errors import UsageError
from covey.experiment.configuration.compose import TOP_LEVEL, compose
from covey.experiment.configuration.config import CHOICES, from_yaml, to_dict, to_yaml
from covey.experiment.configuration.explain import commented_yaml, explain
from covey.fields import fields_of

CASES = [
    [],
    ["algorithm=qmix", "task=smax/2s3z", "model=gru"],
    ["algorithm=masac", "task=vmas/football", "model=gnn", "critic_model=deepsets", "seeds=3"],
    ["task=vmas/simple_tag", "algorithm.groups.adversary=ippo", "model.groups.agent.layers=[8]"],
    ["model=sequence", "model.stages={see:{model:mlp,layers:[64]},keep:{model:gru}}", "run_dir=it's, here: #1"],
    ["experiment=gpu_offline", "experiment.logger_options.wandb.notes='two words: # no comment'"],
]


@pytest.mark.parametrize("overrides", CASES, ids=str)
def test_what_is_shown_is_the_configuration_with_comments(overrides: list[str]) -> None:
    config = compose(overrides)
    text = commented_yaml(config)
    assert yaml.safe_load(text) == to_dict(config)
    assert from_yaml(text) == config
    without = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    assert without == to_yaml(config).splitlines()
    assert max(map(len, text.splitlines())) <= 120


@pytest.mark.parametrize("overrides", CASES, ids=str)
def test_what_is_shown_can_be_a_preset(tmp_path: Path, overrides: list[str]) -> None:
    config = compose(overrides)
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "shown.yaml").write_text(commented_yaml(config))
    again = compose([f"config_dir={tmp_path}", "experiment=shown"])
    assert dataclasses.replace(again, config_dir=None) == config


def test_what_is_shown_of_a_users_own_choice_can_be_a_preset(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "wide.yaml").write_text("base: mlp\nlayers: [512]\n")
    config = compose([f"config_dir={tmp_path}", "model=wide"])
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "shown.yaml").write_text(commented_yaml(config))
    assert compose([f"config_dir={tmp_path}", "experiment=shown"]) == config


def test_comments_say_what_fields_mean_and_take() -> None:
    text = commented_yaml(compose(["algorithm=mappo"]))
    assert "  # Adam's step size, before `lr_schedule` (above 0)\n  lr: 0.001\n" in text
    assert "  # what the critic sees\n  #   own: each agent's own observation\n" in text
    assert "# seed of everything random, from 0 to 2^32 - 1\nseed: 0\n" in text
    assert text.count("# activation function after each layer") == 1  # not again for the critic


# ------------------------------------------------------------------------------------------------------------- help


def answer(query: str, *words: str) -> str:
    return "\n".join(explain(query, words, cli.OPTIONS))


def test_a_field_is_explained() -> None:
    text = answer("algorithm.lr")
    assert text.startswith("algorithm.lr  (algorithm=mappo)\n  Adam's step size, before `lr_schedule`\n")
    assert "  takes     a number above 0\n  default   0.001\n  also in   ippo, impala, isac," in text
    assert "; qmix (0.0002)" in text
    other = answer("algorithm.lr", "algorithm=qmix", "algorithm.lr=0.5")
    assert "(algorithm=qmix)" in other and "  default   0.0002\n  here      0.5\n" in other


def test_the_last_name_is_enough() -> None:
    assert answer("best_by").startswith("experiment.best_by\n")
    assert answer("LAYERS").startswith("model.layers  (model=mlp)\n")
    assert answer("seed").startswith("seed\n")
    assert answer("episodes").startswith("evaluate.episodes  (covey evaluate)\n")


def test_values_are_listed_with_their_meanings() -> None:
    text = answer("experiment.platform")
    assert "    cpu   the CPU, even if there is an accelerator\n" in text
    assert "  takes     one of these\n  default   auto\n  resume    may change it" in text
    assert "  takes     one of these, or null\n" in answer("task.dynamics")


def test_fields_of_others_are_found() -> None:
    assert answer("epsilon_start").startswith("algorithm.epsilon_start  (algorithm=iql)\n")
    assert "  only for  iql, vdn, qmix" in answer("buffer.size")
    assert answer("model.hidden_size").startswith("model.hidden_size  (model=gru)\n")
    assert answer("task.num_food").startswith("task.num_food  (task=")
    assert answer("task.n_agents", "task=vmas/balance").startswith("task.n_agents  (task=vmas/balance)\n")


def test_suites_whose_tasks_all_agree_are_one_name() -> None:
    also = " ".join(answer("task.time_limit").partition("also in")[2].split())
    assert "rware/*" in also and "vmas/*" not in also
    (of_200,) = (names for names in also.split(";") if "(200)" in names)
    assert "vmas/multi_give_way" in of_200


def test_sections_and_names_are_explained() -> None:
    assert "\n  # Adam's step size, before `lr_schedule` (above 0)\n  lr: 0.001\n" in answer("algorithm")
    assert answer("mappo").startswith("algorithm=mappo: PPO with a critic")
    assert answer("vmas/balance").startswith("task=vmas/balance: ")
    assert answer("debug").startswith("experiment=debug: runs in seconds")


def test_what_is_unknown_gives_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"^nothing is called 'learning_rate'; nearest: algorithm\.lr$"):
        answer("learning_rate")
    with pytest.raises(UsageError, match=r"nearest: experiment\.best_by"):
        answer("bestby")


def test_help_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["help"]) == 0
    assert capsys.readouterr().out == cli.HELP
    assert cli.main(["help", "report"]) == 0
    assert capsys.readouterr().out == cli.VERBS["report"].help
    assert cli.main(["help", "experiment.frames"]) == 0
    assert capsys.readouterr().out.startswith("experiment.frames\n  environment steps to train for")
    assert cli.main(["help", "lr", "gamma"]) == 2
    assert "one thing at a time" in capsys.readouterr().err


# ---------------------------------------------------------------------------------------------------------- aliases


def test_aliases_lead_to_fields_that_exist() -> None:
    known = set(TOP_LEVEL)
    for loop in registry.loops:
        known |= {field.path for field in fields_of(loop.defaults(), "experiment")}
    for kind, entries in CHOICES.items():
        for entry in entries:
            known |= {field.path for field in fields_of(entry.defaults(), kind)}
    assert {path for paths in ALIASES.values() for path in paths} <= known
