"""Seats: who plays which agents of a team, if partners that do not learn play some of them.

A seat is one agent of a group, or a whole group, with the policies that may play it. If there are several policies, one
is drawn for each episode. With `rotate`, the seats of single agents move along the group's places by an offset that is
drawn for each episode, so that the team's own policy plays every place. Draws do not change during an episode.

A partner acts for all agents of its group, as it did in training, and only the actions of its seat are used. Its
parameters are in the state, beside the team's own, so they are an argument of compiled programs. Updates do not change
them.

The team learns from the steps of its own agents. To its algorithms, an agent that a partner plays is not alive: its
steps have no weight in any loss. Critics that see the whole group still see what it did. In updates from replay,
partners also say what they would do at the steps' successors (`NEXT_ACTION`), because some critics need that.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from covey.types import Algorithm, Array, Batch, EnvSpec, GroupStep, Key, PyTree, TimeStep, Transition, pytree

# Among a group's extras:
OWN = "own_agents"  # which of its agents the team's own policy plays, [B, A]
SEATED = "seated"  # who plays the others (`SeatedStep`)
NEXT_ACTION = "partners_next_action"  # in updates from replay: what partners do at a step's successor, [B, A, …]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Seat:
    """One agent of a group, or with `index=None` all of them, and its partners. One partner plays in each episode.

    A partner does not learn, so its state is just what it acts with.
    """

    group: str
    index: int | None
    partners: tuple[Algorithm, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Seating:
    """All seats of a task that partners take.

    acting      for each seat, what each of its partners acts with
    elsewhere   a function that makes this in another process, which can be pickled
    """

    seats: tuple[Seat, ...]
    rotate: bool
    acting: tuple[tuple[PyTree, ...], ...]
    elsewhere: Callable[[], Seating] | None = None


@pytree
class SeatedActing:
    """What a team with partners acts with. It is also the team's whole state, if `own` holds the state.

    own       of the team's own groups
    partners  for each seat, what each of its partners acts with
    """

    own: PyTree
    partners: tuple[tuple[PyTree, ...], ...]


@pytree
class SeatedCarry:
    """own, partners   as in `SeatedActing`
    drawn           [B] for each seat: which partner plays; negative before the first episode
    offset          [B] how far the seats of single agents have moved along their group's places
    """

    own: PyTree
    partners: tuple[tuple[PyTree, ...], ...]
    drawn: tuple[Array, ...]
    offset: Array


@pytree
class SeatedStep:
    """Who plays the seats of one group in a step.

    drawn    [B] for each seat, as in `SeatedCarry`
    carries  for each seat and each of its partners, after the step; () without memory
    offset   [B] as in `SeatedCarry`
    """

    drawn: tuple[Array, ...]
    carries: tuple[tuple[PyTree, ...], ...]
    offset: Array


def learned_part(state: PyTree) -> PyTree:
    """The part of a state that learns, by group: all of it, unless partners play beside the team."""
    return state.own if isinstance(state, SeatedActing) else state


def with_learned_part(state: PyTree, own: PyTree) -> PyTree:
    """`state` with `own` as the part that learns; partners stay."""
    return dataclasses.replace(state, own=own) if isinstance(state, SeatedActing) else own


def learned_carry(carry: PyTree) -> PyTree:
    """The part of a carry that belongs to the team's own networks."""
    return carry.own if isinstance(carry, SeatedCarry) else carry


def taken_groups(algorithm: Algorithm, spec: EnvSpec) -> tuple[str, ...]:
    """The groups that partners play as a whole, so that nobody learns there."""
    return tuple(group for group in spec.groups if algorithm.groups and group not in algorithm.groups)


def played_by_team(extras: Mapping[str, Mapping[str, Any]]) -> dict[str, Array]:
    """By group, which agents the team's own policy plays, `[B, A]`; empty without partners."""
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
    """`carry` with partners and offset drawn again where an episode begins."""
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
    """A group's steps `[T, B, …]` as its algorithm receives them, with agents that partners played not alive."""
    extras = {name: value for name, value in steps.extras.items() if name != SEATED}
    return dataclasses.replace(steps, alive=steps.alive & steps.extras[OWN], extras=extras)


def beside_partners(action: Array, extras: Mapping[str, Any], partners_action: Array | None = None) -> Array:
    """The actions `[…, A, n]` of the team's policy, with those of partners in the partners' places.

    Partners take `partners_action`, by default the `NEXT_ACTION` of `extras`."""
    if OWN not in extras:
        return action
    return select(extras[OWN], action, extras[NEXT_ACTION] if partners_action is None else partners_action)


def successor_step(group: str, steps: Transition) -> TimeStep:
    """What a group sees after each of its steps, as if the episode continued. The axes `[T, B]` are merged into one."""

    def flat(leaf: Array) -> Array:
        return leaf.reshape(-1, *leaf.shape[2:])

    shown = GroupStep(
        observation=steps.next_observation,
        next_observation=steps.next_observation,
        reward=steps.reward,
        action_mask=steps.next_action_mask,
        alive=steps.alive,
        terminated=steps.terminated,
        next_action_mask=steps.next_action_mask,
    )
    never = jnp.zeros_like(steps.last)
    timestep = TimeStep(
        groups={group: shown},
        truncated=never,
        last=never,
        state=steps.next_state,
        next_state=steps.next_state,
        metrics={},
    )
    flattened: TimeStep = jax.tree.map(flat, timestep)
    return flattened


