"""What the JaxMARL adapters share: `SuiteEnv`, quiet imports, pictures.

The rules of every adapter:
- JaxMARL marks a time limit as done. Here the suite's limit is `NEVER`, so that whatever ends an episode inside the
  suite is a termination, and covey's own `TimeLimit` truncates.
- `step_env` is called, never `step`, which would reset the environment at every step.
- Dictionaries by agent name end here: agents of one kind are stacked, in the suite's order.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from covey.envs.base import Actions, first_step, next_step, present_sharing, present_teams
from covey.types import ActionSpec, Array, Continuous, Discrete, EnvSpec, GroupSpec, Key, MetricSpec, PyTree, TimeStep

NEVER = 2**30  # steps: an inner time limit that no episode reaches

AgentName = str | int


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silences JaxMARL, which prints and warns when it is imported, made and traced.

    Importing its MABrax sets `sys.stdout` and `sys.stderr` to the interpreter's originals, so both are put back.
    """
    sink, original = io.StringIO(), sys.__stdout__
    with contextlib.redirect_stdout(sink), contextlib.redirect_stderr(sys.stderr), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sys.__stdout__ = sink  # type: ignore[misc,assignment]
        try:
            yield
        finally:
            sys.__stdout__ = original  # type: ignore[misc]


def import_suite(module: str) -> ModuleType:
    """`jaxmarl.environments.MODULE`. The package's own `__init__` imports every suite, so the first call takes 4 s."""
    with quiet():
        return importlib.import_module(f"jaxmarl.environments.{module}")


class SuiteEnv:
    """A JaxMARL environment as a covey `Env`. An adapter overrides the methods in which its suite differs."""

    metrics: ClassVar[Mapping[str, MetricSpec]] = {}
    shared_reward: ClassVar[bool] = False  # all agents of a group earn the same at every step
    shaping: float | None = None  # weight of a suite's rewards for learning only (`shaped_rewards`); None: it has none

    def __init__(
        self,
        suite: Any,
        *,
        returns: str,
        groups: Mapping[str, Sequence[AgentName]] | None = None,
        teams: Sequence[Sequence[str]] = (),
        shared_rewards: Sequence[Sequence[str]] = (),
    ):
        """`teams` and `shared_rewards` as in `EnvSpec`; groups that this configuration does not have drop out."""
        self.suite = suite
        self.returns = returns
        self.groups = groups or {"agents": suite.agents}
        self.teams = present_teams(teams, self.groups)
        self.shared_rewards = present_sharing(shared_rewards, self.groups)

    @functools.cached_property
    def spec(self) -> EnvSpec:
        _, first = jax.eval_shape(self.reset, jax.random.key(0))
        groups = {
            name: GroupSpec(
                num_agents=len(agents),
                observation_shape=first.groups[name].observation.shape[1:],
                action=action_spec(self.suite.action_spaces[agents[0]]),
                shared_reward=self.shared_reward,
            )
            for name, agents in self.groups.items()
        }
        state_shape = None if first.state is None else first.state.shape
        return EnvSpec(
            groups=groups,
            time_limit=NEVER,
            state_shape=state_shape,
            metrics=self.metrics,
            returns=self.returns,
            teams=self.teams,
            shared_rewards=self.shared_rewards,
            keeps_lifetimes=True,
        )

    def reset(self, key: Key) -> tuple[PyTree, TimeStep]:
        with quiet():
            observations, state = self.suite.reset(key)
        return state, first_step(
            self.stack_observations(observations),
            action_masks=self.action_masks(state),
            shaping=self.no_shaping(),
            state=self.global_state(observations, state),
            metrics={name: jnp.zeros(()) for name in self.metrics},
        )

    def step(self, state: PyTree, action: Actions, key: Key) -> tuple[PyTree, TimeStep]:
        with quiet():
            observations, after, rewards, dones, info = self.suite.step_env(key, state, self.unstack_actions(action))
        return after, next_step(
            self.stack_observations(observations),
            self.stack_rewards(rewards, info),
            terminated=dones["__all__"],
            action_masks=self.action_masks(after),
            shaping=self.shaped_rewards(info),
            state=self.global_state(observations, after),
            metrics={name: jnp.float32(value) for name, value in self.measure(state, after, rewards).items()},
        )

    def stack_observations(self, observations: Any) -> dict[str, Array]:
        return {
            name: jnp.stack([observations[agent] for agent in agents]).astype(jnp.float32)
            for name, agents in self.groups.items()
        }

    def unstack_actions(self, action: Actions) -> Any:
        """What the suite takes: by default, a dictionary by agent name."""
        return {
            agent: action[name][index] for name, agents in self.groups.items() for index, agent in enumerate(agents)
        }

    def stack_rewards(self, rewards: Any, info: Any) -> dict[str, Array]:
        return {name: jnp.stack([rewards[agent] for agent in agents]) for name, agents in self.groups.items()}

    def shaped_rewards(self, info: Any) -> dict[str, Array] | None:
        """Rewards for learning only, if the suite offers some. `shaping` is then their weight."""
        return None

    def no_shaping(self) -> dict[str, Array] | None:
        if self.shaping is None:
            return None
        return {name: jnp.zeros(len(agents)) for name, agents in self.groups.items()}

    def action_masks(self, state: PyTree) -> dict[str, Array] | None:
        return None

    def global_state(self, observations: Any, state: PyTree) -> Array | None:
        return None

    def measure(self, before: PyTree, after: PyTree, rewards: Any) -> dict[str, Array]:
        """This step's value of every name in `metrics`."""
        return {}

    def render(self, states: Sequence[PyTree]) -> list[np.ndarray]:
        return draw_pictures(states, self.draw)

    def draw(self, axes: Any, state: PyTree) -> None:
        """Draws one state, whose leaves are NumPy arrays, on empty matplotlib axes."""
        raise NotImplementedError


def action_spec(space: Any) -> ActionSpec:
    """JaxMARL's action space as covey's."""
    if hasattr(space, "n"):
        return Discrete(int(space.n))
    low, high = (np.broadcast_to(np.asarray(bound), space.shape) for bound in (space.low, space.high))
    return Continuous(tuple(map(float, low)), tuple(map(float, high)))


def on_host(state: PyTree) -> PyTree:
    return jax.tree.map(np.asarray, state)


def draw_pictures(states: Sequence[PyTree], draw: Callable[[Any, PyTree], None]) -> list[np.ndarray]:
    """One picture per state, by `draw(axes, state)`. No pyplot, so no display and no global backend."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4, 4), dpi=100, layout="tight")
    canvas = FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    pictures = []
    for state in states:
        axes.clear()
        axes.set(xticks=[], yticks=[], aspect="equal")
        draw(axes, on_host(state))
        canvas.draw()
        pictures.append(np.asarray(canvas.buffer_rgba())[..., :3].copy())
    return pictures
