"""What a scenario is, and the environment that plays one.

A scenario is a subclass of `Scenario` in its own file, with a config of its fields. It describes a world and says
how an episode starts, what each agent earns and sees, and when it ends:

    class Meeting(Scenario):
        def make_world(self): ...
        def reset(self, key): ...               draws what is random and calls `begin`
        def begin(self, world): ...             what is remembered at the start of an episode in `world`
        def reward(self, state, key): ...
        def observation(self, state, key): ...

Everything is for one environment; batches are made by `vmap`. A step is, in this order: `process_action`, the world's
physics, `post_step`, `reward`, `observation`, `done`, `metrics`. What a scenario remembers beyond the world (the last
distance, who was caught) is in `ScenarioState.memory`, a dict of arrays that `reset` makes and any of `process_action`,
`post_step` and `reward` may change.

Differences from VMAS:
- An episode's time limit is a truncation (`task.time_limit`; `task.max_steps` is understood too).
- Actions beyond their range are clipped.
- Each environment behaves as VMAS does with one environment. In a batch, VMAS lets environments influence each other:
  it computes the collisions of a pair of bodies in all of them or in none (`physics.py`), and joint_passage and
  joint_passage_size end an episode by what happens in others (`scenarios/_rod_and_wall.py`).
- `joint_angle_obs_noise` of these two scenarios is only on what agents see. In VMAS it turns the rod itself.
- Arguments that only concern VMAS's viewer are accepted and have no effect (`VmasConfig.other_names`).
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from covey.envs.base import (
    Actions,
    ReferencePolicy,
    Reward,
    SuiteConfig,
    first_step,
    next_step,
    present_sharing,
    present_teams,
)
from covey.envs.vmas import physics
from covey.envs.vmas.dynamics import Dynamics, DynamicsKind, Holonomic, make_dynamics
from covey.envs.vmas.world import Agent, Colour, World, WorldState
from covey.ops import random
from covey.registry import OtherNames
from covey.types import Array, Continuous, Discrete, EnvSpec, GroupSpec, Key, MetricSpec, PyTree, TimeStep, pytree

if TYPE_CHECKING:
    from covey.envs.vmas.render import Decoration


@dataclasses.dataclass(frozen=True, kw_only=True)
class VmasConfig(SuiteConfig):
    """Fields of every scenario."""

    # VMAS's name for the limit, and what its scenarios have for its viewer: pictures here are drawn without it.
    other_names: ClassVar[OtherNames] = {
        "max_steps": "time_limit",
        "viewer_size": None,
        "viewer_zoom": None,
        "render_origin": None,
        "plot_grid": None,
        "visualize_semidims": None,
    }

    @property
    def with_discrete_actions(self) -> VmasConfig:
        return dataclasses.replace(self, continuous_actions=False)

    # actions are numbers; false: each dimension has one of three values, and an action is one choice of all together
    continuous_actions: bool = True
    # weight of the scenario's potential in a reward for learning only, which no return counts; 0: none
    shaping: float = 0.0
    dynamics: DynamicsKind | None = None  # how agents move; null: as the scenario has it
    # fields of that kind of dynamics, as {max_steering_angle: 0.5}; only with `dynamics`
    dynamics_options: dict[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dynamics is not None:
            make_dynamics(self.dynamics, self.dynamics_options)
        elif self.dynamics_options:
            kinds = ", ".join(kind.name for kind in DynamicsKind)
            raise ValueError(f"dynamics_options need a kind of dynamics: one of {kinds}")


@pytree
class ScenarioState:
    world: WorldState
    memory: dict[str, Array]

    def remember(self, **values: Array) -> ScenarioState:
        return dataclasses.replace(self, memory=self.memory | values)

    def with_world(self, **values: Any) -> ScenarioState:
        return dataclasses.replace(self, world=dataclasses.replace(self.world, **values))


Rows = Array | Sequence[Array]


class Scenario:
    """Subclasses define `make_world`, `reset`, `reward` and `observation`; the rest has sensible defaults."""

    metric_specs: ClassVar[Mapping[str, MetricSpec]] = {}
    returns: ClassVar[str] = "sum of the agent's own rewards"
    shared_returns: ClassVar[str] = ""  # what `reward=shared` adds to it, where the scenario shares rewards
    opposed_groups: ClassVar[tuple[tuple[str, ...], ...]] = ()  # as `EnvSpec.teams`; groups that are absent drop out
    shared_rewards: ClassVar[tuple[tuple[str, ...], ...]] = ()  # as in `EnvSpec`

    def __init__(self, config: Any):
        self.config = config
        self.world = self.make_world()
        if config.dynamics is not None:
            self.world = with_dynamics(self.world, make_dynamics(config.dynamics, config.dynamics_options))

    def make_world(self) -> World:
        raise NotImplementedError

    def reset(self, key: Key) -> ScenarioState:
        raise NotImplementedError

    def begin(self, world: WorldState, **drawn: Array) -> ScenarioState:
        """An episode that starts in `world`. `drawn` is what was drawn besides: which goal is meant, for example."""
        return ScenarioState(world=world, memory=dict(drawn))

    def reward(self, state: ScenarioState, key: Key) -> tuple[Rows, ScenarioState]:
        """One reward per agent that is not scripted, and the state after giving it."""
        raise NotImplementedError

    def describe_returns(self) -> str:
        """What an agent's return is, with these fields."""
        return self.returns + (self.shared_returns if self.config.reward is Reward.shared else "")

    def shares_reward(self, group: str) -> bool:
        """Whether all agents of a group earn the same at every step, with these fields."""
        return False

    def observation(self, state: ScenarioState, key: Key) -> Rows:
        """One vector per agent that is not scripted: `[A, F]`, or a list where they differ in size."""
        raise NotImplementedError

    def done(self, state: ScenarioState) -> Array:
        return jnp.zeros((), bool)

    def metrics(self, state: ScenarioState) -> dict[str, Array]:
        """By the names in `metric_specs`."""
        return {}

    def potential(self, state: ScenarioState) -> Array:
        """How good a state is, for each agent that is not scripted. With `task.shaping`, what a step adds to it is a
        reward for learning, which does not count in returns. Under undiscounted returns the best policies stay the
        best (Ng et al., 1999) if it is the same at every end. Under discounted returns it also favours early gains."""
        raise ValueError(f"task.shaping: {type(self).__name__} has no potential to shape rewards by")

    def process_action(self, state: ScenarioState, u: Array, key: Key) -> tuple[Array, ScenarioState]:
        """The actions `[A, U]` of all agents before the dynamics see them, and the state with whatever choosing them
        changed. Scripted agents' rows are set here."""
        return u, state

    def external_force(self, state: ScenarioState) -> Array | None:
        """Forces `[E, 2]` from outside, wind for example."""
        return None

    def post_step(self, state: ScenarioState, key: Key) -> ScenarioState:
        return state

    def reference_policies(self) -> Mapping[str, Callable[[Array], Array]]:
        """Hand-written opponents: by group, from its observations `[A, F]` (and whatever is appended to them) to its
        continuous actions."""
        return {}

    def colours(self, state: ScenarioState) -> Mapping[str, Colour | None]:
        """For pictures: the colours, by name, of entities that differ from their own in this state; None: invisible."""
        return {}

    def decorations(self, state: ScenarioState) -> Sequence[Decoration]:
        """For pictures: what is drawn besides the entities, below them."""
        return ()