def partners_next_action(
    seats: Sequence[Seat], group: str, acting: Sequence[tuple[PyTree, ...]], steps: Transition, key: Key
) -> Array:
    """What the partners of a group do at the successors of its steps `[T, B, …]`; zeros in the team's own places."""
    timestep = successor_step(group, steps)
    who: Any = steps.extras[SEATED]
    drawn, carries, offset = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), (who.drawn, who.carries, who.offset))
    result = jnp.zeros((offset.shape[0], *steps.action.shape[2:]), steps.action.dtype)
    here = [number for number, seat in enumerate(seats) if seat.group == group]
    for position, number in enumerate(here):
        seat, key_seat = seats[number], jax.random.fold_in(key, number)
        chosen, _ = _act_by_drawn(seat, acting[number], timestep, carries[position], drawn[position], key_seat, True)
        result = select(taken_places(seat, steps.alive.shape[-1], offset), chosen, result)
    return result.reshape(steps.action.shape)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SeatedTeam:
    """What the functions below share: the team, the seats of its partners, and whether these rotate."""

    team: Algorithm
    seats: tuple[Seat, ...]
    spec: EnvSpec
    rotate: bool


def init(seated: SeatedTeam, key: Key) -> SeatedActing:
    """The team's fresh state, and zeros for what partners act with. Their parameters are put in later.

    Only their shapes are computed, so that parameters are not constants of the compiled program.
    """
    shapes = jax.eval_shape(
        lambda: tuple(tuple(partner.init(key) for partner in seat.partners) for seat in seated.seats)
    )
    return SeatedActing(own=seated.team.init(key), partners=jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes))


def acting(seated: SeatedTeam, state: SeatedActing) -> SeatedActing:
    """The part of the state that `act` takes."""
    return SeatedActing(own=seated.team.acting(state.own), partners=state.partners)


def initial_carry(seated: SeatedTeam, num_envs: int) -> SeatedCarry:
    """The carry before the first episode: nobody is drawn yet."""
    undrawn = jnp.full(num_envs, -1, jnp.int32)
    return SeatedCarry(
        own=seated.team.initial_carry(num_envs),
        partners=tuple(tuple(partner.initial_carry(num_envs) for partner in seat.partners) for seat in seated.seats),
        drawn=(undrawn,) * len(seated.seats),
        offset=undrawn,
    )


def act(
    seated: SeatedTeam, acting: SeatedActing, timestep: TimeStep, carry: SeatedCarry, key: Key, explore: bool
) -> tuple[PyTree, PyTree, SeatedCarry]:
    """Actions `[B, A, …]` by group, with those of partners in their seats, the extras, and the next carry."""
    seats, spec = seated.seats, seated.spec
    key_partners, key_draw = jax.random.split(jax.random.fold_in(key, 1))  # the team keeps its own key
    carry = draw_seats(seats, spec, seated.rotate, carry, timestep.last, key_draw)
    actions, extras, own_carry = seated.team.act(acting.own, timestep, carry.own, key, explore)
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
    carry = dataclasses.replace(carry, own=own_carry, partners=tuple(carries))
    with_seats = {
        group: {**extras.get(group, {}), **_seated_extras(seats, spec, group, carry)} for group in spec.groups
    }
    return {group: actions[group] for group in spec.groups}, with_seats, carry


def update(
    seated: SeatedTeam, state: SeatedActing, batch: Batch, key: Key, progress: Array
) -> tuple[SeatedActing, dict[str, Array], PyTree]:
    """The team's update from the steps of its own agents. Partners stay as they are."""
    transitions = {}
    for group, steps in batch.transitions.items():
        transitions[group] = learned_steps(steps)
        if batch.final is None:  # from replay; if no critic reads it, the compiler removes it
            key_next = jax.random.fold_in(key, list(seated.spec.groups).index(group))
            action = partners_next_action(seated.seats, group, state.partners, steps, key_next)
            extras = transitions[group].extras | {NEXT_ACTION: action}
            transitions[group] = dataclasses.replace(transitions[group], extras=extras)
    batch = dataclasses.replace(batch, transitions=transitions)
    own, metrics, priorities = seated.team.update(state.own, batch, key, progress)
    return dataclasses.replace(state, own=own), metrics, priorities


def seat_partners(team: Algorithm, seats: Sequence[Seat], spec: EnvSpec, *, rotate: bool = False) -> Algorithm:
    """`team` with partners in `seats`. The team plays and learns all groups but those that a seat takes as a whole.

    Its state is `SeatedActing`. Each group's extras also hold `OWN` and `SEATED`.
    """
    seated = SeatedTeam(team=team, seats=tuple(seats), spec=spec, rotate=rotate)
    return Algorithm(
        init=partial(init, seated),
        acting=partial(acting, seated),
        initial_carry=partial(initial_carry, seated),
        act=partial(act, seated),
        update=partial(update, seated),
        sequence_length=team.sequence_length,
        groups=team.groups,
    )


def _seated_extras(seats: Sequence[Seat], spec: EnvSpec, group: str, carry: SeatedCarry) -> dict[str, PyTree]:
    here = [number for number, seat in enumerate(seats) if seat.group == group]
    who = SeatedStep(
        drawn=tuple(carry.drawn[number] for number in here),
        carries=tuple(carry.partners[number] for number in here),
        offset=carry.offset,
    )
    return {OWN: own_agents(seats, spec, carry.offset)[group], SEATED: who}


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
