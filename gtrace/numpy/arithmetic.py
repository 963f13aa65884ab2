"""Elementwise functions under NumPy's names, made of operations."""

from __future__ import annotations

import math
from typing import Any

import torch

from gtrace.core.base.errors import DtypeError, message
from gtrace.core.ops.complex_numbers import complex as join_parts
from gtrace.core.ops.complex_parts import imag, real
from gtrace.core.ops.dtype_info import finfo
from gtrace.core.ops.elementwise import (
    absolute,
    add,
    clip,
    divide,
    floor_divide,
    maximum,
    minimum,
    multiply,
    neg,
    power,
    remainder,
    round,  # noqa: A004 - the name of the array API
    sin,
    square,
    subtract,
    trunc,
)
from gtrace.core.ops.floats import copysign, exp2, exponent_of, logaddexp
from gtrace.core.ops.logic import (
    bitwise_and,
    bitwise_invert,
    bitwise_left_shift,
    bitwise_right_shift,
    equal,
    greater,
    isfinite,
    isinf,
    isnan,
    less,
    logical_and,
    not_equal,
    where,
)
from gtrace.core.ops.promote import cast, promote, promote_arrays
from gtrace.core.trace.array import Array
from gtrace.core.trace.convert import lift

__all__ = [
    "around", "bitwise_count", "bitwise_not", "deg2rad", "degrees", "divmod", "fabs", "fix", "float_power", "fmax",
    "fmin", "frexp", "heaviside", "invert", "ldexp", "left_shift", "logaddexp2", "mod", "modf", "nan_to_num",
    "rad2deg", "radians", "right_shift", "rint", "sinc", "true_divide",
]  # fmt: skip

around = round
bitwise_not = invert = bitwise_invert
left_shift, right_shift = bitwise_left_shift, bitwise_right_shift
mod = remainder
true_divide = divide


def _floats(op: str, x: Any) -> Array:
    (x,) = promote(op, lift(op, x), floating=True)
    return x


def fabs(x: Any) -> Array:
    """Return |x|, floating for any dtype.

    Raises:
        DtypeError: complex numbers.

    >>> import gtrace.numpy as gnp
    >>> gnp.fabs(gnp.array([-1, 2]))
    Array([1., 2.], dtype=float32)
    """
    x = _floats("fabs", x)
    if x.aval.complex:
        raise DtypeError(message("fabs", "real numbers", repr(x.aval), "Use gtrace.numpy.abs."))
    return absolute(x)


def rint(x: Any) -> Array:
    """Return the nearest integers, halves to even, floating for any dtype.

    >>> import gtrace.numpy as gnp
    >>> gnp.rint(gnp.array([0.5, 1.6]))
    Array([0., 2.], dtype=float32)
    """
    return round(_floats("rint", x))


def fix(x: Any) -> Array:
    """Return x without its fraction, floating for any dtype.

    >>> import gtrace.numpy as gnp
    >>> gnp.fix(gnp.array([1.5, -1.5]))
    Array([ 1., -1.], dtype=float32)
    """
    return trunc(_floats("fix", x))


def float_power(x: Any, y: Any) -> Array:
    """Return x ** y in a floating dtype, so that integers may have negative exponents.

    >>> import gtrace.numpy as gnp
    >>> gnp.float_power(gnp.array([2, 4]), -1)
    Array([0.5 , 0.25], dtype=float32)
    """
    base, exponent = promote_arrays("float_power", x, y, floating=True)
    return power(base, exponent)


def fmax(x: Any, y: Any) -> Array:
    """Return the larger of x and y; NaN only if both are.

    >>> import gtrace.numpy as gnp
    >>> gnp.fmax(gnp.array([1., gnp.nan]), 0.5)
    Array([1. , 0.5], dtype=float32)
    """
    return _but_nan("fmax", x, y, maximum, greater)


def fmin(x: Any, y: Any) -> Array:
    """Return the smaller of x and y; NaN only if both are.

    >>> import gtrace.numpy as gnp
    >>> gnp.fmin(gnp.array([1., gnp.nan]), 0.5)
    Array([0.5, 0.5], dtype=float32)
    """
    return _but_nan("fmin", x, y, minimum, less)


