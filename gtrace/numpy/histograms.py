"""Counts of values in bins, and the bins that values lie in."""

from __future__ import annotations

import math
from typing import Any

import torch

from gtrace.core import ops
from gtrace.core.base.errors import ArgumentError, DtypeError, ShapeError, message
from gtrace.core.ops.counts import accumulator
from gtrace.core.ops.join_split import slice_axis
from gtrace.core.ops.operands import beside, cast, counted, counting, promote, promote_arrays
from gtrace.core.ops.shape import as_int
from gtrace.core.trace.array import Array
from gtrace.core.trace.convert import lift
from gtrace.core.trace.force import whole

__all__ = ["bincount", "digitize", "histogram", "histogram2d", "histogram_bin_edges", "histogramdd"]


@counting
def bincount(x: Any, weights: Any = None, minlength: int = 0, *, length: int | None = None) -> Array:
    """Return how often each of the numbers 0, 1, ... comes in x, or the sums of the weights of each.

    Args:
        x: integers >= 0, of one dimension.
        length: the size of the result, so that the function works while tracing; numbers that are larger, or negative,
            are left out. None: enough for the largest number, and at least `minlength`.

    Raises:
        DtypeError: floats.
        ArgumentError: negative numbers, if no length is given.
        ConcretizationError: no length, while tracing.

    >>> gnp.bincount(gnp.array([1, 1, 3]))
    Array([0, 2, 0, 1], dtype=int64)
    """
    x = lift("bincount", x)
    if x.aval.floating or x.ndim != 1:
        raise DtypeError(message("bincount", "integers of one dimension", repr(x.aval), "Use x.astype(gt.int64)."))
    x = cast(x, torch.int64)
    if length is None:
        smallest, largest = (int(whole(f(x), "size")) if x.size else -1 for f in (ops.min, ops.max))
        if x.size and smallest < 0:
            raise ArgumentError(message("bincount", "numbers >= 0", str(smallest), "Pass length= to leave them out."))
        length = max(largest + 1, as_int("bincount", "minlength", minlength))
    return _count(x, weights, as_int("bincount", "length", length))


def _count(places: Array, weights: Any, count: int) -> Array:
    """Return the counts, or the sums of weights, of the numbers below `count`; others go to one slot more."""
    inside = ops.logical_and(places >= 0, places < count)
    places = ops.where(inside, places, count)
    if weights is None:
        out = (
            ops.full((count + 1,), 0, torch.int64, device=places.aval.device)
            .at[places]
            .add(1, mode="promise_in_bounds")
        )
    else:
        weights = lift("bincount", weights)
        if weights.shape != places.shape:
            got = f"{weights.aval!r} for {places.aval!r}"
            raise ShapeError(message("bincount", "a weight for each element", got, "Check the shapes."))
        (weights,) = promote("bincount", weights, floating=True)
        out = (
            ops.zeros(count + 1, weights.aval.dtype, device=places.aval.device)
            .at[places]
            .add(weights, mode="promise_in_bounds")
        )
    return slice_axis(out, 0, 0, count)


@counting
def digitize(x: Any, bins: Any, right: bool = False) -> Array:
    """Return for each element the number of the bin it lies in: bins[i - 1] <= x < bins[i].

    Args:
        bins: edges of one dimension, in ascending or descending order.
        right: bins hold their upper edge, not the lower one.

    >>> gnp.digitize(gnp.array([0.5, 2.]), gnp.array([0., 1., 2.]))
    Array([1, 3], dtype=int64)
    """
    x = lift("digitize", x)
    bins = beside(x.aval.device, bins, ops.array(bins))
    if bins.ndim != 1:
        raise ShapeError(message("digitize", "bins of one dimension", repr(bins.aval), "Use gt.ravel."))
    if not bins.size:
        return ops.full(x.shape, 0, torch.int64, device=x.aval.device)
    side = "left" if right else "right"
    rising, falling = (
        ops.searchsorted(bins, x, side),
        bins.size - ops.searchsorted(ops.flip(bins), x, side),
    )
    return ops.where(ops.less_equal(bins[0], bins[-1]), rising, falling)


def histogram_bin_edges(x: Any, bins: Any = 10, range: Any = None, weights: Any = None) -> Array:  # noqa: A002
    """Return the edges of bins of equal widths from the smallest to the largest element, or over `range`.

    Args:
        bins: how many, or the edges themselves.
        range: (low, high).
        weights: ignored, as by NumPy for a number of bins.

    Raises:
        ArgumentError: the name of a rule for the number of bins, which depends on the values.
        DtypeError: complex numbers.

    >>> gnp.histogram_bin_edges(gnp.array([0., 4.]), 2)
    Array([0., 2., 4.], dtype=float32)
    """
    if isinstance(bins, str):
        raise ArgumentError(message("histogram", "a number of bins, or edges", repr(bins), "Choose a number."))
    x = lift("histogram", x)
    if x.aval.complex:
        raise DtypeError(message("histogram", "real numbers", repr(x.aval), "Use x.real, x.imag or gt.abs(x)."))
    if isinstance(bins, (list, tuple)) or getattr(bins, "ndim", 0) > 0:
        return ops.array(bins)
    count = as_int("histogram", "number of bins", bins)
    if count < 1:
        raise ArgumentError(message("histogram", "at least one bin", str(count), "Pass a positive integer."))
    (x,) = promote("histogram", x, floating=True)
    if range is not None:
        low, high = (cast(ops.array(v), x.aval.dtype) for v in range)
    else:
        low, high = (f(x) if x.size else ops.full((), v, x.aval.dtype) for f, v in ((ops.min, 0), (ops.max, 1)))
    same = ops.equal(low, high)
    return ops.linspace(
        ops.where(same, ops.subtract(low, 0.5), low), ops.where(same, ops.add(high, 0.5), high), count + 1
    )


