"""The multi-agent particle environments (Lowe et al. 2017) of JaxMARL: points that push, chase and talk.

Agents of one role are a group, named by it (`adversary`, `agent`, `leader`, `speaker`, …); where all have the same role
the group is `agents`. Episodes never terminate: covey's time limit, 25 steps, truncates them. The reward is
each agent's own unless the field `reward` says otherwise.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from covey.envs.base import Actions, SuiteConfig
from covey.envs.jaxmarl.core import NEVER, AgentName, SuiteEnv, import_suite
from covey.types import Key, PyTree, TimeStep


class ActionChoice(enum.Enum):
    discrete = "one choice; in mpe: stay or one of four directions, combined with what to say if the agent speaks"
    continuous = "numbers; in mpe: five forces from 0 to 1 (none, left, right, down, up), then what to say"


class ScoreFunction(enum.Enum):
    """How FACMAC's scripted prey rates the places it could flee to."""

    sum = "by the distance to all predators"
    min = "by the distance to the nearest predator"


@dataclasses.dataclass(frozen=True, kw_only=True)
class MpeConfig(SuiteConfig):
    """simple, simple_crypto, simple_speaker_listener."""

    time_limit: int = 25
    actions: ActionChoice = ActionChoice.discrete  # kind of actions


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpreadConfig(MpeConfig):
    num_agents: int = 3  # agents
    num_landmarks: int = 3  # landmarks to cover
    # weight of the agent's own collisions in its reward, from 0 to 1; the rest is how well all landmarks are covered
    local_ratio: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        check_local_ratio(self.local_ratio)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReferenceConfig(MpeConfig):
    # share of the agent's own distance in its reward, from 0 to 1; the rest is the team's mean
    local_ratio: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        check_local_ratio(self.local_ratio)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PushConfig(MpeConfig):
    num_good_agents: int = 1  # agents that want to reach the goal
    num_adversaries: int = 1  # adversaries that keep them away


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdversaryConfig(MpeConfig):
    num_good_agents: int = 2  # agents that know the goal
    num_adversaries: int = 1  # adversaries, which do not know the goal
    num_landmarks: int = 2  # landmarks, of which one is the goal


@dataclasses.dataclass(frozen=True, kw_only=True)
class TagConfig(MpeConfig):
    num_good_agents: int = 1  # agents that are hunted
    num_adversaries: int = 3  # adversaries that hunt
    num_obstacles: int = 2  # obstacles


@dataclasses.dataclass(frozen=True, kw_only=True)
class WorldCommConfig(MpeConfig):
    num_good_agents: int = 2  # agents that look for food and are hunted
    num_adversaries: int = 4  # adversaries that hunt, the leader included
    num_obstacles: int = 1  # obstacles
    num_food: int = 2  # pieces of food
    num_forests: int = 2  # forests, in which agents cannot be seen from outside


@dataclasses.dataclass(frozen=True, kw_only=True)
class FacmacConfig(SuiteConfig):
    """Continuous only."""

    time_limit: int = 25
    num_predators: int = 3  # predators, which learn
    num_prey: int = 1  # prey, which flee by a built-in policy
    num_landmarks: int = 2  # obstacles
    view_radius: float = 1.5  # how far predators see; -1: everything
    score_function: ScoreFunction = ScoreFunction.min  # how prey rates the places that it could flee to


def check_local_ratio(local_ratio: float) -> None:
    if not 0 <= local_ratio <= 1:
        raise ValueError(f"local_ratio must be between 0 and 1, not {local_ratio}")


# Who opposes whom; the team that the task is about is the first.
AGENTS_FIRST = (("agent",), ("adversary",))
ADVERSARIES_FIRST = (("leader", "adversary"), ("agent",))
GOOD = ("alice", "bob")
OWN_SUM = "an agent's return is the sum of its own rewards over the episode"


def make_simple(config: MpeConfig) -> SuiteEnv:
    return make_mpe("SimpleMPE", config, "minus the agent's squared distance to the landmark, summed over the episode")


def make_crypto(config: MpeConfig) -> SuiteEnv:
    returns = f"{OWN_SUM}: eve loses by her error, alice and bob win by it less bob's"
    return make_mpe("SimpleCryptoMPE", config, returns, teams=(GOOD, ("eve",)), shared_rewards=(GOOD,))


def make_speaker_listener(config: MpeConfig) -> SuiteEnv:
    returns = "minus the listener's squared distance to its goal, the same for both, summed over the episode"
    return make_mpe("SimpleSpeakerListenerMPE", config, returns, shared_rewards=(("speaker", "listener"),))


def make_spread(config: SpreadConfig) -> SuiteEnv:
    returns = (
        "minus (1 - local_ratio) of the landmarks' distances to the nearest agent and local_ratio of own collisions"
    )
    return make_mpe(
        "SimpleSpreadMPE",
        config,
        returns,
        num_agents=config.num_agents,
        num_landmarks=config.num_landmarks,
        local_ratio=config.local_ratio,
    )


