"""What algorithms are given besides their own configuration, and how one per group makes a team's.

An algorithm is written for one group (`make_x(config, spec, group, context)`); `make_team` maps it over the groups of a
task. So every group has parameters, optimiser and batch of its own, and groups may differ in algorithm.
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
from covey.types import Algorithm, Array, Batch, Discrete, EnvSpec, Key, PyTree, TimeStep, Transition

State = TypeVar("State", bound=Any)
Result = TypeVar("Result", bound=PyTree)
LossHook = Callable[[str, PyTree, PyTree], tuple[Array, dict[str, Array]]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Hooks:
    """A user's own pure functions inside the compiled step.

    batch(group, transitions) -> transitions            before the update, e.g. to add an intrinsic reward; or
                              -> (transitions, metrics) to log something of it
    loss(group, params, minibatch) -> (loss, metrics)   added to the algorithm's own loss
    metrics(metrics) -> metrics                         of the whole iteration, before they leave the device
    """

    batch: Callable[[str, Transition], Transition | tuple[Transition, dict[str, Array]]] | None = None
    loss: LossHook | None = None
    metrics: Callable[[dict[str, Array]], dict[str, Array]] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Context:
    """`device_axis` names the axis over which gradients and statistics are averaged, if there are several devices."""

    model: Model
    critic_model: Model
    hooks: Hooks = Hooks()
    device_axis: str | None = None


def make_optimiser(config: Any) -> optax.GradientTransformation:
    """Adam without its step size, on gradients clipped by their norm: fields `max_grad_norm` and `adam_eps`."""
    adam = optax.chain(optax.clip_by_global_norm(config.max_grad_norm), optax.scale_by_adam(eps=config.adam_eps))
    return optax.GradientTransformation(adam.init, one_operation(adam.update))


def descend(optimiser: optax.GradientTransformation, state: State, name: str, grads: PyTree, lr: Array) -> State:
    """A learner's state after a step on one of its `params`, which has an `optimiser` state of the same name."""
    changes, optimiser_state = optimiser.update(grads, state.optimiser[name])
    params = jax.tree.map(lambda p, change: p - lr * change, state.params[name], changes)
    return dataclasses.replace(
        state, params=state.params | {name: params}, optimiser=state.optimiser | {name: optimiser_state}
    )


def mean_over_living(tree: PyTree, alive: Array, axis: str | None) -> PyTree:
    """Means over the living agents of all devices, of means over all agents of this one in which the dead count zero.

    Gradients, losses and what else an update needs of the other devices go together: a small update takes hardly longer
    than a meeting of the devices.
    """
    share = jnp.mean(alive.astype(jnp.float32))
    tree, share = mean_over_devices((tree, share), axis)
    return jax.tree.map(lambda x: x / jnp.maximum(share, 1e-8), tree)


def now_and_then(
    updates: Array, delay: int, compute: Callable[[], Result], otherwise: Callable[[], Result] | None = None
) -> Result:
    """What `compute` gives in every `delay`-th update; in the others, which do not compute it, `otherwise` or zeros."""
    if delay == 1:
        return compute()

    def nothing() -> Result:
        return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(compute))

    return jax.lax.cond(any_seed(updates % delay == 0), compute, otherwise or nothing)


def require_discrete(spec: EnvSpec, group: str) -> Discrete:
    """The actions of a group, for algorithms that learn a value for each; raises where they are no single choice."""
    action = spec.groups[group].action
    if not isinstance(action, Discrete):
        raise ValueError(
            f"Q-learning needs one discrete choice per agent, and group '{group}' acts otherwise "
            "(vmas tasks: task.continuous_actions=false)"
        )
    return action


def add_users_loss(grads: PyTree, context: Context, group: str, params: PyTree, batch: Any) -> tuple[PyTree, PyTree]:
    """Gradients, already means over all devices, with those of the user's own loss, if there is one; its metrics."""
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

    `model` is by `make_model`, an MLP by default; the critic's is the same unless given.
    """
    config = registry.build_config(registry.algorithms[name].defaults(), fields, "algorithm")
    model = model or make_model("mlp", **getattr(config, "model_defaults", {}))
    context = Context(model=model, critic_model=critic_model or model)
    return make_team({group: make_group(name, config, spec, group, context) for group in spec.groups})


def make_group(name: str, config: Any, spec: EnvSpec, group: str, context: Context) -> Algorithm:
    """The registered algorithm `name` for one group of a task."""
    make: MakeAlgorithm = registry.algorithms[name].make_function()
    return make(config, spec, group, context)


def make_team(parts: Mapping[str, Algorithm], hooks: Hooks = Hooks()) -> Algorithm:
    """One algorithm out of one per group: states, carries, actions and extras become dicts by group."""

    def init(key: Key) -> PyTree:
        keys = jax.random.split(key, len(parts))
        return {group: part.init(k) for (group, part), k in zip(parts.items(), keys, strict=True)}

    def initial_carry(num_envs: int) -> PyTree:
        return {group: part.initial_carry(num_envs) for group, part in parts.items()}

    def act(state: PyTree, timestep: TimeStep, carry: PyTree, key: Key, explore: bool) -> tuple[PyTree, PyTree, PyTree]:
        actions, extras, carries = {}, {}, {}
        for (group, part), k in zip(parts.items(), jax.random.split(key, len(parts)), strict=True):
            actions[group], extras[group], carries[group] = part.act(state[group], timestep, carry[group], k, explore)
        return actions, extras, carries

    def update(state: PyTree, batch: Batch, key: Key, progress: Array) -> tuple[PyTree, dict[str, Array], PyTree]:
        states, priorities = {}, {}
        metrics: dict[str, Array] = {}
        for (group, part), k in zip(parts.items(), jax.random.split(key, len(parts)), strict=True):
            transitions = batch.transitions[group]
            if batch.final is None:  # sequences out of a buffer, as long as the group that needs the longest
                transitions = jax.tree.map(lambda x, length=part.sequence_length: x[:length], transitions)
            transitions, hook_metrics = _hooked(hooks, group, transitions)
            own = dataclasses.replace(
                batch,
                transitions={group: transitions},
                carries=batch.carries[group] if batch.carries else (),
                final_carry=batch.final_carry[group] if batch.final_carry else (),
            )
            states[group], group_metrics, priorities[group] = part.update(state[group], own, k, progress)
            metrics |= {f"{group}/{name}": value for name, value in (group_metrics | hook_metrics).items()}
        return states, metrics, priorities

    return Algorithm(
        init=init,
        initial_carry=initial_carry,
        act=act,
        update=update,
        sequence_length=_common_sequence_length([part.sequence_length for part in parts.values()]),
        groups=parts,
    )


def _common_sequence_length(lengths: Sequence[int]) -> int:
    """The longest, of which a group without memory takes single steps; or the whole rollout, which is 0."""
    return 0 if 0 in lengths else max(lengths)


def _hooked(hooks: Hooks, group: str, transitions: Transition) -> tuple[Transition, dict[str, Array]]:
    if hooks.batch is None:
        return transitions, {}
    result = hooks.batch(group, transitions)
    return result if isinstance(result, tuple) else (result, {})
