"""Jumanji's multi-agent tasks. RWARE, LBF, Connector and Cleaner are the scenarios of published results."""

from __future__ import annotations

from covey.registry import register_task

WAREHOUSES = {
    "tiny": (1, 3),
    "small": (2, 3),
    "medium": (2, 5),
    "large": (3, 5),
    "xlarge": (4, 5),
}  # shelf rows, columns

# warehouse, agents, shelves requested at a time, suffix
RWARE = [
    ("tiny", 2, 2, ""),
    ("tiny", 2, 1, "-hard"),
    ("tiny", 4, 4, ""),
    ("tiny", 4, 2, "-hard"),
    ("tiny", 4, 8, "-easy"),
    ("small", 4, 4, ""),
    ("small", 4, 2, "-hard"),
    ("medium", 4, 4, ""),
    ("medium", 4, 2, "-hard"),
    ("medium", 6, 6, ""),
    ("large", 4, 4, ""),
    ("large", 4, 2, "-hard"),
    ("large", 8, 8, ""),
    ("large", 8, 4, "-hard"),
    ("xlarge", 4, 4, ""),
    ("xlarge", 4, 2, "-hard"),
]

for warehouse, agents, queue, suffix in RWARE:
    rows, columns = WAREHOUSES[warehouse]
    register_task(
        f"rware/{warehouse}-{agents}ag{suffix}",
        "covey.envs.jumanji.rware:Rware",
        config="covey.envs.jumanji.rware:RwareConfig",
        fields={
            "num_agents": agents,
            "shelf_rows": rows,
            "shelf_columns": columns,
            "request_queue_size": queue,
        },
        description=f"{agents} robots deliver shelves in a {warehouse} warehouse, {queue} requested at a time",
    )

# name, grid, agents, food, field of view, every food needs cooperation
LBF = [
    ("8x8-2p-2f-coop", 8, 2, 2, None, True),
    ("2s-8x8-2p-2f-coop", 8, 2, 2, 2, True),
    ("10x10-3p-3f", 10, 3, 3, None, False),
    ("2s-10x10-3p-3f", 10, 3, 3, 2, False),
    ("15x15-3p-5f", 15, 3, 5, None, False),
    ("15x15-4p-3f", 15, 4, 3, None, False),
    ("15x15-4p-5f", 15, 4, 5, None, False),
]

for name, size, agents, food, fov, coop in LBF:
    register_task(
        f"lbf/{name}",
        "covey.envs.jumanji.lbf:Lbf",
        config="covey.envs.jumanji.lbf:LbfConfig",
        fields={"grid_size": size, "num_agents": agents, "num_food": food, "fov": fov, "force_coop": coop},
        description=f"{agents} agents forage {food} food items on {size}×{size}"
        + (", each of which needs cooperation" if coop else "")
        + (f", seeing {fov} cells far" if fov else ""),
    )

for size, agents, limit in [(5, 3, 25), (7, 5, 49), (10, 10, 100), (15, 23, 225)]:
    register_task(
        f"connector/con-{size}x{size}x{agents}a",
        "covey.envs.jumanji.connector:Connector",
        config="covey.envs.jumanji.connector:ConnectorConfig",
        fields={"grid_size": size, "num_agents": agents, "time_limit": limit},
        description=f"{agents} agents draw paths to their targets on {size}×{size} without crossing",
    )

for size, limit in [(5, 25), (10, 100), (15, 225), (20, 400), (30, 600)]:
    register_task(
        f"cleaner/clean-{size}x{size}x{size}a",
        "covey.envs.jumanji.cleaner:Cleaner",
        config="covey.envs.jumanji.cleaner:CleanerConfig",
        fields={"grid_size": size, "num_agents": size, "time_limit": limit},
        description=f"{size} agents clean all tiles of a {size}×{size} maze",
    )

for vehicles, customers in [(2, 6), (3, 6), (2, 20), (3, 20), (5, 50)]:
    register_task(
        f"multi_cvrp/{vehicles}v-{customers}c",
        "covey.envs.jumanji.multi_cvrp:MultiCvrp",
        config="covey.envs.jumanji.multi_cvrp:MultiCvrpConfig",
        fields={"num_vehicles": vehicles, "num_customers": customers, "time_limit": 2 * customers},
        description=f"{vehicles} vehicles serve {customers} customers within soft time windows",
    )

for searchers, targets in [(2, 20), (2, 40), (4, 40), (8, 80)]:
    register_task(
        f"search_and_rescue/{searchers}s-{targets}t",
        "covey.envs.jumanji.search_and_rescue:SearchAndRescue",
        config="covey.envs.jumanji.search_and_rescue:SearchAndRescueConfig",
        fields={"num_searchers": searchers, "num_targets": targets},
        description=f"{searchers} searchers steer to find {targets} drifting targets",
    )

for agents, nodes, edges, wanted in [(2, 12, 18, 3), (3, 36, 72, 4)]:
    register_task(
        f"mmst/{agents}a-{nodes}n",
        "covey.envs.jumanji.mmst:Mmst",
        config="covey.envs.jumanji.mmst:MmstConfig",
        fields={"num_agents": agents, "num_nodes": nodes, "num_edges": edges, "num_nodes_per_agent": wanted},
        description=f"{agents} agents connect {wanted} nodes each on a graph of {nodes} nodes",
    )
