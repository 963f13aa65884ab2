"""Sampled functions and sequences: convolution, interpolation, slopes, areas, phases, and window functions."""

from __future__ import annotations

import math
from typing import Any

import numpy
import torch

from gtrace.core import ops
from gtrace.core.base.errors import ArgumentError, ShapeError, message
from gtrace.core.ops.convolve import correlate_padded
from gtrace.core.ops.counts import is_short
from gtrace.core.ops.gather import index_axis
from gtrace.core.ops.join_split import slice_axis
from gtrace.core.ops.operands import beside, cast, promote, promote_arrays
from gtrace.core.ops.shape import as_int, normalize_axes, normalize_axis
from gtrace.core.trace.array import Array
from gtrace.core.trace.convert import lift
from gtrace.core.trace.promotion import default_dtype
from gtrace.numpy.filling import like
from gtrace.special.bessel_functions import i0e

__all__ = [
    "bartlett", "blackman", "convolve", "correlate", "ediff1d", "gradient", "hamming", "hanning", "interp", "kaiser",
    "trapezoid", "unwrap",
]  # fmt: skip


def _sliding(op: str, x: Any, y: Any, mode: str) -> tuple[Array, Array, int]:
    """Return two sequences in one dtype, and the zeros around the longer one that a mode means."""
    x, y = promote_arrays(op, x, y)
    if x.ndim != 1 or y.ndim != 1 or not x.size or not y.size:
        got = f"{x.aval!r} and {y.aval!r}"
        raise ShapeError(message(op, "two arrays of one dimension with elements", got, "Use gt.ravel or gt.vmap."))
    if mode not in ("full", "same", "valid"):
        raise ArgumentError(message(op, "full, same or valid as mode", repr(mode), "Pass one of them."))
    return x, y, 0 if mode == "valid" else min(x.size, y.size) - 1


def _middle(out: Array, mode: str, longer: int, shorter: int) -> Array:
    """Return as many elements as the longer sequence has, from the middle, for the mode "same"."""
    if mode != "same":
        return out
    start = (shorter - 1) // 2
    return slice_axis(out, 0, start, start + longer)


def convolve(x: Any, y: Any, mode: str = "full") -> Array:
    """Return the convolution of two sequences: for each k the sum over j of x[j] * y[k - j].

    Args:
        mode: ``"full"``: wherever they overlap; ``"same"``: as many places as the longer has; ``"valid"``: where they
            overlap completely.

    >>> gnp.convolve(gnp.array([1., 2., 3.]), gnp.array([1., 1.]))
    Array([1., 3., 5., 3.], dtype=float32)
    """
    x, y, pad = _sliding("convolve", x, y, mode)
    if x.size < y.size:
        x, y = y, x
    return _middle(correlate_padded(x, ops.flip(y), pad), mode, x.size, y.size)


def correlate(x: Any, y: Any, mode: str = "valid") -> Array:
    """Return the sums of products at each place: for each k the sum over j of x[j + k] * y[j], with y conjugated.

    Args:
        mode: as in `convolve`.

    >>> gnp.correlate(gnp.array([1., 2., 3.]), gnp.array([0., 1.]))
    Array([2., 3.], dtype=float32)
    """
    x, y, pad = _sliding("correlate", x, y, mode)
    y = ops.conj(y)
    if x.size < y.size:
        return ops.flip(_middle(correlate_padded(y, x, pad), mode, y.size, x.size))
    return _middle(correlate_padded(x, y, pad), mode, x.size, y.size)


