"""A task of covey in a plain PettingZoo loop: played at random, then by a team that covey trained.

    python examples/pettingzoo_loop.py 600_000

The number is how many frames the team trains for (default 300,000). PettingZoo is an extra of covey:
`pip install 'covey[pettingzoo]'`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from pettingzoo import ParallelEnv

import covey

TASK, FIELDS = "vmas/navigation", {"n_agents": 2, "time_limit": 50}
EPISODES = 10

# From observations and infos, both by agent, to actions by agent.
Act = Callable[[dict[str, Any], dict[str, Any]], dict[str, Any]]


def train(frames: int) -> str:
    experiment = covey.Experiment(
        algorithm="mappo",
        task=TASK,
        fields={
            **{f"task.{name}": value for name, value in FIELDS.items()},
            "experiment.frames": frames,
            "experiment.evaluation_interval": 0,
            "experiment.absolute_metric": False,
            "experiment.loggers": [],
        },
    )
    [summary] = experiment.run()
    return str(summary.run_directory)


def play(env: ParallelEnv, act: Act, start: Callable[[], None] = lambda: None) -> float:
    """Mean return of an agent over some episodes. Nothing here knows of covey."""
    total = 0.0
    for seed in range(EPISODES):
        observations, infos = env.reset(seed=seed)
        start()
        while env.agents:
            actions = act(observations, infos)
            observations, rewards, _, _, infos = env.step(actions)
            total += sum(rewards.values())
    return total / EPISODES / env.max_num_agents


def main() -> None:
    env = covey.to_pettingzoo(TASK, **FIELDS)
    print(f"{env!r}, agents {', '.join(env.possible_agents)}")
    print(f"each sees {env.observation_space('agents_0')} and acts in {env.action_space('agents_0')}")

    def at_random(observations: dict[str, Any], infos: dict[str, Any]) -> dict[str, Any]:
        return {agent: env.action_space(agent).sample(infos[agent].get("action_mask")) for agent in env.agents}

    print(f"mean return at random:      {play(env, at_random):.3f}")

    policy = covey.load(train(frames=int(sys.argv[1]) if len(sys.argv) > 1 else 300_000))
    player = policy.for_pettingzoo(env)  # greedy; with `seed=0`, sampled
    print(f"mean return of {policy!r}: {play(env, player, player.reset):.3f}")


if __name__ == "__main__":
    main()
