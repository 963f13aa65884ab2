"""Elementwise functions under NumPy's names, made of operations."""

from __future__ import annotations

import math
from typing import Any

import torch

from gtrace.core import ops
from gtrace.core.base.errors import DtypeError, message
from gtrace.core.ops.elementwise import neg
from gtrace.core.ops.floats import exp2, exponent_of
from gtrace.core.ops.operands import cast, promote, promote_arrays
from gtrace.core.trace.array import Array
from gtrace.core.trace.bind import distinct
from gtrace.core.trace.convert import lift
from gtrace.core.trace.promotion import default_dtype

__all__ = [
    "around", "bitwise_count", "bitwise_not", "deg2rad", "degrees", "divmod", "fabs", "fix", "float_power", "fmax",
    "fmin", "frexp", "heaviside", "invert", "ldexp", "left_shift", "logaddexp2", "mod", "modf", "nan_to_num",
    "rad2deg", "radians", "right_shift", "rint", "sinc", "true_divide",
]  # fmt: skip

around = ops.round
bitwise_not = invert = ops.bitwise_invert
left_shift, right_shift = ops.bitwise_left_shift, ops.bitwise_right_shift
mod = ops.remainder
true_divide = ops.divide


def _floats(op: str, x: Any) -> Array:
    (x,) = promote(op, lift(op, x), floating=True)
    return x


def fabs(x: Any) -> Array:
    """Return |x|, floating for any dtype.

    Raises:
        DtypeError: complex numbers.

    >>> gnp.fabs(gnp.array([-1, 2]))
    Array([1., 2.], dtype=float32)
    """
    x = _floats("fabs", x)
    if x.aval.complex:
        raise DtypeError(message("fabs", "real numbers", repr(x.aval), "Use gtrace.numpy.abs."))
    return ops.absolute(x)


def rint(x: Any) -> Array:
    """Return the nearest integers, halves to even, floating for any dtype.

    >>> gnp.rint(gnp.array([0.5, 1.6]))
    Array([0., 2.], dtype=float32)
    """
    x = lift("rint", x)
    return ops.round(x if x.aval.floating else cast(x, default_dtype(float)))


def fix(x: Any) -> Array:
    """Return x without its fraction, floating for any dtype.

    >>> gnp.fix(gnp.array([1.5, -1.5]))
    Array([ 1., -1.], dtype=float32)
    """
    return ops.trunc(_floats("fix", x))


def float_power(x: Any, y: Any) -> Array:
    """Return x ** y in a floating dtype, so that integers may have negative exponents.

    >>> gnp.float_power(gnp.array([2, 4]), -1)
    Array([0.5 , 0.25], dtype=float32)
    """
    base, exponent = promote_arrays("float_power", x, y, floating=True)
    return ops.power(base, exponent)


def fmax(x: Any, y: Any) -> Array:
    """Return the larger of x and y; NaN only if both are.

    >>> gnp.fmax(gnp.array([1., gnp.nan]), 0.5)
    Array([1. , 0.5], dtype=float32)
    """
    return _but_nan("fmax", x, y, ops.maximum, ops.greater)


def fmin(x: Any, y: Any) -> Array:
    """Return the smaller of x and y; NaN only if both are.

    >>> gnp.fmin(gnp.array([1., gnp.nan]), 0.5)
    Array([0.5, 0.5], dtype=float32)
    """
    return _but_nan("fmin", x, y, ops.minimum, ops.less)


def _but_nan(op: str, x: Any, y: Any, pick: Any, first: Any) -> Array:
    """Return x where `first` holds or y is NaN, and y elsewhere. Where they are equal, y has the derivative."""
    x, y = promote_arrays(op, x, y)
    if not x.aval.floating:
        return pick(x, y)
    return ops.where(first(x, y) | ops.isnan(y), x, y)


def divmod(x: Any, y: Any) -> tuple[Array, Array]:  # noqa: A001 - NumPy's name
    """Return floor(x / y), and the remainder, which has the sign of y.

    >>> gnp.divmod(gnp.array([7, -7]), 4)
    (Array([ 1, -2], dtype=int64), Array([3, 1], dtype=int64))
    """
    return ops.floor_divide(x, y), ops.remainder(x, y)


def modf(x: Any) -> tuple[Array, Array]:
    """Return the fractions and the integer parts of x, both with its sign.

    >>> gnp.modf(gnp.array([1.5, -2.25]))
    (Array([ 0.5 , -0.25], dtype=float32), Array([ 1., -2.], dtype=float32))
    """
    x = _floats("modf", x)
    whole = ops.trunc(x)
    sign = ops.copysign(1.0, x)  # the fraction of -2 is -0, and its derivative 1
    return ops.where(
        ops.isinf(x),
        ops.copysign(0.0, x),
        sign * (ops.multiply(sign, x) - sign * whole),
    ), whole


def frexp(x: Any) -> tuple[Array, Array]:
    """Return m and e of x = m * 2 ** e with 0.5 <= |m| < 1; e is int32. Zero, NaN and infinities have e = 0.

    >>> gnp.frexp(gnp.array([8., -0.75]))
    (Array([ 0.5 , -0.75], dtype=float32), Array([4, 0], dtype=int32))
    """
    x = _floats("frexp", x)
    regular = ops.logical_and(ops.isfinite(x), ops.not_equal(x, 0.0))
    exponent = exponent_of(x)
    return ops.where(regular, ldexp(ops.where(regular, x, 1.0), neg(exponent)), x), exponent


