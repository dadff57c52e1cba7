"""The compiled loop: how the host cuts training into chunks changes no bit and compiles nothing; devices agree."""

from __future__ import annotations

import dataclasses
import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import MakeTeam, SameBits, Team

from covey.algorithms.base import Hooks, make_team
from covey.data.replay import Replay
from covey.envs.base import first_step, make_env
from covey.envs.batch import BatchedEnv
from covey.loops.learning import ReplayLearning, updates_due
from covey.loops.online import (
    OnlineTraining,
    TrainState,
    add_shaping,
    at_random_while,
    collect_batch,
    learn,
    learn_iteration,
    restored_state,
    saved_parts,
    shaping_factor,
    state_parts,
)
from covey.loops.rollout import init_actor
from covey.types import Algorithm, Batch, Discrete, EnvSpec, GroupSpec, Transition

TASK = ("probe/memory", "algorithm.sequence_length=4", "algorithm.epochs=2")
OPTIONS = {"model": "gru", "num_envs": 8, "rollout_length": 8, "iterations": 7}


@pytest.fixture(scope="module")
def team(fresh: MakeTeam) -> Team:
    return fresh(*TASK, **OPTIONS)


def run(loop: Any, chunks: list[int]) -> tuple[Any, dict[str, np.ndarray]]:
    state, histories = loop.init(jax.random.key(0)), []
    for size in chunks:
        state, history = loop.advance(state, jnp.int32(size))
        histories.append({name: np.asarray(values)[:size] for name, values in history.items()})
    metrics = {name: np.concatenate([history[name] for history in histories]) for name in histories[0]}
    return jax.device_get(jax.tree.map(as_numbers, state)), metrics


def as_numbers(leaf: Any) -> Any:
    return jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf


def test_chunks_change_no_bit_and_compile_once(team: Team, same_bits: SameBits) -> None:
    whole = run(team.loop, [7])
    assert int(whole[0].iteration) == 7
    assert all(np.isfinite(values).all() for name, values in whole[1].items() if not name.startswith("collection/"))
    compiled: list[str] = []

    def listen(event: str, duration_secs: float, **details: str | int) -> None:
        if "backend_compile" in event:
            compiled.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    for chunks in ([1] * 7, [3, 4]):
        same_bits(run(team.loop, chunks), whole)
    assert not compiled  # the listener works: the next line compiles
    jax.jit(lambda x: x * 3 - 1)(jnp.arange(5)).block_until_ready()
    assert compiled


def test_a_chunk_beyond_its_size_is_marked(team: Team) -> None:
    _, history = team.loop.advance(team.loop.init(jax.random.key(0)), jnp.int32(2))
    loss = np.asarray(history["agents/policy_loss"])
    assert loss.shape == (7,) and np.isfinite(loss[:2]).all() and np.isnan(loss[2:]).all()


def test_same_seed_same_bits_and_another_seed_others(team: Team, same_bits: SameBits) -> None:
    first, again = (team.loop.advance(team.loop.init(jax.random.key(5)), jnp.int32(2))[0] for _ in range(2))
    same_bits(first, again)
    other, _ = team.loop.advance(team.loop.init(jax.random.key(6)), jnp.int32(2))
    params, others = (jax.tree.leaves(state.learner["agents"].params) for state in (first, other))
    assert not any(np.array_equal(a, b) for a, b in zip(params, others, strict=True))


def test_iterations_draw_new_randomness(team: Team) -> None:
    """Each iteration collects other episodes: the returns of random play are not the same twice in a row."""
    _, metrics = run(team.loop, [7])
    assert len(np.unique(metrics["collection/mean_return"])) > 2


def test_every_parameter_is_trained(team: Team) -> None:
    """A layer that never learns fails here: all arrays differ from where they began."""
    begun = team.loop.init(jax.random.key(0)).learner["agents"].params
    for (path, a), b in zip(
        jax.tree_util.tree_leaves_with_path(begun), jax.tree.leaves(team.learner["agents"].params), strict=True
    ):
        assert not np.array_equal(a, b), jax.tree_util.keystr(path)


