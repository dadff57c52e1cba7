"""The built-in algorithms."""

from covey.registry import register_algorithm

register_algorithm(
    "ippo",
    "covey.algorithms.ppo:make_ppo",
    config="covey.algorithms.ppo:IPPO",
    description="PPO, each agent's critic seeing its own observation",
)
register_algorithm(
    "mappo",
    "covey.algorithms.ppo:make_ppo",
    config="covey.algorithms.ppo:MAPPO",
    description="PPO with a critic that sees the global state or all observations",
)
