"""Records what the original VMAS does, for the tests that hold covey's own simulator to it.

It runs in a separate environment (torch, vmas and benchmarl, which has the tasks' default parameters; nothing of
covey), and writes tests/data/vmas/NAME.npz:

    python tools/record_vmas.py [NAME …]
    python tools/record_vmas.py --random SEED --output FOLDER [NAME …]

For each scenario, at its default and at two other configurations, one environment is played for 200 steps per seed, at
random and by a heuristic (the scenario's own where it has one that runs, else agents seek random entities, which makes
them collide). Kept are

- transitions: state, action, next state, reward, observation, done. Some are drawn at random, others are the steps at
  which velocities changed most beyond what the action explains, that is, contacts;
- a free run: the first state, 100 steps of actions, and the state after every tenth.

One environment, not a batch: in a batch, VMAS lets environments influence which pairs of each other are looked at.

To add a scenario, add it to `SCENARIOS`. Where its rewards, observations or endings depend on more than where entities
are and how they move, `drawn` says what: a function of the VMAS scenario, called before each step, that returns arrays
by the names under which covey's `Scenario.begin` takes them. `random` is a regular expression of entities that move to
random places in a step: their next state is not compared.

With `--random`, what is recorded is one configuration drawn from `CHOICES`, for a test that compares live.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import vmas
import yaml
from vmas.simulator.utils import TorchUtils

FOLDER = Path(__file__).parents[1] / "tests" / "data" / "vmas"
NUM_STEPS, FREE_STEPS, FREE_EVERY = 200, 100, 10
NUM_RANDOM, NUM_CONTACT = 5, 5  # transitions kept of each episode
SEEDS = (0, 1)
STATE = ("pos", "vel", "rot", "ang_vel")
Drawn = Callable[[Any], dict[str, np.ndarray]]


def nothing(scenario: Any) -> dict[str, np.ndarray]:
    return {}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entry:
    """`others` are changes to the default parameters."""

    others: tuple[dict[str, Any], dict[str, Any]]
    drawn: Drawn = nothing
    random: str = ""


def number_of(scenario: Any, landmark: Any) -> np.ndarray:
    return np.array(scenario.world.landmarks.index(landmark))


def goal_landmark(scenario: Any) -> dict[str, np.ndarray]:
    return {"goal": number_of(scenario, scenario.world.agents[0].goal)}


def speakers_goal(scenario: Any) -> dict[str, np.ndarray]:
    return {"goal": number_of(scenario, scenario.world.agents[0].goal_b)}


def known_goals(scenario: Any) -> dict[str, np.ndarray]:
    return {"known_goal": np.array([number_of(scenario, agent.goal_b) for agent in scenario.world.agents])}


def secret_and_key(scenario: Any) -> dict[str, np.ndarray]:
    alice = scenario.world.agents[2]
    return {"secret": alice.secret[0].numpy().astype(np.float32), "key": alice.key[0].numpy().astype(np.float32)}


def eaten_food(scenario: Any) -> dict[str, np.ndarray]:
    return {"eaten": np.array([bool(food.eaten[0]) for food in scenario.world.landmarks])}


def hills_and_samples(scenario: Any) -> dict[str, np.ndarray]:
    return {"hills": torch.cat(list(scenario.locs)).numpy(), "sampled": scenario.sampled[0].numpy()}


def time_as_float(scenario: Any) -> dict[str, np.ndarray]:
    return {"time": scenario.t[0].numpy()}


def gone_targets(scenario: Any) -> dict[str, np.ndarray]:
    return {"gone": scenario.all_time_covered_targets[0].numpy()}


def reached_goal(scenario: Any) -> dict[str, np.ndarray]:
    return {"reached": scenario.world.landmarks[0].eaten[0].numpy()}


def wind_and_controllers(scenario: Any) -> dict[str, np.ndarray]:
    agents = scenario.world.agents
    factor = scenario.energy_shaping_factor
    effort = [float(agent.energy_shaping[0]) / factor if factor else 0.0 for agent in agents]
    values = {
        "time": scenario.t[0].numpy(),
        "wind": np.stack([agent.gravity[0].numpy() for agent in agents]),
        "effort": np.array(effort, np.float32),
    }
    if scenario.use_controller:  # the integral, the last error, and the force, which counts only as effort
        controllers = [agent.controller for agent in agents]
        rows = [torch.cat([c.accum_errs[0], c.prev_err[0], torch.zeros(2)]).numpy() for c in controllers]
        values["controller"] = np.stack(rows)
    return values


def controllers(scenario: Any) -> dict[str, np.ndarray]:
    """Commands that come late, the integral, the last error, and the force, which is not remembered there."""
    names = ("use_velocity_controller", "use_controller", "use_vel_controller")
    if not all(getattr(scenario, name, True) for name in names):
        return {}
    rows = []
    for agent in scenario.world.agents:
        late = [within_limits(u, scenario)[0] for u in getattr(agent, "input_queue", ())]
        rows.append(torch.cat([*late, agent.controller.accum_errs[0], agent.controller.prev_err[0], torch.zeros(2)]))
    return {"controller": torch.stack(rows).numpy()}


def within_limits(u: torch.Tensor, scenario: Any) -> torch.Tensor:
    """VMAS limits commands after their delay, covey before it."""
    u = TorchUtils.clamp_with_norm(u, scenario.u_range)
    return torch.where(u.norm(dim=-1, keepdim=True) < scenario.min_input_norm, 0.0, u)


def controllers_and_place(scenario: Any) -> dict[str, np.ndarray]:
    return controllers(scenario) | {"place_before": scenario.joint.pos_shaping_pre[0].numpy()}


def decisions_of_team(scenario: Any) -> dict[str, np.ndarray]:
    """What the team that plays by itself remembers, and the numbers that it will draw: it decides once in advance."""
    policies = (("red", scenario.red_controller), ("blue", scenario.blue_controller))
    values: dict[str, np.ndarray] = {}
    for team, policy in policies:
        if policy is None:
            continue
        before = {agent: {k: v.clone() for k, v in goal.items()} for agent, goal in policy.objectives.items()}
        targets = {"target": "target_pos", "target_from_ball": "target_pos_rel"}
        remembered = {
            ours: np.stack([g[theirs][0].numpy() for g in before.values()]) for ours, theirs in targets.items()
        }
        remembered |= rehearse(policy)
        policy.objectives = before
        values |= {f"{team}_{key}": value for key, value in remembered.items()}
    return values


def rehearse(policy: Any) -> dict[str, np.ndarray]:
    """The normal numbers that the next decisions will draw, under covey's names; zero where they draw none."""
    from vmas.simulator.environment import Environment

    count = len(policy.teammates)
    names = {"searched": (count, 2, 2)}
    if policy.decision_strength != 1:
        names |= {"claim_error": (count + len(policy.opposition),), "value_error": (count, 3)}
    if policy.precision_strength != 1:
        names |= {"position_error": (count, 2), "velocity_error": (count, 2)}
    found = {name: np.zeros(shape, np.float32) for name, shape in names.items()}
    draw, drawn = torch.randn, []

    def listen(*args: Any, **kwargs: Any) -> torch.Tensor:
        numbers = draw(*args, **kwargs)
        if numbers.numel():  # not for environments that are masked out
            drawn.append(numbers[0].numpy().copy())
        return numbers

    outside = torch.random.get_rng_state()
    torch.random.set_rng_state(Environment.vmas_random_state[0])
    torch.randn = listen
    for i, agent in enumerate(policy.teammates):
        drawn.clear()
        policy.run(agent, policy.world)
        if i == 0 and "claim_error" in found:
            found["claim_error"] = drawn.pop(0)
        dribbles = bool(policy.agent_possession[agent][0])
        following = [
            name for name in found if name != "claim_error" and not (dribbles and name in ("searched", "value_error"))
        ]
        for name, numbers in zip(following, drawn, strict=True):
            found[name][i] = numbers
    torch.randn = draw
    torch.random.set_rng_state(outside)
    return found


