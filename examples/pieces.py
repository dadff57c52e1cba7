"""The pieces without the experiment: make an environment and an algorithm, then collect and update by hand.

This is what `covey.loops.online` compiles, without devices, chunks, checkpoints and logs: start here if you want a loop
of your own.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

import covey
from covey.envs.batch import BatchedEnv
from covey.envs.wrappers import AgentIds
from covey.loops.rollout import Actor, episode_means, init_actor, unroll
from covey.types import Array, Batch, Key, PyTree

NUM_ENVS, NUM_STEPS, NUM_ITERATIONS = 32, 64, 30


def main() -> None:
    # An environment is one environment: `reset(key)`, `step(state, actions, key)`, `spec`. `BatchedEnv` runs many and
    # resets those that end.
    env = AgentIds(covey.make_env("lbf/8x8-2p-2f-coop", time_limit=50))
    batched = BatchedEnv(env=env, num_envs=NUM_ENVS)

    # An algorithm is made for a task's spec. Its functions are pure: you hold the state.
    algorithm = covey.make_algorithm("ippo", env.spec, model=covey.make_model("mlp", layers=(64, 64)), lr=1e-3)

    @jax.jit
    def iterate(learner: PyTree, actor: Actor, key: Key, progress: Array) -> tuple[PyTree, Actor, dict[str, Any]]:
        key_collect, key_update = jax.random.split(key)
        acting = algorithm.acting(learner)  # the part of the learner that acts: parameters, but no optimiser
        after, transitions, ended = unroll(batched, algorithm, acting, actor, key_collect, NUM_STEPS)
        batch = Batch(
            transitions=transitions, carries=actor.carry, final=after.timestep, final_carry=after.carry
        )  # transitions are `[T, B, A, …]`; values bootstrap from `final`
        learner, metrics, _ = algorithm.update(learner, batch, key_update, progress)
        return learner, after, metrics | episode_means(ended)

    key_learner, key_actor, key_train = jax.random.split(jax.random.key(0), 3)
    learner = jax.jit(algorithm.init)(key_learner)
    actor = jax.jit(lambda key: init_actor(batched, algorithm, key))(key_actor)
    for number in range(NUM_ITERATIONS):
        key_iteration = jax.random.fold_in(key_train, number)
        progress = jnp.float32(number / NUM_ITERATIONS)  # from 0 to 1: what schedules go by
        learner, actor, metrics = iterate(learner, actor, key_iteration, progress)
        if number % 10 == 9:
            print(f"iteration {number + 1}: return {metrics['mean_return']:.3f}, kl {metrics['agents/kl']:.4f}")


if __name__ == "__main__":
    main()
