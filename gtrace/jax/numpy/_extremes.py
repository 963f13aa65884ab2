"""Extremes. Complex numbers are ordered by their real, then their imaginary parts, as in NumPy and JAX."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from gtrace import numpy as ours
from gtrace.core import ops
from gtrace.core.base.errors import ArgumentError, message
from gtrace.core.ops.operands import promote_arrays
from gtrace.core.trace.array import Array
from gtrace.core.trace.convert import lift
from gtrace.jax.numpy._reductions import check, fold, rows_of, shaped

__all__ = ["amax", "amin", "max", "min", "minmax", "nanmax", "nanmin", "ptp"]


def _by_parts(name: str, x: Any, y: Any, wins: Callable[[Any, Any], Any]) -> Array:
    """Return of two complex numbers the one whose real part, and then imaginary part, wins; NaN wins always."""
    x, y = promote_arrays(name, x, y)
    first = ops.logical_or(
        wins(ops.real(x), ops.real(y)),
        ops.logical_and(ops.equal(ops.real(x), ops.real(y)), wins(ops.imag(x), ops.imag(y))),
    )
    return ops.where(ops.logical_or(first, ops.isnan(x)), x, y)


def _is_complex(*operands: Any) -> bool:
    return any(ops.iscomplexobj(x) for x in operands)


def maximum(x: Any, y: Any, /) -> Array:
    """``gt.maximum``, of complex numbers too."""
    return _by_parts("maximum", x, y, ops.greater) if _is_complex(x, y) else ops.maximum(x, y)


def minimum(x: Any, y: Any, /) -> Array:
    """``gt.minimum``, of complex numbers too."""
    return _by_parts("minimum", x, y, ops.less) if _is_complex(x, y) else ops.minimum(x, y)


def _extreme(name: str, combine: Callable[[Any, Any], Array], worst: float) -> Callable[..., Array]:
    function = getattr(ours, name)

    def call(
        a: Any, axis: Any = None, out: None = None, keepdims: bool = False, initial: Any = None, where: Any = None
    ) -> Array:  # fmt: skip
        check(name, where, out)
        x = lift(name, a)
        if not x.aval.complex:
            return function(x, axis, keepdims=keepdims, initial=initial, where=where)
        kept = x
        if where is not None:
            if initial is None:
                fix = "Pass initial=, which the result is at least or at most."
                raise ArgumentError(message(name, "`initial` beside a mask", "none", fix))
            kept = ops.where(where, kept, initial)
        if name.startswith("nan"):
            kept = ops.where(ops.isnan(kept), worst, kept)
        found = shaped(name, fold(name, combine, rows_of(name, kept, axis), initial), x, axis, keepdims)
        if not name.startswith("nan") or initial is not None:
            return found
        return ops.where(ops.all(ops.isnan(x), axis, keepdims), math.nan, found)

    call.__name__ = call.__qualname__ = name
    call.__doc__ = f"``gt.numpy.{name}``, of complex numbers too."
    return call


amax = max = _extreme("max", maximum, -math.inf)  # noqa: A001 - JAX's name
amin = min = _extreme("min", minimum, math.inf)  # noqa: A001 - JAX's name
nanmax, nanmin = _extreme("nanmax", maximum, -math.inf), _extreme("nanmin", minimum, math.inf)


def ptp(a: Any, axis: Any = None, out: None = None, keepdims: bool = False) -> Array:
    """``gt.numpy.ptp``, of complex numbers too."""
    return ops.subtract(max(a, axis, out, keepdims), min(a, axis, out, keepdims))


def minmax(
    a: Any, axis: Any = None, out: None = None, keepdims: bool = False, initial: Any = None, where: Any = None
) -> tuple[Array, Array]:  # fmt: skip
    """Return the least and the greatest elements along axes; `initial` may be a pair, with one start for each.

    >>> import gtrace.jax.numpy as jnp
    >>> jnp.minmax(jnp.array([3.0, 1.0, 2.0]))
    (Array(1., dtype=float32), Array(3., dtype=float32))
    """
    low, high = initial if isinstance(initial, tuple) else (initial, initial)
    return min(a, axis, out, keepdims, low, where), max(a, axis, out, keepdims, high, where)
