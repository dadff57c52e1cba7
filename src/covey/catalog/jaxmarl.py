"""JaxMARL's tasks."""

from __future__ import annotations

from covey.registry import register_task

MODULE = "covey.envs.jaxmarl"


def register_mpe() -> None:
    """Each scenario's name, the function that makes it, its config and what it is about."""
    scenarios = {
        "simple": ("make_simple", "MpeConfig", "one agent goes to one landmark"),
        "simple_spread": ("make_spread", "SpreadConfig", "a team covers all landmarks without colliding"),
        "simple_reference": ("make_reference", "ReferenceConfig", "two agents tell each other where to go"),
        "simple_speaker_listener": ("make_speaker_listener", "MpeConfig", "a speaker tells a listener where to go"),
        "simple_crypto": ("make_crypto", "MpeConfig", "alice and bob share a key and a secret, eve listens in"),
        "simple_adversary": ("make_adversary", "AdversaryConfig", "agents hide their goal from adversaries"),
        "simple_push": ("make_push", "PushConfig", "an adversary keeps an agent away from its goal"),
        "simple_tag": ("make_tag", "TagConfig", "slow adversaries chase fast agents"),
        "simple_world_comm": ("make_world_comm", "WorldCommConfig", "a leader directs hunters; food and forests"),
    }
    for name, (make, config, description) in scenarios.items():
        register_task(
            f"mpe/{name}", f"{MODULE}.mpe:{make}", config=f"{MODULE}.mpe:{config}", description=f"MPE: {description}"
        )


def register_facmac() -> None:
    register_task(
        "mpe/simple_facmac",
        f"{MODULE}.mpe:make_facmac",
        config=f"{MODULE}.mpe:FacmacConfig",
        fields={"score_function": "sum"},
        description="MPE: 3 predators that see little hunt a scripted prey that minds them all",
    )
    sizes = {"3a": (3, 1, 2), "6a": (6, 2, 4), "9a": (9, 3, 6)}
    for name, (num_predators, num_prey, num_landmarks) in sizes.items():
        register_task(
            f"mpe/simple_facmac_{name}",
            f"{MODULE}.mpe:make_facmac",
            config=f"{MODULE}.mpe:FacmacConfig",
            fields={"num_predators": num_predators, "num_prey": num_prey, "num_landmarks": num_landmarks},
            description=f"MPE: {num_predators} predators that see little hunt {num_prey} scripted prey",
        )


def register_smax() -> None:
    maps = (
        "2s3z 3s5z 5m_vs_6m 10m_vs_11m 27m_vs_30m 3s5z_vs_3s6z 3s_vs_5z 6h_vs_8z "
        "smacv2_5_units smacv2_10_units smacv2_20_units"
    )
    for name in maps.split():
        register_task(
            f"smax/{name}",
            f"{MODULE}.smax:make_smax",
            config=f"{MODULE}.smax:SmaxConfig",
            fields={"map": name},
            description=f"SMAX: the battle {name} against the scripted enemy",
        )


def register_overcooked() -> None:
    for layout in ("cramped_room", "asymm_advantages", "coord_ring", "forced_coord", "counter_circuit"):
        register_task(
            f"overcooked/{layout}",
            f"{MODULE}.overcooked:make_overcooked",
            config=f"{MODULE}.overcooked:OvercookedConfig",
            fields={"layout": layout},
            description=f"Overcooked: two cooks deliver onion soups, layout {layout}",
        )


def register_overcooked_v2() -> None:
    layouts = (
        "cramped_room asymm_advantages coord_ring forced_coord counter_circuit two_rooms "
        "grounded_coord_simple grounded_coord_ring test_time_simple test_time_wide demo_cook_simple demo_cook_wide"
    )
    for layout in layouts.split():
        # The layouts of its paper are about a limited view: cooks see two cells in each direction.
        grounded = layout.startswith(("grounded", "test_time", "demo"))
        register_task(
            f"overcooked_v2/{layout}",
            f"{MODULE}.overcooked:make_overcooked_v2",
            config=f"{MODULE}.overcooked:OvercookedV2Config",
            fields={"layout": layout} | ({"agent_view_size": 2} if grounded else {}),
            description=f"Overcooked V2: cooks deliver soups by recipe, layout {layout}",
        )


def register_others() -> None:
    for num_agents in (2, 3, 4, 5):
        register_task(
            f"hanabi/{num_agents}-player",
            f"{MODULE}.hanabi:make_hanabi",
            config=f"{MODULE}.hanabi:HanabiConfig",
            fields={"num_agents": num_agents},
            description=f"Hanabi: {num_agents} players build fireworks of cards they cannot see",
        )
    for num_agents in (3, 4, 5):
        register_task(
            f"switch_riddle/{num_agents}-agent",
            f"{MODULE}.switch_riddle:make_switch_riddle",
            config=f"{MODULE}.switch_riddle:SwitchRiddleConfig",
            fields={"num_agents": num_agents, "deadline": 4 * num_agents - 6, "time_limit": 4 * num_agents - 6},
            description=f"Switch riddle: {num_agents} prisoners share one bulb",
        )
    register_task(
        "storm/2p",
        f"{MODULE}.storm:make_storm_2p",
        config=f"{MODULE}.storm:StormConfig",
        description="STORM: 2 players gather coins and meet in a matrix game",
    )
    for num_agents in (4, 8):
        register_task(
            f"storm/{num_agents}p",
            f"{MODULE}.storm:make_storm_np",
            config=f"{MODULE}.storm:StormNpConfig",
            fields={"num_agents": num_agents},
            description=f"STORM: {num_agents} players gather coins, which grow back, and meet in a matrix game",
        )
    register_task(
        "coin_game/coin_game",
        f"{MODULE}.coin_game:make_coin_game",
        config=f"{MODULE}.coin_game:CoinGameConfig",
        description="Coin game: two players may take each other's coins",
    )
    for num_agents in (2, 4):
        register_task(
            f"jaxnav/{num_agents}-robot",
            f"{MODULE}.jaxnav:make_jaxnav",
            config=f"{MODULE}.jaxnav:JaxNavConfig",
            fields={"num_agents": num_agents},
            description=f"JaxNav: {num_agents} robots with lidar drive to their goals",
        )
    for robot in ("ant_4x2", "halfcheetah_6x1", "hopper_3x1", "humanoid_9_8", "walker2d_2x3"):
        register_task(
            f"mabrax/{robot}",
            f"{MODULE}.mabrax:make_mabrax",
            config=f"{MODULE}.mabrax:MabraxConfig",
            fields={"robot": robot},
            description=f"MABrax: the joints of {robot} as agents (needs the extra `mabrax`)",
        )


register_mpe()
register_facmac()
register_smax()
register_overcooked()
register_overcooked_v2()
register_others()