def _bins(x: Array, edges: Array) -> Array:
    """Return the bin of each element, or -1 outside and for NaN. The last bin includes its upper edge."""
    x, edges = promote_arrays("histogram", x, edges)
    inside = ops.logical_and(ops.greater_equal(x, edges[0]), ops.less_equal(x, edges[-1]))
    places = ops.clip(ops.searchsorted(edges, ops.where(inside, x, edges[0]), "right") - 1, 0, edges.size - 2)
    return ops.where(inside, places, -1)


def histogram(
    x: Any,
    bins: Any = 10,
    range: Any = None,  # noqa: A002
    density: bool | None = None,
    weights: Any = None,
) -> tuple[Array, Array]:
    """Return how many elements lie in each bin, or the sums of their weights, and the edges of the bins.

    Args:
        bins, range: as in `histogram_bin_edges`.
        density: divide by the total and the widths, so that the integral is 1.

    >>> gnp.histogram(gnp.array([0., 1., 1., 4.]), bins=2)[0]
    Array([3, 1], dtype=int64)
    """
    x = lift("histogram", x)
    edges = histogram_bin_edges(x, bins, range)
    counts = _count(ops.ravel(_bins(x, edges)), None if weights is None else ops.ravel(weights), edges.size - 1)
    if density:
        real = promote_arrays("histogram", edges, counts, floating=True)[0]
        counts = cast(counts, accumulator(real))
        counts = cast(counts / ops.diff(edges) / ops.sum(counts), real.aval.dtype)
    return counts, edges


def histogramdd(
    sample: Any,
    bins: Any = 10,
    range: Any = None,  # noqa: A002
    density: bool | None = None,
    weights: Any = None,
) -> tuple[Array, list[Array]]:
    """Return how many points lie in each cell of a grid, and the edges along each axis.

    Args:
        sample: (points, axes), or a list of the coordinates along each axis.
        bins: a number, or for each axis a number or edges.
        range: for each axis (low, high), or None.

    >>> gnp.histogramdd(gnp.array([[0., 0.], [1., 1.]]), bins=2)[0]
    Array([[1, 0],
           [0, 1]], dtype=int64)
    """
    axes = _coordinates(sample)
    chosen = list(bins) if isinstance(bins, (list, tuple)) else [bins] * len(axes)
    ranges = [None] * len(axes) if range is None else list(range)
    if len(chosen) != len(axes) or len(ranges) != len(axes):
        got = f"{len(chosen)} and {len(ranges)} for {len(axes)}"
        raise ShapeError(message("histogramdd", "bins and a range for each axis", got, "Pass one for each."))
    edges = [histogram_bin_edges(x, b, r) for x, b, r in zip(axes, chosen, ranges, strict=True)]
    sizes = [e.size - 1 for e in edges]
    cell: Array = ops.full((axes[0].size,), 0, torch.int64, device=axes[0].aval.device)
    inside: Array = ops.full((axes[0].size,), True, device=axes[0].aval.device)
    for x, e, n in zip(axes, edges, sizes, strict=True):
        place = _bins(x, e)
        inside = ops.logical_and(inside, ops.greater_equal(place, 0))
        cell = ops.multiply(cell, n) + place
    counts = ops.reshape(_count(ops.where(inside, cell, -1), weights, math.prod(sizes)), tuple(sizes))
    if weights is None:
        counts = counted(counts)
    if density:
        real = promote_arrays("histogramdd", edges[0], counts, floating=True)[0]
        counts = cast(counts, accumulator(real))
        counts = counts / ops.sum(counts)
        for k, (e, n) in enumerate(zip(edges, sizes, strict=True)):
            counts = counts / ops.reshape(ops.diff(e), (n, *(1,) * (len(sizes) - 1 - k)))
        counts = cast(counts, real.aval.dtype)
    return counts, edges


def _coordinates(sample: Any) -> list[Array]:
    if isinstance(sample, (list, tuple)):
        return [lift("histogramdd", ops.array(x)) for x in sample]
    sample = lift("histogramdd", sample)
    if sample.ndim == 1:
        sample = ops.expand_dims(sample, 1)
    if sample.ndim != 2:
        raise ShapeError(message("histogramdd", "points and their axes", repr(sample.aval), "Use gt.reshape."))
    return [ops.ravel(column) for column in ops.split(sample, sample.shape[1], 1)]


def histogram2d(
    x: Any,
    y: Any,
    bins: Any = 10,
    range: Any = None,  # noqa: A002
    density: bool | None = None,
    weights: Any = None,
) -> tuple[Array, Array, Array]:
    """Return how many points (x, y) lie in each cell of a grid, and the edges along both axes; see `histogramdd`.

    >>> gnp.histogram2d(gnp.array([0., 1.]), gnp.array([0., 1.]), bins=2)[0]
    Array([[1, 0],
           [0, 1]], dtype=int64)
    """
    if getattr(bins, "ndim", 0) == 1 or (isinstance(bins, (list, tuple)) and len(bins) != 2):
        bins = [bins, bins]
    counts, (xs, ys) = histogramdd([x, y], bins, range, density, weights)
    return counts, xs, ys
