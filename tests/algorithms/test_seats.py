"""Seats: who plays what, what stays for an episode, and whose rewards count."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from covey.algorithms.base import make_team
from covey.algorithms.seats import OWN, Seat, SeatedActing, played_by_team, seat_partners
from covey.envs.base import first_step
from covey.envs.batch import score_played
from covey.types import Algorithm, Discrete, EnvSpec, GroupSpec, TimeStep

SPEC = EnvSpec(groups={"agents": GroupSpec(num_agents=3, observation_shape=(1,), action=Discrete(9))}, time_limit=4)


def player(number: int) -> Algorithm:
    """Always plays `number` times its parameter, which is 1."""

    def act(acting: Any, timestep: TimeStep, carry: Any, key: Any, explore: bool) -> tuple[Any, dict, Any]:
        shape = timestep.groups["agents"].alive.shape
        return jnp.full(shape, number) * acting, {}, carry

    return Algorithm(init=lambda key: jnp.int32(1), initial_carry=lambda n: (), act=act, update=lambda *_: None)


def seated(*seats: Seat, rotate: bool = False) -> tuple[Algorithm, SeatedActing]:
    team = seat_partners(make_team({"agents": player(1)}), seats, SPEC, rotate=rotate)
    one = jnp.int32(1)
    return team, SeatedActing(own={"agents": one}, partners=tuple((one,) * len(seat.partners) for seat in seats))


def step(num_envs: int, last: bool = False) -> TimeStep:
    timestep = jax.vmap(lambda o: first_step({"agents": o}))(jnp.zeros((num_envs, 3, 1)))
    return dataclasses.replace(timestep, last=jnp.full(num_envs, last))


def test_partners_play_their_seats_and_the_team_the_rest():
    seats = [Seat(group="agents", index=index, partners=(player(number),)) for index, number in ((1, 5), (2, 6))]
    team, state = seated(*seats)
    actions, extras, _ = team.act(team.acting(state), step(2), team.initial_carry(2), jax.random.key(0), True)
    assert actions["agents"].tolist() == [[1, 5, 6]] * 2
    assert extras["agents"][OWN].tolist() == [[True, False, False]] * 2


def test_a_whole_group_leaves_nothing_to_the_team():
    team, state = seated(Seat(group="agents", index=None, partners=(player(7),)))
    actions, extras, _ = team.act(team.acting(state), step(1), team.initial_carry(1), jax.random.key(0), True)
    assert not extras["agents"][OWN].any()
    assert actions["agents"].tolist() == [[7, 7, 7]]


def test_of_several_one_is_drawn_for_each_episode():
    team, state = seated(Seat(group="agents", index=1, partners=(player(5), player(6))))
    carry, acting = team.initial_carry(400), team.acting(state)
    first, _, carry = team.act(acting, step(400), carry, jax.random.key(0), True)
    second, _, carry = team.act(acting, step(400), carry, jax.random.key(1), True)
    new, _, _ = team.act(acting, step(400, last=True), carry, jax.random.key(2), True)
    np.testing.assert_array_equal(first["agents"], second["agents"])
    for actions in (first, new):
        assert 0.4 < float((actions["agents"][:, 1] == 5).mean()) < 0.6
        assert set(np.unique(actions["agents"][:, 1])) == {5, 6}
    assert 0.4 < float((new["agents"][:, 1] != second["agents"][:, 1]).mean()) < 0.6


def test_rotating_seats_take_every_place_alike():
    team, state = seated(Seat(group="agents", index=1, partners=(player(5),)), rotate=True)
    carry, acting = team.initial_carry(600), team.acting(state)
    first, extras, carry = team.act(acting, step(600), carry, jax.random.key(0), True)
    taken = np.asarray(first["agents"] == 5)
    assert (taken.sum(1) == 1).all() and (np.abs(taken.mean(0) - 1 / 3) < 0.08).all()
    np.testing.assert_array_equal(extras["agents"][OWN], ~taken)
    second, _, _ = team.act(acting, step(600), carry, jax.random.key(1), True)
    np.testing.assert_array_equal(first["agents"], second["agents"])


def test_only_the_teams_own_agents_are_scored():
    timestep = step(1)
    group = dataclasses.replace(timestep.groups["agents"], reward=jnp.array([[1.0, 3.0, 100.0]]))
    timestep = dataclasses.replace(timestep, groups={"agents": group})
    scored = score_played(timestep, played_by_team({"agents": {OWN: jnp.array([[True, True, False]])}}))
    assert float(scored.groups["agents"].reward.mean()) == 2.0  # (1 + 3) / 2