def interp(x: Any, xp: Any, fp: Any, left: Any = None, right: Any = None, period: Any = None) -> Array:
    """Return at x the straight lines between the points (xp, fp).

    Args:
        xp: ascending (with a period, in any order).
        left, right: values before the first point and after the last; None: theirs; ``"extrapolate"``: the lines go on.
        period: of the function, if it has one.

    Raises:
        ShapeError: points of other than one dimension, none of them, or of two sizes.

    >>> gnp.interp(gnp.array([0.5, 3.]), gnp.array([0., 1.]), gnp.array([10., 20.]))
    Array([15., 20.], dtype=float32)
    """
    x = ops.array(x)
    xp, fp = (beside(x.aval.device, given, ops.array(given)) for given in (xp, fp))
    if fp.aval.complex:
        x, xp = promote_arrays("interp", x, xp, floating=True)
    else:
        x, xp, fp = promote_arrays("interp", x, xp, fp, floating=True)
    if xp.ndim != 1 or xp.shape != fp.shape or not xp.size:
        got = f"{xp.aval!r} and {fp.aval!r}"
        raise ShapeError(message("interp", "points of one dimension, as many xp as fp", got, "Check the shapes."))
    if period is not None:
        period = ops.absolute(lift("interp", period))
        x, xp = ops.remainder(x, period), ops.remainder(xp, period)
        order = ops.argsort(xp)
        xp, fp = index_axis(xp, order, 0), index_axis(fp, order, 0)
        xp = ops.concat([ops.subtract(xp[-1:], period), xp, ops.add(xp[:1], period)])
        fp = ops.concat([fp[-1:], fp, fp[:1]])
    ends = [(ops.less(x, xp[0]), 0, left), (ops.greater(x, xp[-1]), -1, right)] if period is None else []
    ends = [end for end in ends if not (isinstance(end[2], str) and end[2] == "extrapolate")]
    for outside, end, _ in ends:
        x = ops.where(outside, xp[end], x)
    count = xp.size
    above = ops.clip(ops.searchsorted(xp, x, "right"), 1, max(count - 1, 1))
    above = ops.clip(above, 0, count - 1)
    below = ops.clip(above - 1, 0, count - 1)
    x0, f0 = index_axis(xp, below, 0), index_axis(fp, below, 0)
    width, past = ops.subtract(index_axis(xp, above, 0), x0), ops.subtract(x, x0)
    # where the width has no finite inverse, a line has values, but derivatives take it for a constant
    steep = ops.absolute(width) <= torch.finfo(width.aval.dtype).tiny / 4
    fraction = ops.where(
        steep,
        ops.stop_gradient(ops.where(ops.equal(width, 0), 0.0, past / width)),
        past / ops.where(steep, 1.0, width),
    )
    out = f0 + fraction * ops.subtract(index_axis(fp, above, 0), f0)
    for outside, end, value in ends:
        out = ops.where(outside, fp[end] if value is None else value, out)
    return out


def gradient(f: Any, *varargs: Any, axis: Any = None, edge_order: int = 1) -> Any:
    """Return the slopes of samples along each axis: central differences inside, one-sided ones at the ends.

    Args:
        varargs: the distance of the samples, or their coordinates; one for all axes, or one for each.
        axis: None: a list over all axes (one array for one axis); an int: one array; several: a list.
        edge_order: 1 or 2, the order of the differences at the ends.

    Raises:
        ShapeError: too few samples along an axis, or coordinates of another size.

    >>> gnp.gradient(gnp.array([1., 4., 9.]))
    Array([3., 4., 5.], dtype=float32)
    """
    (f,) = promote("gradient", ops.array(f), floating=True)
    if is_short(f.aval.dtype):
        found = gradient(cast(f, torch.float32), *varargs, axis=axis, edge_order=edge_order)
        return [cast(x, f.aval.dtype) for x in found] if isinstance(found, list) else cast(found, f.aval.dtype)
    axes = normalize_axes("gradient", axis, f.ndim)
    if isinstance(axis, (tuple, list)):
        axes = tuple(normalize_axis("gradient", k, f.ndim) for k in axis)
    steps = list(varargs) or [1.0]
    steps = steps * len(axes) if len(steps) == 1 else steps
    if len(steps) != len(axes):
        got = f"{len(steps)} for {len(axes)} axes"
        raise ArgumentError(message("gradient", "one distance, or one for each axis", got, "Match them."))
    if edge_order not in (1, 2):
        raise ArgumentError(message("gradient", "an edge_order of 1 or 2", repr(edge_order), "Pass one of them."))
    out = [_slopes(f, k, ops.array(h), edge_order) for k, h in zip(axes, steps, strict=True)]
    return out if len(out) != 1 else out[0]


