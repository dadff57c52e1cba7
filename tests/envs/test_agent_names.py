"""Names of single agents."""

from __future__ import annotations

from covey.envs.agent_names import agent_names, group_of


def test_names_are_group_and_number_in_order() -> None:
    assert agent_names({"agents": 2, "a_1": 1}) == {"agents": ("agents_0", "agents_1"), "a_1": ("a_1_0",)}


def test_a_name_says_its_group_and_no_two_agents_share_one() -> None:
    names = agent_names({"a": 12, "a_1": 2})
    assert all(group_of(agent) == group for group, agents in names.items() for agent in agents)
    assert len({agent for agents in names.values() for agent in agents}) == 14
