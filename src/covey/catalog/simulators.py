"""Tasks of other packages that are ordinary Python, besides PettingZoo's: simulators that covey steps in processes."""

from __future__ import annotations

from covey.catalog.vmas import SCENARIOS
from covey.registry import register_task

HOST = "covey.envs.host"


def register_gymnasium() -> None:
    register_task(
        "gymnasium/any",
        f"{HOST}.tuples:make_gymnasium",
        config=f"{HOST}.tuples:GymnasiumConfig",
        description="Gymnasium: any environment of several agents with spaces that are tuples, by its name",
        host=True,
    )


def register_warehouse() -> None:
    """The size of the warehouse, robots, shelves requested at a time, and the suffix that tells how many that is."""
    sizes = {"tiny": (1, 3), "small": (2, 3), "medium": (2, 5), "large": (3, 5)}
    scenarios = """
        tiny-2ag tiny-2ag-easy tiny-2ag-hard tiny-4ag tiny-4ag-easy tiny-4ag-hard small-2ag small-4ag small-4ag-easy
        small-4ag-hard medium-2ag medium-4ag medium-4ag-hard medium-6ag large-4ag large-4ag-hard large-8ag
        large-8ag-hard
    """
    for name in scenarios.split():
        size, robots, *difficulty = name.split("-")
        rows, columns = sizes[size]
        num_agents = int(robots.removesuffix("ag"))
        queue = {"easy": 2 * num_agents, "hard": num_agents // 2}.get("".join(difficulty), num_agents)
        register_task(
            f"robotic_warehouse/{name}",
            f"{HOST}.rware:WarehouseSimulator",
            config=f"{HOST}.rware:WarehouseConfig",
            fields={
                "num_agents": num_agents,
                "shelf_rows": rows,
                "shelf_columns": columns,
                "request_queue_size": queue,
            },
            description=f"rware: {num_agents} robots deliver shelves in a {size} warehouse, {queue} requested at once",
            host=True,
        )


def register_foraging() -> None:
    """Names as the package has them, without its prefix and version: sight, size, players, food, cooperation."""
    scenarios = """
        8x8-2p-1f 8x8-2p-2f-coop 2s-8x8-2p-2f-coop 10x10-3p-3f 2s-10x10-3p-3f 15x15-3p-4f 15x15-4p-3f
        15x15-4p-4f
    """
    for name in scenarios.split():
        parts = name.split("-")
        sight = int(parts.pop(0).removesuffix("s")) if parts[0].endswith("s") else None
        size, players, food, *coop = parts
        agents, pieces = int(players.removesuffix("p")), int(food.removesuffix("f"))
        register_task(
            f"foraging/{name}",
            f"{HOST}.lbforaging:ForagingSimulator",
            config=f"{HOST}.lbforaging:ForagingConfig",
            fields={
                "grid_size": int(size.split("x")[0]),
                "num_agents": agents,
                "num_food": pieces,
                "sight": sight,
                "force_coop": bool(coop),
            },
            description=f"lbforaging: {agents} agents forage {pieces} pieces of food on {size}"
            + (", each of which needs cooperation" if coop else "")
            + (f", seeing {sight} cells far" if sight else ""),
            host=True,
        )


def register_mamujoco() -> None:
    """The name, the robot, and how its joints are divided."""
    robots = [
        ("ant_2x4", "Ant", "2x4"),
        ("ant_4x2", "Ant", "4x2"),
        ("halfcheetah_2x3", "HalfCheetah", "2x3"),
        ("halfcheetah_6x1", "HalfCheetah", "6x1"),
        ("hopper_3x1", "Hopper", "3x1"),
        ("humanoid_9_8", "Humanoid", "9|8"),
        ("humanoid_standup_9_8", "HumanoidStandup", "9|8"),
        ("many_segment_ant_2x3", "ManySegmentAnt", "2x3"),
        ("many_segment_swimmer_10x2", "ManySegmentSwimmer", "10x2"),
        ("reacher_2x1", "Reacher", "2x1"),
        ("swimmer_2x1", "Swimmer", "2x1"),
        ("walker2d_2x3", "Walker2d", "2x3"),
    ]
    for name, robot, division in robots:
        register_task(
            f"mamujoco/{name}",
            f"{HOST}.mamujoco:MamujocoSimulator",
            config=f"{HOST}.mamujoco:MamujocoConfig",
            fields={"scenario": robot, "agent_conf": division},
            description=f"MaMuJoCo: the joints of {robot} as agents, divided {division}",
            host=True,
        )


# Steps after which Melting Pot ends an episode of these substrates; 5,000 of the others. Those of matrix games end by
# chance, too.
SUBSTRATE_LIMITS = {
    "allelopathic_harvest": 2000,
    "boat_race": 2400,
    "chemistry": 1000,
    "collaborative_cooking": 1000,
    "daycare": 1000,
    "fruit_market": 1000,
    "hidden_agenda": 3000,
    "paintball": 1000,
    "predator_prey": 1000,
    "running_with_scissors_in_the_matrix__one_shot": 1000,
    "stag_hunt_in_the_matrix__repeated": 2500,
}
SUBSTRATES = """
    allelopathic_harvest__open
    bach_or_stravinsky_in_the_matrix__arena bach_or_stravinsky_in_the_matrix__repeated
    boat_race__eight_races
    chemistry__three_metabolic_cycles chemistry__three_metabolic_cycles_with_plentiful_distractors
    chemistry__two_metabolic_cycles chemistry__two_metabolic_cycles_with_distractors
    chicken_in_the_matrix__arena chicken_in_the_matrix__repeated
    clean_up
    coins
    collaborative_cooking__asymmetric collaborative_cooking__circuit collaborative_cooking__cramped
    collaborative_cooking__crowded collaborative_cooking__figure_eight collaborative_cooking__forced
    collaborative_cooking__ring
    commons_harvest__closed commons_harvest__open commons_harvest__partnership
    coop_mining
    daycare
    externality_mushrooms__dense
    factory_commons__either_or
    fruit_market__concentric_rivers
    gift_refinements
    hidden_agenda
    paintball__capture_the_flag paintball__king_of_the_hill
    predator_prey__alley_hunt predator_prey__open predator_prey__orchard predator_prey__random_forest
    prisoners_dilemma_in_the_matrix__arena prisoners_dilemma_in_the_matrix__repeated
    pure_coordination_in_the_matrix__arena pure_coordination_in_the_matrix__repeated
    rationalizable_coordination_in_the_matrix__arena rationalizable_coordination_in_the_matrix__repeated
    running_with_scissors_in_the_matrix__arena running_with_scissors_in_the_matrix__one_shot
    running_with_scissors_in_the_matrix__repeated
    stag_hunt_in_the_matrix__arena stag_hunt_in_the_matrix__repeated
    territory__inside_out territory__open territory__rooms
"""


def register_meltingpot() -> None:
    for name in SUBSTRATES.split():
        limit = next((steps for start, steps in SUBSTRATE_LIMITS.items() if name.startswith(start)), 5000)
        register_task(
            f"meltingpot/{name}",
            f"{HOST}.meltingpot:MeltingPotSimulator",
            config=f"{HOST}.meltingpot:MeltingPotConfig",
            fields={"substrate": name, "time_limit": limit},
            description=f"Melting Pot: {name.replace('__', ', ').replace('_', ' ')}, seen as pixels",
            host=True,
        )


def register_starcraft() -> None:
    for race in ("protoss", "terran", "zerg"):
        for battle in ("5_vs_5", "10_vs_10", "10_vs_11", "20_vs_20", "20_vs_23"):
            units, _, enemies = battle.partition("_vs_")
            register_task(
                f"smacv2/{race}_{battle}",
                f"{HOST}.starcraft:SmacV2Simulator",
                config=f"{HOST}.starcraft:SmacV2Config",
                fields={"race": race, "num_units": int(units), "num_enemies": int(enemies)},
                description=f"SMACv2: {units} {race} units against {enemies} of StarCraft II (which it needs)",
                host=True,
            )
    # each map's name in the package, and the time limit of the same battle in SMAC
    battles = {
        "10m_vs_11m": 150,
        "27m_vs_30m": 180,
        "2c_vs_64zg": 400,
        "2s3z": 120,
        "2s_vs_1sc": 300,
        "3s5z": 150,
        "3s5z_vs_3s6z": 170,
        "3s_vs_5z": 250,
        "MMM": 150,
        "MMM2": 180,
        "bane_vs_bane": 200,
        "corridor": 400,
    }
    for name, limit in battles.items():
        register_task(
            f"smaclite/{name}",
            f"{HOST}.starcraft:BattleSimulator",
            config=f"{HOST}.starcraft:SmacLiteConfig",
            fields={"map": name, "time_limit": limit},
            description=f"SMAClite: the battle {name} without StarCraft (needs the package from its repository)",
            host=True,
        )


def register_vmas_torch() -> None:
    limits = dict.fromkeys(["ball_passage", "football", "joint_passage", "joint_passage_size", "passage"], 500) | {
        "multi_give_way": 200
    }
    for name in SCENARIOS:
        register_task(
            f"vmas_torch/{name}",
            f"{HOST}.pettingzoo.parallel:ParallelSimulator",
            config=f"{HOST}.vmas_torch:VmasTorchConfig",
            fields={"scenario": name, "time_limit": limits.get(name, 100)},
            description=f"VMAS in PyTorch, to compare with vmas/{name}",
            host=True,
        )


register_gymnasium()
register_warehouse()
register_foraging()
register_mamujoco()
register_meltingpot()
register_starcraft()
register_vmas_torch()
