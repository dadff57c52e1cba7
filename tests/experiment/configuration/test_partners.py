"""Partners in a configuration: how they are typed, stored and told apart."""

from __future__ import annotations

from pathlib import Path

import pytest

from covey.errors import UsageError
from covey.experiment.configuration.compose import compose, resume_config
from covey.experiment.configuration.config import from_yaml, identity_fields, to_dict, to_yaml
from covey.experiment.configuration.explain import commented_yaml
from covey.experiment.configuration.partners import flatten_partners, partner_value, partners_in_evaluation, taken_whole

TASK = "task=probe/copy"


def test_seats_are_keys_and_names_are_as_typed() -> None:
    words = [TASK, "partners.agents.1=[runs/a b,random]", "opponents.others='runs/x=1'", "partners.rotate=true"]
    config = compose(words)
    assert config.partners == {"agents.1": ["runs/a b", "random"], "others": "runs/x=1", "rotate": True}
    assert from_yaml(to_yaml(config)) == config
    assert "agents.1: [runs/a b, random]" in commented_yaml(config)
    assert to_dict(compose([TASK]))["partners"] == {}


def test_of_a_file(tmp_path: Path) -> None:
    folder = tmp_path / "experiment"
    folder.mkdir()
    (folder / "beside.yaml").write_text("partners: {agents: {1: random}, rotate: true}\n")
    words = [TASK, "experiment=beside", f"config_dir={tmp_path}"]
    assert compose(words).partners == {"agents.1": "random", "rotate": True}
    assert compose([*words, "partners.agents.1=reference"]).partners["agents.1"] == "reference"
    assert compose([*words, "partners=null"]).partners == {}


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("partners=random", "say which seat"),
        ("~partners.agents.1", "cannot be removed"),
        ("opponents.agents.1=reference", "another name for partners.agents.1"),
        ("partners.agents.1=", "has no value"),
    ],
)
def test_what_cannot_be_read(word: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        compose([TASK, "partners.agents.1=random", word])


def test_partners_are_in_the_identity_only_where_there_are_some() -> None:
    """Folders of benchmarks from before there were partners are still found."""
    assert "partners" not in identity_fields(compose([TASK]))
    assert identity_fields(compose([TASK, "partners.agents.1=random"]))["partners"] == {"agents.1": "random"}


def test_resume_cannot_change_them() -> None:
    config = compose([TASK, "partners.agents.1=random"])
    with pytest.raises(UsageError, match="cannot change when a run is resumed"):
        resume_config(config, ["partners.agents.1=reference"])
    assert resume_config(config, ["experiment.frames=1e6"]).partners == config.partners


def test_values() -> None:
    assert partner_value("rotate", "true") is True and partner_value("rotate", "maybe") == "maybe"
    assert partner_value("agents.1", " runs/a ") == "runs/a"
    assert flatten_partners(None) == {}
    assert flatten_partners({"a": {0: "x", 1: ["y", "z"]}, "b": "w"}) == {"a.0": "x", "a.1": ["y", "z"], "b": "w"}
    with pytest.raises(UsageError, match="takes a mapping"):
        flatten_partners("random")
    assert taken_whole({"a.1": "random", "b": "random"}, ["a", "b"]) == ("b",)


def test_an_evaluation_keeps_the_partners_of_training_in_other_groups() -> None:
    trained = {"a.1": "runs/x", "b": "random", "rotate": True}
    assert partners_in_evaluation(trained, {}) == trained
    assert partners_in_evaluation(trained, {"a": "random"}) == {"b": "random", "a": "random"}
    assert partners_in_evaluation(trained, {"a.1": "team"}) == {"b": "random"}
    assert partners_in_evaluation(trained, {"b": "reference"}) == {"a.1": "runs/x", "rotate": True, "b": "reference"}
