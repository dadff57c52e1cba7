"""Gigastep's scenarios."""

from covey.registry import register_task

_TEAMS = ["5_vs_5", "10_vs_10", "20_vs_20", "5_vs_1", "10_vs_3", "20_vs_5"]
_SCENARIOS = {
    **{f"identical_{teams}": "all of one team are alike" for teams in _TEAMS},
    **{f"special_{teams}": "tanks, snipers and scouts" for teams in _TEAMS},
    "waypoint_5_vs_3": "one team flies to waypoints, the other one chases it",
    "hide_and_seek_10_vs_5": "one team hides, the other one seeks",
}

for _name, _description in _SCENARIOS.items():
    register_task(
        f"gigastep/{_name}",
        "covey.envs.gigastep:make_gigastep",
        config="covey.envs.gigastep:GigastepConfig",
        fields={"scenario": _name},
        description=f"Gigastep: two teams in the air, {_description} (needs the package from its repository)",
    )
