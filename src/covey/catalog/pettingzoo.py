"""Tasks of PettingZoo, mpe2 and MAgent2: simulators that covey steps in processes."""

from __future__ import annotations

from covey.registry import register_task

MODULE = "covey.envs.host.pettingzoo"

register_task(
    "pettingzoo/any",
    f"{MODULE}.general:make_any",
    config=f"{MODULE}.general:AnyConfig",
    description="PettingZoo: any environment with its interface, by the name of its module",
    host=True,
)
register_task(
    "pettingzoo/multiwalker",
    f"{MODULE}.sisl:Multiwalker",
    config=f"{MODULE}.sisl:MultiwalkerConfig",
    description="PettingZoo: bipedal walkers carry a package together, on their heads",
    host=True,
)
register_task(
    "pettingzoo/pursuit",
    f"{MODULE}.sisl:Pursuit",
    config=f"{MODULE}.sisl:PursuitConfig",
    description="PettingZoo: pursuers surround evaders on a grid",
    host=True,
)

# scenario, its configuration, what it is about
PARTICLES = [
    ("simple_adversary", "AdversaryConfig", "agents hide their goal from an adversary"),
    ("simple_crypto", "CryptoConfig", "alice and bob share a key and a secret, eve listens in"),
    ("simple_push", "PushConfig", "an adversary keeps an agent away from its goal"),
    ("simple_reference", "ReferenceConfig", "two agents tell each other where to go"),
    ("simple_speaker_listener", "SpeakerListenerConfig", "a speaker tells a listener where to go"),
    ("simple_spread", "SpreadConfig", "a team covers all landmarks without colliding"),
    ("simple_tag", "TagConfig", "slow adversaries chase fast agents"),
    ("simple_world_comm", "WorldCommConfig", "a leader directs hunters; food and forests"),
]

for scenario, config, description in PARTICLES:
    register_task(
        f"pettingzoo/{scenario}",
        f"{MODULE}.mpe:Particles",
        config=f"{MODULE}.mpe:{config}",
        description=f"MPE by mpe2: {description}",
        host=True,
    )
