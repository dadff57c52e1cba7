"""What an algorithm receives besides its own configuration, and how the groups' algorithms become the team's.

An algorithm is written for one group (`make_x(config, spec, group, context)`); `make_team` joins those of a task's
groups. So every group has its own parameters, optimiser and batch, and groups may use different algorithms.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import optax

from covey import registry
from covey.networks.network import Model, make_model
from covey.ops.devices import mean_over_devices
from covey.ops.operations import one_operation
from covey.ops.seeds import any_seed
from covey.registry import ActionKind, Configuration
from covey.types import (
    ActionSpec,
    Algorithm,
    Array,
    Batch,
    Continuous,
    Discrete,
    EnvSpec,
    JointLearning,
    Key,
    MultiDiscrete,
    PyTree,
    TimeStep,
    Transition,
)

State = TypeVar("State", bound=Any)
Result = TypeVar("Result", bound=PyTree)
LossHook = Callable[[str, PyTree, PyTree], tuple[Array, dict[str, Array]]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class AlgorithmConfig(Configuration):
    """What covey reads from every algorithm's configuration. An algorithm's dataclass inherits from this one, and
    overrides a default that does not fit with a field or a property of the same name."""

    @property
    def agent_ids(self) -> bool:
        """Whether observations come with a one-hot id of the agent."""
        return False

    @property
    def sequence_length(self) -> int | None:
        """Steps for which a memory is unrolled while learning; None: the whole rollout."""
        return None

    def check(self, experiment: Any) -> None:
        """Raises ValueError if this does not fit `experiment`, the `CollectingConfig` of a loop that collects."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Hooks:
    """A user's own pure functions inside the compiled step.

    batch(group, transitions) -> transitions            before the update, e.g. to add an intrinsic reward; or
                              -> (transitions, metrics) to log something about it
    loss(group, params, minibatch) -> (loss, metrics)   added to the algorithm's own loss
    metrics(metrics) -> metrics                         of the whole iteration, before they leave the device
    """

    batch: Callable[[str, Transition], Transition | tuple[Transition, dict[str, Array]]] | None = None
    loss: LossHook | None = None
    metrics: Callable[[dict[str, Array]], dict[str, Array]] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Context:
    """What an algorithm shares with the rest of the run.

    `device_axis` names the axis over which gradients and statistics are averaged, if there are several devices.
    `same_algorithm` lists the groups of the task that use this algorithm; None: all of them.
    """

    model: Model
    critic_model: Model
    hooks: Hooks = Hooks()
    device_axis: str | None = None
    same_algorithm: tuple[str, ...] | None = None


def make_optimiser(config: Any) -> optax.GradientTransformation:
    """Adam without its step size, after clipping gradients by their norm: fields `max_grad_norm` and `adam_eps`."""
    adam = optax.chain(optax.clip_by_global_norm(config.max_grad_norm), optax.scale_by_adam(eps=config.adam_eps))
    return optax.GradientTransformation(adam.init, one_operation(adam.update))


def init_coefficients(config: Any, *names: str) -> dict[str, Array]:
    """The named fields of a configuration as numbers in the learner's state.

    Functions read them from there, so that schedules can scale them, and callbacks and populations can set them while
    training runs. Fields that switch code on or off, or that set shapes, are in the configuration; those of the latter
    that the state does not depend on may change between chunks (`fields.FieldRole.changeable`).
    """
    return {name: jnp.float32(getattr(config, name)) for name in names}


def adam_step(
    optimiser: optax.GradientTransformation, params: PyTree, optimiser_state: PyTree, grads: PyTree, lr: Array
) -> tuple[PyTree, PyTree]:
    """Parameters and the optimiser's state after one step: θ − lr · Adam(g)."""
    steps, optimiser_state = optimiser.update(grads, optimiser_state)
    return jax.tree.map(lambda p, step: p - lr * step, params, steps), optimiser_state


def descend(optimiser: optax.GradientTransformation, state: State, grads: Mapping[str, PyTree], lr: Array) -> State:
    """A learner's state after one optimiser step on each of the `params` that `grads` names.

    Each has its own optimiser state, so that none scales the gradients of another.
    """
    stepped = {
        name: adam_step(optimiser, state.params[name], state.optimiser[name], grad, lr) for name, grad in grads.items()
    }
    return dataclasses.replace(
        state,
        params=state.params | {name: params for name, (params, _) in stepped.items()},
        optimiser=state.optimiser | {name: own for name, (_, own) in stepped.items()},
    )


def mean_over_living(tree: PyTree, alive: Array, axis: str | None) -> PyTree:
    """Rescales per-device means (dead agents count as zero) to means over living agents on all devices.

    Gradients, losses and whatever else an update needs from other devices travel together: a small update takes
    hardly longer than one exchange between devices.
    """
    share = jnp.mean(alive.astype(jnp.float32))
    tree, share = mean_over_devices((tree, share), axis)
    return jax.tree.map(lambda x: x / jnp.maximum(share, 1e-8), tree)


