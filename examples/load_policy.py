"""A trained team, loaded: act with it, look inside it.

The task shows a cue at the first step and asks for it at the last, so the team needs memory, and you can watch it.
"""

from __future__ import annotations

import jax
import numpy as np

import covey


def train() -> str:
    experiment = covey.Experiment(
        algorithm="ippo",
        task="probe/memory",
        model="gru",
        fields={
            "model.layers": [16],
            "model.hidden_size": 16,
            "model.layers_after": [],
            "algorithm.lr": 3e-3,
            "algorithm.num_minibatches": 2,
            "experiment.frames": 30_000,
            "experiment.num_envs": 32,
            "experiment.rollout_length": 10,
            "experiment.evaluation_interval": 0,
            "experiment.absolute_metric": False,
            "experiment.loggers": [],
        },
    )
    [summary] = experiment.run()
    return str(summary.run_directory)


def main() -> None:
    policy = covey.load(train())

    # The task itself, as any code of yours might run it: one environment, no batch. Observations are `[A, …]`.
    env = covey.make_env("probe/memory")
    reset, step = jax.jit(env.reset), jax.jit(env.step)
    total = np.zeros(2)
    for episode in range(20):
        key = jax.random.key(episode)
        state, timestep = reset(key)
        carry = None  # a new episode begins with an empty memory
        while not timestep.last:
            agents = timestep.groups["agents"]
            action, carry = policy.act(agents.observation, agents.action_mask, carry)  # greedy; `key=` samples
            state, timestep = step(state, {"agents": action}, key)
            total += timestep.groups["agents"].reward
    print(f"mean return of each agent over 20 episodes: {total / 20}")

    # Parameters are a plain nested dict of NumPy arrays, by group.
    for path, array in jax.tree_util.tree_leaves_with_path(policy.parameters["agents"]["actor"]):
        print(f"{jax.tree_util.keystr(path):<45} {array.shape}")

    # The output of every module of every network for one observation: here, the actor's for the two cues.
    first, second = (policy.activations(np.full((2, 1), cue, np.float32))["agents/actor"] for cue in (-1.0, 1.0))
    changed = jax.tree.map(lambda a, b: float(np.abs(a - b).mean()), first, second)
    for path, difference in jax.tree_util.tree_leaves_with_path(changed):
        print(f"{jax.tree_util.keystr(path):<50} the cue changes it by {difference:.3f}")


if __name__ == "__main__":
    main()
