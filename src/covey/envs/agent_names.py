"""Names of single agents, for interfaces that know agents and no groups, such as PettingZoo's."""

from __future__ import annotations

from collections.abc import Mapping


def agent_names(num_agents: Mapping[str, int]) -> dict[str, tuple[str, ...]]:
    """By group, the names of its agents in the order of the axis A: `{"agents": 2}` gives `agents_0` and `agents_1`.

    Names of different groups never clash: what follows the last underscore is the number, and what precedes it the
    group.
    """
    return {group: tuple(f"{group}_{index}" for index in range(number)) for group, number in num_agents.items()}


def group_of(agent: str) -> str:
    """The group that the name of an agent says."""
    return agent.rpartition("_")[0]