def every_n_updates(
    updates: Array, n: int, compute: Callable[[], Result], otherwise: Callable[[], Result] | None = None
) -> Result:
    """The result of `compute` in every n-th update. Other updates skip it and return that of `otherwise`, or zeros."""
    if n == 1:
        return compute()

    def nothing() -> Result:
        zeros: Result = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(compute))
        return zeros

    result: Result = jax.lax.cond(any_seed(updates % n == 0), compute, otherwise or nothing)
    return result


def add_users_loss(grads: PyTree, context: Context, group: str, params: PyTree, batch: Any) -> tuple[PyTree, PyTree]:
    """`grads`, already means over all devices, plus those of the user's own loss, if there is one; and its metrics."""
    if context.hooks.loss is None:
        return grads, {}
    own, metrics = jax.grad(lambda params: context.hooks.loss(group, params, batch), has_aux=True)(params)  # type: ignore[misc]
    own, metrics = mean_over_devices((own, metrics), context.device_axis)
    return jax.tree.map(jnp.add, grads, own), metrics


MakeAlgorithm = Callable[[Any, EnvSpec, str, Context], Algorithm]


def make_algorithm(
    name: str, spec: EnvSpec, *, model: Model | None = None, critic_model: Model | None = None, **fields: Any
) -> Algorithm:
    """The registered algorithm `name` for a task, e.g. `make_algorithm("mappo", env.spec, lr=3e-4)`.

    `model` comes from `make_model`, and is an MLP by default. The critic's is the same unless given.
    """
    entry = registry.algorithms[name]
    config = registry.build_config(entry.defaults(), fields, "algorithm")
    model = model or make_model("mlp", **entry.capabilities.model_defaults)
    context = Context(model=model, critic_model=critic_model or model)
    return make_team({group: make_group(name, config, spec, group, context) for group in spec.groups})


def make_group(name: str, config: Any, spec: EnvSpec, group: str, context: Context) -> Algorithm:
    """The registered algorithm `name` for one group of a task. Raises ValueError for actions or a memory that the
    algorithm cannot learn with."""
    entry = registry.algorithms[name]
    _check_actions(name, entry.capabilities, spec.groups[group].action, group)
    make: MakeAlgorithm = entry.make_function()
    algorithm = make(config, spec, group, context)
    if not entry.capabilities.memory and jax.tree.leaves(jax.eval_shape(lambda: algorithm.initial_carry(1))):
        raise ValueError(f"{name} cannot learn with memory; use a model that has none, such as model=mlp")
    return algorithm


def _check_actions(name: str, capabilities: registry.Capabilities, action: ActionSpec, group: str) -> None:
    kinds = {Discrete: ActionKind.discrete, MultiDiscrete: ActionKind.multi_discrete, Continuous: ActionKind.continuous}
    kind = kinds[type(action)]
    if kind in capabilities.actions:
        return
    hint = ""
    if ActionKind.continuous in (kind, *capabilities.actions) and kind is not ActionKind.multi_discrete:
        hint = f" (vmas tasks: task.continuous_actions={str(kind is not ActionKind.continuous).lower()})"
    needed = " or ".join(supported.value for supported in capabilities.actions)
    raise ValueError(f"{name} needs {needed}, but group '{group}' has {kind.value}{hint}")