def _slopes(f: Array, axis: int, h: Array, order: int) -> Array:
    size = f.shape[axis]
    if size < order + 1 or (h.ndim and h.shape != (size,)):
        got = f"{size} samples and {h.aval!r}"
        raise ShapeError(message("gradient", f"{order + 1} samples, and a coordinate for each", got, "Check both."))
    y = ops.moveaxis(f, axis, -1)
    d = cast(ops.diff(h) if h.ndim else h, f.aval.dtype)
    forward = ops.diff(y) / d
    if h.ndim:
        left, right = d[:-1], d[1:]
        total = ops.add(left, right)
        inner = forward[..., :-1] * (right / total) + forward[..., 1:] * (left / total)
    else:
        inner = (y[..., 2:] - y[..., :-2]) / ops.multiply(d, 2.0)
    first, last = forward[..., :1], forward[..., -1:]
    if order == 2:
        # the slope of the parabola through three samples
        ratio = (d[:1] / ops.add(d[:1], d[1:2]), d[-1:] / ops.add(d[-1:], d[-2:-1])) if h.ndim else (0.5, 0.5)
        bend = forward[..., 1:2] - first, last - forward[..., -2:-1]
        first, last = (
            first - ops.multiply(bend[0], ratio[0]),
            last + ops.multiply(bend[1], ratio[1]),
        )
    return ops.moveaxis(ops.concat([first, inner, last], -1), -1, axis)


def ediff1d(x: Any, to_end: Any = None, to_begin: Any = None) -> Array:
    """Return the differences of neighbours in the flattened array, after `to_begin` and before `to_end`.

    >>> gnp.ediff1d(gnp.array([1, 4, 9]), to_begin=0)
    Array([0, 3, 5], dtype=int64)
    """
    steps = ops.diff(ops.ravel(ops.array(x)))
    ends = [None if e is None else ops.ravel(like(e, steps)) for e in (to_begin, to_end)]
    parts = [p for p in (ends[0], steps, ends[1]) if p is not None]
    return ops.concat(parts) if len(parts) > 1 else steps


def trapezoid(y: Any, x: Any = None, dx: Any = 1.0, axis: int = -1) -> Array:
    """Return the area below samples y along `axis`, by the trapezoidal rule.

    Args:
        x: the coordinates of the samples, of one dimension, or with the same `axis` and others that broadcast to those
            of y; None: their distance is dx.
        dx: a number, or distances that broadcast to the pairs of neighbours.

    >>> gnp.trapezoid(gnp.array([1., 2., 3.]))
    Array(4., dtype=float32)
    """
    (y,) = promote("trapezoid", ops.array(y), floating=True)
    place = normalize_axis("trapezoid", axis, y.ndim)
    ndim, y = y.ndim, ops.moveaxis(y, place, -1)
    width: Any = dx
    if numpy.ndim(dx):
        dx = ops.array(dx)
        width = ops.moveaxis(ops.reshape(dx, (1,) * (ndim - dx.ndim) + dx.shape), place, -1)
    if x is not None:
        x = ops.array(x)
        width = ops.diff(x if x.ndim == 1 else ops.moveaxis(x, normalize_axis("trapezoid", axis, x.ndim), -1))
    pairs = ops.add(slice_axis(y, y.ndim - 1, 1, y.shape[-1]), slice_axis(y, y.ndim - 1, 0, max(y.shape[-1] - 1, 0)))
    return ops.sum(pairs * width, -1) * 0.5


