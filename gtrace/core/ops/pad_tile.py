"""roll, pad, tile, repeat, tril and triu."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import torch

from gtrace.core.backends.interpreter.tuned import MOST_BESIDE
from gtrace.core.base.dtypes import INEXACT
from gtrace.core.base.errors import ArgumentError, DtypeError, ShapeError, message
from gtrace.core.ops.batching import align, shifted, unchanged, whole
from gtrace.core.ops.checks import reshaped, same_kind
from gtrace.core.ops.cumulative import cumsum
from gtrace.core.ops.declare import Array, Aval, BadSample, Op, Sample, bind, define
from gtrace.core.ops.elementwise import minimum, remainder, subtract
from gtrace.core.ops.gather import constant_array, index_axis, take_constant
from gtrace.core.ops.join_split import concat, slice_bounds, slice_update, update_impl
from gtrace.core.ops.operands import cast
from gtrace.core.ops.pad_modes import STATISTICS, by_axis, pad_odd, pad_ramp, pad_statistic
from gtrace.core.ops.samples import uniform
from gtrace.core.ops.shape import (
    as_int,
    as_shape,
    broadcast_to,
    constant,
    expand_dims,
    normalize_axis,
    ravel,
    reshape,
    sum_to,
    with_axis,
)
from gtrace.core.ops.sharding_rules import along, matrices, padded
from gtrace.core.ops.sorting import searchsorted
from gtrace.core.passes.channels_last import pad_in_layout
from gtrace.core.trace.convert import lift, number_operand, python_scalar
from gtrace.core.trace.replayable import replayable

__all__ = ["pad", "repeat", "roll", "tile", "tril", "triu"]

_roll = define(
    "roll", lambda x, shifts, axes: torch.roll(x, shifts, axes), params=("shifts", "axes"), shape=same_kind,
    vjp=lambda ct, needed, x, out, shifts, axes: (bind(_roll, (ct,), (tuple(-s for s in shifts), axes)),),
    linear=True, batch=shifted("axes"), factors=along("axes"),
    samples=lambda: [Sample((uniform(-2, 2, 3, 4), 1, 0)), Sample((uniform(-2, 2, 3, 4), (1, -2), (0, 1)))],
    reference=numpy.roll, user=lambda x, shift, axis: roll(x, shift, axis),
    keeps=slice(None),
)  # fmt: skip


@replayable
def roll(x: Any, shift: Any, axis: Any = None) -> Array:
    """Return x shifted cyclically by `shift` elements along `axis`; None shifts the flattened array.

    Args:
        shift: an integer or an array of integers, which may be traced; several for as many axes.

    >>> gt.roll(gt.arange(4), 1)
    Array([3, 0, 1, 2], dtype=int64)
    """
    x = lift("roll", x)
    if axis is None:
        return reshape(roll(ravel(x), shift, 0), x.shape)
    axes = tuple(axis) if isinstance(axis, (tuple, list)) else (axis,)
    shifts = tuple(shift) if isinstance(shift, (tuple, list)) or getattr(shift, "ndim", False) else (shift,)
    count = max(len(axes), len(shifts))
    axes, shifts = (axes * count if len(axes) == 1 else axes), (shifts * count if len(shifts) == 1 else shifts)
    if len(shifts) != len(axes):
        raise ShapeError(message("roll", "as many shifts as axes", (shifts, axes), "Pass one shift for each axis."))
    places = tuple(normalize_axis("roll", a, x.ndim) for a in axes)
    if not places:
        return x
    if not any(isinstance(s, Array) for s in shifts):
        return bind(_roll, (x,), (tuple(as_int("roll", "shift", s) for s in shifts), places))
    for by, place in zip(shifts, places, strict=True):
        by = lift("roll", by)
        if by.aval.dtype in INEXACT:
            raise DtypeError(message("roll", "integers as shift", repr(by.aval), "Use x.astype(gt.int64)."))
        size = x.aval.shape[place]
        start = subtract(numpy.arange(size), by)
        x = index_axis(x, cast(remainder(start, size), torch.int64), place) if size else x
    return x


def _pad_impl(x: torch.Tensor, value: torch.Tensor, widths: tuple[tuple[int, int], ...]) -> torch.Tensor:
    shape = [n + a + b for n, (a, b) in zip(x.shape, widths, strict=True)]
    bounds = tuple((a, a + n, 1) for n, (a, _) in zip(x.shape, widths, strict=True))
    return update_impl(value.to(x.device).expand(shape).clone(), x, bounds) if shape else x.clone()


def _pad_direct(avals: tuple[Aval, ...], widths: tuple[tuple[int, int], ...]) -> Callable[..., torch.Tensor] | None:
    """Pad with a number in one torch call."""
    x, value = avals
    if not x.shape or value.shape or value.device.type != "cpu":
        return None
    return lambda x, value: pad_in_layout(x, widths, value.item())


def _pad_vjp(
    ct: Array, needed: Any, x: Array, value: Any, out: Array, widths: Any
) -> tuple[Array | None, Array | None]:
    bounds = tuple((a, a + n, 1) for n, (a, _) in zip(x.aval.shape, widths, strict=True))
    into_value = None
    if needed[1]:
        zeros = constant(0.0, x.aval)
        into_value = bind(sum_to, (slice_update(ct, zeros, bounds),), ((),))
    return slice_bounds(ct, bounds), into_value


def _pad_batch(op: Op, size: int, batched: Any, operands: Any, widths: Any) -> Array:
    x, value = operands
    if not batched[1]:
        return bind(op, (*align(size, batched[:1], (x,)), value), (((0, 0), *widths),))
    # each example has its own padding value: fill with it, then write x inside
    inner = x.aval.shape[1:] if batched[0] else x.aval.shape
    sizes = tuple(n + a + b for n, (a, b) in zip(inner, widths, strict=True))
    around = broadcast_to(reshape(value, (size, *(1,) * len(sizes))), (size, *sizes))
    bounds = tuple((a, a + n, 1) for n, (a, _) in zip(inner, widths, strict=True))
    return slice_update(around, align(size, batched[:1], (x,))[0], (whole(size), *bounds))


_pad = define(
    "pad", _pad_impl, direct=_pad_direct, params=("widths",), arity=2, vjp=_pad_vjp, linear=True, batch=_pad_batch,
    factors=padded,
    shape=lambda avals, widths: reshaped(
        avals[0], tuple(n + before + after for n, (before, after) in zip(avals[0].shape, widths, strict=True))
    ),
    samples=lambda: [Sample((uniform(-2, 2, 2, 3), ((1, 0), (0, 2)))), Sample((uniform(-2, 2, 3), 1, "constant", 2.5))],
    errors=lambda: [BadSample((numpy.ones(3), -1), {}, ShapeError, r"widths")],
    reference=lambda x, widths, mode="constant", value=0.0: numpy.pad(x, widths, mode, constant_values=value),
    user=lambda x, widths, mode="constant", value=0.0: pad(x, widths, mode, value),
    keeps=slice(1),
)  # fmt: skip

_PAD_MODES = ("constant", "edge", "reflect", "symmetric", "wrap", "empty", "linear_ramp", *STATISTICS)


@replayable
def pad(
    x: Any, pad_width: Any, mode: str = "constant", constant_values: Any = 0, *, end_values: Any = 0,
    stat_length: Any = None, reflect_type: str = "even",
) -> Array:  # fmt: skip
    """Return x with elements added around it.

    Args:
        pad_width: an int for every side, (before, after) for every axis, or such a pair for each axis.
        mode: "constant", or, as in NumPy, "edge", "reflect", "symmetric", "wrap", "linear_ramp", "maximum",
            "minimum", "mean", "median" or "empty" (which adds zeros).
        constant_values: a number or 0-d array; or numbers by side and axis, as `pad_width`.
        end_values: the end values of "linear_ramp", in the form of `pad_width`.
        stat_length: the number of elements at each end for statistics, in the form of `pad_width`; None: all.
        reflect_type: "even", or "odd" for 2 * end - reflection instead of the reflection.

    Raises:
        ShapeError: a width is negative, or the pairs do not match the axes.
        ArgumentError: `mode` or `reflect_type` is unknown.

    >>> gt.pad(gt.array([1., 2.]), (1, 2))
    Array([0., 1., 2., 0., 0.], dtype=float32)
    """
    x = lift("pad", x)
    try:
        widths = numpy.broadcast_to(numpy.asarray(pad_width), (x.ndim, 2)) if x.ndim else numpy.zeros((0, 2), int)
    except ValueError:
        widths = numpy.array([[-1, -1]])
    if widths.dtype.kind not in "iu" or (widths < 0).any():
        got, fix = f"{pad_width!r} for {x.aval!r}", "Pass ((before, after), ...)."
        raise ShapeError(message("pad", "widths >= 0, one pair an axis", got, fix))
    if mode not in _PAD_MODES:
        raise ArgumentError(message("pad", f"a mode among {', '.join(_PAD_MODES)}", repr(mode), "Use one of them."))
    if reflect_type not in ("even", "odd"):
        raise ArgumentError(message("pad", "even or odd as reflect_type", repr(reflect_type), "Use one of them."))
    pairs = tuple((int(a), int(b)) for a, b in widths)
    if mode == "empty":
        mode, constant_values = "constant", 0
    if mode == "constant" and isinstance(constant_values, (tuple, list, numpy.ndarray)) and numpy.ndim(constant_values):
        return _pad_by_side(x, pairs, constant_values)
    if mode == "constant":
        if python_scalar(constant_values) is not None and type(constant_values) is not Array:
            value: Any = number_operand("pad", python_scalar(constant_values), x.aval.dtype, x.aval.device)  # type: ignore[arg-type]
        else:
            value = cast(lift("pad", constant_values), x.aval.dtype)
        return bind(_pad, (x, value), (pairs,))
    for axis, pair in enumerate(pairs):
        if any(pair) and not x.shape[axis]:
            fix = 'Only mode "constant" can extend it.'
            raise ShapeError(message("pad", f"elements to pad by {mode!r}", f"none on axis {axis}", fix))
    if mode in STATISTICS:
        return pad_statistic(x, pairs, mode, stat_length)
    if mode == "linear_ramp":
        return pad_ramp(x, pairs, end_values)
    if reflect_type == "odd" and mode in ("reflect", "symmetric"):
        return pad_odd(x, pairs, mode)
    for axis, (before, after) in enumerate(pairs):
        if before or after:
            places = numpy.pad(numpy.arange(x.shape[axis]), (before, after), mode=mode)  # type: ignore[call-overload]
            x = take_constant(x, places, axis)
    return x


def _pad_by_side(x: Array, pairs: tuple[tuple[int, int], ...], values: Any) -> Array:
    """Return x padded with a separate constant on each side; later axes are padded last, corners included."""
    sides = by_axis("constant_values", values, x.ndim)
    for axis, pair in enumerate(pairs):
        for side, width in enumerate(pair):
            if width:
                widths = [(0, 0)] * x.ndim
                widths[axis] = (width, 0) if side == 0 else (0, width)
                x = pad(x, widths, constant_values=sides[axis, side])
    return x


@replayable
def tile(x: Any, reps: Any) -> Array:
    """Return x repeated as a whole, `reps` times along each axis.

    >>> gt.tile(gt.array([1, 2]), 2)
    Array([1, 2, 1, 2], dtype=int64)
    """
    x = lift("tile", x)
    counts = as_shape("tile", reps)
    ndim = max(len(counts), x.ndim)
    counts = (1,) * (ndim - len(counts)) + counts
    sizes = (1,) * (ndim - x.ndim) + x.shape
    if any(n < 0 for n in counts):
        raise ShapeError(message("tile", "repetitions >= 0", str(counts), "Pass non-negative integers."))
    spread = reshape(x, tuple(n for size in sizes for n in (1, size)))
    spread = broadcast_to(spread, tuple(n for c, size in zip(counts, sizes, strict=True) for n in (c, size)))
    return reshape(spread, tuple(c * n for c, n in zip(counts, sizes, strict=True)))


@replayable
def repeat(x: Any, repeats: Any, axis: int | None = None, *, total_repeat_length: int | None = None) -> Array:
    """Return x with each element repeated along `axis` (None: of the flattened array).

    Args:
        repeats: an int, or one int for each element of the axis.
        total_repeat_length: the size of the axis in the result, so that `repeats` may be traced. The result is cut, or
            the last element repeated, to that size.

    >>> gt.repeat(gt.array([1, 2]), 2)
    Array([1, 1, 2, 2], dtype=int64)
    """
    x, axis = with_axis("repeat", x if numpy.ndim(x) else ravel(lift("repeat", x)), axis)
    if total_repeat_length is not None:
        length = as_int("repeat", "total_repeat_length", total_repeat_length)
        ends = cumsum(broadcast_to(lift("repeat", repeats), (x.shape[axis],)))
        places = searchsorted(ends, constant_array(numpy.arange(length), x.aval.device), side="right")
        return index_axis(x, minimum(places, x.shape[axis] - 1), axis)
    counts = numpy.asarray(repeats)
    if counts.dtype.kind not in "iu" or (counts < 0).any() or counts.ndim > 1 or counts.size not in (1, x.shape[axis]):
        raise ShapeError(message("repeat", "an integer >= 0, or one for each element", repr(repeats), "Pass an int."))
    if counts.size != 1:
        return take_constant(x, numpy.repeat(numpy.arange(x.shape[axis]), counts), axis)
    count = int(counts.reshape(()))
    spread = expand_dims(x, axis + 1)
    if 1 < count <= MOST_BESIDE:
        spread = concat([spread] * count, axis + 1)
    else:
        spread = broadcast_to(spread, (*x.shape[: axis + 1], count, *x.shape[axis + 1 :]))
    return reshape(spread, (*x.shape[:axis], x.shape[axis] * count, *x.shape[axis + 1 :]))


# -- triangles


def _check_matrix(op: str, avals: tuple[Aval, ...], k: int) -> None:
    if len(avals[0].shape) < 2:
        raise ShapeError(message(op, "at least two dimensions", repr(avals[0]), "Use expand_dims first."))


def _triangle(name: str, function: Any, reference: Any) -> Op:
    op: Op = define(
        name, lambda x, k: function(x, k), params=("k",), check=_check_matrix, shape=same_kind, keeps=slice(None),
        vjp=lambda ct, needed, x, out, k: (bind(op, (ct,), (k,)),), linear=True, batch=unchanged, factors=matrices,
        samples=lambda: [Sample((uniform(-2, 2, 3, 4), k)) for k in (0, 1, -1)],
        errors=lambda: [BadSample((numpy.ones(3),), {}, ShapeError, r"two dimensions")],
        reference=reference, user=lambda x, k=0: bind(op, (lift(name, x),), (as_int(name, "k", k),)),
    )  # fmt: skip
    return op


_tril, _triu = _triangle("tril", torch.tril, numpy.tril), _triangle("triu", torch.triu, numpy.triu)


def tril(x: Any, k: int = 0) -> Array:
    """Return x with zeros above diagonal `k` of its last two axes.

    >>> gt.tril(gt.ones((2, 2)))
    Array([[1., 0.],
           [1., 1.]], dtype=float32)
    """
    return bind(_tril, (lift("tril", x),), (as_int("tril", "k", k),))


def triu(x: Any, k: int = 0) -> Array:
    """Return x with zeros below diagonal `k` of its last two axes.

    >>> gt.triu(gt.ones((2, 2)))
    Array([[1., 1.],
           [0., 1.]], dtype=float32)
    """
    return bind(_triu, (lift("triu", x),), (as_int("triu", "k", k),))