def ldexp(x: Any, exponent: Any) -> Array:
    """Return x * 2 ** exponent, for integer exponents.

    Raises:
        DtypeError: floating exponents.

    >>> gnp.ldexp(gnp.array([0.5, 3.]), 2)
    Array([ 2., 12.], dtype=float32)
    """
    x, exponent = _floats("ldexp", x), lift("ldexp", exponent)
    if exponent.aval.floating:
        raise DtypeError(message("ldexp", "integer exponents", repr(exponent.aval), "Use gtrace.numpy.exp2."))
    # three factors, none of which is 0 or infinite; with larger exponents the result would be the same
    least = 3 * math.frexp(torch.finfo(x.aval.dtype).smallest_normal)[1]
    exponent = ops.clip(cast(exponent, torch.int64), least, -least)
    third = exponent // 3
    factor = exp2(cast(third, x.aval.dtype))
    rest = exp2(cast(exponent - third * 2, x.aval.dtype))
    return ops.multiply(x, factor) * rest * factor


def heaviside(x: Any, middle: Any) -> Array:
    """Return 0 where x < 0, 1 where x > 0, and `middle` where x is 0.

    >>> gnp.heaviside(gnp.array([-1., 0., 2.]), 0.5)
    Array([0. , 0.5, 1. ], dtype=float32)
    """
    x, middle = promote_arrays("heaviside", x, middle, floating=True)
    return ops.where(ops.isnan(x), x, ops.where(ops.equal(x, 0.0), middle, cast(ops.greater(x, 0.0), x.aval.dtype)))


def logaddexp2(x: Any, y: Any) -> Array:
    """Return log2(2 ** x + 2 ** y), without overflow.

    >>> gnp.logaddexp2(gnp.array([3.]), 3.)
    Array([4.], dtype=float32)
    """
    x, y = promote_arrays("logaddexp2", x, y, floating=True)
    if x.aval.complex:
        return ops.logaddexp(ops.multiply(x, math.log(2.0)), ops.multiply(y, math.log(2.0))) / math.log(2.0)
    gap = ops.where(ops.equal(x, y), 0.0, ops.absolute(ops.subtract(x, y)))  # of equal infinities it would be NaN
    return ops.maximum(x, y) + ops.log1p(exp2(neg(gap))) / math.log(2.0)


def deg2rad(x: Any) -> Array:
    """Return degrees in radians.

    >>> gnp.deg2rad(gnp.array([0., 180.]))
    Array([0.       , 3.1415927], dtype=float32)
    """
    return ops.multiply(_floats("deg2rad", x), math.pi / 180.0)


def rad2deg(x: Any) -> Array:
    """Return radians in degrees.

    >>> gnp.rad2deg(gnp.array([0., gnp.pi]))
    Array([  0., 180.], dtype=float32)
    """
    return ops.multiply(_floats("rad2deg", x), 180.0 / math.pi)


radians, degrees = deg2rad, rad2deg


def nan_to_num(x: Any, copy: bool = True, nan: Any = 0.0, posinf: Any = None, neginf: Any = None) -> Array:
    """Return x with NaN and infinities replaced; of complex numbers, in both parts.

    Args:
        copy: ignored; Arrays never change.
        posinf, neginf: None: the largest and the smallest number of the dtype.

    >>> gnp.nan_to_num(gnp.array([1., gnp.nan, gnp.inf]), posinf=9.)
    Array([1., 0., 9.], dtype=float32)
    """
    x = lift("nan_to_num", x)
    if x.aval.complex:
        return ops.complex(*(nan_to_num(part, copy, nan, posinf, neginf) for part in (ops.real(x), ops.imag(x))))
    if not x.aval.floating:
        return distinct(x)
    info = ops.finfo(x.aval.dtype)
    out = ops.where(ops.isnan(x), nan, x)
    out = ops.where(ops.equal(x, math.inf), info.max if posinf is None else posinf, out)
    return ops.where(ops.equal(x, -math.inf), info.min if neginf is None else neginf, out)


def sinc(x: Any) -> Array:
    """Return sin(pi x) / (pi x), and 1 at 0; derivatives of every order are right there too.

    >>> gnp.sinc(gnp.array([0., 0.5]))
    Array([1.        , 0.63661975], dtype=float32)
    """
    angle = ops.multiply(_floats("sinc", x), math.pi)
    near = ops.absolute(angle) < 0.1
    t = ops.square(ops.where(near, angle, 0.0))
    series: Any = 1.0
    for k in (8, 6, 4, 2):  # the Taylor series, by Horner's rule
        series = 1.0 - t / float(k * (k + 1)) * series
    far = ops.where(near, 1.0, angle)
    return ops.where(near, series, ops.sin(far) / far)


def bitwise_count(x: Any) -> Array:
    """Return the number of ones among the bits of |x|, as uint8.

    Raises:
        DtypeError: floats.

    >>> gnp.bitwise_count(gnp.array([7, -8]))
    Array([3, 1], dtype=uint8)
    """
    x = lift("bitwise_count", x)
    if x.aval.floating:
        raise DtypeError(message("bitwise_count", "integers", repr(x.aval), "Use x.astype(gt.int64)."))
    bits = cast(x, torch.int64)
    bits = ops.absolute(bits) if x.aval.dtype.is_signed else bits
    # sums of 1, 2 and 4 neighbouring bits, in place; then of the eight bytes
    bits = bits - ops.bitwise_and(ops.bitwise_right_shift(bits, 1), 0x5555555555555555)
    pairs = ops.bitwise_and(ops.bitwise_right_shift(bits, 2), 0x3333333333333333)
    bits = ops.bitwise_and(bits, 0x3333333333333333) + pairs
    bits = ops.bitwise_and(bits + ops.bitwise_right_shift(bits, 4), 0x0F0F0F0F0F0F0F0F)
    for shift in (8, 16, 32):
        bits = bits + ops.bitwise_right_shift(bits, shift)
    return cast(ops.bitwise_and(bits, 0x7F), torch.uint8)
