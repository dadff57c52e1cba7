"""Probe environments: tasks so small that the right answer is known, each for one way in which learning goes wrong.

An algorithm must hit the number that a probe's docstring states; if it does not, the probe's name says what to look
at. They train in seconds: `covey train task=probe/truncation`.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from covey.envs.base import Actions, TaskConfig, first_step, next_step
from covey.observations import map_entries
from covey.types import (
    Array,
    Continuous,
    Discrete,
    EnvSpec,
    GroupSpec,
    Key,
    MultiDiscrete,
    Observation,
    ObservationShape,
    PyTree,
    TimeStep,
)

GROUP = "agents"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProbeConfig(TaskConfig):
    num_agents: int = 2  # agents
    time_limit: int = 10


class Probe:
    """A group of agents with two actions and one number to see. Subclasses define observations, rewards and endings."""

    observation_shape: ObservationShape = (1,)
    observation_dtype: Any = np.float32
    action: Discrete | MultiDiscrete | Continuous = Discrete(2)

    def __init__(self, config: ProbeConfig):
        self.config = config
        self.agents = config.num_agents

    @property
    def spec(self) -> EnvSpec:
        group = GroupSpec(
            num_agents=self.agents,
            observation_shape=self.observation_shape,
            observation_dtype=self.observation_dtype,
            action=self.action,
        )
        return EnvSpec(
            groups={GROUP: group},
            time_limit=self.config.time_limit,
            returns="sum of the agent's own rewards",
            keeps_lifetimes=True,
        )

    def render(self, states: Sequence[PyTree]) -> list[np.ndarray]:
        """Probes have nothing to draw: each picture is a grey square whose shade shows the step."""
        return [np.full((64, 64, 3), 40 + 180 * i // max(1, len(states) - 1), np.uint8) for i in range(len(states))]

    def zeros(self) -> Observation:
        return map_entries(lambda shape: jnp.zeros((self.agents, *shape)), self.observation_shape)


class ConstantReward(Probe):
    """One step, reward 1 whatever is done: every value is 1."""

    def reset(self, key: Key) -> tuple[PyTree, TimeStep]:
        return jnp.zeros(()), first_step({GROUP: self.zeros()})

    def step(self, state: PyTree, action: Actions, key: Key) -> tuple[PyTree, TimeStep]:
        return state, next_step({GROUP: self.zeros()}, {GROUP: jnp.ones(())}, terminated=jnp.ones((), bool))


class ObservedReward(Probe):
    """One step, the reward is what the agent sees, +1 or −1: the value of an observation is the observation."""

    def reset(self, key: Key) -> tuple[PyTree, TimeStep]:
        seen = jax.random.rademacher(key, (self.agents,), jnp.float32)
        return seen, first_step({GROUP: seen[:, None]})

    def step(self, state: PyTree, action: Actions, key: Key) -> tuple[PyTree, TimeStep]:
        return state, next_step({GROUP: state[:, None]}, {GROUP: state}, terminated=jnp.ones((), bool))


class DelayedReward(Probe):
    """Two steps, reward 1 after the second: values are γ at the first (sees 0) and 1 at the second (sees 1)."""

    def reset(self, key: Key) -> tuple[PyTree, TimeStep]:
        return jnp.zeros(()), first_step({GROUP: self.zeros()})

    def step(self, state: PyTree, action: Actions, key: Key) -> tuple[PyTree, TimeStep]:
        return state + 1, next_step({GROUP: self.zeros() + 1.0}, {GROUP: state}, terminated=state >= 1)


class TruncationOnly(Probe):
    """Reward 1 for ever, cut by the time limit alone: the value is 1 / (1 − γ), not that of the steps left."""

    def reset(self, key: Key) -> tuple[PyTree, TimeStep]:
        return jnp.zeros(()), first_step({GROUP: self.zeros()})

    def step(self, state: PyTree, action: Actions, key: Key) -> tuple[PyTree, TimeStep]:
        return state, next_step({GROUP: self.zeros()}, {GROUP: jnp.ones(())}, terminated=jnp.zeros((), bool))


class Death(Probe):
    """Agent 0 dies at its second step, the others terminate at their fourth. A step earns 1; agents see the steps left.

    At first, the value is 1 + γ for agent 0 and 1 + γ + γ² + γ³ for the others. After its death agent 0 sees −5 and is
    offered a reward of 100 in each step, which must not reach anything.
    """

    def _observe(self, elapsed: Array) -> tuple[Array, Array]:
        lifetime = jnp.where(jnp.arange(self.agents) == 0, 2, 4)
        alive = elapsed < lifetime
        return jnp.where(alive, lifetime - elapsed, -5).astype(jnp.float32)[:, None], alive

    def reset(self, key: Key) -> tuple[PyTree, TimeStep]:
        elapsed = jnp.zeros((), jnp.int32)
        return elapsed, first_step({GROUP: self._observe(elapsed)[0]})

    def step(self, state: PyTree, action: Actions, key: Key) -> tuple[PyTree, TimeStep]:
        _, acted_alive = self._observe(state)
        observation, alive = self._observe(state + 1)
        reward = jnp.where(acted_alive, 1.0, 100.0)
        timestep = next_step(
            {GROUP: observation},
            {GROUP: reward},
            terminated={GROUP: acted_alive & ~alive},
            alive={GROUP: alive},
            last=state + 1 >= 4,
        )
        return state + 1, timestep


class CopyAction(Probe):
    """One step, reward 1 for the action that the observation (0 or 1) names: the best return is 1, chance 0.5."""

    def reset(self, key: Key) -> tuple[PyTree, TimeStep]:
        seen = jax.random.bernoulli(key, 0.5, (self.agents,)).astype(jnp.float32)
        return seen, first_step({GROUP: seen[:, None]})

    def step(self, state: PyTree, action: Actions, key: Key) -> tuple[PyTree, TimeStep]:
        reward = (action[GROUP] == state).astype(jnp.float32)
        return state, next_step({GROUP: state[:, None]}, {GROUP: reward}, terminated=jnp.ones((), bool))


class MaskedActions(Probe):
    """Three actions worth 0, 1 and 10, the last never legal: the best return is 1, and 10 means a broken mask."""

    action = Discrete(3)

    def _masks(self) -> dict[str, Array]:
        return {GROUP: jnp.tile(jnp.array([True, True, False]), (self.agents, 1))}

    def reset(self, key: Key) -> tuple[PyTree, TimeStep]:
        return jnp.zeros(()), first_step({GROUP: self.zeros()}, action_masks=self._masks())

    def step(self, state: PyTree, action: Actions, key: Key) -> tuple[PyTree, TimeStep]:
        reward = jnp.array([0.0, 1.0, 10.0])[action[GROUP]]
        timestep = next_step(
            {GROUP: self.zeros()}, {GROUP: reward}, terminated=jnp.ones((), bool), action_masks=self._masks()
        )
        return state, timestep


class ManyChoices(Probe):
    """Multi-discrete: choices out of 2 and 3, reward 0.5 for each that matches the two numbers seen; best 1."""

    observation_shape = (2,)
    action = MultiDiscrete((2, 3))

    def reset(self, key: Key) -> tuple[PyTree, TimeStep]:
        seen = jax.random.randint(key, (self.agents, 2), 0, jnp.array([2, 3]))
        return seen, first_step({GROUP: seen.astype(jnp.float32)})

    def step(self, state: PyTree, action: Actions, key: Key) -> tuple[PyTree, TimeStep]:
        reward = 0.5 * jnp.sum(action[GROUP] == state, axis=-1)
        timestep = next_step({GROUP: state.astype(jnp.float32)}, {GROUP: reward}, terminated=jnp.ones((), bool))
        return state, timestep


class ContinuousTarget(Probe):
    """One step, reward 1 − (a − o)² for a one-dimensional action in [−2, 2] and o in [−1, 1]: the best return is 1."""

    action = Continuous(low=(-2.0,), high=(2.0,))

    def reset(self, key: Key) -> tuple[PyTree, TimeStep]:
        seen = jax.random.uniform(key, (self.agents, 1), minval=-1.0, maxval=1.0)
        return seen, first_step({GROUP: seen})

    def step(self, state: PyTree, action: Actions, key: Key) -> tuple[PyTree, TimeStep]:
        reward = 1.0 - jnp.square(action[GROUP] - state)[:, 0]
        return state, next_step({GROUP: state}, {GROUP: reward}, terminated=jnp.ones((), bool))


class Selfish(Probe):
    """One step, continuous actions in [−1, 1]: agent 0 earns a₀, the others aᵢ − 3 a₀. Everyone's best action is 1.

    The group's sum is largest with a₀ = −1: an agent that follows it instead of its own reward goes there.
    """

    action = Continuous(low=(-1.0,), high=(1.0,))

    def reset(self, key: Key) -> tuple[PyTree, TimeStep]:
        return jnp.zeros(()), first_step({GROUP: self.zeros()})

    def step(self, state: PyTree, action: Actions, key: Key) -> tuple[PyTree, TimeStep]:
        own = action[GROUP][:, 0]
        reward = own - jnp.where(jnp.arange(self.agents) == 0, 0.0, 3.0 * own[0])
        return state, next_step({GROUP: self.zeros()}, {GROUP: reward}, terminated=jnp.ones((), bool))


class Rows(Probe):
    """Observation `[N, F]`: four rows of which one is marked; reward 1 for the action that its number names; best 1."""

    observation_shape = (4, 2)

    def reset(self, key: Key) -> tuple[PyTree, TimeStep]:
        key_mark, key_number = jax.random.split(key)
        marked = jax.random.randint(key_mark, (self.agents,), 0, 4)
        numbers = jax.random.bernoulli(key_number, 0.5, (self.agents, 4)).astype(jnp.float32)
        rows = jnp.stack([jax.nn.one_hot(marked, 4), numbers], axis=-1)
        return rows, first_step({GROUP: rows})

    def step(self, state: PyTree, action: Actions, key: Key) -> tuple[PyTree, TimeStep]:
        wanted = jnp.sum(state[..., 0] * state[..., 1], axis=-1)
        reward = (action[GROUP] == wanted).astype(jnp.float32)
        return state, next_step({GROUP: state}, {GROUP: reward}, terminated=jnp.ones((), bool))


class ImageAndVector(Probe):
    """A dictionary: an image `[4, 4, 1]` with a mark in its left or right half, and a vector that says the rule: name
    the mark's side, or the other one. One step, reward 1 for the right name; best 1, from either of the two alone 0.5.
    """

    observation_shape = types.MappingProxyType({"image": (4, 4, 1), "vector": (2,)})
    observation_dtype = types.MappingProxyType({"image": np.uint8, "vector": np.float32})

    def _see(self, state: PyTree) -> dict[str, dict[str, Array]]:
        cell, opposite = state
        image = jax.nn.one_hot(cell, 16, dtype=jnp.uint8).reshape(self.agents, 4, 4, 1)
        return {GROUP: {"image": image, "vector": jax.nn.one_hot(opposite, 2)}}

    def reset(self, key: Key) -> tuple[PyTree, TimeStep]:
        key_cell, key_rule = jax.random.split(key)
        cell = jax.random.randint(key_cell, (self.agents,), 0, 16)
        state = (cell, jax.random.bernoulli(key_rule, 0.5, (self.agents,)).astype(jnp.int32))
        return state, first_step(self._see(state))

    def step(self, state: PyTree, action: Actions, key: Key) -> tuple[PyTree, TimeStep]:
        cell, opposite = state
        is_right = (cell % 4 >= 2).astype(jnp.int32)
        reward = (action[GROUP] == (is_right ^ opposite)).astype(jnp.float32)
        return state, next_step(self._see(state), {GROUP: reward}, terminated=jnp.ones((), bool))


class Compare(Probe):
    """Reward 1 for saying whether one's number is above the mean of the team's, whatever the team's size; best 1.

    All numbers of a team lie near one that is drawn from ten times as wide a range. So an agent that sees its own alone
    does better than 0.5 only near the ends of that range, which in all makes less than 0.55.
    """

    def reset(self, key: Key) -> tuple[PyTree, TimeStep]:
        key_team, key_own = jax.random.split(key)
        near = jax.random.uniform(key_team, (1,), minval=-10.0, maxval=10.0)
        seen = near + jax.random.uniform(key_own, (self.agents,), minval=-1.0, maxval=1.0)
        return seen, first_step({GROUP: seen[:, None]})

    def step(self, state: PyTree, action: Actions, key: Key) -> tuple[PyTree, TimeStep]:
        reward = (action[GROUP] == (state > state.mean())).astype(jnp.float32)
        return state, next_step({GROUP: state[:, None]}, {GROUP: reward}, terminated=jnp.ones((), bool))


class Memory(Probe):
    """A cue (−1 or 1) is shown at the first of five steps, zeros after; the last action must name it, for reward 1.

    What is seen when the action counts is the same for both cues, so without memory no policy does better than 0.5
    on average; with memory the best return is 1.
    """

    length = 5

    def reset(self, key: Key) -> tuple[PyTree, TimeStep]:
        cue = jax.random.rademacher(key, (self.agents,), jnp.float32)
        return (cue, jnp.zeros((), jnp.int32)), first_step({GROUP: cue[:, None]})

    def step(self, state: PyTree, action: Actions, key: Key) -> tuple[PyTree, TimeStep]:
        cue, elapsed = state
        final = elapsed + 1 >= self.length
        reward = jnp.where(final, action[GROUP] == (cue > 0), False).astype(jnp.float32)
        return (cue, elapsed + 1), next_step({GROUP: self.zeros()}, {GROUP: reward}, terminated=final)


class TwoStep(Probe):
    """The two-step game of QMIX (Rashid et al., 2018, section 5): the first agent's first action leads to a second step
    where everything earns 7, or to one where the team earns 8 if both take action 1, 1 if one does and 0 otherwise.

    Best is 8. A sum of the agents' values cannot tell what the second is worth, and settles for 7.
    """

    observation_shape = (3,)  # where the game is: at the start, safe, or where agents must agree

    @property
    def spec(self) -> EnvSpec:
        return dataclasses.replace(super().spec, state_shape=self.observation_shape)

    def _see(self, place: Array) -> tuple[dict[str, Array], Array]:
        seen = jax.nn.one_hot(place, 3)
        return {GROUP: jnp.broadcast_to(seen, (self.agents, 3))}, seen

    def reset(self, key: Key) -> tuple[PyTree, TimeStep]:
        observation, state = self._see(jnp.zeros((), jnp.int32))
        return jnp.zeros((), jnp.int32), first_step(observation, state=state)

    def step(self, state: PyTree, action: Actions, key: Key) -> tuple[PyTree, TimeStep]:
        ones = jnp.sum(action[GROUP])
        agreed = jnp.where(ones == self.agents, 8.0, (ones > 0).astype(jnp.float32))
        reward = jnp.array([0.0, 7.0, agreed])[state]
        place = jnp.where(state == 0, 1 + action[GROUP][0], state)
        observation, seen = self._see(place)
        return place, next_step(observation, {GROUP: reward}, terminated=state > 0, state=seen)


class TwoGroups(Probe):
    """Two groups that differ in everything: `copiers` earn 1 for naming what they see; the single `guesser` sees
    nothing of use and earns 0.5 on average, whatever it does."""

    @property
    def spec(self) -> EnvSpec:
        copiers = GroupSpec(num_agents=self.agents, observation_shape=(1,), action=Discrete(2))
        guessers = GroupSpec(num_agents=1, observation_shape=(3,), action=Discrete(4))
        return EnvSpec(
            groups={"copiers": copiers, "guessers": guessers},
            time_limit=self.config.time_limit,
            returns="sum of the agent's own rewards",
            keeps_lifetimes=True,
        )

    def reset(self, key: Key) -> tuple[PyTree, TimeStep]:
        seen = jax.random.bernoulli(key, 0.5, (self.agents + 1,)).astype(jnp.float32)
        return seen, first_step({"copiers": seen[:-1, None], "guessers": jnp.zeros((1, 3))})

    def step(self, state: PyTree, action: Actions, key: Key) -> tuple[PyTree, TimeStep]:
        rewards = {
            "copiers": (action["copiers"] == state[:-1]).astype(jnp.float32),
            "guessers": (action["guessers"] % 2 == state[-1:]).astype(jnp.float32),
        }
        observations = {"copiers": state[:-1, None], "guessers": jnp.zeros((1, 3))}
        return state, next_step(observations, rewards, terminated=jnp.ones((), bool))


class Team(Probe):
    """Two unlike groups that share one reward: `seers` of a number each, +1 or −1, and one agent that is `blind`.

    One step. The reward is the mean of the numbers, plus the share of agents that act right: a seer takes action 1 for
    +1 and 0 for −1, the blind agent always 0. With right actions the value is 1 plus the mean of the numbers, which the
    blind agent's critic knows only if it sees the seers. The reward is a sum of terms that each belong to one agent.
    """

    sharing = ("seers", "blind")

    def group_specs(self) -> dict[str, GroupSpec]:
        return {
            "seers": GroupSpec(num_agents=self.agents, observation_shape=(1,), action=Discrete(2), shared_reward=True),
            "blind": GroupSpec(num_agents=1, observation_shape=(3,), action=Discrete(3), shared_reward=True),
        }

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec(
            groups=self.group_specs(),
            time_limit=self.config.time_limit,
            returns="sum of the team's rewards",
            keeps_lifetimes=True,
            shared_rewards=(self.sharing,),
        )

    def _see(self, seen: Any) -> dict[str, Array]:
        return {"seers": seen[:, None], "blind": jnp.zeros((1, 3))}

    def reset(self, key: Key) -> tuple[PyTree, TimeStep]:
        seen = jax.random.rademacher(key, (self.agents,), jnp.float32)
        return seen, first_step(self._see(seen))

    def step(self, state: PyTree, action: Actions, key: Key) -> tuple[PyTree, TimeStep]:
        right = jnp.concatenate([action["seers"] == (state > 0), action["blind"] == 0])
        reward = jnp.mean(state) + jnp.mean(right.astype(jnp.float32))
        return state, next_step(self._see(state), dict.fromkeys(self.sharing, reward), terminated=jnp.ones((), bool))


class TeamTwoStep(Team):
    """The game of `TwoStep` between two groups of one agent, without a global state; `follower` also sees a zero.

    Best is 8. Groups that learn by themselves, or a sum of their values, settle for 7.
    """

    sharing = ("leader", "follower")

    def group_specs(self) -> dict[str, GroupSpec]:
        return {
            "leader": GroupSpec(num_agents=1, observation_shape=(3,), action=Discrete(2), shared_reward=True),
            "follower": GroupSpec(num_agents=1, observation_shape=(4,), action=Discrete(2), shared_reward=True),
        }

    def _see(self, seen: Any) -> dict[str, Array]:
        place = jax.nn.one_hot(seen, 3)[None]
        return {"leader": place, "follower": jnp.pad(place, ((0, 0), (0, 1)))}

    def reset(self, key: Key) -> tuple[PyTree, TimeStep]:
        return jnp.zeros((), jnp.int32), first_step(self._see(jnp.zeros((), jnp.int32)))

    def step(self, state: PyTree, action: Actions, key: Key) -> tuple[PyTree, TimeStep]:
        ones = action["leader"][0] + action["follower"][0]
        reward = jnp.array([0.0, 7.0, jnp.array([0.0, 1.0, 8.0])[ones]])[state]
        place = jnp.where(state == 0, 1 + action["leader"][0], state)
        return place, next_step(self._see(place), dict.fromkeys(self.sharing, reward), terminated=state > 0)


class TeamTarget(Team):
    """Continuous, two steps: `near` agents see and name one number each, the `far` agent two, all in [−1, 1].

    All earn 1 − the mean of the squared errors of all numbers, at each step. The best return is 2, and the best values
    are 1 + γ at the first step and 1 at the second. The last thing seen is the step, 0 or 1.
    """

    sharing = ("near", "far")

    def group_specs(self) -> dict[str, GroupSpec]:
        one, two = (Continuous(low=(-2.0,) * size, high=(2.0,) * size) for size in (1, 2))
        return {
            "near": GroupSpec(num_agents=self.agents, observation_shape=(2,), action=one, shared_reward=True),
            "far": GroupSpec(num_agents=1, observation_shape=(3,), action=two, shared_reward=True),
        }

    def _see(self, seen: Any) -> dict[str, Array]:
        numbers, elapsed = seen
        near, far = numbers[:-2, None], numbers[None, -2:]
        return {
            "near": jnp.concatenate([near, jnp.full_like(near, elapsed)], -1),
            "far": jnp.append(far, elapsed)[None],
        }

    def reset(self, key: Key) -> tuple[PyTree, TimeStep]:
        state = (jax.random.uniform(key, (self.agents + 2,), minval=-1.0, maxval=1.0), jnp.zeros(()))
        return state, first_step(self._see(state))

    def step(self, state: PyTree, action: Actions, key: Key) -> tuple[PyTree, TimeStep]:
        numbers, elapsed = state
        named = jnp.concatenate([action["near"][:, 0], action["far"][0]])
        reward = 1.0 - jnp.mean(jnp.square(named - numbers))
        after = (numbers, elapsed + 1)
        return after, next_step(self._see(after), dict.fromkeys(self.sharing, reward), terminated=elapsed >= 1)
