"""Dynamics by the task's fields: every kind by name, there and back through config.yaml, and what is refused."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from replay import COMPILE_FAST

from covey.envs.base import make_env
from covey.envs.vmas import dynamics
from covey.envs.vmas.dynamics import DynamicsKind, make_dynamics
from covey.envs.vmas.scenario import Scenario, VmasConfig, VmasEnv
from covey.envs.vmas.scenarios.flocking import Flocking, FlockingConfig
from covey.envs.vmas.scenarios.football import Football, FootballConfig
from covey.envs.vmas.scenarios.give_way import GiveWay, GiveWayConfig
from covey.envs.vmas.scenarios.navigation import Navigation, NavigationConfig
from covey.envs.vmas.world import Agent, World
from covey.errors import UsageError
from covey.experiment.configuration.compose import compose
from covey.experiment.configuration.config import from_yaml, to_yaml
from covey.experiment.running.build import build_env
from covey.types import Continuous, Discrete

BICYCLE = {"width": 0.1, "l_f": 0.1, "l_r": 0.1, "max_steering_angle": 1.0}
OPTIONS: dict[str, dict[str, Any]] = {
    "differential_drive": {"integration": "euler"},
    "kinematic_bicycle": BICYCLE,
    "drone": {"i_zz": 0.02},
}
SIZES = {
    "holonomic": 2,
    "holonomic_with_rotation": 3,
    "forward": 1,
    "rotation": 1,
    "static": 0,
    "differential_drive": 2,
    "kinematic_bicycle": 2,
    "drone": 4,
}


def fields_of(kind: str) -> list[str]:
    options = [f"task.dynamics_options.{name}={value}" for name, value in OPTIONS.get(kind, {}).items()]
    return ["task=vmas/navigation", f"task.dynamics={kind}", *options]


def unwrapped(env: Any) -> VmasEnv:
    while not isinstance(env, VmasEnv):
        env = env.env
    return env


def step_one(config: NavigationConfig, action: list[float]) -> Any:
    """One agent of navigation, at rest at the origin and looking along x, after one step of `action`."""
    env = VmasEnv(Navigation(config))
    world = env.world.start({"goal 0": jnp.array([5.0, 5.0])})

    @functools.partial(jax.jit, compiler_options=COMPILE_FAST)
    def step(action: jax.Array) -> Any:
        return env.step(env.scenario.begin(world), {"agents": action}, jax.random.key(0))[0]

    state = step(jnp.array([action])).world
    agent = env.world.index("agent_0")
    return state.position[agent], state.velocity[agent], state.rotation[agent], state.angular_velocity[agent]


def test_every_kind_has_a_name() -> None:
    assert set(SIZES) == {kind.name for kind in DynamicsKind}
    theirs = {dynamics.VelocityControl, dynamics.Delayed}  # scenarios make these themselves
    assert {kind.value for kind in DynamicsKind} == set(dynamics.Dynamics.__subclasses__()) - theirs


@pytest.mark.parametrize("kind", SIZES)
def test_every_kind_by_name(kind: str) -> None:
    env = build_env(compose(fields_of(kind)))
    action = env.spec.groups["agents"].action
    assert isinstance(action, Continuous) and action.size == SIZES[kind]
    expected = make_dynamics(DynamicsKind[kind], OPTIONS.get(kind, {}))
    assert all(agent.dynamics == expected for agent in unwrapped(env).world.agents)

    def play(key: jax.Array) -> Any:
        state, _ = env.reset(key)
        return env.step(state, {"agents": jnp.full((3, SIZES[kind]), 0.5)}, key)

    if kind == "drone":  # it remembers, so it has the most to go wrong
        state, timestep = jax.jit(play, compiler_options=COMPILE_FAST)(jax.random.key(0))
        leaves = [leaf for leaf in jax.tree.leaves((state, timestep)) if jnp.issubdtype(leaf.dtype, jnp.floating)]
        assert all(np.isfinite(leaf).all() for leaf in leaves)
    else:
        _, timestep = jax.eval_shape(play, jax.random.key(0))
    assert timestep.groups["agents"].reward.shape == (3,)


@pytest.mark.parametrize("kind", SIZES)
def test_round_trip_through_yaml(kind: str) -> None:
    config = compose(fields_of(kind))
    back = from_yaml(to_yaml(config))
    assert back == config and back.task.config.dynamics is DynamicsKind[kind]
    assert unwrapped(build_env(back)).world == unwrapped(build_env(config)).world


def test_discrete_actions_follow_the_dynamics() -> None:
    config = NavigationConfig(dynamics=DynamicsKind.drone, continuous_actions=False)
    assert VmasEnv(Navigation(config)).spec.groups["agents"].action == Discrete(3**4)


def test_scripted_agents_keep_their_dynamics() -> None:
    """Flocking's target goes round a circle by forces, whatever the flock is made of."""
    env = VmasEnv(Flocking(FlockingConfig(dynamics=DynamicsKind.holonomic_with_rotation)))
    target, *flock = sorted(env.world.agents, key=lambda agent: not agent.scripted)
    assert target.scripted and target.dynamics == dynamics.Holonomic()
    assert all(agent.dynamics == dynamics.HolonomicWithRotation() for agent in flock)

    def play(key: jax.Array) -> Any:
        return env.step(env.reset(key)[0], {"agents": jnp.zeros((len(flock), 3))}, key)

    jax.eval_shape(play, jax.random.key(0))


