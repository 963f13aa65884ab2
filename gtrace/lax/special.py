"""Special and complex functions, and the bits of numbers, under the names of jax.lax."""

from __future__ import annotations

import functools
import math
from typing import Any

import torch

from gtrace import special
from gtrace.core import ops
from gtrace.core.base.dtypes import FLOATS, LONG
from gtrace.core.base.errors import ArgumentError, DtypeError, ShapeError, message
from gtrace.core.ops import floats
from gtrace.core.ops.declare import Array, lift
from gtrace.core.ops.operands import cast, promote_arrays
from gtrace.core.ops.shape import as_int
from gtrace.core.trace.promotion import as_dtype
from gtrace.core.transform.custom import custom_vjp
from gtrace.interop.torch_functions import call_torch
from gtrace.numpy import arithmetic

__all__ = [
    "bessel_i0e", "bessel_i1e", "betainc", "bitcast_convert_type", "cbrt", "clz", "complex", "conj", "digamma",
    "erf_inv", "erfc", "igamma", "igammac", "imag", "lgamma", "mulhi", "polygamma", "population_count", "real",
    "reduce_precision", "shift_right_arithmetic", "shift_right_logical", "zeta",
]  # fmt: skip

bessel_i0e, bessel_i1e, betainc = special.i0e, special.i1e, special.betainc
cbrt, complex, conj = floats.cbrt, ops.complex, ops.conj  # noqa: A001 - JAX's names
digamma, erf_inv, erfc = special.digamma, special.erfinv, special.erfc
igamma, igammac, imag = special.gammainc, special.gammaincc, ops.imag
lgamma, polygamma = special.gammaln, special.polygamma
real, zeta = ops.real, special.zeta


