"""Spheres, boxes and lines: what an entity's shape means for its mass, its reach and its anchors."""

from __future__ import annotations

import dataclasses
import math

Pair = tuple[float, float]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sphere:
    radius: float = 0.05

    @property
    def reach(self) -> float:
        """The radius of the circle around the shape."""
        return self.radius

    def moment_of_inertia(self, mass: float) -> float:
        return mass * self.radius**2 / 2

    def anchor_offset(self, anchor: Pair) -> Pair:
        """From the centre to `anchor`, which is given in −1…1 of the shape's extent."""
        x, y = anchor[0] * self.radius, anchor[1] * self.radius
        length = math.hypot(x, y)
        if length > self.radius:  # VMAS divides by the radius too
            x, y = x / (length * self.radius), y / (length * self.radius)
        return x, y


@dataclasses.dataclass(frozen=True, kw_only=True)
class Box:
    length: float = 0.3  # along its own x axis
    width: float = 0.1
    hollow: bool = False  # a frame that can hold things

    @property
    def reach(self) -> float:
        return math.hypot(self.length, self.width) / 2

    def moment_of_inertia(self, mass: float) -> float:
        return mass * (self.length**2 + self.width**2) / 12

    def anchor_offset(self, anchor: Pair) -> Pair:
        return anchor[0] * self.length / 2, anchor[1] * self.width / 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class Line:
    length: float = 0.5

    @property
    def reach(self) -> float:
        return self.length / 2

    def moment_of_inertia(self, mass: float) -> float:
        return mass * self.length**2 / 12

    def anchor_offset(self, anchor: Pair) -> Pair:
        return anchor[0] * self.length / 2, 0.0


Shape = Sphere | Box | Line