def test_collect_leaves_the_learner_alone(team: Team, same_bits: SameBits) -> None:
    state = team.loop.init(jax.random.key(0))
    after, checksum = team.loop.collect(state)
    same_bits(after.learner, state.learner)
    assert np.isfinite(checksum).all()
    with pytest.raises(AssertionError):
        same_bits(after.actor, state.actor)


# -------------------------------------------------------------------------------------------------------- two devices


def test_a_run_that_lost_its_buffer_updates_as_it_fills(fresh: MakeTeam) -> None:
    """At the full rate, a trained network would learn from its first 64 frames alone. The share of 8 updates that the
    iteration after a resume makes is that of the buffer which is filled: 8 of 256 steps a row, then 16, …"""
    team = fresh("probe/copy", "model.layers=[8]", algorithm="iql", num_envs=8, rollout_length=8, iterations=40)
    state = team.state
    assert int(state.learner["agents"].updates) == 40 * 8  # never fewer while nothing was lost
    updates = []
    state = dataclasses.replace(state, buffer=team.loop.init(jax.random.key(1)).buffer)
    for _ in range(33):
        before = int(state.learner["agents"].updates)
        state, metrics = team.loop.advance(state, jnp.int32(1))
        updates.append(int(state.learner["agents"].updates) - before)
        assert metrics["updates"][0] == updates[-1]
        if updates[-1]:
            assert np.isfinite(metrics["agents/q_loss"][0]) and metrics["agents/q_loss"][0] > 0
        else:
            assert np.isnan(metrics["agents/q_loss"][0]) and np.isnan(metrics["agents/epsilon"][0])
    assert updates == [round(8 * share / 32) for share in range(1, 33)] + [8]


def test_updates_that_are_due_by_hand() -> None:
    replay = types.SimpleNamespace(length=100)
    learning: Any = types.SimpleNamespace(num_updates=1000, replay=replay)
    cases = ((4, 4, 1000), (100, 100, 1000), (100, 5000, 1000), (1, 50, 20), (1, 5000, 10), (50, 5000, 500))
    for held, collected, due in cases:
        assert updates_due(learning, jnp.int32(held), jnp.int32(collected)) == due


def test_less_than_one_update_is_one_every_few_iterations() -> None:
    """An eighth of an update each: the iterations 7, 15 and 23 make it, counted from 1."""
    learning: Any = types.SimpleNamespace(num_updates=1, replay=types.SimpleNamespace(length=80))
    made = [done for done in range(1, 25) if updates_due(learning, jnp.int32(10), jnp.int32(500), done)]
    assert made == [7, 15, 23]


def test_a_users_hook_cannot_drop_the_number_of_updates(fresh: MakeTeam) -> None:
    """Without it, the host would take the first iterations' NaN for divergence."""
    hooks = Hooks(metrics=lambda metrics: {"double": 2 * metrics["agents/q_loss"]})
    fields = ("model.layers=[8]", "experiment.random_frames=128")
    team = fresh("probe/copy", *fields, algorithm="iql", num_envs=8, rollout_length=8, iterations=3, hooks=hooks)
    assert set(team.metrics) == {"double", "updates"}
    assert team.metrics["updates"].tolist() == [0, 8, 8] and np.isfinite(team.metrics["double"]).tolist() == [0, 1, 1]


def test_environments_split_evenly_over_devices(fresh: MakeTeam) -> None:
    with pytest.raises(ValueError, match="num_envs 5 does not split over 2 devices"):
        fresh("probe/copy", num_envs=5, iterations=0, num_devices=2)


def test_one_update_an_iteration_is_spread_while_a_lost_buffer_fills(fresh: MakeTeam) -> None:
    """Rounded, none would be due until half of the buffer is filled: 16 of 32 iterations."""
    fields = ("model.layers=[8]", "experiment.updates=1")
    team = fresh("probe/copy", *fields, algorithm="iql", num_envs=8, rollout_length=8, iterations=40)
    assert int(team.learner["agents"].updates) == 40
    state = dataclasses.replace(team.state, buffer=team.loop.init(jax.random.key(1)).buffer)
    updates = []
    for _ in range(2):
        state, _ = team.loop.advance(state, jnp.int32(16))
        updates.append(int(state.learner["agents"].updates) - 40)
    assert 2 <= updates[0] <= 5 and updates[1] == updates[0] + 16  # a quarter in the mean, then one each


