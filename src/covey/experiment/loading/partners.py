"""Who plays beside or against a team: partners that take some seats and do not learn.

A seat is one agent of a group (`partners.agents.1=…`) or a whole group (`partners.adversary=…`). It is taken by

    random        legal actions with equal probability
    reference     the task's own hand-written policy for that group, where it has one
    a directory   another run's group of the same name

or by a list of these, from which one is drawn for each episode. Different teams can then be scored beside the same
partners or against the same opponents (`covey evaluate RUN partners.adversary=random`), and can learn beside them
(`covey train … partners.agents.1=RUN`).

A run that learns beside another run copies that run's configuration and parameters into a small run directory:

    partners/SEAT-NUMBER/    configuration and parameters of one partner

So resuming and evaluating use the same partners, whatever happens to the other run.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from covey.algorithms.base import make_team
from covey.algorithms.random import make_random_group
from covey.algorithms.seats import Seat, SeatedActing, Seating, seat_partners
from covey.envs.base import Env, first_step, reference_policies
from covey.errors import CoveyError, UsageError, unknown_name
from covey.experiment.configuration.config import Config, from_dict, to_dict
from covey.experiment.configuration.partners import RANDOM, REFERENCE, ROTATE
from covey.experiment.loading.policy import Policy, load, read_policy
from covey.experiment.recording.checkpoint import Checkpoints, host_copy
from covey.experiment.recording.run_directory import PARTNERS, RunDirectory
from covey.experiment.running.build import build_algorithm, build_env, build_group
from covey.observations import describe_shape, dtypes, map_entries
from covey.types import Algorithm, Array, EnvSpec, GroupSpec, GroupStep, Key, PyTree, TimeStep


@dataclasses.dataclass(frozen=True, kw_only=True)
class SeatNames:
    """A seat and the names of the partners that may take it. `index=None`: the whole group."""

    group: str
    index: int | None
    sources: tuple[str, ...]

    @property
    def key(self) -> str:
        return self.group if self.index is None else f"{self.group}.{self.index}"


def parse_partners(partners: Mapping[str, Any], spec: EnvSpec) -> tuple[list[SeatNames], bool]:
    """The seats that `partners` names, and whether they rotate; raises UsageError where they do not fit the task.

    Keys are `GROUP`, `GROUP.INDEX` and `rotate`; values are a name or a list of names.
    """
    rotate = partners.get(ROTATE, False)
    if not isinstance(rotate, bool):
        raise UsageError(f"partners.{ROTATE} takes true or false, not {rotate!r}")
    seats = [_parse_seat(key, value, spec) for key, value in partners.items() if key != ROTATE]
    for group, part in spec.groups.items():
        taken = [seat.index for seat in seats if seat.group == group]
        if len(taken) != len(set(taken)) or (None in taken and len(taken) > 1):
            raise UsageError(f"partners: a seat of group '{group}' is taken twice")
        if len(taken) == part.num_agents and None not in taken:
            raise UsageError(f"partners take every agent of group '{group}'; use partners.{group}=… instead")
    if {seat.group for seat in seats if seat.index is None} == set(spec.groups):
        raise UsageError("partners take every group, so none of the run's own agents would play")
    if rotate and all(seat.index is None for seat in seats):
        raise UsageError(f"partners.{ROTATE}=true needs the seat of a single agent, as in partners.GROUP.1=random")
    return seats, rotate


def _parse_seat(key: str, value: Any, spec: EnvSpec) -> SeatNames:
    group, _, place = key.partition(".")
    if group not in spec.groups:
        raise unknown_name("group", group, list(spec.groups), see="partners")
    num_agents = spec.groups[group].num_agents
    if place and not (place.isdecimal() and int(place) < num_agents):
        raise UsageError(f"partners.{key}: the agents of group '{group}' are numbered 0 to {num_agents - 1}")
    sources = [value] if isinstance(value, str) else value
    if not isinstance(sources, Sequence) or not sources or not all(isinstance(source, str) for source in sources):
        raise UsageError(f"partners.{key} takes {RANDOM}, {REFERENCE}, a run directory or a list of these")
    return SeatNames(group=group, index=int(place) if place else None, sources=tuple(sources))


def seat_policy(policy: Policy, env: Env, partners: Mapping[str, Any], trust: bool = False) -> tuple[Algorithm, PyTree]:
    """The algorithm and the state with which `policy` plays in `env`, with `partners` in their seats.

    `trust` lets partners from run directories import their code."""
    groups = env.spec.groups
    names, rotate = parse_partners(partners, env.spec)
    whole = {seat.group for seat in names if seat.index is None}
    own = {name: name for name in groups if name not in whole}
    if len(own) == 1 and len(policy.env.spec.groups) == 1:  # a task that plays opponents itself has a group `agents`
        own = dict.fromkeys(own, next(iter(policy.env.spec.groups)))
    parts, learner, seats, states = {}, {}, [], []
    for name in names:
        made = [make_partner(env, name.group, source, trust) for source in name.sources]
        seats.append(Seat(group=name.group, index=name.index, partners=tuple(partner for partner, _ in made)))
        states.append(tuple(state for _, state in made))
    for group, trained_as in own.items():
        if trained_as in policy.env.spec.groups and trained_as not in policy.learner:
            raise UsageError(f"group '{group}' did not learn in this run: give partners.{group}=… to play it")
        parts[group], learner[group] = _trained_group(policy, env, group, trained_as)
    state = SeatedActing(own=learner, partners=tuple(states))
    return seat_partners(make_team(parts), seats, env.spec, rotate=rotate), state


def make_partner(env: Env, group: str, source: str, trust: bool = False) -> tuple[Algorithm, PyTree]:
    if source == RANDOM:
        return make_random_group(env.spec, group), ()
    if source == REFERENCE:
        return _make_reference(env, group), ()
    if not Path(source).is_dir():
        raise UsageError(f"partners.{group}={source}: give {RANDOM}, {REFERENCE} or a run directory")
    return _trained_group(load(source, trust=trust), env, group, group)


def _make_reference(env: Env, group: str) -> Algorithm:
    policies = reference_policies(env)
    if group not in policies:
        known = f"there is one for {', '.join(policies)}" if policies else "it has none"
        raise UsageError(f"partners.{group}={REFERENCE}: the task has no reference policy for this group; {known}")
    choose = jax.vmap(policies[group])

    def act(
        acting: PyTree, timestep: TimeStep, carry: PyTree, key: Key, explore: bool
    ) -> tuple[Array, dict[str, Array], PyTree]:
        return choose(timestep.groups[group].observation), {}, carry

    return Algorithm(init=lambda key: (), initial_carry=lambda num_envs: (), act=act, update=_never)


def _trained_group(policy: Policy, env: Env, group: str, trained_as: str) -> tuple[Algorithm, PyTree]:
    """One group of a trained team, in a task where its name is `group` and the number of agents may differ."""
    if trained_as not in policy.learner:
        raise unknown_name("group", trained_as, list(policy.learner), see="the run's task")
    if policy.env.spec.groups[trained_as] == env.spec.groups[group]:
        part = policy.algorithm.groups[trained_as]
    else:
        trained = policy.env.spec
        resized = dataclasses.replace(
            env.spec,
            groups=dict(trained.groups) | {trained_as: env.spec.groups[group]},
            teams=trained.teams,
            shared_rewards=trained.shared_rewards,
        )
        part = build_group(policy.config, resized, trained_as)
    others = {name: spec for name, spec in policy.env.spec.groups.items() if name != trained_as}

    def act(
        acting: PyTree, timestep: TimeStep, carry: PyTree, key: Key, explore: bool
    ) -> tuple[Array, dict[str, Array], PyTree]:
        # Only critics look at other groups, and acting needs no critic.
        absent = {name: _blank(spec, timestep.last.shape[0]) for name, spec in others.items()}
        seen = dataclasses.replace(timestep, groups=absent | {trained_as: timestep.groups[group]})
        return part.act(acting, seen, carry, key, explore)

    acting = part.acting(policy.learner[trained_as])
    partner = Algorithm(
        init=lambda key: jax.tree.map(jnp.zeros_like, acting),
        initial_carry=part.initial_carry,
        act=act,
        update=_never,
        sequence_length=part.sequence_length,
    )
    _check_fit(partner, acting, env, group, policy.env.spec.groups[trained_as])
    return partner, acting


def _blank(spec: GroupSpec, num_envs: int) -> GroupStep:
    """A step of a group that observes zeros."""
    observation = map_entries(
        lambda shape, dtype: jnp.zeros((num_envs, spec.num_agents, *shape), dtype), spec.observation_shape, dtypes(spec)
    )
    return jax.vmap(lambda seen: first_step({"": seen}).groups[""])(observation)


def _check_fit(partner: Algorithm, acting: PyTree, env: Env, group: str, trained: GroupSpec) -> None:
    """Raises UsageError unless the acting networks fit the group's observations and actions."""
    spec = env.spec.groups[group]
    if spec.action != trained.action:
        raise UsageError(f"group '{group}' acts by {spec.action} here, but by {trained.action} in the run's own task")

    def act(acting: PyTree, key: Key) -> Array:
        # From the spec and not from a reset, which only a compiled task can trace.
        flag = jnp.zeros(1, bool)
        groups = {name: _blank(part, 1) for name, part in env.spec.groups.items()}
        timestep = TimeStep(groups=groups, truncated=flag, last=flag, state=None, next_state=None, metrics={})
        action: Array = partner.act(acting, timestep, partner.initial_carry(1), key, True)[0]
        return action

    try:
        jax.eval_shape(act, acting, jax.random.key(0))
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"the networks of group '{group}' were trained for {trained.num_agents} agents that observe "
            f"{describe_shape(trained.observation_shape)}, and do not fit {spec.num_agents} that observe "
            f"{describe_shape(spec.observation_shape)} (with algorithm.agent_ids=false the number of agents does not "
            "change the size of observations, and critic_model=gnn or another model over agents takes any number)"
        ) from error


