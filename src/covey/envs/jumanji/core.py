"""What every Jumanji adapter shares: time steps, the spec, pictures, and windows of a grid.

Jumanji ends an episode at its time limit, in most environments with a discount of zero. Here the inner environment
receives a limit that it never reaches, and covey's `TimeLimit` cuts the episode. So whatever Jumanji still ends is a
termination.
"""

from __future__ import annotations

import contextlib
import enum
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import matplotlib
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg

from covey.envs.base import Actions, TaskConfig, first_step, next_step
from covey.types import ActionSpec, Array, EnvSpec, GroupSpec, Key, MetricSpec, PyTree, TimeStep

GROUP = "agents"
NEVER = int(np.iinfo(np.int32).max)  # steps


class ObservationKind(enum.Enum):
    """How an agent sees a grid."""

    vector = "flat: what is near the agent, and where it is"
    grid = "the cells [H, W, C] as channels, for convolutions"


class JumanjiEnv:
    """An `Env` over a Jumanji environment. A subclass says how to read its states and observations."""

    shared_reward: ClassVar[bool] = False  # all agents earn the same at every step

    def __init__(
        self, env: Any, config: TaskConfig, *, action: ActionSpec, metrics: Mapping[str, MetricSpec], returns: str
    ):
        """`returns` says what an agent earns by itself; `ShareReward` adds how the reward is shared."""
        self._env = env
        self._config = config
        self._action = action
        self._metrics = metrics
        self._returns = returns

    def observe(self, state: PyTree, observation: Any) -> Array:
        """What each agent sees, `[A, …]`."""
        raise NotImplementedError

    def measure(self, state: PyTree, timestep: Any) -> dict[str, Array]:
        """The values of the metrics."""
        raise NotImplementedError

    def action_mask(self, state: PyTree, observation: Any) -> Array | None:
        mask: Array | None = observation.action_mask
        return mask

    def global_state(self, state: PyTree) -> Array | None:
        """A flat `[S]`, if that holds more than the agents see together."""
        return None

    def finished(self, state: PyTree) -> Array | None:
        """Which agents can earn nothing more `[A]`; None where all finish with the episode."""
        return None

    @functools.cached_property
    def spec(self) -> EnvSpec:
        _, first = jax.eval_shape(self.reset, jax.random.key(0))
        num_agents, *observation_shape = first.groups[GROUP].observation.shape
        group = GroupSpec(
            num_agents=num_agents,
            observation_shape=tuple(observation_shape),
            action=self._action,
            shared_reward=self.shared_reward,
        )
        return EnvSpec(
            groups={GROUP: group},
            time_limit=self._config.time_limit,
            state_shape=None if first.state is None else first.state.shape,
            metrics=self._metrics,
            returns=self._returns,
            keeps_lifetimes=True,
        )

    def reset(self, key: Key) -> tuple[PyTree, TimeStep]:
        state, timestep = self._env.reset(key)
        observations = {GROUP: self.observe(state, timestep.observation).astype(jnp.float32)}
        return state, first_step(observations, **self._rest(state, timestep))

    def step(self, state: PyTree, action: Actions, key: Key) -> tuple[PyTree, TimeStep]:
        next_state, timestep = self._env.step(state, action[GROUP])
        observations = {GROUP: self.observe(next_state, timestep.observation).astype(jnp.float32)}
        rest = self._rest(next_state, timestep)
        ended = timestep.last()
        before, after = self.finished(state), self.finished(next_state)
        if before is not None and after is not None:
            rest["alive"] = {GROUP: ~after}
            rest["last"] = ended
            rest["terminated"] = {GROUP: ~before & (after | ended)}
        else:
            rest["terminated"] = ended
        return next_state, next_step(observations, {GROUP: timestep.reward}, **rest)

    def _rest(self, state: PyTree, timestep: Any) -> dict[str, Any]:
        mask = self.action_mask(state, timestep.observation)
        return {
            "action_masks": None if mask is None else {GROUP: mask},
            "state": self.global_state(state),
            "metrics": {name: jnp.asarray(x, jnp.float32) for name, x in self.measure(state, timestep).items()},
        }

    def render(self, states: Sequence[PyTree]) -> list[np.ndarray]:
        """The pictures of Jumanji's own viewer."""
        with _offscreen():
            return [self._picture(state) for state in states]

    def draw(self, state: PyTree) -> None:
        """Draws a state, as NumPy arrays, on the current figure."""
        self._env.render(state)

    def _picture(self, state: PyTree) -> np.ndarray:
        self.draw(jax.tree.map(_to_host, state))
        figure = plt.gcf()
        canvas = figure.canvas
        assert isinstance(canvas, FigureCanvasAgg)
        canvas.draw()
        picture = np.asarray(canvas.buffer_rgba())[..., :3].copy()
        plt.close(figure)
        return picture


@contextlib.contextmanager
def _offscreen() -> Iterator[None]:
    """Draws figures without a window. In interactive mode, because Jumanji's viewers ask for a window otherwise."""
    backend = matplotlib.get_backend()
    plt.switch_backend("agg")
    try:
        with plt.rc_context({"figure.dpi": 50}), plt.ion():
            yield
    finally:
        with contextlib.suppress(ImportError):  # the backend in use may need a display
            plt.switch_backend(backend)


def _to_host(leaf: Any) -> Any:
    """NumPy, which the viewers index one cell at a time; keys have no NumPy form and are not drawn."""
    return leaf if jnp.issubdtype(jnp.result_type(leaf), jax.dtypes.prng_key) else np.asarray(leaf)


def windows(grid: Array, positions: Array, radius: int, outside: int) -> Array:
    """The cells of `grid` `[H, W]` around each position `[A, 2]`: `[A, 2 radius + 1, 2 radius + 1]`."""
    padded = jnp.pad(grid, radius, constant_values=outside)
    size = (2 * radius + 1, 2 * radius + 1)
    return jax.vmap(lambda position: jax.lax.dynamic_slice(padded, position, size))(positions)


def flatten(channels: Sequence[Array], *features: Array) -> Array:
    """Each agent's channels `[A, h, w]` and features `[A, F]` in one row."""
    rows = [channel.reshape(channel.shape[0], -1) for channel in (*channels, *features)]
    return jnp.concatenate([row.astype(jnp.float32) for row in rows], axis=-1)
