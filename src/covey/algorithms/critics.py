"""What a critic sees, and how many values it gives, for all algorithms that have critics.

`resolve` and `resolve_scope` settle what the configuration leaves open, `seen_shape` has the shape of what is seen, and
`join_agents` makes the joint observation. The critics of actions, of SAC and DDPG, are in replay_critics.py.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

import jax.numpy as jnp

from covey.networks.network import Model
from covey.observations import flat_size, flatten
from covey.types import Array, EnvSpec, Observation, ObservationShape


class CriticSees(enum.Enum):
    """What a critic is shown. Actors see their own observations whatever it is."""

    own = "each agent's own observation"
    auto = "the global state, or the joint observation where the task has none"
    state = "the global state"
    joint = "the observations of all agents in the groups of `scope`"


class Scope(enum.Enum):
    """What a centralised critic or a mixer spans where several groups cooperate. With one group, all mean the same."""

    auto = "the team where that is possible, otherwise the group"
    team = "all groups that cooperate"
    group = "each group by itself"


class CriticOutputs(enum.Enum):
    """How many values a centralised critic gives."""

    per_agent = "a centralised critic has one output for each agent"
    one = "a centralised critic has one output for all agents; in SAC with discrete actions, still one for each"


def resolve(sees: CriticSees, spec: EnvSpec, model: Model) -> CriticSees:
    """Resolves `auto`. Raises ValueError if there is no global state to see, or the model cannot read one.

    A model over agents takes its input to be their observations side by side. A global state whose size happens to
    divide by their number would be cut into pieces that belong to no agent.
    """
    over_agents = model.config.reads_team
    if sees is CriticSees.auto:
        return CriticSees.joint if spec.state_shape is None or over_agents else CriticSees.state
    if sees is CriticSees.state and over_agents:
        raise ValueError(
            f"critic_model '{model.name}' reads the agents' observations, not a global state; "
            "use algorithm.critic_sees=joint, or another critic_model"
        )
    if sees is CriticSees.state and spec.state_shape is None:
        raise ValueError("critic_sees=state, but the task has no global state; use joint or auto")
    return sees


def resolve_scope(scope: Scope, sees: CriticSees, spec: EnvSpec, group: str, model: Model) -> tuple[str, ...]:
    """The other groups of the team that a centralised critic of `group` sees, in the order of the task.

    `sees` is resolved. Raises ValueError if the critic's model cannot read them.
    """
    others = tuple(name for name in spec.team_of(group) if name != group)
    if sees is CriticSees.own or scope is Scope.group:
        return ()
    if others and model.config.reads_team:
        if scope is Scope.team:
            raise ValueError(
                f"critic_model '{model.name}' needs observations of one size: it can read only one group's agents; "
                "use algorithm.scope=group or auto, or another critic_model"
            )
        return ()
    return others


def seen_shape(sees: CriticSees, spec: EnvSpec, group: str, others: Sequence[str] = ()) -> ObservationShape:
    """The shape of what a critic of `group` sees, actions aside; `others` come from `resolve_scope`."""
    group_spec = spec.groups[group]
    match sees:
        case CriticSees.state:
            assert spec.state_shape is not None
            return spec.state_shape
        case CriticSees.joint:
            seen = [spec.groups[name] for name in (group, *others)]
            return (sum(each.num_agents * flat_size(each.observation_shape) for each in seen),)
        case _:
            return group_spec.observation_shape


def join_agents(*groups: Sequence[Observation | None]) -> Array:
    """What all agents of some groups see, and do, in one row: `[T, B, F]`.

    Each group is a sequence of arrays `[T, B, A, …]`, or dictionaries of them, such as its observation and action; None
    is left out. The row goes group by group, within a group agent by agent, and within an agent array by array, so that
    models that read the team find each agent's part. Dead agents appear as the environment shows them.
    """
    rows = []
    for arrays in groups:
        each = [flatten(array, 3) for array in arrays if array is not None]
        together = each[0] if len(each) == 1 else jnp.concatenate(each, -1)
        rows.append(together.reshape(*together.shape[:2], -1))
    return rows[0] if len(rows) == 1 else jnp.concatenate(rows, -1)
