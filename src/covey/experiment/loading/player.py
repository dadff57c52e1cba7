"""A trained team in a PettingZoo loop, by `policy.for_pettingzoo(env)`. It needs no PettingZoo itself.

player = policy.for_pettingzoo(env)
observations, infos = env.reset()
player.reset()
while env.agents:
    actions = player(observations, infos)
    observations, rewards, terminations, truncations, infos = env.step(actions)
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from covey.envs.agent_names import agent_names, group_of
from covey.envs.check import mask_width
from covey.envs.host.env import simulator_of
from covey.envs.host.pool import describe
from covey.errors import UsageError
from covey.observations import dtypes, map_entries
from covey.types import ActionSpec, Continuous, Discrete, GroupSpec, Key

if TYPE_CHECKING:
    from covey.experiment.loading.policy import Policy

ByAgent = Mapping[str, Any]


class PettingZooPlayer:
    """Acts for the agents of a team by their names; made by `Policy.for_pettingzoo`.

    It has the team's memory, so call `reset` whenever the environment is reset. An agent that has left counts as seeing
    what it saw last. That matters only to networks through which agents look at each other, such as model=gnn.
    """

    def __init__(self, policy: Policy, env: Any, *, seed: int | None = None):
        self.policy = policy
        self.env = env
        self._key = None if seed is None else jax.random.key(seed)
        self._specs = {group: policy.shown_spec(group) for group in policy.algorithm.groups}
        self._names = names_in(env.possible_agents, policy, self._specs)
        check_agents(self._names, env.possible_agents)
        self._masked = masked_groups(policy)
        self.reset()

    def __repr__(self) -> str:
        return f"PettingZooPlayer({self.policy!r})"

    def reset(self) -> None:
        """Forgets the episode that was played."""
        self._carry = self.policy.initial_carry(1)
        self._seen = {group: blank(spec) for group, spec in self._specs.items()}
        # A policy takes masks for all groups or for none.
        self._masks = {
            group: np.ones((spec.num_agents, mask_width(spec.action) or 0), bool)
            for group, spec in self._specs.items()
            if self._masked
        }

    def __call__(self, observations: ByAgent, infos: ByAgent) -> dict[str, Any]:
        """An action for each agent of the team in `env.agents`, from what `env` gave in its reset or last step."""
        self._remember(observations, infos)
        # Copies, because JAX may use the memory of a NumPy array instead of copying it.
        seen, masks = jax.tree.map(lambda array: array[None].copy(), (self._seen, self._masks))
        actions, self._carry = self.policy.act(seen, masks or None, self._carry, key=self._next_key())
        actions = jax.device_get(actions)
        living = set(self.env.agents)
        return {
            agent: as_action(self._specs[group].action, actions[group][0, index])
            for group, names in self._names.items()
            for index, agent in enumerate(names)
            if agent in living
        }

    def _remember(self, observations: ByAgent, infos: ByAgent) -> None:
        """Takes in what agents are shown, those included that have just left."""
        living = set(self.env.agents)
        for group, names in self._names.items():
            for index, agent in enumerate(names):
                if agent in observations:
                    put_row(self._seen[group], index, observations[agent], agent)
                elif agent in living:
                    raise UsageError(f"observations lack {agent}, which is still there; pass what reset or step gave")
                if group not in self._masked:
                    continue
                if "action_mask" in infos.get(agent, {}):
                    self._masks[group][index] = joined_mask(infos[agent]["action_mask"])
                elif agent in living:
                    raise UsageError(f"infos lack the action_mask of {agent}; pass what reset or step gave")

    def _next_key(self) -> Key | None:
        if self._key is None:
            return None
        key: Key
        self._key, key = jax.random.split(self._key)
        return key


def names_in(
    possible: Collection[str], policy: Policy, specs: Mapping[str, GroupSpec]
) -> Mapping[str, tuple[str, ...]]:
    """By group, what the `possible` agents of an environment are called: as covey does, or as the simulator does on
    which the team was trained."""
    source = simulator_of(policy.env)
    if source is not None:
        own = {group: names for group, names in describe(source).agents.items() if group in specs}
        if any(agent in possible for names in own.values() for agent in names):
            return own
    return agent_names({group: spec.num_agents for group, spec in specs.items()})


def check_agents(names: Mapping[str, Collection[str]], possible: Collection[str]) -> None:
    """Raises UsageError unless `possible` agents include all of the team's groups, and no more of these groups."""
    wanted = {agent for group in names.values() for agent in group}
    prefixes = set(map(group_of, wanted))
    odd = sorted(agent for agent in possible if group_of(agent) in prefixes and agent not in wanted)
    missing = sorted(wanted - set(possible))
    if missing or odd:
        what = f"lacks {', '.join(missing)}" if missing else f"has {', '.join(odd)} too"
        team = ", ".join(f"{len(agents)} {group}" for group, agents in names.items())
        raise UsageError(f"the team was trained as {team}, and the environment {what}")


def masked_groups(policy: Policy) -> set[str]:
    """The groups whose agents the task tells which actions are legal."""
    source = simulator_of(policy.env)
    if source is not None:
        return set(policy.algorithm.groups) & set(describe(source).masked)
    _, first = jax.eval_shape(policy.env.reset, jax.random.key(0))
    return {group for group in policy.algorithm.groups if first.groups[group].action_mask is not None}


def blank(spec: GroupSpec) -> Any:
    """Zeros `[A, …]` in place of a group's observation."""
    return map_entries(
        lambda shape, dtype: np.zeros((spec.num_agents, *shape), dtype), spec.observation_shape, dtypes(spec)
    )


def put_row(seen: Any, index: int, observation: Any, agent: str) -> None:
    """Writes what an agent sees into its row of its group's `seen [A, …]`."""
    if isinstance(seen, Mapping):
        if not isinstance(observation, Mapping) or observation.keys() != seen.keys():
            raise UsageError(f"observation of {agent} must be a dictionary of {', '.join(seen)}")
        for name, entry in seen.items():
            put_row(entry, index, observation[name], f"{agent}.{name}")
        return
    row = np.asarray(observation)
    if row.shape != seen.shape[1:]:
        wanted = list(seen.shape[1:])
        raise UsageError(f"observation of {agent} is {list(row.shape)}, and the team was trained on {wanted}")
    seen[index] = row


def joined_mask(mask: Any) -> np.ndarray:
    """A mask as covey has it: of several choices, which come as a tuple, one after another."""
    return np.concatenate(mask) if isinstance(mask, tuple) else np.asarray(mask)


def as_action(action: ActionSpec, chosen: np.ndarray) -> Any:
    """As PettingZoo's spaces hold it: a number, or an array within the bounds, beyond which squashing may round."""
    match action:
        case Discrete():
            return int(chosen)
        case Continuous(low=low, high=high):
            return np.clip(chosen, np.asarray(low, np.float32), np.asarray(high, np.float32))
        case _:
            return chosen
