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
for _name, _description in {
    "iql": "Q-learning, each agent by itself",
    "vdn": "Q-learning of the team's value as the sum of the agents'",
    "qmix": "Q-learning of the team's value as a monotonic mix of the agents', weighted by the global state",
}.items():
    register_algorithm(
        _name,
        "covey.algorithms.qlearning:make_qlearning",
        config=f"covey.algorithms.qlearning:{_name.upper()}",
        description=_description,
        loop="replay",
    )
for _name, _file, _description in (
    ("isac", "sac", "soft actor-critic, each agent's critics seeing its own observation and action"),
    ("masac", "sac", "soft actor-critic with critics that see everyone's observations and actions"),
    ("iddpg", "ddpg", "deterministic policy gradient, each agent by itself"),
    ("maddpg", "ddpg", "deterministic policy gradient with critics that see everyone's observations and actions"),
    ("itd3", "ddpg", "iddpg with twin critics, target smoothing and a delayed policy"),
    ("matd3", "ddpg", "maddpg with twin critics, target smoothing and a delayed policy"),
):
    register_algorithm(
        _name,
        f"covey.algorithms.{_file}:make_{_file}",
        config=f"covey.algorithms.{_file}:{_name.upper()}",
        description=_description,
        loop="replay",
    )
register_algorithm(
    "pqn",
    "covey.algorithms.pqn:make_pqn",
    config="covey.algorithms.pqn:PQN",
    description="Q-learning of the team's value from many environments, without replay or target networks",
)