def _but_nan(op: str, x: Any, y: Any, pick: Any, first: Any) -> Array:
    """Return x where `first` says so or y is NaN, and y elsewhere, which has the derivative where they are equal."""
    x, y = promote_arrays(op, x, y)
    if not x.aval.floating:
        return pick(x, y)
    return where(first(x, y) | isnan(y), x, y)


def divmod(x: Any, y: Any) -> tuple[Array, Array]:  # noqa: A001 - NumPy's name
    """Return floor(x / y), and the remainder, which has the sign of y.

    >>> import gtrace.numpy as gnp
    >>> gnp.divmod(gnp.array([7, -7]), 4)
    (Array([ 1, -2], dtype=int64), Array([3, 1], dtype=int64))
    """
    return floor_divide(x, y), remainder(x, y)


def modf(x: Any) -> tuple[Array, Array]:
    """Return the fractions and the integer parts of x, both with its sign.

    >>> import gtrace.numpy as gnp
    >>> gnp.modf(gnp.array([1.5, -2.25]))
    (Array([ 0.5 , -0.25], dtype=float32), Array([ 1., -2.], dtype=float32))
    """
    x = _floats("modf", x)
    whole = trunc(x)
    sign = copysign(1.0, x)  # the fraction of -2 is -0, and its derivative 1
    return where(isinf(x), copysign(0.0, x), multiply(sign, subtract(multiply(sign, x), multiply(sign, whole)))), whole


def frexp(x: Any) -> tuple[Array, Array]:
    """Return m and e of x = m * 2 ** e with 0.5 <= |m| < 1; e is int32. Zero, NaN and infinities have e = 0.

    >>> import gtrace.numpy as gnp
    >>> gnp.frexp(gnp.array([8., -0.75]))
    (Array([ 0.5 , -0.75], dtype=float32), Array([4, 0], dtype=int32))
    """
    x = _floats("frexp", x)
    regular = logical_and(isfinite(x), not_equal(x, 0.0))
    exponent = exponent_of(x)
    return where(regular, ldexp(where(regular, x, 1.0), neg(exponent)), x), exponent


def ldexp(x: Any, exponent: Any) -> Array:
    """Return x * 2 ** exponent, for integer exponents.

    Raises:
        DtypeError: floating exponents.

    >>> import gtrace.numpy as gnp
    >>> gnp.ldexp(gnp.array([0.5, 3.]), 2)
    Array([ 2., 12.], dtype=float32)
    """
    x, exponent = _floats("ldexp", x), lift("ldexp", exponent)
    if exponent.aval.floating:
        raise DtypeError(message("ldexp", "integer exponents", repr(exponent.aval), "Use gtrace.numpy.exp2."))
    # three factors, none of which is 0 or infinite; with larger exponents the result would be the same
    least = 3 * math.frexp(torch.finfo(x.aval.dtype).smallest_normal)[1]
    exponent = clip(cast(exponent, torch.int64), least, -least)
    third = floor_divide(exponent, 3)
    factor = exp2(cast(third, x.aval.dtype))
    rest = exp2(cast(subtract(exponent, multiply(third, 2)), x.aval.dtype))
    return multiply(multiply(multiply(x, factor), rest), factor)


def heaviside(x: Any, middle: Any) -> Array:
    """Return 0 where x < 0, 1 where x > 0, and `middle` where x is 0.

    >>> import gtrace.numpy as gnp
    >>> gnp.heaviside(gnp.array([-1., 0., 2.]), 0.5)
    Array([0. , 0.5, 1. ], dtype=float32)
    """
    x, middle = promote_arrays("heaviside", x, middle, floating=True)
    return where(isnan(x), x, where(equal(x, 0.0), middle, cast(greater(x, 0.0), x.aval.dtype)))


