"""From an agent's action to a force and a torque: how different robots move.

Each kind takes the actions `u [N, …]` of the N agents that have it, with their bodies, and returns forces `[N, 2]`,
torques `[N]` and what it remembers. Those that follow a velocity command compute the force that would bring the agent
where the command leads within one step of the world, drag and collisions aside.

A task may give its agents other dynamics than the scenario does, by a `DynamicsKind` and the options of that kind:
`task.dynamics=kinematic_bicycle task.dynamics_options.l_f=0.1 …`.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import jax.numpy as jnp

from covey.types import Array, pytree

GRAVITY = 9.81
INTEGRATIONS = ("rk4", "euler")


@pytree
class Bodies:
    """The agents that act, `[N, …]`."""

    position: Array
    velocity: Array
    rotation: Array
    angular_velocity: Array
    mass: Array
    moment_of_inertia: Array


Forces = tuple[Array, Array, Array]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dynamics:
    action_size: ClassVar[int]
    memory_size: ClassVar[int] = 0

    def forces(self, u: Array, bodies: Bodies, memory: Array, dt: float) -> Forces:
        raise NotImplementedError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Holonomic(Dynamics):
    """The action is the force."""

    action_size: ClassVar[int] = 2

    def forces(self, u: Array, bodies: Bodies, memory: Array, dt: float) -> Forces:
        return u[:, :2], jnp.zeros_like(bodies.rotation), memory


@dataclasses.dataclass(frozen=True, kw_only=True)
class HolonomicWithRotation(Dynamics):
    """The action is the force and the torque."""

    action_size: ClassVar[int] = 3

    def forces(self, u: Array, bodies: Bodies, memory: Array, dt: float) -> Forces:
        return u[:, :2], u[:, 2], memory


@dataclasses.dataclass(frozen=True, kw_only=True)
class Forward(Dynamics):
    """The action is a force along the agent's heading."""

    action_size: ClassVar[int] = 1

    def forces(self, u: Array, bodies: Bodies, memory: Array, dt: float) -> Forces:
        heading = jnp.stack([jnp.cos(bodies.rotation), jnp.sin(bodies.rotation)], -1)
        return u[:, :1] * heading, jnp.zeros_like(bodies.rotation), memory


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rotation(Dynamics):
    """The action is a torque."""

    action_size: ClassVar[int] = 1

    def forces(self, u: Array, bodies: Bodies, memory: Array, dt: float) -> Forces:
        return jnp.zeros_like(bodies.position), u[:, 0], memory


@dataclasses.dataclass(frozen=True, kw_only=True)
class Static(Dynamics):
    """The agent does not move by itself."""

    action_size: ClassVar[int] = 0

    def forces(self, u: Array, bodies: Bodies, memory: Array, dt: float) -> Forces:
        return jnp.zeros_like(bodies.position), jnp.zeros_like(bodies.rotation), memory


