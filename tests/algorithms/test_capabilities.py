"""What algorithms declare is what they do, and what they do not declare is refused in one line."""

from __future__ import annotations

import dataclasses

import pytest
from stubs import GROUP, context

from covey import registry
from covey.algorithms.base import make_group
from covey.networks.network import make_model
from covey.registry import ActionKind, Capabilities
from covey.types import ActionSpec, Algorithm, Continuous, Discrete, EnvSpec, GroupSpec, MultiDiscrete

ACTIONS: dict[ActionKind, ActionSpec] = {
    ActionKind.discrete: Discrete(2),
    ActionKind.multi_discrete: MultiDiscrete((2, 2)),
    ActionKind.continuous: Continuous(low=(-1.0,), high=(1.0,)),
}
ENTRIES = {entry.name: entry for entry in registry.algorithms}


def make(name: str, kind: ActionKind, model: str = "mlp") -> Algorithm:
    groups = {GROUP: GroupSpec(num_agents=2, observation_shape=(3,), action=ACTIONS[kind])}
    models = dataclasses.replace(context(), model=make_model(model), critic_model=make_model("mlp"))
    return make_group(name, ENTRIES[name].defaults(), EnvSpec(groups=groups, time_limit=5), GROUP, models)


@pytest.mark.parametrize("kind", ActionKind)
@pytest.mark.parametrize("name", ENTRIES)
def test_kinds_of_actions(name: str, kind: ActionKind) -> None:
    if kind in ENTRIES[name].capabilities.actions:
        assert isinstance(make(name, kind), Algorithm)
        return
    with pytest.raises(ValueError, match=f"{name} needs .*, but group '{GROUP}' has {kind.value}") as caught:
        make(name, kind)
    continuous = ActionKind.continuous in ENTRIES[name].capabilities.actions
    hinted = f"task.continuous_actions={str(continuous).lower()}" in str(caught.value)
    assert hinted == (kind is not ActionKind.multi_discrete)


@pytest.mark.parametrize("name", ENTRIES)
def test_memory(name: str) -> None:
    """All of covey's own have it; one that has none is refused with a model that remembers."""
    entry = ENTRIES[name]
    assert entry.capabilities.memory
    kind = entry.capabilities.actions[0]
    assert make(name, kind, "gru").sequence_length != 1
    forgetful = dataclasses.replace(entry, capabilities=dataclasses.replace(entry.capabilities, memory=False))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(registry.algorithms._entries, name, forgetful)
        make(name, kind)
        with pytest.raises(ValueError, match=f"{name} cannot learn with memory"):
            make(name, kind, "gru")


def test_the_loops_are_known() -> None:
    known = {loop.name for loop in registry.loops}
    assert all(set(entry.capabilities.loops) <= known for entry in ENTRIES.values())
    assert ENTRIES["mappo"].loop == "online" and ENTRIES["qmix"].loop == "replay"


def test_the_defaults_suit_an_algorithm_of_ones_own() -> None:
    assert Capabilities() == Capabilities(actions=tuple(ActionKind), memory=True, loops=("online",))
