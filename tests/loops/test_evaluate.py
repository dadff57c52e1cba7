"""Evaluation plays one episode per environment, and exactly what a plain loop plays."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import MakeTeam

from covey.envs.batch import episode_values
from covey.experiment.running.build import make_evaluate
from covey.loops.evaluate import play_episodes

EPISODES = 6


@pytest.mark.parametrize("task", ["probe/memory", "probe/truncation"])
def test_equals_a_plain_loop(fresh: MakeTeam, task: str) -> None:
    team = fresh(task, model="gru", iterations=0)
    env, algorithm, key = team.env, team.algorithm, jax.random.key(4)
    acting = algorithm.acting(team.learner)
    values = jax.device_get(
        jax.jit(
            lambda acting, key: episode_values(
                play_episodes(env, algorithm, acting, key, num_episodes=EPISODES, deterministic=False)
            )
        )(acting, key)
    )

    key_reset, key_play = jax.random.split(key)
    act, step = jax.jit(algorithm.act, static_argnums=4), jax.jit(jax.vmap(env.step))
    state, timestep = jax.vmap(env.reset)(jax.random.split(key_reset, EPISODES))
    carry, returns, lengths = algorithm.initial_carry(EPISODES), np.zeros(EPISODES), np.zeros(EPISODES, int)
    done = np.zeros(EPISODES, bool)
    for t in range(env.spec.time_limit):
        key_act, key_env = jax.random.split(jax.random.fold_in(key_play, t))
        actions, _, carry = act(acting, timestep, carry, key_act, True)
        state, timestep = step(state, actions, jax.random.split(key_env, EPISODES))
        returns += np.where(done, 0.0, np.asarray(timestep.groups["agents"].reward).mean(-1))
        lengths += ~done
        done |= np.asarray(timestep.last)
    assert done.all()
    np.testing.assert_allclose(values["mean_return"], returns, atol=1e-6)
    np.testing.assert_array_equal(values["agents_return"], values["mean_return"])
    np.testing.assert_array_equal(values["episode_length"], lengths)
    assert np.all(lengths == {"probe/memory": 5, "probe/truncation": 10}[task])


def test_what_happens_after_an_end_does_not_count(fresh: MakeTeam) -> None:
    """`death` goes on paying; each environment's one episode is four steps and no more."""
    team = fresh("probe/death", iterations=0)
    evaluate = make_evaluate(team.env, team.algorithm, EPISODES, False, jax.devices()[:1])
    assert np.all(evaluate(team.learner, jax.random.key(0))["episode_length"] == 4)


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        (("task.time_limit=3", "task.time_limit_terminates=true"), (2 + 3) / 2),  # agent 0 earns 2 and dies
        (("task.reward=team_sum",), (2 * 2 + 2 * 2 + 2 * 1) / 2),  # both earn 2 in each of two steps, then agent 1 one
    ],
)
def test_what_the_dead_are_offered_reaches_no_return_and_no_reward(
    fresh: MakeTeam, fields: tuple[str, ...], wanted: float
) -> None:
    team = fresh("probe/death", *fields, iterations=0)
    assert team.returns(num_episodes=2) == {"agents": wanted}
    played = team.transitions()["agents"]
    assert played.reward[played.alive].max() <= 2.0


def test_groups_and_their_mean(fresh: MakeTeam) -> None:
    team = fresh("probe/groups", iterations=0)
    evaluate = make_evaluate(team.env, team.algorithm, 9, False, jax.devices()[:1])
    values = jax.device_get(evaluate(team.learner, jax.random.key(0)))
    assert set(values) == {"mean_return", "copiers_return", "guessers_return", "episode_length"}
    np.testing.assert_allclose(values["mean_return"], (values["copiers_return"] + values["guessers_return"]) / 2)


@pytest.mark.parametrize("episodes", [1, 5, 8])
def test_exactly_as_many_episodes_on_two_devices(fresh: MakeTeam, episodes: int) -> None:
    team = fresh("probe/copy", iterations=0, num_devices=2)
    values = make_evaluate(team.env, team.algorithm, episodes, False, jax.devices()[:2])(
        team.learner, jax.random.key(0)
    )
    assert values["mean_return"].shape == (episodes,)


def test_keys_and_determinism(trained: MakeTeam) -> None:
    team = trained("probe/copy", iterations=60)
    sampled = make_evaluate(team.env, team.algorithm, 64, False, jax.devices()[:1])
    one, again, other = (sampled(team.learner, jax.random.key(seed))["mean_return"] for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, again)
    greedy = make_evaluate(team.env, team.algorithm, 64, True, jax.devices()[:1])
    assert np.all(greedy(team.learner, jax.random.key(1))["mean_return"] == 1.0)
    assert other.shape == (64,) and jnp.isfinite(other).all()