def make_reference(config: ReferenceConfig) -> SuiteEnv:
    returns = (
        "minus the agents' distances to their goals, local_ratio own and the rest the mean, summed over the episode"
    )
    return make_mpe("SimpleReferenceMPE", config, returns, local_ratio=config.local_ratio)


def make_push(config: PushConfig) -> SuiteEnv:
    return make_mpe(
        "SimplePushMPE",
        config,
        f"{OWN_SUM}: agents near the goal win, adversaries win by keeping them away",
        teams=AGENTS_FIRST,
        num_good_agents=config.num_good_agents,
        num_adversaries=config.num_adversaries,
    )


def make_adversary(config: AdversaryConfig) -> SuiteEnv:
    return make_mpe(
        "SimpleAdversaryMPE",
        config,
        f"{OWN_SUM}: agents win by being near the goal and by the adversaries being far from it",
        teams=AGENTS_FIRST,
        num_good_agents=config.num_good_agents,
        num_adversaries=config.num_adversaries,
        num_obs=config.num_landmarks,
    )


def make_tag(config: TagConfig) -> SuiteEnv:
    return make_mpe(
        "SimpleTagMPE",
        config,
        f"{OWN_SUM}: 10 to every adversary per catch, -10 to the caught agent",
        teams=ADVERSARIES_FIRST,
        num_good_agents=config.num_good_agents,
        num_adversaries=config.num_adversaries,
        num_obs=config.num_obstacles,
    )


def make_world_comm(config: WorldCommConfig) -> SuiteEnv:
    return make_mpe(
        "SimpleWorldCommMPE",
        config,
        f"{OWN_SUM}: adversaries win by catching agents, agents by food and by not being caught",
        teams=ADVERSARIES_FIRST,
        num_good_agents=config.num_good_agents,
        num_adversaries=config.num_adversaries,
        num_obs=config.num_obstacles,
        num_food=config.num_food,
        num_forests=config.num_forests,
    )


def make_facmac(config: FacmacConfig) -> SuiteEnv:
    suite = import_suite("mpe").SimpleFacmacMPE(
        num_good_agents=config.num_prey,
        num_adversaries=config.num_predators,
        num_landmarks=config.num_landmarks,
        view_radius=config.view_radius,
        score_function=config.score_function.name,
        max_steps=NEVER,
    )
    return FacmacEnv(
        suite, returns="10 per catch by any predator, summed over the episode", groups={"agents": suite.adversaries}
    )


def make_mpe(
    scenario: str,
    config: MpeConfig,
    returns: str,
    teams: Sequence[Sequence[str]] = (),
    shared_rewards: Sequence[Sequence[str]] = (),
    **arguments: Any,
) -> SuiteEnv:
    suite = getattr(import_suite("mpe"), scenario)(
        action_type=config.actions.name.capitalize(), max_steps=NEVER, **arguments
    )
    return MpeEnv(suite, returns=returns, groups=role_groups(suite.agents), teams=teams, shared_rewards=shared_rewards)


def role_groups(agents: list[str]) -> dict[str, list[AgentName]]:
    """Agents by role, the part of their names before the last underscore."""
    groups: dict[str, list[AgentName]] = {}
    for agent in agents:
        role = agent.rpartition("_")[0]
        groups.setdefault({"leadadversary": "leader"}.get(role, role), []).append(agent)
    return groups if len(groups) > 1 else {"agents": list(agents)}


class MpeEnv(SuiteEnv):
    def step(self, state: PyTree, action: Actions, key: Key) -> tuple[PyTree, TimeStep]:
        # A step's only randomness is noise on actions and messages, whose scale is 0 in every scenario. With a constant
        # key it is computed once, not for each environment.
        return super().step(state, action, jax.random.key(0))

    def draw(self, axes: Any, state: PyTree) -> None:
        """The suite's own viewer fails if a scenario's colours are not RGB (simple_push, simple_crypto)."""
        from matplotlib.patches import Circle

        suite = self.suite
        axes.set(xlim=(-1.8, 1.8), ylim=(-1.8, 1.8))
        for index in reversed(range(suite.num_entities)):
            is_agent = index < suite.num_agents
            colour = tuple(channel / 255 for channel in suite.colour[index]) if is_agent else "0.35"
            axes.add_patch(Circle(state.p_pos[index], suite.rad[index], color=colour, alpha=1 if is_agent else 0.6))
        talkers = [index for index in range(suite.num_agents) if not suite.silent[index]]
        says = [f"{suite.agents[index]} says {state.c[index].argmax()}" for index in talkers]
        axes.set_title("; ".join([f"step {state.step}", *says]), fontsize=9)


class FacmacEnv(MpeEnv):
    """The group is the predators. The prey is scripted: the suite ignores its actions, and its policy is random."""

    shared_reward = True

    def step(self, state: PyTree, action: Actions, key: Key) -> tuple[PyTree, TimeStep]:
        return SuiteEnv.step(self, state, action, key)

    def unstack_actions(self, action: Actions) -> Any:
        ignored = jnp.zeros_like(action["agents"][0])
        return super().unstack_actions(action) | dict.fromkeys(self.suite.good_agents, ignored)
