"""Padding with values that depend on the array: statistics, ramps and odd reflections, as in ``numpy.pad``."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import Any

import numpy

from gtrace.core.base.errors import ArgumentError, ShapeError, message
from gtrace.core.ops.elementwise import add, divide, floor, multiply, subtract
from gtrace.core.ops.elementwise import round as rounded
from gtrace.core.ops.gather import constant_array, take_constant
from gtrace.core.ops.join_split import concat, slice_axis
from gtrace.core.ops.operands import cast
from gtrace.core.ops.reduce import max as largest
from gtrace.core.ops.reduce import mean
from gtrace.core.ops.reduce import min as smallest
from gtrace.core.ops.shape import broadcast_to
from gtrace.core.ops.sorting import sort
from gtrace.core.trace.array import Array

Pairs = tuple[tuple[int, int], ...]


def by_axis(name: str, values: Any, ndim: int) -> Any:
    """Return an option of `pad` as an array of (before, after) for each axis."""
    try:
        return numpy.broadcast_to(numpy.asarray(values), (ndim, 2))
    except ValueError:
        got = f"{values!r} for {ndim} axes"
        raise ShapeError(
            message("pad", f"one number, one pair or one pair an axis as {name}", got, "Pass a number.")
        ) from None


def _median(x: Array, axis: int) -> Array:
    size = x.shape[axis]
    middle = slice_axis(sort(x, axis), axis, (size - 1) // 2, size // 2 + 1)
    return _with_nan(x, mean(middle, axis, True), axis)


def _with_nan(x: Array, value: Array, axis: int) -> Array:
    """Return a value, or NaN if the axis contains one."""
    return add(value, multiply(mean(x, axis, True), 0.0)) if x.aval.floating else value


STATISTICS: dict[str, Callable[[Array, int], Array]] = {
    "maximum": lambda x, axis: largest(x, axis, True),
    "minimum": lambda x, axis: smallest(x, axis, True),
    "mean": lambda x, axis: mean(x, axis, True),
    "median": _median,
}
"""By mode: the function of an axis' elements that gives the padding."""


def pad_statistic(x: Array, pairs: Pairs, mode: str, lengths: Any) -> Array:
    """Return x padded with a statistic of the elements near each end.

    Args:
        lengths: the number of elements at each end, in the form of `pad`; None: all.
    """
    counts = None if lengths is None else by_axis("stat_length", lengths, x.ndim)
    if counts is not None and (counts.dtype.kind not in "iu" or (counts < 1).any()):
        raise ArgumentError(message("pad", "positive integers as stat_length", repr(lengths), "Pass None for all."))
    for axis, pair in enumerate(pairs):
        size = x.shape[axis]
        parts = []
        for side, width in enumerate(pair):
            count = size if counts is None else builtins.min(size, int(counts[axis, side]))
            part = slice_axis(x, axis, 0, count) if side == 0 else slice_axis(x, axis, size - count, size)
            value = STATISTICS[mode](part, axis)
            if not x.aval.floating and not x.aval.complex and mode in ("mean", "median"):
                value = rounded(value)
            shape = (*x.shape[:axis], width, *x.shape[axis + 1 :])
            parts.append(broadcast_to(cast(value, x.aval.dtype), shape))
        x = concat([parts[0], x, parts[1]], axis)
    return x


def pad_ramp(x: Array, pairs: Pairs, end_values: Any) -> Array:
    """Return x padded with linear ramps from its ends to other values; integers are rounded down."""
    ends = by_axis("end_values", end_values, x.ndim)
    for axis, pair in enumerate(pairs):
        size = x.shape[axis]
        parts = []
        for side, width in enumerate(pair):
            edge = slice_axis(x, axis, 0, 1) if side == 0 else slice_axis(x, axis, size - 1, size)
            end = ends[axis, side].item()
            steps = numpy.arange(width) if side == 0 else numpy.arange(width)[::-1]
            shape = [1] * x.ndim
            shape[axis] = width
            along = constant_array(steps.reshape(shape).astype(numpy.int64), x.aval.device)
            line = add(end, divide(multiply(subtract(edge, end), along), builtins.max(width, 1)))
            parts.append(cast(line if x.aval.floating or x.aval.complex else floor(line), x.aval.dtype))
        x = concat([parts[0], x, parts[1]], axis)
    return x


def pad_odd(x: Array, pairs: Pairs, mode: str) -> Array:
    """Return x padded with its odd reflections at both ends: 2 * end - reflection."""
    for axis, (before, after) in enumerate(pairs):
        size = x.shape[axis]
        period = size if mode == "symmetric" else size - 1
        if not period:  # a single element is its own reflection
            x = take_constant(x, numpy.zeros(1 + before + after), axis)
            continue
        turns, places = numpy.divmod(numpy.arange(-before, size + after), period)
        odd = turns % 2 != 0
        shape = [1] * x.ndim
        shape[axis] = -1
        places = numpy.where(odd, size - 1 - places, places)

        def constants(values: Any, shape: Any = shape) -> Array:
            return constant_array(values.astype(numpy.int64).reshape(shape), x.aval.device)  # noqa: B023

        first, last = slice_axis(x, axis, 0, 1), slice_axis(x, axis, size - 1, size)
        out = multiply(take_constant(x, places, axis), constants(1 - 2 * odd))
        for end, factor in ((first, odd - turns), (last, odd + turns)):
            out = add(out, multiply(end, constants(factor)))
        x = cast(out, x.aval.dtype)
    return x