SCENARIOS = {
    "balance": Entry(others=({"n_agents": 3, "package_mass": 1}, {"n_agents": 6, "random_package_pos_on_line": False})),
    "wheel": Entry(
        others=({"n_agents": 2, "line_length": 2, "line_mass": 5}, {"n_agents": 6, "desired_velocity": 0.5})
    ),
    "ball_trajectory": Entry(
        others=(
            {"joints": False, "pos_shaping_factor": 1, "dist_shaping_factor": 2},
            {"pos_shaping_factor": 3, "speed_shaping_factor": 0.5, "dist_shaping_factor": 1},
        )
    ),
    "ball_passage": Entry(
        others=({"n_passages": 4, "fixed_passage": True}, {"n_passages": 3, "random_start_angle": False})
    ),
    "buzz_wire": Entry(
        others=(
            {"random_start_angle": False, "collision_reward": -1, "pos_shaping_factor": 5},
            {"max_speed_1": 0.05},
        )
    ),
    "football": Entry(
        others=(
            {
                "n_blue_agents": 5,
                "n_red_agents": 2,
                "ai_red_agents": False,
                "physically_different": True,
                "spawn_in_formation": True,
                "pitch_length": 1.5,
                "enable_shooting": True,
                "shooting_radius": 0.3,
                "shooting_angle": 2.5,
            },
            {
                "n_blue_agents": 2,
                "ai_strength": 0.8,
                "ai_decision_strength": 0.7,
                "ai_precision_strength": 0.9,
                "n_traj_points": 3,
                "pitch_length": 1.5,
                "pitch_width": 1.0,
                "enable_shooting": True,
                "dense_reward": False,
                "observe_teammates": False,
            },
        ),
        drawn=decisions_of_team,
    ),
    "navigation": Entry(
        others=(
            {"n_agents": 4, "shared_rew": True, "observe_all_goals": True, "agent_radius": 0.15, "lidar_range": 0.5},
            {"n_agents": 4, "collisions": False, "agents_with_same_goal": 2, "split_goals": True},
        )
    ),
    "passage": Entry(others=({"n_passages": 4, "shared_reward": False}, {"n_passages": 10})),
    "reverse_transport": Entry(
        others=(
            {"n_agents": 2, "package_width": 0.4, "package_length": 0.8, "package_mass": 5},
            {"n_agents": 3, "package_width": 0.5, "package_length": 0.3, "package_mass": 1},
        )
    ),
    "transport": Entry(
        others=(
            {"n_agents": 2, "package_width": 0.2, "package_length": 0.5, "package_mass": 2},
            {"n_agents": 6, "n_packages": 3, "package_mass": 1},
        )
    ),
    "simple_spread": Entry(others=({"n_agents": 5}, {"n_agents": 2, "obs_agents": False})),
    "simple_tag": Entry(
        others=(
            {"num_good_agents": 2, "shape_agent_rew": True, "shape_adversary_rew": True, "agents_share_rew": True},
            {
                "num_good_agents": 3,
                "num_adversaries": 2,
                "num_landmarks": 3,
                "adversaries_share_rew": False,
                "observe_same_team": False,
                "observe_pos": False,
                "observe_vel": False,
                "bound": 0.6,
            },
        )
    ),
    "simple_adversary": Entry(others=({"n_agents": 5, "n_adversaries": 2}, {"n_agents": 2}), drawn=goal_landmark),
    "simple_push": Entry(others=({}, {}), drawn=goal_landmark),
    "simple_reference": Entry(others=({}, {}), drawn=known_goals),
    "simple_speaker_listener": Entry(others=({}, {}), drawn=speakers_goal),
    "simple_crypto": Entry(others=({"dim_c": 1}, {"dim_c": 7}), drawn=secret_and_key),
    "simple_world_comm": Entry(
        others=(
            {"num_good_agents": 3, "num_adversaries": 3, "num_landmarks": 2, "num_food": 1, "num_forests": 1},
            {"num_good_agents": 1, "num_adversaries": 2, "num_landmarks": 0, "num_food": 3, "num_forests": 3},
        )
    ),
    "dispersion": Entry(
        others=(
            {"n_agents": 3, "n_food": 6, "share_reward": False, "food_radius": 0.1, "penalise_by_time": True},
            {"n_agents": 5, "food_radius": 0.2, "penalise_by_time": True, "pos_range": 0.5},
        ),
        drawn=eaten_food,
    ),
    "sampling": Entry(
        others=(
            {"n_agents": 5, "shared_rew": True, "n_gaussians": 2, "lidar_range": 0.5, "agent_radius": 0.1},
            {"n_gaussians": 5, "cov": 0.2, "norm": False, "xdim": 0.5, "ydim": 0.75, "grid_spacing": 0.125},
        ),
        drawn=hills_and_samples,
    ),
    "flocking": Entry(
        others=(
            {"n_agents": 2, "n_obstacles": 3, "collision_reward": -1, "n_lidar_rays": 7},
            {"n_agents": 6, "n_obstacles": 8, "min_dist_between_entities": 0.2, "dist_shaping_factor": 3},
        ),
        drawn=time_as_float,
    ),
    "discovery": Entry(
        others=(
            {"shared_reward": False, "use_agent_lidar": True, "agent_collision_penalty": -1, "time_penalty": -0.01},
            {"n_agents": 4, "targets_respawn": False, "agents_per_target": 1, "covering_rew_coeff": 2.5},
        ),
        drawn=gone_targets,
        random=r"target_\d+",
    ),
    "dropout": Entry(
        others=({"n_agents": 2, "start_same_point": True}, {"n_agents": 6, "energy_coeff": 0.5}), drawn=reached_goal
    ),
    "wind_flocking": Entry(
        others=(
            {"wind": 2, "energy_shaping_factor": 0.3, "rot_shaping_factor": 1, "pos_shaping_factor": 2},
            {
                "wind": 1,
                "cover_angle_tolerance": 0.5,
                "energy_shaping_factor": 1,
                "observe_pos": True,
                "observe_rel_vel": False,
                "use_controller": False,
                "f_range": 5,
            },
        ),
        drawn=wind_and_controllers,
    ),
    "give_way": Entry(
        others=(
            {
                "mirror_passage": True,
                "observe_rel_pos": True,
                "done_on_completion": True,
                "dt_delay": 2,
                "pos_shaping_factor": 2,
                "energy_rew_coeff": 0.1,
                "agent_collision_penalty": -1,
                "passage_collision_penalty": -0.5,
                "obstacle_collision_penalty": -0.25,
            },
            {
                "box_agents": True,
                "use_velocity_controller": False,
                "energy_rew_coeff": 0.1,
                "agent_collision_penalty": -1,
                "passage_collision_penalty": -0.5,
                "obstacle_collision_penalty": -0.25,
            },
        ),
        drawn=controllers,
    ),
    "multi_give_way": Entry(
        others=(
            {"shared_rew": False, "agent_collision_penalty": -1, "pos_shaping_factor": 2, "u_range": 1},
            {"box_agents": True, "pos_shaping_factor": 0, "linear_friction": 0.3, "a_range": 2},
        ),
        drawn=controllers,
    ),
    "joint_passage": Entry(
        others=(
            {
                "n_passages": 3,
                "fixed_passage": False,
                "observe_joint_angle": True,
                "asym_package": False,
                "max_speed_1": 0.3,
                "collision_reward": -1,
                "energy_reward_coeff": 0.1,
                "all_passed_rot": False,
            },
            {
                "n_passages": 4,
                "joint_length": 0.3,
                "random_start_angle": False,
                "random_goal_angle": False,
                "collision_reward": -1,
                "energy_reward_coeff": 0.1,
                "pos_shaping_factor": 2,
                "rot_shaping_factor": 3,
                "use_controller": True,
            },
        ),
        drawn=controllers,
    ),
    "joint_passage_size": Entry(
        others=(
            {
                "n_passages": 4,
                "fixed_passage": True,
                "random_goal_angle": True,
                "observe_joint_angle": True,
                "asym_package": True,
                "mass_ratio": 5,
                "collision_reward": -1,
                "energy_reward_coeff": 0.1,
                "middle_angle_180": True,
            },
            {
                "joint_length": 0.4,
                "max_speed_1": 0.3,
                "mass_ratio": 3,
                "collision_reward": -1,
                "energy_reward_coeff": 0.1,
                "pos_shaping_factor": 2,
                "rot_shaping_factor": 3,
                "use_vel_controller": True,
            },
        ),
        drawn=controllers_and_place,
    ),
}