@pytest.fixture(scope="module")
def pair(fresh: MakeTeam) -> Team:
    return fresh(*TASK, "algorithm.observation_normalisation=true", **OPTIONS, num_devices=2)


def test_two_devices_hold_the_same_learner(pair: Team) -> None:
    assert all(np.isfinite(values).all() for name, values in pair.metrics.items() if not name.startswith("collection/"))
    for leaf in jax.tree.leaves(pair.learner):
        shards = [np.asarray(shard.data) for shard in leaf.addressable_shards]
        assert len(shards) == 2
        np.testing.assert_array_equal(shards[0], shards[1])


def test_two_devices_act_in_environments_of_their_own(pair: Team) -> None:
    observation = pair.state.actor.timestep.groups["agents"].observation
    assert observation.shape[:2] == (2, 4)  # devices, environments of each
    assert len(observation.sharding.device_set) == 2
    cues = np.asarray(pair.state.actor.env.env[0][0])  # [devices, environments, agents]: what is to be remembered
    assert not np.array_equal(cues[0], cues[1])
    moments = pair.learner["agents"].observation_moments
    assert float(moments.weight) == 7 * 8 * 8 * 2  # of both devices' frames


def test_two_devices_learn(fresh: MakeTeam) -> None:
    team = fresh("probe/copy", iterations=60, num_devices=2)
    assert team.metrics["collection/mean_return"][-5:].mean() >= 0.9
    assert team.metrics["collection/episodes"][-1] == 32 * 8  # counted over both


def test_two_devices_repeat_to_the_bit(pair: Team, same_bits: SameBits) -> None:
    one, other = run(pair.loop, [7]), run(pair.loop, [3, 4])
    same_bits(one, other)


def test_nothing_collected_makes_no_more_than_all_updates() -> None:
    """As when speeds are timed, which starts before iteration 0."""
    learning: Any = types.SimpleNamespace(num_updates=4, replay=types.SimpleNamespace(length=16))
    for collected in (-8, 0, 1):
        assert updates_due(learning, jnp.int32(8), jnp.int32(collected)) == 4


# ------------------------------------------------------------------------------------------------- functions by name


def training(algorithm: Algorithm | None = None, **fields: Any) -> OnlineTraining:
    """Of 4 environments, 5 steps an iteration: 20 frames."""
    options: dict[str, Any] = {"rollout_length": 5, "schedule_frames": 100, "devices": jax.devices()[:1]}
    env = BatchedEnv(env=make_env("probe/constant"), num_envs=4)
    return OnlineTraining(env=env, algorithm=algorithm, **options | fields)  # type: ignore[arg-type]


def steps(reward: Any, shaping: Any = None) -> Transition:
    """Of which only rewards matter."""
    rest: dict[str, Any] = {field.name: None for field in dataclasses.fields(Transition)}
    values = {"reward": jnp.asarray(reward), "shaping": None if shaping is None else jnp.asarray(shaping)}
    return Transition(**rest | values)


def test_shaping_falls_to_zero_and_stays_there() -> None:
    """Over 100 frames, of which an iteration has 20."""
    factors = [float(shaping_factor(training(shaping_frames=100), jnp.int32(i))) for i in (0, 1, 3, 5, 8)]
    assert factors == pytest.approx([1.0, 0.8, 0.4, 0.0, 0.0])
    assert [float(shaping_factor(training(), jnp.int32(i))) for i in (0, 1_000_000)] == [1.0, 1.0]


def test_shaping_is_added_where_there_is_some() -> None:
    plain = steps([5.0])
    batch = Batch(transitions={"shaped": steps([1.0, 2.0], [10.0, -20.0]), "plain": plain})
    shaped = add_shaping(batch, jnp.float32(0.5))
    np.testing.assert_allclose(shaped.transitions["shaped"].reward, [6.0, -8.0])
    assert shaped.transitions["plain"] is plain