def bitcast_convert_type(operand: Any, new_dtype: Any) -> Array:
    """Return the bits of an array as numbers of another dtype. It has no derivative.

    The parts of a number of a longer dtype lie along a last axis: uint32 of shape (2,) are int8 of shape (2, 4).

    Raises:
        ShapeError: for a longer dtype, the last axis has not one number for each part.

    >>> gt.lax.bitcast_convert_type(gt.array([1.0]), gt.int32)
    Array([1065353216], dtype=int32)
    """
    x, kind = lift("bitcast_convert_type", operand), as_dtype(new_dtype)
    before, after = x.aval.dtype.itemsize, kind.itemsize
    if before < after and x.shape[-1:] != (after // before,):
        expected, fix = f"a last axis of {after // before} for {LONG[kind]}", "Use x.astype(...) to convert values."
        raise ShapeError(message("bitcast_convert_type", expected, repr(x.aval), fix))
    return ops.stop_gradient(call_torch("bitcast_convert_type", _bits, ops.stop_gradient(x), kind))


def _bits(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    before, after = x.dtype.itemsize, dtype.itemsize
    if before > after:
        return x.contiguous().unsqueeze(-1).view(dtype)
    bits = x.contiguous().view(dtype)
    return bits if before == after else bits.squeeze(-1)


def shift_right_arithmetic(x: Any, y: Any) -> Array:
    """Return integers shifted right by `y` bits, with copies of the first bit from the left, also where x is unsigned.

    >>> import gtrace as gt
    >>> gt.lax.shift_right_arithmetic(gt.array([-8, 8], dtype=gt.int8), gt.array(1, dtype=gt.int8))
    Array([-4,  4], dtype=int8)
    """
    a, b = promote_arrays("shift_right_arithmetic", x, y)
    kind = a.aval.dtype
    if kind.is_signed or kind is torch.bool:
        return ops.bitwise_right_shift(a, b)
    signed = _SIGNED[kind.itemsize]
    return cast(ops.bitwise_right_shift(cast(a, signed), cast(b, signed)), kind)


_SIGNED = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def shift_right_logical(x: Any, y: Any) -> Array:
    """Return integers shifted right by `y` bits, with zeros from the left.

    >>> gt.lax.shift_right_logical(gt.array([-1, 8], dtype=gt.int8), gt.array(1, dtype=gt.int8))
    Array([127,   4], dtype=int8)
    """
    a, b = promote_arrays("shift_right_logical", x, y)
    bits = 8 * a.aval.dtype.itemsize
    if not a.aval.dtype.is_signed:
        return ops.bitwise_right_shift(a, b)
    # the bits that the arithmetic shift fills in are cleared; all go by a shift that is too far, or negative
    ones = cast(lift("shift_right_logical", -1), a.aval.dtype)
    filled = ops.bitwise_left_shift(ones, ops.where(b == 0, 0, bits - b))
    cleared = ops.bitwise_and(ops.bitwise_right_shift(a, b), ops.bitwise_xor(filled, ones))
    beyond = ops.logical_or(b < 0, b >= bits)
    return ops.where(b == 0, a, ops.where(beyond, 0, cleared))


def reduce_precision(operand: Any, exponent_bits: int, mantissa_bits: int) -> Array:
    """Return floats rounded to numbers of fewer bits, in their own dtype.

    What lies beyond these numbers is infinite, and what lies below the least normal one is 0; numbers with the bits of
    float16 or bfloat16 include the smaller ones of that dtype. Derivatives are rounded likewise.

    Raises:
        DtypeError: the operand holds no floats.
        ArgumentError: there is no bit for the exponent, or a negative number of bits.

    >>> gt.lax.reduce_precision(gt.array(1.001), 8, 7), gt.lax.reduce_precision(gt.array(1.1), 3, 4)
    (Array(1., dtype=float32), Array(1.125, dtype=float32))
    """
    x = lift("reduce_precision", operand)
    given = {"exponent_bits": exponent_bits, "mantissa_bits": mantissa_bits}
    exponent, mantissa = (as_int("reduce_precision", name, count) for name, count in given.items())
    if x.aval.dtype not in FLOATS:
        raise DtypeError(message("reduce_precision", "floats", repr(x.aval), "Use x.astype(gt.float32)."))
    if exponent < 1 or mantissa < 0:
        expected = "at least one bit for the exponent, and 0 for the mantissa"
        raise ArgumentError(message("reduce_precision", expected, f"{exponent} and {mantissa}", "Pass more bits."))
    kinds = {(5, 10): torch.float16, (8, 7): torch.bfloat16, (8, 23): torch.float32, (11, 52): torch.float64}
    kind = kinds.get((exponent, mantissa))
    if kind is None:
        out: Array = _rounded(x, exponent, mantissa)
        return out
    return x if kind.itemsize > x.aval.dtype.itemsize else cast(cast(x, kind), x.aval.dtype)


@functools.partial(custom_vjp, nondiff_argnums=(1, 2))
def _rounded(x: Array, exponent_bits: int, mantissa_bits: int) -> Array:
    return call_torch("reduce_precision", _with_bits, x, exponent_bits, mantissa_bits)


_rounded.defvjp(
    lambda x, *bits: (_rounded(x, *bits), None),
    lambda exponent_bits, mantissa_bits, _, ct: (_rounded(ct, exponent_bits, mantissa_bits),),
)


def _with_bits(x: torch.Tensor, exponent_bits: int, mantissa_bits: int) -> torch.Tensor:
    wide = x.double()
    fraction, exponent = torch.frexp(wide)
    scale = 2.0 ** min(mantissa_bits + 1, 53)
    out = torch.round(fraction * scale) / scale * 2 * torch.exp2(exponent.double() - 1)
    top = 2 ** min(exponent_bits - 1, 10) - 1
    largest = math.ldexp(2 - 2.0 ** -min(mantissa_bits, 52), top)
    out = torch.where(out.abs() > largest, torch.inf, out.abs())
    out = torch.where(out < 2.0 ** (1 - top), 0.0, out)
    return torch.copysign(torch.where(wide.isnan(), wide, out), wide).to(x.dtype)


def population_count(x: Any) -> Array:
    """Return the number of 1 bits of integers, including the sign bit.

    Raises:
        DtypeError: x is not an array of integers.

    >>> gt.lax.population_count(gt.array([3, -1], dtype=gt.int32))
    Array([ 2, 32], dtype=int32)
    """
    x = lift("population_count", x)
    kind = x.aval.dtype
    if x.aval.floating or kind is torch.bool:
        raise DtypeError(message("population_count", "integers", repr(x.aval), "Use x.astype(gt.int32)."))
    if not kind.is_signed:
        return cast(arithmetic.bitwise_count(x), kind)
    # NumPy counts the bits of the absolute value
    positive = ops.bitwise_and(x, cast(lift("population_count", torch.iinfo(kind).max), kind))
    return ops.add(cast(arithmetic.bitwise_count(positive), kind), cast(x < 0, kind))


def clz(x: Any) -> Array:
    """Return the number of leading zero bits of integers.

    Raises:
        DtypeError: x is not an array of integers.

    >>> gt.lax.clz(gt.array([1, 255, 0, -1], dtype=gt.int32))
    Array([31, 24, 32,  0], dtype=int32)
    """
    x = lift("clz", x)
    kind = x.aval.dtype
    if x.aval.floating or kind is torch.bool:
        raise DtypeError(message("clz", "integers", repr(x.aval), "Use x.astype(gt.int32)."))
    bits = 8 * kind.itemsize
    filled, step = x, 1
    while step < bits:  # every bit below the first one
        filled = ops.bitwise_or(filled, shift_right_logical(filled, cast(lift("clz", step), kind)))
        step *= 2
    return cast(bits - population_count(filled), kind)


def mulhi(x: Any, y: Any, /) -> Array:
    """Return the upper half of the bits of the products of integers of up to 32 bits.

    Raises:
        DtypeError: the numbers are not integers, or have 64 bits.

    >>> gt.lax.mulhi(gt.array([2**30], dtype=gt.int32), gt.array([8], dtype=gt.int32))
    Array([2], dtype=int32)
    """
    a, b = promote_arrays("mulhi", x, y)
    kind = a.aval.dtype
    if a.aval.floating or kind is torch.bool or kind.itemsize > 4:
        raise DtypeError(message("mulhi", "integers of up to 32 bits", repr(a.aval), "Use x.astype(gt.int32)."))
    bits = 8 * kind.itemsize
    whole = ops.multiply(cast(a, torch.int64), cast(b, torch.int64))
    return cast(ops.bitwise_right_shift(whole, bits), kind)
