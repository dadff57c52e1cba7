"""Seats: who plays which agents of a team, where some are played by partners that do not learn.

A seat is one agent of a group, or a whole group, and the policies that may play it. Of several, one is drawn for each
episode. With `rotate`, the seats of single agents move along the group's places by an offset that is drawn for each
episode, so that the team's own policy plays every place. Draws stay as they are until the episode ends.

A partner acts for all agents of its group, as it did where it was trained, and only the actions of its seat are used.
Its parameters are in the acting tree beside the team's own, so they are arguments of compiled programs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from covey.types import Algorithm, Array, EnvSpec, Key, PyTree, TimeStep, pytree

OWN = "own_agents"  # among a group's extras: which of its agents the team's own policy plays, [B, A]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Seat:
    """One agent of a group, or with `index=None` all of them, and the partners of which one plays each episode."""

    group: str
    index: int | None
    partners: tuple[Algorithm, ...]


@pytree
class SeatedActing:
    """own: of the team's own groups; partners: of each seat, one for each of its partners."""

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


def seat_partners(team: Algorithm, seats: Sequence[Seat], spec: EnvSpec, *, rotate: bool = False) -> Algorithm:
    """`team`, which plays the groups that no seat takes whole, with partners in `seats`. It acts and does not learn.

    Its state is `SeatedActing` over the states of the team and of the partners. Each group's extras also hold `OWN`.
    """

    def acting(state: SeatedActing) -> SeatedActing:
        partners = tuple(
            tuple(partner.acting(own) for partner, own in zip(seat.partners, states, strict=True))
            for seat, states in zip(seats, state.partners, strict=True)
        )
        return SeatedActing(own=team.acting(state.own), partners=partners)

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
            actions[seat.group] = chosen if before is None else _where(places, chosen, before)
        own = own_agents(seats, spec, carry.offset)
        extras = {group: {**extras.get(group, {}), OWN: own[group]} for group in spec.groups}
        actions = {group: actions[group] for group in spec.groups}
        return actions, extras, dataclasses.replace(carry, own=own_carry, partners=tuple(carries))

    return Algorithm(
        init=_never, acting=acting, initial_carry=initial_carry, act=act, update=_never, groups=team.groups
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
        actions = own if actions is None else _where(drawn == number, own, actions)
    assert actions is not None, "a seat has at least one partner"
    return actions, tuple(next_carries)


def score_own(timestep: TimeStep, extras: dict[str, dict[str, Any]]) -> TimeStep:
    """`timestep` with rewards such that a group's mean over all agents is that over the agents the team itself plays.

    Groups without agents of the team's own keep their rewards; they are not scored.
    """
    groups = dict(timestep.groups)
    for group, step in timestep.groups.items():
        own = extras.get(group, {}).get(OWN)
        if own is not None:
            count = own.sum(-1, keepdims=True)
            share = jnp.where(own, own.shape[-1] / jnp.maximum(count, 1), 0.0)
            reward = jnp.where(count > 0, step.reward * share, step.reward)
            groups[group] = dataclasses.replace(step, reward=reward)
    return dataclasses.replace(timestep, groups=groups)


def _where(condition: Array, new: Array, old: Array) -> Array:
    """`jnp.where`, with `condition` over the leading axes."""
    return jnp.where(condition.reshape(condition.shape + (1,) * (new.ndim - condition.ndim)), new, old)


def _never(*_: Any) -> Any:
    raise NotImplementedError("a team with partners in its seats is made from policies, and does not learn")
