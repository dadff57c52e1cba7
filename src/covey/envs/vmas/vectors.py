"""Vectors in the plane with their two coordinates in separate arrays, for code that runs many times.

A coordinate's array may have any axes. The engine keeps environments on the last one, so that every operation runs
along contiguous memory; where coordinates lie beside each other, as in `[…, 2]`, a processor's vector units idle.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from covey.types import Array, pytree

_T = TypeVar("_T")
Numbers = Array | np.ndarray | float


@pytree
class Vector:
    x: Array
    y: Array

    @classmethod
    def of(cls, points: Array, axis: int = -1) -> Vector:
        """From an array with both coordinates along `axis`."""
        x, y = (jax.lax.index_in_dim(points, i, axis, keepdims=False) for i in range(2))
        return cls(x=x, y=y)

    @classmethod
    def heading(cls, angle: Array) -> Vector:
        """Of length 1, in the direction of `angle`."""
        return cls(x=jnp.cos(angle), y=jnp.sin(angle))

    def stack(self, axis: int = -1) -> Array:
        return jnp.stack([self.x, self.y], axis)

    def __getitem__(self, index: object) -> Vector:
        return Vector(x=self.x[index], y=self.y[index])

    def __add__(self, other: Vector) -> Vector:
        return Vector(x=self.x + other.x, y=self.y + other.y)

    def __sub__(self, other: Vector) -> Vector:
        return Vector(x=self.x - other.x, y=self.y - other.y)

    def __mul__(self, scale: Numbers) -> Vector:
        return Vector(x=self.x * scale, y=self.y * scale)

    def __truediv__(self, scale: Numbers) -> Vector:
        return Vector(x=self.x / scale, y=self.y / scale)

    def dot(self, other: Vector) -> Array:
        return self.x * other.x + self.y * other.y

    def cross(self, other: Vector) -> Array:
        return self.x * other.y - self.y * other.x

    def squared(self) -> Array:
        """The square of its length."""
        return self.dot(self)

    def norm(self) -> Array:
        return jnp.sqrt(self.squared())

    def direction(self) -> Vector:
        """At length 1; zero stays zero."""
        length = self.norm()
        return self / jnp.where(length > 0, length, 1.0)

    def turned(self, angle: Array) -> Vector:
        cos, sin = jnp.cos(angle), jnp.sin(angle)
        return Vector(x=self.x * cos - self.y * sin, y=self.x * sin + self.y * cos)


def choose(condition: Array | np.ndarray, yes: Vector, no: Vector) -> Vector:
    return Vector(x=jnp.where(condition, yes.x, no.x), y=jnp.where(condition, yes.y, no.y))


def stack_vectors(vectors: list[Vector]) -> Vector:
    """Along a new first axis."""
    return Vector(x=jnp.stack([v.x for v in vectors]), y=jnp.stack([v.y for v in vectors]))


def column(values: np.ndarray, like: Array) -> np.ndarray:
    """`values` with as many further axes of size 1 as `like` has more."""
    return values.reshape(*values.shape, *[1] * (like.ndim - values.ndim))


def environments_last(function: Callable[..., _T]) -> Callable[..., _T]:
    """`function`, which looks only at the first axes of its arrays, for example `[E, 2, …]`: under `vmap` it
    receives the environments as a further, last axis, instead of the first."""
    single = jax.custom_batching.custom_vmap(function)

    @single.def_vmap
    def batch(axis_size: int, is_batched: list[Any], *arguments: Any) -> tuple[_T, Any]:
        def move(array: Array, batched: bool) -> Array:
            return jnp.moveaxis(array, 0, -1) if batched else jnp.repeat(array[..., None], axis_size, -1)

        result = function(*jax.tree.map(move, arguments, tuple(is_batched)))
        first = jax.tree.map(lambda array: jnp.moveaxis(array, -1, 0), result)
        return first, jax.tree.map(lambda _: True, first)

    return single
