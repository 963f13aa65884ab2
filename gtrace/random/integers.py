"""Random integers in a range.

Two samples of 32 bits, or of 64 for int64, form a number of twice the bits. The result is its remainder modulo the size
of the range. The bits are those of jax. All arithmetic is on integers and never overflows.
"""

from __future__ import annotations

from typing import Any

import torch

from gtrace.core import ops
from gtrace.core.base.dtypes import INEXACT, LONG, WIDE_UNSIGNED
from gtrace.core.base.errors import ArgumentError, DtypeError, message
from gtrace.core.ops.operands import cast
from gtrace.core.ops.shape import as_int, as_sizes, full_like_scalar
from gtrace.core.ops.threefry import MASK
from gtrace.core.trace.array import Array
from gtrace.core.trace.convert import lift, python_scalar
from gtrace.core.trace.promotion import as_dtype, default_dtype
from gtrace.core.trace.replayable import replayable
from gtrace.random.keys import draw_bits, fill, fresh_key, two_keys

__all__ = ["randint"]

_LARGEST = (1 << 63) - 1


@replayable
def randint(key: Any, shape: Any, minval: Any, maxval: Any, dtype: Any = None) -> Array:
    """Return integers uniformly distributed over [minval, maxval), up to a bias of about (maxval - minval) / 2**64.

    Args:
        minval: integer, or integer array that broadcasts to `shape`.
        maxval: likewise. Where bounds are arrays, they are clipped to the dtype, and an empty range gives minval.
        dtype: an integer dtype. None: int64, or int32 with `x64` off. Without a dtype, the numbers are drawn in 32 bits
            if the bounds fit int32.

    Raises:
        ArgumentError: the bounds are numbers, and they do not fit the dtype, or the range is empty.
        DtypeError, ShapeError: wrong arguments.

    >>> gt.random.randint(gt.random.key(0), (5,), 0, 10)
    Array([9, 0, 2, 3, 1], dtype=int64)
    """
    sizes = as_sizes("randint", shape)
    low, high = _bound(minval, sizes), _bound(maxval, sizes)
    narrow = dtype is None and default_dtype(int) is torch.int32
    kind = torch.int32 if narrow else _drawn_as(dtype, low, high)
    info = torch.iinfo(kind)
    if type(low) is int and type(high) is int and low >= high:
        raise ArgumentError(message("randint", "minval < maxval", f"{low} and {high}", "The range is empty."))
    for value, most in ((low, info.max), (high, info.max + 1)):
        if type(value) is int and not info.min <= value <= most:
            expected = f"bounds from {info.min} to {most} for {LONG[kind]}"
            raise ArgumentError(message("randint", expected, str(value), "Use a wider dtype."))
    found = fresh_key("randint", key)
    draw = _wide if kind is torch.int64 else draw_int32
    return cast(draw(found, sizes, low, high, info.min, info.max), default_dtype(int) if dtype is None else kind)


def _bound(x: Any, shape: tuple[int, ...]) -> int | Array:
    if type(x) is not Array and python_scalar(x) is not None:
        return as_int("randint", "bound", x)
    out = lift("randint", x)
    if out.aval.floating or out.aval.dtype is torch.bool:
        raise DtypeError(message("randint", "integers as bounds", repr(out.aval), "Use x.astype(gt.int64)."))
    return fill("randint", out, shape)


def _drawn_as(dtype: Any, low: int | Array, high: int | Array) -> torch.dtype:
    if dtype is not None:
        kind = as_dtype(dtype)
        if kind in INEXACT or kind is torch.bool:
            raise DtypeError(message("randint", "an integer dtype", LONG[kind], "Use gt.random.uniform."))
        if kind in WIDE_UNSIGNED:
            fix = "Draw int64 and use x.astype(...)."
            raise DtypeError(message("randint", "a signed or 8-bit integer dtype", LONG[kind], fix))
        return kind
    if default_dtype(float) is torch.float64:  # jax's default is int64 then
        return torch.int64
    for x, most in ((low, _LARGEST >> 32), (high, 1 << 31)):
        if x.aval.dtype is torch.int64 if isinstance(x, Array) else not -(1 << 31) <= x <= most:
            return torch.int64
    return torch.int32


def draw_below(key: Array, shape: tuple[int, ...], count: int) -> Array:
    """Return int64 numbers from 0 to count - 1, sampled as `randint` does without a dtype."""
    kind = _drawn_as(None, 0, count)
    info = torch.iinfo(kind)
    return (_wide if kind is torch.int64 else draw_int32)(key, shape, 0, count, info.min, info.max)


