"""Seats: who plays which agents of a team, where some are played by partners that do not learn.

A seat is one agent of a group, or a whole group, and the policies that may play it. Of several, one is drawn for each
episode. With `rotate`, the seats of single agents move along the group's places by an offset that is drawn for each
episode, so that the team's own policy plays every place. Draws stay as they are until the episode ends.

A partner acts for all agents of its group, as it did where it was trained, and only the actions of its seat are used.
What it acts with is in the state beside the team's own, so it is an argument of compiled programs. No update changes it.

The team learns from the steps of its own agents. To its algorithms an agent that a partner plays is one that is not
alive: its steps have no weight in any loss, and critics that see the whole group see what it did.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from covey.types import Algorithm, Array, Batch, EnvSpec, Key, PyTree, TimeStep, Transition, pytree

OWN = "own_agents"  # among a group's extras: which of its agents the team's own policy plays, [B, A]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Seat:
    """One agent of a group, or with `index=None` all of them, and the partners of which one plays each episode.

    A partner only acts: its state is what it acts with.
    """

    group: str
    index: int | None
    partners: tuple[Algorithm, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Seating:
    """All seats of a task that partners take. `acting`: of each seat, what each of its partners acts with."""

    seats: tuple[Seat, ...]
    rotate: bool
    acting: tuple[tuple[PyTree, ...], ...]


@pytree
class SeatedActing:
    """A team with partners: what it acts with, or with the team's state as `own`, its state.

    own: of the team's own groups; partners: of each seat, what each of its partners acts with.
    """

    own: PyTree
    partners: tuple[tuple[PyTree, ...], ...]


@pytree
class SeatedCarry:
    """own, partners   as in `SeatedActing`
    drawn           [B] of each seat: which partner plays; negative before the first episode
    offset          [B] how far the seats of single agents have moved along their group's places
    """

    own: PyTree
    partners: tuple[tuple[PyTree, ...], ...]
    drawn: tuple[Array, ...]
    offset: Array


def learned_part(state: PyTree) -> PyTree:
    """The part of a state that learns, by group: all of it, unless partners play beside the team."""
    return state.own if isinstance(state, SeatedActing) else state


def with_learned_part(state: PyTree, own: PyTree) -> PyTree:
    """`state` with another part that learns; partners stay."""
    return dataclasses.replace(state, own=own) if isinstance(state, SeatedActing) else own


def learned_carry(carry: PyTree) -> PyTree:
    """The part of a carry that belongs to the team's own networks."""
    return carry.own if isinstance(carry, SeatedCarry) else carry


def taken_groups(algorithm: Algorithm, spec: EnvSpec) -> tuple[str, ...]:
    """The groups that partners play as a whole, so that nobody learns there."""
    return tuple(group for group in spec.groups if algorithm.groups and group not in algorithm.groups)


def played_by_team(extras: Mapping[str, Mapping[str, Any]]) -> dict[str, Array]:
    """By group, which agents the team's own policy plays, `[B, A]`; without groups where it plays all."""
    return {group: part[OWN] for group, part in extras.items() if OWN in part}


def taken_places(seat: Seat, num_agents: int, offset: Array) -> Array:
    """Whether the seat is at each of the group's places, `[B, A]`, with seats moved by `offset [B]`."""
    if seat.index is None:
        return jnp.ones((*offset.shape, num_agents), bool)
    return jnp.arange(num_agents) == ((seat.index + offset) % num_agents)[:, None]


def own_agents(seats: Sequence[Seat], spec: EnvSpec, offset: Array) -> dict[str, Array]:
    """By group, which agents the team's own policy plays, `[B, A]`."""
    own = {group: jnp.ones((*offset.shape, part.num_agents), bool) for group, part in spec.groups.items()}
    for seat in seats:
        own[seat.group] &= ~taken_places(seat, spec.groups[seat.group].num_agents, offset)
    return own


def draw_seats(
    seats: Sequence[Seat], spec: EnvSpec, rotate: bool, carry: SeatedCarry, last: Array, key: Key
) -> SeatedCarry:
    """`carry` with the partners and the offset drawn again where the episode is new."""
    key_offset, *keys = jax.random.split(key, len(seats) + 1)

    def redraw(old: Array, key: Key, number: int) -> Array:
        return jnp.where(last | (old < 0), jax.random.randint(key, old.shape, 0, number), old)

    drawn = tuple(redraw(old, k, len(seat.partners)) for old, k, seat in zip(carry.drawn, keys, seats, strict=True))
    # One offset serves groups of different sizes: it is uniform over the places of each.
    places = 1
    if rotate:
        for seat in seats:
            if seat.index is not None:
                places *= spec.groups[seat.group].num_agents
    return dataclasses.replace(carry, drawn=drawn, offset=redraw(carry.offset, key_offset, places))


