"""The scenarios of the VMAS suite."""

from covey.registry import register_task

_SCENARIOS = {  # the file's name: (the scenario's class, what it is about)
    "navigation": ("Navigation", "each agent to its own goal, seeing the others by lidar"),
}
for _name, (_class, _description) in _SCENARIOS.items():
    register_task(
        f"vmas/{_name}",
        f"covey.envs.vmas.scenarios.{_name}:make",
        config=f"covey.envs.vmas.scenarios.{_name}:{_class}Config",
        description=_description,
    )