def make_team(parts: Mapping[str, Algorithm], hooks: Hooks = Hooks()) -> Algorithm:
    """Joins one algorithm per group into the team's: states, carries, actions and extras become dicts by group.

    Each group's update receives all groups' transitions, but only its own group's state. Of other groups' policies it
    receives only what they would do next. All groups learn from the others as they were before the update.
    """
    check_parts_fit(parts)

    def init(key: Key) -> PyTree:
        keys = jax.random.split(key, len(parts))
        return {group: part.init(k) for (group, part), k in zip(parts.items(), keys, strict=True)}

    def acting(state: PyTree) -> PyTree:
        return {group: part.acting(state[group]) for group, part in parts.items()}

    def initial_carry(num_envs: int) -> PyTree:
        return {group: part.initial_carry(num_envs) for group, part in parts.items()}

    def act(
        acting: PyTree, timestep: TimeStep, carry: PyTree, key: Key, explore: bool
    ) -> tuple[PyTree, PyTree, PyTree]:
        actions, extras, carries = {}, {}, {}
        for (group, part), k in zip(parts.items(), jax.random.split(key, len(parts)), strict=True):
            actions[group], extras[group], carries[group] = part.act(acting[group], timestep, carry[group], k, explore)
        return actions, extras, carries

    def update(state: PyTree, batch: Batch, key: Key, progress: Array) -> tuple[PyTree, dict[str, Array], PyTree]:
        states: dict[str, PyTree] = {}
        priorities: dict[str, PyTree] = {}
        found: dict[str, dict[str, Array]] = {}
        hooked = {group: _hooked(hooks, group, batch.transitions[group]) for group in parts}
        batch = dataclasses.replace(batch, transitions={group: steps for group, (steps, _) in hooked.items()})
        keys = dict(zip(parts, jax.random.split(key, len(parts)), strict=True))
        for group, part in parts.items():
            if group in states:  # already updated together with an earlier group
                continue
            own = batch_of(group, parts, state, batch, keys)
            if part.joint is None:
                states[group], found[group], priorities[group] = part.update(state[group], own, keys[group], progress)
                continue
            together = part.joint.groups
            bundles = {name: parts[name].joint.bundle for name in together}  # type: ignore[union-attr]
            before = {name: state[name] for name in together}
            new, metrics, td_errors = part.joint.update(bundles, before, own, keys[group], progress)
            states, found, priorities = states | new, found | metrics, priorities | td_errors
        by_name = {
            f"{group}/{name}": value for group in parts for name, value in (found[group] | hooked[group][1]).items()
        }
        ordered = {group: states[group] for group in parts}
        return ordered, by_name, {group: priorities[group] for group in parts}

    return Algorithm(
        init=init,
        acting=acting,
        initial_carry=initial_carry,
        act=act,
        update=update,
        sequence_length=_common_sequence_length([part.sequence_length for part in parts.values()]),
        groups=parts,
    )


def check_parts_fit(parts: Mapping[str, Algorithm]) -> None:
    """Raises ValueError if groups that need each other to learn do not fit together."""
    for group, part in parts.items():
        for other in part.rates_actions_of:
            if parts[other].next_actions is None:
                raise ValueError(
                    f"the critic of group '{group}' rates the actions of group '{other}', whose algorithm cannot say "
                    "what it would do next; use algorithm.scope=group, or another algorithm"
                )
            if _successors_read(parts[other]) != _successors_read(part):
                raise ValueError(
                    f"the critic of group '{group}' rates the actions of group '{other}': memory, n_step, "
                    "sequence_length and burn_in must be the same for both; or use algorithm.scope=group"
                )
        if part.joint is not None:
            _check_joint(part.joint, parts)


def _check_joint(joint: JointLearning, parts: Mapping[str, Algorithm]) -> None:
    together = [parts[name].joint for name in joint.groups]
    lengths = {_successors_read(parts[name]) for name in joint.groups}
    differ = ["scope"] if any(other is None or other.groups != joint.groups for other in together) else []
    differ = differ or [name for name, value in joint.agreed.items() if any(o.agreed[name] != value for o in together)]  # type: ignore[union-attr]
    differ = differ or (["sequence_length, and on memory"] if len(lengths) > 1 else [])
    if differ:
        raise ValueError(
            f"groups {' and '.join(joint.groups)} learn one value for the team, so they must agree on "
            f"algorithm.{differ[0]}; or use algorithm.scope=group"
        )


def _successors_read(part: Algorithm) -> tuple[int, bool]:
    """Which successors an update reads: in sequences this long, those of all steps (with memory) or of one."""
    return part.sequence_length, bool(jax.tree.leaves(jax.eval_shape(lambda: part.initial_carry(1))))


def batch_of(group: str, parts: Mapping[str, Algorithm], state: PyTree, batch: Batch, keys: Mapping[str, Key]) -> Batch:
    """A team's batch as the algorithm of one group takes it: all groups' transitions, but only its own carries."""
    part, transitions = parts[group], batch.transitions
    if batch.final is None:  # sequences from a buffer, as long as the longest that any group needs
        transitions = jax.tree.map(lambda x: x[: part.sequence_length], transitions)
    next_actions = {}
    for other in part.rates_actions_of:
        choose = parts[other].next_actions
        assert choose is not None
        key = jax.random.fold_in(keys[group], list(parts).index(other))
        next_actions[other] = choose(state[other], transitions[other], key)
    return dataclasses.replace(
        batch,
        transitions=transitions,
        carries=batch.carries[group] if batch.carries else (),
        final_carry=batch.final_carry[group] if batch.final_carry else (),
        next_actions=next_actions,
    )


def _common_sequence_length(lengths: Sequence[int]) -> int:
    """The longest, of which other groups take a part or single steps; 0, the whole rollout, if any group needs that."""
    return 0 if 0 in lengths else max(lengths)


def _hooked(hooks: Hooks, group: str, transitions: Transition) -> tuple[Transition, dict[str, Array]]:
    if hooks.batch is None:
        return transitions, {}
    result = hooks.batch(group, transitions)
    return result if isinstance(result, tuple) else (result, {})