def unwrap(p: Any, discont: Any = None, axis: int = -1, *, period: Any = 2 * math.pi) -> Array:
    """Return phases with multiples of `period` added, so that neighbours along `axis` differ by at most half of it.

    Args:
        discont: the largest difference that stays; None: half the period.

    >>> gnp.unwrap(gnp.array([0., 3., 6., 1.]), period=7.)
    Array([0., 3., 6., 8.], dtype=float32)
    """
    p = promote("unwrap", lift("unwrap", p), period)[0]
    axis = normalize_axis("unwrap", axis, p.ndim)
    step = ops.diff(p, axis=axis)
    half = period // 2 if isinstance(period, int) and not p.aval.floating else period / 2
    short = ops.remainder(step + half, period) - half
    short = ops.where(ops.logical_and(ops.equal(short, -half), step > 0), half, short)
    correction = short - step
    correction = ops.where(ops.absolute(step) < (half if discont is None else discont), 0, correction)
    start = slice_axis(p, axis, 0, min(1, p.shape[axis]))
    rest = slice_axis(p, axis, min(1, p.shape[axis]), p.shape[axis])
    return ops.concat([start, ops.add(rest, cast(ops.cumsum(correction, axis), p.aval.dtype))], axis)


# -- window functions


def _cosines(op: str, count: int, *weights: float) -> Array:
    count = as_int(op, "number of points", count)
    if count <= 1:
        return ops.ones(max(count, 0))
    angle = ops.arange(count, dtype=torch.float64) * (2 * math.pi / (count - 1))
    out: Any = weights[0]
    for k, weight in enumerate(weights[1:], 1):
        out = out + ops.cos(angle * float(k)) * weight
    return cast(out, default_dtype(float))


def hanning(M: int) -> Array:  # noqa: N803 - NumPy's name
    """Return the Hann window of M points, as float32.

    >>> gnp.round(gnp.hanning(5), 3)
    Array([0. , 0.5, 1. , 0.5, 0. ], dtype=float32)
    """
    return _cosines("hanning", M, 0.5, -0.5)


def hamming(M: int) -> Array:  # noqa: N803 - NumPy's name
    """Return the Hamming window of M points, as float32.

    >>> gnp.round(gnp.hamming(3), 3)
    Array([0.08, 1.  , 0.08], dtype=float32)
    """
    return _cosines("hamming", M, 0.54, -0.46)


def blackman(M: int) -> Array:  # noqa: N803 - NumPy's name
    """Return the Blackman window of M points, as float32.

    >>> gnp.round(gnp.blackman(4), 3)
    Array([-0.  ,  0.63,  0.63, -0.  ], dtype=float32)
    """
    return _cosines("blackman", M, 0.42, -0.5, 0.08)


def kaiser(M: int, beta: Any) -> Array:  # noqa: N803 - NumPy's name
    """Return the Kaiser window of M points: i0(beta * sqrt(1 - x ** 2)) / i0(beta), for x from -1 to 1.

    Args:
        beta: the shape of the window, a number, or an array () that derivatives may be taken by; 0: all ones.

    Raises:
        ShapeError: beta is not one number.

    >>> gnp.round(gnp.kaiser(5, 14.0), 3)
    Array([0.   , 0.165, 1.   , 0.165, 0.   ], dtype=float32)
    """
    count = as_int("kaiser", "number of points", M)
    (beta,) = promote_arrays("kaiser", beta, floating=True)
    if beta.ndim:
        raise ShapeError(message("kaiser", "one number as beta", repr(beta.aval), "Use gt.vmap."))
    if count <= 1:
        return ops.ones(max(count, 0), beta.aval.dtype)
    place = numpy.linspace(-1.0, 1.0, count)
    height = ops.array(numpy.sqrt(numpy.maximum(1.0 - place * place, 0.0)))
    wide = cast(beta, torch.float64)
    # scaled, both by the larger one: i0 itself overflows
    small = ops.absolute(wide) * (height - 1.0)
    return cast(i0e(wide * height) * ops.exp(small) / i0e(wide), beta.aval.dtype)


def bartlett(M: int) -> Array:  # noqa: N803 - NumPy's name
    """Return the triangular window of M points, as float32.

    >>> gnp.bartlett(5)
    Array([0. , 0.5, 1. , 0.5, 0. ], dtype=float32)
    """
    count = as_int("bartlett", "number of points", M)
    return ops.array(numpy.bartlett(count), default_dtype(float))