@dataclasses.dataclass(frozen=True, kw_only=True)
class VelocityControl(Dynamics):
    """The action is a velocity, which a PID controller pursues: F = mass·gain·(e + ∫e dt / T_i + T_d·de/dt).

    e is the error of the velocity. The integral stops growing where it would ask for half of `max_force`. A command
    slower than `stop_below` resets the controller. It remembers the integral, the last e, and the force.
    """

    gain: float
    integral_time: float
    derivative_time: float
    max_force: float
    stop_below: float = 0.0
    action_size: ClassVar[int] = 2
    memory_size: ClassVar[int] = 6

    def forces(self, u: Array, bodies: Bodies, memory: Array, dt: float) -> Forces:
        stops = jnp.sum(jnp.square(u[:, :2]), -1, keepdims=True) < self.stop_below**2
        memory = jnp.where(stops, 0.0, memory)
        most = 0.5 * self.max_force * self.integral_time / (dt * self.gain)
        error = u[:, :2] - bodies.velocity
        integral = jnp.clip(memory[:, :2] + dt * error, -most, most)
        rate = (error - memory[:, 2:4]) / dt
        wanted = error + integral / self.integral_time + self.derivative_time * rate
        force = bodies.mass[:, None] * self.gain * wanted
        return force, jnp.zeros_like(bodies.rotation), jnp.concatenate([integral, error, force], -1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Delayed(Dynamics):
    """Delays the actions of `dynamics` by `steps`, with zeros first. It remembers the queue and what those remember."""

    dynamics: Dynamics
    steps: int

    @property
    def action_size(self) -> int:  # type: ignore[override]
        return self.dynamics.action_size

    @property
    def memory_size(self) -> int:  # type: ignore[override]
        return self.steps * self.action_size + self.dynamics.memory_size

    def forces(self, u: Array, bodies: Bodies, memory: Array, dt: float) -> Forces:
        size, rest = self.action_size, self.steps * self.action_size
        queue = jnp.concatenate([memory[:, :rest], u[:, :size]], -1)
        force, torque, inner = self.dynamics.forces(queue[:, :size], bodies, memory[:, rest:], dt)
        return force, torque, jnp.concatenate([queue[:, size:], inner], -1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DifferentialDrive(Dynamics):
    """The action is a speed along the heading and an angular velocity."""

    integration: str = "rk4"
    action_size: ClassVar[int] = 2

    def __post_init__(self) -> None:
        _check_integration(self.integration)

    def forces(self, u: Array, bodies: Bodies, memory: Array, dt: float) -> Forces:
        speed, turn = u[:, 0], u[:, 1]

        def derivative(state: Array) -> Array:
            return jnp.stack([speed * jnp.cos(state[:, 2]), speed * jnp.sin(state[:, 2]), turn], -1)

        change = _integrate(derivative, _pose(bodies), dt, self.integration)
        return *_reach(change, bodies, dt), memory


@dataclasses.dataclass(frozen=True, kw_only=True)
class KinematicBicycle(Dynamics):
    """The action is a speed and a steering angle (Polack et al., 2017, eq. 2)."""

    width: float
    l_f: float  # from the centre of mass to the front axle
    l_r: float  # and to the rear one
    max_steering_angle: float
    integration: str = "rk4"
    action_size: ClassVar[int] = 2

    def __post_init__(self) -> None:
        _check_integration(self.integration)
        if min(self.l_f, self.l_r) < 0 or self.l_f + self.l_r == 0:
            raise ValueError(f"a bicycle's axles must be apart: l_f={self.l_f} and l_r={self.l_r} are not allowed")

    def forces(self, u: Array, bodies: Bodies, memory: Array, dt: float) -> Forces:
        speed = u[:, 0]
        steering = jnp.clip(u[:, 1], -self.max_steering_angle, self.max_steering_angle)
        base = self.l_f + self.l_r
        slip = jnp.arctan(jnp.tan(steering) * self.l_r / base)
        turn = speed / base * jnp.cos(slip) * jnp.tan(steering)

        def derivative(state: Array) -> Array:
            heading = state[:, 2] + slip
            return jnp.stack([speed * jnp.cos(heading), speed * jnp.sin(heading), turn], -1)

        change = _integrate(derivative, _pose(bodies), dt, self.integration)
        return *_reach(change, bodies, dt), memory


@dataclasses.dataclass(frozen=True, kw_only=True)
class Drone(Dynamics):
    """The action is a thrust beyond what hovering needs, and torques about three axes.

    It remembers roll, pitch, yaw, their rates, the velocity in three dimensions and the position.
    """

    i_xx: float = 8.1e-3
    i_yy: float = 8.1e-3
    i_zz: float = 14.2e-3
    integration: str = "rk4"
    action_size: ClassVar[int] = 4
    memory_size: ClassVar[int] = 12

    def __post_init__(self) -> None:
        _check_integration(self.integration)
        if min(self.i_xx, self.i_yy, self.i_zz) <= 0:
            raise ValueError("a drone's moments of inertia i_xx, i_yy and i_zz must be positive")

    def forces(self, u: Array, bodies: Bodies, memory: Array, dt: float) -> Forces:
        thrust = (u[:, 0] + bodies.mass * GRAVITY) / bodies.mass
        torque_x, torque_y, torque_z = u[:, 1], u[:, 2], u[:, 3]

        def derivative(state: Array) -> Array:
            roll, pitch, yaw, p, q, r, x_dot, y_dot, z_dot = (state[:, i] for i in range(9))
            tilt = jnp.cos(roll) * jnp.sin(pitch)
            return jnp.stack(
                [
                    p,
                    q,
                    r,
                    (torque_x - (self.i_yy - self.i_zz) * q * r) / self.i_xx,
                    (torque_y - (self.i_zz - self.i_xx) * p * r) / self.i_yy,
                    (torque_z - (self.i_xx - self.i_yy) * p * q) / self.i_zz,
                    (tilt * jnp.cos(yaw) + jnp.sin(roll) * jnp.sin(yaw)) * thrust,
                    (tilt * jnp.sin(yaw) - jnp.sin(roll) * jnp.cos(yaw)) * thrust,
                    jnp.cos(roll) * jnp.cos(pitch) * thrust - GRAVITY,
                    x_dot,
                    y_dot,
                    z_dot,
                ],
                -1,
            )

        state = memory.at[:, 9:11].set(bodies.position).at[:, 2].set(bodies.rotation)
        change = _integrate(derivative, state, dt, self.integration)
        pose_change = jnp.stack([change[:, 6], change[:, 7], change[:, 5]], -1)
        return *_reach(pose_change, bodies, dt), state + change


class DynamicsKind(enum.Enum):
    """The kinds that a task can ask for by name."""

    holonomic = Holonomic  # the action is a force
    holonomic_with_rotation = HolonomicWithRotation  # the action is a force and a torque
    forward = Forward  # the action is a force along the agent's heading
    rotation = Rotation  # the action is a torque
    static = Static  # the agent does not move by itself
    differential_drive = DifferentialDrive  # the action is a speed along the heading and an angular velocity
    kinematic_bicycle = KinematicBicycle  # the action is a speed and a steering angle
    drone = Drone  # the action is a thrust and three torques


def make_dynamics(kind: DynamicsKind, options: Mapping[str, Any]) -> Dynamics:
    """The dynamics of that kind; `options` are its fields. Raises ValueError if one is unknown or missing."""
    fields = {field.name: field for field in dataclasses.fields(kind.value)}
    for name in options:
        if name not in fields:
            valid = f"it takes {', '.join(fields)}" if fields else "it takes none"
            raise ValueError(f"dynamics {kind.name} has no option '{name}'; {valid}")
    missing = [name for name, field in fields.items() if field.default is dataclasses.MISSING and name not in options]
    if missing:
        raise ValueError(f"dynamics {kind.name} needs the options {', '.join(missing)}; it takes {', '.join(fields)}")
    values = {}
    for name, value in options.items():
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if fields[name].type == "float" and not is_number:
            raise ValueError(f"option {name} of dynamics {kind.name} takes a number, not {value!r}")
        values[name] = float(value) if is_number else value
    dynamics: Dynamics = kind.value(**values)
    return dynamics


def _check_integration(method: str) -> None:
    if method not in INTEGRATIONS:
        raise ValueError(f"integration is one of {', '.join(INTEGRATIONS)}, not {method!r}")


def _pose(bodies: Bodies) -> Array:
    return jnp.concatenate([bodies.position, bodies.rotation[:, None]], -1)


def _integrate(derivative: Callable[[Array], Array], state: Array, dt: float, method: str) -> Array:
    """The change of `state` over `dt`, by Euler or the classical Runge-Kutta method."""
    k1 = derivative(state)
    if method == "euler":
        return dt * k1
    k2 = derivative(state + dt * k1 / 2)
    k3 = derivative(state + dt * k2 / 2)
    k4 = derivative(state + dt * k3)
    return dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)


def _reach(change: Array, bodies: Bodies, dt: float) -> tuple[Array, Array]:
    """The force and torque that change position and angle by `change [N, 3]` within `dt`."""
    acceleration = (change[:, :2] - bodies.velocity * dt) / dt**2
    angular = (change[:, 2] - bodies.angular_velocity * dt) / dt**2
    return bodies.mass[:, None] * acceleration, bodies.moment_of_inertia * angular
