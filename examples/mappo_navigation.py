"""MAPPO on VMAS navigation, from its pieces: three agents find their goals without running into each other.

The setting is that of the well-known introduction to multi-agent PPO with TorchRL: 60 environments, batches of 6,000
frames, 30 epochs of minibatches of 400, a shared reward. Run it with a number of iterations (default 10):

    python examples/mappo_navigation.py 20

It prints the return of each iteration and draws the learning curve into mappo_navigation.png. `CENTRALISED = False`
makes it IPPO, and `SHARE_PARAMETERS = False` gives each agent its own network.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib
import matplotlib.pyplot as plt

import covey
from covey.envs.batch import BatchedEnv
from covey.loops.rollout import Actor, episode_means, init_actor, unroll
from covey.types import Array, Batch, Key, PyTree

# Collection
NUM_ENVS, NUM_STEPS = 60, 100  # 6,000 frames an iteration
NUM_AGENTS = 3

# Learning
CENTRALISED = True  # the critic sees what all agents see
SHARE_PARAMETERS = True
PPO: dict[str, Any] = {
    "lr": 3e-4,
    "lr_schedule": "constant",
    "epochs": 30,
    "minibatch_size": 400,
    "clip": 0.2,
    "gamma": 0.99,
    "gae_lambda": 0.9,
    "entropy_coef": 1e-4,
    "max_grad_norm": 1.0,
    "value_coef": 1.0,
    "advantage_normalisation": "none",
    "value_normalisation": False,
    "share_parameters": SHARE_PARAMETERS,
    "share_critic_parameters": SHARE_PARAMETERS,
}


def main() -> None:
    num_iterations = int(sys.argv[1]) if len(sys.argv) > 1 else 10

    # An environment is one environment, a pure function of its state; `BatchedEnv` runs many and resets those that end.
    env = covey.make_env("vmas/navigation", n_agents=NUM_AGENTS, shared_rew=True)
    batched = BatchedEnv(env=env, num_envs=NUM_ENVS)
    for group, spec in env.spec.groups.items():
        print(f"{group}: {spec.num_agents} agents see {spec.observation_shape} and choose from {spec.action}")

    # An algorithm is a bundle of pure functions: init, act, update. Actor and critic are made from the model.
    algorithm = covey.make_algorithm(
        "mappo" if CENTRALISED else "ippo",
        env.spec,
        model=covey.make_model("mlp", layers=(256, 256), activation="tanh"),
        **PPO,
    )

    @jax.jit
    def iterate(learner: PyTree, actor: Actor, key: Key, progress: Array) -> tuple[PyTree, Actor, dict[str, Any]]:
        """Collects a batch and learns from it: one compiled program."""
        key_collect, key_update = jax.random.split(key)
        acting = algorithm.acting(learner)  # the part of the learner that acts: parameters, but no optimiser
        after, transitions, ended = unroll(batched, algorithm, acting, actor, key_collect, NUM_STEPS)
        # Transitions are [T, B, A, …]. Values bootstrap from `final`, the time step after the last of them.
        batch = Batch(transitions=transitions, carries=actor.carry, final=after.timestep, final_carry=after.carry)
        learner, metrics, _ = algorithm.update(learner, batch, key_update, progress)
        return learner, after, metrics | episode_means(ended)

    key_learner, key_actor, key_train = jax.random.split(jax.random.key(0), 3)
    learner = jax.jit(algorithm.init)(key_learner)
    actor = jax.jit(lambda key: init_actor(batched, algorithm, key))(key_actor)

    returns = []
    for number in range(num_iterations):
        start = time.monotonic()
        key_iteration = jax.random.fold_in(key_train, number)
        learner, actor, metrics = iterate(learner, actor, key_iteration, jnp.float32(number / num_iterations))
        returns.append(float(metrics["mean_return"]))
        seconds = time.monotonic() - start
        print(f"iteration {number + 1:3d}: return {returns[-1]:6.3f}, {seconds:.1f} s{'' if number else ', compiled'}")

    draw_curve(returns)


def draw_curve(returns: list[float]) -> None:
    matplotlib.use("agg")
    figure, axes = plt.subplots(figsize=(6, 4))
    frames = [(i + 1) * NUM_ENVS * NUM_STEPS for i in range(len(returns))]
    axes.plot(frames, returns, marker="o")
    axes.set_xlabel("frames")
    axes.set_ylabel("return of an episode, mean over agents")
    axes.set_title("MAPPO on vmas/navigation")
    axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig("mappo_navigation.png", dpi=120)
    print("drew mappo_navigation.png")


if __name__ == "__main__":
    main()
