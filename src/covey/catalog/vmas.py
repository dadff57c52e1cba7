"""The scenarios of the VMAS suite."""

import functools
from typing import Any

from covey.errors import UsageError
from covey.registry import import_attribute, register_task

_SCENARIOS = {  # the file's name: (the scenario's class, what it is about)
    "balance": ("Balance", "a package on a line to a goal, lifted from below and not dropped"),
    "ball_passage": ("BallPassage", "a ball through a gap in a wall to a goal"),
    "ball_trajectory": ("BallTrajectory", "a ball between two agents, at a given speed along a circle"),
    "buzz_wire": ("BuzzWire", "a ball on rods along a corridor without touching its walls"),
    "wheel": ("Wheel", "turn a heavy line at a given speed"),
    "football": ("Football", "two teams and a ball; red plays by itself"),
    "navigation": ("Navigation", "each agent to its own goal, seeing the others by lidar"),
    "passage": ("Passage", "five agents through gaps in a wall, each to its place on the other side"),
    "reverse_transport": ("ReverseTransport", "push a heavy frame to a goal from within"),
    "transport": ("Transport", "push heavy packages to a goal together"),
    "simple_adversary": ("SimpleAdversary", "cover the goal without showing adversaries which landmark it is"),
    "simple_crypto": ("SimpleCrypto", "Alice sends Bob a secret by a shared key while Eve listens"),
    "simple_push": ("SimplePush", "an agent to its goal, from which an adversary keeps it away"),
    "simple_reference": ("SimpleReference", "two agents tell each other where to go"),
    "simple_speaker_listener": ("SimpleSpeakerListener", "one agent tells the other where to go"),
    "simple_spread": ("SimpleSpread", "cover all landmarks without collisions"),
    "simple_tag": ("SimpleTag", "slower adversaries catch faster agents between obstacles"),
    "simple_world_comm": ("SimpleWorldComm", "adversaries with a leader hunt agents that look for food"),
    "discovery": ("Discovery", "find targets by lidar and cover each with several agents"),
    "dispersion": ("Dispersion", "spread from one point to eat all food"),
    "dropout": ("Dropout", "one agent to the goal while the others save energy"),
    "flocking": ("Flocking", "stay together around a moving target, among obstacles"),
    "sampling": ("Sampling", "collect the most of a field, each cell once"),
    "wind_flocking": ("WindFlocking", "two agents in formation against the wind"),
    "give_way": ("GiveWay", "two agents change sides in a narrow corridor with a recess"),
    "multi_give_way": ("MultiGiveWay", "four agents through a narrow crossing, each to the end of the next arm"),
    "joint_passage": ("JointPassage", "a rod with a heavy end through a gap in a wall to a goal"),
    "joint_passage_size": ("JointPassageSize", "a small and a big agent, on a rod, through a small and a big gap"),
}


def _make(path: str, config: Any) -> Any:
    make_env, make_scenario = import_attribute("covey.envs.vmas.scenario:VmasEnv"), import_attribute(path)
    try:
        return make_env(make_scenario(config))
    except ValueError as error:  # a field asks for something that the scenario does not have
        raise UsageError(f"task: {error}") from error


for _name, (_class, _description) in _SCENARIOS.items():
    _path = f"covey.envs.vmas.scenarios.{_name}:{_class}"
    register_task(f"vmas/{_name}", functools.partial(_make, _path), config=f"{_path}Config", description=_description)
