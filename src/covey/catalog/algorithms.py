"""The built-in algorithms."""

from covey.registry import ActionKind, Capabilities, register_algorithm

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
register_algorithm(
    "impala",
    "covey.algorithms.impala:make_impala",
    config="covey.algorithms.impala:IMPALA",
    description="actor-critic with V-trace, which corrects for experience that an older policy collected",
)
for _name, _description in (
    ("iql", "Q-learning, each agent by itself"),
    ("vdn", "Q-learning of the team's value as the sum of the agents'"),
    ("qmix", "Q-learning of the team's value as a monotonic mix of the agents', weighted by the global state"),
):
    register_algorithm(
        _name,
        "covey.algorithms.qlearning:make_qlearning",
        config=f"covey.algorithms.qlearning:{_name.upper()}",
        description=_description,
        capabilities=Capabilities(actions=(ActionKind.discrete,), loops=("replay",), evaluates_greedily=True),
    )
for _name, _description in (
    ("isac", "soft actor-critic, each agent's critics seeing its own observation and action"),
    ("masac", "soft actor-critic with critics that see everyone's observations and actions"),
):
    register_algorithm(
        _name,
        "covey.algorithms.sac:make_sac",
        config=f"covey.algorithms.sac:{_name.upper()}",
        description=_description,
        capabilities=Capabilities(actions=(ActionKind.continuous, ActionKind.discrete), loops=("replay",)),
    )
for _name, _description in (
    ("iddpg", "deterministic policy gradient, each agent by itself"),
    ("maddpg", "deterministic policy gradient with critics that see everyone's observations and actions"),
    ("itd3", "iddpg with twin critics, target smoothing and a delayed policy"),
    ("matd3", "maddpg with twin critics, target smoothing and a delayed policy"),
):
    register_algorithm(
        _name,
        "covey.algorithms.ddpg:make_ddpg",
        config=f"covey.algorithms.ddpg:{_name.upper()}",
        description=_description,
        capabilities=Capabilities(actions=(ActionKind.continuous,), loops=("replay",)),
    )
register_algorithm(
    "pqn",
    "covey.algorithms.pqn:make_pqn",
    config="covey.algorithms.pqn:PQN",
    description="Q-learning of the team's value from many environments, without replay or target networks",
    capabilities=Capabilities(
        actions=(ActionKind.discrete,),
        evaluates_greedily=True,
        model_defaults={"norm": "layer"},  # without target networks, only the norm keeps it stable
    ),
)