def test_differential_drive_by_hand() -> None:
    """Speed 1 and a turn of 0.5 lead, within dt = 0.1, along an arc of radius 2 to 2·(sin 0.05, 1 − cos 0.05).

    The force for that acts over both substeps: the velocity is the way over dt, and the way itself is
    (1 + 2)/4 of it, as the first substep moves at half of that velocity. So with the angle.
    """
    config = NavigationConfig(n_agents=1, dynamics=DynamicsKind.differential_drive)
    position, velocity, rotation, spin = step_one(config, [1.0, 0.5])
    way = np.array([0.09995834, 0.00249948])
    np.testing.assert_allclose(velocity, way / 0.1, rtol=1e-4)
    np.testing.assert_allclose(position, 0.75 * way, rtol=1e-4)
    np.testing.assert_allclose([rotation, spin], [0.75 * 0.05, 0.5], rtol=1e-4)


def test_kinematic_bicycle_by_hand() -> None:
    """Axles 0.1 before and behind: steering by δ, the slip is β = atan(tan δ / 2), the turn v·cos β·tan δ / 0.2.

    With tan δ = 0.8, β = atan 0.4 = 0.3805064 and the turn is 5 · 0.9284767 · 0.8 = 3.7139068. The arc has radius
    1 / 3.7139068 and goes from angle β to β + 0.3713907.
    """
    config = NavigationConfig(n_agents=1, dynamics=DynamicsKind.kinematic_bicycle, dynamics_options=BICYCLE)
    position, velocity, rotation, spin = step_one(config, [1.0, math.atan(0.8)])
    start, end = 0.3805064, 0.3805064 + 0.3713907
    way = np.array([math.sin(end) - math.sin(start), math.cos(start) - math.cos(end)]) / 3.7139068
    np.testing.assert_allclose(velocity, way / 0.1, rtol=1e-4)
    np.testing.assert_allclose(position, 0.75 * way, rtol=1e-4)
    np.testing.assert_allclose([rotation, spin], [0.75 * 0.3713907, 3.7139068], rtol=1e-4)
    limited = dataclasses.replace(config, dynamics_options=BICYCLE | {"max_steering_angle": 0.0})
    np.testing.assert_allclose(step_one(limited, [1.0, 0.5])[0], [0.075, 0.0], atol=1e-6)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["task.dynamics=bicycle"], "nearest: kinematic_bicycle"),
        (["task.dynamics=kinematic_bicycle"], "needs the options width, l_f, l_r, max_steering_angle"),
        (["task.dynamics=drone", "task.dynamics_options.i_x=1"], "no option 'i_x'; it takes i_xx, i_yy, i_zz"),
        (["task.dynamics=forward", "task.dynamics_options.width=1"], "no option 'width'; it takes none"),
        (["task.dynamics=drone", "task.dynamics_options.i_xx=heavy"], "i_xx of dynamics drone takes a number"),
        (["task.dynamics=drone", "task.dynamics_options.i_xx=0"], "must be positive"),
        (["task.dynamics=drone", "task.dynamics_options.integration=rk2"], "one of rk4, euler, not 'rk2'"),
        (["task.dynamics_options.width=1"], "dynamics_options need a kind of dynamics: one of holonomic"),
    ],
)
def test_bad_fields_are_refused_with_the_valid_ones(overrides: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        compose(["task=vmas/navigation", *overrides])


def test_a_bicycle_needs_axles_apart() -> None:
    with pytest.raises(ValueError, match="axles"):
        make_dynamics(DynamicsKind.kinematic_bicycle, BICYCLE | {"l_f": 0, "l_r": 0})


class Uneven(Scenario):
    """Its agent's two actions are multiplied each by its own number."""

    def make_world(self) -> World:
        return World(agents=(Agent(name="agent", u_multiplier=(1.0, 2.0)),))


@pytest.mark.parametrize(
    ("scenario", "config", "message"),
    [
        (Football, FootballConfig(dynamics=DynamicsKind.drone), "itself defines what its actions are"),
        (GiveWay, GiveWayConfig(dynamics=DynamicsKind.forward), "relies on its VelocityControl"),
        (Uneven, VmasConfig(dynamics=DynamicsKind.forward), "u_multiplier is for 2 numbers, but these take 1"),
    ],
)
def test_scenarios_that_cannot_have_other_dynamics_say_so(scenario: Any, config: VmasConfig, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        scenario(config)


def test_such_a_task_is_a_users_error() -> None:
    with pytest.raises(UsageError, match="task: agent_blue_0 cannot have other dynamics"):
        make_env("vmas/football", dynamics="drone")
    assert Uneven(VmasConfig(dynamics=DynamicsKind.differential_drive)).world.max_actions == 2