class Between(NamedTuple):
    """Any number from `low` to `high`."""

    low: float
    high: float


YES_NO = (False, True)
CHOICES: dict[str, dict[str, Sequence[Any]]] = {  # each parameter by itself; any combination is valid
    "balance": {"n_agents": range(2, 7), "package_mass": Between(1, 8), "random_package_pos_on_line": YES_NO},
    "ball_passage": {"n_passages": range(1, 6), "fixed_passage": YES_NO, "random_start_angle": YES_NO},
    "ball_trajectory": {
        "joints": YES_NO,
        "pos_shaping_factor": Between(0, 3),
        "speed_shaping_factor": Between(0, 3),
        "dist_shaping_factor": Between(0, 3),
    },
    "buzz_wire": {
        "random_start_angle": YES_NO,
        "collision_reward": Between(-10, 0),
        "pos_shaping_factor": Between(0.5, 5),
    },
    "discovery": {
        "n_agents": range(3, 7),
        "n_targets": range(1, 8),
        "lidar_range": Between(0.2, 0.6),
        "covering_range": Between(0.15, 0.4),
        "agents_per_target": range(1, 4),
        "targets_respawn": YES_NO,
        "shared_reward": YES_NO,
        "use_agent_lidar": YES_NO,
        "time_penalty": Between(-0.1, 0),
    },
    "dispersion": {
        "n_agents": range(2, 7),
        "n_food": range(1, 7),
        "share_reward": YES_NO,
        "food_radius": Between(0.02, 0.3),
        "penalise_by_time": YES_NO,
    },
    "dropout": {"n_agents": range(2, 7), "energy_coeff": Between(0, 1), "start_same_point": YES_NO},
    "flocking": {"n_agents": range(2, 7), "n_obstacles": range(1, 8), "collision_reward": Between(-1, 0)},
    "football": {
        "n_blue_agents": range(1, 5),
        "n_red_agents": range(1, 4),
        "ai_red_agents": YES_NO,
        "dense_reward": YES_NO,
        "enable_shooting": YES_NO,
        "observe_teammates": YES_NO,
        "observe_adversaries": YES_NO,
        "pitch_length": Between(1, 3),
        "ball_mass": Between(0.1, 1),
    },
    "give_way": {
        "mirror_passage": YES_NO,
        "observe_rel_pos": YES_NO,
        "done_on_completion": YES_NO,
        "dt_delay": range(4),
        "energy_rew_coeff": Between(0, 0.5),
    },
    "joint_passage": {
        "n_passages": (1, 3, 5),
        "fixed_passage": YES_NO,
        "joint_length": Between(0.3, 0.6),
        "random_start_angle": YES_NO,
        "random_goal_angle": YES_NO,
        "observe_joint_angle": YES_NO,
        "asym_package": YES_NO,
        "mass_ratio": Between(1, 6),
        "mass_position": Between(-0.75, 0.75),
    },
    "joint_passage_size": {
        "n_passages": (3, 4),
        "fixed_passage": YES_NO,
        "random_start_angle": YES_NO,
        "random_goal_angle": YES_NO,
        "observe_joint_angle": YES_NO,
    },
    "multi_give_way": {"shared_rew": YES_NO, "agent_collision_penalty": Between(-1, 0), "u_range": Between(0.3, 1)},
    "navigation": {
        "n_agents": range(2, 6),
        "shared_rew": YES_NO,
        "observe_all_goals": YES_NO,
        "collisions": YES_NO,
        "enforce_bounds": YES_NO,
        "lidar_range": Between(0.2, 0.8),
        "agent_radius": Between(0.05, 0.15),
        "n_lidar_rays": range(4, 17),
    },
    "passage": {"n_passages": range(1, 8), "shared_reward": YES_NO},
    "reverse_transport": {
        "n_agents": range(1, 5),
        "package_width": Between(0.4, 0.8),
        "package_length": Between(0.4, 0.8),
        "package_mass": Between(1, 50),
    },
    "sampling": {
        "n_agents": range(2, 5),
        "shared_rew": YES_NO,
        "n_gaussians": range(1, 5),
        "lidar_range": Between(0.1, 0.5),
        "cov": Between(0.03, 0.3),
        "norm": YES_NO,
        "grid_spacing": (0.125, 0.25),
    },
    "simple_adversary": {"n_agents": range(3, 6), "n_adversaries": (1, 2)},
    "simple_crypto": {"dim_c": range(1, 9)},
    "simple_push": {},
    "simple_reference": {},
    "simple_speaker_listener": {},
    "simple_spread": {"n_agents": range(1, 6), "obs_agents": YES_NO},
    "simple_tag": {
        "num_good_agents": range(1, 4),
        "num_adversaries": range(1, 5),
        "num_landmarks": range(4),
        "shape_agent_rew": YES_NO,
        "shape_adversary_rew": YES_NO,
        "agents_share_rew": YES_NO,
        "adversaries_share_rew": YES_NO,
        "observe_same_team": YES_NO,
        "bound": Between(0.5, 1.5),
    },
    "simple_world_comm": {
        "num_good_agents": range(1, 4),
        "num_adversaries": range(2, 5),
        "num_landmarks": range(3),
        "num_food": range(1, 4),
        "num_forests": range(1, 4),
    },
    "transport": {
        "n_agents": range(1, 6),
        "n_packages": (1, 2),
        "package_width": Between(0.1, 0.3),
        "package_length": Between(0.1, 0.3),
        "package_mass": Between(1, 50),
    },
    "wheel": {
        "n_agents": range(1, 6),
        "line_length": Between(0.5, 2),
        "line_mass": Between(1, 30),
        "desired_velocity": Between(0.05, 1),
    },
    "wind_flocking": {
        "wind": Between(0, 2),
        "cover_angle_tolerance": Between(0.3, 1),
        "energy_shaping_factor": Between(0, 1),
        "pos_shaping_factor": Between(0, 2),
        "observe_pos": YES_NO,
        "observe_rel_vel": YES_NO,
    },
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="scenarios; default: all")
    parser.add_argument("--output", type=Path, default=FOLDER, metavar="FOLDER")
    parser.add_argument("--random", type=int, metavar="SEED", help="one configuration drawn at random")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    for name in options.names or SCENARIOS:
        changes: Sequence[dict[str, Any]] = ({}, *SCENARIOS[name].others)
        seeds: Sequence[int] = SEEDS
        if options.random is not None:
            rng = np.random.default_rng([options.random, list(SCENARIOS).index(name)])
            changes = [{key: choose_value(choices, rng) for key, choices in CHOICES[name].items()}]
            seeds = [int(seed) for seed in rng.integers(1, 2**31, len(SEEDS))]
        arrays, meta = record(name, SCENARIOS[name], changes, seeds)
        path = options.output / f"{name}.npz"
        np.savez_compressed(path, meta=np.array(json.dumps(meta)), **arrays)
        print(f"{path.name}: {path.stat().st_size / 1000:.0f} kB")


