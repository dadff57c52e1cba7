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
    "pettingzoo/multiwalker_shared",
    f"{MODULE}.sisl:Multiwalker",
    config=f"{MODULE}.sisl:MultiwalkerConfig",
    fields={"reward": "shared"},
    description="PettingZoo: bipedal walkers carry a package together, each rewarded by the mean of their rewards",
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

# name, what makes it, its configuration, what it is about
OTHERS = [
    ("knights_archers_zombies", "butterfly:Kaz", "butterfly:KazConfig", "archers and knights keep zombies off"),
    (
        "cooperative_pong",
        "parallel:ParallelSimulator",
        "butterfly:CooperativePongConfig",
        "two paddles keep a ball in play, seen as pixels",
    ),
    (
        "pistonball",
        "parallel:ParallelSimulator",
        "butterfly:PistonballConfig",
        "pistons move a ball to the left, seen as pixels",
    ),
    ("connect_four", "turns:AecSimulator", "classic:ConnectFourConfig", "two opponents line up four, in turns"),
    ("tictactoe", "turns:AecSimulator", "classic:TicTacToeConfig", "two opponents line up three, in turns"),
    ("leduc_holdem", "turns:AecSimulator", "classic:LeducConfig", "two opponents play a small poker, in turns"),
    (
        "hanabi",
        "turns:AecSimulator",
        "classic:HanabiConfig",
        "players build fireworks of cards they cannot see, in turns",
    ),
]

for name, make, config, description in OTHERS:
    register_task(
        f"pettingzoo/{name}",
        f"{MODULE}.{make}",
        config=f"{MODULE}.{config}",
        description=f"PettingZoo: {description}",
        host=True,
    )

register_task(
    "magent2/battle",
    f"{MODULE}.magent2:Battle",
    config=f"{MODULE}.magent2:BattleConfig",
    description="MAgent2: two armies fight on a grid",
    host=True,
)
register_task(
    "magent2/adversarial_pursuit",
    f"{MODULE}.parallel:ParallelSimulator",
    config=f"{MODULE}.magent2:AdversarialPursuitConfig",
    description="MAgent2: slow predators tag fast prey on a grid",
    host=True,
)