def _never(*_: Any) -> Any:
    raise NotImplementedError("a partner does not learn")


# --------------------------------------------------------------------------------------------------------- training


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingPartners:
    """The partners of a run that learns beside them.

    policies   those that come from a run, by the name of their copy: `agents.1-0`
    """

    seating: Seating
    policies: Mapping[str, Policy]

    @property
    def configs(self) -> list[Config]:
        """Their configurations, on which the compiled program depends too."""
        return [policy.config for policy in self.policies.values()]


def find_partners(config: Config, run: Path | None = None, trust: bool = False) -> TrainingPartners | None:
    """The partners that `config` names; None if it names none. Raises UsageError if one does not fit the task.

    Partners with a copy in the run directory `run` are read from there. `trust` lets them import their code."""
    if not config.partners:
        return None
    env = build_env(config)
    names, _ = parse_partners(config.partners, env.spec)
    policies = {}
    for name in names:
        for number, source in enumerate(name.sources):
            copy = copy_name(name.key, number)
            where = run / PARTNERS / copy if run is not None and has_copy(run, copy) else Path(source)
            if source not in (RANDOM, REFERENCE):
                policies[copy] = _read_partner(name.key, source, where, trust)
    return TrainingPartners(seating=_seat_all(config, env, policies), policies=policies)


