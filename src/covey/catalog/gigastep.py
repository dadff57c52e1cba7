"""Gigastep's scenarios: those that its documentation names."""

from covey.registry import register_task

_SCENARIOS = {
    "identical_5_vs_5": "all are alike",
    "identical_20_vs_20": "all are alike",
    "special_5_vs_3": "the smaller one of special kinds",
    "special_20_vs_5": "the smaller one of special kinds",
    "waypoint_5_vs_5": "which chase waypoints",
    "waypoint_5_vs_3": "which chase waypoints, the smaller one faster",
    "hide_and_seek_5_vs_5": "one hides and one seeks",
    "hide_and_seek_10_vs_5": "one hides and one seeks",
}

for _name, _description in _SCENARIOS.items():
    register_task(
        f"gigastep/{_name}",
        "covey.envs.gigastep:make_gigastep",
        config="covey.envs.gigastep:GigastepConfig",
        fields={"scenario": _name},
        description=f"Gigastep: two teams in the air, {_description} (needs the package from its repository)",
    )