def counting() -> Algorithm:
    """Each update adds 1 to the learner; its loss is the mean reward."""

    def update(learner: Any, batch: Batch, key: Any, progress: Any) -> tuple[Any, Any, Any]:
        loss = batch.transitions["agents"].reward.mean()
        return learner + 1, {"loss": loss, "progress": progress}, {"agents": loss}

    return Algorithm(
        init=lambda key: None, initial_carry=lambda n: (), act=lambda *_: (None, None, None), update=update
    )


def adding_replay(enough: int) -> Replay:
    """Counts the steps that were added. Its samples are rewards of 3; it can sample once it has `enough` steps."""
    sample = types.SimpleNamespace(batch=Batch(transitions={"agents": steps([3.0])}), indices=None)
    return Replay(
        init=lambda transitions: jnp.int32(0),
        add=lambda state, transitions: state + transitions["agents"].reward.shape[0],
        can_sample=lambda state: state >= enough,
        held=lambda state: state,
        sample=lambda state, key: sample,  # type: ignore[arg-type,return-value]
        set_priorities=lambda state, sample, priorities: state,
        length=100,
    )


def state_of(iteration: int, buffer: Any = ()) -> TrainState:
    actor: Any = ()
    return TrainState(
        learner=jnp.int32(0), actor=actor, key=jax.random.key(0), iteration=jnp.int32(iteration), buffer=buffer
    )


def test_without_replay_an_iteration_updates_once_from_what_it_collected() -> None:
    batch = Batch(transitions={"agents": steps([1.0, 2.0])})
    learner, buffer, metrics = learn(training(counting()), state_of(3), batch, jax.random.key(0), jnp.float32(0.25))
    assert int(learner) == 1 and buffer == ()
    assert float(metrics["loss"]) == 1.5 and float(metrics["progress"]) == 0.25


@pytest.mark.parametrize(
    ("iteration", "held", "updates"), [(0, 0, 0), (1, 5, 4), (1, 0, 0), (9, 45, 4), (9, 20, 2), (50, 95, 4)]
)
def test_with_replay_updates_begin_after_random_play_and_with_enough_steps(
    iteration: int, held: int, updates: int
) -> None:
    """Random play of 40 frames is two iterations, after the second of which learning begins, if ten steps are there.
    After ten iterations, each of 50 steps should be there; where 25 are, half of the four updates are made."""
    learning = ReplayLearning(replay=adding_replay(enough=10), num_updates=4, random_frames=40)
    batch = Batch(transitions={"agents": steps(jnp.zeros(5))})
    state = state_of(iteration, jnp.int32(held))
    learner, buffer, metrics = learn(
        training(counting(), replay_learning=learning), state, batch, jax.random.key(0), jnp.float32(0.0)
    )
    assert int(learner) == updates and int(buffer) == held + 5
    np.testing.assert_equal(float(metrics["loss"]), 3.0 if updates else np.nan)
    assert int(metrics["updates"]) == updates


def test_actions_are_random_while_the_condition_holds() -> None:
    spec = EnvSpec(groups={"agents": GroupSpec(num_agents=2, observation_shape=(1,), action=Discrete(9))}, time_limit=4)

    def act(acting: Any, timestep: Any, carry: Any, key: Any, explore: bool) -> tuple[Any, Any, Any]:
        return jnp.full(timestep.groups["agents"].alive.shape, 7), {"extra": 1}, carry + 1

    always_7 = Algorithm(init=lambda key: (), initial_carry=lambda n: 0, act=act, update=lambda *_: (None, {}, None))
    team = make_team({"agents": always_7})
    shown = jax.vmap(lambda o: first_step({"agents": o}))(jnp.zeros((450, 2, 1)))
    for condition in (False, True):
        player = at_random_while(jnp.bool_(condition), team, spec)
        actions, extras, carry = player.act({"agents": ()}, shown, {"agents": 0}, jax.random.key(0), True)
        shares = np.bincount(np.asarray(actions["agents"]).ravel(), minlength=9) / 900
        np.testing.assert_allclose(shares, np.full(9, 1 / 9) if condition else np.eye(9)[7], atol=0.04)
        assert extras == {"agents": {"extra": 1}} and carry == {"agents": 1}  # what learning needs is the team's own