def learned_steps(steps: Transition) -> Transition:
    """A group's steps `[T, B, …]` as its algorithm learns from them: agents that partners played are not alive."""
    if OWN not in steps.extras:
        return steps
    extras = {name: value for name, value in steps.extras.items() if name != OWN}
    return dataclasses.replace(steps, alive=steps.alive & steps.extras[OWN], extras=extras)


def seat_partners(team: Algorithm, seats: Sequence[Seat], spec: EnvSpec, *, rotate: bool = False) -> Algorithm:
    """`team`, which plays and learns the groups that no seat takes whole, with partners in `seats`.

    Its state is `SeatedActing`; `init` leaves zeros for the partners, which are put in afterwards. Each group's extras
    also hold `OWN`.
    """

    def init(key: Key) -> SeatedActing:
        # Shapes alone, so that what partners act with is no constant of the compiled program.
        shapes = jax.eval_shape(lambda: tuple(tuple(partner.init(key) for partner in seat.partners) for seat in seats))
        return SeatedActing(own=team.init(key), partners=jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes))

    def acting(state: SeatedActing) -> SeatedActing:
        return SeatedActing(own=team.acting(state.own), partners=state.partners)

    def update(
        state: SeatedActing, batch: Batch, key: Key, progress: Array
    ) -> tuple[SeatedActing, dict[str, Array], PyTree]:
        transitions = {group: learned_steps(steps) for group, steps in batch.transitions.items()}
        batch = dataclasses.replace(batch, transitions=transitions)
        own, metrics, priorities = team.update(state.own, batch, key, progress)
        return dataclasses.replace(state, own=own), metrics, priorities

    def initial_carry(num_envs: int) -> SeatedCarry:
        undrawn = jnp.full(num_envs, -1, jnp.int32)
        return SeatedCarry(
            own=team.initial_carry(num_envs),
            partners=tuple(tuple(partner.initial_carry(num_envs) for partner in seat.partners) for seat in seats),
            drawn=(undrawn,) * len(seats),
            offset=undrawn,
        )

    def act(
        acting: SeatedActing, timestep: TimeStep, carry: SeatedCarry, key: Key, explore: bool
    ) -> tuple[PyTree, PyTree, SeatedCarry]:
        key_partners, key_draw = jax.random.split(jax.random.fold_in(key, 1))  # the team keeps its own key
        carry = draw_seats(seats, spec, rotate, carry, timestep.last, key_draw)
        actions, extras, own_carry = team.act(acting.own, timestep, carry.own, key, explore)
        carries = []
        for number, seat in enumerate(seats):
            key_seat = jax.random.fold_in(key_partners, number)
            places = taken_places(seat, spec.groups[seat.group].num_agents, carry.offset)
            chosen, seat_carries = _act_by_drawn(
                seat, acting.partners[number], timestep, carry.partners[number], carry.drawn[number], key_seat, explore
            )
            carries.append(seat_carries)
            before = actions.get(seat.group)
            actions[seat.group] = chosen if before is None else select(places, chosen, before)
        own = own_agents(seats, spec, carry.offset)
        extras = {group: {**extras.get(group, {}), OWN: own[group]} for group in spec.groups}
        actions = {group: actions[group] for group in spec.groups}
        return actions, extras, dataclasses.replace(carry, own=own_carry, partners=tuple(carries))

    return Algorithm(
        init=init,
        acting=acting,
        initial_carry=initial_carry,
        act=act,
        update=update,
        sequence_length=team.sequence_length,
        groups=team.groups,
    )


def _act_by_drawn(
    seat: Seat,
    acting: tuple[PyTree, ...],
    timestep: TimeStep,
    carries: tuple[PyTree, ...],
    drawn: Array,
    key: Key,
    explore: bool,
) -> tuple[Array, tuple[PyTree, ...]]:
    """The actions `[B, A, …]` of the partner that was drawn in each environment, and all partners' next carries."""
    actions, next_carries = None, []
    for number, partner in enumerate(seat.partners):
        key_partner = jax.random.fold_in(key, number)
        own, _, next_carry = partner.act(acting[number], timestep, carries[number], key_partner, explore)
        next_carries.append(next_carry)
        actions = own if actions is None else select(drawn == number, own, actions)
    assert actions is not None, "a seat has at least one partner"
    return actions, tuple(next_carries)


def select(condition: Array, new: Array, old: Array) -> Array:
    """`jnp.where`, with `condition` over the leading axes."""
    return jnp.where(condition.reshape(condition.shape + (1,) * (new.ndim - condition.ndim)), new, old)
