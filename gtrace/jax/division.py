"""Division of integers that may be zero, which here raises when it runs: with JAX's results it has a value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gtrace import config
from gtrace import lax as our_lax
from gtrace import numpy as ours
from gtrace.extend import Array, deferring, ops, promote_arrays, thread


def _rounded_down(zero: Array, x: Array, found: Array) -> Array:
    """Return -2, and -1 for 0 / 0; of unsigned integers the largest."""
    if not x.aval.dtype.is_signed:
        return _rounded_to_zero(zero, x, found)
    return ops.where(zero, ops.where(ops.equal(x, 0), -1, -2), found)


def _rounded_to_zero(zero: Array, x: Array, found: Array) -> Array:
    """Return -1; of unsigned integers the largest."""
    return ops.where(zero, -1 if x.aval.dtype.is_signed else torch.iinfo(x.aval.dtype).max, found)


def _total(
    name: str, function: Callable[[Any, Any], Array], at_zero: Callable[[Array, Array, Array], Array], what: str
) -> Callable[[Any, Any], Array]:
    """Return a division that has JAX's values where an integer divisor is zero.

    Args:
        at_zero: from where the divisor is zero, the dividend, and the result by 1 there, to the result.
        what: the value by zero, for the documentation.
    """

    def call(x: Any, y: Any, /) -> Array:
        may_be_zero = not y.aval.floating if y.__class__ is Array else y.__class__ not in (int, float) or not y
        if may_be_zero and config.current.jax_results and not thread.in_rule:
            a, b = promote_arrays(name, x, y)
            if not a.aval.floating and a.aval.dtype is not torch.bool:
                zero = ops.equal(b, 0)
                return at_zero(zero, a, function(a, ops.where(zero, 1, b)))
        return function(x, y)

    call.__name__ = call.__qualname__ = name
    call.__doc__ = f"``{name}`` of gtrace; of integers by zero {what}, as in JAX."
    return call


floor_divide = _total("floor_divide", ops.floor_divide, _rounded_down, "-2, and -1 for 0")
remainder = _total("remainder", ops.remainder, lambda zero, x, found: found, "0")
fmod = _total("fmod", ours.fmod, lambda zero, x, found: found, "0")
of_lax = {
    "div": _total("div", our_lax.div, _rounded_to_zero, "-1"),
    "rem": _total("rem", our_lax.rem, lambda zero, x, found: ops.where(zero, x, found), "the dividend"),
}
"""Those of ``jax.lax``."""


def divmod(x: Any, y: Any, /) -> tuple[Array, Array]:  # noqa: A001 - JAX's name
    """Return the floor of x / y and the remainder.

    >>> import gtrace.jax.numpy as jnp
    >>> with gt.config(jax_results=True):
    ...     [x.tolist() for x in jnp.divmod(jnp.array([7, 0]), 0)]
    [[-2, -1], [0, 0]]
    """
    return floor_divide(x, y), remainder(x, y)


def _swapped(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return deferring(lambda self, other: function(other, self))


OPERATORS: dict[str, Any] = {
    "__floordiv__": deferring(floor_divide), "__mod__": deferring(remainder), "__divmod__": deferring(divmod),
    "__rfloordiv__": _swapped(floor_divide), "__rmod__": _swapped(remainder), "__rdivmod__": _swapped(divmod),
}  # fmt: skip
"""The operators of Array."""
