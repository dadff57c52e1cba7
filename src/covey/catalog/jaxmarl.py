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


register_mpe()
register_facmac()
register_smax()
register_overcooked()