def logaddexp2(x: Any, y: Any) -> Array:
    """Return log2(2 ** x + 2 ** y), without overflow.

    >>> import gtrace.numpy as gnp
    >>> gnp.logaddexp2(gnp.array([3.]), 3.)
    Array([4.], dtype=float32)
    """
    x, y = promote_arrays("logaddexp2", x, y, floating=True)
    return divide(logaddexp(multiply(x, math.log(2.0)), multiply(y, math.log(2.0))), math.log(2.0))


def deg2rad(x: Any) -> Array:
    """Return degrees in radians.

    >>> import gtrace.numpy as gnp
    >>> gnp.deg2rad(gnp.array([0., 180.]))
    Array([0.       , 3.1415927], dtype=float32)
    """
    return multiply(_floats("deg2rad", x), math.pi / 180.0)


def rad2deg(x: Any) -> Array:
    """Return radians in degrees.

    >>> import gtrace.numpy as gnp
    >>> gnp.rad2deg(gnp.array([0., gnp.pi]))
    Array([  0., 180.], dtype=float32)
    """
    return multiply(_floats("rad2deg", x), 180.0 / math.pi)


radians, degrees = deg2rad, rad2deg


def nan_to_num(x: Any, copy: bool = True, nan: Any = 0.0, posinf: Any = None, neginf: Any = None) -> Array:
    """Return x with NaN and infinities replaced; of complex numbers, in both parts.

    Args:
        copy: ignored; Arrays never change.
        posinf, neginf: None: the largest and the smallest number of the dtype.

    >>> import gtrace.numpy as gnp
    >>> gnp.nan_to_num(gnp.array([1., gnp.nan, gnp.inf]), posinf=9.)
    Array([1., 0., 9.], dtype=float32)
    """
    x = lift("nan_to_num", x)
    if x.aval.complex:
        return join_parts(*(nan_to_num(part, copy, nan, posinf, neginf) for part in (real(x), imag(x))))
    if not x.aval.floating:
        return x
    info = finfo(x.aval.dtype)
    out = where(isnan(x), nan, x)
    out = where(equal(x, math.inf), info.max if posinf is None else posinf, out)
    return where(equal(x, -math.inf), info.min if neginf is None else neginf, out)


def sinc(x: Any) -> Array:
    """Return sin(pi x) / (pi x), and 1 at 0; derivatives of every order are right there too.

    >>> import gtrace.numpy as gnp
    >>> gnp.sinc(gnp.array([0., 0.5]))
    Array([1.        , 0.63661975], dtype=float32)
    """
    angle = multiply(_floats("sinc", x), math.pi)
    near = less(absolute(angle), 0.1)
    t = square(where(near, angle, 0.0))
    series: Any = 1.0
    for k in (8, 6, 4, 2):  # the Taylor series, by Horner's rule
        series = subtract(1.0, multiply(divide(t, float(k * (k + 1))), series))
    far = where(near, 1.0, angle)
    return where(near, series, divide(sin(far), far))


def bitwise_count(x: Any) -> Array:
    """Return the number of ones among the bits of |x|, as uint8.

    Raises:
        DtypeError: floats.

    >>> import gtrace.numpy as gnp
    >>> gnp.bitwise_count(gnp.array([7, -8]))
    Array([3, 1], dtype=uint8)
    """
    x = lift("bitwise_count", x)
    if x.aval.floating:
        raise DtypeError(message("bitwise_count", "integers", repr(x.aval), "Use x.astype(gt.int64)."))
    bits = absolute(cast(x, torch.int64))
    # sums of 1, 2 and 4 neighbouring bits, in place; then of the eight bytes
    bits = subtract(bits, bitwise_and(bitwise_right_shift(bits, 1), 0x5555555555555555))
    pairs = bitwise_and(bitwise_right_shift(bits, 2), 0x3333333333333333)
    bits = add(bitwise_and(bits, 0x3333333333333333), pairs)
    bits = bitwise_and(add(bits, bitwise_right_shift(bits, 4)), 0x0F0F0F0F0F0F0F0F)
    for shift in (8, 16, 32):
        bits = add(bits, bitwise_right_shift(bits, shift))
    return cast(bitwise_and(bits, 0x7F), torch.uint8)