def _seat_all(config: Config, env: Env, policies: Mapping[str, Policy]) -> Seating:
    """Seats the partners that `config` names. `policies` are those that come from a run, by the name of their copy."""
    names, rotate = parse_partners(config.partners, env.spec)
    seats, acting = [], []
    for name in names:
        made = []
        for number, source in enumerate(name.sources):
            policy = policies.get(copy_name(name.key, number))
            made.append(
                make_partner(env, name.group, source)
                if policy is None
                else _trained_group(policy, env, name.group, name.group)
            )
        seats.append(Seat(group=name.group, index=name.index, partners=tuple(partner for partner, _ in made)))
        acting.append(tuple(jax.tree.map(np.asarray, state) for _, state in made))
    sent = {
        copy: (to_dict(policy.config), jax.tree.map(np.asarray, policy.learner)) for copy, policy in policies.items()
    }
    elsewhere = functools.partial(_seating_elsewhere, to_dict(config), sent)
    return Seating(seats=tuple(seats), rotate=rotate, acting=tuple(acting), elsewhere=elsewhere)


def _seating_elsewhere(values: Mapping[str, Any], sent: Mapping[str, tuple[Mapping[str, Any], PyTree]]) -> Seating:
    """`_seat_all` in another process, from plain configurations and the policies' learned parameters."""
    config = from_dict(values)
    policies = {}
    for copy, (own, learner) in sent.items():
        trained = from_dict(own)
        env = build_env(trained)
        policies[copy] = Policy(trained, env, build_algorithm(trained, env), learner)
    return _seat_all(config, build_env(config), policies)


def _read_partner(key: str, source: str, where: Path, trust: bool) -> Policy:
    if not where.is_dir():
        raise UsageError(f"partners.{key}={source}: give {RANDOM}, {REFERENCE} or a run directory")
    try:
        return read_policy(where, trust=trust)
    except CoveyError as error:  # bad input, whatever the reason: nothing has started
        raise UsageError(f"partners.{key}={source}: {error}") from error


def copy_name(key: str, number: int) -> str:
    return f"{key}-{number}"


def has_copy(run: Path, copy: str) -> bool:
    """Whether a run directory has a complete copy of a partner."""
    return bool(Checkpoints(run / PARTNERS / copy / "checkpoints").iterations())


def keep_partners(partners: TrainingPartners | None, run: Path) -> None:
    """Copies partners from other runs into a run directory, unless they are there already."""
    for copy, policy in (partners.policies if partners else {}).items():
        if has_copy(run, copy):
            continue
        folder = run / PARTNERS / copy
        if not (folder / "config.yaml").exists():
            RunDirectory.create(folder, to_dict(policy.config), {"frames": policy.frames})
        checkpoints = Checkpoints(folder / "checkpoints")
        checkpoints.save(0, host_copy({"learner": policy.learner}), {"frames": policy.frames})
        checkpoints.wait()


def partners_of_run(config: Config, run: Path) -> dict[str, Any]:
    """The partners that a run learned beside. A partner with a copy is given by the path of that copy."""
    result: dict[str, Any] = {}
    for key, value in config.partners.items():
        if key == ROTATE:
            result[key] = value
            continue
        sources = [value] if isinstance(value, str) else value
        result[key] = [
            str(run / PARTNERS / copy_name(key, number)) if has_copy(run, copy_name(key, number)) else source
            for number, source in enumerate(sources)
        ]
    return result