class VmasEnv:
    """A scenario as an `Env`: agents in groups by their names' prefix, `agents` where there is only one."""

    def __init__(self, scenario: Scenario):
        self.scenario = scenario
        self.world = scenario.world
        self._step_world = physics.make_step(self.world)
        self._acting = [i for i, agent in enumerate(self.world.agents) if not agent.scripted]
        self.groups = group_agents([self.world.agents[i].name for i in self._acting])

    @property
    def reference_policies(self) -> Mapping[str, ReferencePolicy]:
        return self.scenario.reference_policies() if self.scenario.config.continuous_actions else {}

    @functools.cached_property
    def spec(self) -> EnvSpec:
        rows = jax.eval_shape(lambda key: self._observe(self.scenario.reset(key), key), jax.random.key(0))
        return EnvSpec(
            groups={
                name: GroupSpec(
                    num_agents=len(indices),
                    observation_shape=rows[name].shape[1:],
                    action=self._action_spec(self._agent(indices[0])),
                    shared_reward=self.scenario.shares_reward(name) and not self.scenario.config.shaping,
                )
                for name, indices in self.groups.items()
            },
            time_limit=self.scenario.config.time_limit,
            metrics=self.scenario.metric_specs,
            returns=self.scenario.describe_returns(),
            teams=present_teams(self.scenario.opposed_groups, self.groups),
            shared_rewards=present_sharing(self.scenario.shared_rewards, self.groups),
            keeps_lifetimes=True,
        )

    def reset(self, key: Key) -> tuple[PyTree, TimeStep]:
        key_reset, key_observe = jax.random.split(key)
        state = self.scenario.reset(key_reset)
        timestep = first_step(
            self._observe(state, key_observe), shaping=self._shape(state, state), metrics=self.scenario.metrics(state)
        )
        return state, timestep

    def step(self, state: PyTree, action: Actions, key: Key) -> tuple[PyTree, TimeStep]:
        scenario, before = self.scenario, state
        key_noise, key_act, key_post, key_reward, key_observe = jax.random.split(key, 5)
        u, communication = self._decode(action, key_noise)
        u, state = scenario.process_action(state, u, key_act)
        external = scenario.external_force(state)
        external = jnp.zeros_like(state.world.position) if external is None else external
        world = self._step_world(state.world, u, communication, external)
        state = scenario.post_step(dataclasses.replace(state, world=world), key_post)
        rewards, state = scenario.reward(state, key_reward)
        timestep = next_step(
            self._observe(state, key_observe),
            self._by_group(rewards),
            terminated=scenario.done(state),
            shaping=self._shape(before, state),
            metrics=scenario.metrics(state),
        )
        return state, timestep

    def _shape(self, before: ScenarioState, after: ScenarioState) -> dict[str, Array] | None:
        """What a step added to the potential."""
        if not self.scenario.config.shaping:
            return None
        return self._by_group(
            self.scenario.config.shaping * (self.scenario.potential(after) - self.scenario.potential(before))
        )

    def render(self, states: Sequence[PyTree]) -> list[np.ndarray]:
        from covey.envs.vmas.render import draw_episode

        return draw_episode(self.scenario, states)

    def _agent(self, index: int) -> Agent:
        return self.world.agents[self._acting[index]]

    def _observe(self, state: ScenarioState, key: Key) -> dict[str, Array]:
        return self._by_group(self.scenario.observation(state, key))

    def _by_group(self, rows: Rows) -> dict[str, Array]:
        if len(self.groups) == 1 and not isinstance(rows, (list, tuple)):
            return {name: jnp.asarray(rows) for name in self.groups}
        return {name: jnp.stack([rows[i] for i in indices]) for name, indices in self.groups.items()}

    def _action_spec(self, agent: Agent) -> Continuous | Discrete:
        says = self.world.dim_c if not agent.silent else 0
        if not self.scenario.config.continuous_actions:
            return Discrete(math.prod(agent.choices) * max(1, says))
        bounds = agent.per_action(agent.u_range)
        return Continuous(low=tuple(-bound for bound in bounds) + (0.0,) * says, high=tuple(bounds) + (1.0,) * says)

    def _decode(self, action: Actions, key: Key) -> tuple[Array, Array]:
        """The actions of all agents `[A, U]`, multiplied and with their noise, and what they say `[A, dim_c]`."""
        width, says = self.world.max_actions, self.world.dim_c
        u = jnp.zeros((self.world.num_agents, width))
        said = jnp.zeros((self.world.num_agents, says))
        for name, indices in self.groups.items():
            agent = self._agent(indices[0])
            rows = np.array([self._acting[i] for i in indices])
            physical, message = self._read(agent, action[name])
            of_group = [self.world.agents[i] for i in rows]
            multiplier = np.array([each.per_action(each.u_multiplier) for each in of_group], np.float32)
            physical = physical * multiplier
            physical = jnp.pad(physical, ((0, 0), (0, width - physical.shape[1])))
            u = physical if len(rows) == self.world.num_agents else u.at[rows].set(physical)
            if message is not None:
                said = said.at[rows].set(message)
        u_noise = np.array([agent.u_noise for agent in self.world.agents], np.float32)[:, None]
        c_noise = np.array([agent.c_noise for agent in self.world.agents], np.float32)[:, None]
        key_u, key_c = jax.random.split(key)
        if u_noise.any():
            u = u + u_noise * random.normal(key_u, u.shape)
        if c_noise.any():
            said = said + c_noise * random.normal(key_c, said.shape)
        return u, said

    def _read(self, agent: Agent, action: Array) -> tuple[Array, Array | None]:
        """Physical actions `[A, n]` within their range, and messages where agents speak."""
        size, says = agent.num_actions, self.world.dim_c if not agent.silent else 0
        bounds = np.array(agent.per_action(agent.u_range), np.float32)
        if self.scenario.config.continuous_actions:
            physical = jnp.clip(action[:, :size], -bounds, bounds)
            return physical, jnp.clip(action[:, size:], 0.0, 1.0) if says else None
        choices = [*agent.choices, *([says] if says else [])]
        numbers = []
        rest = action
        for i in range(len(choices)):
            following = math.prod(choices[i + 1 :])
            numbers.append(rest // following)
            rest = rest % following
        physical = jnp.stack(
            [
                choice_to_action(n, count) * bound
                for n, count, bound in zip(numbers, agent.choices, bounds, strict=False)
            ],
            -1,
        )
        return physical, jax.nn.one_hot(numbers[-1], says) if says else None


def with_dynamics(world: World, dynamics: Dynamics) -> World:
    """The world with agents that move by `dynamics`, scripted ones aside, which the scenario knows how to move."""
    for agent in world.agents:
        if not agent.scripted:
            _check_other_dynamics(agent, dynamics)
    agents = [agent if agent.scripted else dataclasses.replace(agent, dynamics=dynamics) for agent in world.agents]
    return dataclasses.replace(world, agents=tuple(agents))


def _check_other_dynamics(agent: Agent, dynamics: Dynamics) -> None:
    cannot = f"{agent.name} cannot have other dynamics: "
    if not isinstance(agent.dynamics, Holonomic):
        raise ValueError(f"{cannot}the scenario relies on its {type(agent.dynamics).__name__}")
    if agent.action_size is not None or agent.discrete_actions is not None:
        raise ValueError(f"{cannot}the scenario itself defines what its actions are")
    for name, value in (("u_range", agent.u_range), ("u_multiplier", agent.u_multiplier)):
        if isinstance(value, tuple) and len(value) != dynamics.action_size:
            raise ValueError(f"{cannot}its {name} is for {len(value)} numbers, but these take {dynamics.action_size}")


def choice_to_action(choice: Array, count: int) -> Array:
    """One of `count` choices as a number in −1…1, evenly spaced; if `count` is odd, choice 0 does nothing."""
    if count % 2:
        choice = jnp.where(choice == 0, count // 2, jnp.where(choice <= count // 2, choice - 1, choice))
    return choice / (count - 1) * 2.0 - 1.0


def group_agents(names: Sequence[str]) -> dict[str, list[int]]:
    """Agents by the prefix of names like `red_0`; those without a number are groups of one."""
    groups: dict[str, list[int]] = {}
    for i, name in enumerate(names):
        match = re.fullmatch(r"(.+)_\d+", name)
        groups.setdefault(match.group(1) if match else name, []).append(i)
    return {"agents": list(range(len(names)))} if len(groups) == 1 else groups
