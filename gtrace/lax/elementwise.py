"""The elementwise functions of jax.lax: aliases of gtrace's operations, and functions with another meaning in NumPy.

Operands are promoted and broadcast, unlike in jax.lax.
"""

from __future__ import annotations

import enum
from typing import Any

import numpy
import torch

from gtrace.core import ops
from gtrace.core.base.errors import ArgumentError, DtypeError, message
from gtrace.core.ops.activations import erf
from gtrace.core.ops.checks import no_booleans
from gtrace.core.ops.declare import ORDER, Array, Cpp, Sample, bind, define, lift
from gtrace.core.ops.draw_functions import nextafter
from gtrace.core.ops.floats import exp2, fmod
from gtrace.core.ops.operands import promote, promote_arrays
from gtrace.core.ops.samples import rng, uniform
from gtrace.core.ops.shape import as_int

__all__ = [
    "RoundingMethod", "abs", "acos", "acosh", "add", "asin", "asinh", "atan", "atan2", "atanh", "bitwise_and",
    "bitwise_not", "bitwise_or", "bitwise_xor", "ceil", "clamp", "convert_element_type", "cos", "cosh", "div", "eq",
    "erf", "exp", "exp2", "expm1", "floor", "ge", "gt", "integer_pow", "is_finite", "le", "log", "log1p", "logistic",
    "lt", "max", "min", "mul", "ne", "neg", "nextafter", "pow", "reciprocal", "rem", "round", "rsqrt", "select",
    "select_n", "shift_left", "sign", "sin", "sinh", "sqrt", "square", "stop_gradient", "sub",
    "tan", "tanh",
]  # fmt: skip

abs, max, min, pow = ops.abs, ops.maximum, ops.minimum, ops.power  # noqa: A001
add, sub, mul, neg = ops.add, ops.subtract, ops.multiply, ops.negative
acos, acosh, asin, asinh = ops.acos, ops.acosh, ops.asin, ops.asinh
atan, atan2, atanh = ops.atan, ops.atan2, ops.atanh
cos, cosh, sin, sinh, tan, tanh = (
    ops.cos, ops.cosh, ops.sin, ops.sinh, ops.tan, ops.tanh,
)  # fmt: skip
ceil, floor, sign = ops.ceil, ops.floor, ops.sign
exp, expm1, log, log1p = ops.exp, ops.expm1, ops.log, ops.log1p
sqrt, rsqrt, square, reciprocal = ops.sqrt, ops.rsqrt, ops.square, ops.reciprocal
stop_gradient = ops.stop_gradient
eq, ne, lt, le, gt, ge = (
    ops.equal, ops.not_equal, ops.less, ops.less_equal, ops.greater, ops.greater_equal,
)  # fmt: skip
bitwise_and, bitwise_or, bitwise_xor = ops.bitwise_and, ops.bitwise_or, ops.bitwise_xor
bitwise_not, is_finite = ops.bitwise_invert, ops.isfinite
shift_left = ops.bitwise_left_shift
logistic = ops.sigmoid
rem = fmod
convert_element_type = ops.astype


class RoundingMethod(enum.IntEnum):
    """How `round` treats halves."""

    AWAY_FROM_ZERO = 0
    TO_NEAREST_EVEN = 1


def div(x: Any, y: Any) -> Array:
    """Return x / y; of integers, the quotient rounded towards 0. Integer division by zero raises at the run.

    >>> gt.lax.div(gt.array([7, -7]), 2), gt.lax.div(gt.array(1.0), 2)
    (Array([ 3, -3], dtype=int64), Array(0.5, dtype=float32))
    """
    a, b = promote_arrays("div", x, y)
    if a.aval.floating:
        return ops.divide(x, y)
    return ops.floor_divide(a - rem(a, b), b)


def round(x: Any, rounding_method: RoundingMethod | int = RoundingMethod.AWAY_FROM_ZERO) -> Array:  # noqa: A001
    """Return the nearest integer, with halves away from zero, or to even.

    Raises:
        DtypeError: x is not floating.
        ArgumentError: an unknown method.

    >>> gt.lax.round(gt.array([0.5, 2.5, -0.5]))
    Array([ 1.,  3., -1.], dtype=float32)
    >>> gt.lax.round(gt.array([0.5, 2.5]), gt.lax.RoundingMethod.TO_NEAREST_EVEN)
    Array([0., 2.], dtype=float32)
    """
    x = lift("round", x)
    if not x.aval.floating:
        raise DtypeError(message("round", "a floating dtype", repr(x.aval), "Integers are round already."))
    if rounding_method not in tuple(RoundingMethod):
        raise ArgumentError(message("round", "a RoundingMethod", repr(rounding_method), "Pass one of them."))
    if rounding_method == RoundingMethod.TO_NEAREST_EVEN:
        return ops.round(x)
    whole = ops.trunc(x)
    return ops.where(ops.absolute(x - whole) >= 0.5, whole + ops.sign(x), whole)


