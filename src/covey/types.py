"""The values that travel between covey's parts: specs, time steps, transitions.

Shape letters, used everywhere: T time, B environments, A agents of a group. Arrays are `[T, B, A, …]`; a value that
belongs to an environment as a whole has no A. Everything here is a frozen dataclass and a JAX pytree; this module
imports nothing of covey.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import jax

from covey.specs import (
    ActionSpec,
    Continuous,
    Discrete,
    EnvSpec,
    GroupSpec,
    MetricSpec,
    MultiDiscrete,
    ObservationShape,
    Shape,
)

__all__ = [
    "ActionSpec",
    "Algorithm",
    "Array",
    "Batch",
    "Continuous",
    "Discrete",
    "EnvSpec",
    "GroupSpec",
    "GroupStep",
    "JointLearning",
    "Key",
    "Learned",
    "MetricSpec",
    "MultiDiscrete",
    "Network",
    "Observation",
    "ObservationShape",
    "PyTree",
    "Shape",
    "TimeStep",
    "Transition",
    "learned",
    "pytree",
]

Array = jax.Array
Key = jax.Array
PyTree = Any
Observation = Any  # an array, or a dictionary of arrays, as its ObservationShape says; see `covey.observations`
_T = TypeVar("_T")


LEARNED = "learned"  # the key of a field's metadata


@dataclasses.dataclass(frozen=True, kw_only=True)
class Learned:
    """What `learned` says of a field."""

    copies: str | None
    parameters: bool


def learned(*, copies: str | None = None, parameters: bool = True) -> Any:
    """A field of a learner's state that holds what was learned, so that `init_from` takes it from another run.

    Fields without it (optimiser, counters, schedules) start fresh. `copies` marks a target network: it names the field
    that the target equals at the start of a run (`params`, or a part of it, `params.critic`). `parameters=False` marks
    statistics, such as moments of observations: they come whole or not at all, and alone they are not worth a transfer.
    """
    return dataclasses.field(metadata={LEARNED: Learned(copies=copies, parameters=parameters)})


@typing.dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(dataclasses.field, learned))
def pytree(cls: type[_T]) -> type[_T]:
    """A frozen, keyword-only dataclass whose fields are pytree children."""
    return jax.tree_util.register_dataclass(dataclasses.dataclass(frozen=True, kw_only=True)(cls))


# ----------------------------------------------------------------------------------------------------- time steps


@pytree
class GroupStep:
    """One group's part of a time step.

    observation       [A, …]    what to act on now; after an auto-reset, the new episode's first. An array, or a
                                dictionary of arrays, each `[A, …]`
    next_observation  [A, …]    the true successor of the action just taken, also where the episode ended
    reward            [A]       for the action just taken; zero at reset
    action_mask       [A, n]    legal actions, or None where all are legal (multi-discrete: choices concatenated)
    next_action_mask  [A, n]    those at `next_observation`
    alive             [A]       the agent's return still runs: losses count only agents alive when they acted
    terminated        [A]       the agent's return ended with the action just taken: no bootstrap
    shaping           [A]       a reward for learning only, on top of `reward`; it never counts in a return. Or None

    An agent lives until it terminates or its episode ends. So the agents that were alive when they acted are those
    that are `alive` or `terminated` after it (`envs.wrappers.Lifetimes` sees to that). Their rewards count, that of the
    action with which an agent terminates included. What the environment gives an agent afterwards counts nowhere.
    """

    observation: Observation
    next_observation: Observation
    reward: Array
    action_mask: Array | None
    alive: Array
    terminated: Array
    next_action_mask: Array | None = None
    shaping: Array | None = None


@pytree
class TimeStep:
    """What an environment answers to a reset or a step.

    last       []   the action just taken ended the episode (false at reset)
    truncated  []   ... and it cut off agents that had not terminated, as a time limit does
    state      [S]  global state to act on, or None; `next_state` is its true successor, as for observations. It may be
                    a dictionary of arrays too
    metrics         the task's own measures at this step, by the names of its spec

    How an episode ended is decided for each agent by its own `terminated`: no value follows a termination. An agent
    that was alive and did not terminate with the last step was cut off: its return bootstraps from `next_observation`,
    never from the next episode. This also holds where an environment sets `last` alone: `envs.batch` sets `truncated`
    wherever the last step cuts somebody off.
    """

    groups: dict[str, GroupStep]
    truncated: Array
    last: Array
    state: Observation | None
    next_state: Observation | None
    metrics: dict[str, Array]


# ---------------------------------------------------------------------------------------------------- transitions


@pytree
class Transition:
    """What a group observed, did and received: one step, or `[T, B, …]` of them."""

    observation: Observation
    state: Observation | None
    action_mask: Array | None
    alive: Array
    reset: Array  # the observation is the first of an episode, so carries are reset
    action: Array
    extras: dict[str, Array]  # what the algorithm's `act` left for its `update`
    reward: Array
    terminated: Array
    truncated: Array
    last: Array
    next_observation: Observation
    next_state: Observation | None
    next_action_mask: Array | None = None
    shaping: Array | None = None


@pytree
class Batch:
    """What `update` learns from.

    transitions  [T, B, …]  of each group: an algorithm for one group may also look at those of the others
    carries      [S, B, …]  the carry before each of the S = T / sequence_length contiguous sequences
    final        [B]        the time step after the last transition, for bootstrapping, and the carry that goes with it
    weight       [B]        what each sequence counts for in losses, or None where all count alike
    next_actions [.., B, …] what other groups' policies would do at the true successor of the last step of each target,
                            for an algorithm that asks for them (`Algorithm.rates_actions_of`)

    A batch that was just collected has carries and a final time step; one out of replay has neither, since each of its
    transitions holds its own successor and, where networks have memory, the carry that it was acted with.
    """

    transitions: dict[str, Transition]
    carries: PyTree = ()
    final: TimeStep | None = None
    final_carry: PyTree = ()
    weight: Array | None = None
    next_actions: dict[str, Array] = dataclasses.field(default_factory=dict)


# --------------------------------------------------------------------------------------------------------- bundles


@dataclasses.dataclass(frozen=True, kw_only=True)
class Network:
    """A network as pure functions; recurrent or not is a property of its carry, which may be empty.

    init(key) -> params                                    a plain nested dict
    apply(params, inputs [T, B, …], carry, reset [T, B]) -> (outputs [T, B, A, …], carry)
    initial_carry(num_envs) -> carry                       () where the network has no memory
    """

    init: Callable[..., PyTree]
    apply: Callable[..., tuple[Array, PyTree]]
    initial_carry: Callable[[int], PyTree]
    recurrent: bool


def _whole_state(state: PyTree) -> PyTree:
    return state


@dataclasses.dataclass(frozen=True, kw_only=True)
class JointLearning:
    """How some groups of a team learn in one update. Each keeps a state of its own, with which it acts.

    groups   those that learn together; each one's algorithm says the same
    member   what `update` needs to know about the group that has this
    agreed   fields of the configuration, by name, that must be the same for all of them
    update(members, states, batch, key, progress) -> (states, metrics, priorities), all of them dicts by group
    """

    groups: tuple[str, ...]
    member: Any
    agreed: Mapping[str, Any]
    update: Callable[..., tuple[dict[str, PyTree], dict[str, dict[str, Array]], dict[str, PyTree]]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Algorithm:
    """A learner as pure functions.

    init(key) -> state
    acting(state) -> what `act` needs of the state: parameters and moments, no optimiser, no target networks.
                     It is what actors are sent. By default, the whole state
    initial_carry(num_envs) -> carry
    act(acting, timestep [B, …], carry, key, explore) -> (actions by group, extras by group, carry)
    update(state, batch, key, progress) -> (state, metrics, priorities or None)
    sequence_length: how many contiguous steps one carry serves in a batch (1: the algorithm has no memory)
    groups: of a team's algorithm, each group's own

    What only an algorithm for one group has:

    next_actions(state, transitions, key) -> what its policy would do at the true successor of the last step of each
                     target, `[.., N, A, …]`; None where it cannot say
    rates_actions_of   other groups whose next actions `update` needs (`Batch.next_actions`)
    joint              where the group learns in one update with other groups of its team, instead of by `update`
    """

    init: Callable[[Key], PyTree]
    initial_carry: Callable[[int], PyTree]
    act: Callable[..., tuple[PyTree, PyTree, PyTree]]
    update: Callable[..., tuple[PyTree, dict[str, Array], PyTree]]
    acting: Callable[[PyTree], PyTree] = _whole_state
    sequence_length: int = 1
    groups: Mapping[str, Algorithm] = dataclasses.field(default_factory=dict)
    next_actions: Callable[[PyTree, Transition, Key], Array] | None = None
    rates_actions_of: tuple[str, ...] = ()
    joint: JointLearning | None = None

    def __repr__(self) -> str:
        memory = f", sequences of {self.sequence_length}" if self.sequence_length > 1 else ""
        return f"Algorithm({', '.join(self.groups) or 'one group'}{memory})"
