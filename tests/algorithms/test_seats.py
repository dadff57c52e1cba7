"""Seats: who plays what, what stays for an episode, and whose rewards count."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from covey.algorithms.base import make_algorithm, make_team
from covey.algorithms.ppo import AdvantageNormalisation
from covey.algorithms.seats import (
    NEXT_ACTION,
    OWN,
    Seat,
    SeatedActing,
    beside_partners,
    learned_carry,
    partners_next_action,
    played_by_team,
    seat_partners,
    taken_groups,
)
from covey.envs.base import first_step
from covey.envs.batch import score_played
from covey.loops.online import at_random_while
from covey.loops.rollout import make_transition
from covey.types import Algorithm, Batch, Discrete, EnvSpec, GroupSpec, TimeStep

SPEC = EnvSpec(groups={"agents": GroupSpec(num_agents=3, observation_shape=(1,), action=Discrete(9))}, time_limit=4)


def player(number: int) -> Algorithm:
    """Always plays `number` times its parameter, which is 1."""

    def act(acting: Any, timestep: TimeStep, carry: Any, key: Any, explore: bool) -> tuple[Any, dict[str, Any], Any]:
        shape = timestep.groups["agents"].alive.shape
        return jnp.full(shape, number) * acting, {}, carry

    return Algorithm(
        init=lambda key: jnp.int32(1), initial_carry=lambda n: (), act=act, update=lambda *_: ((), {}, None)
    )


def seated(*seats: Seat, rotate: bool = False) -> tuple[Algorithm, SeatedActing]:
    team = seat_partners(make_team({"agents": player(1)}), seats, SPEC, rotate=rotate)
    one = jnp.int32(1)
    return team, SeatedActing(own={"agents": one}, partners=tuple((one,) * len(seat.partners) for seat in seats))


def step(num_envs: int, last: bool = False) -> TimeStep:
    timestep = jax.vmap(lambda o: first_step({"agents": o}))(jnp.zeros((num_envs, 3, 1)))
    return dataclasses.replace(timestep, last=jnp.full(num_envs, last))


def test_partners_play_their_seats_and_the_team_the_rest() -> None:
    seats = [Seat(group="agents", index=index, partners=(player(number),)) for index, number in ((1, 5), (2, 6))]
    team, state = seated(*seats)
    actions, extras, _ = team.act(team.acting(state), step(2), team.initial_carry(2), jax.random.key(0), True)
    assert actions["agents"].tolist() == [[1, 5, 6]] * 2
    assert extras["agents"][OWN].tolist() == [[True, False, False]] * 2


def test_a_whole_group_leaves_nothing_to_the_team() -> None:
    team, state = seated(Seat(group="agents", index=None, partners=(player(7),)))
    actions, extras, _ = team.act(team.acting(state), step(1), team.initial_carry(1), jax.random.key(0), True)
    assert not extras["agents"][OWN].any()
    assert actions["agents"].tolist() == [[7, 7, 7]]


def test_of_several_one_is_drawn_for_each_episode() -> None:
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


def test_rotating_seats_take_every_place_alike() -> None:
    team, state = seated(Seat(group="agents", index=1, partners=(player(5),)), rotate=True)
    carry, acting = team.initial_carry(600), team.acting(state)
    first, extras, carry = team.act(acting, step(600), carry, jax.random.key(0), True)
    taken = np.asarray(first["agents"] == 5)
    assert (taken.sum(1) == 1).all() and (np.abs(taken.mean(0) - 1 / 3) < 0.08).all()
    np.testing.assert_array_equal(extras["agents"][OWN], ~taken)
    second, _, _ = team.act(acting, step(600), carry, jax.random.key(1), True)
    np.testing.assert_array_equal(first["agents"], second["agents"])


def test_only_the_teams_own_agents_are_scored() -> None:
    timestep = step(1)
    group = dataclasses.replace(timestep.groups["agents"], reward=jnp.array([[1.0, 3.0, 100.0]]))
    timestep = dataclasses.replace(timestep, groups={"agents": group})
    scored = score_played(timestep, played_by_team({"agents": {OWN: jnp.array([[True, True, False]])}}))
    assert float(scored.groups["agents"].reward.mean()) == 2.0  # (1 + 3) / 2


# --------------------------------------------------------------------------------------------------------- learning


def one_step(team: Algorithm, state: Any, num_envs: int, reward: Any) -> Batch:
    """A batch of one step, which ends its episode: `[1, B, …]`."""
    before = step(num_envs)
    actions, extras, _ = team.act(team.acting(state), before, team.initial_carry(num_envs), jax.random.key(5), True)
    ended = jnp.ones(num_envs, bool)
    group = dataclasses.replace(
        before.groups["agents"], reward=jnp.asarray(reward, jnp.float32), terminated=jnp.ones((num_envs, 3), bool)
    )
    after = dataclasses.replace(before, groups={"agents": group}, last=ended)
    transition = make_transition("agents", before, actions["agents"], extras["agents"], after)
    transitions = {"agents": jax.tree.map(lambda x: x[None], transition)}
    carry = learned_carry(team.initial_carry(num_envs))
    return Batch(transitions=transitions, carries=carry, final=after, final_carry=carry)


def ppo_beside(*partners: Algorithm, **fields: Any) -> tuple[Algorithm, SeatedActing]:
    config = {"epochs": 1, "num_minibatches": 1, "value_normalisation": False, "entropy_coef": 0.0} | fields
    own = make_algorithm("ippo", SPEC, advantage_normalisation=AdvantageNormalisation.none, **config)
    team = seat_partners(own, [Seat(group="agents", index=1, partners=partners)], SPEC)
    state = team.init(jax.random.key(0))
    return team, dataclasses.replace(state, partners=((jnp.int32(1),) * len(partners),))


def test_only_the_teams_own_steps_are_in_the_loss_of_ppo() -> None:
    """By hand: with values 0.5, ratios 1 and ends after one step, the policy's loss is minus the mean of r − 0.5."""
    team, state = ppo_beside(player(5))
    batch = one_step(team, state, 2, [[2.0, 100.0, 1.0], [1.0, -7.0, 4.0]])
    steps = batch.transitions["agents"]
    extras = steps.extras | {"value": jnp.full((1, 2, 3), 0.5)}
    batch = dataclasses.replace(batch, transitions={"agents": dataclasses.replace(steps, extras=extras)})
    _, metrics, _ = team.update(state, batch, jax.random.key(1), jnp.float32(0))
    # own: 1.5, 0.5, 0.5, 3.5; the partner's 99.5 and −7.5 are in no mean
    np.testing.assert_allclose(metrics["agents/policy_loss"], -(1.5 + 0.5 + 0.5 + 3.5) / 4, rtol=1e-5)