def choose_value(choices: Sequence[Any], rng: np.random.Generator) -> Any:
    if isinstance(choices, Between):
        return round(float(rng.uniform(*choices)), 3)
    return choices[int(rng.integers(len(choices)))]


def record(
    name: str, entry: Entry, configurations: Sequence[dict[str, Any]], seeds: Sequence[int]
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """`configurations` are changes to the default parameters."""
    arrays: dict[str, np.ndarray] = {}
    meta: dict[str, Any] = {"random": entry.random, "configs": []}
    for number, changes in enumerate(configurations):
        parameters = default_parameters(name) | changes
        kept: list[dict[str, np.ndarray]] = []
        free: list[dict[str, np.ndarray]] = []
        for seed in seeds:
            for policy in ("random", "heuristic"):
                env = make_env(name, seed, parameters)
                transitions, run = play(env, name, entry.drawn, policy, seed)
                kept += choose(transitions, np.random.default_rng(seed))
                free.append(run)
        for kind, parts in (("step", kept), ("free", free)):
            for key in parts[0]:
                arrays[f"{number}/{kind}/{key}"] = np.stack([part[key] for part in parts])
        world = env.world
        meta["configs"].append(
            {
                "parameters": parameters,
                "entities": [entity.name for entity in world.entities],
                "agents": [agent.name for agent in env.agents],
                "joints": [[joint.entity_a.name, joint.entity_b.name] for joint in world.joints],
            }
        )
    return arrays, meta


def default_parameters(name: str) -> dict[str, Any]:
    """BenchMARL's parameters of the task."""
    import benchmarl

    path = Path(benchmarl.__file__).parent / "conf" / "task" / "vmas" / f"{name}.yaml"
    values = yaml.safe_load(path.read_text())
    return {key: value for key, value in values.items() if key != "defaults"}


def make_env(name: str, seed: int, parameters: dict[str, Any]) -> Any:
    fields = {key: value for key, value in parameters.items() if key != "max_steps"}
    return vmas.make_env(scenario=name, num_envs=1, continuous_actions=True, max_steps=None, seed=seed, **fields)


# ------------------------------------------------------------------------------------------------------- playing


def play(
    env: Any, name: str, drawn: Drawn, policy: str, seed: int
) -> tuple[list[dict[str, np.ndarray]], dict[str, np.ndarray]]:
    rng = np.random.default_rng(seed)
    observations = env.reset(seed=seed)
    act = make_random(env, rng) if policy == "random" else make_heuristic(env, name, rng)
    transitions = []
    for _ in range(NUM_STEPS):
        before = snapshot(env)
        hidden = {f"drawn/{key}": np.array(value) for key, value in drawn(env.scenario).items()}  # a copy
        actions = act(observations)
        observations, rewards, dones, _ = env.step([action.clone() for action in actions])
        after = snapshot(env)
        transitions.append(
            {f"before/{key}": value for key, value in before.items()}
            | {f"after/{key}": value for key, value in after.items()}
            | hidden
            | {f"action/{i}": action[0].numpy().copy() for i, action in enumerate(actions)}
            | {f"observation/{i}": flat(observation) for i, observation in enumerate(observations)}
            | {"reward": np.array([float(reward[0]) for reward in rewards], np.float32)}
            | {"done": np.array(bool(dones[0]))}
        )
    first = transitions[0]
    run = {key: value for key, value in first.items() if key.startswith(("before/", "drawn/"))}
    for key in ("pos", "rot"):
        run[f"after/{key}"] = np.stack(
            [t[f"after/{key}"] for t in transitions[FREE_EVERY - 1 : FREE_STEPS : FREE_EVERY]]
        )
    for key in (key for key in first if key.startswith("action/")):
        run[key] = np.stack([t[key] for t in transitions[:FREE_STEPS]])
    return transitions, run


def flat(observation: Any) -> np.ndarray:
    if isinstance(observation, dict):
        return np.concatenate([flat(value) for value in observation.values()])
    return observation[0].numpy().astype(np.float32).copy()


def snapshot(env: Any) -> dict[str, np.ndarray]:
    world = env.world
    values = {
        name: np.stack([getattr(entity.state, name)[0].numpy() for entity in world.entities]).astype(np.float32)
        for name in STATE
    }
    values["rot"], values["ang_vel"] = values["rot"][:, 0], values["ang_vel"][:, 0]
    kept = [joint.fixed_rotation for joint in world.joints]
    values["joint_rotation"] = np.array(
        [float(x[0]) if torch.is_tensor(x) else float(x or 0) for x in kept], np.float32
    )
    return values


def make_random(env: Any, rng: np.random.Generator) -> Callable[[Any], list[torch.Tensor]]:
    """Uniform actions, each held for one to eight steps."""
    left = [0] * len(env.agents)
    held: list[Any] = [None] * len(env.agents)

    def act(observations: Any) -> list[torch.Tensor]:
        for i, agent in enumerate(env.agents):
            if left[i] == 0:
                left[i], held[i] = int(rng.integers(1, 9)), random_action(env, agent, rng)
            left[i] -= 1
        return list(held)

    return act


def random_action(env: Any, agent: Any, rng: np.random.Generator) -> torch.Tensor:
    bounds = agent.action.u_range_tensor.numpy()
    says = env.get_agent_action_size(agent) - len(bounds)
    action = np.concatenate([rng.uniform(-bounds, bounds), rng.uniform(0, 1, says)])
    return torch.tensor(action, dtype=torch.float32)[None]


def make_heuristic(env: Any, name: str, rng: np.random.Generator) -> Callable[[Any], list[torch.Tensor]]:
    """The scenario's own policy, if it has one for all agents that runs here."""
    try:
        folder = "scenarios.mpe" if name.startswith("simple") else "scenarios"
        policy = importlib.import_module(f"vmas.{folder}.{name}").HeuristicPolicy(continuous_action=True)

        def act(observations: Any) -> list[torch.Tensor]:
            actions = []
            for agent, observation in zip(env.agents, observations, strict=True):
                action = policy.compute_action(observation, u_range=agent.action.u_range)
                rest = random_action(env, agent, rng)[:, action.shape[1] :]
                bounds = agent.action.u_range_tensor
                actions.append(torch.cat([torch.clamp(action.float(), -bounds, bounds), rest], -1))
            return actions

        act(env.get_from_scenario(get_observations=True, get_rewards=False, get_infos=False, get_dones=False)[0])
        return act
    except (AttributeError, ImportError, ModuleNotFoundError, RuntimeError, AssertionError, TypeError):
        return make_seeking(env, rng)


def make_seeking(env: Any, rng: np.random.Generator) -> Callable[[Any], list[torch.Tensor]]:
    """Each agent steers to an entity drawn at random every 25 steps."""
    goals: list[Any] = []
    step = 0

    def act(observations: Any) -> list[torch.Tensor]:
        nonlocal step, goals
        if step % 25 == 0:
            goals = [rng.choice([e for e in env.world.entities if e is not agent]) for agent in env.agents]
        step += 1
        actions = []
        for agent, goal in zip(env.agents, goals, strict=True):
            action = random_action(env, agent, rng)
            bounds = agent.action.u_range_tensor
            way = 3 * (goal.state.pos - agent.state.pos)
            size = min(2, len(bounds))
            action[:, :size] = torch.clamp(way[:, :size], -bounds[:size], bounds[:size])
            actions.append(action)
        return actions

    return act


def choose(transitions: list[dict[str, np.ndarray]], rng: np.random.Generator) -> list[dict[str, np.ndarray]]:
    """Some at random, and those in which velocities changed most, by a jump against the step before."""
    change = np.array([np.abs(t["after/vel"] - t["before/vel"]).max(initial=0) for t in transitions])
    jump = np.abs(np.diff(change, prepend=change[:1]))
    contacts = np.argsort(-jump)[:NUM_CONTACT]
    rest = np.setdiff1d(np.arange(len(transitions)), contacts)
    steps = np.sort(np.concatenate([contacts, rng.choice(rest, NUM_RANDOM, replace=False)]))
    return [transitions[i] for i in steps]


if __name__ == "__main__":
    main()
