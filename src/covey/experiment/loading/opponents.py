"""Who plays the other side: a trained team in a task where some groups act by fixed opponents instead.

Two groups that learn against each other say little about either. Here a group's place is taken by

    random        legal actions with equal probability
    reference     the task's own hand-written policy for that group, where it has one
    a directory   another run's group of the same name

so that a team is scored against the same opponents as any other (`covey evaluate RUN opponents.adversary=random`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from covey.algorithms.base import make_team
from covey.algorithms.random import make_random_group
from covey.envs.base import Env, first_step
from covey.errors import UsageError, unknown_name
from covey.experiment.loading.policy import Policy, load
from covey.experiment.running.build import build_group
from covey.types import Algorithm, Array, GroupSpec, GroupStep, Key, PyTree, TimeStep

RANDOM, REFERENCE = "random", "reference"


def face(policy: Policy, env: Env, opponents: Mapping[str, str], trust: bool = False) -> tuple[Algorithm, PyTree]:
    """The algorithm and learner that play in `env`: `policy`, except in the groups of `opponents`.

    `trust` lets opponents from run directories import their code."""
    groups = env.spec.groups
    for name in opponents:
        if name not in groups:
            raise unknown_name("group", name, list(groups), see="opponents")
    own = {name: name for name in groups if name not in opponents}
    if not own:
        raise UsageError("opponents: every group has one, so nothing of the run would play")
    if len(own) == 1 and len(policy.env.spec.groups) == 1:  # a task with opponents of its own calls its group `agents`
        own = dict.fromkeys(own, next(iter(policy.env.spec.groups)))
    parts, learner = {}, {}
    for name, source in opponents.items():
        parts[name], learner[name] = _make_opponent(env, name, source, trust)
    for name, trained_as in own.items():
        parts[name], learner[name] = _member(policy, env, name, trained_as)
    return make_team({name: parts[name] for name in groups}), {name: learner[name] for name in groups}


def _make_opponent(env: Env, group: str, source: str, trust: bool = False) -> tuple[Algorithm, PyTree]:
    if source == RANDOM:
        return make_random_group(env.spec, group), ()
    if source == REFERENCE:
        return _make_reference(env, group), ()
    if not Path(source).is_dir():
        raise UsageError(f"opponents.{group}={source}: give {RANDOM}, {REFERENCE} or a run directory")
    return _member(load(source, trust=trust), env, group, group)


def _make_reference(env: Any, group: str) -> Algorithm:
    innermost = env
    while not hasattr(innermost, "reference_policies") and hasattr(innermost, "env"):
        innermost = innermost.env
    policies = getattr(innermost, "reference_policies", {})
    if group not in policies:
        known = f"there is one for {', '.join(policies)}" if policies else "it has none"
        raise UsageError(f"opponents.{group}={REFERENCE}: the task has no reference policy for this group; {known}")
    choose = jax.vmap(policies[group])

    def act(acting: PyTree, timestep: TimeStep, carry: PyTree, key: Key, explore: bool) -> tuple[Array, dict, PyTree]:
        return choose(timestep.groups[group].observation), {}, carry

    return Algorithm(init=lambda key: (), initial_carry=lambda num_envs: (), act=act, update=_never)


def _member(policy: Policy, env: Env, group: str, trained_as: str) -> tuple[Algorithm, PyTree]:
    """One group of a trained team, in a task where it is called `group` and may have more agents or fewer."""
    if trained_as not in policy.learner:
        raise unknown_name("group", trained_as, list(policy.learner), see="the run's task")
    learner = policy.learner[trained_as]
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

    def act(acting: PyTree, timestep: TimeStep, carry: PyTree, key: Key, explore: bool) -> tuple[Array, dict, PyTree]:
        # Only critics look at other groups, and nobody asks them here.
        absent = {name: _blank(spec, timestep.last.shape[0]) for name, spec in others.items()}
        seen = dataclasses.replace(timestep, groups=absent | {trained_as: timestep.groups[group]})
        return part.act(acting, seen, carry, key, explore)

    member = dataclasses.replace(part, act=act, update=_never)
    _check_fit(member, learner, env, group, policy.env.spec.groups[trained_as])
    return member, learner


def _blank(spec: GroupSpec, num_envs: int) -> GroupStep:
    """What a group could have seen, as zeros."""
    observation = jnp.zeros((num_envs, spec.num_agents, *spec.observation_shape), spec.observation_dtype)
    return jax.vmap(lambda seen: first_step({"": seen}).groups[""])(observation)


def _check_fit(member: Algorithm, learner: PyTree, env: Env, group: str, trained: GroupSpec) -> None:
    """Raises unless the networks that act have parameters for what there is to see and to do."""
    spec = env.spec.groups[group]
    if spec.action != trained.action:
        raise UsageError(f"group '{group}' acts by {spec.action}, and in the run's own task by {trained.action}")

    def act(learner: PyTree, key: Key) -> Array:
        _, timestep = jax.vmap(env.reset)(key[None])
        return member.act(member.acting(learner), timestep, member.initial_carry(1), key, True)[0]

    try:
        jax.eval_shape(act, learner, jax.random.key(0))
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"the networks of group '{group}' were trained for {trained.num_agents} agents that observe "
            f"{list(trained.observation_shape)}, and do not fit {spec.num_agents} that observe "
            f"{list(spec.observation_shape)} (algorithm.agent_ids=false makes observations of one size, and a "
            "centralised critic takes any number of agents with a model over them, such as critic_model=gnn)"
        ) from error


def _never(*_: Any) -> Any:
    raise NotImplementedError("nobody learns in an evaluation")