def test_what_a_partner_earns_and_did_changes_no_bit() -> None:
    team, state = ppo_beside(player(5))
    rewards = np.array([[2.0, 100.0, 1.0], [1.0, -7.0, 4.0]])
    batch = one_step(team, state, 2, rewards)
    other = one_step(team, state, 2, rewards * [1, -3, 1])
    steps = other.transitions["agents"]
    extras = dict(steps.extras)
    for name in ("log_prob", "value"):
        extras[name] = extras[name].at[:, :, 1].add(0.7)
    other = dataclasses.replace(other, transitions={"agents": dataclasses.replace(steps, extras=extras)})
    after, *_ = team.update(state, batch, jax.random.key(1), jnp.float32(0))
    same, *_ = team.update(state, other, jax.random.key(1), jnp.float32(0))
    jax.tree.map(np.testing.assert_array_equal, after, same)
    jax.tree.map(np.testing.assert_array_equal, after.partners, state.partners)
    changed = jax.tree.leaves(jax.tree.map(lambda a, b: bool((a != b).any()), after.own, state.own))
    assert any(changed)


def test_the_state_begins_with_zeros_for_partners() -> None:
    team, _ = ppo_beside(player(5), player(6))
    assert [int(value) for value in jax.tree.leaves(team.init(jax.random.key(0)).partners)] == [0, 0]


def counter() -> Algorithm:
    """Counts its steps in its memory, and plays the count and what it sees."""

    def act(acting: Any, timestep: TimeStep, carry: Any, key: Any, explore: bool) -> tuple[Any, dict[str, Any], Any]:
        carry = jnp.where(timestep.last, 0, carry)
        seen = timestep.groups["agents"].observation[..., 0].astype(jnp.int32)
        return seen + carry[:, None], {}, carry + 1

    return Algorithm(
        init=lambda key: (), initial_carry=lambda n: jnp.zeros(n, jnp.int32), act=act, update=lambda *_: ((), {}, None)
    )


def test_partners_say_what_they_do_next() -> None:
    """Each at the true successor, with its own memory after the step; of two, the one that was drawn."""
    seats = [
        Seat(group="agents", index=0, partners=(counter(),)),
        Seat(group="agents", index=2, partners=(player(5), player(6))),
    ]
    team, state = seated(*seats)
    state = dataclasses.replace(state, partners=(((),), state.partners[1]))
    carry = team.initial_carry(6)
    for last in (False, False):  # two steps: the counter has counted to 2
        before = step(6, last=last)
        actions, extras, carry = team.act(team.acting(state), before, carry, jax.random.key(3), True)
    seen = {"agents": dataclasses.replace(before.groups["agents"], next_observation=jnp.full((6, 3, 1), 3.0))}
    after = dataclasses.replace(before, groups=seen)
    steps = make_transition("agents", before, actions["agents"], extras["agents"], after)
    steps = jax.tree.map(lambda x: x[None], steps)
    action = partners_next_action(seats, "agents", state.partners, steps, jax.random.key(0))
    assert action.shape == (1, 6, 3)
    assert action[0, :, 0].tolist() == [3 + 2] * 6 and action[0, :, 1].tolist() == [0] * 6
    np.testing.assert_array_equal(action[0, :, 2], np.where(carry.drawn[1] == 0, 5, 6))
    assert set(np.asarray(carry.drawn[1])) == {0, 1}
    own = jnp.full((1, 6, 3), 8)
    beside = beside_partners(own, {OWN: extras["agents"][OWN][None], NEXT_ACTION: action})
    assert beside[0, 0].tolist() == [5, 8, int(action[0, 0, 2])]
    assert beside_partners(own, {}) is own


def test_partners_act_while_the_team_explores_at_random() -> None:
    team, state = seated(Seat(group="agents", index=1, partners=(player(5),)))
    explorer = at_random_while(jnp.bool_(True), team, SPEC)
    actions, _, _ = explorer.act(team.acting(state), step(200), team.initial_carry(200), jax.random.key(0), True)
    assert (actions["agents"][:, 1] == 5).all()
    assert len(np.unique(actions["agents"][:, 0])) == 9


def test_groups_that_partners_take_whole() -> None:
    team, _ = seated(Seat(group="agents", index=1, partners=(player(5),)))
    assert taken_groups(team, SPEC) == ()
    others = make_team({"others": player(1)})
    assert taken_groups(others, SPEC) == ("agents",)
