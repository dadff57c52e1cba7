"""A trained team, given back: `policy = covey.load(run_dir)`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from covey.envs.base import Env, first_step
from covey.envs.wrappers import append_agent_ids
from covey.errors import CoveyError
from covey.experiment.build import build_algorithm, build_env, groups_with_ids
from covey.experiment.checkpoint import Checkpoints
from covey.experiment.config import Config, from_dict
from covey.experiment.devices import use_compilation_cache
from covey.experiment.run_directory import RunDirectory, run_directories
from covey.types import Algorithm, Array, Key, PyTree, TimeStep

ByGroup = dict[str, Any]


class Policy:
    """A team's parameters and how to act with them.

    Observations are as the task gives them, `[A, …]` or, for many environments at once, `[B, A, …]`: one array for a
    task with one group, else a dict by group. Masks likewise, or None. Actions come back in the same form.
    """

    def __init__(self, config: Config, env: Env, algorithm: Algorithm, learner: PyTree):
        self.config = config
        self.env = env
        self.algorithm = algorithm
        self.learner = learner
        self._groups = env.spec.groups
        self._act = jax.jit(algorithm.act, static_argnums=4)

    @property
    def parameters(self) -> dict[str, Any]:
        """Every group's parameters as a plain nested dict of NumPy arrays."""
        return jax.tree.map(np.asarray, {group: part.params for group, part in self.learner.items()})

    def initial_carry(self, num_envs: int = 1) -> PyTree:
        """The carry to begin an episode with; empty for networks without memory."""
        return self.algorithm.initial_carry(num_envs)

    def act(
        self,
        observation: Any,
        mask: Any = None,
        carry: PyTree = None,
        *,
        key: Key | None = None,
        deterministic: bool | None = None,
    ) -> tuple[Any, PyTree]:
        """The team's actions and the carry for the next step.

        Without a key actions are greedy; with one they are sampled, unless `deterministic` says otherwise.
        """
        observations, masks, single = self._batched(observation, mask)
        num_envs = next(iter(observations.values())).shape[0]
        timestep = self._timestep(observations, masks)
        carry = self.initial_carry(num_envs) if carry is None else carry
        greedy = key is None if deterministic is None else deterministic
        actions, _, carry = self._act(
            self.learner, timestep, carry, jax.random.key(0) if key is None else key, not greedy
        )
        if single:
            actions = jax.tree.map(lambda action: action[0], actions)
        return (actions if isinstance(observation, Mapping) else actions[self._only_group()]), carry

    def activations(self, observation: Any, mask: Any = None, carry: PyTree = None) -> ByGroup:
        """The output of every module of every network on one observation, by its path: for those who study them."""
        from covey.networks.network import captured_activations

        observations, masks, _ = self._batched(observation, mask)
        num_envs = next(iter(observations.values())).shape[0]
        carry = self.initial_carry(num_envs) if carry is None else carry
        with jax.disable_jit(), captured_activations() as captured:  # else a memory's scan would hide its values
            self.algorithm.act(self.learner, self._timestep(observations, masks), carry, jax.random.key(0), False)
        return captured

    def _batched(self, observation: Any, mask: Any) -> tuple[dict[str, Array], dict[str, Array] | None, bool]:
        """Observations and masks by group, `[B, A, …]`; and whether they were of a single environment, `[A, …]`."""
        observations, masks = self._by_group(observation), None if mask is None else self._by_group(mask)
        group, array = next(iter(observations.items()))
        single = array.ndim == 1 + len(self._groups[group].observation_shape)
        if single:
            observations, masks = jax.tree.map(lambda array: array[None], (observations, masks))
        return observations, masks, single

    def _by_group(self, value: Any) -> dict[str, Array]:
        values = value if isinstance(value, Mapping) else {self._only_group(): value}
        return {group: jnp.asarray(array) for group, array in values.items()}

    def _only_group(self) -> str:
        if len(self._groups) > 1:
            raise CoveyError(f"this team has the groups {', '.join(self._groups)}: pass a dict by group")
        return next(iter(self._groups))

    def _timestep(self, observations: dict[str, Array], masks: dict[str, Array] | None) -> TimeStep:
        for group in groups_with_ids(self.config, self.env):
            observations = observations | {group: jax.vmap(append_agent_ids)(observations[group])}
        timestep = jax.vmap(lambda o, m: first_step(o, action_masks=m))(observations, masks)
        if self.env.spec.state_shape is None:
            return timestep
        # Only critics look at the global state, and nobody asks them here.
        state = jnp.zeros((timestep.last.shape[0], *self.env.spec.state_shape))
        return dataclasses.replace(timestep, state=state, next_state=state)


def load(path: str | Path, *, parameters: str = "final") -> Policy:
    """The team that a run directory holds: its `final` parameters, or the `best` that an evaluation saw."""
    use_compilation_cache()
    directories = run_directories(path)
    if len(directories) > 1:
        raise CoveyError(f"{path} holds {len(directories)} seeds; load one of them, e.g. {directories[0]}")
    run = RunDirectory.open(directories[0])
    config = from_dict(run.config)
    env = build_env(config)
    algorithm = build_algorithm(config, env)
    part = {"final": "learner", "best": "best"}[parameters]
    template = jax.eval_shape(algorithm.init, jax.random.key(0))
    restored = Checkpoints(run.checkpoints).restore({part: template})
    if restored is None:
        raise CoveyError(f"{run.path} has no checkpoint yet")
    learner = jax.tree.map(jnp.asarray, restored.tree[part])
    return Policy(config, env, algorithm, learner)
