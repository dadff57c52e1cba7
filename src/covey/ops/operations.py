"""Functions that stay compiled while `jit=false` (`jax.disable_jit`) runs everything else operation by operation."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import jax

_P = ParamSpec("_P")
_T = TypeVar("_T")


def is_uncompiled() -> bool:
    """Whether `jax.disable_jit` is in force, as with `jit=false`."""
    return bool(jax.config.values["jax_disable_jit"])


def one_operation(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Makes `function` one compiled operation under `jax.disable_jit`; elsewhere it is unchanged.

    For code that nobody steps through, such as an optimiser: its hundreds of operations, run one by one, would take
    most of the time.
    """
    compiled = jax.jit(function)

    @functools.wraps(function)
    def call(*arguments: _P.args, **options: _P.kwargs) -> _T:
        if not is_uncompiled():
            return function(*arguments, **options)
        with jax.disable_jit(False):
            result: _T = compiled(*arguments, **options)
        return result

    return call