def integer_pow(x: Any, y: int) -> Array:
    """Return x ** y for a Python integer y.

    Raises:
        ArgumentError: y is not an integer.

    >>> gt.lax.integer_pow(gt.array([2., 3.]), 3)
    Array([ 8., 27.], dtype=float32)
    """
    return lift("integer_pow", x) ** as_int("integer_pow", "y", y)


# the derivative by each operand; at a bound all are 0, as in JAX


def _with_low(low: Any, x: Any, high: Any, out: Array) -> Array:
    return ops.astype(ops.logical_and(ops.less(x, low), ops.less(low, high)), out.aval.dtype)


def _with_operand(low: Any, x: Any, high: Any, out: Array) -> Array:
    return ops.astype(ops.logical_and(ops.less(low, x), ops.less(x, high)), out.aval.dtype)


def _with_high(low: Any, x: Any, high: Any, out: Array) -> Array:
    return ops.astype(ops.less(high, x), out.aval.dtype)


def _clamp_samples() -> list[Sample]:
    x, low, high = uniform(-2, 2, 3, 4), uniform(-1.5, -0.5, 4, seed=1), uniform(0.5, 1.5, 3, 1, seed=2)
    whole = rng().integers(-5, 6, (3, 4))
    return [Sample((low, x, high)), Sample((-1.0, x, high)), Sample((low, x, 1.0)), Sample((-2, whole, 3))]


_clamp = define(
    "clamp", lambda low, x, high: torch.clamp(x, low, high), arity=3, elementwise=True, check=no_booleans,
    partials=(_with_low, _with_operand, _with_high), samples=_clamp_samples,
    reference=lambda low, x, high: numpy.clip(x, low, high), unsigned=ORDER,
    user=lambda low, x, high: clamp(low, x, high),
    cpp=Cpp("minimum<{T}>(maximum<{T}>({1}, {0}), {2})", "if", 8), jax="clamp",
)  # fmt: skip


def clamp(min: Any, x: Any, max: Any) -> Array:  # noqa: A002 - JAX's names
    """Return x limited to [min, max]; max if min is larger. The derivative at a bound is 0, as in JAX.

    >>> gt.lax.clamp(0.0, gt.array([-1., 0.5, 2.]), 1.0)
    Array([0. , 0.5, 1. ], dtype=float32)
    """
    return bind(_clamp, promote("clamp", min, x, max))


def select(pred: Any, on_true: Any, on_false: Any) -> Array:
    """Return on_true where `pred` holds and on_false elsewhere.

    >>> gt.lax.select(gt.array([True, False]), gt.array([1, 2]), gt.array([3, 4]))
    Array([1, 4], dtype=int64)
    """
    return ops.where(pred, on_true, on_false)


def select_n(which: Any, *cases: Any) -> Array:
    """Return the elements of ``cases[which]``.

    Args:
        which: booleans for two cases, or integers, which are clamped to the range of cases.

    Raises:
        ArgumentError: there are no cases, or not two for booleans.
        DtypeError: `which` is floating.

    >>> gt.lax.select_n(gt.array([0, 2]), gt.array([1, 2]), gt.array([3, 4]), gt.array([5, 6]))
    Array([1, 6], dtype=int64)
    """
    index = lift("select_n", which)
    if index.aval.floating:
        raise DtypeError(message("select_n", "integers or booleans", repr(index.aval), "Use x.astype(gt.int64)."))
    boolean = index.aval.dtype is torch.bool
    if not cases or (boolean and len(cases) > 2):
        expected = "one or two cases for booleans" if boolean else "at least one case"
        raise ArgumentError(message("select_n", expected, str(len(cases)), "Use integers to choose among more."))
    out = promote_arrays("select_n", *cases)[0]
    for k, case in enumerate(cases[1:], 1):
        out = ops.where(index if boolean else index >= k, case, out)
    return out
