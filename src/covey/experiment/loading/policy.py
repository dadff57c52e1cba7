"""A trained team, loaded: `policy = covey.load(run_dir)`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from covey.envs.base import Env, first_step
from covey.envs.check import mask_width
from covey.envs.wrappers import append_agent_ids, without_agent_ids
from covey.errors import CoveyError, UsageError
from covey.experiment.configuration.config import Config
from covey.experiment.loading.player import PettingZooPlayer
from covey.experiment.recording.checkpoint import Checkpoints
from covey.experiment.recording.lease import living_holder
from covey.experiment.recording.run_directory import RunDirectory, run_directories
from covey.experiment.running.build import build_algorithm, build_env, groups_with_ids
from covey.experiment.running.devices import use_compilation_cache
from covey.observations import map_entries
from covey.types import Algorithm, Array, GroupSpec, Key, Observation, ObservationShape, PyTree, TimeStep

ByGroup = dict[str, Any]


class Policy:
    """A team's parameters and how to act with them.

    Observations are as the task gives them, `[A, …]` or, for many environments at once, `[B, A, …]`: one array for a
    task with one group, else a dict by group. Where agents observe a dictionary of arrays, it takes the place of the
    array. Masks likewise, or None. Actions come back in the same form.
    """

    def __init__(self, config: Config, env: Env, algorithm: Algorithm, learner: PyTree, frames: int | None = None):
        """`frames`: how long the parameters were trained, where that is known."""
        self.config = config
        self.env = env
        self.algorithm = algorithm
        self.learner = learner
        self.frames = frames
        self._groups = {group: env.spec.groups[group] for group in algorithm.groups}
        self._acting = algorithm.acting(learner)
        self._act = jax.jit(self._choose, static_argnums=5)

    def __repr__(self) -> str:
        frames = "" if self.frames is None else f", {self.frames:,} frames"
        return f"Policy({self.config.algorithm.label} on {self.config.task.name}, {self.config.model.label}{frames})"

    @property
    def parameters(self) -> dict[str, Any]:
        """Every group's parameters as a plain nested dict of NumPy arrays."""
        parameters: dict[str, Any] = jax.tree.map(
            np.asarray, {group: part.params for group, part in self.learner.items()}
        )
        return parameters

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
        num_envs = jax.tree.leaves(observations)[0].shape[0]
        carry = self.initial_carry(num_envs) if carry is None else carry
        greedy = key is None if deterministic is None else deterministic
        key = jax.random.key(0) if key is None else key
        actions, carry = self._act(self._acting, observations, masks, carry, key, not greedy)
        if single:
            actions = jax.tree.map(lambda action: action[0], actions)
        return (actions if self._is_by_group(observation) else actions[self._only_group()]), carry

    def for_pettingzoo(self, env: Any, *, seed: int | None = None) -> PettingZooPlayer:
        """The team in a loop over `env`, a PettingZoo parallel environment of its task (`covey.to_pettingzoo`).

        Without a seed actions are greedy; with one they are sampled.
        """
        return PettingZooPlayer(self, env, seed=seed)

    def activations(self, observation: Any, mask: Any = None, carry: PyTree = None) -> ByGroup:
        """The output of every module of every network on one observation, by its path."""
        from covey.networks.network import captured_activations

        observations, masks, _ = self._batched(observation, mask)
        num_envs = jax.tree.leaves(observations)[0].shape[0]
        carry = self.initial_carry(num_envs) if carry is None else carry
        with jax.disable_jit(), captured_activations() as captured:  # a compiled scan over time would hide values
            self.algorithm.act(self._acting, self._timestep(observations, masks), carry, jax.random.key(0), False)
        return captured

    def _choose(
        self,
        acting: PyTree,
        observations: dict[str, Observation],
        masks: ByGroup | None,
        carry: PyTree,
        key: Key,
        explore: bool,
    ) -> tuple[ByGroup, PyTree]:
        """What `act` computes, to be compiled as one program."""
        actions, _, carry = self.algorithm.act(acting, self._timestep(observations, masks), carry, key, explore)
        return actions, carry

    def _batched(self, observation: Any, mask: Any) -> tuple[dict[str, Observation], ByGroup | None, bool]:
        """Observations and masks by group, `[B, A, …]`; and whether they were of a single environment, `[A, …]`."""
        observations = jax.tree.map(jnp.asarray, self._by_group(observation))
        shown = {group: self._shown_shape(group) for group in self._groups}
        num_envs = check_arrays("observation", by_entry(observations), by_entry(shown))
        masks = None
        if mask is not None:
            by_group = mask if isinstance(mask, Mapping) else {self._only_group(): mask}
            masks = {group: jnp.asarray(array) for group, array in by_group.items()}
        if masks is not None:
            widths = {group: mask_width(spec.action) for group, spec in self._groups.items()}
            wanted = {group: (self._groups[group].num_agents, width) for group, width in widths.items() if width}
            looked_at = {group: array for group, array in masks.items() if widths.get(group, 0) is not None}
            masked_envs = check_arrays("mask", looked_at, wanted)
            if wanted and masked_envs != num_envs:
                raise UsageError(f"observation is {_of_envs(num_envs)}, and mask {_of_envs(masked_envs)}")
        single = num_envs is None
        if single:
            observations, masks = jax.tree.map(lambda array: array[None], (observations, masks))
        return observations, masks, single

    def shown_spec(self, group: str) -> GroupSpec:
        """The spec of what the task shows a group, without the ids that covey appends to it."""
        spec = self._groups[group]
        return without_agent_ids(spec) if group in groups_with_ids(self.config, self.env) else spec

    def _shown_shape(self, group: str) -> ObservationShape:
        spec = self.shown_spec(group)
        return map_entries(lambda shape: (spec.num_agents, *shape), spec.observation_shape)

    def _is_by_group(self, observation: Any) -> bool:
        """Whether `observation` is a dict by group, not a dictionary observed by the agents of the only group."""
        if not isinstance(observation, Mapping):
            return False
        if len(self._groups) > 1:
            return True
        (group, spec), *_ = self._groups.items()
        sees_dictionary = isinstance(spec.observation_shape, Mapping)
        return not sees_dictionary or isinstance(observation.get(group), Mapping)

    def _by_group(self, observation: Any) -> ByGroup:
        return dict(observation) if self._is_by_group(observation) else {self._only_group(): observation}

    def _only_group(self) -> str:
        if len(self._groups) > 1:
            raise CoveyError(f"this team has the groups {', '.join(self._groups)}: pass a dict by group")
        return next(iter(self._groups))

    def _timestep(self, observations: dict[str, Observation], masks: dict[str, Array] | None) -> TimeStep:
        for group in (group for group in groups_with_ids(self.config, self.env) if group in self._groups):
            observations = observations | {group: jax.vmap(append_agent_ids)(observations[group])}
        timestep = jax.vmap(lambda o, m: first_step(o, action_masks=m))(observations, masks)
        if self.env.spec.state_shape is None:
            return timestep
        # Only critics look at the global state, and acting needs no critic.
        num_envs = timestep.last.shape[0]
        state = map_entries(lambda shape: jnp.zeros((num_envs, *shape)), self.env.spec.state_shape)
        return dataclasses.replace(timestep, state=state, next_state=state)


