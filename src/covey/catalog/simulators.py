"""Tasks of other packages that are ordinary Python, besides PettingZoo's: simulators that covey steps in processes."""

from __future__ import annotations

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
        small-4ag-hard medium-2ag medium-4ag medium-4ag-hard medium-6ag large-4ag large-4ag-hard large-8ag large-8ag-hard
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
            description=f"rware: {num_agents} robots deliver shelves in a {size} warehouse, {queue} requested at a time",
            host=True,
        )


def register_foraging() -> None:
    """Names as the package has them, without its prefix and version: sight, size, players, food, cooperation."""
    scenarios = """
        8x8-2p-1f 8x8-2p-2f-coop 2s-8x8-2p-2f-coop 10x10-3p-3f 2s-10x10-3p-3f 15x15-3p-4f 15x15-3p-5f 15x15-4p-3f
        15x15-4p-5f
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


register_gymnasium()
register_warehouse()
register_foraging()