def draw_int32(key: Array, shape: tuple[int, ...], low: int | Array, high: int | Array, least: int, most: int) -> Array:
    """Return int64 numbers sampled as int32, from bounds in [least, most + 1]."""
    upper_key, lower_key = two_keys(key)
    if type(low) is int and type(high) is int:
        start: Any = low
        span: Any = high - low
        factor: Any = (65536 % span) ** 2 % (1 << 32) % span
    else:
        start, stop = (_clipped(x, least, end, key) for x, end in ((low, most), (high, most + 1)))
        span = ops.where(ops.less_equal(stop, start), 1, ops.subtract(stop, start))
        factor = ops.remainder(65536, span)
        factor = ops.bitwise_and(ops.multiply(factor, factor), MASK) % span
    offset = ops.remainder(draw_bits(lower_key, shape, 32), span)
    if type(factor) is Array or factor:
        upper = ops.remainder(draw_bits(upper_key, shape, 32), span)
        offset = ops.bitwise_and(upper * factor + offset, MASK) % span
    return offset + start


def _clipped(x: int | Array, least: int, most: int, key: Array) -> Array:
    if not isinstance(x, Array):
        return full_like_scalar(x, torch.int64, (), key.aval.device)
    wide = cast(x, torch.int64)
    return wide if most >= _LARGEST else ops.minimum(ops.maximum(wide, least), most)


# -- 64 bits: unsigned numbers, as int64 values with the same bits


def _remainder(x: Array, divisor: Array) -> Array:
    """Return the remainder of unsigned 64-bit numbers; a divisor of 0 means 2**64."""
    positive = ops.where(divisor > 0, divisor, 1)
    half = ops.bitwise_and(ops.bitwise_right_shift(x, 1), _LARGEST) % positive
    room = positive - half
    doubled = half - ops.where(half >= room, room, 0 - half)
    result = doubled + ops.bitwise_and(x, 1)
    result = ops.where(ops.equal(result, positive), 0, result)
    # the quotient by a divisor of 2**63 or more is 0 or 1
    once = ops.logical_and(ops.logical_and(divisor < 0, x < 0), x >= divisor)
    return ops.where(divisor > 0, result, x - ops.where(once, divisor, 0))


def _product(x: Array, y: Array, divisor: Array) -> Array:
    """Return x * y modulo `divisor`, which is at most 2**32 and greater than x and y."""
    upper = x * ops.bitwise_right_shift(y, 16) % divisor
    return (upper * 65536 + x * ops.bitwise_and(y, 65535)) % divisor


def _difference(high: Array, low: Array) -> Array:
    """Return high - low, which is positive, as an unsigned number."""
    lower = ops.bitwise_and(high, MASK) - ops.bitwise_and(low, MASK)
    upper = ops.bitwise_right_shift(high, 32) - ops.bitwise_right_shift(low, 32) + ops.bitwise_right_shift(lower, 32)
    upper = ops.bitwise_and(upper, MASK)
    signed = upper - ops.bitwise_left_shift(ops.bitwise_right_shift(upper, 31), 32)
    return signed * (1 << 32) + ops.bitwise_and(lower, MASK)


def _wide(key: Array, shape: tuple[int, ...], low: int | Array, high: int | Array, least: int, most: int) -> Array:
    upper_key, lower_key = two_keys(key)
    start: Array
    if type(low) is int and type(high) is int:
        size = high - low
        start = full_like_scalar(low, torch.int64, (), key.aval.device)
        span = full_like_scalar(size - (1 << 64) if size >> 63 else size, torch.int64, (), key.aval.device)
    else:
        start, stop = (_clipped(x if isinstance(x, Array) else min(x, most), least, most, key) for x in (low, high))
        span = ops.where(ops.less_equal(stop, start), 1, _difference(stop, start))
    lower = _remainder(draw_bits(lower_key, shape, 64), span)
    # for divisors beyond 2**32 the factor of the upper bits is 0
    small = ops.logical_and(ops.greater(span, 0), ops.less_equal(span, 1 << 32))
    divisor = ops.where(small, span, 1)
    factor = (1 << 32) % divisor
    factor = _product(factor, factor, divisor)
    upper = _product(_remainder(draw_bits(upper_key, shape, 64), divisor), factor, divisor)
    offset = ops.where(small, (upper + ops.where(small, lower, 0)) % divisor, lower)
    # in two halves, so that no sum overflows int64
    half = ops.bitwise_and(ops.bitwise_right_shift(offset, 1), _LARGEST)
    return start + half + (half + ops.bitwise_and(offset, 1))