def by_entry(groups: Mapping[str, Any]) -> dict[str, Any]:
    """Values or shapes of each group, those in a dictionary under names of their own: `agents.image`."""
    found: dict[str, Any] = {}
    for group, value in groups.items():
        entries = value if isinstance(value, Mapping) else {"": value}
        found |= {f"{group}.{name}" if name else group: own for name, own in entries.items()}
    return found


def check_arrays(what: str, arrays: Mapping[str, Array], wanted: Mapping[str, tuple[int, ...]]) -> int | None:
    """The number of environments that `arrays` by group are for: None for `[A, …]` of one, B for `[B, A, …]`.

    Raises UsageError unless every group has an array of its `wanted` shape `[A, …]`.
    """
    for group in wanted.keys() ^ arrays.keys():
        has = "lacks" if group in wanted else "has"
        raise UsageError(f"{what} {has} group '{group}'; the team's groups are {', '.join(wanted)}")
    numbers: dict[str, int | None] = {}
    for group, array in arrays.items():
        if array.shape not in (wanted[group], (*array.shape[:1], *wanted[group])):
            one = ", ".join(map(str, wanted[group]))
            raise UsageError(
                f"{what} of group '{group}' is {list(array.shape)}; it must be [{one}], or [B, {one}] of B environments"
            )
        numbers[group] = None if array.shape == wanted[group] else array.shape[0]
    if len(set(numbers.values())) > 1:
        found = ", ".join(f"{group} {_of_envs(number)}" for group, number in numbers.items())
        raise UsageError(f"groups of {what} differ in their number of environments: {found}")
    return next(iter(numbers.values()), None)


def _of_envs(number: int | None) -> str:
    return "of a single environment" if number is None else f"of {number} environments"


def learner_template(algorithm: Algorithm) -> PyTree:
    """The shapes of a learner, with values only for its coefficients, which earlier versions did not store."""
    shapes = jax.eval_shape(algorithm.init, jax.random.key(0))

    @jax.jit
    def coefficients(key: Key) -> dict[str, Any]:
        return {group: part.coefficients for group, part in algorithm.init(key).items() if _has_coefficients(part)}

    values = coefficients(jax.random.key(0))
    return shapes | {group: dataclasses.replace(shapes[group], coefficients=own) for group, own in values.items()}


def _has_coefficients(state: PyTree) -> bool:
    return dataclasses.is_dataclass(state) and any(field.name == "coefficients" for field in dataclasses.fields(state))


def load(path: str | Path, *, parameters: str = "final", trust: bool = False) -> Policy:
    """The team in a run directory, with its `final` parameters or those of its `best` evaluation.

    A run with tasks, models or algorithms of its own imports their code. If this user did not make that run, it is
    refused unless `trust` is True. Set it only for code that you know.
    """
    use_compilation_cache()
    return read_policy(path, parameters=parameters, trust=trust)


def read_policy(path: str | Path, *, parameters: str = "final", trust: bool = False) -> Policy:
    """`load`, without changing the settings of JAX's cache of compiled programs."""
    directories = run_directories(path)
    if len(directories) > 1:
        raise CoveyError(f"{path} holds {len(directories)} seeds; load one of them, e.g. {directories[0]}")
    run = RunDirectory.open(directories[0])
    config = run.load_config(trust=trust)
    env = build_env(config)
    algorithm = build_algorithm(config, env)
    part = {"final": "learner", "best": "best"}[parameters]
    template = learner_template(algorithm)
    restored = Checkpoints(run.checkpoints).restore({part: template})
    if restored is None:
        holder = living_holder(run.path)
        raise CoveyError(f"{run.path} has no checkpoint yet{f'; it is being trained by {holder}' if holder else ''}")
    learner = jax.tree.map(jnp.asarray, restored.tree[part])
    return Policy(config, env, algorithm, learner, restored.iteration * config.experiment.frames_per_iteration)