def test_what_checkpoints_leave_out_stays_as_it_is() -> None:
    learning = ReplayLearning(replay=adding_replay(1), num_updates=1, random_frames=0, in_checkpoints=False)
    actors: list[Any] = [jnp.int32(1), jnp.int32(9)]
    state = dataclasses.replace(state_of(7, buffer=jnp.int32(50)), actor=actors[0])
    assert set(saved_parts(state, state_parts(None))) == {"learner", "actor", "clock"}
    saved = saved_parts(state, state_parts(learning))
    assert set(saved) == {"learner", "actor", "clock"}
    whole = saved_parts(state, state_parts(dataclasses.replace(learning, in_checkpoints=True)))
    assert int(whole["buffer"]) == 50
    fresh = dataclasses.replace(state_of(0, buffer=jnp.int32(0)), actor=actors[1])
    restored = restored_state(fresh, {name: saved[name] for name in ("learner", "clock")})
    assert (int(restored.iteration), int(restored.buffer), restored.actor) == (7, 0, actors[1])


def test_learning_counts_on_and_shapes_rewards_by_how_far_it_is() -> None:
    """Before the third iteration 40 of 100 frames have passed; of shaping that falls over 80, half is left."""
    batch = Batch(transitions={"agents": steps([1.0, 2.0], [10.0, -20.0])})
    state = dataclasses.replace(state_of(2), learner=jnp.int32(7))
    after, metrics = learn_iteration(training(counting(), shaping_frames=80), state, batch, jax.random.key(0))
    assert int(after.iteration) == 3 and int(after.learner) == 8
    assert float(metrics["progress"]) == pytest.approx(0.4)
    assert float(metrics["loss"]) == pytest.approx((1.0 + 5.0 + 2.0 - 10.0) / 2)


def collected(iteration: int = 0, replay: bool = False) -> Batch:
    """What a team collects that always takes the second of two actions, as its learner says. With replay, the first
    two iterations are at random."""

    def act(acting: Any, timestep: Any, carry: Any, key: Any, explore: bool) -> tuple[Any, Any, Any]:
        return jnp.full(timestep.groups["agents"].alive.shape, acting["choice"]), {"explored": explore}, carry

    player = dataclasses.replace(counting(), act=act, initial_carry=lambda n: (), acting=lambda learner: learner)
    team = make_team({"agents": dataclasses.replace(player, sequence_length=1)})
    learning = ReplayLearning(replay=adding_replay(enough=10), num_updates=4, random_frames=40) if replay else None
    played = training(team, replay_learning=learning)
    actor = init_actor(played.env, team, jax.random.key(0))
    learner = {"agents": {"choice": jnp.int32(1)}}
    state = dataclasses.replace(state_of(iteration), learner=learner, actor=actor)
    found: Any = jax.jit(lambda state: collect_batch(played, state, jax.random.key(1)))(state)
    after, sums = found[0], found[2]
    batch: Batch = found[1]
    assert jax.tree.map(jnp.shape, after.timestep) == jax.tree.map(jnp.shape, actor.timestep)
    assert batch.transitions["agents"].reward.shape[:2] == (5, 4)  # steps, environments
    assert float(sums.count) == 5 * 4  # episodes are of one step
    return batch


def test_what_is_collected_is_what_the_learner_does() -> None:
    batch = collected()
    assert (batch.transitions["agents"].action == 1).all() and batch.transitions["agents"].extras["explored"].all()
    assert batch.final is not None and batch.final.groups["agents"].observation.shape[0] == 4


@pytest.mark.parametrize(("iteration", "at_random"), [(0, True), (1, True), (2, False)])
def test_what_is_collected_for_replay_begins_at_random(iteration: int, at_random: bool) -> None:
    batch = collected(iteration, replay=True)
    actions = np.asarray(batch.transitions["agents"].action)
    assert set(actions.ravel()) == ({0, 1} if at_random else {1})
    assert batch.final is None  # samples of a buffer have no end of their own
